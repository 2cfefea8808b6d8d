//! The settings: from `<home>/config.toml` (or `--config FILE`), each overridden by its environment variable.
//!
//! Values from the environment are parsed from the raw string, strictly: nothing is trimmed, clamped or guessed.
//! What only the control server reads is passed through as written, so that it judges what the operator wrote.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use seam::{Disk, HostFacts};
use toml::{Table, Value};

use crate::home::Home;

/// All settings of one backend, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The installation's directory.
    pub home: Home,
    /// `features.agentSurvival`: off by default (S-005.1).
    pub agent_survival: bool,
    /// Where the backend's users reach it; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The host that the control server listens on and that is dialled.
    pub standalone_host: String,
    /// The control server's port.
    pub standalone_port: u16,
    /// The control server's program, if it is not beside this one.
    pub controld_path: Option<String>,
    /// The one bound over recovery (S-003.7).
    pub recovery_deadline: Duration,
    /// The bound of one read (S-002.13).
    pub read_timeout: Duration,
    /// How often a read is repeated after the first try (S-002.13).
    pub read_retries: u32,
    /// Environment for the control server: what it reads, as written.
    pub passed_through: BTreeMap<String, String>,
    /// The agent profiles.
    pub profiles: BTreeMap<String, Profile>,
    /// Keys of the file that this build does not know.
    pub unknown_keys: Vec<String>,
}

/// How one kind of agent is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// A path, or a name that is looked up in `PATH`.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Added to the environment that the agent gets.
    pub env: BTreeMap<String, String>,
    /// The mode to select after the conversation is opened.
    pub mode: Option<String>,
}

/// Why the configuration was refused: what, which value, which rule.
#[derive(Debug, thiserror::Error)]
pub enum ConfigRefused {
    /// The file cannot be read.
    #[error(
        "configuration file {path} cannot be read: repair or remove it, or name another with --config",
        path = path.display()
    )]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The file is not TOML.
    #[error(
        "configuration file {path} is not valid TOML in line {line}: {message}; repair it, or name another with \
         --config",
        path = path.display()
    )]
    NotToml {
        /// Which.
        path: PathBuf,
        /// Where, from 1. The line itself is not shown: a profile's environment may hold keys of providers.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// A value breaks its rule.
    #[error("{origin} = {value}: {rule}")]
    Value {
        /// The key or the variable.
        origin: String,
        /// As written.
        value: String,
        /// The rule, with the allowed range.
        rule: String,
    },
    /// There is no home directory to use.
    #[error("no home directory: set KANDEV_HOME_DIR (or HOME, below which .kandev is used)")]
    NoHome,
}

impl Config {
    /// Reads the file and the environment; a home from the command line stands for its variable.
    ///
    /// # Errors
    /// See [`ConfigRefused`].
    pub async fn load(
        disk: &dyn Disk,
        host: &dyn HostFacts,
        file: Option<PathBuf>,
        home: Option<String>,
    ) -> Result<Self, ConfigRefused> {
        let mut environment = host.environment();
        if let Some(home) = home {
            environment.insert("KANDEV_HOME_DIR".to_owned(), home);
        }
        let (path, named) = match file {
            Some(path) => (path, true),
            None => (home_from(None, &environment)?.config(), false),
        };
        let table = match disk.read(&path, FILE_LIMIT).await {
            Ok(bytes) => parse_file(&path, &bytes)?,
            Err(error) if is_absent(&error) && !named => Table::new(),
            Err(cause) => return Err(ConfigRefused::Unreadable { path, cause }),
        };
        Self::from_parts(table, environment)
    }

