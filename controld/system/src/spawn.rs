//! Starting a child: its own session, exactly its own environment, and no descriptor of ours.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::Stdio as StdStdio;

use process_wrap::tokio::{ChildWrapper, CommandWrap, CommandWrapper, ProcessSession};
use seam::{SpawnRequest, Stdio};
use tokio::process::Command;

use crate::failure::cannot;

/// Starts what was asked for. The result is the plain child: waiting for it waits for nobody else.
pub(crate) fn spawn(request: &SpawnRequest) -> io::Result<Box<dyn ChildWrapper>> {
    let mut wrap = CommandWrap::with_new(&request.program, |command| {
        command.args(&request.args).env_clear().envs(&request.env);
        if let Some(directory) = &request.directory {
            command.current_dir(directory);
        }
        let (input, output) = match request.stdio {
            Stdio::Piped => (StdStdio::piped(), [StdStdio::piped(), StdStdio::piped()]),
            Stdio::Null => (StdStdio::null(), [StdStdio::null(), StdStdio::null()]),
            Stdio::InputOnly => (StdStdio::piped(), [StdStdio::null(), StdStdio::null()]),
        };
        let [stdout, stderr] = output;
        command.stdin(input).stdout(stdout).stderr(stderr).kill_on_drop(false);
    });
    let child = wrap.wrap(ProcessSession).wrap(NothingInherited).spawn();
    // The session's wrapper would wait for the whole group, which with a subreaper lasts as long as the last
    // grandchild; inside it is the child itself.
    child.map(ChildWrapper::into_inner).map_err(|error| explained(request, error))
}

/// The kernel says "not found" of the program, its interpreter and the directory alike.
fn explained(request: &SpawnRequest, error: io::Error) -> io::Error {
    if let Some(directory) = request.directory.as_ref().filter(|directory| !directory.is_dir()) {
        let text = "there is no such directory to start in";
        return cannot(
            "start",
            &request.program,
            io::Error::new(error.kind(), format!("{}: {text}", directory.display())),
        );
    }
    // It also says "permission denied" of a name that is nowhere, if it could not look into one of the directories.
    let absent = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied);
    match request.env.get("PATH") {
        Some(path) if absent && !request.program.contains('/') => {
            match path
                .split(':')
                .map(|place| Path::new(place).join(&request.program))
                .find(|file| file.is_file())
            {
                Some(found) => cannot("start", found.display(), error),
                None => {
                    let text = format!("not found in PATH={path}");
                    cannot("start", &request.program, io::Error::new(ErrorKind::NotFound, text))
                }
            }
        }
        _ => cannot("start", &request.program, error),
    }
}

/// Closes in the child every descriptor beside its standard streams. Ours are all close-on-exec; this is for
/// those that we were ourselves started with, which would tie our agents to somebody we do not know.
#[derive(Debug)]
struct NothingInherited;

impl CommandWrapper for NothingInherited {
    #[expect(
        unsafe_code,
        reason = "between fork and exec there is only pre_exec; it calls async-signal-safe code"
    )]
    fn pre_spawn(&mut self, command: &mut Command, _core: &CommandWrap) -> io::Result<()> {
        // SAFETY: the closure runs after fork and before exec. It makes plain system calls and neither
        // allocates nor takes a lock.
        unsafe {
            command.pre_exec(close_all_on_exec);
        }
        Ok(())
    }
}

/// Marks all descriptors from 3 on as close-on-exec. Not closed right here: the standard library reports a
/// failed exec through one of them.
#[expect(unsafe_code, reason = "descriptors that nobody owns can be named by number only")]
fn close_all_on_exec() -> io::Result<()> {
    // SAFETY: changes only the close-on-exec flag of the calling process's descriptors.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked == 0 {
        return Ok(());
    }
    // A kernel before 5.11: one by one, as far as a process usually may count.
    for descriptor in 3..DESCRIPTORS {
        // SAFETY: as above; a number that is not open only gives an error.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// For old kernels only. Above the common limit of 1024; more would make every start slow.
const DESCRIPTORS: i32 = 4096;
