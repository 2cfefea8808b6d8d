//! How long a restart takes.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{LIMIT, milliseconds};
use crate::cargo::Failed;
use crate::processes::end;
use crate::stage::{SCRIPTED, Stage};
use crate::wait::wait_for;

/// From the start of the backend's process until its session is re-tracked, beside the same program's bare start.
pub(super) fn measure(stage: &Stage) -> Result<(), Failed> {
    let mut backend = stage.start_backend()?;
    stage.wait_until_recovered(LIMIT)?;
    let session = stage.create_session(SCRIPTED, LIMIT)?;
    let mut retracked = Vec::new();
    let mut bare = Vec::new();
    for _ in 0..ROUNDS {
        end(&mut backend, Signal::KILL)?;
        let start = Instant::now();
        stage.tell(&["--help"])?;
        bare.push(start.elapsed());
        let start = Instant::now();
        backend = stage.start_backend()?;
        wait_for("re-tracking", LIMIT, || {
            stage.session(&session).filter(|view| view["tracked"].as_bool() == Some(true))
        })?;
        retracked.push(start.elapsed());
    }
    stage.tell(&["session", "stop", &session])?;
    end(&mut backend, Signal::KILL)?;
    println!(
        "backend start to one session re-tracked: median {:.1} ms, slowest {:.1} ms of {ROUNDS} SIGKILLs (the program's bare start, `--help`: median {:.1} ms)",
        milliseconds(median(&mut retracked)),
        milliseconds(retracked.last().copied().unwrap_or_default()),
        milliseconds(median(&mut bare)),
    );
    Ok(())
}

fn median(values: &mut [Duration]) -> Duration {
    values.sort();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

const ROUNDS: usize = 9;
