//! One supervised agent execution: what can be asked of it at any moment.
//!
//! ```text
//!   starting ---> ready ---> ended (by itself; what it said stays)
//!       |           |          |
//!       +-----------+----------+---> stopping ---> gone (not in the table any more)
//! ```
//!
//! Everything here is a short step under one lock and never waits. What takes time (the agent's process, its
//! conversation, waiting for room) is in [`supervision`]; what the agent says comes in through [`observer`]. Events
//! that the server itself makes wait for room in a queue of their own, in the order in which they happened, so that
//! no caller and no producer ever waits while holding the lock.

mod entry;
mod observer;
mod supervision;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use seam::{Monotonic, ProcessIdentity, Seams};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tracing::{debug, info, trace, warn};
use wire::{
    AgentError, CreateInstance, InstanceId, InstanceState, InstanceStatus, OpenTurn, PermissionEnded,
    PermissionId, ProcessRef, PromptRequest, ProviderSessionId, Seq, ServerIdentity, TurnEnd, TurnId,
    TurnStatus, kind,
};

use crate::agent_protocol::Room;
use crate::event_backlog::{AheadOfProduction, Batch, EventBacklog, Flow};
use crate::idle::{Idleness, Quiet};
use crate::permission::{AnswerRefused, PermissionTable};
use crate::turn_outcome::{Accepted, Cancel, PromptRefused, TurnLedger};

/// One instance. Shared by the routes, its streams and its supervision.
pub(crate) struct Instance {
    request: CreateInstance,
    /// The launch that it belongs to.
    server: ServerIdentity,
    /// The value of the variable that marks its processes.
    mark: String,
    /// Where what runs of it is written down.
    entries: PathBuf,
    event_limit: usize,
    seams: Seams,
    numbers: Arc<Numbers>,
    /// One permit per event that may be kept. Closed by a stop, which releases everybody who waits (S-001.10).
    rooms: Arc<Semaphore>,
    state: Mutex<State>,
    /// Something is in `State::own_events`, or the instance stops.
    own_events: Notify,
    /// For event streams: something to send, a newer stream, a stop.
    news: watch::Sender<News>,
    /// For supervision: a cancel, an end, a stop.
    orders: watch::Sender<Orders>,
}

/// Numbers that are unique over all instances and the server's whole lifetime.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    turns: AtomicU64,
    permissions: AtomicU64,
}

struct State {
    stage: InstanceState,
    agent: Option<ProcessIdentity>,
    provider_session: Option<ProviderSessionId>,
    failure: Option<String>,
    backlog: EventBacklog,
    turns: TurnLedger,
    permissions: PermissionTable<oneshot::Sender<Option<String>>>,
    /// Waiting for room. Bounded by what makes them: two per turn and [`PROMPT_QUEUE`] turns, one per permission
    /// request (which had room itself), one per failure.
    own_events: VecDeque<OwnEvent>,
    prompts: Option<mpsc::Sender<QueuedPrompt>>,
    /// The newest event stream's number; streams with a lower one are over.
    stream: u64,
    attached: bool,
    quiet: Quiet,
    stderr: VecDeque<u8>,
    noise_lines: u64,
    last_noise: String,
}

/// An event that the server made and that has no place yet.
struct OwnEvent {
    kind: &'static str,
    turn: Option<TurnId>,
    payload: Box<RawValue>,
    /// Told once it has its place.
    retained: Option<oneshot::Sender<()>>,
}

/// An accepted prompt on its way to the agent.
struct QueuedPrompt {
    turn: TurnId,
    text: String,
    /// Resolves once the turn's start has its place among the events.
    started: oneshot::Receiver<()>,
}

/// What event streams watch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct News {
    changes: u64,
    stream: u64,
    /// Streams up to this number were opened with a superseded credential.
    superseded: u64,
    stopping: bool,
}

/// What supervision watches.
#[derive(Clone, Copy, Debug, Default)]
struct Orders {
    changes: u64,
    stopping: bool,
}

/// An event stream that came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamNumber(u64);

/// Why an event stream is over for the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamOver {
    /// A newer stream took over.
    Replaced,
    /// Another backend has adopted the server (O-002.2).
    Superseded,
    /// The instance is being stopped.
    Stopping,
}

