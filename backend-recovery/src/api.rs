//! The values of the user's API, as JSON on the wire and typed in [`crate::UserClient`].

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use wire::{InstanceId, PermissionId, ProcessRef, PromptKey, Seq, ServerIdentity, SessionId};

/// Defines a closed enum whose text is the same in the store, in JSON and in logs.
macro_rules! named_states {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// The text that stands for it everywhere.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The value that the text stands for.
            pub fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

named_states!(
    /// Where a session stands.
    SessionState {
        /// Durable, its workspace is being prepared.
        Created = "CREATED",
        /// Its agent is being started.
        Starting = "STARTING",
        /// A turn is open.
        Running = "RUNNING",
        /// Its agent lives and takes the next prompt.
        WaitingForInput = "WAITING_FOR_INPUT",
        /// It has no agent; resume token and workspace are kept.
        Idle = "IDLE",
        /// Done.
        Completed = "COMPLETED",
        /// Its agent could not be started or ended by itself.
        Failed = "FAILED",
        /// Stopped by its user.
        Cancelled = "CANCELLED",
    }
);

impl SessionState {
    /// Whether nothing more happens in it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

named_states!(
    /// Where a task stands.
    TaskState {
        /// One of its sessions is at work or can go on.
        InProgress = "IN_PROGRESS",
        /// Its session lost its agent with the backend that ran it.
        Interrupted = "INTERRUPTED",
        /// Its session failed.
        Failed = "FAILED",
        /// Its session was stopped by its user.
        Cancelled = "CANCELLED",
    }
);

named_states!(
    /// Where a turn stands. Exactly one of the last five is reached, once.
    TurnState {
        /// Durable here; the control server has not accepted it yet.
        Pending = "PENDING",
        /// Accepted by the control server, not ended.
        Running = "RUNNING",
        /// The agent ended it.
        Completed = "COMPLETED",
        /// We asked for its end.
        Cancelled = "CANCELLED",
        /// It ended in an error.
        Failed = "FAILED",
        /// Its agent was gone before it ended.
        Interrupted = "INTERRUPTED",
        /// The control server never accepted it; it is not sent again (ruling 2).
        NotDelivered = "NOT_DELIVERED",
    }
);

impl TurnState {
    /// Whether it has its outcome.
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

/// What a new session works on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceRequest {
    /// An existing folder of this host, used in place.
    Folder {
        /// Absolute.
        path: String,
    },
    /// A new git worktree, made for this session.
    Worktree {
        /// The repository, absolute.
        repository: String,
        /// The new branch's name; by default one made from the session's id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        branch: Option<String>,
    },
}

/// `POST /api/sessions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateSession {
    /// A profile of the configuration file.
    pub profile: String,
    /// What it works on.
    pub workspace: WorkspaceRequest,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Its id.
    pub session: SessionId,
    /// Its task.
    pub task: String,
    /// Its task's state.
    pub task_state: TaskState,
    /// The agent profile.
    pub profile: String,
    /// Where it stands.
    pub state: SessionState,
    /// Where its agent works.
    pub directory: String,
    /// Why it failed or was interrupted, or what keeps it from going on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Its supervised execution, as recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Its agent's process, as recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<ProcessRef>,
    /// The provider's conversation: what a resume would need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_session: Option<String>,
    /// Whether this backend drives its execution now.
    pub tracked: bool,
    /// Permission requests that wait for an answer.
    #[serde(default)]
    pub permissions: Vec<PermissionId>,
    /// Its newest turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnView>,
}

/// Every session, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionList {
    /// The sessions.
    pub sessions: Vec<SessionView>,
}

/// One turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnView {
    /// The backend's durable id of it.
    pub turn: PromptKey,
    /// Where it stands.
    pub state: TurnState,
    /// As the agent named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Why it failed, was interrupted or not delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// `POST …/prompt`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptInput {
    /// What the user says.
    pub text: String,
    /// Makes a request that is sent twice one turn; `[A-Za-z0-9-]`, at most 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PromptKey>,
}

/// `POST …/permissions/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionInput {
    /// The chosen option's id; none cancels the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
}

/// `POST …/resume`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeInput {
    /// Launches at once although a control server that was left running may still run the session's agent (ruling 11).
    /// Never lifts the refusal of S-002.16.
    #[serde(default)]
    pub beside_survivor: bool,
}

