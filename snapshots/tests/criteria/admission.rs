//! O-001 and O-004: which control server may be adopted.

use std::collections::BTreeSet;

use sim::scenarios::*;
use sim::{Kind, Line};
use snapshots::yes;

use crate::shown::*;

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
fn o_001_1() {
    let told = told(&PortThief, calm());
    let mut shown = Shown::of("O-001.1");
    let recorded: Vec<&Line> = told.logged("backend-recovery", "control server recorded").collect();
    let first = recorded.first().expect("a start records its server");
    shown.say("recorded endpoint", first.field("endpoint"));
    shown.say("its log", first.field("log"));
    shown.say("its capabilities", first.field("capabilities"));
    let reference = format!("controld-{}", first.field("server"));
    shown.say("the credential by its name in the secret store", yes(first.field("secret") == reference));
    let session = told.logged("backend-recovery", "session created").next().expect("a session is created");
    shown.say("there before any session", yes(first.ordinal < session.ordinal));
    let last = recorded.last().expect("a start records its server");
    shown.say(
        "when the port is another's, another endpoint is recorded",
        yes(last.field("endpoint") != THIEF_ADDRESS),
    );
    shown.compare();
}

#[test]
fn o_001_2() {
    let told = told(&BackendKilledInMidTurn, kill_in_mid_turn());
    let mut shown = Shown::of("O-001.2");
    let from = told.start_of("backend-recovery#2").ordinal;
    let asked = ["challenge answered", "credential rotated", "driven"];
    for line in told.lines.iter().filter(|line| line.ordinal > from && line.program() == "controld") {
        if !asked.contains(&line.text.as_str()) {
            continue;
        }
        shown.line(format!("{} {}", line.text, line.field("operation")).trim_end());
        if line.text == "driven" {
            break;
        }
    }
    shown.compare();
}

#[test]
fn o_001_3() {
    let mut shown = Shown::of("O-001.3");
    let reason = |told: &snapshots::Told| {
        let refused = told.logged("backend-recovery", "control server refused").next();
        refused.map_or_else(String::new, |line| line.field("reason").to_owned())
    };
    let thief = |answer| reason(&told(&PortThief, calm().knob("answer", answer)));
    shown.say("identity wrong, proof wrong", thief(ANOTHER_IDENTITY));
    shown.say("identity right, proof wrong", thief(INVENTED));
    shown.say("identity and proof right, a capability missing", reason(&told(&NewerBuild, calm())));
    let adopted = told(&BackendKilledInMidTurn, kill_in_mid_turn());
    shown.say("all three right", if reason(&adopted).is_empty() { "adopted" } else { "refused" });
    shown.compare();
}

#[test]
fn o_001_5() {
    let mut shown = Shown::of("O-001.5");
    for (what, answer) in [("no identity", NO_IDENTITY), ("no capability set", NO_CAPABILITIES)] {
        let told = told(&PortThief, calm().knob("answer", answer));
        shown.line(what);
        shown.refusal(&told);
        let heard: BTreeSet<&str> =
            told.logged("port-thief", "thief heard").map(|line| line.field("path")).collect();
        shown.say("requests that it ever got", format!("{heard:?}"));
        let started = told.logged("backend-recovery", "control server started").last();
        let elsewhere = started.is_some_and(|line| line.field("address") != THIEF_ADDRESS);
        shown.say("an own server is started on another port", yes(elsewhere));
    }
    shown.compare();
}

#[test]
fn o_001_7() {
    let told = told(&PortThief, calm());
    let mut shown = Shown::of("O-001.7");
    shown.line("the first start, nobody there:");
    let spawned = told.logged("backend-recovery", "control server spawned").next().expect("one is spawned");
    let probes = told.lines.iter().filter(|line| {
        line.kind == Kind::Effect
            && line.process == "backend-recovery#1"
            && line.ordinal < spawned.ordinal
            && line.field("address").ends_with(":39429")
    });
    for probe in probes {
        let outcome = if probe.field("failed").is_empty() { "done" } else { probe.field("failed") };
        shown.line(&format!("  {} {} {outcome}", probe.text, probe.field("address")));
    }
    shown.line("the second start, another's listener there:");
    for line in told.logged("backend-recovery", "configured control port is taken, using another") {
        let other = line.field("address") != line.field("configured");
        shown.say(&format!("  {} is taken, another is used", line.field("configured")), yes(other));
    }
    shown.compare();
}

