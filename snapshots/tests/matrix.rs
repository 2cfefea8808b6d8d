//! The crash matrix: a SIGKILL of the backend, of the control server and of both at every point between two effects of
//! a start, an adoption and an ownership shutdown, and a lost request, a lost reply and a failed write at each. Printed
//! from one run per point; each run also has to hold every invariant and its scenario's own requirements.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use sim::scenarios::{CrashPoint, Phase};
use sim::{Fault, Job, Kind, Line, Plan, RunReport, Side, run_many, run_one};

#[test]
fn crash_matrix_start() {
    show(Phase::Start, "crash_matrix_start");
}

#[test]
fn crash_matrix_adoption() {
    show(Phase::Adoption, "crash_matrix_adoption");
}

#[test]
fn crash_matrix_shutdown() {
    show(Phase::Shutdown, "crash_matrix_shutdown");
}

fn show(phase: Phase, name: &str) {
    let text = Matrix::of(phase).print();
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "matrix" }, {
        insta::assert_snapshot!(name, text);
    });
}

/// One phase, and what a run of it without faults has.
struct Matrix {
    phase: Phase,
    calm: RunReport,
    until: BTreeMap<String, u64>,
    from: BTreeMap<String, u64>,
}

impl Matrix {
    fn of(phase: Phase) -> Self {
        let calm = run_one(&CrashPoint, SEED, Some(plan(phase)));
        assert!(calm.outcome.is_ok(), "without a fault: {:?}", calm.outcome);
        let (until, from) = (noted(&calm, "phase ended"), noted(&calm, "phase begins"));
        Self { phase, calm, until, from }
    }

    fn print(&self) -> String {
        let mut text = format!("{:?}: what becomes of it after one fault\n", self.phase);
        let backend = self.effects("backend-recovery", self.phase.life(), 0, self.until["backend_effects"]);
        let kills = ["backend", "server", "both"].map(|victims| {
            let cells = backend.iter().map(|(effect, _)| self.kill("backend-recovery", *effect, victims));
            self.outcomes(cells.collect())
        });
        text.push_str("\nSIGKILL right before an effect of the backend, of whom:\n");
        table(&mut text, &["backend", "server", "both"], &backend, &kills);
        let from = self.from.get("server_effects").copied().unwrap_or(0);
        let server = self.effects("controld", 1, from, self.until["server_effects"]);
        let kills = ["server", "both"].map(|victims| {
            let cells = server.iter().map(|(effect, _)| self.kill("controld", *effect, victims));
            self.outcomes(cells.collect())
        });
        text.push_str("\nSIGKILL right before an effect of the control server, of whom:\n");
        table(&mut text, &["server", "both"], &server, &kills);
        self.messages(&mut text);
        self.writes(&mut text);
        text
    }

    fn messages(&self, text: &mut String) {
        let life = self.phase.life();
        let connects = self.count("net.connect", self.until["backend_connects"]);
        let process = || "backend-recovery".to_owned();
        let lost = connects.iter().map(|(connect, _)| Fault::ConnectRefused {
            process: process(),
            life,
            connect: *connect,
        });
        let unanswered = connects.iter().map(|(connect, _)| Fault::LostReply {
            process: process(),
            life,
            connect: *connect,
        });
        let (lost, unanswered) = (lost.map(|fault| vec![fault]), unanswered.map(|fault| vec![fault]));
        let columns = [self.outcomes(lost.collect()), self.outcomes(unanswered.collect())];
        text.push_str("\nthe backend's connection, of which is lost:\n");
        table(text, &["request", "reply"], &connects, &columns);
    }

    fn writes(&self, text: &mut String) {
        let from = self.from.get("server_writes").copied().unwrap_or(0);
        let sides = [
            ("backend", "backend-recovery", self.phase.life(), 1..=self.until["backend_writes"]),
            ("control server", "controld", 1, from + 1..=self.until["server_writes"]),
        ];
        for (whose, process, life, writes) in sides {
            let rows: Vec<(u64, String)> = writes.clone().map(|write| (write, "write".to_owned())).collect();
            let failing = writes
                .map(|write| vec![Fault::WriteFails { process: process.to_owned(), life, write }])
                .collect();
            text.push_str(&format!("\nthe {whose}'s write to its disk, which fails once:\n"));
            table(text, &["fails"], &rows, &[self.outcomes(failing)]);
        }
    }

    /// The effects of a process's life, by ordinal, with what they are.
    fn effects(&self, program: &str, life: u32, from: u64, until: u64) -> Vec<(u64, String)> {
        let process = format!("{program}#{life}");
        let effects =
            self.calm.lines.iter().filter(|line| line.kind == Kind::Effect && line.process == process);
        let numbered = effects.map(|line| (line.field("effect").parse().expect("an ordinal"), told(line)));
        numbered.filter(|(effect, _)| (from + 1..=until).contains(effect)).collect()
    }

