//! How long a server tolerates having no owner: the configured value, the idle timeout above it, the floor below it
//! (O-003.4, O-003.6, O-003.7).
//!
//! ```text
//!   configured or default ---> half of the idle timeout, if not below it ---> one minute, if below that
//! ```
//!
//! Reading the texts is elsewhere: what arrives here is a duration or nothing.

use std::time::Duration;

/// The period, and what was done to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnownedPeriod {
    /// What holds.
    pub(crate) period: Duration,
    /// Each change, in the order in which it was made; each is logged at start.
    pub(crate) adjustments: Vec<PeriodAdjustment>,
}

/// Whether idle instances are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleReaping {
    /// The timeout was 0: there is no ordering to keep.
    Off,
    /// After this.
    After(Duration),
}

/// One change of the period, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PeriodAdjustment {
    /// Idle instances would have been stopped before their server gave up on its owner.
    #[error(
        "unowned period {from:?} is not below the idle timeout {idle_timeout:?}: half of that holds, {to:?}"
    )]
    HalvedIdleTimeout {
        /// What was configured.
        from: Duration,
        /// The idle timeout.
        idle_timeout: Duration,
        /// What holds instead.
        to: Duration,
    },
    /// A backend that starts slowly would find its agents stopped.
    #[error("unowned period {from:?} is below the floor: {to:?} holds")]
    RaisedToFloor {
        /// What it was.
        from: Duration,
        /// The floor.
        to: Duration,
    },
    /// The idle timeout is so short that the floor is not below it. The floor holds.
    #[error("unowned period {period:?} is not below the idle timeout {idle_timeout:?}: the floor wins")]
    FloorBeatsOrdering {
        /// What holds.
        period: Duration,
        /// The idle timeout.
        idle_timeout: Duration,
    },
}

impl IdleReaping {
    /// The configured timeout, where 0 means off.
    pub(crate) fn from_timeout(timeout: Duration) -> Self {
        if timeout.is_zero() { Self::Off } else { Self::After(timeout) }
    }
}

impl UnownedPeriod {
    /// What holds when this was configured.
    pub(crate) fn resolve(configured: Option<Duration>, idle: IdleReaping) -> Self {
        let mut period = configured.unwrap_or(DEFAULT_PERIOD);
        let mut adjustments = Vec::new();
        if let IdleReaping::After(idle_timeout) = idle
            && period >= idle_timeout
        {
            let to = idle_timeout / 2;
            adjustments.push(PeriodAdjustment::HalvedIdleTimeout { from: period, idle_timeout, to });
            period = to;
        }
        if period < PERIOD_FLOOR {
            adjustments.push(PeriodAdjustment::RaisedToFloor { from: period, to: PERIOD_FLOOR });
            period = PERIOD_FLOOR;
            if let IdleReaping::After(idle_timeout) = idle
                && period >= idle_timeout
            {
                adjustments.push(PeriodAdjustment::FloorBeatsOrdering { period, idle_timeout });
            }
        }
        Self { period, adjustments }
    }
}

/// O-003.4: longer than any restart of a backend, an upgrade included.
const DEFAULT_PERIOD: Duration = Duration::from_secs(600);

/// O-003.7: below it a backend that starts slowly would find its agents stopped.
pub(crate) const PERIOD_FLOOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn resolve(configured: Option<u64>, idle_timeout: u64) -> UnownedPeriod {
        UnownedPeriod::resolve(configured.map(seconds), IdleReaping::from_timeout(seconds(idle_timeout)))
    }

    fn unadjusted(period: u64) -> UnownedPeriod {
        UnownedPeriod { period: seconds(period), adjustments: vec![] }
    }

    #[test]
    fn unset_it_is_ten_minutes() {
        assert_eq!(unadjusted(600), resolve(None, 3600));
    }

    #[test]
    fn below_the_idle_timeout_it_holds_as_it_is() {
        assert_eq!(unadjusted(3599), resolve(Some(3599), 3600));
    }

    #[test]
    fn at_or_above_the_idle_timeout_it_becomes_half_of_that_and_says_so() {
        for configured in [3600, 7200, u64::MAX] {
            let halved = PeriodAdjustment::HalvedIdleTimeout {
                from: seconds(configured),
                idle_timeout: seconds(3600),
                to: seconds(1800),
            };
            assert_eq!(
                UnownedPeriod { period: seconds(1800), adjustments: vec![halved] },
                resolve(Some(configured), 3600)
            );
        }
    }

    #[test]
    fn the_default_too_gives_way_to_a_short_idle_timeout() {
        assert_eq!(seconds(150), resolve(None, 300).period);
    }

    #[test]
    fn with_idle_reaping_off_there_is_no_ordering_to_keep() {
        assert_eq!(unadjusted(360_000), resolve(Some(360_000), 0));
    }

    #[test]
    fn below_the_floor_it_becomes_one_minute_and_says_so() {
        for idle_timeout in [0, 3600] {
            let raised = PeriodAdjustment::RaisedToFloor { from: seconds(59), to: seconds(60) };
            assert_eq!(
                UnownedPeriod { period: seconds(60), adjustments: vec![raised] },
                resolve(Some(59), idle_timeout)
            );
        }
        assert_eq!(unadjusted(60), resolve(Some(60), 0));
    }

    #[test]
    fn the_floor_wins_over_the_ordering_and_all_three_changes_are_told() {
        let told = vec![
            PeriodAdjustment::HalvedIdleTimeout {
                from: seconds(600),
                idle_timeout: seconds(30),
                to: seconds(15),
            },
            PeriodAdjustment::RaisedToFloor { from: seconds(15), to: seconds(60) },
            PeriodAdjustment::FloorBeatsOrdering { period: seconds(60), idle_timeout: seconds(30) },
        ];
        assert_eq!(UnownedPeriod { period: seconds(60), adjustments: told }, resolve(None, 30));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_is_configured_the_floor_holds_the_ordering_holds_unless_told_and_nothing_changes_silently(
            configured in prop::option::of(0_u64..10_000), idle_timeout in 0_u64..10_000,
        ) {
            let resolved = resolve(configured, idle_timeout);
            prop_assert!(resolved.period >= PERIOD_FLOOR);
            let ordered = idle_timeout == 0 || resolved.period < seconds(idle_timeout);
            let told = resolved.adjustments.iter().any(|told| matches!(told, PeriodAdjustment::FloorBeatsOrdering { .. }));
            prop_assert_eq!(!ordered, told);
            let changed = resolved.period != seconds(configured.unwrap_or(600));
            // Halved and raised back to the very same minute is a change that is told, too.
            prop_assert!(!changed || !resolved.adjustments.is_empty());
        }
    }
}
