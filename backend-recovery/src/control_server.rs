//! Starting a control server of our own: address, nonce, process, handshake, and the two durable writes before
//! it is used.
//!
//! It always is a fresh server with a fresh secret (ruling 5). With the capability on nothing ties it to this
//! process; with it off it watches its standard input, which ends with us.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seam::{
    Child, ExitStatus, Privacy, ProcessIdentity, Signal, SpawnRequest, Stdio, Target, random_hex, within,
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::watch;
use tracing::{info, warn};
use wire::{Credential, IdentityAnswer, ProcessRef, RotationId};

use crate::adoption::lacking;
use crate::backend::{
    Backend, INSTANCE_MARKER, Origin, RUN_MARKER, SESSION_MARKER, ServerInUse, ServerProcess, TASK_MARKER,
    chain,
};
use crate::control_server_record::{ControlServerRecord, secret_name};
use crate::ports;

/// Why no control server could be started. Nothing of the attempt is left running.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartFailed {
    #[error("agent.standaloneHost {host:?} names no address of this host")]
    NoAddress {
        host: String,
        #[source]
        cause: std::io::Error,
    },
    #[error(
        "the control server's program {program:?} could not be started: install it beside backend-recovery, put it \
         into PATH, or name it with agent.controldPath"
    )]
    Program {
        program: String,
        #[source]
        cause: std::io::Error,
    },
    #[error(
        "the control server refused its configuration: one of {passed} is outside its range (event limit: a whole \
         number from 1 to 10000; periods: a duration such as 10m or 1h)"
    )]
    Configuration { passed: String },
    #[error("the control server could not start ({status}); see {log}", log = log.display())]
    Exited { status: ExitStatus, log: PathBuf },
    #[error("the control server did not answer within {START_LIMIT:?} of its start; see {log}", log = log.display())]
    Silent { log: PathBuf },
    #[error("{address} was taken while the control server started, {PORT_TRIES} times")]
    PortsTaken { address: SocketAddr },
    #[error(
        "the control server beside this backend lacks the capabilities {missing:?}: install both of one build"
    )]
    Incompatible { missing: Vec<String> },
    #[error("{what} could not be written: free some space and check the permissions of the home")]
    NotWritten {
        what: &'static str,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// How one attempt ended without a server.
enum Attempt {
    /// Somebody else took the port.
    PortTaken,
    Failed(StartFailed),
}

impl From<StartFailed> for Attempt {
    fn from(failed: StartFailed) -> Self {
        Self::Failed(failed)
    }
}

/// Starts a server, records it and gives it for use.
pub(crate) async fn start(backend: &Arc<Backend>) -> Result<ServerInUse, StartFailed> {
    let resolved = configured_addresses(backend).await?;
    let configured = resolved[0];
    let mut address = configured;
    let mut elsewhere = None;
    if !ports::is_free(&*backend.seams.network, configured, &resolved).await {
        address = another_port(backend, configured).await?;
        elsewhere = Some(format!("somebody else listens at {configured}"));
        warn!(%configured, %address, "configured control port is taken, using another");
    }
    for _ in 0..PORT_TRIES {
        match attempt(backend, address).await {
            Ok(server) => {
                info!(server = %server.identity, address = %server.address, "control server started");
                return Ok(ServerInUse { elsewhere, ..server });
            }
            Err(Attempt::Failed(failed)) => return Err(failed),
            Err(Attempt::PortTaken) => {
                elsewhere = Some(format!("{address} was taken while the control server started"));
                let next = another_port(backend, configured).await?;
                warn!(taken = %address, address = %next, "control port was taken meanwhile, using another");
                address = next;
            }
        }
    }
    Err(StartFailed::PortsTaken { address })
}

/// What the configured host resolves to, at least one.
async fn configured_addresses(backend: &Backend) -> Result<Vec<SocketAddr>, StartFailed> {
    let host = &backend.config.standalone_host;
    let failed = |cause| StartFailed::NoAddress { host: host.clone(), cause };
    let addresses =
        backend.seams.network.resolve(host, backend.config.standalone_port).await.map_err(failed)?;
    match addresses.is_empty() {
        true => Err(failed(std::io::ErrorKind::NotFound.into())),
        false => Ok(addresses),
    }
}

async fn another_port(backend: &Backend, configured: SocketAddr) -> Result<SocketAddr, StartFailed> {
    ports::free_port(&*backend.seams.network, configured.ip())
        .await
        .map_err(|cause| StartFailed::NoAddress { host: configured.ip().to_string(), cause })
}

/// One process on one address. Whatever fails after its start ends it again.
async fn attempt(backend: &Arc<Backend>, address: SocketAddr) -> Result<ServerInUse, Attempt> {
    let nonce = SecretString::from(random_hex(&*backend.seams.entropy, NONCE_BYTES));
    let nonce_file = backend.config.home.run().join(backend.fresh_id("nonce"));
    let disk = &backend.seams.disk;
    remove_stale_nonces(backend).await;
    disk.write_atomic(&nonce_file, nonce.expose_secret().as_bytes(), Privacy::Owner).await.map_err(
        |cause| StartFailed::NotWritten { what: "the control server's nonce", cause: cause.into() },
    )?;
    let outcome = launch(backend, address, &nonce, &nonce_file).await;
    if let Err(error) = disk.remove(&nonce_file).await {
        warn!(file = %nonce_file.display(), error = %error, "used nonce could not be removed");
    }
    outcome
}

/// A backend that was killed in the middle of a start left its nonce; nobody will use it any more.
async fn remove_stale_nonces(backend: &Backend) {
    let disk = &backend.seams.disk;
    let entries = disk.list(&backend.config.home.run()).await.unwrap_or_default();
    let is_nonce = |path: &std::path::Path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"nonce-"))
    };
    for stale in entries.into_iter().filter(|entry| is_nonce(&entry.path)) {
        if let Err(error) = disk.remove(&stale.path).await {
            warn!(file = %stale.path.display(), %error, "stale nonce could not be removed");
        }
    }
}

