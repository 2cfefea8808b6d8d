//! Stopping an instance, which is done when it was seen gone (ruling 3).

use std::time::Duration;

use seam::Clock;
use tracing::{info, warn};
use wire::client::{CallFailed, ControlClient};
use wire::{InstanceId, RefusalCode};

use crate::backend::chain;
use crate::ports::nobody_listens;

/// Why an instance may still be there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StopFailed {
    /// The server refused or did not answer, as often as it was asked.
    #[error("the control server did not stop instance {instance}: {reason}")]
    NotAccepted { instance: InstanceId, reason: String },
    /// Accepted, but it was not seen gone within the bound.
    #[error("instance {instance} was not seen gone within {GONE_LIMIT:?}")]
    NotGone { instance: InstanceId },
}

/// Orders the stop, repeating it as S-002.15 has it, and waits until the instance is gone.
pub(crate) async fn stop_and_see_gone(
    clock: &dyn Clock,
    client: &ControlClient,
    instance: &InstanceId,
    retries: u32,
) -> Result<(), StopFailed> {
    info!(%instance, "instance stop ordered");
    let outcome = match order(client, instance, retries).await {
        Ok(Ordered::Gone) => Ok(()),
        Ok(Ordered::Stopping) => see_gone(clock, client, instance).await,
        Err(failed) => Err(StopFailed::NotAccepted { instance: instance.clone(), reason: chain(&failed) }),
    };
    match &outcome {
        Ok(()) => info!(%instance, "instance gone"),
        Err(failed) => warn!(%instance, reason = %failed, "instance stop failed"),
    }
    outcome
}

enum Ordered {
    Gone,
    Stopping,
}

async fn order(client: &ControlClient, instance: &InstanceId, retries: u32) -> Result<Ordered, CallFailed> {
    let mut left = retries;
    loop {
        match client.stop_instance(instance).await {
            Ok(_) => return Ok(Ordered::Stopping),
            Err(failed) if failed.refusal() == Some(RefusalCode::UnknownInstance) => {
                return Ok(Ordered::Gone);
            }
            // The whole server is stopping, and this instance with it.
            Err(failed) if failed.refusal() == Some(RefusalCode::ShuttingDown) => {
                return Ok(Ordered::Stopping);
            }
            Err(failed) if failed.is_unauthorized() || failed.is_disproved() || left == 0 => {
                return Err(failed);
            }
            Err(_) => left -= 1,
        }
    }
}

async fn see_gone(
    clock: &dyn Clock,
    client: &ControlClient,
    instance: &InstanceId,
) -> Result<(), StopFailed> {
    let ends = clock.monotonic().after(GONE_LIMIT);
    let mut pause = FIRST_PAUSE;
    let mut shutting_down = false;
    loop {
        // Silence is not gone: the server's own word counts, or that it said it was ending and then nobody listens.
        if let Err(failed) = client.instance(instance).await {
            let endpoint = client.endpoint();
            match failed.refusal() {
                Some(RefusalCode::UnknownInstance) => return Ok(()),
                Some(RefusalCode::ShuttingDown) => shutting_down = true,
                _ if shutting_down && nobody_listens(&*endpoint.network, endpoint.address).await => {
                    return Ok(());
                }
                _ => {}
            }
        }
        if clock.monotonic() >= ends {
            return Err(StopFailed::NotGone { instance: instance.clone() });
        }
        clock.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Above the server's own budget of one stop (grace, KILL, reaping).
const GONE_LIMIT: Duration = Duration::from_secs(20);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
