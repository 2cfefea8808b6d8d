//! The backend is killed and nobody comes for it: after its period the control server stops everything and ends. The
//! next backend repairs what it finds.

use std::time::Duration;

use futures_util::future::try_join_all;

use super::installation::Installation;
use super::user::{Opened, User, drawn_steps};
use crate::observer::Violation;
use crate::plan::Plan;
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;

/// Nobody owns the server for its whole period.
#[derive(Clone, Copy, Debug)]
pub struct Unowned;

impl Scenario for Unowned {
    fn name(&self) -> &'static str {
        "unowned"
    }

    fn criterion(&self) -> &'static str {
        "O-003.1"
    }

    fn states(&self) -> &'static [&'static str] {
        &["abandoned in mid-turn"]
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(300)
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        let plan = Plan::calm(&mut faults).knob("sessions", faults.between(1, 3));
        plan.knob("killed_after_ms", faults.below(2000))
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { play(&director).await })
    }
}

async fn play(director: &Director) -> Result<(), Violation> {
    let installation = Installation::lay_out_with(director, "[agentctl]\nunownedPeriod = \"60s\"\n");
    let users: Vec<User<'_>> =
        (1..=director.knob("sessions").max(1)).map(|number| User::of(&installation, number)).collect();
    let opened = tokio::select! {
        biased;
        opened = work(director, &users) => opened?,
        broken = installation.keep_backend_running() => match broken? {},
    };
    installation.kill_backend().await;
    director
        .wait_for("the server gives up", Duration::from_secs(62), |line| {
            line.logged("controld", "shutdown decided") && line.field("reason") == "unowned"
        })
        .await?;
    director
        .wait_until("everything is gone", Duration::from_secs(20), |world| {
            let mut left = world.processes().into_iter().filter(|process| process.runs);
            left.next().is_none().then_some(())
        })
        .await?;
    tokio::select! {
        biased;
        verdict = repaired(director, &users, &opened) => verdict,
        broken = installation.keep_backend_running() => match broken? {},
    }
}

/// Sessions whose turns are left behind at a drawn moment.
async fn work(director: &Director, users: &[User<'_>]) -> Result<Vec<Opened>, Violation> {
    let opened = try_join_all(users.iter().map(User::open_session)).await?;
    let turns = users.iter().zip(&opened).map(|(user, opened)| {
        let steps = drawn_steps(director);
        async move { user.complete_turn(&opened.session, &steps).await }
    });
    tokio::select! {
        biased;
        ended = try_join_all(turns) => drop(ended?),
        () = director.sleep(Duration::from_millis(director.knob("killed_after_ms"))) => {
            director.reached("abandoned in mid-turn");
        }
    }
    Ok(opened)
}

async fn repaired(director: &Director, users: &[User<'_>], opened: &[Opened]) -> Result<(), Violation> {
    director
        .wait_for("the next backend has repaired", Duration::from_secs(40), |line| {
            line.logged("backend-recovery", "recovery complete") && line.process != "backend-recovery#1"
        })
        .await?;
    for (user, opened) in users.iter().zip(opened) {
        let ended = |view: &backend_recovery::api::SessionView| {
            !view.tracked && view.turn.as_ref().is_none_or(|turn| turn.state.is_terminal())
        };
        user.session_when(&opened.session, "the session is repaired", ended).await?;
        let again = user.open_session().await?;
        user.complete_turn(&again.session, &drawn_steps(director)).await?;
        user.read_transcript(&again.session).await?;
    }
    Ok(())
}
