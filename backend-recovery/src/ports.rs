//! Whether somebody listens somewhere, and where a control server may listen (O-001.7, O-001.12).

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use seam::Network;

/// Whether nobody listens at this address: it refuses a bounded connection, and can be bound (O-001.7). A listener that
/// is merely slow or full, or whose connection was refused in between, is never reported as absent.
pub(crate) async fn nobody_listens(network: &dyn Network, address: SocketAddr) -> bool {
    let Err(error) = network.connect(address, PROBE_LIMIT).await else { return false };
    match error.kind() {
        // This host does not have the address any more.
        ErrorKind::AddrNotAvailable | ErrorKind::NetworkUnreachable => true,
        ErrorKind::ConnectionRefused => match network.listen(address).await {
            Ok(_) => true,
            // Whoever may not bind it cannot tell by that.
            Err(error) => error.kind() != ErrorKind::AddrInUse,
        },
        _ => false,
    }
}

/// Whether a server could listen at this address now: nobody answers there, on any other address that the host's name
/// resolves to, or on either loopback address, and a bind of exactly this address succeeds (O-001.7).
pub(crate) async fn is_free(network: &dyn Network, address: SocketAddr, resolved: &[SocketAddr]) -> bool {
    let loopbacks = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let loopbacks = loopbacks.into_iter().map(|host| SocketAddr::new(host, address.port()));
    let others: BTreeSet<SocketAddr> = resolved.iter().copied().chain(loopbacks).collect();
    for candidate in std::iter::once(address).chain(others.into_iter().filter(|other| *other != address)) {
        let elsewhere = candidate != address;
        let absent = match network.connect(candidate, PROBE_LIMIT).await {
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::TimedOut => false,
            // A host without IPv6 has nobody there.
            Err(error) => elsewhere || error.kind() == ErrorKind::ConnectionRefused,
        };
        if !absent {
            return false;
        }
    }
    network.listen(address).await.is_ok()
}

/// A port of this host that was free a moment ago.
///
/// # Errors
/// The host's address cannot be bound at all.
pub(crate) async fn free_port(network: &dyn Network, host: IpAddr) -> std::io::Result<SocketAddr> {
    Ok(network.listen(SocketAddr::new(host, 0)).await?.local_address())
}

/// A local connect is answered at once or not at all.
const PROBE_LIMIT: Duration = Duration::from_millis(500);
