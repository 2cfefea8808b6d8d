//! The one installation-scoped record of the control server (O-001.1). It holds a reference to the credential,
//! never the credential.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use wire::ServerIdentity;

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
        store.set_control_server_record(text).await
    }
}

/// The name under which this server's credential is kept. The identity is opaque, names are not.
pub(crate) fn secret_name(identity: &ServerIdentity) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let text = identity.as_str();
    if text.bytes().all(plain) && text.len() <= LONGEST_PLAIN {
        format!("controld-{text}")
    } else {
        let hex = hex::encode(text);
        format!("controld-x-{}", &hex[..hex.len().min(LONGEST_PLAIN)])
    }
}

/// With its prefix a name stays below the secret store's 128 characters.
const LONGEST_PLAIN: usize = 100;

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
    fn a_record_comes_back_as_it_was_written() {
        let (_guard, store) = store();
        let record = ControlServerRecord {
            endpoint: "127.0.0.1:39429".parse().unwrap(),
            identity: ServerIdentity::new("abc"),
            secret: "controld-abc".to_owned(),
            capabilities: BTreeSet::from(["instances".to_owned()]),
            unowned_period_ms: 600_000,
            log: "/home/logs/controld.log".to_owned(),
        };
        now(record.write(&store)).unwrap();
        assert_eq!(now(ControlServerRecord::read(&store)).unwrap(), Recorded::Server(record));
    }
}
