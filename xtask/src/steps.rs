//! Named steps and how long each took.

use std::time::{Duration, Instant};

use crate::cargo::Failed;

/// The steps of one command, in order.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<(&'static str, Duration)>,
}

impl Steps {
    /// Runs one step under its name; a failure names it.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        println!("==> {name}");
        let start = Instant::now();
        let result = step();
        self.done.push((name, start.elapsed()));
        println!("<== {name}: {:.1} s", start.elapsed().as_secs_f64());
        result.map_err(|failed| Failed(format!("{name}: {failed}")))
    }

    /// A line per step.
    pub(crate) fn print(&self) {
        for (name, length) in &self.done {
            println!("{:>8.1} s  {name}", length.as_secs_f64());
        }
    }
}
