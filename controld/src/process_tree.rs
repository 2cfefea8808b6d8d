//! Ending an agent with everything that it started.
//!
//! ```text
//!   TERM to the group ---> grace ---> KILL to the group and to every process with the instance's mark ---> gone
//!                            |                                     |
//!                            +-- leader and marked ones gone ------+---> not gone within the budget: given up
//! ```
//!
//! Marked processes that are seen during the grace are asked to end, too: they left the group and did not hear it.
//! A child that leaves the group keeps its environment, and with it the mark; one that clears its environment stays
//! in the group. "Gone" means all of: the leader was reaped, no process carries the mark, the group is empty. What
//! cannot be read counts as not gone. Pipes are never waited for: a descendant may hold them.

use std::collections::BTreeSet;
use std::time::Duration;

use seam::{Exit, Monotonic, ProcessIdentity, Seams, Signal, Target, within};
use tracing::warn;
use wire::INSTANCE_MARK;

/// One stop of one tree: decides, and does nothing.
#[derive(Debug)]
pub(crate) struct TreeStop {
    kill_from: Monotonic,
    give_up_at: Monotonic,
    terminated: bool,
    /// The marked processes that were asked to end, each once.
    asked: BTreeSet<ProcessIdentity>,
}

/// What is known about the tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The leader has exited and was reaped.
    pub(crate) leader_gone: bool,
    /// The last signal to the group found nobody.
    pub(crate) group_empty: bool,
    /// The processes with the mark; none if that could not be read.
    pub(crate) marked: Option<Vec<ProcessIdentity>>,
}

/// What to do next. Effects are carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeEffect {
    /// Ask the group to end.
    TerminateGroup,
    /// End the group.
    KillGroup,
    /// Ask one process to end that may have left the group.
    Terminate(ProcessIdentity),
    /// End one process that may have left the group.
    Kill(ProcessIdentity),
    /// Look again at this time, or when the leader exits.
    LookAt(Monotonic),
    /// Nothing of it is left.
    Gone,
    /// The budget is used up; these, and perhaps others, are left.
    GiveUp(Vec<ProcessIdentity>),
}

/// How a stop ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeStopped {
    /// Nothing of it is left.
    Gone,
    /// These, and perhaps others, are left.
    Remains(Vec<ProcessIdentity>),
}

impl TreeStop {
    /// A stop that begins now.
    pub(crate) fn new(now: Monotonic) -> Self {
        Self {
            kill_from: now.after(GRACE),
            give_up_at: now.after(STOP_BUDGET),
            terminated: false,
            asked: BTreeSet::new(),
        }
    }

    /// Whether the marked processes are worth looking for: reading every process's environment is not cheap.
    pub(crate) fn wants_marked(&self, now: Monotonic, leader_gone: bool) -> bool {
        leader_gone || now >= self.kill_from
    }

    /// Decides what to do about what was seen.
    pub(crate) fn handle(&mut self, now: Monotonic, seen: &Seen) -> Vec<TreeEffect> {
        let again = TreeEffect::LookAt(now.after(POLL));
        if !self.terminated {
            self.terminated = true;
            return vec![TreeEffect::TerminateGroup, again];
        }
        let none_marked = seen.marked.as_ref().is_some_and(Vec::is_empty);
        if seen.leader_gone && none_marked {
            // The group may still hold processes that cleared their environment: nobody speaks for them any more.
            return if seen.group_empty {
                vec![TreeEffect::Gone]
            } else {
                vec![TreeEffect::KillGroup, again]
            };
        }
        let marked = seen.marked.clone().unwrap_or_default();
        if now < self.kill_from {
            let unasked = marked.into_iter().filter(|process| self.asked.insert(process.clone()));
            return unasked.map(TreeEffect::Terminate).chain([again]).collect();
        }
        if now >= self.give_up_at {
            return vec![TreeEffect::GiveUp(marked)];
        }
        let mut effects = vec![TreeEffect::KillGroup];
        effects.extend(marked.into_iter().map(TreeEffect::Kill));
        effects.push(again);
        effects
    }
}

/// Stops the tree that `leader` leads and whose processes carry `mark`. Ends within [`STOP_BUDGET`] and one look.
pub(crate) async fn stop_tree(
    seams: &Seams,
    leader: &ProcessIdentity,
    exit: &mut dyn Exit,
    mark: &str,
) -> TreeStopped {
    let clock = &*seams.clock;
    let mut stop = TreeStop::new(clock.monotonic());
    let mut seen = Seen::default();
    loop {
        for effect in stop.handle(clock.monotonic(), &seen) {
            match effect {
                TreeEffect::TerminateGroup => {
                    seen.group_empty = !signal_group(seams, leader, Signal::Terminate).await
                }
                TreeEffect::KillGroup => seen.group_empty = !signal_group(seams, leader, Signal::Kill).await,
                TreeEffect::Terminate(process) => signal(seams, process, Signal::Terminate).await,
                TreeEffect::Kill(process) => signal(seams, process, Signal::Kill).await,
                TreeEffect::LookAt(at) => {
                    look(seams, &mut seen, exit, at).await;
                    if stop.wants_marked(clock.monotonic(), seen.leader_gone) {
                        seen.marked = marked(seams, mark).await;
                    }
                }
                TreeEffect::Gone => return TreeStopped::Gone,
                TreeEffect::GiveUp(left) => return TreeStopped::Remains(left),
            }
        }
    }
}

