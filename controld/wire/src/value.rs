//! The values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Takes the text as it is.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// One launch of one control server: opaque, fresh at every start (O-001.11).
    ServerIdentity
);
text_id!(
    /// One supervised agent execution in a control server; chosen by the backend that creates it.
    InstanceId
);
text_id!(
    /// The session that an instance works for, as the backend names it (S-002.1).
    SessionId
);
text_id!(
    /// The backend's own durable id of a turn; makes a prompt that is sent twice one turn.
    PromptKey
);
text_id!(
    /// One permission request of one instance; never reused in a server's lifetime.
    PermissionId
);
text_id!(
    /// The conversation as the agent's provider names it; what a resume would need.
    ProviderSessionId
);

/// A turn as the control server numbers it: unique over all instances in its lifetime, never reused (S-004.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TurnId(pub u64);

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

/// The place of an event in its instance's own order: starts at 1 and never skips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// Before the first event.
    pub const ZERO: Self = Self(0);

    /// The place right after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The open answer to "who are you": nothing beside these three (O-001.11).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityAnswer {
    /// This launch of this server.
    pub server: ServerIdentity,
    /// The capability set: names, compared as sets, never as versions.
    pub capabilities: BTreeSet<String>,
    /// How long it tolerates having no owner, in milliseconds.
    pub unowned_period_ms: u64,
}

/// The capabilities that this build's control server advertises and that this build's backend requires.
pub const CAPABILITIES: [&str; 4] =
    ["credential-rotation", "events-acknowledged", "instances", "turn-outcomes-kept"];

/// What a launcher presents once to get the first credential.
#[derive(Serialize, Deserialize)]
pub struct HandshakeRequest {
    /// The nonce that the launcher gave to the server when it started it.
    pub nonce: String,
}

/// The first credential: rotation 0.
#[derive(Serialize, Deserialize)]
pub struct HandshakeAnswer {
    /// The credential, as lower-case hex.
    pub credential: String,
}

/// A process, never by its pid alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRef {
    /// The process id.
    pub pid: u32,
    /// The kernel's start time of it.
    pub start_time: u64,
    /// The boot it belongs to.
    pub boot_id: String,
}

/// What to supervise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateInstance {
    /// The id that the backend chose and recorded before asking. Asking twice creates one instance.
    pub instance: InstanceId,
    /// The session it works for.
    pub session: SessionId,
    /// The agent's program.
    pub command: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its whole environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Its working directory, absolute.
    pub directory: String,
    /// The directories that file operations may reach (S-002.5).
    #[serde(default)]
    pub source_roots: Vec<String>,
    /// The agent's mode to select after `session/new`, if the profile names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The provider's conversation to go on with, if the agent can load one; else a new one is begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ProviderSessionId>,
}

/// What a control server writes down of an agent before it runs, for whoever finds that server dead (ruling 15). One
/// file per instance, `run/agents/<instance>.json` below the home; gone when nothing of the agent is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentEntry {
    /// The launch that supervises it.
    pub server: ServerIdentity,
    /// Its instance.
    pub instance: InstanceId,
    /// The session that it works for.
    pub session: SessionId,
    /// What `KANDEV_INSTANCE_MARK` holds in every process of it, from the first moment on.
    pub mark: String,
    /// Its own process, which leads a group of the same number; none for the moment in which it is being started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRef>,
}

/// The directory of the [`AgentEntry`] files, below the home.
pub const AGENT_ENTRIES: &str = "run/agents";

/// The variable that marks every process of an instance.
pub const INSTANCE_MARK: &str = "KANDEV_INSTANCE_MARK";

/// Where an instance stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// The agent was started and is being initialized.
    Starting,
    /// The agent takes prompts.
    Ready,
    /// The agent could not be started or is gone by itself; what it said is still kept.
    Ended,
    /// It is being stopped.
    Stopping,
}

/// One instance as the server reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceStatus {
    /// Its id.
    pub instance: InstanceId,
    /// The session that the control server itself holds for it (S-002.1).
    pub session: SessionId,
    /// Where it stands.
    pub state: InstanceState,
    /// The agent's process, once started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<ProcessRef>,
    /// The provider's conversation, once the agent opened one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_session: Option<ProviderSessionId>,
    /// The directories that its file operations may reach.
    #[serde(default)]
    pub source_roots: Vec<String>,
    /// The newest event's place.
    pub last_seq: Seq,
    /// The newest acknowledged place.
    pub acknowledged: Seq,
    /// What is kept because nobody acknowledged it.
    pub retained: Retained,
    /// Since when its production is paused, if it is (S-001.6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_since_ms: Option<u64>,
    /// Whether an event stream is up.
    pub attached: bool,
    /// The turn status.
    pub turn: TurnStatus,
    /// Permission requests that nobody answered yet.
    #[serde(default)]
    pub permissions: Vec<PermissionId>,
    /// Why it ended by itself, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// How much is kept for one instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retained {
    /// Events.
    pub events: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// Every instance of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceList {
    /// Sorted by id.
    pub instances: Vec<InstanceStatus>,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptRequest {
    /// The backend's id of the turn: the same key again is the same turn.
    pub key: PromptKey,
    /// What the user said.
    pub text: String,
}

/// An accepted prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptAccepted {
    /// The turn that it opened.
    pub turn: TurnId,
}

/// Two facts that are never mixed: whether a turn is open, and which outcomes are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStatus {
    /// The accepted prompt that has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenTurn>,
    /// Ended turns whose outcome nobody acknowledged, oldest first.
    #[serde(default)]
    pub kept: Vec<TurnOutcome>,
}

