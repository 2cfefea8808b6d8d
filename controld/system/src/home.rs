//! Where an installation keeps its files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The home that a process was given: `--home DIR` or `--home=DIR` among its arguments, else `KANDEV_HOME_DIR`,
/// else `.kandev` in the user's directory. Always absolute; a relative one counts from the working directory.
/// Empty values count as not given.
pub fn home_from(arguments: &[String], environment: &BTreeMap<String, String>) -> PathBuf {
    let given = |name: &str| environment.get(name).map(String::as_str).filter(|value| !value.is_empty());
    let home = argument(arguments)
        .or_else(|| given("KANDEV_HOME_DIR"))
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(given("HOME").unwrap_or(".")).join(".kandev"));
    // Fails only without a working directory; the path as given then fails where it is used, by name.
    std::path::absolute(&home).unwrap_or(home)
}

fn argument(arguments: &[String]) -> Option<&str> {
    let mut arguments = arguments.iter().map(String::as_str);
    while let Some(argument) = arguments.next() {
        let value = match argument {
            "--" => return None,
            "--home" => arguments.next(),
            other => other.strip_prefix("--home="),
        };
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(arguments: &[&str], environment: &[(&str, &str)]) -> PathBuf {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        home_from(&arguments, &environment)
    }

    #[test]
    fn the_argument_wins_over_the_variable_over_the_users_directory() {
        let variables = [("KANDEV_HOME_DIR", "/variable"), ("HOME", "/home/me")];
        assert_eq!(home(&["serve", "--home", "/argument"], &variables), Path::new("/argument"));
        assert_eq!(home(&["--home=/argument", "serve"], &variables), Path::new("/argument"));
        assert_eq!(home(&["serve"], &variables), Path::new("/variable"));
        assert_eq!(home(&["serve"], &variables[1..]), Path::new("/home/me/.kandev"));
    }

    #[test]
    fn empty_values_count_as_not_given() {
        let variables = [("KANDEV_HOME_DIR", ""), ("HOME", "/home/me")];
        assert_eq!(home(&["--home", ""], &variables), Path::new("/home/me/.kandev"));
        assert_eq!(home(&["--home"], &variables), Path::new("/home/me/.kandev"));
    }

    #[test]
    fn a_prompt_that_mentions_the_flag_is_not_the_flag() {
        let variables = [("KANDEV_HOME_DIR", "/variable")];
        assert_eq!(home(&["prompt", "--", "--home", "/elsewhere"], &variables), Path::new("/variable"));
    }

    #[test]
    fn a_home_is_always_absolute() {
        assert!(home(&["--home", "somewhere"], &[]).is_absolute());
        assert!(home(&[], &[]).is_absolute());
    }
}
