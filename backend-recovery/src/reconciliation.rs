//! The reconciliation pass: every record that was not re-tracked is judged by its own instance, once, after all
//! outcomes are known (S-003.1, S-003.6). What is not known to be gone is left as it is.

use std::sync::Arc;

use tracing::{info, warn};
use wire::ServerIdentity;

use crate::api::Named;
use crate::backend::{Backend, chain};
use crate::leftovers::Leftover;
use crate::recovery_guard::Taken;
use crate::retracking::Retracked;
use crate::store::{ExecutorRecord, InventoryRow, StoreFailed};
use crate::tending::{repair, repair_without_server};

/// What recovery learned about the server that the records are from.
pub(crate) enum Survey {
    /// It was adopted and enumerated.
    Enumerated(Retracked),
    /// It was adopted and could not be enumerated: nothing is known (S-002.12).
    NotEnumerated,
    /// Nobody is there: nothing was recorded, nobody listens, or we saw it go. The server, if one was recorded.
    NobodyAnswered {
        /// Whose agents may be ended if they are left over.
        server: Option<ServerIdentity>,
    },
    /// Something is there and was left running: nothing is known.
    LeftRunning {
        /// Why, if it may run agents of ours (ruling 11).
        survivor: Option<&'static str>,
    },
}

/// What the pass came to.
#[derive(Default)]
pub(crate) struct PassReport {
    pub(crate) retracked: Vec<wire::SessionId>,
    pub(crate) stopped: Vec<Named>,
    pub(crate) left: Vec<Named>,
}

/// One pass over all records.
pub(crate) async fn reconcile(
    backend: &Arc<Backend>,
    rows: &[InventoryRow],
    survey: Survey,
) -> Result<PassReport, StoreFailed> {
    let mut report = PassReport { stopped: backend.report().stopped.clone(), ..PassReport::default() };
    let survivors = backend.store.survivors().await?;
    for row in rows {
        let session = &row.record.session;
        if matches!(&survey, Survey::Enumerated(retracked) if retracked.sessions.contains(session)) {
            continue;
        }
        // Decided while it is held: a user may have resumed the session since.
        let taken = match row.passthrough {
            true if !backend.executions().is_occupied(session) => Taken::Observed,
            true => Taken::InUse,
            false => backend.executions().guard(session),
        };
        if taken == Taken::InUse {
            let reason = "a launch of this backend has taken it over".to_owned();
            report.left.push(Named { id: session.to_string(), reason });
            continue;
        }
        let survivor = survivors.iter().find(|survivor| survivor.server == row.record.server);
        let left = match survivor {
            Some(survivor) => Some(format!("control server {}", survivor.describe())),
            None => judge(backend, row, &survey).await,
        };
        if let Some(reason) = left {
            warn!(%session, reason, "record left as it is");
            report.left.push(Named { id: session.to_string(), reason });
        }
        if backend.executions().release(session) {
            info!(%session, "guard released");
        }
    }
    if let Survey::Enumerated(retracked) = survey {
        report.retracked = retracked.sessions.into_iter().collect();
        report.stopped.extend(retracked.stopped);
    }
    // Sessions that a backend made durable without ever asking for an agent.
    for session in backend.store.sessions_without_execution().await? {
        // One that a user created while recovery ran has its launch claim.
        if !backend.executions().is_occupied(&session) {
            repair(backend, &session, None, "the backend ended before its agent was started").await;
        }
    }
    Ok(report)
}

/// Reconciles one record; tells why it was left, if it was.
async fn judge(backend: &Arc<Backend>, row: &InventoryRow, survey: &Survey) -> Option<String> {
    let record = &row.record;
    let session = &record.session;
    match survey {
        Survey::Enumerated(retracked) => {
            if let Some(reason) = retracked.not_gone.get(session) {
                return Some(format!("an instance of it is not known to be gone: {reason}"));
            }
            // As it stands now: an attempt to re-track may have rewritten it to another instance.
            let now = match backend.store.executor_record(session).await {
                Ok(Some(now)) => now,
                Ok(None) => record.clone(),
                Err(failed) => return Some(chain(&failed)),
            };
            if retracked.without_server.contains(session) {
                return without_server(backend, &now, true).await;
            }
            let adopted = backend.server().ok().map(|server| server.identity);
            if adopted.as_ref() != Some(&record.server) {
                return without_server(backend, &now, false).await;
            }
            let reason = "the backend restarted and its agent was gone";
            repair(backend, session, Some(now.execution), reason).await;
            None
        }
        Survey::NobodyAnswered { server } => {
            without_server(backend, record, server.as_ref() == Some(&record.server)).await
        }
        Survey::NotEnumerated => Some("the control server could not be enumerated".to_owned()),
        Survey::LeftRunning { .. } => {
            Some("its control server was left running and may still run its agent".to_owned())
        }
    }
}

async fn without_server(backend: &Arc<Backend>, record: &ExecutorRecord, end: bool) -> Option<String> {
    match repair_without_server(backend, &record.session, &record.execution, record.agent.as_ref(), end).await
    {
        Leftover::Gone => None,
        Leftover::Remains { why } => Some(format!("its agent may still run: {why}")),
    }
}
