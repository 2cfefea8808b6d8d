//! **unproven-untouched**: a server that was refused gets nothing more from the backend that refused it, and a process
//! that proved nothing hears nothing but the two open questions.

use std::collections::{BTreeMap, BTreeSet};

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::{Kind, Line};

/// Which process was refused by which backend.
#[derive(Default)]
pub(super) struct UnprovenUntouched {
    /// By launch, the process.
    launches: BTreeMap<String, String>,
    /// By backend and address, who answered there last.
    answering: BTreeMap<(String, String), String>,
    /// Backend and process.
    refused: BTreeSet<(String, String)>,
    refusals: u64,
    bytes: u64,
    heard: u64,
}

impl Observer for UnprovenUntouched {
    fn id(&self) -> &'static str {
        "unproven-untouched"
    }

    fn line(&mut self, line: &Line, _world: &WorldView<'_>) -> Result<(), Violation> {
        let backend = || line.process.clone();
        match (line.kind, line.program(), line.text.as_str()) {
            (Kind::Log, "controld", "listening") => {
                self.launches.insert(line.field("server").to_owned(), line.process.clone());
            }
            (Kind::Effect, "backend-recovery", "net.connect") => {
                self.answering
                    .insert((backend(), line.field("address").to_owned()), line.field("to").to_owned());
            }
            (Kind::Log, "backend-recovery", "control server refused")
                if line.field("reason") != "capability_incompatibility" =>
            {
                self.refusals += 1;
                // Who calls itself by another name is refused too: it is whoever answered.
                let answering = self.answering.get(&(backend(), line.field("address").to_owned()));
                let refused = answering.or_else(|| self.launches.get(line.field("server")));
                self.refused.extend(
                    refused
                        .filter(|refused| !refused.is_empty())
                        .cloned()
                        .map(|refused| (backend(), refused)),
                );
            }
            // Bytes alone count: to see whether somebody listens there, a connection is opened and closed.
            (Kind::Effect, "backend-recovery", "stream.write") if !self.refused.is_empty() => {
                self.bytes += 1;
                let to = line.field("to");
                if self.refused.contains(&(backend(), to.to_owned())) {
                    let expected = format!("{to} is left alone, {} has refused it", line.process);
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
        vec![
            ("refusals", self.refusals),
            ("bytes after a refusal", self.bytes),
            ("requests to strangers", self.heard),
        ]
    }
}

fn violation(expected: String, line: &Line) -> Violation {
    Violation::new("unproven-untouched", "O-001.4", expected, line.to_string())
}
