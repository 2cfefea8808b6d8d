//! Law 5, second half: a hang ends in a report that names the seed and who hangs.

use std::time::Duration;

use sim::{Program, RunReport, Start};

use crate::support::Story;

fn hang(program: Program) -> RunReport {
    let name = program.name.clone();
    let report = Story::new([program], move |director| {
        let name = name.clone();
        async move {
            director.start(Start::new(name)).await.unwrap();
            director.sleep(Duration::from_secs(1)).await;
            Ok(())
        }
    })
    .run(7);
    let printed = sim::timeline::failure(&report);
    assert!(printed.contains("cargo xtask sim story --seed 7"), "{printed}");
    report
}

#[test]
fn a_loop_that_only_yields_ends_in_a_report() {
    let report = hang(Program::new("yielder", |process| async move {
        loop {
            process.seams.clock.yield_now().await;
        }
    }));
    let violation = report.outcome.unwrap_err().violation;
    assert_eq!(violation.invariant, "progress");
    assert!(violation.seen.contains("yielder#1 clock.yield_now"), "{}", violation.seen);
}

#[test]
fn a_loop_that_only_looks_at_the_clock_ends_in_a_report() {
    let report = hang(Program::new("looker", |process| async move {
        while process.seams.clock.monotonic().since_origin() < Duration::MAX {}
        0
    }));
    let violation = report.outcome.unwrap_err().violation;
    assert_eq!(violation.invariant, "progress");
    assert!(violation.seen.contains("looker#1 clock.monotonic"), "{}", violation.seen);
}

#[test]
fn a_scenario_that_waits_for_ever_ends_at_its_limit() {
    let report = Story::new([], |_director| std::future::pending()).run(1);
    assert_eq!(report.outcome.unwrap_err().violation.invariant, "converges");
}
