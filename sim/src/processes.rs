//! The Processes seam on the simulated process table.

use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;

use seam::{
    BoxFuture, Child, ChildInput, ChildOutput, Exit, ExitStatus, OwnStdio, ProcessIdentity, Processes,
    Reaper, Signal, SpawnRequest, Stdio, Target,
};

use crate::channel::{ChannelId, Null, ReadEnd, WriteEnd};
use crate::process_table::{NewProcess, Process, StdioEnds};
use crate::trace::{Fields, fields};
use crate::world::{Dead, Key, State, World, Yields};

/// The process table as one process sees it.
pub(crate) struct SimProcesses {
    pub(crate) world: Arc<World>,
    pub(crate) key: Key,
}

/// What a spawn gives, before it is wrapped: nothing in it locks the world when dropped.
struct Spawned {
    key: Key,
    identity: ProcessIdentity,
    stdin: Option<ChannelId>,
    stdout: Option<ChannelId>,
    stderr: Option<ChannelId>,
}

struct SimExit {
    world: Arc<World>,
    key: Key,
    child: Key,
}

impl Processes for SimProcesses {
    fn own_identity(&self) -> ProcessIdentity {
        self.world.lock().processes[&self.key].identity.clone()
    }

    fn own_stdio(&self) -> OwnStdio {
        let mut state = self.world.lock();
        let process = state.processes.get_mut(&self.key).expect("a caller is in the table");
        let ends = process.stdio.take();
        drop(state);
        let ends = ends.expect("the standard streams are asked for once");
        OwnStdio {
            stdin: self.output(ends.stdin),
            stdout: self.input(ends.stdout),
            stderr: self.input(ends.stderr),
        }
    }

    fn stop_requested(&self) -> BoxFuture<'_, Signal> {
        {
            let mut state = self.world.lock();
            if state.alive(self.key) {
                self.entry(&mut state).catches_signals = true;
            }
        }
        Box::pin(async move {
            let mut waited = false;
            let signal = poll_fn(|cx| {
                let mut state = self.world.lock();
                if state.count_call(self.key, "stop_requested").is_err() {
                    return Poll::Pending;
                }
                let process = self.entry(&mut state);
                if let Some(signal) = process.signals.pop_front() {
                    return Poll::Ready(signal);
                }
                waited = true;
                process.signal_waiter = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            // Nothing is lost if the caller goes away during these: it has no bearing on what was received.
            if waited {
                let yields = self.world.lock().draw_yields();
                Yields(yields).await;
            }
            signal
        })
    }

    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, io::Result<Child>> {
        Box::pin(async move {
            let spawned = self
                .world
                .act(self.key, "process.spawn", |state, told| spawn(state, self.key, request, told))
                .await?;
            Ok(Child {
                identity: spawned.identity,
                stdin: spawned.stdin.map(|id| self.input(Some(id))),
                stdout: spawned.stdout.map(|id| self.output(Some(id))),
                stderr: spawned.stderr.map(|id| self.output(Some(id))),
                exit: Box::new(SimExit { world: Arc::clone(&self.world), key: self.key, child: spawned.key }),
            })
        })
    }

    fn signal(&self, target: Target, signal: Signal) -> BoxFuture<'_, io::Result<bool>> {
        Box::pin(async move {
            self.world
                .act(self.key, "process.signal", |state, told| {
                    let (name, identity) = match &target {
                        Target::Process(identity) => ("process", identity),
                        Target::Group(leader) => ("group", leader),
                    };
                    let received = state.deliver(&target, signal);
                    told.extend(fields([
                        (name, identity.to_string()),
                        ("signal", format!("{signal:?}")),
                        ("received", received.to_string()),
                    ]));
                    Ok(received)
                })
                .await
        })
    }

    fn runs(&self, identity: &ProcessIdentity) -> BoxFuture<'_, io::Result<bool>> {
        let identity = identity.clone();
        Box::pin(async move {
            Ok(self.world.look(self.key, "process.runs", |state| state.find(&identity).is_some()).await)
        })
    }

    fn marked<'a>(
        &'a self,
        name: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, io::Result<Vec<ProcessIdentity>>> {
        Box::pin(async move {
            let mut found = self
                .world
                .look(self.key, "process.marked", |state| {
                    let holds = |process: &&Process| {
                        process.runs() && process.env.get(name).is_some_and(|held| held == value)
                    };
                    let found = state.processes.values().filter(holds);
                    found.map(|process| process.identity.clone()).collect::<Vec<_>>()
                })
                .await;
            found.sort_by_key(|identity| identity.pid);
            Ok(found)
        })
    }

    fn become_reaper(&self) -> io::Result<Reaper> {
        Ok(Reaper::Here)
    }
}

