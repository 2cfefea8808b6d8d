//! Agents whose control server is gone (ruling 15): found by the entry that it wrote before they ran, by their recorded
//! process and by the marks in their environment, and ended before anything is said about their session.
//!
//! Agents of a server that answers are never touched this way.

use std::collections::BTreeSet;
use std::time::Duration;

use seam::{ProcessIdentity, Signal, Target};
use tracing::{info, warn};
use wire::{AgentEntry, INSTANCE_MARK, ProcessRef, ServerIdentity, SessionId};

use crate::backend::{Backend, SESSION_MARKER};
use crate::survivors;

/// What is left of a session's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// Nothing runs any more.
    Gone,
    /// This still runs, or it could not be found out.
    Remains { why: String },
}

/// What an agent is found by.
#[derive(Clone, Debug)]
struct Traces {
    session: SessionId,
    /// Names and values of variables in its environment.
    marks: BTreeSet<(&'static str, String)>,
    /// Processes that led a group of their own when they were started.
    leaders: BTreeSet<ProcessIdentity>,
}

impl Traces {
    fn of_session(session: &SessionId, agent: Option<&ProcessRef>, entries: &[AgentEntry]) -> Self {
        let mut traces = Self::new(session);
        traces.marks.insert((SESSION_MARKER, session.to_string()));
        traces.leaders.extend(agent.map(identity_of));
        for entry in entries.iter().filter(|entry| entry.session == *session) {
            traces.add(entry);
        }
        traces
    }

    fn new(session: &SessionId) -> Self {
        Self { session: session.clone(), marks: BTreeSet::new(), leaders: BTreeSet::new() }
    }

    fn add(&mut self, entry: &AgentEntry) {
        self.marks.insert((INSTANCE_MARK, entry.mark.clone()));
        self.leaders.extend(entry.process.as_ref().map(identity_of));
    }

    async fn running(&self, backend: &Backend) -> std::io::Result<BTreeSet<ProcessIdentity>> {
        let processes = &backend.seams.processes;
        let mut running = BTreeSet::new();
        for (name, value) in &self.marks {
            running.extend(processes.marked(name, value).await?);
        }
        for leader in &self.leaders {
            if processes.runs(leader).await? {
                running.insert(leader.clone());
            }
        }
        running.remove(&processes.own_identity());
        Ok(running)
    }

    /// TERM, grace, KILL.
    async fn end(&self, backend: &Backend) -> Leftover {
        let clock = &backend.seams.clock;
        for (signal, grace) in [(Signal::Terminate, GRACE), (Signal::Kill, AFTER_KILL)] {
            let running = match self.running(backend).await {
                Ok(running) if running.is_empty() => return Leftover::Gone,
                Ok(running) => running,
                Err(error) => return unreadable(&error),
            };
            let processes = named(&running);
            info!(session = %self.session, processes, ?signal, "agent without a control server is ended");
            for process in running {
                // A leader that runs vouches for its group: nobody else can have the number.
                let target = match self.leaders.contains(&process) {
                    true => Target::Group(process.clone()),
                    false => Target::Process(process.clone()),
                };
                if let Err(error) = backend.seams.processes.signal(target, signal).await {
                    warn!(%process, %error, "agent without a control server could not be signalled");
                }
            }
            let ends = clock.monotonic().after(grace);
            while clock.monotonic() < ends {
                if self.look(backend).await == Leftover::Gone {
                    return Leftover::Gone;
                }
                clock.sleep(POLL).await;
            }
        }
        self.look(backend).await
    }

