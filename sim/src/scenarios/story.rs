//! What the scenarios of this family share: users with sessions in mid-turn, backends that end, and what must be
//! true of every session afterwards.

use std::time::Duration;

use futures_util::future::try_join_all;

use super::installation::Installation;
use super::user::{Opened, User, drawn_steps};
use crate::observer::Violation;
use crate::plan::{Fault, Plan, Side};
use crate::scenario::Director;
use crate::seed::Rng;
use crate::trace::Kind;

/// How backends end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By the plan's kills, at whatever they do then.
    Kill,
    /// By a SIGTERM of ours.
    Terminate,
}

/// A kill in the backend's `life`-th life, before or after any of the effects that it has until its work is done.
pub(super) fn with_kill(plan: Plan, faults: &mut Rng, life: u32) -> Plan {
    let process = "backend-recovery".to_owned();
    let side = if faults.chance(1, 2) { Side::Before } else { Side::After };
    let span = if life == 1 { FIRST_LIFE_EFFECTS } else { RECOVERY_EFFECTS };
    let effect = faults.between(1, span);
    plan.with(Fault::Kill { process, life, effect, side })
}

/// Now and then something else goes wrong beside the end of a backend: answers come late or not at all.
pub(super) fn with_trouble(mut plan: Plan, faults: &mut Rng) -> Plan {
    let backend = || "backend-recovery".to_owned();
    if faults.chance(1, 4) {
        let from_ms = faults.between(0, 3000);
        let process = faults.pick(&["controld", "backend-recovery", "scripted-agent"]);
        let (to_ms, delay_ms) = (from_ms + faults.between(100, 2000), faults.between(20, 400));
        plan = plan.with(Fault::Slow { process: (*process).to_owned(), from_ms, to_ms, delay_ms });
    }
    if faults.chance(1, 4) {
        let (life, connect) = (u32::from(faults.chance(1, 2)) + 1, faults.between(3, 14));
        plan = plan.with(Fault::LostReply { process: backend(), life, connect });
    }
    if faults.chance(1, 4) {
        let (life, connect) = (u32::from(faults.chance(1, 2)) + 1, faults.between(3, 14));
        plan = plan.with(Fault::ConnectRefused { process: backend(), life, connect });
    }
    plan
}

/// Arranges sessions in mid-turn, lets the backend end `ends` times, heals, and requires that every session is whole.
pub(super) async fn play(director: &Director, end: End, ends: u64) -> Result<(), Violation> {
    let installation = Installation::lay_out(director);
    tokio::select! {
        biased;
        verdict = users(director, &installation, end, ends) => verdict,
        broken = installation.keep_backend_running() => match broken? {},
    }
}

async fn users(
    director: &Director,
    installation: &Installation<'_>,
    end: End,
    ends: u64,
) -> Result<(), Violation> {
    let sessions = director.knob("sessions").max(1);
    let users: Vec<User<'_>> = (1..=sessions).map(|number| User::of(installation, number)).collect();
    let opened = try_join_all(users.iter().map(User::open_session)).await?;
    let turns = async {
        let turns = users.iter().zip(&opened);
        try_join_all(turns.map(|(user, opened)| turn(director, user, opened))).await
    };
    let ending = async {
        match end {
            End::Terminate => terminate(director, installation).await,
            End::Kill => Ok(()),
        }
    };
    tokio::try_join!(turns, ending)?;
    mark_states(director);
    // What was planned for later than the turns took must not hit the checks below.
    director.heal();
    if end == End::Kill {
        // A plan whose kill lay beyond what this run did still has its story: the backend is killed when idle.
        for _ in lives(director)..=ends {
            installation.kill_backend().await;
            director.sleep(Duration::from_millis(300)).await;
        }
    }
    users[0].note_status().await?;
    for (user, opened) in users.iter().zip(&opened) {
        settled(director, installation, user, opened).await?;
    }
    Ok(())
}

async fn turn(director: &Director, user: &User<'_>, opened: &Opened) -> Result<(), Violation> {
    user.complete_turn(&opened.session, &drawn_steps(director)).await
}

/// SIGTERM once some agent has begun to say something.
async fn terminate(director: &Director, installation: &Installation<'_>) -> Result<(), Violation> {
    let limit = Duration::from_secs(30);
    let wanted = director.draw(|rng| rng.between(1, 25));
    let said = |world: &crate::observer::WorldView<'_>| {
        let said = world.lines().iter().filter(|line| line.logged("scripted-agent", "agent said")).count();
        (said as u64 >= wanted).then_some(())
    };
    // An agent with less to say ends before: the stop then meets an idle session.
    if director.wait_until("the agents say something", limit, said).await.is_ok() {
        director.reached("stopped in mid-turn");
    }
    let mark = director.mark();
    installation.ask_backend_to_stop().await;
    let ended = director.wait_for_after(mark, "the backend ends", limit, |line| {
        line.kind == Kind::Note && line.text == "backend ended"
    });
    let ended = ended.await?;
    director.require(
        ended.field("status") == "exit code 0",
        "a stopped backend exits with 0",
        ended.field("status"),
    )
}

/// What must be true of a session in the end: re-tracked and ready, on the same process, with a whole transcript.
async fn settled(
    director: &Director,
    installation: &Installation<'_>,
    user: &User<'_>,
    opened: &Opened,
) -> Result<(), Violation> {
    let session = &opened.session;
    let view = user.session_when(session, "the session is tracked in the end", |view| view.tracked).await?;
    let agent = view.agent.as_ref().map(|agent| agent.pid);
    director.require(
        agent == Some(opened.agent),
        format!("session {session} still has agent process {}", opened.agent),
        format!("{agent:?}"),
    )?;
    let living: Vec<u32> = installation.agents_of(session.as_str()).iter().map(|agent| agent.pid).collect();
    director.require(
        living == [opened.agent],
        format!("exactly agent process {} runs for session {session}", opened.agent),
        format!("{living:?}"),
    )?;
    user.read_transcript(session).await
}

/// How many backends there have been.
fn lives(director: &Director) -> u64 {
    let lives = director.look(|world| {
        world.processes().iter().filter(|process| process.program == "backend-recovery").count()
    });
    lives as u64
}

/// Says which of the interesting moments this seed hit.
fn mark_states(director: &Director) {
    let (in_turn, in_recovery) = director.look(|world| {
        let mut open = 0_i64;
        let mut recovering = false;
        let (mut in_turn, mut in_recovery) = (false, false);
        for line in world.lines() {
            if line.logged("controld", "turn opened") {
                open += 1;
            } else if line.logged("controld", "turn ended") {
                open -= 1;
            } else if line.logged("backend-recovery", "inventory read") {
                recovering = true;
            } else if line.logged("backend-recovery", "recovery complete") {
                recovering = false;
            } else if line.kind == Kind::Fault && line.program() == "backend-recovery" {
                in_turn |= open > 0;
                in_recovery |= recovering && line.process != "backend-recovery#1";
            }
        }
        (in_turn, in_recovery)
    });
    if in_turn {
        director.reached("killed in mid-turn");
    }
    if in_recovery {
        director.reached("killed in recovery");
    }
}

/// A little more than the effects that a backend with four sessions has until their turns end (700 to 900).
const FIRST_LIFE_EFFECTS: u64 = 900;

/// A little more than the effects from a backend's start to the end of its recovery (80 with four sessions).
const RECOVERY_EFFECTS: u64 = 150;
