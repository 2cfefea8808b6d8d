//! Processes: spawning from plain data, identity, signals, exit.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::BoxFuture;

/// Which process this is. A pid is reused; a pid with its start time and boot id is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: u32,
    /// When it started, in the kernel's own unit (clock ticks since boot on Linux).
    pub start_time: u64,
    /// Which boot of the machine `pid` and `start_time` belong to.
    pub boot_id: String,
}

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.pid, self.start_time)
    }
}

/// Where a child's standard streams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// All three are pipes to the parent.
    Piped,
    /// All three are the null device: nothing ties the child to its parent.
    Null,
    /// Standard input is a pipe whose end the child may watch; the outputs are the null device.
    InputOnly,
}

/// What to start. The child always gets its own session and process group, no descriptor beside its standard
/// streams, and exactly this environment.
#[derive(Clone, Debug)]
pub struct SpawnRequest {
    /// A path, or a name that is looked up in the request's own `PATH`.
    pub program: String,
    /// The arguments after the program's name.
    pub args: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub env: BTreeMap<String, String>,
    /// The working directory; the parent's if `None`.
    pub directory: Option<PathBuf>,
    /// The standard streams.
    pub stdio: Stdio,
}

/// The writing end of a child's standard input; dropping it ends the input.
pub type ChildInput = Box<dyn AsyncWrite + Send + Unpin>;

/// The reading end of a child's standard output or error.
pub type ChildOutput = Box<dyn AsyncRead + Send + Unpin>;

/// A started child. Dropping it neither stops nor waits for the process.
pub struct Child {
    /// Who it is.
    pub identity: ProcessIdentity,
    /// Its standard input, if piped.
    pub stdin: Option<ChildInput>,
    /// Its standard output, if piped.
    pub stdout: Option<ChildOutput>,
    /// Its standard error, if piped.
    pub stderr: Option<ChildOutput>,
    /// The way to learn of its exit.
    pub exit: Box<dyn Exit>,
}

/// Waiting for one child's exit, and reaping it. Independent of its pipes: a grandchild may hold those.
pub trait Exit: Send + 'static {
    /// Resolves once the child has exited and has been reaped; afterwards always the same. Cancel safe.
    fn wait(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>>;
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited by itself with this code.
    Code(i32),
    /// It was ended by this signal number.
    Signal(i32),
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// The signals that are sent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: please end.
    Terminate,
    /// SIGINT: the user pressed Ctrl-C.
    Interrupt,
    /// SIGKILL: ends without a last word.
    Kill,
}

/// Whom a signal goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// This one process, if it still is this one.
    Process(ProcessIdentity),
    /// Every process of the group that this process led when it was spawned. Its id stays reserved while any
    /// member lives, even after the leader's exit.
    Group(ProcessIdentity),
}

/// The standard streams of this very process.
pub struct OwnStdio {
    /// Standard input.
    pub stdin: ChildOutput,
    /// Standard output.
    pub stdout: ChildInput,
    /// Standard error.
    pub stderr: ChildInput,
}

/// Who collects orphaned descendants. See [`Processes::become_reaper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaper {
    /// Orphaned descendants are re-parented to this process and reaped by it.
    Here,
    /// The platform has no such thing; orphans go to the host's first process.
    Elsewhere,
}

/// Processes of one host, seen from one of them.
pub trait Processes: Send + Sync + 'static {
    /// Who this process is.
    fn own_identity(&self) -> ProcessIdentity;

    /// This process's standard streams. May be asked for once; a second call panics.
    fn own_stdio(&self) -> OwnStdio;

    /// Resolves with the next SIGTERM or SIGINT that this process receives; from the first call on they no
    /// longer end it. A signal received between two calls is not lost.
    fn stop_requested(&self) -> BoxFuture<'_, Signal>;

    /// Starts a child.
    ///
    /// # Errors
    /// `NotFound` or `PermissionDenied` for the program or the directory.
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, io::Result<Child>>;

    /// Sends a signal. `Ok(false)` if nobody is left to receive it (gone, or the pid now is somebody else's).
    ///
    /// # Errors
    /// `PermissionDenied`, or whatever else the kernel says.
    fn signal(&self, target: Target, signal: Signal) -> BoxFuture<'_, io::Result<bool>>;

    /// Whether exactly this process still runs. A zombie does not run.
    ///
    /// # Errors
    /// The process table could not be read: not known, which is not "no".
    fn runs(&self, identity: &ProcessIdentity) -> BoxFuture<'_, io::Result<bool>>;

    /// Every running process whose environment, as it was started with, holds `name=value`, sorted by pid.
    /// Processes whose environment this user may not read are left out.
    ///
    /// # Errors
    /// The process table could not be read.
    fn marked<'a>(&'a self, name: &'a str, value: &'a str)
    -> BoxFuture<'a, io::Result<Vec<ProcessIdentity>>>;

    /// From now on orphaned descendants are re-parented to this process, which reaps them as they exit.
    ///
    /// # Errors
    /// Whatever the kernel says.
    fn become_reaper(&self) -> io::Result<Reaper>;
}
