//! Proof that a process holds the ownership credential, without showing it (O-001.10).
//!
//! ```text
//!   backend                                            whoever answers at the recorded endpoint
//!     | -- Challenge: 32 fresh bytes ----------------------> |
//!     | <-- ProofAnswer: one MAC per acceptable credential -- |
//!     |  verify(challenge, ..) = Proven
//!     | -- only now: the credential itself -----------------> |
//!
//!   MAC = HMAC-SHA256(credential, label | challenge | canonical home | server identity | endpoint),
//!         each with its length first
//! ```
//!
//! The MAC is bound to the home, so that another installation's server cannot stand in, to the identity, so that an
//! answer of another launch cannot, to the endpoint (what the server listens on, what the backend dialled), so that
//! whoever sits at the recorded endpoint cannot pass the challenge on to our server elsewhere, and to the challenge. A challenge is spent by its one verification: a second
//! attempt needs a fresh one, and with it every recorded answer is worthless. The MACs are unlabelled and sorted, so
//! that neither a name nor a place says which credential is the newest.
//!
//! Not here: who may be asked, when, and what a failure means.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use hmac::{Hmac, Mac as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq as _};

use crate::credential::{Credential, lower_hex};
use crate::value::ServerIdentity;

/// What one attempt asks. Cannot be copied: [`Challenge::verify`] spends it.
#[derive(Debug, PartialEq, Eq)]
pub struct Challenge([u8; CHALLENGE_BYTES]);

/// What a proof is bound to beside its challenge.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    home: &'a Path,
    server: &'a ServerIdentity,
    endpoint: SocketAddr,
}

/// One demonstration of one credential. Shows nothing of it; still compared in constant time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac([u8; MAC_BYTES]);

/// The server's half: one MAC per acceptable credential, at most [`ANSWER_MACS`], in an order that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofAnswer {
    macs: Macs,
}

/// The server at the other end holds our credential. Made by [`Challenge::verify`] alone.
#[derive(Debug, PartialEq, Eq)]
pub struct Proven {
    server: ServerIdentity,
}

/// Why an answer proves nothing. Each is an authentication failure (ruling 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofFailed {
    /// The server holds no credential: nobody has shaken hands with it.
    #[error("the server demonstrated no credential at all")]
    Empty,
    /// None of the MACs is of our credential over our challenge, home and server.
    #[error("the server's answer was made without our credential")]
    WrongMac,
}

/// The body of `POST /ownership/prove`.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProveRequest {
    /// The challenge.
    pub challenge: Challenge,
}

impl Challenge {
    /// A fresh one: once per attempt.
    pub fn fresh(entropy: &dyn seam::Entropy) -> Self {
        let mut bytes = [0; CHALLENGE_BYTES];
        entropy.fill(&mut bytes);
        Self(bytes)
    }

    /// The body that asks it. The challenge itself stays with the asker.
    pub fn request(&self) -> ProveRequest {
        ProveRequest { challenge: Self(self.0) }
    }

    /// Judges the answer, once. Every MAC is compared, whether or not an earlier one matched.
    ///
    /// # Errors
    /// The answer does not show that its sender holds `credential`.
    pub fn verify(
        self,
        answer: &ProofAnswer,
        credential: &Credential,
        binding: Binding<'_>,
    ) -> Result<Proven, ProofFailed> {
        if answer.macs.0.is_empty() {
            return Err(ProofFailed::Empty);
        }
        let expected = Mac::of(&self, credential, binding);
        let matched = answer
            .macs
            .0
            .iter()
            .fold(Choice::from(0), |matched, mac| matched | mac.0[..].ct_eq(&expected.0[..]));
        if bool::from(matched) {
            Ok(Proven { server: binding.server.clone() })
        } else {
            Err(ProofFailed::WrongMac)
        }
    }
}

impl<'a> Binding<'a> {
    /// The home in its canonical spelling (no link, no `.` or `..`), the launch that was identified, and the recorded
    /// endpoint: each side puts in what it knows by itself, never what the other one says.
    pub fn new(canonical_home: &'a Path, server: &'a ServerIdentity, endpoint: SocketAddr) -> Self {
        Self { home: canonical_home, server, endpoint }
    }
}

impl ProofAnswer {
    /// Answers a challenge with every acceptable credential.
    pub fn new<'a>(
        challenge: &Challenge,
        acceptable: impl IntoIterator<Item = &'a Credential>,
        binding: Binding<'_>,
    ) -> Self {
        let macs: BTreeSet<Mac> =
            acceptable.into_iter().map(|credential| Mac::of(challenge, credential, binding)).collect();
        assert!(macs.len() <= ANSWER_MACS, "at most two credentials are acceptable at any moment (O-002.8)");
        Self { macs: Macs(macs) }
    }

    /// How many credentials it demonstrates.
    pub fn macs(&self) -> usize {
        self.macs.0.len()
    }
}

