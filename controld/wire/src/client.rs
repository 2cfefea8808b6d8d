//! The client of the control API.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::http::uri::InvalidUri;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use seam::{Entropy, within};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::http::{ANSWER_LIMIT, Connection, Endpoint, ExchangeFailed};
use crate::proof::{Binding, Challenge, ProofAnswer};
use crate::*;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallFailed {
    /// No answer came.
    #[error("{operation} failed")]
    Exchange {
        /// What was asked.
        operation: &'static str,
        /// What happened.
        #[source]
        cause: ExchangeFailed,
    },
    /// The server answered and refused.
    #[error("{operation} was refused: {} ({status})", refusal.message)]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// The HTTP status.
        status: u16,
        /// The reason.
        refusal: Refusal,
    },
    /// Something answered that did not show that it possesses what we hold: it got nothing of it (O-001.10).
    #[error("{operation} was not asked for: whoever answers did not prove itself, {why}")]
    Unproven {
        /// What was to be asked.
        operation: &'static str,
        /// What was wrong with its proof.
        why: String,
        /// Whether it gave a proof, which was made without our credential; else what it said could not be read.
        given: bool,
    },
    /// Something answered, but not as a control server does.
    #[error("{operation} got an answer that is not a control server's ({status})")]
    Unreadable {
        /// What was asked.
        operation: &'static str,
        /// The HTTP status.
        status: u16,
    },
}

impl CallFailed {
    /// The server's reason, if it gave one.
    pub fn refusal(&self) -> Option<RefusalCode> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.code),
            Self::Exchange { .. } | Self::Unproven { .. } | Self::Unreadable { .. } => None,
        }
    }

    /// Whether the credential is not, or no longer, accepted (O-002.3). By status, since the codes of other builds
    /// differ.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused { status: 401, .. } | Self::Unreadable { status: 401, .. })
    }

    /// Whether whoever answers does not hold our credential: the server's place is taken, or another backend has
    /// adopted it. An answer that cannot be read says neither.
    pub fn is_disproved(&self) -> bool {
        matches!(self, Self::Unproven { given: true, .. })
    }

    /// Whether the same call may meet an answer if it is made again: none came, or none that can be read.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Exchange { .. } | Self::Unproven { given: false, .. })
    }

    /// Whether nothing at all answered (ruling 7).
    pub fn is_no_answer(&self) -> bool {
        matches!(self, Self::Exchange { .. })
    }
}

/// The control API of one server.
#[derive(Clone)]
pub struct ControlClient {
    endpoint: Endpoint,
    possession: Option<Possession>,
}

/// What whoever answers must prove to possess before it gets the request and the credential: a server can die, and its
/// port be taken, between any two connections.
#[derive(Clone)]
pub struct Possession {
    /// What both sides hold.
    key: Arc<Credential>,
    /// Sent along once the proof was seen.
    bearer: Option<SecretString>,
    /// Canonical.
    home: PathBuf,
    server: ServerIdentity,
    entropy: Arc<dyn Entropy>,
}

impl Possession {
    /// Of the credential of this launch's server, on the installation of this canonical home.
    pub fn of_credential(
        credential: Arc<Credential>,
        home: PathBuf,
        server: ServerIdentity,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let bearer = Some(credential.to_text());
        Self { key: credential, bearer, home, server, entropy }
    }

    /// Of the nonce that its launcher gave it: nobody else answers at its address in its place.
    pub fn of_nonce(
        nonce: &SecretString,
        home: PathBuf,
        server: ServerIdentity,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self { key: Arc::new(Credential::of_nonce(nonce)), bearer: None, home, server, entropy }
    }

    /// Has the peer of this connection prove it.
    async fn demand(
        &self,
        operation: &'static str,
        endpoint: &Endpoint,
        connection: &mut Connection,
    ) -> Result<(), CallFailed> {
        let challenge = Challenge::fresh(&*self.entropy);
        let body = serde_json::to_vec(&challenge.request()).expect("wire values always serialize");
        let asked = connection.ask(Method::POST, PROVE, Some(body), None).await;
        let (status, bytes) = asked.map_err(|cause| CallFailed::Exchange { operation, cause })?;
        let unproven = |why: String, given| CallFailed::Unproven { operation, why, given };
        if !status.is_success() {
            // The one thing that is believed without a proof: nothing is sent to it any more.
            return Err(match refused(operation, status, &bytes) {
                ending if ending.refusal() == Some(RefusalCode::ShuttingDown) => ending,
                _ => unproven(format!("it answered {status}"), false),
            });
        }
        let answer: ProofAnswer = serde_json::from_slice(&bytes)
            .map_err(|_| unproven("its answer is no proof".to_owned(), false))?;
        let binding = Binding::new(&self.home, &self.server, endpoint.address);
        challenge
            .verify(&answer, &self.key, binding)
            .map(drop)
            .map_err(|failed| unproven(failed.to_string(), true))
    }
}

