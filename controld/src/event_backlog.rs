//! What an instance produced and nobody acknowledged yet.
//!
//! ```text
//!             retain up to the limit, detached        attach
//!   flowing ---------------------------------> paused -------> held back (still full) or flowing
//!      ^  |   retain up to the limit, attached                    |
//!      |  +----------------------------------> held back <--------+
//!      +---- acknowledge makes room -----------------+
//! ```
//!
//! An event gets the next place, stays until it is acknowledged by its place, and keeps its [`Room`] for as long:
//! a full backlog has no room to give, which is what pauses whoever produces (S-001.6). Nothing is ever dropped
//! here but by acknowledgement. This core neither waits nor sends.

use std::collections::VecDeque;

use seam::Wall;
use serde_json::value::RawValue;
use wire::{Event, InstanceId, Retained, Seq, TurnId};

use crate::agent_protocol::Room;

/// The kept events of one instance, in order and without gaps.
pub(crate) struct EventBacklog {
    instance: InstanceId,
    limit: usize,
    kept: VecDeque<Kept>,
    last: Seq,
    acknowledged: Seq,
    bytes: u64,
    attached: bool,
    production: Production,
}

struct Kept {
    event: Event,
    /// Comes free with the event.
    _room: Room,
}

/// Whether the instance may produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Production {
    /// There is room.
    Flowing,
    /// The limit is reached and no event stream is up (S-001.6).
    Paused { since: Wall },
    /// The limit is reached because the attached reader does not acknowledge: ordinary back-pressure (ruling 4).
    HeldBack,
}

/// What a step changed about production.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Nothing.
    Unchanged,
    /// It is paused from now on.
    Paused,
    /// It is held back by an attached reader from now on.
    HeldBack,
    /// The pause is over.
    Resumed,
    /// The attached reader made room.
    Released,
}

/// Kept events that follow a place.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Asked for, but acknowledged before and no longer kept: the first and the last such place.
    pub(crate) gap: Option<(Seq, Seq)>,
    /// The next events, in order; empty if there is nothing newer.
    pub(crate) events: Vec<Event>,
}

/// The place lies beyond everything that was produced: it is another server's or a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("place {asked} was asked for, but the newest event is {last}")]
pub(crate) struct AheadOfProduction {
    pub(crate) asked: Seq,
    pub(crate) last: Seq,
}

impl EventBacklog {
    /// Empty; `limit` is how many unacknowledged events may be kept, as many as there are [`Room`]s.
    pub(crate) fn new(instance: InstanceId, limit: usize) -> Self {
        Self {
            instance,
            limit,
            kept: VecDeque::new(),
            last: Seq::ZERO,
            acknowledged: Seq::ZERO,
            bytes: 0,
            attached: false,
            production: Production::Flowing,
        }
    }

    /// Keeps one more event and gives it the next place.
    pub(crate) fn retain(
        &mut self,
        now: Wall,
        kind: &str,
        turn: Option<TurnId>,
        payload: Box<RawValue>,
        room: Room,
    ) -> (Seq, Flow) {
        assert!(self.kept.len() < self.limit, "every kept event holds one of `limit` rooms");
        let seq = self.last.next();
        self.last = seq;
        self.bytes += payload.get().len() as u64;
        let event = Event {
            instance: self.instance.clone(),
            seq,
            at_ms: now.unix_millis,
            kind: kind.to_owned(),
            turn,
            payload,
        };
        self.kept.push_back(Kept { event, _room: room });
        (seq, self.settle(now))
    }

    /// Everything up to `seq` is durably stored elsewhere. A repeated or older place changes nothing. Gives how many
    /// events were let go.
    pub(crate) fn acknowledge(&mut self, now: Wall, seq: Seq) -> Result<(usize, Flow), AheadOfProduction> {
        if seq > self.last {
            return Err(AheadOfProduction { asked: seq, last: self.last });
        }
        let mut freed = 0;
        while self.kept.front().is_some_and(|kept| kept.event.seq <= seq) {
            let kept = self.kept.pop_front().expect("the front was just seen");
            self.bytes -= kept.event.payload.get().len() as u64;
            self.acknowledged = kept.event.seq;
            freed += 1;
        }
        Ok((freed, self.settle(now)))
    }

