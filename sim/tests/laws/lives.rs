//! Law 1: a process costs nothing while it has nothing to do, and nothing after its end.

use std::collections::BTreeSet;
use std::time::Duration;

use sim::{Kind, Program, Start};

use crate::support::{Story, grain};

fn short_life() -> Program {
    Program::new("short", |process| async move {
        process.seams.clock.sleep(Duration::from_millis(20)).await;
        0
    })
}

fn idler() -> Program {
    Program::new("idler", |process| async move {
        process.seams.clock.sleep(Duration::from_secs(100_000)).await;
        0
    })
}

fn lives(count: u64) -> Story {
    Story::new([short_life()], move |director| async move {
        for _ in 0..count {
            let mut started = director.start(Start::new("short")).await.unwrap();
            started.exit().await.unwrap();
        }
        Ok(())
    })
    .planned(grain(1))
}

#[test]
fn the_hundredth_life_takes_no_more_steps_than_the_first() {
    let (ten, hundred) = (lives(10).passes(1), lives(100).passes(1));
    assert_eq!(ten.hosts, hundred.hosts, "a life must not need a host of its own");
    let (ten, hundred) = (ten.steps, hundred.steps);
    assert!(hundred <= ten * 11, "ten lives took {ten} steps, a hundred took {hundred}");
}

#[test]
fn processes_with_nothing_to_do_take_no_steps() {
    let story = Story::new([idler()], |director| async move {
        for _ in 0..30 {
            director.start(Start::new("idler")).await.unwrap();
        }
        director.sleep(Duration::from_secs(50)).await;
        Ok(())
    });
    let report = story.planned(grain(1)).passes(1);
    assert!(report.simulated_ms >= 50_000);
    assert!(report.steps < 200, "{} steps for 30 starts and one sleep", report.steps);
}

#[test]
fn a_pid_is_used_again_and_an_identity_never_is() {
    let report = lives(100).passes(3);
    let identities: Vec<&str> = report
        .lines
        .iter()
        .filter(|line| line.kind == Kind::Process && line.text == "started" && line.program() == "short")
        .map(|line| line.field("pid"))
        .collect();
    let pids: BTreeSet<&str> =
        identities.iter().map(|identity| identity.split('@').next().unwrap()).collect();
    assert_eq!(identities.iter().collect::<BTreeSet<_>>().len(), 100);
    assert!(pids.len() < 60, "{} pids for 100 lives", pids.len());
}
