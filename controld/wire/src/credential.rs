//! The ownership credential: 32 random bytes, on the wire and at rest as 64 lower-case hex characters.
//!
//! It prints as nothing and is compared in constant time. A text that is not exactly of this shape is no
//! credential: it is turned away here, before it reaches a header, a comparison or a MAC.

use std::fmt;

use secrecy::{ExposeSecret as _, SecretBox, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// What its holder may drive a control server with.
pub struct Credential(SecretBox<[u8; CREDENTIAL_BYTES]>);

/// The text is not 64 lower-case hex characters. Says nothing about what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a credential: {} lower-case hex characters were expected", CREDENTIAL_BYTES * 2)]
pub struct NotACredential;

impl Credential {
    /// Takes fresh random bytes.
    pub fn from_entropy(bytes: [u8; CREDENTIAL_BYTES]) -> Self {
        Self(SecretBox::new(Box::new(bytes)))
    }

    /// A fresh one.
    pub fn fresh(entropy: &dyn seam::Entropy) -> Self {
        Self(SecretBox::init_with_mut(|bytes: &mut [u8; CREDENTIAL_BYTES]| entropy.fill(bytes)))
    }

    /// What a launcher and its child can prove to each other: made from the nonce that both hold, and never sent.
    pub fn of_nonce(nonce: &SecretString) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"kandev launch nonce\0");
        hash.update(nonce.expose_secret().as_bytes());
        Self::from_entropy(hash.finalize().into())
    }

    /// Reads a header, an answer or a stored secret.
    ///
    /// # Errors
    /// Anything but the one spelling, so that no damaged secret reaches a peer.
    pub fn parse(text: &str) -> Result<Self, NotACredential> {
        lower_hex(text).map(Self::from_entropy).ok_or(NotACredential)
    }

    /// The spelling for a header, an answer or the secret store.
    pub fn to_text(&self) -> SecretString {
        SecretString::from(hex::encode(self.expose()))
    }

    /// The bytes, for a MAC's key. Crate-private: nothing else has a use for them.
    pub(crate) fn expose(&self) -> &[u8; CREDENTIAL_BYTES] {
        self.0.expose_secret()
    }
}

impl Clone for Credential {
    fn clone(&self) -> Self {
        Self::from_entropy(*self.expose())
    }
}

impl ConstantTimeEq for Credential {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.expose()[..].ct_eq(&other.expose()[..])
    }
}

impl PartialEq for Credential {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other).into()
    }
}

impl Eq for Credential {}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(..)")
    }
}

/// Decodes exactly `N` bytes of lower-case hex; one value has one spelling.
pub(crate) fn lower_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

/// 256 bits: guessing is hopeless, and the key fits one block of the MAC's hash.
pub const CREDENTIAL_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_has_one_spelling_and_comes_back_from_it() {
        let credential = Credential::from_entropy([0xab; CREDENTIAL_BYTES]);
        let text = credential.to_text();
        assert_eq!(Ok(credential), Credential::parse(text.expose_secret()));
    }

    #[test]
    fn anything_but_that_spelling_is_no_credential() {
        let right = "ab".repeat(32);
        let damaged = [
            "",
            "ab",
            &right[1..],
            &right.to_uppercase(),
            &format!("{right}\n"),
            &format!(" {right}"),
            "ключ",
        ];
        for text in damaged {
            assert_eq!(Err(NotACredential), Credential::parse(text), "{text:?}");
        }
        assert!(Credential::parse(&"gg".repeat(32)).is_err());
    }

    #[test]
    fn a_credential_prints_as_nothing() {
        let text = format!(
            "{:?} {:?}",
            Credential::from_entropy([0xab; 32]),
            Credential::from_entropy([7; 32]).to_text()
        );
        assert!(!text.contains("abab") && !text.contains("0707") && !text.contains("171"), "{text}");
    }
}
