//! What many adoptions in a row leave behind: nothing.
//!
//! One control server with one idle agent; every round ends the backend and starts it again. Every second round ends it
//! with SIGKILL as soon as it has the session, perhaps before the rotation was confirmed; the others wait for the
//! confirmation and end it with SIGTERM.

use std::process::Child;
use std::time::Instant;

use rustix::process::Signal;

use super::LIMIT;
use super::observed::{Observed, compare};
use crate::cargo::Failed;
use crate::processes::end;
use crate::stage::{SCRIPTED, Stage};
use crate::wait::wait_for;

pub(super) fn measure(stage: &Stage, rounds: u32) -> Result<(), Failed> {
    let mut backend = stage.start_backend()?;
    stage.wait_until_recovered(LIMIT)?;
    let session = stage.create_session(SCRIPTED, LIMIT)?;
    let (server, agent) = (stage.control_server()?, stage.agent_pid(&session));
    end(&mut backend, Signal::KILL)?;

    let start = Instant::now();
    let mut samples = Vec::new();
    let mut killed_early = 0;
    for round in 1..=rounds {
        let mut backend = adopt(stage, &session)
            .map_err(|failed| Failed(format!("round {round}: {failed}\n{}", stage.last_output())))?;
        let looked_at = LOOKED_AT.contains(&round) || round == rounds;
        let by_force = round % 2 == 1;
        if looked_at || !by_force {
            wait_for("the confirmation", LIMIT, || (secrets(stage) == 1).then_some(()))?;
        } else if secrets(stage) > 1 {
            killed_early += 1;
        }
        if looked_at {
            samples.push((round, Observed::take(stage, server)?));
        }
        end(&mut backend, if by_force { Signal::KILL } else { Signal::TERM })?;
    }
    let took = start.elapsed();
    let mut last = adopt(stage, &session)?;
    if stage.control_server()? != server || stage.agent_pid(&session) != agent {
        return Err(Failed("control server or agent is another one than at the beginning".to_owned()));
    }
    stage.tell(&["session", "stop", &session])?;
    end(&mut last, Signal::KILL)?;
    println!(
        "{rounds} adoptions of one server with one agent in {:.0} s, SIGKILL and SIGTERM in turn, {killed_early} killed before their rotation was confirmed:",
        took.as_secs_f64()
    );
    compare(&samples)
}

/// Starts a backend and waits until it has adopted the server and re-tracked the session.
fn adopt(stage: &Stage, session: &str) -> Result<Child, Failed> {
    let mut backend = stage.start_backend()?;
    let adoption = wait_for("the end of recovery", LIMIT, || match backend.try_wait() {
        Ok(Some(status)) => Some(format!("the backend ended ({status})")),
        Ok(None) | Err(_) => {
            let status = stage.get("/api/status").filter(|status| status["recovered"] == true)?;
            Some(status["adoption"].as_str().unwrap_or("nothing").to_owned())
        }
    })?;
    if adoption != "adopted" {
        return Err(Failed(format!("the server was not adopted: {adoption}")));
    }
    wait_for("re-tracking", LIMIT, || stage.session(session).filter(|view| view["tracked"] == true))?;
    Ok(backend)
}

/// The replacement is stored before the backend says that it has adopted; what it replaced goes once the server
/// accepts the confirmation. So one file means: confirmed.
fn secrets(stage: &Stage) -> usize {
    std::fs::read_dir(stage.home().join("secrets"))
        .map(|entries| entries.flatten().count())
        .unwrap_or_default()
}

/// The rounds after which everything is looked at, beside the last.
const LOOKED_AT: [u32; 4] = [10, 100, 500, 1000];
