//! One turn, step by step.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::Client;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentBlock, ContentChunk, PermissionOption, PermissionOptionKind, RequestPermissionOutcome,
    RequestPermissionRequest, SessionId, SessionNotification, SessionUpdate, StopReason, ToolCall,
    ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields,
};
use seam::{Privacy, SpawnRequest, Stdio};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Agent;
use super::output::Closed;
use super::script::{Grandchild, OnCancel, Permission, Step, WriteFile};

/// A turn under way.
pub(super) struct Turn {
    pub(super) agent: Arc<Agent>,
    pub(super) connection: ConnectionTo<Client>,
    pub(super) conversation: SessionId,
    /// The session's directory.
    pub(super) directory: PathBuf,
    /// Its number in this process, from 1.
    pub(super) number: u64,
    /// The number of the newest thing said in it, from 1.
    pub(super) said: u64,
    pub(super) cancelled: CancellationToken,
}

/// How a turn ends.
pub(super) enum End {
    /// By itself.
    Reason(StopReason),
    /// With an error of this text.
    Failed(String),
}

/// What is done after a step.
enum After {
    /// The next step.
    Next,
    /// The turn ends.
    End(End),
}

impl Turn {
    /// Does one step after the other.
    pub(super) async fn perform(mut self, steps: Vec<Step>) -> End {
        for step in steps {
            if let Some(end) = self.ended_by_cancel() {
                return end;
            }
            match self.step(step).await {
                Ok(After::Next) => {}
                Ok(After::End(end)) => return end,
                // Nobody hears it any more, and it goes on with its work all the same.
                Err(Closed) if self.agent.script.ignore_stdin_end => {}
                // The failed output is about to end the process.
                Err(Closed) => std::future::pending().await,
            }
        }
        self.ended_by_cancel().unwrap_or(End::Reason(StopReason::EndTurn))
    }

    async fn step(&mut self, step: Step) -> Result<After, Closed> {
        match step {
            Step::Say(text) => self.say(&text, 0).await?,
            Step::SayMany(many) => {
                for _ in 0..many.count {
                    self.pause(many.every_ms).await;
                    if let Some(end) = self.ended_by_cancel() {
                        return Ok(After::End(end));
                    }
                    self.say("", many.bytes).await?;
                }
            }
            Step::SleepMs(length) => self.pause(length).await,
            Step::ToolCall(call) => self.tool_call(&call.title).await?,
            Step::Permission(permission) => self.ask(permission).await?,
            Step::WriteFile(file) => self.write_file(file).await?,
            Step::SpawnGrandchild(grandchild) => self.spawn_grandchild(grandchild).await?,
            Step::Noise(text) => self.agent.output.noise(&text).await?,
            Step::Stderr(text) => self.agent.complain(&text).await,
            Step::Exit(code) => {
                info!(session = %self.agent.session, turn = self.number, code, "agent exits in mid-turn");
                self.agent.exit.send_replace(Some(code));
                std::future::pending::<()>().await;
            }
            Step::End(reason) => return Ok(After::End(End::Reason(reason))),
            Step::Fail(text) => return Ok(After::End(End::Failed(text))),
        }
        Ok(After::Next)
    }

    /// Says `<turn>.<n> text`, filled up to `length` bytes.
    async fn say(&mut self, text: &str, length: usize) -> Result<(), Closed> {
        let mut text = self.numbered(text);
        text.extend(std::iter::repeat_n('.', length.saturating_sub(text.len())));
        let chunk = ContentChunk::new(ContentBlock::from(text.clone()));
        self.tell(SessionUpdate::AgentMessageChunk(chunk), &text).await
    }

