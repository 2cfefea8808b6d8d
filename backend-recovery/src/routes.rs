//! The user's API, over HTTP/1.1 on one listener, for whoever holds this backend's token.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use seam::{Stream, random_hex};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use subtle::ConstantTimeEq as _;
use tracing::warn;
use wire::{Done, PermissionId, SessionId};

use crate::api::{
    BackendContact, CreateSession, Named, PermissionInput, PromptInput, RefusalCode, Refused, ResumeInput,
    ServerView, SessionList, SessionView, StatusView, TranscriptPage, TurnView,
};
use crate::backend::Backend;
use crate::sessions;
use crate::startup::{ServeFailed, write_contact};

/// The bound listener, not served yet.
pub(crate) struct UserListener {
    listener: Box<dyn seam::Listener>,
    api: Arc<Api>,
}

struct Api {
    backend: Arc<Backend>,
    token: SecretString,
}

impl UserListener {
    /// Binds the configured address and tells the command line where it is.
    pub(crate) async fn open(backend: &Arc<Backend>) -> Result<Self, ServeFailed> {
        let address = backend.config.listen;
        let listener = backend
            .seams
            .network
            .listen(address)
            .await
            .map_err(|cause| ServeFailed::Listen { address, cause })?;
        let token = random_hex(&*backend.seams.entropy, TOKEN_BYTES);
        let pid = backend.seams.processes.own_identity().pid;
        let contact = BackendContact { address: listener.local_address(), token: token.clone(), pid };
        write_contact(backend, &contact).await?;
        Ok(Self {
            listener,
            api: Arc::new(Api { backend: Arc::clone(backend), token: SecretString::from(token) }),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(self) {
        let acceptor = Acceptor { listener: self.listener, backend: Arc::clone(&self.api.backend) };
        if let Err(error) = axum::serve(acceptor, router(self.api)).await {
            warn!(%error, "user listener ended");
        }
    }
}

/// The seam's listener as axum wants one.
struct Acceptor {
    listener: Box<dyn seam::Listener>,
    backend: Arc<Backend>,
}

impl axum::serve::Listener for Acceptor {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    // Out of descriptors, most likely: they come free as connections end.
                    warn!(%error, "connection could not be accepted");
                    self.backend.seams.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.listener.local_address())
    }
}

fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route("/api/status", get(status))
        .route("/api/sessions", post(create).get(list))
        .route("/api/sessions/{session}", get(show))
        .route("/api/sessions/{session}/prompt", post(prompt))
        .route("/api/sessions/{session}/cancel", post(cancel))
        .route("/api/sessions/{session}/permissions/{permission}", post(permission))
        .route("/api/sessions/{session}/stop", post(stop))
        .route("/api/sessions/{session}/resume", post(resume))
        .route("/api/sessions/{session}/transcript", get(transcript))
        .fallback(async || Refused::for_good(RefusalCode::BadRequest, "there is no such route"))
        .layer(from_fn_with_state(Arc::clone(&api), border))
        .with_state(api)
}

/// Every request needs the token; every answer carries the date of our own clock.
async fn border(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let mut response = if is_authorized(&api, &request) {
        next.run(request).await
    } else {
        Refused::for_good(RefusalCode::Unauthorized, "the token of run/backend.json is needed")
            .into_response()
    };
    let date = api.backend.seams.clock.wall().http_date();
    let date = HeaderValue::try_from(date).expect("a date is printable ASCII");
    response.headers_mut().insert(header::DATE, date);
    response
}

fn is_authorized(api: &Api, request: &Request) -> bool {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    given.is_some_and(|given| given.ct_eq(api.token.expose_secret().as_bytes()).into())
}

async fn status(State(api): State<Arc<Api>>) -> Json<StatusView> {
    let backend = &api.backend;
    let report = backend.report().clone();
    // What cannot be read is not shown; the log says so.
    let survivors = backend.store.survivors().await.unwrap_or_default();
    let survivors = survivors
        .iter()
        .map(|survivor| Named { id: survivor.server.to_string(), reason: survivor.describe() });
    let survivors = survivors.collect();
    let server = backend.server().ok().map(|server| ServerView {
        identity: server.identity,
        address: server.address.to_string(),
        origin: server.origin.as_str().to_owned(),
        elsewhere: server.elsewhere,
        log: backend.config.home.control_server_log().display().to_string(),
    });
    Json(StatusView {
        recovered: report.recovered,
        recovery_ms: report.recovery.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        survival: backend.survival.as_str().to_owned(),
        survival_reason: backend.survival.reason().map(str::to_owned),
        server,
        server_failure: backend.server_missing(),
        adoption: report.adoption,
        retracked: report.retracked,
        stopped: report.stopped,
        left: report.left,
        guards: backend.executions().guards(),
        survivors,
    })
}

async fn create(State(api): State<Arc<Api>>, body: Body) -> Result<Json<SessionView>, Refused> {
    let (backend, request) = (Arc::clone(&api.backend), read::<CreateSession>(body).await?);
    on_its_own(async move { sessions::create(&backend, request).await }).await
}

async fn list(State(api): State<Arc<Api>>) -> Result<Json<SessionList>, Refused> {
    sessions::list(&api.backend).await.map(Json)
}

async fn show(
    State(api): State<Arc<Api>>,
    Path(session): Path<String>,
) -> Result<Json<SessionView>, Refused> {
    sessions::view(&api.backend, &session_id(session)?).await.map(Json)
}

