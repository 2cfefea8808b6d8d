//! Turns: durable before the prompt is sent, and ended exactly once.
//!
//! ```text
//! PENDING ── the control server accepted it ──> RUNNING ── the first outcome ──> COMPLETED | CANCELLED | FAILED
//!    │                                             └── its agent is gone ──────> INTERRUPTED | CANCELLED
//!    └── it was never accepted ──> NOT_DELIVERED
//! ```
//! A terminal turn never changes again, whatever arrives (S-004.6).

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use wire::{OpenTurn, PromptKey, ServerIdentity, SessionId, TurnEnd, TurnId, TurnOutcome, TurnStatus};

use super::sessions::move_session;
use super::transcript::{insert_notice, insert_prompt};
use super::{Store, StoreFailed, int, uint};
use crate::api::{SessionState, TurnState, TurnView};

/// A turn that just reached its terminal state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) turn: PromptKey,
    /// As the control server numbers it, if it ever accepted it.
    pub(crate) control_turn: Option<TurnId>,
    pub(crate) state: TurnState,
}

/// What beginning a turn met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It is durable and pending.
    New,
    /// The same key began it before.
    Same(TurnView),
    /// Another turn of the session has not ended.
    TurnOpen(PromptKey),
    /// The key belongs to another session's turn.
    Conflict,
    /// The session does not wait for input.
    NotWaiting(SessionState),
}

/// What a turn status, once applied, comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Turns that this status ended.
    pub(crate) applied: Vec<Applied>,
    /// Outcomes that are durable now and may be acknowledged (S-004.6).
    pub(crate) acknowledge: Vec<TurnId>,
    /// Whether a turn is open.
    pub(crate) open: bool,
}

impl Store {
    /// Makes the turn, its prompt in the transcript and the session's `RUNNING` durable in one step, before
    /// anything is sent.
    pub(crate) async fn begin_turn(
        &self,
        session: &SessionId,
        key: &PromptKey,
        text: String,
        at_ms: u64,
    ) -> Result<Begun, StoreFailed> {
        let (session, key) = (session.clone(), key.clone());
        self.transaction("begin the turn", move |db| {
            if let Some((owner, view)) = turn_and_session(db, &key)? {
                return Ok(if owner == session { Begun::Same(view) } else { Begun::Conflict });
            }
            let open = db
                .query_row(
                    "SELECT key FROM turns WHERE session = ?1 AND state IN ('PENDING', 'RUNNING')",
                    params![session.as_str()],
                    |row| row.get::<_, String>(0),
                )
                .optional()?;
            if let Some(open) = open {
                return Ok(Begun::TurnOpen(PromptKey::new(open)));
            }
            let from = [SessionState::WaitingForInput];
            if !move_session(db, &session, &from, SessionState::Running, None, at_ms)? {
                let state: String = db.query_row(
                    "SELECT state FROM sessions WHERE id = ?1",
                    params![session.as_str()],
                    |row| row.get(0),
                )?;
                let state = SessionState::from_text(&state).unwrap_or(SessionState::Idle);
                return Ok(Begun::NotWaiting(state));
            }
            db.execute(
                "INSERT INTO turns (key, session, state, created_ms) VALUES (?1, ?2, 'PENDING', ?3)",
                params![key.as_str(), session.as_str(), int(at_ms)],
            )?;
            insert_prompt(db, &session, &key, &text, at_ms)?;
            Ok(Begun::New)
        })
        .await
    }

    /// The control server accepted the turn; changes nothing if it has gone further already.
    pub(crate) async fn turn_accepted(
        &self,
        server: &ServerIdentity,
        open: OpenTurn,
    ) -> Result<(), StoreFailed> {
        let server = server.clone();
        self.transaction("mark the turn as accepted", move |db| accept(db, &server, &open)).await
    }

    /// The turn was refused for good or could not be delivered: it ends visibly, the session takes the next one.
    pub(crate) async fn turn_not_delivered(
        &self,
        session: &SessionId,
        key: &PromptKey,
        reason: String,
        at_ms: u64,
    ) -> Result<Option<Applied>, StoreFailed> {
        let (session, key) = (session.clone(), key.clone());
        self.transaction("end the turn as not delivered", move |db| {
            let ended = end_as_not_delivered(db, &session, &key, &reason, at_ms)?;
            if ended.is_some() {
                rest(db, &session, at_ms)?;
            }
            Ok(ended)
        })
        .await
    }

