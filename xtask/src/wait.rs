//! Waiting for something outside, until the user interrupts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cargo::Failed;

/// Asks `attempt` again and again until it gives something, the limit passes or the user interrupts.
pub(crate) fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T, Failed> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = attempt() {
            return Ok(found);
        }
        check_interrupt()?;
        if Instant::now() > deadline {
            return Err(Failed(format!("{what} did not happen within {limit:?}")));
        }
        std::thread::sleep(POLL);
    }
}

/// From now on Ctrl-C and SIGTERM no longer end this process but make the next wait fail, so that it cleans up.
pub(crate) fn catch_interrupt() -> Result<(), Failed> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst))
        .map_err(|error| Failed(format!("Ctrl-C cannot be caught: {error}")))
}

/// Fails if the user interrupted.
pub(crate) fn check_interrupt() -> Result<(), Failed> {
    if INTERRUPTED.load(Ordering::SeqCst) { Err(Failed("interrupted".to_owned())) } else { Ok(()) }
}

/// Between two looks: small beside what is measured with it.
pub(crate) const POLL: Duration = Duration::from_millis(2);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
