//! Backends killed with SIGKILL while their agents work.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::stage::{Stage, assert_says, steps};

#[test]
fn two_kills_in_one_turn_lose_nothing_and_a_question_asked_before_is_answered_after() {
    survives(2);
}

#[test]
fn ten_kills_in_one_turn_lose_nothing() {
    survives(10);
}

/// The turn stays open over all kills, since it waits for an answer that is given after them.
fn survives(kills: usize) {
    let stage = Stage::new();
    let mut backend = stage.serve();
    let (session, agent) = stage.ready_session();
    let words = json!({ "count": WORDS, "bytes": 60, "every_ms": 3 });
    let turn = steps(json!([
        { "say_many": words }, { "permission": { "title": "go on?" } }, { "say_many": words }
    ]));
    stage.tell(&["prompt", &session, &turn]);
    let mut asked = None;
    for kill in 0..kills {
        match kill % 3 {
            // While words are flowing, or long after.
            0 => drop(stage.until("some words", || stage.said(&session).get(10 * kill).cloned())),
            // As soon as it is driven again.
            1 => drop(stage.tracked(&session)),
            // In the middle of its start: recovery may be anywhere.
            _ => stage.until("a listener", || backend.said().contains("backend listening").then_some(())),
        }
        if kill + 1 == kills {
            stage.tracked(&session);
            asked = Some(stage.permission(&session));
        }
        backend.kill();
        backend = stage.launch();
        if kill % 3 != 1 {
            backend.recovered();
        }
    }
    backend.recovered();
    let view = stage.tracked(&session);
    assert_eq!(
        ("RUNNING", "RUNNING"),
        (view["state"].as_str().unwrap(), view["turn"]["state"].as_str().unwrap())
    );
    let permission = stage.permission(&session);
    assert_eq!(asked.as_ref(), Some(&permission), "the same question");
    stage.tell(&["permission", &session, &permission, "allow_once"]);
    let view = stage.turn_in(&session, "COMPLETED");
    assert_eq!(
        ("WAITING_FOR_INPUT", "IN_PROGRESS"),
        (view["state"].as_str().unwrap(), view["task_state"].as_str().unwrap())
    );
    assert_eq!(agent, stage.agent(&session), "the agent's process never changed");
    let said = stage.said(&session);
    let expected = 2 * WORDS + 1;
    assert_eq!(expected, said.len());
    for (number, text) in (1..).zip(&said) {
        assert!(text.starts_with(&format!("1.{number} ")), "place {number}: {text}");
    }
    assert_says(&said[WORDS], &["chosen: allow_once"]);
    assert_eq!(Vec::<String>::new(), stage.notices(&session));
    // And the next prompt works as if nothing had been.
    stage.tell(&["prompt", &session, "hello"]);
    stage.until("the next turn", || {
        stage.said(&session).last().filter(|text| text.starts_with("2.3")).cloned()
    });
}

#[test]
fn a_turn_can_be_cancelled_after_its_session_was_re_tracked() {
    let stage = Stage::new();
    let backend = stage.serve();
    let (session, agent) = stage.ready_session();
    stage.tell(&["prompt", &session, &steps(json!([{ "say": "begun" }, { "sleep_ms": 600_000 }]))]);
    stage.until("the agent's words", || stage.said(&session).first().cloned());
    backend.kill();
    let _backend = stage.serve();
    stage.tracked(&session);
    stage.tell(&["cancel", &session]);
    let view = stage.turn_in(&session, "CANCELLED");
    assert_eq!("WAITING_FOR_INPUT", view["state"]);
    stage.tell(&["prompt", &session, "hello"]);
    stage.turn_in(&session, "COMPLETED");
    assert_eq!(agent, stage.agent(&session));
}

#[test]
fn a_turn_that_ended_while_no_backend_ran_shows_its_outcome() {
    let stage = Stage::new();
    let backend = stage.serve();
    let (session, _) = stage.ready_session();
    let done = stage.workspace().join("done");
    let work = json!([
        { "sleep_ms": 300 }, { "say": "last words" }, { "write_file": { "path": "done", "text": "x" } },
        { "end": "max_tokens" }
    ]);
    stage.tell(&["prompt", &session, &steps(work)]);
    backend.kill();
    stage.until("the agent's file", || done.exists().then_some(()));
    let _backend = stage.serve();
    let view = stage.turn_in(&session, "COMPLETED");
    assert_eq!(
        ("max_tokens", "WAITING_FOR_INPUT"),
        (view["turn"]["stop_reason"].as_str().unwrap(), view["state"].as_str().unwrap())
    );
    stage.until("the last words", || {
        stage.said(&session).first().filter(|text| *text == "1.1 last words").cloned()
    });
}

#[test]
fn a_session_on_a_git_worktree_survives_with_what_its_agent_wrote() {
    let stage = Stage::new();
    let repository = stage.path("repository");
    std::fs::create_dir(&repository).unwrap();
    git(&repository, &["init", "--quiet", "--initial-branch", "main"]);
    std::fs::write(repository.join("README"), "hello\n").unwrap();
    git(&repository, &["add", "README"]);
    git(&repository, &["commit", "--quiet", "-m", "Begin"]);

    let backend = stage.serve();
    let place = repository.display().to_string();
    let line = [
        "session",
        "create",
        "--profile",
        "scripted",
        "--worktree",
        &place,
        "--branch",
        "work/one",
        "--json",
    ];
    let view: Value = serde_json::from_str(&stage.tell(&line)).unwrap();
    let session = view["session"].as_str().unwrap().to_owned();
    let worktree = Path::new(view["directory"].as_str().unwrap()).to_owned();
    assert!(worktree.starts_with(&stage.home) && worktree.join("README").exists());
    let agent = stage.agent(&session);
    let work = json!([
        { "write_file": { "path": "before", "text": "1" } },
        { "permission": { "title": "go on?" } },
        { "write_file": { "path": "after", "text": "2" } }
    ]);
    stage.tell(&["prompt", &session, &steps(work)]);
    let permission = stage.permission(&session);
    backend.kill();

    let _backend = stage.serve();
    stage.tracked(&session);
    stage.tell(&["permission", &session, &permission, "allow_once"]);
    stage.turn_in(&session, "COMPLETED");
    assert_eq!(agent, stage.agent(&session));
    assert_eq!("?? after\n?? before\n", git(&worktree, &["status", "--porcelain"]));
    assert_eq!("work/one\n", git(&worktree, &["branch", "--show-current"]));
    stage.tell(&["session", "stop", &session]);
    assert_eq!("?? after\n?? before\n", git(&worktree, &["status", "--porcelain"]), "a stop leaves the work");

    // A branch that exists, and a folder that is no repository, are told in git's own words.
    for (repository, branch, told) in [
        (&place, "work/one", "already exists"),
        (&stage.workspace().display().to_string(), "work/two", "not a git repository"),
    ] {
        let line =
            ["session", "create", "--profile", "scripted", "--worktree", repository, "--branch", branch];
        let said = stage.run(&line);
        assert_eq!(1, said.code);
        assert_says(&said.out, &["FAILED", "the git worktree could not be made", told]);
    }
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let said = Command::new("git")
        .current_dir(directory)
        .args(["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"])
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(said.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap()
}

/// On each side of the question; more than the control server keeps unacknowledged, so that the agent pauses.
const WORDS: usize = 150;