    async fn look(&self, backend: &Backend) -> Leftover {
        match self.running(backend).await {
            Ok(running) if running.is_empty() => Leftover::Gone,
            Ok(running) => Leftover::Remains { why: named(&running) },
            Err(error) => unreadable(&error),
        }
    }
}

/// Looks whether anything of the session's agent still runs, and ends it if its server is known to be gone.
pub(crate) async fn settle(
    backend: &Backend,
    session: &SessionId,
    agent: Option<&ProcessRef>,
    end: bool,
) -> Leftover {
    let Some(spared) = spared(backend).await else {
        return Leftover::Remains { why: "which control servers of ours live could not be read".to_owned() };
    };
    let (living, entries): (Vec<_>, Vec<_>) =
        entries(backend).await.into_iter().partition(|entry| spared.contains(&entry.server));
    let mut traces = Traces::of_session(session, agent, &entries);
    // An agent of a server that lives carries the session's mark, too: then that mark says nothing.
    if living.iter().any(|entry| entry.session == *session) {
        traces.marks.retain(|(name, _)| *name != SESSION_MARKER);
    }
    let leftover = if end { traces.end(backend).await } else { traces.look(backend).await };
    if end && leftover == Leftover::Gone {
        for entry in &entries {
            if entry.session == *session {
                forget(backend, entry).await;
            }
        }
    }
    leftover
}

/// The servers of ours that may live: the one in use, and the survivors that are not over. None if that cannot be read.
async fn spared(backend: &Backend) -> Option<BTreeSet<ServerIdentity>> {
    let mut spared: BTreeSet<ServerIdentity> =
        backend.server().ok().map(|server| server.identity).into_iter().collect();
    for survivor in backend.store.survivors().await.ok()? {
        if !survivors::is_over(backend, &survivor).await {
            spared.insert(survivor.server);
        }
    }
    Some(spared)
}

/// Which servers have written down an agent for this session.
pub(crate) async fn servers_of(backend: &Backend, session: &SessionId) -> BTreeSet<ServerIdentity> {
    let entries = entries(backend).await.into_iter().filter(|entry| entry.session == *session);
    entries.map(|entry| entry.server).collect()
}

/// Ends every agent that a server which is gone has left, also those of sessions that are not in the inventory.
pub(crate) async fn end_entries_of(backend: &Backend, server: &ServerIdentity) {
    let entries = entries(backend).await;
    for entry in &entries {
        if entry.server != *server {
            continue;
        }
        let mut traces = Traces::new(&entry.session);
        traces.add(entry);
        match traces.end(backend).await {
            Leftover::Gone => forget(backend, entry).await,
            Leftover::Remains { why } => {
                let (session, instance) = (&entry.session, &entry.instance);
                warn!(%session, %instance, why, "agent without a control server remains, guard held");
                backend.executions().hold(session, instance.clone());
            }
        }
    }
}

/// What control servers have written down. What cannot be read says nothing; the marks still do.
async fn entries(backend: &Backend) -> Vec<AgentEntry> {
    let disk = &backend.seams.disk;
    let directory = backend.config.home.path().join(wire::AGENT_ENTRIES);
    let files = match disk.list(&directory).await {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            warn!(%error, "entries of agents could not be listed");
            return Vec::new();
        }
    };
    let mut entries = Vec::new();
    for file in &files {
        if file.path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        let read = disk.read(&file.path, ENTRY_BYTES).await;
        match read.map(|bytes| serde_json::from_slice(&bytes)) {
            Ok(Ok(entry)) => entries.push(entry),
            Ok(Err(error)) => warn!(file = %file.path.display(), %error, "entry of an agent is garbage"),
            Err(error) => warn!(file = %file.path.display(), %error, "entry of an agent could not be read"),
        }
    }
    entries
}

async fn forget(backend: &Backend, entry: &AgentEntry) {
    let directory = backend.config.home.path().join(wire::AGENT_ENTRIES);
    let file = directory.join(format!("{}.json", entry.instance));
    if let Err(error) = backend.seams.disk.remove(&file).await {
        warn!(file = %file.display(), %error, "entry of an agent could not be removed");
    }
}

/// The process that was recorded.
pub(crate) fn identity_of(process: &ProcessRef) -> ProcessIdentity {
    let ProcessRef { pid, start_time, boot_id } = process.clone();
    ProcessIdentity { pid, start_time, boot_id }
}

fn unreadable(error: &std::io::Error) -> Leftover {
    Leftover::Remains { why: format!("the process table could not be read: {error}") }
}

fn named(processes: &BTreeSet<ProcessIdentity>) -> String {
    let names: Vec<_> = processes.iter().map(|process| format!("process {process}")).collect();
    names.join(", ")
}

/// What a well-behaved agent needs to write its last state.
const GRACE: Duration = Duration::from_secs(3);

/// The kernel ends a killed process within milliseconds unless it hangs in a device.
const AFTER_KILL: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);

/// An entry is a few hundred bytes.
const ENTRY_BYTES: u64 = 64 * 1024;