impl SimProcesses {
    fn entry<'a>(&self, state: &'a mut State) -> &'a mut Process {
        state.processes.get_mut(&self.key).expect("a caller is in the table")
    }

    fn input(&self, id: Option<ChannelId>) -> ChildInput {
        match id {
            Some(id) => Box::new(WriteEnd::new(&self.world, self.key, id)),
            None => Box::new(Null),
        }
    }

    fn output(&self, id: Option<ChannelId>) -> ChildOutput {
        match id {
            Some(id) => Box::new(ReadEnd::new(&self.world, self.key, id)),
            None => Box::new(Null),
        }
    }
}

fn spawn(state: &mut State, parent: Key, request: SpawnRequest, told: &mut Fields) -> io::Result<Spawned> {
    told.insert("program".to_owned(), request.program.clone());
    let missing =
        |what: &str| io::Error::new(io::ErrorKind::NotFound, format!("{what}: no such file or directory"));
    let name = Path::new(&request.program).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let program = state.programs.iter().find(|program| program.name == name).cloned();
    let Some(program) = program else {
        told.insert("failed".to_owned(), "no such program".to_owned());
        return Err(missing(&request.program));
    };
    let directory = request.directory.clone().unwrap_or_else(|| state.processes[&parent].directory.clone());
    if !state.disk.is_directory(&directory) {
        told.insert("failed".to_owned(), "no such directory".to_owned());
        return Err(missing(&directory.display().to_string()));
    }
    let executable = if request.program.contains('/') {
        PathBuf::from(&request.program)
    } else {
        Path::new(BIN).join(&request.program)
    };
    let class = program.name.clone();
    let key = state.add_process(NewProcess {
        program,
        parent: Some(parent),
        args: request.args,
        env: request.env,
        executable,
        directory,
    });
    let stdin = (request.stdio != Stdio::Null).then(|| state.open_channel(&class, parent, key));
    let piped = request.stdio == Stdio::Piped;
    let stdout = piped.then(|| state.open_channel(&class, key, parent));
    let stderr = piped.then(|| state.open_channel(&class, key, parent));
    let process = state.processes.get_mut(&key).expect("just added");
    process.stdio = Some(StdioEnds { stdin, stdout, stderr });
    let identity = process.identity.clone();
    told.insert("child".to_owned(), process.label.clone());
    Ok(Spawned { key, identity, stdin, stdout, stderr })
}

impl Exit for SimExit {
    fn wait(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>> {
        Box::pin(async move {
            let status = poll_fn(|cx| {
                let mut state = self.world.lock();
                if state.count_call(self.key, "exit.wait").is_err() {
                    return Poll::Pending;
                }
                let child = state.processes.get_mut(&self.child).expect("a child stays in the table");
                if let Some(status) = child.status() {
                    state.stop_awaiting(self.child);
                    return Poll::Ready(status);
                }
                child.exit_waiters.push((self.key, cx.waker().clone()));
                Poll::Pending
            })
            .await;
            let yields = self.world.lock().draw_yields();
            Yields(yields).await;
            Ok(status)
        })
    }
}

impl Drop for SimExit {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        if state.alive(self.key) {
            state.stop_awaiting(self.child);
        }
    }
}

impl State {
    /// A child in the group of its parent that takes over its standard streams.
    pub(crate) fn leave_behind(&mut self, parent: Key, program: &str) -> Option<ProcessIdentity> {
        let program = self.programs.iter().find(|known| known.name == program).cloned()?;
        let done = self.effect(parent, "process.fork", |state, told| {
            let old = &state.processes[&parent];
            let (args, env, group) = (old.args.clone(), old.env.clone(), old.group.clone());
            let (directory, executable) = (old.directory.clone(), Path::new(BIN).join(&program.name));
            let key = state.add_process(NewProcess {
                program,
                parent: Some(parent),
                args,
                env,
                executable,
                directory,
            });
            let ends =
                state.processes.get_mut(&parent).and_then(|old| old.stdio.replace(StdioEnds::default()));
            let ends = ends.expect("the standard streams were not asked for");
            for id in [ends.stdin, ends.stdout, ends.stderr].into_iter().flatten() {
                state.channels.hand_over(id, parent, key);
            }
            let child = state.processes.get_mut(&key).expect("just added");
            child.group = group;
            child.stdio = Some(ends);
            told.insert("child".to_owned(), child.label.clone());
            child.identity.clone()
        });
        done.ok()
    }
}

impl World {
    /// The end of a process that returned from its `main`.
    pub(crate) async fn exit(self: Arc<Self>, key: Key, code: u8) {
        let done = self.lock().effect(key, "process.exit", |state, told| {
            told.insert("code".to_owned(), code.to_string());
            state.end_process(key, ExitStatus::Code(i32::from(code)));
        });
        // Either way this process does nothing any more.
        let (Ok(()) | Err(Dead)) = done;
    }
}

/// Where programs are that are named without a path.
const BIN: &str = "/usr/bin";
