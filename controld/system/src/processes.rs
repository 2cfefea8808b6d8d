//! Processes of the host: identities, signals, exits.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::{Arc, OnceLock};

use process_wrap::tokio::ChildWrapper;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, kill_process, kill_process_group, pidfd_open, pidfd_send_signal};
use seam::{
    BoxFuture, Child, ChildInput, ChildOutput, Exit, ExitStatus, OwnStdio, ProcessIdentity, Processes,
    Reaper, Signal, SpawnRequest, Target,
};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::Mutex;

use crate::failure::cannot;
use crate::off_thread::off_thread;
use crate::own_stdio::own_stdio;
use crate::process_table;
use crate::reaper::{OwnChildren, become_reaper};
use crate::spawn::spawn;

/// The host's processes, seen from this one.
#[derive(Debug)]
pub struct RealProcesses {
    own: ProcessIdentity,
    stops: OnceLock<Arc<Mutex<StopSignals>>>,
}

/// The signals by which this process is asked to stop; received from the first call on, told one by one.
#[derive(Debug)]
struct StopSignals {
    terminate: SignalStream,
    interrupt: SignalStream,
}

impl RealProcesses {
    /// The process table, with this process's own place in it.
    ///
    /// # Panics
    /// If `/proc` is not mounted.
    #[expect(clippy::new_without_default, reason = "reading who this process is can fail")]
    #[expect(clippy::disallowed_methods, reason = "the Processes seam itself")]
    pub fn new() -> Self {
        let own = process_table::boot_id().and_then(|boot_id| identity_of(std::process::id(), &boot_id));
        Self { own: own.expect("/proc is mounted: processes are told apart by it"), stops: OnceLock::new() }
    }

    fn stop_signals(&self) -> Arc<Mutex<StopSignals>> {
        let listen = |kind| signal(kind).expect("SIGTERM and SIGINT can be listened for in a runtime");
        let signals = self.stops.get_or_init(|| {
            let terminate = listen(SignalKind::terminate());
            Arc::new(Mutex::new(StopSignals { terminate, interrupt: listen(SignalKind::interrupt()) }))
        });
        Arc::clone(signals)
    }
}

impl Processes for RealProcesses {
    fn own_identity(&self) -> ProcessIdentity {
        self.own.clone()
    }

    fn own_stdio(&self) -> OwnStdio {
        own_stdio()
    }

    fn stop_requested(&self) -> BoxFuture<'_, Signal> {
        // Listening begins with the call, not with the first poll.
        let signals = self.stop_signals();
        Box::pin(async move {
            let mut signals = signals.lock().await;
            let StopSignals { terminate, interrupt } = &mut *signals;
            tokio::select! {
                biased;
                _ = terminate.recv() => Signal::Terminate,
                _ = interrupt.recv() => Signal::Interrupt,
            }
        })
    }

    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, io::Result<Child>> {
        Box::pin(async move {
            let mut own_children = OwnChildren::lock();
            let mut child = spawn(&request)?;
            let pid = child.id().expect("a child that nobody has waited for has its pid");
            // Not reaped before it is waited for, so its entry is there even if it has already exited.
            let identity = identity_of(pid, &self.own.boot_id)?;
            own_children.enter(&identity);
            drop(own_children);
            Ok(Child {
                identity: identity.clone(),
                stdin: child.stdin().take().map(|pipe| Box::new(pipe) as ChildInput),
                stdout: child.stdout().take().map(|pipe| Box::new(pipe) as ChildOutput),
                stderr: child.stderr().take().map(|pipe| Box::new(pipe) as ChildOutput),
                exit: Box::new(RealExit { child, identity }),
            })
        })
    }

    fn signal(&self, target: Target, signal: Signal) -> BoxFuture<'_, io::Result<bool>> {
        let boot_id = self.own.boot_id.clone();
        Box::pin(off_thread(move || match &target {
            Target::Process(identity) => signal_process(identity, &boot_id, signal),
            Target::Group(leader) => signal_group(leader, &boot_id, signal),
        }))
    }

    fn runs(&self, identity: &ProcessIdentity) -> BoxFuture<'_, io::Result<bool>> {
        let running = runs(identity, &self.own.boot_id);
        Box::pin(async move { running })
    }

    fn marked<'a>(
        &'a self,
        name: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, io::Result<Vec<ProcessIdentity>>> {
        let (name, value, boot_id) = (name.to_owned(), value.to_owned(), self.own.boot_id.clone());
        Box::pin(off_thread(move || process_table::marked(&name, &value, &boot_id)))
    }

    fn become_reaper(&self) -> io::Result<Reaper> {
        become_reaper(&self.own).map(|()| Reaper::Here)
    }
}

