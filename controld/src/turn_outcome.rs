//! The turns of one instance: which one is open, and which outcomes nobody acknowledged.
//!
//! ```text
//!   accept ---> open ---> ended, outcome kept ---> acknowledged, key remembered
//!                 |  cancel asked: whatever the agent says then, the end is "cancelled"
//! ```
//!
//! "A turn is open" and "an outcome is kept" are two facts (ruling 2). Turn ids are unique over all instances of a
//! server and are given by the caller. This core neither talks to the agent nor measures its time.

use std::collections::VecDeque;

use seam::Wall;
use wire::{OpenTurn, PromptKey, TurnEnd, TurnId, TurnOutcome, TurnStatus};

/// The turns of one instance.
#[derive(Debug, Default)]
pub(crate) struct TurnLedger {
    open: Option<Open>,
    kept: VecDeque<TurnOutcome>,
    /// Acknowledged turns whose prompt could still be sent again, newest last.
    remembered: VecDeque<(PromptKey, TurnId)>,
}

#[derive(Debug)]
struct Open {
    turn: TurnId,
    key: PromptKey,
    cancel_asked: bool,
}

/// An accepted prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It opened this turn.
    Opened(TurnId),
    /// It is the prompt of this turn, sent again: nothing happens.
    Repeated(TurnId),
}

/// Why a prompt opens no turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PromptRefused {
    /// One is open already.
    #[error("turn {0} is still open")]
    TurnOpen(TurnId),
    /// Outcomes are kept and none may be dropped.
    #[error("{KEPT_OUTCOMES} turn outcomes wait to be acknowledged")]
    OutcomesUnacknowledged,
}

/// What a request to cancel means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancel {
    /// The agent has to be told about this turn.
    Asked(TurnId),
    /// It was told before.
    Repeated(TurnId),
    /// No turn is open.
    NothingOpen,
}

impl TurnLedger {
    /// Accepts a prompt. The same key again is the same turn, whatever became of it; `next` is drawn only for a new
    /// one.
    pub(crate) fn accept(
        &mut self,
        key: PromptKey,
        next: impl FnOnce() -> TurnId,
    ) -> Result<Accepted, PromptRefused> {
        if let Some(turn) = self.turn_of(&key) {
            return Ok(Accepted::Repeated(turn));
        }
        if let Some(open) = &self.open {
            return Err(PromptRefused::TurnOpen(open.turn));
        }
        if self.kept.len() >= KEPT_OUTCOMES {
            return Err(PromptRefused::OutcomesUnacknowledged);
        }
        let turn = next();
        self.open = Some(Open { turn, key, cancel_asked: false });
        Ok(Accepted::Opened(turn))
    }

    /// Remembers that a cancel was asked for: from now on it decides the end.
    pub(crate) fn cancel(&mut self) -> Cancel {
        match &mut self.open {
            None => Cancel::NothingOpen,
            Some(open) if open.cancel_asked => Cancel::Repeated(open.turn),
            Some(open) => {
                open.cancel_asked = true;
                Cancel::Asked(open.turn)
            }
        }
    }

    /// Ends `turn` and keeps its outcome. None, and no change, if that turn is not the open one: a late or repeated
    /// end says nothing about a newer turn.
    pub(crate) fn end(&mut self, now: Wall, turn: TurnId, end: TurnEnd) -> Option<TurnOutcome> {
        let open = self.open.take_if(|open| open.turn == turn)?;
        let end = if open.cancel_asked { TurnEnd::Cancelled } else { end };
        let outcome = TurnOutcome { turn, key: open.key, end, at_ms: now.unix_millis };
        self.kept.push_back(outcome.clone());
        Some(outcome)
    }

    /// Lets a kept outcome go. False, and no change, for a turn that is unknown or has not ended (S-004.6).
    pub(crate) fn acknowledge(&mut self, turn: TurnId) -> bool {
        let Some(at) = self.kept.iter().position(|outcome| outcome.turn == turn) else { return false };
        let outcome = self.kept.remove(at).expect("the position was just found");
        if self.remembered.len() >= REMEMBERED_KEYS {
            self.remembered.pop_front();
        }
        self.remembered.push_back((outcome.key, turn));
        true
    }

    /// The open turn, if there is one.
    pub(crate) fn open(&self) -> Option<TurnId> {
        self.open.as_ref().map(|open| open.turn)
    }

    /// Whether `turn` is open and nobody asked to cancel it.
    pub(crate) fn is_wanted(&self, turn: TurnId) -> bool {
        self.open.as_ref().is_some_and(|open| open.turn == turn && !open.cancel_asked)
    }

    /// Both facts. Reading discards nothing.
    pub(crate) fn status(&self) -> TurnStatus {
        TurnStatus {
            open: self.open.as_ref().map(|open| OpenTurn { turn: open.turn, key: open.key.clone() }),
            kept: self.kept.iter().cloned().collect(),
        }
    }

    /// The turn that this key opened, if it is still known.
    pub(crate) fn turn_of(&self, key: &PromptKey) -> Option<TurnId> {
        let open = self.open.iter().map(|open| (&open.key, open.turn));
        let kept = self.kept.iter().map(|outcome| (&outcome.key, outcome.turn));
        let remembered = self.remembered.iter().map(|(key, turn)| (key, *turn));
        open.chain(kept).chain(remembered).find(|(known, _)| *known == key).map(|(_, turn)| turn)
    }
}

