//! The server's own state: its identity, its ownership, its instances, and its end.
//!
//! The lock of the ownership is taken before that of the table, never the other way round. A create holds both, and
//! the decision to shut down is taken under the first: an instance is either refused or among those that are stopped.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use seam::{Seams, random_hex};
use secrecy::SecretString;
use tokio::sync::watch;
use tracing::{debug, error, info, warn};
use wire::{
    CAPABILITIES, CreateInstance, IdentityAnswer, InstanceId, InstanceList, InstanceStatus, ServerIdentity,
};

use crate::access::Access;
use crate::instance::{Instance, Numbers};
use crate::instance_table::{Admission, CreateRefused, InstanceTable};
use crate::ownership::{AdmissionRefused, Ownership, ShutdownReason};

/// One launch of the control server.
pub(crate) struct Server {
    seams: Seams,
    identity: ServerIdentity,
    unowned_period: Duration,
    event_limit: usize,
    numbers: Arc<Numbers>,
    ownership: Mutex<Ownership>,
    instances: Mutex<InstanceTable<Arc<Instance>>>,
    /// Why it shuts down, once it does.
    shutdown: watch::Sender<Option<ShutdownReason>>,
    /// How many instances there are.
    count: watch::Sender<usize>,
}

/// Why an instance was not created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotCreated {
    /// The server takes no instances any more.
    #[error(transparent)]
    Admission(#[from] AdmissionRefused),
    /// The table says no.
    #[error(transparent)]
    Table(#[from] CreateRefused),
}

impl Server {
    /// A fresh launch: a new identity, no owner, no instance.
    pub(crate) fn new(
        seams: Seams,
        nonce: SecretString,
        unowned_period: Duration,
        event_limit: usize,
    ) -> Self {
        let ownership = Ownership::new(seams.clock.monotonic(), nonce, unowned_period);
        Self {
            identity: ServerIdentity::new(random_hex(&*seams.entropy, IDENTITY_BYTES)),
            unowned_period,
            event_limit,
            numbers: Arc::default(),
            ownership: Mutex::new(ownership),
            instances: Mutex::new(InstanceTable::new()),
            shutdown: watch::Sender::default(),
            count: watch::Sender::default(),
            seams,
        }
    }

    /// The world.
    pub(crate) fn seams(&self) -> &Seams {
        &self.seams
    }

    /// Who this launch is.
    pub(crate) fn identity(&self) -> &ServerIdentity {
        &self.identity
    }

    /// All that anybody may know (O-001.11).
    pub(crate) fn identity_answer(&self) -> IdentityAnswer {
        IdentityAnswer {
            server: self.identity.clone(),
            capabilities: CAPABILITIES.into_iter().map(str::to_owned).collect(),
            unowned_period_ms: u64::try_from(self.unowned_period.as_millis())
                .expect("the period was parsed from u64"),
        }
    }

    /// The nonce buys the first credential, once.
    pub(crate) fn handshake(&self, nonce: &str) -> Result<SecretString, AdmissionRefused> {
        let fresh = SecretString::from(random_hex(&*self.seams.entropy, CREDENTIAL_BYTES));
        let answer = self.ownership().handshake(self.seams.clock.monotonic(), nonce, fresh);
        match &answer {
            Ok(_) => info!("handshake accepted"),
            Err(refused) => warn!(reason = %refused, "handshake refused"),
        }
        answer
    }

    /// Whether a caller who presents this may go on.
    pub(crate) fn admit(&self, access: Access, presented: Option<&str>) -> Result<(), AdmissionRefused> {
        self.ownership().admit(self.seams.clock.monotonic(), access, presented)
    }

    /// Renews ownership (O-003.8).
    pub(crate) fn claim(&self) -> Result<(), AdmissionRefused> {
        let claimed = self.ownership().claim(self.seams.clock.monotonic());
        match &claimed {
            Ok(()) => debug!("ownership claimed"),
            Err(refused) => info!(reason = %refused, "claim refused"),
        }
        claimed
    }

    /// Creates the instance of this request, or gives the one that it created before.
    pub(crate) fn create(self: &Arc<Self>, request: &CreateInstance) -> Result<InstanceStatus, NotCreated> {
        let mut ownership = self.ownership();
        if ownership.check(self.seams.clock.monotonic()).is_some() {
            return Err(AdmissionRefused::ShuttingDown.into());
        }
        let mut instances = self.instances();
        let admission = instances.create(request, || {
            let (seams, numbers) = (self.seams.clone(), Arc::clone(&self.numbers));
            Arc::new(Instance::new(request.clone(), &self.identity, self.event_limit, seams, numbers))
        })?;
        match admission {
            Admission::Existing(instance) => Ok(instance.status()),
            Admission::Created(instance) => {
                info!(
                    instance = %request.instance, session = %request.session, command = %request.command,
                    directory = %request.directory, "instance created"
                );
                self.count.send_replace(instances.len());
                let status = instance.status();
                tokio::spawn(Arc::clone(self).supervise(instance));
                Ok(status)
            }
        }
    }

    /// The instance of that id.
    pub(crate) fn find(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        self.instances().find(id)
    }

    /// The enumeration.
    pub(crate) fn list(&self) -> InstanceList {
        let instances = self.instances().all();
        InstanceList { instances: instances.iter().map(|instance| instance.status()).collect() }
    }

    /// Decides to shut down and begins to stop every instance. Repeated, it only tells how many are left.
    pub(crate) fn shut_down(&self, reason: ShutdownReason) -> usize {
        let reason = self.ownership().shut_down(self.seams.clock.monotonic(), reason);
        let instances = self.instances().all();
        let first = self.shutdown.send_if_modified(|known| known.replace(reason).is_none());
        if first {
            info!(reason = reason.name(), instances = instances.len(), "shutdown decided");
        }
        for instance in &instances {
            instance.stop("shutdown");
        }
        instances.len()
    }

    /// Resolves with the reason once the server shuts down.
    pub(crate) async fn shutting_down(&self) -> ShutdownReason {
        let mut shutdown = self.shutdown.subscribe();
        let reason = shutdown.wait_for(Option::is_some).await.expect("the sender lives in `self`");
        reason.expect("it was just seen")
    }

    /// Waits until no instance is left, or until the bound; gives how many are.
    pub(crate) async fn all_gone(&self) -> usize {
        let mut count = self.count.subscribe();
        let gone = async { count.wait_for(|count| *count == 0).await.map(|_| ()) };
        if seam::within(&*self.seams.clock, SHUTDOWN_LIMIT, gone).await.is_ok() {
            return 0;
        }
        let left = self.instances().all();
        for instance in &left {
            error!(instance = %instance.id(), "instance left behind by the shutdown");
        }
        left.len()
    }

    /// Judges the age of the ownership whenever it may have run out, for ever.
    pub(crate) async fn watch_ownership(&self) {
        loop {
            let deadline = self.ownership().next_deadline();
            self.seams.clock.sleep_until(deadline).await;
            let decided = self.ownership().check(self.seams.clock.monotonic());
            if let Some(reason) = decided {
                self.shut_down(reason);
                return;
            }
        }
    }

    async fn supervise(self: Arc<Self>, instance: Arc<Instance>) {
        Arc::clone(&instance).supervise().await;
        let mut instances = self.instances();
        instances.remove(instance.id());
        info!(instance = %instance.id(), "instance gone");
        self.count.send_replace(instances.len());
    }

    fn ownership(&self) -> MutexGuard<'_, Ownership> {
        self.ownership.lock().expect("no step panics while it holds the ownership")
    }

    fn instances(&self) -> MutexGuard<'_, InstanceTable<Arc<Instance>>> {
        self.instances.lock().expect("no step panics while it holds the table")
    }
}

/// Enough that no two launches ever share one.
const IDENTITY_BYTES: usize = 16;

/// As much as its digest could be searched for.
const CREDENTIAL_BYTES: usize = 32;

/// The bound of a shutdown: the stops run beside each other, each within its budget, and the last looks come on top.
/// What is left then cannot be ended by signals, and waiting longer would not help.
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(15);