    /// Validates what a file and an environment say.
    ///
    /// # Errors
    /// See [`ConfigRefused`].
    pub fn from_parts(table: Table, environment: BTreeMap<String, String>) -> Result<Self, ConfigRefused> {
        let mut source = Source { table, environment };
        let home = source.text("home", "KANDEV_HOME_DIR")?;
        let home = home_from(home.map(|found| found.value), &source.environment)?;
        let agent_survival = source
            .text("features.agentSurvival", "KANDEV_FEATURES_AGENT_SURVIVAL")?
            .map_or(Ok(false), |found| found.parse(switch, "allowed are true and false"))?;
        let listen =
            source.text("server.listen", "KANDEV_SERVER_LISTEN")?.map_or(Ok(DEFAULT_LISTEN), |found| {
                found
                    .parse(|text| text.parse().ok(), "an address and port is needed, such as 127.0.0.1:38429")
            })?;
        let standalone_host = source
            .text("agent.standaloneHost", "KANDEV_AGENT_STANDALONE_HOST")?
            .map_or(Ok("127.0.0.1".to_owned()), |found| {
                found.parse(host, "one host of this machine is needed that can be dialled, such as 127.0.0.1, and not all of them")
            })?;
        let standalone_port = source
            .text("agent.standalonePort", "KANDEV_AGENT_STANDALONE_PORT")?
            .map_or(Ok(DEFAULT_PORT), |found| found.parse(port, "a port between 1 and 65535 is needed"))?;
        let controld_path = source.text("agent.controldPath", "KANDEV_AGENT_CONTROLD_PATH")?;
        let reads = Reads::from_source(&mut source)?;
        let passed_through = source.passed_through()?;
        let profiles = source.profiles()?;
        Ok(Self {
            home,
            agent_survival,
            listen,
            standalone_host,
            standalone_port,
            controld_path: controld_path.map(|found| found.value),
            recovery_deadline: reads.deadline,
            read_timeout: reads.timeout,
            read_retries: reads.retries,
            passed_through,
            profiles,
            unknown_keys: source.leftovers(),
        })
    }
}

/// The three values that bound recovery, which are judged together.
struct Reads {
    deadline: Duration,
    timeout: Duration,
    retries: u32,
}

impl Reads {
    fn from_source(source: &mut Source) -> Result<Self, ConfigRefused> {
        let deadline = source.text("agentctl.recoveryDeadline", "KANDEV_ACP_RECOVERY_DEADLINE")?.map_or(
            Ok(DEFAULT_DEADLINE),
            |found| {
                let rule = "a duration between 1s and 5m is needed";
                found.parse(
                    |text| duration(text).filter(|d| (LEAST_DEADLINE..=MOST_DEADLINE).contains(d)),
                    rule,
                )
            },
        )?;
        let found = source.text("agentctl.recoveryReadTimeout", "KANDEV_ACP_RECOVERY_READ_TIMEOUT")?;
        let written = found.as_ref().map(|found| (found.origin.clone(), found.value.clone()));
        let timeout = found.map_or(Ok(DEFAULT_TIMEOUT), |found| {
            let rule = "a duration of 100ms or more is needed";
            found.parse(|text| duration(text).filter(|d| *d >= LEAST_TIMEOUT), rule)
        })?;
        let retries = source
            .text("agentctl.recoveryReadRetries", "KANDEV_ACP_RECOVERY_READ_RETRIES")?
            .map_or(Ok(DEFAULT_RETRIES), |found| {
                let rule = "a whole number between 0 and 10 is needed";
                found.parse(|text| whole(text).filter(|n| *n <= MOST_RETRIES), rule)
            })?;
        let ceiling = MOST_PRODUCT.min(deadline / 5);
        let product = timeout.saturating_mul(retries + 1);
        if product > ceiling {
            let (origin, value) = written.unwrap_or_else(|| {
                ("agentctl.recoveryReadTimeout".to_owned(), format!("{timeout:?} (default)"))
            });
            let rule = format!(
                "per-read timeout × (retries + 1) = {timeout:?} × {} = {product:?} must not exceed {ceiling:?}, \
                 the lesser of 6s and a fifth of the recovery bound ({deadline:?})",
                retries + 1
            );
            return Err(ConfigRefused::Value { origin, value, rule });
        }
        Ok(Self { deadline, timeout, retries })
    }
}

/// One value as somebody wrote it.
struct Found {
    origin: String,
    value: String,
}

impl Found {
    fn parse<T>(self, parse: impl FnOnce(&str) -> Option<T>, rule: &str) -> Result<T, ConfigRefused> {
        match parse(&self.value) {
            Some(value) => Ok(value),
            None => Err(self.refused(rule)),
        }
    }

    fn refused(self, rule: &str) -> ConfigRefused {
        ConfigRefused::Value {
            origin: self.origin,
            value: format!("{:?}", self.value),
            rule: rule.to_owned(),
        }
    }
}

