//! The one installation-scoped record of the control server (O-001.1). It holds a reference to the credential,
//! never the credential.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tracing::info;
use wire::{ProcessRef, RotationId, ServerIdentity};

use crate::store::{Store, StoreFailed};

/// Where the server is, who it is, and by what it is proved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ControlServerRecord {
    pub(crate) endpoint: SocketAddr,
    pub(crate) identity: ServerIdentity,
    /// The credential's name in the secret store.
    pub(crate) secret: String,
    /// The capability set that was seen (O-004.5).
    pub(crate) capabilities: BTreeSet<String>,
    /// The unowned period that it reported.
    pub(crate) unowned_period_ms: u64,
    /// Its log file (S-001.3).
    pub(crate) log: String,
    /// Its process: that it runs says nothing, since nobody but itself can prove who it is; that it does not run any
    /// more says that whoever answers in its place is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<ProcessRef>,
}

/// What the store holds in the record's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// No server was ever recorded.
    Nothing,
    /// Something that is not a record; a start goes on as if there were none, and says why.
    Garbage { why: String },
    /// A record.
    Server(ControlServerRecord),
}

impl ControlServerRecord {
    /// Reads the record; whatever is there instead of one never fails a start.
    pub(crate) async fn read(store: &Store) -> Result<Recorded, StoreFailed> {
        Ok(match store.control_server_record().await? {
            None => Recorded::Nothing,
            Some(bytes) => match serde_json::from_slice(&bytes) {
                Ok(record) => Recorded::Server(record),
                Err(error) => Recorded::Garbage { why: error.to_string() },
            },
        })
    }

    /// Replaces the record.
    pub(crate) async fn write(&self, store: &Store) -> Result<(), StoreFailed> {
        let text = serde_json::to_string(self).expect("a record always serializes");
        store.set_control_server_record(text).await?;
        let Self { endpoint, identity, secret, log, .. } = self;
        info!(server = %identity, %endpoint, secret, capabilities = ?self.capabilities, log, "control server recorded");
        Ok(())
    }
}

/// The name under which this server's credential of that rotation is kept: one name per credential, so that none is
/// ever overwritten (ruling 5).
pub(crate) fn secret_name(identity: &ServerIdentity, rotation: RotationId) -> String {
    let server = secrets_of(identity);
    match rotation {
        RotationId::HANDSHAKE => server,
        rotation => format!("{server}-{rotation}"),
    }
}

/// Those of these names that hold older credentials of this very server.
pub(crate) fn secrets_before<'a>(
    identity: &ServerIdentity,
    rotation: RotationId,
    names: &'a [String],
) -> Vec<&'a String> {
    let is_older = |name: &&String| {
        let digits = name.strip_prefix(&secrets_of(identity)).map(|rest| rest.strip_prefix("-r"));
        let id = match digits {
            None => None,
            Some(None) => Some(RotationId::HANDSHAKE),
            Some(Some(digits)) => digits.parse().ok().map(RotationId),
        };
        // Spelled again: `r007` is nobody's.
        id.is_some_and(|id| id < rotation && secret_name(identity, id) == **name)
    };
    names.iter().filter(is_older).collect()
}

/// Whether the name is that of a credential of this server.
pub(crate) fn is_secret_of(identity: &ServerIdentity, name: &str) -> bool {
    let rest = name.strip_prefix(&secrets_of(identity));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("-r"))
}

/// What all names of this server's credentials begin with. The identity is opaque, names are not; without a `-` in it
/// no server's name is another one's beginning followed by a rotation.
fn secrets_of(identity: &ServerIdentity) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let text = identity.as_str();
    if text.bytes().all(plain) && text.len() <= LONGEST_PLAIN {
        format!("controld-{text}")
    } else {
        let hex = hex::encode(text);
        format!("controld-x-{}", &hex[..hex.len().min(LONGEST_PLAIN)])
    }
}

/// With its prefix and its rotation a name stays below the secret store's 128 characters.
const LONGEST_PLAIN: usize = 90;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{now, store};

    #[test]
    fn garbage_in_the_record_is_told_and_survived() {
        let (_guard, store) = store();
        assert_eq!(now(ControlServerRecord::read(&store)).unwrap(), Recorded::Nothing);
        now(store.set_control_server_record("\u{0}garbage".to_owned())).unwrap();
        assert!(matches!(now(ControlServerRecord::read(&store)).unwrap(), Recorded::Garbage { .. }));
    }

    #[test]
    fn each_rotation_has_a_name_of_its_own_that_the_secret_store_takes() {
        let server = ServerIdentity::new("abc");
        assert_eq!(secret_name(&server, RotationId(0)), "controld-abc");
        assert_eq!(secret_name(&server, RotationId(7)), "controld-abc-r7");
        for odd in ["abc-r7", "Abc", "../x", &"a".repeat(91)] {
            let name = secret_name(&ServerIdentity::new(odd), RotationId(u64::MAX));
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            assert!(name.bytes().all(plain) && name.len() <= 128, "{name}");
        }
    }

    #[test]
    fn only_older_secrets_of_the_same_server_are_superseded() {
        let kept = [
            "controld-abc-r7",
            "controld-abc-r8",
            "controld-abc-r06",
            "controld-abcd",
            "controld-abcd-r1",
            "x",
        ];
        let older = ["controld-abc", "controld-abc-r1", "controld-abc-r6"];
        let names: Vec<_> = kept.into_iter().chain(older).map(str::to_owned).collect();
        assert_eq!(secrets_before(&ServerIdentity::new("abc"), RotationId(7), &names), older.each_ref());
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let (_guard, store) = store();
        let record = ControlServerRecord {
            endpoint: "127.0.0.1:39429".parse().unwrap(),
            identity: ServerIdentity::new("abc"),
            secret: "controld-abc".to_owned(),
            capabilities: BTreeSet::from(["instances".to_owned()]),
            unowned_period_ms: 600_000,
            log: "/home/logs/controld.log".to_owned(),
            process: Some(ProcessRef { pid: 7, start_time: 99, boot_id: "b".to_owned() }),
        };
        now(record.write(&store)).unwrap();
        assert_eq!(now(ControlServerRecord::read(&store)).unwrap(), Recorded::Server(record));
    }
}
