//! Who may drive this server, and what happens when nobody does.
//!
//! ```text
//!                 handshake, claim, rotation: the renewal instant
//!   unclaimed ---------------------------------------------------> owned
//!       |                                                            |
//!       |  age of the renewal >= unowned period, an ownership        |
//!       +--------- shutdown, a signal, the launcher's end -----------+----> shutting down, for good
//! ```
//!
//! Exactly three operations set the renewal instant: the handshake, the claim and the rotation, its replay included
//! (O-003.8). Every operation first judges the age, in the same `&mut self` step (O-003.9): a claim strictly before
//! the expiry prevents it, one at or after it finds the server shutting down. The clock is the caller's monotonic one
//! (O-003.3); a reading that arrives late never takes a newer renewal back.
//!
//! The caller keeps this behind one lock, which makes each method one atomic step: an operation's accept check and its
//! effect here, a stream's accept check and its subscription (O-002.2), a rotation and the end of the older streams.
//! Not here: what a shutdown does, and which credential is which, that is [`crate::credential_rotation`].

use std::fmt;
use std::time::Duration;

use seam::Monotonic;
use secrecy::{ExposeSecret as _, SecretString};
use subtle::ConstantTimeEq as _;
use wire::proof::{Binding, Challenge, ProofAnswer};
use wire::{Credential, RotationId};

use crate::access::Access;
use crate::credential_rotation::{Authority, Confirmation, CredentialRotation, Replacement, RotationRefused};
use crate::stream_fencing::{StreamFence, StreamId, TooManyStreams};

/// The ownership of one server; `S` is whatever ends one of its streams.
pub(crate) struct Ownership<S> {
    /// Taken by the first handshake that knows it.
    nonce: Option<SecretString>,
    rotation: CredentialRotation,
    streams: StreamFence<S>,
    unowned_period: Duration,
    renewed_at: Monotonic,
    shutting_down: Option<ShutdownReason>,
}

/// Why the server shuts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownReason {
    /// Nobody renewed ownership for the whole unowned period (O-003.1).
    Unowned,
    /// An owner asked for it (O-002.9).
    Asked,
    /// An operator sent SIGTERM or SIGINT.
    Signalled,
    /// Its launcher went away and had asked not to be outlived.
    LauncherGone,
}

impl ShutdownReason {
    /// For logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unowned => "unowned",
            Self::Asked => "asked",
            Self::Signalled => "signalled",
            Self::LauncherGone => "launcher gone",
        }
    }
}

/// Who was let through, for operations that go on later. Says nothing about now: [`Ownership::open_stream`] and
/// [`Ownership::still_drives`] judge it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// The route is open.
    Anybody,
    /// The holder of the credential that this rotation superseded.
    Adopter(RotationId),
    /// The holder of this rotation's credential.
    Driver(RotationId),
}

impl fmt::Display for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anybody => f.write_str("anybody"),
            Self::Adopter(latest) => write!(f, "superseded by {latest}"),
            Self::Driver(rotation) => write!(f, "driver {rotation}"),
        }
    }
}

/// An adoption's first step (O-002.7).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rotated<S> {
    /// For the adopter.
    pub(crate) replacement: Replacement,
    /// To be ended before the adopter gets its answer (O-002.2).
    pub(crate) superseded_streams: Vec<(StreamId, S)>,
}