impl Proven {
    /// Which launch proved itself.
    pub fn server(&self) -> &ServerIdentity {
        &self.server
    }
}

impl Mac {
    fn of(challenge: &Challenge, credential: &Credential, binding: Binding<'_>) -> Self {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(credential.expose()).expect("HMAC takes keys of every length");
        let home = binding.home.as_os_str().as_encoded_bytes();
        let endpoint = binding.endpoint.to_string();
        for part in [LABEL, &challenge.0, home, binding.server.as_str().as_bytes(), endpoint.as_bytes()] {
            // With its length before it, no part can lend bytes to its neighbour.
            mac.update(&u64::try_from(part.len()).expect("a part fits memory").to_be_bytes());
            mac.update(part);
        }
        Self(mac.finalize().into_bytes().into())
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mac(..)")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Macs(BTreeSet<Mac>);

impl Serialize for Macs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|mac| hex::encode(mac.0)))
    }
}

impl<'de> Deserialize<'de> for Macs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        if texts.len() > ANSWER_MACS {
            return Err(de::Error::custom("more MACs than credentials can be acceptable"));
        }
        let macs = texts.iter().map(|text| lower_hex(text).map(Mac));
        macs.collect::<Option<_>>().map(Self).ok_or_else(|| de::Error::custom("not a MAC in lower-case hex"))
    }
}

impl Serialize for Challenge {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(self.0))
    }
}

impl<'de> Deserialize<'de> for Challenge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        lower_hex(&text).map(Self).ok_or_else(|| de::Error::custom("not 32 bytes in lower-case hex"))
    }
}

/// Keeps these MACs apart from every other use of the credential, and this encoding from a later one.
const LABEL: &[u8] = b"controld server holds credential, version 1";

/// 256 bits: no two attempts of an installation share a challenge.
const CHALLENGE_BYTES: usize = 32;

/// SHA-256's length, untruncated.
const MAC_BYTES: usize = 32;

