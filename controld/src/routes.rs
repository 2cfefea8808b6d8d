//! The control API over HTTP/1.1: parses at the border, asks the server, and answers with wire values.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Bytes, to_bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Extension, Json, Router};
use secrecy::ExposeSecret as _;
use serde::de::DeserializeOwned;
use tracing::{debug, info};
use wire::proof::{ProofAnswer, ProveRequest};
use wire::{
    AcknowledgeTurn, AnswerPermission, ConfirmRotation, CreateInstance, Credential, Done, HandshakeAnswer,
    HandshakeRequest, IdentityAnswer, InstanceId, InstanceList, InstanceStatus, PermissionId, PromptAccepted,
    PromptRequest, Refusal, RefusalCode, RotationAnswer, RotationConfirmed, Seq, Stopping, TurnStatus,
};

use crate::access::{Access, Route};
use crate::instance::{Instance, NotAccepted};
use crate::instance_table::CreateRefused;
use crate::ownership::{AdmissionRefused, Admitted};
use crate::permission::AnswerRefused;
use crate::server::{NotCreated, Server};
use crate::stream;
use crate::turn_outcome::PromptRefused;

/// The router over [`Route::ALL`].
pub(crate) fn router(server: Arc<Server>) -> Router {
    let clock = Arc::clone(&server.seams().clock);
    let mut router = Router::new();
    for route in Route::ALL {
        let (method, path) = route.place();
        let filter = MethodFilter::try_from(method).expect("the table names ordinary methods");
        let guard = middleware::from_fn_with_state((Arc::clone(&server), route.access()), admit);
        router = router.route(path, handler(route, filter).route_layer(guard));
    }
    router
        .method_not_allowed_fallback(async || {
            refuse(StatusCode::METHOD_NOT_ALLOWED, RefusalCode::BadRequest, "wrong method")
        })
        .fallback(async || refuse(StatusCode::NOT_FOUND, RefusalCode::BadRequest, "no such route"))
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(middleware::map_response(move |mut response: Response| {
            // Hyper leaves a date alone that is there; its own would come from the real clock.
            let date = HeaderValue::try_from(clock.wall().http_date()).expect("a date is printable ASCII");
            response.headers_mut().insert(header::DATE, date);
            std::future::ready(response)
        }))
        .with_state(server)
}

fn handler(route: Route, filter: MethodFilter) -> MethodRouter<Arc<Server>> {
    match route {
        Route::Health => on(filter, async || Json(Done {})),
        Route::Identity => on(filter, identity),
        Route::Prove => on(filter, prove),
        Route::Handshake => on(filter, handshake),
        Route::Claim => on(filter, claim),
        Route::Rotate => on(filter, rotate),
        Route::Confirm => on(filter, confirm),
        Route::Shutdown => on(filter, shutdown),
        Route::CreateInstance => on(filter, create_instance),
        Route::ListInstances => on(filter, list_instances),
        Route::Instance => on(filter, instance),
        Route::StopInstance => on(filter, stop_instance),
        Route::Turn => on(filter, turn),
        Route::AcknowledgeTurn => on(filter, acknowledge_turn),
        Route::Prompt => on(filter, prompt),
        Route::Cancel => on(filter, cancel),
        Route::AnswerPermission => on(filter, answer_permission),
        Route::Events => on(filter, events),
    }
}

type Asked = State<Arc<Server>>;
/// Who was let through: judged again in the step that has the effect, since a body comes at its sender's pace.
type By = Extension<Admitted>;
type Body = Result<Bytes, BytesRejection>;
type Answer<T> = Result<Json<T>, Refused>;

/// What the caller presented, for the operations on the ownership itself.
#[derive(Clone)]
struct Presented(Option<Credential>);

/// Lets through who may use the route.
async fn admit(
    State((server, access)): State<(Arc<Server>, Access)>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let presented = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .and_then(|text| Credential::parse(text).ok());
    match server.admit(access, presented.as_ref()) {
        Ok(admitted) => request.extensions_mut().insert(admitted),
        Err(refused) => {
            let (method, path) = (request.method(), request.uri().path());
            match refused {
                AdmissionRefused::CredentialSuperseded { latest } => {
                    info!(%method, path, %latest, "superseded caller refused");
                }
                _ => debug!(%method, path, reason = %refused, "request refused"),
            }
            // A connection that is closed over what was sent and not read is reset, and the answer with it.
            let _ = to_bytes(request.into_body(), UNREAD_BYTES).await;
            return Err(refused.into());
        }
    };
    request.extensions_mut().insert(Presented(presented));
    Ok(next.run(request).await)
}

