//! The stored credential is garbage when the next backend starts: the survivor is refused, left untouched and noted, a
//! server of our own is started elsewhere, and the session is resumed only once the survivor is over.

use std::time::Duration;

use serde_json::json;

use super::installation::{HOME, Installation};
use super::user::{User, drawn_steps};
use crate::observer::Violation;
use crate::plan::Plan;
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;

/// A credential that cannot be read.
#[derive(Clone, Copy, Debug)]
pub struct SecretLost;

impl Scenario for SecretLost {
    fn name(&self) -> &'static str {
        "secret-lost"
    }

    fn criterion(&self) -> &'static str {
        "O-001.9"
    }

    fn states(&self) -> &'static [&'static str] {
        &["refused beside a survivor", "resumed after the survivor"]
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(300)
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        Plan::calm(&mut faults).knob("killed_after_ms", faults.below(1000))
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
    let words = json!([{ "say_many": { "count": 20, "bytes": 20, "every_ms": 50 } }]);
    user.prompt(&opened.session, &words).await?;
    director.sleep(Duration::from_millis(director.knob("killed_after_ms"))).await;
    let secrets: Vec<_> = director.look(|world| {
        let in_store = |path: &std::path::Path| {
            path.starts_with(HOME) && path.parent().is_some_and(|at| at.ends_with("secrets"))
        };
        world.files().map(|(path, _)| path.to_owned()).filter(|path| in_store(path)).collect()
    });
    director.require(secrets.len() == 1, "one credential is stored", format!("{secrets:?}"))?;
    installation.kill_backend().await;
    director.install(&secrets[0], "what is left of it");
    director
        .wait_for("a survivor is noted", LIMIT, |line| line.logged("backend-recovery", "survivor noted"))
        .await?;
    // The installation works meanwhile; the session waits.
    let other = user.open_session().await?;
    user.complete_turn(&other.session, &drawn_steps(director)).await?;
    let refused = user.refused_to_resume(&opened.session).await?;
    director.require(refused == "survivor", "the launch is refused, naming the survivor", refused)?;
    director.reached("refused beside a survivor");
    let living = installation.agents_of(opened.session.as_str());
    director.require(living.len() == 1, "the survivor's agent works on", format!("{living:?}"))?;
    let kept = director.look(|world| world.file(&secrets[0]).map(<[u8]>::to_vec));
    director.require(
        kept.as_deref() == Some(b"what is left of it"),
        "the stored secret is neither deleted nor overwritten",
        format!("{:?}", kept.map(|bytes| bytes.len())),
    )?;
    let again = user.resume(&opened.session).await?;
    director.reached("resumed after the survivor");
    let living: Vec<u32> =
        installation.agents_of(opened.session.as_str()).iter().map(|agent| agent.pid).collect();
    director.require(
        living == [again.agent],
        "the session has its new agent alone",
        format!("{living:?}"),
    )?;
    user.complete_turn(&opened.session, &drawn_steps(director)).await?;
    user.read_transcript(&other.session).await?;
    director
        .wait_until("the survivor's secret goes", LIMIT, |world| {
            world.file(&secrets[0]).is_none().then_some(())
        })
        .await
}

const LIMIT: Duration = Duration::from_secs(40);
