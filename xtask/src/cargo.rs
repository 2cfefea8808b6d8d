//! Running cargo and other programs in the workspace.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a command of ours failed, for people.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Runs cargo in the workspace's root; its output is ours.
pub(crate) fn cargo(arguments: &[&str]) -> Result<(), Failed> {
    program("cargo", arguments)
}

/// Runs a program in the workspace's root; its output is ours.
pub(crate) fn program(name: &str, arguments: &[&str]) -> Result<(), Failed> {
    let line = format!("{name} {}", arguments.join(" "));
    let status = Command::new(name)
        .args(arguments)
        .current_dir(root())
        .status()
        .map_err(|error| Failed(format!("`{line}` could not be started: {error}")))?;
    if status.success() { Ok(()) } else { Err(Failed(format!("`{line}` failed ({status})"))) }
}
