//! Processes of this machine, as `/proc` shows them.

use std::path::PathBuf;
use std::process::Child;

use rustix::process::{Pid, Signal};

use crate::cargo::Failed;

/// Every running process but ours that has the one text in its command line or the other in its environment.
pub(crate) fn naming(in_command_line: &str, in_environment: &str) -> Vec<Pid> {
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let holds = |file: &str, text: &str| {
            std::fs::read(entry.path().join(file))
                .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
        };
        if pid != own && (holds("cmdline", in_command_line) || holds("environ", in_environment)) {
            found.extend(i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|pid| is_running(*pid)));
        }
    }
    found
}

/// Ends a child with this signal and waits for it.
pub(crate) fn end(child: &mut Child, signal: Signal) -> Result<(), Failed> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a child's pid is a pid");
    rustix::process::kill_process(pid, signal)
        .map_err(std::io::Error::from)
        .and_then(|()| child.wait())
        .map(drop)
        .map_err(|error| Failed(format!("a child could not be ended: {error}")))
}

/// Whether the process is there and has not exited.
pub(crate) fn is_running(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with(['Z', 'X'])))
}

/// The file that a process runs.
pub(crate) fn executable(pid: Pid) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok()
}
