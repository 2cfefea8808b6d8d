//! Cancelling a turn, answering a permission request, stopping a session.

use std::sync::Arc;

use tracing::info;
use wire::{AnswerPermission, PermissionId, SessionId};

use super::{stream, view};
use crate::api::{RefusalCode, Refused, SessionState, SessionView, TurnState};
use crate::backend::{Backend, chain, refused_by_server};
use crate::recovery_guard::Execution;
use crate::stop::stop_and_see_gone;
use crate::tending::report_turns;

/// Asks the agent to end the open turn; fine if none is open.
pub(crate) async fn cancel(backend: &Backend, session: &SessionId) -> Result<(), Refused> {
    let execution = execution(backend, session).await?;
    backend
        .server()?
        .client
        .cancel(&execution.instance)
        .await
        .map_err(|failed| refused_by_server(&failed))?;
    info!(%session, "cancel asked");
    Ok(())
}

/// Answers a permission request; without an option it is cancelled.
pub(crate) async fn answer_permission(
    backend: &Backend,
    session: &SessionId,
    permission: &PermissionId,
    option: Option<String>,
) -> Result<(), Refused> {
    let execution = execution(backend, session).await?;
    let answer = AnswerPermission { option };
    let client = backend.server()?.client;
    let answered = client.answer_permission(&execution.instance, permission, &answer).await;
    answered.map_err(|failed| refused_by_server(&failed))?;
    info!(%session, %permission, "permission answered");
    Ok(())
}

/// Stops the session's agent, and answers when it was seen gone. Its workspace stays.
pub(crate) async fn stop(backend: &Arc<Backend>, session: &SessionId) -> Result<SessionView, Refused> {
    let found = backend.executions().execution(session);
    match found {
        Ok(execution) => stop_execution(backend, session, execution).await?,
        Err(refused) if refused.code == RefusalCode::NoAgent => {
            view(backend, session).await?;
            // Claimed, so that nobody resumes it meanwhile.
            backend.executions().claim_launch(session)?;
            let stopped = stop_without_agent(backend, session).await;
            backend.executions().abandon_launch(session);
            stopped?;
        }
        Err(refused) => return Err(refused),
    }
    view(backend, session).await
}

/// A session that has no agent by all that is known.
async fn stop_without_agent(backend: &Backend, session: &SessionId) -> Result<(), Refused> {
    if backend.store.executor_record(session).await?.is_some_and(|record| record.live) {
        let message = "whether the session's agent lives is not known, since its control server could not be asked; \
                       resume the session, which looks again";
        return Err(Refused::for_good(RefusalCode::UnstoppedAgent, message));
    }
    let (to, turns, at) = (SessionState::Cancelled, TurnState::Cancelled, backend.wall_ms());
    backend.store.end_execution(session, None, to, turns, STOPPED.to_owned(), at).await?;
    Ok(())
}

async fn stop_execution(
    backend: &Arc<Backend>,
    session: &SessionId,
    execution: Execution,
) -> Result<(), Refused> {
    let server = backend.server()?;
    // Whoever follows it ends first, so that the instance's end is not taken for the agent's own. A prompt that is on
    // its way and a start that is awaited go on: they end with the execution, or go on with it.
    execution.unfollowed.send_replace(true);
    let retries = backend.config.read_retries;
    let instance = &execution.instance;
    let gone = stop_and_see_gone(&*backend.seams.clock, &server.client, instance, retries).await;
    if let Err(failed) = gone {
        // It may live on: it is followed again, and can be stopped again. Unless its server was lost meanwhile, and
        // with it this execution: then that has the last word on the session.
        follow_again(backend, session, &execution);
        return Err(Refused::for_now(RefusalCode::ControlServerFailed, chain(&failed)));
    }
    let (to, turns) = (SessionState::Cancelled, TurnState::Cancelled);
    let (reason, at) = (STOPPED.to_owned(), backend.wall_ms());
    let ended = backend.store.end_execution(session, Some(instance.clone()), to, turns, reason, at).await;
    // Whoever follows it finds that it is gone, and writes that down once it can.
    let ended = ended.inspect_err(|_| follow_again(backend, session, &execution))?;
    report_turns(session, &ended, "stop");
    backend.executions().remove(session, execution.epoch);
    info!(%session, %instance, "session stopped");
    Ok(())
}

fn follow_again(backend: &Arc<Backend>, session: &SessionId, execution: &Execution) {
    let again = backend.executions().follow_again(session, execution);
    if let Some(again) = again {
        tokio::spawn(stream::follow(Arc::clone(backend), session.clone(), again, Vec::new()));
    }
}

/// The session's execution; an unknown session is told apart from one without an agent.
async fn execution(backend: &Backend, session: &SessionId) -> Result<Execution, Refused> {
    let found = backend.executions().execution(session);
    match found {
        Err(refused) if refused.code == RefusalCode::NoAgent => {
            view(backend, session).await?;
            Err(refused)
        }
        found => found,
    }
}

const STOPPED: &str = "stopped by its user";
