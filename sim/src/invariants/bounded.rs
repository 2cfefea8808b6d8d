//! **bounded**: retained events never exceed their limit.

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::Line;

/// Every retained event tells how many there are and how many there may be.
#[derive(Default)]
pub(super) struct Bounded {
    retained: u64,
}

impl Observer for Bounded {
    fn id(&self) -> &'static str {
        "bounded"
    }

    fn line(&mut self, line: &Line, _world: &WorldView<'_>) -> Result<(), Violation> {
        if !line.logged("controld", "event retained") {
            return Ok(());
        }
        self.retained += 1;
        let number = |field: &str| line.field(field).parse::<u64>().unwrap_or(u64::MAX);
        let (retained, limit) = (number("retained_events"), number("limit"));
        if retained <= limit && limit < u64::MAX {
            return Ok(());
        }
        Err(Violation::new(
            "bounded",
            "S-001.6",
            format!("instance {} keeps at most {limit} events", line.field("instance")),
            format!("{} are kept", line.field("retained_events")),
        ))
    }

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![("retained events", self.retained)]
    }
}
