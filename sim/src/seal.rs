//! The runner's thread is sealed: a simulated process that slips past its seams to the real world fails.

#[cfg(target_os = "linux")]
use std::collections::BTreeMap;

/// Forbids this thread, for ever, to open files or sockets, to run programs and to start threads.
///
/// Everywhere but on Linux this does nothing: what slips past the seams is then found by the same seed run
/// twice.
///
/// # Panics
/// If the kernel refuses the filter: an unsealed run would not mean what it says.
pub fn seal_thread() {
    #[cfg(target_os = "linux")]
    {
        let denied: BTreeMap<i64, Vec<seccompiler::SeccompRule>> =
            DENIED.iter().map(|call| (*call, Vec::new())).collect();
        let arch = std::env::consts::ARCH.try_into().expect("an architecture that seccomp knows");
        let filter = seccompiler::SeccompFilter::new(
            denied,
            seccompiler::SeccompAction::Allow,
            seccompiler::SeccompAction::Errno(EPERM),
            arch,
        )
        .expect("a list of calls is a valid filter");
        let program: seccompiler::BpfProgram = filter.try_into().expect("a short filter compiles");
        seccompiler::apply_filter(&program).expect("the kernel takes a filter from an unprivileged thread");
    }
}

#[cfg(target_os = "linux")]
const EPERM: u32 = 1;

/// What reaches the real world. `open` and its kin are not on every architecture.
#[cfg(target_os = "linux")]
const DENIED: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_clone,
    libc::SYS_clone3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::ErrorKind;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the very calls that must fail")]
    fn a_sealed_thread_reaches_neither_files_nor_sockets_nor_programs() {
        let sealed = std::thread::Builder::new().spawn(|| {
            super::seal_thread();
            [
                std::fs::File::open("/etc/hosts").map(drop).map_err(|error| error.kind()),
                std::fs::write("/tmp/never", b"x").map_err(|error| error.kind()),
                std::net::TcpListener::bind("127.0.0.1:0").map(drop).map_err(|error| error.kind()),
                std::process::Command::new("/bin/true").status().map(drop).map_err(|error| error.kind()),
                std::thread::Builder::new().spawn(|| {}).map(drop).map_err(|error| error.kind()),
            ]
        });
        let tried = sealed.unwrap().join().unwrap();
        assert_eq!(tried, [Err(ErrorKind::PermissionDenied); 5]);
    }
}
