//! **bounded**: retained events never exceed their limit.

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::Line;

/// Every retained event tells how many there are and how many there may be.
#[derive(Default)]
pub(super) struct Bounded {
    retained: u64,
    said: u64,
}

impl Observer for Bounded {
    fn id(&self) -> &'static str {
        "bounded"
    }

    fn line(&mut self, line: &Line, _world: &WorldView<'_>) -> Result<(), Violation> {
        self.said += u64::from(line.logged("scripted-agent", "agent said"));
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

    fn end(&mut self, _world: &WorldView<'_>) -> Result<(), Violation> {
        if self.retained > 0 || self.said < MANY {
            return Ok(());
        }
        // Without the lines that it reads, this invariant would hold whatever happened.
        let expected = format!("some of {} events are retained", self.said);
        Err(Violation::new("bounded", "S-001.6", expected, "none was seen to be"))
    }
}

/// A run that ends with fewer may end before the first of them is retained.
const MANY: u64 = 10;
