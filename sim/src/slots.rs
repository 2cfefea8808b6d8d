//! Where simulated processes run: hosts of a `turmoil` simulation, used again and again.
//!
//! A host is never removed, and every step costs something for each host that runs. So a process is not a host: it
//! takes a free slot, and when it ends the slot is crashed, which drops its tasks and its runtime, and is bounced for
//! the next process. The number of hosts is the most processes that ever lived at once, however many lives there are.
//! Who a process is never depends on its slot.
//!
//! turmoil gives each slot its own single-threaded tokio runtime with paused time and a seed of its own, and steps
//! them in an order that its seed draws. What crosses between processes is the world's, not turmoil's: its links are
//! for machines.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tokio::runtime::{Handle, Id};

use crate::world::{Key, World};

/// The hosts of one run.
pub(crate) struct Slots {
    sim: turmoil::Sim<'static>,
    /// What each slot's host runs when it is bounced next.
    jobs: Vec<Rc<RefCell<Option<Job>>>>,
    /// Slots without a process, the next one to use last.
    free: Vec<usize>,
    lives: BTreeMap<Key, usize>,
}

type Job = Pin<Box<dyn Future<Output = ()>>>;

impl Slots {
    pub(crate) fn new(seed: u64, tick: Duration) -> Self {
        let sim = turmoil::Builder::new()
            .rng_seed(seed)
            .epoch(UNIX_EPOCH)
            .tick_duration(tick)
            .simulation_duration(Duration::MAX)
            .enable_random_order()
            .build();
        IN_RUN.set(true);
        Self { sim, jobs: Vec::new(), free: Vec::new(), lives: BTreeMap::new() }
    }

    /// Starts a process in a free slot; its first step is the next one.
    pub(crate) fn start(&mut self, world: &Arc<World>, key: Key, main: impl Future<Output = ()> + 'static) {
        let world = Arc::clone(world);
        let job: Job = Box::pin(async move {
            RUNTIMES.with_borrow_mut(|runtimes| runtimes.push((Handle::current().id(), world, key)));
            main.await;
            // turmoil must not see the end: a host whose software has ended is not crashed any more, and what the
            // process had spawned would stay.
            pending::<()>().await;
        });
        let slot = self.free.pop().unwrap_or_else(|| self.add());
        *self.jobs[slot].borrow_mut() = Some(job);
        self.sim.bounce(name(slot));
        self.lives.insert(key, slot);
    }

    /// One step of every slot that has a process.
    pub(crate) fn step(&mut self) {
        let stepped = self.sim.step();
        // The software of a slot never fails, and turmoil's own limit is the end of time.
        stepped.expect("a step of turmoil has no way to fail");
    }

    /// Drops everything that a process has left: its tasks, in its own name, and its runtime.
    pub(crate) fn end(&mut self, world: &Arc<World>, key: Key) {
        let Some(slot) = self.lives.remove(&key) else { return };
        self.free.push(slot);
        RUNTIMES.with_borrow_mut(|runtimes| runtimes.retain(|(_, _, other)| *other != key));
        as_process(world, key, || self.sim.crash(name(slot)));
    }

    /// Every process that has a slot.
    pub(crate) fn living(&self) -> Vec<Key> {
        self.lives.keys().copied().collect()
    }

    /// How many hosts there are.
    pub(crate) fn hosts(&self) -> usize {
        self.jobs.len()
    }

    fn add(&mut self) -> usize {
        let slot = self.jobs.len();
        let job = Rc::new(RefCell::new(None::<Job>));
        let next = Rc::clone(&job);
        self.sim.host(name(slot), move || {
            let job = next.borrow_mut().take();
            async move {
                if let Some(job) = job {
                    job.await;
                }
                Ok(())
            }
        });
        self.jobs.push(job);
        slot
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        IN_RUN.set(false);
    }
}

/// The process that runs on this thread, found by its runtime: tasks that it spawned belong to it too.
pub(crate) fn current() -> Option<(Arc<World>, Key)> {
    if let Some(current) = CURRENT.with_borrow(Clone::clone) {
        return Some(current);
    }
    let runtime = Handle::try_current().ok()?.id();
    RUNTIMES.with_borrow(|runtimes| {
        let found = runtimes.iter().find(|(id, ..)| *id == runtime);
        found.map(|(_, world, key)| (Arc::clone(world), *key))
    })
}

/// Whether this thread is in a run.
pub(crate) fn in_run() -> bool {
    IN_RUN.get()
}

/// Runs `body` as this process: what its destructors log and what SQLite does in them belong to it.
fn as_process<R>(world: &Arc<World>, key: Key, body: impl FnOnce() -> R) -> R {
    struct Back(Option<(Arc<World>, Key)>);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _back = Back(CURRENT.replace(Some((Arc::clone(world), key))));
    body()
}

fn name(slot: usize) -> String {
    format!("slot-{slot}")
}

thread_local! {
    /// The process whose remains are being dropped.
    static CURRENT: RefCell<Option<(Arc<World>, Key)>> = const { RefCell::new(None) };
    /// Whose runtime is whose, of the living.
    static RUNTIMES: RefCell<Vec<(Id, Arc<World>, Key)>> = const { RefCell::new(Vec::new()) };
    static IN_RUN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
