//! The backend is killed, and its successor and a second adopter come for the control server at the same moment. Whoever
//! is first, one drives; the other one finds out by the rules, and nobody is locked out.

use std::time::Duration;

use backend_recovery::api::TurnState;

use super::installation::{CONTROL_ADDRESS, HOME, Installation};
use super::user::{Opened, User, drawn_steps};
use crate::adversaries::second_adopter;
use crate::observer::Violation;
use crate::plan::Plan;
use crate::program::{ProcessContext, Program};
use crate::scenario::{Director, Played, Scenario, Start};
use crate::seed::Streams;
use crate::trace::{Kind, Line};

/// Two adopters of one server.
#[derive(Clone, Copy, Debug)]
pub struct TwoAdopters;

impl Scenario for TwoAdopters {
    fn name(&self) -> &'static str {
        "two-adopters"
    }

    fn criterion(&self) -> &'static str {
        "O-002.8"
    }

    fn programs(&self) -> Vec<Program> {
        let mut programs = crate::programs::table();
        let adopter = |context: ProcessContext| second_adopter::run(context.seams);
        programs.push(Program::new("second-adopter", adopter));
        programs
    }

    fn states(&self) -> &'static [&'static str] {
        &["the adopter came too late", "the backend came too late", "superseded", "both got one credential"]
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(300)
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        // The successor starts after 200 ms and adopts within the next 100.
        Plan::calm(&mut faults)
            .knob("killed_after_ms", faults.below(1500))
            .knob("adopts_after_ms", faults.between(150, 400))
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move {
            let installation = Installation::lay_out_with(&director, "[agentctl]\nunownedPeriod = \"60s\"\n");
            tokio::select! {
                biased;
                verdict = play(&director, &installation) => verdict,
                broken = installation.keep_backend_running() => match broken? {},
            }
        })
    }
}

/// How it came out for the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// It drives, and so may the other one, with the same credential.
    Drives,
    /// It adopted and was superseded.
    Superseded,
    /// The credential that it had was dead.
    Refused,
}

async fn play(director: &Director, installation: &Installation<'_>) -> Result<(), Violation> {
    let user = User::of(installation, 1);
    let opened = user.open_session().await?;
    let key = user.prompt(&opened.session, &drawn_steps(director)).await?;
    director.sleep(Duration::from_millis(director.knob("killed_after_ms"))).await;
    installation.kill_backend().await;
    director.sleep(Duration::from_millis(director.knob("adopts_after_ms"))).await;
    let adopter = Start::new("second-adopter").args(["--home", HOME, CONTROL_ADDRESS]);
    let mut adopter = director.start(adopter).await.map_err(|error| {
        Violation::new("required", "O-002.8", "a second adopter can be started", error.to_string())
    })?;
    let status = adopter.exit().await.map(|status| status.to_string()).unwrap_or_default();
    let came = outcome(director, &status).await?;
    director.note("it came out", [("adopter", status), ("backend", format!("{came:?}"))]);
    let servers =
        director.look(|world| world.processes().iter().filter(|one| one.program == "controld").count());
    let expected = if came == Came::Refused { 2 } else { 1 };
    director.require(
        servers == expected,
        format!("{expected} control servers for a backend that came out as {came:?}"),
        servers.to_string(),
    )?;
    if came == Came::Drives {
        let ended = user.outcome(&opened.session, &key).await?;
        let whole = [TurnState::Completed, TurnState::NotDelivered].contains(&ended.state);
        director.require(whole, "the turn completes, or never began", format!("{ended:?}"))?;
        on_its_agent(director, &user, &opened).await?;
    }
    // Whatever happened, the next backend has a server that it may drive.
    installation.kill_backend().await;
    if came == Came::Drives {
        on_its_agent(director, &user, &opened).await?;
    }
    let again = user.open_session().await?;
    user.complete_turn(&again.session, &drawn_steps(director)).await?;
    user.read_transcript(&again.session).await
}

/// Waits until the backend knows what it is to the server, and judges it beside the adopter's end.
async fn outcome(director: &Director, adopter: &str) -> Result<Came, Violation> {
    let seen = director
        .wait_for("the backend refuses the server or is through with it", LIMIT, |line| {
            line.logged("backend-recovery", "control server refused")
                || line.logged("backend-recovery", "control server adopted")
        })
        .await?;
    let drove = adopter == "exit code 0";
    if seen.text == "control server refused" {
        director.require(
            seen.field("reason") == "authentication_failure",
            "a dead credential is an authentication failure",
            seen.field("reason"),
        )?;
        director.require(drove, "the other one drives", format!("it ended with {adopter}"))?;
        director.reached("the backend came too late");
        director
            .wait_for("the backend has a server of its own", LIMIT, |line| {
                line.logged("backend-recovery", "control server started") && line.process != FIRST
            })
            .await?;
        return Ok(Came::Refused);
    }
    if !drove {
        director.reached("the adopter came too late");
        return Ok(Came::Drives);
    }
    let rotations: Vec<Line> = director.look(|world| {
        let of_server = |line: &&Line| line.kind == Kind::Log && line.text == "credential rotated";
        world.lines().iter().filter(of_server).cloned().collect()
    });
    if rotations.iter().any(|line| line.field("replayed") == "true") {
        // Both hold the newest credential: it is one (O-002.10).
        director.reached("both got one credential");
        return Ok(Came::Drives);
    }
    director.reached("superseded");
    director
        .wait_for("the backend lets go", LIMIT, |line| {
            line.logged("backend-recovery", "superseded by another backend")
        })
        .await?;
    Ok(Came::Superseded)
}

async fn on_its_agent(director: &Director, user: &User<'_>, opened: &Opened) -> Result<(), Violation> {
    let view =
        user.session_when(&opened.session, "the session is tracked in the end", |view| view.tracked).await?;
    let agent = view.agent.as_ref().map(|agent| agent.pid);
    director.require(
        agent == Some(opened.agent),
        format!("session {} still has agent process {}", opened.session, opened.agent),
        format!("{agent:?}"),
    )?;
    user.complete_turn(&opened.session, &drawn_steps(director)).await?;
    user.read_transcript(&opened.session).await
}

/// The backend that was killed.
const FIRST: &str = "backend-recovery#1";

const LIMIT: Duration = Duration::from_secs(40);