impl ControlClient {
    /// Calls go to this endpoint, with its credential if it has one, whoever answers there.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, possession: None }
    }

    /// Calls go to this endpoint, over connections whose other end has proved this possession first.
    pub fn proving(endpoint: Endpoint, possession: Possession) -> Self {
        Self { endpoint, possession: Some(possession) }
    }

    /// Where it calls.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The same server, with this credential, shown to whoever answers there.
    pub fn with_credential(&self, credential: SecretString) -> Self {
        Self::new(Endpoint { credential: Some(credential), ..self.endpoint.clone() })
    }

    /// `GET /identity`: open, discloses nothing else (O-001.11). An answer without a period is not a control server's.
    ///
    /// # Errors
    /// See [`CallFailed`]; so for every call.
    pub async fn identity(&self) -> Result<IdentityAnswer, CallFailed> {
        let operation = "identity";
        let answer: IdentityAnswer = self.call(operation, Method::GET, "/identity", None::<&Done>).await?;
        match answer.unowned_period_ms {
            0 => Err(CallFailed::Unreadable { operation, status: 200 }),
            _ => Ok(answer),
        }
    }

    /// `POST /ownership/prove`: what shows that the server holds our credential (O-001.10). Its own credential never
    /// goes with it: whoever answers is a stranger until the answer was verified.
    pub async fn prove(&self, challenge: &Challenge) -> Result<ProofAnswer, CallFailed> {
        let stranger = Self::new(Endpoint { credential: None, ..self.endpoint.clone() });
        stranger.call("prove", Method::POST, PROVE, Some(&challenge.request())).await
    }

    /// `POST /auth/handshake`: the launcher's nonce buys the first credential, once.
    pub async fn handshake(&self, nonce: &SecretString) -> Result<Credential, CallFailed> {
        let operation = "handshake";
        let request = HandshakeRequest { nonce: nonce.expose_secret().to_owned() };
        let answer: HandshakeAnswer =
            self.call(operation, Method::POST, "/auth/handshake", Some(&request)).await?;
        credential(operation, &answer.credential)
    }

    /// `POST /api/v1/ownership/rotate`: the credential's replacement, or once more the unconfirmed one (O-002.10).
    /// Renews ownership.
    pub async fn rotate(&self) -> Result<(RotationId, Credential), CallFailed> {
        let operation = "rotate";
        let answer: RotationAnswer =
            self.call(operation, Method::POST, "/api/v1/ownership/rotate", Some(&Done {})).await?;
        Ok((answer.rotation_id, credential(operation, &answer.credential)?))
    }

    /// `POST /api/v1/ownership/confirm`: both durable writes of this rotation are done (O-002.7).
    pub async fn confirm(&self, rotation_id: RotationId) -> Result<RotationConfirmed, CallFailed> {
        let request = ConfirmRotation { rotation_id };
        self.call("confirm", Method::POST, "/api/v1/ownership/confirm", Some(&request)).await
    }

    /// `POST /api/v1/ownership/claim`: establishes and renews ownership (O-003.8).
    pub async fn claim(&self) -> Result<Done, CallFailed> {
        self.call("claim", Method::POST, "/api/v1/ownership/claim", Some(&Done {})).await
    }

    /// `POST /api/v1/ownership/shutdown`: every instance is stopped, then the server exits (O-002.9).
    pub async fn shutdown(&self) -> Result<Stopping, CallFailed> {
        self.call("ownership shutdown", Method::POST, "/api/v1/ownership/shutdown", Some(&Done {})).await
    }

    /// `POST /api/v1/instances`. Idempotent by the instance's id.
    pub async fn create_instance(&self, request: &CreateInstance) -> Result<InstanceStatus, CallFailed> {
        self.call("create instance", Method::POST, "/api/v1/instances", Some(request)).await
    }

    /// `GET /api/v1/instances`: the enumeration.
    pub async fn instances(&self) -> Result<InstanceList, CallFailed> {
        self.call("list instances", Method::GET, "/api/v1/instances", None::<&Done>).await
    }

    /// `GET /api/v1/instances/{id}`.
    pub async fn instance(&self, id: &InstanceId) -> Result<InstanceStatus, CallFailed> {
        self.call("instance", Method::GET, &instance_path(id, ""), None::<&Done>).await
    }

    /// `DELETE /api/v1/instances/{id}`: answers at once; the instance is gone when it is no longer listed.
    pub async fn stop_instance(&self, id: &InstanceId) -> Result<Stopping, CallFailed> {
        self.call("stop instance", Method::DELETE, &instance_path(id, ""), None::<&Done>).await
    }

    /// `GET …/turn`: reading never discards (S-004.6).
    pub async fn turn(&self, id: &InstanceId) -> Result<TurnStatus, CallFailed> {
        self.call("turn", Method::GET, &instance_path(id, "/turn"), None::<&Done>).await
    }

    /// `POST …/turn/ack`: only after the outcome was durably applied (S-004.6).
    pub async fn acknowledge_turn(&self, id: &InstanceId, turn: TurnId) -> Result<Done, CallFailed> {
        let path = instance_path(id, "/turn/ack");
        self.call("acknowledge turn", Method::POST, &path, Some(&AcknowledgeTurn { turn })).await
    }

    /// `POST …/prompt`. Idempotent by the key.
    pub async fn prompt(
        &self,
        id: &InstanceId,
        request: &PromptRequest,
    ) -> Result<PromptAccepted, CallFailed> {
        self.call("prompt", Method::POST, &instance_path(id, "/prompt"), Some(request)).await
    }

    /// `POST …/cancel`: asks the agent to end the open turn; fine if none is open.
    pub async fn cancel(&self, id: &InstanceId) -> Result<Done, CallFailed> {
        self.call("cancel", Method::POST, &instance_path(id, "/cancel"), Some(&Done {})).await
    }

    /// `POST …/permissions/{id}`.
    pub async fn answer_permission(
        &self,
        id: &InstanceId,
        permission: &PermissionId,
        answer: &AnswerPermission,
    ) -> Result<Done, CallFailed> {
        let path = instance_path(id, &format!("/permissions/{permission}"));
        self.call("answer permission", Method::POST, &path, Some(answer)).await
    }

    /// WebSocket `…/events?after=SEQ`: replaces an earlier stream of the same instance.
    pub async fn events(&self, id: &InstanceId, after: Seq) -> Result<EventStream, CallFailed> {
        let operation = "event stream";
        let address = self.endpoint.address;
        let exchange = |cause| CallFailed::Exchange { operation, cause };
        let broken = |cause: Box<dyn std::error::Error + Send + Sync>| {
            exchange(ExchangeFailed::NoAnswer { address, cause })
        };
        self.bounded(operation, async {
            let mut connection = self.connect(operation).await?;
            let url = format!("ws://{address}{}", instance_path(id, &format!("/events?after={after}")));
            let request = url.as_str().into_client_request().map_err(|error| broken(error.into()))?;
            let (mut head, ()) = request.into_parts();
            head.uri = instance_path(id, &format!("/events?after={after}"))
                .parse()
                .map_err(|error: InvalidUri| broken(error.into()))?;
            let expected = head.headers.get("sec-websocket-key").map(|key| derive_accept_key(key.as_bytes()));
            let request = Request::from_parts(head, Full::default());
            let response = connection.send(request, self.bearer()).await.map_err(exchange)?;
            let status = response.status();
            if status != StatusCode::SWITCHING_PROTOCOLS {
                let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await;
                return Err(refused(operation, status, &body.map_err(broken)?.to_bytes()));
            }
            let accepted = response.headers().get("sec-websocket-accept");
            if accepted.and_then(|key| key.to_str().ok()) != expected.as_deref() {
                return Err(CallFailed::Unreadable { operation, status: status.as_u16() });
            }
            let upgraded = hyper::upgrade::on(response).await.map_err(|error| broken(error.into()))?;
            let config = WebSocketConfig::default()
                .max_message_size(Some(FRAME_LIMIT))
                .max_frame_size(Some(FRAME_LIMIT));
            let upgraded = TokioIo::new(upgraded);
            let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await;
            Ok(EventStream { socket })
        })
        .await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, CallFailed> {
        let body = body.map(|body| serde_json::to_vec(body).expect("wire values always serialize"));
        let asked = self.bounded(operation, async {
            let mut connection = self.connect(operation).await?;
            let answer = connection.ask(method, path, body, self.bearer()).await;
            answer.map_err(|cause| CallFailed::Exchange { operation, cause })
        });
        let (status, bytes) = asked.await?;
        if !status.is_success() {
            return Err(refused(operation, status, &bytes));
        }
        serde_json::from_slice(&bytes)
            .map_err(|_| CallFailed::Unreadable { operation, status: status.as_u16() })
    }

    /// A connection, and the proof of whoever is at its other end, if one is demanded.
    async fn connect(&self, operation: &'static str) -> Result<Connection, CallFailed> {
        let opened = Connection::open(&self.endpoint).await;
        let mut connection = opened.map_err(|cause| CallFailed::Exchange { operation, cause })?;
        if let Some(possession) = &self.possession {
            possession.demand(operation, &self.endpoint, &mut connection).await?;
        }
        Ok(connection)
    }

    async fn bounded<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, CallFailed>>,
    ) -> Result<T, CallFailed> {
        let (address, limit) = (self.endpoint.address, self.endpoint.limit);
        match within(&*self.endpoint.clock, limit, work).await {
            Ok(done) => done,
            Err(_) => {
                Err(CallFailed::Exchange { operation, cause: ExchangeFailed::TimedOut { address, limit } })
            }
        }
    }

    fn bearer(&self) -> Option<&SecretString> {
        match &self.possession {
            Some(possession) => possession.bearer.as_ref(),
            None => self.endpoint.credential.as_ref(),
        }
    }
}

