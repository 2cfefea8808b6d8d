//! Having a control server to work with, for the whole of the backend's life: start one, renew its ownership, let
//! go of it when it is lost, and start again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use seam::within;
use tracing::{error, info, warn};
use wire::client::ControlClient;
use wire::{InstanceId, ServerIdentity, SessionId};

use crate::api::{SessionState, TurnState};
use crate::backend::{Backend, ServerInUse, chain};
use crate::control_server;
use crate::leftovers::{self, Leftover};
use crate::ports;
use crate::renewal::{TenureEnded, renew};
use crate::survivors;

/// Tends until the backend goes down; begins with the server in use, if there is one.
pub(crate) async fn tend(backend: Arc<Backend>) {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Ok(server) = backend.server() {
            pause = FIRST_PAUSE;
            match renew(&backend, &server).await {
                TenureEnded::Closing => return,
                TenureEnded::Superseded => return let_go(&backend, &server),
                TenureEnded::ShuttingDown => {
                    // Its agents are its own as long as it answers.
                    let gone = seen_gone(&backend, server.address, &server.identity).await;
                    lost(&backend, &server, gone).await;
                }
                TenureEnded::Gone => lost(&backend, &server, true).await,
            }
        }
        tokio::select! {
            biased;
            () = backend.closed() => return,
            () = start_own(&backend) => {}
        }
        if backend.server().is_err() {
            tokio::select! {
                biased;
                () = backend.closed() => return,
                () = backend.seams.clock.sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Starts a server and puts it in use, or says why there is none. The start goes on when this future is dropped: a
/// process that was spawned is recorded or ended, and [`settle_start`] waits for that.
pub(crate) async fn start_own(backend: &Arc<Backend>) {
    let starter = Arc::clone(backend);
    let started = tokio::spawn(async move {
        let starting = starter.starting.lock().await;
        if starter.is_closed() {
            return;
        }
        match control_server::start(&starter).await {
            Ok(server) => {
                starter.use_server(server);
                survivors::sweep_secrets_after(&starter, &starting).await;
            }
            Err(failed) => {
                error!(reason = %chain(&failed), "control server could not be started");
                starter.lose_server(chain(&failed));
            }
        }
    });
    if started.await.is_err() {
        error!("control server's start was cut off");
    }
}

/// Waits until no start is under way; none begins after the backend was closed.
pub(crate) async fn settle_start(backend: &Backend) {
    if within(&*backend.seams.clock, SETTLE_LIMIT, backend.starting.lock()).await.is_err() {
        warn!("control server's start did not settle before the backend's end");
    }
}

/// Stops a server that is ours through the ownership shutdown and tells whether it was seen gone: nobody listens
/// where it did.
pub(crate) async fn shut_down(backend: &Backend, client: &ControlClient, server: &ServerIdentity) -> bool {
    let address = client.endpoint().address;
    let mut left = backend.config.read_retries;
    loop {
        match client.shutdown().await {
            Ok(_) => break,
            Err(failed) if failed.refusal() == Some(wire::RefusalCode::ShuttingDown) => break,
            Err(_) if is_gone(backend, address, server).await => return true,
            // A 401 can only be a dead credential.
            Err(failed) if left == 0 || failed.is_unauthorized() || failed.is_disproved() => {
                warn!(%address, error = %chain(&failed), "ownership shutdown failed");
                return false;
            }
            Err(_) => left -= 1,
        }
    }
    seen_gone(backend, address, server).await
}

/// Whether this server is gone: nobody listens where it did, or somebody who says that he is another.
pub(crate) async fn is_gone(backend: &Backend, address: SocketAddr, server: &ServerIdentity) -> bool {
    if ports::nobody_listens(&*backend.seams.network, address).await {
        return true;
    }
    let answer = backend.stranger(address, backend.config.read_timeout).identity().await;
    answer.is_ok_and(|answer| answer.server != *server)
}

/// Waits until this server is gone; false if it is not after [`SHUTDOWN_LIMIT`].
pub(crate) async fn seen_gone(backend: &Backend, address: SocketAddr, server: &ServerIdentity) -> bool {
    let clock = &backend.seams.clock;
    let ends = clock.monotonic().after(SHUTDOWN_LIMIT);
    while clock.monotonic() < ends {
        if is_gone(backend, address, server).await {
            info!(%address, "control server gone");
            return true;
        }
        clock.sleep(POLL).await;
    }
    warn!(%address, "control server was not seen gone");
    false
}

/// Another backend drives: our executions are dropped and nothing is tried again (O-002.3).
fn let_go(backend: &Backend, server: &ServerInUse) {
    let dropped = backend.drop_server("another backend drives the control server");
    warn!(server = %server.identity, dropped = dropped.len(), "superseded by another backend");
}

/// The server is gone with what it kept: its agents are ended, if `end` says that it was seen gone, and their sessions
/// repaired.
async fn lost(backend: &Arc<Backend>, server: &ServerInUse, end: bool) {
    let sessions = backend.drop_server("the control server ended");
    error!(server = %server.identity, sessions = sessions.len(), "control server lost");
    // Those that were never tracked, because the server could not be enumerated, are among them.
    let records = match backend.store.live_records_of(&server.identity).await {
        Ok(records) => records,
        Err(failed) => {
            error!(server = %server.identity, error = %chain(&failed), "records of a lost server could not be read");
            Vec::new()
        }
    };
    for record in records {
        let session = &record.session;
        let guarded = backend.executions().guard(session);
        info!(%session, ?guarded, "guard taken");
        repair_without_server(backend, session, &record.execution, record.agent.as_ref(), end).await;
    }
    if end {
        leftovers::end_entries_of(backend, &server.identity).await;
    }
}

/// Repairs a session whose control server is gone: first what is left of its agent, then the record. `end` says
/// whether leftovers may be ended, which needs that nobody answers where their server was.
pub(crate) async fn repair_without_server(
    backend: &Arc<Backend>,
    session: &SessionId,
    execution: &InstanceId,
    agent: Option<&wire::ProcessRef>,
    end: bool,
) -> Leftover {
    let leftover = leftovers::settle(backend, session, agent, end).await;
    match &leftover {
        Leftover::Gone => {
            let reason =
                "its control server is gone, and with it the agent and whatever it had not handed over yet";
            repair(backend, session, Some(execution.clone()), reason).await;
            backend.executions().release(session);
            info!(%session, "guard released");
        }
        Leftover::Remains { why } => {
            backend.executions().hold(session, execution.clone());
            warn!(%session, instance = %execution, why, "agent without a control server remains, guard held");
        }
    }
    leftover
}

/// Repairs one session whose agent is gone: open turns end visibly, resume token and workspace are kept.
/// What cannot be written now is written later: a repair names its execution, so that it changes nothing of a newer one.
pub(crate) async fn repair(
    backend: &Arc<Backend>,
    session: &SessionId,
    execution: Option<InstanceId>,
    reason: &'static str,
) {
    if write_repair(backend, session, execution.clone(), reason).await || execution.is_none() {
        return;
    }
    let (backend, session) = (Arc::clone(backend), session.clone());
    tokio::spawn(async move {
        let again = async {
            let mut pause = FIRST_PAUSE;
            loop {
                backend.seams.clock.sleep(pause).await;
                if write_repair(&backend, &session, execution.clone(), reason).await {
                    return;
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        };
        tokio::select! {
            biased;
            () = backend.closed() => {}
            () = again => {}
        }
    });
}

async fn write_repair(
    backend: &Backend,
    session: &SessionId,
    execution: Option<InstanceId>,
    reason: &str,
) -> bool {
    let (to, turns) = (SessionState::Idle, TurnState::Interrupted);
    let at = backend.wall_ms();
    match backend.store.end_execution(session, execution, to, turns, reason.to_owned(), at).await {
        Ok(ended) => {
            info!(%session, reason, "session repaired");
            report_turns(session, &ended, "repair");
            true
        }
        Err(failed) => {
            error!(%session, error = %chain(&failed), "session could not be repaired");
            false
        }
    }
}

/// One line per turn that reached its outcome.
pub(crate) fn report_turns(session: &SessionId, applied: &[crate::store::Applied], via: &'static str) {
    for applied in applied {
        info!(%session, turn = %applied.turn, outcome = %applied.state, via, "turn outcome applied");
    }
}

/// After a failed start; the reason is usually a full disk or a missing program, which people repair.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Above the bound of one start with the end of a failed one.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);

/// Above the server's budget for stopping all its instances at once.
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);
