//! The laws of the simulator, each with the test that fails without it.
#![forbid(unsafe_code)]

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
