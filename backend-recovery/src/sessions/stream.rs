//! Following one execution: its events into the store, and only then their acknowledgement.
//!
//! ```text
//! attach after the last stored place ── batch ──> one transaction ──> acknowledge ──> outcomes acknowledged
//!    ▲                                                                                   │
//!    └── the stream broke, the server answers or not: again, after a pause <─────────────┘
//! ```
//! Ends when the execution is let go of, its instance is gone, another backend drives, or we go down.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use seam::within;
use tracing::{debug, error, info, warn};
use wire::client::EventStream;
use wire::{Event, InstanceState, RefusalCode, Seq, ServerFrame, SessionId, TurnId};

use crate::api::{SessionState, TurnState};
use crate::backend::{Backend, ServerInUse, chain, raised};
use crate::recovery_guard::Execution;
use crate::stop::stop_and_see_gone;
use crate::tending::report_turns;

/// Follows the execution; outcomes in `acknowledge` are durable already.
pub(super) async fn follow(
    backend: Arc<Backend>,
    session: SessionId,
    execution: Execution,
    acknowledge: Vec<TurnId>,
) {
    let ended = raised(execution.ended.subscribe());
    let unfollowed = raised(execution.unfollowed.subscribe());
    let closed = backend.closed();
    let mut follower = Follower {
        backend: &backend,
        session: &session,
        execution: &execution,
        acknowledge: acknowledge.into_iter().collect(),
        suspect: true,
    };
    tokio::select! {
        biased;
        () = ended => {}
        () = unfollowed => {}
        () = closed => {}
        () = follower.run() => {}
    }
}

struct Follower<'a> {
    backend: &'a Arc<Backend>,
    session: &'a SessionId,
    execution: &'a Execution,
    /// Durable outcomes that the server still keeps.
    acknowledge: BTreeSet<TurnId>,
    /// Whether the agent may have ended: its status is asked for.
    suspect: bool,
}

/// Why one attachment is over.
enum Detached {
    /// To be attached again after a pause.
    Broken(String),
    /// The credential is no longer accepted (O-002.3).
    Superseded,
    /// The server does not know the instance any more.
    Gone,
    /// The agent ended by itself, all it said is stored, and its instance is gone.
    Ended,
}

