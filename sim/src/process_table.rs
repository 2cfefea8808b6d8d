//! The process table: identities, lives, ends. Pids are few and drawn, so that they are soon used again.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Waker;

use seam::{ExitStatus, ProcessIdentity, Signal, Target};

use crate::channel::ChannelId;
use crate::observer::ProcessView;
use crate::program::Program;
use crate::trace::{Kind, fields};
use crate::world::{Key, SIGKILL, State};

/// What a program may attach to its process: it is shown every log event of the process.
pub(crate) type LogHook = Arc<dyn Fn(&tracing::Event<'_>) + Send + Sync>;

/// One process, living or ended.
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) life: u32,
    /// `name#life`.
    pub(crate) label: String,
    pub(crate) identity: ProcessIdentity,
    /// The process whose group this one is in; itself, for everything that the seam spawns.
    pub(crate) group: ProcessIdentity,
    pub(crate) parent: Option<Key>,
    parent_label: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) executable: PathBuf,
    pub(crate) directory: PathBuf,
    status: Option<ExitStatus>,
    /// Somebody can still ask for its exit status, which keeps its pid.
    awaited: bool,
    pub(crate) exit_waiters: Vec<(Key, Waker)>,
    pub(crate) effects: u64,
    pub(crate) writes: u64,
    pub(crate) connects: u64,
    pub(crate) catches_signals: bool,
    pub(crate) signals: VecDeque<Signal>,
    pub(crate) signal_waiter: Option<Waker>,
    /// Taken by the one call that may ask for it.
    pub(crate) stdio: Option<StdioEnds>,
    pub(crate) log_hook: Option<LogHook>,
    /// Taken by the driver when the process first runs.
    pub(crate) program: Option<Program>,
}

/// The process's own ends of its standard streams; none is the null device.
#[derive(Clone, Copy, Default)]
pub(crate) struct StdioEnds {
    pub(crate) stdin: Option<ChannelId>,
    pub(crate) stdout: Option<ChannelId>,
    pub(crate) stderr: Option<ChannelId>,
}

/// What a new process is made of.
pub(crate) struct NewProcess {
    pub(crate) program: Program,
    pub(crate) parent: Option<Key>,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) executable: PathBuf,
    pub(crate) directory: PathBuf,
}

impl Process {
    pub(crate) const fn runs(&self) -> bool {
        self.status.is_none()
    }

    pub(crate) const fn status(&self) -> Option<ExitStatus> {
        self.status
    }
}

impl State {
    /// Enters a process into the table. It runs from the next tick on at the earliest.
    pub(crate) fn add_process(&mut self, new: NewProcess) -> Key {
        let key = self.processes.len() as Key;
        let life = self.lives.entry(new.program.name.clone()).or_default();
        *life += 1;
        let life = *life;
        let pid = self.free_pid();
        self.pids.insert(pid, key);
        let identity = ProcessIdentity { pid, start_time: BOOT_TICKS + key, boot_id: BOOT_ID.to_owned() };
        let label = format!("{}#{life}", new.program.name);
        self.processes.insert(
            key,
            Process {
                name: new.program.name.clone(),
                life,
                label,
                group: identity.clone(),
                identity,
                parent: new.parent,
                parent_label: new.parent.map_or_else(|| "world".to_owned(), |parent| self.label(parent)),
                args: new.args,
                env: new.env,
                executable: new.executable,
                directory: new.directory,
                status: None,
                awaited: new.parent.is_some(),
                exit_waiters: Vec::new(),
                effects: 0,
                writes: 0,
                connects: 0,
                catches_signals: false,
                signals: VecDeque::new(),
                signal_waiter: None,
                stdio: Some(StdioEnds::default()),
                log_hook: None,
                program: Some(new.program),
            },
        );
        let process = &self.processes[&key];
        let told = fields([
            ("pid", process.identity.to_string()),
            ("parent", process.parent_label.clone()),
            ("args", process.args.join(" ")),
        ]);
        self.say(key, Kind::Process, "started", told);
        let start = self.arrival();
        self.wake_at(start, key, None);
        key
    }

    /// Drawn from a small space; a pid is free again as soon as nobody can ask for its exit any more.
    fn free_pid(&mut self) -> u32 {
        let drawn = u32::try_from(self.rng.below(u64::from(PIDS))).expect("below a u32");
        // A group's id stays reserved while any member of it lives.
        let reserved: Vec<u32> = self
            .processes
            .values()
            .filter(|process| process.runs())
            .map(|process| process.group.pid)
            .collect();
        (0..u32::MAX)
            .map(|step| FIRST_PID + drawn + step)
            .find(|pid| !self.pids.contains_key(pid) && !reserved.contains(pid))
            .expect("fewer processes than numbers")
    }

