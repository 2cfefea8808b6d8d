//! Connections: from the Network seam's listener to the router.
//!
//! An accept that fails is logged and tried again. A connection on which nothing moves is closed, so that nobody can
//! hold the server's connections by doing nothing; the number of connections is bounded, too.

use std::future::{Future, IntoFuture as _};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use seam::{BoxFuture, Clock, Monotonic, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::{debug, warn};

/// Serves until `finish` resolves; connections that are busy then get a moment.
pub(crate) async fn serve(
    listener: Box<dyn seam::Listener>,
    router: Router,
    clock: Arc<dyn Clock>,
    finish: impl Future<Output = ()> + Send + 'static,
) {
    let listener =
        Accepting { listener, clock: Arc::clone(&clock), connections: Arc::new(Semaphore::new(CONNECTIONS)) };
    let (finishing, finished) = oneshot::channel();
    let signal = async move {
        finish.await;
        let _ = finishing.send(());
    };
    let serving = axum::serve(listener, router).with_graceful_shutdown(signal).into_future();
    let bound = async {
        let _ = finished.await;
        clock.sleep(FAREWELL_WAIT).await;
    };
    tokio::select! {
        biased;
        _ = serving => {}
        () = bound => debug!("connections were cut off at the end"),
    }
}

struct Accepting {
    listener: Box<dyn seam::Listener>,
    clock: Arc<dyn Clock>,
    connections: Arc<Semaphore>,
}

impl axum::serve::Listener for Accepting {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let connections = Arc::clone(&self.connections);
        let place = connections.acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => return (Connection::new(stream, Arc::clone(&self.clock), place), peer),
                Err(error) => {
                    warn!(%error, "accept failed");
                    self.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.listener.local_address())
    }
}

/// A connection that ends with an error once nothing has moved on it for [`IDLE_LIMIT`].
struct Connection {
    stream: Stream,
    clock: Arc<dyn Clock>,
    moved_at: Monotonic,
    idle: BoxFuture<'static, ()>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: Stream, clock: Arc<dyn Clock>, place: OwnedSemaphorePermit) -> Self {
        let moved_at = clock.monotonic();
        let idle = clock.sleep_until(moved_at.after(IDLE_LIMIT));
        Self { stream, clock, moved_at, idle, _place: place }
    }

    /// What to say for an operation that would block: pending, unless the connection is idle for too long.
    fn or_idle<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.moved_at = self.clock.monotonic();
            return outcome;
        }
        while self.idle.as_mut().poll(cx).is_ready() {
            // Armed once per limit and not once per byte; what moved meanwhile is looked at when it fires.
            let ends_at = self.moved_at.after(IDLE_LIMIT);
            if self.clock.monotonic() >= ends_at {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "nothing moved on the connection",
                )));
            }
            self.idle = self.clock.sleep_until(ends_at);
        }
        Poll::Pending
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.or_idle(cx, outcome)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.or_idle(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.or_idle(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// How many connections may be open: far more than one backend needs (two per instance it looks at), few enough for
/// the usual limit of descriptors. Further ones wait in the kernel's backlog until one ends.
const CONNECTIONS: usize = 512;

/// How long nothing may move. Event streams carry a heartbeat every few seconds; every other connection is one
/// exchange.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// After a failed accept, as when descriptors have run out: long enough not to spin, short enough not to be felt.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long answers that are on their way may take at the end.
const FAREWELL_WAIT: Duration = Duration::from_secs(2);
