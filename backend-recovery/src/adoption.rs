//! Whether the recorded control server is ours: the gates in their order (O-001.2, O-001.3).
//!
//! ```text
//!   recorded ── identity ──> secret loaded ── it proves first ──> ProvenServer ── rotate, two writes ──> AdoptedServer
//! ```
//!
//! Only a [`ProvenServer`] can be rotated or shut down, and only an [`AdoptedServer`] can be enumerated or its instances
//! stopped. A proven one is made from a verified proof alone; until then nothing that we hold is sent (O-001.10).

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::{info, warn};
use wire::client::{CallFailed, ControlClient};
use wire::proof::{Binding, Challenge, Proven};
use wire::{Credential, IdentityAnswer, RefusalCode, RotationId, ServerIdentity};

use crate::backend::{Backend, Origin, ServerInUse, answered, chain};
use crate::control_server_record::{ControlServerRecord, Recorded};
use crate::leftovers::identity_of;
use crate::refusal::AdoptionRefused;

/// A server that passed identity and proof.
pub(crate) struct ProvenServer {
    pub(crate) identity: IdentityAnswer,
    record: ControlServerRecord,
    client: ControlClient,
}

/// A server whose credential we replaced, with both durable writes done. Nobody else drives it.
pub(crate) struct AdoptedServer {
    pub(crate) identity: IdentityAnswer,
    record: ControlServerRecord,
    rotation: RotationId,
    credential: Arc<Credential>,
    client: ControlClient,
}

/// What the gates came to.
pub(crate) enum Admission {
    /// It is ours and speaks our protocol.
    Proven(ProvenServer),
    /// It is ours, but lacks these capabilities: to be stopped, not used (O-004.3).
    Incompatible {
        /// The server.
        server: ProvenServer,
        /// What it lacks.
        missing: BTreeSet<String>,
    },
    /// It is left alone: nothing more is sent to it (O-001.4).
    Refused(AdoptionRefused),
    /// It has decided to shut down: as if there were none (O-001.8).
    ShuttingDown,
    /// There is no server to adopt.
    NothingRecorded,
    /// What is recorded says nothing: as if there were none.
    GarbageRecord,
}

impl Admission {
    /// The name for status and log.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Proven(_) => "proven",
            Self::Incompatible { .. } => AdoptionRefused::CapabilityIncompatibility.as_str(),
            Self::Refused(reason) => reason.as_str(),
            Self::ShuttingDown => "shutting_down",
            Self::NothingRecorded => "nothing_recorded",
            Self::GarbageRecord => "garbage_record",
        }
    }
}

impl ProvenServer {
    fn new(
        backend: &Backend,
        proven: &Proven,
        identity: IdentityAnswer,
        record: ControlServerRecord,
        credential: Credential,
    ) -> Self {
        assert_eq!(*proven.server(), identity.server, "a proof is of the server that was identified");
        let limit = backend.config.read_timeout;
        let client = backend.client(record.endpoint, &identity.server, &Arc::new(credential), limit);
        Self { identity, record, client }
    }

    /// Calls with the recorded credential, bounded as recovery's reads are.
    pub(crate) fn client(&self) -> &ControlClient {
        &self.client
    }

    /// The record as it is after adoption: with the replacement's name, and what was seen now (O-004.5).
    pub(crate) fn record_with(&self, secret: String) -> ControlServerRecord {
        ControlServerRecord {
            secret,
            capabilities: self.identity.capabilities.clone(),
            unowned_period_ms: self.identity.unowned_period_ms,
            ..self.record.clone()
        }
    }
}

impl AdoptedServer {
    /// After both durable writes of this rotation.
    pub(crate) fn new(
        backend: &Backend,
        proven: ProvenServer,
        rotation: RotationId,
        credential: Credential,
        record: ControlServerRecord,
    ) -> Self {
        let credential = Arc::new(credential);
        let (identity, limit) = (proven.identity, backend.config.read_timeout);
        let client = backend.client(record.endpoint, &identity.server, &credential, limit);
        Self { identity, record, rotation, credential, client }
    }

    /// Calls with the newest credential, bounded as recovery's reads are.
    pub(crate) fn client(&self) -> &ControlClient {
        &self.client
    }

    /// Which rotation made it ours.
    pub(crate) fn rotation(&self) -> RotationId {
        self.rotation
    }

    /// The server for ordinary work.
    pub(crate) fn in_use(&self, backend: &Backend) -> ServerInUse {
        let (endpoint, credential) = (self.record.endpoint, Arc::clone(&self.credential));
        let server = backend.server_in_use(endpoint, credential, &self.identity, Origin::Adopted);
        ServerInUse { runs_as: self.record.process.as_ref().map(identity_of), ..server }
    }
}

