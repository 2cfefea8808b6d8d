//! **proof-first**: a control server demonstrates its credential before a backend shows it anything, and no process
//! without the credential is ever taken for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::{Kind, Line};

/// Which server answered a challenge when, and what backends made of it.
#[derive(Default)]
pub(super) struct ProofFirst {
    /// By process, the launch that it is.
    launches: BTreeMap<String, String>,
    /// Ordinals of the newest answered challenge and of the newest rotation, by launch.
    answered: BTreeMap<String, u64>,
    rotated: BTreeMap<String, u64>,
    /// Ordinal at which a backend started.
    started: BTreeMap<String, u64>,
    /// What each backend holds for proved.
    proved: BTreeSet<(String, String)>,
    rotations: u64,
    proofs: u64,
    adoptions: u64,
    heard: u64,
}

impl Observer for ProofFirst {
    fn id(&self) -> &'static str {
        "proof-first"
    }

    fn line(&mut self, line: &Line, _world: &WorldView<'_>) -> Result<(), Violation> {
        match (line.kind, line.program(), line.text.as_str()) {
            (Kind::Process, "backend-recovery", "started") => {
                self.started.insert(line.process.clone(), line.ordinal);
            }
            (Kind::Log, "controld", "listening") => {
                self.launches.insert(line.process.clone(), line.field("server").to_owned());
            }
            (Kind::Log, "controld", "challenge answered") => {
                self.answered.insert(self.launch(line), line.ordinal);
            }
            (Kind::Log, "controld", "credential rotated") if line.field("replayed") == "false" => {
                self.rotations += 1;
                let launch = self.launch(line);
                let since = self.rotated.insert(launch.clone(), line.ordinal).unwrap_or_default();
                return self.answered_since(&launch, since, line);
            }
            (Kind::Log, "backend-recovery", "control server proved") => {
                self.proofs += 1;
                let launch = line.field("server").to_owned();
                self.proved.insert((line.process.clone(), launch.clone()));
                let since = self.started.get(&line.process).copied().unwrap_or_default();
                return self.answered_since(&launch, since, line);
            }
            (Kind::Log, "backend-recovery", "control server adopted") => {
                self.adoptions += 1;
                let proved = (line.process.clone(), line.field("server").to_owned());
                if !self.proved.contains(&proved) {
                    let expected = format!("{} adopts only what proved itself to it", line.process);
                    return Err(violation("O-001.2", expected, line.to_string()));
                }
            }
            (Kind::Log, _, "thief heard") => {
                self.heard += 1;
                if line.field("credential") != "false" {
                    let expected = "nobody shows a credential to a process that proved nothing".to_owned();
                    return Err(violation("O-001.10", expected, line.to_string()));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("rotations", self.rotations),
            ("proofs", self.proofs),
            ("adoptions", self.adoptions),
            ("requests to strangers", self.heard),
        ]
    }
}

impl ProofFirst {
    fn launch(&self, line: &Line) -> String {
        self.launches.get(&line.process).cloned().unwrap_or_default()
    }

    fn answered_since(&self, launch: &str, since: u64, line: &Line) -> Result<(), Violation> {
        if self.answered.get(launch).is_some_and(|answered| *answered > since) {
            return Ok(());
        }
        let expected = format!("launch {launch} answered a challenge between line {since} and this");
        Err(violation("O-001.10", expected, line.to_string()))
    }
}

fn violation(criterion: &str, expected: String, seen: String) -> Violation {
    Violation::new("proof-first", criterion, expected, seen)
}
