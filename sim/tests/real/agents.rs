//! Programs that are no agents.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::processes;
use crate::stage::{Stage, assert_says};

#[test]
fn a_program_that_does_not_exist_or_cannot_be_run_fails_its_session_by_name() {
    let stage = Stage::new();
    let plain = stage.path("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    let interpreted = stage.path("interpreted");
    fs::write(&interpreted, "#!/nowhere/interpreter\n").unwrap();
    executable(&interpreted);
    // A directory of the path that may not be looked into hides nothing of what is wrong; the superuser sees all.
    let hidden = stage.path("hidden");
    fs::create_dir(&hidden).unwrap();
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o400)).unwrap();
    let path = format!("{}:{}", hidden.display(), std::env::var("PATH").unwrap());
    let stage = stage.set("PATH", &path);
    let directory = stage.workspace();
    stage.configure(&format!(
        "[profiles.missing]\ncommand = \"/nowhere/agent\"\n[profiles.unknown]\ncommand = \"no-such-agent\"\n\
         [profiles.plain]\ncommand = {plain:?}\n[profiles.directory]\ncommand = {directory:?}\n\
         [profiles.interpreted]\ncommand = {interpreted:?}\n"
    ));
    let backend = stage.serve();
    let plain = plain.display().to_string();
    for (profile, parts) in [
        ("missing", ["\"/nowhere/agent\"", "No such file or directory"]),
        ("unknown", ["\"no-such-agent\"", "not found in PATH="]),
        ("plain", [plain.as_str(), "Permission denied"]),
        ("directory", ["cannot be started", "Permission denied"]),
        ("interpreted", ["cannot be started", "No such file or directory"]),
    ] {
        let view = failed(&stage, profile);
        assert_says(view["failure"].as_str().unwrap(), &parts);
        assert_says(view["failure"].as_str().unwrap(), &["cannot be started in"]);
    }
    only_the_server_runs(&stage, &backend);
}

#[test]
fn a_program_that_is_no_agent_fails_its_session_with_the_step_and_what_it_wrote() {
    let stage = Stage::with(
        "[profiles.true]\ncommand = \"true\"\n[profiles.cat]\ncommand = \"cat\"\n\
         [profiles.usage]\ncommand = \"sh\"\nargs = [\"-c\", \"echo usage: tool FILE >&2; exit 64\"]\n\
         [profiles.banner]\ncommand = \"sh\"\nargs = [\"-c\", \"echo Welcome to the shop; printf '\\\\377\\\\376'; exit 3\"]\n\
         [profiles.leaver]\ncommand = \"sh\"\nargs = [\"-c\", \"sleep 600 & exit 4\"]\n",
    );
    let backend = stage.serve();
    for (profile, parts) in [
        ("true", ["initialize", "ended with exit code 0"].as_slice()),
        ("cat", &["initialize", "the agent refused"]),
        ("usage", &["initialize", "ended with exit code 64"]),
        ("banner", &["initialize", "ended with exit code 3", "lines that are not of its protocol"]),
        ("leaver", &["ended with exit code 4"]),
    ] {
        let view = failed(&stage, profile);
        assert_says(view["failure"].as_str().unwrap(), parts);
        let session = view["session"].as_str().unwrap();
        // What it said about itself is there to be read.
        let errors = stage.transcript(session);
        let error =
            errors.iter().find(|entry| entry["kind"] == "error").expect("the error is in the transcript");
        if profile == "usage" {
            assert_says(error["payload"]["stderr"].as_str().unwrap(), &["usage: tool FILE"]);
        }
        let refused = stage.run(&["prompt", session, "hello"]);
        assert_eq!(1, refused.code);
        assert_says(&refused.err, &[session, "has no agent"]);
    }
    only_the_server_runs(&stage, &backend);
}

