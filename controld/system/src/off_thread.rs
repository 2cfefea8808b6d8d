//! Calls into the kernel that may take their time, away from the runtime's own threads.

use std::panic::resume_unwind;

/// Runs `work` on the runtime's pool of blocking threads. It runs to its end even if nobody waits any more.
#[expect(clippy::disallowed_methods, reason = "this crate is what the rule sends everybody else to")]
pub(crate) async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is shutting down and drops this very task next.
            Err(_) => std::future::pending().await,
        },
    }
}
