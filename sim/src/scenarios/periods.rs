//! How long a control server tolerates having no owner, as it is configured: each case is one start of a backend with
//! these settings, which tells what holds and why.

use std::time::Duration;

use super::installation::Installation;
use super::user::User;
use crate::observer::Violation;
use crate::plan::Plan;
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;

/// Settings of the unowned period and of the idle timeout above it.
#[derive(Clone, Copy, Debug)]
pub struct Periods;

/// What is configured: the unowned period and the idle timeout; empty for the default.
pub const PERIOD_CASES: [(&str, &str); 8] = [
    ("", ""),
    ("20m", "1h"),
    ("2h", "1h"),
    ("1h", "1h"),
    ("2h", "0"),
    ("5s", ""),
    ("10m", "90s"),
    ("10m", "30s"),
];

impl Scenario for Periods {
    fn name(&self) -> &'static str {
        "periods"
    }

    fn criterion(&self) -> &'static str {
        "O-003.4"
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        let cases = PERIOD_CASES.len() as u64;
        Plan::calm(&mut faults).knob("case", faults.below(cases))
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { play(&director).await })
    }
}

async fn play(director: &Director) -> Result<(), Violation> {
    let case = usize::try_from(director.knob("case")).unwrap_or_default();
    let (period, idle) = PERIOD_CASES.get(case).copied().unwrap_or_default();
    let mut settings = String::from("[agentctl]\n");
    for (key, value) in [("unownedPeriod", period), ("idleTimeout", idle)] {
        if !value.is_empty() {
            settings.push_str(&format!("{key} = {value:?}\n"));
        }
    }
    let installation = Installation::lay_out_with(director, &settings);
    tokio::select! {
        biased;
        verdict = work(director, &installation) => verdict,
        broken = installation.keep_backend_running() => match broken? {},
    }
}

async fn work(director: &Director, installation: &Installation<'_>) -> Result<(), Violation> {
    director.wait_for("the server listens", LIMIT, |line| line.logged("controld", "listening")).await?;
    User::of(installation, 1).open_session().await.map(drop)
}

const LIMIT: Duration = Duration::from_secs(30);
