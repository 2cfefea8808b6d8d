//! Law 2: nobody reads the future.

use std::path::Path;
use std::time::Duration;

use seam::{Privacy, Stdio};
use sim::{Program, RunReport, Start};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tracing::info;

use crate::support::{Story, logged};

const ROUNDS: u8 = 50;

/// Says what it writes before it writes it: into its output, and at the end of a file.
fn writer() -> Program {
    Program::new("writer", |process| async move {
        let mut stdio = process.seams.processes.own_stdio();
        for round in 1..=ROUNDS {
            info!(round, "writes");
            stdio.stdout.write_all(&[round]).await.unwrap();
            process.seams.disk.append(Path::new("/data/log"), &[round], Privacy::Owner).await.unwrap();
            process.seams.clock.sleep(Duration::from_millis(u64::from(round % 7))).await;
        }
        0
    })
}

/// Says what it has read from the file.
fn reader() -> Program {
    Program::new("reader", |process| async move {
        loop {
            let read = process.seams.disk.read(Path::new("/data/log"), 1000).await.unwrap_or_default();
            info!(round = read.len(), "read");
            if read.len() == usize::from(ROUNDS) {
                return 0;
            }
            process.seams.clock.sleep(Duration::from_millis(1)).await;
        }
    })
}

fn hammer(seed: u64) -> RunReport {
    Story::new([writer(), reader()], |director| async move {
        let mut reader = director.start(Start::new("reader")).await.unwrap();
        let mut writer = director.start(Start::new("writer").stdio(Stdio::Piped)).await.unwrap();
        let mut stdout = writer.stdout.take().unwrap();
        for _ in 0..ROUNDS {
            let round = stdout.read_u8().await.unwrap();
            director.note("received", [("round", round.to_string())]);
        }
        reader.exit().await.unwrap();
        Ok(())
    })
    .passes(seed)
}

#[test]
fn what_comes_through_a_pipe_was_written_at_an_earlier_instant() {
    for seed in 0..20 {
        let report = hammer(seed);
        let written = logged(&report, "writer", "writes");
        let received: Vec<_> = report.lines.iter().filter(|line| line.text == "received").collect();
        assert_eq!(received.len(), usize::from(ROUNDS));
        for (written, received) in written.iter().zip(&received) {
            assert_eq!(written.field("round"), received.field("round"));
            assert!(written.time_ms + report.plan.tick_ms <= received.time_ms, "{written}\n{received}");
        }
    }
}

#[test]
fn a_file_never_holds_what_nobody_has_written_yet() {
    for seed in 0..20 {
        let report = hammer(seed);
        let mut written = 0;
        for line in &report.lines {
            if line.logged("writer", "writes") {
                written = line.field("round").parse().unwrap();
            } else if line.logged("reader", "read") {
                let read: u64 = line.field("round").parse().unwrap();
                assert!(read <= written, "{read} read, {written} written: {line}");
            }
        }
    }
}

#[test]
fn the_times_of_a_trace_never_run_backwards() {
    for seed in 0..20 {
        let report = hammer(seed);
        assert!(report.lines.is_sorted_by_key(|line| (line.time_ms, line.ordinal)));
    }
}
