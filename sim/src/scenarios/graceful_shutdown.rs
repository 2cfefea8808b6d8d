//! The backend is asked to stop in mid-turn: it lets go of its agents instead of stopping them.

use super::story::{self, End};
use crate::plan::Plan;
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;

/// One SIGTERM to the backend in mid-turn.
#[derive(Clone, Copy, Debug)]
pub struct GracefulShutdown;

impl Scenario for GracefulShutdown {
    fn name(&self) -> &'static str {
        "graceful-shutdown"
    }

    fn criterion(&self) -> &'static str {
        "S-001.1"
    }

    fn states(&self) -> &'static [&'static str] {
        &["stopped in mid-turn", "permission answered"]
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        let plan = Plan::calm(&mut faults).knob("sessions", faults.between(1, 4));
        story::with_trouble(plan, &mut faults)
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { story::play(&director, End::Terminate, 1).await })
    }
}
