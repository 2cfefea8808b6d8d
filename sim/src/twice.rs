//! The same seed in two processes that differ in everything that must not matter: environment, address layout,
//! wall-clock second. Until both give the same trace, byte for byte, no seed means anything.
#![expect(clippy::disallowed_methods, reason = "real processes and real time are what is compared here")]

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Why the same seed did not prove to be the same run.
#[derive(Debug)]
pub enum Different {
    /// One of the processes could not be run, or its trace not be read.
    Failed(io::Error),
    /// The first line that differs, as each of the two wrote it.
    Line {
        /// Its number, from 1.
        number: usize,
        /// What the first process wrote; empty if it had ended.
        first: String,
        /// What the second process wrote; empty if it had ended.
        second: String,
    },
}

impl fmt::Display for Different {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(_) => f.write_str("the same seed could not be run twice"),
            Self::Line { number, first, second } => write!(
                f,
                "the same seed gave two traces, which differ from line {number} on\n  one    {first}\n  other  {second}"
            ),
        }
    }
}

impl std::error::Error for Different {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Line { .. } => None,
        }
    }
}

/// Runs `executable run SCENARIO --seed N` twice and compares what the runs wrote. Gives the number of lines.
///
/// # Errors
/// See [`Different`].
pub fn twice(executable: &Path, scenario: &str, seed: u64) -> Result<usize, Different> {
    let first = trace_of(executable, scenario, seed, 0).map_err(Different::Failed)?;
    // Into another second of the wall clock.
    std::thread::sleep(Duration::from_millis(1100));
    let second = trace_of(executable, scenario, seed, 1).map_err(Different::Failed)?;
    compare(&first, &second)
}

fn compare(first: &str, second: &str) -> Result<usize, Different> {
    let (mut one, mut other) = (first.lines(), second.lines());
    let mut number = 0;
    loop {
        number += 1;
        match (one.next(), other.next()) {
            (None, None) => return Ok(number - 1),
            (first, second) if first == second => {}
            (first, second) => {
                let shown = |line: Option<&str>| line.unwrap_or_default().to_owned();
                return Err(Different::Line { number, first: shown(first), second: shown(second) });
            }
        }
    }
}

fn trace_of(executable: &Path, scenario: &str, seed: u64, turn: usize) -> io::Result<String> {
    let path = scratch(turn);
    let mut command = Command::new(executable);
    command
        .args(["run", scenario, "--seed", &seed.to_string(), "--trace"])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if turn > 0 {
        // A larger environment also moves the stack and with it every address on it.
        command.env("SIM_TWICE", "x".repeat(3001)).env("TZ", "Pacific/Chatham").env("LANG", "C");
    }
    // A run that fails writes its trace all the same: failing twice alike is being the same.
    let _status = command.status()?;
    let trace = std::fs::read_to_string(&path)?;
    std::fs::remove_file(&path)?;
    Ok(trace)
}

fn scratch(turn: usize) -> PathBuf {
    std::env::temp_dir().join(format!("sim-twice-{}-{turn}.trace", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_named() {
        assert_eq!(compare("a\nb\n", "a\nb\n").unwrap(), 2);
        match compare("a\nb\n", "a\n").unwrap_err() {
            Different::Line { number, first, second } => {
                assert_eq!((number, first.as_str(), second.as_str()), (2, "b", ""));
            }
            Different::Failed(error) => panic!("{error}"),
        }
    }
}
