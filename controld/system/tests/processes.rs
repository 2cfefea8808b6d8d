//! What only real processes have: descriptors, sessions, dispositions, zombies.
#![expect(clippy::disallowed_methods, reason = "the seams are checked against what the system itself says")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use seam::{Child, ExitStatus, Seams, Signal, SpawnRequest, Stdio, Target};
use tokio::io::{AsyncBufReadExt as _, BufReader};

fn seams(home: &Path) -> Seams {
    system::seams_for(home)
}

/// A shell script with the usual tools. It ends at the latest when the test does, if it reads its input.
fn shell(script: &str) -> SpawnRequest {
    SpawnRequest {
        program: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        directory: None,
        stdio: Stdio::Piped,
    }
}

async fn exit(child: &mut Child) -> ExitStatus {
    let exit = seam::within(&system::RealClock, PATIENCE, child.exit.wait()).await;
    exit.expect("it has reason to exit").expect("waited")
}

async fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).await.expect("readable");
    line.trim_end().to_owned()
}

/// Looks again until `state` holds.
async fn until(seams: &Seams, what: &str, mut state: impl FnMut() -> bool) {
    let waiting = async {
        while !state() {
            seams.clock.sleep(Duration::from_millis(5)).await;
        }
    };
    seam::within(seams.clock.as_ref(), PATIENCE, waiting).await.expect(what);
}

fn status(pid: u32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("a known field");
    line.trim_start_matches(':').trim().to_owned()
}

#[tokio::test]
async fn a_child_holds_no_descriptor_but_its_three_streams() {
    let home = tempfile::tempdir().unwrap();
    let seams = seams(home.path());
    let lock = home.path().join("home.lock");
    let _held = seams.disk.lock(&lock, "held").await.ok().unwrap();
    // As left behind by a careless parent of ours: not close-on-exec.
    let leaked = rustix::io::dup(std::fs::File::open(home.path()).unwrap()).unwrap();
    let _listener = seams.network.listen(([127, 0, 0, 1], 0).into()).await.unwrap();

    for stdio in [Stdio::Piped, Stdio::InputOnly] {
        let request = SpawnRequest { program: "cat".to_owned(), args: vec![], stdio, ..shell("") };
        let mut child = seams.processes.spawn(request).await.unwrap();
        let descriptors: BTreeSet<String> = std::fs::read_dir(format!("/proc/{}/fd", child.identity.pid))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(descriptors, ["0", "1", "2"].map(str::to_owned).into());
        for descriptor in ["0", "1", "2"] {
            let target = std::fs::read_link(format!("/proc/{}/fd/{descriptor}", child.identity.pid)).unwrap();
            let target = target.to_str().unwrap();
            let piped = stdio == Stdio::Piped || descriptor == "0";
            assert!(if piped { target.starts_with("pipe:") } else { target == "/dev/null" }, "{target}");
        }
        drop(child.stdin.take());
        assert_eq!(exit(&mut child).await, ExitStatus::Code(0));
    }
    drop(leaked);
}

#[tokio::test]
async fn a_child_leads_its_own_session_and_group() {
    let home = tempfile::tempdir().unwrap();
    let seams = seams(home.path());
    // The fields of /proc/PID/stat: state, parent, group, session.
    let mut child = seams.processes.spawn(shell("read _; :")).await.unwrap();
    let pid = child.identity.pid;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    assert_eq!(fields[1], seams.processes.own_identity().pid.to_string());
    assert_eq!((fields[2], fields[3]), (pid.to_string().as_str(), pid.to_string().as_str()));
    drop(child.stdin.take());
    exit(&mut child).await;
}

#[tokio::test]
async fn a_child_starts_with_no_signal_blocked_and_a_deadly_sigpipe() {
    let home = tempfile::tempdir().unwrap();
    let seams = seams(home.path());
    // What this process listens for is not handed down either.
    let _stop = seams.processes.stop_requested();
    let request = SpawnRequest { program: "cat".to_owned(), args: vec![], ..shell("") };
    let mut child = seams.processes.spawn(request).await.unwrap();
    let bits = |field| u64::from_str_radix(&status(child.identity.pid, field), 16).unwrap();
    let (blocked, ignored, caught) = (bits("SigBlk"), bits("SigIgn"), bits("SigCgt"));
    assert_eq!(blocked, 0);
    for signal in [2, 13, 15, 17] {
        assert_eq!((ignored >> (signal - 1)) & 1, 0, "signal {signal} is ignored");
        assert_eq!((caught >> (signal - 1)) & 1, 0, "signal {signal} is caught");
    }
    drop(child.stdin.take());
    exit(&mut child).await;
}

