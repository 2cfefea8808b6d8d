//! What users see of sessions.

use std::collections::BTreeMap;

use wire::{PermissionId, SessionId};

use crate::api::{RefusalCode, Refused, SessionList, SessionState, SessionView};
use crate::backend::Backend;
use crate::store::Picture;

/// One session.
pub(crate) async fn view(backend: &Backend, session: &SessionId) -> Result<SessionView, Refused> {
    match pictures(backend, Some(session.clone())).await?.pop() {
        Some(view) => Ok(view),
        None => Err(Refused::for_good(RefusalCode::UnknownSession, format!("there is no session {session}"))),
    }
}

/// Every session, oldest first.
pub(crate) async fn list(backend: &Backend) -> Result<SessionList, Refused> {
    Ok(SessionList { sessions: pictures(backend, None).await? })
}

async fn pictures(backend: &Backend, of: Option<SessionId>) -> Result<Vec<SessionView>, Refused> {
    // Looked at before the store: what is published has been made durable, so whoever is shown as tracked is shown
    // with the record that it was tracked by.
    let (tracked, troubles) = {
        let executions = backend.executions();
        (executions.permissions_of_tracked(), executions.troubles())
    };
    let pictures = backend.store.pictures(of).await?;
    Ok(pictures.into_iter().map(|picture| complete(picture, &tracked, &troubles)).collect())
}

fn complete(
    picture: Picture,
    tracked: &BTreeMap<SessionId, Vec<PermissionId>>,
    troubles: &BTreeMap<SessionId, String>,
) -> SessionView {
    let Picture { row, record, turn } = picture;
    let permissions = tracked.get(&row.session);
    let trouble = troubles.get(&row.session).cloned();
    let (tracked, permissions) = (permissions.is_some(), permissions.cloned().unwrap_or_default());
    let (instance, agent) = match record {
        Some(record) => (Some(record.execution), record.agent),
        None => (None, None),
    };
    SessionView {
        session: row.session,
        task: row.task,
        task_state: row.task_state,
        profile: row.profile,
        state: row.state.unwrap_or(SessionState::Idle),
        directory: row.directory,
        failure: trouble.or(row.failure),
        instance,
        agent,
        provider_session: row.provider_session,
        tracked,
        permissions,
        turn,
    }
}
