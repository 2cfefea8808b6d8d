//! The simulated seams keep the same contracts as the real ones, whatever the seed.

use std::collections::BTreeMap;
use std::path::Path;

use seam::contract::{self, ContractChild};
use seam::{BoxFuture, Seams, SpawnRequest, Stdio};
use sim::Program;
use tokio::io::AsyncReadExt as _;

use crate::support::Story;

type Test = fn(&Seams) -> BoxFuture<'_, ()>;

/// The program that the contract starts.
fn child_program() -> Program {
    Program::new("contract-child", |process| contract::child_program(process.seams))
}

/// A shell that leaves `cat` behind in its group.
fn shell() -> Program {
    Program::new("sh", |process| async move {
        process.leave_behind("cat").expect("cat is a program");
        7
    })
}

/// Reads until its input ends, and holds its outputs.
fn cat() -> Program {
    Program::new("cat", |process| async move {
        let mut stdio = process.seams.processes.own_stdio();
        let mut read = Vec::new();
        stdio.stdin.read_to_end(&mut read).await.expect("a pipe ends");
        0
    })
}

fn child() -> ContractChild {
    ContractChild { program: "contract-child".to_owned(), args_before: Vec::new() }
}

fn launcher() -> SpawnRequest {
    SpawnRequest {
        program: "sh".to_owned(),
        args: Vec::new(),
        env: BTreeMap::new(),
        directory: None,
        stdio: Stdio::Piped,
    }
}

fn keeps(test: Test) {
    let story = Story::new([child_program(), shell(), cat()], move |director| async move {
        test(&director.seams).await;
        Ok(())
    });
    for seed in 0..8 {
        story.passes(seed);
    }
}

#[test]
fn the_clock_keeps_its_contract() {
    keeps(|seams| Box::pin(contract::clock(seams)));
}

#[test]
fn the_entropy_keeps_its_contract() {
    keeps(|seams| Box::pin(contract::entropy(seams)));
}

#[test]
fn the_network_keeps_its_contract() {
    keeps(|seams| Box::pin(contract::network(seams)));
}

#[test]
fn the_processes_keep_their_contract() {
    keeps(|seams| {
        Box::pin(async move {
            contract::processes(seams, &child()).await;
        })
    });
}

#[test]
fn descendants_keep_their_contract() {
    keeps(|seams| Box::pin(contract::descendants(seams, launcher())));
}

#[test]
fn the_disk_keeps_its_contract() {
    keeps(|seams| Box::pin(contract::disk(seams, Path::new("/data/files"))));
}

#[test]
fn locks_keep_their_contract_between_processes() {
    keeps(|seams| {
        Box::pin(async move {
            contract::lock_across_processes(seams, &child(), Path::new("/data/files")).await;
        })
    });
}

#[test]
fn the_secret_store_keeps_its_contract() {
    keeps(|seams| Box::pin(contract::secret_store(seams)));
}

#[test]
fn blocking_work_keeps_its_contract() {
    keeps(|seams| Box::pin(contract::blocking(seams)));
}

#[test]
fn the_host_facts_keep_their_contract() {
    keeps(|seams| Box::pin(contract::host_facts(seams)));
}
