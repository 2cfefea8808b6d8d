//! The real clocks.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use seam::{BoxFuture, Clock, Monotonic, Wall};

/// The kernel's monotonic and wall clocks. The monotonic one starts when it is first read in this process.
#[derive(Clone, Copy, Debug)]
pub struct RealClock;

impl Clock for RealClock {
    #[expect(clippy::disallowed_methods, reason = "the Clock seam itself")]
    fn monotonic(&self) -> Monotonic {
        let origin = origin();
        Monotonic::from_origin(Instant::now().saturating_duration_since(origin))
    }

    #[expect(clippy::disallowed_methods, reason = "the Clock seam itself")]
    fn wall(&self) -> Wall {
        // A clock that stands before 1970 tells nothing; the epoch is as good.
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Wall { unix_millis: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX) }
    }

    #[expect(clippy::disallowed_methods, reason = "the Clock seam itself")]
    fn sleep_until(&self, until: Monotonic) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let until = origin() + until.since_origin().min(FAR_AWAY);
            tokio::time::sleep_until(until.into()).await;
        })
    }

    #[expect(clippy::disallowed_methods, reason = "the Clock seam itself")]
    fn yield_now(&self) -> BoxFuture<'static, ()> {
        Box::pin(tokio::task::yield_now())
    }
}

/// One for the whole process, so that points of two clocks can be compared.
#[expect(clippy::disallowed_methods, reason = "the Clock seam itself")]
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// A hundred years: `Instant` overflows somewhere beyond, and nobody waits so long.
const FAR_AWAY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
