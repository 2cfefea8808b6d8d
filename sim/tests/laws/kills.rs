//! Law 3: a kill falls before or after an effect, anywhere between any two, and the dead have no effect.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use seam::{Disk, ExitStatus, Privacy, Signal};
use sim::{Fault, Kind, Plan, Program, Side, Start, Violation};
use tracing::info;

use crate::support::{Story, effects, grain, logged};

/// Writes a file when dropped: what a destructor must never do, and what must not happen to the dead.
struct WritesWhenDropped(Arc<dyn Disk>);

impl Drop for WritesWhenDropped {
    fn drop(&mut self) {
        let mut writing = self.0.write_atomic(Path::new("/data/from-a-destructor"), b"x", Privacy::Owner);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        // A few polls: as many as such a call yields to others before it has its effect.
        let _done = (0..10).any(|_| writing.as_mut().poll(&mut cx).is_ready());
        info!("destroyed");
    }
}

fn worker() -> Program {
    Program::new("worker", |process| async move {
        let disk = &process.seams.disk;
        let _guard = WritesWhenDropped(Arc::clone(disk));
        disk.create_directory(Path::new("/data/a"), Privacy::Owner).await.unwrap();
        let _lock = disk.lock(Path::new("/data/a/lock"), "worker").await;
        disk.write_atomic(Path::new("/data/a/one"), b"1", Privacy::Owner).await.unwrap();
        disk.append(Path::new("/data/a/log"), b"line\n", Privacy::Owner).await.unwrap();
        disk.rename(Path::new("/data/a/one"), Path::new("/data/a/two")).await.unwrap();
        process.seams.secrets.store("server-1", b"secret").await.unwrap();
        let listener = process.seams.network.listen("127.0.0.1:5000".parse().unwrap()).await.unwrap();
        std::mem::forget(listener);
        disk.remove(Path::new("/data/a/two")).await.unwrap();
        0
    })
}

fn story(plan: Plan) -> Story {
    Story::new([worker()], |director| async move {
        let mut started = director.start(Start::new("worker")).await.unwrap();
        let status = started.exit().await.unwrap();
        director.note("exit", [("status", status.to_string())]);
        director.sleep(Duration::from_secs(1)).await;
        Ok(())
    })
    .planned(plan)
}

#[test]
fn a_kill_falls_between_any_two_effects_and_destructors_have_none() {
    let whole = effects(&story(grain(5)).passes(1), "worker");
    let before_exit =
        whole.iter().position(|effect| effect == "disk.remove").expect("the last thing it does") + 1;
    for ordinal in 1..=before_exit {
        for side in [Side::Before, Side::After] {
            let kill = Fault::Kill { process: "worker".into(), life: 1, effect: ordinal as u64, side };
            let report = story(grain(5).with(kill)).passes(1);
            let left = if side == Side::Before { ordinal - 1 } else { ordinal };
            assert_eq!(effects(&report, "worker"), whole[..left], "killed {side:?} effect {ordinal}");
            assert!(logged(&report, "worker", "destroyed").is_empty(), "the dead say nothing");
            let exit = report.lines.iter().find(|line| line.text == "exit").unwrap();
            assert_eq!(exit.field("status"), ExitStatus::Signal(9).to_string());
            assert_eq!(report.faults["kill"].bitten, 1);
        }
    }
}

#[test]
fn a_kill_from_outside_frees_locks_and_ports_and_nothing_runs_afterwards() {
    let holder = Program::new("holder", |process| async move {
        let _lock = process.seams.disk.lock(Path::new("/data/lock"), "held").await;
        let _listener = process.seams.network.listen("127.0.0.1:5000".parse().unwrap()).await.unwrap();
        info!("holds");
        loop {
            process.seams.clock.sleep(Duration::from_millis(3)).await;
            info!("lives");
        }
    });
    let story = Story::new([holder], |director| async move {
        let mut started = director.start(Start::new("holder")).await.unwrap();
        director.wait_for("holds", Duration::from_secs(5), |line| line.text == "holds").await?;
        let port = "127.0.0.1:5000".parse().unwrap();
        let taken = director.seams.network.listen(port).await.err().unwrap();
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
        assert!(director.seams.disk.lock(Path::new("/data/lock"), "mine").await.is_err());
        assert!(director.kill(&started.identity).await);
        let mark = director.mark();
        assert_eq!(started.exit().await.unwrap(), ExitStatus::Signal(9));
        director.seams.network.listen(port).await.unwrap();
        assert!(director.seams.disk.lock(Path::new("/data/lock"), "mine").await.is_ok());
        director.sleep(Duration::from_secs(1)).await;
        let after = director
            .look(|world| world.lines()[mark..].iter().filter(|line| line.program() == "holder").count());
        director.require(after == 0, "the dead do nothing", format!("{after} lines"))
    });
    for seed in 0..20 {
        story.passes(seed);
    }
}

#[test]
fn panics_of_the_dead_count_for_nothing_and_those_of_the_living_end_the_run() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    let fragile = Program::new("fragile", |process| async move {
        let _guard = Panics;
        process.seams.clock.sleep(Duration::from_secs(1000)).await;
        0
    });
    let broken = Program::new("broken", |process| async move {
        process.seams.clock.sleep(Duration::from_millis(1)).await;
        panic!("out of order");
    });
    let story = Story::new([fragile, broken], |director| async move {
        let fragile = director.start(Start::new("fragile")).await.unwrap();
        director.sleep(Duration::from_millis(100)).await;
        director.kill(&fragile.identity).await;
        director.sleep(Duration::from_millis(100)).await;
        director.note("fragile is dead", []);
        director.start(Start::new("broken")).await.unwrap();
        director.sleep(Duration::from_secs(100)).await;
        Ok(())
    });
    let report = story.run(1);
    assert!(report.lines.iter().any(|line| line.text == "fragile is dead"));
    let Violation { invariant, seen, .. } = report.outcome.unwrap_err().violation;
    assert_eq!(invariant, "no-panic");
    assert!(seen.contains("broken#1") && seen.contains("out of order"), "{seen}");
}

#[test]
fn a_termination_ends_who_did_not_ask_to_be_told() {
    let deaf = Program::new("deaf", |process| async move {
        process.seams.clock.sleep(Duration::from_secs(1000)).await;
        0
    });
    let polite = Program::new("polite", |process| async move {
        let signal = process.seams.processes.stop_requested().await;
        u8::from(signal == Signal::Terminate)
    });
    let story = Story::new([deaf, polite], |director| async move {
        for (program, expected) in [("deaf", ExitStatus::Signal(15)), ("polite", ExitStatus::Code(1))] {
            let mut started = director.start(Start::new(program)).await.unwrap();
            director.sleep(Duration::from_millis(100)).await;
            assert!(director.signal(&started.identity, Signal::Terminate).await);
            assert_eq!(started.exit().await.unwrap(), expected);
        }
        Ok(())
    });
    let report = story.passes(4);
    assert_eq!(
        report.lines.iter().filter(|line| line.kind == Kind::Process && line.text == "ended").count(),
        2
    );
}
