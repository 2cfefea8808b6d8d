//! Whether the recorded control server is ours: the gates in their order (O-001.2, O-001.3).
//!
//! A [`ProvenServer`] is made here alone; only with one can a survivor be enumerated, claimed or stopped. In this
//! build the proof is that the server accepts the stored credential.

use std::collections::BTreeSet;
use std::sync::Arc;

use secrecy::SecretString;
use tracing::info;
use wire::client::{CallFailed, ControlClient};
use wire::{CAPABILITIES, IdentityAnswer, RefusalCode};

use crate::backend::{Backend, Origin, ServerInUse, answered};
use crate::control_server_record::{ControlServerRecord, Recorded};
use crate::refusal::AdoptionRefused;

/// A server that passed identity and authentication.
pub(crate) struct ProvenServer {
    pub(crate) identity: IdentityAnswer,
    record: ControlServerRecord,
    credential: SecretString,
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
        }
    }
}

impl ProvenServer {
    /// Calls bounded as recovery's reads are.
    pub(crate) fn client(&self) -> &ControlClient {
        &self.client
    }

    /// The server for ordinary work.
    pub(crate) fn in_use(&self, backend: &Backend) -> ServerInUse {
        backend.server_in_use(self.record.endpoint, self.credential.clone(), &self.identity, Origin::Adopted)
    }

    /// The record as it is after adoption: with the capability set that was seen now (O-004.5).
    pub(crate) fn record(&self) -> ControlServerRecord {
        ControlServerRecord {
            capabilities: self.identity.capabilities.clone(),
            unowned_period_ms: self.identity.unowned_period_ms,
            ..self.record.clone()
        }
    }
}

/// Puts the recorded server through the gates.
pub(crate) async fn admit(backend: &Arc<Backend>, recorded: Recorded) -> Admission {
    let record = match recorded {
        Recorded::Server(record) => record,
        Recorded::Nothing => return Admission::NothingRecorded,
        Recorded::Garbage { why } => {
            tracing::warn!(why, "control-server record is garbage and was not used");
            return Admission::NothingRecorded;
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
        Admission::NothingRecorded => {}
    }
    admission
}

async fn gates(backend: &Arc<Backend>, record: ControlServerRecord) -> Admission {
    let retries = backend.config.read_retries;
    let stranger = backend.client(record.endpoint, None, backend.config.read_timeout);
    let identity = match answered(retries, || stranger.identity()).await {
        Ok(identity) => identity,
        Err(failed) => return unidentified(&failed),
    };
    // No capability set counts as no identity (O-001.5).
    if identity.server != record.identity || identity.capabilities.is_empty() {
        return Admission::Refused(AdoptionRefused::IdentityMismatch);
    }
    let credential = match backend.seams.secrets.load(&record.secret).await.map(String::from_utf8) {
        Ok(Ok(credential)) if is_credential(&credential) => SecretString::from(credential),
        _ => return Admission::Refused(AdoptionRefused::CredentialUnavailable),
    };
    let client = stranger.with_credential(credential.clone());
    if let Err(failed) = answered(retries, || client.claim()).await {
        return match failed.refusal() {
            Some(RefusalCode::ShuttingDown) => Admission::ShuttingDown,
            // A matching identity with a wrong or silent proof is an authentication failure (ruling 7).
            _ => Admission::Refused(AdoptionRefused::AuthenticationFailure),
        };
    }
    let missing = lacking(&identity.capabilities);
    let server = ProvenServer { identity, record, credential, client };
    if missing.is_empty() { Admission::Proven(server) } else { Admission::Incompatible { server, missing } }
}

fn unidentified(failed: &CallFailed) -> Admission {
    match failed.refusal() {
        Some(RefusalCode::ShuttingDown) => Admission::ShuttingDown,
        _ if failed.is_no_answer() => Admission::Refused(AdoptionRefused::NoAnswer),
        _ => Admission::Refused(AdoptionRefused::IdentityMismatch),
    }
}

/// The client puts it into a header: anything but what the server issues is a damaged secret.
fn is_credential(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What this backend requires and the server does not advertise; sets, never versions (O-004.1).
pub(crate) fn lacking(advertised: &BTreeSet<String>) -> BTreeSet<String> {
    CAPABILITIES.iter().filter(|name| !advertised.contains(**name)).map(|name| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_more_capabilities_lacks_nothing() {
        let mut advertised: BTreeSet<String> = CAPABILITIES.iter().map(|name| (*name).to_owned()).collect();
        advertised.insert("something-newer".to_owned());
        assert!(lacking(&advertised).is_empty());
        advertised.remove("instances");
        assert_eq!(lacking(&advertised), BTreeSet::from(["instances".to_owned()]));
    }

    #[test]
    fn a_damaged_secret_never_reaches_a_header() {
        assert!(is_credential("00ff"));
        assert!(!is_credential("") && !is_credential("00\nff") && !is_credential("ключ"));
    }
}
