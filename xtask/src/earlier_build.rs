//! The programs of an earlier commit, built in a work tree of its own.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::cargo::{Failed, program, root};
use crate::programs::{PACKAGES, Programs};
use crate::wait::{POLL, check_interrupt};

/// Builds a commit, or takes what an earlier run built of it. Nothing is left behind but the programs and cargo's own
/// directory.
pub(crate) fn of_revision(revision: &str) -> Result<Programs, Failed> {
    let commit = commit(revision)?;
    let directory = upgrade().join(&commit);
    let name = commit.get(..SHORT).unwrap_or(&commit);
    let tree = upgrade().join("worktree");
    // A run that was killed may have left it.
    remove_tree(&tree)?;
    if !directory.exists() {
        println!("building {name}; from nothing that takes some minutes");
        let built = add_tree(&tree, &commit).and_then(|()| build_tree(&tree, &directory));
        let removed = remove_tree(&tree);
        built.and(removed)?;
    }
    Ok(Programs::at(directory, name))
}

fn upgrade() -> PathBuf {
    root().join("target/upgrade")
}

fn commit(revision: &str) -> Result<String, Failed> {
    let output = Command::new("git")
        .args(["rev-parse", "--verify", "--quiet", "--end-of-options", &format!("{revision}^{{commit}}")])
        .current_dir(root())
        .output()
        .map_err(|error| Failed(format!("`git rev-parse` could not be started: {error}")))?;
    let commit = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() { Ok(commit) } else { Err(Failed(format!("{revision:?} names no commit"))) }
}

fn add_tree(tree: &Path, commit: &str) -> Result<(), Failed> {
    let tree = tree.to_string_lossy();
    // Forced, because a registration may have outlived its directory.
    program(
        "git",
        &[
            "-c",
            "advice.detachedHead=false",
            "worktree",
            "add",
            "--force",
            "--quiet",
            "--detach",
            &tree,
            commit,
        ],
    )
}

/// Takes away the directory and its registration, whichever of them there is.
fn remove_tree(tree: &Path) -> Result<(), Failed> {
    let failed = |error: std::io::Error| Failed(format!("{} cannot be removed: {error}", tree.display()));
    // It refuses what is no work tree: one that was never there, and one that was left half-made.
    Command::new("git")
        .args(["worktree", "remove", "--force", "--force"])
        .arg(tree)
        .current_dir(root())
        .output()
        .map_err(failed)?;
    if tree.exists() { std::fs::remove_dir_all(tree).map_err(failed) } else { Ok(()) }
}

/// Builds the tree and keeps its programs in `directory`.
fn build_tree(tree: &Path, directory: &Path) -> Result<(), Failed> {
    let mut build = Command::new("cargo");
    // Not from within our own tree: cargo would join our configuration with the older one's.
    build.current_dir("/").arg("build").arg("--manifest-path").arg(tree.join("Cargo.toml"));
    let configuration = tree.join(".cargo/config.toml");
    if configuration.exists() {
        build.arg("--config").arg(configuration);
    }
    let target = upgrade().join("target");
    build.arg("--target-dir").arg(&target).args(["--quiet", "--profile", PROFILE, "--bins"]).args(PACKAGES);
    for program in PROGRAMS {
        // Of another commit; this one may have no such program. It need not be there.
        let _ = std::fs::remove_file(target.join(PROFILE).join(program));
    }
    let status = build
        .process_group(0)
        .spawn()
        .map_err(|error| Failed(format!("cargo could not be started: {error}")))
        .and_then(|mut child| ended(&mut child))?;
    if !status.success() {
        return Err(Failed(format!("the earlier commit could not be built ({status})")));
    }
    keep(&target.join(PROFILE), directory)
}

/// Copies the programs; either all of them come to `directory` or none.
fn keep(built: &Path, directory: &Path) -> Result<(), Failed> {
    let partial = directory.with_extension("partial");
    let copied = std::fs::create_dir_all(&partial)
        .map_err(|error| Failed(format!("{} cannot be made: {error}", partial.display())))
        .and_then(|()| {
            PROGRAMS.iter().try_for_each(|program| {
                std::fs::copy(built.join(program), partial.join(program))
                    .map(drop)
                    .map_err(|error| Failed(format!("the earlier commit gave no usable {program}: {error}")))
            })
        })
        .and_then(|()| {
            std::fs::rename(&partial, directory)
                .map_err(|error| Failed(format!("{} cannot be filled: {error}", directory.display())))
        });
    if copied.is_err() {
        // What is left of it is overwritten by the next run.
        let _ = std::fs::remove_dir_all(&partial);
    }
    copied
}

/// Waits for a child that leads a group of its own; an interrupt ends the group.
fn ended(child: &mut Child) -> Result<std::process::ExitStatus, Failed> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(error) => return Err(Failed(format!("cargo could not be waited for: {error}"))),
        }
        if let Err(interrupted) = check_interrupt() {
            let leader = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
            // Gone in between is what we want.
            let _ = leader
                .map(|leader| rustix::process::kill_process_group(leader, rustix::process::Signal::TERM));
            let _ = child.wait();
            return Err(interrupted);
        }
        std::thread::sleep(POLL);
    }
}

/// What an installation consists of, and the agent.
const PROGRAMS: [&str; 3] = ["controld", "backend-recovery", "scripted-agent"];

/// What an earlier commit is built with: the one that everything but figures uses.
const PROFILE: &str = "sim";

/// As many digits as name a commit to people.
const SHORT: usize = 7;
