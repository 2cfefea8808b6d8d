//! What the tests share: a run, and what is printed of it.

use std::collections::{BTreeMap, BTreeSet};

use sim::scenarios::{PERIOD_CASES, Periods};
use sim::{Fault, Kind, Plan, Scenario, run_one};
use snapshots::{SHOWN, Told, criterion, yes};

/// What a snapshot shows, line by line.
pub(crate) struct Shown {
    id: &'static str,
    text: String,
}

impl Shown {
    pub(crate) fn of(id: &'static str) -> Self {
        Self { id, text: format!("{id} {}\n\n", criterion(id).sentence) }
    }

    pub(crate) fn say(&mut self, what: &str, value: impl std::fmt::Display) {
        self.text.push_str(&format!("{what}: {value}\n"));
    }

    pub(crate) fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    pub(crate) fn rule(&mut self) {
        self.text.push('\n');
    }

    pub(crate) fn fates(&mut self, told: &Told) {
        for program in ["backend-recovery", "controld", "scripted-agent"] {
            for fate in told.fates(program) {
                self.line(&fate);
            }
        }
    }

    /// What the backend has to say of the server that it refused.
    pub(crate) fn refusal(&mut self, told: &Told) {
        for line in told.logged("backend-recovery", "control server refused") {
            self.say(&format!("{} refuses what answers, because of", line.process), line.field("reason"));
        }
    }

    /// The plan that recovery printed, sorted: its own order is that of drawn ids.
    pub(crate) fn plan(&mut self, told: &Told) {
        let steps = told.logged("backend-recovery", "recovery plan");
        let steps: BTreeSet<String> = steps.map(|step| told.plain(step.field("step"))).collect();
        steps.iter().for_each(|step| self.line(step));
    }

    /// What became of everybody, and whether anybody was stopped.
    pub(crate) fn lives_on(&mut self, told: &Told) {
        self.fates(told);
        self.say(
            "signals to the control server or an agent",
            signals_to(told, &["controld", "scripted-agent"]),
        );
        self.say("stops that the control server was asked for", stops(told));
        self.say("agents say something while no backend runs", yes(agents_go_on(told)));
    }

    /// What holds of the unowned period for these settings.
    pub(crate) fn periods(&mut self, cases: &[usize]) {
        for case in cases {
            let (period, idle) = PERIOD_CASES[*case];
            let told = told(&Periods, calm().knob("case", *case as u64));
            let or_default = |value: &'static str| if value.is_empty() { "the default" } else { value };
            let listening = told.logged("controld", "listening").next().expect("the server listens");
            let holds = listening.field("unowned_period_ms");
            let what = format!("period {}, idle timeout {}", or_default(period), or_default(idle));
            self.say(&what, format!("{holds} ms hold, idle reaping {}", listening.field("idle_reaping")));
            for line in told.logged("controld", "unowned period adjusted") {
                self.say("  recorded", line.field("adjustment"));
            }
        }
    }

    pub(crate) fn compare(self) {
        let name = criterion(self.id).test_name();
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "../snapshots" }, {
            insta::assert_snapshot!(name, self.text);
        });
    }
}

pub(crate) fn told(scenario: &dyn Scenario, plan: Plan) -> Told {
    let report = run_one(scenario, SEED, Some(plan));
    if let Err(failure) = &report.outcome {
        show_failure(&format!("the run of {} fails: {}", scenario.name(), failure.violation));
    }
    Told::by(report)
}

/// A run that fails changes the snapshot of the criterion that it was to show.
fn show_failure(failure: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default().rsplit("::").next().unwrap_or_default();
    let Some(shown) = SHOWN.iter().find(|criterion| criterion.test_name() == test) else { return };
    Shown { id: shown.id, text: format!("{} {}\n\n{failure}\n", shown.id, shown.sentence) }.compare();
}

