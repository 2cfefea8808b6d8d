//! **one-driver**: only the holder of the newest credential drives a control server; a rotation ends everything that
//! an older one still did, in the moment in which it happens.

use std::collections::BTreeMap;

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::{Kind, Line};

/// The newest rotation of each control server, and under which its streams were opened.
#[derive(Default)]
pub(super) struct OneDriver {
    newest: BTreeMap<String, u64>,
    /// By server and instance.
    streams: BTreeMap<(String, String), u64>,
    driven: u64,
    turns: u64,
    rotations: u64,
    acknowledgements: u64,
}

impl Observer for OneDriver {
    fn id(&self) -> &'static str {
        "one-driver"
    }

    fn line(&mut self, line: &Line, _world: &WorldView<'_>) -> Result<(), Violation> {
        if line.kind != Kind::Log || line.program() != "controld" {
            return Ok(());
        }
        let server = || line.process.clone();
        let stream = || (server(), line.field("instance").to_owned());
        match line.text.as_str() {
            "credential rotated" => {
                let rotation = rotation(line.field("rotation"));
                let newest = self.newest.entry(server()).or_default();
                let follows = if line.field("replayed") == "true" {
                    rotation == *newest
                } else {
                    rotation == *newest + 1
                };
                if !follows {
                    let expected = format!("rotations of {} follow r{newest} one by one", line.process);
                    return Err(violation("O-002.6", expected, line.to_string()));
                }
                *newest = rotation;
                self.rotations += 1;
            }
            "driven" => {
                self.driven += 1;
                return self.is_newest(line, rotation(line.field("by")));
            }
            "stream registered" => {
                let opened = rotation(line.field("by"));
                self.streams.insert(stream(), opened);
                return self.is_newest(line, opened);
            }
            "event acknowledged" => {
                self.acknowledgements += 1;
                let opened = self.streams.get(&stream()).copied().unwrap_or(u64::MAX);
                return self.is_newest(line, opened);
            }
            "turn opened" => self.turns += 1,
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("rotations", self.rotations),
            ("operations", self.driven),
            ("acknowledgements", self.acknowledgements),
        ]
    }

    fn end(&mut self, _world: &WorldView<'_>) -> Result<(), Violation> {
        if self.driven >= self.turns {
            return Ok(());
        }
        // Without the lines that it reads, this invariant would hold whatever happened.
        let expected = format!("{} turns were opened by a driver", self.turns);
        Err(violation("O-002.2", expected, format!("{} operations were seen to be driven", self.driven)))
    }
}

impl OneDriver {
    fn is_newest(&self, line: &Line, rotation: u64) -> Result<(), Violation> {
        let newest = self.newest.get(&line.process).copied().unwrap_or_default();
        if rotation == newest {
            return Ok(());
        }
        let expected = format!("{} is driven under its newest rotation, r{newest}", line.process);
        Err(violation("O-002.2", expected, line.to_string()))
    }
}

/// The number in `r3` or `driver r3`; one that is nobody's in anything else.
fn rotation(text: &str) -> u64 {
    let id = text.strip_prefix("driver ").unwrap_or(text);
    id.strip_prefix('r').and_then(|number| number.parse().ok()).unwrap_or(u64::MAX)
}

fn violation(criterion: &str, expected: String, seen: String) -> Violation {
    Violation::new("one-driver", criterion, expected, seen)
}
