//! What every process table keeps to.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use tokio::io::AsyncWriteExt as _;

use super::child::{INPUT_ENDED, READER_GONE, identity_from};
use super::{ContractChild, line, pattern, pending, rest, soon, until};
use crate::{Child, ExitStatus, ProcessIdentity, Seams, Signal, SpawnRequest, Stdio, Target, random_hex};

/// The contract of [`Processes`](crate::Processes), with children that run
/// [`child_program`](super::child_program).
pub async fn processes(seams: &Seams, child: &ContractChild) {
    tells_who_it_is(seams, child).await;
    starts_exactly_what_was_asked(seams, child).await;
    refuses_what_is_not_there(seams, child).await;
    connects_streams(seams, child).await;
    tells_how_it_ended(seams, child).await;
    delivers_signals(seams, child).await;
    loses_no_signal(seams, child).await;
    spares_strangers(seams, child).await;
    finds_marked_processes(seams, child).await;
}

async fn tells_who_it_is(seams: &Seams, child: &ContractChild) {
    let own = seams.processes.own_identity();
    assert_eq!(seams.processes.own_identity(), own, "it stays the same");
    assert!(seams.processes.runs(&own).await.expect("known"), "this process runs");

    let mut started = child.spawn(seams, &["identity"], Stdio::Piped).await;
    assert_ne!(started.identity.pid, own.pid);
    assert_eq!(started.identity.boot_id, own.boot_id, "one machine, one boot");
    let mut stdout = started.stdout.take().expect("piped");
    let told = identity_from(&soon(seams, "the child's identity", line(&mut stdout)).await);
    assert_eq!(told, started.identity, "parent and child see the same identity");
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0));
}

async fn starts_exactly_what_was_asked(seams: &Seams, child: &ContractChild) {
    let arguments = ["arguments", "", "two words", "'quoted' \"$HOME\" *", "--flag=ü"];
    let mut started = child.spawn(seams, &arguments, Stdio::Piped).await;
    let mut stdout = started.stdout.take().expect("piped");
    let told = soon(seams, "the child's arguments", line(&mut stdout)).await;
    assert_eq!(told, "|two words|'quoted' \"$HOME\" *|--flag=ü", "no shell comes in between");
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0));

    let mut request = child.request(&["environment"], Stdio::Piped);
    request.env = BTreeMap::from([
        ("ALPHA".to_owned(), "1".to_owned()),
        ("EMPTY".to_owned(), String::new()),
        ("PATH".to_owned(), "/nowhere".to_owned()),
        ("ZULU".to_owned(), "with = and spaces".to_owned()),
    ]);
    let mut started = seams.processes.spawn(request).await.expect("started");
    let mut stdout = started.stdout.take().expect("piped");
    let told = soon(seams, "the child's environment", rest(&mut stdout)).await;
    assert_eq!(
        String::from_utf8_lossy(&told),
        "ALPHA=1\nEMPTY=\nPATH=/nowhere\nZULU=with = and spaces\n",
        "nothing is inherited"
    );
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0));
}

async fn refuses_what_is_not_there(seams: &Seams, child: &ContractChild) {
    let nowhere = |program: &str| SpawnRequest {
        program: program.to_owned(),
        args: Vec::new(),
        env: BTreeMap::from([("PATH".to_owned(), "/no/such/directory".to_owned())]),
        directory: None,
        stdio: Stdio::Null,
    };
    for program in ["/no/such/program", "no-such-program"] {
        let refused = seams.processes.spawn(nowhere(program)).await.err().expect("not there");
        assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
    }
    let mut request = child.request(&["exit", "0"], Stdio::Null);
    request.directory = Some(PathBuf::from("/no/such/directory"));
    let refused = seams.processes.spawn(request).await.err().expect("no such directory");
    assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
}

