//! **conservation**: every event that an agent produced is stored once, in order.
//!
//! What was produced is what the agents themselves wrote down after each line that their pipe took; what is stored is
//! what a user reads. In between, nothing may be acknowledged that is not stored (ruling 4).

use std::collections::BTreeMap;

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::{Kind, Line};

/// What was said, stored and read so far.
#[derive(Default)]
pub(super) struct Conservation {
    /// By session, in order.
    said: BTreeMap<String, Vec<String>>,
    /// By session, since the transcript was last read to its end.
    reading: BTreeMap<String, Vec<String>>,
    /// By instance: the newest place that a backend has stored.
    stored: BTreeMap<String, u64>,
    acknowledgements: u64,
    transcripts: u64,
}

impl Observer for Conservation {
    fn id(&self) -> &'static str {
        "conservation"
    }

    fn line(&mut self, line: &Line, _world: &WorldView<'_>) -> Result<(), Violation> {
        let session = || line.field("session").to_owned();
        match (line.kind, line.program(), line.text.as_str()) {
            (Kind::Log, "scripted-agent", "agent said") => {
                self.said.entry(session()).or_default().push(line.field("text").to_owned());
            }
            (Kind::Log, "backend-recovery", "events stored") => self.store(line, "last_seq"),
            // What a backend asks after is what it found stored.
            (Kind::Log, "backend-recovery", "event stream attached") => self.store(line, "after"),
            (Kind::Log, "controld", "event acknowledged") => {
                self.acknowledgements += 1;
                return self.acknowledge(line);
            }
            (Kind::Note, _, "transcript chunk") => {
                self.reading.entry(session()).or_default().push(line.field("text").to_owned());
            }
            (Kind::Note, _, "transcript read") => {
                self.transcripts += 1;
                return self.compare(&session());
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![("acknowledgements", self.acknowledgements), ("transcripts", self.transcripts)]
    }
}

impl Conservation {
    fn store(&mut self, line: &Line, field: &str) {
        let newest = self.stored.entry(line.field("instance").to_owned()).or_default();
        *newest = number(line, field).max(*newest);
    }

    fn acknowledge(&self, line: &Line) -> Result<(), Violation> {
        let instance = line.field("instance");
        let stored = self.stored.get(instance).copied().unwrap_or_default();
        let acknowledged = number(line, "seq");
        if acknowledged <= stored {
            return Ok(());
        }
        Err(violation(
            format!("nothing of {instance} is acknowledged beyond what is stored, {stored}"),
            format!("acknowledged up to {acknowledged}"),
        ))
    }

    fn compare(&mut self, session: &str) -> Result<(), Violation> {
        let read = self.reading.remove(session).unwrap_or_default();
        let said = self.said.get(session).map(Vec::as_slice).unwrap_or_default();
        if read == said {
            return Ok(());
        }
        let at = read.iter().zip(said).take_while(|(read, said)| read == said).count();
        let here = |texts: &[String]| texts.get(at).map_or("nothing".to_owned(), |text| format!("{text:?}"));
        Err(violation(
            format!("{} chunks of session {session}; at place {}: {}", said.len(), at + 1, here(said)),
            format!("{} chunks in its transcript; there: {}", read.len(), here(&read)),
        ))
    }
}

fn number(line: &Line, field: &str) -> u64 {
    line.field(field).parse().unwrap_or_default()
}

fn violation(expected: String, seen: String) -> Violation {
    Violation::new("conservation", "S-001.5", expected, seen)
}
