//! Which credentials are acceptable, and what each of them may do.
//!
//! ```text
//!   vacant --handshake--> settled(0)
//!
//!   settled(n)  --rotate(credential n)----> replaced(n+1)   n may adopt and shut down, n+1 may do everything
//!   replaced(n) --rotate(credential n-1)--> replaced(n)     the same id and replacement once more
//!   replaced(n) --rotate(credential n)----> replaced(n+1)   n-1 is dead, confirmed or not
//!   replaced(n) --confirm(n)--------------> settled(n)      n-1 is dead
//!   any         --confirm(0..n)-----------> unchanged       confirm of an id above n: unknown
//! ```
//!
//! Never more than two credentials are acceptable, the newest and the one it directly superseded (O-002.8), and ids
//! only grow (O-002.6). Everything is decided here and at once; who may ask, and when, is [`crate::ownership`]'s.

use std::marker::PhantomData;

use subtle::ConstantTimeEq as _;
use wire::{Credential, RotationId};

/// The acceptable credentials of one server.
#[derive(Debug, Default)]
pub(crate) struct CredentialRotation {
    /// None before the handshake.
    newest: Option<Issued>,
    /// What the newest directly replaced; gone once that is confirmed.
    superseded: Option<Credential>,
}

#[derive(Clone, Debug)]
struct Issued {
    id: RotationId,
    credential: Credential,
}

/// What a presented credential is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authority<'a> {
    /// Everything: it is the newest.
    Driver(DrivenUnder<'a>),
    /// Another adoption attempt or the ownership shutdown: it was superseded by this rotation, which nobody confirmed
    /// yet (O-002.7).
    AdoptionOnly {
        /// The rotation that superseded it.
        latest: RotationId,
    },
    /// Nothing.
    None,
}

/// The newest rotation, and the proof that it still is: while this lives, nobody can rotate. Made by
/// [`CredentialRotation`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrivenUnder<'a> {
    rotation: RotationId,
    held: PhantomData<&'a CredentialRotation>,
}

impl DrivenUnder<'_> {
    /// The rotation.
    pub(crate) fn rotation(self) -> RotationId {
        self.rotation
    }
}

/// A replacement for the presented credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replacement {
    /// What the confirmation has to name.
    pub(crate) id: RotationId,
    /// The newest credential.
    pub(crate) credential: Credential,
    /// Whether it was issued before and is only told again (O-002.10).
    pub(crate) replayed: bool,
}

/// The presented credential buys no rotation: it was not issued by the newest one, nor directly superseded by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RotationRefused;

/// What a confirmation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// The superseded credential is dead from now on.
    Accepted,
    /// A repeat, or an older rotation: fine, and nothing changed.
    AcceptedNoEffect,
    /// Never issued: nothing changed.
    UnknownId,
}

impl CredentialRotation {
    /// Takes the handshake's credential as rotation 0.
    ///
    /// # Panics
    /// There was a handshake before: the caller uses its nonce up.
    pub(crate) fn handshake(&mut self, credential: Credential) -> RotationId {
        assert!(self.newest.is_none(), "one nonce buys one handshake");
        self.newest = Some(Issued { id: RotationId::HANDSHAKE, credential });
        RotationId::HANDSHAKE
    }

