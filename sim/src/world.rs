//! The world of one run: time, wakes, effects and kills. Everything that a process shares with another lives
//! here, behind one lock.
//!
//! Time stands still during a step. A step runs every process that has something to do until it has nothing
//! left, each in its own runtime and in a drawn order; all of them see the same time, so that nobody can read
//! another's future. What one does to another wakes that other at the next tick at the earliest. Between steps
//! the time jumps to the next tick at which anybody wakes: an idle world costs nothing.
//!
//! ```text
//!            wakes due               drive each, drawn order            nothing left to do
//! advance ─────────────▶ step(now) ───────────────────────────▶ bury ─────────────────────▶ advance
//!                                     │ seam call: budget, delay, yields
//!                                     │ effect: ordinal ─▶ kill before? ─▶ act ─▶ line ─▶ kill after?
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use seam::ExitStatus;

use crate::channel::Channels;
use crate::disk::DiskState;
use crate::network::Listeners;
use crate::observer::{Observer, Violation, WorldView};
use crate::plan::{Fault, FaultCount, Plan, Side};
use crate::process_table::Process;
use crate::program::Program;
use crate::seed::{Rng, Streams};
use crate::trace::{Fields, Kind, Line, Trace, fields};

/// A process for the whole run: unlike its pid, never used again.
pub(crate) type Key = u64;

/// The process is dead or the run is over: the caller goes no further.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dead;

/// The world of one run.
pub(crate) struct World {
    state: Mutex<State>,
}

/// What the lock guards.
pub(crate) struct State {
    pub(crate) plan: Plan,
    /// The current tick.
    pub(crate) now: u64,
    wakes: BTreeMap<(u64, u64), Wake>,
    wake_count: u64,
    pub(crate) rng: Rng,
    pub(crate) streams: Streams,
    pub(crate) programs: Vec<Program>,
    pub(crate) processes: BTreeMap<Key, Process>,
    pub(crate) lives: BTreeMap<String, u32>,
    pub(crate) pids: BTreeMap<u32, Key>,
    pub(crate) channels: Channels,
    pub(crate) listeners: Listeners,
    pub(crate) disk: DiskState,
    pub(crate) trace: Trace,
    trace_waiters: Vec<(Key, Waker)>,
    observers: Vec<Box<dyn Observer>>,
    /// Ended since the driver last looked; their runtimes are to be dropped.
    pub(crate) ended: Vec<Key>,
    /// The first violation; from then on nothing has an effect.
    failure: Option<Failure>,
    over: bool,
    healed: bool,
    spent: BTreeSet<usize>,
    pub(crate) fault_counts: BTreeMap<&'static str, FaultCount>,
    pub(crate) reached: BTreeSet<String>,
    calls: u64,
    last_calls: VecDeque<(Key, &'static str)>,
    pub(crate) verdict: Option<Result<(), Violation>>,
}

/// A violation and where in the trace it came up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The contradiction.
    pub violation: Violation,
    /// Simulated milliseconds since the start.
    pub at_ms: u64,
    /// The last line before it.
    pub ordinal: u64,
}

/// Who is woken. Without a waker the process is only driven: that is how it starts.
struct Wake {
    key: Key,
    waker: Option<Waker>,
}

impl World {
    pub(crate) fn new(
        streams: Streams,
        plan: Plan,
        programs: Vec<Program>,
        observers: Vec<Box<dyn Observer>>,
    ) -> Arc<Self> {
        let fault_counts = plan.faults.iter().map(|fault| (fault.kind(), FaultCount::default())).collect();
        Arc::new(Self {
            state: Mutex::new(State {
                plan,
                now: 0,
                wakes: BTreeMap::new(),
                wake_count: 0,
                rng: streams.stream("world"),
                streams,
                programs,
                processes: BTreeMap::new(),
                lives: BTreeMap::new(),
                pids: BTreeMap::new(),
                channels: Channels::default(),
                listeners: Listeners::default(),
                disk: DiskState::default(),
                trace: Trace::default(),
                trace_waiters: Vec::new(),
                observers,
                ended: Vec::new(),
                failure: None,
                over: false,
                healed: false,
                spent: BTreeSet::new(),
                fault_counts,
                reached: BTreeSet::new(),
                calls: 0,
                last_calls: VecDeque::new(),
                verdict: None,
            }),
        })
    }

    /// The state. A panic of a simulated process inside a seam call must not take the world with it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The start of every asynchronous seam call: counts it, waits a drawn time and lets a drawn number of
    /// others go first. Never returns to the dead.
    pub(crate) async fn turn(self: &Arc<Self>, key: Key, call: &'static str) {
        let drawn = self.lock().enter(key, call);
        let Ok((ticks, yields)) = drawn else { return pending().await };
        if ticks > 0 {
            self.sleep_ticks(key, ticks).await;
        }
        Yields(yields).await;
    }