    /// Applies what the control server says about the instance's turns, with the three answers of ruling 2.
    /// For re-tracking alone, where no prompt is in flight: a turn that neither is open nor has an outcome there
    /// was never accepted, or its outcome is lost.
    pub(crate) async fn apply_turn_status(
        &self,
        session: &SessionId,
        server: &ServerIdentity,
        status: TurnStatus,
        at_ms: u64,
    ) -> Result<Settled, StoreFailed> {
        let (session, server) = (session.clone(), server.clone());
        self.transaction("apply the turn status", move |db| {
            let mut applied = Vec::new();
            for outcome in &status.kept {
                applied.extend(apply_outcome(db, &session, &server, outcome, "status")?);
            }
            if let Some(open) = &status.open {
                accept(db, &server, open)?;
            }
            for (key, state) in open_turns(db, &session)? {
                if status.open.as_ref().is_some_and(|open| open.key == key) {
                    continue;
                }
                applied.extend(if state == TurnState::Pending {
                    let reason =
                        "the backend restarted before this prompt was delivered; it was not sent again";
                    end_as_not_delivered(db, &session, &key, reason, at_ms)?
                } else {
                    let reason = "the control server no longer knows how this turn ended";
                    end_accepted(db, &session, &key, TurnState::Interrupted, reason, at_ms)?
                });
            }
            if status.open.is_some() {
                let from = [SessionState::Starting, SessionState::WaitingForInput];
                move_session(db, &session, &from, SessionState::Running, None, at_ms)?;
            } else {
                rest(db, &session, at_ms)?;
            }
            let acknowledge = status.kept.iter().map(|outcome| outcome.turn).collect();
            Ok(Settled { applied, acknowledge, open: status.open.is_some() })
        })
        .await
    }

    /// One turn.
    pub(crate) async fn turn(&self, key: &PromptKey) -> Result<Option<TurnView>, StoreFailed> {
        let key = key.clone();
        self.transaction("read the turn", move |db| Ok(turn_and_session(db, &key)?.map(|(_, view)| view)))
            .await
    }
}

/// The newest turn of a session.
pub(super) fn newest_turn(db: &Transaction<'_>, session: &SessionId) -> rusqlite::Result<Option<TurnView>> {
    let query = format!("SELECT {COLUMNS} FROM turns WHERE session = ?1 ORDER BY number DESC LIMIT 1");
    db.query_row(&query, params![session.as_str()], view).optional()
}

/// Applies one outcome: the first one wins (S-004.4). An outcome of a turn that this store does not know, or of
/// another session, changes nothing.
pub(super) fn apply_outcome(
    db: &Transaction<'_>,
    session: &SessionId,
    server: &ServerIdentity,
    outcome: &TurnOutcome,
    via: &'static str,
) -> rusqlite::Result<Option<Applied>> {
    let (state, stop_reason, error) = match &outcome.end {
        TurnEnd::Completed { stop_reason } => (TurnState::Completed, Some(stop_reason.as_str()), None),
        TurnEnd::Cancelled => (TurnState::Cancelled, None, None),
        TurnEnd::Failed { error } => (TurnState::Failed, None, Some(error.as_str())),
    };
    let changed = db.execute(
        "UPDATE turns SET state = ?3, server = ?4, control_turn = ?5, stop_reason = ?6, error = ?7, via = ?8,
                          ended_ms = ?9
         WHERE key = ?1 AND session = ?2 AND state IN ('PENDING', 'RUNNING')",
        params![
            outcome.key.as_str(),
            session.as_str(),
            state.as_str(),
            server.as_str(),
            int(outcome.turn.0),
            stop_reason,
            error,
            via,
            int(outcome.at_ms)
        ],
    )?;
    let control_turn = Some(outcome.turn);
    Ok((changed == 1).then(|| Applied { turn: outcome.key.clone(), control_turn, state }))
}

/// The control server accepted the turn.
pub(super) fn accept(db: &Transaction<'_>, server: &ServerIdentity, open: &OpenTurn) -> rusqlite::Result<()> {
    db.execute(
        "UPDATE turns SET state = 'RUNNING', server = ?2, control_turn = ?3 WHERE key = ?1 AND state = 'PENDING'",
        params![open.key.as_str(), server.as_str(), int(open.turn.0)],
    )
    .map(drop)
}

/// A session without an open turn waits for its user again.
pub(super) fn rest(db: &Transaction<'_>, session: &SessionId, at_ms: u64) -> rusqlite::Result<()> {
    if open_turns(db, session)?.is_empty() {
        let from = [SessionState::Running];
        move_session(db, session, &from, SessionState::WaitingForInput, None, at_ms)?;
    }
    Ok(())
}

