//! A prompt: a durable turn first, then its delivery, under a key that makes every repetition one turn.

use std::sync::Arc;
use std::time::Duration;

use seam::within;
use tokio::sync::oneshot;
use tracing::{info, warn};
use wire::{OpenTurn, PromptKey, PromptRequest, RefusalCode as ServerCode, SessionId};

use crate::api::{PromptInput, RefusalCode, Refused, SessionState, TurnView};
use crate::backend::{Backend, chain, raised};
use crate::recovery_guard::Execution;
use crate::store::Begun;
use crate::tending::report_turns;

/// Begins the turn. Answers once the control server accepted it, refused it, or was silent for a while; the turn
/// is durable in any case, and is delivered later if it can be.
pub(crate) async fn prompt(
    backend: &Arc<Backend>,
    session: &SessionId,
    input: PromptInput,
) -> Result<TurnView, Refused> {
    let found = backend.executions().execution(session);
    let execution = match found {
        Ok(execution) => execution,
        Err(refused) if refused.code == RefusalCode::NoAgent => {
            super::view(backend, session).await?;
            return Err(refused);
        }
        Err(refused) => return Err(refused),
    };
    let key = match input.key {
        Some(key) if is_key(key.as_str()) => key,
        Some(_) => {
            let message = "a prompt's key is 1 to 64 letters, digits and hyphens";
            return Err(Refused::for_good(RefusalCode::BadRequest, message));
        }
        None => PromptKey::new(backend.fresh_id("t")),
    };
    match backend.store.begin_turn(session, &key, input.text.clone(), backend.wall_ms()).await? {
        Begun::New => info!(%session, turn = %key, "turn begun"),
        Begun::Same(view) => return Ok(view),
        Begun::TurnOpen(open) => {
            let message = format!("turn {open} of session {session} has not ended");
            return Err(Refused::for_now(RefusalCode::TurnOpen, message));
        }
        Begun::Conflict => {
            let message = format!("the key {key} belongs to a turn of another session");
            return Err(Refused::for_good(RefusalCode::TurnConflict, message));
        }
        Begun::NotWaiting(state) => return Err(not_waiting(session, state)),
    }
    let (settled, first_answer) = oneshot::channel();
    let request = PromptRequest { key: key.clone(), text: input.text };
    tokio::spawn(deliver(Arc::clone(backend), session.clone(), execution, request, settled));
    // Whether it was settled or is still under way: the store says.
    let _settled_or_not = within(&*backend.seams.clock, ANSWER_LIMIT, first_answer).await;
    match backend.store.turn(&key).await? {
        Some(view) => Ok(view),
        None => Err(Refused::for_now(RefusalCode::Store, format!("turn {key} is not in the store"))),
    }
}

fn not_waiting(session: &SessionId, state: SessionState) -> Refused {
    match state {
        SessionState::Created | SessionState::Starting => {
            Refused::for_now(RefusalCode::Starting, format!("the agent of session {session} is starting"))
        }
        _ => Refused::for_good(
            RefusalCode::NoAgent,
            format!("session {session} is {state} and takes no prompt"),
        ),
    }
}

/// Sends the prompt until it is answered. A turn whose delivery we never learned of stays pending, and the next
/// backend asks the control server about it; it is never sent again by recovery.
async fn deliver(
    backend: Arc<Backend>,
    session: SessionId,
    execution: Execution,
    request: PromptRequest,
    settled: oneshot::Sender<()>,
) {
    tokio::select! {
        biased;
        () = raised(execution.ended.subscribe()) => {}
        () = backend.closed() => {}
        () = send(&backend, &session, &execution, &request) => {}
    }
    // Nobody may wait for it any more.
    let _waiting = settled.send(());
}

async fn send(backend: &Arc<Backend>, session: &SessionId, execution: &Execution, request: &PromptRequest) {
    let key = &request.key;
    let mut pause = FIRST_PAUSE;
    loop {
        let Ok(server) = backend.server() else { return };
        match server.client.prompt(&execution.instance, request).await {
            Ok(accepted) => {
                info!(%session, turn = %key, control_turn = %accepted.turn, "prompt accepted");
                let open = OpenTurn { turn: accepted.turn, key: key.clone() };
                if let Err(failed) = backend.store.turn_accepted(&server.identity, open).await {
                    // The turn's first event says the same once more.
                    warn!(%session, turn = %key, error = %chain(&failed), "acceptance could not be stored");
                }
                return;
            }
            Err(failed) if failed.may_pass() || is_passing(failed.refusal()) => {
                warn!(%session, turn = %key, error = %chain(&failed), "prompt is sent again");
            }
            // Whoever follows the execution drops it (O-002.3).
            Err(failed) if failed.is_unauthorized() || failed.is_disproved() => {
                backend.server_doubted.notify_one();
                return;
            }
            Err(failed) => return not_delivered(backend, session, key, chain(&failed)).await,
        }
        backend.seams.clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn not_delivered(backend: &Backend, session: &SessionId, key: &PromptKey, reason: String) {
    warn!(%session, turn = %key, reason, "prompt refused");
    match backend.store.turn_not_delivered(session, key, reason, backend.wall_ms()).await {
        Ok(applied) => report_turns(session, applied.as_slice(), "prompt"),
        Err(failed) => warn!(%session, turn = %key, error = %chain(&failed), "refusal could not be stored"),
    }
}

/// Outcomes of earlier turns are being acknowledged at this very moment.
fn is_passing(code: Option<ServerCode>) -> bool {
    code == Some(ServerCode::OutcomesUnacknowledged)
}

fn is_key(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// What a user waits for at most before being told that the turn is pending.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
