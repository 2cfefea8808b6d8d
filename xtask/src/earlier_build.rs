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
    if !directory.exists() {
        println!("building {name}; from nothing that takes some minutes");
        let tree = upgrade().join("worktree");
        // A run that was killed may have left it.
        remove_tree(&tree)?;
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

/// Takes away the directory and its registration; one that an ended run left half-made, too.
fn remove_tree(tree: &Path) -> Result<(), Failed> {
    let failed = |error: std::io::Error| Failed(format!("{} cannot be removed: {error}", tree.display()));
    if !tree.exists() {
        return Ok(());
    }
    let removed = Command::new("git")
        .args(["worktree", "remove", "--force", "--force"])
        .arg(tree)
        .current_dir(root())
        .output()
        .map_err(failed)?;
    if removed.status.success() { Ok(()) } else { std::fs::remove_dir_all(tree).map_err(failed) }
}

/// Builds the tree and keeps its programs; either all of them come to `directory` or none.
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
    let status = build
        .process_group(0)
        .spawn()
        .map_err(|error| Failed(format!("cargo could not be started: {error}")))
        .and_then(|mut child| ended(&mut child))?;
    if !status.success() {
        return Err(Failed(format!("the earlier commit could not be built ({status})")));
    }
    let failed = |error: std::io::Error| Failed(format!("{} cannot be filled: {error}", directory.display()));
    let partial = directory.with_extension("partial");
    std::fs::create_dir_all(&partial).map_err(failed)?;
    for program in PROGRAMS {
        std::fs::copy(target.join(PROFILE).join(program), partial.join(program)).map_err(failed)?;
    }
    std::fs::rename(&partial, directory).map_err(failed)
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
