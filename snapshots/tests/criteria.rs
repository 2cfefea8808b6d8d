//! One test per criterion: a run, and what its trace shows.

use std::collections::{BTreeMap, BTreeSet};

use sim::scenarios::{
    BackendKilledInMidTurn, GracefulShutdown, OtherInstance, PortThief, SecondBackend, Superseded, Unowned,
};
use sim::{Fault, Kind, Line, Plan, Scenario, run_one};
use snapshots::{Told, criterion, yes};

#[test]
fn s_001_1() {
    let told = told(&GracefulShutdown, plan(2));
    let mut shown = Shown::of("S-001.1");
    let end = told.end_of("backend-recovery#1").expect("the backend was asked to stop");
    shown.say("turns open when the backend is asked to stop", open_turns_at(&told, end.ordinal));
    shown.lives_on(&told);
    shown.compare();
}

#[test]
fn s_001_2() {
    let told = told(&BackendKilledInMidTurn, kill_in_mid_turn());
    let mut shown = Shown::of("S-001.2");
    let end = told.end_of("backend-recovery#1").expect("the backend was killed");
    shown.say("turns open when the backend is killed", open_turns_at(&told, end.ordinal));
    let after =
        told.lines.iter().filter(|line| line.process == "backend-recovery#1" && line.ordinal > end.ordinal);
    shown.say("effects of the killed backend after its end", after.count());
    shown.lives_on(&told);
    shown.compare();
}

#[test]
fn s_001_3() {
    let told = told(&BackendKilledInMidTurn, kill_in_mid_turn());
    let mut shown = Shown::of("S-001.3");
    let bounded =
        told.logged("controld", "log file bounded").next().expect("the log is bounded at the start");
    shown.say("file", bounded.field("path"));
    shown.say("bound in bytes", bounded.field("file_bytes"));
    shown.say("backups kept", bounded.field("backups"));
    shown.say("days kept", bounded.field("days"));
    let writers: BTreeSet<&str> = told
        .lines
        .iter()
        .filter(|line| line.kind == Kind::Effect && line.field("path") == bounded.field("path"))
        .map(Line::program)
        .collect();
    shown.say("programs that write it", format!("{writers:?}"));
    let unattached = told.while_nobody_is_attached();
    let written = unattached.iter().any(|line| {
        line.process == "controld#1"
            && line.text == "disk.append"
            && line.field("path") == bounded.field("path")
    });
    shown.say("written while no backend is attached", yes(written));
    shown.say("the control server", told.fates("controld").join(", "));
    let status = told.noted("status").next().expect("the operator looks at the status");
    shown.say("the location that the record of the adopted server holds", status.field("log"));
    shown.compare();
}

#[test]
fn s_001_4() {
    let told = told(&BackendKilledInMidTurn, kill_in_mid_turn());
    let mut shown = Shown::of("S-001.4");
    let adopted = told.logged("backend-recovery", "control server adopted").count();
    shown.say("control servers adopted", adopted);
    let before = agents(&told, "session opened", "agent");
    let after = agents(&told, "session re-tracked", "pid");
    for (session, pid) in &before {
        let same = after.get(session) == Some(pid);
        shown.say(&format!("{session}: re-tracked on the agent process it had"), yes(same));
    }
    let end = told.end_of("backend-recovery#1").expect("the backend was killed").ordinal;
    let later = |program: &str, message: &str| {
        told.logged(program, message).filter(|line| line.ordinal > end).count()
    };
    shown.say("agent processes started after the kill", later("controld", "agent started"));
    shown.say("conversations opened or resumed after the kill", later("controld", "agent ready"));
    shown.say("prompts sent to an agent after the kill", later("scripted-agent", "agent is prompted"));
    shown.compare();
}