    /// An asynchronous seam call with one effect.
    pub(crate) async fn act<R>(
        self: &Arc<Self>,
        key: Key,
        call: &'static str,
        act: impl FnOnce(&mut State, &mut Fields) -> R,
    ) -> R {
        self.turn(key, call).await;
        let done = self.lock().effect(key, call, act);
        match done {
            Ok(done) => done,
            Err(Dead) => pending().await,
        }
    }

    /// An asynchronous seam call that only looks.
    pub(crate) async fn look<R>(
        self: &Arc<Self>,
        key: Key,
        call: &'static str,
        look: impl FnOnce(&State) -> R,
    ) -> R {
        self.turn(key, call).await;
        let seen = {
            let state = self.lock();
            state.alive(key).then(|| look(&state))
        };
        match seen {
            Some(seen) => seen,
            None => pending().await,
        }
    }

    pub(crate) fn sleep_ticks(self: &Arc<Self>, key: Key, ticks: u64) -> Sleep {
        let until = self.lock().now + ticks;
        self.sleep_until_tick(key, until)
    }

    pub(crate) fn sleep_until_tick(self: &Arc<Self>, key: Key, until: u64) -> Sleep {
        Sleep { world: Arc::clone(self), key, until, entry: None, yields: None }
    }
}

impl State {
    pub(crate) const fn now_ms(&self) -> u64 {
        self.now * self.plan.tick_ms
    }

    /// The first tick that is not before this time.
    pub(crate) const fn tick_of_ms(&self, ms: u64) -> u64 {
        ms.div_ceil(self.plan.tick_ms)
    }

    /// Whether calls of this process still do anything.
    pub(crate) fn alive(&self, key: Key) -> bool {
        !self.over && self.processes.get(&key).is_some_and(Process::runs)
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.over
    }

    pub(crate) const fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Ends the run: nothing has an effect from here on.
    pub(crate) fn close(&mut self) {
        self.over = true;
    }

    /// The first violation wins; it ends the run.
    pub(crate) fn fail(&mut self, violation: Violation) {
        if self.over {
            return;
        }
        let ordinal = self.trace.next_ordinal() - 1;
        self.failure = Some(Failure { violation, at_ms: self.now_ms(), ordinal });
        self.close();
    }

    /// Lets every observer judge the end.
    pub(crate) fn judge_end(&mut self) {
        let mut observers = std::mem::take(&mut self.observers);
        for observer in &mut observers {
            if let Err(violation) = observer.end(&WorldView::new(self)) {
                self.fail(violation);
                break;
            }
        }
        self.observers = observers;
    }

    /// How often each invariant judged, by its parts.
    pub(crate) fn judged(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        let mut judged = BTreeMap::new();
        for observer in &self.observers {
            for (part, count) in observer.judged() {
                judged.insert((observer.id(), part), count);
            }
        }
        judged
    }

    /// From here on no fault is applied.
    pub(crate) fn heal(&mut self) {
        self.healed = true;
    }

    // Time.

    /// Wakes `key` at `tick`, or at the next one if that is over. Gives the entry, for taking it back.
    pub(crate) fn wake_at(&mut self, tick: u64, key: Key, waker: Option<Waker>) -> (u64, u64) {
        self.wake_count += 1;
        let entry = (tick.max(self.now + 1), self.wake_count);
        self.wakes.insert(entry, Wake { key, waker });
        entry
    }

    /// Moves the time to the next tick at which something happens and gives who is to be woken then. `None` if
    /// nothing ever happens again.
    pub(crate) fn advance(&mut self) -> Option<(Vec<Waker>, BTreeSet<Key>)> {
        let wake = self.wakes.keys().next().map(|(tick, _)| *tick);
        let fault = self.next_timed_fault().map(|(tick, _)| tick);
        let next = wake.into_iter().chain(fault).min()?;
        self.now = next.max(self.now + 1);
        self.calls = 0;
        while let Some((tick, index)) = self.next_timed_fault()
            && tick <= self.now
        {
            self.apply_timed_fault(index);
        }
        let later = self.wakes.split_off(&(self.now + 1, 0));
        let due = std::mem::replace(&mut self.wakes, later);
        let keys = due.values().map(|wake| wake.key).collect();
        let mut wakers: Vec<Waker> = due.into_values().filter_map(|wake| wake.waker).collect();
        self.rng.shuffle(&mut wakers);
        Some((wakers, keys))
    }

    /// When bytes or news that leave now arrive: the next tick or a drawn number later.
    pub(crate) fn arrival(&mut self) -> u64 {
        let bound = self.plan.max_delay_ticks + 1;
        self.now + 1 + if self.rng.chance(1, 2) { 0 } else { self.rng.below(bound) }
    }

    // Calls and effects.