async fn launch(
    backend: &Arc<Backend>,
    address: SocketAddr,
    nonce: &SecretString,
    nonce_file: &std::path::Path,
) -> Result<ServerInUse, Attempt> {
    let program = program(backend).await;
    let request = spawn_request(backend, program.clone(), address, nonce_file);
    let mut child = backend
        .seams
        .processes
        .spawn(request)
        .await
        .map_err(|cause| StartFailed::Program { program, cause })?;
    info!(pid = child.identity.pid, %address, "control server spawned");
    match admit_child(backend, &mut child, address, nonce).await {
        Ok(server) => Ok(ServerInUse { process: Some(watch_process(backend, child)), ..server }),
        Err(failed) => {
            end_child(backend, &mut child).await;
            Err(failed)
        }
    }
}

/// Beside our own executable if it is there, else whatever `PATH` names.
async fn program(backend: &Backend) -> String {
    if let Some(path) = &backend.config.controld_path {
        return path.clone();
    }
    let sibling = backend.seams.host.executable().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    if let Some(sibling) = sibling
        && let Some(directory) = sibling.parent()
        && let Ok(entries) = backend.seams.disk.list(directory).await
        && entries.iter().any(|entry| entry.path == sibling)
    {
        return sibling.display().to_string();
    }
    PROGRAM.to_owned()
}

fn spawn_request(
    backend: &Backend,
    program: String,
    address: SocketAddr,
    nonce_file: &std::path::Path,
) -> SpawnRequest {
    let mut args = vec![
        "--home".to_owned(),
        backend.config.home.path().display().to_string(),
        "--listen".to_owned(),
        address.to_string(),
        "--nonce-file".to_owned(),
        nonce_file.display().to_string(),
    ];
    let detached = backend.survival.is_on();
    if !detached {
        args.push("--until-stdin-closes".to_owned());
    }
    let mut env = backend.seams.host.environment();
    // A backend that itself runs below an agent must not mark its own server as that agent's: whoever stops that
    // agent ends everything that carries its marks.
    for marker in [SESSION_MARKER, TASK_MARKER, RUN_MARKER, INSTANCE_MARKER] {
        env.remove(marker);
    }
    env.extend(backend.config.passed_through.clone());
    SpawnRequest {
        program,
        args,
        env,
        directory: Some(backend.config.home.path().to_owned()),
        stdio: if detached { Stdio::Null } else { Stdio::InputOnly },
    }
}

/// Waits for the server's answer, takes the first credential and makes both durable writes.
async fn admit_child(
    backend: &Arc<Backend>,
    child: &mut Child,
    address: SocketAddr,
    nonce: &SecretString,
) -> Result<ServerInUse, Attempt> {
    let identity = first_answer(backend, child, address).await?;
    let launcher = backend.launcher(address, &identity.server, nonce, ANSWER_LIMIT);
    let credential = match launcher.handshake(nonce).await {
        Ok(credential) => credential,
        // Whoever does not know our nonce is not our child: that one will find the port taken.
        Err(failed) if failed.is_disproved() || failed.refusal().is_some() => return Err(Attempt::PortTaken),
        Err(failed) => {
            warn!(%address, error = %chain(&failed), "handshake got no answer");
            return Err(StartFailed::Silent { log: backend.config.home.control_server_log() }.into());
        }
    };
    let missing = lacking(&backend.required, &identity.capabilities);
    if !missing.is_empty() {
        return Err(StartFailed::Incompatible { missing: missing.into_iter().collect() }.into());
    }
    let process = child.identity.clone();
    record(backend, address, &identity, &credential, &process).await?;
    let server = backend.server_in_use(address, Arc::new(credential), &identity, Origin::Started);
    Ok(ServerInUse { runs_as: Some(process), ..server })
}