#[test]
fn s_001_5() {
    let told = told(&BackendKilledInMidTurn, kill_in_mid_turn());
    let mut shown = Shown::of("S-001.5");
    let retained = |lines: &[Line]| -> BTreeMap<String, Vec<u64>> {
        let mut places: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for line in lines.iter().filter(|line| line.logged("controld", "event retained")) {
            let instance = told.plain(line.field("instance"));
            places.entry(instance).or_default().push(line.field("seq").parse().expect("a seq is a number"));
        }
        places
    };
    let all = retained(&told.lines);
    for (instance, places) in retained(told.while_nobody_is_attached()) {
        shown.say(
            &format!("{instance}: events produced while no backend is attached"),
            yes(!places.is_empty()),
        );
        let whole = &all[&instance];
        let expected: Vec<u64> = (1..=whole.len() as u64).collect();
        shown.say(&format!("{instance}: places from 1 without a gap"), yes(*whole == expected));
    }
    let mut whole = BTreeMap::new();
    for read in told.noted("transcript read") {
        let session = read.field("session");
        let texts = |line: &&Line| line.field("session") == session;
        let said: Vec<&str> = told
            .logged("scripted-agent", "agent said")
            .filter(texts)
            .map(|line| line.field("text"))
            .collect();
        let shown_texts: Vec<&str> =
            told.noted("transcript chunk").filter(texts).map(|line| line.field("text")).collect();
        whole.insert(told.plain(session), said == shown_texts);
    }
    for (session, whole) in whole {
        shown.say(&format!("{session}: the transcript is what its agent said, in its order"), yes(whole));
    }
    shown.compare();
}

#[test]
fn s_002_1() {
    let told = told(&BackendKilledInMidTurn, kill_in_mid_turn());
    let mut shown = Shown::of("S-002.1");
    let created = told.logged("controld", "instance created").map(|line| {
        let (instance, session) = (line.field("instance"), line.field("session"));
        told.plain(&format!("{instance} is created for {session}"))
    });
    created.collect::<BTreeSet<String>>().iter().for_each(|line| shown.line(line));
    shown.rule();
    shown.plan(&told);
    shown.compare();
}

#[test]
fn s_002_2() {
    let told = told(&OtherInstance, Plan { tick_ms: 5, max_delay_ticks: 2, ..calm() });
    let mut shown = Shown::of("S-002.2");
    let recorded =
        told.logged("backend-recovery", "executor record written").next().expect("a record is written");
    shown.say("the record names", told.plain(recorded.field("instance")));
    let live = told.logged("controld", "instance created").last().expect("an instance is created");
    let reported = told.plain(live.field("session"));
    shown.say(
        "the one live instance",
        format!("{}, which reports {reported}", told.plain(live.field("instance"))),
    );
    shown.rule();
    shown.plan(&told);
    let retracked = told.logged("backend-recovery", "session re-tracked").next().expect("it is re-tracked");
    let (session, instance) = (retracked.field("session"), retracked.field("instance"));
    shown.say(&format!("{} is re-tracked on", told.plain(session)), told.plain(instance));
    shown.compare();
}

#[test]
fn o_001_4() {
    let told = told(&PortThief, calm());
    let mut shown = Shown::of("O-001.4");
    shown.refusal(&told);
    let heard = told.logged("port-thief", "thief heard").map(|line| line.field("path"));
    let heard: BTreeSet<&str> = heard.collect();
    shown.say("requests that it ever got", format!("{heard:?}"));
    let started =
        told.logged("backend-recovery", "control server started").last().expect("an own server is started");
    let elsewhere = started.field("address") != THIEF_ADDRESS;
    shown.say("an own server is started on another port", yes(elsewhere));
    shown.compare();
}

#[test]
fn o_001_6() {
    let told = told(&PortThief, calm());
    let mut shown = Shown::of("O-001.6");
    shown.refusal(&told);
    let refusals = told.logged("backend-recovery", "control server refused");
    shown.say("reasons recorded", refusals.filter(|line| line.process == "backend-recovery#2").count());
    shown.compare();
}

#[test]
fn o_001_10() {
    // Told nothing, the backend asks again.
    let told = told(&PortThief, calm().knob("answer", SILENCE));
    let mut shown = Shown::of("O-001.10");
    let heard: Vec<&Line> = told.logged("port-thief", "thief heard").collect();
    let with_credential = heard.iter().filter(|line| line.field("credential") != "false").count();
    shown.say("requests to the thief that carried a credential", with_credential);
    let challenges: Vec<&str> = heard
        .iter()
        .filter(|line| line.field("path") == "/ownership/prove")
        .map(|line| line.field("body"))
        .collect();
    let fresh: BTreeSet<&&str> = challenges.iter().collect();
    shown.say("challenges that it got", challenges.len());
    shown.say("different ones among them", fresh.len());
    let bytes = challenges.iter().all(|body| body.len() == CHALLENGE_BODY);
    shown.say("each of 32 bytes, and nothing else in the request", yes(bytes));
    shown.refusal(&told);
    shown.compare();
}