    /// The events after `seq`: at most `events` and about `bytes` of payload, but at least one if there is one.
    pub(crate) fn after(&self, seq: Seq, events: usize, bytes: usize) -> Result<Batch, AheadOfProduction> {
        if seq > self.last {
            return Err(AheadOfProduction { asked: seq, last: self.last });
        }
        let gap = (seq < self.acknowledged).then(|| (seq.next(), self.acknowledged));
        let skipped =
            usize::try_from(seq.0.saturating_sub(self.acknowledged.0)).expect("kept events fit in memory");
        let mut taken = 0;
        let events = self
            .kept
            .iter()
            .skip(skipped)
            .take(events)
            .map(|kept| &kept.event)
            .take_while(|event| {
                let first = taken == 0;
                taken += event.payload.get().len() + EVENT_OVERHEAD_BYTES;
                first || taken <= bytes
            })
            .cloned()
            .collect();
        Ok(Batch { gap, events })
    }

    /// An event stream came up: a pause ends (S-001.6).
    pub(crate) fn attach(&mut self, now: Wall) -> Flow {
        self.attached = true;
        self.settle(now)
    }

    /// The event stream is gone.
    pub(crate) fn detach(&mut self, now: Wall) -> Flow {
        self.attached = false;
        self.settle(now)
    }

    /// The newest place.
    pub(crate) fn last(&self) -> Seq {
        self.last
    }

    /// The newest acknowledged place.
    pub(crate) fn acknowledged(&self) -> Seq {
        self.acknowledged
    }

    /// How much is kept.
    pub(crate) fn retained(&self) -> Retained {
        Retained { events: self.kept.len() as u64, bytes: self.bytes }
    }

    /// Since when production is paused, if it is.
    pub(crate) fn paused_since(&self) -> Option<Wall> {
        match self.production {
            Production::Paused { since } => Some(since),
            Production::Flowing | Production::HeldBack => None,
        }
    }

    fn settle(&mut self, now: Wall) -> Flow {
        let full = self.kept.len() >= self.limit;
        let (production, flow) = match (self.production, full, self.attached) {
            (Production::Flowing, false, _)
            | (Production::Paused { .. }, true, false)
            | (Production::HeldBack, true, true) => return Flow::Unchanged,
            (Production::Paused { .. }, false, _) => (Production::Flowing, Flow::Resumed),
            (Production::HeldBack, false, _) => (Production::Flowing, Flow::Released),
            (_, true, false) => (Production::Paused { since: now }, Flow::Paused),
            (Production::Paused { .. }, true, true) => (Production::HeldBack, Flow::Resumed),
            (Production::Flowing, true, true) => (Production::HeldBack, Flow::HeldBack),
        };
        self.production = production;
        flow
    }
}

