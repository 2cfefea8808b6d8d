//! **outcome-once**: every turn reaches exactly one terminal outcome.

use std::collections::BTreeMap;

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::Line;

/// The outcome of every turn that has one, by the turn's durable id.
#[derive(Default)]
pub(super) struct OutcomeOnce {
    outcomes: BTreeMap<String, String>,
}

impl Observer for OutcomeOnce {
    fn id(&self) -> &'static str {
        "outcome-once"
    }

    fn line(&mut self, line: &Line, _world: &WorldView<'_>) -> Result<(), Violation> {
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

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![("outcomes", self.outcomes.len() as u64)]
    }
}
