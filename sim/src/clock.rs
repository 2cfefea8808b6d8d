//! The small seams: Clock, Entropy, Blocking and HostFacts.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use seam::{Blocking, BoxFuture, Clock, Entropy, HostFacts, Monotonic, Seams, Wall};

use crate::disk::SimDisk;
use crate::network::SimNetwork;
use crate::processes::SimProcesses;
use crate::secrets::SimSecrets;
use crate::seed::Rng;
use crate::world::{Key, World, Yields};

/// All seams of one process.
pub(crate) fn seams(world: &Arc<World>, key: Key) -> Seams {
    let here = || Arc::clone(world);
    let draws = {
        let state = world.lock();
        state.streams.stream(&format!("entropy {}", state.label(key)))
    };
    Seams {
        clock: Arc::new(SimClock { world: here(), key }),
        entropy: Arc::new(SimEntropy(Mutex::new(draws))),
        network: Arc::new(SimNetwork { world: here(), key }),
        processes: Arc::new(SimProcesses { world: here(), key }),
        disk: Arc::new(SimDisk { world: here(), key }),
        secrets: Arc::new(SimSecrets { world: here(), key }),
        blocking: Arc::new(SimBlocking { world: here(), key }),
        host: Arc::new(SimHost { world: here(), key }),
    }
}

/// Time of the world; the same for everybody during a step.
struct SimClock {
    world: Arc<World>,
    key: Key,
}

impl SimClock {
    /// The world's time. Counted as a call, so that a loop that only looks at the clock is found out.
    fn now_ms(&self, call: &'static str) -> u64 {
        let mut state = self.world.lock();
        let _what_the_dead_see_matters_to_nobody = state.count_call(self.key, call);
        let (now, runaway) = (state.now_ms(), state.runaway());
        drop(state);
        // There is no other way out of a loop that never awaits.
        assert!(!runaway || std::thread::panicking(), "nobody goes on for ever at one instant");
        now
    }
}

impl Clock for SimClock {
    fn monotonic(&self) -> Monotonic {
        Monotonic::from_origin(Duration::from_millis(UPTIME_MS + self.now_ms("clock.monotonic")))
    }

    fn wall(&self) -> Wall {
        Wall { unix_millis: EPOCH_MS + self.now_ms("clock.wall") }
    }

    fn sleep_until(&self, until: Monotonic) -> BoxFuture<'static, ()> {
        let ms = until.since_origin().as_nanos().div_ceil(1_000_000);
        let ms = u64::try_from(ms).unwrap_or(u64::MAX).saturating_sub(UPTIME_MS);
        let (world, key) = (Arc::clone(&self.world), self.key);
        Box::pin(async move {
            let counted = {
                let mut state = world.lock();
                let tick = state.tick_of_ms(ms);
                state.count_call(key, "clock.sleep").map(|()| tick)
            };
            let Ok(tick) = counted else { return pending().await };
            world.sleep_until_tick(key, tick).await;
        })
    }

    fn yield_now(&self) -> BoxFuture<'static, ()> {
        let (world, key) = (Arc::clone(&self.world), self.key);
        Box::pin(async move {
            let counted = {
                let mut state = world.lock();
                state.count_call(key, "clock.yield_now").map(|()| state.draw_yields())
            };
            let Ok(yields) = counted else { return pending().await };
            // Once by contract, the rest by seed.
            Yields(1 + yields).await;
        })
    }
}

/// A stream of the seed for each life of each program.
struct SimEntropy(Mutex<Rng>);

impl Entropy for SimEntropy {
    fn fill(&self, buffer: &mut [u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(buffer);
    }
}

/// Work runs at once, inside the call: the world stands still meanwhile.
struct SimBlocking {
    world: Arc<World>,
    key: Key,
}

impl Blocking for SimBlocking {
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let (world, key) = (Arc::clone(&self.world), self.key);
        let alive = world.lock().count_call(key, "blocking.run").is_ok();
        if alive {
            work();
        }
        Box::pin(async move {
            // A kill in the midst of the work is a kill: its result reaches nobody.
            world.turn(key, "blocking.done").await;
        })
    }
}

/// What the process was started with.
struct SimHost {
    world: Arc<World>,
    key: Key,
}

impl HostFacts for SimHost {
    fn arguments(&self) -> Vec<String> {
        self.world.lock().processes[&self.key].args.clone()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        self.world.lock().processes[&self.key].env.clone()
    }

    fn executable(&self) -> Option<PathBuf> {
        Some(self.world.lock().processes[&self.key].executable.clone())
    }

    fn operating_system(&self) -> &'static str {
        "linux"
    }
}

/// How long the machine had been up when the run began: nobody may take the monotonic clock's origin for it.
const UPTIME_MS: u64 = 82_000;

/// When every run begins, on the wall clock: a fixed day, so that records are the same in every run.
pub(crate) const EPOCH_MS: u64 = 1_767_225_600_000;
