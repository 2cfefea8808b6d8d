//! What every acceptance criterion looks like when it holds.
//!
//! Each criterion has one test and one `.snap`, printed from the trace of a run of the simulator: what stands there
//! happened. The catalogue below ties criterion, test and file one to one; `tests/catalogue.rs` proves that there
//! are no others, and lists the criteria of the specification that are still open.
#![forbid(unsafe_code)]

mod told;

pub use told::{Told, yes};

/// One criterion that is shown.
#[derive(Clone, Copy, Debug)]
pub struct Criterion {
    /// Its id in the short form, such as `S-001.4`.
    pub id: &'static str,
    /// Its sentence, condensed to what the snapshot shows.
    pub sentence: &'static str,
}

/// One family of criteria and a bug that, planted, changes one of its snapshots.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The family's prefix, such as `S-001`.
    pub prefix: &'static str,
    /// What to plant, where, and which snapshot it changes.
    pub planted_bug: &'static str,
}

impl Criterion {
    /// The name of its test and of its snapshot: `s_001_4`.
    pub fn test_name(&self) -> String {
        self.id.to_lowercase().replace(['-', '.'], "_")
    }
}

/// The criterion of that id.
///
/// # Panics
/// If the catalogue does not have it: a test that shows it must be listed here.
pub fn criterion(id: &str) -> Criterion {
    let found = SHOWN.iter().find(|criterion| criterion.id == id);
    *found.unwrap_or_else(|| panic!("{id} is not in the catalogue of snapshots/src/lib.rs"))
}

/// Every id of the specification, in its order.
pub fn specification() -> Vec<&'static str> {
    include_str!("specification.txt").lines().collect()
}

