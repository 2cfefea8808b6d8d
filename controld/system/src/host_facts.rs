//! Facts about the host and this process.

use std::collections::BTreeMap;
use std::path::PathBuf;

use seam::HostFacts;

/// What the operating system says.
#[derive(Clone, Copy, Debug)]
pub struct RealHostFacts;

impl HostFacts for RealHostFacts {
    fn arguments(&self) -> Vec<String> {
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    fn executable(&self) -> Option<PathBuf> {
        std::env::current_exe().ok()
    }

    fn operating_system(&self) -> &'static str {
        std::env::consts::OS
    }
}
