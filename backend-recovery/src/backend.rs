//! What the parts of one running backend share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use seam::{ChildInput, ExitStatus, Monotonic, ProcessIdentity, Seams, random_hex};
use secrecy::SecretString;
use tokio::sync::watch;
use wire::client::{CallFailed, ControlClient, Possession};
use wire::http::Endpoint;
use wire::{Credential, IdentityAnswer, InstanceId, ServerIdentity, SessionId};

use crate::api::{Named, RefusalCode, Refused};
use crate::config::Config;
use crate::recovery_guard::{Execution, ExecutionStore};
use crate::store::{Store, StoreFailed};
use crate::switch::Survival;

/// One running backend.
pub(crate) struct Backend {
    pub(crate) seams: Seams,
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) survival: Survival,
    /// The capabilities that a control server must have (O-004.1).
    pub(crate) required: BTreeSet<String>,
    executions: Mutex<ExecutionStore>,
    server: Mutex<ServerSlot>,
    report: Mutex<Report>,
    /// Held while a control server is being started, so that a shutdown in between finds it recorded or gone.
    pub(crate) starting: tokio::sync::Mutex<()>,
    /// Somebody has reason to think that the control server is gone or another's.
    pub(crate) server_doubted: tokio::sync::Notify,
    /// True once the backend is going down: every task of it ends.
    closing: watch::Sender<bool>,
}

/// The control server that is worked with, or why there is none.
#[derive(Clone)]
enum ServerSlot {
    /// None; why, for people.
    Missing { why: String },
    /// This one.
    InUse(Box<ServerInUse>),
}

/// A control server that is this backend's own: it was proved or started by it.
#[derive(Clone)]
pub(crate) struct ServerInUse {
    /// Calls with the credential, bounded for ordinary work.
    pub(crate) client: ControlClient,
    /// What it carries, for calls with another bound.
    pub(crate) credential: Arc<Credential>,
    pub(crate) identity: ServerIdentity,
    pub(crate) address: SocketAddr,
    /// The unowned period that this very server reports (O-003.2).
    pub(crate) period: Duration,
    pub(crate) origin: Origin,
    /// Why it listens elsewhere than configured.
    pub(crate) elsewhere: Option<String>,
    /// Its process, if this backend started it.
    pub(crate) process: Option<Arc<ServerProcess>>,
    /// What it runs as, whoever started it, if that was recorded.
    pub(crate) runs_as: Option<ProcessIdentity>,
}

/// A control server's process, as its starter sees it.
pub(crate) struct ServerProcess {
    /// Held open while the backend lives, if the server is to end with it (S-005.2). Dropped to let it end.
    pub(crate) lifeline: Mutex<Option<ChildInput>>,
    /// Set once it has exited.
    pub(crate) exited: watch::Receiver<Option<ExitStatus>>,
}

/// How a control server came to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It outlived an earlier backend.
    Adopted,
    /// This backend started it.
    Started,
}

impl Origin {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Adopted => "adopted",
            Self::Started => "started",
        }
    }
}

/// What this start's recovery came to, for people.
#[derive(Clone, Default)]
pub(crate) struct Report {
    pub(crate) recovered: bool,
    pub(crate) recovery: Option<Duration>,
    pub(crate) adoption: Option<String>,
    pub(crate) retracked: Vec<SessionId>,
    pub(crate) stopped: Vec<Named>,
    pub(crate) left: Vec<Named>,
}

impl Backend {
    pub(crate) fn new(
        seams: Seams,
        config: Config,
        store: Store,
        survival: Survival,
        required: BTreeSet<String>,
    ) -> Self {
        Self {
            seams,
            config,
            store,
            survival,
            required,
            executions: Mutex::default(),
            server: Mutex::new(ServerSlot::Missing { why: "the backend is starting".to_owned() }),
            report: Mutex::default(),
            starting: tokio::sync::Mutex::default(),
            server_doubted: tokio::sync::Notify::new(),
            closing: watch::Sender::new(false),
        }
    }

