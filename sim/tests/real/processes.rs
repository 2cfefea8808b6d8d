//! Which processes carry a mark, and their end.

use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Every running process, this one excepted, whose environment holds `mark` or whose command line holds `place`.
pub(crate) fn of(mark: &str, place: &str) -> Vec<u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own && belongs(*pid, mark, place)).collect()
}

/// Kills what is found under the mark, again and again until nothing is; gives what could not be ended.
pub(crate) fn end_all(mark: &str, place: &str) -> Vec<u32> {
    let deadline = std::time::Instant::now() + super::stage::LIMIT;
    loop {
        let left = of(mark, place);
        if left.is_empty() || std::time::Instant::now() > deadline {
            return left;
        }
        for pid in left {
            // The descriptor first and the look after it: a pid that was reused in between is not ours.
            let Ok(handle) = pidfd_open(raw(pid), PidfdFlags::empty()) else { continue };
            if belongs(pid, mark, place) {
                // One that is gone meanwhile is what we want.
                let _ = pidfd_send_signal(&handle, Signal::KILL);
            }
        }
        std::thread::sleep(super::stage::POLL);
    }
}

/// Sends a signal to a process that the caller knows to be its own.
pub(crate) fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(raw(pid), signal).unwrap();
}

/// Whether the process is there and not a zombie.
pub(crate) fn runs(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with(['Z', 'X']))
}

/// The variables that the process was started with.
pub(crate) fn environment(pid: u32) -> Vec<(String, String)> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let pairs = text.split('\0').filter_map(|variable| variable.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// What the process has open: descriptor and target.
pub(crate) fn descriptors(pid: u32) -> Vec<(u32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let open = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
    });
    open.collect()
}

fn belongs(pid: u32, mark: &str, place: &str) -> bool {
    let holds = |file: &str, text: &str| {
        fs::read(format!("/proc/{pid}/{file}"))
            .is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
    };
    runs(pid) && (holds("environ", mark) || holds("cmdline", place))
}

fn raw(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().expect("pids are positive")).expect("no process has pid 0")
}