/// Why a caller may not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AdmissionRefused {
    /// No credential, or not an acceptable one.
    #[error("this needs the credential of the owning backend")]
    Unauthorized,
    /// Another backend has adopted this server: drop what belongs to it and adopt again (O-002.3).
    #[error("another backend has adopted this server with rotation {latest}")]
    CredentialSuperseded {
        /// The newest rotation.
        latest: RotationId,
    },
    /// The nonce is wrong or was used before.
    #[error("the nonce is wrong or was used before")]
    HandshakeRefused,
    /// No rotation of that id was ever issued (O-002.6).
    #[error("rotation {0} was never issued")]
    UnknownRotation(RotationId),
    /// So many streams are open that they must have leaked.
    #[error("too many streams are open")]
    TooManyStreams,
    /// The decision to shut down has been taken.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl<S> Ownership<S> {
    /// Nobody's yet; the period runs from `now`, the process's start (O-003.8).
    pub(crate) fn new(now: Monotonic, nonce: SecretString, unowned_period: Duration) -> Self {
        Self {
            nonce: Some(nonce),
            rotation: CredentialRotation::default(),
            streams: StreamFence::new(),
            unowned_period,
            renewed_at: now,
            shutting_down: None,
        }
    }

    /// The launcher's nonce buys the first credential, `fresh`, once. A wrong nonce uses nothing up.
    pub(crate) fn handshake(
        &mut self,
        now: Monotonic,
        nonce: &str,
        fresh: Credential,
    ) -> Result<Credential, AdmissionRefused> {
        self.expire(now);
        self.refuse_if_shutting_down()?;
        if !self.nonce.as_ref().is_some_and(|known| same_secret(known, nonce)) {
            return Err(AdmissionRefused::HandshakeRefused);
        }
        self.nonce = None;
        self.rotation.handshake(fresh.clone());
        self.renew(now);
        Ok(fresh)
    }

    /// Demonstrates every acceptable credential (O-001.10), and the nonce while it is worth something. Open to anybody;
    /// renews nothing.
    pub(crate) fn prove(
        &mut self,
        now: Monotonic,
        challenge: &Challenge,
        binding: Binding<'_>,
    ) -> Result<ProofAnswer, AdmissionRefused> {
        self.expire(now);
        self.refuse_if_shutting_down()?;
        // Until the handshake the launcher has nothing else to know its child by.
        let nonce = self.nonce.as_ref().map(Credential::of_nonce);
        Ok(ProofAnswer::new(challenge, self.rotation.acceptable().chain(&nonce), binding))
    }

    /// Whether a caller who presents this may use a route with this access. Renews nothing.
    pub(crate) fn admit(
        &mut self,
        now: Monotonic,
        access: Access,
        presented: Option<&Credential>,
    ) -> Result<Admitted, AdmissionRefused> {
        self.expire(now);
        match access {
            Access::Open => Ok(Admitted::Anybody),
            Access::Driver => self.driver(presented).map(Admitted::Driver),
            // While shutting down too: the ownership shutdown is repeated until the server is gone (ruling 3).
            Access::AdoptionOnly => match self.authority(presented) {
                Authority::Driver(driver) => Ok(Admitted::Driver(driver.rotation())),
                Authority::AdoptionOnly { latest } => Ok(Admitted::Adopter(latest)),
                Authority::None => Err(AdmissionRefused::Unauthorized),
            },
        }
    }

    /// Establishes or renews ownership (O-003.8).
    pub(crate) fn claim(
        &mut self,
        now: Monotonic,
        presented: Option<&Credential>,
    ) -> Result<(), AdmissionRefused> {
        self.expire(now);
        self.driver(presented)?;
        self.renew(now);
        Ok(())
    }

    /// Replaces the presented credential with `fresh`, or tells its unconfirmed replacement again. Either renews
    /// (O-003.8), and no stream of an older credential is registered any more.
    pub(crate) fn rotate(
        &mut self,
        now: Monotonic,
        presented: Option<&Credential>,
        fresh: Credential,
    ) -> Result<Rotated<S>, AdmissionRefused> {
        self.expire(now);
        let presented = presented.ok_or(AdmissionRefused::Unauthorized)?;
        // Whoever may not ask at all does not learn what state the server is in.
        if self.rotation.authority(presented) == Authority::None {
            return Err(AdmissionRefused::Unauthorized);
        }
        self.refuse_if_shutting_down()?;
        let replacement = self
            .rotation
            .rotate(presented, fresh)
            .map_err(|RotationRefused| AdmissionRefused::Unauthorized)?;
        self.renew(now);
        let superseded_streams = self.streams.fence(replacement.id);
        Ok(Rotated { replacement, superseded_streams })
    }

    /// The driver has stored the replacement of this rotation: its predecessor is dead (O-002.6). True if that is this
    /// call's doing. Renews nothing.
    pub(crate) fn confirm(
        &mut self,
        now: Monotonic,
        presented: Option<&Credential>,
        id: RotationId,
    ) -> Result<bool, AdmissionRefused> {
        self.expire(now);
        self.driver(presented)?;
        match self.rotation.confirm(id) {
            Confirmation::Accepted => Ok(true),
            Confirmation::AcceptedNoEffect => Ok(false),
            Confirmation::UnknownId => Err(AdmissionRefused::UnknownRotation(id)),
        }
    }

    /// Registers and subscribes a stream, unless its caller has been superseded since it was admitted (O-002.2).
    pub(crate) fn open_stream(
        &mut self,
        now: Monotonic,
        admitted: Admitted,
        subscribe: impl FnOnce() -> S,
    ) -> Result<StreamId, AdmissionRefused> {
        self.expire(now);
        self.refuse_if_superseded(admitted)?;
        self.refuse_if_shutting_down()?;
        let Admitted::Driver(rotation) = admitted else { return Err(AdmissionRefused::Unauthorized) };
        let driver = self.rotation.still_newest(rotation).expect("it was not superseded a line ago");
        self.streams.open(driver, subscribe).map_err(|TooManyStreams| AdmissionRefused::TooManyStreams)
    }

    /// A stream ended by itself. Fine if it was fenced or forgotten before.
    pub(crate) fn forget_stream(&mut self, id: StreamId) {
        self.streams.forget(id);
    }

    /// Whether a driver who was admitted before still is one: for operations that wait between their accept check and
    /// their effect.
    pub(crate) fn still_drives(
        &mut self,
        now: Monotonic,
        admitted: Admitted,
    ) -> Result<(), AdmissionRefused> {
        self.expire(now);
        self.refuse_if_superseded(admitted)?;
        self.refuse_if_shutting_down()
    }

    /// The ownership shutdown: any acceptable credential, as often as it likes (O-002.9). The first reason stays.
    pub(crate) fn ask_to_shut_down(
        &mut self,
        now: Monotonic,
        presented: Option<&Credential>,
    ) -> Result<ShutdownReason, AdmissionRefused> {
        self.admit(now, Access::AdoptionOnly, presented)?;
        Ok(self.shut_down(now, ShutdownReason::Asked))
    }

    /// Decides to shut down, for good. The first reason stays.
    pub(crate) fn shut_down(&mut self, now: Monotonic, reason: ShutdownReason) -> ShutdownReason {
        self.expire(now);
        *self.shutting_down.get_or_insert(reason)
    }

    /// Judges the age, and gives the reason if the server is shutting down. Early, late and repeated calls are fine.
    pub(crate) fn check(&mut self, now: Monotonic) -> Option<ShutdownReason> {
        self.expire(now);
        self.shutting_down
    }

    /// When the age has to be judged next. Nothing is left to judge once the server is shutting down.
    pub(crate) fn next_deadline(&self) -> Option<Monotonic> {
        self.shutting_down.is_none().then(|| self.expires_at())
    }

    /// The newest rotation, once there was a handshake.
    pub(crate) fn latest_rotation(&self) -> Option<RotationId> {
        self.rotation.latest()
    }

    /// The open streams with the rotation of each.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (StreamId, RotationId)> {
        self.streams.all()
    }

    /// The rotation that this credential drives under.
    fn driver(&self, presented: Option<&Credential>) -> Result<RotationId, AdmissionRefused> {
        let rotation = match self.authority(presented) {
            Authority::Driver(driver) => driver.rotation(),
            Authority::AdoptionOnly { latest } => {
                return Err(AdmissionRefused::CredentialSuperseded { latest });
            }
            // Whoever may not ask at all does not learn what state the server is in.
            Authority::None => return Err(AdmissionRefused::Unauthorized),
        };
        self.refuse_if_shutting_down()?;
        Ok(rotation)
    }

    fn authority(&self, presented: Option<&Credential>) -> Authority<'_> {
        presented.map_or(Authority::None, |presented| self.rotation.authority(presented))
    }

    fn refuse_if_superseded(&self, admitted: Admitted) -> Result<(), AdmissionRefused> {
        let latest = self.rotation.latest().ok_or(AdmissionRefused::Unauthorized)?;
        match admitted {
            Admitted::Driver(rotation) if rotation == latest => Ok(()),
            Admitted::Driver(_) | Admitted::Adopter(_) => {
                Err(AdmissionRefused::CredentialSuperseded { latest })
            }
            Admitted::Anybody => Err(AdmissionRefused::Unauthorized),
        }
    }

    fn refuse_if_shutting_down(&self) -> Result<(), AdmissionRefused> {
        if self.shutting_down.is_some() { Err(AdmissionRefused::ShuttingDown) } else { Ok(()) }
    }

    fn renew(&mut self, now: Monotonic) {
        self.renewed_at = self.renewed_at.max(now);
    }

    fn expires_at(&self) -> Monotonic {
        self.renewed_at.after(self.unowned_period)
    }

    fn expire(&mut self, now: Monotonic) {
        if self.shutting_down.is_none() && now >= self.expires_at() {
            self.shutting_down = Some(ShutdownReason::Unowned);
        }
    }
}