    /// The in-memory execution store; held for single decisions, never across an await.
    pub(crate) fn executions(&self) -> MutexGuard<'_, ExecutionStore> {
        self.executions.lock().expect("no decision panics while it holds the execution store")
    }

    /// What recovery came to.
    pub(crate) fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().expect("nobody panics while writing the report")
    }

    /// The server in use.
    ///
    /// # Errors
    /// There is none, and why.
    pub(crate) fn server(&self) -> Result<ServerInUse, Refused> {
        match &*self.server_slot() {
            ServerSlot::InUse(server) => Ok(ServerInUse::clone(server)),
            ServerSlot::Missing { why } => Err(Refused::for_now(
                RefusalCode::ControlServerUnavailable,
                format!("there is no control server to work with: {why}"),
            )),
        }
    }

    /// Why there is no server, if there is none.
    pub(crate) fn server_missing(&self) -> Option<String> {
        match &*self.server_slot() {
            ServerSlot::InUse(_) => None,
            ServerSlot::Missing { why } => Some(why.clone()),
        }
    }

    pub(crate) fn use_server(&self, server: ServerInUse) {
        *self.server_slot() = ServerSlot::InUse(Box::new(server));
    }

    pub(crate) fn lose_server(&self, why: String) {
        *self.server_slot() = ServerSlot::Missing { why };
    }

    fn server_slot(&self) -> MutexGuard<'_, ServerSlot> {
        self.server.lock().expect("nobody panics while changing the server in use")
    }

    /// Tells every task of this backend to end.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Resolves once the backend is going down.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        raised(self.closing.subscribe())
    }

    /// Whether the backend is going down.
    pub(crate) fn is_closed(&self) -> bool {
        *self.closing.borrow()
    }

    /// Wall time, for records.
    pub(crate) fn wall_ms(&self) -> u64 {
        self.seams.clock.wall().unix_millis
    }

    pub(crate) fn now(&self) -> Monotonic {
        self.seams.clock.monotonic()
    }

    /// A fresh id with this prefix.
    pub(crate) fn fresh_id(&self, prefix: &str) -> String {
        format!("{prefix}-{}", random_hex(&*self.seams.entropy, ID_BYTES))
    }

    /// Calls to whoever answers at this address, which get nothing of ours; with this bound per exchange.
    pub(crate) fn stranger(&self, address: SocketAddr, limit: Duration) -> ControlClient {
        ControlClient::new(self.endpoint(address, limit))
    }

    /// Calls with this credential to this launch's server, which proves itself over each connection first (O-001.10).
    pub(crate) fn client(
        &self,
        address: SocketAddr,
        server: &ServerIdentity,
        credential: &Arc<Credential>,
        limit: Duration,
    ) -> ControlClient {
        let (home, entropy) = (self.config.home.path().to_owned(), Arc::clone(&self.seams.entropy));
        let possession = Possession::of_credential(Arc::clone(credential), home, server.clone(), entropy);
        ControlClient::proving(self.endpoint(address, limit), possession)
    }

    /// Calls to the server that was launched with this nonce, and to nobody else who answers there.
    pub(crate) fn launcher(
        &self,
        address: SocketAddr,
        server: &ServerIdentity,
        nonce: &SecretString,
        limit: Duration,
    ) -> ControlClient {
        let (home, entropy) = (self.config.home.path().to_owned(), Arc::clone(&self.seams.entropy));
        let possession = Possession::of_nonce(nonce, home, server.clone(), entropy);
        ControlClient::proving(self.endpoint(address, limit), possession)
    }

    fn endpoint(&self, address: SocketAddr, limit: Duration) -> Endpoint {
        let (network, clock) = (Arc::clone(&self.seams.network), Arc::clone(&self.seams.clock));
        Endpoint { network, clock, address, credential: None, limit }
    }

    /// Publishes the session's execution, unless the server that it runs on is not in use any more: whoever loses a
    /// server lets go of its executions afterwards, see [`Backend::drop_server`].
    pub(crate) fn publish(
        &self,
        session: &SessionId,
        instance: InstanceId,
        server: &ServerIdentity,
    ) -> Option<Execution> {
        let mut executions = self.executions();
        let in_use = matches!(&*self.server_slot(), ServerSlot::InUse(used) if used.identity == *server);
        in_use.then(|| executions.publish(session, instance))
    }

    /// Lets go of the server and of every execution on it; tells whose they were.
    pub(crate) fn drop_server(&self, why: &str) -> Vec<SessionId> {
        self.lose_server(why.to_owned());
        self.executions().remove_all()
    }

    /// The server for ordinary work, from what is known after its proof.
    pub(crate) fn server_in_use(
        &self,
        address: SocketAddr,
        credential: Arc<Credential>,
        identity: &IdentityAnswer,
        origin: Origin,
    ) -> ServerInUse {
        ServerInUse {
            client: self.client(address, &identity.server, &credential, CALL_LIMIT),
            credential,
            identity: identity.server.clone(),
            address,
            period: Duration::from_millis(identity.unowned_period_ms),
            origin,
            elsewhere: None,
            process: None,
            runs_as: None,
        }
    }

    /// What an agent finds in its environment: the backend's own, without what is Kandev's, then the profile's,
    /// then who it works for. Kandev's own variables are stripped so that a backend that runs below another
    /// one's agent hands on nothing of that.
    pub(crate) fn agent_environment(
        &self,
        profile: &BTreeMap<String, String>,
        session: &SessionId,
        task: &str,
        run: &str,
    ) -> BTreeMap<String, String> {
        let mut env = self.seams.host.environment();
        env.retain(|name, _| !name.starts_with("KANDEV_"));
        env.extend(profile.iter().map(|(name, value)| (name.clone(), value.clone())));
        env.insert(SESSION_MARKER.to_owned(), session.to_string());
        env.insert(TASK_MARKER.to_owned(), task.to_owned());
        env.insert(RUN_MARKER.to_owned(), run.to_owned());
        env
    }
}

