//! Sessions and their tasks.

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use wire::SessionId;

use super::executor_records::{ExecutorRecord, record_of};
use super::turns::newest_turn;
use super::{Store, StoreFailed, int};
use crate::api::{SessionState, TaskState, TurnView};

/// One durable session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionRow {
    pub(crate) session: SessionId,
    pub(crate) task: String,
    pub(crate) task_state: TaskState,
    pub(crate) profile: String,
    /// None if the stored text is not of this build: the session then counts as not terminal.
    pub(crate) state: Option<SessionState>,
    pub(crate) directory: String,
    pub(crate) provider_session: Option<String>,
    pub(crate) failure: Option<String>,
}

/// Everything durable that a user sees of one session, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) row: SessionRow,
    pub(crate) record: Option<ExecutorRecord>,
    pub(crate) turn: Option<TurnView>,
}

/// What a new session is made from.
#[derive(Clone, Debug)]
pub(crate) struct NewSession {
    pub(crate) session: SessionId,
    pub(crate) task: String,
    pub(crate) title: String,
    /// The task-environment id, whose one source is this row (S-002.14).
    pub(crate) environment: String,
    pub(crate) profile: String,
    pub(crate) directory: String,
    pub(crate) repository: Option<String>,
    pub(crate) branch: Option<String>,
}

impl Store {
    /// Makes the session durable as `CREATED`, with its task in progress.
    pub(crate) async fn create_session(&self, new: NewSession, at_ms: u64) -> Result<(), StoreFailed> {
        self.transaction("create the session", move |db| {
            db.execute(
                "INSERT INTO tasks (id, title, state, updated_ms) VALUES (?1, ?2, ?3, ?4)",
                params![new.task, new.title, TaskState::InProgress.as_str(), int(at_ms)],
            )?;
            db.execute(
                "INSERT INTO sessions (id, task, environment, profile, passthrough, state, directory, repository,
                                       branch, created_ms, updated_ms)
                 VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9, ?9)",
                params![
                    new.session.as_str(),
                    new.task,
                    new.environment,
                    new.profile,
                    SessionState::Created.as_str(),
                    new.directory,
                    new.repository,
                    new.branch,
                    int(at_ms)
                ],
            )
            .map(drop)
        })
        .await
    }

    /// One session, or every one, oldest first, each with its execution and its newest turn as they were at one
    /// moment: parts that were read one after another would tell of a session that never was.
    pub(crate) async fn pictures(&self, of: Option<SessionId>) -> Result<Vec<Picture>, StoreFailed> {
        self.transaction("read the sessions", move |db| {
            let mut statement =
                db.prepare(&format!("{SELECT} WHERE ?1 IS NULL OR s.id = ?1 ORDER BY s.number"))?;
            let rows = statement.query_map(params![of.as_ref().map(SessionId::as_str)], row)?;
            rows.map(|row| {
                let row = row?;
                let record = record_of(db, &row.session)?;
                let turn = newest_turn(db, &row.session)?;
                Ok(Picture { row, record, turn })
            })
            .collect()
        })
        .await
    }

    /// Sessions that are at work by their own word, but have no live executor record: a backend died before it
    /// asked for an agent.
    pub(crate) async fn sessions_without_execution(&self) -> Result<Vec<SessionId>, StoreFailed> {
        self.transaction("list the sessions without execution", |db| {
            let mut statement = db.prepare(
                "SELECT s.id FROM sessions s
                 WHERE s.state NOT IN ('COMPLETED', 'FAILED', 'CANCELLED')
                   AND s.state IN ('CREATED', 'STARTING', 'RUNNING', 'WAITING_FOR_INPUT')
                   AND NOT EXISTS (SELECT 1 FROM executor_records e WHERE e.session = s.id AND e.live = 1)
                 ORDER BY s.number",
            )?;
            statement.query_map([], |row| Ok(SessionId::new(row.get::<_, String>(0)?)))?.collect()
        })
        .await
    }

    /// Moves the session from one of `from` to `to`; tells whether it did (a compare-and-set).
    pub(crate) async fn move_session(
        &self,
        id: &SessionId,
        from: &'static [SessionState],
        to: SessionState,
        at_ms: u64,
    ) -> Result<bool, StoreFailed> {
        let id = id.clone();
        self.transaction("change the session's state", move |db| move_session(db, &id, from, to, None, at_ms))
            .await
    }

    /// Keeps the provider's conversation, which a resume needs; tells whether it replaced another one.
    pub(crate) async fn set_provider_session(
        &self,
        id: &SessionId,
        provider_session: String,
        at_ms: u64,
    ) -> Result<bool, StoreFailed> {
        let id = id.clone();
        self.transaction("write the provider session", move |db| {
            let earlier: Option<String> = db
                .query_row(
                    "SELECT provider_session FROM sessions WHERE id = ?1",
                    params![id.as_str()],
                    |row| row.get(0),
                )
                .optional()?
                .flatten();
            let replaces = earlier.is_some_and(|earlier| earlier != provider_session);
            db.execute(
                "UPDATE sessions SET provider_session = ?2, updated_ms = ?3 WHERE id = ?1",
                params![id.as_str(), provider_session, int(at_ms)],
            )?;
            Ok(replaces)
        })
        .await
    }
}

/// See [`Store::move_session`]; a failure's text is kept with it. The task follows its session.
pub(super) fn move_session(
    db: &Transaction<'_>,
    id: &SessionId,
    from: &[SessionState],
    to: SessionState,
    failure: Option<&str>,
    at_ms: u64,
) -> rusqlite::Result<bool> {
    let current: Option<String> = db
        .query_row("SELECT state FROM sessions WHERE id = ?1", params![id.as_str()], |row| row.get(0))
        .optional()?;
    let current = current.as_deref().and_then(SessionState::from_text);
    if !current.is_some_and(|current| from.contains(&current)) {
        return Ok(false);
    }
    db.execute(
        "UPDATE sessions SET state = ?2, failure = ?3, updated_ms = ?4 WHERE id = ?1",
        params![id.as_str(), to.as_str(), failure, int(at_ms)],
    )?;
    let task = match to {
        SessionState::Failed => TaskState::Failed,
        SessionState::Cancelled => TaskState::Cancelled,
        SessionState::Idle => TaskState::Interrupted,
        _ => TaskState::InProgress,
    };
    db.execute(
        "UPDATE tasks SET state = ?2, updated_ms = ?3
         WHERE id = (SELECT task FROM sessions WHERE id = ?1) AND state <> ?2",
        params![id.as_str(), task.as_str(), int(at_ms)],
    )?;
    Ok(true)
}

/// Every state that is not terminal.
pub(super) const AT_WORK: &[SessionState] = &[
    SessionState::Created,
    SessionState::Starting,
    SessionState::Running,
    SessionState::WaitingForInput,
    SessionState::Idle,
];

const SELECT: &str =
    "SELECT s.id, s.task, t.state, s.profile, s.state, s.directory, s.provider_session, s.failure
                      FROM sessions s JOIN tasks t ON t.id = s.task";

fn row(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        session: SessionId::new(row.get::<_, String>(0)?),
        task: row.get(1)?,
        task_state: TaskState::from_text(&row.get::<_, String>(2)?).unwrap_or(TaskState::InProgress),
        profile: row.get(3)?,
        state: SessionState::from_text(&row.get::<_, String>(4)?),
        directory: row.get(5)?,
        provider_session: row.get(6)?,
        failure: row.get(7)?,
    })
}