    /// Ends a process as the kernel does: its pipes, connections, ports and locks go with it, its children
    /// live on. None of its code runs again.
    pub(crate) fn end_process(&mut self, key: Key, status: ExitStatus) {
        let Some(process) = self.processes.get_mut(&key).filter(|process| process.runs()) else { return };
        process.status = Some(status);
        process.log_hook = None;
        let waiters = std::mem::take(&mut process.exit_waiters);
        process.signal_waiter = None;
        self.say(key, Kind::Process, "ended", fields([("status", status.to_string())]));
        self.ended.push(key);
        self.close_channels_of(key);
        self.close_listeners_of(key);
        self.disk.release_locks_of(key);
        let news = self.arrival();
        for (waiter, waker) in waiters {
            self.wake_at(news, waiter, Some(waker));
        }
        for child in self.processes.values_mut().filter(|child| child.parent == Some(key)) {
            child.parent = None;
            child.awaited = false;
        }
        self.free_pids();
    }

    /// Nobody will ask for this process's exit (again).
    pub(crate) fn stop_awaiting(&mut self, key: Key) {
        if let Some(process) = self.processes.get_mut(&key) {
            process.awaited = false;
        }
        self.free_pids();
    }

    fn free_pids(&mut self) {
        let processes = &self.processes;
        self.pids.retain(|_, key| processes[key].runs() || processes[key].awaited);
    }

    /// The living process of exactly this identity.
    pub(crate) fn find(&self, identity: &ProcessIdentity) -> Option<Key> {
        let key = self.pids.get(&identity.pid)?;
        let process = &self.processes[key];
        (process.identity == *identity && process.runs()).then_some(*key)
    }

    /// Name and life of whoever has or had this identity.
    pub(crate) fn label_of(&self, identity: &ProcessIdentity) -> String {
        let found = self.processes.values().find(|process| process.identity == *identity);
        found.map_or_else(String::new, |process| process.label.clone())
    }

    /// Delivers a signal; whether anybody received it.
    pub(crate) fn deliver(&mut self, target: &Target, signal: Signal) -> bool {
        let receivers: Vec<Key> = match target {
            Target::Process(identity) => self.find(identity).into_iter().collect(),
            Target::Group(leader) => self
                .processes
                .iter()
                .filter(|(_, process)| process.runs() && process.group == *leader)
                .map(|(key, _)| *key)
                .collect(),
        };
        for key in &receivers {
            self.receive(*key, signal);
        }
        !receivers.is_empty()
    }

    fn receive(&mut self, key: Key, signal: Signal) {
        let process = self.processes.get_mut(&key).expect("a receiver is in the table");
        let number = match signal {
            Signal::Terminate => SIGTERM,
            Signal::Interrupt => SIGINT,
            Signal::Kill => SIGKILL,
        };
        if signal == Signal::Kill || !process.catches_signals {
            self.end_process(key, ExitStatus::Signal(number));
            return;
        }
        process.signals.push_back(signal);
        let waker = process.signal_waiter.take();
        self.say(key, Kind::Process, "received a signal", fields([("signal", number.to_string())]));
        if let Some(waker) = waker {
            let news = self.arrival();
            self.wake_at(news, key, Some(waker));
        }
    }

    pub(crate) fn process_views(&self) -> Vec<ProcessView> {
        let seen = |process: &Process| ProcessView {
            label: process.label.clone(),
            program: process.name.clone(),
            life: process.life,
            identity: process.identity.clone(),
            runs: process.runs(),
            parent: process.parent_label.clone(),
            args: process.args.clone(),
            env: process.env.clone(),
            effects: process.effects,
            writes: process.writes,
            connects: process.connects,
        };
        self.processes.iter().filter(|(key, _)| **key != DIRECTOR).map(|(_, process)| seen(process)).collect()
    }
}

/// The scenario's director is the first process of every run.
pub(crate) const DIRECTOR: Key = 0;

pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGTERM: i32 = 15;

/// Few enough that a run of some restarts meets a pid again.
const PIDS: u32 = 40;
const FIRST_PID: u32 = 300;

/// The machine had been up for a while when the run began.
const BOOT_TICKS: u64 = 8_200;
const BOOT_ID: &str = "5f3c1d7e-0000-4000-8000-000000000001";
