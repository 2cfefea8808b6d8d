//! Disks that are full when the backend starts, at every place where that can hurt.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::stage::{Backend, Stage, assert_says, binary, error_line, steps};

#[test]
fn a_full_disk_is_named_wherever_the_start_meets_it_and_nothing_is_left_running() {
    if !can_mount() {
        eprintln!("file systems cannot be mounted here: shown by a_file_that_may_not_grow_is_named alone");
        return;
    }
    let mut met = Vec::new();
    for free in FREE_KIB {
        let stage = Stage::new().set("KANDEV_FEATURES_AGENT_SURVIVAL", "false");
        let mut backend = on_full_disk(&stage, free);
        let status = stage.until("the start's end", || match backend.has_ended() {
            true => Some(None),
            false => backend.status().filter(|status| status["recovered"] == true).map(Some),
        });
        let said = backend.said();
        met.push(match status {
            None => {
                let (code, said) = backend.ended();
                assert_eq!(1, code, "{free} KiB free: {said}");
                let line = error_line(&said);
                assert_says(&line, &["ree some space", &stage.home.display().to_string()]);
                "refused"
            }
            Some(status) if status["server"].is_null() => {
                let why = status["server_failure"].as_str().unwrap();
                assert!(why.contains("free some space"), "{free} KiB free: {why}\n{said}");
                assert_eq!(0, backend.terminate());
                "without a server"
            }
            Some(_) => {
                assert_eq!(0, backend.terminate());
                "started"
            }
        });
        stage.nothing_left();
    }
    // Each of the three was met, so that the sizes are the telling ones.
    met.dedup();
    assert_eq!(["refused", "without a server", "started"].as_slice(), met);
}

#[test]
fn a_backend_that_lacked_space_for_its_server_starts_one_once_there_is_some() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let (backend, status) = FREE_KIB
        .into_iter()
        .find_map(|free| {
            let mut backend = on_full_disk(&stage, free);
            let status = stage.until("the start's end", || match backend.has_ended() {
                true => Some(Value::Null),
                false => backend.status().filter(|status| status["recovered"] == true),
            });
            (status["server"].is_null() && !status["server_failure"].is_null()).then_some((backend, status))
        })
        .expect("some size is enough for the store and not for the server's secrets");
    assert_says(status["server_failure"].as_str().unwrap(), &["free some space"]);
    fs::remove_file(seen(&stage, &backend).join("filler")).unwrap();
    stage.until("a control server", || backend.status().filter(|status| !status["server"].is_null()));
    drop(backend);
}

#[test]
fn a_disk_that_fills_in_mid_turn_loses_nothing() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    // Large enough for the store's write-ahead log at its usual size.
    let backend = mounted(&stage, "size=16m", "");
    let home = seen(&stage, &backend);
    let backend = backend.at(home.clone());
    backend.recovered();
    let user = |arguments: &[&str]| {
        let said = stage.command(arguments).env("KANDEV_HOME_DIR", &home).output().unwrap();
        (
            said.status.success(),
            String::from_utf8(said.stdout).unwrap() + &String::from_utf8_lossy(&said.stderr),
        )
    };
    let workspace = stage.workspace().display().to_string();
    let create = ["session", "create", "--profile", "scripted", "--folder", &workspace, "--json"];
    let (created, view) = user(&create);
    assert!(created, "{view}");
    let session = serde_json::from_str::<Value>(&view).unwrap()["session"].as_str().unwrap().to_owned();
    let transcript = || user(&["transcript", &session]).1;
    let words = json!([{ "say_many": { "count": WORDS, "bytes": 400, "every_ms": 2 } }]);
    let (prompted, said) = user(&["prompt", &session, &steps(words)]);
    assert!(prompted, "{said}");
    stage.until("some words", || transcript().contains("1.5 ").then_some(()));

    let filler = home.join("filler");
    let full = fs::write(&filler, vec![0; 16 << 20]).unwrap_err();
    assert_eq!(std::io::ErrorKind::StorageFull, full.kind());
    stage.until("an event that cannot be stored", || {
        backend.said().contains("could not be stored").then_some(())
    });
    // The write-ahead log may have room for a session or two; then there is none, and the user is told.
    let refused = (0..SESSIONS).find_map(|_| {
        let (created, said) = user(&create);
        (!created).then_some(said)
    });
    let said = refused.expect("no disk that is full takes so many sessions");
    assert_says(&said, &["the store could not", "database or disk is full"]);
    fs::remove_file(&filler).unwrap();
    stage.until("the turn's end", || {
        user(&["session", "show", &session]).1.contains("WAITING_FOR_INPUT").then_some(())
    });
    let text = stage
        .until("the last words", || Some(transcript()).filter(|text| text.contains(&format!("1.{WORDS} "))));
    for number in 1..=WORDS {
        assert_eq!(1, text.matches(&format!("1.{number} ")).count(), "place {number} in:\n{text}");
    }
}