/// The event stream of one instance.
pub struct EventStream {
    socket: WebSocketStream<TokioIo<Upgraded>>,
}

impl EventStream {
    /// The next frame; none once the server has closed the stream. Cancel safe. Frames of kinds that this build
    /// does not know are skipped.
    ///
    /// # Errors
    /// The connection broke, or what came is not a frame.
    pub async fn next(&mut self) -> Result<Option<ServerFrame>, StreamBroken> {
        loop {
            let Some(message) = self.socket.next().await else { return Ok(None) };
            match message.map_err(|error| StreamBroken(error.into()))? {
                Message::Text(text) => match serde_json::from_str(&text) {
                    Ok(frame) => return Ok(Some(frame)),
                    Err(error) if is_known_frame(&text) => return Err(StreamBroken(error.into())),
                    Err(_) => {}
                },
                Message::Close(_) => return Ok(None),
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    /// Says that everything up to `seq` is durably stored.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn acknowledge(&mut self, seq: Seq) -> Result<(), StreamBroken> {
        self.send(&ClientFrame::Acknowledge { seq }).await
    }

    /// Says that the reader lives.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn heartbeat(&mut self) -> Result<(), StreamBroken> {
        self.send(&ClientFrame::Heartbeat {}).await
    }

    async fn send(&mut self, frame: &ClientFrame) -> Result<(), StreamBroken> {
        let text = serde_json::to_string(frame).expect("wire values always serialize");
        self.socket.send(Message::text(text)).await.map_err(|error| StreamBroken(error.into()))
    }
}

/// An event stream ended without being closed.
#[derive(Debug, thiserror::Error)]
#[error("the event stream broke")]
pub struct StreamBroken(#[source] Box<dyn std::error::Error + Send + Sync>);

/// A credential that does not parse is not passed on to anybody.
fn credential(operation: &'static str, text: &str) -> Result<Credential, CallFailed> {
    Credential::parse(text).map_err(|NotACredential| CallFailed::Unreadable { operation, status: 200 })
}

fn instance_path(id: &InstanceId, rest: &str) -> String {
    format!("/api/v1/instances/{id}{rest}")
}

fn refused(operation: &'static str, status: StatusCode, body: &[u8]) -> CallFailed {
    match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => CallFailed::Refused { operation, status: status.as_u16(), refusal },
        Err(_) => CallFailed::Unreadable { operation, status: status.as_u16() },
    }
}

/// Whether a frame that did not decode names a kind of this build: then it is broken, else merely newer.
fn is_known_frame(text: &str) -> bool {
    let known = ["events", "gap", "heartbeat", "replaced"];
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text) {
        Ok(object) => object.keys().any(|key| known.contains(&key.as_str())),
        Err(_) => true,
    }
}

const PROVE: &str = "/ownership/prove";

/// The largest WebSocket message: above the largest batch that the server sends.
pub const FRAME_LIMIT: usize = 64 * 1024 * 1024;
