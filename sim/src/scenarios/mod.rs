//! The stories that every seed tells anew.

mod backend_killed;
mod crash_point;
mod foreign_installation;
mod graceful_shutdown;
mod installation;
mod newer_build;
mod odd_answers;
mod other_instance;
mod periods;
mod port_thief;
mod second_backend;
mod secret_lost;
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
pub use crash_point::{CrashPoint, Phase};
pub use foreign_installation::ForeignInstallation;
pub use graceful_shutdown::GracefulShutdown;
pub use installation::Installation;
pub use newer_build::{NewerBuild, with_lost_shutdown};
pub use odd_answers::OddAnswers;
pub use other_instance::OtherInstance;
pub use periods::{PERIOD_CASES, Periods};
pub use port_thief::PortThief;
pub use second_backend::SecondBackend;
pub use secret_lost::SecretLost;
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
        Arc::new(CrashPoint),
        Arc::new(SecretLost),
        Arc::new(NewerBuild),
        Arc::new(Periods),
        Arc::new(OddAnswers),
        Arc::new(ForeignInstallation),
        Arc::new(TwoAdopters),
        Arc::new(ThiefBesideBackend),
    ]
}