async fn identity(State(server): Asked) -> Json<IdentityAnswer> {
    Json(server.identity_answer())
}

async fn prove(State(server): Asked, body: Body) -> Answer<ProofAnswer> {
    let request: ProveRequest = parse(body)?;
    Ok(Json(server.prove(&request.challenge)?))
}

async fn handshake(State(server): Asked, body: Body) -> Answer<HandshakeAnswer> {
    let request: HandshakeRequest = parse(body)?;
    let credential = server.handshake(&request.nonce)?;
    Ok(Json(HandshakeAnswer { credential: credential.to_text().expose_secret().to_owned() }))
}

async fn claim(State(server): Asked, Extension(presented): Extension<Presented>, body: Body) -> Answer<Done> {
    let Done {} = parse(body)?;
    server.claim(presented.0.as_ref())?;
    Ok(Json(Done {}))
}

async fn rotate(
    State(server): Asked,
    Extension(presented): Extension<Presented>,
    body: Body,
) -> Answer<RotationAnswer> {
    let Done {} = parse(body)?;
    let (rotation_id, credential) = server.rotate(presented.0.as_ref())?;
    let credential = credential.to_text().expose_secret().to_owned();
    Ok(Json(RotationAnswer { rotation_id, credential }))
}

async fn confirm(
    State(server): Asked,
    Extension(presented): Extension<Presented>,
    body: Body,
) -> Answer<RotationConfirmed> {
    let request: ConfirmRotation = parse(body)?;
    let took_effect = server.confirm(presented.0.as_ref(), request.rotation_id)?;
    Ok(Json(RotationConfirmed { took_effect }))
}

async fn shutdown(
    State(server): Asked,
    Extension(presented): Extension<Presented>,
    body: Body,
) -> Answer<Stopping> {
    let Done {} = parse(body)?;
    let left = server.ask_to_shut_down(presented.0.as_ref())?;
    Ok(Json(Stopping { left: left as u64 }))
}

async fn create_instance(State(server): Asked, Extension(by): By, body: Body) -> Answer<InstanceStatus> {
    let request: CreateInstance = parse(body)?;
    check(&request).map_err(|problem| Refused::bad_request(&problem))?;
    Ok(Json(server.create(by, &request)?))
}

async fn list_instances(State(server): Asked, Extension(by): By) -> Answer<InstanceList> {
    Ok(Json(server.as_driver(by, "list instances", || server.list())?))
}

async fn instance(State(server): Asked, Extension(by): By, Path(id): Path<String>) -> Answer<InstanceStatus> {
    on_instance(&server, by, "instance", id, |instance| Ok(instance.status()))
}

async fn stop_instance(State(server): Asked, Extension(by): By, Path(id): Path<String>) -> Answer<Stopping> {
    on_instance(&server, by, "stop instance", id, |instance| {
        instance.stop("asked");
        Ok(Stopping { left: 1 })
    })
}

async fn turn(State(server): Asked, Extension(by): By, Path(id): Path<String>) -> Answer<TurnStatus> {
    on_instance(&server, by, "turn", id, |instance| Ok(instance.turn()))
}

async fn acknowledge_turn(
    State(server): Asked,
    Extension(by): By,
    Path(id): Path<String>,
    body: Body,
) -> Answer<Done> {
    let request: AcknowledgeTurn = parse(body)?;
    on_instance(&server, by, "acknowledge turn", id, |instance| {
        instance.acknowledge_turn(request.turn);
        Ok(Done {})
    })
}

async fn prompt(
    State(server): Asked,
    Extension(by): By,
    Path(id): Path<String>,
    body: Body,
) -> Answer<PromptAccepted> {
    let request: PromptRequest = parse(body)?;
    on_instance(&server, by, "prompt", id, |instance| Ok(PromptAccepted { turn: instance.prompt(request)? }))
}

async fn cancel(State(server): Asked, Extension(by): By, Path(id): Path<String>, body: Body) -> Answer<Done> {
    let Done {} = parse(body)?;
    on_instance(&server, by, "cancel", id, |instance| {
        instance.cancel();
        Ok(Done {})
    })
}

