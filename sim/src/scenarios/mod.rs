//! The stories that every seed tells anew.

mod backend_killed;
mod foreign_installation;
mod graceful_shutdown;
mod installation;
mod odd_answers;
mod other_instance;
mod port_thief;
mod second_backend;
mod story;
mod superseded;
mod thief_beside_backend;
mod two_adopters;
mod two_kills;
mod unowned;
mod user;

use std::sync::Arc;

use crate::scenario::Scenario;

pub use backend_killed::BackendKilledInMidTurn;
pub use foreign_installation::ForeignInstallation;
pub use graceful_shutdown::GracefulShutdown;
pub use installation::Installation;
pub use odd_answers::OddAnswers;
pub use other_instance::OtherInstance;
pub use port_thief::PortThief;
pub use second_backend::SecondBackend;
pub use superseded::Superseded;
pub use thief_beside_backend::ThiefBesideBackend;
pub use two_adopters::TwoAdopters;
pub use two_kills::TwoKillsInARow;
pub use unowned::Unowned;

/// All scenarios, in the order in which they run.
pub fn all() -> Vec<Arc<dyn Scenario>> {
    vec![
        Arc::new(BackendKilledInMidTurn),
        Arc::new(GracefulShutdown),
        Arc::new(TwoKillsInARow),
        Arc::new(OtherInstance),
        Arc::new(SecondBackend),
        Arc::new(PortThief),
        Arc::new(Superseded),
        Arc::new(Unowned),
        Arc::new(OddAnswers),
        Arc::new(ForeignInstallation),
        Arc::new(TwoAdopters),
    ]
}

/// Scenarios that production code does not pass yet: they run when they are asked for by name, and in no campaign.
pub fn withheld() -> Vec<Arc<dyn Scenario>> {
    vec![Arc::new(ThiefBesideBackend)]
}
