//! The transcript: every event once, in its instance's order, and what user and backend said between them.
//!
//! An event's key is (server launch, instance, sequence number): a sequence number is never compared alone.

use rusqlite::{Row, Transaction, params};
use serde_json::value::RawValue;
use wire::{
    Event, InstanceId, OpenTurn, PermissionAsked, PermissionEnded, PermissionId, PromptKey, Seq,
    ServerIdentity, SessionId, TurnId, TurnOutcome, kind,
};

use super::turns::{accept, apply_outcome, rest};
use super::{Applied, Store, StoreFailed, int, uint};
use crate::api::{TranscriptEntry, TranscriptPage, entry_kind};

/// What storing a batch came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    /// How many of the events were new.
    pub(crate) new: u64,
    /// Turns that the batch ended.
    pub(crate) applied: Vec<Applied>,
    /// Outcomes that are durable now and may be acknowledged.
    pub(crate) acknowledge: Vec<TurnId>,
    /// Permission requests that the batch opened.
    pub(crate) asked: Vec<PermissionId>,
    /// Permission requests that the batch ended.
    pub(crate) answered: Vec<PermissionId>,
    /// Whether the agent had something to say about itself: it may have ended.
    pub(crate) errors: bool,
}

impl Store {
    /// Stores a batch of one instance's events and what follows from them, in one transaction. Events that were
    /// stored before change nothing.
    pub(crate) async fn append_events(
        &self,
        session: &SessionId,
        server: &ServerIdentity,
        events: Vec<Event>,
        at_ms: u64,
    ) -> Result<Stored, StoreFailed> {
        let (session, server) = (session.clone(), server.clone());
        self.transaction("store the events", move |db| {
            let mut stored = Stored::default();
            let mut insert = db.prepare(
                "INSERT OR IGNORE INTO transcript (session, server, instance, seq, at_ms, kind, turn, payload)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, (SELECT key FROM turns WHERE server = ?2 AND control_turn = ?7), ?8)",
            )?;
            for event in &events {
                // The turn first, so that the insert finds its key.
                follow(db, &session, &server, event, &mut stored)?;
                let new = insert.execute(params![
                    session.as_str(),
                    server.as_str(),
                    event.instance.as_str(),
                    int(event.seq.0),
                    int(event.at_ms),
                    event.kind,
                    event.turn.map(|turn| int(turn.0)),
                    event.payload.get()
                ])?;
                stored.new += u64::from(new == 1);
            }
            if !stored.applied.is_empty() {
                rest(db, &session, at_ms)?;
            }
            Ok(stored)
        })
        .await
    }

    /// The newest stored place of an instance's own order.
    pub(crate) async fn last_stored(
        &self,
        server: &ServerIdentity,
        instance: &InstanceId,
    ) -> Result<Seq, StoreFailed> {
        let (server, instance) = (server.clone(), instance.clone());
        self.transaction("read the newest stored place", move |db| {
            db.query_row(
                "SELECT COALESCE(MAX(seq), 0) FROM transcript WHERE server = ?1 AND instance = ?2",
                params![server.as_str(), instance.as_str()],
                |row| Ok(Seq(uint(row.get(0)?))),
            )
        })
        .await
    }

    /// Says something in the transcript in the backend's own name.
    pub(crate) async fn note(
        &self,
        session: &SessionId,
        text: String,
        at_ms: u64,
    ) -> Result<(), StoreFailed> {
        let session = session.clone();
        self.transaction("write a notice", move |db| insert_notice(db, &session, None, &text, at_ms)).await
    }

    /// One page of the transcript: entries after a position, at most `limit` of them.
    pub(crate) async fn transcript(
        &self,
        session: &SessionId,
        after: u64,
        limit: u32,
    ) -> Result<TranscriptPage, StoreFailed> {
        let session = session.clone();
        self.transaction("read the transcript", move |db| {
            let mut statement = db.prepare(
                "SELECT position, at_ms, kind, server, instance, seq, turn, payload FROM transcript
                 WHERE session = ?1 AND position > ?2 AND kind <> 'replay' ORDER BY position LIMIT ?3",
            )?;
            let rows =
                statement.query_map(params![session.as_str(), int(after), i64::from(limit) + 1], entry)?;
            let mut entries = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            let more = entries.len() > limit as usize;
            entries.truncate(limit as usize);
            let next = if more { entries.last().map(|entry| entry.position) } else { None };
            Ok(TranscriptPage { entries, next })
        })
        .await
    }
}

