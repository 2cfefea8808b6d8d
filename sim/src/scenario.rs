//! Scenarios: arrange, break, heal, require. A director does what people and installations do.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use seam::{
    ChildInput, ChildOutput, Exit, ExitStatus, ProcessIdentity, Seams, Signal, SpawnRequest, Stdio, Target,
};
use tokio::io::AsyncReadExt as _;

use crate::observer::{Observer, ProcessView, Violation, WorldView};
use crate::plan::Plan;
use crate::process_table::DIRECTOR;
use crate::program::Program;
use crate::seed::{Rng, Streams};
use crate::trace::{Fields, Kind, Line};
use crate::world::World;

/// One story, told anew by every seed.
pub trait Scenario: Send + Sync {
    /// Its name on the command line: lower case with hyphens.
    fn name(&self) -> &'static str;

    /// The criterion that its own requirements serve, as `S-001.4`.
    fn criterion(&self) -> &'static str;

    /// The programs that can be started.
    fn programs(&self) -> Vec<Program> {
        crate::programs::table()
    }

    /// The invariants that watch it.
    fn observers(&self) -> Vec<Box<dyn Observer>> {
        crate::invariants::all()
    }

    /// States that some seed should reach, see [`Director::reached`].
    fn states(&self) -> &'static [&'static str] {
        &[]
    }

    /// When a run has taken too long, in simulated time.
    fn limit(&self) -> Duration {
        USUAL_LIMIT
    }

    /// What the seed decides before the run: grain, faults, parameters.
    fn plan(&self, streams: &Streams) -> Plan;

    /// Plays it.
    fn run(&self, director: Director) -> Played;
}

/// A scenario that is being played. It stays on one thread.
pub type Played = Pin<Box<dyn Future<Output = Result<(), Violation>>>>;

/// Plays a scenario: a process like any other, with seams, and some powers that no process has.
pub struct Director {
    /// Its own seams; what it writes or signals through them is in the trace as its own.
    pub seams: Seams,
    world: Arc<World>,
    criterion: &'static str,
    plan: Plan,
    workload: Mutex<Rng>,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Start {
    request: SpawnRequest,
}

/// A process that the director has started. Dropping it leaves the process alone.
pub struct Started {
    /// Who it is.
    pub identity: ProcessIdentity,
    /// Name and life, as in the trace.
    pub label: String,
    /// Its standard input, unless it has none.
    pub stdin: Option<ChildInput>,
    /// Its standard output, if piped.
    pub stdout: Option<ChildOutput>,
    /// Its standard error, if piped.
    pub stderr: Option<ChildOutput>,
    exit: Box<dyn Exit>,
}

/// What a command left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

impl Start {
    /// A program without arguments, environment and standard streams.
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            request: SpawnRequest {
                program: program.into(),
                args: Vec::new(),
                env: BTreeMap::new(),
                directory: None,
                stdio: Stdio::Null,
            },
        }
    }

    /// With these arguments more.
    #[must_use]
    pub fn args<I: IntoIterator<Item = A>, A: Into<String>>(mut self, args: I) -> Self {
        self.request.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.env.insert(name.into(), value.into());
        self
    }

    /// In this directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.request.directory = Some(directory.into());
        self
    }

    /// With these standard streams. Piped ones have to be read, or the process stops at 64 KiB.
    #[must_use]
    pub fn stdio(mut self, stdio: Stdio) -> Self {
        self.request.stdio = stdio;
        self
    }
}

impl Started {
    /// Waits for its end.
    ///
    /// # Errors
    /// None in the simulation.
    pub async fn exit(&mut self) -> io::Result<ExitStatus> {
        self.exit.wait().await
    }
}

impl Director {
    pub(crate) fn new(
        world: &Arc<World>,
        seams: Seams,
        criterion: &'static str,
        plan: Plan,
        workload: Rng,
    ) -> Self {
        Self { seams, world: Arc::clone(world), criterion, plan, workload: Mutex::new(workload) }
    }

    /// The plan of this run.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A parameter that the plan drew; 0 if it did not.
    pub fn knob(&self, name: &str) -> u64 {
        self.plan.knobs.get(name).copied().unwrap_or(0)
    }

