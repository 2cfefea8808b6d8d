//! Runs: one world from its first tick to its verdict, and many of them on sealed threads.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak, mpsc};
use std::time::Duration;

use crate::clock::seams;
use crate::observer::Violation;
use crate::plan::{FaultCount, Plan};
use crate::process_table::{DIRECTOR, NewProcess};
use crate::program::{ProcessContext, Program};
use crate::scenario::{Director, Scenario};
use crate::seed::Streams;
use crate::slots::Slots;
use crate::trace::Line;
use crate::world::{Failure, Key, World};

/// What one run was and how it ended.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The seed.
    pub seed: u64,
    /// What the seed decided, or what was replayed.
    pub plan: Plan,
    /// How it ended.
    pub outcome: Result<(), Failure>,
    /// The trace's hash; the same seed and plan give the same.
    pub hash: String,
    /// How long it was, in simulated milliseconds.
    pub simulated_ms: u64,
    /// How many steps something happened in.
    pub steps: u64,
    /// How many hosts the processes needed: the most that lived at once.
    pub hosts: usize,
    /// How often each kind of fault of the plan was applied and seen.
    pub faults: BTreeMap<&'static str, FaultCount>,
    /// How often each invariant judged, by invariant and part.
    pub judged: BTreeMap<(&'static str, &'static str), u64>,
    /// The scenario's states that were reached.
    pub reached: BTreeSet<String>,
    /// The whole trace.
    pub lines: Vec<Line>,
}

/// One run to do.
#[derive(Clone)]
pub struct Job {
    /// What to play.
    pub scenario: Arc<dyn Scenario>,
    /// By which seed.
    pub seed: u64,
    /// With this plan instead of the drawn one.
    pub plan: Option<Plan>,
}

/// Runs a scenario by a seed, on this thread. The same seed and plan give the same trace, always.
pub fn run_one(scenario: &dyn Scenario, seed: u64, plan: Option<Plan>) -> RunReport {
    prepare();
    let streams = Streams::new(seed);
    let plan = plan.unwrap_or_else(|| scenario.plan(&streams));
    let world = World::new(streams, plan.clone(), scenario.programs(), scenario.observers());
    BEAT.with_borrow(|beat| {
        if let Some(beat) = beat {
            beat.name(format!("{} --seed {seed}", scenario.name()));
        }
    });
    let slots = Slots::new(streams.stream("slots").below(u64::MAX), Duration::from_millis(plan.tick_ms));
    let mut driver = Driver { world: Arc::clone(&world), slots, steps: 0 };
    driver.direct(scenario, &plan, streams);
    driver.run(scenario.limit(), scenario.criterion());
    let (steps, hosts) = (driver.steps, driver.slots.hosts());
    driver.end();
    // Until the next run begins there is nothing to watch.
    BEAT.with_borrow(|beat| {
        if let Some(beat) = beat {
            beat.name(String::new());
        }
    });
    let mut state = world.lock();
    RunReport {
        scenario: scenario.name(),
        seed,
        plan,
        outcome: state.failure().cloned().map_or(Ok(()), Err),
        hash: state.trace.hash(),
        simulated_ms: state.now_ms(),
        steps,
        hosts,
        faults: state.fault_counts.clone(),
        judged: state.judged(),
        reached: state.reached.clone(),
        lines: state.trace.take(),
    }
}

