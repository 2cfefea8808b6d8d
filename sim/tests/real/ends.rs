//! How backends and control servers end, and what of the agents.

use serde_json::json;

use crate::processes;
use crate::stage::{Stage, assert_says, steps};
use rustix::process::Signal;

#[test]
fn sigterm_with_the_capability_on_leaves_agent_and_server_running() {
    let stage = Stage::new();
    let backend = stage.serve();
    let (session, agent) = stage.ready_session();
    let controld = stage.controld().unwrap();
    stage.tell(&["prompt", &session, &long_turn()]);
    stage.permission(&session);
    assert_eq!(0, backend.terminate());
    assert!(!stage.home.join("run/backend.json").exists(), "whoever asks is told that no backend runs");
    assert_eq!([controld, agent].map(processes::runs), [true, true]);
    assert_eq!(2, stage.processes().len());

    let _backend = stage.serve();
    let permission = stage.permission(&session);
    stage.tell(&["permission", &session, &permission, "allow_once"]);
    stage.turn_in(&session, "COMPLETED");
    assert_eq!((Some(controld), agent), (stage.controld(), stage.agent(&session)));
}

#[test]
fn with_the_capability_off_nothing_outlives_its_backend_however_it_ends() {
    for killed in [false, true] {
        let stage = Stage::new().set("KANDEV_FEATURES_AGENT_SURVIVAL", "false");
        let backend = stage.serve();
        assert_says(&stage.status_text(), &["survival   disabled"]);
        let (session, _) = stage.ready_session();
        stage.tell(&[
            "prompt",
            &session,
            &steps(json!([{ "spawn_grandchild": {} }, { "sleep_ms": 600_000 }])),
        ]);
        stage.until("agent, grandchild, server, backend", || (stage.processes().len() == 4).then_some(()));
        if killed {
            backend.kill();
        } else {
            assert_eq!(0, backend.terminate());
        }
        stage.nothing_left();

        let backend = stage.serve();
        assert_says(&stage.status_text(), &["adoption   no_answer"]);
        let view = stage.session_in(&session, "IDLE");
        assert_eq!(
            ("INTERRUPTED", "INTERRUPTED"),
            (view["task_state"].as_str().unwrap(), view["turn"]["state"].as_str().unwrap())
        );
        assert_says(
            view["failure"].as_str().unwrap(),
            &["control server is gone", "whatever it had not handed over"],
        );
        drop(backend);
    }
}

#[test]
fn a_backend_that_ends_in_the_middle_of_its_start_leaves_nothing_with_the_capability_off() {
    for moment in MOMENTS {
        for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
            let stage = Stage::new().set("KANDEV_FEATURES_AGENT_SURVIVAL", "false");
            let backend = stage.launch();
            stage.until(moment, || backend.said().contains(moment).then_some(()));
            processes::signal(backend.pid(), signal);
            let (code, said) = backend.ended();
            assert_eq!(if signal == Signal::KILL { -1 } else { 0 }, code, "{said}");
            stage.nothing_left();
        }
    }
}

#[test]
fn a_backend_that_is_asked_to_end_in_the_middle_of_its_start_leaves_a_server_that_the_next_one_adopts() {
    for moment in MOMENTS {
        let stage = Stage::new();
        let backend = stage.launch();
        stage.until(moment, || backend.said().contains(moment).then_some(()));
        assert_eq!(0, backend.terminate());
        let left = stage.controld();
        assert_eq!(left.into_iter().collect::<Vec<_>>(), stage.processes());
        let next = stage.serve();
        let adoption = if left.is_some() { "adopted" } else { "nothing_recorded" };
        assert_eq!(adoption, next.recovered()["adoption"], "{moment}: {}", next.said());
        assert_eq!(2, stage.processes().len(), "one server and one backend");
        stage.ready_session();
    }
}

#[test]
fn a_backend_killed_in_the_middle_of_its_start_does_not_harm_the_next_one() {
    for moment in MOMENTS {
        let stage = Stage::new();
        let backend = stage.launch();
        stage.until(moment, || backend.said().contains(moment).then_some(()));
        backend.kill();
        let _next = stage.serve();
        stage.ready_session();
        let nonces = std::fs::read_dir(stage.home.join("run")).unwrap().flatten();
        let nonces = nonces.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"nonce-"));
        assert_eq!(0, nonces.count(), "{moment}: nobody uses the nonce of a start that was killed");
    }
}