/// The file, from which every known key is taken away, and the environment over it.
struct Source {
    table: Table,
    environment: BTreeMap<String, String>,
}

impl Source {
    /// The variable if it is set, else the key.
    fn text(&mut self, key: &str, variable: &str) -> Result<Option<Found>, ConfigRefused> {
        let from_file = self.take(key);
        if let Some(value) = self.environment.get(variable) {
            return Ok(Some(Found { origin: variable.to_owned(), value: value.clone() }));
        }
        let origin = key.to_owned();
        match from_file {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(Found { origin, value })),
            Some(Value::Integer(value)) => Ok(Some(Found { origin, value: value.to_string() })),
            Some(Value::Boolean(value)) => Ok(Some(Found { origin, value: value.to_string() })),
            Some(other) => Err(ConfigRefused::Value {
                origin,
                value: format!("(a {})", other.type_str()),
                rule: "a text, a whole number, true or false is needed".to_owned(),
            }),
        }
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        let (section, name) = match key.split_once('.') {
            None => return self.table.remove(key),
            Some(parts) => parts,
        };
        self.table.get_mut(section)?.as_table_mut()?.remove(name)
    }

    fn passed_through(&mut self) -> Result<BTreeMap<String, String>, ConfigRefused> {
        let mut passed = BTreeMap::new();
        for (key, variable) in PASSED_THROUGH {
            if let Some(found) = self.text(key, variable)? {
                passed.insert(variable.to_owned(), found.value);
            }
        }
        Ok(passed)
    }

    fn profiles(&mut self) -> Result<BTreeMap<String, Profile>, ConfigRefused> {
        let table = match self.table.remove("profiles") {
            None => return Ok(BTreeMap::new()),
            Some(Value::Table(table)) => table,
            Some(other) => {
                return Err(profile_refused("profiles", &other, "tables such as [profiles.NAME] are needed"));
            }
        };
        let mut profiles = BTreeMap::new();
        for (name, value) in table {
            let origin = format!("profiles.{name}");
            let Value::Table(mut fields) = value else {
                return Err(profile_refused(&origin, &value, "a table with a command is needed"));
            };
            profiles.insert(name.clone(), profile(&origin, &mut fields)?);
            if !fields.is_empty() {
                self.table.insert(origin, Value::Table(fields));
            }
        }
        Ok(profiles)
    }

    /// Every key that nothing asked for.
    fn leftovers(self) -> Vec<String> {
        let mut keys = Vec::new();
        for (name, value) in self.table {
            match value {
                Value::Table(fields) => keys.extend(fields.keys().map(|field| format!("{name}.{field}"))),
                _ => keys.push(name),
            }
        }
        keys
    }
}

fn profile(origin: &str, fields: &mut Table) -> Result<Profile, ConfigRefused> {
    let text = |key: &str, value: Value| match value {
        Value::String(text) => Ok(text),
        other => Err(profile_refused(&format!("{origin}.{key}"), &other, "a text is needed")),
    };
    let command = match fields.remove("command") {
        Some(value) => text("command", value)?,
        None => String::new(),
    };
    if command.is_empty() {
        let rule = "the agent's program is needed, as a path or a name in PATH";
        return Err(profile_refused(&format!("{origin}.command"), &Value::String(command), rule));
    }
    let args = match fields.remove("args") {
        None => Vec::new(),
        Some(Value::Array(args)) => {
            args.into_iter().map(|arg| text("args", arg)).collect::<Result<Vec<_>, _>>()?
        }
        Some(other) => {
            return Err(profile_refused(&format!("{origin}.args"), &other, "a list of texts is needed"));
        }
    };
    let env = match fields.remove("env") {
        None => BTreeMap::new(),
        Some(Value::Table(env)) => env
            .into_iter()
            .map(|(name, value)| Ok((name, text("env", value)?)))
            .collect::<Result<BTreeMap<_, _>, _>>()?,
        Some(other) => {
            return Err(profile_refused(&format!("{origin}.env"), &other, "a table of texts is needed"));
        }
    };
    let mode = fields.remove("mode").map(|mode| text("mode", mode)).transpose()?;
    Ok(Profile { command, args, env, mode })
}