/// The criteria that have a snapshot.
pub const SHOWN: &[Criterion] = &[
    Criterion {
        id: "S-001.1",
        sentence: "When the backend shuts down gracefully and the capability is enabled, the control server and \
                   every agent subprocess keep running, and no stop is issued to any of them.",
    },
    Criterion {
        id: "S-001.2",
        sentence: "When the backend exits without a graceful shutdown, including SIGKILL, the control server and \
                   its agent subprocesses keep running without any backend shutdown step.",
    },
    Criterion {
        id: "S-001.3",
        sentence: "While no backend is attached, the control server's diagnostic output stays writable: a durable \
                   file of its own under the home directory, bounded by the server itself, its location recorded.",
    },
    Criterion {
        id: "S-001.4",
        sentence: "When a backend adopts a control server, it re-tracks each surviving instance without starting a \
                   new agent subprocess and without issuing a resume to the agent provider.",
    },
    Criterion {
        id: "S-001.5",
        sentence: "While no backend is attached, events already produced are retained and delivered when a backend \
                   next attaches, in each instance's own production order.",
    },
    Criterion {
        id: "S-001.7",
        sentence: "On every path, refused adoption and unowned shutdown included, every worktree is left present on \
                   disk and unmodified.",
    },
    Criterion {
        id: "S-002.1",
        sentence: "Each enumerated instance reports the session identity that the control server itself holds for \
                   it, and instances are correlated to inventory records by that identity.",
    },
    Criterion {
        id: "S-002.2",
        sentence: "When exactly one live instance reports a given session identity, it is re-tracked, whether or \
                   not its instance identifier equals the record's.",
    },
    Criterion {
        id: "O-001.4",
        sentence: "Identity or authentication failed: that process is refused and sent nothing more, and an own \
                   server is started on another port.",
    },
    Criterion { id: "O-001.6", sentence: "A refusal records exactly one reason, the first that applies." },
    Criterion {
        id: "O-001.10",
        sentence: "Proof is mutual and the server goes first: a fresh 32-byte challenge per attempt; only a server \
                   that has proved itself is sent the credential.",
    },
    Criterion {
        id: "O-002.1",
        sentence: "Adoption replaces the credential; the old one drives nothing any more.",
    },
    Criterion {
        id: "O-002.2",
        sentence: "Adoption ends every stream opened under a superseded credential; accept check and subscription \
                   are one step.",
    },
    Criterion {
        id: "O-002.4",
        sentence: "The second backend on one installation is refused at start-up by the home lock, taken before log, \
                   store or any contact, held until cleanup ends, not inherited by child processes.",
    },
    Criterion {
        id: "O-003.1",
        sentence: "No owner for the unowned period: every instance is stopped with its subprocesses, then the server \
                   exits.",
    },
    Criterion {
        id: "O-003.5",
        sentence: "Records of instances stopped by an unowned shutdown are repaired by the next backend; the worktree \
                   is kept.",
    },
    Criterion {
        id: "O-001.1",
        sentence: "Starting a server durably writes one installation-scoped record: endpoint, identity, a reference to the credential, capability set, log location; also when no session is live, and when the port is another one.",
    },
    Criterion {
        id: "O-001.2",
        sentence: "Before anything but identity and capabilities: the recorded identity matches and authentication with the stored credential succeeds.",
    },
    Criterion {
        id: "O-001.3",
        sentence: "Order of judgement: identity, authentication, capabilities; the first that fails is the reason.",
    },
    Criterion {
        id: "O-001.5",
        sentence: "No identity or no capability set advertised: refused and sent nothing more, and an own server is started on another port.",
    },
    Criterion {
        id: "O-001.7",
        sentence: "Whether a port is taken is decided by a bounded connect to 127.0.0.1 and ::1, then a bind.",
    },
    Criterion {
        id: "O-001.8",
        sentence: "No record, nothing answers, or it is already shutting down: a fresh start that reports nothing recovered, and nothing further is sent.",
    },
    Criterion {
        id: "O-001.9",
        sentence: "Credential unavailable: refused, left running and untouched, an own server on another port, the stored secret kept, the record rewritten; the survivor goes by its own unowned shutdown.",
    },
    Criterion {
        id: "O-001.11",
        sentence: "The unauthenticated identity answer discloses only the launch's identity, the capability set and the unowned period.",
    },
    Criterion {
        id: "O-001.12",
        sentence: "Listeners bind only the host that the backend dials; probes are address-specific, never a wildcard listener.",
    },
    Criterion {
        id: "O-004.1",
        sentence: "Compatible means that the required set is a subset of the advertised one.",
    },
    Criterion { id: "O-004.2", sentence: "The set is judged after the proof and before rotating." },
    Criterion {
        id: "O-004.3",
        sentence: "Incompatible: the server and its instances are stopped through the ownership shutdown, their records repaired once that has succeeded, then an own server is started.",
    },
    Criterion {
        id: "O-004.4",
        sentence: "Those sessions reach the same state and stay as resumable as after a restart with the capability off.",
    },
    Criterion {
        id: "O-004.5",
        sentence: "The capability set observed is recorded on start and on adoption.",
    },
    Criterion {
        id: "O-004.6",
        sentence: "Identity retrieval and ownership shutdown are below negotiation: never members of the set, always available.",
    },
    Criterion {
        id: "O-004.7",
        sentence: "A stop under O-004.3 fails: no record of that server is repaired, nothing is recovered, an own server is started on another port, no further stop is issued, the survivor's secret is kept.",
    },
    Criterion {
        id: "O-002.3",
        sentence: "An operation refused for a superseded credential: its executions are dropped, nothing is retried, no credential is fetched without adopting again.",
    },
    Criterion {
        id: "O-002.5",
        sentence: "Replacement failed: the adoption is incomplete, and no further operation is issued until it is tried again.",
    },
    Criterion {
        id: "O-002.6",
        sentence: "Rotation ids strictly increase. An older or repeated id is accepted without effect, one never issued is rejected.",
    },
    Criterion {
        id: "O-002.7",
        sentence: "Until the adopter confirms, after both durable writes, any interruption leaves a credential that both sides hold.",
    },
    Criterion { id: "O-002.8", sentence: "At most two credentials are acceptable at any moment." },
    Criterion {
        id: "O-002.9",
        sentence: "One ownership-shutdown operation stops every instance with its subprocesses and exits; no adoption is needed.",
    },
    Criterion {
        id: "O-002.10",
        sentence: "Idempotent under retry: the superseded credential of an unconfirmed rotation gets the same id and replacement again.",
    },
    Criterion {
        id: "O-003.2",
        sentence: "The renewal interval is strictly below a third of the period that the server in use reports.",
    },
    Criterion {
        id: "O-003.3",
        sentence: "Expiry is judged by age on the server's own monotonic clock, never by the last attempt's outcome.",
    },
    Criterion {
        id: "O-003.4",
        sentence: "Ten minutes by default. While idle reaping is on, the period is shorter than the idle timeout, else it becomes half of it, which is recorded.",
    },
    Criterion {
        id: "O-003.6",
        sentence: "Idle timeout 0 turns reaping off: there is no ordering to keep, and the period is unchanged.",
    },
    Criterion {
        id: "O-003.7",
        sentence: "A floor of one minute, recorded, which wins over the ordering, recorded too.",
    },
    Criterion {
        id: "O-003.8",
        sentence: "Exactly three things set the renewal instant: claim, handshake, rotation; no instance operation, stream or enumeration does.",
    },
    Criterion {
        id: "O-003.9",
        sentence: "The decision to shut down is taken once and irreversible; from then on there is a distinct shutting-down answer.",
    },
];

/// Per family, a bug to plant in a scratch copy to see its snapshots change.
pub const FAMILIES: &[Family] = &[
    Family {
        prefix: "S-001",
        planted_bug: "let the backend stop its instances when it receives SIGTERM: S-001.1 then prints that its run \
                      fails, since the open turn is interrupted",
    },
    Family {
        prefix: "S-002",
        planted_bug: "correlate by the record's instance id instead of the reported session: S-002.2 then prints \
                      that its run fails, since the session is never tracked again",
    },
    Family {
        prefix: "O-001",
        planted_bug: "send the stored credential with the challenge: O-001.10 then prints that its run fails, since \
                      the thief heard a credential",
    },
    Family {
        prefix: "O-002",
        planted_bug: "let the backend take the home lock after it has opened its store: O-002.4 then prints that its \
                      run fails, since the database is named and not who holds the home",
    },
    Family {
        prefix: "O-003",
        planted_bug: "let an event stream renew ownership: O-003.1 then prints a longer time to the decision",
    },
    Family {
        prefix: "O-004",
        planted_bug: "judge the capabilities before the proof: O-004.2 then prints no proof before the judgement",
    },
];
