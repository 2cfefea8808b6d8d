//! What is printed of runs: one screen for a failure, a few lines for many that passed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::plan::FaultCount;
use crate::runner::RunReport;
use crate::trace::{Kind, Line};

/// Everything that somebody needs to understand a failure, on one screen: what contradicted what and when, the
/// last events that matter, the plan, and the line that reproduces it. Empty for a run that passed.
pub fn failure(report: &RunReport) -> String {
    let Err(failure) = &report.outcome else { return String::new() };
    let mut text = String::new();
    let at = format!("{} ms, after line #{}", failure.at_ms, failure.ordinal);
    writeln!(text, "FAILED  {} --seed {}  at {at}", report.scenario, report.seed).expect(INFALLIBLE);
    writeln!(text, "{}\n", failure.violation).expect(INFALLIBLE);
    let told: Vec<&Line> = report.lines.iter().filter(|line| matters(line)).collect();
    for line in &told[told.len().saturating_sub(LAST_LINES)..] {
        writeln!(text, "{line}").expect(INFALLIBLE);
    }
    writeln!(text, "\nplan       {}", report.plan.to_json()).expect(INFALLIBLE);
    writeln!(text, "reproduce  cargo xtask sim {} --seed {}", report.scenario, report.seed)
        .expect(INFALLIBLE);
    text
}

/// Figures over many runs.
#[derive(Default)]
pub struct Summary {
    runs: u64,
    traces: BTreeSet<String>,
    simulated_ms: Vec<u64>,
    faults: BTreeMap<&'static str, FaultCount>,
    judged: BTreeMap<(&'static str, &'static str), u64>,
    /// By scenario and state, how many runs reached it.
    reached: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

impl Summary {
    /// Counts one run.
    pub fn add(&mut self, report: &RunReport) {
        self.runs += 1;
        self.traces.insert(report.hash.clone());
        self.simulated_ms.push(report.simulated_ms);
        for (kind, count) in &report.faults {
            let sum = self.faults.entry(kind).or_default();
            sum.fired += count.fired;
            sum.bitten += count.bitten;
        }
        for (part, count) in &report.judged {
            *self.judged.entry(*part).or_default() += count;
        }
        let reached = self.reached.entry(report.scenario).or_default();
        for state in &report.reached {
            *reached.entry(state.clone()).or_default() += 1;
        }
    }

    /// How many runs were counted.
    pub const fn runs(&self) -> u64 {
        self.runs
    }

    /// The parts of invariants that judged nothing in any run: they held whatever happened.
    pub fn vacuous(&self) -> Vec<String> {
        let nothing = self.judged.iter().filter(|(_, count)| **count == 0);
        nothing.map(|((invariant, part), _)| format!("{invariant} of {part}")).collect()
    }

    /// The states of a scenario that no run reached.
    pub fn never_reached(&self, scenario: &str, states: &[&'static str]) -> Vec<&'static str> {
        let reached = self.reached.get(scenario);
        states
            .iter()
            .filter(|state| !reached.is_some_and(|seen| seen.contains_key(**state)))
            .copied()
            .collect()
    }

    /// The summary. `seconds` is the real time that the runs took, `cpus` on how many threads.
    pub fn print(&self, seconds: f64, cpus: usize) -> String {
        let mut times = self.simulated_ms.clone();
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or(0);
        let simulated: u64 = times.iter().sum();
        let per_cpu = seconds_of(simulated) / (seconds * whole(cpus as u64)).max(f64::MIN_POSITIVE);
        let minute = whole(self.runs) * 60.0 / seconds.max(f64::MIN_POSITIVE);
        let mut text = String::new();
        writeln!(text, "runs       {} in {seconds:.1} s: {minute:.0} a minute", self.runs).expect(INFALLIBLE);
        writeln!(
            text,
            "simulated  median {:.1} s a run, {per_cpu:.0} s per second and thread",
            seconds_of(median)
        )
        .expect(INFALLIBLE);
        writeln!(text, "traces     {} distinct of {}", self.traces.len(), self.runs).expect(INFALLIBLE);
        for (kind, count) in &self.faults {
            writeln!(text, "fault      {kind:<16} fired {:>6}  bitten {:>6}", count.fired, count.bitten)
                .expect(INFALLIBLE);
        }
        // Of one scenario; those of all would be a page.
        if let Some((_, states)) = self.reached.first_key_value().filter(|_| self.reached.len() == 1) {
            for (state, runs) in states {
                writeln!(text, "state      {state:<40} {runs:>6} runs").expect(INFALLIBLE);
            }
        }
        text
    }
}

/// Lines that tell a story; writes of a store's pages and bytes on a pipe do not.
fn matters(line: &Line) -> bool {
    let noise = ["sqlite.", "stream.", "pipe.", "disk.unlock"];
    line.kind != Kind::Effect || !noise.iter().any(|start| line.text.starts_with(start))
}

fn whole(number: u64) -> f64 {
    number as f64
}

fn seconds_of(ms: u64) -> f64 {
    whole(ms) / 1000.0
}

/// What fits on a screen beside the contradiction, the plan and the line that reproduces it.
const LAST_LINES: usize = 40;

const INFALLIBLE: &str = "writing to a String cannot fail";
