//! TCP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use seam::{BoxFuture, Listener, Network, Stream};
use tokio::net::{TcpListener, TcpStream};

use crate::failure::cannot;

/// The host's TCP. Small writes leave at once on both sides (`TCP_NODELAY`).
#[derive(Clone, Copy, Debug)]
pub struct RealNetwork;

impl Network for RealNetwork {
    #[expect(clippy::disallowed_methods, reason = "the Network seam itself")]
    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let failed = |error| cannot("listen on", address, error);
            // Sets SO_REUSEADDR, so that connections in TIME_WAIT do not keep a restarted server out.
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let local_address = listener.local_addr().map_err(failed)?;
            Ok(Box::new(RealListener { listener, local_address }) as Box<dyn Listener>)
        })
    }

    #[expect(clippy::disallowed_methods, reason = "the Network seam itself")]
    fn connect(&self, address: SocketAddr, limit: Duration) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            let failed = |error| cannot("connect to", address, error);
            let connected = tokio::time::timeout(limit, TcpStream::connect(address)).await;
            let stream = connected
                .map_err(|_| {
                    failed(io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {limit:?}")))
                })?
                .map_err(failed)?;
            // A free port in the range from which the kernel takes source ports can meet itself.
            if stream.local_addr().map_err(failed)? == address {
                return Err(failed(io::Error::new(
                    io::ErrorKind::ConnectionRefused,
                    "nobody but us is there",
                )));
            }
            without_delay(&stream);
            Ok(Box::new(stream) as Stream)
        })
    }

    fn resolve(&self, host: &str, port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        let host = host.to_owned();
        Box::pin(async move {
            let failed = |error| cannot("resolve", &host, error);
            // The resolver names an address once per socket type it knows.
            let mut addresses = Vec::new();
            for address in tokio::net::lookup_host((host.as_str(), port)).await.map_err(failed)? {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
            if addresses.is_empty() {
                return Err(failed(io::Error::new(io::ErrorKind::NotFound, "it has no address")));
            }
            Ok(addresses)
        })
    }
}

/// A listening socket.
struct RealListener {
    listener: TcpListener,
    local_address: SocketAddr,
}

impl Listener for RealListener {
    fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move {
            let accepted = self.listener.accept().await;
            let (stream, peer) =
                accepted.map_err(|error| cannot("accept a connection on", self.local_address, error))?;
            without_delay(&stream);
            Ok((Box::new(stream) as Stream, peer))
        })
    }
}

fn without_delay(stream: &TcpStream) {
    // Fails only on a connection that is already gone, which the first read tells better.
    let _ = stream.set_nodelay(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connect_without_an_answer_ends_at_its_limit() {
        // A listener whose queue is full lets the kernel drop the handshake, as a host that is gone would.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        let error = loop {
            match RealNetwork.connect(address, Duration::from_millis(300)).await {
                Ok(stream) => queued.push(stream),
                Err(error) => break error,
            }
            assert!(queued.len() < 100, "the queue never fills");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let listener = RealNetwork.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_address();
        let error = RealNetwork.listen(address).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}
