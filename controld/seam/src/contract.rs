//! One contract test per seam, run against the real implementation and against the simulated one.
//!
//! Each function asserts what its trait documents, failures included, and panics where the implementation
//! breaks it. None assumes a speed: they wait for states, through the [`Clock`](crate::Clock), with a bound
//! that only a hang reaches. Nothing stays behind, also when one panics: every process that is started here
//! ends when its standard input does, and that ends with whoever holds the other side.

mod blocking;
mod child;
mod clock;
mod descendants;
mod disk;
mod entropy;
mod host_facts;
mod network;
mod processes;
mod secret_store;

use std::future::Future;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

pub use blocking::blocking;
pub use child::{ContractChild, child_program};
pub use clock::clock;
pub use descendants::descendants;
pub use disk::{disk, lock_across_processes};
pub use entropy::entropy;
pub use host_facts::host_facts;
pub use network::network;
pub use processes::processes;
pub use secret_store::secret_store;

use crate::{Seams, within};

/// Waits for `work`; panics naming `what` if it does not end.
async fn soon<T>(seams: &Seams, what: &str, work: impl Future<Output = T>) -> T {
    match within(seams.clock.as_ref(), PATIENCE, work).await {
        Ok(value) => value,
        Err(_) => panic!("still waiting: {what}"),
    }
}

/// Asks again and again until `state` holds; panics naming `what` if it never does.
async fn until<F: Future<Output = bool>>(seams: &Seams, what: &str, mut state: impl FnMut() -> F) {
    soon(seams, what, async {
        while !state().await {
            seams.clock.sleep(POLL).await;
        }
    })
    .await;
}

/// Asserts that `work` is not finished after a moment. A slow machine can only make this pass.
async fn pending<T>(seams: &Seams, what: &str, work: impl Future<Output = T>) {
    assert!(within(seams.clock.as_ref(), MOMENT, work).await.is_err(), "{what}: ended, but should wait");
}

/// Reads one line, without its end.
async fn line(stream: &mut (impl AsyncRead + Unpin + ?Sized)) -> String {
    let mut bytes = Vec::new();
    loop {
        match stream.read_u8().await {
            Ok(b'\n') => break,
            Ok(byte) => bytes.push(byte),
            Err(error) => panic!("the stream ended after {:?}: {error}", String::from_utf8_lossy(&bytes)),
        }
    }
    String::from_utf8(bytes).expect("the contract writes Unicode")
}

/// Reads to the end.
async fn rest(stream: &mut (impl AsyncRead + Unpin + ?Sized)) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.expect("the stream ends cleanly");
    bytes
}

/// `length` bytes of a pattern whose period fits no buffer size, so that a lost or doubled piece shows.
fn pattern(start: usize, length: usize) -> Vec<u8> {
    (start..start + length).map(pattern_byte).collect()
}

/// The pattern's byte at `offset`.
fn pattern_byte(offset: usize) -> u8 {
    u8::try_from(offset % 251).expect("below 251")
}

/// Reached only by a hang: a loaded two-core machine starts a process in well under a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at a state.
const POLL: Duration = Duration::from_millis(5);

/// How long something must stay pending to count as waiting.
const MOMENT: Duration = Duration::from_millis(50);
