//! The server's own state: its identity, its ownership, its instances, and its end.
//!
//! The lock of the ownership is taken before that of the table, and that before an instance's, never the other way
//! round. Whatever touches an instance goes through [`Server::as_driver`]: between the last look at who drives and the
//! effect nobody can rotate, so that a backend that was superseded while its request was still being read changes
//! nothing. The decision to shut down is taken under the same lock: an instance is either refused or among those that
//! are stopped.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use seam::{Seams, random_hex};
use secrecy::SecretString;
use tokio::sync::watch;
use tracing::{debug, error, info, trace, warn};
use wire::proof::{Binding, Challenge, ProofAnswer};
use wire::{
    CreateInstance, Credential, IdentityAnswer, InstanceId, InstanceList, InstanceStatus, RotationId,
    ServerIdentity,
};

use crate::access::Access;
use crate::instance::{Instance, Numbers, StreamNumber};
use crate::instance_table::{Admission, CreateRefused, InstanceTable};
use crate::ownership::{AdmissionRefused, Admitted, Ownership, ShutdownReason};
use crate::stream_fencing::StreamId;
use crate::unowned_period::IdleReaping;

/// One launch of the control server.
pub(crate) struct Server {
    seams: Seams,
    identity: ServerIdentity,
    /// Canonical.
    home: PathBuf,
    /// What it really listens on.
    address: SocketAddr,
    capabilities: BTreeSet<String>,
    unowned_period: Duration,
    idle_reaping: IdleReaping,
    event_limit: usize,
    numbers: Arc<Numbers>,
    ownership: Mutex<Ownership<OpenStream>>,
    instances: Mutex<InstanceTable<Arc<Instance>>>,
    /// Why it shuts down, once it does.
    shutdown: watch::Sender<Option<ShutdownReason>>,
    /// How many instances there are.
    count: watch::Sender<usize>,
}

/// What a launch is given.
pub(crate) struct Launched {
    /// The installation's home in its canonical spelling.
    pub(crate) home: PathBuf,
    /// What the server listens on.
    pub(crate) address: SocketAddr,
    /// What buys the first credential.
    pub(crate) nonce: SecretString,
    /// What it advertises.
    pub(crate) capabilities: BTreeSet<String>,
    /// How long the server tolerates having no owner.
    pub(crate) unowned_period: Duration,
    /// When an idle instance is stopped.
    pub(crate) idle_reaping: IdleReaping,
    /// How many unacknowledged events one instance may hold.
    pub(crate) event_limit: usize,
}