#[tokio::test]
async fn a_name_is_looked_up_in_the_requests_own_path() {
    let home = tempfile::tempdir().unwrap();
    let seams = seams(home.path());
    let program = home.path().join("only-here");
    std::fs::write(&program, "no program").unwrap();
    let mut request = shell("exit 5");
    request.program = "only-here".to_owned();
    let missing = seams.processes.spawn(request.clone()).await.err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert_eq!(missing.to_string(), "cannot start only-here: not found in PATH=/usr/bin:/bin");

    request.env.insert("PATH".to_owned(), format!("/usr/bin:{}", home.path().display()));
    let refused = seams.processes.spawn(request.clone()).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "not executable");
    std::fs::remove_file(&program).unwrap();
    std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
    let mut child = seams.processes.spawn(request).await.unwrap();
    assert_eq!(exit(&mut child).await, ExitStatus::Code(5));
}

#[tokio::test]
async fn a_missing_directory_is_named_and_not_the_program() {
    let home = tempfile::tempdir().unwrap();
    let seams = seams(home.path());
    let mut request = shell("pwd; read _");
    request.directory = Some(home.path().join("missing"));
    let error = seams.processes.spawn(request.clone()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains(&home.path().join("missing").display().to_string()), "{error}");

    request.directory = Some(home.path().to_owned());
    let mut child = seams.processes.spawn(request).await.unwrap();
    let directory = std::fs::canonicalize(home.path()).unwrap();
    assert_eq!(first_line(&mut child).await, directory.to_str().unwrap());
    drop(child.stdin.take());
    exit(&mut child).await;
}

#[tokio::test]
async fn a_reaper_adopts_orphans_and_leaves_no_zombie() {
    let home = tempfile::tempdir().unwrap();
    let seams = seams(home.path());
    seams.processes.become_reaper().unwrap();
    // The shell leaves `cat` behind, which ends with the shell's input.
    let mut child = seams.processes.spawn(shell("exec 3<&0; cat <&3 3<&- & echo $!; exit 7")).await.unwrap();
    let orphan: u32 = first_line(&mut child).await.parse().unwrap();
    assert_eq!(exit(&mut child).await, ExitStatus::Code(7));
    assert_eq!(status(orphan, "PPid"), seams.processes.own_identity().pid.to_string(), "adopted");
    assert_eq!(status(orphan, "NSpgid"), child.identity.pid.to_string(), "still in its group");
    let group = Target::Group(child.identity.clone());
    assert!(seams.processes.signal(group, Signal::Kill).await.unwrap());
    let gone = || !Path::new(&format!("/proc/{orphan}")).exists();
    until(&seams, "the orphan is reaped", gone).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reaper_robs_nobody_of_an_exit_status() {
    let home = tempfile::tempdir().unwrap();
    let seams = seams(home.path());
    seams.processes.become_reaper().unwrap();
    let mut children = Vec::new();
    for number in 0..40 {
        // Each also leaves an orphan that exits at once, so that there always is something to reap.
        children.push(seams.processes.spawn(shell(&format!("(:) & exit {number}"))).await.unwrap());
    }
    for (number, child) in (0..).zip(&mut children) {
        assert_eq!(exit(child).await, ExitStatus::Code(number));
    }
    // A child that is dropped unawaited is not left as a zombie either.
    let mut dropped = seams.processes.spawn(shell("read _")).await.unwrap();
    let (pid, stdin) = (dropped.identity.pid, dropped.stdin.take());
    drop(dropped);
    drop(stdin);
    until(&seams, "the dropped child is reaped", || !Path::new(&format!("/proc/{pid}")).exists()).await;
}

#[tokio::test]
async fn the_hosts_first_process_is_spared_when_its_pid_stood_for_another() {
    let home = tempfile::tempdir().unwrap();
    let seams = seams(home.path());
    let own = seams.processes.own_identity();
    let first = seam::ProcessIdentity { pid: 1, start_time: u64::MAX, boot_id: own.boot_id };
    assert!(!seams.processes.runs(&first).await.unwrap());
    assert!(!seams.processes.signal(Target::Process(first.clone()), Signal::Kill).await.unwrap());
    assert!(!seams.processes.signal(Target::Group(first), Signal::Kill).await.unwrap());
}

/// Reached only by a hang.
const PATIENCE: Duration = Duration::from_secs(60);
