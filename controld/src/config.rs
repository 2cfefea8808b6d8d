//! What the launcher decided: the command line and the three variables that are passed through.
//!
//! Values of variables are judged from their raw text. Nothing is trimmed, rounded or clamped into shape (S-001.8),
//! with the one exception that the specification makes: the unowned period gives way to its neighbours
//! ([`UnownedPeriod`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::unowned_period::{IdleReaping, PeriodAdjustment, UnownedPeriod};

/// The validated configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The installation's home.
    pub(crate) home: PathBuf,
    /// Exactly where to listen.
    pub(crate) listen: SocketAddr,
    /// The file that holds the launcher's nonce.
    pub(crate) nonce_file: PathBuf,
    /// Whether the end of standard input ends the server: the capability is off.
    pub(crate) until_stdin_closes: bool,
    /// How long the server tolerates having no owner.
    pub(crate) unowned_period: Duration,
    /// What was done to the configured period, in this order.
    pub(crate) adjustments: Vec<PeriodAdjustment>,
    /// When idle instances are stopped.
    pub(crate) idle_reaping: IdleReaping,
    /// How many unacknowledged events one instance may hold.
    pub(crate) event_limit: usize,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigRefused {
    /// Help or version was asked for: no error.
    #[error("{0}")]
    Help(String),
    /// The command line does not parse.
    #[error("{0}")]
    CommandLine(String),
    /// A path is not absolute.
    #[error(
        "{option} is {value:?}, but must be an absolute path: name it from the root, as /home/me/.kandev"
    )]
    Relative {
        /// The option.
        option: &'static str,
        /// What it was given.
        value: PathBuf,
    },
    /// A variable's value breaks its rule.
    #[error("{variable} is {value:?}, but must be {rule}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// Its raw value.
        value: String,
        /// What it must be, and the way out.
        rule: &'static str,
    },
}

/// Supervises agents for one installation, and outlives the backend that started it.
#[derive(Parser)]
#[command(name = "controld", version)]
struct CommandLine {
    /// The installation's home directory, absolute.
    #[arg(long, value_name = "DIR")]
    home: PathBuf,
    /// The address to listen on, and no other.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// The file with the nonce that buys the first credential, absolute. Read once.
    #[arg(long, value_name = "FILE")]
    nonce_file: PathBuf,
    /// Stop every instance and exit once standard input ends.
    #[arg(long)]
    until_stdin_closes: bool,
}

