//! The control server: supervises agents and outlives the backend that started it.
//!
//! It takes one owner's orders over HTTP ([`run`] has the command line), keeps every event and every turn's outcome
//! until that owner says that it is stored, and stops everything when nobody has owned it for too long. Decisions are
//! in the cores (`ownership`, `credential_rotation`, `stream_fencing`, `instance_table`, `event_backlog`,
//! `turn_outcome`, `permission`, `process_tree`), which never wait; `instance`, `stream`, `serve` and `drive` carry them out through the seams.
//!
//! It does not store anything durable but its log, and it knows nothing of sessions beyond their ids.
#![forbid(unsafe_code)]

mod access;
#[cfg(test)]
mod adoption_interruptions;
pub mod agent_protocol;
mod config;
mod credential_rotation;
mod drive;
mod event_backlog;
mod idle;
mod instance;
mod instance_table;
mod log_sink;
mod ownership;
#[cfg(test)]
mod ownership_model;
mod permission;
mod process_tree;
mod routes;
mod serve;
mod server;
mod stream;
mod stream_fencing;
mod turn_outcome;
mod unowned_period;

pub use drive::{run, run_with};
pub use log_sink::{LogLayer, LogQueue, logging};
