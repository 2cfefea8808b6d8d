//! The second adopter: whoever has the installation's stored credential and uses it while the backend lives. Adopts the
//! control server as a backend does, drives it for a while, and ends without a word.
//!
//! `second-adopter --home HOME ADDRESS`

use std::net::SocketAddr;
use std::time::Duration;

use seam::Seams;
use secrecy::SecretString;
use tracing::info;
use wire::client::CallFailed;
use wire::proof::Challenge;
use wire::{RotationId, Seq};

use super::client;

/// Its main.
pub(crate) async fn run(seams: Seams) -> u8 {
    let arguments = seams.host.arguments();
    let address = arguments.last().and_then(|address| address.parse::<SocketAddr>().ok());
    let (Some(address), Some(stored)) = (address, stored(&seams).await) else { return 2 };
    match adopt(&seams, address, stored).await {
        Ok(()) => 0,
        Err(failed) => {
            info!(error = %failed, "second adopter failed");
            1
        }
    }
}

async fn stored(seams: &Seams) -> Option<SecretString> {
    let newest = seams.secrets.names().await.ok()?.pop()?;
    let secret = seams.secrets.load(&newest).await.ok()?;
    Some(SecretString::from(String::from_utf8(secret).ok()?))
}

async fn adopt(seams: &Seams, address: SocketAddr, stored: SecretString) -> Result<(), CallFailed> {
    // In the order of an adoption; what the answer is worth does not matter to somebody who wants this server anyhow.
    client(seams, address, None).prove(&Challenge::fresh(&*seams.entropy)).await?;
    let (rotation, credential) = client(seams, address, Some(stored)).rotate().await?;
    let driver = client(seams, address, Some(credential.to_text()));
    driver.confirm(rotation).await?;
    // What was confirmed, what came before it and what never was.
    driver.confirm(rotation).await?;
    driver.confirm(RotationId::HANDSHAKE).await?;
    let unknown =
        driver.confirm(RotationId(rotation.0 + 1)).await.is_err_and(|failed| failed.refusal().is_some());
    info!(unknown, "second adopter was refused an unknown rotation");
    let listed = driver.instances().await?.instances;
    info!(%rotation, instances = listed.len(), "second adopter drives");
    let mut streams = Vec::new();
    for instance in &listed {
        streams.push(driver.events(&instance.instance, Seq::ZERO).await?);
    }
    for _ in 0..CLAIMS {
        seams.clock.sleep(CLAIM_EVERY).await;
        driver.claim().await?;
    }
    info!("second adopter ends");
    Ok(())
}

/// Long enough that the superseded backend asks for its renewal in between.
const CLAIMS: u32 = 20;
const CLAIM_EVERY: Duration = Duration::from_secs(1);
