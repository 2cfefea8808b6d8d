//! The control server: supervises agents and outlives the backend that started it.
#![forbid(unsafe_code)]

pub mod agent_protocol;
