//! Executor records: which execution works for which session, written before the control server is asked for it.
//! The live ones of the standalone runtime are the recovery inventory.

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use wire::{InstanceId, ProcessRef, ServerIdentity, SessionId};

use super::sessions::{AT_WORK, move_session};
use super::transcript::insert_notice;
use super::turns::end_open_turns;
use super::{Applied, Store, StoreFailed, int};
use crate::api::{SessionState, TurnState};

/// One execution of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExecutorRecord {
    pub(crate) session: SessionId,
    /// The agent execution id: the instance in the control server.
    pub(crate) execution: InstanceId,
    pub(crate) server: ServerIdentity,
    pub(crate) address: String,
    pub(crate) task: String,
    pub(crate) workspace: String,
    pub(crate) profile: String,
    /// The agent's own process, once known (ruling 13).
    pub(crate) agent: Option<ProcessRef>,
    pub(crate) live: bool,
}

/// A live record as recovery meets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InventoryRow {
    pub(crate) record: ExecutorRecord,
    /// The session's state; none if it cannot be read, which keeps the row in.
    pub(crate) state: Option<SessionState>,
    /// From the durable session; unreadable counts as not passthrough (S-005.3).
    pub(crate) passthrough: bool,
}

/// The record of one session.
pub(super) fn record_of(
    db: &Transaction<'_>,
    session: &SessionId,
) -> rusqlite::Result<Option<ExecutorRecord>> {
    let query = format!("SELECT {COLUMNS} FROM executor_records e WHERE e.session = ?1");
    db.query_row(&query, params![session.as_str()], record).optional()
}

impl Store {
    /// Writes the record, and moves the session from `CREATED` to `STARTING` in the same step: from here on a
    /// restart looks for the instance.
    pub(crate) async fn begin_execution(
        &self,
        record: ExecutorRecord,
        at_ms: u64,
    ) -> Result<(), StoreFailed> {
        self.transaction("write the executor record", move |db| {
            db.execute(
                "INSERT INTO executor_records (session, runtime, execution, server, address, task, workspace,
                                               profile, metadata, agent, live, updated_ms)
                 VALUES (?1, 'standalone', ?2, ?3, ?4, ?5, ?6, ?7, '{}', NULL, 1, ?8)
                 ON CONFLICT (session) DO UPDATE SET execution = excluded.execution, server = excluded.server,
                     address = excluded.address, agent = NULL, live = 1, updated_ms = excluded.updated_ms",
                params![
                    record.session.as_str(),
                    record.execution.as_str(),
                    record.server.as_str(),
                    record.address,
                    record.task,
                    record.workspace,
                    record.profile,
                    int(at_ms)
                ],
            )?;
            let from = [SessionState::Created];
            move_session(db, &record.session, &from, SessionState::Starting, None, at_ms).map(drop)
        })
        .await
    }

    /// Rewrites where the execution is: the instance that correlation chose, and its agent's process.
    pub(crate) async fn point_execution(
        &self,
        session: &SessionId,
        execution: &InstanceId,
        server: &ServerIdentity,
        address: String,
        agent: Option<ProcessRef>,
        at_ms: u64,
    ) -> Result<(), StoreFailed> {
        let (session, execution, server) = (session.clone(), execution.clone(), server.clone());
        let agent = agent.map(|agent| serde_json::to_string(&agent).expect("wire values always serialize"));
        self.transaction("rewrite the executor record", move |db| {
            db.execute(
                "UPDATE executor_records
                 SET execution = ?2, server = ?3, address = ?4, agent = COALESCE(?5, agent), updated_ms = ?6
                 WHERE session = ?1",
                params![session.as_str(), execution.as_str(), server.as_str(), address, agent, int(at_ms)],
            )
            .map(drop)
        })
        .await
    }

    /// The record of one session.
    pub(crate) async fn executor_record(
        &self,
        session: &SessionId,
    ) -> Result<Option<ExecutorRecord>, StoreFailed> {
        let session = session.clone();
        self.transaction("read the executor record", move |db| record_of(db, &session)).await
    }

    /// Every live record with its session's state, terminal ones too: the caller separates them.
    pub(crate) async fn live_records(&self) -> Result<Vec<InventoryRow>, StoreFailed> {
        self.transaction("read the recovery inventory", |db| {
            let mut statement = db.prepare(&format!(
                "SELECT {COLUMNS}, s.state, s.passthrough FROM executor_records e
                 LEFT JOIN sessions s ON s.id = e.session
                 WHERE e.live = 1 AND e.runtime = 'standalone' ORDER BY e.session"
            ))?;
            let rows = statement.query_map([], |row| {
                Ok(InventoryRow {
                    record: record(row)?,
                    state: row.get::<_, Option<String>>(9)?.as_deref().and_then(SessionState::from_text),
                    passthrough: row.get::<_, Option<i64>>(10)?.unwrap_or(0) != 0,
                })
            })?;
            rows.collect()
        })
        .await
    }

    /// Ends the execution's record after its instance was seen gone: accepted turns end as `turns`, the session
    /// moves to `to` unless it is terminal already. Resume token and workspace stay. Tells the turns that it ended.
    /// Without an execution the session has no live record, and only it is moved.
    pub(crate) async fn end_execution(
        &self,
        session: &SessionId,
        execution: Option<InstanceId>,
        to: SessionState,
        turns: TurnState,
        reason: String,
        at_ms: u64,
    ) -> Result<Vec<Applied>, StoreFailed> {
        let session = session.clone();
        self.transaction("end the execution", move |db| {
            if let Some(execution) = &execution {
                // Compared with the instance: a late end never closes a newer execution of the session.
                let closed = db.execute(
                    "UPDATE executor_records SET live = 0, updated_ms = ?3 WHERE session = ?1 AND execution = ?2",
                    params![session.as_str(), execution.as_str(), int(at_ms)],
                )?;
                if closed == 0 {
                    return Ok(Vec::new());
                }
            }
            let ended = end_open_turns(db, &session, turns, &reason, at_ms)?;
            let failure = (to != SessionState::Cancelled).then_some(reason.as_str());
            let moved = move_session(db, &session, AT_WORK, to, failure, at_ms)?;
            if moved && ended.is_empty() && failure.is_some() {
                insert_notice(db, &session, None, &reason, at_ms)?;
            }
            Ok(ended)
        })
        .await
    }
}

const COLUMNS: &str =
    "e.session, e.execution, e.server, e.address, e.task, e.workspace, e.profile, e.agent, e.live";

fn record(row: &Row<'_>) -> rusqlite::Result<ExecutorRecord> {
    Ok(ExecutorRecord {
        session: SessionId::new(row.get::<_, String>(0)?),
        execution: InstanceId::new(row.get::<_, String>(1)?),
        server: ServerIdentity::new(row.get::<_, String>(2)?),
        address: row.get(3)?,
        task: row.get(4)?,
        workspace: row.get(5)?,
        profile: row.get(6)?,
        agent: row.get::<_, Option<String>>(7)?.and_then(|text| serde_json::from_str(&text).ok()),
        live: row.get::<_, i64>(8)? != 0,
    })
}
