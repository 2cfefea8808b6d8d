//! An upgrade and a downgrade with real processes: a backend of one build is killed while its agent is in mid-turn, and
//! one of the other build takes over the control server of the first.

use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::cargo::Failed;
use crate::earlier_build;
use crate::processes::{end, executable};
use crate::programs::Programs;
use crate::stage::{SCRIPTED, Stage, say};
use crate::transcript::require_whole;
use crate::wait::{catch_interrupt, check_interrupt, wait_for};

/// Adopts in both directions and fails unless both worked.
pub(crate) fn run(revision: &str) -> Result<(), Failed> {
    catch_interrupt()?;
    let earlier = earlier_build::of_revision(revision)?;
    let current = Programs::build("sim")?;
    let mut failures = Vec::new();
    for (from, to) in [(&earlier, &current), (&current, &earlier)] {
        let direction = format!("from {} to {}", from.name(), to.name());
        println!("\n{direction}");
        if let Err(failed) = Stage::with(from, |stage| take_over(stage, from, to)) {
            check_interrupt()?;
            println!("FAILED: {failed}");
            failures.push(direction);
        }
    }
    println!();
    if failures.is_empty() {
        println!("both directions adopt; nothing is left: no process, no file, no work tree");
        return Ok(());
    }
    Err(Failed(format!("no adoption {}", failures.join(", nor "))))
}

/// What is seen of the installation at one moment.
struct Seen {
    backend: String,
    server: String,
    server_program: String,
    agent: u64,
    adoption: String,
    chunks: usize,
}

fn take_over(stage: &mut Stage, from: &Programs, to: &Programs) -> Result<(), Failed> {
    let mut first = stage.start_backend()?;
    recovered(stage, &mut first)?;
    let session = stage.create_session(SCRIPTED, LIMIT)?;
    stage.tell(&["prompt", &session, &say(CHUNKS, CHUNK_BYTES, EVERY_MS)])?;
    wait_for("the first chunks", LIMIT, || (stage.chunks(&session).ok()?.len() > 10).then_some(()))?;
    let before = look(stage, &session, from)?;
    end(&mut first, Signal::KILL)?;

    stage.switch_to(to);
    let start = Instant::now();
    let mut second = stage.start_backend()?;
    let status = recovered(stage, &mut second)?;
    let took = start.elapsed();
    let view = stage.session(&session).unwrap_or_default();
    if status["adoption"] != "adopted" {
        return Err(refused(&status, &view));
    }
    let retracked = status["retracked"].as_array().is_some_and(|ids| ids.iter().any(|id| *id == session));
    if !retracked || view["tracked"] != true {
        return Err(Failed(format!("adopted, but the session is not re-tracked: {view}")));
    }
    let in_mid_turn = view["turn"]["state"] == "RUNNING";
    ended(stage, &session, 1)?;
    let after = look(stage, &session, to)?;
    print(&before, &after);
    println!("re-tracked {} ms after its start, in mid-turn: {in_mid_turn}", took.as_millis());
    judge(&before, &after, in_mid_turn)?;
    require_whole(&stage.chunks(&session)?, &[CHUNKS])?;

    // Whoever adopted also drives.
    stage.tell(&["prompt", &session, &say(MORE, CHUNK_BYTES, 0)])?;
    ended(stage, &session, 2)?;
    require_whole(&stage.chunks(&session)?, &[CHUNKS, MORE])?;
    println!(
        "the same agent and control server; the transcript is whole, in order and without duplicates; the next turn ran"
    );
    stage.tell(&["session", "stop", &session])?;
    end(&mut second, Signal::KILL)
}

/// Waits until recovery is complete; a backend that ends before says why.
fn recovered(stage: &Stage, backend: &mut Child) -> Result<Value, Failed> {
    let answer = wait_for("the end of recovery", LIMIT, || match backend.try_wait() {
        Ok(Some(status)) => Some(Err(status)),
        Ok(None) | Err(_) => stage.get("/api/status").filter(|status| status["recovered"] == true).map(Ok),
    })?;
    answer.map_err(|status| Failed(format!("the backend did not start ({status}):\n{}", stage.last_output())))
}

/// Waits until the session has ended so many turns.
fn ended(stage: &Stage, session: &str, turns: usize) -> Result<(), Failed> {
    wait_for(&format!("the end of turn {turns}"), LIMIT, || {
        let spoke = stage.chunks(session).ok()?.iter().any(|text| text.starts_with(&format!("{turns}.")));
        stage.session(session).filter(|view| spoke && view["turn"]["state"] == "COMPLETED")
    })
    .map(drop)
}

fn look(stage: &Stage, session: &str, backend: &Programs) -> Result<Seen, Failed> {
    let status = stage.get("/api/status").unwrap_or_default();
    let server = stage.control_server()?;
    let program = executable(server).unwrap_or_default();
    Ok(Seen {
        backend: backend.name().to_owned(),
        server: format!(
            "{} ({})",
            server.as_raw_nonzero(),
            status["server"]["origin"].as_str().unwrap_or("?")
        ),
        server_program: program.display().to_string(),
        agent: stage.agent_pid(session).unwrap_or_default(),
        adoption: status["adoption"].as_str().unwrap_or("nothing").to_owned(),
        chunks: stage.chunks(session)?.len(),
    })
}

fn print(before: &Seen, after: &Seen) {
    println!("                     {:>14} {:>14}", "before", "after");
    println!("backend's build      {:>14} {:>14}", before.backend, after.backend);
    println!("control server       {:>14} {:>14}", before.server, after.server);
    println!("agent process        {:>14} {:>14}", before.agent, after.agent);
    println!("chunks in transcript {:>14} {:>14}", before.chunks, after.chunks);
    println!("recorded server      {:>14} {:>14}", before.adoption, after.adoption);
    println!("control server's program all along: {}", after.server_program);
}

fn judge(before: &Seen, after: &Seen, in_mid_turn: bool) -> Result<(), Failed> {
    if before.agent != after.agent || before.agent == 0 {
        return Err(Failed(format!("the agent's process changed from {} to {}", before.agent, after.agent)));
    }
    if before.server_program != after.server_program {
        return Err(Failed(format!("another control server runs than {}", before.server_program)));
    }
    if !in_mid_turn {
        return Err(Failed(
            "the turn was over before the session was re-tracked: nothing is shown".to_owned(),
        ));
    }
    Ok(())
}

/// A refusal by name is a decision and no accident, if the session can go on after it; an adoption it is not.
fn refused(status: &Value, view: &Value) -> Failed {
    let reason = status["adoption"].as_str().unwrap_or("nothing");
    let state = view["state"].as_str().unwrap_or("unknown");
    let resumable = state == "IDLE" && view["provider_session"].is_string();
    let fate = match resumable {
        true => "it stays resumable, without the turn that was open".to_owned(),
        false => {
            let left = status["left"].as_array().map(Vec::as_slice).unwrap_or_default();
            let reasons: Vec<&str> = left.iter().filter_map(|named| named["reason"].as_str()).collect();
            format!("it is left as it is: {}", reasons.join("; "))
        }
    };
    Failed(format!("the recorded control server was refused: {reason}; the session is {state}: {fate}"))
}

/// What the agent says in the turn that the kill falls into: some six seconds, far longer than a restart.
const CHUNKS: usize = 120;
const CHUNK_BYTES: usize = 40;
const EVERY_MS: usize = 50;

/// What it says in the turn after that.
const MORE: usize = 5;

/// The bound of every wait: far above what a loaded machine needs.
const LIMIT: Duration = Duration::from_secs(60);
