//! Rebuilding the executions of surviving instances, all at once: one that fails or hangs costs only itself
//! (S-002.11).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use seam::{Monotonic, within};
use tracing::{info, warn};
use wire::client::CallFailed;
use wire::{InstanceId, InstanceList, InstanceState, InstanceStatus, SessionId, TurnStatus};

use crate::adoption::AdoptedServer;
use crate::api::{Named, SessionState};
use crate::backend::{Backend, answered, chain};
use crate::correlation::{Plan, Retrack, Stop, correlate};
use crate::recovery_guard::Taken;
use crate::sessions;
use crate::stop::stop_and_see_gone;
use crate::store::{InventoryRow, Settled, StoreFailed};
use crate::tending::{is_gone, report_turns};

/// What became of every record and instance of the adopted server.
#[derive(Default)]
pub(crate) struct Retracked {
    /// Published.
    pub(crate) sessions: BTreeSet<SessionId>,
    /// Sessions that have an instance which is not known to be gone: their records are not repaired.
    pub(crate) not_gone: BTreeMap<SessionId, String>,
    /// Sessions whose instances have lost their server meanwhile: nobody listens where it did.
    pub(crate) without_server: BTreeSet<SessionId>,
    /// Instances that were seen gone.
    pub(crate) stopped: Vec<Named>,
}

/// Why one instance is not re-tracked.
#[derive(Debug, thiserror::Error)]
enum NotRetracked {
    #[error("a duplicate of it could not be stopped")]
    LoserNotStopped,
    #[error("its turn status could not be read")]
    TurnUnreadable(#[source] CallFailed),
    #[error("its control server was lost meanwhile")]
    ServerLost,
    #[error("the bound over recovery passed")]
    BoundPassed,
}

/// How the stop of one instance ended; of several, the greatest counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stopped {
    /// It was left alone: this backend has launched it since the inventory was read.
    LeftAlone,
    /// It was seen gone.
    Gone,
    /// Its server is gone; what is left of it is to be looked for (ruling 15).
    WithoutServer,
    /// It may live; its session's guard is held (S-002.16).
    NotGone,
}

/// Enumerates, within the per-read budget.
pub(crate) async fn enumerate(backend: &Backend, server: &AdoptedServer) -> Result<InstanceList, CallFailed> {
    answered(backend.config.read_retries, || server.client().instances()).await
}

/// Carries the plan out until `bound`.
pub(crate) async fn carry_out(
    backend: &Arc<Backend>,
    server: &AdoptedServer,
    rows: &[InventoryRow],
    listed: InstanceList,
    bound: Monotonic,
) -> Retracked {
    let plan = correlate(rows, &listed.instances);
    for line in plan.to_string().lines() {
        info!(step = line, "recovery plan");
    }
    let Plan { retrack, stop, .. } = plan;
    let retracked: BTreeSet<&SessionId> = retrack.iter().map(|retrack| &retrack.session).collect();
    // Those of re-tracked sessions are stopped there: the winner waits for them.
    let alone: Vec<Stop> = stop.iter().filter(|stop| !retracked.contains(&stop.session)).cloned().collect();
    let instances: BTreeMap<InstanceId, InstanceStatus> =
        listed.instances.into_iter().map(|status| (status.instance.clone(), status)).collect();
    let winners = retrack.iter().map(|retrack| {
        let status = instances[&retrack.instance].clone();
        one(backend, server, retrack, status, bound)
    });
    let losers = alone.iter().map(|planned| stop_one(backend, server, planned));
    let (won, lost) = tokio::join!(join_all(winners), join_all(losers));
    let mut outcome = Retracked::default();
    for (retrack, won) in retrack.iter().zip(won) {
        match won {
            Outcome::Published => drop(outcome.sessions.insert(retrack.session.clone())),
            Outcome::NotRetracked { stopped, reason } => {
                outcome.note(stopped, &retrack.session, &retrack.instance, reason);
            }
        }
    }
    for (planned, stopped) in alone.into_iter().zip(lost) {
        outcome.note(stopped, &planned.session, &planned.instance, planned.reason.to_string());
    }
    outcome
}

impl Retracked {
    fn note(&mut self, stopped: Stopped, session: &SessionId, instance: &InstanceId, reason: String) {
        match stopped {
            Stopped::Gone => self.stopped.push(Named { id: instance.to_string(), reason }),
            Stopped::NotGone => drop(self.not_gone.insert(session.clone(), reason)),
            Stopped::WithoutServer => drop(self.without_server.insert(session.clone())),
            Stopped::LeftAlone => {}
        }
    }
}

enum Outcome {
    Published,
    NotRetracked { stopped: Stopped, reason: String },
}

