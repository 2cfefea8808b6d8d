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
    refusals: u64,
    driven: u64,
    heard: u64,
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
                self.refusals += 1;
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
                self.driven += 1;
                let refused = self.launches.get(&line.process).and_then(|launch| self.refused.get(launch));
                if let Some(backend) = refused {
                    let expected = format!("{} is left alone, {backend} has refused it", line.process);
                    return Err(violation(expected, line));
                }
            }
            (Kind::Log, _, "thief heard") => {
                self.heard += 1;
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

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![("refusals", self.refusals), ("operations", self.driven), ("requests to strangers", self.heard)]
    }
}

fn violation(expected: String, line: &Line) -> Violation {
    Violation::new("unproven-untouched", "O-001.4", expected, line.to_string())
}