/// Why a prompt was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAccepted {
    /// The agent takes no prompts.
    #[error("the instance takes no prompts: {0}")]
    NotReady(String),
    /// The turns say no.
    #[error(transparent)]
    Turn(#[from] PromptRefused),
    /// Turns ended faster than their events were acknowledged.
    #[error("{PROMPT_QUEUE} turns wait until their events are acknowledged")]
    EventsUnacknowledged,
}

impl Instance {
    /// A new instance, not yet started: [`Instance::supervise`] does that.
    pub(crate) fn new(
        request: CreateInstance,
        server: &ServerIdentity,
        event_limit: usize,
        entries: PathBuf,
        seams: Seams,
        numbers: Arc<Numbers>,
    ) -> Self {
        let quiet = Quiet::new(seams.clock.monotonic());
        let backlog = EventBacklog::new(request.instance.clone(), event_limit);
        Self {
            mark: format!("{server}/{}", request.instance),
            server: server.clone(),
            entries,
            request,
            event_limit,
            seams,
            numbers,
            rooms: Arc::new(Semaphore::new(event_limit)),
            state: Mutex::new(State {
                stage: InstanceState::Starting,
                agent: None,
                provider_session: None,
                failure: None,
                backlog,
                turns: TurnLedger::default(),
                permissions: PermissionTable::new(),
                own_events: VecDeque::new(),
                prompts: None,
                stream: 0,
                attached: false,
                quiet,
                stderr: VecDeque::new(),
                noise_lines: 0,
                last_noise: String::new(),
            }),
            own_events: Notify::new(),
            news: watch::Sender::default(),
            orders: watch::Sender::default(),
        }
    }

    /// Its id.
    pub(crate) fn id(&self) -> &InstanceId {
        &self.request.instance
    }

    /// Everything about it at this moment.
    pub(crate) fn status(&self) -> InstanceStatus {
        let state = self.lock();
        InstanceStatus {
            instance: self.request.instance.clone(),
            session: self.request.session.clone(),
            state: state.stage,
            agent: state.agent.as_ref().map(|agent| ProcessRef {
                pid: agent.pid,
                start_time: agent.start_time,
                boot_id: agent.boot_id.clone(),
            }),
            provider_session: state.provider_session.clone(),
            source_roots: self.request.source_roots.clone(),
            // With those that still wait for room: they are produced, and will have the next places.
            last_seq: Seq(state.backlog.last().0 + state.own_events.len() as u64),
            acknowledged: state.backlog.acknowledged(),
            retained: state.backlog.retained(),
            paused_since_ms: state.backlog.paused_since().map(|since| since.unix_millis),
            attached: state.attached,
            turn: state.turns.status(),
            permissions: state.permissions.outstanding(),
            failure: state.failure.clone(),
        }
    }

    /// The turn status. Reading discards nothing (S-004.6).
    pub(crate) fn turn(&self) -> TurnStatus {
        self.lock().turns.status()
    }

    /// Accepts a prompt and opens its turn. The agent gets it once the turn's start has its place among the events.
    pub(crate) fn prompt(&self, request: PromptRequest) -> Result<TurnId, NotAccepted> {
        let mut state = self.lock();
        if let Some(turn) = state.turns.turn_of(&request.key) {
            debug!(instance = %self.id(), session = %self.request.session, %turn, "prompt repeated");
            return Ok(turn);
        }
        let prompts = match (&state.prompts, state.stage) {
            (Some(prompts), InstanceState::Ready) => prompts.clone(),
            _ => return Err(NotAccepted::NotReady(state.not_ready())),
        };
        let slot = prompts.try_reserve().map_err(|error| match error {
            TrySendError::Full(()) => NotAccepted::EventsUnacknowledged,
            TrySendError::Closed(()) => NotAccepted::NotReady("its agent is ending".into()),
        })?;
        let key = request.key.clone();
        let accepted = state.turns.accept(request.key, || self.numbers.next_turn())?;
        let Accepted::Opened(turn) = accepted else { unreachable!("a known key was answered above") };
        info!(instance = %self.id(), session = %self.request.session, %turn, key = %key, "turn opened");
        let (retained, started) = oneshot::channel();
        self.queue_own(&mut state, kind::TURN_STARTED, Some(turn), &OpenTurn { turn, key }, Some(retained));
        slot.send(QueuedPrompt { turn, text: request.text, started });
        Ok(turn)
    }

