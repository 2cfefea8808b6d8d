//! From the agent's standard output to the observer and to the protocol's crate.
//!
//! One line is in hand at a time. A line that makes an event waits for its room, and meanwhile nothing is read. What
//! is handed to the crate is bounded too, though its own queues are not: responses only to requests of ours that
//! still wait for one, requests only while fewer than [`OWED_ANSWERS_LIMIT`] of them are unanswered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use agent_client_protocol::v1::schema::RequestPermissionRequest;
use agent_client_protocol::{
    RawJsonRpcId, RawJsonRpcMessage, RawJsonRpcRequest, RawJsonRpcResponse, TransportFrame,
};
use futures_util::Sink;
use seam::ChildOutput;
use tokio::io::AsyncReadExt as _;
use tokio::sync::{Semaphore, oneshot};
use tracing::debug;
use wire::{AgentError, PermissionChoice};

use super::framer::{Frame, Framer, LINE_LIMIT};
use super::message::Message;
use super::{AgentObserver, PermissionQuestion};

/// Reads an agent's standard output to its end.
pub(super) struct Pump<Protocol> {
    pub(super) stdout: ChildOutput,
    pub(super) observer: Arc<dyn AgentObserver>,
    pub(super) exchanges: Arc<Exchanges>,
    /// The crate's end; dropped with the pump, which tells the crate that no more will come.
    pub(super) protocol: Protocol,
}

/// What is under way between the crate and the agent.
pub(super) struct Exchanges {
    /// Requests of ours that wait for their response, each with what resolves once its caller has taken it.
    calls: Mutex<BTreeMap<RawJsonRpcId, oneshot::Receiver<()>>>,
    /// Permission requests that were told to the observer, each with its answer to come.
    questions: Mutex<BTreeMap<RawJsonRpcId, oneshot::Receiver<Option<String>>>>,
    /// How many more requests of the agent may be handed to the crate.
    owed_answers: Semaphore,
}

/// The pump ends: the instance is being stopped.
struct Stopped;

impl<Protocol: Sink<TransportFrame> + Unpin> Pump<Protocol> {
    /// Runs until the output ends, cannot be read, or the instance is being stopped.
    pub(super) async fn run(mut self) {
        let mut framer = Framer::default();
        let mut chunk = vec![0; READ_SIZE];
        loop {
            while let Some(frame) = framer.take() {
                if let Err(Stopped) = self.take(frame).await {
                    return;
                }
            }
            match self.stdout.read(&mut chunk).await {
                Ok(0) => break,
                Ok(length) => framer.push(&chunk[..length]),
                Err(error) => {
                    debug!(%error, "agent output cannot be read");
                    break;
                }
            }
        }
        if let Some(frame) = framer.finish() {
            // Whether it was stopped or taken: nothing comes after it.
            let _ = self.take(frame).await;
        }
    }

    async fn take(&mut self, frame: Frame) -> Result<(), Stopped> {
        let line = match frame {
            Frame::Line(line) => line,
            Frame::Oversized { length } => {
                let message = format!(
                    "the agent wrote a line of {length} bytes; it was skipped ({LINE_LIMIT} at most)"
                );
                return self.problem("oversized_line", message).await;
            }
        };
        match Message::of(&line) {
            Message::Update(update) => {
                let room = self.observer.room().await.ok_or(Stopped)?;
                self.observer.update(room, update);
            }
            Message::UnusableUpdate => {
                let message = "the agent sent a session/update without a session or an update".to_owned();
                return self.problem("session/update", message).await;
            }
            Message::Exchange(RawJsonRpcMessage::Request(request)) => return self.request(request).await,
            Message::Exchange(RawJsonRpcMessage::Response(response)) => {
                let (RawJsonRpcResponse::Result { id, .. } | RawJsonRpcResponse::Error { id, .. }) =
                    &response;
                let Some(taken) = self.exchanges.answered(id) else {
                    self.observer.noise(&line);
                    return Ok(());
                };
                self.hand_over(RawJsonRpcMessage::Response(response));
                // What the agent wrote after this response is told after the caller has it.
                let _ = taken.await;
            }
            Message::Exchange(RawJsonRpcMessage::Notification(_)) | Message::Noise => {
                self.observer.noise(&line)
            }
        }
        Ok(())
    }

