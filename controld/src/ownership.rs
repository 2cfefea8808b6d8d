//! Who may drive this server, and what happens when nobody does.
//!
//! ```text
//!                 handshake, claim: the renewal instant
//!   unclaimed ---------------------------------------> owned
//!       |                                                |
//!       |  age of the renewal >= unowned period, or an   |
//!       +------------- ownership shutdown ---------------+----> shutting down, for good
//! ```
//!
//! Exactly two operations set the renewal instant here: the handshake and the claim (O-003.8). Before every decision
//! the age is judged first, in the same `&mut self` step: a claim strictly before the expiry prevents it, one at or
//! after it finds the server shutting down (O-003.3, O-003.9). The clock is the caller's monotonic one.

use std::time::Duration;

use seam::Monotonic;
use secrecy::{ExposeSecret as _, SecretString};
use subtle::ConstantTimeEq as _;

use crate::access::Access;

/// The ownership of one server.
pub(crate) struct Ownership {
    /// Taken by the first handshake that knows it.
    nonce: Option<SecretString>,
    credential: Option<SecretString>,
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

/// Why a caller may not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AdmissionRefused {
    /// No credential, or not an acceptable one.
    #[error("this needs the credential of the owning backend")]
    Unauthorized,
    /// The nonce is wrong or was used before.
    #[error("the nonce is wrong or was used before")]
    HandshakeRefused,
    /// The decision to shut down has been taken.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl Ownership {
    /// Nobody's yet; the period runs from `now`, the process's start (O-003.8).
    pub(crate) fn new(now: Monotonic, nonce: SecretString, unowned_period: Duration) -> Self {
        Self { nonce: Some(nonce), credential: None, unowned_period, renewed_at: now, shutting_down: None }
    }

    /// The launcher's nonce buys the first credential, `fresh`, once. A wrong nonce uses nothing up.
    pub(crate) fn handshake(
        &mut self,
        now: Monotonic,
        nonce: &str,
        fresh: SecretString,
    ) -> Result<SecretString, AdmissionRefused> {
        self.expire(now);
        if self.shutting_down.is_some() {
            return Err(AdmissionRefused::ShuttingDown);
        }
        if !self.nonce.as_ref().is_some_and(|known| same_secret(known, nonce)) {
            return Err(AdmissionRefused::HandshakeRefused);
        }
        self.nonce = None;
        self.credential = Some(fresh.clone());
        self.renewed_at = now;
        Ok(fresh)
    }

    /// Whether a caller who presents this may use a route with this access. Renews nothing.
    pub(crate) fn admit(
        &mut self,
        now: Monotonic,
        access: Access,
        presented: Option<&str>,
    ) -> Result<(), AdmissionRefused> {
        self.expire(now);
        let known = || match (&self.credential, presented) {
            (Some(credential), Some(presented)) => same_secret(credential, presented),
            _ => false,
        };
        match access {
            Access::Open => Ok(()),
            // Whoever may not ask at all does not learn what state the server is in.
            Access::Driver | Access::AdoptionOnly if !known() => Err(AdmissionRefused::Unauthorized),
            Access::Driver if self.shutting_down.is_some() => Err(AdmissionRefused::ShuttingDown),
            Access::Driver | Access::AdoptionOnly => Ok(()),
        }
    }

    /// Renews ownership; the caller has been admitted.
    pub(crate) fn claim(&mut self, now: Monotonic) -> Result<(), AdmissionRefused> {
        self.expire(now);
        if self.shutting_down.is_some() {
            return Err(AdmissionRefused::ShuttingDown);
        }
        self.renewed_at = now;
        Ok(())
    }

    /// Decides to shut down, for good. The first reason stays.
    pub(crate) fn shut_down(&mut self, now: Monotonic, reason: ShutdownReason) -> ShutdownReason {
        self.expire(now);
        *self.shutting_down.get_or_insert(reason)
    }

    /// Judges the age, and gives the reason if the server is shutting down.
    pub(crate) fn check(&mut self, now: Monotonic) -> Option<ShutdownReason> {
        self.expire(now);
        self.shutting_down
    }

    /// When the age has to be judged next.
    pub(crate) fn next_deadline(&self) -> Monotonic {
        self.renewed_at.after(self.unowned_period)
    }

