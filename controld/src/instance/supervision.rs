//! What takes time in an instance's life: its process, its conversation, its turns, its end.
//!
//! One task runs [`Instance::supervise`] from the start to the moment when nothing of the instance is left. Beside
//! it run the turns (one after another), the server's own events (waiting for room), and the agent's standard error
//! (read always). Each of them gives up once the instance is being stopped.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use seam::{Child, ChildInput, ChildOutput, Exit, ExitStatus, ProcessIdentity, SpawnRequest, Stdio, within};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tracing::{debug, error, info, warn};
use wire::{AgentError, INSTANCE_MARK, InstanceState, TurnEnd, TurnId};

use super::observer::Observer;
use super::{Instance, PROMPT_QUEUE, QueuedPrompt};
use crate::agent_protocol::{self, AgentLink, AgentSetup, OpenFailed, PromptEnd, Room};
use crate::process_tree::{TreeStopped, stop_tree};

/// How an agent's run ended.
enum Gone {
    /// We stop it.
    Stopped,
    /// It ended by itself, or never got so far.
    ByItself(AgentError),
}

/// Why no agent runs.
enum StartFailed {
    /// It could not be written down.
    Entry(std::io::Error),
    /// Its program could not be started.
    Spawn(std::io::Error),
}

impl Instance {
    /// Runs the instance to its very end: returns once it was stopped and nothing of it is left.
    pub(crate) async fn supervise(self: Arc<Self>) {
        tokio::spawn(Arc::clone(&self).place_own_events());
        match self.start().await {
            Ok(child) => self.run(child).await,
            Err(StartFailed::Entry(error)) => self.fail(AgentError {
                step: "start".into(),
                message: format!(
                    "what the next start must know of the agent could not be written, so it was not started: {error}"
                ),
                stderr: None,
            }),
            Err(StartFailed::Spawn(error)) => {
                self.remove_entry().await;
                let (command, directory) = (&self.request.command, &self.request.directory);
                self.fail(AgentError {
                    step: "start".into(),
                    message: format!("the agent {command:?} cannot be started in {directory:?}: {error}"),
                    stderr: None,
                });
            }
        }
        self.stopping().await;
        self.discard();
    }

    async fn start(&self) -> Result<Child, StartFailed> {
        self.write_entry(None).await.map_err(StartFailed::Entry)?;
        let mut env = self.request.env.clone();
        env.insert(INSTANCE_MARK.to_owned(), self.mark.clone());
        let child = self
            .seams
            .processes
            .spawn(SpawnRequest {
                program: self.request.command.clone(),
                args: self.request.args.clone(),
                env,
                directory: Some(self.request.directory.clone().into()),
                stdio: Stdio::Piped,
            })
            .await
            .map_err(StartFailed::Spawn)?;
        // Before its first word is read: until then the mark alone finds it.
        if let Err(error) = self.write_entry(Some(&child.identity)).await {
            warn!(instance = %self.id(), %error, "agent's process could not be written down");
        }
        let ProcessIdentity { pid, start_time, .. } = child.identity;
        info!(instance = %self.id(), session = %self.request.session, pid, start_time, "agent started");
        self.lock().agent = Some(child.identity.clone());
        Ok(child)
    }

    /// From a started process to the end of its whole tree.
    async fn run(self: &Arc<Self>, child: Child) {
        let Child { identity, stdin, stdout, stderr, mut exit } = child;
        let (stdin, stdout, stderr) = match (stdin, stdout, stderr) {
            (Some(stdin), Some(stdout), Some(stderr)) => (stdin, stdout, stderr),
            _ => unreachable!("an agent is spawned with all three pipes"),
        };
        let mut errors = tokio::spawn(Arc::clone(self).keep_errors(stderr));
        let gone = tokio::select! {
            biased;
            () = self.stopping() => Gone::Stopped,
            gone = self.converse(stdin, stdout, &mut *exit) => gone,
        };
        if let Gone::ByItself(mut error) = gone {
            // Its last words may still be on their way; a descendant may hold the pipe for ever.
            let _ = within(&*self.seams.clock, LAST_WORDS_WAIT, &mut errors).await;
            error.stderr = self.stderr_tail();
            self.fail(error);
        }
        self.end_tree(&identity, &mut *exit).await;
        self.remove_entry().await;
        errors.abort();
    }