    /// Asks for the open turn's end; from now on it ends as cancelled. Outstanding permission requests end first, as
    /// the protocol demands.
    pub(crate) fn cancel(&self) {
        let mut state = self.lock();
        let Cancel::Asked(turn) = state.turns.cancel() else { return };
        info!(instance = %self.id(), session = %self.request.session, %turn, "turn cancel asked");
        self.cancel_permissions(&mut state, "turn cancelled");
        self.order(|_| {});
    }

    /// Takes the answer to a permission request and passes it on to the agent.
    pub(crate) fn answer_permission(
        &self,
        permission: &PermissionId,
        option: Option<String>,
    ) -> Result<(), AnswerRefused> {
        let mut state = self.lock();
        let ended = state.permissions.answer(permission, option.as_deref())?;
        self.end_permission(&mut state, ended.permission, ended.answer, option, "answered");
        Ok(())
    }

    /// Lets a kept outcome go. An unknown turn is accepted and changes nothing (S-004.6).
    pub(crate) fn acknowledge_turn(&self, turn: TurnId) {
        if self.lock().turns.acknowledge(turn) {
            info!(instance = %self.id(), session = %self.request.session, %turn, "turn outcome acknowledged");
        }
    }

    /// An event stream is up: it replaces an earlier one, ends a pause, and starts permission waits afresh.
    pub(crate) fn attach(&self) -> StreamNumber {
        let mut state = self.lock();
        let replaced = state.attached;
        state.stream += 1;
        state.attached = true;
        let stream = state.stream;
        let retained = state.backlog.retained();
        let message = if replaced { "stream replaced" } else { "stream attached" };
        info!(
            instance = %self.id(), session = %self.request.session, stream,
            retained_events = retained.events, retained_bytes = retained.bytes, "{message}"
        );
        let flow = state.backlog.attach(self.seams.clock.wall());
        self.log_flow(&state, flow);
        state.permissions.attach(self.seams.clock.monotonic());
        self.publish(|news| news.stream = stream);
        StreamNumber(stream)
    }

    /// That event stream is gone. Changes nothing if a newer one is up.
    pub(crate) fn detach(&self, stream: StreamNumber, reason: &str) {
        self.detach_in(&mut self.lock(), stream, reason);
    }

    /// The credential of that event stream was superseded: it is over, and what its reader still acknowledges is
    /// ignored (O-002.2).
    pub(crate) fn supersede(&self, stream: StreamNumber) {
        let mut state = self.lock();
        if state.stream != stream.0 {
            return;
        }
        self.detach_in(&mut state, stream, "superseded");
        // No stream has this number: an acknowledgement is judged by it alone.
        state.stream += 1;
        let none = state.stream;
        self.publish(|news| {
            news.stream = none;
            news.superseded = stream.0;
        });
    }

    fn detach_in(&self, state: &mut State, stream: StreamNumber, reason: &str) {
        if !state.attached || state.stream != stream.0 {
            return;
        }
        state.attached = false;
        state.quiet.touch(self.seams.clock.monotonic());
        info!(
            instance = %self.id(), session = %self.request.session, stream = stream.0, reason, "stream detached"
        );
        let flow = state.backlog.detach(self.seams.clock.wall());
        self.log_flow(state, flow);
        state.permissions.detach();
    }

    /// The next events after a place, at most `events` and about `bytes`.
    pub(crate) fn events_after(
        &self,
        seq: Seq,
        events: usize,
        bytes: usize,
    ) -> Result<Batch, AheadOfProduction> {
        self.lock().backlog.after(seq, events, bytes)
    }

    /// The reader of that stream stored everything up to `seq`. Ignored from a stream that is over.
    pub(crate) fn acknowledge(&self, stream: StreamNumber, seq: Seq) -> Result<(), AheadOfProduction> {
        let mut state = self.lock();
        if state.stream != stream.0 {
            return Ok(());
        }
        let (freed, flow) = state.backlog.acknowledge(self.seams.clock.wall(), seq)?;
        if freed > 0 {
            state.quiet.touch(self.seams.clock.monotonic());
            let retained = state.backlog.retained();
            trace!(
                instance = %self.id(), session = %self.request.session, seq = seq.0, freed,
                retained_events = retained.events, retained_bytes = retained.bytes, "event acknowledged"
            );
        }
        self.log_flow(&state, flow);
        Ok(())
    }

