//! A throw-away installation with real processes: a home of its own, the three programs, and nothing left behind.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::cargo::Failed;
use crate::processes;
use crate::programs::Programs;
use crate::wait::{POLL, check_interrupt, wait_for};

/// One installation in a temporary directory, with everything that runs for it.
pub(crate) struct Stage {
    home: PathBuf,
    programs: Programs,
    mark: String,
}

impl Stage {
    /// Lays out a home with two agent profiles, [`SCRIPTED`] and [`STUBBORN`], shows something on it and cleans up
    /// whatever happens.
    pub(crate) fn with<T>(
        programs: &Programs,
        show: impl FnOnce(&mut Self) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        check_interrupt()?;
        let mark = format!("{}-{}", std::process::id(), nanoseconds());
        let home = std::env::temp_dir().join(format!("kandev-stage-{mark}"));
        let mut stage = Self { home, programs: programs.clone(), mark };
        let shown = AssertUnwindSafe(|| stage.lay_out().and_then(|()| show(&mut stage)));
        // Whoever reads our output may go away, and then printing panics.
        let shown = std::panic::catch_unwind(shown);
        stage.clean_up();
        let left = stage.processes();
        let shown = shown.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        if left.is_empty() { Ok(shown) } else { Err(Failed(format!("processes were left behind: {left:?}"))) }
    }

    /// The home directory.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// From now on the backend and its command line are of another build; what runs goes on.
    pub(crate) fn switch_to(&mut self, programs: &Programs) {
        self.programs = programs.clone();
    }

    /// The folder that the sessions work in.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.home.join("workspace")
    }

    /// Where a program of ours was built.
    pub(crate) fn binary(&self, name: &str) -> PathBuf {
        self.programs.path(name)
    }

    /// Starts the backend; see [`Stage::wait_until_recovered`].
    pub(crate) fn start_backend(&self) -> Result<Child, Failed> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.home.join(OUTPUT))
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

    /// Creates a session of this agent profile and waits until its agent takes prompts; gives its id.
    pub(crate) fn create_session(&self, profile: &str, limit: Duration) -> Result<String, Failed> {
        let workspace = self.workspace().display().to_string();
        let created =
            self.ask(&["session", "create", "--profile", profile, "--folder", &workspace, "--json"])?;
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

    /// What the backends last said on their standard error.
    pub(crate) fn last_output(&self) -> String {
        let text = std::fs::read_to_string(self.home.join(OUTPUT)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    /// The control server's process, which no answer of the backend names.
    pub(crate) fn control_server(&self) -> Result<Pid, Failed> {
        let runs = |pid: &Pid| processes::executable(*pid).is_some_and(|path| path.ends_with("controld"));
        let found: Vec<Pid> = self.processes().into_iter().filter(runs).collect();
        match found[..] {
            [pid] => Ok(pid),
            _ => Err(Failed(format!("{} control servers run: {found:?}", found.len()))),
        }
    }

    /// Ends every process that was started for this installation and removes its home. Never fails half-way: what
    /// could not be done is said.
    fn clean_up(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for pid in &left {
                // Gone in between is what we want.
                let _ = rustix::process::kill_process(*pid, Signal::KILL);
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
    pub(crate) fn processes(&self) -> Vec<Pid> {
        processes::naming(&self.home.to_string_lossy(), &self.mark)
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
             [profiles.{SCRIPTED}]\ncommand = \"{agent}\"\nargs = []\nenv = {{ {MARK} = \"{mark}\" }}\n\n\
             [profiles.{STUBBORN}]\ncommand = \"{agent}\"\nargs = []\n\
             env = {{ {MARK} = \"{mark}\", SCRIPTED_AGENT = '{IGNORES}' }}\n",
            free_port()?,
            agent = self.binary("scripted-agent").display(),
            mark = self.mark,
        );
        std::fs::write(self.home.join("config.toml"), config).map_err(failed)
    }
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

/// The agent profile whose agent ends when it is asked to.
pub(crate) const SCRIPTED: &str = "scripted";

/// The agent profile whose agent ends only by SIGKILL.
pub(crate) const STUBBORN: &str = "stubborn";

/// The stubborn agent's script.
const IGNORES: &str = r#"{"ignore_term":true,"ignore_stdin_end":true}"#;

/// The backends' standard error, in the home but none of their own files.
pub(crate) const OUTPUT: &str = "backend-output.log";

/// As much of it as fits below a failure.
const LAST_LINES: usize = 5;

/// The variable that every process of a stage carries, so that all of them can be found.
const MARK: &str = "KANDEV_STAGE_MARK";

/// How long the backend may take for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
