//! The conversation with one agent, and the link that its owner holds.

use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    CancelNotification, ContentBlock, Implementation, InitializeRequest, LoadSessionRequest,
    NewSessionRequest, PromptRequest, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SelectedPermissionOutcome, SetSessionModeRequest,
};
use agent_client_protocol::{
    Agent, Channel, Client, Error, ErrorCode, JsonRpcRequest, RawJsonRpcId, RawJsonRpcMessage,
    RawJsonRpcResponse, TransportFrame, UntypedMessage, is_connection_terminated,
    is_incoming_transport_closed, on_receive_request,
};
use futures_util::{Stream, StreamExt as _};
use seam::{ChildInput, ChildOutput, Clock, within};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;
use wire::ProviderSessionId;

use super::pump::{Exchanges, Pump};
use super::{AgentObserver, AgentSetup};

/// Opens the conversation: `initialize`, `session/new` or `session/load`, and `session/set_mode` if a mode is set, each within the
/// setup's step limit. Runs as a task of its own until the agent's output ends, the observer gives no more room, or
/// the last link is dropped; then the agent's standard input is closed.
///
/// # Errors
/// The step that failed and why; the agent's standard input is then closed.
pub async fn open(
    stdin: ChildInput,
    stdout: ChildOutput,
    setup: AgentSetup,
    observer: Arc<dyn AgentObserver>,
    clock: Arc<dyn Clock>,
) -> Result<AgentLink, OpenFailed> {
    let stop = CancellationToken::new();
    let drained = CancellationToken::new();
    let exchanges = Arc::new(Exchanges::new());
    let (connected, connection) = oneshot::channel();
    tokio::spawn(converse(
        Pipes { stdin, stdout },
        observer,
        Arc::clone(&exchanges),
        connected,
        stop.clone(),
        drained.clone(),
    ));
    let stop = stop.drop_guard();

    let closed = |step| OpenFailed { step, reason: OpenFailure::Closed };
    let connection = connection.await.map_err(|_| closed(INITIALIZE))?;
    let caller = Caller { connection, exchanges };
    let steps = Steps { caller: &caller, clock: &*clock, limit: setup.step_limit };

    let request = InitializeRequest::new(ProtocolVersion::V1)
        .client_info(Implementation::new("controld", env!("CARGO_PKG_VERSION")));
    let answer = steps.run(INITIALIZE, request).await?;
    if answer.protocol_version != ProtocolVersion::V1 {
        let offered = answer.protocol_version.to_string();
        return Err(OpenFailed { step: INITIALIZE, reason: OpenFailure::OtherVersion { offered } });
    }
    let session = match setup.resume {
        Some(earlier) if answer.agent_capabilities.load_session => {
            steps
                .run("session/load", LoadSessionRequest::new(earlier.as_str().to_owned(), setup.directory))
                .await?;
            earlier
        }
        _ => {
            let answer = steps.run("session/new", NewSessionRequest::new(setup.directory)).await?;
            ProviderSessionId::new(answer.session_id.0.to_string())
        }
    };
    if let Some(mode) = setup.mode {
        let request = SetSessionModeRequest::new(session.as_str().to_owned(), mode);
        steps.run("session/set_mode", request).await?;
    }
    Ok(AgentLink { inner: Arc::new(Link { caller, session, drained, _stop: stop }) })
}

/// An open conversation. Dropping the last clone ends it and closes the agent's standard input.
#[derive(Clone)]
pub struct AgentLink {
    inner: Arc<Link>,
}

struct Link {
    caller: Caller,
    session: ProviderSessionId,
    drained: CancellationToken,
    _stop: DropGuard,
}

impl AgentLink {
    /// The conversation as the agent's provider names it.
    pub fn provider_session(&self) -> &ProviderSessionId {
        &self.inner.session
    }

