//! Which surviving instance belongs to which session, and what becomes of each: a pure function from the
//! inventory and the enumeration to a plan, which prints.
//!
//! Instances and records meet by the session identity that the control server itself holds (S-002.1). The plan
//! does not order anything: whoever carries it out works on all sessions at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use wire::{InstanceId, InstanceState, InstanceStatus, SessionId};

use crate::store::InventoryRow;

/// What is to become of every live instance and every record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// One per session, sorted.
    pub(crate) retrack: Vec<Retrack>,
    /// Sorted by instance.
    pub(crate) stop: Vec<Stop>,
    /// Records without an instance, sorted by session (S-002.7).
    pub(crate) leave: Vec<SessionId>,
}

/// Re-track this instance for this session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Retrack {
    pub(crate) session: SessionId,
    pub(crate) instance: InstanceId,
    /// Instances of the same session that must be gone before it is published (S-002.15).
    pub(crate) losers: Vec<InstanceId>,
}

/// Stop this instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) instance: InstanceId,
    pub(crate) session: SessionId,
    pub(crate) reason: StopReason,
}

/// Why an instance is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// No record names its session (S-002.6).
    Orphan,
    /// Its session is terminal: its record is not part of the inventory.
    SessionTerminal,
    /// Its session is a passthrough session, which is never re-tracked (ruling 12).
    Passthrough,
    /// Another instance of the session is the recorded one (S-002.10).
    Duplicate,
    /// Several instances report the session and none of them is the recorded one (S-002.10).
    Ambiguous,
    /// Its stop was under way before.
    AlreadyStopping,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Orphan => "orphan: no record names its session",
            Self::SessionTerminal => "its session is terminal",
            Self::Passthrough => "its session is a passthrough session",
            Self::Duplicate => "duplicate: another instance of the session is the recorded one",
            Self::Ambiguous => "ambiguous: several instances report the session, none is the recorded one",
            Self::AlreadyStopping => "its stop was under way",
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for retrack in &self.retrack {
            writeln!(f, "re-track  instance {}  session {}", retrack.instance, retrack.session)?;
        }
        for stop in &self.stop {
            writeln!(f, "stop      instance {}  session {}  {}", stop.instance, stop.session, stop.reason)?;
        }
        for session in &self.leave {
            writeln!(f, "leave     session {session}  no instance reports it")?;
        }
        Ok(())
    }
}

/// Makes the plan. `rows` are the live records; those of terminal and passthrough sessions among them name no
/// session that could be re-tracked.
pub(crate) fn correlate(rows: &[InventoryRow], instances: &[InstanceStatus]) -> Plan {
    let inventory: BTreeMap<&SessionId, &InventoryRow> =
        rows.iter().map(|row| (&row.record.session, row)).collect();
    let mut reporting: BTreeMap<&SessionId, Vec<&InstanceStatus>> = BTreeMap::new();
    for instance in instances {
        reporting.entry(&instance.session).or_default().push(instance);
    }
    let mut plan = Plan::default();
    let mut planned = BTreeSet::new();
    for (session, reporters) in reporting {
        planned.insert(session);
        let (stopping, mut live): (Vec<_>, Vec<_>) =
            reporters.into_iter().partition(|instance| instance.state == InstanceState::Stopping);
        live.sort_by(|a, b| a.instance.cmp(&b.instance));
        plan.stops(&stopping, StopReason::AlreadyStopping);
        match inventory.get(session).map(|row| (row, admissible(row))) {
            None => plan.stops(&live, StopReason::Orphan),
            Some((_, Err(reason))) => plan.stops(&live, reason),
            Some((row, Ok(()))) => plan.choose(row, &live, &stopping),
        }
    }
    for row in rows {
        if !planned.contains(&row.record.session) && admissible(row).is_ok() {
            plan.leave.push(row.record.session.clone());
        }
    }
    plan.stop.sort_by(|a, b| a.instance.cmp(&b.instance));
    plan.leave.sort();
    plan
}

/// Whether the row is part of the inventory that recovery re-tracks from.
pub(crate) fn admissible(row: &InventoryRow) -> Result<(), StopReason> {
    if row.state.is_some_and(crate::api::SessionState::is_terminal) {
        return Err(StopReason::SessionTerminal);
    }
    if row.passthrough { Err(StopReason::Passthrough) } else { Ok(()) }
}

impl Plan {
    fn stops(&mut self, instances: &[&InstanceStatus], reason: StopReason) {
        self.stop.extend(instances.iter().map(|instance| Stop {
            instance: instance.instance.clone(),
            session: instance.session.clone(),
            reason,
        }));
    }

    /// S-002.2 and S-002.10 for one session.
    fn choose(&mut self, row: &InventoryRow, live: &[&InstanceStatus], stopping: &[&InstanceStatus]) {
        let session = row.record.session.clone();
        let chosen = match live {
            [] => return,
            [only] => Some(*only),
            several => {
                let mut recorded =
                    several.iter().filter(|instance| instance.instance == row.record.execution);
                match (recorded.next(), recorded.next()) {
                    (Some(one), None) => Some(*one),
                    _ => None,
                }
            }
        };
        let Some(chosen) = chosen else { return self.stops(live, StopReason::Ambiguous) };
        let losers: Vec<_> =
            live.iter().copied().filter(|instance| instance.instance != chosen.instance).collect();
        self.stops(&losers, StopReason::Duplicate);
        let losers = losers.iter().chain(stopping).map(|instance| instance.instance.clone()).collect();
        self.retrack.push(Retrack { session, instance: chosen.instance.clone(), losers });
    }
}