async fn answer_permission(
    State(server): Asked,
    Extension(by): By,
    Path((id, permission)): Path<(String, String)>,
    body: Body,
) -> Answer<Done> {
    let request: AnswerPermission = parse(body)?;
    on_instance(&server, by, "answer permission", id, |instance| {
        instance.answer_permission(&PermissionId::new(permission), request.option)?;
        Ok(Done {})
    })
}

async fn events(
    State(server): Asked,
    Extension(by): By,
    Path(id): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refused> {
    let instance = find(&server, id)?;
    let after = match query.get("after") {
        None => Seq::ZERO,
        Some(raw) => Seq(raw.parse().map_err(|_| Refused::bad_request("after is not a whole number"))?),
    };
    instance.events_after(after, 0, 0).map_err(|ahead| Refused::bad_request(&ahead.to_string()))?;
    Ok(upgrade
        .max_message_size(CLIENT_FRAME_BYTES)
        .max_frame_size(CLIENT_FRAME_BYTES)
        .on_upgrade(move |socket| stream::run(socket, server, by, instance, after)))
}

/// One operation on one instance, in one step with the last look at who drives.
fn on_instance<T>(
    server: &Server,
    by: Admitted,
    operation: &'static str,
    id: String,
    effect: impl FnOnce(&Instance) -> Result<T, Refused>,
) -> Answer<T> {
    let done = server.as_driver(by, operation, || {
        let instance = find(server, id)?;
        instance.touch();
        effect(&instance)
    })?;
    Ok(Json(done?))
}

fn find(server: &Server, id: String) -> Result<Arc<Instance>, Refused> {
    let id = InstanceId::new(id);
    server.find(&id).ok_or_else(|| {
        Refused::new(
            StatusCode::NOT_FOUND,
            RefusalCode::UnknownInstance,
            &format!("there is no instance {id}"),
        )
    })
}

fn parse<T: DeserializeOwned>(body: Body) -> Result<T, Refused> {
    let bytes = body.map_err(|rejection| {
        Refused::new(rejection.status(), RefusalCode::BadRequest, &rejection.body_text())
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Refused::bad_request(&format!("the request cannot be read: {error}")))
}

/// What can be judged about a request before anything is started.
fn check(request: &CreateInstance) -> Result<(), String> {
    let id = request.instance.as_str();
    let id_fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if id.is_empty() || id.len() > ID_BYTES || id.starts_with('.') || !id.bytes().all(id_fits) {
        return Err(format!("instance is {id:?}, but must be 1 to {ID_BYTES} of a-z, A-Z, 0-9, -, _ and ."));
    }
    let session = request.session.as_str();
    if session.is_empty() || session.len() > ID_BYTES || session.chars().any(char::is_control) {
        return Err(format!("session is {session:?}, but must be 1 to {ID_BYTES} printable bytes"));
    }
    if request.command.is_empty() {
        return Err("command is empty".to_owned());
    }
    for directory in std::iter::once(&request.directory).chain(&request.source_roots) {
        if !directory.starts_with('/') {
            return Err(format!("{directory:?} is not an absolute directory"));
        }
    }
    let names = request.env.keys();
    if let Some(name) = names.into_iter().find(|name| name.is_empty() || name.contains('=')) {
        return Err(format!("{name:?} cannot be the name of a variable"));
    }
    let texts = [&request.command, &request.directory].into_iter().chain(&request.args);
    if texts.chain(request.env.keys()).chain(request.env.values()).any(|text| text.contains('\0')) {
        return Err("a NUL cannot be passed to a process".to_owned());
    }
    Ok(())
}

/// A refusal on its way out.
pub(crate) struct Refused {
    status: StatusCode,
    refusal: Refusal,
}

impl Refused {
    fn new(status: StatusCode, code: RefusalCode, message: &str) -> Self {
        Self { status, refusal: Refusal { code, message: message.to_owned() } }
    }

    fn bad_request(message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, RefusalCode::BadRequest, message)
    }
}

fn refuse(status: StatusCode, code: RefusalCode, message: &str) -> Response {
    Refused::new(status, code, message).into_response()
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.status, Json(self.refusal)).into_response()
    }
}

