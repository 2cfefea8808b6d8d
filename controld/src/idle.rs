//! When an instance counts as idle: for a whole timeout it had no stream, no request in flight, no open turn, no
//! pending permission and nothing unacknowledged (O-003.4 orders the unowned period against it).
//!
//! ```text
//!   busy ── the last reason ends: touched ──> quiet ── a whole timeout ──> idle
//!     ▲                                         │
//!     └──────────── touched by anything ────────┘
//! ```
//!
//! Whatever could end a reason to be busy touches; so the time of the last touch is when the quiet began, if it is quiet.

use std::time::Duration;

use seam::Monotonic;

/// When something last happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quiet {
    since: Monotonic,
}

/// What a look at it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idleness {
    /// To be looked at again then.
    NotBefore(Monotonic),
    /// It has been quiet for the whole timeout.
    Idle,
}

impl Quiet {
    /// Quiet from now on, at the earliest.
    pub(crate) fn new(now: Monotonic) -> Self {
        Self { since: now }
    }

    /// Something happened. A reading that arrives late changes nothing.
    pub(crate) fn touch(&mut self, now: Monotonic) {
        self.since = self.since.max(now);
    }

    /// Judges, with what is known about it at this moment.
    pub(crate) fn judge(&self, now: Monotonic, busy: bool, timeout: Duration) -> Idleness {
        let ends = if busy { now.after(timeout) } else { self.since.after(timeout) };
        if now >= ends { Idleness::Idle } else { Idleness::NotBefore(ends) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn it_is_idle_after_a_whole_timeout_without_a_touch() {
        let mut quiet = Quiet::new(at(0));
        assert_eq!(quiet.judge(at(59), false, TIMEOUT), Idleness::NotBefore(at(60)));
        quiet.touch(at(59));
        assert_eq!(quiet.judge(at(60), false, TIMEOUT), Idleness::NotBefore(at(119)));
        assert_eq!(quiet.judge(at(119), false, TIMEOUT), Idleness::Idle);
    }

    #[test]
    fn a_busy_one_is_looked_at_again_and_never_idle() {
        let quiet = Quiet::new(at(0));
        assert_eq!(quiet.judge(at(1000), true, TIMEOUT), Idleness::NotBefore(at(1060)));
    }

    #[test]
    fn a_touch_that_arrives_late_takes_nothing_back() {
        let mut quiet = Quiet::new(at(10));
        quiet.touch(at(5));
        assert_eq!(quiet.judge(at(65), false, TIMEOUT), Idleness::NotBefore(at(70)));
    }
}
