//! **unproven-untouched**: a server that was refused gets nothing more from the backend that refused it, and a process
//! that proved nothing hears nothing but the two open questions.

use std::collections::BTreeMap;

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::{Kind, Line};

/// Which launch was refused by which backend that still lives.
#[derive(Default)]
pub(super) struct UnprovenUntouched {
    launches: BTreeMap<String, String>,
    refused: BTreeMap<String, String>,
}

impl Observer for UnprovenUntouched {
    fn id(&self) -> &'static str {
        "unproven-untouched"
    }

    fn line(&mut self, line: &Line, _world: &WorldView<'_>) -> Result<(), Violation> {
        match (line.kind, line.program(), line.text.as_str()) {
            (Kind::Log, "backend-recovery", "control server refused")
                if line.field("reason") != "capability_incompatibility" =>
            {
                self.refused.insert(line.field("server").to_owned(), line.process.clone());
            }
            (Kind::Process, "backend-recovery", "ended") => {
                self.refused.retain(|_, backend| *backend != line.process);
            }
            (Kind::Log, "controld", "listening") => {
                self.launches.insert(line.process.clone(), line.field("server").to_owned());
            }
            (
                Kind::Log,
                "controld",
                "driven" | "credential rotated" | "rotation confirmed" | "ownership claimed",
            ) => {
                let refused = self.launches.get(&line.process).and_then(|launch| self.refused.get(launch));
                if let Some(backend) = refused {
                    let expected = format!("{} is left alone, {backend} has refused it", line.process);
                    return Err(violation(expected, line));
                }
            }
            (Kind::Log, _, "thief heard") => {
                let open = ["GET /identity", "POST /ownership/prove"];
                let asked = format!("{} {}", line.field("method"), line.field("path"));
                if !open.contains(&asked.as_str()) {
                    return Err(violation(format!("it hears {} alone", open.join(" and ")), line));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn violation(expected: String, line: &Line) -> Violation {
    Violation::new("unproven-untouched", "O-001.4", expected, line.to_string())
}
