//! Time: a monotonic clock for deadlines, a wall clock for records.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::BoxFuture;

/// A point on this process's monotonic clock. Comparable only within one process lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(Duration);

impl Monotonic {
    /// The point `since_origin` after the clock's arbitrary origin.
    pub const fn from_origin(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// How long after the clock's arbitrary origin this point lies.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to this point, zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The point `later` after this one; stays at the far end instead of overflowing.
    pub fn after(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

/// A point in calendar time, in milliseconds since the Unix epoch. For records and people, never for deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wall {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub unix_millis: u64,
}

/// The two clocks of a process, and waiting on the monotonic one.
pub trait Clock: Send + Sync + 'static {
    /// Now, on the monotonic clock.
    fn monotonic(&self) -> Monotonic;

    /// Now, on the wall clock. May jump either way.
    fn wall(&self) -> Wall;

    /// Resolves once the monotonic clock has reached `until`; at once if it already has.
    fn sleep_until(&self, until: Monotonic) -> BoxFuture<'static, ()>;

    /// Lets every other ready task of this process run before the caller goes on.
    fn yield_now(&self) -> BoxFuture<'static, ()>;

    /// Resolves after `length` of monotonic time.
    fn sleep(&self, length: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.monotonic().after(length))
    }
}

/// The work did not finish within its bound; it was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl std::fmt::Display for Elapsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("did not finish within its bound")
    }
}

impl std::error::Error for Elapsed {}

/// Runs `work` for at most `limit`. The work is polled first, so that finished work always wins over its bound.
///
/// # Errors
/// [`Elapsed`] if the limit passed first; the work is then dropped.
pub async fn within<T>(
    clock: &dyn Clock,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    let mut work = pin!(work);
    let mut bound = clock.sleep(limit);
    poll_fn(|cx| {
        if let Poll::Ready(value) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        bound.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}
