//! The program that the contract starts: written over the seams itself, so that the same code runs as a real
//! process and as a simulated one.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::task::Poll;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::pattern;
use crate::{Child, OwnStdio, ProcessIdentity, Seams, Signal, SpawnRequest, Stdio};

/// How to start a process that runs [`child_program`].
#[derive(Clone, Debug)]
pub struct ContractChild {
    /// The path of the program.
    pub program: String,
    /// Arguments that come before those of the contract; the program may use them to choose what to run.
    pub args_before: Vec<String>,
}

impl ContractChild {
    /// What starts the program with these arguments, in an empty environment.
    pub(super) fn request(&self, args: &[&str], stdio: Stdio) -> SpawnRequest {
        let mut all = self.args_before.clone();
        all.push(MARK.to_owned());
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        SpawnRequest {
            program: self.program.clone(),
            args: all,
            env: BTreeMap::new(),
            directory: None,
            stdio,
        }
    }

    /// Starts it.
    pub(super) async fn spawn(&self, seams: &Seams, args: &[&str], stdio: Stdio) -> Child {
        seams.processes.spawn(self.request(args, stdio)).await.expect("the contract's child starts")
    }
}

/// What the contract's child does; the result is its exit code. What it is to do stands after the argument
/// [`ContractChild`] puts in front.
///
/// Whatever it is told, it ends with code 9 at the latest when its standard input does, so that none survives
/// the test that started it.
pub async fn child_program(seams: Seams) -> u8 {
    let arguments: Vec<String> =
        seams.host.arguments().into_iter().skip_while(|argument| argument != MARK).skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut stdio = seams.processes.own_stdio();
    let outcome = match words.as_slice() {
        ["exit", code] => Ok(code.parse().expect("an exit code")),
        ["print", out, err] => print(&mut stdio, out, err).await,
        ["arguments", rest @ ..] => say(&mut stdio, &rest.join("|")).await.map(|()| 0),
        ["environment"] => environment(&seams, &mut stdio).await,
        ["identity"] => say(&mut stdio, &identity_text(&seams.processes.own_identity())).await.map(|()| 0),
        ["echo"] => echo(&mut stdio).await,
        ["flood", bytes] => flood(&mut stdio, bytes.parse().expect("a number of bytes")).await,
        ["wait"] => wait(&mut stdio).await,
        ["stop-when-asked"] => stop_when_asked(&seams, &mut stdio).await,
        ["ignore-stop"] => ignore_stop(&seams, &mut stdio).await,
        ["stop-late"] => stop_late(&seams, &mut stdio).await,
        ["hold-lock", path, note] => hold_lock(&seams, &mut stdio, Path::new(path), note).await,
        other => panic!("the contract's child does not know {other:?}"),
    };
    // Whoever reads may be gone; that is a way to end and not a crash.
    outcome.unwrap_or(READER_GONE)
}

/// An identity as one line; see [`identity_from`].
pub(super) fn identity_text(identity: &ProcessIdentity) -> String {
    format!("{} {} {}", identity.pid, identity.start_time, identity.boot_id)
}

/// Reads what [`identity_text`] wrote.
pub(super) fn identity_from(text: &str) -> ProcessIdentity {
    let mut parts = text.splitn(3, ' ');
    let mut next = || parts.next().expect("three parts");
    ProcessIdentity {
        pid: next().parse().expect("a pid"),
        start_time: next().parse().expect("a start time"),
        boot_id: next().to_owned(),
    }
}

/// One line on each output.
async fn print(stdio: &mut OwnStdio, out: &str, err: &str) -> io::Result<u8> {
    say(stdio, out).await?;
    stdio.stderr.write_all(format!("{err}\n").as_bytes()).await?;
    stdio.stderr.flush().await?;
    Ok(0)
}

/// The environment, one `NAME=value` a line.
async fn environment(seams: &Seams, stdio: &mut OwnStdio) -> io::Result<u8> {
    for (name, value) in seams.host.environment() {
        say(stdio, &format!("{name}={value}")).await?;
    }
    Ok(0)
}

