//! The one live instance of a session is not the one that its record names: somebody else replaced it while no
//! backend ran. It reports the session, and that decides.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use wire::client::ControlClient;
use wire::http::Endpoint;
use wire::{CreateInstance, InstanceId, InstanceState, SessionId};

use super::installation::{HOME, Installation, WORKSPACE};
use super::user::{User, drawn_steps};
use crate::observer::Violation;
use crate::plan::Plan;
use crate::scenario::{Director, Played, Scenario};
use crate::seed::Streams;

/// Another instance under the same session.
#[derive(Clone, Copy, Debug)]
pub struct OtherInstance;

impl Scenario for OtherInstance {
    fn name(&self) -> &'static str {
        "other-instance"
    }

    fn criterion(&self) -> &'static str {
        "S-002.2"
    }

    fn plan(&self, streams: &Streams) -> Plan {
        Plan::calm(&mut streams.stream("faults"))
    }

    fn run(&self, director: Director) -> Played {
        Box::pin(async move { play(&director).await })
    }
}

async fn play(director: &Director) -> Result<(), Violation> {
    let installation = Installation::lay_out(director);
    let user = User::of(&installation, 1);
    let opened = tokio::select! {
        biased;
        opened = user.open_session() => opened?,
        broken = installation.keep_backend_running() => match broken? {},
    };
    installation.kill_backend().await;
    let replaced = replace(director, &opened.session).await;
    replaced.map_err(|error| Violation::new("required", "S-002.2", "the instance can be replaced", error))?;
    tokio::select! {
        biased;
        verdict = go_on(director, &user, &opened.session) => verdict,
        broken = installation.keep_backend_running() => match broken? {},
    }
}

/// Stops the recorded instance and starts another one for the same session, with the installation's own credential.
async fn replace(director: &Director, session: &SessionId) -> Result<(), String> {
    let client = control_client(director).await?;
    let recorded = client.instances().await.map_err(|error| error.to_string())?.instances;
    for instance in &recorded {
        client.stop_instance(&instance.instance).await.map_err(|error| error.to_string())?;
    }
    let clock = &director.seams.clock;
    while !client.instances().await.map_err(|error| error.to_string())?.instances.is_empty() {
        clock.sleep(LOOK_AGAIN).await;
    }
    let other = InstanceId::new("i-other");
    let request = CreateInstance {
        instance: other.clone(),
        session: session.clone(),
        command: "scripted-agent".to_owned(),
        args: Vec::new(),
        env: [("KANDEV_SESSION_ID".to_owned(), session.to_string())].into(),
        directory: WORKSPACE.to_owned(),
        source_roots: vec![WORKSPACE.to_owned()],
        mode: None,
        resume: None,
    };
    client.create_instance(&request).await.map_err(|error| error.to_string())?;
    loop {
        let status = client.instance(&other).await.map_err(|error| error.to_string())?;
        if status.state != InstanceState::Starting {
            return Ok(());
        }
        clock.sleep(LOOK_AGAIN).await;
    }
}

/// The control server's own client, with what the installation has stored.
async fn control_client(director: &Director) -> Result<ControlClient, String> {
    let secrets = Path::new(HOME).join("secrets");
    let listed = director.seams.disk.list(&secrets).await.map_err(|error| error.to_string())?;
    let newest = listed.last().ok_or("the installation has stored no credential")?;
    let secret = director.seams.disk.read(&newest.path, 4096).await.map_err(|error| error.to_string())?;
    let secret = String::from_utf8(secret).map_err(|error| error.to_string())?;
    Ok(ControlClient::new(Endpoint {
        network: Arc::clone(&director.seams.network),
        clock: Arc::clone(&director.seams.clock),
        address: ([127, 0, 0, 1], CONTROL_PORT).into(),
        credential: Some(SecretString::from(secret.trim().to_owned())),
        limit: CALL_LIMIT,
    }))
}

async fn go_on(director: &Director, user: &User<'_>, session: &SessionId) -> Result<(), Violation> {
    let view = user.session_when(session, "the session is re-tracked", |view| view.tracked).await?;
    let instance = view.instance.map(|instance| instance.to_string());
    director.require(
        instance.as_deref() == Some("i-other"),
        "the session's record is rewritten to the instance that reports it, i-other",
        format!("{instance:?}"),
    )?;
    user.complete_turn(session, &drawn_steps(director)).await?;
    user.read_transcript(session).await
}

/// The default of `agent.standalonePort`.
const CONTROL_PORT: u16 = 39429;

const CALL_LIMIT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