/// Waits for one child.
struct RealExit {
    child: Box<dyn ChildWrapper>,
    identity: ProcessIdentity,
}

impl Exit for RealExit {
    fn wait(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>> {
        Box::pin(async move {
            let waited = self.child.wait().await;
            let status = waited.map_err(|error| cannot("wait for process", &self.identity, error))?;
            OwnChildren::lock().forget(&self.identity);
            Ok(match (status.code(), status.signal()) {
                (Some(code), _) => ExitStatus::Code(code),
                (None, Some(signal)) => ExitStatus::Signal(signal),
                (None, None) => unreachable!("a process that was waited for has exited or was killed"),
            })
        })
    }
}

fn identity_of(pid: u32, boot_id: &str) -> io::Result<ProcessIdentity> {
    let entry = process_table::entry(pid)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("process {pid} is not in /proc")))?;
    Ok(ProcessIdentity { pid, start_time: entry.start_time, boot_id: boot_id.to_owned() })
}

/// Whether exactly this process runs.
fn runs(identity: &ProcessIdentity, boot_id: &str) -> io::Result<bool> {
    if identity.boot_id != boot_id {
        return Ok(false);
    }
    let entry = process_table::entry(identity.pid)?;
    Ok(entry.is_some_and(|entry| entry.start_time == identity.start_time && !entry.is_zombie()))
}

fn signal_process(identity: &ProcessIdentity, boot_id: &str, signal: Signal) -> io::Result<bool> {
    let Some(pid) = raw_pid(identity) else { return Ok(false) };
    // First a hold on whoever has this pid, then a look at who that is: no reuse can come in between.
    let hold = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(hold) => Some(hold),
        // A kernel before 5.3 has no such hold.
        Err(Errno::NOSYS) => None,
        // Nobody, or by now the id of a thread.
        Err(Errno::SRCH | Errno::INVAL) => return Ok(false),
        Err(error) => return Err(cannot("signal process", identity, error)),
    };
    if !runs(identity, boot_id)? {
        return Ok(false);
    }
    let sent = match hold {
        Some(hold) => pidfd_send_signal(hold, number(signal)),
        None => kill_process(pid, number(signal)),
    };
    was_sent(sent).map_err(|error| cannot("signal process", identity, error))
}

fn signal_group(leader: &ProcessIdentity, boot_id: &str, signal: Signal) -> io::Result<bool> {
    let Some(pid) = raw_pid(leader) else { return Ok(false) };
    if leader.boot_id != boot_id {
        return Ok(false);
    }
    // Looked at twice before saying no: while the table is read, a member may fork into a part that was already
    // read, and exit.
    if !has_members(leader)? && !has_members(leader)? {
        return Ok(false);
    }
    was_sent(kill_process_group(pid, number(signal)))
        .map_err(|error| cannot("signal the group of", leader, error))
}

/// Whether anybody runs in the group that this process led. While one does, the kernel gives its id to nobody
/// else; so if the pid now is another process's, the group is gone.
fn has_members(leader: &ProcessIdentity) -> io::Result<bool> {
    let entries = process_table::entries()?;
    if entries.iter().any(|entry| entry.pid == leader.pid && entry.start_time != leader.start_time) {
        return Ok(false);
    }
    Ok(entries.iter().any(|entry| {
        entry.group == leader.pid && entry.start_time >= leader.start_time && !entry.is_zombie()
    }))
}

fn was_sent(sent: rustix::io::Result<()>) -> io::Result<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn raw_pid(identity: &ProcessIdentity) -> Option<Pid> {
    i32::try_from(identity.pid).ok().and_then(Pid::from_raw)
}

fn number(signal: Signal) -> rustix::process::Signal {
    match signal {
        Signal::Terminate => rustix::process::Signal::TERM,
        Signal::Interrupt => rustix::process::Signal::INT,
        Signal::Kill => rustix::process::Signal::KILL,
    }
}
