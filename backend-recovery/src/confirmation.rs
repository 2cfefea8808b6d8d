//! The second step of an adoption: telling the server that the replacement is stored, and letting go of what it
//! replaced (O-002.7, rulings 5 and 6).
//!
//! Recovery does not wait for it: until it succeeds the superseded credential may still adopt and shut down, but not
//! drive.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};
use wire::client::ControlClient;
use wire::{RefusalCode, RotationId, ServerIdentity};

use crate::backend::{Backend, chain};
use crate::control_server_record::secrets_before;

/// Confirms until it succeeds, the server says that it never will, or we go down.
pub(crate) async fn confirm(
    backend: Arc<Backend>,
    client: ControlClient,
    server: ServerIdentity,
    rotation: RotationId,
) {
    tokio::select! {
        biased;
        () = backend.closed() => {}
        confirmed = until_answered(&backend, &client, &server, rotation) => {
            if confirmed {
                remove_superseded(&backend, &server, rotation).await;
            }
        }
    }
}

async fn until_answered(
    backend: &Backend,
    client: &ControlClient,
    server: &ServerIdentity,
    rotation: RotationId,
) -> bool {
    let mut pause = FIRST_PAUSE;
    loop {
        let failed = match client.confirm(rotation).await {
            Ok(confirmed) => {
                info!(%server, %rotation, took_effect = confirmed.took_effect, "rotation confirmed");
                return true;
            }
            Err(failed) => failed,
        };
        let for_good =
            matches!(failed.refusal(), Some(RefusalCode::UnknownRotation | RefusalCode::ShuttingDown));
        warn!(%server, %rotation, error = %chain(&failed), "rotation not confirmed");
        // A 401 says that a newer rotation exists; without a proof it is a newer one's, or somebody else's server.
        if for_good || failed.is_unauthorized() || failed.is_disproved() {
            return false;
        }
        backend.seams.clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Only secrets of this very server, and only those of older rotations: nobody accepts them any more.
async fn remove_superseded(backend: &Backend, server: &ServerIdentity, rotation: RotationId) {
    let secrets = &backend.seams.secrets;
    let names = match secrets.names().await {
        Ok(names) => names,
        Err(error) => return warn!(%error, "superseded secrets could not be listed"),
    };
    for name in secrets_before(server, rotation, &names) {
        match secrets.remove(name).await {
            Ok(()) => info!(%server, name, "superseded secret removed"),
            Err(error) => warn!(%server, name, %error, "superseded secret could not be removed"),
        }
    }
}

/// A lost confirmation costs nothing but the superseded credential's longer life.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
