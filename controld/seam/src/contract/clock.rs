//! What every clock keeps to.

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::soon;
use crate::{Elapsed, Monotonic, Seams, within};

/// The contract of [`Clock`](crate::Clock) and of [`within`].
pub async fn clock(seams: &Seams) {
    never_goes_back(seams).await;
    sleeps_until_due(seams).await;
    yields(seams).await;
    bounds_work(seams).await;
}

async fn never_goes_back(seams: &Seams) {
    let mut last = seams.clock.monotonic();
    for _ in 0..100 {
        let now = seams.clock.monotonic();
        assert!(now >= last, "the monotonic clock went back from {last:?} to {now:?}");
        last = now;
    }
    assert!(seams.clock.wall().unix_millis > 0, "the wall clock stands at its epoch");
}

async fn sleeps_until_due(seams: &Seams) {
    let clock = &seams.clock;
    soon(
        seams,
        "a sleep until a point in the past",
        clock.sleep_until(Monotonic::from_origin(Duration::ZERO)),
    )
    .await;
    soon(seams, "a sleep of no length", clock.sleep(Duration::ZERO)).await;

    let start = clock.monotonic();
    let (early, late) = (start.after(Duration::from_millis(5)), start.after(Duration::from_millis(20)));
    let (early_sleep, late_sleep) = (clock.sleep_until(early), clock.sleep_until(late));
    soon(seams, "the later sleep", late_sleep).await;
    assert!(clock.monotonic() >= late, "a sleep ended before it was due");
    let reached = clock.monotonic();
    soon(seams, "a sleep that is already due", early_sleep).await;
    assert!(reached >= early, "the clock stands before a point that it has passed");

    // A sleep begins when it is asked for, not when it is first awaited.
    let sleep = clock.sleep(Duration::from_millis(10));
    clock.sleep(Duration::from_millis(20)).await;
    let before = clock.monotonic();
    soon(seams, "a sleep whose time passed before it was awaited", sleep).await;
    assert!(clock.monotonic() >= before);

    // So far away that a naive addition would overflow.
    let never = clock.sleep_until(Monotonic::from_origin(Duration::MAX));
    assert_eq!(within(clock.as_ref(), Duration::from_millis(10), never).await, Err(Elapsed));
}

async fn yields(seams: &Seams) {
    let ran = Arc::new(AtomicBool::new(false));
    let other = Arc::clone(&ran);
    let task = tokio::spawn(async move { other.store(true, Ordering::SeqCst) });
    soon(seams, "another ready task, while this one only yields", async {
        while !ran.load(Ordering::SeqCst) {
            seams.clock.yield_now().await;
        }
    })
    .await;
    task.await.expect("the task does not panic");
}

async fn bounds_work(seams: &Seams) {
    let clock = seams.clock.as_ref();
    assert_eq!(within(clock, Duration::ZERO, ready(7)).await, Ok(7), "finished work wins over its bound");
    assert_eq!(within(clock, Duration::from_secs(3600), ready(7)).await, Ok(7));

    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = Dropped(Arc::clone(&dropped));
    let limit = Duration::from_millis(10);
    let start = clock.monotonic();
    let outcome = within(clock, limit, async move {
        let _guard = guard;
        pending::<()>().await;
    })
    .await;
    assert_eq!(outcome, Err(Elapsed));
    assert!(clock.monotonic().since(start) >= limit, "the bound passed before its time");
    assert!(dropped.load(Ordering::SeqCst), "work that did not finish is dropped");
}