async fn prompt(
    State(api): State<Arc<Api>>,
    Path(session): Path<String>,
    body: Body,
) -> Result<Json<TurnView>, Refused> {
    let (backend, session) = (Arc::clone(&api.backend), session_id(session)?);
    let input: PromptInput = read(body).await?;
    on_its_own(async move { sessions::prompt(&backend, &session, input).await }).await
}

async fn cancel(State(api): State<Arc<Api>>, Path(session): Path<String>) -> Result<Json<Done>, Refused> {
    sessions::cancel(&api.backend, &session_id(session)?).await.map(|()| Json(Done {}))
}

async fn permission(
    State(api): State<Arc<Api>>,
    Path((session, permission)): Path<(String, String)>,
    body: Body,
) -> Result<Json<Done>, Refused> {
    let input: PermissionInput = read(body).await?;
    let (session, permission) = (session_id(session)?, PermissionId::new(path_safe(permission)?));
    sessions::answer_permission(&api.backend, &session, &permission, input.option)
        .await
        .map(|()| Json(Done {}))
}

async fn stop(
    State(api): State<Arc<Api>>,
    Path(session): Path<String>,
) -> Result<Json<SessionView>, Refused> {
    let (backend, session) = (Arc::clone(&api.backend), session_id(session)?);
    on_its_own(async move { sessions::stop(&backend, &session).await }).await
}

/// What is begun is carried out, also for a user who goes away: he leaves neither a stop half done nor a session claimed
/// for a launch that never comes, nor a turn that nobody delivers.
async fn on_its_own<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refused>> + Send + 'static,
) -> Result<Json<T>, Refused> {
    match tokio::spawn(work).await {
        Ok(done) => done.map(Json),
        Err(_) => Err(Refused::for_now(RefusalCode::ControlServerFailed, "the request was cut off")),
    }
}

async fn resume(
    State(api): State<Arc<Api>>,
    Path(session): Path<String>,
    body: Body,
) -> Result<Json<SessionView>, Refused> {
    let input: ResumeInput = read(body).await?;
    let (backend, session) = (Arc::clone(&api.backend), session_id(session)?);
    on_its_own(async move { sessions::resume(&backend, &session, input).await }).await
}

#[derive(Deserialize)]
struct PageQuery {
    #[serde(default)]
    after: u64,
    #[serde(default = "default_page")]
    limit: u32,
}

async fn transcript(
    State(api): State<Arc<Api>>,
    Path(session): Path<String>,
    query: Result<Query<PageQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<TranscriptPage>, Refused> {
    let session = session_id(session)?;
    let Query(PageQuery { after, limit }) =
        query.map_err(|error| Refused::for_good(RefusalCode::BadRequest, error.body_text()))?;
    let after = after.min(i64::MAX.unsigned_abs());
    let page = api.backend.store.transcript(&session, after, limit.clamp(1, MOST_PER_PAGE)).await?;
    if page.entries.is_empty() {
        sessions::view(&api.backend, &session).await?;
    }
    Ok(Json(page))
}

/// Ids become parts of paths towards the control server: what could be anything else than an id is unknown.
fn path_safe(id: String) -> Result<String, Refused> {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=128).contains(&id.len()) && id.bytes().all(safe) && !id.starts_with('.') {
        Ok(id)
    } else {
        Err(Refused::for_good(RefusalCode::BadRequest, "an id is 1 to 128 letters, digits, '-', '_' and '.'"))
    }
}

fn session_id(id: String) -> Result<SessionId, Refused> {
    path_safe(id).map(SessionId::new)
}

/// An empty body is an empty object.
async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Refused> {
    let bad = |message: String| Refused::for_good(RefusalCode::BadRequest, message);
    let bytes = axum::body::to_bytes(body, BODY_LIMIT).await.map_err(|error| bad(error.to_string()))?;
    let bytes = if bytes.is_empty() { b"{}".as_slice() } else { &bytes };
    serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match self.code {
            RefusalCode::Unauthorized => StatusCode::UNAUTHORIZED,
            RefusalCode::BadRequest | RefusalCode::UnknownProfile | RefusalCode::Workspace => {
                StatusCode::BAD_REQUEST
            }
            RefusalCode::UnknownSession | RefusalCode::UnknownPermission => StatusCode::NOT_FOUND,
            RefusalCode::TurnOpen
            | RefusalCode::TurnConflict
            | RefusalCode::NoAgent
            | RefusalCode::Starting
            | RefusalCode::Launching
            | RefusalCode::Survivor
            | RefusalCode::LivenessUnknown
            | RefusalCode::UnstoppedAgent => StatusCode::CONFLICT,
            RefusalCode::Recovering | RefusalCode::ControlServerUnavailable | RefusalCode::Store => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            RefusalCode::ControlServerFailed => StatusCode::BAD_GATEWAY,
        };
        (status, Json(self)).into_response()
    }
}

fn default_page() -> u32 {
    200
}

/// A page of this many entries of ordinary size stays below the client's bound of an answer.
const MOST_PER_PAGE: u32 = 1_000;

/// A prompt with pasted files; larger ones belong into the workspace.
const BODY_LIMIT: usize = 8 * 1024 * 1024;

/// 256 bits: as hard to guess as the credential behind it.
const TOKEN_BYTES: usize = 32;

const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
