//! A new agent for a session that has none: first whatever may still live of the earlier one is settled, then it is a
//! launch like any other, in the same workspace and, if the agent can, the same conversation.
//!
//! ```text
//!   claimed ── a live record? ── of the server in use ──> its instances of the session are stopped (ruling 1)
//!                  │            ── of a survivor ───────> refused until it is over (ruling 11)
//!                  │            ── of one that is gone ──> what it left is ended (ruling 15)
//!                  └── none, or settled ──> launch
//! ```

use std::sync::Arc;

use tracing::info;
use wire::{ProviderSessionId, ServerIdentity, SessionId};

use super::launch::{Launch, WorkspacePlan, run};
use super::view;
use crate::api::{RefusalCode, Refused, ResumeInput, SessionState, SessionView};
use crate::backend::{Backend, ServerInUse, answered, chain};
use crate::leftovers::{self, Leftover};
use crate::stop::stop_and_see_gone;
use crate::store::ExecutorRecord;
use crate::survivors;
use crate::tending::{self, repair};

/// Begins the launch; answers before the agent is up.
pub(crate) async fn resume(
    backend: &Arc<Backend>,
    session: &SessionId,
    input: ResumeInput,
) -> Result<SessionView, Refused> {
    let shown = view(backend, session).await?;
    let Some(profile) = backend.config.profiles.get(&shown.profile).cloned() else {
        let message =
            format!("the session's profile {:?} is not in the configuration any more", shown.profile);
        return Err(Refused::for_good(RefusalCode::UnknownProfile, message));
    };
    backend.executions().claim_launch(session)?;
    let server = match settle(backend, session, input).await {
        Ok(server) => server,
        Err(unsettled) => {
            let mut executions = backend.executions();
            executions.abandon_launch(session);
            if let Some(instance) = unsettled.unstopped {
                executions.hold(session, instance);
            }
            return Err(unsettled.refused);
        }
    };
    let launch = Launch {
        session: session.clone(),
        task: shown.task,
        profile_name: shown.profile,
        profile,
        plan: WorkspacePlan { directory: shown.directory, worktree: None },
        resume: shown.provider_session.map(ProviderSessionId::new),
    };
    let began = async {
        let from = &[SessionState::Idle, SessionState::Failed, SessionState::Cancelled];
        match backend.store.move_session(session, from, SessionState::Created, backend.wall_ms()).await? {
            true => Ok(()),
            false => {
                let message = format!("session {session} is {} and is not resumed", shown.state);
                Err(Refused::for_good(RefusalCode::NoAgent, message))
            }
        }
    };
    if let Err(refused) = began.await {
        backend.executions().abandon_launch(session);
        return Err(refused);
    }
    info!(%session, "session resumes");
    tokio::spawn(run(Arc::clone(backend), server, launch));
    view(backend, session).await
}

/// Why no agent may be started now.
struct Unsettled {
    refused: Refused,
    /// An instance that could not be stopped: the session is held for it (S-002.16).
    unstopped: Option<wire::InstanceId>,
}

impl<E: Into<Refused>> From<E> for Unsettled {
    fn from(refused: E) -> Self {
        Self { refused: refused.into(), unstopped: None }
    }
}

/// Makes sure that no earlier agent of the session lives; gives the server to launch on.
async fn settle(
    backend: &Arc<Backend>,
    session: &SessionId,
    input: ResumeInput,
) -> Result<ServerInUse, Unsettled> {
    let server = backend.server()?;
    // Also of a session that was left out of the inventory, whose instance is an orphan (R-002).
    stop_all(backend, session, &server).await?;
    let record = backend.store.executor_record(session).await?.filter(|record| record.live);
    match record {
        Some(record) if record.server == server.identity => {
            repair(backend, session, Some(record.execution), REPLACED).await;
        }
        Some(record) => settle_inherited(backend, session, &record, input).await?,
        // A record that is closed was closed after its agent was seen gone, or beside a survivor.
        None => {
            for server in leftovers::servers_of(backend, session).await {
                refuse_beside(backend, session, &server, input).await?;
            }
            end_leftovers(backend, session, None).await?;
        }
    }
    Ok(server)
}

