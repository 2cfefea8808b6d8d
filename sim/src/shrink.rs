//! A failing plan made smaller: faults are left out one by one as long as the run still fails the same way.

use crate::plan::Plan;
use crate::runner::{RunReport, run_one};
use crate::scenario::Scenario;

/// The smallest report found that breaks the same invariant as `failed`, after at most [`MAX_RUNS`] runs.
pub fn shrink(scenario: &dyn Scenario, failed: RunReport) -> RunReport {
    let Err(failure) = &failed.outcome else { return failed };
    let invariant = failure.violation.invariant.clone();
    let mut smallest = failed;
    let mut index = 0;
    for _ in 0..MAX_RUNS {
        if index >= smallest.plan.faults.len() {
            break;
        }
        let plan = without(&smallest.plan, index);
        let report = run_one(scenario, smallest.seed, Some(plan));
        match &report.outcome {
            Err(failure) if failure.violation.invariant == invariant => smallest = report,
            _ => index += 1,
        }
    }
    smallest
}

fn without(plan: &Plan, index: usize) -> Plan {
    let mut plan = plan.clone();
    plan.faults.remove(index);
    plan
}

/// A plan has a handful of faults, and each is tried once or twice; this bounds a wild one.
const MAX_RUNS: usize = 64;
