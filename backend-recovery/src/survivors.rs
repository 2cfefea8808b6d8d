//! Control servers of ours that were left running, because they could not be adopted or stopped (ruling 11).
//!
//! ```text
//!   refused, silent, shutting down, not stopped ── note ──> survivor ── nobody listens there any more ──> gone
//!                                                              └── its period and its stops have passed ──> over
//! ```
//!
//! A survivor may still run agents of ours, and nobody can ask it. Until it is gone or over, a launch for a session
//! whose record names it is refused. It is watched by connecting and closing, without a byte. The note is no locator:
//! nobody adopts by it. Its secrets are kept as long as it is noted.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use seam::Wall;
use tokio::sync::MutexGuard;
use tracing::{info, warn};
use wire::ServerIdentity;

use crate::backend::{Backend, chain};
use crate::control_server_record::{ControlServerRecord, is_secret_of};
use crate::leftovers;
use crate::ports::nobody_listens;
use crate::store::StoreFailed;
use crate::tending::repair_without_server;

/// One note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Survivor {
    pub(crate) server: ServerIdentity,
    pub(crate) endpoint: SocketAddr,
    /// The name of its newest credential.
    pub(crate) secret: String,
    /// The unowned period that it reported.
    pub(crate) period_ms: u64,
    /// When we last sent what could have renewed its ownership; wall time, since the note outlives this process.
    pub(crate) renewed_ms: u64,
    /// Why it was left running.
    pub(crate) reason: String,
}

impl Survivor {
    /// When it is over at the latest: its period without an owner, and what its stops may take.
    pub(crate) fn ends_ms(&self) -> u64 {
        self.renewed_ms.saturating_add(self.period_ms).saturating_add(STOPS_MS)
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let left = format!("{} at {} was left running ({})", self.server, self.endpoint, self.reason);
        format!("{left}; it ends by itself before {}", Wall { unix_millis: self.ends_ms() }.http_date())
    }
}

/// Notes the recorded server before its record is rewritten.
pub(crate) async fn note(
    backend: &Arc<Backend>,
    record: &ControlServerRecord,
    reason: &'static str,
) -> Result<(), StoreFailed> {
    let survivor = Survivor {
        server: record.identity.clone(),
        endpoint: record.endpoint,
        secret: record.secret.clone(),
        period_ms: record.unowned_period_ms,
        renewed_ms: backend.wall_ms(),
        reason: reason.to_owned(),
    };
    info!(server = %survivor.server, address = %survivor.endpoint, reason, "survivor noted");
    backend.store.note_survivor(survivor).await
}

/// Looks after the survivors until there is none: repairs what was theirs once they are gone.
pub(crate) async fn watch(backend: Arc<Backend>) {
    loop {
        let survivors = match backend.store.survivors().await {
            Ok(survivors) if survivors.is_empty() => return,
            Ok(survivors) => survivors,
            Err(failed) => {
                warn!(error = %chain(&failed), "survivors could not be read");
                Vec::new()
            }
        };
        for survivor in survivors {
            if !is_over(&backend, &survivor).await {
                continue;
            }
            if let Err(failed) = let_go(&backend, &survivor).await {
                warn!(server = %survivor.server, error = %chain(&failed), "survivor could not be forgotten");
            }
        }
        tokio::select! {
            biased;
            () = backend.closed() => return,
            () = backend.seams.clock.sleep(LOOK_EVERY) => {}
        }
    }
}

/// Whether a survivor no longer stands in anybody's way.
pub(crate) async fn is_over(backend: &Backend, survivor: &Survivor) -> bool {
    backend.wall_ms() >= survivor.ends_ms() || is_gone(backend, survivor).await
}

/// Whether nobody listens where it did, or our own server does: nobody else can have that address.
async fn is_gone(backend: &Backend, survivor: &Survivor) -> bool {
    let used = backend.server();
    let replaced =
        used.is_ok_and(|used| used.address == survivor.endpoint && used.identity != survivor.server);
    replaced || nobody_listens(&*backend.seams.network, survivor.endpoint).await
}

/// It is gone: what is left of its agents is ended, its sessions are repaired (O-003.5), then its secrets go.
async fn let_go(backend: &Arc<Backend>, survivor: &Survivor) -> Result<(), StoreFailed> {
    // What still listens there now is not known to be another's: its agents are not ours to end.
    let end = is_gone(backend, survivor).await;
    info!(server = %survivor.server, seen_gone = end, "survivor is over");
    for record in backend.store.live_records_of(&survivor.server).await? {
        let session = &record.session;
        if backend.executions().guard(session) == crate::recovery_guard::Taken::Acquired {
            info!(%session, "guard taken");
            repair_without_server(backend, session, &record.execution, record.agent.as_ref(), end).await;
        }
    }
    if end {
        leftovers::end_entries_of(backend, &survivor.server).await;
    }
    backend.store.forget_survivor(&survivor.server).await?;
    sweep_secrets(backend).await;
    Ok(())
}

/// Removes the secrets of servers that are neither in use nor noted as survivors: nobody accepts them any more. Those
/// of the server in use are its confirmation's to remove.
pub(crate) async fn sweep_secrets(backend: &Backend) {
    // No server is being started meanwhile: its secret is stored before it is in use.
    let starting = backend.starting.lock().await;
    sweep_secrets_after(backend, &starting).await;
}

/// The same, for whoever starts a server.
pub(crate) async fn sweep_secrets_after(backend: &Backend, _started: &MutexGuard<'_, ()>) {
    let Ok(in_use) = backend.server() else { return };
    let Ok(survivors) = backend.store.survivors().await else { return };
    let kept: BTreeSet<ServerIdentity> =
        survivors.into_iter().map(|survivor| survivor.server).chain([in_use.identity]).collect();
    let secrets = &backend.seams.secrets;
    let names = match secrets.names().await {
        Ok(names) => names,
        Err(error) => return warn!(%error, "secrets could not be listed"),
    };
    for name in names.iter().filter(|name| !kept.iter().any(|server| is_secret_of(server, name))) {
        match secrets.remove(name).await {
            Ok(()) => info!(name, "secret of a server that is gone removed"),
            Err(error) => warn!(name, %error, "secret of a server that is gone could not be removed"),
        }
    }
}

/// What a server may take from its decision to end until nothing of it is left, with what its clock and ours differ by.
const STOPS_MS: u64 = 20_000;

/// A survivor ends once in its life; a user who waits for it does not notice this.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survivor_is_over_after_its_period_and_its_stops() {
        let survivor = Survivor {
            server: ServerIdentity::new("abc"),
            endpoint: "127.0.0.1:39429".parse().unwrap(),
            secret: "controld-abc".to_owned(),
            period_ms: 60_000,
            renewed_ms: 1_000,
            reason: "no_answer".to_owned(),
        };
        assert_eq!(survivor.ends_ms(), 81_000);
        assert!(survivor.describe().contains("abc at 127.0.0.1:39429 was left running (no_answer)"));
        assert_eq!(Survivor { renewed_ms: u64::MAX, ..survivor }.ends_ms(), u64::MAX, "never, not at once");
    }
}
