//! The control server answers the next backend late, wrong, twice or never. It is adopted or refused, and whatever it is:
//! the installation works again once the answers are right, and nobody is locked out.

use std::time::Duration;

use backend_recovery::api::{SessionView, TurnState};
use futures_util::future::try_join_all;

use super::installation::Installation;
use super::user::{Opened, User, drawn_steps};
use crate::observer::{ProcessView, Violation};
use crate::plan::{Answering, Fault, Plan};
use crate::scenario::{Director, Played, Scenario};
use crate::seed::{Rng, Streams};
use crate::trace::Kind;

/// A control server whose answers go wrong around its next backend's start.
#[derive(Clone, Copy, Debug)]
pub struct OddAnswers;

impl Scenario for OddAnswers {
    fn name(&self) -> &'static str {
        "odd-answers"
    }

    fn criterion(&self) -> &'static str {
        "O-001.6"
    }

    fn states(&self) -> &'static [&'static str] {
        &[
            "adopted",
            "no_answer",
            "identity_mismatch",
            "authentication_failure",
            "credential_rotation_failure",
            "settled at once",
            "settled by another backend",
            "agent stopped unread",
        ]
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(400)
    }

    fn plan(&self, streams: &Streams) -> Plan {
        let mut faults = streams.stream("faults");
        let killed_ms = faults.between(3000, 4000);
        // A backend is up and has been through most of its recovery within 150 ms of the restart.
        let from_ms = killed_ms + faults.between(200, 400);
        let length_ms = match faults.below(3) {
            0 => faults.between(5, 100),
            1 => faults.between(100, 4_000),
            // The last of these outlast the whole bound over recovery.
            _ => faults.between(4_000, 16_000),
        };
        let how = odd(&mut faults);
        Plan::calm(&mut faults)
            .knob("sessions", faults.between(1, 3))
            .knob("killed_ms", killed_ms)
            .knob("prompted_ms", killed_ms - faults.between(50, 1500))
            .knob("healed_ms", from_ms + length_ms)
            .with(Fault::Answers { process: "controld".to_owned(), from_ms, to_ms: from_ms + length_ms, how })
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move {
            let installation = Installation::lay_out_with(&director, CONFIG);
            tokio::select! {
                biased;
                verdict = play(&director, &installation) => verdict,
                broken = installation.keep_backend_running() => match broken? {},
            }
        })
    }
}

fn odd(faults: &mut Rng) -> Answering {
    match faults.below(4) {
        0 => Answering::Never,
        1 => Answering::Wrong,
        2 => Answering::Twice,
        // Below and beyond the bound of one read.
        _ => Answering::Late { by_ms: faults.between(50, 1_500) },
    }
}

async fn play(director: &Director, installation: &Installation<'_>) -> Result<(), Violation> {
    let users: Vec<User<'_>> =
        (1..=director.knob("sessions").max(1)).map(|number| User::of(installation, number)).collect();
    let opened = try_join_all(users.iter().map(User::open_session)).await?;
    let servers = installation.living("controld");
    sleep_until(director, director.knob("prompted_ms")).await;
    // A prompt that its backend does not live to take is not sent again: its session may be refused for good by then.
    let prompting = async {
        let prompts = users.iter().zip(&opened).map(|(user, opened)| {
            let steps = drawn_steps(director);
            async move { user.prompt(&opened.session, &steps).await }
        });
        try_join_all(prompts).await?;
        std::future::pending::<Result<(), Violation>>().await
    };
    tokio::select! {
        biased;
        failed = prompting => failed?,
        () = sleep_until(director, director.knob("killed_ms")) => {}
    }
    installation.kill_backend().await;

    director
        .wait_for("the next backend is through its recovery", RECOVERED, |line| {
            line.logged("backend-recovery", "recovery complete") && line.process != "backend-recovery#1"
        })
        .await?;
    let status = users[0].status_when("it reports that", |status| status.recovered).await?;
    let adoption = status.adoption.unwrap_or_default();
    sleep_until(director, director.knob("healed_ms")).await;
    director.heal();

    let known = OddAnswers.states().iter().find(|state| **state == adoption);
    director.require(known.is_some(), "the server is adopted or refused for a reason", adoption.as_str())?;
    director.reached(known.copied().unwrap_or_default());
    if adoption == "adopted" {
        adopted(director, installation, &users, &opened).await?;
    } else {
        refused(director, installation, &users, &opened, servers).await?;
    }
    use_it(director, &users[0]).await
}