/// What an event means for turns and permissions.
fn follow(
    db: &Transaction<'_>,
    session: &SessionId,
    server: &ServerIdentity,
    event: &Event,
    stored: &mut Stored,
) -> rusqlite::Result<()> {
    let payload = event.payload.get();
    match event.kind.as_str() {
        kind::TURN_STARTED => {
            if let Ok(open) = serde_json::from_str::<OpenTurn>(payload) {
                accept(db, server, &open)?;
            }
        }
        kind::TURN_ENDED => {
            if let Ok(outcome) = serde_json::from_str::<TurnOutcome>(payload) {
                stored.acknowledge.push(outcome.turn);
                stored.applied.extend(apply_outcome(db, session, server, &outcome, "event")?);
            }
        }
        kind::PERMISSION_ASKED => {
            if let Ok(asked) = serde_json::from_str::<PermissionAsked>(payload) {
                stored.asked.push(asked.permission);
            }
        }
        kind::PERMISSION_ENDED => {
            if let Ok(ended) = serde_json::from_str::<PermissionEnded>(payload) {
                stored.answered.push(ended.permission);
            }
        }
        kind::ERROR => stored.errors = true,
        _ => {}
    }
    Ok(())
}

pub(super) fn insert_prompt(
    db: &Transaction<'_>,
    session: &SessionId,
    turn: &PromptKey,
    text: &str,
    at_ms: u64,
) -> rusqlite::Result<()> {
    insert_own(db, session, Some(turn), entry_kind::PROMPT, text, at_ms)
}

pub(super) fn insert_notice(
    db: &Transaction<'_>,
    session: &SessionId,
    turn: Option<&PromptKey>,
    text: &str,
    at_ms: u64,
) -> rusqlite::Result<()> {
    insert_own(db, session, turn, entry_kind::NOTICE, text, at_ms)
}

fn insert_own(
    db: &Transaction<'_>,
    session: &SessionId,
    turn: Option<&PromptKey>,
    kind: &str,
    text: &str,
    at_ms: u64,
) -> rusqlite::Result<()> {
    let payload = serde_json::json!({ "text": text }).to_string();
    db.execute(
        "INSERT INTO transcript (session, at_ms, kind, turn, payload) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![session.as_str(), int(at_ms), kind, turn.map(PromptKey::as_str), payload],
    )
    .map(drop)
}

fn entry(row: &Row<'_>) -> rusqlite::Result<TranscriptEntry> {
    let payload: String = row.get(7)?;
    let payload = RawValue::from_string(payload).unwrap_or_else(|_| RawValue::NULL.to_owned());
    Ok(TranscriptEntry {
        position: uint(row.get(0)?),
        at_ms: uint(row.get(1)?),
        kind: row.get(2)?,
        server: row.get::<_, Option<String>>(3)?.map(ServerIdentity::new),
        instance: row.get::<_, Option<String>>(4)?.map(InstanceId::new),
        seq: row.get::<_, Option<i64>>(5)?.map(|seq| Seq(uint(seq))),
        turn: row.get::<_, Option<String>>(6)?.map(PromptKey::new),
        payload,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{now, store};
    use super::*;

    fn event(seq: u64, text: &str) -> Event {
        Event {
            instance: InstanceId::new("i-1"),
            seq: Seq(seq),
            at_ms: seq,
            kind: kind::UPDATE.to_owned(),
            turn: None,
            payload: RawValue::from_string(format!("{text:?}")).unwrap(),
        }
    }

    #[test]
    fn an_event_that_comes_twice_is_stored_once() {
        let (_guard, store) = store();
        let (session, server) = (SessionId::new("s-1"), ServerIdentity::new("server-1"));
        let append = |events| now(store.append_events(&session, &server, events, 1)).unwrap().new;
        assert_eq!(append(vec![event(1, "a"), event(2, "b")]), 2);
        assert_eq!(append(vec![event(2, "b"), event(3, "c")]), 1);
        assert_eq!(now(store.last_stored(&server, &InstanceId::new("i-1"))).unwrap(), Seq(3));
        let page = now(store.transcript(&session, 0, 100)).unwrap();
        let texts: Vec<_> = page.entries.iter().map(|entry| entry.payload.get()).collect();
        assert_eq!(texts, ["\"a\"", "\"b\"", "\"c\""]);
    }

    #[test]
    fn the_same_number_of_another_server_is_another_event() {
        let (_guard, store) = store();
        let session = SessionId::new("s-1");
        for server in ["server-1", "server-2"] {
            let server = ServerIdentity::new(server);
            assert_eq!(now(store.append_events(&session, &server, vec![event(1, "a")], 1)).unwrap().new, 1);
        }
    }

    #[test]
    fn pages_follow_each_other_without_overlap() {
        let (_guard, store) = store();
        let (session, server) = (SessionId::new("s-1"), ServerIdentity::new("server-1"));
        now(store.append_events(&session, &server, (1..=5).map(|seq| event(seq, "x")).collect(), 1)).unwrap();
        let first = now(store.transcript(&session, 0, 3)).unwrap();
        assert_eq!(first.entries.len(), 3);
        let second = now(store.transcript(&session, first.next.unwrap(), 3)).unwrap();
        assert_eq!(second.entries.iter().map(|entry| entry.seq.unwrap().0).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(second.next, None);
    }
}
