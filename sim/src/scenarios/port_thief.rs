//! The backend and its control server die, and before the next backend is up a thief listens at the recorded endpoint.
//! It gets two open questions and nothing else; the installation goes on with a server of its own.

use std::time::Duration;

use super::installation::{CONTROL_ADDRESS, Installation};
use super::user::{User, drawn_steps};
use crate::adversaries::port_thief::{self, Answer};
use crate::observer::Violation;
use crate::plan::Plan;
use crate::program::{ProcessContext, Program};
use crate::scenario::{Director, Played, Scenario, Start};
use crate::seed::Streams;

/// Another process at the recorded endpoint.
#[derive(Clone, Copy, Debug)]
pub struct PortThief;

impl Scenario for PortThief {
    fn name(&self) -> &'static str {
        "port-thief"
    }

    fn criterion(&self) -> &'static str {
        "O-001.4"
    }

    fn programs(&self) -> Vec<Program> {
        let mut programs = crate::programs::table();
        programs.push(Program::new("port-thief", |context: ProcessContext| port_thief::run(context.seams)));
        programs
    }

    fn states(&self) -> &'static [&'static str] {
        &["identity mismatch", "authentication failure"]
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        let answers = Answer::ALL.len() as u64;
        Plan::calm(&mut faults).knob("answer", faults.below(answers))
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { play(&director).await })
    }
}

async fn play(director: &Director) -> Result<(), Violation> {
    let installation = Installation::lay_out(director);
    let user = User::of(&installation, 1);
    tokio::select! {
        biased;
        opened = user.open_session() => drop(opened?),
        broken = installation.keep_backend_running() => match broken? {},
    };
    let answer = director.knob("answer");
    let thief = Start::new("port-thief").args([CONTROL_ADDRESS.to_owned(), answer.to_string()]);
    let started = director.start(thief).await;
    director.require(started.is_ok(), "a thief can be started", format!("{:?}", started.err()))?;
    director.wait_for("the thief has asked", LIMIT, |line| line.text == "thief is ready").await?;
    installation.kill_backend().await;
    for server in director.living("controld") {
        director.kill(&server.identity).await;
    }
    director.wait_for("the thief listens", LIMIT, |line| line.text == "thief took the endpoint").await?;
    let answer = Answer::ALL.get(usize::try_from(answer).unwrap_or(usize::MAX)).copied();
    tokio::select! {
        biased;
        verdict = go_on(director, &user, answer.unwrap_or(Answer::Replayed)) => verdict,
        broken = installation.keep_backend_running() => match broken? {},
    }
}

async fn go_on(director: &Director, user: &User<'_>, answer: Answer) -> Result<(), Violation> {
    let refused = director
        .wait_for("the thief is refused", LIMIT, |line| {
            line.logged("backend-recovery", "control server refused")
        })
        .await?;
    director.require(refused.field("reason") == answer.reason(), answer.reason(), refused.field("reason"))?;
    director.reached(match answer {
        Answer::AnotherIdentity | Answer::NoIdentity | Answer::NoCapabilities => "identity mismatch",
        _ => "authentication failure",
    });
    // The installation works, on another port.
    let opened = user.open_session().await?;
    user.complete_turn(&opened.session, &drawn_steps(director)).await?;
    user.read_transcript(&opened.session).await
}

const LIMIT: Duration = Duration::from_secs(30);
