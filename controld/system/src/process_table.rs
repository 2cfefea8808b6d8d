//! Who runs, read from `/proc`. Everything here is a plain call that returns at once.
#![expect(clippy::disallowed_methods, reason = "part of the Processes seam")]

use std::io::{self, ErrorKind};

use rustix::io::Errno;
use seam::ProcessIdentity;

use crate::failure::cannot;

/// One line of the process table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The process id.
    pub(crate) pid: u32,
    /// The kernel's letter for what it is doing.
    state: char,
    /// The parent's pid.
    pub(crate) parent: u32,
    /// The id of its process group.
    pub(crate) group: u32,
    /// When it started, in clock ticks since boot.
    pub(crate) start_time: u64,
}

impl Entry {
    /// Whether it has exited and only waits to be reaped.
    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// This boot's id.
pub(crate) fn boot_id() -> io::Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).map_err(|error| cannot("read", path, error))?;
    Ok(text.trim().to_owned())
}

/// The process with this pid; `None` if there is none.
pub(crate) fn entry(pid: u32) -> io::Result<Option<Entry>> {
    let path = format!("/proc/{pid}/stat");
    match std::fs::read(&path) {
        Ok(bytes) => parse(&bytes)
            .map(Some)
            .ok_or_else(|| cannot("read", path, io::Error::new(ErrorKind::InvalidData, "unknown form"))),
        // Without a process table nobody would ever seem to run. "Not known" is not "no".
        Err(error) if is_gone(&error) && std::fs::metadata("/proc/self/stat").is_ok() => Ok(None),
        Err(error) => Err(cannot("read", path, error)),
    }
}

/// Every process that this user may look at, zombies included, in the order of their pids.
pub(crate) fn entries() -> io::Result<Vec<Entry>> {
    let mut pids = Vec::new();
    for file in std::fs::read_dir("/proc").map_err(|error| cannot("list", "/proc", error))? {
        let file = file.map_err(|error| cannot("list", "/proc", error))?;
        pids.extend(file.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    pids.sort_unstable();
    let mut entries = Vec::with_capacity(pids.len());
    for pid in pids {
        match entry(pid) {
            Ok(entry) => entries.extend(entry),
            // Hidden from this user (mount option hidepid=1), who could not signal it either.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(entries)
}

/// Every running process whose initial environment holds `name=value`, in the order of their pids.
pub(crate) fn marked(name: &str, value: &str, boot_id: &str) -> io::Result<Vec<ProcessIdentity>> {
    let mark = format!("{name}={value}");
    let mut found = Vec::new();
    for process in entries()?.into_iter().filter(|process| !process.is_zombie()) {
        let path = format!("/proc/{}/environ", process.pid);
        let environment = match std::fs::read(&path) {
            Ok(environment) => environment,
            // Somebody else's, or gone meanwhile.
            Err(error) if is_gone(&error) || error.kind() == ErrorKind::PermissionDenied => continue,
            Err(error) => return Err(cannot("read", path, error)),
        };
        if !environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
            continue;
        }
        // Still the same one, so that mark and identity belong together; and not dying meanwhile.
        let now = entry(process.pid)?;
        if now.is_some_and(|now| now.start_time == process.start_time && !now.is_zombie()) {
            found.push(ProcessIdentity {
                pid: process.pid,
                start_time: process.start_time,
                boot_id: boot_id.to_owned(),
            });
        }
    }
    Ok(found)
}

/// The process went away between two calls about it.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Parses `/proc/PID/stat`: pid, name in parentheses, state, parent, group, …, start time as the 22nd.
fn parse(stat: &[u8]) -> Option<Entry> {
    // The name may itself hold spaces, parentheses and line ends; the last parenthesis is the end of it.
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    let head = std::str::from_utf8(&stat[..stat.iter().position(|byte| *byte == b' ')?]).ok()?;
    let tail = std::str::from_utf8(&stat[name_ends + 1..]).ok()?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    Some(Entry {
        pid: head.parse().ok()?,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        // Kernel threads in a container have no group there: the kernel writes 0 or -1.
        group: fields.get(2)?.parse().unwrap_or(0),
        start_time: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let line = b"4242 (a) Z 1 (b\n) S 17 4200 4200 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2 3\n";
        let expected = Entry { pid: 4242, state: 'S', parent: 17, group: 4200, start_time: 987_654 };
        assert_eq!(parse(line), Some(expected));
    }

    #[test]
    fn a_torn_line_is_no_process() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"12 (x"), None);
        assert_eq!(parse(b"12 (x) S 1 2"), None);
    }

    #[test]
    fn a_pid_beyond_all_limits_is_nobody() {
        assert_eq!(entry(u32::MAX).unwrap(), None);
    }
}
