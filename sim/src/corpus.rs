//! Seeds that once failed, each with its plan and its one-line story: they are run before anything else.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// One seed that once failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The scenario's name.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// What went wrong, in one line.
    pub story: String,
    /// The plan as it was drawn then, or shrunk since: a later generator draws another one.
    pub plan: Plan,
}

/// Where the entries are kept in the sources.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// One entry.
///
/// # Errors
/// The file cannot be read, or is no entry.
#[expect(clippy::disallowed_methods, reason = "the corpus is in the real world, read before any run")]
pub fn load(path: &Path) -> io::Result<Entry> {
    let text = std::fs::read_to_string(path)?;
    serde_json::from_str(&text)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())))
}

/// All entries with their file names, in the order of those.
///
/// # Errors
/// As [`load`]; a missing directory is an empty corpus.
#[expect(clippy::disallowed_methods, reason = "the corpus is in the real world, read before any run")]
pub fn load_all(directory: &Path) -> io::Result<Vec<(String, Entry)>> {
    let listing = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listing => listing?,
    };
    let mut paths = Vec::new();
    for entry in listing {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, load(path)?))
        })
        .collect()
}