/// Ends every open turn of the session: pending ones as not delivered, accepted ones as `accepted`.
pub(super) fn end_open_turns(
    db: &Transaction<'_>,
    session: &SessionId,
    accepted: TurnState,
    reason: &str,
    at_ms: u64,
) -> rusqlite::Result<Vec<Applied>> {
    let mut ended = Vec::new();
    for (key, state) in open_turns(db, session)? {
        ended.extend(if state == TurnState::Pending {
            end_as_not_delivered(db, session, &key, reason, at_ms)?
        } else {
            end_accepted(db, session, &key, accepted, reason, at_ms)?
        });
    }
    Ok(ended)
}

fn end_as_not_delivered(
    db: &Transaction<'_>,
    session: &SessionId,
    key: &PromptKey,
    reason: &str,
    at_ms: u64,
) -> rusqlite::Result<Option<Applied>> {
    let changed = db.execute(
        "UPDATE turns SET state = 'NOT_DELIVERED', error = ?2, via = 'backend', ended_ms = ?3
         WHERE key = ?1 AND state = 'PENDING'",
        params![key.as_str(), reason, int(at_ms)],
    )?;
    if changed == 0 {
        return Ok(None);
    }
    insert_notice(db, session, Some(key), &format!("prompt not delivered: {reason}"), at_ms)?;
    Ok(Some(Applied { turn: key.clone(), control_turn: None, state: TurnState::NotDelivered }))
}

fn end_accepted(
    db: &Transaction<'_>,
    session: &SessionId,
    key: &PromptKey,
    state: TurnState,
    reason: &str,
    at_ms: u64,
) -> rusqlite::Result<Option<Applied>> {
    let control_turn: Option<i64> =
        db.query_row("SELECT control_turn FROM turns WHERE key = ?1", params![key.as_str()], |row| {
            row.get(0)
        })?;
    let changed = db.execute(
        "UPDATE turns SET state = ?2, error = ?3, via = 'backend', ended_ms = ?4 WHERE key = ?1 AND state = 'RUNNING'",
        params![key.as_str(), state.as_str(), reason, int(at_ms)],
    )?;
    if changed == 0 {
        return Ok(None);
    }
    insert_notice(
        db,
        session,
        Some(key),
        &format!("turn {}: {reason}", state.as_str().to_lowercase()),
        at_ms,
    )?;
    Ok(Some(Applied { turn: key.clone(), control_turn: control_turn.map(|turn| TurnId(uint(turn))), state }))
}

fn open_turns(db: &Transaction<'_>, session: &SessionId) -> rusqlite::Result<Vec<(PromptKey, TurnState)>> {
    let mut statement = db.prepare(
        "SELECT key, state FROM turns WHERE session = ?1 AND state IN ('PENDING', 'RUNNING') ORDER BY number",
    )?;
    let rows = statement.query_map(params![session.as_str()], |row| {
        let state = TurnState::from_text(&row.get::<_, String>(1)?).unwrap_or(TurnState::Pending);
        Ok((PromptKey::new(row.get::<_, String>(0)?), state))
    })?;
    rows.collect()
}

fn turn_and_session(
    db: &Transaction<'_>,
    key: &PromptKey,
) -> rusqlite::Result<Option<(SessionId, TurnView)>> {
    let query = format!("SELECT {COLUMNS}, session FROM turns WHERE key = ?1");
    db.query_row(&query, params![key.as_str()], |row| {
        Ok((SessionId::new(row.get::<_, String>(4)?), view(row)?))
    })
    .optional()
}

const COLUMNS: &str = "key, state, stop_reason, error";

