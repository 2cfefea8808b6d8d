//! A user: creates sessions, prompts, answers permission requests, reads the transcript, and does not give up
//! because a backend is being restarted.

use std::cell::Cell;
use std::time::Duration;

use backend_recovery::api::{
    CreateSession, PromptInput, RefusalCode, ResumeInput, SessionState, SessionView, StatusView, TurnState,
    TurnView, WorkspaceRequest,
};
use backend_recovery::{Home, UserCallFailed, UserClient};
use serde_json::{Value, json};
use wire::{PromptKey, SessionId, kind};

use super::installation::{Installation, Place};
use crate::observer::Violation;
use crate::scenario::Director;

/// A user of one installation.
pub(super) struct User<'a> {
    director: &'a Director,
    place: Place,
    /// How often there was a prompt: no key is used for two turns.
    prompts: Cell<u64>,
    /// Tells this user's requests from another's.
    number: u64,
}

/// One session and the process of its agent when it was ready.
pub(super) struct Opened {
    pub(super) session: SessionId,
    pub(super) agent: u32,
}

impl<'a> User<'a> {
    pub(super) fn of(installation: &Installation<'a>, number: u64) -> Self {
        Self { director: installation.director, place: installation.place, prompts: Cell::new(0), number }
    }

    /// Creates a session and waits until its agent takes prompts. A creation whose answer a dying backend took with
    /// it may have made a session or not; the user asks for another one.
    pub(super) async fn open_session(&self) -> Result<Opened, Violation> {
        let request = CreateSession {
            profile: if self.director.knob("deaf") == 1 { "deaf" } else { "scripted" }.to_owned(),
            workspace: WorkspaceRequest::Folder { path: self.place.workspace.to_owned() },
            title: Some(format!("user {}", self.number)),
        };
        for _ in 0..ATTEMPTS {
            let session = self
                .ask("a session is created", async |client| match client.create_session(&request).await {
                    Ok(view) => Asked::Got(view.session),
                    Err(failed) => again_if_retryable(failed),
                })
                .await?;
            let view = self
                .session_when(&session, "the new session's launch ends", |view| {
                    !matches!(view.state, SessionState::Created | SessionState::Starting)
                })
                .await?;
            let agent = view.agent.as_ref().map(|agent| agent.pid);
            if let (SessionState::WaitingForInput, Some(agent)) = (view.state, agent) {
                let told = [("session", session.to_string()), ("agent", agent.to_string())];
                self.director.note("session opened", told);
                return Ok(Opened { session, agent });
            }
            // A launch that a dying backend left half done has failed by name; the user starts another one.
            self.director.reached("launch interrupted");
        }
        let seen = format!("{ATTEMPTS} launches failed");
        Err(Violation::new("converges", "S-001.2", "a session opens in the end", seen))
    }

    /// Prompts and waits for the turn's outcome; what was not delivered is prompted again, as the user is told to.
    pub(super) async fn complete_turn(&self, session: &SessionId, steps: &Value) -> Result<(), Violation> {
        for _ in 0..ATTEMPTS {
            let key = self.prompt(session, steps).await?;
            let turn = self.outcome(session, &key).await?;
            match turn.state {
                TurnState::Completed => return Ok(()),
                TurnState::NotDelivered => self.director.reached("prompt not delivered"),
                other => {
                    let seen = format!("{other}: {:?}", turn.error);
                    return Err(Violation::new("outcome-once", "S-003.4", "the turn completes", seen));
                }
            }
        }
        Err(Violation::new("converges", "S-001.2", "a prompt is delivered in the end", "it never was"))
    }

    /// Prompts, once, and gives the turn's key.
    pub(super) async fn prompt(&self, session: &SessionId, steps: &Value) -> Result<PromptKey, Violation> {
        let prompt = self.prompts.replace(self.prompts.get() + 1);
        let key = PromptKey::new(format!("{session}-{}-{prompt}", self.number));
        let input = PromptInput { text: json!({ "steps": steps }).to_string(), key: Some(key.clone()) };
        self.ask("the prompt is taken", async |client| match client.prompt(session, &input).await {
            Ok(_) => Asked::Got(()),
            Err(failed) => again_if_retryable(failed),
        })
        .await?;
        Ok(key)
    }