#[test]
fn o_001_8() {
    let mut shown = Shown::of("O-001.8");
    let calm_run = told(&BackendKilledInMidTurn, kill_in_mid_turn());
    let unowned = told(&Unowned, plan(1));
    let ending = first_with(&CrashPoint, kills_in_second_life(SHUTDOWN).map(deaf), |line| {
        line.logged("backend-recovery", "control server is shutting down")
    });
    let runs = [
        ("nothing is recorded", &calm_run, "backend-recovery#1"),
        ("nothing answers", &unowned, "backend-recovery#2"),
        ("it is shutting down", &ending, "backend-recovery#3"),
    ];
    for (what, told, backend) in runs {
        let of = |message: &'static str| {
            told.lines.iter().find(|line| line.process == backend && line.text == message)
        };
        let judged = of("recorded control server judged").map_or("", |line| line.field("outcome"));
        let retracked = of("recovery complete").map_or("", |line| line.field("retracked"));
        let started = of("control server started").is_some();
        shown.say(
            what,
            format!("{judged}; re-tracked {retracked}; an own server is started: {}", yes(started)),
        );
    }
    let decided = ending.logged("backend-recovery", "control server is shutting down").next().expect("it is");
    let server = "controld#1";
    let later = ending
        .lines
        .iter()
        .filter(|line| line.ordinal > decided.ordinal && line.process == server && line.kind == Kind::Log);
    let asked = ["challenge answered", "challenge refused", "driven", "credential rotated"];
    let asked = later.filter(|line| asked.contains(&line.text.as_str())).count();
    shown.say("requests to the one that is shutting down, afterwards", asked);
    shown.compare();
}

#[test]
fn o_001_9() {
    let told = told(&SecretLost, calm());
    let mut shown = Shown::of("O-001.9");
    shown.refusal(&told);
    let first =
        told.logged("controld", "listening").next().expect("the first server listens").process.clone();
    let from = told.start_of("backend-recovery#2").ordinal;
    let touched = ["challenge answered", "credential rotated", "driven"];
    let touched = told
        .lines
        .iter()
        .filter(|line| line.ordinal > from && line.process == first && touched.contains(&line.text.as_str()));
    shown.say("requests to the survivor beside its identity", touched.count());
    let recorded = told.logged("backend-recovery", "control server recorded").last().expect("it is recorded");
    let survivor = told.logged("backend-recovery", "survivor noted").next().expect("it is noted");
    shown.say("the record names the new server", yes(recorded.field("server") != survivor.field("server")));
    let elsewhere = recorded.field("endpoint") != survivor.field("address");
    shown.say("which listens on another port", yes(elsewhere));
    let end = told.logged("controld", "shutdown decided").find(|line| line.process == first);
    shown.say("the survivor's end", end.map_or("none", |line| line.field("reason")));
    let over = told.logged("backend-recovery", "survivor is over").next().expect("it is over");
    let removed = told.logged("backend-recovery", "secret of a server that is gone removed");
    let kept = removed.filter(|line| line.ordinal < over.ordinal).count() == 0;
    shown.say("its secret is kept until then", yes(kept));
    shown.compare();
}

#[test]
fn o_001_11() {
    let told = told(&PortThief, calm());
    let mut shown = Shown::of("O-001.11");
    let answer = told.logged("port-thief", "thief was told").next().expect("the thief asks");
    shown.say("what a stranger is told", answer.field("told"));
    shown.compare();
}

#[test]
fn o_001_12() {
    let told = told(&PortThief, calm());
    let mut shown = Shown::of("O-001.12");
    for program in ["controld", "backend-recovery"] {
        let effects = told.lines.iter().filter(|line| {
            line.kind == Kind::Effect && line.program() == program && line.text.starts_with("net.")
        });
        let mut hosts: BTreeSet<String> = BTreeSet::new();
        for effect in effects {
            let host = effect.field("address").rsplit_once(':').map_or("", |(host, _)| host);
            hosts.insert(format!("{} {host}", effect.text));
        }
        shown.say(&format!("{program}: what it listens on and connects to"), format!("{hosts:?}"));
    }
    shown.compare();
}

#[test]
fn o_004_1() {
    let mut shown = Shown::of("O-004.1");
    let older = told(&NewerBuild, calm());
    for line in older.logged("backend-recovery", "control server refused") {
        shown.say(&format!("required and not advertised, {}", line.field("reason")), line.field("missing"));
    }
    let same = told(&BackendKilledInMidTurn, kill_in_mid_turn());
    shown.say("all advertised: refusals", same.logged("backend-recovery", "control server refused").count());
    shown.say("adoptions", same.logged("backend-recovery", "control server adopted").count());
    shown.compare();
}

#[test]
fn o_004_2() {
    let told = told(&NewerBuild, calm());
    let mut shown = Shown::of("O-004.2");
    let from = told.start_of("backend-recovery#2").ordinal;
    let refused = told.logged("backend-recovery", "control server refused").next().expect("it is refused");
    let proved = told.lines.iter().filter(|line| {
        (from..refused.ordinal).contains(&line.ordinal) && line.logged("controld", "challenge answered")
    });
    shown.say("proofs before the capabilities are judged", proved.count());
    shown.say("rotations of the survivor", told.logged("controld", "credential rotated").count());
    shown.compare();
}