/// Runs jobs on `threads` sealed threads and shows each report as it comes, until there are no more jobs or
/// `seen` has seen enough.
///
/// # Panics
/// If a thread cannot be started.
pub fn run_many(
    jobs: impl Iterator<Item = Job> + Send,
    threads: usize,
    mut seen: impl FnMut(RunReport) -> ControlFlow<()>,
) {
    prepare();
    let jobs = Mutex::new(jobs);
    std::thread::scope(|scope| {
        // Bounded: a slow reader must not make reports, which hold whole traces, pile up.
        let (reports, received) = mpsc::sync_channel(threads);
        for _ in 0..threads.max(1) {
            let (jobs, reports) = (&jobs, reports.clone());
            let beat = watch();
            std::thread::Builder::new()
                .name("sim".to_owned())
                .spawn_scoped(scope, move || {
                    BEAT.set(Some(beat));
                    crate::seal::seal_thread();
                    loop {
                        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(job) = job else { break };
                        if reports.send(run_one(&*job.scenario, job.seed, job.plan)).is_err() {
                            break;
                        }
                    }
                })
                .expect("a thread can be started");
        }
        drop(reports);
        for report in received {
            if seen(report).is_break() {
                break;
            }
        }
    });
}

/// Drives the processes of one world, each in a slot of its own.
struct Driver {
    world: Arc<World>,
    slots: Slots,
    steps: u64,
}

impl Driver {
    /// Starts the scenario's director, the first process of the run.
    fn direct(&mut self, scenario: &dyn Scenario, plan: &Plan, streams: Streams) {
        let program = Program::new("director", |_| async { 0 });
        let key = self.world.lock().add_process(NewProcess {
            program,
            parent: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            executable: "/usr/bin/director".into(),
            directory: "/".into(),
        });
        assert_eq!(key, DIRECTOR, "the director is the first process");
        let director = Director::new(
            &self.world,
            seams(&self.world, key),
            scenario.criterion(),
            plan.clone(),
            streams.stream("workload"),
        );
        let playing = scenario.run(director);
        let world = Arc::clone(&self.world);
        self.world.lock().processes.get_mut(&key).expect("it was just added").program = None;
        self.slots.start(&self.world, key, async move {
            let verdict = playing.await;
            world.lock().verdict = Some(verdict);
        });
    }

    fn run(&mut self, limit: Duration, criterion: &str) {
        loop {
            let (wakers, woken) = {
                let mut state = self.world.lock();
                if state.is_over() || state.verdict.is_some() {
                    break;
                }
                let next = state.advance();
                let late = Duration::from_millis(state.now_ms()) > limit;
                match next {
                    Some(next) if !late => next,
                    next => {
                        let seen = if next.is_none() { "nothing happens any more" } else { "it goes on" };
                        let expected = format!("the scenario comes to its end within {limit:?}");
                        state.fail(Violation::new("converges", criterion, expected, seen));
                        break;
                    }
                }
            };
            self.bury();
            for waker in wakers {
                waker.wake();
            }
            for key in woken {
                self.start(key);
            }
            self.step();
            self.bury();
            self.steps += 1;
            beat();
        }
        let mut state = self.world.lock();
        match state.verdict.take() {
            Some(Ok(())) => state.judge_end(),
            Some(Err(violation)) => state.fail(violation),
            None => {}
        }
    }

    /// Gives a process that is to start its slot.
    fn start(&mut self, key: Key) {
        let program = {
            let mut state = self.world.lock();
            let process = state.processes.get_mut(&key).filter(|process| process.runs());
            process.and_then(|process| process.program.take())
        };
        let Some(program) = program else { return };
        let world = Arc::clone(&self.world);
        let context = ProcessContext { seams: seams(&world, key), world: Arc::clone(&world), key };
        self.slots.start(&self.world, key, async move {
            let code = (program.run)(context).await;
            world.exit(key, code).await;
        });
    }

    /// Lets every process do everything that it can do now. A panic stops the step half-way: that of the living ends
    /// the run, that of the dead counts for nothing, and the others still have their turn.
    fn step(&mut self) {
        loop {
            FIRST_PANIC.set(None);
            if catch_unwind(AssertUnwindSafe(|| self.slots.step())).is_ok() {
                return;
            }
            let (culprit, message) = FIRST_PANIC.take().expect("the hook has seen every panic");
            let mut state = self.world.lock();
            let dead = culprit.filter(|key| !state.alive(*key));
            let Some(key) = dead else {
                let who = culprit.map_or_else(|| "world".to_owned(), |key| state.label(key));
                state.fail(Violation::new(
                    "no-panic",
                    "sim",
                    "no process panics",
                    format!("{who}: {message}"),
                ));
                return;
            };
            drop(state);
            self.drop_life(key);
        }
    }

