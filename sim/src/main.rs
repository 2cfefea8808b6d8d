//! `sim`: runs scenarios by seed. `cargo xtask sim` and `cargo xtask replay` call it.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "the runner itself lives in the real world and measures real time"
)]

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use sim::timeline::{self, Summary};
use sim::{Job, RunReport, Scenario, corpus, run_many, scenarios, shrink, twice};

/// Runs the production code through restarts, kills and faults that one seed decides.
#[derive(Parser)]
#[command(name = "sim")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the corpus, fixed seeds and fresh seeds for a minute; or what the arguments say.
    Run(Run),
    /// Runs one entry of the corpus, or one seed of a scenario, and prints what happened.
    Replay(Replay),
    /// Names every scenario.
    List,
}

#[derive(Args, Default)]
struct Run {
    /// Only this scenario.
    scenario: Option<String>,
    /// Only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// These seeds, as A..B, without B.
    #[arg(long, value_parser = seeds)]
    seeds: Option<(u64, u64)>,
    /// Run the seed in two perturbed processes and compare their traces.
    #[arg(long)]
    twice: bool,
    /// How many threads run at once.
    #[arg(long, default_value_t = JOBS)]
    jobs: usize,
    /// How long fresh seeds are run, in seconds, when nothing else is asked for.
    #[arg(long, default_value_t = FRESH_SECONDS)]
    fresh: u64,
    /// The first fresh seed, instead of another one every time; CI names its commit's.
    #[arg(long)]
    fresh_from: Option<u64>,
    /// Where the trace of a single seed is written.
    #[arg(long)]
    trace: Option<PathBuf>,
}