    /// The conversation with a running agent. Dropped when the instance is being stopped.
    async fn converse(self: &Arc<Self>, stdin: ChildInput, stdout: ChildOutput, exit: &mut dyn Exit) -> Gone {
        let link = match self.open(stdin, stdout, exit).await {
            Ok(link) => link,
            Err(error) => return Gone::ByItself(error),
        };
        let (sender, prompts) = mpsc::channel(PROMPT_QUEUE);
        self.become_ready(&link, sender);
        let mut turns = tokio::spawn(Arc::clone(self).run_turns(link.clone(), prompts));
        let status = tokio::select! {
            biased;
            status = exit.wait() => Some(status),
            () = link.drained() => within(&*self.seams.clock, EXIT_WAIT, exit.wait()).await.ok(),
        };
        // No further prompts; what the agent said before it went is still delivered, its answer to a prompt included.
        self.lock().prompts = None;
        let drained = self.drain(&link).await;
        if !drained || within(&*self.seams.clock, DRAIN_WAIT, &mut turns).await.is_err() {
            turns.abort();
        }
        Gone::ByItself(self.exited(status))
    }

    async fn open(
        self: &Arc<Self>,
        stdin: ChildInput,
        stdout: ChildOutput,
        exit: &mut dyn Exit,
    ) -> Result<AgentLink, AgentError> {
        let setup = AgentSetup {
            directory: self.request.directory.clone(),
            mode: self.request.mode.clone(),
            resume: self.request.resume.clone(),
            step_limit: STEP_LIMIT,
        };
        let observer = Arc::new(Observer(Arc::clone(self)));
        let clock = Arc::clone(&self.seams.clock);
        let mut opening = pin!(agent_protocol::open(stdin, stdout, setup, observer, clock));
        let opened = tokio::select! {
            biased;
            opened = &mut opening => opened,
            // What it wrote before it exited may still say why.
            status = exit.wait() => match within(&*self.seams.clock, DRAIN_WAIT, &mut opening).await {
                Ok(opened) => opened,
                Err(_) => return Err(self.exited(Some(status))),
            },
        };
        match opened {
            Ok(link) => Ok(link),
            Err(failed) => Err(self.not_opened(failed, exit).await),
        }
    }

    fn become_ready(&self, link: &AgentLink, prompts: mpsc::Sender<QueuedPrompt>) {
        let mut state = self.lock();
        if state.stage != InstanceState::Starting {
            return;
        }
        state.stage = InstanceState::Ready;
        state.provider_session = Some(link.provider_session().clone());
        state.prompts = Some(prompts);
        info!(
            instance = %self.id(), session = %self.request.session, provider_session = %link.provider_session(),
            "agent ready"
        );
    }

