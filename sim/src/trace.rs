//! What happened, line by line: decoded values and decisions with simulated time and ordinal, never wire bytes.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};

/// Named values of a line, in the order of their names.
pub type Fields = BTreeMap<String, String>;

/// What a line tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A process logged something; the text is its message.
    Log,
    /// A process changed the world through a seam; the text names the call, the field `effect` is its ordinal
    /// in the life of the process.
    Effect,
    /// A fault of the plan was applied.
    Fault,
    /// A process was started, was signalled or ended.
    Process,
    /// The scenario's director remarked something.
    Note,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Simulated milliseconds since the start of the run. Never less than in an earlier line.
    pub time_ms: u64,
    /// The position in the trace, from 1.
    pub ordinal: u64,
    /// The program's name and which of its lives, as `controld#2`; `world` for what no process did.
    pub process: String,
    /// What it tells of.
    pub kind: Kind,
    /// The message, or the name of what was done.
    pub text: String,
    /// The values that belong to it.
    pub fields: Fields,
}

impl Line {
    /// The program's name, without the number of its life.
    pub fn program(&self) -> &str {
        self.process.split_once('#').map_or(self.process.as_str(), |(name, _)| name)
    }

    /// The value of that name, or the empty text.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// Whether a process of this program logged exactly this message.
    pub fn logged(&self, program: &str, message: &str) -> bool {
        self.kind == Kind::Log && self.program() == program && self.text == message
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Log => "log",
            Kind::Effect => "effect",
            Kind::Fault => "FAULT",
            Kind::Process => "process",
            Kind::Note => "note",
        };
        write!(f, "[{:>6} ms #{}] {} {kind}: {}", self.time_ms, self.ordinal, self.process, self.text)?;
        for (name, value) in &self.fields {
            if value.contains([' ', '"', '\n']) || value.is_empty() {
                write!(f, " {name}={value:?}")?;
            } else {
                write!(f, " {name}={value}")?;
            }
        }
        Ok(())
    }
}

/// All lines of a run, and their hash.
#[derive(Clone, Default)]
pub(crate) struct Trace {
    lines: Vec<Line>,
    hash: Sha256,
}

impl Trace {
    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(crate) fn push(&mut self, line: Line) {
        self.hash.update(line.to_string().as_bytes());
        self.hash.update(b"\n");
        self.lines.push(line);
    }

    pub(crate) fn next_ordinal(&self) -> u64 {
        self.lines.len() as u64 + 1
    }

    /// The first 16 hexadecimal digits of the hash over all rendered lines: enough to tell traces apart.
    pub(crate) fn hash(&self) -> String {
        hex_of(&self.hash.clone().finalize()[..8])
    }

    pub(crate) fn take(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.lines)
    }
}

/// Fields from pairs.
pub(crate) fn fields<const N: usize>(pairs: [(&str, String); N]) -> Fields {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn hex_of(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        Line {
            time_ms: 20,
            ordinal: 1,
            process: "controld#2".to_owned(),
            kind: Kind::Log,
            text: text.to_owned(),
            fields: fields([("seq", "4".to_owned()), ("why", "a b".to_owned())]),
        }
    }

    #[test]
    fn a_line_prints_time_ordinal_process_and_fields() {
        assert_eq!(
            line("event retained").to_string(),
            "[    20 ms #1] controld#2 log: event retained seq=4 why=\"a b\""
        );
        assert!(line("event retained").logged("controld", "event retained"));
    }

    #[test]
    fn the_hash_tells_traces_apart() {
        let (mut one, mut other) = (Trace::default(), Trace::default());
        one.push(line("a"));
        other.push(line("b"));
        assert_ne!(one.hash(), other.hash());
    }
}
