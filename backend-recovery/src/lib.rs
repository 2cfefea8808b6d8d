//! The backend: keeps its users' sessions, and when it starts again finds the agents that outlived it.
//!
//! It proves that a surviving control server is its own, adopts it and re-tracks every session; what it cannot
//! re-track it stops or repairs, and says so. [`startup`] holds the eight steps of a start in their order.
#![forbid(unsafe_code)]

mod adoption;
pub mod api;
mod backend;
mod cli;
mod client;
pub mod config;
mod confirmation;
mod control_server;
mod control_server_record;
mod correlation;
mod home;
mod leftovers;
mod ports;
mod reconciliation;
mod recovery_guard;
mod refusal;
mod renewal;
mod retracking;
mod rotation;
mod routes;
mod sessions;
mod startup;
mod stop;
mod store;
mod survivors;
mod switch;
mod tending;

use std::collections::BTreeSet;
use std::path::PathBuf;

use seam::Seams;

pub use client::{UserCallFailed, UserClient};
pub use home::Home;

/// Runs one command line, whose arguments come from the seams, and gives its exit code: 0; 2 for a wrong command
/// line or configuration; 1 for anything else that went wrong, told on standard error.
pub async fn run(seams: Seams) -> u8 {
    let required = wire::CAPABILITIES.into_iter().map(str::to_owned).collect();
    run_with(seams, required).await
}

/// [`run`] as a build does that requires these capabilities of its control server (O-004.1).
pub async fn run_with(seams: Seams, required: BTreeSet<String>) -> u8 {
    cli::run(seams, required).await
}

/// The home that this process is configured to work on, for whoever must know before [`run`] where its secrets
/// are. None if the command line or the configuration is wrong; `run` then says what.
pub async fn configured_home(seams: &Seams) -> Option<PathBuf> {
    cli::home(seams).await
}
