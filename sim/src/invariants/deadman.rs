//! **deadman**: a control server that nobody owns for its whole period ends with everything that it runs, and not a
//! moment earlier.

use std::collections::BTreeMap;

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::{Kind, Line};

/// The living control servers.
#[derive(Default)]
pub(super) struct Deadman {
    servers: BTreeMap<String, Tenure>,
    renewals: u64,
    unowned: u64,
    ends: u64,
}

#[derive(Default)]
struct Tenure {
    launch: String,
    /// Known once it listens.
    period_ms: Option<u64>,
    renewed_ms: u64,
    decided_ms: Option<u64>,
}

impl Observer for Deadman {
    fn id(&self) -> &'static str {
        "deadman"
    }

    fn line(&mut self, line: &Line, world: &WorldView<'_>) -> Result<(), Violation> {
        if line.program() == "controld" {
            self.follow(line, world)?;
        }
        self.judge(world)
    }

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![("renewals", self.renewals), ("unowned shutdowns", self.unowned), ("ends", self.ends)]
    }

    fn end(&mut self, world: &WorldView<'_>) -> Result<(), Violation> {
        self.judge(world)
    }
}

impl Deadman {
    fn follow(&mut self, line: &Line, world: &WorldView<'_>) -> Result<(), Violation> {
        let now = line.time_ms;
        match (line.kind, line.text.as_str()) {
            (Kind::Process, "started") => {
                let tenure = Tenure { renewed_ms: now, ..Tenure::default() };
                self.servers.insert(line.process.clone(), tenure);
                return Ok(());
            }
            (Kind::Process, "ended") => {
                let ended = self.servers.remove(&line.process).unwrap_or_default();
                return match line.field("status") {
                    "exit code 0" => {
                        self.ends += 1;
                        nothing_left(&ended, line, world)
                    }
                    _ => Ok(()),
                };
            }
            _ => {}
        }
        let Some(tenure) = self.servers.get_mut(&line.process) else { return Ok(()) };
        match (line.kind, line.text.as_str()) {
            (Kind::Log, "listening") => {
                tenure.launch = line.field("server").to_owned();
                tenure.period_ms = line.field("unowned_period_ms").parse().ok();
                if tenure.period_ms.is_none() {
                    let expected = "a server tells its period".to_owned();
                    return Err(violation("O-001.11", expected, line.to_string()));
                }
            }
            (Kind::Log, "handshake accepted" | "ownership claimed" | "credential rotated") => {
                if tenure.decided_ms.is_some() {
                    let expected = format!("nothing turns the decision of {} back", line.process);
                    return Err(violation("O-003.9", expected, line.to_string()));
                }
                tenure.renewed_ms = now;
                self.renewals += 1;
            }
            (Kind::Log, "shutdown decided") => {
                tenure.decided_ms = Some(now);
                self.unowned += u64::from(line.field("reason") == "unowned");
                let age = now - tenure.renewed_ms;
                let period = tenure.period_ms.unwrap_or(u64::MAX);
                if line.field("reason") == "unowned" && age < period {
                    let expected = format!("{} waits {period} ms for an owner", line.process);
                    return Err(violation("O-003.3", expected, format!("it gave up after {age} ms")));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn judge(&self, world: &WorldView<'_>) -> Result<(), Violation> {
        let now = world.now_ms();
        for (server, tenure) in &self.servers {
            let Some(period) = tenure.period_ms else { continue };
            let (what, age, bound) = match tenure.decided_ms {
                None => ("decides to end", now - tenure.renewed_ms, period + NOTICE_MS),
                Some(decided) => ("is gone", now - decided, END_MS),
            };
            if age > bound {
                let expected = format!("{server} {what} within {bound} ms");
                return Err(violation("O-003.1", expected, format!("{age} ms have passed")));
            }
        }
        Ok(())
    }
}

/// The agents and what they started carry a mark with the launch in it.
fn nothing_left(ended: &Tenure, line: &Line, world: &WorldView<'_>) -> Result<(), Violation> {
    let mark = format!("{}/", ended.launch);
    let carries = |process: &crate::ProcessView| {
        process.runs && process.env.get(MARK).is_some_and(|value| value.starts_with(&mark))
    };
    match world.processes().into_iter().find(carries) {
        None => Ok(()),
        Some(left) => {
            let expected = format!("{} ends after everything that it ran", line.process);
            Err(violation("O-003.1", expected, format!("{} still runs", left.label)))
        }
    }
}

fn violation(criterion: &str, expected: String, seen: String) -> Violation {
    Violation::new("deadman", criterion, expected, seen)
}

/// What marks the processes of an instance.
const MARK: &str = "KANDEV_INSTANCE_MARK";

/// A timer fires on time; a tick and drawn delays come on top.
const NOTICE_MS: u64 = 1_000;

/// The control server's own bound over a shutdown, and what answering the last callers takes.
const END_MS: u64 = 20_000;
