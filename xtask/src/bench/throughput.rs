//! How fast an agent's events become durable.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::LIMIT;
use crate::cargo::Failed;
use crate::processes::end;
use crate::stage::{SCRIPTED, Stage, say};
use crate::wait::wait_for;

/// Events a second from the agent's standard output to durable acknowledgement, beside the same agent's same bytes
/// through a plain pipe into a reader that parses each line as JSON.
pub(super) fn measure(stage: &Stage) -> Result<(), Failed> {
    let mut backend = stage.start_backend()?;
    stage.wait_until_recovered(LIMIT)?;
    let session = stage.create_session(SCRIPTED, LIMIT)?;
    let start = Instant::now();
    stage.tell(&["prompt", &session, &say(EVENTS, EVENT_BYTES, 0)])?;
    wait_for("the end of the turn", LIMIT, || {
        stage.session(&session).filter(|view| view["turn"]["state"] == "COMPLETED")
    })?;
    let durable = start.elapsed();
    let stored = stage.chunks(&session)?.len();
    if stored != EVENTS {
        return Err(Failed(format!("{stored} of {EVENTS} events are in the transcript")));
    }
    stage.tell(&["session", "stop", &session])?;
    end(&mut backend, Signal::KILL)?;
    let plain = plain_pipe(stage)?;
    println!(
        "{EVENTS} events of {EVENT_BYTES} bytes, agent stdout to durable acknowledgement: {:.0} events/s (plain pipe with JSON parse, same agent: {:.0} events/s, ratio {:.2})",
        per_second(durable),
        per_second(plain),
        plain.as_secs_f64() / durable.as_secs_f64(),
    );
    Ok(())
}

fn plain_pipe(stage: &Stage) -> Result<Duration, Failed> {
    let failed = |error: std::io::Error| Failed(format!("the scripted agent on a plain pipe: {error}"));
    let mut agent = Command::new(stage.binary("scripted-agent"))
        .current_dir(stage.workspace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut input = agent.stdin.take().expect("the agent's input is piped");
    let mut lines = BufReader::new(agent.stdout.take().expect("the agent's output is piped"));
    let mut ask =
        |id: u32, method: &str, params: serde_json::Value| -> Result<(serde_json::Value, usize), Failed> {
            let request =
                serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
            writeln!(input, "{request}").map_err(failed)?;
            let mut between = 0;
            let mut line = String::new();
            loop {
                line.clear();
                if lines.read_line(&mut line).map_err(failed)? == 0 {
                    return Err(Failed("the scripted agent ended its output".to_owned()));
                }
                let message: serde_json::Value =
                    serde_json::from_str(&line).map_err(|error| Failed(format!("not JSON: {error}")))?;
                if message["id"] == id {
                    return Ok((message["result"].clone(), between));
                }
                between += 1;
            }
        };
    ask(1, "initialize", serde_json::json!({ "protocolVersion": 1, "clientCapabilities": {} }))?;
    let folder = stage.workspace().display().to_string();
    let (session, _) = ask(2, "session/new", serde_json::json!({ "cwd": folder, "mcpServers": [] }))?;
    let text = say(EVENTS, EVENT_BYTES, 0);
    let prompt = serde_json::json!({ "sessionId": session["sessionId"], "prompt": [{ "type": "text", "text": text }] });
    let start = Instant::now();
    let (_, events) = ask(3, "session/prompt", prompt)?;
    let took = start.elapsed();
    drop(input);
    agent.wait().map_err(failed)?;
    if events < EVENTS {
        Err(Failed(format!("the plain pipe carried {events} of {EVENTS} events")))
    } else {
        Ok(took)
    }
}

fn per_second(value: Duration) -> f64 {
    let events = u32::try_from(EVENTS).expect("the number of events is a small constant");
    f64::from(events) / value.as_secs_f64()
}

const EVENTS: usize = 50_000;
const EVENT_BYTES: usize = 256;
