//! A store and a record that are not what they should be.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use crate::processes;
use crate::stage::{Stage, assert_says, error_line};

#[test]
fn a_store_of_garbage_is_refused_by_name_and_left_as_it_is() {
    let stage = Stage::new();
    let store = stage.home.join("backend.db");
    let garbage: Vec<u8> = b"this was never a database. ".repeat(1000);
    fs::write(&store, &garbage).unwrap();
    let line = refused(&stage);
    assert_says(
        &line,
        &[
            &format!("the store {} cannot be read", store.display()),
            "It was left as it is: restore it from a copy, or move it away",
        ],
    );
    assert_eq!(garbage, fs::read(&store).unwrap());
    fs::rename(&store, stage.path("moved-away.db")).unwrap();
    drop(stage.serve());
}

#[test]
fn a_torn_store_is_refused_by_name_and_left_as_it_is() {
    let stage = made();
    let store = stage.home.join("backend.db");
    // What is still beside the store in its log goes into it first.
    Connection::open(&store).unwrap().pragma_update(None, "journal_mode", "DELETE").unwrap();
    let mut bytes = fs::read(&store).unwrap();
    for byte in &mut bytes[100..] {
        *byte = 0x5a;
    }
    fs::write(&store, &bytes).unwrap();
    let line = refused(&stage);
    assert_says(&line, &["backend.db", "restore it from a copy"]);
    assert_eq!(bytes, fs::read(&store).unwrap());
}

#[test]
fn a_store_of_a_newer_build_is_refused_with_both_versions() {
    let stage = made();
    let store = stage.home.join("backend.db");
    Connection::open(&store).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let line = refused(&stage);
    assert_says(
        &line,
        &[
            "was written by a newer build (schema 99, this build knows 1)",
            "start the newer build, or restore a copy from before the upgrade",
        ],
    );
    Connection::open(&store).unwrap().pragma_update(None, "user_version", 1).unwrap();
    drop(stage.serve());
}

#[test]
fn a_directory_in_the_stores_place_is_refused_by_name() {
    let stage = Stage::new();
    fs::create_dir(stage.home.join("backend.db")).unwrap();
    let line = refused(&stage);
    assert_says(&line, &["backend.db", "move it away"]);
}

#[test]
fn a_garbage_record_without_a_survivor_costs_nothing() {
    let stage = made();
    for garbage in ["", "{", "[]", "{\"endpoint\":\"nowhere\"}", "\u{0}\u{fffd}"] {
        spoil(&stage.home, garbage);
        let backend = stage.serve();
        let status = backend.recovered();
        assert_eq!("garbage_record", status["adoption"]);
        assert_eq!("started", status["server"]["origin"]);
        assert_says(&backend.said(), &["control-server record is garbage and was not used"]);
        assert_eq!(0, backend.terminate());
        end_server(&stage);
    }
}

#[test]
fn a_garbage_record_beside_a_survivor_puts_no_second_agent_beside_the_first() {
    let stage = Stage::new();
    let backend = stage.serve();
    let (session, agent) = stage.ready_session();
    let survivor = stage.controld().unwrap();
    backend.kill();
    spoil(&stage.home, "{garbage");

    let backend = stage.serve();
    let text = stage.status_text();
    assert_says(
        &text,
        &[&format!("left       {session}"), &format!("its agent may still run: process {agent}")],
    );
    assert!(
        processes::runs(agent) && processes::runs(survivor),
        "what may be somebody's at work is not ended"
    );
    let said = stage.run(&["prompt", &session, "hello"]);
    assert_eq!(1, said.code);
    assert_says(&said.err, &["unstopped_agent"]);
    // Everything else works, and once the survivor is gone the next start repairs the session.
    stage.ready_session();
    assert_eq!(0, backend.terminate());
    processes::signal(survivor, rustix::process::Signal::TERM);
    stage.until("the survivor's end", || {
        (!processes::runs(survivor) && !processes::runs(agent)).then_some(())
    });
    let _backend = stage.serve();
    stage.session_in(&session, "IDLE");
}

/// A home with a store, in which nothing runs.
fn made() -> Stage {
    let stage = Stage::new();
    assert_eq!(0, stage.serve().terminate());
    end_server(&stage);
    stage
}

fn end_server(stage: &Stage) {
    processes::signal(stage.controld().unwrap(), rustix::process::Signal::TERM);
    stage.nothing_left();
}

fn refused(stage: &Stage) -> String {
    let (code, said) = stage.refused();
    assert_eq!(1, code, "{said}");
    stage.nothing_left();
    error_line(&said)
}

fn spoil(home: &Path, garbage: &str) {
    let store = Connection::open(home.join("backend.db")).unwrap();
    assert_eq!(1, store.execute("UPDATE control_server SET record = ?1", [garbage]).unwrap());
}