    /// Draws from the stream `workload`.
    pub fn draw<R>(&self, draw: impl FnOnce(&mut Rng) -> R) -> R {
        draw(&mut self.workload.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a program.
    ///
    /// # Errors
    /// `NotFound` for a program that is not in the table, or a directory that is not there.
    pub async fn start(&self, start: Start) -> io::Result<Started> {
        let child = self.seams.processes.spawn(start.request).await?;
        let label = self.world.lock().label_of(&child.identity);
        Ok(Started {
            identity: child.identity,
            label,
            stdin: child.stdin,
            stdout: child.stdout,
            stderr: child.stderr,
            exit: child.exit,
        })
    }

    /// Runs a program to its end with an empty standard input.
    ///
    /// # Errors
    /// A violation of `converges` if it does not end within `limit` of simulated time, or cannot be started.
    pub async fn command(&self, start: Start, limit: Duration) -> Result<Output, Violation> {
        let shown = format!("{} {}", start.request.program, start.request.args.join(" "));
        let converges = |seen: String| {
            Violation::new("converges", self.criterion, format!("`{shown}` ends within {limit:?}"), seen)
        };
        let mut started = self
            .start(start.stdio(Stdio::Piped))
            .await
            .map_err(|error| converges(format!("not started: {error}")))?;
        drop(started.stdin.take());
        let stdout = all_of(started.stdout.take());
        let stderr = all_of(started.stderr.take());
        let ended = async { tokio::join!(started.exit.wait(), stdout, stderr) };
        match seam::within(self.seams.clock.as_ref(), limit, ended).await {
            Ok((Ok(status), stdout, stderr)) => Ok(Output { status, stdout, stderr }),
            Ok((Err(error), ..)) => Err(converges(error.to_string())),
            Err(_) => Err(converges("still running".to_owned())),
        }
    }

    /// SIGKILL from outside. False if it does not run any more.
    pub async fn kill(&self, identity: &ProcessIdentity) -> bool {
        self.signal(identity, Signal::Kill).await
    }

    /// A signal from outside. False if it does not run any more.
    pub async fn signal(&self, identity: &ProcessIdentity, signal: Signal) -> bool {
        let sent = self.seams.processes.signal(Target::Process(identity.clone()), signal).await;
        sent.expect("the simulated kernel lets the director signal everybody")
    }

    /// Waits until a line like that is in the trace; lines from the start of the run on count.
    ///
    /// # Errors
    /// A violation of `converges` that says `what` did not happen within `limit`.
    pub async fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        wanted: impl FnMut(&Line) -> bool,
    ) -> Result<Line, Violation> {
        self.wait_for_after(0, what, limit, wanted).await
    }

    /// The same for lines after the `mark`-th only, see [`Director::mark`].
    ///
    /// # Errors
    /// As [`Director::wait_for`].
    pub async fn wait_for_after(
        &self,
        mark: usize,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&Line) -> bool,
    ) -> Result<Line, Violation> {
        let mut next = mark;
        self.wait_until(what, limit, move |world| {
            let new = world.lines().get(next..).unwrap_or_default();
            next = world.lines().len();
            new.iter().find(|line| wanted(line)).cloned()
        })
        .await
    }

    /// Waits until `seen` gives something; it is asked now and after every new line.
    ///
    /// # Errors
    /// As [`Director::wait_for`].
    pub async fn wait_until<R>(
        &self,
        what: &str,
        limit: Duration,
        mut seen: impl FnMut(&WorldView<'_>) -> Option<R>,
    ) -> Result<R, Violation> {
        let mut bound = pin!(self.seams.clock.sleep(limit));
        poll_fn(|cx| {
            {
                let mut state = self.world.lock();
                if !state.alive(DIRECTOR) {
                    return Poll::Pending;
                }
                if let Some(found) = seen(&WorldView::new(&state)) {
                    return Poll::Ready(Ok(found));
                }
                state.on_next_line(DIRECTOR, cx.waker().clone());
            }
            bound.as_mut().poll(cx).map(|()| {
                Err(Violation::new(
                    "converges",
                    self.criterion,
                    format!("{what}, within {limit:?}"),
                    "it did not happen",
                ))
            })
        })
        .await
    }

    /// How many lines there are: what follows is new.
    pub fn mark(&self) -> usize {
        self.world.lock().trace.lines().len()
    }

    /// Looks at the world without a trace of it.
    pub fn look<R>(&self, look: impl FnOnce(&WorldView<'_>) -> R) -> R {
        look(&WorldView::new(&self.world.lock()))
    }

    /// The living processes of a program, oldest first.
    pub fn living(&self, program: &str) -> Vec<ProcessView> {
        self.look(|world| {
            world
                .processes()
                .into_iter()
                .filter(|process| process.runs && process.program == program)
                .collect()
        })
    }

    /// Lets simulated time pass.
    pub async fn sleep(&self, length: Duration) {
        self.seams.clock.sleep(length).await;
    }

    /// Puts a file there as an installer would: with its directories, at once, without a fault or a line.
    pub fn install(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
        let mut state = self.world.lock();
        let path = path.as_ref();
        let parent = path.parent().unwrap_or(Path::new("/"));
        state
            .disk
            .create_directory(parent, seam::Privacy::Shared)
            .and_then(|()| state.disk.replace(path, bytes.as_ref(), seam::Privacy::Shared))
            .expect("an installer puts files where files can be");
    }

    /// Makes a directory, at once, without a line.
    pub fn make_directory(&self, path: impl AsRef<Path>) {
        let made = self.world.lock().disk.create_directory(path.as_ref(), seam::Privacy::Shared);
        made.expect("an installer makes directories where directories can be");
    }

    /// Makes a directory refuse new, renamed and removed entries, or allows them again.
    pub fn set_read_only(&self, directory: impl AsRef<Path>, to: bool) {
        self.world.lock().disk.set_read_only(directory.as_ref(), to);
    }

    /// From here on no fault of the plan is applied.
    pub fn heal(&self) {
        let mut state = self.world.lock();
        state.say(DIRECTOR, Kind::Note, "healed", Fields::new());
        state.heal();
    }

    /// Remarks something in the trace.
    pub fn note<const N: usize>(&self, text: impl Into<String>, fields: [(&str, String); N]) {
        self.world.lock().say(DIRECTOR, Kind::Note, text, crate::trace::fields(fields));
    }

    /// Marks a state of the scenario as seen by this seed.
    pub fn reached(&self, state: &'static str) {
        self.world.lock().reached.insert(state.to_owned());
    }

    /// Requires something of the scenario's own criterion.
    ///
    /// # Errors
    /// A violation with both sides if it does not hold.
    pub fn require(
        &self,
        holds: bool,
        expected: impl Into<String>,
        seen: impl Into<String>,
    ) -> Result<(), Violation> {
        if holds {
            return Ok(());
        }
        Err(Violation::new("required", self.criterion, expected, seen))
    }
}

async fn all_of(output: Option<ChildOutput>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut output) = output {
        // A pipe of ours ends, it does not fail.
        let _end = output.read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Twice what the longest honest restart takes (a bound of 30 s before the first answer).
const USUAL_LIMIT: Duration = Duration::from_secs(60);
