//! Invariants are observers: they are shown every line as it is appended, and the world behind it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use seam::ProcessIdentity;

use crate::trace::Line;
use crate::world::State;

/// Watches a whole run. It keeps its own model of what it saw and never changes the world.
pub trait Observer: Send {
    /// The invariant's id, as in the table of the design.
    fn id(&self) -> &'static str;

    /// One more line.
    ///
    /// # Errors
    /// The contradiction that this line completes; it ends the run.
    fn line(&mut self, line: &Line, world: &WorldView<'_>) -> Result<(), Violation>;

    /// How often it compared two sides that could have contradicted each other, by what they are. A part that stays at
    /// zero over all scenarios does not read what it thinks it reads.
    fn judged(&self) -> Vec<(&'static str, u64)>;

    /// The run is over and nothing runs any more.
    ///
    /// # Errors
    /// What never happened, or should not have stayed.
    fn end(&mut self, _world: &WorldView<'_>) -> Result<(), Violation> {
        Ok(())
    }
}

/// Two sides of a contradiction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant's id.
    pub invariant: String,
    /// The criterion that it serves, in its short form, as `S-001.4`.
    pub criterion: String,
    /// What must hold.
    pub expected: String,
    /// What was seen instead.
    pub seen: String,
}

impl Violation {
    /// Both sides of a contradiction.
    pub fn new(
        invariant: impl Into<String>,
        criterion: impl Into<String>,
        expected: impl Into<String>,
        seen: impl Into<String>,
    ) -> Self {
        Self {
            invariant: invariant.into(),
            criterion: criterion.into(),
            expected: expected.into(),
            seen: seen.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({})\n  expected  {}\n  seen      {}",
            self.invariant, self.criterion, self.expected, self.seen
        )
    }
}

/// The world as an observer may look at it.
pub struct WorldView<'a> {
    state: &'a State,
}

/// One process of the run, living or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessView {
    /// Name and life, as in the trace.
    pub label: String,
    /// The program's name.
    pub program: String,
    /// Which of the program's lives, from 1.
    pub life: u32,
    /// Who it is.
    pub identity: ProcessIdentity,
    /// Whether it runs.
    pub runs: bool,
    /// Name and life of who spawned it.
    pub parent: String,
    /// The arguments it was started with.
    pub args: Vec<String>,
    /// The environment it was started with.
    pub env: BTreeMap<String, String>,
    /// How many effects it has had.
    pub effects: u64,
    /// How many of them wrote to the disk.
    pub writes: u64,
    /// How many connections it has begun.
    pub connects: u64,
}

impl<'a> WorldView<'a> {
    pub(crate) const fn new(state: &'a State) -> Self {
        Self { state }
    }

    /// Simulated milliseconds since the start.
    pub fn now_ms(&self) -> u64 {
        self.state.now_ms()
    }

    /// All processes of the run in the order of their start, without the director.
    pub fn processes(&self) -> Vec<ProcessView> {
        self.state.process_views()
    }

    /// The content of a file.
    pub fn file(&self, path: impl AsRef<Path>) -> Option<&'a [u8]> {
        self.state.disk.content(path.as_ref())
    }

    /// Every file with its content, by path.
    pub fn files(&self) -> impl Iterator<Item = (&'a Path, &'a [u8])> {
        self.state.disk.files()
    }

    /// The lines before the one that is being looked at.
    pub fn lines(&self) -> &'a [Line] {
        self.state.trace.lines()
    }
}
