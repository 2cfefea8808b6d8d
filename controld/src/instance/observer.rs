//! What the agent says, as it comes in.

use std::sync::Arc;

use seam::BoxFuture;
use serde_json::value::{RawValue, to_raw_value};
use tracing::{debug, info};
use wire::{AgentError, InstanceState, PermissionAsked, kind};

use super::Instance;
use crate::agent_protocol::{AgentObserver, PermissionQuestion, Room};
use crate::permission::TooManyOutstanding;

/// Tells an instance what its agent says.
pub(super) struct Observer(pub(super) Arc<Instance>);

impl AgentObserver for Observer {
    fn room(&self) -> BoxFuture<'static, Option<Room>> {
        let rooms = Arc::clone(&self.0.rooms);
        Box::pin(async move { rooms.acquire_owned().await.ok().map(Room) })
    }

    fn update(&self, room: Room, update: Box<RawValue>) {
        let mut state = self.0.lock();
        let turn = state.turns.open();
        // An agent that loads a conversation tells all of it once more before it is ready.
        let replays = state.stage == InstanceState::Starting && self.0.request.resume.is_some();
        let kind = if replays { kind::REPLAY } else { kind::UPDATE };
        self.0.retain(&mut state, kind, turn, update, room);
    }

    fn permission_asked(&self, room: Room, question: PermissionQuestion) {
        let instance = &self.0;
        let mut state = instance.lock();
        if state.stage == InstanceState::Stopping {
            return;
        }
        let turn = state.turns.open();
        let options: Vec<_> = question.options.iter().map(|option| option.id.clone()).collect();
        let number = instance.numbers.next_permission();
        let now = instance.seams.clock.monotonic();
        let permission = match state.permissions.ask(now, number, options, question.answer) {
            Ok(permission) => permission,
            Err(TooManyOutstanding(answer)) => {
                drop(answer);
                let error = AgentError {
                    step: "session/request_permission".into(),
                    message: "too many permission requests are open; this one was cancelled".into(),
                    stderr: None,
                };
                let payload = to_raw_value(&error).expect("wire values always serialize");
                instance.retain(&mut state, kind::ERROR, turn, payload, room);
                return;
            }
        };
        info!(instance = %instance.id(), session = %instance.request.session, %permission, "permission asked");
        let asked = PermissionAsked {
            permission: permission.clone(),
            options: question.options,
            tool_call: question.tool_call,
        };
        let payload = to_raw_value(&asked).expect("wire values always serialize");
        instance.retain(&mut state, kind::PERMISSION_ASKED, turn, payload, room);
        // Asked after the cancel: nobody is going to answer it any more.
        if turn.is_some_and(|turn| !state.turns.is_wanted(turn)) {
            instance.cancel_permissions(&mut state, "turn cancelled");
        }
        instance.publish(|_| {});
    }

    fn problem(&self, room: Room, error: AgentError) {
        let mut state = self.0.lock();
        let turn = state.turns.open();
        let payload = to_raw_value(&error).expect("wire values always serialize");
        self.0.retain(&mut state, kind::ERROR, turn, payload, room);
    }

    fn noise(&self, line: &[u8]) {
        let mut state = self.0.lock();
        state.noise_lines += 1;
        state.last_noise = String::from_utf8_lossy(&line[..line.len().min(NOISE_BYTES)]).trim().to_owned();
        if !state.noise_lines.is_power_of_two() {
            // Some agents print all day; the log is not theirs.
            return;
        }
        // Not its text: what an agent prints may hold a secret.
        debug!(instance = %self.0.id(), lines = state.noise_lines, bytes = line.len(), "agent noise skipped");
    }
}

/// How much of a line that is not of the protocol is kept for diagnosis.
const NOISE_BYTES: usize = 256;
