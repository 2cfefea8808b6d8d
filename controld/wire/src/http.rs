//! One HTTP/1.1 exchange over a connection of its own.
//!
//! A connection per request costs a connect, and buys that no request can meet a half-dead pooled connection:
//! an error always belongs to this very exchange. What must be asked before it, of the same peer, goes first on the
//! same connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
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
    let work = async {
        let mut connection = Connection::open(endpoint).await?;
        connection.ask(method, path, body, endpoint.credential.as_ref()).await
    };
    let (address, limit) = (endpoint.address, endpoint.limit);
    match within(&*endpoint.clock, limit, work).await {
        Ok(answer) => answer,
        Err(_) => Err(ExchangeFailed::TimedOut { address, limit }),
    }
}

/// One connection, for one request after another. It ends when it is dropped.
pub(crate) struct Connection {
    address: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    pub(crate) async fn open(endpoint: &Endpoint) -> Result<Self, ExchangeFailed> {
        let address = endpoint.address;
        let stream = endpoint
            .network
            .connect(address, endpoint.limit)
            .await
            .map_err(|error| no_answer(address, error.into()))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| no_answer(address, error.into()))?;
        // Ends with its sender.
        tokio::spawn(connection.with_upgrades());
        Ok(Self { address, sender })
    }

    /// One request and its whole answer; `bearer` goes with it.
    pub(crate) async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        bearer: Option<&SecretString>,
    ) -> Result<(StatusCode, Bytes), ExchangeFailed> {
        let mut request =
            Request::builder().method(method).uri(path).header("host", self.address.to_string());
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .expect("paths are built from constants and ids that were checked where they entered");
        let response = self.send(request, bearer).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await;
        Ok((status, body.map_err(|error| no_answer(self.address, error))?.to_bytes()))
    }

    /// One request; its answer's head, the body still to come.
    pub(crate) async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
        bearer: Option<&SecretString>,
    ) -> Result<Response<Incoming>, ExchangeFailed> {
        if let Some(bearer) = bearer {
            let mut value = HeaderValue::try_from(format!("Bearer {}", bearer.expose_secret()))
                .expect("credentials are printable ASCII");
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let address = self.address;
        // After an earlier answer the connection takes a moment until it takes the next request.
        self.sender.ready().await.map_err(|error| no_answer(address, error.into()))?;
        self.sender.send_request(request).await.map_err(|error| no_answer(address, error.into()))
    }
}

fn no_answer(address: SocketAddr, cause: Box<dyn std::error::Error + Send + Sync>) -> ExchangeFailed {
    ExchangeFailed::NoAnswer { address, cause }
}

/// The most bytes of an answer that are read: an instance list of a thousand instances is about 1 MB.
pub const ANSWER_LIMIT: usize = 16 * 1024 * 1024;