/// What ends a stream of a superseded credential.
type OpenStream = (Arc<Instance>, StreamNumber);

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
    pub(crate) fn new(seams: Seams, launched: Launched) -> Self {
        let Launched { home, address, nonce, capabilities, unowned_period, idle_reaping, event_limit } =
            launched;
        let ownership = Ownership::new(seams.clock.monotonic(), nonce, unowned_period);
        Self {
            identity: ServerIdentity::new(random_hex(&*seams.entropy, IDENTITY_BYTES)),
            home,
            address,
            capabilities,
            unowned_period,
            idle_reaping,
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
            capabilities: self.capabilities.clone(),
            unowned_period_ms: u64::try_from(self.unowned_period.as_millis())
                .expect("the period was parsed from u64"),
        }
    }

    /// The nonce buys the first credential, once.
    pub(crate) fn handshake(&self, nonce: &str) -> Result<Credential, AdmissionRefused> {
        let fresh = Credential::fresh(&*self.seams.entropy);
        let answer = self.ownership().handshake(self.seams.clock.monotonic(), nonce, fresh);
        match &answer {
            Ok(_) => info!("handshake accepted"),
            Err(refused) => warn!(reason = %refused, "handshake refused"),
        }
        answer
    }

    /// Whether a caller who presents this may go on.
    pub(crate) fn admit(
        &self,
        access: Access,
        presented: Option<&Credential>,
    ) -> Result<Admitted, AdmissionRefused> {
        self.ownership().admit(self.seams.clock.monotonic(), access, presented)
    }

    /// Demonstrates every acceptable credential over this challenge (O-001.10).
    pub(crate) fn prove(&self, challenge: &Challenge) -> Result<ProofAnswer, AdmissionRefused> {
        let binding = Binding::new(&self.home, &self.identity, self.address);
        let proved = self.ownership().prove(self.seams.clock.monotonic(), challenge, binding);
        match &proved {
            // One for every connection of our backend.
            Ok(answer) => debug!(acceptable = answer.macs(), "challenge answered"),
            Err(refused) => info!(reason = %refused, "challenge refused"),
        }
        proved
    }

    /// Renews ownership (O-003.8).
    pub(crate) fn claim(&self, presented: Option<&Credential>) -> Result<(), AdmissionRefused> {
        let mut ownership = self.ownership();
        let claimed = ownership.claim(self.seams.clock.monotonic(), presented);
        match &claimed {
            Ok(()) => debug!(rotation = ?ownership.latest_rotation(), "ownership claimed"),
            Err(refused) => info!(reason = %refused, "claim refused"),
        }
        claimed
    }

    /// The first step of an adoption (O-002.7). The streams of the superseded credential are over before this returns
    /// (O-002.2).
    pub(crate) fn rotate(
        &self,
        presented: Option<&Credential>,
    ) -> Result<(RotationId, Credential), AdmissionRefused> {
        let fresh = Credential::fresh(&*self.seams.entropy);
        let mut ownership = self.ownership();
        let rotated = ownership
            .rotate(self.seams.clock.monotonic(), presented, fresh)
            .inspect_err(|refused| info!(reason = %refused, "rotation refused"))?;
        for (_, (instance, stream)) in &rotated.superseded_streams {
            instance.supersede(*stream);
        }
        let replacement = rotated.replacement;
        info!(
            rotation = %replacement.id, replayed = replacement.replayed,
            streams = rotated.superseded_streams.len(), "credential rotated"
        );
        Ok((replacement.id, replacement.credential))
    }

    /// The second step: the adopter has stored the replacement (O-002.6). Tells whether that was news.
    pub(crate) fn confirm(
        &self,
        presented: Option<&Credential>,
        id: RotationId,
    ) -> Result<bool, AdmissionRefused> {
        let confirmed = self.ownership().confirm(self.seams.clock.monotonic(), presented, id);
        match &confirmed {
            Ok(took_effect) => info!(rotation = %id, took_effect, "rotation confirmed"),
            Err(refused) => info!(rotation = %id, reason = %refused, "confirmation refused"),
        }
        confirmed
    }

    /// Judges once more whether the caller drives, and carries the effect out in the same step. The effect is short and
    /// never waits.
    pub(crate) fn as_driver<T>(
        &self,
        admitted: Admitted,
        operation: &'static str,
        effect: impl FnOnce() -> T,
    ) -> Result<T, AdmissionRefused> {
        let mut ownership = self.ownership();
        self.judge_again(&mut ownership, admitted, operation)?;
        Ok(effect())
    }

    fn judge_again(
        &self,
        ownership: &mut Ownership<OpenStream>,
        admitted: Admitted,
        operation: &'static str,
    ) -> Result<(), AdmissionRefused> {
        match ownership.still_drives(self.seams.clock.monotonic(), admitted) {
            Ok(()) => trace!(by = %admitted, operation, "driven"),
            Err(refused) => {
                info!(operation, reason = %refused, "operation refused after it was admitted");
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Attaches an event stream, unless its caller was superseded since it was admitted (O-002.2).
    pub(crate) fn open_stream(
        &self,
        admitted: Admitted,
        instance: &Arc<Instance>,
    ) -> Result<(StreamId, StreamNumber), AdmissionRefused> {
        let mut number = None;
        let mut ownership = self.ownership();
        let opened = ownership.open_stream(self.seams.clock.monotonic(), admitted, || {
            let attached = instance.attach();
            number = Some(attached);
            (Arc::clone(instance), attached)
        });
        match opened {
            Ok(id) => {
                let open = ownership.streams().count();
                debug!(instance = %instance.id(), stream = ?number, by = %admitted, open, "stream registered");
                Ok((id, number.expect("a stream that was opened was attached")))
            }
            Err(refused) => {
                info!(instance = %instance.id(), reason = %refused, "stream refused after it was admitted");
                Err(refused)
            }
        }
    }

    /// A stream ended by itself.
    pub(crate) fn forget_stream(&self, id: StreamId) {
        self.ownership().forget_stream(id);
    }

    /// Creates the instance of this request, or gives the one that it created before.
    pub(crate) fn create(
        self: &Arc<Self>,
        admitted: Admitted,
        request: &CreateInstance,
    ) -> Result<InstanceStatus, NotCreated> {
        let mut ownership = self.ownership();
        self.judge_again(&mut ownership, admitted, "create instance")?;
        let mut instances = self.instances();
        let admission = instances.create(request, || {
            let (seams, numbers) = (self.seams.clone(), Arc::clone(&self.numbers));
            let entries = self.home.join(wire::AGENT_ENTRIES);
            Arc::new(Instance::new(
                request.clone(),
                &self.identity,
                self.event_limit,
                entries,
                seams,
                numbers,
            ))
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

    /// The ownership shutdown: its asker is judged once more in the step that decides (O-002.9).
    pub(crate) fn ask_to_shut_down(&self, presented: Option<&Credential>) -> Result<usize, AdmissionRefused> {
        let asked = self.ownership().ask_to_shut_down(self.seams.clock.monotonic(), presented);
        match asked {
            Ok(reason) => Ok(self.shut_down(reason)),
            Err(refused) => {
                info!(reason = %refused, "shutdown refused");
                Err(refused)
            }
        }
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
            // None if the decision was taken already, perhaps by an operation that found the age too high.
            if let Some(deadline) = deadline {
                self.seams.clock.sleep_until(deadline).await;
            }
            let decided = self.ownership().check(self.seams.clock.monotonic());
            if let Some(reason) = decided {
                self.shut_down(reason);
                return;
            }
        }
    }

    async fn supervise(self: Arc<Self>, instance: Arc<Instance>) {
        if let IdleReaping::After(timeout) = self.idle_reaping {
            tokio::spawn(Arc::clone(&instance).reap_when_idle(timeout));
        }
        Arc::clone(&instance).supervise().await;
        let mut instances = self.instances();
        instances.remove(instance.id());
        info!(instance = %instance.id(), "instance gone");
        self.count.send_replace(instances.len());
    }

    fn ownership(&self) -> MutexGuard<'_, Ownership<OpenStream>> {
        self.ownership.lock().expect("no step panics while it holds the ownership")
    }

    fn instances(&self) -> MutexGuard<'_, InstanceTable<Arc<Instance>>> {
        self.instances.lock().expect("no step panics while it holds the table")
    }
}

/// Enough that no two launches ever share one.
const IDENTITY_BYTES: usize = 16;

/// The bound of a shutdown: the stops run beside each other, each within its budget, and the last looks come on top.
/// What is left then cannot be ended by signals, and waiting longer would not help.
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(15);