/// Gives back what it reads, until the input ends.
async fn echo(stdio: &mut OwnStdio) -> io::Result<u8> {
    let mut buffer = [0_u8; 4096];
    loop {
        let count = stdio.stdin.read(&mut buffer).await?;
        if count == 0 {
            return Ok(0);
        }
        stdio.stdout.write_all(&buffer[..count]).await?;
        stdio.stdout.flush().await?;
    }
}

/// Writes `bytes` bytes of the pattern as fast as they are taken.
async fn flood(stdio: &mut OwnStdio, bytes: usize) -> io::Result<u8> {
    let mut written = 0;
    while written < bytes {
        let piece = pattern(written, 4096.min(bytes - written));
        stdio.stdout.write_all(&piece).await?;
        stdio.stdout.flush().await?;
        written += piece.len();
    }
    Ok(0)
}

/// Does nothing until the input ends.
async fn wait(stdio: &mut OwnStdio) -> io::Result<u8> {
    say(stdio, "waiting").await?;
    input_ends(stdio).await?;
    Ok(0)
}

/// Ends with code 3 at the first request to stop, and says which it was.
async fn stop_when_asked(seams: &Seams, stdio: &mut OwnStdio) -> io::Result<u8> {
    let stop = seams.processes.stop_requested();
    say(stdio, "listening").await?;
    match unless_input_ends(stdio, stop).await? {
        Some(signal) => say(stdio, name(signal)).await.map(|()| 3),
        None => Ok(INPUT_ENDED),
    }
}

/// Says of every request to stop which it was, and goes on.
async fn ignore_stop(seams: &Seams, stdio: &mut OwnStdio) -> io::Result<u8> {
    let mut stop = seams.processes.stop_requested();
    say(stdio, "listening").await?;
    while let Some(signal) = unless_input_ends(stdio, stop).await? {
        stop = seams.processes.stop_requested();
        say(stdio, name(signal)).await?;
    }
    Ok(INPUT_ENDED)
}

/// Asks for requests to stop, forgets that it asked, and asks again only when told to.
async fn stop_late(seams: &Seams, stdio: &mut OwnStdio) -> io::Result<u8> {
    drop(seams.processes.stop_requested());
    say(stdio, "listening").await?;
    let mut go = [0_u8; 1];
    if stdio.stdin.read(&mut go).await? == 0 {
        return Ok(INPUT_ENDED);
    }
    let stop = seams.processes.stop_requested();
    match unless_input_ends(stdio, stop).await? {
        Some(signal) => say(stdio, name(signal)).await.map(|()| 3),
        None => Ok(INPUT_ENDED),
    }
}

/// Holds a lock until the input ends.
async fn hold_lock(seams: &Seams, stdio: &mut OwnStdio, path: &Path, note: &str) -> io::Result<u8> {
    let _lock = match seams.disk.lock(path, note).await {
        Ok(lock) => lock,
        Err(refused) => panic!("the child could not lock {}: {refused:?}", path.display()),
    };
    say(stdio, "locked").await?;
    input_ends(stdio).await?;
    Ok(INPUT_ENDED)
}

async fn say(stdio: &mut OwnStdio, text: &str) -> io::Result<()> {
    stdio.stdout.write_all(format!("{text}\n").as_bytes()).await?;
    stdio.stdout.flush().await
}

async fn input_ends(stdio: &mut OwnStdio) -> io::Result<()> {
    let mut buffer = [0_u8; 64];
    while stdio.stdin.read(&mut buffer).await? != 0 {}
    Ok(())
}

/// The result of `work`, or `None` if the input ended first.
async fn unless_input_ends<T>(
    stdio: &mut OwnStdio,
    mut work: std::pin::Pin<Box<dyn Future<Output = T> + Send + '_>>,
) -> io::Result<Option<T>> {
    let mut ended = Box::pin(input_ends(stdio));
    poll_fn(|cx| {
        if let Poll::Ready(value) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(Some(value)));
        }
        ended.as_mut().poll(cx).map(|end| end.map(|()| None))
    })
    .await
}

fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::Terminate => "terminate",
        Signal::Interrupt => "interrupt",
        Signal::Kill => "kill",
    }
}

/// Stands before the child's own arguments.
const MARK: &str = "contract-asks-for";

/// Exit code: nobody reads the outputs any more.
pub(super) const READER_GONE: u8 = 8;

/// Exit code: the standard input ended, and with it the test.
pub(super) const INPUT_ENDED: u8 = 9;
