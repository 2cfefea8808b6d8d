//! The control server: supervises agents and outlives the backend that started it.
//!
//! It takes one owner's orders over HTTP ([`run`] has the command line), keeps every event and every turn's outcome
//! until that owner says that it is stored, and stops everything when nobody has owned it for too long. Decisions are
//! in the cores (`ownership`, `instance_table`, `event_backlog`, `turn_outcome`, `permission`, `process_tree`), which
//! never wait; `instance`, `stream`, `serve` and `drive` carry them out through the seams.
//!
//! It does not store anything durable but its log, and it knows nothing of sessions beyond their ids.
#![forbid(unsafe_code)]

mod access;
pub mod agent_protocol;
mod calendar;
mod config;
mod drive;
mod event_backlog;
mod instance;
mod instance_table;
mod log_sink;
mod ownership;
mod permission;
mod process_tree;
mod routes;
mod serve;
mod server;
mod stream;
mod turn_outcome;

pub use drive::run;
pub use log_sink::{LogLayer, LogQueue, logging};