impl From<AdmissionRefused> for Refused {
    fn from(refused: AdmissionRefused) -> Self {
        let (status, code) = match refused {
            AdmissionRefused::Unauthorized => (StatusCode::UNAUTHORIZED, RefusalCode::Unauthorized),
            AdmissionRefused::CredentialSuperseded { .. } => {
                (StatusCode::UNAUTHORIZED, RefusalCode::CredentialSuperseded)
            }
            AdmissionRefused::UnknownRotation(_) => (StatusCode::NOT_FOUND, RefusalCode::UnknownRotation),
            AdmissionRefused::TooManyStreams => (StatusCode::TOO_MANY_REQUESTS, RefusalCode::TooMany),
            AdmissionRefused::HandshakeRefused => (StatusCode::FORBIDDEN, RefusalCode::HandshakeRefused),
            AdmissionRefused::ShuttingDown => (StatusCode::CONFLICT, RefusalCode::ShuttingDown),
        };
        Self::new(status, code, &refused.to_string())
    }
}

impl From<NotCreated> for Refused {
    fn from(not: NotCreated) -> Self {
        let (status, code) = match &not {
            NotCreated::Admission(refused) => return (*refused).into(),
            NotCreated::Table(CreateRefused::Conflict(_)) => {
                (StatusCode::CONFLICT, RefusalCode::InstanceConflict)
            }
            NotCreated::Table(CreateRefused::TooMany) => {
                (StatusCode::TOO_MANY_REQUESTS, RefusalCode::TooMany)
            }
        };
        Self::new(status, code, &not.to_string())
    }
}

impl From<NotAccepted> for Refused {
    fn from(not: NotAccepted) -> Self {
        let (status, code) = match &not {
            NotAccepted::NotReady(_) => (StatusCode::CONFLICT, RefusalCode::NotReady),
            NotAccepted::Turn(PromptRefused::TurnOpen(_)) => (StatusCode::CONFLICT, RefusalCode::TurnOpen),
            NotAccepted::Turn(PromptRefused::OutcomesUnacknowledged) => {
                (StatusCode::CONFLICT, RefusalCode::OutcomesUnacknowledged)
            }
            NotAccepted::EventsUnacknowledged => (StatusCode::TOO_MANY_REQUESTS, RefusalCode::TooMany),
        };
        Self::new(status, code, &not.to_string())
    }
}

impl From<AnswerRefused> for Refused {
    fn from(refused: AnswerRefused) -> Self {
        let (status, code) = match &refused {
            AnswerRefused::Unknown => (StatusCode::NOT_FOUND, RefusalCode::UnknownPermission),
            AnswerRefused::NoSuchOption(_) => (StatusCode::BAD_REQUEST, RefusalCode::BadRequest),
        };
        Self::new(status, code, &refused.to_string())
    }
}

/// The largest request: a prompt with pasted files. Beyond it the caller gets 413.
const BODY_BYTES: usize = 8 * 1024 * 1024;

/// How much a refused caller may still be sending for its refusal to arrive for certain. A larger prompt's sender may
/// see a reset instead, and asks again.
const UNREAD_BYTES: usize = 64 * 1024;

/// The largest frame of a reader: it only acknowledges.
const CLIENT_FRAME_BYTES: usize = 16 * 1024;

/// Ids appear in paths, log lines and environments.
const ID_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> CreateInstance {
        CreateInstance {
            instance: InstanceId::new("i-1"),
            session: wire::SessionId::new("s-1"),
            command: "agent".into(),
            args: vec![],
            env: BTreeMap::new(),
            directory: "/w".into(),
            source_roots: vec![],
            mode: None,
            resume: None,
        }
    }

    #[test]
    fn an_ordinary_request_passes() {
        assert_eq!(Ok(()), check(&request()));
    }

    #[test]
    fn what_could_not_be_a_path_segment_or_a_process_is_refused() {
        let id = |id: &str| CreateInstance { instance: InstanceId::new(id), ..request() };
        for bad in ["", "..", "a/b", "a b", "a?b", "ä", &"x".repeat(129)] {
            assert!(check(&id(bad)).is_err(), "{bad:?}");
        }
        assert!(check(&CreateInstance { command: String::new(), ..request() }).is_err());
        assert!(check(&CreateInstance { directory: "w".into(), ..request() }).is_err());
        assert!(check(&CreateInstance { source_roots: vec!["r".into()], ..request() }).is_err());
        assert!(check(&CreateInstance { args: vec!["a\0b".into()], ..request() }).is_err());
        let env = BTreeMap::from([("A=B".to_owned(), String::new())]);
        assert!(check(&CreateInstance { env, ..request() }).is_err());
    }
}