pub(crate) fn calm() -> Plan {
    Plan { tick_ms: 5, max_delay_ticks: 1, faults: Vec::new(), knobs: BTreeMap::new() }
}

pub(crate) fn plan(sessions: u64) -> Plan {
    calm().knob("sessions", sessions)
}

/// Two sessions, and a kill at a simulated time at which both turns are open.
pub(crate) fn kill_in_mid_turn() -> Plan {
    plan(2).with(Fault::KillAt { process: "backend-recovery".to_owned(), at_ms: IN_MID_TURN_MS })
}

pub(crate) fn open_turns_at(told: &Told, ordinal: u64) -> usize {
    let before = |message: &'static str| {
        told.logged("controld", message).filter(|line| line.ordinal < ordinal).count()
    };
    before("turn opened") - before("turn ended")
}

pub(crate) fn signals_to(told: &Told, programs: &[&str]) -> usize {
    let received =
        told.lines.iter().filter(|line| line.kind == Kind::Process && line.text == "received a signal");
    received.filter(|line| programs.contains(&line.program())).count()
}

pub(crate) fn stops(told: &Told) -> usize {
    told.logged("controld", "instance stopping").count() + told.logged("controld", "shutdown decided").count()
}

pub(crate) fn agents_go_on(told: &Told) -> bool {
    told.while_nobody_is_attached().iter().any(|line| line.logged("scripted-agent", "agent said"))
}

/// The agent process of each session, as some line tells it.
pub(crate) fn agents(told: &Told, text: &str, field: &str) -> BTreeMap<String, String> {
    let lines = told.lines.iter().filter(|line| line.text == text);
    lines.map(|line| (told.plain(line.field("session")), line.field(field).to_owned())).collect()
}

/// Any seed shows the same: what is printed does not vary. This one is named so that a run can be looked at.
pub(crate) const SEED: u64 = 2;

pub(crate) const IN_MID_TURN_MS: u64 = 600;

/// Where the port thief listens: the recorded endpoint of the server that died.
pub(crate) const THIEF_ADDRESS: &str = "127.0.0.1:39429";

/// `{"challenge":"` and 64 hexadecimal digits and `"}`.
pub(crate) const CHALLENGE_BODY: usize = 14 + 64 + 2;

pub(crate) const WORKSPACE: &str = "/home/user/project";

/// The thief never answers a challenge.
pub(crate) const SILENCE: u64 = 4;

/// The first of these plans whose run has such a line: points move with the code, what happens there does not.
pub(crate) fn first_with(
    scenario: &dyn Scenario,
    plans: impl Iterator<Item = Plan>,
    wanted: impl Fn(&sim::Line) -> bool,
) -> Told {
    for plan in plans {
        let report = run_one(scenario, SEED, Some(plan));
        if report.lines.iter().any(&wanted) {
            return Told::by(report);
        }
    }
    panic!("no plan leads to such a line");
}

/// A kill of the backend's second life before each effect of it.
pub(crate) fn kills_in_second_life(phase: u64) -> impl Iterator<Item = Plan> {
    (1..200).map(move |effect| {
        let (process, side) = ("backend-recovery".to_owned(), sim::Side::Before);
        calm().knob("phase", phase).with(Fault::Kill { process, life: 2, effect, side })
    })
}

/// With agents that do not hear SIGTERM: stopping them takes their whole grace.
pub(crate) fn deaf(plan: Plan) -> Plan {
    plan.knob("deaf", 1)
}

/// Phases of the scenario of crash points.
pub(crate) const ADOPTION: u64 = 1;
pub(crate) const SHUTDOWN: u64 = 2;

/// The thief says that it is somebody else, or nobody, or that it can do nothing.
pub(crate) const ANOTHER_IDENTITY: u64 = 5;
pub(crate) const NO_IDENTITY: u64 = 6;
pub(crate) const NO_CAPABILITIES: u64 = 7;

/// The thief makes a proof up.
pub(crate) const INVENTED: u64 = 2;