    fn enter(&mut self, key: Key, call: &'static str) -> Result<(u64, u8), Dead> {
        self.count_call(key, call)?;
        let bound = self.plan.max_delay_ticks + 1;
        let ticks = if self.rng.chance(1, 2) { 0 } else { self.rng.below(bound) };
        Ok((ticks, self.draw_yields()))
    }

    pub(crate) fn draw_yields(&mut self) -> u8 {
        u8::try_from(self.rng.below(MAX_YIELDS + 1)).expect("a handful")
    }

    /// Whether somebody goes on calling although the step is over: a loop that never awaits.
    pub(crate) const fn runaway(&self) -> bool {
        self.calls > 2 * CALLS_PER_STEP
    }

    /// What holds the processes' tasks: to be dropped outside of the lock, when the run is over.
    pub(crate) fn take_wakers(&mut self) -> impl Sized + use<> {
        let hooks: Vec<_> = self.processes.values_mut().map(|process| process.log_hook.take()).collect();
        (std::mem::take(&mut self.wakes), std::mem::take(&mut self.trace_waiters), hooks)
    }

    /// One more seam call in this step.
    pub(crate) fn count_call(&mut self, key: Key, call: &'static str) -> Result<(), Dead> {
        self.calls += 1;
        if !self.alive(key) {
            return Err(Dead);
        }
        if self.last_calls.len() == LAST_CALLS {
            self.last_calls.pop_front();
        }
        self.last_calls.push_back((key, call));
        if self.calls > CALLS_PER_STEP {
            let last: Vec<String> =
                self.last_calls.iter().map(|(key, call)| format!("{} {call}", self.label(*key))).collect();
            self.fail(Violation::new(
                "progress",
                "sim",
                format!("at most {CALLS_PER_STEP} seam calls at one instant"),
                format!("{} goes on for ever; the last calls: {}", self.label(key), last.join(", ")),
            ));
            return Err(Dead);
        }
        Ok(())
    }

    /// Changes the world on behalf of a process, with everything that may happen around it.
    pub(crate) fn effect<R>(
        &mut self,
        key: Key,
        call: &'static str,
        act: impl FnOnce(&mut Self, &mut Fields) -> R,
    ) -> Result<R, Dead> {
        self.count_call(key, call)?;
        let process = self.processes.get_mut(&key).expect("an alive process is in the table");
        process.effects += 1;
        let ordinal = process.effects;
        if self.killed_here(key, ordinal, Side::Before) {
            return Err(Dead);
        }
        let mut told = Fields::new();
        let done = act(self, &mut told);
        told.insert("effect".to_owned(), ordinal.to_string());
        self.say(key, Kind::Effect, call, told);
        if self.killed_here(key, ordinal, Side::After) || self.over {
            return Err(Dead);
        }
        Ok(done)
    }

    // Trace.

    pub(crate) fn label(&self, key: Key) -> String {
        self.processes.get(&key).map_or_else(|| "world".to_owned(), |process| process.label.clone())
    }

    /// Appends a line and shows it to every observer.
    pub(crate) fn say(&mut self, key: Key, kind: Kind, text: impl Into<String>, fields: Fields) {
        if self.over {
            return;
        }
        let line = Line {
            time_ms: self.now_ms(),
            ordinal: self.trace.next_ordinal(),
            process: self.label(key),
            kind,
            text: text.into(),
            fields,
        };
        let mut observers = std::mem::take(&mut self.observers);
        let mut found = None;
        for observer in &mut observers {
            if let Err(violation) = observer.line(&line, &WorldView::new(self)) {
                found = Some(violation);
                break;
            }
        }
        self.observers = observers;
        self.trace.push(line);
        if let Some(violation) = found {
            self.fail(violation);
        }
        for (key, waker) in std::mem::take(&mut self.trace_waiters) {
            self.wake_at(self.now + 1, key, Some(waker));
        }
    }

    pub(crate) fn on_next_line(&mut self, key: Key, waker: Waker) {
        self.trace_waiters.push((key, waker));
    }

    // Faults.

    /// The faults that may still be applied, with their index in the plan.
    pub(crate) fn faults(&self) -> impl Iterator<Item = (usize, &Fault)> {
        let faults: &[Fault] = if self.healed { &[] } else { &self.plan.faults };
        faults.iter().enumerate().filter(|(index, _)| !self.spent.contains(index))
    }

    /// Counts a fault, and with `once` never applies it again.
    pub(crate) fn fault_fired(&mut self, index: usize, bitten: bool, once: bool) {
        let count = self.fault_counts.entry(self.plan.faults[index].kind()).or_default();
        count.fired += 1;
        count.bitten += u64::from(bitten);
        if once {
            self.spent.insert(index);
        }
    }

