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
];

/// Per family, a bug to plant in a scratch copy to see its snapshots change.
pub const FAMILIES: &[Family] = &[
    Family {
        prefix: "S-001",
        planted_bug: "let the backend stop its instances when it receives SIGTERM: S-001.1 then prints a stop \
                      request and an agent that is gone",
    },
    Family {
        prefix: "S-002",
        planted_bug: "correlate by the record's instance id instead of the reported session: S-002.2 then prints \
                      an instance that is stopped as an orphan",
    },
    Family {
        prefix: "O-002",
        planted_bug: "let the backend take the home lock after it has opened its store: O-002.4 then prints effects \
                      on the database",
    },
    Family {
        prefix: "O-001",
        planted_bug: "send the stored credential with the challenge: O-001.10 then prints a request that carried one",
    },
    Family {
        prefix: "O-003",
        planted_bug: "let an event stream renew ownership: O-003.1 then prints a longer time to the decision",
    },
];