impl Follower<'_> {
    async fn run(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let Ok(server) = self.backend.server() else { return };
            let begun = self.backend.now();
            let detached = self.attached(&server).await;
            if self.backend.now().since(begun) > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            match detached {
                Detached::Broken(reason) => {
                    let (session, instance) = (self.session, &self.execution.instance);
                    warn!(%session, %instance, reason, "event stream lost");
                    // The server itself may be gone, its place taken, and its agents run on without a supervisor.
                    self.backend.server_doubted.notify_one();
                }
                Detached::Superseded => return self.superseded(),
                Detached::Gone => {
                    if self.gone().await.is_ok() {
                        return;
                    }
                    // Told again at the next attachment, until it can be written.
                }
                Detached::Ended => return,
            }
            self.backend.seams.clock.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn attached(&mut self, server: &ServerInUse) -> Detached {
        match self.attach_and_read(server).await {
            Ok(never) => match never {},
            Err(detached) => detached,
        }
    }

    async fn attach_and_read(&mut self, server: &ServerInUse) -> Result<std::convert::Infallible, Detached> {
        let instance = &self.execution.instance;
        let stored = self.backend.store.last_stored(&server.identity, instance).await;
        let mut last = stored.map_err(|failed| Detached::Broken(chain(&failed)))?;
        let mut stream =
            server.client.events(instance, last).await.map_err(|failed| match failed.refusal() {
                _ if failed.is_unauthorized() => Detached::Superseded,
                Some(RefusalCode::UnknownInstance) => Detached::Gone,
                _ => Detached::Broken(chain(&failed)),
            })?;
        info!(session = %self.session, %instance, after = %last, "event stream attached");
        // What is stored already need not be kept any longer: its acknowledgement may have been lost.
        if last > Seq::ZERO {
            self.say(stream.acknowledge(last).await)?;
        }
        loop {
            self.acknowledge_outcomes(server).await;
            self.look_for_end(server, last).await?;
            let frame = match within(&*self.backend.seams.clock, SILENCE, stream.next()).await {
                Ok(Ok(Some(frame))) => frame,
                Ok(Ok(None)) => return Err(Detached::Broken("the server closed it".to_owned())),
                Ok(Err(broken)) => return Err(Detached::Broken(chain(&broken))),
                Err(_) => return Err(Detached::Broken("it was silent for too long".to_owned())),
            };
            last = self.take(server, &mut stream, frame, last).await?;
        }
    }

    /// One frame; gives the newest stored place.
    async fn take(
        &mut self,
        server: &ServerInUse,
        stream: &mut EventStream,
        frame: ServerFrame,
        last: Seq,
    ) -> Result<Seq, Detached> {
        match frame {
            ServerFrame::Events(events) => {
                let newest = self.store(server, events, last).await?;
                self.say(stream.acknowledge(newest).await)?;
                debug!(session = %self.session, instance = %self.execution.instance, seq = %newest, "events acknowledged");
                Ok(newest)
            }
            ServerFrame::Gap { from, to } => {
                warn!(session = %self.session, %from, %to, "events are no longer kept by the control server");
                let text = format!("events {from} to {to} of the agent are missing: they are no longer kept");
                self.stored(self.backend.store.note(self.session, text, self.backend.wall_ms()).await)?;
                Ok(to.max(last))
            }
            ServerFrame::Heartbeat {} => {
                self.say(stream.heartbeat().await)?;
                Ok(last)
            }
            ServerFrame::Replaced {} => {
                Err(Detached::Broken("another stream of this instance took over".to_owned()))
            }
        }
    }

    /// A batch in one transaction, with everything that follows from it.
    async fn store(&mut self, server: &ServerInUse, events: Vec<Event>, last: Seq) -> Result<Seq, Detached> {
        let (Some(first), Some(newest)) = (events.first(), events.last()) else { return Ok(last) };
        let (first, newest) = (first.seq, newest.seq);
        let in_order = events.iter().zip(first.0..).all(|(event, seq)| event.seq.0 == seq);
        let ours = events.iter().all(|event| event.instance == self.execution.instance);
        if !in_order || !ours || first > last.next() {
            let reason = format!("the server sent {first} to {newest} after {last}, out of order");
            return Err(Detached::Broken(reason));
        }
        let at = self.backend.wall_ms();
        let stored = self.backend.store.append_events(self.session, &server.identity, events, at).await;
        let stored = self.stored(stored)?;
        info!(
            session = %self.session,
            instance = %self.execution.instance,
            first_seq = first.0,
            last_seq = newest.0,
            new = stored.new,
            "events stored"
        );
        report_turns(self.session, &stored.applied, "event");
        self.acknowledge.extend(&stored.acknowledge);
        self.suspect |= stored.errors;
        self.backend.executions().note_permissions(
            self.session,
            self.execution.epoch,
            &stored.asked,
            &stored.answered,
        );
        Ok(newest.max(last))
    }

    /// Outcomes are acknowledged by their id, after they are durable, in an exchange of its own (S-004.6).
    async fn acknowledge_outcomes(&mut self, server: &ServerInUse) {
        for turn in self.acknowledge.clone() {
            match server.client.acknowledge_turn(&self.execution.instance, turn).await {
                Ok(_) => {
                    info!(session = %self.session, control_turn = %turn, "turn outcome acknowledged");
                    self.acknowledge.remove(&turn);
                }
                Err(failed) => {
                    // Kept until it is acknowledged: the next frame tries again.
                    debug!(session = %self.session, error = %chain(&failed), "turn outcome not acknowledged yet");
                    return;
                }
            }
        }
    }

    /// If the agent ended by itself and all it said is stored, its instance is stopped and the session failed.
    async fn look_for_end(&mut self, server: &ServerInUse, last: Seq) -> Result<(), Detached> {
        if !self.suspect {
            return Ok(());
        }
        let Ok(status) = server.client.instance(&self.execution.instance).await else { return Ok(()) };
        match status.state {
            InstanceState::Ended if status.last_seq <= last && self.acknowledge.is_empty() => {}
            InstanceState::Ended | InstanceState::Starting => return Ok(()),
            InstanceState::Ready | InstanceState::Stopping => {
                self.suspect = false;
                return Ok(());
            }
        }
        let failure = status.failure.unwrap_or_else(|| "the agent ended by itself".to_owned());
        let failure = self.with_way_out(failure).await;
        // Not the failure's text: it may hold what the agent printed.
        warn!(session = %self.session, instance = %self.execution.instance, "agent ended by itself");
        let retries = self.backend.config.read_retries;
        stop_and_see_gone(&*self.backend.seams.clock, &server.client, &self.execution.instance, retries)
            .await
            .map_err(|failed| Detached::Broken(chain(&failed)))?;
        self.end(SessionState::Failed, TurnState::Failed, failure).await?;
        Err(Detached::Ended)
    }

    /// An agent that never took a prompt is mostly a wrong command: the text then says where that is written.
    async fn with_way_out(&self, failure: String) -> String {
        match super::view(self.backend, self.session).await {
            Ok(view) if view.state == SessionState::Starting => format!(
                "{failure}; profiles.{}.command in the configuration must name a program that speaks the Agent \
                 Client Protocol on its standard streams",
                view.profile
            ),
            // What cannot be looked up is told as it is.
            Ok(_) | Err(_) => failure,
        }
    }

    async fn gone(&self) -> Result<(), Detached> {
        let reason = "the control server no longer has its agent".to_owned();
        self.end(SessionState::Idle, TurnState::Interrupted, reason).await
    }

    async fn end(&self, to: SessionState, turns: TurnState, reason: String) -> Result<(), Detached> {
        let instance = Some(self.execution.instance.clone());
        let at = self.backend.wall_ms();
        let ended =
            self.backend.store.end_execution(self.session, instance, to, turns, reason.clone(), at).await;
        let ended = self.stored(ended)?;
        info!(session = %self.session, state = %to, reason, "session execution ended");
        report_turns(self.session, &ended, "end");
        self.backend.executions().remove(self.session, self.execution.epoch);
        Ok(())
    }

    fn superseded(&self) {
        warn!(session = %self.session, "superseded by another backend, execution dropped");
        self.backend.executions().remove(self.session, self.execution.epoch);
    }

    fn say(&self, sent: Result<(), wire::client::StreamBroken>) -> Result<(), Detached> {
        sent.map_err(|broken| Detached::Broken(chain(&broken)))
    }

    /// What could not be stored is not acknowledged; it stays with the control server and is asked for again.
    fn stored<T>(&self, stored: Result<T, crate::store::StoreFailed>) -> Result<T, Detached> {
        let trouble = stored.as_ref().err().map(|failed| chain(failed));
        self.backend.executions().note_trouble(self.session, trouble);
        stored.map_err(|failed| {
            error!(session = %self.session, error = %chain(&failed), "events could not be stored");
            Detached::Broken(chain(&failed))
        })
    }
}

/// Several of the server's heartbeats: a stream that is silent for longer is half open.
const SILENCE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
