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
            if backend.store.executor_record(session).await?.is_some_and(|record| record.live) {
                let message = "whether the session's agent lives is not known, since its control server could not be \
                               asked; restart the backend to look again";
                return Err(Refused::for_good(RefusalCode::UnstoppedAgent, message));
            }
            let (to, turns) = (SessionState::Cancelled, TurnState::Cancelled);
            let reason = STOPPED.to_owned();
            backend.store.end_execution(session, None, to, turns, reason, backend.wall_ms()).await?;
        }
        Err(refused) => return Err(refused),
    }
    view(backend, session).await
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
        if let Some(again) = backend.executions().follow_again(session, &execution) {
            tokio::spawn(stream::follow(Arc::clone(backend), session.clone(), again, Vec::new()));
        }
        return Err(Refused::for_now(RefusalCode::ControlServerFailed, chain(&failed)));
    }
    let (to, turns) = (SessionState::Cancelled, TurnState::Cancelled);
    let (reason, at) = (STOPPED.to_owned(), backend.wall_ms());
    let ended = backend.store.end_execution(session, Some(instance.clone()), to, turns, reason, at).await?;
    report_turns(session, &ended, "stop");
    backend.executions().remove(session, execution.epoch);
    info!(%session, %instance, "session stopped");
    Ok(())
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
