//! Which event and workspace streams are open, and under which rotation (O-002.2).
//!
//! ```text
//!   open(driver, subscribe) ---> open under the newest rotation ---> forget: it ended by itself
//!                                        |
//!                                        +---> fence: a newer rotation; handed back to be closed
//! ```
//!
//! Opening takes a [`DrivenUnder`], which borrows the rotation: between the accept check and the subscription nobody
//! can rotate, so a stream of a superseded credential cannot come in late. Fencing gives every older stream back at
//! once; the caller ends them before it answers the adopter. Ids are never reused: forgetting a stream twice, or after
//! it was fenced, changes nothing.

use std::collections::BTreeMap;

use wire::RotationId;

use crate::credential_rotation::DrivenUnder;

/// The open streams; `S` is whatever ends one.
#[derive(Debug)]
pub(crate) struct StreamFence<S> {
    open: BTreeMap<StreamId, OpenStream<S>>,
    next: u64,
}

#[derive(Debug)]
struct OpenStream<S> {
    rotation: RotationId,
    stream: S,
}

/// One stream in this server's lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamId(u64);

/// So many streams are open that nobody can be reading them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyStreams;

impl<S> StreamFence<S> {
    /// No streams.
    pub(crate) fn new() -> Self {
        Self { open: BTreeMap::new(), next: 1 }
    }

    /// Subscribes a driver. `subscribe` runs only if the stream is taken.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn open(
        &mut self,
        driver: DrivenUnder<'_>,
        subscribe: impl FnOnce() -> S,
    ) -> Result<StreamId, TooManyStreams> {
        if self.open.len() >= STREAMS {
            return Err(TooManyStreams);
        }
        let id = StreamId(self.next);
        self.next += 1;
        self.open.insert(id, OpenStream { rotation: driver.rotation(), stream: subscribe() });
        Ok(id)
    }

    /// Takes out every stream that was opened under an older rotation than this, in the order in which they came.
    pub(crate) fn fence(&mut self, newest: RotationId) -> Vec<(StreamId, S)> {
        let superseded = self.open.extract_if(.., |_, open| open.rotation < newest);
        superseded.map(|(id, open)| (id, open.stream)).collect()
    }

    /// A stream ended by itself. Fine if it is not open any more.
    pub(crate) fn forget(&mut self, id: StreamId) -> Option<S> {
        self.open.remove(&id).map(|open| open.stream)
    }

    /// The open streams with the rotation of each, in the order in which they came.
    pub(crate) fn all(&self) -> impl Iterator<Item = (StreamId, RotationId)> {
        self.open.iter().map(|(id, open)| (*id, open.rotation))
    }
}

/// An event and a workspace stream for each instance that a table can hold: a newer stream of a kind replaces an
/// older one, so that more are streams that leaked.
const STREAMS: usize = 2 * 4096;

#[cfg(test)]
mod tests {
    use wire::Credential;

    use super::*;
    use crate::credential_rotation::{Authority, CredentialRotation};

    fn credential(number: u8) -> Credential {
        Credential::from_entropy([number; 32])
    }

    fn driver(rotation: &CredentialRotation, number: u8) -> DrivenUnder<'_> {
        match rotation.authority(&credential(number)) {
            Authority::Driver(driver) => driver,
            other => panic!("credential {number} does not drive: {other:?}"),
        }
    }

    fn shaken_hands() -> CredentialRotation {
        let mut rotation = CredentialRotation::default();
        rotation.handshake(credential(0));
        rotation
    }

    #[test]
    fn a_rotation_hands_back_every_stream_of_the_superseded_credential_and_no_other() {
        let (mut rotation, mut fence) = (shaken_hands(), StreamFence::new());
        let first = fence.open(driver(&rotation, 0), || "events").unwrap();
        let second = fence.open(driver(&rotation, 0), || "workspace").unwrap();
        let newest = rotation.rotate(&credential(0), credential(1)).unwrap().id;
        assert_eq!(vec![(first, "events"), (second, "workspace")], fence.fence(newest));
        let third = fence.open(driver(&rotation, 1), || "adopter's").unwrap();
        assert_eq!(Vec::<(StreamId, &str)>::new(), fence.fence(newest));
        assert_eq!(vec![(third, RotationId(1))], fence.all().collect::<Vec<_>>());
    }

    #[test]
    fn forgetting_a_stream_twice_or_after_it_was_fenced_changes_nothing() {
        let (mut rotation, mut fence) = (shaken_hands(), StreamFence::new());
        let ended = fence.open(driver(&rotation, 0), || ()).unwrap();
        let fenced = fence.open(driver(&rotation, 0), || ()).unwrap();
        assert_eq!((Some(()), None), (fence.forget(ended), fence.forget(ended)));
        fence.fence(rotation.rotate(&credential(0), credential(1)).unwrap().id);
        let newer = fence.open(driver(&rotation, 1), || ()).unwrap();
        assert_eq!(None, fence.forget(fenced));
        assert_eq!(vec![newer], fence.all().map(|(id, _)| id).collect::<Vec<_>>());
    }

    #[test]
    fn at_the_bound_nothing_is_subscribed_and_an_end_makes_room() {
        let (rotation, mut fence) = (shaken_hands(), StreamFence::new());
        let first = fence.open(driver(&rotation, 0), || ()).unwrap();
        for _ in 1..STREAMS {
            fence.open(driver(&rotation, 0), || ()).unwrap();
        }
        assert_eq!(Err(TooManyStreams), fence.open(driver(&rotation, 0), || panic!("subscribed")));
        fence.forget(first);
        assert!(fence.open(driver(&rotation, 0), || ()).is_ok());
    }
}
