//! The in-memory execution store: which session is guarded, being launched or tracked.
//!
//! One structure, so that taking a guard and claiming a launch are one atomic acquire-or-observe (S-002.8): a
//! session never gets two executions from two directions.
//!
//! ```text
//!           guard()                  publish()
//!   (none) ─────────> Guarded ──────────────────> Tracked ── remove() ──> (none)
//!      │                 └── hold() ──> Guarded for this lifetime            ▲
//!      └── claim_launch() ──> Launching ── publish() ────────────────────────┘
//! ```
//! Each tracked execution carries an epoch that only grows: what a task of an earlier execution does late changes
//! nothing of a newer one.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;
use wire::{InstanceId, PermissionId, SessionId};

use crate::api::{Named, RefusalCode, Refused};

/// The sessions that this backend guards, launches or drives.
#[derive(Default)]
pub(crate) struct ExecutionStore {
    inventory_read: bool,
    slots: BTreeMap<SessionId, Slot>,
    /// What keeps a session from going on, for people.
    troubles: BTreeMap<SessionId, String>,
    epochs: u64,
}

/// Which life of an execution a task belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(u64);

enum Slot {
    Guarded(Guard),
    Launching,
    Tracked(Execution),
}

/// Why a session takes no launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Recovery has not decided about it yet (S-002.8).
    Recovering,
    /// These instances could not be stopped; for the rest of this backend's lifetime (S-002.16).
    Unstoppable {
        /// The instances that were left running.
        instances: Vec<InstanceId>,
    },
}

/// Whether a guard was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The caller holds it and decides about the session.
    Acquired,
    /// It is guarded: somebody else decides about the session.
    Observed,
    /// It is being launched or tracked by this very backend.
    InUse,
}

/// An execution that this backend drives.
#[derive(Clone)]
pub(crate) struct Execution {
    pub(crate) instance: InstanceId,
    pub(crate) epoch: Epoch,
    /// Permission requests that wait for an answer.
    pub(crate) permissions: BTreeSet<PermissionId>,
    /// Set to true: whoever works for this execution ends.
    pub(crate) ended: watch::Sender<bool>,
    /// Set to true: its events are not followed any more, since it is being stopped.
    pub(crate) unfollowed: watch::Sender<bool>,
}

impl ExecutionStore {
    /// From now on launches for sessions without a guard are allowed (ruling 16).
    pub(crate) fn open(&mut self) {
        self.inventory_read = true;
    }

    /// Takes the session's guard unless it is guarded, being launched or tracked already.
    pub(crate) fn guard(&mut self, session: &SessionId) -> Taken {
        match self.slots.get(session) {
            Some(Slot::Guarded(_)) => Taken::Observed,
            Some(Slot::Launching | Slot::Tracked(_)) => Taken::InUse,
            None => {
                self.slots.insert(session.clone(), Slot::Guarded(Guard::Recovering));
                Taken::Acquired
            }
        }
    }

    /// Turns the session's guard into one that outlives recovery (S-002.16).
    pub(crate) fn hold(&mut self, session: &SessionId, unstopped: InstanceId) {
        match self.slots.get_mut(session) {
            Some(Slot::Guarded(Guard::Unstoppable { instances })) => {
                if !instances.contains(&unstopped) {
                    instances.push(unstopped);
                }
            }
            Some(Slot::Launching | Slot::Tracked(_)) => {}
            Some(Slot::Guarded(Guard::Recovering)) | None => {
                let guard = Guard::Unstoppable { instances: vec![unstopped] };
                self.slots.insert(session.clone(), Slot::Guarded(guard));
            }
        }
    }

    /// Releases the guard; one that is held for an unstopped instance stays.
    pub(crate) fn release(&mut self, session: &SessionId) -> bool {
        let releasable = matches!(self.slots.get(session), Some(Slot::Guarded(Guard::Recovering)));
        if releasable {
            self.slots.remove(session);
        }
        releasable
    }

    /// Claims the session for a launch.
    pub(crate) fn claim_launch(&mut self, session: &SessionId) -> Result<(), Refused> {
        if !self.inventory_read {
            let message = "the backend is starting and has not read yet which sessions it must recover";
            return Err(Refused::for_now(RefusalCode::Recovering, message));
        }
        match self.slots.get(session) {
            None => {
                self.slots.insert(session.clone(), Slot::Launching);
                Ok(())
            }
            Some(slot) => Err(slot.refusal(session)),
        }
    }

