//! Facts about the host and about how this process was started.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What does not change while the process runs.
pub trait HostFacts: Send + Sync + 'static {
    /// The arguments after the program's name. An argument that is not Unicode is given with replacements.
    fn arguments(&self) -> Vec<String>;

    /// The environment. Entries that are not Unicode are left out.
    fn environment(&self) -> BTreeMap<String, String>;

    /// The path of this process's own executable, from which its sister programs are found.
    fn executable(&self) -> Option<PathBuf>;

    /// The operating system's name, as `linux` or `macos`.
    fn operating_system(&self) -> &'static str;
}
