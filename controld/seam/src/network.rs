//! TCP, as listeners and byte streams.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::BoxFuture;

/// A connected byte stream. Dropping it closes both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// A boxed byte stream.
pub type Stream = Box<dyn ByteStream>;

/// A bound and listening socket. Dropping it frees the port and resets what was never accepted.
pub trait Listener: Send + 'static {
    /// The address that it is bound to, with the real port.
    fn local_address(&self) -> SocketAddr;

    /// The next connection and its peer's address. Cancel safe.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>>;
}

/// TCP of one host.
pub trait Network: Send + Sync + 'static {
    /// Binds exactly `address` and listens; port 0 takes a free one.
    ///
    /// # Errors
    /// `AddrInUse` if the port is taken, `AddrNotAvailable` if the address is not this host's.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>>;

    /// Connects to `address` within `limit`.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody listens there, `TimedOut` after `limit`.
    fn connect(&self, address: SocketAddr, limit: Duration) -> BoxFuture<'_, io::Result<Stream>>;

    /// Every address that `host` stands for, with `port`; a literal address stands for itself.
    ///
    /// # Errors
    /// Whatever the resolver says, or `NotFound` if it names no address.
    fn resolve(&self, host: &str, port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>>;
}
