//! Facts told from a trace: what happened, without what varies.

use std::collections::BTreeMap;

use sim::{Kind, Line, RunReport};

/// A run, and the names that its ids get in print.
pub struct Told {
    /// The whole trace.
    pub lines: Vec<Line>,
    names: BTreeMap<String, String>,
}

impl Told {
    /// The run of a scenario by a seed.
    ///
    /// # Panics
    /// If the run failed: then nothing can be shown.
    pub fn by(report: RunReport) -> Self {
        if let Err(failure) = &report.outcome {
            panic!("{} --seed {} failed: {}", report.scenario, report.seed, failure.violation);
        }
        let mut told = Self { lines: report.lines, names: BTreeMap::new() };
        for (prefix, field) in [("session", "session"), ("instance", "instance"), ("turn", "key")] {
            let mut count = 0;
            for line in &told.lines {
                let id = line.field(field);
                if !id.is_empty() && !told.names.contains_key(id) {
                    count += 1;
                    told.names.insert(id.to_owned(), format!("{prefix}-{count}"));
                }
            }
        }
        told
    }

    /// A text with every session's, instance's and turn's id replaced by its name: `session-1` is the first that the
    /// trace speaks of.
    pub fn plain(&self, text: &str) -> String {
        // The longest first: a turn's key holds its session's id.
        let mut names: Vec<_> = self.names.iter().collect();
        names.sort_by_key(|(id, _)| std::cmp::Reverse(id.len()));
        names.into_iter().fold(text.to_owned(), |text, (id, name)| text.replace(id.as_str(), name))
    }

    /// The lines that a process of this program logged with this message.
    pub fn logged<'a>(&'a self, program: &'a str, message: &'a str) -> impl Iterator<Item = &'a Line> {
        self.lines.iter().filter(move |line| line.logged(program, message))
    }

    /// The lines of the director with this text.
    pub fn noted<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a Line> {
        self.lines.iter().filter(move |line| line.kind == Kind::Note && line.text == text)
    }

    /// Where in the trace this process of this life ended, and how; none while it ran on.
    pub fn end_of(&self, process: &str) -> Option<&Line> {
        self.lines
            .iter()
            .find(|line| line.kind == Kind::Process && line.process == process && line.text == "ended")
    }

    /// Where in the trace this process of this life was started.
    ///
    /// # Panics
    /// If it never was.
    pub fn start_of(&self, process: &str) -> &Line {
        let started =
            |line: &&Line| line.kind == Kind::Process && line.process == process && line.text == "started";
        self.lines.iter().find(started).unwrap_or_else(|| panic!("{process} was never started"))
    }

    /// The lines between the end of the first backend and the start of the second: nobody is attached, and nobody is
    /// about to be.
    pub fn while_nobody_is_attached(&self) -> &[Line] {
        let from = self.end_of("backend-recovery#1").expect("the first backend ends").ordinal;
        let until = self.start_of("backend-recovery#2").ordinal;
        let until = usize::try_from(until).expect("a trace fits in memory");
        &self.lines[usize::try_from(from).expect("a trace fits in memory")..until]
    }

    /// Every process of a program that ever ran: its name, its pid, and what became of it.
    pub fn fates(&self, program: &str) -> Vec<String> {
        let started = self.lines.iter().filter(|line| line.kind == Kind::Process && line.text == "started");
        started
            .filter(|line| line.program() == program)
            .map(|line| match self.end_of(&line.process) {
                Some(end) => format!("{}: ended with {}", line.process, end.field("status")),
                None => format!("{}: ran all along", line.process),
            })
            .collect()
    }
}

/// `yes` or `no`.
pub fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "no" }
}