    /// Asks for a new agent until the session has one that takes prompts, as a user does whom the backend tells to try
    /// again; what is left of a launch that a dying backend took with it is resumed once more.
    pub(super) async fn resume(&self, session: &SessionId) -> Result<Opened, Violation> {
        for _ in 0..ATTEMPTS {
            self.ask("the session is resumed", async |client| {
                match client.resume(session, &ResumeInput::default()).await {
                    Ok(_) => Asked::Got(()),
                    Err(failed) => again_if_retryable(failed),
                }
            })
            .await?;
            let settled =
                |view: &SessionView| !matches!(view.state, SessionState::Created | SessionState::Starting);
            let view = self.session_when(session, "the launch ends", settled).await?;
            let agent = view.agent.as_ref().map(|agent| agent.pid);
            if let (SessionState::WaitingForInput, Some(agent)) = (view.state, agent) {
                return Ok(Opened { session: session.clone(), agent });
            }
            self.director.reached("launch interrupted");
        }
        let seen = format!("{ATTEMPTS} launches failed");
        Err(Violation::new("converges", "S-002.7", "a session resumes in the end", seen))
    }

    /// Asks once for a new agent; gives the reason for which it is refused, or nothing if it is not.
    pub(super) async fn refused_to_resume(&self, session: &SessionId) -> Result<String, Violation> {
        self.ask("the request is answered", async |client| {
            match client.resume(session, &ResumeInput::default()).await {
                Ok(_) => Asked::Got(String::new()),
                Err(failed) => match failed.refused() {
                    Some(refused) if refused.code != RefusalCode::Unauthorized => {
                        Asked::Got(refused.code.to_string())
                    }
                    _ => Asked::Again(failed.to_string()),
                },
            }
        })
        .await
    }

    /// Waits for the outcome of a turn, and says yes to what its agent asks.
    pub(super) async fn outcome(&self, session: &SessionId, key: &PromptKey) -> Result<TurnView, Violation> {
        let ended = async |view: &SessionView| {
            self.answer_permissions(view).await;
            view.turn.as_ref().is_some_and(|turn| turn.turn == *key && turn.state.is_terminal())
        };
        let view = self.session_until(session, "the turn reaches its outcome", ended).await?;
        Ok(view.turn.expect("a session whose turn ended has a turn"))
    }

    /// Asks for the end of a session, once; what becomes of that does not matter to this user.
    pub(super) async fn stop(&self, session: &SessionId) {
        if let Ok(client) = UserClient::of_home(&self.director.seams, &Home::new(self.place.home)).await {
            let _whatever = client.stop(session).await;
        }
    }

    /// Puts what an operator sees of the control server into the trace.
    pub(super) async fn note_status(&self) -> Result<(), Violation> {
        let status = self.status_when("the status is read", |status| status.server.is_some()).await?;
        let server = status.server.expect("only a status with a server is taken");
        let adoption = status.adoption.unwrap_or_default();
        let told = [("log", server.log), ("origin", server.origin), ("adoption", adoption)];
        self.director.note("status", told);
        Ok(())
    }

    /// What an operator is shown, once it is as wanted.
    pub(super) async fn status_when(
        &self,
        what: &str,
        mut wanted: impl FnMut(&StatusView) -> bool,
    ) -> Result<StatusView, Violation> {
        self.ask(what, async |client| match client.status().await {
            Ok(status) if wanted(&status) => Asked::Got(status),
            Ok(_) => Asked::Again("not yet".to_owned()),
            Err(failed) => again_if_retryable(failed),
        })
        .await
    }

    /// Waits until the transcript holds as much as the session's agent has said (an outcome may be shown before the
    /// events of its turn have arrived, ruling 14), then puts it into the trace, entry by entry, where the invariants
    /// compare it.
    pub(super) async fn read_transcript(&self, session: &SessionId) -> Result<(), Violation> {
        let deadline = self.director.seams.clock.monotonic().after(PATIENCE);
        let texts = loop {
            let texts =
                self.ask("the transcript is read", async |client| texts(&client, session).await).await?;
            let late = self.director.seams.clock.monotonic() > deadline;
            if late || texts.len() >= self.said_in(session) {
                break texts;
            }
            self.director.sleep(LOOK_AGAIN).await;
        };
        let session = || session.to_string();
        let chunks = texts.len().to_string();
        for text in texts {
            self.director.note("transcript chunk", [("session", session()), ("text", text)]);
        }
        self.director.note("transcript read", [("session", session()), ("chunks", chunks)]);
        Ok(())
    }

    fn said_in(&self, session: &SessionId) -> usize {
        self.director.look(|world| {
            let said = world.lines().iter().filter(|line| line.logged("scripted-agent", "agent said"));
            said.filter(|line| line.field("session") == session.as_str()).count()
        })
    }

    /// The session, once it is as wanted.
    pub(super) async fn session_when(
        &self,
        session: &SessionId,
        what: &str,
        mut wanted: impl FnMut(&SessionView) -> bool,
    ) -> Result<SessionView, Violation> {
        self.session_until(session, what, async |view: &SessionView| wanted(view)).await
    }