/// Puts the recorded server through the gates.
pub(crate) async fn admit(backend: &Arc<Backend>, recorded: Recorded) -> Admission {
    let record = match recorded {
        Recorded::Server(record) => record,
        Recorded::Nothing => return Admission::NothingRecorded,
        Recorded::Garbage { why } => {
            warn!(why, "control-server record is garbage and was not used");
            return Admission::GarbageRecord;
        }
    };
    let server = record.identity.clone();
    let address = record.endpoint;
    let admission = gates(backend, record).await;
    match &admission {
        Admission::Proven(_) => info!(%server, %address, "control server proved"),
        Admission::Incompatible { missing, .. } => {
            info!(%server, %address, ?missing, reason = admission.as_str(), "control server refused");
        }
        Admission::Refused(reason) => info!(%server, %address, reason = %reason, "control server refused"),
        Admission::ShuttingDown => info!(%server, %address, "control server is shutting down"),
        Admission::NothingRecorded | Admission::GarbageRecord => {}
    }
    admission
}

async fn gates(backend: &Arc<Backend>, record: ControlServerRecord) -> Admission {
    let retries = backend.config.read_retries;
    let stranger = backend.stranger(record.endpoint, backend.config.read_timeout);
    let identity = match answered(retries, || stranger.identity()).await {
        Ok(identity) => identity,
        Err(failed) => return unidentified(&failed),
    };
    // No capability set counts as no identity (O-001.5).
    if identity.server != record.identity || identity.capabilities.is_empty() {
        return Admission::Refused(AdoptionRefused::IdentityMismatch);
    }
    let secret = backend.seams.secrets.load(&record.secret).await.ok();
    let text = secret.as_deref().and_then(|secret| str::from_utf8(secret).ok());
    let Some(credential) = text.and_then(|text| Credential::parse(text).ok()) else {
        return Admission::Refused(AdoptionRefused::CredentialUnavailable);
    };
    let proven = match prove(backend, &stranger, &identity.server, &credential).await {
        Ok(proven) => proven,
        Err(Unproven::ShuttingDown) => return Admission::ShuttingDown,
        Err(Unproven::NotShown(why)) => {
            info!(server = %identity.server, why, "control server did not prove itself");
            // A matching identity with a wrong or silent proof is an authentication failure (ruling 7).
            return Admission::Refused(AdoptionRefused::AuthenticationFailure);
        }
    };
    let missing = lacking(&backend.required, &identity.capabilities);
    let server = ProvenServer::new(backend, &proven, identity, record, credential);
    if missing.is_empty() { Admission::Proven(server) } else { Admission::Incompatible { server, missing } }
}

/// Why nothing was proved.
enum Unproven {
    ShuttingDown,
    /// Nothing answered, or not with a proof.
    NotShown(String),
}

/// The server goes first (O-001.10). Each attempt has a challenge of its own; what answers an earlier one is worthless.
async fn prove(
    backend: &Backend,
    stranger: &ControlClient,
    server: &ServerIdentity,
    credential: &Credential,
) -> Result<Proven, Unproven> {
    let binding = Binding::new(backend.config.home.path(), server, stranger.endpoint().address);
    let mut left = backend.config.read_retries;
    loop {
        let challenge = Challenge::fresh(&*backend.seams.entropy);
        let failed = match stranger.prove(&challenge).await {
            Ok(answer) => {
                return challenge
                    .verify(&answer, credential, binding)
                    .map_err(|failed| Unproven::NotShown(failed.to_string()));
            }
            Err(failed) => failed,
        };
        if failed.refusal() == Some(RefusalCode::ShuttingDown) {
            return Err(Unproven::ShuttingDown);
        }
        if !failed.is_no_answer() || left == 0 {
            return Err(Unproven::NotShown(chain(&failed)));
        }
        left -= 1;
    }
}

fn unidentified(failed: &CallFailed) -> Admission {
    match failed.refusal() {
        Some(RefusalCode::ShuttingDown) => Admission::ShuttingDown,
        _ if failed.is_no_answer() => Admission::Refused(AdoptionRefused::NoAnswer),
        _ => Admission::Refused(AdoptionRefused::IdentityMismatch),
    }
}

/// What this backend requires and the server does not advertise; sets, never versions (O-004.1).
pub(crate) fn lacking(required: &BTreeSet<String>, advertised: &BTreeSet<String>) -> BTreeSet<String> {
    required.difference(advertised).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_more_capabilities_lacks_nothing() {
        let required: BTreeSet<String> = wire::CAPABILITIES.into_iter().map(str::to_owned).collect();
        let mut advertised = required.clone();
        advertised.insert("something-newer".to_owned());
        assert!(lacking(&required, &advertised).is_empty());
        advertised.remove("instances");
        assert_eq!(lacking(&required, &advertised), BTreeSet::from(["instances".to_owned()]));
    }
}
