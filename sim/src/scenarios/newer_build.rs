//! The next backend is of a newer build that requires what the survivor does not advertise: the survivor proves itself,
//! is shut down, its sessions are repaired, and a server of the newer build is started.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::installation::Installation;
use super::user::{User, drawn_steps};
use crate::observer::Violation;
use crate::plan::{Fault, Plan};
use crate::program::{ProcessContext, Program};
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;

/// An upgrade that adds a capability.
#[derive(Clone, Copy, Debug)]
pub struct NewerBuild;

impl Scenario for NewerBuild {
    fn name(&self) -> &'static str {
        "newer-build"
    }

    fn criterion(&self) -> &'static str {
        "O-004.3"
    }

    fn programs(&self) -> Vec<Program> {
        vec![
            Program::new("controld", control_server),
            Program::new("backend-recovery", |context: ProcessContext| {
                let capabilities = capabilities(&context);
                backend_recovery::run_with(context.seams, capabilities)
            }),
            Program::new("scripted-agent", |context: ProcessContext| {
                crate::scripted_agent::run(context.seams)
            }),
        ]
    }

    fn states(&self) -> &'static [&'static str] {
        &["shut down", "not stopped"]
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(300)
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        let plan = Plan::calm(&mut faults).knob("killed_after_ms", faults.below(1000));
        match faults.chance(1, 2) {
            true => plan,
            // Every request of the shutdown and of its retries is lost.
            false => with_lost_shutdown(plan),
        }
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { play(&director).await })
    }
}

/// The replies to the shutdown and to all its retries are lost: identity and proof have the first two connections, and
/// each attempt is followed by a look at whether somebody still listens, and who.
pub fn with_lost_shutdown(plan: Plan) -> Plan {
    [3, 6, 9].into_iter().fold(plan, |plan, connect| {
        plan.with(Fault::LostReply { process: "backend-recovery".to_owned(), life: 2, connect })
    })
}

/// Those of the build that the process is of.
fn capabilities(context: &ProcessContext) -> BTreeSet<String> {
    let newer = context.seams.host.environment().contains_key(NEWER).then_some("workspace-snapshots");
    wire::CAPABILITIES.into_iter().chain(newer).map(str::to_owned).collect()
}

async fn control_server(context: ProcessContext) -> u8 {
    let (layer, queue) = controld::logging(Arc::clone(&context.seams.clock));
    context.on_log(move |event| layer.record(event));
    let capabilities = capabilities(&context);
    controld::run_with(context.seams, queue, capabilities).await
}

async fn play(director: &Director) -> Result<(), Violation> {
    let installation = Installation::lay_out_with(director, SHORT_PERIOD);
    let user = User::of(&installation, 1);
    let opened = {
        let begun = async {
            let opened = user.open_session().await?;
            let words = json!([{ "say_many": { "count": 40, "bytes": 20, "every_ms": 50 } }]);
            user.prompt(&opened.session, &words).await?;
            director.sleep(Duration::from_millis(director.knob("killed_after_ms"))).await;
            Ok(opened)
        };
        tokio::select! {
            biased;
            opened = begun => opened?,
            broken = installation.keep_backend_running() => match broken? {},
        }
    };
    installation.kill_backend().await;
    let started = director.start(installation.serve().env(NEWER, "yes")).await;
    director.require(started.is_ok(), "the newer backend starts", format!("{:?}", started.as_ref().err()))?;
    director
        .wait_for("the newer backend recovers", LIMIT, |line| {
            line.process == "backend-recovery#2" && line.text == "recovery complete"
        })
        .await?;
    director.heal();
    let shut_down = director
        .look(|world| world.lines().iter().any(|line| line.logged("backend-recovery", "session repaired")));
    director.reached(if shut_down { "shut down" } else { "not stopped" });
    let again = user.resume(&opened.session).await?;
    let living: Vec<u32> = installation.agents_of(again.session.as_str()).iter().map(|one| one.pid).collect();
    director.require(
        living == [again.agent],
        "the session has its new agent alone",
        format!("{living:?}"),
    )?;
    user.complete_turn(&again.session, &drawn_steps(director)).await
}

/// Whoever has it in its environment is of the newer build.
const NEWER: &str = "SIMULATED_BUILD_IS_NEWER";

const SHORT_PERIOD: &str = "[agentctl]\nunownedPeriod = \"60s\"\n";
const LIMIT: Duration = Duration::from_secs(60);