#[test]
fn o_002_1() {
    let told = told(&Superseded, calm());
    let mut shown = Shown::of("O-002.1");
    let rotated = told.logged("controld", "credential rotated").next().expect("the adopter rotates");
    shown.say("the adopter's rotation", rotated.field("rotation"));
    let driven = |by: &str| {
        let driven = told.logged("controld", "driven").filter(|line| line.field("by") == by);
        let (before, after): (Vec<&Line>, Vec<&Line>) =
            driven.partition(|line| line.ordinal < rotated.ordinal);
        (before.len(), after.len())
    };
    let (superseded, adopter) = (driven("driver r0"), driven("driver r1"));
    shown.say("before it, the old credential drives", yes(superseded.0 > 0));
    shown.say("operations of the old credential afterwards", superseded.1);
    shown.say("afterwards the new credential drives", yes(adopter.1 > 0));
    let lets_go = told.logged("backend-recovery", "superseded by another backend").count();
    shown.say("backends that let go of their server", lets_go);
    shown.compare();
}

#[test]
fn o_002_2() {
    let told = told(&Superseded, calm());
    let mut shown = Shown::of("O-002.2");
    let rotated = told.logged("controld", "credential rotated").next().expect("the adopter rotates");
    shown.say("streams open when the credential is replaced", rotated.field("streams"));
    let closed =
        told.logged("controld", "stream detached").filter(|line| line.field("reason") == "superseded");
    let closed: Vec<&Line> = closed.collect();
    shown.say("streams closed by the replacement", closed.len());
    let before = closed.iter().all(|line| line.ordinal < rotated.ordinal && line.time_ms == rotated.time_ms);
    shown.say("closed in the same step, before the replacement is answered", yes(before));
    let registered =
        told.logged("controld", "stream registered").filter(|line| line.ordinal > rotated.ordinal);
    let by: BTreeSet<&str> = registered.map(|line| line.field("by")).collect();
    shown.say("who opens streams afterwards", format!("{by:?}"));
    shown.compare();
}

#[test]
fn o_003_1() {
    let told = told(&Unowned, plan(1));
    let mut shown = Shown::of("O-003.1");
    let decided = told.logged("controld", "shutdown decided").next().expect("the server decides to end");
    let period =
        told.logged("controld", "listening").next().expect("the server listens").field("unowned_period_ms");
    shown.say("unowned period in ms", period);
    let renewals = ["handshake accepted", "ownership claimed", "credential rotated"];
    let renewed = told
        .lines
        .iter()
        .rfind(|line| {
            line.ordinal < decided.ordinal && renewals.iter().any(|text| line.logged("controld", text))
        })
        .expect("the server was owned once");
    shown.say("from the last renewal to the decision, in ms", decided.time_ms - renewed.time_ms);
    shown.say("reason", decided.field("reason"));
    let ends = told.lines.iter().filter(|line| line.ordinal > decided.ordinal && line.kind == Kind::Process);
    for end in ends.filter(|line| line.text == "ended").take(2) {
        // An agent may hear the TERM or the end of its input first.
        let how = if end.program() == "controld" { end.field("status") } else { "nothing of it is left" };
        shown.say(&format!("then {} ends", end.process), how);
    }
    shown.compare();
}

#[test]
fn o_003_5() {
    let told = told(&Unowned, plan(1));
    let mut shown = Shown::of("O-003.5");
    for line in told.logged("backend-recovery", "control server refused") {
        shown.say("the recorded server", line.field("reason"));
    }
    for line in told.logged("backend-recovery", "session repaired") {
        shown.say(&format!("{} is repaired", told.plain(line.field("session"))), line.field("reason"));
    }
    let untouched = told.lines.iter().filter(|line| {
        line.kind == Kind::Effect
            && line.field("path").starts_with(WORKSPACE)
            && line.program() != "scripted-agent"
    });
    shown.say("effects on the worktree by anybody but agents", untouched.count());
    shown.compare();
}

#[test]
fn o_002_4() {
    let told = told(&SecondBackend, calm());
    let mut shown = Shown::of("O-002.4");
    let refused = told.noted("second backend ended").next().expect("the second backend ends");
    shown.say("the second backend ends with", refused.field("status"));
    let first = told.start_of("backend-recovery#1");
    let pid = first.field("pid").split('@').next().unwrap_or_default();
    shown.say("and says", refused.field("stderr").replace(pid, "(the first one's pid)"));
    let effects =
        told.lines.iter().filter(|line| line.kind == Kind::Effect && line.process == "backend-recovery#2");
    for effect in effects.filter(|line| line.text != "pipe.write") {
        let outcome = if effect.field("failed").is_empty() { "done" } else { "refused" };
        shown.line(format!("its effect: {} {} {outcome}", effect.text, effect.field("path")).trim_end());
    }
    shown.rule();
    shown.fates(&told);
    shown.say(
        "sessions re-tracked by the third",
        told.logged("backend-recovery", "session re-tracked").count(),
    );
    shown.compare();
}

