//! Programs: what a simulated process runs.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use seam::Seams;

use crate::world::{Key, World};

/// A program that processes can be started from.
#[derive(Clone)]
pub struct Program {
    /// The file name of its executable, which is also its name in the trace.
    pub name: String,
    /// Its `main`: gives the exit code.
    pub run: Arc<dyn Fn(ProcessContext) -> Main + Send + Sync>,
}

/// A running `main`. It stays on one thread, as the one that a runtime blocks on does.
pub type Main = Pin<Box<dyn Future<Output = u8>>>;

/// What a process has when it starts.
pub struct ProcessContext {
    /// Its seams.
    pub seams: Seams,
    pub(crate) world: Arc<World>,
    pub(crate) key: Key,
}

impl Program {
    /// A program of that name.
    pub fn new<F, Fut>(name: impl Into<String>, run: F) -> Self
    where
        F: Fn(ProcessContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = u8> + 'static,
    {
        Self { name: name.into(), run: Arc::new(move |context| Box::pin(run(context))) }
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ProcessContext {
    /// Starts a program as a fork does: in this process's group, with its environment, arguments and standard
    /// streams, which must not have been asked for and which this process loses. What launchers do that leave
    /// the real work to a child and exit. Gives nothing if there is no such program or this process is dead.
    pub fn leave_behind(&self, program: &str) -> Option<seam::ProcessIdentity> {
        self.world.lock().leave_behind(self.key, program)
    }

    /// Shows every log event of this process to `hook` as well, beside the trace. For programs that keep a log
    /// file of their own.
    pub fn on_log(&self, hook: impl Fn(&tracing::Event<'_>) + Send + Sync + 'static) {
        if let Some(process) = self.world.lock().processes.get_mut(&self.key) {
            process.log_hook = Some(Arc::new(hook));
        }
    }
}