    /// Those effects of the backend that have this name, counted among themselves.
    fn count(&self, effect: &str, until: u64) -> Vec<(u64, String)> {
        let process = format!("backend-recovery#{}", self.phase.life());
        let wanted =
            |line: &&Line| line.kind == Kind::Effect && line.process == process && line.text == effect;
        let told = self.calm.lines.iter().filter(wanted).map(told);
        (1..=until).zip(told).collect()
    }

    fn kill(&self, process: &str, effect: u64, victims: &str) -> Vec<Fault> {
        let (process, life) = match process {
            "controld" => (process.to_owned(), 1),
            _ => (process.to_owned(), self.phase.life()),
        };
        let side = Side::Before;
        let itself = Fault::Kill { process: process.clone(), life, effect, side };
        let (own, other) = match process.as_str() {
            "controld" => ("server", "backend-recovery"),
            _ => ("backend", "controld"),
        };
        let victim = other.to_owned();
        let other = Fault::KillOther { process, life, effect, side, victim };
        match victims {
            "both" => vec![other, itself],
            victims if victims == own => vec![itself],
            _ => vec![other],
        }
    }

    /// One run for each cell.
    fn outcomes(&self, cells: Vec<Vec<Fault>>) -> Vec<String> {
        let count = cells.len() as u64;
        let plans: Vec<Plan> = cells
            .into_iter()
            .map(|faults| faults.into_iter().fold(plan(self.phase), Plan::with))
            .zip(0_u64..)
            // Told apart when the reports come, in whatever order.
            .map(|(plan, cell)| plan.knob("cell", cell))
            .collect();
        let jobs = plans.into_iter().map(|plan| {
            let scenario: Arc<dyn sim::Scenario> = Arc::new(CrashPoint);
            Job { scenario, seed: SEED, plan: Some(plan) }
        });
        let mut outcomes = BTreeMap::new();
        run_many(jobs, THREADS, |report| {
            assert!(report.outcome.is_ok(), "{}", sim::timeline::failure(&report));
            outcomes.insert(report.plan.knobs["cell"], outcome(&report));
            ControlFlow::Continue(())
        });
        assert_eq!(outcomes.len() as u64, count);
        outcomes.into_values().collect()
    }
}

/// What the run came to; a fault that never came is said to be one.
fn outcome(report: &RunReport) -> String {
    let told = report.lines.iter().rfind(|line| line.kind == Kind::Note && line.text == "outcome");
    let outcome = told.expect("a run that passed tells its outcome").field("outcome").to_owned();
    let fired = report.faults.values().any(|count| count.fired > 0);
    if fired { outcome } else { format!("{outcome} (no fault)") }
}

/// An effect in words that do not vary.
fn told(line: &Line) -> String {
    let path = line.field("path").rsplit('/').next().unwrap_or_default();
    let varies = |name: &str| name.bytes().any(|byte| byte.is_ascii_digit());
    let what = match (line.text.as_str(), path) {
        (_, path) if !path.is_empty() && !varies(path) => path.to_owned(),
        ("secret.store" | "secret.remove", _) => "a credential".to_owned(),
        ("net.connect", _) => line.field("to").split('#').next().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    format!("{} {what}", line.text).trim_end().to_owned()
}

/// A line for each run of equal effects with equal outcomes.
fn table(text: &mut String, columns: &[&str], rows: &[(u64, String)], outcomes: &[Vec<String>]) {
    let head: Vec<String> = columns.iter().map(|column| format!("{column:24}")).collect();
    text.push_str(format!("  {:9} {:34} {}", "effect", "", head.join(" ")).trim_end());
    text.push('\n');
    let mut at = 0;
    while at < rows.len() {
        let cells = |row: usize| outcomes.iter().map(|column| column[row].clone()).collect::<Vec<_>>();
        let (now, what) = (cells(at), &rows[at].1);
        let mut end = at;
        while end + 1 < rows.len() && rows[end + 1].1 == *what && cells(end + 1) == now {
            end += 1;
        }
        let (first, last) = (rows[at].0, rows[end].0);
        let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
        let now: Vec<String> = now.iter().map(|cell| format!("{cell:24}")).collect();
        text.push_str(format!("  {range:9} {what:34} {}", now.join(" ")).trim_end());
        text.push('\n');
        at = end + 1;
    }
}

fn noted(report: &RunReport, text: &str) -> BTreeMap<String, u64> {
    let line = report.lines.iter().find(|line| line.kind == Kind::Note && line.text == text);
    let fields = line.map(|line| line.fields.clone()).unwrap_or_default();
    fields.into_iter().map(|(name, value)| (name, value.parse().expect("a count"))).collect()
}

fn plan(phase: Phase) -> Plan {
    let index = Phase::ALL.iter().position(|one| *one == phase).expect("a phase is one of all");
    let plan = Plan { tick_ms: 5, max_delay_ticks: 1, faults: Vec::new(), knobs: BTreeMap::new() };
    plan.knob("phase", index as u64)
}

/// Any seed goes through every point of its own run; this one is named so that a run can be looked at.
const SEED: u64 = 2;

/// As many as the smallest machine that runs this has.
const THREADS: usize = 2;