impl From<StoreFailed> for Refused {
    fn from(failed: StoreFailed) -> Self {
        Self::for_now(RefusalCode::Store, chain(&failed))
    }
}

/// An answer that the control server did not give is an answer to our user too.
pub(crate) fn refused_by_server(failed: &CallFailed) -> Refused {
    let message = chain(failed);
    if failed.is_unauthorized() || failed.is_disproved() {
        // Tried again it would be refused again; renewal lets go of everything that was driven (O-002.3).
        return Refused::for_good(RefusalCode::ControlServerUnavailable, message);
    }
    match failed.refusal() {
        Some(wire::RefusalCode::TurnOpen) => Refused::for_now(RefusalCode::TurnOpen, message),
        Some(wire::RefusalCode::NotReady) => Refused::for_now(RefusalCode::Starting, message),
        Some(wire::RefusalCode::UnknownInstance) => Refused::for_good(RefusalCode::NoAgent, message),
        Some(wire::RefusalCode::UnknownPermission) => {
            Refused::for_good(RefusalCode::UnknownPermission, message)
        }
        _ => Refused::for_now(RefusalCode::ControlServerFailed, message),
    }
}

/// An error and what caused it, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Resolves once the flag is up, or nobody is left who could raise it.
pub(crate) async fn raised(mut flag: watch::Receiver<bool>) {
    // An error says that the sender is gone, and with it what the flag was for.
    let _gone = flag.wait_for(|up| *up).await;
}

/// Repeats a read that nobody answered, without delay, as S-002.13 has it. An answer that refuses is an answer.
pub(crate) async fn answered<T, F>(retries: u32, mut ask: impl FnMut() -> F) -> Result<T, CallFailed>
where
    F: Future<Output = Result<T, CallFailed>>,
{
    let mut left = retries;
    loop {
        match ask().await {
            Err(failed) if failed.may_pass() && left > 0 => left -= 1,
            answer => return answer,
        }
    }
}

/// The variables that mark an agent and everything below it.
pub(crate) const SESSION_MARKER: &str = "KANDEV_SESSION_ID";
pub(crate) const TASK_MARKER: &str = "KANDEV_TASK_ID";
pub(crate) const RUN_MARKER: &str = "KANDEV_RUN_ID";

/// The control server's own mark on an agent and everything below it.
pub(crate) const INSTANCE_MARKER: &str = "KANDEV_INSTANCE_MARK";

/// 64 bits: ids of one installation do not meet within its lifetime, and still fit a log line.
const ID_BYTES: usize = 8;

/// The bound of one ordinary exchange: starting a process on a loaded machine takes seconds, a hung server must
/// not hold a user's request for longer.
const CALL_LIMIT: Duration = Duration::from_secs(10);