/// The newest credential and the one that it directly superseded (O-002.8). An answer with more is not read.
pub const ANSWER_MACS: usize = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn credential(byte: u8) -> Credential {
        Credential::from_entropy([byte; 32])
    }

    const ENDPOINT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 39_429);

    fn launch(text: &str) -> ServerIdentity {
        ServerIdentity::new(text)
    }

    /// Everything that goes into one MAC.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Situation {
        challenge: [u8; 32],
        home: String,
        server: ServerIdentity,
        endpoint: SocketAddr,
        credential: [u8; 32],
    }

    impl Situation {
        fn binding(&self) -> Binding<'_> {
            Binding::new(Path::new(&self.home), &self.server, self.endpoint)
        }

        fn answer(&self) -> ProofAnswer {
            let credential = Credential::from_entropy(self.credential);
            ProofAnswer::new(&Challenge(self.challenge), [&credential], self.binding())
        }

        fn accepts(&self, answer: &ProofAnswer) -> bool {
            let credential = Credential::from_entropy(self.credential);
            Challenge(self.challenge).verify(answer, &credential, self.binding()).is_ok()
        }
    }

    /// Few values, so that two situations often differ in one thing only; texts that tempt a sloppy encoding.
    fn situations() -> impl Strategy<Value = Situation> {
        let bytes = || prop_oneof![Just([0_u8; 32]), Just([1; 32]), Just([b'/'; 32]), any::<[u8; 32]>()];
        let text = || prop_oneof![Just(String::new()), "[/ab]{0,3}", "/home/[a-z]{1,8}/[.]kandev"];
        let port = prop_oneof![Just(1_u16), Just(39_429), any::<u16>()];
        (bytes(), text(), text(), port, bytes()).prop_map(|(challenge, home, server, port, credential)| {
            Situation {
                challenge,
                home,
                server: ServerIdentity::new(server),
                endpoint: SocketAddr::new(ENDPOINT.ip(), port),
                credential,
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn an_answer_verifies_in_its_own_situation_and_in_no_other(one in situations(), other in situations()) {
            prop_assert!(one.accepts(&one.answer()));
            prop_assert_eq!(one == other, other.accepts(&one.answer()));
        }

        #[test]
        fn changing_any_one_thing_makes_an_answer_worthless(
            one in situations(), bit in 0_usize..256, which in 0_usize..5, more in "[/a-z]{1,4}",
        ) {
            let mut other = one.clone();
            let flip = |bytes: &mut [u8; 32]| bytes[bit / 8] ^= 1 << (bit % 8);
            match which {
                0 => flip(&mut other.challenge),
                1 => flip(&mut other.credential),
                2 => other.home.push_str(&more),
                3 => other.endpoint.set_port(one.endpoint.port() ^ (1 << (bit % 16))),
                _ => other.server = ServerIdentity::new(format!("{}{more}", one.server)),
            }
            prop_assert!(!other.accepts(&one.answer()));
        }

        #[test]
        fn no_byte_moves_from_the_home_to_the_identity(home in "[/ab]{0,6}", server in "[/ab]{0,6}", at in 0_usize..12) {
            let joined = format!("{home}{server}");
            let (other_home, other_server) = joined.split_at(at.min(joined.len()));
            let server = ServerIdentity::new(server);
            let one = Situation { challenge: [9; 32], home, server, endpoint: ENDPOINT, credential: [7; 32] };
            let other = Situation { home: other_home.to_owned(), server: ServerIdentity::new(other_server), ..one.clone() };
            prop_assert_eq!(one == other, other.accepts(&one.answer()));
        }

        #[test]
        fn everything_ever_answered_is_worthless_against_a_fresh_challenge(
            heard in prop::collection::vec(any::<[u8; 32]>(), 1..8), fresh in any::<[u8; 32]>(),
        ) {
            prop_assume!(!heard.contains(&fresh));
            let at = |challenge| Situation {
                challenge,
                home: "/home/me/.kandev".to_owned(),
                server: launch("launch-1"),
                endpoint: ENDPOINT,
                credential: [7; 32],
            };
            for challenge in heard {
                prop_assert!(!at(fresh).accepts(&at(challenge).answer()));
            }
        }

        #[test]
        fn random_macs_prove_nothing(macs in prop::collection::btree_set(any::<[u8; 32]>(), 0..=2), one in situations()) {
            let answer = ProofAnswer { macs: Macs(macs.into_iter().map(Mac).collect()) };
            prop_assert!(!one.accepts(&answer));
        }
    }

    #[test]
    fn a_holder_of_either_acceptable_credential_can_verify_and_nobody_else() {
        let (newest, superseded, stranger) = (credential(1), credential(2), credential(3));
        let server = launch("launch-1");
        let binding = Binding::new(Path::new("/h"), &server, ENDPOINT);
        let answer = ProofAnswer::new(&Challenge([5; 32]), [&newest, &superseded], binding);
        for holder in [&newest, &superseded] {
            let proven = Challenge([5; 32]).verify(&answer, holder, binding).unwrap();
            assert_eq!(&server, proven.server());
        }
        assert_eq!(Err(ProofFailed::WrongMac), Challenge([5; 32]).verify(&answer, &stranger, binding));
    }

    #[test]
    fn a_server_without_a_credential_proves_nothing() {
        let server = launch("launch-1");
        let binding = Binding::new(Path::new("/h"), &server, ENDPOINT);
        let answer = ProofAnswer::new(&Challenge([5; 32]), [], binding);
        assert_eq!(Err(ProofFailed::Empty), Challenge([5; 32]).verify(&answer, &credential(1), binding));
    }

    #[test]
    fn the_order_of_the_macs_does_not_tell_the_newest() {
        let server = launch("launch-1");
        let binding = Binding::new(Path::new("/h"), &server, ENDPOINT);
        let (one, other) = (credential(1), credential(2));
        let text = |first, second| {
            serde_json::to_string(&ProofAnswer::new(&Challenge([5; 32]), [first, second], binding)).unwrap()
        };
        assert_eq!(text(&one, &other), text(&other, &one));
    }

    #[test]
    fn what_was_written_once_decodes_for_ever() {
        let server = launch("launch-1");
        let binding = Binding::new(Path::new("/home/me/.kandev"), &server, ENDPOINT);
        let request = serde_json::to_string(&Challenge([0xab; 32]).request()).unwrap();
        assert_eq!(format!(r#"{{"challenge":"{}"}}"#, "ab".repeat(32)), request);
        let answer = ProofAnswer::new(&Challenge([0xab; 32]), [&credential(7)], binding);
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(format!(r#"{{"macs":["{FROZEN_MAC}"]}}"#), text);
        assert_eq!(answer, serde_json::from_str(&text).unwrap());
    }

    #[test]
    fn an_answer_that_is_damaged_or_too_long_is_not_read() {
        let mac = "ab".repeat(32);
        let read = |text: &str| serde_json::from_str::<ProofAnswer>(text).is_ok();
        assert!(read(&format!(r#"{{"macs":["{mac}"],"newer":1}}"#)));
        for damaged in [
            r#"{"macs":["ab"]}"#.to_owned(),
            format!(r#"{{"macs":["{}"]}}"#, mac.to_uppercase()),
            format!(r#"{{"macs":["{mac}","{mac}","{mac}"]}}"#),
            r#"{}"#.to_owned(),
        ] {
            assert!(!read(&damaged), "{damaged}");
        }
        assert!(serde_json::from_str::<ProveRequest>(r#"{"challenge":"abab"}"#).is_err());
    }

    /// Computed by another implementation of HMAC-SHA256 over the documented encoding.
    const FROZEN_MAC: &str = "5edae976d730474a908dc202bfbd972f6c3bd100ae8e1348ce59e60838a664be";
}
