//! What the two steps of an adoption say to each other: rotate, then confirm (O-002.6, O-002.7).

use std::fmt;

use serde::{Deserialize, Serialize};

/// One replacement of the credential. The handshake's credential is rotation 0; each further one is one higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RotationId(pub u64);

impl RotationId {
    /// The handshake's.
    pub const HANDSHAKE: Self = Self(0);

    /// The one after this.
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("a server is not adopted 2^64 times"))
    }
}

impl fmt::Display for RotationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// The answer to a rotation: the replacement, and the id that its confirmation has to name. Has no `Debug`: it
/// carries a credential.
#[derive(Serialize, Deserialize)]
pub struct RotationAnswer {
    /// Which rotation.
    pub rotation_id: RotationId,
    /// The replacement, as 64 lower-case hex characters.
    pub credential: String,
}

/// Says that both durable writes of this rotation are done (O-002.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmRotation {
    /// Which rotation.
    pub rotation_id: RotationId,
}

/// The answer to a confirmation of any rotation that was ever issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationConfirmed {
    /// Whether this call ended the superseded credential. False for a repeat and for an older rotation.
    pub took_effect: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_once_decodes_for_ever() {
        let answer: RotationAnswer =
            serde_json::from_str(r#"{"rotation_id":3,"credential":"00ff","newer":1}"#).unwrap();
        assert_eq!((RotationId(3), "00ff"), (answer.rotation_id, answer.credential.as_str()));
        assert_eq!(r#"{"rotation_id":3,"credential":"00ff"}"#, serde_json::to_string(&answer).unwrap());
        let confirm = ConfirmRotation { rotation_id: RotationId(3) };
        assert_eq!(r#"{"rotation_id":3}"#, serde_json::to_string(&confirm).unwrap());
        let confirmed = RotationConfirmed { took_effect: true };
        assert_eq!(r#"{"took_effect":true}"#, serde_json::to_string(&confirmed).unwrap());
    }
}
