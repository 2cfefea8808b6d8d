//! The control server is killed while its backend lives and is at work, and a thief listens at its endpoint at once,
//! before the backend has noticed. It gets two open questions and nothing else; the backend goes on with another server.

use std::time::Duration;

use super::installation::{CONTROL_ADDRESS, Installation};
use super::user::{Opened, User, drawn_steps};
use crate::adversaries::port_thief::{self, Answer};
use crate::observer::Violation;
use crate::plan::Plan;
use crate::program::{ProcessContext, Program};
use crate::scenario::{Director, Played, Scenario, Start};
use crate::seed::Streams;

/// Another process at the endpoint of the server in use.
#[derive(Clone, Copy, Debug)]
pub struct ThiefBesideBackend;

impl Scenario for ThiefBesideBackend {
    fn name(&self) -> &'static str {
        "thief-beside-backend"
    }

    fn criterion(&self) -> &'static str {
        "O-001.10"
    }

    fn programs(&self) -> Vec<Program> {
        let mut programs = crate::programs::table();
        programs.push(Program::new("port-thief", |context: ProcessContext| port_thief::run(context.seams)));
        programs
    }

    fn states(&self) -> &'static [&'static str] {
        &[
            "a child is lost",
            "an adopted server is lost",
            "the thief was asked",
            "works at once",
            "works again",
        ]
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(200)
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        let answers = Answer::ALL.len() as u64;
        Plan::calm(&mut faults)
            .knob("answer", faults.below(answers))
            // A backend hears of its child's end from the kernel, and of an adopted server's from its streams.
            .knob("adopted", faults.below(2))
            .knob("killed_after_ms", faults.below(1200))
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move {
            let installation = Installation::lay_out(&director);
            tokio::select! {
                biased;
                verdict = play(&director, &installation) => verdict,
                broken = installation.keep_backend_running() => match broken? {},
            }
        })
    }
}

async fn play(director: &Director, installation: &Installation<'_>) -> Result<(), Violation> {
    let users: Vec<User<'_>> = (1..=3).map(|number| User::of(installation, number)).collect();
    let [first, second, third] = users.as_slice() else { return Ok(()) };
    let (one, two) = tokio::try_join!(first.open_session(), second.open_session())?;
    if director.knob("adopted") == 1 {
        installation.kill_backend().await;
        for (user, opened) in [(first, &one), (second, &two)] {
            user.session_when(&opened.session, "the session is re-tracked", |view| view.tracked).await?;
        }
        director.reached("an adopted server is lost");
    } else {
        director.reached("a child is lost");
    }
    let thief =
        Start::new("port-thief").args([CONTROL_ADDRESS.to_owned(), director.knob("answer").to_string()]);
    let started = director.start(thief).await;
    director.require(started.is_ok(), "a thief can be started", format!("{:?}", started.err()))?;
    director.wait_for("the thief has asked", LIMIT, |line| line.text == "thief is ready").await?;
    // Whatever users do goes on while the server dies; how it ends does not matter here.
    let busy = async {
        tokio::join!(busy(director, first, one), busy(director, second, two), launches(third));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        robbed = rob(director, installation) => robbed?,
        () = busy => {}
    }
    works(director, installation, first).await
}

/// Prompts one after another, and stops the session in the end.
async fn busy(director: &Director, user: &User<'_>, opened: Opened) {
    for _ in 0..3 {
        let _lost = user.complete_turn(&opened.session, &drawn_steps(director)).await;
    }
    user.stop(&opened.session).await;
}

/// Starts sessions and stops them.
async fn launches(user: &User<'_>) {
    for _ in 0..20 {
        if let Ok(opened) = user.open_session().await {
            user.stop(&opened.session).await;
        }
    }
}

async fn rob(director: &Director, installation: &Installation<'_>) -> Result<(), Violation> {
    director.sleep(Duration::from_millis(director.knob("killed_after_ms"))).await;
    for server in installation.living("controld") {
        director.kill(&server.identity).await;
    }
    director.sleep(ROBBED).await;
    // A backend that hears of it at once may have a new server there before anybody else.
    if director.look(|world| world.lines().iter().any(|line| line.text == "thief took the endpoint")) {
        director.reached("the endpoint was taken");
    }
    Ok(())
}

/// A new session completes its turn, on this backend or on the next one.
async fn works(
    director: &Director,
    installation: &Installation<'_>,
    user: &User<'_>,
) -> Result<(), Violation> {
    if director.look(|world| world.lines().iter().any(|line| line.text == "thief heard")) {
        director.reached("the thief was asked");
    }
    let status = user.status_when("the status is shown", |_| true).await?;
    if status.server.is_some() {
        director.reached("works at once");
    } else {
        installation.kill_backend().await;
        director.reached("works again");
    }
    let opened = user.open_session().await?;
    user.complete_turn(&opened.session, &drawn_steps(director)).await?;
    user.read_transcript(&opened.session).await
}

const LIMIT: Duration = Duration::from_secs(30);

/// Longer than a backend takes to notice anything by itself.
const ROBBED: Duration = Duration::from_secs(25);
