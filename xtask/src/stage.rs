//! A throw-away installation with real processes: a home of its own, the three programs, and nothing left behind.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cargo::{Failed, cargo, root};

/// One installation in a temporary directory, with everything that runs for it.
pub(crate) struct Stage {
    home: PathBuf,
    binaries: PathBuf,
    mark: String,
}

impl Stage {
    /// Builds the programs under `profile` and lays out a home with one profile, `scripted`.
    pub(crate) fn build(profile: &str) -> Result<Self, Failed> {
        let packages = ["--package", "controld", "--package", "backend-recovery", "--package", "sim"];
        let mut line = vec!["build", "--quiet", "--profile", profile, "--bins"];
        line.extend(packages);
        cargo(&line)?;
        let mark = format!("{}-{}", std::process::id(), nanoseconds());
        let home = std::env::temp_dir().join(format!("kandev-stage-{mark}"));
        let stage = Self { home, binaries: root().join("target").join(profile), mark };
        stage.lay_out()?;
        Ok(stage)
    }

    /// The folder that the sessions work in.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.home.join("workspace")
    }

    /// Where a program of ours was built.
    pub(crate) fn binary(&self, name: &str) -> PathBuf {
        self.binaries.join(name)
    }

    /// Starts the backend; see [`Stage::wait_until_recovered`].
    pub(crate) fn start_backend(&self) -> Result<Child, Failed> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.home.join("backend-output.log"))
            .map_err(|error| Failed(format!("the backend's output cannot be opened: {error}")))?;
        self.backend_command(&["serve"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| Failed(format!("backend-recovery could not be started: {error}")))
    }

    /// Runs one command line of `backend-recovery` and gives what it printed, as JSON.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<Value, Failed> {
        let output = self.tell(arguments)?;
        let line = arguments.join(" ");
        serde_json::from_slice(&output)
            .map_err(|error| Failed(format!("`backend-recovery {line}` did not print JSON: {error}")))
    }

    /// Runs one command line of `backend-recovery` and gives what it printed.
    pub(crate) fn tell(&self, arguments: &[&str]) -> Result<Vec<u8>, Failed> {
        let output = self
            .backend_command(arguments)
            .output()
            .map_err(|error| Failed(format!("backend-recovery could not be started: {error}")))?;
        let line = arguments.join(" ");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failed(format!("`backend-recovery {line}` failed: {}", said.trim())));
        }
        Ok(output.stdout)
    }

    /// Waits until the backend serves and its recovery is complete.
    pub(crate) fn wait_until_recovered(&self, limit: Duration) -> Result<Value, Failed> {
        wait_for("the end of recovery", limit, || {
            self.get("/api/status").filter(|status| status["recovered"].as_bool() == Some(true))
        })
    }

    /// What the backend answers to one GET, if it answers with JSON and success.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        let contact = std::fs::read(self.home.join("run/backend.json")).ok()?;
        let contact: Value = serde_json::from_slice(&contact).ok()?;
        let address: SocketAddr = contact["address"].as_str()?.parse().ok()?;
        let token = contact["token"].as_str()?;
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT).ok()?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).ok()?;
        let request = format!(
            "GET {path} HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let head = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
        let accepted = answer.get(9..12) == Some(b"200".as_slice());
        if accepted { serde_json::from_slice(&answer[head + 4..]).ok() } else { None }
    }

    /// One session, as the backend shows it.
    pub(crate) fn session(&self, id: &str) -> Option<Value> {
        self.get(&format!("/api/sessions/{id}"))
    }

    /// Creates a session of the profile `scripted` and waits until its agent takes prompts; gives its id.
    pub(crate) fn create_session(&self, limit: Duration) -> Result<String, Failed> {
        let workspace = self.workspace().display().to_string();
        let created =
            self.ask(&["session", "create", "--profile", "scripted", "--folder", &workspace, "--json"])?;
        let id = created["session"].as_str().ok_or_else(|| Failed(format!("no session id in {created}")))?;
        wait_for("the session's start", limit, || {
            self.session(id).filter(|view| view["state"] == "WAITING_FOR_INPUT")
        })?;
        Ok(id.to_owned())
    }

    /// The session's agent process.
    pub(crate) fn agent_pid(&self, session: &str) -> Option<u64> {
        self.session(session)?["agent"]["pid"].as_u64()
    }

    /// What the agent said so far, from the whole transcript, in its order.
    pub(crate) fn chunks(&self, session: &str) -> Result<Vec<String>, Failed> {
        let mut chunks = Vec::new();
        let mut after = 0;
        loop {
            let path = format!("/api/sessions/{session}/transcript?after={after}&limit=1000");
            let page = self.get(&path).ok_or_else(|| Failed("the transcript cannot be read".to_owned()))?;
            let entries = page["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
            let said =
                entries.iter().filter(|entry| entry["payload"]["sessionUpdate"] == "agent_message_chunk");
            chunks.extend(
                said.filter_map(|entry| entry["payload"]["content"]["text"].as_str()).map(str::to_owned),
            );
            let Some(next) = page["next"].as_u64() else { return Ok(chunks) };
            after = next;
        }
    }

    /// Ends every process that was started for this installation and removes its home. Never fails half-way: what
    /// could not be done is said.
    pub(crate) fn clean_up(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for pid in &left {
                // Gone in between is what we want.
                let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
            }
            if Instant::now() > deadline {
                eprintln!("these processes of {} could not be ended: {left:?}", self.home.display());
                break;
            }
            std::thread::sleep(POLL);
        }
        if let Err(error) = std::fs::remove_dir_all(&self.home) {
            eprintln!("{} could not be removed: {error}", self.home.display());
        }
    }

    /// Every running process that names this installation's home in its command line or carries its mark.
    pub(crate) fn processes(&self) -> Vec<rustix::process::Pid> {
        let home = self.home.to_string_lossy().into_owned();
        let own = std::process::id();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let holds = |file: &str, text: &str| {
                std::fs::read(entry.path().join(file))
                    .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
            };
            let runs = std::fs::read_to_string(entry.path().join("stat"))
                .is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z')));
            if pid != own && runs && (holds("cmdline", &home) || holds("environ", &self.mark)) {
                found.extend(i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw));
            }
        }
        found
    }

    fn backend_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.binary("backend-recovery"));
        command
            .args(arguments)
            .current_dir(&self.home)
            .env("KANDEV_HOME_DIR", &self.home)
            .env(MARK, &self.mark);
        command
    }

    fn lay_out(&self) -> Result<(), Failed> {
        let failed =
            |error: std::io::Error| Failed(format!("{} cannot be laid out: {error}", self.home.display()));
        std::fs::create_dir_all(self.workspace()).map_err(failed)?;
        let config = format!(
            "[features]\nagentSurvival = true\n\n[agent]\nstandalonePort = {}\n\n[server]\nlisten = \"127.0.0.1:0\"\n\n\
             [profiles.scripted]\ncommand = \"{}\"\nargs = []\nenv = {{ {MARK} = \"{}\" }}\n",
            free_port()?,
            self.binary("scripted-agent").display(),
            self.mark,
        );
        std::fs::write(self.home.join("config.toml"), config).map_err(failed)
    }
}

