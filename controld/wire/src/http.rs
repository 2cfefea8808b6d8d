//! One HTTP/1.1 exchange over a connection of its own.
//!
//! A connection per request costs a connect, and buys that no request can meet a half-dead pooled connection:
//! an error always belongs to this very exchange.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use seam::{Clock, Network, within};
use secrecy::{ExposeSecret as _, SecretString};

/// Where requests go and what they carry.
#[derive(Clone)]
pub struct Endpoint {
    /// TCP.
    pub network: Arc<dyn Network>,
    /// For the bound.
    pub clock: Arc<dyn Clock>,
    /// The peer.
    pub address: SocketAddr,
    /// Sent as `Authorization: Bearer` if there is one.
    pub credential: Option<SecretString>,
    /// The bound of one exchange, connect included.
    pub limit: Duration,
}

/// Why there is no answer to work with.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeFailed {
    /// Nobody listens there, or the connection broke before an answer came.
    #[error("{address} did not answer")]
    NoAnswer {
        /// The peer.
        address: SocketAddr,
        /// What the connection said.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The bound passed. The request may or may not have taken effect.
    #[error("{address} did not answer within {limit:?}")]
    TimedOut {
        /// The peer.
        address: SocketAddr,
        /// The bound.
        limit: Duration,
    },
}

/// Sends one request and reads the whole answer, at most [`ANSWER_LIMIT`] bytes of it.
///
/// # Errors
/// See [`ExchangeFailed`].
pub async fn exchange(
    endpoint: &Endpoint,
    method: Method,
    path: &str,
    body: Option<Vec<u8>>,
) -> Result<(StatusCode, Bytes), ExchangeFailed> {
    let address = endpoint.address;
    let no_answer =
        move |cause: Box<dyn std::error::Error + Send + Sync>| ExchangeFailed::NoAnswer { address, cause };
    let work = async {
        let stream = endpoint
            .network
            .connect(address, endpoint.limit)
            .await
            .map_err(|error| no_answer(error.into()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| no_answer(error.into()))?;
        let driver = tokio::spawn(connection);
        let request = request(endpoint, method, path, body);
        let answer = async {
            let response = sender.send_request(request).await.map_err(|error| no_answer(error.into()))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await.map_err(no_answer)?;
            Ok((status, body.to_bytes()))
        }
        .await;
        driver.abort();
        answer
    };
    match within(&*endpoint.clock, endpoint.limit, work).await {
        Ok(answer) => answer,
        Err(_) => Err(ExchangeFailed::TimedOut { address, limit: endpoint.limit }),
    }
}

fn request(endpoint: &Endpoint, method: Method, path: &str, body: Option<Vec<u8>>) -> Request<Full<Bytes>> {
    let mut request =
        Request::builder().method(method).uri(path).header("host", endpoint.address.to_string());
    if let Some(credential) = &endpoint.credential {
        let mut value =
            hyper::header::HeaderValue::try_from(format!("Bearer {}", credential.expose_secret()))
                .expect("credentials are printable ASCII");
        value.set_sensitive(true);
        request = request.header("authorization", value);
    }
    if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    request
        .body(Full::new(Bytes::from(body.unwrap_or_default())))
        .expect("paths are built from constants and ids that were checked where they entered")
}

/// The most bytes of an answer that are read: an instance list of a thousand instances is about 1 MB.
pub const ANSWER_LIMIT: usize = 16 * 1024 * 1024;