#[test]
fn an_agent_that_never_answers_can_be_stopped_while_it_is_waited_for() {
    let stage = Stage::with(
        "[profiles.yes]\ncommand = \"yes\"\n[profiles.silent]\ncommand = \"sleep\"\nargs = [\"600\"]\n\
         [profiles.deaf]\ncommand = \"sh\"\nargs = [\"-c\", \"trap '' TERM; while :; do sleep 600; done\"]\n",
    );
    let text = fs::read_to_string(stage.home.join("config.toml")).unwrap();
    let hanging = text.replace(
        "[profiles.scripted]",
        "[profiles.hanging]\nenv = { SCRIPTED_AGENT = '{\"hang_in\":\"initialize\"}' }",
    );
    fs::write(stage.home.join("config.toml"), hanging).unwrap();
    let backend = stage.serve();
    for profile in ["hanging", "silent", "yes", "deaf"] {
        let workspace = stage.workspace().display().to_string();
        // The command waits for the agent, as its user would, until the session is stopped beside it.
        let line = ["session", "create", "--profile", profile, "--folder", &workspace, "--json"];
        let mut waiting = stage.command(&line).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let session = stage.until("the session", || {
            let list = stage.get("/api/sessions")?;
            let of = |view: &&Value| view["profile"] == profile && view["agent"]["pid"].is_u64();
            list["sessions"].as_array()?.iter().find(of).cloned()
        });
        let (id, pid) = (session["session"].as_str().unwrap(), session["agent"]["pid"].as_u64().unwrap());
        assert_eq!("STARTING", session["state"]);
        let refused = stage.run(&["prompt", id, "hello"]);
        assert_eq!(1, refused.code);
        assert_says(&refused.err, &["starting"]);
        assert_says(&stage.tell(&["session", "stop", id]), &["CANCELLED"]);
        assert!(!processes::runs(pid.try_into().unwrap()), "{profile}: stopped means gone");
        stage.until("the waiting command's end", || waiting.try_wait().unwrap());
    }
    only_the_server_runs(&stage, &backend);
}

#[test]
fn a_folder_or_profile_that_is_not_there_is_refused_before_anything_is_made() {
    let stage = Stage::new();
    let _backend = stage.serve();
    let create = |profile: &str, folder: &str| {
        let said = stage.run(&["session", "create", "--profile", profile, "--folder", folder]);
        assert_eq!((1, ""), (said.code, said.out.as_str()));
        said.err
    };
    let workspace = stage.workspace().display().to_string();
    assert_says(&create("other", &workspace), &["there is no profile \"other\"", "it has: scripted"]);
    assert_says(&create("scripted", "/nowhere/at-all"), &["the folder \"/nowhere/at-all\" cannot be used"]);
    assert_says(&create("scripted", "relative"), &["\"relative\" is not an absolute path"]);
    let list = stage.get("/api/sessions").unwrap();
    assert_eq!(0, list["sessions"].as_array().unwrap().len());
}

fn failed(stage: &Stage, profile: &str) -> Value {
    let workspace = stage.workspace().display().to_string();
    let said = stage.run(&["session", "create", "--profile", profile, "--folder", &workspace, "--json"]);
    assert_eq!(1, said.code, "{profile}: {}{}", said.out, said.err);
    let view: Value = serde_json::from_str(&said.out).unwrap();
    let way_out = format!("profiles.{profile}.command in the configuration must name a program that speaks");
    assert_says(view["failure"].as_str().unwrap(), &[&way_out]);
    assert_eq!(("FAILED", "FAILED"), (view["state"].as_str().unwrap(), view["task_state"].as_str().unwrap()));
    view
}

fn only_the_server_runs(stage: &Stage, backend: &crate::stage::Backend<'_>) {
    stage.until("no agent", || {
        let mut left = stage.processes();
        left.retain(|pid| Some(*pid) != stage.controld() && *pid != backend.pid());
        left.is_empty().then_some(())
    });
}

fn executable(path: &std::path::Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
