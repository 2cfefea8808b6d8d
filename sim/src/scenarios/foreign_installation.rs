//! The backend and its control server die, and another installation's real control server takes the endpoint that the
//! record names. It is somebody else's: it is left alone, and both installations work.

use std::time::Duration;

use super::installation::{Installation, Place, USUAL};
use super::user::{User, drawn_steps};
use crate::observer::{ProcessView, Violation};
use crate::plan::Plan;
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;
use crate::trace::Kind;

/// A control server of another home at the recorded endpoint.
#[derive(Clone, Copy, Debug)]
pub struct ForeignInstallation;

impl Scenario for ForeignInstallation {
    fn name(&self) -> &'static str {
        "foreign-installation"
    }

    fn criterion(&self) -> &'static str {
        "O-001.4"
    }

    fn states(&self) -> &'static [&'static str] {
        &["killed in mid-turn", "refused in the foreign one's mid-turn"]
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        Plan::calm(&mut faults)
            .knob("killed_after_ms", faults.below(1500))
            .knob("back_after_ms", faults.below(1500))
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { play(&director).await })
    }
}

async fn play(director: &Director) -> Result<(), Violation> {
    let ours = Installation::lay_out_at(director, USUAL, "");
    let foreign = Installation::lay_out_at(director, ELSEWHERE, "[server]\nlisten = \"127.0.0.1:38430\"\n");
    let user = User::of(&ours, 1);
    tokio::select! {
        biased;
        worked = work(director, &user) => worked?,
        broken = ours.keep_backend_running() => match broken? {},
    };
    ours.kill_backend().await;
    for server in ours.living("controld") {
        director.kill(&server.identity).await;
    }
    tokio::select! {
        biased;
        verdict = beside(director, &ours, &foreign) => verdict,
        broken = foreign.keep_backend_running() => match broken? {},
    }
}

/// A session that is left behind at a drawn moment of its turn.
async fn work(director: &Director, user: &User<'_>) -> Result<(), Violation> {
    let opened = user.open_session().await?;
    let steps = drawn_steps(director);
    tokio::select! {
        biased;
        ended = user.complete_turn(&opened.session, &steps) => ended?,
        () = director.sleep(Duration::from_millis(director.knob("killed_after_ms"))) => {
            director.reached("killed in mid-turn");
        }
    }
    Ok(())
}

/// The foreign installation works, and in the middle of that ours comes back.
async fn beside(
    director: &Director,
    ours: &Installation<'_>,
    foreign: &Installation<'_>,
) -> Result<(), Violation> {
    let user = User::of(foreign, 2);
    let opened = user.open_session().await?;
    let before = driver_and_server(foreign);
    let steps = drawn_steps(director);
    let turn = async {
        user.complete_turn(&opened.session, &steps).await?;
        director.note("the foreign turn is complete", []);
        Ok(())
    };
    let back = async {
        director.sleep(Duration::from_millis(director.knob("back_after_ms"))).await;
        tokio::select! {
            biased;
            verdict = come_back(director, ours, foreign) => verdict,
            broken = ours.keep_backend_running() => match broken? {},
        }
    };
    tokio::try_join!(turn, back)?;
    let after = driver_and_server(foreign);
    director.require(
        after == before,
        format!("the foreign backend and control server run on: {before:?}"),
        format!("{after:?}"),
    )?;
    let view = user.session_when(&opened.session, "the foreign session is shown", |_| true).await?;
    let agent = view.agent.as_ref().map(|agent| agent.pid);
    director.require(
        view.tracked && agent == Some(opened.agent),
        format!("the foreign session is driven on agent {}", opened.agent),
        format!("tracked: {}, agent: {agent:?}", view.tracked),
    )?;
    user.complete_turn(&opened.session, &drawn_steps(director)).await?;
    user.read_transcript(&opened.session).await
}

async fn come_back(
    director: &Director,
    ours: &Installation<'_>,
    foreign: &Installation<'_>,
) -> Result<(), Violation> {
    let mark = director.mark();
    let refused = director
        .wait_for_after(mark, "the foreign server is refused", LIMIT, |line| {
            line.logged("backend-recovery", "control server refused")
        })
        .await?;
    director.require(
        refused.field("reason") == "identity_mismatch",
        "identity_mismatch",
        refused.field("reason"),
    )?;
    if director.look(|world| world.lines().iter().all(|line| line.text != "the foreign turn is complete")) {
        director.reached("refused in the foreign one's mid-turn");
    }
    // On a port of its own.
    let user = User::of(ours, 3);
    let opened = user.open_session().await?;
    user.complete_turn(&opened.session, &drawn_steps(director)).await?;
    // And the record names that one: the next backend adopts it.
    ours.kill_backend().await;
    let status = user.status_when("the next backend is up", |status| status.recovered).await?;
    director.require(
        status.adoption.as_deref() == Some("adopted"),
        "the next backend adopts its own server",
        format!("{:?}", status.adoption),
    )?;
    user.session_when(&opened.session, "the session is re-tracked", |view| view.tracked).await?;
    user.complete_turn(&opened.session, &drawn_steps(director)).await?;
    user.read_transcript(&opened.session).await?;
    untouched(director, foreign, refused.ordinal)
}

/// Once it was refused, no byte went to the foreign server from any backend but its own.
fn untouched(director: &Director, foreign: &Installation<'_>, refused: u64) -> Result<(), Violation> {
    let before = driver_and_server(foreign);
    let wrote = director.look(|world| {
        let wrote = |line: &&crate::trace::Line| {
            line.ordinal > refused
                && line.kind == Kind::Effect
                && line.text == "stream.write"
                && line.program() == "backend-recovery"
                && !before.contains(&line.process)
                && before.iter().any(|label| label == line.field("to"))
        };
        world.lines().iter().find(wrote).map(ToString::to_string)
    });
    director.require(
        wrote.is_none(),
        "a refused server gets nothing more (O-001.4)",
        wrote.unwrap_or_default(),
    )
}

/// Who drives, and what.
fn driver_and_server(installation: &Installation<'_>) -> Vec<String> {
    let label = |process: ProcessView| process.label;
    let backends = installation.living("backend-recovery").into_iter().map(label);
    backends.chain(installation.living("controld").into_iter().map(label)).collect()
}

/// Another user of the same machine.
const ELSEWHERE: Place =
    Place { user: "/home/other", home: "/home/other/.kandev", workspace: "/home/other/project" };

const LIMIT: Duration = Duration::from_secs(30);
