//! The agent's side of an instance: the Agent Client Protocol over the agent's standard streams.
//!
//! What the agent says on its standard output is framed as bytes by [`framer`], line by line. A line that makes an
//! event is taken from the pipe only while there is [`Room`] for that event; without room nothing is read, and the
//! agent's own pipe is the back-pressure (S-001.6). A `session/update` is passed on as the agent wrote it;
//! requests and responses go through the `agent-client-protocol` crate, whose inside is an unbounded channel and
//! which therefore is only handed what already holds its room.
//!
//! This module does not decide about turns, permissions or retention; it tells an [`AgentObserver`].

mod connection;
mod framer;
mod message;
mod pump;

use std::time::Duration;

use seam::BoxFuture;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use wire::{AgentError, PermissionChoice, ProviderSessionId};

pub use connection::{AgentLink, OpenFailed, OpenFailure, PromptEnd, open};
pub use framer::LINE_LIMIT;

/// Room for one event in an instance's backlog. It goes into the backlog with the event, and comes free when that
/// event is acknowledged; dropped without an event it is free at once.
pub struct Room(pub OwnedSemaphorePermit);

/// Who is told what the agent says and does. Called in the order in which the agent wrote it.
pub trait AgentObserver: Send + Sync + 'static {
    /// Waits until the backlog has room for one more event. Holds nothing that a stop needs; resolves to none once
    /// the instance is being stopped: then whoever waits gives up.
    fn room(&self) -> BoxFuture<'static, Option<Room>>;

    /// The agent sent a `session/update`: the `update` object exactly as written.
    fn update(&self, room: Room, update: Box<RawValue>);

    /// The agent asks for a permission. Answered through the question's sender; dropping that cancels the request.
    fn permission_asked(&self, room: Room, question: PermissionQuestion);

    /// Something is wrong with what the agent wrote or with how it behaves; the connection lives on.
    fn problem(&self, room: Room, error: AgentError);

    /// A line on standard output that is not of the protocol: skipped, kept for diagnosis, not an event.
    fn noise(&self, line: &[u8]);
}

/// A permission request of the agent.
pub struct PermissionQuestion {
    /// The tool call it is about, as the protocol has it.
    pub tool_call: serde_json::Value,
    /// What may be chosen.
    pub options: Vec<PermissionChoice>,
    /// Takes the chosen option's id; `None` or dropping it answers "cancelled".
    pub answer: oneshot::Sender<Option<String>>,
}

/// How to open the conversation.
#[derive(Clone, Debug)]
pub struct AgentSetup {
    /// The session's working directory, absolute.
    pub directory: String,
    /// The mode to select after `session/new`, if any.
    pub mode: Option<String>,
    /// The conversation to load instead of a new one, if the agent can load any.
    pub resume: Option<ProviderSessionId>,
    /// The bound of each step (`initialize`, `session/new` or `session/load`, `session/set_mode`).
    pub step_limit: Duration,
}