#[test]
fn switching_the_capability_off_stops_the_survivor_of_an_earlier_launch() {
    let stage = Stage::new();
    let backend = stage.serve();
    let (session, agent) = stage.ready_session();
    let controld = stage.controld().unwrap();
    backend.kill();
    let stage = stage.set("KANDEV_FEATURES_AGENT_SURVIVAL", "false");
    let _backend = stage.serve();
    assert_eq!([controld, agent].map(processes::runs), [false, false]);
    stage.session_in(&session, "IDLE");
    assert_says(
        &stage.status_text(),
        &["survival   disabled", "stopped    ", "the control server was shut down"],
    );
}

#[test]
fn a_killed_control_server_leaves_no_agent_and_its_loss_is_told() {
    // The second one hears neither the end of its input nor a signal, and left a child.
    let stubborn = r#"{"ignore_stdin_end":true,"ignore_term":true}"#;
    let stage = Stage::new();
    let text = std::fs::read_to_string(stage.home.join("config.toml")).unwrap();
    let program = crate::stage::binary("scripted-agent");
    let more =
        format!("[profiles.stubborn]\ncommand = {program:?}\nenv = {{ SCRIPTED_AGENT = '{stubborn}' }}\n");
    std::fs::write(stage.home.join("config.toml"), text + &more).unwrap();
    let backend = stage.serve();
    let sessions = ["scripted", "stubborn"].map(|profile| stage.create(profile));
    let work = steps(json!([
        { "say": "before" }, { "spawn_grandchild": { "ignore_term": true } }, { "sleep_ms": 600_000 }
    ]));
    for session in &sessions {
        stage.session_in(session, "WAITING_FOR_INPUT");
        stage.tell(&["prompt", session, &work]);
        stage.until("the agent's words", || stage.said(session).first().cloned());
    }
    stage.until("all processes", || (stage.processes().len() == 6).then_some(()));
    let controld = stage.controld().unwrap();
    processes::signal(controld, Signal::KILL);

    for session in &sessions {
        let view = stage.session_in(session, "IDLE");
        assert_eq!(
            ("INTERRUPTED", "INTERRUPTED"),
            (view["task_state"].as_str().unwrap(), view["turn"]["state"].as_str().unwrap())
        );
        let told = ["its control server is gone", "whatever it had not handed over yet"];
        assert_says(view["failure"].as_str().unwrap(), &told);
        assert_says(view["turn"]["error"].as_str().unwrap(), &told);
        assert_says(&stage.notices(session).concat(), &told);
        assert_says(&stage.tell(&["transcript", session]), &told);
        assert_eq!(vec!["1.1 before".to_owned()], stage.said(session), "what was stored stays");
        let refused = stage.run(&["prompt", session, "hello"]);
        assert_says(&refused.err, &[session, "has no agent"]);
    }
    // A new server takes its place; of the old agents and their children nothing is left.
    let fresh = stage.until("a new control server", || {
        let usable = stage.get("/api/status")?["server"].is_object();
        stage.controld().filter(|pid| usable && *pid != controld)
    });
    stage.until("two processes", || (stage.processes().len() == 2).then_some(()));
    assert!(processes::runs(fresh) && processes::runs(backend.pid()));
    stage.ready_session();
}

#[test]
fn a_control_server_killed_while_no_backend_ran_leaves_no_agent_either() {
    let stage = Stage::new();
    let text = std::fs::read_to_string(stage.home.join("config.toml")).unwrap();
    let stubborn = r#"env = { SCRIPTED_AGENT = '{"ignore_stdin_end":true,"ignore_term":true}' }"#;
    std::fs::write(stage.home.join("config.toml"), text + stubborn).unwrap();
    let backend = stage.serve();
    let (session, agent) = stage.ready_session();
    stage.tell(&["prompt", &session, &steps(json!([{ "say": "before" }, { "sleep_ms": 600_000 }]))]);
    stage.until("the agent's words", || stage.said(&session).first().cloned());
    backend.kill();
    processes::signal(stage.controld().unwrap(), Signal::KILL);
    stage.until("the agent alone", || (stage.processes() == [agent]).then_some(()));

    let _backend = stage.serve();
    assert!(!processes::runs(agent), "ended before anything is said about its session");
    let view = stage.session_in(&session, "IDLE");
    assert_eq!("INTERRUPTED", view["turn"]["state"]);
    assert_says(&stage.notices(&session).concat(), &["its control server is gone"]);
}

/// Says something, and goes on once it is permitted.
fn long_turn() -> String {
    steps(json!([{ "say": "begun" }, { "permission": { "title": "go on?" } }, { "say": "done" }]))
}

/// Lines of the backend's log in the order of a start.
const MOMENTS: [&str; 4] =
    ["backend listening", "inventory read", "control server spawned", "control server started"];
