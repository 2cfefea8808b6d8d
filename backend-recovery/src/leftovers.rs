//! Agents whose control server is gone (ruling 15): found by their recorded process and by the marker in their
//! environment, and ended before anything is said about their session.
//!
//! Agents of a server that answers are never touched this way.

use std::collections::BTreeSet;
use std::time::Duration;

use seam::{ProcessIdentity, Seams, Signal, Target};
use tracing::{info, warn};
use wire::{ProcessRef, SessionId};

use crate::backend::SESSION_MARKER;

/// What is left of a session's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// Nothing runs any more.
    Gone,
    /// This still runs, or it could not be found out.
    Remains { why: String },
}

/// Whether the recorded agent or anything that carries the session's marker still runs.
pub(crate) async fn look(seams: &Seams, session: &SessionId, agent: Option<&ProcessRef>) -> Leftover {
    match running(seams, session, agent).await {
        Ok(running) if running.is_empty() => Leftover::Gone,
        Ok(running) => Leftover::Remains { why: named(&running) },
        Err(error) => Leftover::Remains { why: format!("the process table could not be read: {error}") },
    }
}

/// Ends what is left of the session's agent: TERM, grace, KILL.
pub(crate) async fn end(seams: &Seams, session: &SessionId, agent: Option<&ProcessRef>) -> Leftover {
    for (signal, grace) in [(Signal::Terminate, GRACE), (Signal::Kill, AFTER_KILL)] {
        let running = match running(seams, session, agent).await {
            Ok(running) if running.is_empty() => return Leftover::Gone,
            Ok(running) => running,
            Err(error) => {
                return Leftover::Remains { why: format!("the process table could not be read: {error}") };
            }
        };
        info!(%session, processes = named(&running), ?signal, "agent without a control server is ended");
        for process in running {
            if let Err(error) = seams.processes.signal(Target::Process(process.clone()), signal).await {
                warn!(%session, %process, %error, "agent without a control server could not be signalled");
            }
        }
        let ends = seams.clock.monotonic().after(grace);
        while seams.clock.monotonic() < ends {
            if look(seams, session, agent).await == Leftover::Gone {
                return Leftover::Gone;
            }
            seams.clock.sleep(POLL).await;
        }
    }
    look(seams, session, agent).await
}

async fn running(
    seams: &Seams,
    session: &SessionId,
    agent: Option<&ProcessRef>,
) -> std::io::Result<BTreeSet<ProcessIdentity>> {
    let marked = seams.processes.marked(SESSION_MARKER, session.as_str()).await?;
    let own = seams.processes.own_identity();
    let mut running: BTreeSet<_> = marked.into_iter().filter(|process| *process != own).collect();
    if let Some(agent) = agent {
        let identity =
            ProcessIdentity { pid: agent.pid, start_time: agent.start_time, boot_id: agent.boot_id.clone() };
        if seams.processes.runs(&identity).await? {
            running.insert(identity);
        }
    }
    Ok(running)
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
