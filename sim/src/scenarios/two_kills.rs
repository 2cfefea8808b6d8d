//! Two kills in a row: the second falls anywhere in the second life, most of it in the middle of recovery.

use super::story::{self, End};
use crate::plan::Plan;
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;

/// A SIGKILL in each of the backend's first two lives.
#[derive(Clone, Copy, Debug)]
pub struct TwoKillsInARow;

impl Scenario for TwoKillsInARow {
    fn name(&self) -> &'static str {
        "two-kills"
    }

    fn criterion(&self) -> &'static str {
        "S-001.2"
    }

    fn states(&self) -> &'static [&'static str] {
        &[
            "killed in mid-turn",
            "killed in recovery",
            "launch interrupted",
            "prompt not delivered",
            "permission answered",
        ]
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        let plan = Plan::calm(&mut faults).knob("sessions", faults.between(1, 4));
        let plan = story::with_kill(plan, &mut faults, 1);
        let plan = story::with_kill(plan, &mut faults, 2);
        story::with_trouble(plan, &mut faults)
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { story::play(&director, End::Kill, 2).await })
    }
}