/// Both durable writes, the secret first: a record never names a secret that is not there.
async fn record(
    backend: &Backend,
    address: SocketAddr,
    identity: &IdentityAnswer,
    credential: &Credential,
    process: &ProcessIdentity,
) -> Result<(), StartFailed> {
    let secret = secret_name(&identity.server, RotationId::HANDSHAKE);
    let text = credential.to_text();
    backend.seams.secrets.store(&secret, text.expose_secret().as_bytes()).await.map_err(|cause| {
        StartFailed::NotWritten { what: "the control server's credential", cause: cause.into() }
    })?;
    let record = ControlServerRecord {
        endpoint: address,
        identity: identity.server.clone(),
        secret,
        capabilities: identity.capabilities.clone(),
        unowned_period_ms: identity.unowned_period_ms,
        log: backend.config.home.control_server_log().display().to_string(),
        process: Some(ProcessRef {
            pid: process.pid,
            start_time: process.start_time,
            boot_id: process.boot_id.clone(),
        }),
    };
    record
        .write(&backend.store)
        .await
        .map_err(|cause| StartFailed::NotWritten { what: "the control-server record", cause: cause.into() })
}

async fn first_answer(
    backend: &Arc<Backend>,
    child: &mut Child,
    address: SocketAddr,
) -> Result<IdentityAnswer, Attempt> {
    let log = || backend.config.home.control_server_log();
    let stranger = backend.stranger(address, ANSWER_LIMIT);
    let asking = async {
        loop {
            if let Ok(identity) = stranger.identity().await {
                return identity;
            }
            backend.seams.clock.sleep(POLL).await;
        }
    };
    let answer = async {
        tokio::select! {
            biased;
            status = child.exit.wait() => Err(status),
            identity = asking => Ok(identity),
        }
    };
    match within(&*backend.seams.clock, START_LIMIT, answer).await {
        Ok(Ok(identity)) => Ok(identity),
        Ok(Err(Ok(ExitStatus::Code(ADDRESS_TAKEN)))) => Err(Attempt::PortTaken),
        Ok(Err(Ok(ExitStatus::Code(BAD_CONFIGURATION)))) => {
            let passed = backend.config.passed_through.iter();
            let passed: Vec<_> = passed.map(|(name, value)| format!("{name}={value:?}")).collect();
            Err(StartFailed::Configuration { passed: passed.join(", ") }.into())
        }
        Ok(Err(Ok(status))) => Err(StartFailed::Exited { status, log: log() }.into()),
        Ok(Err(Err(_))) | Err(_) => Err(StartFailed::Silent { log: log() }.into()),
    }
}

/// Ends a child that never got an agent: nothing of a failed start is left running.
async fn end_child(backend: &Backend, child: &mut Child) {
    for signal in [Signal::Terminate, Signal::Kill] {
        let target = Target::Process(child.identity.clone());
        if !matches!(backend.seams.processes.signal(target, signal).await, Ok(true)) {
            return;
        }
        if within(&*backend.seams.clock, END_LIMIT, child.exit.wait()).await.is_ok() {
            return;
        }
    }
}

/// Reaps the server when it exits, and holds its lifeline.
fn watch_process(backend: &Arc<Backend>, mut child: Child) -> Arc<ServerProcess> {
    let (exited, receiver) = watch::channel(None);
    let lifeline = Mutex::new(child.stdin.take());
    let pid = child.identity.pid;
    let closed = backend.closed();
    tokio::spawn(async move {
        let Ok(status) = child.exit.wait().await else { return };
        warn!(pid, status = %status, "control server exited");
        exited.send_replace(Some(status));
        // Whoever waits for the exit during a shutdown still finds it.
        closed.await;
    });
    Arc::new(ServerProcess { lifeline, exited: receiver })
}

const PROGRAM: &str = "controld";

/// What `controld` exits with when its address is in use.
const ADDRESS_TAKEN: i32 = 3;

/// What `controld` exits with when a value that was passed through breaks its rule.
const BAD_CONFIGURATION: i32 = 2;

/// 256 bits, like the credential that it buys.
const NONCE_BYTES: usize = 32;

/// A process that starts under load still answers within this; a start that takes longer is a failure to show.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The bound of one exchange during the start.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// A server is up some 10 ms after its start; asking more often buys nothing.
const POLL: Duration = Duration::from_millis(10);

/// How long a server without agents may take to end on TERM, and again on KILL.
const END_LIMIT: Duration = Duration::from_secs(2);

/// A port that is free is taken in between only by chance; three times in a row is no chance any more.
const PORT_TRIES: u32 = 4;
