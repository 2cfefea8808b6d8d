//! One crash, lost message or failed write at one point of a start, an adoption or an ownership shutdown. Afterwards the
//! installation works: nobody is locked out of a server that it owns, and no agent is met by a second one.
//!
//! The seed draws the point; the crash matrix of the snapshots goes through all of them.

use std::time::Duration;

use serde_json::json;
use wire::PromptKey;

use super::installation::{Installation, SURVIVAL_OFF};
use super::user::{Opened, User};
use crate::observer::{ProcessView, Violation};
use crate::plan::{Fault, Plan, Side};
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;

/// One fault at one point.
#[derive(Clone, Copy, Debug)]
pub struct CrashPoint;

/// In what the fault falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The backend's first start, with the start of its control server.
    Start,
    /// The start of a second backend, which adopts: proof, rotation, confirmation, re-tracking.
    Adoption,
    /// The start of a second backend with the capability off, which shuts the first one's control server down.
    Shutdown,
}

impl Phase {
    /// All of them, in the order of the plan's parameter `phase`.
    pub const ALL: [Self; 3] = [Self::Start, Self::Adoption, Self::Shutdown];

    /// The life of the backend that the phase is about.
    pub const fn life(self) -> u32 {
        match self {
            Self::Start => 1,
            Self::Adoption | Self::Shutdown => 2,
        }
    }

    fn of(director: &Director) -> Self {
        let index = usize::try_from(director.knob("phase")).unwrap_or_default();
        Self::ALL.get(index).copied().unwrap_or(Self::Start)
    }
}

impl Scenario for CrashPoint {
    fn name(&self) -> &'static str {
        "crash-point"
    }

    fn criterion(&self) -> &'static str {
        "O-002.7"
    }

    fn states(&self) -> &'static [&'static str] {
        &["adopted", "resumed"]
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(400)
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        let phase = faults.below(Phase::ALL.len() as u64);
        let life = Phase::ALL[usize::try_from(phase).expect("below three")].life();
        let plan = Plan::calm(&mut faults).knob("phase", phase).knob("deaf", faults.below(2));
        let (backend, server) = ("backend-recovery".to_owned(), "controld".to_owned());
        let effect = faults.between(1, EFFECTS);
        let side = if faults.chance(1, 2) { Side::Before } else { Side::After };
        let itself = Fault::Kill { process: backend.clone(), life, effect, side };
        let other = Fault::KillOther { process: backend.clone(), life, effect, side, victim: server };
        match faults.below(6) {
            0 => plan.with(itself),
            1 => plan.with(other),
            2 => plan.with(other).with(itself),
            3 => plan.with(Fault::ConnectRefused {
                process: backend,
                life,
                connect: faults.between(1, CONNECTS),
            }),
            4 => plan.with(Fault::LostReply { process: backend, life, connect: faults.between(1, CONNECTS) }),
            _ => plan.with(Fault::WriteFails { process: backend, life, write: faults.between(1, EFFECTS) }),
        }
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { play(&director).await })
    }
}

async fn play(director: &Director) -> Result<(), Violation> {
    let installation = Installation::lay_out_with(director, SHORT_PERIOD);
    tokio::select! {
        biased;
        verdict = story(director, &installation) => verdict,
        broken = installation.keep_backend_running() => match broken? {},
    }
}

async fn story(director: &Director, installation: &Installation<'_>) -> Result<(), Violation> {
    let (user, phase) = (User::of(installation, 1), Phase::of(director));
    let mut work = None;
    if phase != Phase::Start {
        let opened = user.open_session().await?;
        let turn = user.prompt(&opened.session, &words()).await?;
        director.wait_for("the agent speaks", LIMIT, |line| line.text == "agent said").await?;
        if phase == Phase::Shutdown {
            installation.configure(&format!("{SURVIVAL_OFF}{SHORT_PERIOD}"));
        }
        note_point(director, "phase begins", phase);
        installation.kill_backend().await;
        work = Some((opened, turn));
    }
    recovered(director, phase).await?;
    note_point(director, "phase ended", phase);
    director.heal();
    let outcome = match work {
        None => {
            let opened = user.open_session().await?;
            settle(director, installation, &user, &opened).await?;
            user.read_transcript(&opened.session).await?;
            let servers = director.look(|world| world.processes().iter().filter(is_server).count());
            format!("{servers} started")
        }
        Some((opened, turn)) => go_on(director, installation, &user, &opened, &turn, phase).await?,
    };
    director.note("outcome", [("outcome", outcome)]);
    Ok(())
}

