//! Figures, each beside something that was measured in the same run on the same machine. Nothing here fails because
//! it was slow: a figure is for people to read.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cargo::Failed;
use crate::stage::{Stage, catch_interrupt, say, wait_for};

/// Measures everything and prints a line per figure.
pub(crate) fn run() -> Result<(), Failed> {
    catch_interrupt()?;
    let stage = Stage::build("release")?;
    let result = restart(&stage).and_then(|()| throughput(&stage));
    stage.clean_up();
    result
}

/// From the start of the backend's process until its session is re-tracked, beside the same program's bare start.
fn restart(stage: &Stage) -> Result<(), Failed> {
    let mut backend = stage.start_backend()?;
    stage.wait_until_recovered(LIMIT)?;
    let session = stage.create_session(LIMIT)?;
    let mut retracked = Vec::new();
    let mut bare = Vec::new();
    for _ in 0..ROUNDS {
        backend.kill().and_then(|()| backend.wait()).map_err(|error| Failed(error.to_string()))?;
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
    backend.kill().and_then(|()| backend.wait()).map_err(|error| Failed(error.to_string()))?;
    println!(
        "backend start to one session re-tracked: median {:.1} ms, slowest {:.1} ms of {ROUNDS} SIGKILLs (the program's bare start, `--help`: median {:.1} ms)",
        milliseconds(median(&mut retracked)),
        milliseconds(retracked.last().copied().unwrap_or_default()),
        milliseconds(median(&mut bare)),
    );
    Ok(())
}

/// Events a second from the agent's standard output to durable acknowledgement, beside the same agent's same bytes
/// through a plain pipe into a reader that parses each line as JSON.
fn throughput(stage: &Stage) -> Result<(), Failed> {
    let mut backend = stage.start_backend()?;
    stage.wait_until_recovered(LIMIT)?;
    let session = stage.create_session(LIMIT)?;
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
    backend.kill().and_then(|()| backend.wait()).map_err(|error| Failed(error.to_string()))?;
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

fn median(values: &mut [Duration]) -> Duration {
    values.sort();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn milliseconds(value: Duration) -> f64 {
    value.as_secs_f64() * 1e3
}

fn per_second(value: Duration) -> f64 {
    let events = u32::try_from(EVENTS).expect("the number of events is a small constant");
    f64::from(events) / value.as_secs_f64()
}

const ROUNDS: usize = 9;
const EVENTS: usize = 50_000;
const EVENT_BYTES: usize = 256;
const LIMIT: Duration = Duration::from_secs(120);