/// A turn that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTurn {
    /// Its id.
    pub turn: TurnId,
    /// The backend's key for it.
    pub key: PromptKey,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnOutcome {
    /// Its id.
    pub turn: TurnId,
    /// The backend's key for it.
    pub key: PromptKey,
    /// The end.
    pub end: TurnEnd,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// The terminal states of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnEnd {
    /// The agent ended it by itself, with the protocol's stop reason.
    Completed {
        /// As the agent named it, such as `end_turn` or `max_tokens`.
        stop_reason: String,
    },
    /// We asked for a cancel before it ended, whatever the agent called it.
    Cancelled,
    /// It ended in an error: of the agent, of its process, or of the protocol.
    Failed {
        /// One line for people.
        error: String,
    },
}

/// Names the turn whose outcome was durably applied (S-004.6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcknowledgeTurn {
    /// The turn.
    pub turn: TurnId,
}

/// The answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerPermission {
    /// The chosen option's id; none cancels the request.
    pub option: Option<String>,
}

/// The answer to a stop: stopping is not yet gone (ruling 3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// How many instances are not gone yet.
    pub left: u64,
}

/// Answers without content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// One thing that an instance said or did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// The instance.
    pub instance: InstanceId,
    /// Its place.
    pub seq: Seq,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What kind, one of [`kind`] or a newer one.
    pub kind: String,
    /// The turn it belongs to, if one was open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The content; its shape depends on the kind.
    pub payload: Box<RawValue>,
}

/// The event kinds that this build knows. A reader keeps and passes on any other.
pub mod kind {
    /// A `session/update` of the agent as the protocol has it; the payload is the update object.
    pub const UPDATE: &str = "update";
    /// The same, said again by an agent that loads an earlier conversation: it stands in the transcript already.
    pub const REPLAY: &str = "replay";
    /// The agent asks for a permission; the payload is [`super::PermissionAsked`].
    pub const PERMISSION_ASKED: &str = "permission_asked";
    /// A permission request was answered, cancelled or ended; the payload is [`super::PermissionEnded`].
    pub const PERMISSION_ENDED: &str = "permission_ended";
    /// A prompt was accepted; the payload is [`super::OpenTurn`].
    pub const TURN_STARTED: &str = "turn_started";
    /// A turn ended; the payload is [`super::TurnOutcome`].
    pub const TURN_ENDED: &str = "turn_ended";
    /// Something went wrong with the agent; the payload is [`super::AgentError`].
    pub const ERROR: &str = "error";
}

/// The payload of [`kind::PERMISSION_ASKED`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PermissionAsked {
    /// The id to answer with.
    pub permission: PermissionId,
    /// The options that may be chosen: id and name.
    pub options: Vec<PermissionChoice>,
    /// What it is asked for, as the protocol's tool call.
    pub tool_call: serde_json::Value,
}

/// One option of a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionChoice {
    /// What an answer names.
    pub id: String,
    /// What people read.
    pub name: String,
    /// The protocol's kind, such as `allow_once`.
    pub kind: String,
}

/// The payload of [`kind::PERMISSION_ENDED`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionEnded {
    /// Which request.
    pub permission: PermissionId,
    /// The chosen option; none if it was cancelled.
    pub option: Option<String>,
}

/// The payload of [`kind::ERROR`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentError {
    /// What failed, such as `agent_exited`, `oversized_line`, `initialize`.
    pub step: String,
    /// One line for people.
    pub message: String,
    /// The last of the agent's standard error, if that helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

/// What the server sends on an event stream; each WebSocket text message is one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerFrame {
    /// Events in order, at least one.
    Events(Vec<Event>),
    /// The reader asked after a place that is no longer kept: these were acknowledged before.
    Gap {
        /// The first place that is missing.
        from: Seq,
        /// The last place that is missing.
        to: Seq,
    },
    /// Nothing new; the stream lives.
    Heartbeat {},
    /// A newer stream for this instance took over; the last frame.
    Replaced {},
}

/// What the reader sends on an event stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientFrame {
    /// Everything up to and including this place is durably stored: it need not be kept (ruling 4).
    Acknowledge {
        /// The place.
        seq: Seq,
    },
    /// The reader lives.
    Heartbeat {},
}

/// Why the server refused a request: closed, one code per reason (law 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// No credential, or not an acceptable one.
    Unauthorized,
    /// The credential was superseded by another backend's adoption (O-002.3). Builds before it say
    /// [`Self::Unauthorized`]: judge by the status, 401 either way.
    CredentialSuperseded,
    /// The nonce is wrong or was used before.
    HandshakeRefused,
    /// No rotation of that id was ever issued (O-002.6).
    UnknownRotation,
    /// The server has decided to shut down; nothing turns it back (O-003.9).
    ShuttingDown,
    /// No such instance.
    UnknownInstance,
    /// The instance id is taken by an instance made from another request.
    InstanceConflict,
    /// The instance is not ready for that.
    NotReady,
    /// A turn is open already.
    TurnOpen,
    /// Too many outcomes are kept that nobody acknowledged.
    OutcomesUnacknowledged,
    /// No such permission request, or it has ended.
    UnknownPermission,
    /// The request could not be understood.
    BadRequest,
    /// A table of the server is full.
    TooMany,
    /// A code of a newer build.
    #[serde(other)]
    Unknown,
}

/// The body of every refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The reason.
    pub code: RefusalCode,
    /// One sentence for people.
    pub message: String,
}
