//! Small scenarios made of closures.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sim::{
    Director, Kind, Line, Observer, Plan, Played, Program, RunReport, Scenario, Streams, Violation, run_one,
};

type Play = dyn Fn(Director) -> Played + Send + Sync;

/// A scenario without invariants: its programs, a plan that does not depend on the seed, and what is done.
pub(crate) struct Story {
    programs: Vec<Program>,
    plan: Option<Plan>,
    play: Arc<Play>,
}

impl Story {
    pub(crate) fn new<F, Fut>(programs: impl IntoIterator<Item = Program>, play: F) -> Self
    where
        F: Fn(Director) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Violation>> + 'static,
    {
        Self {
            programs: programs.into_iter().collect(),
            plan: None,
            play: Arc::new(move |director| Box::pin(play(director))),
        }
    }

    pub(crate) fn planned(mut self, plan: Plan) -> Self {
        self.plan = Some(plan);
        self
    }

    pub(crate) fn run(&self, seed: u64) -> RunReport {
        run_one(self, seed, None)
    }

    /// Runs it and requires that it passes.
    pub(crate) fn passes(&self, seed: u64) -> RunReport {
        let report = self.run(seed);
        assert!(report.outcome.is_ok(), "{}", sim::timeline::failure(&report));
        report
    }
}

impl Scenario for Story {
    fn name(&self) -> &'static str {
        "story"
    }

    fn criterion(&self) -> &'static str {
        "law"
    }

    fn programs(&self) -> Vec<Program> {
        self.programs.clone()
    }

    fn observers(&self) -> Vec<Box<dyn Observer>> {
        Vec::new()
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn plan(&self, streams: &Streams) -> Plan {
        self.plan.clone().unwrap_or_else(|| Plan::calm(&mut streams.stream("faults")))
    }

    fn run(&self, director: Director) -> Played {
        (self.play)(director)
    }
}

/// A plan with this grain and without extra delays.
pub(crate) fn grain(tick_ms: u64) -> Plan {
    Plan { tick_ms, max_delay_ticks: 0, faults: Vec::new(), knobs: std::collections::BTreeMap::new() }
}

/// The lines that a program logged with this message.
pub(crate) fn logged<'a>(report: &'a RunReport, program: &'a str, message: &'a str) -> Vec<&'a Line> {
    report.lines.iter().filter(|line| line.logged(program, message)).collect()
}

/// The effects of a program in order.
pub(crate) fn effects(report: &RunReport, program: &str) -> Vec<String> {
    let of_it = |line: &&Line| line.kind == Kind::Effect && line.program() == program;
    report.lines.iter().filter(of_it).map(|line| line.text.clone()).collect()
}