    /// What this credential may do. Both candidates are compared, whichever matches.
    pub(crate) fn authority(&self, presented: &Credential) -> Authority<'_> {
        let Some(newest) = &self.newest else { return Authority::None };
        let is_newest = newest.credential.ct_eq(presented);
        let is_superseded = self.superseded.as_ref().map(|superseded| superseded.ct_eq(presented));
        if is_newest.into() {
            return Authority::Driver(DrivenUnder { rotation: newest.id, held: PhantomData });
        }
        if is_superseded.is_some_and(bool::from) {
            return Authority::AdoptionOnly { latest: newest.id };
        }
        Authority::None
    }

    /// The newest rotation, if it is this one: a stale one is refused by comparison.
    pub(crate) fn still_newest(&self, rotation: RotationId) -> Option<DrivenUnder<'_>> {
        let newest = self.newest.as_ref()?;
        (newest.id == rotation).then_some(DrivenUnder { rotation, held: PhantomData })
    }

    /// Replaces the newest credential with `fresh`, or tells the unconfirmed replacement again, which leaves `fresh`
    /// unused (O-002.10).
    ///
    /// # Errors
    /// The credential buys nothing.
    ///
    /// # Panics
    /// `fresh` is acceptable already: then chance is broken, and no credential is one any more.
    pub(crate) fn rotate(
        &mut self,
        presented: &Credential,
        fresh: Credential,
    ) -> Result<Replacement, RotationRefused> {
        match self.authority(presented) {
            Authority::None => Err(RotationRefused),
            Authority::AdoptionOnly { .. } => {
                let newest = self.newest.clone().expect("only a newest credential supersedes another");
                Ok(Replacement { id: newest.id, credential: newest.credential, replayed: true })
            }
            Authority::Driver(newest) => {
                let id = newest.rotation().next();
                assert!(
                    self.authority(&fresh) == Authority::None,
                    "entropy never repeats an acceptable credential"
                );
                let issued = Issued { id, credential: fresh.clone() };
                // What was superseded before is dropped here, confirmed or not (O-002.8).
                self.superseded = self.newest.replace(issued).map(|replaced| replaced.credential);
                Ok(Replacement { id, credential: fresh, replayed: false })
            }
        }
    }

    /// The adopter has stored the replacement of this rotation (O-002.6).
    pub(crate) fn confirm(&mut self, id: RotationId) -> Confirmation {
        match &self.newest {
            Some(newest) if id == newest.id => match self.superseded.take() {
                Some(_) => Confirmation::Accepted,
                None => Confirmation::AcceptedNoEffect,
            },
            Some(newest) if id < newest.id => Confirmation::AcceptedNoEffect,
            Some(_) | None => Confirmation::UnknownId,
        }
    }

    /// The newest rotation's id, if there was a handshake.
    pub(crate) fn latest(&self) -> Option<RotationId> {
        self.newest.as_ref().map(|newest| newest.id)
    }

    /// Every acceptable credential, for the proof: none before the handshake, else one or two.
    pub(crate) fn acceptable(&self) -> impl Iterator<Item = &Credential> {
        self.newest.iter().map(|newest| &newest.credential).chain(&self.superseded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(number: u8) -> Credential {
        Credential::from_entropy([number; 32])
    }

    /// Shaken hands with credential 0, and rotated with each newest one up to this.
    fn rotated_to(number: u8) -> CredentialRotation {
        let mut rotation = CredentialRotation::default();
        rotation.handshake(credential(0));
        for next in 1..=number {
            rotation.rotate(&credential(next - 1), credential(next)).unwrap();
        }
        rotation
    }

    fn drives(rotation: &CredentialRotation, number: u8) -> bool {
        matches!(rotation.authority(&credential(number)), Authority::Driver(_))
    }

    fn only_adopts(rotation: &CredentialRotation, number: u8) -> bool {
        matches!(rotation.authority(&credential(number)), Authority::AdoptionOnly { .. })
    }

    #[test]
    fn before_the_handshake_nothing_is_acceptable_and_no_id_is_known() {
        let mut rotation = CredentialRotation::default();
        assert_eq!(Authority::None, rotation.authority(&credential(0)));
        assert_eq!(Err(RotationRefused), rotation.rotate(&credential(0), credential(1)));
        assert_eq!(Confirmation::UnknownId, rotation.confirm(RotationId(0)));
        assert_eq!((0, None), (rotation.acceptable().count(), rotation.latest()));
    }

    #[test]
    fn the_handshakes_credential_is_rotation_0_and_buys_rotation_1() {
        let mut rotation = rotated_to(0);
        let replacement = rotation.rotate(&credential(0), credential(1)).unwrap();
        assert_eq!(
            Replacement { id: RotationId(1), credential: credential(1), replayed: false },
            replacement
        );
    }

    #[test]
    fn a_superseded_credential_may_adopt_but_not_drive_until_the_confirmation_ends_it() {
        let mut rotation = rotated_to(1);
        assert!(only_adopts(&rotation, 0) && drives(&rotation, 1));
        assert_eq!(Confirmation::Accepted, rotation.confirm(RotationId(1)));
        assert_eq!(Authority::None, rotation.authority(&credential(0)));
        assert!(drives(&rotation, 1));
    }

    #[test]
    fn a_lost_reply_costs_nothing_the_same_replacement_is_told_again() {
        let mut rotation = rotated_to(1);
        for unused in 2..5 {
            let replacement = rotation.rotate(&credential(0), credential(unused)).unwrap();
            assert_eq!(
                Replacement { id: RotationId(1), credential: credential(1), replayed: true },
                replacement
            );
            assert_eq!(Authority::None, rotation.authority(&credential(unused)));
        }
    }

    #[test]
    fn once_confirmed_the_superseded_credential_buys_nothing() {
        let mut rotation = rotated_to(1);
        rotation.confirm(RotationId(1));
        assert_eq!(Err(RotationRefused), rotation.rotate(&credential(0), credential(2)));
        assert_eq!(Some(RotationId(1)), rotation.latest());
    }

    #[test]
    fn a_further_rotation_kills_the_one_before_the_last_confirmed_or_not() {
        let rotation = rotated_to(2);
        assert_eq!(Authority::None, rotation.authority(&credential(0)));
        assert!(only_adopts(&rotation, 1) && drives(&rotation, 2));
        assert_eq!(2, rotation.acceptable().count());
    }

    #[test]
    fn confirming_an_older_id_is_accepted_and_changes_nothing() {
        let mut rotation = rotated_to(2);
        for id in [0, 1] {
            assert_eq!(Confirmation::AcceptedNoEffect, rotation.confirm(RotationId(id)));
            assert!(only_adopts(&rotation, 1) && drives(&rotation, 2));
        }
    }

    #[test]
    fn repeating_the_newest_confirmation_is_accepted_and_changes_nothing_further() {
        let mut rotation = rotated_to(1);
        assert_eq!(Confirmation::Accepted, rotation.confirm(RotationId(1)));
        assert_eq!(Confirmation::AcceptedNoEffect, rotation.confirm(RotationId(1)));
        assert!(drives(&rotation, 1));
    }

    #[test]
    fn confirming_an_id_that_was_never_issued_is_rejected_and_changes_nothing() {
        let mut rotation = rotated_to(1);
        for id in [2, u64::MAX] {
            assert_eq!(Confirmation::UnknownId, rotation.confirm(RotationId(id)));
            assert!(only_adopts(&rotation, 0) && drives(&rotation, 1));
        }
    }

    #[test]
    #[should_panic(expected = "entropy never repeats an acceptable credential")]
    fn entropy_that_repeats_itself_ends_the_server_rather_than_hand_out_a_known_credential() {
        let _ = rotated_to(1).rotate(&credential(1), credential(0));
    }
}