async fn connects_streams(seams: &Seams, child: &ContractChild) {
    // The outputs are two streams.
    let mut started = child.spawn(seams, &["print", "to out", "to err"], Stdio::Piped).await;
    let mut stdout = started.stdout.take().expect("piped");
    let mut stderr = started.stderr.take().expect("piped");
    assert_eq!(soon(seams, "standard output", rest(&mut stdout)).await, b"to out\n");
    assert_eq!(soon(seams, "standard error", rest(&mut stderr)).await, b"to err\n");
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0));

    // 200 KiB through the child and back, in order; then the end of the input ends it.
    let mut started = child.spawn(seams, &["echo"], Stdio::Piped).await;
    let mut stdin = started.stdin.take().expect("piped");
    let mut stdout = started.stdout.take().expect("piped");
    let writer = tokio::spawn(async move {
        stdin.write_all(&pattern(0, 200 * 1024)).await.expect("the child reads");
        stdin.flush().await.expect("the child reads");
    });
    let back = soon(seams, "everything back from the child", rest(&mut stdout)).await;
    assert!(back == pattern(0, 200 * 1024), "bytes were lost, doubled or reordered");
    writer.await.expect("the writer ends");
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0));

    // Nobody reads: the child waits, and nothing is lost.
    let mut started = child.spawn(seams, &["flood", "1000000"], Stdio::Piped).await;
    pending(seams, "a child whose output nobody reads", started.exit.wait()).await;
    let mut stdout = started.stdout.take().expect("piped");
    let all = soon(seams, "everything from the child", rest(&mut stdout)).await;
    assert!(all == pattern(0, 1_000_000), "bytes were lost, doubled or reordered");
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0));

    // The reader goes: the writer gets an error and is not killed by a signal.
    let mut started = child.spawn(seams, &["flood", "1000000"], Stdio::Piped).await;
    drop(started.stdout.take());
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(READER_GONE.into()));
    // And the same the other way round.
    let mut stdin = started.stdin.take().expect("piped");
    let outcome = async {
        stdin.write_all(b"anybody there?").await?;
        stdin.flush().await
    };
    let error = soon(seams, "a write to a child that is gone", outcome).await.expect_err("it is gone");
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");

    let mut started = child.spawn(seams, &["print", "into", "nothing"], Stdio::Null).await;
    assert!(started.stdin.is_none() && started.stdout.is_none() && started.stderr.is_none());
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0));
    let mut started = child.spawn(seams, &["wait"], Stdio::Null).await;
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0), "the null device is at its end");

    let mut started = child.spawn(seams, &["wait"], Stdio::InputOnly).await;
    assert!(started.stdin.is_some() && started.stdout.is_none() && started.stderr.is_none());
    pending(seams, "a child whose input is open", started.exit.wait()).await;
    drop(started.stdin.take());
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0));
}

async fn tells_how_it_ended(seams: &Seams, child: &ContractChild) {
    for code in [0, 1, 42, 255] {
        let mut started = child.spawn(seams, &["exit", &code.to_string()], Stdio::Null).await;
        assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(code));
        assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(code), "afterwards always the same");
        assert!(!seams.processes.runs(&started.identity).await.expect("known"));
    }

    // A wait that was given up takes nothing away.
    let (mut started, _) = waiting(seams, child).await;
    pending(seams, "the exit of a child that runs", started.exit.wait()).await;
    drop(started.stdin.take());
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0));

    // Exited and not yet reaped: it does not run, takes no signal, and its exit is still to be had.
    let (mut started, _) = waiting(seams, child).await;
    assert!(seams.processes.runs(&started.identity).await.expect("known"));
    drop(started.stdin.take());
    gone(seams, &started.identity).await;
    assert!(!signal(seams, Target::Process(started.identity.clone()), Signal::Terminate).await);
    assert!(!signal(seams, Target::Group(started.identity.clone()), Signal::Terminate).await);
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0));

    // Dropping a child is not stopping it: whoever kept its streams still talks with it.
    let mut started = child.spawn(seams, &["echo"], Stdio::Piped).await;
    let identity = started.identity.clone();
    let mut stdin = started.stdin.take().expect("piped");
    let mut stdout = started.stdout.take().expect("piped");
    drop(started);
    stdin.write_all(b"still here\n").await.expect("the child reads");
    stdin.flush().await.expect("the child reads");
    assert_eq!(soon(seams, "the dropped child's answer", line(&mut stdout)).await, "still here");
    assert!(seams.processes.runs(&identity).await.expect("known"));
    drop(stdin);
    gone(seams, &identity).await;
}

async fn delivers_signals(seams: &Seams, child: &ContractChild) {
    for (sent, number) in [(Signal::Terminate, 15), (Signal::Interrupt, 2), (Signal::Kill, 9)] {
        for group in [false, true] {
            let (mut started, _stdout) = waiting(seams, child).await;
            let target = target(&started.identity, group);
            assert!(signal(seams, target.clone(), sent).await, "it runs");
            assert_eq!(ended(seams, &mut started).await, ExitStatus::Signal(number));
            assert!(!signal(seams, target, sent).await, "nobody is left to receive it");
        }
    }

    // Who asked to be told is told instead of ended.
    for (sent, word) in [(Signal::Terminate, "terminate"), (Signal::Interrupt, "interrupt")] {
        let (mut started, mut stdout) = listening(seams, child, "stop-when-asked").await;
        assert!(signal(seams, Target::Process(started.identity.clone()), sent).await);
        assert_eq!(soon(seams, "the child's word", line(&mut stdout)).await, word);
        assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(3));
    }

    // Who ignores it is killed.
    let (mut started, mut stdout) = listening(seams, child, "ignore-stop").await;
    for _ in 0..3 {
        assert!(signal(seams, Target::Group(started.identity.clone()), Signal::Terminate).await);
        assert_eq!(soon(seams, "the child's word", line(&mut stdout)).await, "terminate");
    }
    assert!(seams.processes.runs(&started.identity).await.expect("known"));
    assert!(signal(seams, Target::Group(started.identity.clone()), Signal::Kill).await);
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Signal(9));

    let (mut started, _stdout) = listening(seams, child, "ignore-stop").await;
    drop(started.stdin.take());
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(INPUT_ENDED.into()));
}

