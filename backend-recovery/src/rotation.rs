//! The replacement of a proven server's credential: the adoption's first step and its two durable writes.
//!
//! ```text
//!   proven ── rotate ──> replacement ── secret stored ──> record written ──> adopted ── (background) confirm
//!      ^                      │               │                 │
//!      └── again, until the bound: the server tells the same replacement once more (O-002.10) ──┘
//! ```
//!
//! The secret first: a record never names one that is not there. Whatever cuts this short leaves the recorded secret
//! acceptable, since nothing is confirmed before both writes are done (O-002.7). A secret is never overwritten; what a
//! repetition finds under its own name has to be the very same credential.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use seam::Monotonic;
use secrecy::ExposeSecret as _;
use tracing::{info, warn};
use wire::client::CallFailed;
use wire::{Credential, RefusalCode, RotationId};

use crate::adoption::{AdoptedServer, ProvenServer};
use crate::backend::{Backend, chain};
use crate::control_server_record::{ControlServerRecord, secret_name};
use crate::refusal::AdoptionRefused;
use crate::store::StoreFailed;

/// Why a proven server was not adopted.
pub(crate) enum NotAdopted {
    /// For this reason.
    Refused(AdoptionRefused),
    /// It has decided to shut down (O-001.8).
    ShuttingDown,
}

/// One attempt that may be repeated.
#[derive(Debug, thiserror::Error)]
enum AttemptFailed {
    #[error("the server did not replace the credential")]
    Rotate(#[source] CallFailed),
    #[error("the replacement could not be stored")]
    Secret(#[source] std::io::Error),
    #[error("another secret has the replacement's name {0}")]
    NameTaken(String),
    #[error("the control-server record could not be written")]
    Record(#[source] StoreFailed),
}

/// Adopts, trying again until `bound` (ruling 9). An attempt that is in flight then is awaited.
pub(crate) async fn rotate(
    backend: &Arc<Backend>,
    server: ProvenServer,
    bound: Monotonic,
) -> Result<AdoptedServer, NotAdopted> {
    let mut pause = FIRST_PAUSE;
    loop {
        let failed = match attempt(backend, &server).await {
            Ok((rotation, credential, record)) => {
                let identity = &server.identity.server;
                info!(server = %identity, %rotation, secret = record.secret, "control server adopted");
                return Ok(AdoptedServer::new(backend, server, rotation, credential, record));
            }
            Err(failed) => failed,
        };
        if let AttemptFailed::Rotate(call) = &failed {
            if call.is_unauthorized() || call.is_disproved() {
                return Err(NotAdopted::Refused(AdoptionRefused::AuthenticationFailure));
            }
            if call.refusal() == Some(RefusalCode::ShuttingDown) {
                return Err(NotAdopted::ShuttingDown);
            }
        }
        warn!(server = %server.identity.server, error = %chain(&failed), "adoption incomplete");
        if backend.now().after(pause) >= bound {
            return Err(NotAdopted::Refused(AdoptionRefused::CredentialRotationFailure));
        }
        backend.seams.clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn attempt(
    backend: &Backend,
    server: &ProvenServer,
) -> Result<(RotationId, Credential, ControlServerRecord), AttemptFailed> {
    let (rotation, credential) = server.client().rotate().await.map_err(AttemptFailed::Rotate)?;
    let name = secret_name(&server.identity.server, rotation);
    store_once(backend, &name, &credential).await?;
    let record = server.record_with(name);
    record.write(&backend.store).await.map_err(AttemptFailed::Record)?;
    Ok((rotation, credential, record))
}

/// Stores the replacement, or finds that an earlier attempt did.
async fn store_once(backend: &Backend, name: &str, credential: &Credential) -> Result<(), AttemptFailed> {
    let text = credential.to_text();
    let secrets = &backend.seams.secrets;
    match secrets.store(name, text.expose_secret().as_bytes()).await {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let stored = secrets.load(name).await.map_err(AttemptFailed::Secret)?;
            let stored = str::from_utf8(&stored).ok().and_then(|text| Credential::parse(text).ok());
            match stored {
                Some(stored) if stored == *credential => Ok(()),
                _ => Err(AttemptFailed::NameTaken(name.to_owned())),
            }
        }
        Err(error) => Err(AttemptFailed::Secret(error)),
    }
}

/// A full disk or a lost reply often passes within moments.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
