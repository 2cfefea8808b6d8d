//! What every teller of host facts keeps to.

use crate::Seams;

/// The contract of [`HostFacts`](crate::HostFacts). That arguments and environment are exactly those which the
/// parent gave is part of [`processes`](super::processes).
pub async fn host_facts(seams: &Seams) {
    let host = seams.host.as_ref();
    assert_eq!(host.arguments(), host.arguments(), "the arguments do not change");
    assert_eq!(host.environment(), host.environment(), "the environment does not change");
    let executable = host.executable().expect("this process was started from a file");
    assert!(executable.is_absolute(), "{} is not absolute", executable.display());
    let system = host.operating_system();
    assert!(!system.is_empty() && system.chars().all(|c| c.is_ascii_lowercase()), "{system:?}");
}
