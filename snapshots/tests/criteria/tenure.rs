//! O-002 and O-003: one driver, and what happens without one.

use std::collections::{BTreeMap, BTreeSet};

use sim::scenarios::*;
use sim::{Fault, Kind, Line};
use snapshots::yes;

use crate::shown::*;

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
fn o_002_3() {
    let told = told(&Superseded, calm());
    let mut shown = Shown::of("O-002.3");
    let lets_go =
        told.logged("backend-recovery", "superseded by another backend").next().expect("it lets go");
    shown.say("executions dropped", lets_go.field("dropped"));
    let later = told.lines.iter().filter(|line| {
        line.ordinal > lets_go.ordinal
            && line.program() == "backend-recovery"
            && line.text == "net.connect"
            && line.field("to").starts_with("controld")
    });
    shown.say("connections of that backend to the server afterwards", later.count());
    let adopted = told.logged("backend-recovery", "control server adopted").count();
    shown.say("adoptions by that backend", adopted);
    shown.compare();
}

#[test]
fn o_002_5() {
    let writes = (1..120).map(|write| {
        let process = "backend-recovery".to_owned();
        calm().knob("phase", ADOPTION).with(Fault::WriteFails { process, life: 2, write })
    });
    let incomplete = |line: &Line| line.logged("backend-recovery", "adoption incomplete");
    let told = first_with(&CrashPoint, writes, incomplete);
    let mut shown = Shown::of("O-002.5");
    let failed = told.logged("backend-recovery", "adoption incomplete").next().expect("it is incomplete");
    shown.say("adoption incomplete", failed.field("error"));
    let adopted =
        told.logged("backend-recovery", "control server adopted").next().expect("it is tried again");
    let between = told.lines.iter().filter(|line| {
        (failed.ordinal..adopted.ordinal).contains(&line.ordinal) && line.logged("controld", "driven")
    });
    shown.say("operations until it is tried again", between.count());
    shown.say("adopted by the second try, with rotation", adopted.field("rotation"));
    shown.compare();
}

#[test]
fn o_002_6() {
    let told = told(&Superseded, calm());
    let mut shown = Shown::of("O-002.6");
    for line in told.logged("controld", "credential rotated") {
        shown.say("rotation", line.field("rotation"));
    }
    let confirmations = told.lines.iter().filter(|line| {
        line.logged("controld", "rotation confirmed") || line.logged("controld", "confirmation refused")
    });
    for line in confirmations {
        let effect = match line.field("took_effect") {
            "true" => "accepted",
            "false" => "accepted, without effect",
            _ => line.field("reason"),
        };
        shown.say(&format!("confirmation of {}", line.field("rotation")), effect);
    }
    shown.compare();
}

#[test]
fn o_002_7() {
    let mut shown = Shown::of("O-002.7");
    let mut between = BTreeMap::new();
    for plan in kills_in_second_life(ADOPTION) {
        let told = told(&CrashPoint, plan);
        let Some(end) = told.end_of("backend-recovery#2") else { break };
        let before = |message: &'static str| {
            told.logged("controld", message).filter(|line| line.ordinal < end.ordinal).count()
        };
        // Killed after the server replaced the credential, and before it was told that this is stored.
        if before("credential rotated") == 1 && before("rotation confirmed") == 0 {
            let adopted: Vec<&str> = told
                .logged("backend-recovery", "control server adopted")
                .filter(|line| line.process == "backend-recovery#3")
                .map(|line| line.field("rotation"))
                .collect();
            *between.entry(format!("{adopted:?}")).or_insert(0) += 1;
        }
    }
    shown.say("killed between the two steps, at every point there is", yes(!between.is_empty()));
    for rotations in between.keys() {
        shown.say("the next start adopts with rotation", rotations);
    }
    shown.compare();
}

#[test]
fn o_002_8() {
    let mut shown = Shown::of("O-002.8");
    for (what, told) in [
        ("adopted by the next backend", told(&BackendKilledInMidTurn, kill_in_mid_turn())),
        ("adopted by another beside the first", told(&Superseded, calm())),
    ] {
        let counts: BTreeSet<&str> =
            told.logged("controld", "challenge answered").map(|line| line.field("acceptable")).collect();
        shown.say(&format!("{what}: acceptable credentials at any moment"), format!("{counts:?}"));
    }
    shown.compare();
}

#[test]
fn o_002_9() {
    let told = told(&CrashPoint, calm().knob("phase", SHUTDOWN));
    let mut shown = Shown::of("O-002.9");
    let decided = told.logged("controld", "shutdown decided").next().expect("it is shut down");
    shown.say("shutdown", format!("{}, instances {}", decided.field("reason"), decided.field("instances")));
    let before = told.logged("controld", "credential rotated").filter(|line| line.ordinal < decided.ordinal);
    shown.say("rotations before it", before.count());
    let (agent, server) = (told.end_of("scripted-agent#1"), told.end_of("controld#1"));
    let (agent, server) = (agent.expect("the agent ends"), server.expect("the server ends"));
    shown.say("the agent ends first", yes(agent.ordinal < server.ordinal));
    shown.say("the server ends with", server.field("status"));
    shown.compare();
}