    fn killed_here(&mut self, key: Key, ordinal: u64, at: Side) -> bool {
        self.kill_others_here(key, ordinal, at);
        let Some(victim) = self.processes.get(&key).filter(|victim| victim.runs()) else { return false };
        let hit = self.faults().find_map(|(index, fault)| match fault {
            Fault::Kill { process, life, effect, side }
                if *process == victim.name && *life == victim.life && *effect == ordinal && *side == at =>
            {
                Some(index)
            }
            _ => None,
        });
        let Some(index) = hit else { return false };
        self.fault_fired(index, true, true);
        let side = if at == Side::Before { "before" } else { "after" };
        self.say(
            key,
            Kind::Fault,
            "killed at an effect",
            fields([("effect", ordinal.to_string()), ("side", side.to_owned())]),
        );
        self.end_process(key, ExitStatus::Signal(SIGKILL));
        true
    }

    fn kill_others_here(&mut self, key: Key, ordinal: u64, at: Side) {
        let Some(acting) = self.processes.get(&key).filter(|acting| acting.runs()) else { return };
        let hits: Vec<(usize, String)> = self
            .faults()
            .filter_map(|(index, fault)| match fault {
                Fault::KillOther { process, life, effect, side, victim }
                    if *process == acting.name
                        && *life == acting.life
                        && *effect == ordinal
                        && *side == at =>
                {
                    Some((index, victim.clone()))
                }
                _ => None,
            })
            .collect();
        for (index, program) in hits {
            self.kill_all(index, &program);
        }
    }

    /// Applies a fault that kills every living process of a program.
    fn kill_all(&mut self, index: usize, program: &str) {
        let running = self.processes.iter().filter(|(_, candidate)| candidate.runs());
        let victims: Vec<Key> =
            running.filter(|(_, candidate)| candidate.name == *program).map(|(key, _)| *key).collect();
        self.fault_fired(index, !victims.is_empty(), true);
        for key in victims {
            self.say(key, Kind::Fault, "killed", Fields::new());
            self.end_process(key, ExitStatus::Signal(SIGKILL));
        }
    }

    fn next_timed_fault(&self) -> Option<(u64, usize)> {
        self.faults()
            .filter_map(|(index, fault)| match fault {
                Fault::KillAt { at_ms, .. } => Some((self.tick_of_ms(*at_ms), index)),
                _ => None,
            })
            .min()
    }

    fn apply_timed_fault(&mut self, index: usize) {
        let Fault::KillAt { process, .. } = self.plan.faults[index].clone() else { return };
        self.kill_all(index, &process);
    }
}

/// Waits for a tick.
pub(crate) struct Sleep {
    world: Arc<World>,
    key: Key,
    until: u64,
    entry: Option<(u64, u64)>,
    yields: Option<u8>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let world = Arc::clone(&self.world);
        let mut state = world.lock();
        if !state.alive(self.key) {
            return Poll::Pending;
        }
        if state.now < self.until {
            // The waker may be another one than last time: the future can have moved to another task.
            let entry = state.wake_at(self.until, self.key, Some(cx.waker().clone()));
            let replaced = self.entry.replace(entry).and_then(|old| state.wakes.remove(&old));
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        let left = match self.yields {
            Some(left) => left,
            // Only who really waited was woken, and only the order of the woken is drawn here.
            None if self.entry.is_some() => state.draw_yields(),
            None => 0,
        };
        drop(state);
        if left == 0 {
            return Poll::Ready(());
        }
        self.yields = Some(left - 1);
        give_way(cx);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            let taken = self.world.lock().wakes.remove(&entry);
            drop(taken);
        }
    }
}

/// Lets the other ready tasks of this process go first, that many times.
pub(crate) struct Yields(pub(crate) u8);

impl Future for Yields {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        give_way(cx);
        Poll::Pending
    }
}

/// Wakes the task again once every other task of its process that is ready now has run. A plain wake would not
/// do: tokio keeps what was woken from outside in a queue of its own, behind everything that wakes itself.
#[expect(clippy::disallowed_methods, reason = "the runtime's own way to let every other ready task run")]
pub(crate) fn give_way(cx: &mut Context<'_>) {
    // Its first poll has arranged for the wake; the future itself is not needed any more.
    let arranged = pin!(tokio::task::yield_now()).poll(cx);
    debug_assert!(arranged.is_pending(), "a yield gives way at least once");
}

pub(crate) const SIGKILL: i32 = 9;

/// Up to three rounds: four ready tasks can then run in all 24 orders.
const MAX_YIELDS: u64 = 3;

/// More calls than this at one instant are a livelock: the busiest honest step seen (a store opened and a
/// thousand events read) needs a few thousand. At it the run ends with a report.
const CALLS_PER_STEP: u64 = 200_000;

/// How many calls the report of a livelock shows.
const LAST_CALLS: usize = 8;