impl Config {
    /// Judges the arguments after the program's name, and the environment.
    pub(crate) fn parse(
        arguments: Vec<String>,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigRefused> {
        let arguments = std::iter::once("controld".to_owned()).chain(arguments);
        let line = CommandLine::try_parse_from(arguments).map_err(|error| {
            if error.use_stderr() {
                ConfigRefused::CommandLine(error.to_string())
            } else {
                ConfigRefused::Help(error.to_string())
            }
        })?;
        for (option, path) in [("--home", &line.home), ("--nonce-file", &line.nonce_file)] {
            if !path.is_absolute() {
                return Err(ConfigRefused::Relative { option, value: path.clone() });
            }
        }
        let idle_timeout =
            variable(environment, IDLE_TIMEOUT, IDLE_RULE, duration)?.unwrap_or(DEFAULT_IDLE_TIMEOUT);
        let configured = variable(environment, UNOWNED_PERIOD, PERIOD_RULE, period)?;
        let idle_reaping = IdleReaping::from_timeout(idle_timeout);
        let UnownedPeriod { period, adjustments } = UnownedPeriod::resolve(configured, idle_reaping);
        Ok(Self {
            home: line.home,
            listen: line.listen,
            nonce_file: line.nonce_file,
            until_stdin_closes: line.until_stdin_closes,
            unowned_period: period,
            adjustments,
            idle_reaping,
            event_limit: variable(environment, EVENT_LIMIT, LIMIT_RULE, event_limit)?
                .unwrap_or(DEFAULT_EVENT_LIMIT),
        })
    }
}

fn variable<T>(
    environment: &BTreeMap<String, String>,
    variable: &'static str,
    rule: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, ConfigRefused> {
    let Some(value) = environment.get(variable) else { return Ok(None) };
    match parse(value) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(ConfigRefused::Variable { variable, value: value.clone(), rule }),
    }
}

/// Decimal digits only, and in range. `u64::from_str` alone would also take `+100`.
fn event_limit(raw: &str) -> Option<usize> {
    if raw.is_empty() || !raw.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    raw.parse().ok().filter(|limit| (1..=10_000).contains(limit))
}

/// A duration that is longer than zero.
fn period(raw: &str) -> Option<Duration> {
    duration(raw).filter(|period| !period.is_zero())
}

/// A duration as Go writes it, without a sign: `1h30m`, `90s`, `1.5h`, `500ms`, and the one number without a unit, `0`.
fn duration(raw: &str) -> Option<Duration> {
    if raw.is_empty() {
        return None;
    }
    let mut rest = if raw == "0" { "" } else { raw };
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let (unit, after) = unit(after)?;
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total = total.checked_add(whole.checked_mul(unit)?)?;
        if !fraction.is_empty() {
            let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
            let fraction: u128 = fraction.parse().ok()?;
            total = total.checked_add(fraction.checked_mul(unit)? / scale)?;
        }
        rest = after;
    }
    Some(Duration::from_nanos(u64::try_from(total).ok()?))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// The leading unit in nanoseconds, and what follows it.
fn unit(text: &str) -> Option<(u128, &str)> {
    // Longer names first: `ms` would otherwise be read as minutes.
    let units: [(&str, u128); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("μs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    units.into_iter().find_map(|(name, nanos)| text.strip_prefix(name).map(|rest| (nanos, rest)))
}

/// How long the server tolerates having no owner.
const UNOWNED_PERIOD: &str = "KANDEV_ACP_UNOWNED_PERIOD";
/// How long an instance may be idle.
const IDLE_TIMEOUT: &str = "KANDEV_ACP_IDLE_TIMEOUT";
/// How many unacknowledged events one instance may hold.
const EVENT_LIMIT: &str = "KANDEV_ACP_DETACHED_EVENT_LIMIT";

const PERIOD_RULE: &str =
    "a duration with a unit and longer than zero, such as 10m, 90s or 1h30m; unset it for 10m";
const IDLE_RULE: &str = "a duration with a unit, such as 1h or 90m, or 0 for never; unset it for 1h";
const LIMIT_RULE: &str = "a whole number from 1 to 10000, in plain digits; unset it for 100";

/// As the specification has it.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// S-001.6.
const DEFAULT_EVENT_LIMIT: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Config, ConfigRefused> {
        let arguments = ["--home", "/h", "--listen", "127.0.0.1:39429", "--nonce-file", "/h/nonce"];
        let environment =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Config::parse(arguments.map(str::to_owned).to_vec(), &environment)
    }

    #[test]
    fn unset_variables_mean_their_defaults() {
        let config = parse(&[]).unwrap();
        assert_eq!(Duration::from_secs(600), config.unowned_period);
        assert_eq!(100, config.event_limit);
        assert!(!config.until_stdin_closes);
    }

    #[test]
    fn the_event_limit_is_a_whole_number_in_range_and_nothing_else() {
        for (raw, limit) in [("1", 1), ("10000", 10_000), ("007", 7)] {
            assert_eq!(limit, parse(&[(EVENT_LIMIT, raw)]).unwrap().event_limit);
        }
        for raw in [
            "",
            "0",
            "10001",
            "-1",
            "+100",
            " 100",
            "100 ",
            "1e2",
            "100.0",
            "0x10",
            "١٠٠",
            "1_000",
            "18446744073709551616",
        ] {
            let refused = parse(&[(EVENT_LIMIT, raw)]).unwrap_err().to_string();
            assert!(refused.contains(EVENT_LIMIT) && refused.contains("1 to 10000"), "{refused}");
        }
    }

    #[test]
    fn the_period_is_read_as_go_writes_it() {
        for (raw, seconds) in
            [("10m", 600), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("120000ms", 120), (".5h", 1800)]
        {
            let config = parse(&[(UNOWNED_PERIOD, raw), (IDLE_TIMEOUT, "0")]).unwrap();
            assert_eq!(
                (Duration::from_secs(seconds), vec![]),
                (config.unowned_period, config.adjustments),
                "{raw}"
            );
        }
        for raw in
            ["", "10", "0", "0s", "-5m", "+5m", " 10m", "10m ", "10 m", "m", ".s", "1d", "10M", "9999999999h"]
        {
            let refused = parse(&[(UNOWNED_PERIOD, raw)]).unwrap_err().to_string();
            assert!(refused.contains(UNOWNED_PERIOD) && refused.contains("10m"), "{refused}");
        }
    }

    #[test]
    fn a_period_below_the_floor_becomes_the_floor_and_is_remembered() {
        let config = parse(&[(UNOWNED_PERIOD, "5s")]).unwrap();
        assert_eq!(Duration::from_secs(60), config.unowned_period);
        let raised =
            PeriodAdjustment::RaisedToFloor { from: Duration::from_secs(5), to: Duration::from_secs(60) };
        assert_eq!(vec![raised], config.adjustments);
    }

    #[test]
    fn the_idle_timeout_may_be_zero_and_is_never_guessed() {
        assert_eq!(IdleReaping::After(Duration::from_secs(3600)), parse(&[]).unwrap().idle_reaping);
        for raw in ["0", "0s", "0h0m"] {
            assert_eq!(IdleReaping::Off, parse(&[(IDLE_TIMEOUT, raw)]).unwrap().idle_reaping, "{raw}");
        }
        for raw in ["", "00", "-1h", "1", " 1h", "never"] {
            let refused = parse(&[(IDLE_TIMEOUT, raw)]).unwrap_err().to_string();
            assert!(refused.contains(IDLE_TIMEOUT) && refused.contains("0 for never"), "{refused}");
        }
    }

    #[test]
    fn a_relative_path_or_an_unknown_option_is_refused_by_name() {
        let line = |home: &str, more: &str| {
            let arguments = ["--home", home, "--listen", "127.0.0.1:1", "--nonce-file", "/n", more];
            Config::parse(arguments.map(str::to_owned).to_vec(), &BTreeMap::new()).unwrap_err().to_string()
        };
        assert!(line("here", "--until-stdin-closes").contains("--home"));
        assert!(line("/h", "--verbose").contains("--verbose"));
    }
}
