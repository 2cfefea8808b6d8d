//! A second backend on a home that has one: refused by the home's lock before it does anything, while the first goes
//! on. A dead backend's lock is free although its control server and agents live.

use std::time::Duration;

use seam::ExitStatus;

use super::installation::Installation;
use super::user::{User, drawn_steps};
use crate::observer::Violation;
use crate::plan::Plan;
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;

/// Two backends, one home.
#[derive(Clone, Copy, Debug)]
pub struct SecondBackend;

impl Scenario for SecondBackend {
    fn name(&self) -> &'static str {
        "second-backend"
    }

    fn criterion(&self) -> &'static str {
        "O-002.4"
    }

    fn plan(&self, streams: &Streams) -> Plan {
        Plan::calm(&mut streams.stream("faults"))
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
    let user = User::of(installation, 1);
    let opened = user.open_session().await?;
    let first = installation.backend().map(|backend| backend.identity);
    let steps = drawn_steps(director);
    let turn = user.complete_turn(&opened.session, &steps);
    let second = async {
        let output = director.command(installation.serve(), LIMIT).await?;
        let told = [("status", output.status.to_string()), ("stderr", output.stderr.trim().to_owned())];
        director.note("second backend ended", told);
        director.require(
            output.status == ExitStatus::Code(1),
            "it exits with 1",
            output.status.to_string(),
        )?;
        let holder = first.as_ref().map(|first| first.pid.to_string()).unwrap_or_default();
        director.require(output.stderr.contains(&holder), "it names who holds the home", output.stderr)
    };
    tokio::try_join!(turn, second)?;
    let still = installation.backend().map(|backend| backend.identity);
    director.require(still == first, "the first backend runs on", format!("{still:?}"))?;
    installation.kill_backend().await;
    user.session_when(&opened.session, "the session is tracked by the next backend", |view| view.tracked)
        .await?;
    user.read_transcript(&opened.session).await
}

/// How long a refused start may take.
const LIMIT: Duration = Duration::from_secs(10);
