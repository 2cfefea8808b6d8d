//! Keeping ownership of the server in use (O-003.2), and noticing that it is lost.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};
use wire::RefusalCode;

use crate::backend::{Backend, ServerInUse, chain};
use crate::ports;

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
        match renewed {
            Renewed::Done if healthy => {}
            Renewed::Done => {
                healthy = true;
                info!(server = %server.identity, "ownership renewed again");
            }
            Renewed::Ended(ended) => return ended,
            Renewed::Failed(error) => {
                if std::mem::replace(&mut healthy, false) {
                    warn!(server = %server.identity, error, "ownership renewal failed");
                }
                if ports::nobody_listens(&*backend.seams.network, server.address).await {
                    return TenureEnded::Gone;
                }
            }
        }
    }
}

/// What one renewal came to.
enum Renewed {
    Done,
    /// To be tried again.
    Failed(String),
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
    if !failed.is_unproven() {
        return Renewed::Failed(chain(&failed));
    }
    // What calls itself the server in use and does not know our credential has been adopted by another backend. Told
    // apart, because the agents of a server that answers are not ours to end.
    let stranger = backend.stranger(server.address, backend.config.read_timeout);
    let same = stranger.identity().await.is_ok_and(|answer| answer.server == server.identity);
    warn!(server = %server.identity, why = %chain(&failed), same, "control server in use did not prove itself");
    Renewed::Ended(if same { TenureEnded::Superseded } else { TenureEnded::Gone })
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