#[derive(Args)]
struct Replay {
    /// A file of the corpus, or a scenario.
    what: String,
    /// Which seed of the scenario.
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        None => run(&Run { jobs: JOBS, fresh: FRESH_SECONDS, ..Run::default() }),
        Some(Command::Run(arguments)) => run(&arguments),
        Some(Command::Replay(arguments)) => replay(&arguments),
        Some(Command::List) => {
            for scenario in scenarios::all() {
                println!("{} ({})", scenario.name(), scenario.criterion());
            }
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Run) -> Result<(), String> {
    let chosen = chosen(arguments.scenario.as_deref())?;
    if arguments.twice {
        let seed = arguments.seed.or(arguments.seeds.map(|(first, _)| first)).unwrap_or(FIXED_SEEDS.0);
        return chosen.iter().try_for_each(|scenario| run_twice(scenario.name(), seed));
    }
    if let Some(seed) = arguments.seed {
        return chosen.iter().try_for_each(|scenario| one(scenario, seed, arguments.trace.as_deref()));
    }
    let mut campaign = Campaign::new(arguments.jobs, chosen.clone());
    if let Some((first, end)) = arguments.seeds {
        campaign.run("seeds", jobs(&chosen, first..end), None)?;
        return campaign.end();
    }
    if arguments.scenario.is_none() {
        campaign.run("corpus", corpus_jobs()?.into_iter(), None)?;
    }
    campaign.run("fixed seeds", jobs(&chosen, FIXED_SEEDS.0..FIXED_SEEDS.1), None)?;
    if let Some(first) = chosen.first() {
        run_twice(first.name(), FIXED_SEEDS.0)?;
    }
    let first = arguments.fresh_from.unwrap_or_else(fresh_seed);
    let limit = Duration::from_secs(arguments.fresh);
    campaign.run("fresh seeds", jobs(&chosen, first..u64::MAX), Some(limit))?;
    let vacuous = if arguments.scenario.is_none() { campaign.summary.vacuous() } else { Vec::new() };
    campaign.end()?;
    match vacuous.as_slice() {
        [] => Ok(()),
        vacuous => Err(format!("FAILED  nothing was judged, in no run, by {}", vacuous.join(", "))),
    }
}

/// One seed: the whole trace goes where it is wanted, a failure to the screen.
fn one(scenario: &Arc<dyn Scenario>, seed: u64, trace: Option<&Path>) -> Result<(), String> {
    let job = Job { scenario: Arc::clone(scenario), seed, plan: None };
    let report = single(job);
    if let Some(path) = trace {
        let text: String = report.lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    println!(
        "{} --seed {seed}: {} lines, {} ms simulated, {} steps, trace {}",
        report.scenario,
        report.lines.len(),
        report.simulated_ms,
        report.steps,
        report.hash
    );
    failed(&report)
}

fn replay(arguments: &Replay) -> Result<(), String> {
    let job = match arguments.seed {
        Some(seed) => {
            let scenario = chosen(Some(&arguments.what))?.remove(0);
            Job { scenario, seed, plan: None }
        }
        None => {
            let given = PathBuf::from(&arguments.what);
            let in_corpus = corpus::directory().join(format!("{}.json", arguments.what));
            let path = if given.exists() { given } else { in_corpus };
            let entry = corpus::load(&path)
                .map_err(|error| format!("{} cannot be replayed: {error}", path.display()))?;
            println!("{}\n", entry.story);
            job_of(entry)?
        }
    };
    let report = single(job);
    for line in &report.lines {
        println!("{line}");
    }
    println!("\ntrace {}", report.hash);
    failed(&report)
}

fn run_twice(scenario: &str, seed: u64) -> Result<(), String> {
    let executable = std::env::current_exe().map_err(|error| format!("where am I? {error}"))?;
    let lines = twice::twice(&executable, scenario, seed)
        .map_err(|different| format!("FAILED  {scenario} --seed {seed} --twice\n{different}"))?;
    println!("twice        {scenario} --seed {seed}: the same {lines} lines in two processes");
    Ok(())
}

/// Many runs, and what is told of them.
struct Campaign {
    jobs: usize,
    scenarios: Vec<Arc<dyn Scenario>>,
    began: Instant,
    running: Duration,
    summary: Summary,
}

impl Campaign {
    fn new(jobs: usize, scenarios: Vec<Arc<dyn Scenario>>) -> Self {
        Self {
            jobs: jobs.max(1),
            scenarios,
            began: Instant::now(),
            running: Duration::ZERO,
            summary: Summary::default(),
        }
    }

    /// Runs jobs until there are no more, the time is over or one fails.
    fn run(
        &mut self,
        what: &str,
        jobs: impl Iterator<Item = Job> + Send,
        limit: Option<Duration>,
    ) -> Result<(), String> {
        let began = Instant::now();
        let (mut done, mut shown) = (0_u64, Duration::ZERO);
        let mut failure = None;
        run_many(jobs, self.jobs, |report| {
            self.summary.add(&report);
            done += 1;
            let elapsed = began.elapsed();
            if elapsed >= shown + PROGRESS {
                shown = elapsed;
                eprint!("\r{what:<12} {done} runs, {:.0} s ", elapsed.as_secs_f64());
                let _terminal_gone = std::io::stderr().flush();
            }
            if report.outcome.is_err() {
                failure = Some(report);
                return ControlFlow::Break(());
            }
            match limit {
                Some(limit) if elapsed >= limit => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        self.running += began.elapsed();
        if shown > Duration::ZERO {
            eprint!("\r");
        }
        println!("{what:<12} {done} runs in {:.1} s", began.elapsed().as_secs_f64());
        let Some(report) = failure else { return Ok(()) };
        let scenario = self.scenarios.iter().find(|scenario| scenario.name() == report.scenario);
        let smallest = match scenario {
            Some(scenario) => shrink::shrink(&**scenario, report),
            None => report,
        };
        failed(&smallest)
    }

    fn end(self) -> Result<(), String> {
        print!("\n{}", self.summary.print(self.running.as_secs_f64(), self.jobs));
        for scenario in &self.scenarios {
            let never = self.summary.never_reached(scenario.name(), scenario.states());
            if !never.is_empty() {
                println!("never      {} did not reach: {}", scenario.name(), never.join(", "));
            }
        }
        println!("passed     in {:.0} s", self.began.elapsed().as_secs_f64());
        Ok(())
    }
}

/// One run on a sealed thread.
fn single(job: Job) -> RunReport {
    let mut only = None;
    run_many(std::iter::once(job), 1, |report| {
        only = Some(report);
        ControlFlow::Break(())
    });
    only.expect("one job gives one report")
}

fn failed(report: &RunReport) -> Result<(), String> {
    match &report.outcome {
        Ok(()) => Ok(()),
        Err(_) => Err(timeline::failure(report)),
    }
}

fn chosen(name: Option<&str>) -> Result<Vec<Arc<dyn Scenario>>, String> {
    let all = scenarios::all();
    let Some(name) = name else { return Ok(all) };
    let names: Vec<&str> = all.iter().map(|scenario| scenario.name()).collect();
    let known = names.join(", ");
    let found = all.into_iter().find(|scenario| scenario.name() == name);
    found
        .map(|scenario| vec![scenario])
        .ok_or_else(|| format!("no scenario is called {name}; there are: {known}"))
}

/// Every scenario by every seed, seed by seed.
fn jobs(
    chosen: &[Arc<dyn Scenario>],
    seeds: std::ops::Range<u64>,
) -> impl Iterator<Item = Job> + Send + use<> {
    let chosen = chosen.to_vec();
    seeds.flat_map(move |seed| {
        let job = |scenario: &Arc<dyn Scenario>| Job { scenario: Arc::clone(scenario), seed, plan: None };
        chosen.iter().map(job).collect::<Vec<_>>()
    })
}

fn corpus_jobs() -> Result<Vec<Job>, String> {
    let directory = corpus::directory();
    let entries = corpus::load_all(&directory).map_err(|error| format!("the corpus: {error}"))?;
    entries.into_iter().map(|(_, entry)| job_of(entry)).collect()
}

fn job_of(entry: corpus::Entry) -> Result<Job, String> {
    let scenario = chosen(Some(&entry.scenario))?.remove(0);
    Ok(Job { scenario, seed: entry.seed, plan: Some(entry.plan) })
}

/// Another first seed every time, small enough to type.
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    FIXED_SEEDS.1 + now.as_millis().try_into().unwrap_or(0_u64) % 1_000_000 * 1_000
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let (first, end) = text.split_once("..").ok_or("as A..B, without B")?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
    Ok((number(first)?, number(end)?))
}

/// As many as the smallest machine that runs this has.
const JOBS: usize = 2;

/// With the corpus, the fixed seeds and the run in two processes this stays well under two minutes.
const FRESH_SECONDS: u64 = 60;

/// The same ones every time: a change that breaks something common fails here, at the same seed for everybody.
const FIXED_SEEDS: (u64, u64) = (1, 26);

/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(1);
