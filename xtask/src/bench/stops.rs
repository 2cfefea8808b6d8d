//! How long a control server takes to stop many agents that all ignore SIGTERM: one grace period, not one each.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::LIMIT;
use crate::cargo::Failed;
use crate::processes::{end, is_running};
use crate::programs::Programs;
use crate::stage::{STUBBORN, Stage};
use crate::wait::wait_for;

/// Stops one, then many.
pub(super) fn measure(programs: &Programs, many: usize) -> Result<(), Failed> {
    let mut took = Vec::new();
    for count in [1, many] {
        took.push(Stage::with(programs, |stage| stop(stage, count))?);
    }
    println!(
        "{many} agents that ignore SIGTERM: {:.2} s from the order until controld has exited and no process is left (1 such agent: {:.2} s, ratio {:.2}; grace {} s)",
        took[1].as_secs_f64(),
        took[0].as_secs_f64(),
        took[1].as_secs_f64() / took[0].as_secs_f64(),
        GRACE.as_secs(),
    );
    if took[1] > took[0] + GRACE {
        return Err(Failed("stopping many took a grace period more than stopping one".to_owned()));
    }
    Ok(())
}

/// The order is SIGTERM to the control server, after its backend was killed: the server's own shutdown and nobody
/// else's, with nobody to start another.
fn stop(stage: &Stage, count: usize) -> Result<Duration, Failed> {
    let mut backend = stage.start_backend()?;
    stage.wait_until_recovered(LIMIT)?;
    for _ in 0..count {
        stage.create_session(STUBBORN, LIMIT)?;
    }
    let server = stage.control_server()?;
    end(&mut backend, Signal::KILL)?;
    let agents: Vec<Pid> = stage.processes().into_iter().filter(|pid| *pid != server).collect();
    if agents.len() != count {
        return Err(Failed(format!("{} of {count} agents run", agents.len())));
    }
    let start = Instant::now();
    rustix::process::kill_process(server, Signal::TERM)
        .map_err(|error| Failed(format!("the control server cannot be signalled: {error}")))?;
    wait_for("the control server's exit", LIMIT, || (!is_running(server)).then_some(()))?;
    let left = stage.processes();
    let took = start.elapsed();
    if !left.is_empty() {
        return Err(Failed(format!("{} processes outlived the control server: {left:?}", left.len())));
    }
    if took < GRACE {
        return Err(Failed(format!("the agents were gone after {took:?}: they did not ignore SIGTERM")));
    }
    Ok(took)
}

/// The control server's, between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
