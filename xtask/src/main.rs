//! The project's commands. `cargo xtask help` lists them.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "a build tool starts processes, reads files and measures real time; nothing of it is simulated"
)]

mod architecture;
mod bench;
mod cargo;
mod criteria;
mod demo;
mod earlier_build;
mod processes;
mod programs;
mod stage;
mod steps;
mod transcript;
mod upgrade;
mod wait;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::cargo::{Failed, cargo, program, root};
use crate::steps::Steps;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's commands.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the simulator: the corpus, fixed seeds, then fresh seeds for a minute; or what the arguments say.
    Sim {
        /// SCENARIO, --seed N, --seeds A..B, --twice, …: see `cargo xtask sim -- --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Replay a corpus file, or one seed of a scenario, and print its timeline.
    Replay {
        /// A file of sim/corpus, or SCENARIO --seed N.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Real processes: an agent in mid-turn survives a SIGKILL of its backend, before your eyes.
    Demo,
    /// Figures on real processes, each beside something measured in the same run.
    Bench(bench::Arguments),
    /// Real processes of an earlier commit and of the working tree adopt each other's agents in mid-turn.
    UpgradeCheck {
        /// The earlier commit, as git names it.
        revision: String,
    },
    /// Everything that CI runs.
    Test,
    /// Format the whole workspace.
    Fmt,
    /// Formatting, clippy, the architecture's rules, and spelling where `typos` is installed.
    Lint,
    /// Which criteria of the specification have a snapshot and which are still open.
    Criteria,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Sim { arguments } => simulator("run", &arguments),
        Command::Replay { arguments } => simulator("replay", &arguments),
        Command::Demo => demo::run(),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::UpgradeCheck { revision } => upgrade::run(&revision),
        Command::Test => test(),
        Command::Fmt => cargo(&["fmt", "--all"]),
        Command::Lint => lint(&mut Steps::default()),
        Command::Criteria => criteria::print(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("xtask: {failed}");
            ExitCode::FAILURE
        }
    }
}

fn simulator(command: &str, arguments: &[String]) -> Result<(), Failed> {
    let mut line =
        vec!["run", "--quiet", "--profile", "sim", "--package", "sim", "--bin", "sim", "--", command];
    line.extend(arguments.iter().map(String::as_str));
    cargo(&line)
}

/// A first seed of this commit's own: another one for every commit, the same one whenever it is run.
fn commit_seed() -> u64 {
    let head = std::process::Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()).output();
    let hash = head.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    u64::from_str_radix(hash.get(..8).unwrap_or_default(), 16).unwrap_or(COMMITLESS_SEED)
}

fn lint(steps: &mut Steps) -> Result<(), Failed> {
    steps.run("formatting", || cargo(&["fmt", "--all", "--check"]))?;
    steps.run("architecture", architecture::check)?;
    steps.run("spelling", || {
        if std::process::Command::new("typos").arg("--version").output().is_err() {
            println!("skipped: `typos` is not installed (`pip install typos`)");
            return Ok(());
        }
        program("typos", &["--config", ".typos.toml", "."])
    })?;
    steps.run("clippy", || {
        let arguments =
            ["clippy", "--workspace", "--all-targets", "--profile", "sim", "--", "-D", "warnings"];
        cargo(&arguments)
    })
}

fn test() -> Result<(), Failed> {
    let mut steps = Steps::default();
    steps.run("build", || cargo(&["build", "--profile", "sim", "--workspace", "--all-targets"]))?;
    lint(&mut steps)?;
    steps.run("tests", || {
        let nextest = std::process::Command::new("cargo").args(["nextest", "--version"]).output();
        if nextest.is_ok_and(|output| output.status.success()) {
            cargo(&["nextest", "run", "--cargo-profile", "sim", "--workspace"])
        } else {
            cargo(&["test", "--profile", "sim", "--workspace", "--all-targets"])
        }
    })?;
    steps.run("simulation", || {
        let built = root().join("target/sim/sim");
        let first = commit_seed().to_string();
        program(&built.to_string_lossy(), &["run", "--fresh-from", &first])
    })?;
    steps.run("demo", demo::run)?;
    steps.print();
    println!("everything that CI runs has passed");
    Ok(())
}

/// Sources without a repository around them start here.
const COMMITLESS_SEED: u64 = 1_000_000;
