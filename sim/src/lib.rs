//! A deterministic test bed: it runs the production code, unchanged, through restarts, kills and faults that
//! one seed decides.
//!
//! A [`Scenario`] is played by its [`Director`] in a world of its own: simulated processes on a simulated disk,
//! network and clock, reached through the same seams as the real ones. [`run_one`] gives a [`RunReport`] whose
//! trace is the same for the same seed and [`Plan`], byte for byte.
//!
//! Five laws hold, each with a test in `tests/` that fails without it:
//!
//! 1. A process is not a host: it takes a slot, and costs nothing after its end; pids are reused.
//! 2. Nobody reads the future: time stands still during a step, and news arrive in a later one.
//! 3. A kill falls before or after an effect, anywhere between any two, and the dead have no effect.
//! 4. Pipes and connections are byte-true: 64 KiB, backlog, end of file, reset, ports.
//! 5. The order of ready tasks is decided by the seed, and a hang ends in a report.
#![deny(unsafe_code)]
#![warn(missing_docs)]

#[cfg(not(tokio_unstable))]
compile_error!(
    "the simulation needs `--cfg tokio_unstable`: without it a panic in a spawned task is swallowed. \
     `.cargo/config.toml` sets it; RUSTFLAGS in the environment replaces what is set there"
);

mod adversaries;
mod channel;
mod clock;
pub mod corpus;
mod disk;
pub mod invariants;
mod logs;
mod network;
mod observer;
mod plan;
mod process_table;
mod processes;
mod program;
pub mod programs;
mod runner;
mod scenario;
pub mod scenarios;
pub mod scripted_agent;
mod seal;
mod secrets;
mod seed;
pub mod shrink;
mod slots;
pub mod timeline;
mod trace;
pub mod twice;
mod vfs;
mod world;

pub use observer::{Observer, ProcessView, Violation, WorldView};
pub use plan::{Answering, Fault, FaultCount, Plan, Side};
pub use program::{Main, ProcessContext, Program};
pub use runner::{Job, RunReport, run_many, run_one};
pub use scenario::{Director, Output, Played, Scenario, Start, Started};
pub use seal::seal_thread;
pub use seed::{Rng, Streams};
pub use trace::{Fields, Kind, Line};
pub use world::Failure;