    /// The turns, one after another, until no more prompts come or the conversation ends.
    async fn run_turns(self: Arc<Self>, link: AgentLink, mut prompts: mpsc::Receiver<QueuedPrompt>) {
        let turns = async {
            while let Some(prompt) = prompts.recv().await {
                if !self.run_turn(&link, prompt).await {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = self.stopping() => {}
            () = turns => {}
        }
    }

    /// One turn. False if the conversation ended before it did: then whoever learns why ends it.
    async fn run_turn(&self, link: &AgentLink, prompt: QueuedPrompt) -> bool {
        let turn = prompt.turn;
        tokio::select! {
            biased;
            () = self.unwanted(turn) => {
                // Cancelled before the agent heard of it.
                self.end_turn(turn, TurnEnd::Cancelled);
                return true;
            }
            _ = prompt.started => {}
        }
        let mut answer = pin!(link.prompt(prompt.text));
        let end = tokio::select! {
            biased;
            end = &mut answer => end,
            () = self.unwanted(turn) => {
                link.cancel();
                match within(&*self.seams.clock, CANCEL_WAIT, &mut answer).await {
                    Ok(end) => end,
                    Err(_) => {
                        debug!(instance = %self.id(), %turn, "agent did not answer the cancel");
                        self.end_turn(turn, TurnEnd::Cancelled);
                        return true;
                    }
                }
            }
        };
        match end {
            PromptEnd::Ended { stop_reason } => self.end_turn(turn, TurnEnd::Completed { stop_reason }),
            PromptEnd::Failed { error } => self.end_turn(turn, TurnEnd::Failed { error }),
            PromptEnd::Closed => return false,
        }
        true
    }

    /// Waits until everything that the agent wrote was told. While the backlog is full the agent's last words wait in
    /// its pipe, and this with them: they are kept or discarded with the instance, never lost. Otherwise the wait is
    /// bounded, since a descendant may hold the pipe; false if the bound passed.
    async fn drain(&self, link: &AgentLink) -> bool {
        while within(&*self.seams.clock, DRAIN_WAIT, link.drained()).await.is_err() {
            if self.rooms.available_permits() > 0 {
                debug!(instance = %self.id(), "agent output is held open after its exit");
                return false;
            }
        }
        true
    }

    /// Gives the server's own events their places, as soon as there is room for each.
    async fn place_own_events(self: Arc<Self>) {
        loop {
            let queued = self.own_events.notified();
            if self.lock().own_events.is_empty() {
                if self.rooms.is_closed() {
                    return;
                }
                queued.await;
                continue;
            }
            let Ok(permit) = Arc::clone(&self.rooms).acquire_owned().await else { return };
            let mut state = self.lock();
            let own = state.own_events.pop_front().expect("only this task takes events out");
            self.retain(&mut state, own.kind, own.turn, own.payload, Room(permit));
            if let Some(retained) = own.retained {
                let _ = retained.send(());
            }
        }
    }

    /// Reads the agent's standard error to its end and keeps the last of it.
    async fn keep_errors(self: Arc<Self>, mut stderr: ChildOutput) {
        let mut chunk = vec![0; 4096];
        while let Ok(length) = stderr.read(&mut chunk).await {
            if length == 0 {
                return;
            }
            let mut state = self.lock();
            state.stderr.extend(&chunk[..length]);
            let excess = state.stderr.len().saturating_sub(STDERR_BYTES);
            state.stderr.drain(..excess);
        }
    }

    /// Ends whatever is left of the agent's tree, and goes on until nothing is.
    async fn end_tree(&self, leader: &ProcessIdentity, exit: &mut dyn Exit) {
        loop {
            match stop_tree(&self.seams, leader, exit, &self.mark).await {
                TreeStopped::Gone => return,
                TreeStopped::Remains(left) => {
                    let left = left.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                    error!(
                        instance = %self.id(), session = %self.request.session, %left,
                        "agent could not be stopped within its budget, trying on"
                    );
                }
            }
        }
    }

    /// Names what is thrown away with the instance (S-001.10).
    fn discard(&self) {
        let state = self.lock();
        let retained = state.backlog.retained();
        if retained.events == 0 && state.own_events.is_empty() {
            return;
        }
        info!(
            instance = %self.id(), session = %self.request.session, events = retained.events, bytes = retained.bytes,
            from = state.backlog.acknowledged().0 + 1, to = state.backlog.last().0,
            without_place = state.own_events.len(), "events discarded"
        );
    }

    fn exited(&self, status: Option<std::io::Result<ExitStatus>>) -> AgentError {
        let (step, message) = match status {
            Some(Ok(status)) => ("agent_exited", format!("the agent ended with {status}")),
            Some(Err(error)) => ("agent_exited", format!("the agent ended; how is not known: {error}")),
            None => ("agent_closed_output", "the agent closed its standard output and stayed".to_owned()),
        };
        info!(instance = %self.id(), session = %self.request.session, how = %message, "agent exited");
        AgentError { step: step.into(), message, stderr: None }
    }

    async fn not_opened(&self, failed: OpenFailed, exit: &mut dyn Exit) -> AgentError {
        let mut message = failed.to_string();
        if let Ok(Ok(status)) = within(&*self.seams.clock, LAST_WORDS_WAIT, exit.wait()).await {
            info!(instance = %self.id(), session = %self.request.session, how = %status, "agent exited");
            message = format!("{message}; the agent ended with {status}");
        }
        let state = self.lock();
        if state.noise_lines > 0 {
            let (lines, last) = (state.noise_lines, &state.last_noise);
            message =
                format!("{message}; it wrote {lines} lines that are not of its protocol, the last: {last:?}");
        }
        AgentError { step: failed.step.into(), message, stderr: None }
    }

    fn stderr_tail(&self) -> Option<String> {
        let state = self.lock();
        let tail: Vec<u8> = state.stderr.iter().copied().collect();
        (!tail.is_empty()).then(|| String::from_utf8_lossy(&tail).into_owned())
    }

    /// Resolves once the instance is being stopped.
    pub(super) async fn stopping(&self) {
        let mut orders = self.orders.subscribe();
        orders.wait_for(|orders| orders.stopping).await.expect("the sender lives in `self`");
    }

    /// Resolves once nobody wants the turn's answer any more: its cancel was asked for, or it has ended.
    async fn unwanted(&self, turn: TurnId) {
        let mut orders = self.orders.subscribe();
        while self.lock().turns.is_wanted(turn) {
            orders.changed().await.expect("the sender lives in `self`");
        }
    }
}

/// One step of opening the conversation: agents were seen to take 14 s for a healthy start, so a minute is generous,
/// and a step that hangs for ever ends with a name.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// How long an agent may take to answer a cancel; a user who cancelled twice as long ago has given up on it.
const CANCEL_WAIT: Duration = Duration::from_secs(10);

/// How long output may still come after the exit. What the pipe holds is read in milliseconds; only a descendant
/// that keeps it open makes this pass.
const DRAIN_WAIT: Duration = Duration::from_secs(2);

/// How long an agent that closed its output may take to exit before it is ended.
const EXIT_WAIT: Duration = Duration::from_secs(3);

/// How long the end of standard error, or the exit after a broken opening, is waited for to be told along.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(300);

/// How much of standard error is kept: a stack trace.
const STDERR_BYTES: usize = 8 * 1024;
