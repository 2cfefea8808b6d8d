//! Control servers that are killed, and survivors that cannot be adopted: no agent of theirs is ever met by a later one.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use crate::processes;
use crate::stage::{Stage, assert_says, binary, steps};

#[test]
fn a_killed_control_server_leaves_no_agent_that_a_resumed_session_could_meet() {
    for backend_dies_too in [false, true] {
        let stage = Stage::new();
        // Deaf to TERM and to the end of its input.
        let deaf = r#"{"ignore_stdin_end":true,"ignore_term":true}"#;
        let program = binary("scripted-agent");
        stage.configure(&format!(
            "[profiles.deaf]\ncommand = {program:?}\nenv = {{ SCRIPTED_AGENT = '{deaf}' }}\n"
        ));
        let backend = stage.serve();
        let session = stage.create("deaf");
        stage.session_in(&session, "WAITING_FOR_INPUT");
        let agent = stage.agent(&session);
        // With a child in a group of its own.
        stage.tell(&[
            "prompt",
            &session,
            &steps(json!([{ "spawn_grandchild": {} }, { "say": "begun" }, { "sleep_ms": 600_000 }])),
        ]);
        stage.until("the agent's words", || stage.said(&session).first().cloned());
        assert_eq!(1, entries(&stage).len(), "the agent is written down");
        if backend_dies_too {
            backend.kill();
            kill(stage.controld().unwrap());
            assert!(processes::runs(agent), "it lives on without anybody");
            let _backend = stage.serve();
            ended_and_resumed(&stage, &session, agent);
        } else {
            kill(stage.controld().unwrap());
            ended_and_resumed(&stage, &session, agent);
            drop(backend);
        }
    }
}

fn ended_and_resumed(stage: &Stage, session: &str, agent: u32) {
    let view = stage.session_in(session, "IDLE");
    assert!(!processes::runs(agent), "it was ended before anything was said about its session");
    assert_eq!("INTERRUPTED", view["turn"]["state"]);
    assert_eq!(Vec::<String>::new(), entries(stage), "nothing is left to look for");
    stage.until("another control server", || {
        stage.get("/api/status").filter(|status| !status["server"].is_null())
    });
    stage.tell(&["session", "resume", session]);
    let again = stage.agent(session);
    assert_ne!(agent, again);
    stage.tell(&["prompt", session, "hello"]);
    stage.turn_in(session, "COMPLETED");
    let running = stage.processes().into_iter().filter(|pid| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.windows(14).any(|word| word == b"scripted-agent"))
    });
    assert_eq!(vec![again], running.collect::<Vec<_>>(), "one agent, and nothing of the first one");
}

#[test]
fn a_survivor_whose_credential_was_lost_is_left_alone_and_its_session_waits_for_its_end() {
    let stage = Stage::new();
    let backend = stage.serve();
    let (session, agent) = stage.ready_session();
    let survivor = stage.controld().unwrap();
    backend.kill();
    let secret = fs::read_dir(stage.home.join("secrets")).unwrap().next().unwrap().unwrap().path();
    fs::write(&secret, "what is left of it").unwrap();

    let _backend = stage.serve();
    let status = stage.status_text();
    assert_says(
        &status,
        &["adoption   credential_unavailable", "survivor", "was left running", "it ends by itself before"],
    );
    assert_eq!([survivor, agent].map(processes::runs), [true, true]);
    let refused = stage.run(&["session", "resume", &session]);
    assert_eq!(1, refused.code);
    assert_says(&refused.err, &["may still run", "--beside-survivor", "(survivor)"]);
    assert_eq!(
        "what is left of it",
        fs::read_to_string(&secret).unwrap(),
        "it is neither deleted nor overwritten"
    );
    // Whoever knows better ends it, or does not wait for its end.
    processes::signal(survivor, Signal::TERM);
    stage.session_in(&session, "IDLE");
    stage.tell(&["session", "resume", &session]);
    assert!(!processes::runs(agent) && stage.agent(&session) != agent);
    stage.until("the lost secret's end", || (!secret.exists()).then_some(()));
    assert!(!stage.status_text().contains("survivor"));
}

#[test]
fn a_session_may_be_resumed_beside_a_survivor_by_whoever_asks_for_it() {
    let stage = Stage::new();
    let backend = stage.serve();
    let (session, agent) = stage.ready_session();
    backend.kill();
    let secret = fs::read_dir(stage.home.join("secrets")).unwrap().next().unwrap().unwrap().path();
    fs::write(&secret, "what is left of it").unwrap();
    let _backend = stage.serve();
    stage.tell(&["session", "resume", &session, "--beside-survivor"]);
    assert!(processes::runs(agent) && stage.agent(&session) != agent);
    assert_says(
        &stage.notices(&session).join("\n"),
        &["beside a control server that may still run its agent"],
    );
}

fn entries(stage: &Stage) -> Vec<String> {
    let entries = fs::read_dir(stage.home.join("run/agents")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn kill(pid: u32) {
    processes::signal(pid, Signal::KILL);
}