/// A backend that lets this many ended turns unacknowledged is not storing them; the next prompt is refused.
pub(crate) const KEPT_OUTCOMES: usize = 16;

/// How many acknowledged turns are recognized when their prompt comes again. A repeat follows its first sending by
/// one lost answer, so a few would do; beyond that the prompt would be taken for a new one.
const REMEMBERED_KEYS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall { unix_millis: 5 };

    fn key(text: &str) -> PromptKey {
        PromptKey::new(text)
    }

    fn ended_by_agent() -> TurnEnd {
        TurnEnd::Completed { stop_reason: "end_turn".into() }
    }

    fn ledger_with_open(turn: u64) -> TurnLedger {
        let mut ledger = TurnLedger::default();
        let accepted = ledger.accept(key(&format!("k{turn}")), || TurnId(turn));
        assert_eq!(Ok(Accepted::Opened(TurnId(turn))), accepted);
        ledger
    }

    #[test]
    fn a_late_or_repeated_end_of_an_old_turn_changes_nothing() {
        let mut ledger = ledger_with_open(1);
        ledger.end(NOW, TurnId(1), ended_by_agent()).unwrap();
        ledger.accept(key("k2"), || TurnId(2)).unwrap();
        assert_eq!(None, ledger.end(NOW, TurnId(1), ended_by_agent()));
        assert_eq!(Some(TurnId(2)), ledger.open());
        assert_eq!(1, ledger.status().kept.len());
    }

    #[test]
    fn the_same_key_is_the_same_turn_open_ended_and_acknowledged() {
        let mut ledger = ledger_with_open(1);
        let again = |ledger: &mut TurnLedger| ledger.accept(key("k1"), || panic!("no new turn"));
        assert_eq!(Ok(Accepted::Repeated(TurnId(1))), again(&mut ledger));
        ledger.end(NOW, TurnId(1), ended_by_agent());
        assert_eq!(Ok(Accepted::Repeated(TurnId(1))), again(&mut ledger));
        assert!(ledger.acknowledge(TurnId(1)));
        assert_eq!(Ok(Accepted::Repeated(TurnId(1))), again(&mut ledger));
        assert_eq!(TurnStatus::default(), ledger.status());
    }

    #[test]
    fn a_second_prompt_is_refused_while_a_turn_is_open() {
        let mut ledger = ledger_with_open(1);
        let refused = ledger.accept(key("k2"), || panic!("no new turn"));
        assert_eq!(Err(PromptRefused::TurnOpen(TurnId(1))), refused);
    }

    #[test]
    fn after_a_cancel_the_end_is_cancelled_whatever_the_agent_says() {
        for said in [ended_by_agent(), TurnEnd::Failed { error: "confused".into() }, TurnEnd::Cancelled] {
            let mut ledger = ledger_with_open(1);
            assert_eq!(Cancel::Asked(TurnId(1)), ledger.cancel());
            assert_eq!(Cancel::Repeated(TurnId(1)), ledger.cancel());
            assert_eq!(TurnEnd::Cancelled, ledger.end(NOW, TurnId(1), said).unwrap().end);
        }
    }

    #[test]
    fn a_cancel_without_an_open_turn_does_not_touch_the_next_one() {
        let mut ledger = TurnLedger::default();
        assert_eq!(Cancel::NothingOpen, ledger.cancel());
        ledger.accept(key("k1"), || TurnId(1)).unwrap();
        assert!(ledger.is_wanted(TurnId(1)));
        assert_eq!(ended_by_agent(), ledger.end(NOW, TurnId(1), ended_by_agent()).unwrap().end);
    }

    #[test]
    fn an_unknown_acknowledgement_and_reading_discard_nothing() {
        let mut ledger = ledger_with_open(1);
        assert!(!ledger.acknowledge(TurnId(1)), "an open turn has no outcome");
        ledger.end(NOW, TurnId(1), ended_by_agent());
        assert!(!ledger.acknowledge(TurnId(99)));
        assert_eq!(ledger.status(), ledger.status());
        assert_eq!(1, ledger.status().kept.len());
        assert!(ledger.acknowledge(TurnId(1)));
        assert!(!ledger.acknowledge(TurnId(1)));
    }

    #[test]
    fn too_many_unacknowledged_outcomes_refuse_the_next_prompt_and_drop_none() {
        let mut ledger = TurnLedger::default();
        for turn in 1..=KEPT_OUTCOMES as u64 {
            ledger.accept(key(&format!("k{turn}")), || TurnId(turn)).unwrap();
            ledger.end(NOW, TurnId(turn), ended_by_agent()).unwrap();
        }
        let refused = ledger.accept(key("more"), || panic!("no new turn"));
        assert_eq!(Err(PromptRefused::OutcomesUnacknowledged), refused);
        assert_eq!(TurnId(1), ledger.status().kept[0].turn);
        ledger.acknowledge(TurnId(3));
        assert!(ledger.accept(key("more"), || TurnId(99)).is_ok());
    }
}
