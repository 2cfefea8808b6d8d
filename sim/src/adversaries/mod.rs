//! Programs that mean no good, for scenarios to start beside an installation's own.

pub(crate) mod port_thief;
pub(crate) mod second_adopter;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use seam::Seams;
use secrecy::SecretString;
use wire::client::ControlClient;
use wire::http::Endpoint;

/// Calls to a control server, with or without a credential.
fn client(seams: &Seams, address: SocketAddr, credential: Option<SecretString>) -> ControlClient {
    ControlClient::new(Endpoint {
        network: Arc::clone(&seams.network),
        clock: Arc::clone(&seams.clock),
        address,
        credential,
        limit: CALL_LIMIT,
    })
}

const CALL_LIMIT: Duration = Duration::from_secs(10);
