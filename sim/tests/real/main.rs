//! Real processes on a real machine: what people meet when something is in the way, broken, or killed.
//!
//! Each test has an installation of its own below a temporary directory, with ports from the operating system; it
//! waits for states and never for time, and leaves neither a process nor a file behind, also when it fails.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test's helpers panic as its tests do")]
#![expect(clippy::disallowed_methods, reason = "these tests are about the real world")]

mod agents;
mod damage;
mod ends;
mod full;
mod home;
mod kills;
mod leftovers;
mod lock;
mod log;
mod nested;
mod ports;
mod processes;
mod settings;
mod stage;