/// Waits until `at`, or until the leader has exited if that is still to come.
async fn look(seams: &Seams, seen: &mut Seen, exit: &mut dyn Exit, at: Monotonic) {
    if seen.leader_gone {
        seams.clock.sleep_until(at).await;
        return;
    }
    let left = at.since(seams.clock.monotonic());
    match within(&*seams.clock, left, exit.wait()).await {
        Ok(Ok(_)) => seen.leader_gone = true,
        Ok(Err(error)) => {
            warn!(%error, "agent's exit cannot be awaited");
            // The process table decides then; a poll's length passes so that this cannot spin.
            seams.clock.sleep_until(at).await;
            seen.leader_gone = matches!(within(&*seams.clock, POLL, exit.wait()).await, Ok(Ok(_)));
        }
        Err(_) => {}
    }
}

async fn signal_group(seams: &Seams, leader: &ProcessIdentity, signal: Signal) -> bool {
    match seams.processes.signal(Target::Group(leader.clone()), signal).await {
        Ok(received) => received,
        Err(error) => {
            warn!(%leader, ?signal, %error, "group could not be signalled");
            true
        }
    }
}

async fn signal(seams: &Seams, process: ProcessIdentity, signal: Signal) {
    let target = Target::Process(process.clone());
    if let Err(error) = seams.processes.signal(target, signal).await {
        warn!(%process, ?signal, %error, "descendant could not be signalled");
    }
}

async fn marked(seams: &Seams, mark: &str) -> Option<Vec<ProcessIdentity>> {
    match seams.processes.marked(INSTANCE_MARK, mark).await {
        Ok(marked) => Some(marked),
        Err(error) => {
            warn!(%error, "marked processes could not be listed");
            None
        }
    }
}

/// How long an agent may take to end by itself: enough to write its session file, short enough for a user who
/// waits.
pub(crate) const GRACE: Duration = Duration::from_secs(3);

/// The whole budget of one stop. After the KILL only the kernel can delay an end.
pub(crate) const STOP_BUDGET: Duration = Duration::from_secs(8);

/// Between two looks: a stop is hardly ever felt to be slower for it, and costs few looks at the process table.
const POLL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_millis(millis))
    }

    fn process(pid: u32) -> ProcessIdentity {
        ProcessIdentity { pid, start_time: 1, boot_id: "b".into() }
    }

    fn seen(leader_gone: bool, group_empty: bool, marked: &[u32]) -> Seen {
        Seen { leader_gone, group_empty, marked: Some(marked.iter().copied().map(process).collect()) }
    }

    fn started() -> TreeStop {
        let mut stop = TreeStop::new(at(0));
        assert_eq!(
            vec![TreeEffect::TerminateGroup, TreeEffect::LookAt(at(100))],
            stop.handle(at(0), &Seen::default())
        );
        stop
    }

    #[test]
    fn an_obedient_tree_is_never_killed_once_it_is_empty() {
        let mut stop = started();
        assert_eq!(vec![TreeEffect::Gone], stop.handle(at(100), &seen(true, true, &[])));
    }

    #[test]
    fn a_group_without_leader_and_marks_is_swept_until_nobody_answers() {
        let mut stop = started();
        let swept = stop.handle(at(100), &seen(true, false, &[]));
        assert_eq!(vec![TreeEffect::KillGroup, TreeEffect::LookAt(at(200))], swept);
        assert_eq!(vec![TreeEffect::Gone], stop.handle(at(200), &seen(true, true, &[])));
    }

    #[test]
    fn a_descendant_gets_the_grace_too_and_is_killed_after_it() {
        let mut stop = started();
        assert_eq!(
            vec![TreeEffect::Terminate(process(9)), TreeEffect::LookAt(at(300))],
            stop.handle(at(200), &seen(true, true, &[9]))
        );
        assert_eq!(vec![TreeEffect::LookAt(at(400))], stop.handle(at(300), &seen(true, true, &[9])));
        let killed = stop.handle(at(3000), &seen(true, true, &[9]));
        assert_eq!(
            vec![TreeEffect::KillGroup, TreeEffect::Kill(process(9)), TreeEffect::LookAt(at(3100))],
            killed
        );
    }

    #[test]
    fn a_leader_that_ignores_term_is_killed_after_the_grace() {
        let mut stop = started();
        assert_eq!(vec![TreeEffect::LookAt(at(2999 + 100))], stop.handle(at(2999), &Seen::default()));
        assert_eq!(TreeEffect::KillGroup, stop.handle(at(3000), &Seen::default())[0]);
    }

    #[test]
    fn what_could_not_be_read_is_not_gone() {
        let mut stop = started();
        let unread = Seen { leader_gone: true, group_empty: true, marked: None };
        assert_eq!(vec![TreeEffect::LookAt(at(200))], stop.handle(at(100), &unread));
    }

    #[test]
    fn a_stop_ends_within_its_budget_and_names_what_is_left() {
        let mut stop = started();
        let left = stop.handle(at(8000), &seen(true, false, &[9]));
        assert_eq!(vec![TreeEffect::GiveUp(vec![process(9)])], left);
    }
}