#[test]
fn o_004_3() {
    let told = told(&NewerBuild, calm());
    let mut shown = Shown::of("O-004.3");
    shown.refusal(&told);
    let decided = told.logged("controld", "shutdown decided").next().expect("it is shut down");
    shown.say("the survivor's shutdown", decided.field("reason"));
    let end = told.end_of("controld#1").expect("it ends");
    shown.say("it ends with", end.field("status"));
    let repaired = told.logged("backend-recovery", "session repaired").next().expect("it is repaired");
    shown.say("the session is repaired after that", yes(repaired.ordinal > end.ordinal));
    let loads = told.logged("scripted-agent", "agent loads its conversation").count();
    shown.say("its conversation is loaded when it is resumed", yes(loads == 1));
    let started = told.start_of("controld#2").ordinal;
    shown.say("an own server is started after that", yes(started > end.ordinal));
    shown.compare();
}

#[test]
fn o_004_4() {
    let mut shown = Shown::of("O-004.4");
    let incompatible = told(&NewerBuild, calm());
    let off = told(&CrashPoint, calm().knob("phase", SHUTDOWN));
    for (what, told) in [("after an incompatible survivor", &incompatible), ("with the capability off", &off)]
    {
        shown.line(what);
        for line in told.logged("backend-recovery", "turn outcome applied").take(1) {
            shown.say("  the open turn", line.field("outcome"));
        }
        for line in told.logged("backend-recovery", "session repaired") {
            shown.say("  the session is repaired", line.field("reason"));
        }
        let loads = told.logged("scripted-agent", "agent loads its conversation").count();
        shown.say("  resumed with its conversation", yes(loads == 1));
    }
    shown.compare();
}

#[test]
fn o_004_5() {
    let told = told(&BackendKilledInMidTurn, kill_in_mid_turn());
    let mut shown = Shown::of("O-004.5");
    for line in told.logged("backend-recovery", "control server recorded") {
        let when = if line.process == "backend-recovery#1" { "at the start" } else { "at the adoption" };
        shown.say(when, line.field("capabilities"));
    }
    shown.compare();
}

#[test]
fn o_004_6() {
    let told = told(&NewerBuild, calm());
    let mut shown = Shown::of("O-004.6");
    let recorded = told.logged("backend-recovery", "control server recorded").next().expect("it is recorded");
    shown.say("the set", recorded.field("capabilities"));
    let refused = told.logged("backend-recovery", "control server refused").next().expect("it is refused");
    shown.say("the server that lacks one of those required", refused.field("reason"));
    shown.say("it told its identity, and was shut down through the ownership shutdown", {
        let decided = told.logged("controld", "shutdown decided").next();
        yes(decided.is_some_and(|line| line.field("reason") == "asked"))
    });
    shown.compare();
}

#[test]
fn o_004_7() {
    let told = told(&NewerBuild, with_lost_shutdown(calm()));
    let mut shown = Shown::of("O-004.7");
    shown.refusal(&told);
    let lost = told.lines.iter().filter(|line| line.kind == Kind::Fault);
    shown.say("attempts that got no answer", lost.count());
    let failed = told.logged("backend-recovery", "ownership shutdown failed").next().expect("it fails");
    let noted = told.logged("backend-recovery", "survivor noted").next().expect("it is noted");
    shown.say("the survivor is noted because of", noted.field("reason"));
    let complete = |line: &&Line| line.process == "backend-recovery#2" && line.text == "recovery complete";
    let complete = told.lines.iter().find(complete).expect("recovery completes");
    let repaired = told.logged("backend-recovery", "session repaired");
    shown.say(
        "records repaired at this start",
        repaired.filter(|line| line.ordinal < complete.ordinal).count(),
    );
    shown.say("re-tracked", complete.field("retracked"));
    let started = told.logged("backend-recovery", "control server started").last().expect("one is started");
    shown.say(
        "an own server is started on another port",
        yes(started.field("address") != noted.field("address")),
    );
    let first = "controld#1";
    let stops = told.lines.iter().filter(|line| {
        line.ordinal > failed.ordinal
            && line.process == first
            && ["instance stopping", "driven", "challenge answered"].contains(&line.text.as_str())
            && line.field("reason") != "shutdown"
    });
    shown.say("requests to the survivor afterwards", stops.count());
    let over = told.logged("backend-recovery", "survivor is over").next().expect("it is over");
    let removed = told.logged("backend-recovery", "secret of a server that is gone removed");
    shown.say(
        "its secret is kept until it is over",
        yes(removed.filter(|line| line.ordinal < over.ordinal).count() == 0),
    );
    let repaired = told.logged("backend-recovery", "session repaired").next().expect("it is repaired");
    let end = told.end_of(first).expect("the survivor ends by itself");
    shown.say("its session is repaired after its end", yes(repaired.ordinal > end.ordinal));
    shown.compare();
}