#[test]
fn a_read_only_home_is_refused_by_name() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let (code, said) = mounted(&stage, "ro", "").ended();
    assert_eq!(1, code);
    let home = stage.home.display().to_string();
    assert_says(&error_line(&said), &[&format!("home {home} cannot be written to"), "Read-only file system"]);
}

/// Needs no privilege: a limit on the size of files, as an administrator or a quota sets it.
#[test]
fn a_file_that_may_not_grow_is_named() {
    for (blocks, named) in [
        ("0", ["cannot be written to", "File too large"]),
        ("1", ["backend.db cannot be written", "disk I/O error"]),
    ] {
        let stage = Stage::new();
        let script = r#"trap "" XFSZ; ulimit -f "$1"; shift; exec "$@""#;
        let backend = binary("backend-recovery").display().to_string();
        let said =
            stage.prepared("sh".as_ref(), &["-c", script, "sh", blocks, &backend, "serve"]).output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(Some(1), said.status.code(), "{text}");
        assert_says(
            &error_line(&text),
            &[&stage.home.display().to_string(), named[0], named[1], "ree some space"],
        );
        stage.nothing_left();
    }
}

/// A backend whose home is a file system of its own with so much space left.
fn on_full_disk(stage: &Stage, free_kib: u32) -> Backend<'_> {
    let filler = format!("head -c {}k /dev/zero > \"$home/filler\"", DISK_KIB - free_kib);
    let backend = mounted(stage, &format!("size={DISK_KIB}k"), &filler);
    let home = seen(stage, &backend);
    backend.at(home)
}

/// A backend in a mount namespace of its own, which goes with its processes.
fn mounted<'a>(stage: &'a Stage, options: &str, then: &str) -> Backend<'a> {
    let config = stage.path("config.toml");
    fs::copy(stage.home.join("config.toml"), &config).unwrap();
    let script = format!(
        r#"set -e; home="$1"; mount -t tmpfs -o {options} tmpfs "$home"; shift; {then}
           exec "$@""#
    );
    let (home, backend) =
        (stage.home.display().to_string(), binary("backend-recovery").display().to_string());
    let config = config.display().to_string();
    let line = [
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        &script,
        "sh",
        &home,
        &backend,
        "serve",
        "--config",
        &config,
    ];
    stage.launch_as(stage.prepared("unshare".as_ref(), &line))
}

/// The home as the backend sees it.
fn seen(stage: &Stage, backend: &Backend<'_>) -> PathBuf {
    let home = stage.home.strip_prefix("/").unwrap();
    PathBuf::from(format!("/proc/{}/root", backend.pid())).join(home)
}

fn can_mount() -> bool {
    let line = ["--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"];
    Command::new("unshare").args(line).output().is_ok_and(|said| said.status.success())
}

/// Far more than the control server keeps, so that the agent waits for the disk.
const WORDS: usize = 400;

/// More than the store's own room can hold once its disk is full.
const SESSIONS: usize = 30;

/// The size of the disk.
const DISK_KIB: u32 = 1024;

/// How much of it is left: from nothing to enough for a start, close together where it matters.
const FREE_KIB: [u32; 18] = [0, 4, 8, 32, 64, 96, 100, 104, 108, 112, 116, 120, 124, 128, 136, 144, 160, 512];