/// One entry of a transcript.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TranscriptEntry {
    /// Its place in this store; grows, may skip.
    pub position: u64,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// A kind of `wire::kind`, or one of [`entry_kind`].
    pub kind: String,
    /// The control server that it came from; none for the backend's own entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerIdentity>,
    /// The instance that it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Its place in that instance's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// The turn that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<PromptKey>,
    /// The content; its shape depends on the kind.
    pub payload: Box<RawValue>,
}

/// The kinds of the backend's own transcript entries.
pub mod entry_kind {
    /// What the user said; the payload is `{"text": …}`.
    pub const PROMPT: &str = "prompt";
    /// Something that the backend has to say, such as that a turn was interrupted; `{"text": …}`.
    pub const NOTICE: &str = "notice";
}

/// `GET …/transcript`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TranscriptPage {
    /// In order.
    pub entries: Vec<TranscriptEntry>,
    /// What to ask after for the next page; none at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// `GET /api/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusView {
    /// Whether recovery is complete.
    pub recovered: bool,
    /// From the first contact to the end of recovery, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_ms: Option<u64>,
    /// `enabled`, `disabled` or `unavailable` (S-005.4).
    pub survival: String,
    /// Why it is unavailable, machine-readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survival_reason: Option<String>,
    /// The control server in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerView>,
    /// Why there is none, if starting it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_failure: Option<String>,
    /// What became of the recorded server: `adopted`, or why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adoption: Option<String>,
    /// Sessions re-tracked at this start.
    pub retracked: Vec<SessionId>,
    /// Instances stopped at this start, with the reason.
    pub stopped: Vec<Named>,
    /// Sessions left as they were, with the reason.
    pub left: Vec<Named>,
    /// Sessions that are guarded now, with the reason.
    pub guards: Vec<Named>,
    /// Control servers of ours that were left running, with the reason and when they end (ruling 11).
    #[serde(default)]
    pub survivors: Vec<Named>,
}

/// A thing and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Its id.
    pub id: String,
    /// Why.
    pub reason: String,
}

/// The control server in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerView {
    /// Its launch.
    pub identity: ServerIdentity,
    /// Where it listens.
    pub address: String,
    /// `adopted` or `started`.
    pub origin: String,
    /// Why it listens elsewhere than configured, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<String>,
    /// Its log file.
    pub log: String,
}

named_states!(
    /// Why a user's request was refused: closed, one per reason (law 7).
    RefusalCode {
        /// Recovery is running for this session, or has not yet read which sessions there are (S-002.8).
        Recovering = "recovering",
        /// The session is being launched.
        Launching = "launching",
        /// A control server that was left running may still run the session's agent (ruling 11).
        Survivor = "survivor",
        /// Whether an agent of the session lives could not be found out (ruling 1).
        LivenessUnknown = "liveness_unknown",
        /// An agent of this session could not be stopped (S-002.16).
        UnstoppedAgent = "unstopped_agent",
        /// There is no control server to work with yet.
        ControlServerUnavailable = "control_server_unavailable",
        /// The control server refused or did not answer.
        ControlServerFailed = "control_server_failed",
        /// No such session.
        UnknownSession = "unknown_session",
        /// No such profile in the configuration.
        UnknownProfile = "unknown_profile",
        /// The workspace cannot be used or made.
        Workspace = "workspace",
        /// The session has no agent.
        NoAgent = "no_agent",
        /// The session's agent is not ready yet.
        Starting = "starting",
        /// A turn is open.
        TurnOpen = "turn_open",
        /// The key belongs to a turn of another session.
        TurnConflict = "turn_conflict",
        /// No such permission request, or it has ended.
        UnknownPermission = "unknown_permission",
        /// No token, or a wrong one.
        Unauthorized = "unauthorized",
        /// The request could not be understood.
        BadRequest = "bad_request",
        /// The store could not be read or written.
        Store = "store",
    }
);

/// The body of every refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Refused {
    /// The reason.
    pub code: RefusalCode,
    /// One sentence for people.
    pub message: String,
    /// Whether the same request may succeed later within this backend's lifetime.
    pub retryable: bool,
}

impl Refused {
    /// A refusal that later tries will meet again.
    pub(crate) fn for_good(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: false }
    }

    /// A refusal that passes.
    pub(crate) fn for_now(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: true }
    }
}

/// `<home>/run/backend.json`: how the command line finds the running backend. Owner-readable only.
#[derive(Serialize, Deserialize)]
pub struct BackendContact {
    /// Where it listens.
    pub address: std::net::SocketAddr,
    /// What every request carries.
    pub token: String,
    /// For people.
    pub pid: u32,
}
