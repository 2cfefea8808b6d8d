//! The seams on the real world; the only place that calls the operating system.
//!
//! Each type implements one trait of `seam` and decides nothing: retries, grace periods and bounds stay with
//! the caller. What the traits promise is tested by `seam::contract`, here on the real system and in `sim` on
//! the simulated one; the unit tests of this crate cover what only a real system has: modes, descriptors,
//! zombies, full devices.
//!
//! Linux alone, so far: process identities, groups and marks are read from `/proc`, signals go through pidfds.

#[cfg(not(target_os = "linux"))]
compile_error!("the seams on the real world are written for Linux: they need /proc and pidfds");

mod blocking;
mod clock;
mod disk;
mod entropy;
mod failure;
mod home;
mod host_facts;
mod network;
mod off_thread;
mod own_stdio;
mod process_table;
mod processes;
mod reaper;
mod secret_store;
mod spawn;

use std::path::Path;
use std::sync::Arc;

use seam::{HostFacts as _, Seams};

pub use blocking::RealBlocking;
pub use clock::RealClock;
pub use disk::RealDisk;
pub use entropy::RealEntropy;
pub use home::home_from;
pub use host_facts::RealHostFacts;
pub use network::RealNetwork;
pub use processes::RealProcesses;
pub use secret_store::RealSecretStore;

/// All seams of this process; its secrets lie below the home that [`home_from`] finds.
///
/// # Panics
/// If `/proc` is not mounted: without it no process can be told from another.
pub fn seams() -> Seams {
    let host = RealHostFacts;
    seams_for(&home_from(&host.arguments(), &host.environment()))
}

/// All seams of this process, with the secrets in `<home>/secrets`.
///
/// # Panics
/// If `/proc` is not mounted: without it no process can be told from another.
pub fn seams_for(home: &Path) -> Seams {
    Seams {
        clock: Arc::new(RealClock),
        entropy: Arc::new(RealEntropy),
        network: Arc::new(RealNetwork),
        processes: Arc::new(RealProcesses::new()),
        disk: Arc::new(RealDisk),
        secrets: Arc::new(RealSecretStore::at(home.join("secrets"))),
        blocking: Arc::new(RealBlocking::new()),
        host: Arc::new(RealHostFacts),
    }
}
