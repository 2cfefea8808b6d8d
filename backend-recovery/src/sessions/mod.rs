//! What a user does with a session, and what follows its execution.

mod control;
mod launch;
mod prompt;
mod readiness;
mod resume;
mod stream;
mod view;

use std::sync::Arc;

use wire::{InstanceStatus, ServerIdentity, SessionId, TurnId};

use crate::backend::Backend;

pub(crate) use control::{answer_permission, cancel, stop};
pub(crate) use launch::create;
pub(crate) use prompt::prompt;
pub(crate) use resume::resume;
pub(crate) use view::{list, view};

/// Publishes a surviving instance of this server as the session's execution and begins to follow it. The caller holds
/// the session's guard, which this releases; outcomes in `acknowledge` are durable. False if the server was lost
/// meanwhile: then the guard stays.
pub(crate) fn publish_retracked(
    backend: &Arc<Backend>,
    server: &ServerIdentity,
    session: &SessionId,
    status: &InstanceStatus,
    acknowledge: Vec<TurnId>,
) -> bool {
    let Some(execution) = backend.publish(session, status.instance.clone(), server) else { return false };
    tracing::info!(%session, "guard released");
    backend.executions().note_permissions(session, execution.epoch, &status.permissions, &[]);
    if status.state == wire::InstanceState::Starting {
        tokio::spawn(readiness::await_ready(Arc::clone(backend), session.clone(), execution.clone()));
    }
    tokio::spawn(stream::follow(Arc::clone(backend), session.clone(), execution, acknowledge));
    true
}
