//! Real processes: an agent in mid-turn, a backend that is killed with SIGKILL, and a new one that takes over.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cargo::Failed;
use crate::processes::end;
use crate::programs::Programs;
use crate::stage::{SCRIPTED, Stage, say};
use crate::transcript::require_whole;
use crate::wait::{catch_interrupt, wait_for};

/// Runs the demonstration, and cleans up whatever happens to it.
pub(crate) fn run() -> Result<(), Failed> {
    catch_interrupt()?;
    Stage::with(&Programs::build("sim")?, |stage| show(stage))?;
    println!("nothing is left: no process, no file");
    Ok(())
}

fn show(stage: &Stage) -> Result<(), Failed> {
    let mut backend = stage.start_backend()?;
    stage.wait_until_recovered(LIMIT)?;
    println!("backend {} serves, with the capability on", backend.id());
    let session = stage.create_session(SCRIPTED, LIMIT)?;
    let agent_before = stage.agent_pid(&session).unwrap_or_default();
    println!("session {session} has agent process {agent_before}");

    stage.tell(&["prompt", &session, &say(CHUNKS, 40, EVERY_MS)])?;
    println!("prompted: the agent says {CHUNKS} chunks, one every {EVERY_MS} ms");
    let before = wait_for("the first chunks", LIMIT, || {
        let count = stage.chunks(&session).ok()?.len();
        (count > 10).then_some(count)
    })?;
    end(&mut backend, Signal::KILL)?;
    println!("backend {} killed with SIGKILL, {before} chunks in its transcript", backend.id());

    let start = Instant::now();
    let mut second = stage.start_backend()?;
    wait_for("re-tracking", LIMIT, || {
        stage.session(&session).filter(|view| view["tracked"].as_bool() == Some(true))
    })?;
    let took = start.elapsed();
    println!("backend {} started: the session is re-tracked {} ms later", second.id(), took.as_millis());
    wait_for("the end of the turn", LIMIT, || {
        stage.session(&session).filter(|view| view["turn"]["state"] == "COMPLETED")
    })?;
    let agent_after = stage.agent_pid(&session).unwrap_or_default();
    let chunks = stage.chunks(&session)?;
    println!();
    println!("                         before      after");
    println!("agent process        {agent_before:>10} {agent_after:>10}");
    println!("chunks in transcript {before:>10} {:>10}", chunks.len());
    println!();
    judge(agent_before, agent_after, &chunks)?;
    stage.tell(&["session", "stop", &session])?;
    end(&mut second, Signal::KILL)
}

/// The two things that the demonstration is for.
fn judge(before: u64, after: u64, texts: &[String]) -> Result<(), Failed> {
    if before != after {
        return Err(Failed(format!("the agent's process changed from {before} to {after}")));
    }
    require_whole(texts, &[CHUNKS])?;
    println!("the same agent process all along; the transcript is whole, in order and without duplicates");
    Ok(())
}

/// How much the agent says in the demonstration's one turn, and how fast: about three seconds in all.
const CHUNKS: usize = 60;
const EVERY_MS: usize = 50;

/// The bound of every wait: far above what a loaded machine needs.
const LIMIT: Duration = Duration::from_secs(30);