fn profile_refused(origin: &str, value: &Value, rule: &str) -> ConfigRefused {
    // A profile's environment may hold keys of providers: only the kind of a wrong value is shown.
    let value = match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        other => format!("(a {})", other.type_str()),
    };
    ConfigRefused::Value { origin: origin.to_owned(), value, rule: rule.to_owned() }
}

fn parse_file(path: &std::path::Path, bytes: &[u8]) -> Result<Table, ConfigRefused> {
    let not_toml = |message: String, at: usize| {
        let line = 1 + bytes.iter().take(at).filter(|byte| **byte == b'\n').count();
        ConfigRefused::NotToml { path: path.to_owned(), line, message }
    };
    let text =
        str::from_utf8(bytes).map_err(|error| not_toml("it is not UTF-8".to_owned(), error.valid_up_to()))?;
    text.parse::<Table>().map_err(|error| {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        not_toml(message, error.span().map_or(0, |span| span.start))
    })
}

/// No file, or no home that could hold one: what is wrong with the home is told by whoever needs it.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

/// The home that these settings name: an explicit one, `KANDEV_HOME_DIR`, or `~/.kandev`.
///
/// # Errors
/// None is named, or it is not an absolute path.
fn home_from(
    explicit: Option<String>,
    environment: &BTreeMap<String, String>,
) -> Result<Home, ConfigRefused> {
    let (origin, path) = match (explicit, environment.get("KANDEV_HOME_DIR"), environment.get("HOME")) {
        (Some(path), _, _) => ("home", path),
        (None, Some(path), _) => ("KANDEV_HOME_DIR", path.clone()),
        (None, None, Some(user)) if !user.is_empty() => ("HOME", format!("{user}/.kandev")),
        _ => return Err(ConfigRefused::NoHome),
    };
    if !path.starts_with('/') {
        return Err(ConfigRefused::Value {
            origin: origin.to_owned(),
            value: format!("{path:?}"),
            rule: "an absolute path is needed".to_owned(),
        });
    }
    Ok(Home::new(path))
}

/// A whole number and one unit of ms, s, m, h; nothing else, `0` excepted.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

