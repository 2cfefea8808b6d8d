//! What always holds: one invariant, one file.

mod bounded;
mod conservation;
mod deadman;
mod one_agent;
mod one_driver;
mod outcome_once;
mod proof_first;
mod secret_safe;
mod supervised_untouched;
mod unproven_untouched;
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
        Box::<one_driver::OneDriver>::default(),
        Box::<proof_first::ProofFirst>::default(),
        Box::<unproven_untouched::UnprovenUntouched>::default(),
        Box::new(supervised_untouched::SupervisedUntouched),
        Box::<deadman::Deadman>::default(),
        Box::<secret_safe::SecretSafe>::default(),
    ]
}