    fn expire(&mut self, now: Monotonic) {
        if self.shutting_down.is_none() && now >= self.next_deadline() {
            self.shutting_down = Some(ShutdownReason::Unowned);
        }
    }
}

fn same_secret(known: &SecretString, presented: &str) -> bool {
    known.expose_secret().as_bytes().ct_eq(presented.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    fn secret(text: &str) -> SecretString {
        SecretString::from(text)
    }

    fn unclaimed() -> Ownership {
        Ownership::new(at(0), secret("nonce"), Duration::from_secs(600))
    }

    fn owned_since(seconds: u64) -> Ownership {
        let mut ownership = unclaimed();
        ownership.handshake(at(seconds), "nonce", secret("cred")).unwrap();
        ownership
    }

    #[test]
    fn the_nonce_buys_one_credential_once_and_a_wrong_one_uses_nothing_up() {
        let mut ownership = unclaimed();
        let refused = ownership.handshake(at(1), "guess", secret("x")).unwrap_err();
        assert_eq!(AdmissionRefused::HandshakeRefused, refused);
        assert!(ownership.handshake(at(1), "nonce", secret("cred")).is_ok());
        let refused = ownership.handshake(at(2), "nonce", secret("other")).unwrap_err();
        assert_eq!(AdmissionRefused::HandshakeRefused, refused);
        assert_eq!(Ok(()), ownership.admit(at(3), Access::Driver, Some("cred")));
    }

    #[test]
    fn only_the_credential_opens_what_is_not_open() {
        let mut ownership = owned_since(1);
        for access in [Access::Driver, Access::AdoptionOnly] {
            for presented in [None, Some(""), Some("cre"), Some("credx"), Some("nonce")] {
                assert_eq!(Err(AdmissionRefused::Unauthorized), ownership.admit(at(2), access, presented));
            }
        }
        assert_eq!(Ok(()), ownership.admit(at(2), Access::Open, None));
    }

    #[test]
    fn before_a_handshake_nothing_is_a_credential() {
        let mut ownership = unclaimed();
        assert_eq!(Err(AdmissionRefused::Unauthorized), ownership.admit(at(2), Access::Driver, Some("")));
    }

    #[test]
    fn never_handshaken_the_period_runs_from_the_start() {
        let mut ownership = unclaimed();
        assert_eq!(None, ownership.check(at(599)));
        assert_eq!(Some(ShutdownReason::Unowned), ownership.check(at(600)));
    }

    #[test]
    fn handshake_and_claim_renew_and_nothing_else_does() {
        let mut ownership = owned_since(100);
        assert_eq!(at(700), ownership.next_deadline());
        ownership.admit(at(500), Access::Driver, Some("cred")).unwrap();
        let _ = ownership.admit(at(500), Access::Driver, Some("stranger"));
        let _ = ownership.handshake(at(500), "nonce", secret("x"));
        assert_eq!(at(700), ownership.next_deadline());
        ownership.claim(at(699)).unwrap();
        assert_eq!(at(1299), ownership.next_deadline());
    }

    #[test]
    fn a_claim_at_the_expiry_is_too_late_and_nothing_turns_the_decision_back() {
        let mut ownership = owned_since(100);
        assert_eq!(Err(AdmissionRefused::ShuttingDown), ownership.claim(at(700)));
        assert_eq!(Err(AdmissionRefused::ShuttingDown), ownership.claim(at(1)), "not even by an older clock");
        assert_eq!(
            Err(AdmissionRefused::ShuttingDown),
            ownership.admit(at(701), Access::Driver, Some("cred"))
        );
        assert_eq!(Ok(()), ownership.admit(at(701), Access::AdoptionOnly, Some("cred")));
        assert_eq!(ShutdownReason::Unowned, ownership.shut_down(at(702), ShutdownReason::Asked));
    }

    #[test]
    fn a_handshake_after_the_decision_is_told_so() {
        let mut ownership = unclaimed();
        ownership.shut_down(at(1), ShutdownReason::Signalled);
        let refused = ownership.handshake(at(2), "nonce", secret("cred")).unwrap_err();
        assert_eq!(AdmissionRefused::ShuttingDown, refused);
    }
}
