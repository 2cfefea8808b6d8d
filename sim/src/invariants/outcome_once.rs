//! **outcome-once**: every turn reaches exactly one terminal outcome.

use std::collections::BTreeMap;

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::{Kind, Line};

/// The outcome of every turn that has one, by the turn's durable id.
#[derive(Default)]
pub(super) struct OutcomeOnce {
    outcomes: BTreeMap<String, String>,
    transcripts: u64,
    kills: u64,
}

impl Observer for OutcomeOnce {
    fn id(&self) -> &'static str {
        "outcome-once"
    }

    fn line(&mut self, line: &Line, _world: &WorldView<'_>) -> Result<(), Violation> {
        self.kills += u64::from(line.kind == Kind::Fault);
        self.transcripts += u64::from(line.kind == Kind::Note && line.text == "transcript read");
        if !line.logged("backend-recovery", "turn outcome applied") {
            return Ok(());
        }
        let told = format!("{} via {} by {}", line.field("outcome"), line.field("via"), line.process);
        match self.outcomes.insert(line.field("turn").to_owned(), told.clone()) {
            None => Ok(()),
            Some(first) => Err(Violation::new(
                "outcome-once",
                "S-004.4",
                format!("turn {} keeps its one outcome: {first}", line.field("turn")),
                format!("another one is applied: {told}"),
            )),
        }
    }

    fn end(&mut self, _world: &WorldView<'_>) -> Result<(), Violation> {
        // A kill may fall between an outcome's commit and the line that tells of it.
        if self.transcripts == 0 || self.kills > 0 || !self.outcomes.is_empty() {
            return Ok(());
        }
        // Without the lines that it reads, this invariant would hold whatever happened.
        let expected = "a run whose transcripts are read has turns with an outcome";
        Err(Violation::new("outcome-once", "S-004.4", expected, "no outcome was seen to be applied"))
    }
}