fn same_secret(known: &SecretString, presented: &str) -> bool {
    known.expose_secret().as_bytes().ct_eq(presented.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use wire::ServerIdentity;
    use wire::proof::ProveRequest;

    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    fn credential(number: u8) -> Credential {
        Credential::from_entropy([number; 32])
    }

    fn unclaimed() -> Ownership<()> {
        Ownership::new(at(0), SecretString::from("nonce"), Duration::from_secs(600))
    }

    /// Shaken hands with credential 0.
    fn owned_since(seconds: u64) -> Ownership<()> {
        let mut ownership = unclaimed();
        ownership.handshake(at(seconds), "nonce", credential(0)).unwrap();
        ownership
    }

    /// Credential 1 has replaced credential 0, and nobody confirmed it.
    fn rotated_at(seconds: u64) -> Ownership<()> {
        let mut ownership = owned_since(seconds);
        ownership.rotate(at(seconds), Some(&credential(0)), credential(1)).unwrap();
        ownership
    }

    fn binding(server: &ServerIdentity) -> Binding<'_> {
        Binding::new(Path::new("/h"), server, ([127, 0, 0, 1], 39_429).into())
    }

    const SUPERSEDED: AdmissionRefused = AdmissionRefused::CredentialSuperseded { latest: RotationId(1) };

    #[test]
    fn the_nonce_buys_one_credential_once_and_a_wrong_one_uses_nothing_up() {
        let mut ownership = unclaimed();
        let refused = ownership.handshake(at(1), "guess", credential(9)).unwrap_err();
        assert_eq!(AdmissionRefused::HandshakeRefused, refused);
        assert!(ownership.handshake(at(1), "nonce", credential(0)).is_ok());
        let refused = ownership.handshake(at(2), "nonce", credential(9)).unwrap_err();
        assert_eq!(AdmissionRefused::HandshakeRefused, refused);
        let admitted = ownership.admit(at(3), Access::Driver, Some(&credential(0)));
        assert_eq!(Ok(Admitted::Driver(RotationId(0))), admitted);
    }

    #[test]
    fn only_a_credential_opens_what_is_not_open() {
        let mut ownership = owned_since(1);
        for access in [Access::Driver, Access::AdoptionOnly] {
            for presented in [None, Some(&credential(9))] {
                assert_eq!(Err(AdmissionRefused::Unauthorized), ownership.admit(at(2), access, presented));
            }
        }
        assert_eq!(Ok(Admitted::Anybody), ownership.admit(at(2), Access::Open, None));
    }

    #[test]
    fn before_a_handshake_nothing_is_a_credential_and_nothing_is_proved() {
        let mut ownership = unclaimed();
        let refused = Err(AdmissionRefused::Unauthorized);
        assert_eq!(refused, ownership.admit(at(2), Access::AdoptionOnly, Some(&credential(0))));
        assert!(ownership.rotate(at(2), Some(&credential(0)), credential(1)).is_err());
        let server = ServerIdentity::new("launch-1");
        let binding = binding(&server);
        let challenge = challenge();
        let answer = ownership.prove(at(2), &challenge.challenge, binding).unwrap();
        assert!(challenge.challenge.verify(&answer, &credential(0), binding).is_err());
    }

    #[test]
    fn while_two_credentials_are_acceptable_a_holder_of_either_can_verify_the_server() {
        let mut ownership = rotated_at(1);
        let server = ServerIdentity::new("launch-1");
        let binding = binding(&server);
        let proves = |ownership: &mut Ownership<()>, number| {
            let answer = ownership.prove(at(2), &challenge().challenge, binding).unwrap();
            challenge().challenge.verify(&answer, &credential(number), binding).is_ok()
        };
        assert!(proves(&mut ownership, 0) && proves(&mut ownership, 1) && !proves(&mut ownership, 2));
        ownership.confirm(at(3), Some(&credential(1)), RotationId(1)).unwrap();
        assert!(!proves(&mut ownership, 0) && proves(&mut ownership, 1));
    }

    #[test]
    fn a_superseded_credential_may_adopt_and_shut_down_and_nothing_else() {
        let mut ownership = rotated_at(1);
        let old = Some(&credential(0)).cloned();
        assert_eq!(Err(SUPERSEDED), ownership.admit(at(2), Access::Driver, old.as_ref()));
        assert_eq!(Err(SUPERSEDED), ownership.claim(at(2), old.as_ref()));
        assert_eq!(Err(SUPERSEDED), ownership.confirm(at(2), old.as_ref(), RotationId(1)));
        let admitted = ownership.admit(at(2), Access::AdoptionOnly, old.as_ref()).unwrap();
        assert_eq!(Err(SUPERSEDED), ownership.open_stream(at(2), admitted, || panic!("subscribed")));
        assert!(ownership.rotate(at(2), old.as_ref(), credential(2)).unwrap().replacement.replayed);
        assert_eq!(Ok(ShutdownReason::Asked), ownership.ask_to_shut_down(at(2), old.as_ref()));
    }

    #[test]
    fn a_stream_admitted_before_a_rotation_is_not_registered_after_it() {
        let mut ownership = owned_since(1);
        let admitted = ownership.admit(at(2), Access::Driver, Some(&credential(0))).unwrap();
        let open = ownership.open_stream(at(2), admitted, || ()).unwrap();
        let rotated = ownership.rotate(at(3), Some(&credential(0)), credential(1)).unwrap();
        assert_eq!(vec![(open, ())], rotated.superseded_streams);
        assert_eq!(Err(SUPERSEDED), ownership.open_stream(at(3), admitted, || panic!("subscribed")));
        assert_eq!(Err(SUPERSEDED), ownership.still_drives(at(3), admitted));
        assert_eq!(0, ownership.streams().count());
    }

    #[test]
    fn never_handshaken_the_period_runs_from_the_start() {
        let mut ownership = unclaimed();
        assert_eq!(None, ownership.check(at(599)));
        assert_eq!(Some(ShutdownReason::Unowned), ownership.check(at(600)));
    }

    #[test]
    fn handshake_claim_and_rotation_with_its_replay_renew_and_nothing_else_does() {
        let mut ownership = owned_since(100);
        assert_eq!(Some(at(700)), ownership.next_deadline());
        ownership.claim(at(200), Some(&credential(0))).unwrap();
        assert_eq!(Some(at(800)), ownership.next_deadline());
        ownership.rotate(at(300), Some(&credential(0)), credential(1)).unwrap();
        assert_eq!(Some(at(900)), ownership.next_deadline());
        ownership.rotate(at(400), Some(&credential(0)), credential(2)).unwrap();
        assert_eq!(Some(at(1000)), ownership.next_deadline());

        let admitted = ownership.admit(at(500), Access::Driver, Some(&credential(1))).unwrap();
        let stream = ownership.open_stream(at(500), admitted, || ()).unwrap();
        ownership.forget_stream(stream);
        ownership.still_drives(at(500), admitted).unwrap();
        ownership.confirm(at(500), Some(&credential(1)), RotationId(1)).unwrap();
        let server = ServerIdentity::new("launch-1");
        ownership.prove(at(500), &challenge().challenge, binding(&server)).unwrap();
        assert!(ownership.handshake(at(500), "nonce", credential(9)).is_err());
        assert!(ownership.rotate(at(500), Some(&credential(0)), credential(9)).is_err());
        assert!(ownership.claim(at(500), Some(&credential(9))).is_err());
        assert_eq!(None, ownership.check(at(500)));
        assert_eq!(Some(at(1000)), ownership.next_deadline());
    }

    #[test]
    fn a_claim_strictly_before_the_expiry_prevents_it() {
        let mut ownership = owned_since(0);
        ownership
            .claim(Monotonic::from_origin(Duration::from_nanos(599_999_999_999)), Some(&credential(0)))
            .unwrap();
        assert_eq!(None, ownership.check(at(600)));
    }

    #[test]
    fn a_claim_at_the_expiry_is_too_late_and_nothing_turns_the_decision_back() {
        let mut ownership = rotated_at(0);
        assert_eq!(Err(AdmissionRefused::ShuttingDown), ownership.claim(at(600), Some(&credential(1))));
        // Readings of before the expiry that arrive after it.
        assert_eq!(Err(AdmissionRefused::ShuttingDown), ownership.claim(at(599), Some(&credential(1))));
        for old_or_new in [0, 1] {
            let refused =
                ownership.rotate(at(599), Some(&credential(old_or_new)), credential(2)).unwrap_err();
            assert_eq!(AdmissionRefused::ShuttingDown, refused);
        }
        let server = ServerIdentity::new("launch-1");
        let answer = ownership.prove(at(599), &challenge().challenge, binding(&server));
        assert_eq!(Err(AdmissionRefused::ShuttingDown), answer);
        let refused = ownership.handshake(at(599), "nonce", credential(9)).unwrap_err();
        assert_eq!(AdmissionRefused::ShuttingDown, refused);
        assert_eq!(Some(ShutdownReason::Unowned), ownership.check(at(1)));
        assert_eq!(None, ownership.next_deadline());
    }

    #[test]
    fn a_reading_that_arrives_late_does_not_take_a_newer_renewal_back() {
        let mut ownership = owned_since(0);
        ownership.claim(at(500), Some(&credential(0))).unwrap();
        ownership.claim(at(400), Some(&credential(0))).unwrap();
        assert_eq!(Some(at(1100)), ownership.next_deadline());
    }

    #[test]
    fn the_first_reason_stays_and_the_shutdown_may_be_asked_for_again() {
        let mut ownership = owned_since(0);
        assert_eq!(ShutdownReason::Signalled, ownership.shut_down(at(1), ShutdownReason::Signalled));
        for _ in 0..2 {
            let asked = ownership.ask_to_shut_down(at(2), Some(&credential(0)));
            assert_eq!(Ok(ShutdownReason::Signalled), asked);
        }
        assert_eq!(
            Err(AdmissionRefused::Unauthorized),
            ownership.ask_to_shut_down(at(2), Some(&credential(9)))
        );
    }

    #[test]
    fn an_immense_period_never_expires_and_never_overflows() {
        let mut ownership: Ownership<()> = Ownership::new(at(5), SecretString::from("nonce"), Duration::MAX);
        assert_eq!(None, ownership.check(at(u64::MAX)));
    }

    /// The same challenge every time.
    fn challenge() -> ProveRequest {
        Challenge::fresh(&Fives).request()
    }

    struct Fives;

    impl seam::Entropy for Fives {
        fn fill(&self, buffer: &mut [u8]) {
            buffer.fill(5);
        }
    }
}
