//! One backend on one home.

use std::fs;

use crate::processes;
use crate::stage::{Stage, assert_says, error_line};

#[test]
fn a_second_backend_on_the_same_home_is_refused_and_told_who_holds_it() {
    let stage = Stage::new();
    let mut first = stage.serve();
    let (session, agent) = stage.ready_session();
    let contact = fs::read(stage.home.join("run/backend.json")).unwrap();
    let before = stage.processes();

    let (code, said) = stage.refused();
    assert_eq!(1, code);
    let line = error_line(&said);
    assert_says(
        &line,
        &[
            &format!("home {} is in use by another backend (pid {}", stage.home.display(), first.pid()),
            "one backend works on one home",
            "Stop that one, or choose another home with KANDEV_HOME_DIR",
        ],
    );

    assert!(!first.has_ended());
    assert_eq!(
        contact,
        fs::read(stage.home.join("run/backend.json")).unwrap(),
        "the first can still be found"
    );
    assert_eq!(before, stage.processes(), "nothing was started and nothing ended");
    stage.tell(&["prompt", &session, "hello"]);
    stage.turn_in(&session, "COMPLETED");
    assert_eq!(agent, stage.agent(&session));
}

#[test]
fn the_lock_is_free_once_its_backend_was_killed_although_server_and_agent_live_on() {
    let stage = Stage::new();
    let first = stage.serve();
    let (session, agent) = stage.ready_session();
    let controld = stage.controld().unwrap();
    for survivor in [controld, agent] {
        let inherited: Vec<_> = processes::descriptors(survivor)
            .into_iter()
            .filter(|(_, target)| target.contains("backend.") || target.contains("backend-0.log"))
            .collect();
        assert!(inherited.is_empty(), "{survivor} holds files of its backend: {inherited:?}");
    }
    let streams: Vec<_> =
        processes::descriptors(controld).into_iter().filter(|(number, _)| *number < 3).collect();
    assert!(streams.iter().all(|(_, target)| target == "/dev/null"), "{streams:?}");

    first.kill();
    let second = stage.serve();
    assert_eq!((Some(controld), agent), (stage.controld(), stage.agent(&session)));
    assert_eq!(0, second.terminate());
    let _third = stage.serve();
    assert_eq!(agent, stage.agent(&session));
}