/// Asks `attempt` again and again until it gives something, the limit passes or the user interrupts.
pub(crate) fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T, Failed> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = attempt() {
            return Ok(found);
        }
        check_interrupt()?;
        if Instant::now() > deadline {
            return Err(Failed(format!("{what} did not happen within {limit:?}")));
        }
        std::thread::sleep(POLL);
    }
}

/// From now on Ctrl-C and SIGTERM no longer end this process but make the next wait fail, so that it cleans up.
pub(crate) fn catch_interrupt() -> Result<(), Failed> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst))
        .map_err(|error| Failed(format!("Ctrl-C cannot be caught: {error}")))
}

/// Fails if the user interrupted.
pub(crate) fn check_interrupt() -> Result<(), Failed> {
    if INTERRUPTED.load(Ordering::SeqCst) { Err(Failed("interrupted".to_owned())) } else { Ok(()) }
}

/// A prompt that makes the scripted agent say `count` chunks of `bytes` bytes, one every `every_ms` milliseconds.
pub(crate) fn say(count: usize, bytes: usize, every_ms: usize) -> String {
    let many = serde_json::json!({ "count": count, "bytes": bytes, "every_ms": every_ms });
    serde_json::json!({ "steps": [{ "say_many": many }, { "end": "end_turn" }] }).to_string()
}

fn free_port() -> Result<u16, Failed> {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| Failed(format!("no free port on 127.0.0.1: {error}")))
}

fn nanoseconds() -> u128 {
    std::time::UNIX_EPOCH.elapsed().map(|since| since.as_nanos()).unwrap_or_default()
}

/// The variable that every process of a stage carries, so that all of them can be found.
const MARK: &str = "KANDEV_STAGE_MARK";

/// Between two looks: small beside what is measured with it.
const POLL: Duration = Duration::from_millis(2);

/// How long the backend may take for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
