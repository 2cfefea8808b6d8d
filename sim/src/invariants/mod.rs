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
        Box::<one_agent::OneAgent>::default(),
        Box::<worktree_untouched::WorktreeUntouched>::default(),
        Box::<bounded::Bounded>::default(),
        Box::<one_driver::OneDriver>::default(),
        Box::<proof_first::ProofFirst>::default(),
        Box::<unproven_untouched::UnprovenUntouched>::default(),
        Box::<supervised_untouched::SupervisedUntouched>::default(),
        Box::<deadman::Deadman>::default(),
        Box::<secret_safe::SecretSafe>::default(),
    ]
}