    /// Publishes the session's execution. The caller holds its guard or its launch claim.
    pub(crate) fn publish(&mut self, session: &SessionId, instance: InstanceId) -> Execution {
        self.epochs += 1;
        let execution = Execution {
            instance,
            epoch: Epoch(self.epochs),
            permissions: BTreeSet::new(),
            ended: watch::Sender::new(false),
            unfollowed: watch::Sender::new(false),
        };
        self.troubles.remove(session);
        self.slots.insert(session.clone(), Slot::Tracked(execution.clone()));
        execution
    }

    /// The execution to follow again, if it still is the session's: the same one under a new epoch.
    pub(crate) fn follow_again(&mut self, session: &SessionId, execution: &Execution) -> Option<Execution> {
        let epoch = Epoch(self.epochs + 1);
        match self.slots.get_mut(session) {
            Some(Slot::Tracked(current)) if current.epoch == execution.epoch => {
                self.epochs += 1;
                current.epoch = epoch;
                current.unfollowed = watch::Sender::new(false);
                Some(current.clone())
            }
            _ => None,
        }
    }

    /// Notes what keeps the session from going on, for people to see; none once it goes on.
    pub(crate) fn note_trouble(&mut self, session: &SessionId, trouble: Option<String>) {
        match trouble {
            Some(trouble) if matches!(self.slots.get(session), Some(Slot::Launching | Slot::Tracked(_))) => {
                self.troubles.insert(session.clone(), trouble);
            }
            Some(_) => {}
            None => drop(self.troubles.remove(session)),
        }
    }

    /// What keeps sessions from going on.
    pub(crate) fn troubles(&self) -> BTreeMap<SessionId, String> {
        self.troubles.clone()
    }

    /// Turns the session's launch into a guard, in one step: its agent may live, and nobody launches another one until
    /// that is decided.
    pub(crate) fn guard_launch(&mut self, session: &SessionId) {
        if matches!(self.slots.get(session), Some(Slot::Launching)) {
            self.troubles.remove(session);
            self.slots.insert(session.clone(), Slot::Guarded(Guard::Recovering));
        }
    }

    /// Gives up the session's launch.
    pub(crate) fn abandon_launch(&mut self, session: &SessionId) {
        if matches!(self.slots.get(session), Some(Slot::Launching)) {
            self.slots.remove(session);
            self.troubles.remove(session);
        }
    }

    /// The session's execution, or why it cannot be worked with.
    pub(crate) fn execution(&self, session: &SessionId) -> Result<Execution, Refused> {
        match self.slots.get(session) {
            Some(Slot::Tracked(execution)) => Ok(execution.clone()),
            Some(slot) => Err(slot.refusal(session)),
            None if !self.inventory_read => Err(Refused::for_now(
                RefusalCode::Recovering,
                format!("session {session} is being recovered"),
            )),
            None => Err(Refused::for_good(RefusalCode::NoAgent, format!("session {session} has no agent"))),
        }
    }

    /// Whether the session is guarded, being launched or tracked.
    pub(crate) fn is_occupied(&self, session: &SessionId) -> bool {
        self.slots.contains_key(session)
    }

    /// Every tracked session, with the permission requests that wait for an answer.
    pub(crate) fn permissions_of_tracked(&self) -> BTreeMap<SessionId, Vec<PermissionId>> {
        let tracked = self.slots.iter().filter_map(|(session, slot)| match slot {
            Slot::Tracked(execution) => {
                Some((session.clone(), execution.permissions.iter().cloned().collect()))
            }
            Slot::Guarded(_) | Slot::Launching => None,
        });
        tracked.collect()
    }

    /// Notes permission requests that were opened and ended, if this still is that execution.
    pub(crate) fn note_permissions(
        &mut self,
        session: &SessionId,
        epoch: Epoch,
        asked: &[PermissionId],
        answered: &[PermissionId],
    ) {
        if let Some(Slot::Tracked(execution)) = self.slots.get_mut(session)
            && execution.epoch == epoch
        {
            execution.permissions.extend(asked.iter().cloned());
            for permission in answered {
                execution.permissions.remove(permission);
            }
        }
    }