fn view(row: &Row<'_>) -> rusqlite::Result<TurnView> {
    Ok(TurnView {
        turn: PromptKey::new(row.get::<_, String>(0)?),
        state: TurnState::from_text(&row.get::<_, String>(1)?).unwrap_or(TurnState::Pending),
        stop_reason: row.get(2)?,
        error: row.get(3)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::NewSession;
    use super::super::tests::{now, store};
    use super::*;

    fn server() -> ServerIdentity {
        ServerIdentity::new("server-1")
    }

    fn session() -> SessionId {
        SessionId::new("s-1")
    }

    fn waiting(store: &Store) {
        let new = NewSession {
            session: session(),
            task: "k-1".to_owned(),
            title: "t".to_owned(),
            environment: "e-1".to_owned(),
            profile: "fake".to_owned(),
            directory: "/w".to_owned(),
            repository: None,
            branch: None,
        };
        now(store.create_session(new, 1)).unwrap();
        let from = &[SessionState::Created];
        assert!(now(store.move_session(&session(), from, SessionState::WaitingForInput, 2)).unwrap());
    }

    fn begin(store: &Store, key: &str) -> Begun {
        now(store.begin_turn(&session(), &PromptKey::new(key), "hello".to_owned(), 3)).unwrap()
    }

    fn outcome(turn: u64, key: &str, end: TurnEnd) -> TurnOutcome {
        TurnOutcome { turn: TurnId(turn), key: PromptKey::new(key), end, at_ms: 9 }
    }

    fn state_of(store: &Store, key: &str) -> TurnState {
        now(store.turn(&PromptKey::new(key))).unwrap().unwrap().state
    }

    fn session_state(store: &Store) -> SessionState {
        now(store.pictures(Some(session()))).unwrap()[0].row.state.unwrap()
    }

    #[test]
    fn the_same_key_is_one_turn_and_a_second_turn_waits() {
        let (_guard, store) = store();
        waiting(&store);
        assert_eq!(begin(&store, "t-1"), Begun::New);
        assert!(matches!(begin(&store, "t-1"), Begun::Same(view) if view.state == TurnState::Pending));
        assert_eq!(begin(&store, "t-2"), Begun::TurnOpen(PromptKey::new("t-1")));
        assert_eq!(session_state(&store), SessionState::Running);
    }

    #[test]
    fn the_first_outcome_wins_and_is_acknowledged_whenever_it_is_kept() {
        let (_guard, store) = store();
        waiting(&store);
        begin(&store, "t-1");
        let completed = outcome(7, "t-1", TurnEnd::Completed { stop_reason: "end_turn".to_owned() });
        let status = TurnStatus { open: None, kept: vec![completed] };
        let settled = now(store.apply_turn_status(&session(), &server(), status.clone(), 10)).unwrap();
        assert_eq!(settled.applied.len(), 1);
        assert_eq!(settled.acknowledge, [TurnId(7)]);
        assert_eq!(session_state(&store), SessionState::WaitingForInput);
        let again = now(store.apply_turn_status(&session(), &server(), status, 11)).unwrap();
        assert_eq!((again.applied.len(), again.acknowledge), (0, vec![TurnId(7)]));
        let late = TurnStatus { open: None, kept: vec![outcome(7, "t-1", TurnEnd::Cancelled)] };
        now(store.apply_turn_status(&session(), &server(), late, 12)).unwrap();
        assert_eq!(state_of(&store, "t-1"), TurnState::Completed);
    }

    #[test]
    fn an_open_turn_stays_running() {
        let (_guard, store) = store();
        waiting(&store);
        begin(&store, "t-1");
        let open = OpenTurn { turn: TurnId(3), key: PromptKey::new("t-1") };
        let status = TurnStatus { open: Some(open), kept: Vec::new() };
        let settled = now(store.apply_turn_status(&session(), &server(), status, 10)).unwrap();
        assert!(settled.open && settled.applied.is_empty());
        assert_eq!(state_of(&store, "t-1"), TurnState::Running);
        assert_eq!(session_state(&store), SessionState::Running);
    }

    #[test]
    fn a_turn_that_was_never_accepted_ends_as_not_delivered() {
        let (_guard, store) = store();
        waiting(&store);
        begin(&store, "t-1");
        let settled = now(store.apply_turn_status(&session(), &server(), TurnStatus::default(), 10)).unwrap();
        assert_eq!(settled.applied[0].state, TurnState::NotDelivered);
        assert_eq!(session_state(&store), SessionState::WaitingForInput);
        let page = now(store.transcript(&session(), 0, 10)).unwrap();
        let kinds: Vec<_> = page.entries.iter().map(|entry| entry.kind.as_str()).collect();
        assert_eq!(kinds, ["prompt", "notice"]);
    }

    #[test]
    fn no_turn_at_all_leaves_an_idle_session_idle() {
        let (_guard, store) = store();
        waiting(&store);
        let settled = now(store.apply_turn_status(&session(), &server(), TurnStatus::default(), 10)).unwrap();
        assert!(!settled.open && settled.applied.is_empty());
        assert_eq!(session_state(&store), SessionState::WaitingForInput);
    }
}
