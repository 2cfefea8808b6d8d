//! Work that blocks a thread.

use std::sync::{Arc, Mutex};

use crate::BoxFuture;

/// Runs blocking work where it stops nobody else: on a thread of its own in production, inline in simulation.
pub trait Blocking: Send + Sync + 'static {
    /// Runs `work` to its end, even if the returned future is dropped. Works are run in the order they were
    /// handed in, one at a time.
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()>;
}

/// Runs `work` through the seam and gives its result.
pub async fn block<T: Send + 'static>(
    blocking: &dyn Blocking,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let slot = Arc::new(Mutex::new(None));
    let filled = Arc::clone(&slot);
    blocking
        .run(Box::new(move || {
            let value = work();
            *filled.lock().expect("nobody panics while filling the slot") = Some(value);
        }))
        .await;
    slot.lock()
        .expect("nobody panics while filling the slot")
        .take()
        .expect("Blocking::run resolves only after the work has run")
}