fn whole(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// One that can be dialled: an address that stands for all of them would let everybody in, and is nobody's (O-001.12).
fn host(text: &str) -> Option<String> {
    let all = text.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    (!text.is_empty() && !all).then(|| text.to_owned())
}

fn port(text: &str) -> Option<u16> {
    whole(text).and_then(|number| u16::try_from(number).ok()).filter(|port| *port != 0)
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

/// What only the control server reads: key and variable.
const PASSED_THROUGH: [(&str, &str); 3] = [
    ("agentctl.unownedPeriod", "KANDEV_ACP_UNOWNED_PERIOD"),
    ("agentctl.detachedEventLimit", "KANDEV_ACP_DETACHED_EVENT_LIMIT"),
    ("agentctl.idleTimeout", "KANDEV_ACP_IDLE_TIMEOUT"),
];

/// A configuration file is a few kilobytes; a larger one is something else and is not read into memory.
const FILE_LIMIT: u64 = 1024 * 1024;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 38_429);
const DEFAULT_PORT: u16 = 39_429;

/// S-003.7: default and accepted range of the bound.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);
const LEAST_DEADLINE: Duration = Duration::from_secs(1);
const MOST_DEADLINE: Duration = Duration::from_secs(300);

/// S-002.13: defaults, floors and the product's ceiling.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
const LEAST_TIMEOUT: Duration = Duration::from_millis(100);
const DEFAULT_RETRIES: u32 = 2;
const MOST_RETRIES: u32 = 10;
const MOST_PRODUCT: Duration = Duration::from_secs(6);

#[cfg(test)]
mod tests {
    use super::*;

    fn config(file: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigRefused> {
        let mut env = BTreeMap::from([("HOME".to_owned(), "/home/user".to_owned())]);
        env.extend(environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Config::from_parts(file.parse().unwrap(), env)
    }

    fn refusal(file: &str, environment: &[(&str, &str)]) -> String {
        config(file, environment).unwrap_err().to_string()
    }

    #[test]
    fn nothing_configured_gives_the_defaults() {
        let config = config("", &[]).unwrap();
        assert_eq!(config.home, Home::new("/home/user/.kandev"));
        assert!(!config.agent_survival);
        assert_eq!(config.listen.to_string(), "127.0.0.1:38429");
        assert_eq!((config.standalone_host.as_str(), config.standalone_port), ("127.0.0.1", 39_429));
        assert_eq!(config.recovery_deadline, Duration::from_secs(30));
        assert_eq!((config.read_timeout, config.read_retries), (Duration::from_secs(2), 2));
    }

    #[test]
    fn the_control_servers_host_is_one_that_can_be_dialled() {
        for fine in ["127.0.0.1", "::1", "localhost", "192.0.2.7"] {
            let file = format!("[agent]\nstandaloneHost = {fine:?}");
            assert_eq!(config(&file, &[]).unwrap().standalone_host, fine);
        }
        for all in ["0.0.0.0", "::", ""] {
            let refused = config("", &[("KANDEV_AGENT_STANDALONE_HOST", all)]).unwrap_err().to_string();
            assert!(
                refused.contains("KANDEV_AGENT_STANDALONE_HOST") && refused.contains("127.0.0.1"),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let file = "features.agentSurvival = false\n[agent]\nstandalonePort = 4000";
        let env = [("KANDEV_FEATURES_AGENT_SURVIVAL", "true"), ("KANDEV_AGENT_STANDALONE_PORT", "5000")];
        let config = config(file, &env).unwrap();
        assert!(config.agent_survival);
        assert_eq!(config.standalone_port, 5000);
    }

    #[test]
    fn a_bound_outside_its_range_is_refused_with_key_value_and_range() {
        for value in ["999ms", "301s", "6m", "0", "", " 30s", "+30s", "30", "1e1s", "30.0s", "-1s"] {
            let said = refusal("", &[("KANDEV_ACP_RECOVERY_DEADLINE", value)]);
            let expected =
                format!("KANDEV_ACP_RECOVERY_DEADLINE = {value:?}: a duration between 1s and 5m is needed");
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn reads_have_floors() {
        assert!(refusal("", &[("KANDEV_ACP_RECOVERY_READ_TIMEOUT", "99ms")]).contains("100ms or more"));
        for value in ["11", "-1", "1.0", " 1", "+1", ""] {
            assert!(refusal("", &[("KANDEV_ACP_RECOVERY_READ_RETRIES", value)]).contains("between 0 and 10"));
        }
    }

    #[test]
    fn the_product_is_judged_against_the_configured_bound() {
        let said = refusal("agentctl.recoveryDeadline = \"10s\"", &[]);
        assert!(said.contains("must not exceed 2s"), "{said}");
        config(
            "[agentctl]\nrecoveryDeadline = \"10s\"\nrecoveryReadTimeout = \"500ms\"\nrecoveryReadRetries = 3",
            &[],
        )
        .unwrap();
        assert!(refusal("agentctl.recoveryReadRetries = 3", &[]).contains("must not exceed 6s"));
    }

    #[test]
    fn what_the_control_server_reads_is_passed_through_as_written() {
        let config =
            config("agentctl.detachedEventLimit = 250", &[("KANDEV_ACP_UNOWNED_PERIOD", "90s")]).unwrap();
        let expected = [("KANDEV_ACP_DETACHED_EVENT_LIMIT", "250"), ("KANDEV_ACP_UNOWNED_PERIOD", "90s")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(config.passed_through, BTreeMap::from(expected));
    }

    #[test]
    fn a_profile_names_a_command_and_unknown_keys_are_named() {
        let file = "typo = 1\n[profiles.fake]\ncommand = \"agent\"\nargs = [\"-v\"]\nenv = { A = \"b\" }\nmoed = \"x\"";
        let config = config(file, &[]).unwrap();
        let fake = &config.profiles["fake"];
        assert_eq!((fake.command.as_str(), fake.args.as_slice()), ("agent", ["-v".to_owned()].as_slice()));
        assert_eq!(config.unknown_keys, ["profiles.fake.moed", "typo"]);
        assert!(refusal("[profiles.fake]\nargs = []", &[]).starts_with("profiles.fake.command"));
    }

    #[test]
    fn an_error_about_a_profile_never_shows_its_environment() {
        let said = refusal("[profiles.fake]\ncommand = \"agent\"\nenv = { KEY = 12345 }", &[]);
        assert!(!said.contains("12345"), "{said}");
    }
}
