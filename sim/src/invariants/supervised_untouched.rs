//! **supervised-untouched**: a backend ends agents itself only when their control server is gone.

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::Line;

/// Has no model of its own: the world's process table is the truth.
#[derive(Default)]
pub(super) struct SupervisedUntouched {
    judged: u64,
}

impl Observer for SupervisedUntouched {
    fn id(&self) -> &'static str {
        "supervised-untouched"
    }

    fn line(&mut self, line: &Line, world: &WorldView<'_>) -> Result<(), Violation> {
        if !line.logged("backend-recovery", "agent without a control server is ended") {
            return Ok(());
        }
        self.judged += 1;
        let processes = world.processes();
        let supervised = processes.iter().find(|process| {
            let of_session =
                process.env.get("KANDEV_SESSION_ID").is_some_and(|id| id == line.field("session"));
            let server = processes.iter().find(|server| server.label == process.parent);
            process.runs && of_session && server.is_some_and(|server| server.runs)
        });
        match supervised {
            None => Ok(()),
            Some(agent) => Err(Violation::new(
                "supervised-untouched",
                "ruling 15",
                format!("{} is left to its control server {}, which lives", agent.label, agent.parent),
                line.to_string(),
            )),
        }
    }

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![("agents that a backend ends", self.judged)]
    }
}