/// What a snapshot shows, line by line.
struct Shown {
    id: &'static str,
    text: String,
}

impl Shown {
    fn of(id: &'static str) -> Self {
        Self { id, text: format!("{id} {}\n\n", criterion(id).sentence) }
    }

    fn say(&mut self, what: &str, value: impl std::fmt::Display) {
        self.text.push_str(&format!("{what}: {value}\n"));
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn rule(&mut self) {
        self.text.push('\n');
    }

    fn fates(&mut self, told: &Told) {
        for program in ["backend-recovery", "controld", "scripted-agent"] {
            for fate in told.fates(program) {
                self.line(&fate);
            }
        }
    }

    /// What the backend has to say of the server that it refused.
    fn refusal(&mut self, told: &Told) {
        for line in told.logged("backend-recovery", "control server refused") {
            self.say(&format!("{} refuses what answers, because of", line.process), line.field("reason"));
        }
    }

    /// The plan that recovery printed, sorted: its own order is that of drawn ids.
    fn plan(&mut self, told: &Told) {
        let steps = told.logged("backend-recovery", "recovery plan");
        let steps: BTreeSet<String> = steps.map(|step| told.plain(step.field("step"))).collect();
        steps.iter().for_each(|step| self.line(step));
    }

    /// What became of everybody, and whether anybody was stopped.
    fn lives_on(&mut self, told: &Told) {
        self.fates(told);
        self.say(
            "signals to the control server or an agent",
            signals_to(told, &["controld", "scripted-agent"]),
        );
        self.say("stops that the control server was asked for", stops(told));
        self.say("agents say something while no backend runs", yes(agents_go_on(told)));
    }

    fn compare(self) {
        let name = criterion(self.id).test_name();
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name, self.text);
        });
    }
}

fn told(scenario: &dyn Scenario, plan: Plan) -> Told {
    Told::by(run_one(scenario, SEED, Some(plan)))
}

fn calm() -> Plan {
    Plan { tick_ms: 5, max_delay_ticks: 1, faults: Vec::new(), knobs: BTreeMap::new() }
}

fn plan(sessions: u64) -> Plan {
    calm().knob("sessions", sessions)
}

/// Two sessions, and a kill at a simulated time at which both turns are open.
fn kill_in_mid_turn() -> Plan {
    plan(2).with(Fault::KillAt { process: "backend-recovery".to_owned(), at_ms: IN_MID_TURN_MS })
}

fn open_turns_at(told: &Told, ordinal: u64) -> usize {
    let before = |message: &'static str| {
        told.logged("controld", message).filter(|line| line.ordinal < ordinal).count()
    };
    before("turn opened") - before("turn ended")
}

fn signals_to(told: &Told, programs: &[&str]) -> usize {
    let received =
        told.lines.iter().filter(|line| line.kind == Kind::Process && line.text == "received a signal");
    received.filter(|line| programs.contains(&line.program())).count()
}

fn stops(told: &Told) -> usize {
    told.logged("controld", "instance stopping").count() + told.logged("controld", "shutdown decided").count()
}

fn agents_go_on(told: &Told) -> bool {
    told.while_nobody_is_attached().iter().any(|line| line.logged("scripted-agent", "agent said"))
}

/// The agent process of each session, as some line tells it.
fn agents(told: &Told, text: &str, field: &str) -> BTreeMap<String, String> {
    let lines = told.lines.iter().filter(|line| line.text == text);
    lines.map(|line| (told.plain(line.field("session")), line.field(field).to_owned())).collect()
}

/// Any seed shows the same: what is printed does not vary. This one is named so that a run can be looked at.
const SEED: u64 = 2;

const IN_MID_TURN_MS: u64 = 600;

/// Where the port thief listens: the recorded endpoint of the server that died.
const THIEF_ADDRESS: &str = "127.0.0.1:39429";

/// `{"challenge":"` and 64 hexadecimal digits and `"}`.
const CHALLENGE_BODY: usize = 14 + 64 + 2;

const WORKSPACE: &str = "/home/user/project";

/// The thief never answers a challenge.
const SILENCE: u64 = 4;
