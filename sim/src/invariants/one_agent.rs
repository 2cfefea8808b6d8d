//! **one-agent**: a session never has a second live agent.

use std::collections::BTreeMap;

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::{Kind, Line};

/// Has no model of its own: the world's process table is the truth.
#[derive(Default)]
pub(super) struct OneAgent {
    judged: u64,
}

impl Observer for OneAgent {
    fn id(&self) -> &'static str {
        "one-agent"
    }

    fn line(&mut self, line: &Line, world: &WorldView<'_>) -> Result<(), Violation> {
        let decisive = line.logged("backend-recovery", "session re-tracked")
            || (line.kind == Kind::Process && line.program() == "scripted-agent" && line.text == "started");
        if !decisive {
            return Ok(());
        }
        self.judged += 1;
        let mut agents: BTreeMap<String, String> = BTreeMap::new();
        for process in world.processes() {
            let session = process.env.get("KANDEV_SESSION_ID");
            let Some(session) = session.filter(|_| process.runs && process.program == "scripted-agent")
            else {
                continue;
            };
            if let Some(other) = agents.insert(session.clone(), process.label.clone()) {
                return Err(Violation::new(
                    "one-agent",
                    "S-002.15",
                    format!("session {session} has one live agent, {other}"),
                    format!("{} runs for it too", process.label),
                ));
            }
        }
        Ok(())
    }

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![("starts and re-trackings", self.judged)]
    }
}