    async fn request(&mut self, request: RawJsonRpcRequest) -> Result<(), Stopped> {
        match self.exchanges.owed_answers.acquire().await {
            Ok(permit) => permit.forget(),
            // Nothing can be written to the agent any more, so that nothing it asks can be answered.
            Err(_) => return Ok(()),
        }
        if &*request.method == "session/request_permission" {
            match permission(&request) {
                Ok((tool_call, options)) => {
                    let room = self.observer.room().await.ok_or(Stopped)?;
                    let (answer, answered) = oneshot::channel();
                    self.exchanges.ask(request.id.clone(), answered);
                    self.observer.permission_asked(room, PermissionQuestion { tool_call, options, answer });
                }
                // The crate refuses it to the agent; the user must not wonder why the agent goes on unasked.
                Err(error) => {
                    let message = format!("the agent's permission request cannot be read: {error}");
                    self.problem("session/request_permission", message).await?;
                }
            }
        }
        self.hand_over(RawJsonRpcMessage::Request(request));
        Ok(())
    }

    async fn problem(&mut self, step: &str, message: String) -> Result<(), Stopped> {
        let room = self.observer.room().await.ok_or(Stopped)?;
        self.observer.problem(room, AgentError { step: step.to_owned(), message, stderr: None });
        Ok(())
    }

    fn hand_over(&mut self, message: RawJsonRpcMessage) {
        // The crate's queue is unbounded, so that it is always ready; if the crate is gone, so is who would care.
        let _ = std::pin::Pin::new(&mut self.protocol).start_send(TransportFrame::Single(message));
    }
}

impl Exchanges {
    pub(super) fn new() -> Self {
        Self {
            calls: Mutex::default(),
            questions: Mutex::default(),
            owed_answers: Semaphore::new(OWED_ANSWERS_LIMIT),
        }
    }

    /// Expects a response to this request of ours, until the guard is dropped.
    pub(super) fn call(self: &Arc<Self>, id: RawJsonRpcId) -> Call {
        let (taken, wait) = oneshot::channel();
        self.calls.lock().expect(UNPOISONED).insert(id.clone(), wait);
        Call { exchanges: Arc::clone(self), id, _taken: taken }
    }

    /// The answer to come for a permission request that was told to the observer.
    pub(super) fn question(&self, id: &RawJsonRpcId) -> Option<oneshot::Receiver<Option<String>>> {
        self.questions.lock().expect(UNPOISONED).remove(id)
    }

    /// An answer to a request of the agent was written.
    pub(super) fn answer_written(&self) {
        self.owed_answers.add_permits(1);
    }

    /// Nothing more can be written to the agent.
    pub(super) fn input_ended(&self) {
        self.owed_answers.close();
    }

    fn answered(&self, id: &RawJsonRpcId) -> Option<oneshot::Receiver<()>> {
        self.calls.lock().expect(UNPOISONED).remove(id)
    }

    fn ask(&self, id: RawJsonRpcId, answered: oneshot::Receiver<Option<String>>) {
        self.questions.lock().expect(UNPOISONED).insert(id, answered);
    }
}

/// A request of ours under way. Dropped once its caller has taken the response or no longer waits for it.
pub(super) struct Call {
    exchanges: Arc<Exchanges>,
    id: RawJsonRpcId,
    _taken: oneshot::Sender<()>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.exchanges.answered(&self.id);
    }
}

fn permission(
    request: &RawJsonRpcRequest,
) -> Result<(serde_json::Value, Vec<PermissionChoice>), serde_json::Error> {
    let params = request.params.clone().map_or(serde_json::Value::Null, |params| params.into_value());
    let tool_call = params.get("toolCall").cloned().unwrap_or_default();
    let decoded: RequestPermissionRequest = serde_json::from_value(params)?;
    let options = decoded.options.iter().map(|option| {
        Ok(PermissionChoice {
            id: option.option_id.0.to_string(),
            name: option.name.clone(),
            kind: serde_json::from_value(serde_json::to_value(option.kind)?)?,
        })
    });
    Ok((tool_call, options.collect::<Result<_, serde_json::Error>>()?))
}

const UNPOISONED: &str = "nobody panics while holding the exchanges";

/// How much is read at once, in bytes: an eighth of what a Linux pipe holds. It is held per instance, also idle.
const READ_SIZE: usize = 8 * 1024;

/// How many requests of the agent may be unanswered. Each is a whole line in memory; an agent that asks more than
/// this at once (they ask one or two) is not read until answers were written.
const OWED_ANSWERS_LIMIT: usize = 16;
