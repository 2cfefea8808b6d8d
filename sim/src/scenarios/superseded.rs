//! Somebody else adopts the control server while its backend lives: the backend lets go, drives nothing any more, and
//! starts nothing beside it. When the other one is gone too, the server ends with its agents.

use std::time::Duration;

use super::installation::{CONTROL_ADDRESS, HOME, Installation};
use super::user::{User, drawn_steps};
use crate::adversaries::second_adopter;
use crate::observer::Violation;
use crate::plan::Plan;
use crate::program::{ProcessContext, Program};
use crate::scenario::{Director, Played, Scenario, Start};
use crate::seed::Streams;

/// A second adopter beside a living backend.
#[derive(Clone, Copy, Debug)]
pub struct Superseded;

impl Scenario for Superseded {
    fn name(&self) -> &'static str {
        "superseded"
    }

    fn criterion(&self) -> &'static str {
        "O-002.3"
    }

    fn programs(&self) -> Vec<Program> {
        let mut programs = crate::programs::table();
        let adopter = |context: ProcessContext| second_adopter::run(context.seams);
        programs.push(Program::new("second-adopter", adopter));
        programs
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(300)
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        Plan::calm(&mut faults).knob("adopts_after_ms", faults.below(1500))
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { play(&director).await })
    }
}

async fn play(director: &Director) -> Result<(), Violation> {
    let installation = Installation::lay_out_with(director, "[agentctl]\nunownedPeriod = \"60s\"\n");
    tokio::select! {
        biased;
        verdict = story(director, &installation) => verdict,
        broken = installation.keep_backend_running() => match broken? {},
    }
}

async fn story(director: &Director, installation: &Installation<'_>) -> Result<(), Violation> {
    let user = User::of(installation, 1);
    let opened = user.open_session().await?;
    // The adopter comes at any moment of a turn, or after it: nobody waits for the turn's outcome.
    let turn = async {
        let _superseded = user.complete_turn(&opened.session, &drawn_steps(director)).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        verdict = supersede(director, installation, opened.agent) => verdict?,
        () = turn => {}
    }
    // Nobody owns the server any more; its backend, which lives on, does not save it.
    director
        .wait_until("the server ends", Duration::from_secs(100), |world| {
            let left = world.processes().into_iter().filter(|process| process.runs);
            let mut left =
                left.filter(|process| ["controld", "scripted-agent"].contains(&process.program.as_str()));
            left.next().is_none().then_some(())
        })
        .await
}

async fn supersede(
    director: &Director,
    installation: &Installation<'_>,
    agent: u32,
) -> Result<(), Violation> {
    director.sleep(Duration::from_millis(director.knob("adopts_after_ms"))).await;
    let adopter = Start::new("second-adopter").args(["--home", HOME, CONTROL_ADDRESS]);
    let mut adopter = director.start(adopter).await.map_err(|error| {
        Violation::new("required", "O-002.3", "a second adopter can be started", error.to_string())
    })?;
    director
        .wait_for("the backend lets go", LIMIT, |line| {
            line.logged("backend-recovery", "superseded by another backend")
        })
        .await?;
    let status = adopter.exit().await.map(|status| status.to_string()).unwrap_or_default();
    director.require(status == "exit code 0", "the second adopter drives to its end", status)?;
    let agents: Vec<u32> = director.living("scripted-agent").iter().map(|agent| agent.identity.pid).collect();
    director.require(agents == [agent], format!("agent {agent} runs on"), format!("{agents:?}"))?;
    let servers =
        director.look(|world| world.processes().iter().filter(|one| one.program == "controld").count());
    director.require(servers == 1, "no second control server is started", servers.to_string())?;
    director.require(installation.backend().is_some(), "the superseded backend lives", "it does not")
}

const LIMIT: Duration = Duration::from_secs(40);
