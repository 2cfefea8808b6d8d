//! Runs: one world from its first tick to its verdict, and many of them on sealed threads.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, RngSeed, Runtime, UnhandledPanic};

use crate::clock::seams;
use crate::observer::Violation;
use crate::plan::{FaultCount, Plan};
use crate::process_table::{DIRECTOR, NewProcess};
use crate::program::{ProcessContext, Program};
use crate::scenario::{Director, Scenario};
use crate::seed::Streams;
use crate::trace::Line;
use crate::vfs::as_process;
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
    /// How often each kind of fault of the plan was applied and seen.
    pub faults: BTreeMap<&'static str, FaultCount>,
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
    let mut driver = Driver { world: Arc::clone(&world), lives: BTreeMap::new(), steps: 0, runtimes: 0 };
    driver.direct(scenario, &plan, streams);
    driver.run(scenario.limit(), scenario.criterion());
    let steps = driver.steps;
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
        faults: state.fault_counts.clone(),
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

/// Drives the processes of one world.
struct Driver {
    world: Arc<World>,
    lives: BTreeMap<Key, Life>,
    steps: u64,
    /// How many runtimes were made, which numbers their seeds.
    runtimes: u64,
}

/// A living process's tasks.
struct Life {
    /// What the runtime blocks on, until it is done.
    main: Option<Pin<Box<dyn Future<Output = ()>>>>,
    runtime: Runtime,
    /// The world's time when it was last driven.
    driven_ms: u64,
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
        let runtime = self.runtime();
        let world = Arc::clone(&self.world);
        let main = Box::pin(async move {
            let verdict = playing.await;
            world.lock().verdict = Some(verdict);
        });
        self.lives.insert(key, Life { main: Some(main), runtime, driven_ms: 0 });
    }

    fn run(&mut self, limit: Duration, criterion: &str) {
        loop {
            let next = {
                let mut state = self.world.lock();
                if state.is_over() || state.verdict.is_some() {
                    break;
                }
                let next = state.advance();
                let ended = next.is_none() || Duration::from_millis(state.now_ms()) > limit;
                if ended {
                    let seen = if next.is_none() { "nothing happens any more" } else { "it goes on" };
                    let expected = format!("the scenario comes to its end within {limit:?}");
                    state.fail(Violation::new("converges", criterion, expected, seen));
                    break;
                }
                next
            };
            let Some((wakers, woken)) = next else { break };
            self.bury();
            for waker in wakers {
                waker.wake();
            }
            let mut order: Vec<Key> = woken.into_iter().collect();
            self.world.lock().rng.shuffle(&mut order);
            for key in order {
                self.drive(key);
                self.bury();
            }
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

    /// Lets a process do everything that it can do now.
    fn drive(&mut self, key: Key) {
        let (now_ms, program) = {
            let mut state = self.world.lock();
            if !state.alive(key) {
                return;
            }
            let process = state.processes.get_mut(&key).expect("an alive process is in the table");
            // The director's own future is running already.
            let program = if key == DIRECTOR { None } else { process.program.take() };
            (state.now_ms(), program)
        };
        if let Some(program) = program {
            self.start(key, &program, now_ms);
        }
        let Some(life) = self.lives.get_mut(&key) else { return };
        // Paused time runs forward by itself once nothing is ready any more: the sleep ends exactly then. Its
        // length keeps a timer inside a dependency no further behind than the world.
        let length = Duration::from_millis((now_ms - life.driven_ms).max(1));
        life.driven_ms = now_ms;
        FIRST_PANIC.set(None);
        let driven = as_process(&self.world, key, || {
            catch_unwind(AssertUnwindSafe(|| life.runtime.block_on(until_idle(&mut life.main, length))))
        });
        if driven.is_err() {
            let message = FIRST_PANIC.take().unwrap_or_else(|| "a panic without a message".to_owned());
            self.panicked(key, message);
        }
    }

    fn start(&mut self, key: Key, program: &Program, now_ms: u64) {
        let runtime = self.runtime();
        let world = Arc::clone(&self.world);
        let context = ProcessContext { seams: seams(&world, key), world: Arc::clone(&world), key };
        let main = Arc::clone(&program.run);
        let main = Box::pin(async move {
            let code = main(context).await;
            world.exit(key, code).await;
        });
        self.lives.insert(key, Life { main: Some(main), runtime, driven_ms: now_ms });
    }

    /// A runtime for one process: its tasks die with it, its panics are its own.
    fn runtime(&mut self) -> Runtime {
        self.runtimes += 1;
        let mut seed = [0; 32];
        self.world.lock().streams.stream(&format!("runtime {}", self.runtimes)).fill(&mut seed);
        Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .rng_seed(RngSeed::from_bytes(&seed))
            .unhandled_panic(UnhandledPanic::ShutdownRuntime)
            .build()
            .expect("a runtime without IO needs nothing of the system")
    }

    /// A panic of the living ends the run; one of the dead counts for nothing.
    fn panicked(&mut self, key: Key, message: String) {
        let mut state = self.world.lock();
        if state.alive(key) {
            let seen = format!("{}: {message}", state.label(key));
            state.fail(Violation::new("no-panic", "sim", "no process panics", seen));
        }
        drop(state);
        self.drop_life(key);
    }

    /// Drops the tasks of those who have ended. What their destructors do has no effect any more.
    fn bury(&mut self) {
        let ended = std::mem::take(&mut self.world.lock().ended);
        for key in ended {
            self.drop_life(key);
        }
    }

    fn drop_life(&mut self, key: Key) {
        let Some(life) = self.lives.remove(&key) else { return };
        let dropped = as_process(&self.world, key, || catch_unwind(AssertUnwindSafe(|| life.end())));
        // A destructor of the dead that panics has been a panic of the dead.
        let (Ok(()) | Err(_)) = dropped;
    }

    fn end(mut self) {
        self.world.lock().close();
        let keys: Vec<Key> = self.lives.keys().copied().collect();
        for key in keys {
            self.drop_life(key);
        }
        let held = self.world.lock().take_wakers();
        drop(held);
    }
}

impl Life {
    fn end(self) {
        let Self { main, runtime, .. } = self;
        let context = runtime.enter();
        drop(main);
        drop(context);
        drop(runtime);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the paused clock of a simulated process, which the driver moves"
)]
async fn until_idle(main: &mut Option<Pin<Box<dyn Future<Output = ()>>>>, length: Duration) {
    let mut idle = pin!(tokio::time::sleep(length));
    poll_fn(|cx| {
        if main.as_mut().is_some_and(|main| main.as_mut().poll(cx).is_ready()) {
            *main = None;
        }
        idle.as_mut().poll(cx)
    })
    .await;
}

thread_local! {
    static FIRST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
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
            if crate::vfs::current().is_none() || IN_HOOK.replace(true) {
                previous(info);
                return;
            }
            // The run's report shows it; a panic of the dead is shown to nobody.
            FIRST_PANIC.with_borrow_mut(|first| {
                first.get_or_insert_with(|| info.to_string());
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