async fn one(
    backend: &Arc<Backend>,
    server: &AdoptedServer,
    planned: &Retrack,
    status: InstanceStatus,
    bound: Monotonic,
) -> Outcome {
    let left = bound.since(backend.now());
    let work = rebuild(backend, server, planned, status);
    let failed = match within(&*backend.seams.clock, left, work).await {
        Ok(Ok(())) => return Outcome::Published,
        Ok(Err(failed)) => failed,
        Err(_) => NotRetracked::BoundPassed,
    };
    let (session, instance) = (&planned.session, &planned.instance);
    let reason = chain(&failed);
    warn!(%session, %instance, reason, "session not re-tracked");
    // A session that nobody tracks is not left with a live agent (S-002.15); the bound may have cut off the stop of a
    // duplicate, which is ordered again.
    let losers = planned.losers.iter().filter(|_| matches!(failed, NotRetracked::BoundPassed));
    let stops = losers.chain([instance]).map(|one| stop_instance(backend, server, session, one));
    let stopped = join_all(stops).await.into_iter().max().expect("the winner itself is among them");
    Outcome::NotRetracked { stopped, reason }
}

/// Everything that must hold before the session is published, and the publishing as the last step, without an
/// await between them: a re-tracking that its bound cuts off has published nothing.
async fn rebuild(
    backend: &Arc<Backend>,
    server: &AdoptedServer,
    planned: &Retrack,
    status: InstanceStatus,
) -> Result<(), NotRetracked> {
    let (session, instance) = (&planned.session, &planned.instance);
    let identity = &server.identity.server;
    let gone = planned.losers.iter().map(|loser| stop_instance(backend, server, session, loser));
    if !join_all(gone).await.into_iter().all(|stopped| stopped == Stopped::Gone) {
        return Err(NotRetracked::LoserNotStopped);
    }
    let turns = answered(backend.config.read_retries, || server.client().turn(instance))
        .await
        .map_err(NotRetracked::TurnUnreadable)?;
    let settled = made_durable(backend, server, session, &status, &turns).await;
    let at = backend.now().since_origin();
    if !sessions::publish_retracked(backend, identity, session, &status, settled.acknowledge) {
        return Err(NotRetracked::ServerLost);
    }
    info!(
        %session,
        %instance,
        pid = status.agent.as_ref().map(|agent| agent.pid),
        open_turn = settled.open,
        at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
        "session re-tracked"
    );
    Ok(())
}

/// Writes what was found, until it is written or the bound cuts it off: an agent that works is not stopped because the
/// store's disk was full for a moment. The kept outcome is applied before the session is published (S-004.2).
async fn made_durable(
    backend: &Arc<Backend>,
    server: &AdoptedServer,
    session: &SessionId,
    status: &InstanceStatus,
    turns: &TurnStatus,
) -> Settled {
    let mut pause = FIRST_PAUSE;
    loop {
        match write(backend, server, session, status, turns).await {
            Ok(settled) => return settled,
            Err(failed) => {
                warn!(%session, error = %chain(&failed), "re-tracked session could not be written yet");
            }
        }
        backend.seams.clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Each of its steps changes nothing when it is done again.
async fn write(
    backend: &Arc<Backend>,
    server: &AdoptedServer,
    session: &SessionId,
    status: &InstanceStatus,
    turns: &TurnStatus,
) -> Result<Settled, StoreFailed> {
    let (store, identity, at) = (&backend.store, &server.identity.server, backend.wall_ms());
    let address = server.client().endpoint().address.to_string();
    store.point_execution(session, &status.instance, identity, address, status.agent.clone(), at).await?;
    if let Some(provider) = &status.provider_session {
        store.set_provider_session(session, provider.to_string(), at).await?;
    }
    let settled = store.apply_turn_status(session, identity, turns.clone(), at).await?;
    report_turns(session, &settled.applied, "status");
    if status.state == InstanceState::Ready && !settled.open {
        let from = &[SessionState::Created, SessionState::Starting, SessionState::Idle];
        store.move_session(session, from, SessionState::WaitingForInput, at).await?;
    }
    Ok(settled)
}

async fn stop_one(backend: &Arc<Backend>, server: &AdoptedServer, planned: &Stop) -> Stopped {
    let Stop { instance, session, reason } = planned;
    // The session's guard first (ruling 12), so that nobody launches beside an instance that may stay.
    let taken = backend.executions().guard(session);
    if taken == Taken::InUse {
        info!(%instance, %session, "instance of a launch of this backend is left alone");
        return Stopped::LeftAlone;
    }
    info!(%instance, %session, %reason, "surviving instance is stopped");
    let stopped = stop_instance(backend, server, session, instance).await;
    let decided = matches!(stopped, Stopped::Gone | Stopped::WithoutServer);
    if decided && taken == Taken::Acquired {
        backend.executions().release(session);
    }
    stopped
}

/// Stops one instance; a failure keeps the session's guard for this backend's lifetime (S-002.16), unless its server
/// is gone.
async fn stop_instance(
    backend: &Arc<Backend>,
    server: &AdoptedServer,
    session: &SessionId,
    instance: &InstanceId,
) -> Stopped {
    let (client, retries) = (server.client(), backend.config.read_retries);
    if stop_and_see_gone(&*backend.seams.clock, client, instance, retries).await.is_ok() {
        return Stopped::Gone;
    }
    if is_gone(backend, client.endpoint().address, &server.identity.server).await {
        return Stopped::WithoutServer;
    }
    backend.executions().hold(session, instance.clone());
    warn!(%session, %instance, "guard held for an unstopped instance");
    Stopped::NotGone
}

/// A full disk often has room again within moments; the bound over recovery ends it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