    /// Sends a prompt and waits, without a bound, for its end. Every update that the agent wrote before the end was
    /// told to the observer before this resolves, and what it wrote later is told only afterwards.
    ///
    /// Poll it until it resolves, or drop it: while it has an answer that it was not polled for, nothing more is
    /// read from the agent.
    pub async fn prompt(&self, text: String) -> PromptEnd {
        let request =
            PromptRequest::new(self.inner.session.as_str().to_owned(), vec![ContentBlock::from(text)]);
        // Untyped, so that a stop reason of a newer protocol is a stop reason and not an error.
        let request = match UntypedMessage::new("session/prompt", request) {
            Ok(request) => request,
            Err(error) => return PromptEnd::Failed { error: one_line(&error) },
        };
        match self.inner.caller.call(request).await {
            Ok(answer) => match answer.get("stopReason").and_then(serde_json::Value::as_str) {
                Some(stop_reason) => PromptEnd::Ended { stop_reason: stop_reason.to_owned() },
                None => {
                    PromptEnd::Failed { error: "the agent ended the prompt without a stop reason".to_owned() }
                }
            },
            Err(error) if is_closed(&error) => PromptEnd::Closed,
            Err(error) => PromptEnd::Failed { error: one_line(&error) },
        }
    }

    /// Asks the agent to end the open turn. How it ends is told by [`AgentLink::prompt`].
    pub fn cancel(&self) {
        let notification = CancelNotification::new(self.inner.session.as_str().to_owned());
        if self.inner.caller.connection.send_notification(notification).is_err() {
            debug!("cancel not sent, the conversation has ended");
        }
    }

    /// Resolves once everything that the agent wrote was told to the observer: its output ended, or the
    /// conversation did. A grandchild may hold the output open, so bound this.
    pub async fn drained(&self) {
        self.inner.drained.cancelled().await;
    }
}

/// How a prompt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptEnd {
    /// The agent ended the turn.
    Ended {
        /// The protocol's word, such as `end_turn` or `cancelled`.
        stop_reason: String,
    },
    /// The agent answered with an error.
    Failed {
        /// One line for people.
        error: String,
    },
    /// The conversation ended before the agent answered.
    Closed,
}

/// A conversation that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {reason}")]
pub struct OpenFailed {
    /// The protocol's method that failed.
    pub step: &'static str,
    /// Why.
    pub reason: OpenFailure,
}

/// Why a step of the opening failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenFailure {
    /// No answer came in time.
    #[error("the agent did not answer within {limit:?}")]
    TimedOut {
        /// The bound of the step.
        limit: Duration,
    },
    /// The agent wants its user to sign in first; recoverable.
    #[error("the agent asks for authentication first ({message})")]
    AuthRequired {
        /// What the agent said.
        message: String,
    },
    /// The agent answered with an error.
    #[error("the agent refused ({message})")]
    Refused {
        /// What the agent said.
        message: String,
    },
    /// The agent speaks another version of the protocol.
    #[error("the agent offers version {offered} of its protocol, and only version 1 is spoken here")]
    OtherVersion {
        /// The version that it offered.
        offered: String,
    },
    /// The agent's output ended, or it took no input.
    #[error("the agent ended the conversation before it answered")]
    Closed,
}

/// Sends our requests.
struct Caller {
    connection: ConnectionTo<Agent>,
    exchanges: Arc<Exchanges>,
}

impl Caller {
    async fn call<R: JsonRpcRequest>(&self, request: R) -> Result<R::Response, Error> {
        let request = self.connection.prepare_request(request);
        let _call = self.exchanges.call(request.raw_id().clone());
        request.block_task().await
    }
}

/// The opening's steps, each within the same bound.
struct Steps<'a> {
    caller: &'a Caller,
    clock: &'a dyn Clock,
    limit: Duration,
}

impl Steps<'_> {
    async fn run<R: JsonRpcRequest>(
        &self,
        step: &'static str,
        request: R,
    ) -> Result<R::Response, OpenFailed> {
        let reason = match within(self.clock, self.limit, self.caller.call(request)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if is_closed(&error) => OpenFailure::Closed,
            Ok(Err(error)) if error.code == ErrorCode::AUTH_REQUIRED => {
                OpenFailure::AuthRequired { message: one_line(&error) }
            }
            Ok(Err(error)) => OpenFailure::Refused { message: one_line(&error) },
            Err(_) => OpenFailure::TimedOut { limit: self.limit },
        };
        Err(OpenFailed { step, reason })
    }
}

struct Pipes {
    stdin: ChildInput,
    stdout: ChildOutput,
}

