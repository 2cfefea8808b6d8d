//! Every way in which an adoption can be cut short, and every succession of five of them: nobody is locked out of a
//! server that it owns (O-002.7).
//!
//! The backend here does what a backend has to: the stored secret buys the rotation, the replacement is stored under
//! its own name, then the record names it, then the confirmation is sent. The list is complete, not sampled.

use std::collections::BTreeMap;
use std::time::Duration;

use seam::Monotonic;
use secrecy::SecretString;
use wire::{Credential, RotationId};

use crate::access::Access;
use crate::ownership::Ownership;

/// The point at which an attempt stops: a crash, a lost message or a write that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CutShort {
    BeforeTheRotation,
    RotationReplyLost,
    SecretNotStored,
    RecordNotWritten,
    ConfirmationLost,
    ConfirmationReplyLost,
    Never,
}

const POINTS: [CutShort; 7] = [
    CutShort::BeforeTheRotation,
    CutShort::RotationReplyLost,
    CutShort::SecretNotStored,
    CutShort::RecordNotWritten,
    CutShort::ConfirmationLost,
    CutShort::ConfirmationReplyLost,
    CutShort::Never,
];

/// What survives the backend.
struct Installation {
    secrets: BTreeMap<String, Credential>,
    /// The secret that the record names.
    recorded: String,
    entropy: u8,
}

impl Installation {
    fn start(ownership: &mut Ownership<()>) -> Self {
        let first = ownership.handshake(NOW, "nonce", Credential::from_entropy([0; 32])).unwrap();
        Self {
            secrets: BTreeMap::from([(name(RotationId(0)), first)]),
            recorded: name(RotationId(0)),
            entropy: 0,
        }
    }

    fn stored(&self) -> Credential {
        self.secrets[&self.recorded].clone()
    }

    fn adopt(&mut self, ownership: &mut Ownership<()>, until: CutShort) {
        if until == CutShort::BeforeTheRotation {
            return;
        }
        self.entropy += 1;
        let fresh = Credential::from_entropy([self.entropy; 32]);
        let replacement = ownership.rotate(NOW, Some(&self.stored()), fresh).unwrap().replacement;
        if until <= CutShort::SecretNotStored {
            return;
        }
        // A replay finds its secret stored by the attempt before; it is the same one, and never overwritten.
        let stored = self.secrets.entry(name(replacement.id)).or_insert(replacement.credential.clone());
        assert_eq!(replacement.credential, *stored);
        if until == CutShort::RecordNotWritten {
            return;
        }
        self.recorded = name(replacement.id);
        if until == CutShort::ConfirmationLost {
            return;
        }
        ownership.confirm(NOW, Some(&replacement.credential), replacement.id).unwrap();
        if until == CutShort::ConfirmationReplyLost {
            return;
        }
        self.secrets.retain(|name, _| *name == self.recorded);
    }
}

fn name(rotation: RotationId) -> String {
    format!("controld-launch-{rotation}")
}

const NOW: Monotonic = Monotonic::from_origin(Duration::from_secs(1));

/// Three attempts reach every state of the two sides; five leave room for doubt.
const ATTEMPTS: u32 = 5;

#[test]
fn after_any_five_interruptions_the_recorded_secret_still_adopts_and_the_adoption_completes() {
    let successions = POINTS.len().pow(ATTEMPTS);
    for succession in 0..successions {
        let mut ownership = Ownership::new(NOW, SecretString::from("nonce"), Duration::from_secs(600));
        let mut installation = Installation::start(&mut ownership);
        let mut rest = succession;
        for _ in 0..ATTEMPTS {
            installation.adopt(&mut ownership, POINTS[rest % POINTS.len()]);
            rest /= POINTS.len();
            let stored = installation.stored();
            let admitted = ownership.admit(NOW, Access::AdoptionOnly, Some(&stored));
            assert!(admitted.is_ok(), "locked out in succession {succession}");
        }
        installation.adopt(&mut ownership, CutShort::Never);
        assert!(
            ownership.admit(NOW, Access::Driver, Some(&installation.stored())).is_ok(),
            "succession {succession}"
        );
        assert_eq!(1, installation.secrets.len(), "superseded secrets go once confirmed");
    }
}