    async fn session_until(
        &self,
        session: &SessionId,
        what: &str,
        mut wanted: impl AsyncFnMut(&SessionView) -> bool,
    ) -> Result<SessionView, Violation> {
        self.ask(what, async |client| match client.session(session).await {
            Ok(view) if wanted(&view).await => Asked::Got(view),
            Ok(_) => Asked::Again("not yet".to_owned()),
            Err(failed) => again_if_retryable(failed),
        })
        .await
    }

    async fn answer_permissions(&self, view: &SessionView) {
        for permission in &view.permissions {
            if let Ok(client) = UserClient::of_home(&self.director.seams, &Home::new(self.place.home)).await {
                let chosen = Some("allow_once".to_owned());
                // Refused or lost: the request is still listed at the next look, or it is answered.
                let _asked_again_later = client.answer_permission(&view.session, permission, chosen).await;
                self.director.reached("permission answered");
            }
        }
    }

    /// Asks whatever backend runs, again and again, until there is an answer or the user has waited too long.
    async fn ask<T>(
        &self,
        what: &str,
        mut attempt: impl AsyncFnMut(UserClient) -> Asked<T>,
    ) -> Result<T, Violation> {
        let clock = &self.director.seams.clock;
        let deadline = clock.monotonic().after(PATIENCE);
        let mut last;
        loop {
            match UserClient::of_home(&self.director.seams, &Home::new(self.place.home)).await {
                Ok(client) => match attempt(client).await {
                    Asked::Got(value) => return Ok(value),
                    Asked::Never(failed) => {
                        return Err(Violation::new("required", "S-001.2", what, failed.to_string()));
                    }
                    Asked::Again(why) => last = why,
                },
                Err(failed) => last = failed.to_string(),
            }
            if clock.monotonic() > deadline {
                let expected = format!("{what}, within {PATIENCE:?}");
                return Err(Violation::new("converges", "S-001.2", expected, last));
            }
            self.director.sleep(LOOK_AGAIN).await;
        }
    }
}

/// What the agent said, from every page of the transcript.
async fn texts(client: &UserClient, session: &SessionId) -> Asked<Vec<String>> {
    let mut texts = Vec::new();
    let mut after = 0;
    loop {
        let page = match client.transcript(session, after, PAGE).await {
            Ok(page) => page,
            Err(failed) => return again_if_retryable(failed),
        };
        for entry in page.entries.iter().filter(|entry| entry.kind == kind::UPDATE) {
            let payload: Value = serde_json::from_str(entry.payload.get()).expect("a payload is JSON");
            // The scripted agent's words stand in a chunk's text or in a tool call's title.
            let text = payload["content"]["text"].as_str().or(payload["title"].as_str());
            texts.extend(text.map(str::to_owned));
        }
        let Some(next) = page.next else { return Asked::Got(texts) };
        after = next;
    }
}

enum Asked<T> {
    Got(T),
    Again(String),
    Never(UserCallFailed),
}

fn again_if_retryable<T>(failed: UserCallFailed) -> Asked<T> {
    match failed.refused() {
        // The backend that wrote this token has gone since: the next look finds the new one's.
        Some(refused) if refused.code == RefusalCode::Unauthorized => Asked::Again(failed.to_string()),
        Some(refused) if !refused.retryable => Asked::Never(failed),
        _ => Asked::Again(failed.to_string()),
    }
}

/// What one agent does in one turn, drawn: always something said, and now and then everything else that agents do.
pub(super) fn drawn_steps(director: &Director) -> Value {
    director.draw(|rng| {
        let mut steps = vec![say_many(rng.between(5, 40), rng.between(8, 200), rng.between(5, 60))];
        if rng.chance(1, 3) {
            steps.push(json!({ "tool_call": { "title": "look around" } }));
        }
        if rng.chance(1, 3) {
            steps.push(json!({ "write_file": { "path": "notes.md", "text": "done\n", "append": true } }));
        }
        if rng.chance(1, 4) {
            steps.push(json!({ "permission": { "title": "run the tests" } }));
        }
        if rng.chance(1, 4) {
            steps.push(json!({ "noise": "a banner that is not of the protocol" }));
            steps.push(json!({ "stderr": "a warning" }));
        }
        steps.push(say_many(rng.between(1, 20), rng.between(8, 40), rng.between(0, 30)));
        Value::Array(steps)
    })
}

fn say_many(count: u64, bytes: u64, every_ms: u64) -> Value {
    json!({ "say_many": { "count": count, "bytes": bytes, "every_ms": every_ms } })
}

/// How often a user starts over what a dying backend took with it.
const ATTEMPTS: u64 = 6;

/// How long a user waits for one thing: more than a whole recovery bound, and than the shortest unowned period with
/// what its stops take.
const PATIENCE: Duration = Duration::from_secs(100);

/// How often a user looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The transcript page: small, so that most runs need several.
const PAGE: u32 = 20;