/// A backend of this phase lives and has told that its recovery is complete; an adoption's confirmation has come, or
/// has had its time.
async fn recovered(director: &Director, phase: Phase) -> Result<(), Violation> {
    director
        .wait_until("a backend recovers", LIMIT, |world| {
            let alive =
                world.processes().into_iter().rfind(|one| one.runs && one.program == "backend-recovery")?;
            let told = world.lines().iter().any(|line| {
                line.process == alive.label && line.logged("backend-recovery", "recovery complete")
            });
            (alive.life >= phase.life() && told).then_some(())
        })
        .await?;
    if phase == Phase::Adoption {
        let confirmed = |line: &crate::Line| line.logged("backend-recovery", "rotation confirmed");
        // A server that was killed or refused confirms nothing.
        let _confirmed_or_not = director.wait_for("the rotation is confirmed", CONFIRMED, confirmed).await;
    }
    Ok(())
}

/// The session of the first backend: on its agent, or resumed on another one after nothing of that agent was left.
async fn go_on(
    director: &Director,
    installation: &Installation<'_>,
    user: &User<'_>,
    opened: &Opened,
    turn: &PromptKey,
    phase: Phase,
) -> Result<String, Violation> {
    let session = &opened.session;
    let view = user
        .session_when(session, "the session is tracked, or has no agent", |view| {
            let ended = view.turn.as_ref().is_none_or(|one| one.state.is_terminal());
            view.tracked || ended || director.living("controld").len() > 1
        })
        .await?;
    if view.tracked {
        director.reached("adopted");
        let done = |view: &backend_recovery::api::SessionView| {
            view.turn.as_ref().is_some_and(|one| one.turn == *turn && one.state.is_terminal())
        };
        user.session_when(session, "the turn ends", done).await?;
        let alive = installation.agents_of(session.as_str());
        let same = alive.iter().map(|agent| agent.pid).collect::<Vec<_>>() == [opened.agent];
        director.require(same, format!("agent {} works on", opened.agent), format!("{alive:?}"))?;
        settle(director, installation, user, opened).await?;
        user.read_transcript(session).await?;
        return Ok("adopted".to_owned());
    }
    let first = director.look(|world| world.processes().into_iter().find(|one| is_server(&one)));
    let alone = first.is_some_and(|server| server.runs);
    // With the capability on, whoever can still prove itself is adopted.
    let locked_out = alone && phase == Phase::Adoption;
    director.require(
        !locked_out,
        "a server that proves itself is adopted",
        "it is left alone with its agent",
    )?;
    let again = user.resume(session).await?;
    director.reached("resumed");
    settle(director, installation, user, &again).await?;
    Ok(if alone { "left alone, resumed" } else { "ended, resumed" }.to_owned())
}

/// The session takes a prompt and has the one living agent.
async fn settle(
    director: &Director,
    installation: &Installation<'_>,
    user: &User<'_>,
    opened: &Opened,
) -> Result<(), Violation> {
    user.complete_turn(&opened.session, &words()).await?;
    let agents = installation.agents_of(opened.session.as_str());
    let all = director.living("scripted-agent");
    director.require(
        agents.len() == 1 && all.len() == 1,
        "one agent lives, and it is the session's",
        format!("{agents:?} of {} agents", all.len()),
    )
}

/// How far the two programs have come, for whoever goes through all points.
fn note_point(director: &Director, text: &str, phase: Phase) {
    let (backend, server) = director.look(|world| {
        let all = world.processes();
        let backend = all.iter().find(|one| one.program == "backend-recovery" && one.life == phase.life());
        (backend.cloned(), all.into_iter().find(|one| is_server(&one)))
    });
    let count = |process: &Option<ProcessView>, of: fn(&ProcessView) -> u64| {
        process.as_ref().map_or(0, of).to_string()
    };
    director.note(
        text,
        [
            ("backend_effects", count(&backend, |one| one.effects)),
            ("backend_connects", count(&backend, |one| one.connects)),
            ("backend_writes", count(&backend, |one| one.writes)),
            ("server_effects", count(&server, |one| one.effects)),
            ("server_writes", count(&server, |one| one.writes)),
        ],
    );
}

fn is_server(process: &&ProcessView) -> bool {
    process.program == "controld"
}

/// Some two seconds of words: the turn is open during the whole phase.
fn words() -> serde_json::Value {
    json!([{ "say_many": { "count": 40, "bytes": 20, "every_ms": 50 } }])
}

/// The shortest that is accepted.
const SHORT_PERIOD: &str = "[agentctl]\nunownedPeriod = \"60s\"\n";

const LIMIT: Duration = Duration::from_secs(60);
const CONFIRMED: Duration = Duration::from_secs(3);

/// A little more than a phase has.
const EFFECTS: u64 = 120;
const CONNECTS: u64 = 16;
