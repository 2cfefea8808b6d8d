//! What always holds: one invariant, one file.

mod bounded;
mod conservation;
mod one_agent;
mod outcome_once;
mod worktree_untouched;

use crate::observer::Observer;

/// All invariants, each with an empty model.
pub fn all() -> Vec<Box<dyn Observer>> {
    vec![
        Box::<conservation::Conservation>::default(),
        Box::<outcome_once::OutcomeOnce>::default(),
        Box::new(one_agent::OneAgent),
        Box::new(worktree_untouched::WorktreeUntouched),
        Box::<bounded::Bounded>::default(),
    ]
}