    /// Lets go of the execution, if it still is that one; whoever works for it ends.
    pub(crate) fn remove(&mut self, session: &SessionId, epoch: Epoch) -> bool {
        let matches =
            matches!(self.slots.get(session), Some(Slot::Tracked(execution)) if execution.epoch == epoch);
        if matches && let Some(Slot::Tracked(execution)) = self.slots.remove(session) {
            execution.ended.send_replace(true);
            self.troubles.remove(session);
        }
        matches
    }

    /// Lets go of every execution; tells whose.
    pub(crate) fn remove_all(&mut self) -> Vec<SessionId> {
        let tracked: Vec<_> = self
            .slots
            .iter()
            .filter_map(|(session, slot)| match slot {
                Slot::Tracked(execution) => Some((session.clone(), execution.epoch)),
                Slot::Guarded(_) | Slot::Launching => None,
            })
            .collect();
        tracked
            .into_iter()
            .filter(|(session, epoch)| self.remove(session, *epoch))
            .map(|(session, _)| session)
            .collect()
    }

    /// The guards that are held, for people.
    pub(crate) fn guards(&self) -> Vec<Named> {
        let guards = self.slots.iter().filter_map(|(session, slot)| match slot {
            Slot::Guarded(guard) => Some(Named { id: session.to_string(), reason: guard.to_string() }),
            Slot::Launching | Slot::Tracked(_) => None,
        });
        guards.collect()
    }
}

impl Slot {
    fn refusal(&self, session: &SessionId) -> Refused {
        match self {
            Self::Guarded(guard @ Guard::Recovering) => {
                Refused::for_now(RefusalCode::Recovering, format!("session {session}: {guard}"))
            }
            Self::Guarded(guard @ Guard::Unstoppable { .. }) => {
                Refused::for_good(RefusalCode::UnstoppedAgent, format!("session {session}: {guard}"))
            }
            Self::Launching => {
                Refused::for_now(RefusalCode::Launching, format!("session {session} is being launched"))
            }
            Self::Tracked(_) => {
                Refused::for_good(RefusalCode::Launching, format!("session {session} has an agent already"))
            }
        }
    }
}

impl std::fmt::Display for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Recovering => f.write_str("it is being recovered"),
            Self::Unstoppable { instances } => {
                f.write_str("an agent of it could not be stopped:")?;
                instances.iter().try_for_each(|instance| write!(f, " {instance}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> SessionId {
        SessionId::new("s-1")
    }

    #[test]
    fn every_launch_is_refused_until_the_inventory_is_read() {
        let mut store = ExecutionStore::default();
        let refused = store.claim_launch(&session()).unwrap_err();
        assert_eq!((refused.code, refused.retryable), (RefusalCode::Recovering, true));
        store.open();
        assert!(store.claim_launch(&session()).is_ok());
    }

    #[test]
    fn a_guard_is_taken_once_and_refuses_launches_until_it_is_released() {
        let mut store = ExecutionStore::default();
        assert_eq!(store.guard(&session()), Taken::Acquired);
        assert_eq!(store.guard(&session()), Taken::Observed);
        store.open();
        assert!(store.claim_launch(&session()).unwrap_err().retryable);
        assert!(store.release(&session()));
        assert!(store.claim_launch(&session()).is_ok());
        assert_eq!(store.guard(&session()), Taken::InUse);
    }

    #[test]
    fn a_guard_for_an_unstopped_instance_is_never_released() {
        let mut store = ExecutionStore::default();
        store.open();
        store.guard(&session());
        store.hold(&session(), InstanceId::new("i-1"));
        assert!(!store.release(&session()));
        let refused = store.claim_launch(&session()).unwrap_err();
        assert_eq!((refused.code, refused.retryable), (RefusalCode::UnstoppedAgent, false));
        assert!(refused.message.contains("i-1"));
    }

    #[test]
    fn a_late_end_of_an_earlier_execution_leaves_the_newer_one() {
        let mut store = ExecutionStore::default();
        store.open();
        let first = store.publish(&session(), InstanceId::new("i-1"));
        assert!(store.remove(&session(), first.epoch));
        let second = store.publish(&session(), InstanceId::new("i-2"));
        assert!(!store.remove(&session(), first.epoch));
        store.note_permissions(&session(), first.epoch, &[PermissionId::new("p-1")], &[]);
        assert!(store.follow_again(&session(), &first).is_none());
        let tracked = store.execution(&session()).unwrap();
        assert_eq!((tracked.epoch, tracked.permissions.len()), (second.epoch, 0));
    }
}