/// Every session is on its agent again, or its agent was stopped because what it does could not be learned.
async fn adopted(
    director: &Director,
    installation: &Installation<'_>,
    users: &[User<'_>],
    opened: &[Opened],
) -> Result<(), Violation> {
    director.sleep(SETTLED).await;
    let mut at_once = true;
    for (user, opened) in users.iter().zip(opened) {
        let view = user.session_when(&opened.session, "the session is shown", |_| true).await?;
        at_once &= view.tracked || (was_stopped(director, opened) && is_repaired(&view));
    }
    if at_once {
        director.reached("settled at once");
    } else {
        installation.kill_backend().await;
        director.reached("settled by another backend");
    }
    for (user, opened) in users.iter().zip(opened) {
        if was_stopped(director, opened) {
            user.session_when(&opened.session, "the stopped session is repaired", is_repaired).await?;
            director.require(
                installation.agents_of(opened.session.as_str()).is_empty(),
                "its agent is gone",
                "it runs",
            )?;
            director.reached("agent stopped unread");
            continue;
        }
        let view =
            user.session_when(&opened.session, "the session is re-tracked", |view| view.tracked).await?;
        let agent = view.agent.as_ref().map(|agent| agent.pid);
        director.require(
            agent == Some(opened.agent),
            format!("session {} still has agent process {}", opened.session, opened.agent),
            format!("{agent:?}"),
        )?;
        if let Some(turn) = view.turn {
            let ended = user.outcome(&opened.session, &turn.turn).await?;
            let whole = [TurnState::Completed, TurnState::NotDelivered].contains(&ended.state);
            director.require(whole, "its turn completes, or never began", format!("{ended:?}"))?;
        }
        user.complete_turn(&opened.session, &drawn_steps(director)).await?;
        user.read_transcript(&opened.session).await?;
    }
    Ok(())
}

/// The refused server is left alone and goes by itself; until then and afterwards the backend has one of its own.
async fn refused(
    director: &Director,
    installation: &Installation<'_>,
    users: &[User<'_>],
    opened: &[Opened],
    left: Vec<ProcessView>,
) -> Result<(), Violation> {
    use_it(director, &users[0]).await?;
    let labels = |servers: &[ProcessView]| -> Vec<String> {
        servers.iter().map(|server| server.label.clone()).collect()
    };
    let (left_labels, still) = (labels(&left), labels(&installation.living("controld")));
    director.require(
        left_labels.iter().all(|server| still.contains(server)) && still.len() == left.len() + 1,
        format!("the refused server {left_labels:?} runs on, beside the backend's own"),
        format!("{still:?}"),
    )?;
    for opened in opened {
        let agents = installation.agents_of(opened.session.as_str());
        let agents: Vec<u32> = agents.iter().map(|agent| agent.pid).collect();
        director.require(
            agents == [opened.agent],
            format!("agent {} runs on", opened.agent),
            format!("{agents:?}"),
        )?;
    }
    for server in &left {
        director
            .wait_for("the refused server ends by itself", UNOWNED, |line| {
                line.kind == Kind::Process && line.text == "ended" && line.process == server.label
            })
            .await?;
    }
    let by_itself = director.look(|world| {
        let mut lines = world.lines().iter();
        lines.any(|line| line.logged("controld", "shutdown decided") && line.field("reason") == "unowned")
    });
    director.require(by_itself, "it ends because nobody owns it", "nothing of that kind")?;
    // Its records are the next backend's to repair (O-003.5).
    installation.kill_backend().await;
    for (user, opened) in users.iter().zip(opened) {
        user.session_when(&opened.session, "the session is repaired", is_repaired).await?;
    }
    Ok(())
}

/// The installation works: a new session completes a turn.
async fn use_it(director: &Director, user: &User<'_>) -> Result<(), Violation> {
    let opened = user.open_session().await?;
    user.complete_turn(&opened.session, &drawn_steps(director)).await?;
    user.read_transcript(&opened.session).await
}

fn is_repaired(view: &SessionView) -> bool {
    !view.tracked && view.turn.as_ref().is_none_or(|turn| turn.state.is_terminal())
}

fn was_stopped(director: &Director, opened: &Opened) -> bool {
    director.look(|world| {
        let mut lines = world.lines().iter();
        lines.any(|line| {
            // What was ordered may never have been heard.
            line.logged("controld", "instance stopping") && line.field("session") == opened.session.as_str()
        })
    })
}

async fn sleep_until(director: &Director, at_ms: u64) {
    let now_ms = director.look(|world| world.now_ms());
    director.sleep(Duration::from_millis(at_ms.saturating_sub(now_ms))).await;
}

/// A bound over recovery that an adoption can use up within a short run.
const CONFIG: &str =
    "[agentctl]\nunownedPeriod = \"60s\"\nrecoveryDeadline = \"8s\"\nrecoveryReadTimeout = \"500ms\"\n";

/// That bound, the gates before it is asked after, and what the failed start of an own server takes.
const RECOVERED: Duration = Duration::from_secs(30);

/// What a backend needs for its streams and renewals to find out that answers are right again.
const SETTLED: Duration = Duration::from_secs(5);

/// The period of the refused server, and its budget for stopping its agents.
const UNOWNED: Duration = Duration::from_secs(85);
