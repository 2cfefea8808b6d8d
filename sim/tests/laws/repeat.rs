//! The same seed gives the same trace, and another seed another one.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use seam::{Privacy, Stdio, random_hex};
use sim::{Job, Program, Start, run_many};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tracing::info;

use crate::support::Story;

/// A bit of everything.
fn busy() -> Program {
    Program::new("busy", |process| async move {
        let mut stdio = process.seams.processes.own_stdio();
        let id = random_hex(process.seams.entropy.as_ref(), 8);
        info!(%id, "begins");
        for round in 0..20_u64 {
            let path = format!("/data/{}", round % 3);
            process.seams.disk.append(Path::new(&path), &[0; 10], Privacy::Owner).await.unwrap();
            stdio.stdout.write_all(id.as_bytes()).await.unwrap();
            process.seams.clock.sleep(Duration::from_millis(round % 4)).await;
        }
        0
    })
}

fn story() -> Story {
    Story::new([busy()], |director| async move {
        let pause = director.draw(|rng| rng.below(50));
        let mut first = director.start(Start::new("busy").stdio(Stdio::Piped)).await.unwrap();
        let second = director.start(Start::new("busy").stdio(Stdio::Null)).await.unwrap();
        director.sleep(Duration::from_millis(pause)).await;
        director.kill(&second.identity).await;
        let mut all = Vec::new();
        first.stdout.take().unwrap().read_to_end(&mut all).await.unwrap();
        director.require(all.len() == 320, "everything that was written", format!("{} bytes", all.len()))
    })
}

#[test]
fn a_seed_means_one_trace() {
    for seed in 0..10 {
        let (one, other) = (story().passes(seed), story().passes(seed));
        assert_eq!(one.hash, other.hash);
        assert_eq!(one.lines, other.lines);
    }
}

#[test]
fn nearly_every_seed_is_another_trace() {
    let hashes: BTreeSet<String> = (0..100).map(|seed| story().passes(seed).hash).collect();
    assert!(hashes.len() >= 99, "{} of 100", hashes.len());
}

#[test]
fn sealed_threads_give_the_same_traces_as_any_other() {
    let scenario: Arc<dyn sim::Scenario> = Arc::new(story());
    let jobs = (0..10).map(|seed| Job { scenario: Arc::clone(&scenario), seed, plan: None });
    let mut seen = 0;
    run_many(jobs, 2, |report| {
        assert_eq!(report.hash, story().passes(report.seed).hash);
        seen += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(seen, 10);
}
