//! S-001 and S-002: agents outlive their backend.

use std::collections::{BTreeMap, BTreeSet};

use sim::scenarios::*;
use sim::{Kind, Line, Plan};
use snapshots::yes;

use crate::shown::*;

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
fn s_001_7() {
    let mut shown = Shown::of("S-001.7");
    let runs: [(&str, snapshots::Told); 11] = [
        ("the backend is asked to stop", told(&GracefulShutdown, plan(2))),
        ("the backend is killed", told(&BackendKilledInMidTurn, kill_in_mid_turn())),
        ("another instance reports the session", told(&OtherInstance, calm())),
        ("a second backend is refused", told(&SecondBackend, calm())),
        ("adoption refused, identity", told(&PortThief, calm().knob("answer", ANOTHER_IDENTITY))),
        ("adoption refused, authentication", told(&PortThief, calm().knob("answer", INVENTED))),
        ("adoption refused, credential", told(&SecretLost, calm())),
        ("adoption refused, capability", told(&NewerBuild, calm())),
        ("superseded by another adopter", told(&Superseded, calm())),
        ("unowned shutdown", told(&Unowned, plan(1))),
        ("the capability is switched off", told(&CrashPoint, calm().knob("phase", SHUTDOWN))),
    ];
    for (path, told) in &runs {
        let on_worktree = told.lines.iter().filter(|line| {
            line.kind == Kind::Effect
                && ["path", "from", "to"].iter().any(|field| line.field(field).starts_with(WORKSPACE))
        });
        let others = on_worktree.filter(|line| line.program() != "scripted-agent").count();
        shown.say(&format!("{path}: effects on the worktree by anybody but agents"), others);
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
