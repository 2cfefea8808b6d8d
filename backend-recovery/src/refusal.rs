//! Why a recorded control server was not adopted: exactly one reason, the first that applies (O-001.6).

use std::fmt;

/// The six reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AdoptionRefused {
    /// Nothing answered at all.
    NoAnswer,
    /// Something answered with another identity, or without a readable one.
    IdentityMismatch,
    /// The stored secret could not be read; nothing was tried.
    CredentialUnavailable,
    /// It is who it says, but did not accept or prove the credential.
    AuthenticationFailure,
    /// It lacks a capability that this backend requires.
    CapabilityIncompatibility,
    /// The credential could not be replaced.
    CredentialRotationFailure,
}

impl AdoptionRefused {
    /// The reason's name, the same in logs, metrics and status.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::NoAnswer => "no_answer",
            Self::IdentityMismatch => "identity_mismatch",
            Self::CredentialUnavailable => "credential_unavailable",
            Self::AuthenticationFailure => "authentication_failure",
            Self::CapabilityIncompatibility => "capability_incompatibility",
            Self::CredentialRotationFailure => "credential_rotation_failure",
        }
    }
}

impl fmt::Display for AdoptionRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