/// The three parts of a conversation: what the agent writes, what we write, and the crate in between. The crate ends
/// when the pump does, and the writing when the crate does.
async fn converse(
    pipes: Pipes,
    observer: Arc<dyn AgentObserver>,
    exchanges: Arc<Exchanges>,
    connected: oneshot::Sender<ConnectionTo<Agent>>,
    stop: CancellationToken,
    drained: CancellationToken,
) {
    let (ours, crates) = Channel::duplex();
    let (from_crate, to_crate) = ours.into_parts();
    let pump = Pump { stdout: pipes.stdout, observer, exchanges: Arc::clone(&exchanges), protocol: to_crate };
    let reading = async {
        let _drained = drained.drop_guard();
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = pump.run() => {}
        }
    };
    let writing = async {
        write(from_crate, pipes.stdin, &exchanges, &stop).await;
        exchanges.input_ended();
    };
    let speaking = async {
        if let Err(error) = speak(crates, Arc::clone(&exchanges), connected, &stop).await {
            debug!(code = %i32::from(error.code), "conversation ended by an error");
        }
    };
    tokio::join!(reading, writing, speaking);
}

/// The crate's client, until its incoming side closes or the conversation is stopped.
async fn speak(
    channel: Channel,
    exchanges: Arc<Exchanges>,
    connected: oneshot::Sender<ConnectionTo<Agent>>,
    stop: &CancellationToken,
) -> Result<(), Error> {
    Client
        .v1()
        .on_receive_request(
            async move |_request: RequestPermissionRequest, responder, connection: ConnectionTo<Agent>| {
                let question = exchanges.question(responder.raw_id());
                // Never awaited in here: this runs inside the crate's dispatch loop.
                connection.spawn(async move {
                    let chosen = match question {
                        Some(answer) => answer.await.ok().flatten(),
                        None => None,
                    };
                    let outcome = match chosen {
                        Some(option) => {
                            RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option))
                        }
                        None => RequestPermissionOutcome::Cancelled,
                    };
                    responder.respond(RequestPermissionResponse::new(outcome))
                })
            },
            on_receive_request!(),
        )
        .connect_with(channel, async |connection: ConnectionTo<Agent>| {
            // Whoever opens may have given up; then the stop is already there.
            let _ = connected.send(connection.clone());
            tokio::select! {
                biased;
                () = connection.incoming_closed() => {}
                () = stop.cancelled() => {}
            }
            Ok(())
        })
        .await
}

/// Writes what the crate says, a line at a time. After a stop what is queued is still written, as long as the agent
/// takes it without delay. Dropping the input at the end closes it.
async fn write(
    mut messages: impl Stream<Item = TransportFrame> + Unpin,
    mut stdin: ChildInput,
    exchanges: &Exchanges,
    stop: &CancellationToken,
) {
    while let Some(frame) = messages.next().await {
        let is_answer = matches!(&frame, TransportFrame::Single(RawJsonRpcMessage::Response(response)) if is_answer(response));
        let Ok(mut line) = frame.to_json() else { continue };
        line.push('\n');
        let written = tokio::select! {
            biased;
            written = async { stdin.write_all(line.as_bytes()).await?; stdin.flush().await } => written,
            () = stop.cancelled() => return,
        };
        if let Err(error) = written {
            debug!(%error, "agent takes no more input");
            return;
        }
        if is_answer {
            exchanges.answer_written();
        }
    }
}

fn is_answer(response: &RawJsonRpcResponse) -> bool {
    let (RawJsonRpcResponse::Result { id, .. } | RawJsonRpcResponse::Error { id, .. }) = response;
    *id != RawJsonRpcId::Null
}

fn is_closed(error: &Error) -> bool {
    is_incoming_transport_closed(error) || is_connection_terminated(error)
}

/// What an agent's error says, as one bounded line: agents put the telling part into `data` as often as not.
fn one_line(error: &Error) -> String {
    let mut text = format!("{} [{}]", error.message, i32::from(error.code));
    if let Some(data) = &error.data {
        text.push_str(": ");
        match data.as_str() {
            Some(data) => text.push_str(data),
            None => text.push_str(&data.to_string()),
        }
    }
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).take(ERROR_LENGTH).collect()
}

const INITIALIZE: &str = "initialize";

/// How much of an agent's error is passed on, in characters: agents attach whole stack traces and HTML pages.
const ERROR_LENGTH: usize = 500;
