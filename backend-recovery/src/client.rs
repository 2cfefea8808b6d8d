//! The client of the user's API: typed calls, for the command line and for whoever plays a user.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use seam::Seams;
use secrecy::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::http::{Endpoint, ExchangeFailed, exchange};
use wire::{Done, PermissionId, SessionId};

use crate::api::{
    BackendContact, CreateSession, PermissionInput, PromptInput, Refused, ResumeInput, SessionList,
    SessionView, StatusView, TranscriptPage, TurnView,
};
use crate::home::Home;

/// Calls to one running backend.
#[derive(Clone)]
pub struct UserClient {
    endpoint: Endpoint,
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum UserCallFailed {
    /// No backend is known to run on this home.
    #[error("no backend runs on home {home}: start it with `backend-recovery serve`", home = home.display())]
    NoBackend {
        /// The home.
        home: std::path::PathBuf,
        /// What its contact file said.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The backend did not answer.
    #[error("the backend did not answer; it may be starting or gone")]
    NoAnswer(#[source] ExchangeFailed),
    /// The backend refused.
    #[error(transparent)]
    Refused(Refused),
    /// Something answered, but not as a backend does.
    #[error("the answer is not a backend's (status {status})")]
    Unreadable {
        /// The HTTP status.
        status: u16,
    },
}

impl UserCallFailed {
    /// The backend's refusal, if it gave one.
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            Self::Refused(refused) => Some(refused),
            Self::NoBackend { .. } | Self::NoAnswer(_) | Self::Unreadable { .. } => None,
        }
    }
}

impl UserClient {
    /// Calls to the backend at this address, with its token.
    pub fn new(seams: &Seams, address: SocketAddr, token: SecretString) -> Self {
        Self {
            endpoint: Endpoint {
                network: Arc::clone(&seams.network),
                clock: Arc::clone(&seams.clock),
                address,
                credential: Some(token),
                limit: CALL_LIMIT,
            },
        }
    }

    /// Calls to the backend that runs on this home, as its contact file says.
    ///
    /// # Errors
    /// [`UserCallFailed::NoBackend`] if the file is not there or damaged.
    pub async fn of_home(seams: &Seams, home: &Home) -> Result<Self, UserCallFailed> {
        let failed = |cause| UserCallFailed::NoBackend { home: home.path().to_owned(), cause };
        let bytes =
            seams.disk.read(&home.contact(), CONTACT_LIMIT).await.map_err(|error| failed(error.into()))?;
        let contact: BackendContact = serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))?;
        Ok(Self::new(seams, contact.address, SecretString::from(contact.token)))
    }

    /// `GET /api/status`.
    ///
    /// # Errors
    /// See [`UserCallFailed`]; so for every call.
    pub async fn status(&self) -> Result<StatusView, UserCallFailed> {
        self.get("/api/status").await
    }

    /// `POST /api/sessions`: answers before the agent is up; see [`Self::session`].
    pub async fn create_session(&self, request: &CreateSession) -> Result<SessionView, UserCallFailed> {
        self.post("/api/sessions", request).await
    }

    /// `GET /api/sessions`.
    pub async fn sessions(&self) -> Result<SessionList, UserCallFailed> {
        self.get("/api/sessions").await
    }

    /// `GET /api/sessions/{id}`.
    pub async fn session(&self, session: &SessionId) -> Result<SessionView, UserCallFailed> {
        self.get(&format!("/api/sessions/{session}")).await
    }

    /// `POST …/prompt`.
    pub async fn prompt(&self, session: &SessionId, input: &PromptInput) -> Result<TurnView, UserCallFailed> {
        self.post(&format!("/api/sessions/{session}/prompt"), input).await
    }

    /// `POST …/cancel`.
    pub async fn cancel(&self, session: &SessionId) -> Result<Done, UserCallFailed> {
        self.post(&format!("/api/sessions/{session}/cancel"), &Done {}).await
    }

    /// `POST …/permissions/{id}`.
    pub async fn answer_permission(
        &self,
        session: &SessionId,
        permission: &PermissionId,
        option: Option<String>,
    ) -> Result<Done, UserCallFailed> {
        let path = format!("/api/sessions/{session}/permissions/{permission}");
        self.post(&path, &PermissionInput { option }).await
    }

    /// `POST …/stop`: answers when the agent was seen gone.
    pub async fn stop(&self, session: &SessionId) -> Result<SessionView, UserCallFailed> {
        self.post(&format!("/api/sessions/{session}/stop"), &Done {}).await
    }

    /// `POST …/resume`: a new agent for a session that has none; answers before it is up.
    pub async fn resume(
        &self,
        session: &SessionId,
        input: &ResumeInput,
    ) -> Result<SessionView, UserCallFailed> {
        self.post(&format!("/api/sessions/{session}/resume"), input).await
    }

    /// `GET …/transcript`: one page.
    pub async fn transcript(
        &self,
        session: &SessionId,
        after: u64,
        limit: u32,
    ) -> Result<TranscriptPage, UserCallFailed> {
        self.get(&format!("/api/sessions/{session}/transcript?after={after}&limit={limit}")).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, UserCallFailed> {
        self.call(Method::GET, path, None).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, UserCallFailed> {
        let body = serde_json::to_vec(body).expect("api values always serialize");
        self.call(Method::POST, path, Some(body)).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, UserCallFailed> {
        let (status, bytes) =
            exchange(&self.endpoint, method, path, body).await.map_err(UserCallFailed::NoAnswer)?;
        let unreadable = |_| UserCallFailed::Unreadable { status: status.as_u16() };
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(unreadable);
        }
        Err(UserCallFailed::Refused(serde_json::from_slice(&bytes).map_err(unreadable)?))
    }
}

/// Above the backend's own bound for a stop, which is the slowest call.
const CALL_LIMIT: Duration = Duration::from_secs(60);
const CONTACT_LIMIT: u64 = 64 * 1024;