async fn loses_no_signal(seams: &Seams, child: &ContractChild) {
    let (mut started, mut stdout) = listening(seams, child, "stop-late").await;
    assert!(signal(seams, Target::Process(started.identity.clone()), Signal::Terminate).await);
    assert!(seams.processes.runs(&started.identity).await.expect("known"), "it has asked once");
    let stdin = started.stdin.as_mut().expect("piped");
    stdin.write_all(b"!").await.expect("the child reads");
    stdin.flush().await.expect("the child reads");
    assert_eq!(soon(seams, "the child's word", line(&mut stdout)).await, "terminate");
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(3));
}

async fn spares_strangers(seams: &Seams, child: &ContractChild) {
    let (mut started, _stdout) = waiting(seams, child).await;
    let true_one = started.identity.clone();
    let another_life = ProcessIdentity { start_time: true_one.start_time + 1, ..true_one.clone() };
    let another_boot = ProcessIdentity { boot_id: "an earlier boot".to_owned(), ..true_one.clone() };
    for stranger in [another_life, another_boot] {
        assert!(!seams.processes.runs(&stranger).await.expect("known"), "{stranger:?} is not this process");
        for group in [false, true] {
            assert!(!signal(seams, target(&stranger, group), Signal::Kill).await, "{stranger:?}");
        }
    }
    assert!(seams.processes.runs(&true_one).await.expect("known"), "it was spared");
    drop(started.stdin.take());
    assert_eq!(ended(seams, &mut started).await, ExitStatus::Code(0), "it was spared");
}

async fn finds_marked_processes(seams: &Seams, child: &ContractChild) {
    let value = random_hex(seams.entropy.as_ref(), 16);
    let marked = async |value: &str| seams.processes.marked("CONTRACT_MARK", value).await.expect("known");
    assert_eq!(marked(&value).await, []);

    let mut request = child.request(&["wait"], Stdio::Piped);
    request.env.insert("CONTRACT_MARK".to_owned(), value.clone());
    let mut first = seams.processes.spawn(request.clone()).await.expect("started");
    let mut second = seams.processes.spawn(request).await.expect("started");
    let (mut unmarked, _stdout) = waiting(seams, child).await;
    let mut both = [first.identity.clone(), second.identity.clone()];
    both.sort();
    assert_eq!(marked(&value).await, both, "sorted by pid");
    assert_eq!(marked(&value[..31]).await, [], "a part of the value is another value");

    drop(first.stdin.take());
    assert_eq!(ended(seams, &mut first).await, ExitStatus::Code(0));
    assert_eq!(marked(&value).await, [second.identity.clone()]);
    drop(second.stdin.take());
    gone(seams, &second.identity).await;
    assert_eq!(marked(&value).await, [], "who has exited is not running, reaped or not");
    ended(seams, &mut second).await;
    drop(unmarked.stdin.take());
    ended(seams, &mut unmarked).await;
}

/// A child that waits for the end of its input, and its standard output.
async fn waiting(seams: &Seams, child: &ContractChild) -> (Child, crate::ChildOutput) {
    let mut started = child.spawn(seams, &["wait"], Stdio::Piped).await;
    let mut stdout = started.stdout.take().expect("piped");
    assert_eq!(soon(seams, "the child's start", line(&mut stdout)).await, "waiting");
    (started, stdout)
}

/// A child that has asked to be told of requests to stop, and its standard output.
async fn listening(seams: &Seams, child: &ContractChild, what: &str) -> (Child, crate::ChildOutput) {
    let mut started = child.spawn(seams, &[what], Stdio::Piped).await;
    let mut stdout = started.stdout.take().expect("piped");
    assert_eq!(soon(seams, "the child's start", line(&mut stdout)).await, "listening");
    (started, stdout)
}

async fn ended(seams: &Seams, child: &mut Child) -> ExitStatus {
    soon(seams, "a child's exit", child.exit.wait()).await.expect("waited")
}

async fn gone(seams: &Seams, identity: &ProcessIdentity) {
    until(seams, "the end of a process", || async {
        !seams.processes.runs(identity).await.expect("the process table is readable")
    })
    .await;
}

async fn signal(seams: &Seams, target: Target, signal: Signal) -> bool {
    seams.processes.signal(target, signal).await.expect("sent, or nobody there")
}

fn target(identity: &ProcessIdentity, group: bool) -> Target {
    if group { Target::Group(identity.clone()) } else { Target::Process(identity.clone()) }
}