#[cfg(test)]
mod tests {
    use wire::{Retained, Seq, ServerIdentity, TurnStatus};

    use super::*;
    use crate::api::SessionState;
    use crate::store::ExecutorRecord;

    fn row(session: &str, execution: &str) -> InventoryRow {
        InventoryRow {
            record: ExecutorRecord {
                session: SessionId::new(session),
                execution: InstanceId::new(execution),
                server: ServerIdentity::new("server-1"),
                address: "127.0.0.1:1".to_owned(),
                task: "k-1".to_owned(),
                workspace: "/w".to_owned(),
                profile: "fake".to_owned(),
                agent: None,
                live: true,
            },
            state: Some(SessionState::Running),
            passthrough: false,
        }
    }

    fn instance(id: &str, session: &str) -> InstanceStatus {
        InstanceStatus {
            instance: InstanceId::new(id),
            session: SessionId::new(session),
            state: InstanceState::Ready,
            agent: None,
            provider_session: None,
            source_roots: Vec::new(),
            last_seq: Seq::ZERO,
            acknowledged: Seq::ZERO,
            retained: Retained::default(),
            paused_since_ms: None,
            attached: false,
            turn: TurnStatus::default(),
            permissions: Vec::new(),
            failure: None,
        }
    }

    fn plan(rows: &[InventoryRow], instances: &[InstanceStatus]) -> String {
        correlate(rows, instances).to_string()
    }

    #[test]
    fn the_only_instance_of_a_session_is_re_tracked_whatever_its_id() {
        assert_eq!(
            plan(&[row("s-1", "i-1")], &[instance("i-9", "s-1")]),
            "re-track  instance i-9  session s-1\n"
        );
    }

    #[test]
    fn an_instance_that_no_record_names_is_stopped() {
        let said = plan(&[row("s-1", "i-1")], &[instance("i-1", "s-1"), instance("i-7", "s-7")]);
        assert!(said.contains("stop      instance i-7  session s-7  orphan"), "{said}");
    }

    #[test]
    fn of_several_the_recorded_one_wins_and_the_others_must_go_first() {
        let plan = correlate(&[row("s-1", "i-2")], &[instance("i-1", "s-1"), instance("i-2", "s-1")]);
        assert_eq!(plan.retrack[0].instance, InstanceId::new("i-2"));
        assert_eq!(plan.retrack[0].losers, [InstanceId::new("i-1")]);
        assert_eq!(plan.stop[0].reason, StopReason::Duplicate);
    }

    #[test]
    fn of_several_without_the_recorded_one_none_is_kept() {
        let plan = correlate(&[row("s-1", "i-3")], &[instance("i-1", "s-1"), instance("i-2", "s-1")]);
        assert!(plan.retrack.is_empty());
        assert!(plan.stop.iter().all(|stop| stop.reason == StopReason::Ambiguous) && plan.stop.len() == 2);
    }

    #[test]
    fn a_record_without_an_instance_is_left_to_repair() {
        assert_eq!(plan(&[row("s-1", "i-1")], &[]), "leave     session s-1  no instance reports it\n");
    }

    #[test]
    fn terminal_and_passthrough_sessions_are_never_re_tracked() {
        let terminal = InventoryRow { state: Some(SessionState::Failed), ..row("s-1", "i-1") };
        let passthrough = InventoryRow { passthrough: true, ..row("s-2", "i-2") };
        let plan = correlate(&[terminal, passthrough], &[instance("i-1", "s-1"), instance("i-2", "s-2")]);
        assert!(plan.retrack.is_empty() && plan.leave.is_empty());
        assert_eq!(
            plan.stop.iter().map(|stop| stop.reason).collect::<Vec<_>>(),
            [StopReason::SessionTerminal, StopReason::Passthrough]
        );
    }

    #[test]
    fn a_session_that_cannot_be_read_stays_in() {
        let unreadable = InventoryRow { state: None, ..row("s-1", "i-1") };
        assert_eq!(correlate(&[unreadable], &[instance("i-1", "s-1")]).retrack.len(), 1);
    }

    #[test]
    fn an_instance_that_is_being_stopped_is_not_re_tracked() {
        let stopping = InstanceStatus { state: InstanceState::Stopping, ..instance("i-1", "s-1") };
        let plan = correlate(&[row("s-1", "i-1")], &[stopping]);
        assert!(plan.retrack.is_empty());
        assert_eq!(plan.stop[0].reason, StopReason::AlreadyStopping);
    }

    #[test]
    fn the_order_of_the_enumeration_changes_nothing() {
        let rows = [row("s-1", "i-2"), row("s-2", "i-5")];
        let mut instances = vec![
            instance("i-1", "s-1"),
            instance("i-2", "s-1"),
            instance("i-5", "s-2"),
            instance("i-6", "s-9"),
        ];
        let forwards = correlate(&rows, &instances);
        instances.reverse();
        assert_eq!(correlate(&rows, &instances), forwards);
    }
}
