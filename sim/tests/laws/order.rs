//! Law 5, first half: the order of ready tasks is decided by the seed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sim::{Program, Start};
use tracing::info;

use crate::support::{Story, grain, logged};

/// Four tasks of one process that become ready at the same instant.
fn four() -> Program {
    Program::new("four", |process| async move {
        let order = Arc::new(Mutex::new(String::new()));
        let tasks: Vec<_> = (0..4)
            .map(|number| {
                let (order, clock) = (Arc::clone(&order), Arc::clone(&process.seams.clock));
                tokio::spawn(async move {
                    clock.sleep(Duration::from_millis(10)).await;
                    order.lock().unwrap().push_str(&number.to_string());
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        info!(order = %order.lock().unwrap(), "ran");
        0
    })
}

#[test]
fn four_ready_tasks_run_in_nearly_every_order() {
    let story = Story::new([four()], |director| async move {
        let mut started = director.start(Start::new("four")).await.unwrap();
        started.exit().await.unwrap();
        Ok(())
    })
    .planned(grain(5));
    let orders: BTreeSet<String> = (0..200)
        .map(|seed| {
            let report = story.passes(seed);
            logged(&report, "four", "ran")[0].field("order").to_owned()
        })
        .collect();
    assert!(orders.len() >= 20, "{} of 24 orders: {orders:?}", orders.len());
}

#[test]
fn two_processes_that_wake_at_one_instant_run_in_either_order() {
    let racer = |name: &'static str| {
        Program::new(name, |process| async move {
            let now = process.seams.clock.monotonic().since_origin().as_millis();
            let next = u64::try_from(now).unwrap() / 1000 * 1000 + 1000;
            let until = seam::Monotonic::from_origin(Duration::from_millis(next));
            process.seams.clock.sleep_until(until).await;
            info!("goes");
            0
        })
    };
    let story = Story::new([racer("left"), racer("right")], |director| async move {
        director.start(Start::new("left")).await.unwrap();
        let mut right = director.start(Start::new("right")).await.unwrap();
        right.exit().await.unwrap();
        director.sleep(Duration::from_secs(1)).await;
        Ok(())
    });
    let first: BTreeSet<String> = (0..40)
        .map(|seed| {
            let report = story.passes(seed);
            report.lines.iter().find(|line| line.text == "goes").unwrap().program().to_owned()
        })
        .collect();
    assert_eq!(first.len(), 2, "always {first:?} first");
}
