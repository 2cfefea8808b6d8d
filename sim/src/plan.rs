//! Faults as data: a plan can be printed, replayed and shrunk without its generator.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::seed::Rng;

/// What the seed decided for one run beside the order of things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The grain of simulated time, in milliseconds: 1, 5 or 10.
    pub tick_ms: u64,
    /// The longest extra delay of one seam call, byte or wake, in ticks.
    pub max_delay_ticks: u64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// The scenario's own drawn parameters by name.
    #[serde(default)]
    pub knobs: BTreeMap<String, u64>,
}

/// One thing that goes wrong. `process` is a program's name, `life` counts its lives in the run from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fault {
    /// SIGKILL right before or right after an effect of a process.
    Kill {
        /// The program's name.
        process: String,
        /// Which of its lives.
        life: u32,
        /// The effect's ordinal in that life, from 1.
        effect: u64,
        /// Whether the effect still happens.
        side: Side,
    },
    /// SIGKILL to every living process of another program, right before or right after an effect of a process.
    KillOther {
        /// The program that has the effect.
        process: String,
        /// Which of its lives.
        life: u32,
        /// The effect's ordinal in that life, from 1.
        effect: u64,
        /// Whether the effect happens before.
        side: Side,
        /// The program that is killed.
        victim: String,
    },
    /// SIGKILL to every living process of the program at a simulated time.
    KillAt {
        /// The program's name.
        process: String,
        /// Simulated milliseconds since the start.
        at_ms: u64,
    },
    /// The disk is full for this life, from its nth write on (counted from 1).
    StorageFull {
        /// The program's name.
        process: String,
        /// Which of its lives.
        life: u32,
        /// The first write that fails.
        from_write: u64,
    },
    /// One write of this life fails with an input/output error.
    WriteFails {
        /// The program's name.
        process: String,
        /// Which of its lives.
        life: u32,
        /// Which write, from 1.
        write: u64,
    },
    /// One connect of this life is refused although somebody listens.
    ConnectRefused {
        /// The program's name.
        process: String,
        /// Which of its lives.
        life: u32,
        /// Which connect, from 1.
        connect: u64,
    },
    /// On one connection of this life the request arrives and its reply is lost: the peer's first bytes become
    /// a reset.
    LostReply {
        /// The program's name.
        process: String,
        /// Which of its lives.
        life: u32,
        /// Which connect, from 1.
        connect: u64,
    },
    /// Bytes on connections to this listening program, and on the standard streams of this program, take
    /// longer.
    Slow {
        /// The program's name.
        process: String,
        /// From this simulated millisecond on.
        from_ms: u64,
        /// Up to this one.
        to_ms: u64,
        /// By how much.
        delay_ms: u64,
    },
    /// Answers on connections to this listening program go wrong.
    Answers {
        /// The program's name.
        process: String,
        /// From this simulated millisecond on.
        from_ms: u64,
        /// Up to this one.
        to_ms: u64,
        /// What becomes of them.
        how: Answering,
    },
}

/// What becomes of a server's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answering {
    /// Nothing of them arrives. The connection stays open, and stays silent when the fault is over: a stream does
    /// not lose some of its bytes.
    Never,
    /// What they say is garbled, and in half of the cases they have another status.
    Wrong,
    /// Each arrives twice, one right behind the other.
    Twice,
    /// They arrive that much later.
    Late {
        /// In milliseconds.
        by_ms: u64,
    },
}

/// Which side of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The effect does not happen.
    Before,
    /// The effect happens; the caller never learns of it.
    After,
}

/// How often a kind of fault was applied, and how often somebody saw a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCount {
    /// Applied.
    pub fired: u64,
    /// Changed what somebody saw.
    pub bitten: u64,
}

impl Plan {
    /// A plan without faults, its grain and delays drawn.
    pub fn calm(rng: &mut Rng) -> Self {
        Self {
            tick_ms: *rng.pick(&[1, 5, 10]),
            max_delay_ticks: rng.below(4),
            faults: Vec::new(),
            knobs: BTreeMap::new(),
        }
    }

    /// The same with one fault more.
    #[must_use]
    pub fn with(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// The same with a parameter of the scenario.
    #[must_use]
    pub fn knob(mut self, name: &str, value: u64) -> Self {
        self.knobs.insert(name.to_owned(), value);
        self
    }

    /// The plan on one line, as it is printed on failure and kept in the corpus.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a plan is plain data")
    }
}

impl Fault {
    /// The name of its kind, as counters and the trace show it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "kill",
            Self::KillOther { .. } => "kill_other",
            Self::KillAt { .. } => "kill_at",
            Self::StorageFull { .. } => "storage_full",
            Self::WriteFails { .. } => "write_fails",
            Self::ConnectRefused { .. } => "connect_refused",
            Self::LostReply { .. } => "lost_reply",
            Self::Slow { .. } => "slow",
            Self::Answers { how, .. } => how.kind(),
        }
    }
}

impl Answering {
    const fn kind(self) -> &'static str {
        match self {
            Self::Never => "answers_never",
            Self::Wrong => "answers_wrong",
            Self::Twice => "answers_twice",
            Self::Late { .. } => "answers_late",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Streams;

    #[test]
    fn a_plan_survives_printing() {
        let plan = Plan::calm(&mut Streams::new(1).stream("faults"))
            .with(Fault::Kill { process: "backend".into(), life: 1, effect: 9, side: Side::After })
            .with(Fault::Slow { process: "controld".into(), from_ms: 5, to_ms: 9, delay_ms: 40 })
            .with(Fault::Answers {
                process: "controld".into(),
                from_ms: 5,
                to_ms: 9,
                how: Answering::Late { by_ms: 40 },
            })
            .knob("chunks", 3);
        let printed = plan.to_json();
        assert!(!printed.contains('\n'));
        assert_eq!(serde_json::from_str::<Plan>(&printed).unwrap(), plan);
    }
}
