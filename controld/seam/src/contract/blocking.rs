//! What everybody who runs blocking work keeps to.

use std::sync::{Arc, Mutex};

use super::soon;
use crate::{Seams, block};

/// The contract of [`Blocking`](crate::Blocking) and of [`block`].
pub async fn blocking(seams: &Seams) {
    let blocking = seams.blocking.as_ref();
    assert_eq!(soon(seams, "a value from blocking work", block(blocking, || 6 * 7)).await, 42);

    let order = Arc::new(Mutex::new(Vec::new()));
    let mut handed_in = Vec::new();
    for number in 0..50_u32 {
        let order = Arc::clone(&order);
        let work = blocking.run(Box::new(move || {
            order.lock().expect("no work panics").push(number);
        }));
        // Every second future is dropped at once: its work runs all the same, and in its turn.
        if number % 2 == 0 {
            handed_in.push(work);
        }
    }
    // Awaited in the wrong order, which changes nothing.
    for work in handed_in.into_iter().rev() {
        soon(seams, "blocking work", work).await;
    }
    soon(seams, "the last blocking work", block(blocking, || ())).await;
    let order = order.lock().expect("no work panics").clone();
    assert_eq!(
        order,
        (0..50).collect::<Vec<_>>(),
        "works run one at a time, in the order they were handed in"
    );
}
