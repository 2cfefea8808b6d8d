//! What users see of sessions.

use wire::SessionId;

use crate::api::{RefusalCode, Refused, SessionList, SessionState, SessionView};
use crate::backend::Backend;
use crate::store::SessionRow;

/// One session.
pub(crate) async fn view(backend: &Backend, session: &SessionId) -> Result<SessionView, Refused> {
    match backend.store.session(session).await? {
        Some(row) => complete(backend, row).await,
        None => Err(Refused::for_good(RefusalCode::UnknownSession, format!("there is no session {session}"))),
    }
}

/// Every session, oldest first.
pub(crate) async fn list(backend: &Backend) -> Result<SessionList, Refused> {
    let mut sessions = Vec::new();
    for row in backend.store.sessions().await? {
        sessions.push(complete(backend, row).await?);
    }
    Ok(SessionList { sessions })
}

async fn complete(backend: &Backend, row: SessionRow) -> Result<SessionView, Refused> {
    let record = backend.store.executor_record(&row.session).await?;
    let turn = backend.store.newest_turn(&row.session).await?;
    let (tracked, permissions) = match backend.executions().tracked(&row.session) {
        Some(execution) => (true, execution.permissions.iter().cloned().collect()),
        None => (false, Vec::new()),
    };
    let (instance, agent) = match record {
        Some(record) => (Some(record.execution), record.agent),
        None => (None, None),
    };
    Ok(SessionView {
        session: row.session,
        task: row.task,
        task_state: row.task_state,
        profile: row.profile,
        state: row.state.unwrap_or(SessionState::Idle),
        directory: row.directory,
        failure: row.failure,
        instance,
        agent,
        provider_session: row.provider_session,
        tracked,
        permissions,
        turn,
    })
}
