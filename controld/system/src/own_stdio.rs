//! This process's standard streams.
//!
//! A pipe is read and written through the runtime's event loop. Other things (terminals, files) go through
//! tokio's threads, whose drawback is that a read which never returns delays the end of the runtime.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use seam::{ChildInput, ChildOutput, OwnStdio};
use tokio::net::unix::pipe;

/// The three streams.
///
/// # Panics
/// When called a second time in this process, or outside a runtime.
pub(crate) fn own_stdio() -> OwnStdio {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    assert!(!TAKEN.swap(true, Ordering::SeqCst), "the standard streams are asked for once");
    let stdin: ChildOutput = match reopened(0, OFlags::RDONLY).and_then(pipe::Receiver::from_owned_fd) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(tokio::io::stdin()),
    };
    let stdout: ChildInput = match reopened(1, OFlags::WRONLY).and_then(pipe::Sender::from_owned_fd) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(tokio::io::stdout()),
    };
    let stderr: ChildInput = match reopened(2, OFlags::WRONLY).and_then(pipe::Sender::from_owned_fd) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(tokio::io::stderr()),
    };
    OwnStdio { stdin, stdout, stderr }
}

/// The pipe behind a descriptor, opened a second time. Unlike a duplicate it has flags of its own: that it does
/// not block stays between it and us, and does not surprise whoever else holds the same pipe.
fn reopened(descriptor: u32, access: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{descriptor}");
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::stat(&path)?.st_mode);
    if kind != rustix::fs::FileType::Fifo {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a pipe"));
    }
    Ok(rustix::fs::open(&path, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "the standard streams are asked for once")]
    async fn a_second_call_panics() {
        let _first = own_stdio();
        let _second = own_stdio();
    }
}
