//! What every process table keeps to when a child leaves descendants behind.

use super::{pending, rest, soon, until};
use crate::{ExitStatus, Seams, Signal, SpawnRequest, Stdio, Target, random_hex};

/// The part of the contract of [`Processes`](crate::Processes) that is about descendants.
///
/// The seam itself gives every child a group and streams of its own, so `launcher` says how to start a program
/// that does not: with piped streams, it starts a child of its own in its own group, which inherits standard
/// output and error, ends when the launcher's standard input does, and can be ended by SIGTERM. Then the
/// launcher exits with code 7.
pub async fn descendants(seams: &Seams, mut launcher: SpawnRequest) {
    assert_eq!(launcher.stdio, Stdio::Piped);
    let mark = random_hex(seams.entropy.as_ref(), 16);
    launcher.env.insert("CONTRACT_MARK".to_owned(), mark.clone());
    let marked = async || seams.processes.marked("CONTRACT_MARK", &mark).await.expect("known");

    let mut started = seams.processes.spawn(launcher).await.expect("started");
    let leader = started.identity.clone();
    let exit = soon(seams, "the launcher's exit, while its child holds the pipes", started.exit.wait()).await;
    assert_eq!(exit.expect("waited"), ExitStatus::Code(7));
    assert!(!seams.processes.runs(&leader).await.expect("known"));
    assert!(
        !seams.processes.signal(Target::Process(leader.clone()), Signal::Terminate).await.expect("asked")
    );

    until(seams, "exactly one descendant", || async { marked().await.len() == 1 }).await;
    let descendant = marked().await.pop().expect("just seen");
    assert!(seams.processes.runs(&descendant).await.expect("known"));
    let mut stdout = started.stdout.take().expect("piped");
    pending(seams, "the end of a pipe that the descendant holds", rest(&mut stdout)).await;

    let sent = seams.processes.signal(Target::Group(leader.clone()), Signal::Terminate).await.expect("sent");
    assert!(sent, "the group has a member though its leader is gone");
    soon(seams, "the end of the pipe", rest(&mut stdout)).await;
    until(seams, "the descendant's end", || async {
        !seams.processes.runs(&descendant).await.expect("known") && marked().await.is_empty()
    })
    .await;
    until(seams, "an empty group", || async {
        !seams.processes.signal(Target::Group(leader.clone()), Signal::Kill).await.expect("asked")
    })
    .await;
}