#[test]
fn o_002_10() {
    let told = first_with(&CrashPoint, kills_in_second_life(ADOPTION), |line| {
        line.logged("controld", "credential rotated") && line.field("replayed") == "true"
    });
    let mut shown = Shown::of("O-002.10");
    for line in told.logged("controld", "credential rotated") {
        shown.say(&format!("rotation {}, told again", line.field("rotation")), line.field("replayed"));
    }
    let further = told_twice_killed();
    let rotations: Vec<&str> =
        further.logged("controld", "credential rotated").map(|line| line.field("rotation")).collect();
    shown.say("a confirmed replacement buys the next one", format!("{rotations:?}"));
    shown.compare();
}

#[test]
fn o_003_2() {
    let told = told(&SecretLost, calm());
    let mut shown = Shown::of("O-003.2");
    let listening = told.logged("controld", "listening").last().expect("the second server listens");
    let period: u64 = listening.field("unowned_period_ms").parse().expect("a period");
    let renewals = ["handshake accepted", "ownership claimed", "credential rotated"];
    let renewed: Vec<u64> = told
        .lines
        .iter()
        .filter(|line| line.process == listening.process && renewals.contains(&line.text.as_str()))
        .map(|line| line.time_ms)
        .collect();
    shown.say("the period that the server reports, in ms", period);
    shown.say("it is renewed more than twice in it", yes(renewed.len() > 3));
    let gap = renewed.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(u64::MAX);
    shown.say("every interval is below a third of it", yes(gap * 3 < period));
    shown.compare();
}

#[test]
fn o_003_3() {
    let told = told(&SecretLost, calm());
    let mut shown = Shown::of("O-003.3");
    let (renewed, decided) = unowned(&told, "controld#1");
    let later = told.lines.iter().filter(|line| {
        (renewed.ordinal..decided.ordinal).contains(&line.ordinal)
            && line.text == "net.connect"
            && line.field("to") == "controld#1"
            && line.process == "backend-recovery#2"
    });
    shown.say("a later backend connects to it after the last renewal", yes(later.count() > 0));
    shown.say("from the last renewal to the decision, in ms", decided.time_ms - renewed.time_ms);
    shown.compare();
}

#[test]
fn o_003_4() {
    let mut shown = Shown::of("O-003.4");
    shown.periods(&[0, 1, 2, 3]);
    shown.compare();
}

#[test]
fn o_003_6() {
    let mut shown = Shown::of("O-003.6");
    shown.periods(&[2, 4]);
    shown.compare();
}

#[test]
fn o_003_7() {
    let mut shown = Shown::of("O-003.7");
    shown.periods(&[5, 6, 7]);
    shown.compare();
}

#[test]
fn o_003_8() {
    let told = told(&Unowned, plan(1));
    let mut shown = Shown::of("O-003.8");
    let (renewed, decided) = unowned(&told, "controld#1");
    shown.say("the last of the three things that renew", &renewed.text);
    for message in ["driven", "stream registered", "event acknowledged", "challenge answered"] {
        let later = told.logged("controld", message).filter(|line| line.ordinal > renewed.ordinal);
        shown.say(&format!("{message:?} after it"), yes(later.count() > 0));
    }
    shown.say("from it to the decision, in ms", decided.time_ms - renewed.time_ms);
    shown.compare();
}

#[test]
fn o_003_9() {
    let told = first_with(&CrashPoint, kills_in_second_life(SHUTDOWN).map(deaf), |line| {
        line.logged("backend-recovery", "control server is shutting down")
    });
    let mut shown = Shown::of("O-003.9");
    let decided = told.logged("controld", "shutdown decided").next().expect("it is decided");
    let answers: BTreeSet<String> = told
        .lines
        .iter()
        .filter(|line| line.ordinal > decided.ordinal && line.process == decided.process)
        .filter(|line| {
            ["challenge refused", "challenge answered", "credential rotated", "ownership claimed"]
                .contains(&line.text.as_str())
        })
        .map(|line| format!("{}: {}", line.text, line.field("reason")))
        .collect();
    shown.say("asked after the decision", format!("{answers:?}"));
    let end = told.end_of(&decided.process).expect("it ends");
    shown.say("the server ends all the same, with", end.field("status"));
    shown.compare();
}

/// The last renewal of this server before it decided that nobody owns it, and that decision.
fn unowned<'a>(told: &'a snapshots::Told, server: &str) -> (&'a Line, &'a Line) {
    let decided = told.logged("controld", "shutdown decided");
    let decided = decided
        .filter(|line| line.process == server && line.field("reason") == "unowned")
        .last()
        .expect("nobody owns it");
    let renewals = ["handshake accepted", "ownership claimed", "credential rotated"];
    let renewed = told.lines.iter().rfind(|line| {
        line.ordinal < decided.ordinal && line.process == server && renewals.contains(&line.text.as_str())
    });
    (renewed.expect("it was owned once"), decided)
}

/// Two backends killed one after the other when each had adopted.
fn told_twice_killed() -> snapshots::Told {
    let plan = plan(1)
        .with(Fault::KillAt { process: "backend-recovery".to_owned(), at_ms: IN_MID_TURN_MS })
        .with(Fault::KillAt { process: "backend-recovery".to_owned(), at_ms: IN_MID_TURN_MS + 1500 });
    told(&TwoKillsInARow, plan)
}