    /// Ends the permission requests whose wait is over. Gives when to look next.
    pub(crate) fn expire_permissions(&self) -> Option<Monotonic> {
        let mut state = self.lock();
        for ended in state.permissions.expire(self.seams.clock.monotonic()) {
            self.end_permission(&mut state, ended.permission, ended.answer, None, "expired");
        }
        state.permissions.next_deadline()
    }

    /// What event streams watch.
    pub(crate) fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// Resolves once that stream is over.
    pub(crate) async fn stream_over(&self, stream: StreamNumber) -> StreamOver {
        let mut news = self.news();
        let news = news
            .wait_for(|news| news.stopping || news.stream != stream.0)
            .await
            .expect("the sender lives in `self`");
        if news.stopping {
            StreamOver::Stopping
        } else if stream.0 <= news.superseded {
            StreamOver::Superseded
        } else {
            StreamOver::Replaced
        }
    }

    /// Somebody asks for something: it is not idle.
    pub(crate) fn touch(&self) {
        self.lock().quiet.touch(self.seams.clock.monotonic());
    }

    /// Stops it once it was idle for so long; ends when it stops.
    pub(crate) async fn reap_when_idle(self: Arc<Self>, timeout: Duration) {
        loop {
            let look_at = {
                let mut state = self.lock();
                let now = self.seams.clock.monotonic();
                match state.quiet.judge(now, state.is_busy(), timeout) {
                    Idleness::NotBefore(look_at) => look_at,
                    Idleness::Idle => return self.stop_in(&mut state, "idle"),
                }
            };
            tokio::select! {
                biased;
                () = self.stopping() => return,
                () = self.seams.clock.sleep_until(look_at) => {}
            }
        }
    }

    /// Begins the stop, without waiting for it: everybody who waits for room gives up, the open turn and the
    /// permission requests end. Repeated, it changes nothing.
    pub(crate) fn stop(&self, reason: &str) {
        self.stop_in(&mut self.lock(), reason);
    }

    fn stop_in(&self, state: &mut State, reason: &str) {
        if state.stage == InstanceState::Stopping {
            return;
        }
        state.stage = InstanceState::Stopping;
        info!(instance = %self.id(), session = %self.request.session, reason, "instance stopping");
        state.prompts = None;
        self.cancel_permissions(state, "instance stopped");
        if let Some(turn) = state.turns.open() {
            self.end_turn_in(state, turn, TurnEnd::Failed { error: "the instance was stopped".into() });
        }
        self.rooms.close();
        self.own_events.notify_one();
        self.publish(|news| news.stopping = true);
        self.order(|orders| orders.stopping = true);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no step panics while it holds an instance's state")
    }

    fn publish(&self, change: impl FnOnce(&mut News)) {
        self.news.send_modify(|news| {
            news.changes += 1;
            change(news);
        });
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        self.orders.send_modify(|orders| {
            orders.changes += 1;
            change(orders);
        });
    }

    /// Keeps an event that has its room.
    fn retain(
        &self,
        state: &mut State,
        kind: &str,
        turn: Option<TurnId>,
        payload: Box<RawValue>,
        room: Room,
    ) {
        let bytes = payload.get().len();
        state.quiet.touch(self.seams.clock.monotonic());
        let (seq, flow) = state.backlog.retain(self.seams.clock.wall(), kind, turn, payload, room);
        let retained = state.backlog.retained();
        trace!(
            instance = %self.id(), session = %self.request.session, seq = seq.0, kind,
            turn = turn.map_or(0, |turn| turn.0), bytes,
            retained_events = retained.events, retained_bytes = retained.bytes, limit = self.event_limit,
            "event retained"
        );
        self.log_flow(state, flow);
        self.publish(|_| {});
    }

    /// Queues an event of the server's own until there is room.
    fn queue_own(
        &self,
        state: &mut State,
        kind: &'static str,
        turn: Option<TurnId>,
        payload: &impl Serialize,
        retained: Option<oneshot::Sender<()>>,
    ) {
        let payload = to_raw_value(payload).expect("wire values always serialize");
        state.own_events.push_back(OwnEvent { kind, turn, payload, retained });
        self.own_events.notify_one();
    }

    /// Ends a turn, keeps its outcome at once, and queues the event. A turn that is not open is left alone.
    fn end_turn(&self, turn: TurnId, end: TurnEnd) {
        let mut state = self.lock();
        if state.turns.open() == Some(turn) {
            self.cancel_permissions(&mut state, "turn ended");
            self.end_turn_in(&mut state, turn, end);
        }
    }

