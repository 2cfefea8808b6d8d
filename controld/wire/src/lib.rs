//! Every value that crosses a socket of the control server, and the client that sends them.
//!
//! The values are JSON. Unknown fields are ignored and unknown event kinds are kept and passed on, so that a
//! backend and a control server of different builds understand each other; what a build wrote once must decode
//! for ever.
#![forbid(unsafe_code)]

pub mod client;
mod credential;
pub mod http;
pub mod proof;
mod rotation;
mod value;

pub use credential::*;
pub use rotation::*;
pub use value::*;