    /// Drops the tasks of those who have ended. What their destructors do has no effect any more.
    fn bury(&mut self) {
        let ended = std::mem::take(&mut self.world.lock().ended);
        for key in ended {
            self.drop_life(key);
        }
    }

    fn drop_life(&mut self, key: Key) {
        let dropped = catch_unwind(AssertUnwindSafe(|| self.slots.end(&self.world, key)));
        // A destructor of the dead that panics has been a panic of the dead.
        let (Ok(()) | Err(_)) = dropped;
    }

    fn end(mut self) {
        self.world.lock().close();
        for key in self.slots.living() {
            self.drop_life(key);
        }
        let held = self.world.lock().take_wakers();
        drop(held);
    }
}

thread_local! {
    /// Whose panic was the first of this step, and what it said.
    static FIRST_PANIC: RefCell<Option<(Option<Key>, String)>> = const { RefCell::new(None) };
    static BEAT: RefCell<Option<Arc<Beat>>> = const { RefCell::new(None) };
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

/// What has to exist before a thread can be sealed, once for the whole process.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        crate::vfs::register();
        crate::logs::install();
        // SQLite seeds its own random numbers from the system when it first needs one.
        let warm = rusqlite::Connection::open_in_memory()
            .and_then(|database| database.query_row("SELECT random()", [], |row| row.get::<_, i64>(0)));
        warm.expect("SQLite works in memory");
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !crate::slots::in_run() || IN_HOOK.replace(true) {
                previous(info);
                return;
            }
            // The run's report shows it; a panic of the dead is shown to nobody.
            let whose = crate::slots::current().map(|(_, key)| key);
            FIRST_PANIC.with_borrow_mut(|first| {
                first.get_or_insert_with(|| (whose, info.to_string()));
            });
            IN_HOOK.set(false);
        }));
    });
}

/// A runner's sign of life.
struct Beat {
    count: AtomicU64,
    run: Mutex<String>,
}

impl Beat {
    fn name(&self, run: String) {
        self.count.fetch_add(1, Ordering::Relaxed);
        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = run;
    }
}

fn beat() {
    BEAT.with_borrow(|beat| {
        if let Some(beat) = beat {
            beat.count.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Watches a runner from another thread: a process that loops without a seam call never comes back from its
/// step, and nothing on its own thread could say so.
fn watch() -> Arc<Beat> {
    let beat = Arc::new(Beat { count: AtomicU64::new(0), run: Mutex::new(String::new()) });
    let watched = Arc::downgrade(&beat);
    std::thread::Builder::new()
        .name("sim-watchdog".to_owned())
        .spawn(move || watchdog(&watched))
        .expect("a thread can be started");
    beat
}

#[expect(clippy::disallowed_methods, reason = "the watchdog measures real time, on purpose")]
fn watchdog(watched: &Weak<Beat>) {
    let (mut last, mut still) = (0, 0);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let Some(beat) = watched.upgrade() else { return };
        let count = beat.count.load(Ordering::Relaxed);
        still = if count == last { still + 1 } else { 0 };
        last = count;
        let run = beat.run.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if still >= HANG_SECONDS && !run.is_empty() {
            eprintln!(
                "a step has not come to its end for {HANG_SECONDS} s: a process loops without a seam call\n\
                 reproduce: cargo xtask sim {run}"
            );
            std::process::abort();
        }
    }
}

/// A step takes microseconds; the longest seen under load (a store with a thousand events) took 0.1 s.
const HANG_SECONDS: u32 = 20;
