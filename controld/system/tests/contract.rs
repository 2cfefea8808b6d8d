//! The contract of every seam, on the real operating system.
//!
//! This executable is also the child process that the contract starts: with `contract-child` as its first
//! argument it runs `seam::contract::child_program` instead of the tests.

use std::collections::BTreeMap;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use seam::contract::{self, ContractChild};
use seam::{HostFacts as _, Seams, SpawnRequest, Stdio};

fn main() -> ExitCode {
    if system::RealHostFacts.arguments().first().is_some_and(|first| first == CHILD) {
        return ExitCode::from(runtime().block_on(contract::child_program(system::seams())));
    }
    let tests = vec![
        trial("the_clock_keeps_its_contract", async |seams, _| contract::clock(&seams).await),
        trial("the_entropy_keeps_its_contract", async |seams, _| contract::entropy(&seams).await),
        trial("the_network_keeps_its_contract", async |seams, _| contract::network(&seams).await),
        trial("the_processes_keep_their_contract", async |seams, _| {
            contract::processes(&seams, &child()).await
        }),
        trial("descendants_keep_their_contract", async |seams, _| {
            contract::descendants(&seams, launcher()).await;
        }),
        trial("descendants_keep_their_contract_under_a_reaper", async |seams, _| {
            seams.processes.become_reaper().expect("a subreaper");
            contract::descendants(&seams, launcher()).await;
        }),
        trial("the_processes_keep_their_contract_under_a_reaper", async |seams, _| {
            seams.processes.become_reaper().expect("a subreaper");
            contract::processes(&seams, &child()).await;
        }),
        trial("the_disk_keeps_its_contract", async |seams, directory| {
            contract::disk(&seams, directory).await
        }),
        trial("locks_keep_their_contract_between_processes", async |seams, directory| {
            contract::lock_across_processes(&seams, &child(), directory).await;
        }),
        trial("the_secret_store_keeps_its_contract", async |seams, _| contract::secret_store(&seams).await),
        trial("blocking_work_keeps_its_contract", async |seams, _| contract::blocking(&seams).await),
        trial("the_host_facts_keep_their_contract", async |seams, _| contract::host_facts(&seams).await),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// A test with seams, a directory and a runtime of its own.
fn trial(name: &str, test: impl AsyncFnOnce(Seams, &std::path::Path) + Send + 'static) -> Trial {
    Trial::test(name, move || {
        let directory = tempfile::tempdir()?;
        let seams = system::seams_for(&directory.path().join("home"));
        runtime().block_on(test(seams, &directory.path().join("files")));
        Ok(())
    })
}

/// This very executable, told to be the child.
fn child() -> ContractChild {
    let program = system::RealHostFacts.executable().expect("this test has an executable");
    ContractChild {
        program: program.to_str().expect("the build directory is Unicode").to_owned(),
        args_before: vec![CHILD.to_owned()],
    }
}

/// A shell that leaves `cat` behind, which reads until the launcher's input ends and holds its outputs. A shell
/// gives its background jobs the null device as input, unless told otherwise.
fn launcher() -> SpawnRequest {
    SpawnRequest {
        program: "sh".to_owned(),
        args: vec!["-c".to_owned(), "exec 3<&0; cat <&3 3<&- & exit 7".to_owned()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        directory: None,
        stdio: Stdio::Piped,
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime of two threads")
}

/// What makes this executable the contract's child.
const CHILD: &str = "contract-child";
