//! The laws of the simulator, each with the test that fails without it.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bytes;
mod contract;
mod future;
mod hangs;
mod kills;
mod lives;
mod order;
mod repeat;
mod store;
mod support;
