//! The backend is killed in mid-turn, at a point that the seed draws; the agents go on, and a new backend adopts
//! their server and re-tracks every session.

use super::story::{self, End};
use crate::plan::Plan;
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;

/// One SIGKILL to the backend, anywhere in its first life.
#[derive(Clone, Copy, Debug)]
pub struct BackendKilledInMidTurn;

impl Scenario for BackendKilledInMidTurn {
    fn name(&self) -> &'static str {
        "backend-killed"
    }

    fn criterion(&self) -> &'static str {
        "S-001.2"
    }

    fn states(&self) -> &'static [&'static str] {
        &["killed in mid-turn", "launch interrupted", "prompt not delivered", "permission answered"]
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        let plan = Plan::calm(&mut faults).knob("sessions", faults.between(1, 4));
        let plan = story::with_kill(plan, &mut faults, 1);
        story::with_trouble(plan, &mut faults)
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { story::play(&director, End::Kill, 1).await })
    }
}
