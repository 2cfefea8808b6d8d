//! Figures, each beside something that was measured in the same run on the same machine. Nothing here fails because
//! it was slow: a figure is for people to read. What must not grow, and what must be gone, fails.

mod adoptions;
mod observed;
mod restart;
mod stops;
mod throughput;

use std::time::Duration;

use crate::cargo::Failed;
use crate::programs::Programs;
use crate::stage::Stage;
use crate::wait::{catch_interrupt, check_interrupt};

/// What to measure, and how.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// One figure alone.
    figure: Option<Figure>,
    /// How many adoptions in a row.
    #[arg(long, default_value_t = 1000)]
    rounds: u32,
    /// How many agents that ignore SIGTERM are stopped together.
    #[arg(long, default_value_t = 50)]
    agents: usize,
    /// What the programs are built with; only figures of `release` are worth comparing.
    #[arg(long, default_value = "release")]
    profile: String,
}

/// The figures, in the order in which they are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Figure {
    /// From a backend's start until its session is re-tracked.
    Restart,
    /// Events a second from the agent to durable.
    Throughput,
    /// What a control server and its home take after many adoptions.
    Adoptions,
    /// How long many agents that ignore SIGTERM take to stop.
    Stops,
}

/// Measures, prints a line or a table per figure, and fails at the end with what did not hold.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failed> {
    catch_interrupt()?;
    let programs = Programs::build(&arguments.profile)?;
    let mut failures = Vec::new();
    for figure in [Figure::Restart, Figure::Throughput, Figure::Adoptions, Figure::Stops] {
        if arguments.figure.is_some_and(|only| only != figure) {
            continue;
        }
        let measured = match figure {
            Figure::Restart => Stage::with(&programs, |stage| restart::measure(stage)),
            Figure::Throughput => Stage::with(&programs, |stage| throughput::measure(stage)),
            Figure::Adoptions => Stage::with(&programs, |stage| adoptions::measure(stage, arguments.rounds)),
            Figure::Stops => stops::measure(&programs, arguments.agents),
        };
        check_interrupt()?;
        failures.extend(measured.err().map(|failed| failed.to_string()));
    }
    if failures.is_empty() { Ok(()) } else { Err(Failed(failures.join("; "))) }
}

fn milliseconds(value: Duration) -> f64 {
    value.as_secs_f64() * 1e3
}

/// The bound of every wait: far above what a loaded machine needs.
const LIMIT: Duration = Duration::from_secs(120);
