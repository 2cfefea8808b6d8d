//! Waiting until an instance's agent takes prompts.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info};
use wire::{InstanceState, InstanceStatus, SessionId};

use crate::api::SessionState;
use crate::backend::{Backend, chain, raised};
use crate::recovery_guard::Execution;
use crate::store::StoreFailed;

/// Asks until the agent is ready and makes that durable. An instance that ends instead is handled by whoever
/// follows its events. The bound of each step is the control server's.
pub(super) async fn await_ready(backend: Arc<Backend>, session: SessionId, execution: Execution) {
    tokio::select! {
        biased;
        () = raised(execution.ended.subscribe()) => {}
        () = backend.closed() => {}
        () = ask(&backend, &session, &execution) => {}
    }
}

async fn ask(backend: &Arc<Backend>, session: &SessionId, execution: &Execution) {
    let mut pause = FIRST_PAUSE;
    let mut known_agent = false;
    loop {
        let Ok(server) = backend.server() else { return };
        if let Ok(status) = server.client.instance(&execution.instance).await {
            let settled = async {
                if status.agent.is_some() && !std::mem::replace(&mut known_agent, true) {
                    note_agent(backend, session, &server, &status).await?;
                }
                note_state(backend, session, &status).await
            };
            let settled = settled.await;
            let trouble = settled.as_ref().err().map(|failed| chain(failed));
            backend.executions().note_trouble(session, trouble);
            match settled {
                Ok(true) => return,
                Ok(false) => {}
                Err(failed) => {
                    known_agent = false;
                    error!(%session, error = %chain(&failed), "session state could not be stored");
                }
            }
        }
        backend.seams.clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn note_agent(
    backend: &Backend,
    session: &SessionId,
    server: &crate::backend::ServerInUse,
    status: &InstanceStatus,
) -> Result<(), StoreFailed> {
    let (address, at) = (server.address.to_string(), backend.wall_ms());
    let (instance, agent) = (&status.instance, status.agent.clone());
    backend.store.point_execution(session, instance, &server.identity, address, agent, at).await
}

/// Tells whether the start is over, one way or the other.
async fn note_state(
    backend: &Backend,
    session: &SessionId,
    status: &InstanceStatus,
) -> Result<bool, StoreFailed> {
    match status.state {
        InstanceState::Starting => Ok(false),
        InstanceState::Ended | InstanceState::Stopping => Ok(true),
        InstanceState::Ready => {
            let at = backend.wall_ms();
            if let Some(provider) = &status.provider_session
                && backend.store.set_provider_session(session, provider.to_string(), at).await?
            {
                let text = "its agent did not load the earlier conversation: a new one was begun";
                backend.store.note(session, text.to_owned(), at).await?;
            }
            let from = &[SessionState::Starting];
            backend.store.move_session(session, from, SessionState::WaitingForInput, at).await?;
            info!(
                %session,
                instance = %status.instance,
                pid = status.agent.as_ref().map(|agent| agent.pid),
                "session ready"
            );
            Ok(true)
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// An agent takes from 50 ms to 14 s to come up; a user does not notice this much more.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