/// What an event weighs beside its payload when it is sent: ids, place, kind and JSON around them.
const EVENT_OVERHEAD_BYTES: usize = 200;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    struct Fixture {
        rooms: Arc<Semaphore>,
        backlog: EventBacklog,
    }

    fn backlog_of(limit: usize) -> Fixture {
        Fixture {
            rooms: Arc::new(Semaphore::new(limit)),
            backlog: EventBacklog::new(InstanceId::new("i-1"), limit),
        }
    }

    fn at(unix_millis: u64) -> Wall {
        Wall { unix_millis }
    }

    impl Fixture {
        fn produce(&mut self, text: &str) -> (Seq, Flow) {
            let room = Room(Arc::clone(&self.rooms).try_acquire_owned().expect("there is room"));
            let payload = RawValue::from_string(format!("\"{text}\"")).unwrap();
            self.backlog.retain(at(7), "update", None, payload, room)
        }

        fn places_after(&self, seq: u64) -> Vec<u64> {
            let batch = self.backlog.after(Seq(seq), 256, 1 << 20).unwrap();
            batch.events.iter().map(|event| event.seq.0).collect()
        }
    }

    #[test]
    fn places_start_at_one_and_never_skip() {
        let mut fixture = backlog_of(3);
        assert_eq!([1, 2, 3], [0, 1, 2].map(|_| fixture.produce("x").0.0));
        assert_eq!(vec![1, 2, 3], fixture.places_after(0));
        assert_eq!(vec![3], fixture.places_after(2));
        assert!(fixture.places_after(3).is_empty());
    }

    #[test]
    fn an_event_and_its_room_leave_on_acknowledgement_only() {
        let mut fixture = backlog_of(2);
        fixture.produce("a");
        fixture.produce("b");
        assert_eq!(2, fixture.places_after(0).len());
        assert_eq!(0, fixture.rooms.available_permits(), "reading frees nothing");
        assert_eq!(Ok((1, Flow::Resumed)), fixture.backlog.acknowledge(at(8), Seq(1)));
        assert_eq!(1, fixture.rooms.available_permits());
        assert_eq!(Retained { events: 1, bytes: 3 }, fixture.backlog.retained());
    }

    #[test]
    fn a_repeated_acknowledgement_changes_nothing_and_one_ahead_is_refused() {
        let mut fixture = backlog_of(3);
        fixture.produce("a");
        fixture.produce("b");
        fixture.backlog.acknowledge(at(8), Seq(2)).unwrap();
        assert_eq!(Ok((0, Flow::Unchanged)), fixture.backlog.acknowledge(at(8), Seq(1)));
        assert_eq!(Seq(2), fixture.backlog.acknowledged());
        let ahead = AheadOfProduction { asked: Seq(9), last: Seq(2) };
        assert_eq!(Err(ahead), fixture.backlog.acknowledge(at(8), Seq(9)));
        assert_eq!(ahead, fixture.backlog.after(Seq(9), 1, 1).unwrap_err());
        assert_eq!(Seq(3), fixture.produce("c").0);
    }

    #[test]
    fn asking_after_what_is_no_longer_kept_names_the_gap() {
        let mut fixture = backlog_of(4);
        for text in ["a", "b", "c"] {
            fixture.produce(text);
        }
        fixture.backlog.acknowledge(at(8), Seq(2)).unwrap();
        let batch = fixture.backlog.after(Seq::ZERO, 256, 1 << 20).unwrap();
        assert_eq!(Some((Seq(1), Seq(2))), batch.gap);
        assert_eq!(1, batch.events.len());
        assert_eq!(None, fixture.backlog.after(Seq(2), 256, 1 << 20).unwrap().gap);
    }

    #[test]
    fn reaching_the_limit_detached_pauses_and_attaching_ends_the_pause() {
        let mut fixture = backlog_of(2);
        assert_eq!(Flow::Unchanged, fixture.produce("a").1);
        assert_eq!(Flow::Paused, fixture.produce("b").1);
        assert_eq!(Some(at(7)), fixture.backlog.paused_since());
        assert_eq!(Flow::Resumed, fixture.backlog.attach(at(9)));
        assert_eq!(None, fixture.backlog.paused_since());
        assert_eq!(Flow::Paused, fixture.backlog.detach(at(10)));
        assert_eq!(Some(at(10)), fixture.backlog.paused_since());
        assert_eq!(Flow::Resumed, fixture.backlog.acknowledge(at(11), Seq(1)).unwrap().1);
        assert_eq!(None, fixture.backlog.paused_since());
    }

    #[test]
    fn a_reader_that_does_not_acknowledge_holds_production_back_and_pauses_nothing() {
        let mut fixture = backlog_of(1);
        fixture.backlog.attach(at(1));
        assert_eq!(Flow::HeldBack, fixture.produce("a").1);
        assert_eq!(None, fixture.backlog.paused_since());
        assert_eq!(Flow::Released, fixture.backlog.acknowledge(at(2), Seq(1)).unwrap().1);
    }

    #[test]
    fn a_batch_is_bounded_in_events_and_bytes_but_never_empty_while_something_is_kept() {
        let mut fixture = backlog_of(10);
        for _ in 0..10 {
            fixture.produce(&"x".repeat(1000));
        }
        assert_eq!(4, fixture.backlog.after(Seq::ZERO, 4, 1 << 20).unwrap().events.len());
        assert_eq!(2, fixture.backlog.after(Seq::ZERO, 256, 2500).unwrap().events.len());
        assert_eq!(1, fixture.backlog.after(Seq::ZERO, 256, 1).unwrap().events.len());
    }
}
