//! One thread for work that blocks.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;

use seam::{Blocking, BoxFuture};
use tokio::sync::oneshot;

/// A dedicated thread that runs works one after another, in the order they were handed in.
///
/// The queue has no bound of its own: each caller waits for its work, so that there are never more works than
/// tasks. The thread ends when this is dropped and the queue is empty.
#[derive(Debug)]
pub struct RealBlocking {
    queue: mpsc::Sender<Job>,
}

/// A work, and where its end is told.
struct Job {
    work: Box<dyn FnOnce() + Send>,
    done: oneshot::Sender<Result<(), Box<dyn Any + Send>>>,
}

impl RealBlocking {
    /// Starts the thread.
    ///
    /// # Panics
    /// If the kernel gives no thread.
    #[expect(clippy::new_without_default, reason = "a thread is not started by default")]
    pub fn new() -> Self {
        let (queue, jobs) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("blocking".to_owned())
            .spawn(move || {
                for job in jobs {
                    // A work that panics takes down who waits for it, and not the works behind it.
                    let outcome = catch_unwind(AssertUnwindSafe(job.work));
                    // Nobody may be waiting any more; the work is done all the same.
                    let _ = job.done.send(outcome);
                }
            })
            .expect("the kernel gives one more thread at start-up");
        Self { queue }
    }
}

impl Blocking for RealBlocking {
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let (done, ended) = oneshot::channel();
        // Handed in now and not when first polled: the order of the calls is the order of the works.
        self.queue.send(Job { work, done }).expect("the thread lives as long as its queue");
        Box::pin(async move {
            match ended.await.expect("the thread tells the end of every work") {
                Ok(()) => {}
                Err(panic) => resume_unwind(panic),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_work_that_panics_takes_down_its_caller_alone() {
        let blocking = std::sync::Arc::new(RealBlocking::new());
        let failing = std::sync::Arc::clone(&blocking);
        let caller = tokio::spawn(async move { failing.run(Box::new(|| panic!("on purpose"))).await });
        assert!(caller.await.unwrap_err().is_panic());
        assert_eq!(seam::block(blocking.as_ref(), || 3).await, 3);
    }
}
