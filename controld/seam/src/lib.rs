//! The world as traits over plain data.
//!
//! Everything that the production code asks of the outside (time, chance, sockets, processes, files, secrets)
//! goes through one of these traits. `system` implements them on the operating system, `sim` on a simulated
//! world; the `contract` module holds one test per seam that both must pass.
//!
//! The traits are dyn-safe, take plain data and return boxed `Send` futures. They do not decide anything:
//! retries, grace periods, bounds and meaning stay with the caller.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod blocking;
mod calendar;
mod clock;
#[cfg(feature = "contract")]
pub mod contract;
mod disk;
mod entropy;
mod host_facts;
mod network;
mod processes;
mod secret_store;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use blocking::{Blocking, block};
pub use clock::{Clock, Elapsed, Monotonic, Wall, within};
pub use disk::{Disk, EntryKind, FileEntry, Lock, LockRefused, Privacy};
pub use entropy::{Entropy, random_hex};
pub use host_facts::HostFacts;
pub use network::{ByteStream, Listener, Network, Stream};
pub use processes::{
    Child, ChildInput, ChildOutput, Exit, ExitStatus, OwnStdio, ProcessIdentity, Processes, Reaper, Signal,
    SpawnRequest, Stdio, Target,
};
pub use secret_store::SecretStore;

/// A boxed future that can cross threads, as axum, kube and the agent protocol demand.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// All seams of one process, handed from its `main` to everything that needs the world.
#[derive(Clone)]
pub struct Seams {
    /// Monotonic and wall time, sleeping, yielding.
    pub clock: Arc<dyn Clock>,
    /// Random bytes.
    pub entropy: Arc<dyn Entropy>,
    /// TCP listeners and connections.
    pub network: Arc<dyn Network>,
    /// Child processes, signals, identities.
    pub processes: Arc<dyn Processes>,
    /// Files and advisory locks.
    pub disk: Arc<dyn Disk>,
    /// Credentials at rest.
    pub secrets: Arc<dyn SecretStore>,
    /// Work that blocks a thread, such as SQLite's.
    pub blocking: Arc<dyn Blocking>,
    /// Facts about the host and about how this process was started.
    pub host: Arc<dyn HostFacts>,
}
