//! Keeping ownership of the server in use (O-003.2), and noticing that it is lost.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};
use wire::RefusalCode;

use crate::backend::{Backend, ServerInUse, chain};
use crate::ports;
use crate::tending::SHUTDOWN_LIMIT;

/// How tenure ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenureEnded {
    /// We are going down.
    Closing,
    /// The credential is no longer accepted: another backend drives (O-002.3).
    Superseded,
    /// The server has decided to shut down.
    ShuttingDown,
    /// Nobody listens there any more, or somebody else does.
    Gone,
}

/// Renews until tenure ends. The period is the one that this very server reports.
pub(crate) async fn renew(backend: &Arc<Backend>, server: &ServerInUse) -> TenureEnded {
    let interval = interval(server.period);
    let mut closed = std::pin::pin!(backend.closed());
    let mut healthy = true;
    // Nothing since then can have renewed it.
    let mut readable_at = backend.now();
    loop {
        let pause = if healthy { interval } else { interval.min(RETRY) };
        tokio::select! {
            biased;
            () = &mut closed => return TenureEnded::Closing,
            () = exited(server) => return TenureEnded::Gone,
            () = backend.server_doubted.notified() => {}
            () = backend.seams.clock.sleep(pause) => {}
        }
        let renewed = tokio::select! {
            biased;
            () = &mut closed => return TenureEnded::Closing,
            renewed = claim(backend, server) => renewed,
        };
        if !matches!(renewed, Renewed::Unreadable(_)) {
            readable_at = backend.now();
        }
        match renewed {
            Renewed::Done if healthy => {}
            Renewed::Done => {
                healthy = true;
                info!(server = %server.identity, "ownership renewed again");
            }
            Renewed::Ended(ended) => return ended,
            // Ours has ended by itself by now, and its agents with it (O-003.1): this is somebody else.
            Renewed::Unreadable(_) if backend.now().since(readable_at) > server.period + SHUTDOWN_LIMIT => {
                return TenureEnded::Gone;
            }
            Renewed::Failed(error) | Renewed::Unreadable(error) => {
                if std::mem::replace(&mut healthy, false) {
                    warn!(server = %server.identity, error, "ownership renewal failed");
                }
                if is_gone(backend, server).await {
                    return TenureEnded::Gone;
                }
            }
        }
    }
}

/// Whether nobody listens there, or the server's process has ended and its place is taken.
async fn is_gone(backend: &Backend, server: &ServerInUse) -> bool {
    has_ended(backend, server).await || ports::nobody_listens(&*backend.seams.network, server.address).await
}

/// Whether the server's process is known to run no more.
async fn has_ended(backend: &Backend, server: &ServerInUse) -> bool {
    match &server.runs_as {
        Some(process) => matches!(backend.seams.processes.runs(process).await, Ok(false)),
        None => false,
    }
}

/// What one renewal came to.
enum Renewed {
    Done,
    /// To be tried again.
    Failed(String),
    /// To be tried again, as long as it may still be ours that answers.
    Unreadable(String),
    Ended(TenureEnded),
}

/// One renewal.
async fn claim(backend: &Backend, server: &ServerInUse) -> Renewed {
    let failed = match server.client.claim().await {
        Ok(_) => return Renewed::Done,
        Err(failed) => failed,
    };
    if failed.is_unauthorized() {
        return Renewed::Ended(TenureEnded::Superseded);
    }
    if failed.refusal() == Some(RefusalCode::ShuttingDown) {
        return Renewed::Ended(TenureEnded::ShuttingDown);
    }
    if failed.is_no_answer() {
        return Renewed::Failed(chain(&failed));
    }
    if !failed.is_disproved() {
        return Renewed::Unreadable(chain(&failed));
    }
    if has_ended(backend, server).await {
        warn!(server = %server.identity, why = %chain(&failed), "control server in use has ended and its place is taken");
        return Renewed::Ended(TenureEnded::Gone);
    }
    // What calls itself the server in use and does not know our credential has been adopted by another backend. Told
    // apart, because the agents of a server that answers are not ours to end.
    let stranger = backend.stranger(server.address, backend.config.read_timeout);
    let (same, renewed) = match stranger.identity().await {
        Ok(answer) if answer.server == server.identity => ("yes", Renewed::Ended(TenureEnded::Superseded)),
        Ok(_) => ("no", Renewed::Ended(TenureEnded::Gone)),
        Err(_) => ("unknown", Renewed::Unreadable(chain(&failed))),
    };
    warn!(server = %server.identity, why = %chain(&failed), same, "control server in use did not prove itself");
    renewed
}

/// Resolves once the server's process has exited; never for a server that is not our child.
async fn exited(server: &ServerInUse) {
    if let Some(process) = &server.process {
        let mut exited = process.exited.clone();
        if exited.wait_for(Option::is_some).await.is_ok() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Strictly below a third of the period (O-003.2), and never so rarely that the death of a server without event
/// streams stays unnoticed: a stream that breaks is looked into at once.
fn interval(period: Duration) -> Duration {
    (period / 4).min(MOST)
}

/// A dead server is noticed within this.
const MOST: Duration = Duration::from_secs(15);

/// After a failed renewal.
const RETRY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_strictly_below_a_third_of_the_period() {
        for period_ms in [1, 2, 10, 20, 30, 31, 60_000, 61_000, 600_000, u64::MAX] {
            let period = Duration::from_millis(period_ms);
            assert!(interval(period) * 3 < period && !interval(period).is_zero(), "{period:?}");
        }
    }
}
