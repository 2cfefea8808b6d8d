//! What a control server's process and its home take, seen from outside, and whether that grows.

use std::path::Path;
use std::time::Duration;

use rustix::process::Pid;

use crate::cargo::Failed;
use crate::stage::{OUTPUT, Stage};

/// One look: a figure per [`ROWS`].
#[derive(Clone, Copy, Default)]
pub(super) struct Observed([u64; ROWS.len()]);

impl Observed {
    /// Looks for a moment and keeps the fewest descriptors: a connection may just be open.
    pub(super) fn take(stage: &Stage, process: Pid) -> Result<Self, Failed> {
        let proc = format!("/proc/{}", process.as_raw_nonzero());
        let mut descriptors = u64::MAX;
        for _ in 0..LOOKS {
            descriptors = descriptors.min(count(&format!("{proc}/fd"))?);
            std::thread::sleep(BETWEEN_LOOKS);
        }
        let mut seen = Self::default();
        seen.0[DESCRIPTORS] = descriptors;
        seen.0[THREADS] = count(&format!("{proc}/task"))?;
        seen.0[MEMORY_KIB] = resident_kib(&proc)?;
        seen.walk(stage.home(), stage.home())?;
        for bytes in [STORE_KIB, LOG_KIB] {
            seen.0[bytes] = seen.0[bytes].div_ceil(1024);
        }
        Ok(seen)
    }

    /// Adds up every file below a directory of the home, each in the row that it belongs to.
    fn walk(&mut self, home: &Path, directory: &Path) -> Result<(), Failed> {
        let failed =
            |error: std::io::Error| Failed(format!("{} cannot be looked at: {error}", directory.display()));
        for entry in std::fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            // The store removes files of its own at any time.
            let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
            let place = path.strip_prefix(home).unwrap_or(&path).to_string_lossy().into_owned();
            if metadata.is_dir() {
                self.walk(home, &path)?;
            } else if place.starts_with("secrets/") {
                self.0[SECRETS] += 1;
            } else if place.starts_with("logs/") {
                self.0[LOG_KIB] += metadata.len();
            } else if place.starts_with("backend.db") {
                self.0[STORE_KIB] += metadata.len();
            } else if place != OUTPUT {
                self.0[OTHER_FILES] += 1;
                self.0[OTHER_BYTES] += metadata.len();
            }
        }
        Ok(())
    }
}

/// Prints a line per figure with what became of it; fails with those that grew.
pub(super) fn compare(samples: &[(u32, Observed)]) -> Result<(), Failed> {
    let heads: String = samples.iter().map(|(after, _)| format!("{after:>9}")).collect();
    println!("{:<28}{heads}", "after so many adoptions");
    let (Some((_, first)), Some((_, last))) = (samples.first(), samples.last()) else {
        return Ok(());
    };
    let mut grown = Vec::new();
    for (row, (name, rule)) in ROWS.iter().enumerate() {
        let values: String = samples.iter().map(|(_, seen)| format!("{:>9}", seen.0[row])).collect();
        let holds = rule.holds(first.0[row], last.0[row]);
        println!("{name:<28}{values}   {}", rule.verdict(holds));
        if !holds {
            grown.push(format!("{name} from {} to {}", first.0[row], last.0[row]));
        }
    }
    if grown.is_empty() { Ok(()) } else { Err(Failed(format!("not flat: {}", grown.join(", ")))) }
}

/// What a figure may do.
enum Rule {
    /// It ends at most so much above its first value.
    Flat(u64),
    /// It stays below its own bound.
    Below(u64),
}

impl Rule {
    fn holds(&self, first: u64, last: u64) -> bool {
        match self {
            Self::Flat(slack) => last <= first + slack,
            Self::Below(bound) => last <= *bound,
        }
    }

    fn verdict(&self, holds: bool) -> String {
        match (self, holds) {
            (Self::Flat(0), true) => "flat".to_owned(),
            (Self::Flat(slack), true) => format!("flat (within {slack})"),
            (Self::Flat(_), false) => "GREW".to_owned(),
            (Self::Below(bound), true) => format!("below its bound of {bound}"),
            (Self::Below(bound), false) => format!("ABOVE its bound of {bound}"),
        }
    }
}

fn count(directory: &str) -> Result<u64, Failed> {
    let entries = std::fs::read_dir(directory).map(|entries| entries.flatten().count());
    let entries = entries.map_err(|error| Failed(format!("{directory} cannot be read: {error}")))?;
    Ok(u64::try_from(entries).expect("a directory's length fits"))
}

fn resident_kib(proc: &str) -> Result<u64, Failed> {
    let status = std::fs::read_to_string(format!("{proc}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| Failed(format!("{proc}/status names no VmRSS")))
}

const DESCRIPTORS: usize = 0;
const THREADS: usize = 1;
const MEMORY_KIB: usize = 2;
const SECRETS: usize = 3;
const STORE_KIB: usize = 4;
const OTHER_FILES: usize = 5;
const OTHER_BYTES: usize = 6;
const LOG_KIB: usize = 7;

/// A connection may be open just then, and a thread for files may still wait for more work. Memory may rise by what an
/// allocator keeps for itself, the store by its write-ahead log until its first checkpoint at a thousand pages, the
/// other files by the digits of pids and ports. A leak of one per adoption is far above each.
const ROWS: [(&str, Rule); 8] = [
    ("controld: descriptors", Rule::Flat(2)),
    ("controld: threads", Rule::Flat(2)),
    ("controld: VmRSS in KiB", Rule::Flat(1024)),
    ("home: secrets", Rule::Flat(0)),
    ("home: store in KiB", Rule::Flat(4 * 1024 + 128)),
    ("home: other files", Rule::Flat(0)),
    ("home: their bytes", Rule::Flat(64)),
    ("home: controld's log in KiB", Rule::Below(32 * 1024)),
];

const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