/// Whatever the server in use reports for the session is stopped (ruling 1).
async fn stop_all(
    backend: &Arc<Backend>,
    session: &SessionId,
    server: &ServerInUse,
) -> Result<(), Unsettled> {
    let client =
        backend.client(server.address, &server.identity, &server.credential, backend.config.read_timeout);
    let retries = backend.config.read_retries;
    let listed = answered(retries, || client.instances()).await.map_err(|failed| {
        let message = format!("whether an agent of session {session} lives is not known: {}", chain(&failed));
        Refused::for_now(RefusalCode::LivenessUnknown, message)
    })?;
    for status in listed.instances.into_iter().filter(|status| status.session == *session) {
        let stopped = stop_and_see_gone(&*backend.seams.clock, &client, &status.instance, retries).await;
        if let Err(failed) = stopped {
            return Err(unstopped(session, status.instance, &chain(&failed)));
        }
    }
    Ok(())
}

/// A record of another server than the one in use.
async fn settle_inherited(
    backend: &Arc<Backend>,
    session: &SessionId,
    record: &ExecutorRecord,
    input: ResumeInput,
) -> Result<(), Unsettled> {
    if refuse_beside(backend, session, &record.server, input).await? {
        info!(%session, server = %record.server, "launched beside a survivor");
        repair(backend, session, Some(record.execution.clone()), BESIDE).await;
        return Ok(());
    }
    end_leftovers(backend, session, Some(record)).await?;
    repair(backend, session, Some(record.execution.clone()), REPLACED).await;
    Ok(())
}

/// Refuses the launch if this server is a survivor that may still run the session's agent, unless the user asked for it
/// (ruling 11). Tells whether it is one.
async fn refuse_beside(
    backend: &Arc<Backend>,
    session: &SessionId,
    server: &ServerIdentity,
    input: ResumeInput,
) -> Result<bool, Unsettled> {
    let survivors = backend.store.survivors().await?;
    let Some(survivor) = survivors.iter().find(|survivor| survivor.server == *server) else {
        return Ok(false);
    };
    if survivors::is_over(backend, survivor).await {
        return Ok(false);
    }
    if input.beside_survivor {
        return Ok(true);
    }
    let message = format!(
        "an agent of session {session} may still run: control server {}. Try again then, or launch beside it with \
         --beside-survivor",
        survivor.describe()
    );
    Err(Refused::for_now(RefusalCode::Survivor, message).into())
}

/// Ends what a server that is gone has left of the session's agent; refuses by name what cannot be ended.
async fn end_leftovers(
    backend: &Arc<Backend>,
    session: &SessionId,
    record: Option<&ExecutorRecord>,
) -> Result<(), Unsettled> {
    let gone = match record {
        Some(record) => is_gone(backend, record).await,
        None => true,
    };
    let agent = record.and_then(|record| record.agent.as_ref());
    match leftovers::settle(backend, session, agent, gone).await {
        Leftover::Gone => Ok(()),
        Leftover::Remains { why } if gone => {
            let unknown = || wire::InstanceId::new("unknown");
            let instance = record.map_or_else(unknown, |record| record.execution.clone());
            Err(unstopped(session, instance, &why))
        }
        Leftover::Remains { why } => {
            let message = format!("an agent of session {session} may still run: {why}");
            Err(Refused::for_now(RefusalCode::LivenessUnknown, message).into())
        }
    }
}

/// Whether the record's server is gone.
async fn is_gone(backend: &Backend, record: &ExecutorRecord) -> bool {
    match record.address.parse() {
        Ok(address) => tending::is_gone(backend, address, &record.server).await,
        Err(_) => false,
    }
}

fn unstopped(session: &SessionId, instance: wire::InstanceId, why: &str) -> Unsettled {
    let message = format!("an agent of session {session} could not be stopped: {why}");
    Unsettled { refused: Refused::for_good(RefusalCode::UnstoppedAgent, message), unstopped: Some(instance) }
}

const REPLACED: &str = "its agent was gone when the session was resumed";
const BESIDE: &str = "the session was resumed beside a control server that may still run its agent";