    async fn tool_call(&mut self, title: &str) -> Result<(), Closed> {
        let title = self.numbered(title);
        let id = format!("call-{}-{}", self.number, self.said);
        let call = ToolCall::new(id.clone(), title.clone()).status(ToolCallStatus::InProgress);
        self.tell(SessionUpdate::ToolCall(call), &title).await?;
        let title = self.numbered("done");
        let fields = ToolCallUpdateFields::new().status(ToolCallStatus::Completed).title(title.clone());
        self.tell(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields)), &title).await
    }

    async fn ask(&mut self, permission: Permission) -> Result<(), Closed> {
        let mut kinds = permission.options;
        if kinds.is_empty() {
            kinds = vec![PermissionOptionKind::AllowOnce, PermissionOptionKind::RejectOnce];
        }
        let options = kinds.into_iter().map(|kind| {
            let word = serde_json::to_value(kind).ok();
            let word = word.as_ref().and_then(|word| word.as_str()).expect("a kind is a word").to_owned();
            PermissionOption::new(word.clone(), word, kind)
        });
        let id = format!("call-{}-{}", self.number, self.said + 1);
        let fields = ToolCallUpdateFields::new().title(permission.title);
        let call = ToolCallUpdate::new(id, fields);
        let request = RequestPermissionRequest::new(self.conversation.clone(), call, options.collect());
        info!(session = %self.agent.session, turn = self.number, "agent asks for a permission");
        let answer = self.connection.send_request(request).block_task();
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = self.cancelled.cancelled(), if self.agent.script.on_cancel != OnCancel::Ignore => return Ok(()),
        };
        let text = match answer.map(|answer| answer.outcome) {
            Ok(RequestPermissionOutcome::Selected(selected)) => format!("chosen: {}", selected.option_id.0),
            Ok(_) => "not permitted: cancelled".to_owned(),
            Err(error) => format!("not permitted: {}", error.message),
        };
        self.say(&text, 0).await
    }

    async fn write_file(&mut self, file: WriteFile) -> Result<(), Closed> {
        let relative = Path::new(&file.path);
        if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
            return self.say(&format!("not written, not a relative path: {}", file.path), 0).await;
        }
        let path = self.directory.join(relative);
        let disk = &self.agent.seams.disk;
        let written = async {
            if let Some(parent) = path.parent() {
                disk.create_directory(parent, Privacy::Shared).await?;
            }
            if file.append {
                disk.append(&path, file.text.as_bytes(), Privacy::Shared).await.map(|_| ())
            } else {
                disk.write_atomic(&path, file.text.as_bytes(), Privacy::Shared).await
            }
        };
        match written.await {
            Ok(()) => {
                let bytes = file.text.len();
                info!(session = %self.agent.session, turn = self.number, path = %path.display(), bytes, append = file.append, "agent wrote a file");
                Ok(())
            }
            Err(error) => self.say(&format!("not written: {}: {error}", file.path), 0).await,
        }
    }

    async fn spawn_grandchild(&mut self, grandchild: Grandchild) -> Result<(), Closed> {
        let host = &self.agent.seams.host;
        let program =
            host.executable().map_or("scripted-agent".to_owned(), |path| path.to_string_lossy().into_owned());
        let mut args = vec![super::LINGER.to_owned()];
        args.extend(grandchild.ignore_term.then(|| super::IGNORE_TERM.to_owned()));
        let request =
            SpawnRequest { program, args, env: host.environment(), directory: None, stdio: Stdio::Null };
        match self.agent.seams.processes.spawn(request).await {
            Ok(child) => {
                info!(session = %self.agent.session, turn = self.number, process = %child.identity, "agent left a grandchild");
                Ok(())
            }
            Err(error) => self.say(&format!("no grandchild: {error}"), 0).await,
        }
    }

    /// Tells an update and writes down, once it was written, that it was said.
    async fn tell(&mut self, update: SessionUpdate, text: &str) -> Result<(), Closed> {
        let notification = SessionNotification::new(self.conversation.clone(), update);
        self.agent.output.update(&self.connection, notification).await?;
        info!(session = %self.agent.session, turn = self.number, n = self.said, text, "agent said");
        Ok(())
    }

    fn numbered(&mut self, text: &str) -> String {
        self.said += 1;
        format!("{}.{} {text}", self.number, self.said)
    }

    /// A pause, cut short by a cancel that matters.
    async fn pause(&self, length_ms: u64) {
        if length_ms == 0 {
            return;
        }
        let clock = &self.agent.seams.clock;
        tokio::select! {
            biased;
            () = self.cancelled.cancelled(), if self.agent.script.on_cancel != OnCancel::Ignore => {}
            () = clock.sleep(Duration::from_millis(length_ms)) => {}
        }
    }

    fn ended_by_cancel(&self) -> Option<End> {
        if !self.cancelled.is_cancelled() {
            return None;
        }
        match self.agent.script.on_cancel {
            OnCancel::Stop => Some(End::Reason(StopReason::Cancelled)),
            OnCancel::Error => {
                warn!(session = %self.agent.session, turn = self.number, "agent answers the cancel with an error");
                Some(End::Failed("the turn was aborted".to_owned()))
            }
            OnCancel::Ignore => None,
        }
    }
}