    fn end_turn_in(&self, state: &mut State, turn: TurnId, end: TurnEnd) {
        let Some(outcome) = state.turns.end(self.seams.clock.wall(), turn, end) else { return };
        let (end, detail) = match &outcome.end {
            TurnEnd::Completed { stop_reason } => ("completed", stop_reason.as_str()),
            TurnEnd::Cancelled => ("cancelled", ""),
            // Not the error: it may hold what the agent printed.
            TurnEnd::Failed { .. } => ("failed", ""),
        };
        info!(
            instance = %self.id(), session = %self.request.session, %turn, key = %outcome.key, end, detail, "turn ended"
        );
        self.queue_own(state, kind::TURN_ENDED, Some(turn), &outcome, None);
        self.order(|_| {});
    }

    fn cancel_permissions(&self, state: &mut State, reason: &str) {
        for ended in state.permissions.cancel_all() {
            self.end_permission(state, ended.permission, ended.answer, None, reason);
        }
    }

    fn end_permission(
        &self,
        state: &mut State,
        permission: PermissionId,
        answer: oneshot::Sender<Option<String>>,
        option: Option<String>,
        reason: &str,
    ) {
        info!(
            instance = %self.id(), session = %self.request.session, %permission,
            option = option.as_deref().unwrap_or_default(), reason, "permission ended"
        );
        // The agent may be gone; the event says what was decided either way.
        let _ = answer.send(option.clone());
        let turn = state.turns.open();
        self.queue_own(state, kind::PERMISSION_ENDED, turn, &PermissionEnded { permission, option }, None);
    }

    /// The agent is gone or never came: one error event, then the open turn's end.
    fn fail(&self, error: AgentError) {
        let mut state = self.lock();
        if state.stage == InstanceState::Stopping {
            return;
        }
        state.stage = InstanceState::Ended;
        state.prompts = None;
        // Not the message: it may hold what the agent printed, and that may hold a secret.
        warn!(instance = %self.id(), session = %self.request.session, step = %error.step, "instance ended");
        self.cancel_permissions(&mut state, "agent gone");
        let turn = state.turns.open();
        let message = error.message.clone();
        self.queue_own(&mut state, kind::ERROR, turn, &error, None);
        if let Some(turn) = turn {
            self.end_turn_in(&mut state, turn, TurnEnd::Failed { error: message.clone() });
        }
        state.failure = Some(message);
        self.order(|_| {});
    }

    fn log_flow(&self, state: &State, flow: Flow) {
        let retained = state.backlog.retained();
        let message = match flow {
            // Ordinary back-pressure comes and goes with every acknowledgement of a slow reader.
            Flow::Unchanged | Flow::HeldBack | Flow::Released => {
                if flow != Flow::Unchanged {
                    trace!(instance = %self.id(), ?flow, retained_events = retained.events, "reader's pace");
                }
                return;
            }
            Flow::Paused => "production paused",
            Flow::Resumed => "production resumed",
        };
        info!(
            instance = %self.id(), session = %self.request.session,
            retained_events = retained.events, retained_bytes = retained.bytes, limit = self.event_limit, "{message}"
        );
    }
}

impl Numbers {
    fn next_turn(&self) -> TurnId {
        TurnId(self.turns.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn next_permission(&self) -> u64 {
        self.permissions.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl State {
    /// Whether it has a stream, an open turn, a pending permission, a start under way, or something unacknowledged.
    fn is_busy(&self) -> bool {
        self.attached
            || self.stage == InstanceState::Starting
            || self.turns.open().is_some()
            || !self.permissions.outstanding().is_empty()
            || self.backlog.retained().events > 0
            || !self.own_events.is_empty()
            || !self.turns.status().kept.is_empty()
    }

    fn not_ready(&self) -> String {
        match (self.stage, &self.failure) {
            (InstanceState::Starting, _) => "its agent is being started".into(),
            (InstanceState::Stopping, _) => "it is being stopped".into(),
            (_, Some(failure)) => failure.clone(),
            (_, None) => "its agent is ending".into(),
        }
    }
}

/// How many accepted prompts may wait behind an event that has no room yet. One is usual; more need turns that were
/// cancelled while nobody acknowledged events.
const PROMPT_QUEUE: usize = 8;
