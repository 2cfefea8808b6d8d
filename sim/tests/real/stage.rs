//! One throw-away installation: its directory, its programs, its user, and the end of all of it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::processes;

/// An installation. Dropped, it kills every process that was started for it and removes its directory.
pub(crate) struct Stage {
    directory: TempDir,
    pub(crate) home: PathBuf,
    /// The configured control port: free when the stage was made.
    pub(crate) port: u16,
    mark: String,
    starts: AtomicU32,
    /// Variables of every program that is started.
    environment: Vec<(String, String)>,
}

impl Stage {
    /// A home with the capability on and one profile, `scripted`.
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// The same with more lines at the end of its configuration.
    pub(crate) fn with(more: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("kandev-real-").tempdir().unwrap();
        let home = directory.path().join("home");
        fs::create_dir_all(&home).unwrap();
        fs::create_dir_all(directory.path().join("workspace")).unwrap();
        let mark = format!("REAL_TEST_MARK={}", directory.path().display());
        let (port, environment) = (free_port(), Vec::new());
        let stage = Self { directory, home, port, mark, starts: AtomicU32::new(0), environment };
        stage.configure(more);
        stage
    }

    /// Adds a variable to everything that is started from now on.
    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes the configuration anew.
    pub(crate) fn configure(&self, more: &str) {
        // A short unowned period: what outlives a test that was itself killed ends soon.
        let text = format!(
            "[agent]\nstandalonePort = {}\n[server]\nlisten = \"127.0.0.1:0\"\n[agentctl]\nunownedPeriod = \"60s\"\n\
             [profiles.scripted]\ncommand = {:?}\n{more}",
            self.port,
            binary("scripted-agent"),
        );
        fs::write(self.home.join("config.toml"), text).unwrap();
    }

    /// A path below the stage's own directory, beside the home.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The folder that sessions work in.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.path("workspace")
    }

    /// The command line of `backend-recovery` on this home, with the capability on.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.prepared(&binary("backend-recovery"), arguments)
    }

    /// Any program, with the stage's mark and settings in its environment.
    pub(crate) fn prepared(&self, program: &Path, arguments: &[&str]) -> Command {
        let (name, value) = self.mark.split_once('=').expect("the mark is a variable");
        let mut command = Command::new(program);
        for (inherited, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"KANDEV_"))
        {
            command.env_remove(inherited);
        }
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env("KANDEV_HOME_DIR", &self.home)
            .env("KANDEV_FEATURES_AGENT_SURVIVAL", "true")
            .env(name, value)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Starts the backend and waits until its recovery is complete.
    pub(crate) fn serve(&self) -> Backend<'_> {
        let backend = self.launch();
        backend.recovered();
        backend
    }

    /// Starts the backend.
    pub(crate) fn launch(&self) -> Backend<'_> {
        self.launch_as(self.command(&["serve"]))
    }

    /// Starts the backend with this command line.
    pub(crate) fn launch_as(&self, mut command: Command) -> Backend<'_> {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        let output = self.path(&format!("backend-{number}.log"));
        let log = fs::File::create(&output).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Backend { stage: self, child: Some(child), output, home: self.home.clone() }
    }

    /// Starts a backend that is to end by itself, and gives its exit code and what it said on standard error.
    pub(crate) fn refused(&self) -> (i32, String) {
        self.launch().ended()
    }

    /// Runs one command line of a user to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Said {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        Said {
            code: status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&stdout).into_owned(),
            err: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// Runs one command line that has to succeed.
    pub(crate) fn tell(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(0, said.code, "{arguments:?}: {}{}", said.out, said.err);
        said.out
    }

    /// Creates a session of this profile in the workspace, whatever becomes of it, and gives its id.
    pub(crate) fn create(&self, profile: &str) -> String {
        let workspace = self.workspace().display().to_string();
        let said = self.run(&["session", "create", "--profile", profile, "--folder", &workspace, "--json"]);
        let view: Value =
            serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}{}", said.out, said.err));
        view["session"].as_str().unwrap().to_owned()
    }

    /// Creates a session and waits until its agent takes prompts; gives its id and its agent's pid.
    pub(crate) fn ready_session(&self) -> (String, u32) {
        let session = self.create("scripted");
        self.session_in(&session, "WAITING_FOR_INPUT");
        let agent = self.agent(&session);
        (session, agent)
    }

    /// One session as the backend shows it.
    pub(crate) fn session(&self, id: &str) -> Value {
        self.get(&format!("/api/sessions/{id}")).unwrap_or(Value::Null)
    }

    /// Waits until the session is in this state, and gives it.
    pub(crate) fn session_in(&self, id: &str, state: &str) -> Value {
        self.until(&format!("session {id} {state}"), || {
            Some(self.session(id)).filter(|view| view["state"] == state)
        })
    }

    /// Waits until the session's newest turn is in this state, and gives the session.
    pub(crate) fn turn_in(&self, id: &str, state: &str) -> Value {
        self.until(&format!("turn of {id} {state}"), || {
            Some(self.session(id)).filter(|view| view["turn"]["state"] == state)
        })
    }

    /// Waits until this backend drives the session, and gives it.
    pub(crate) fn tracked(&self, id: &str) -> Value {
        self.until(&format!("session {id} tracked"), || {
            Some(self.session(id)).filter(|view| view["tracked"] == true)
        })
    }

    /// The session's agent process.
    pub(crate) fn agent(&self, session: &str) -> u32 {
        self.session(session)["agent"]["pid"].as_u64().unwrap().try_into().unwrap()
    }

    /// The control server's process: the one that runs `controld` on this home.
    pub(crate) fn controld(&self) -> Option<u32> {
        let home = self.home.display().to_string();
        self.processes().into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words.next().is_some_and(|program| program.ends_with(b"controld"))
                && words.any(|word| word == home.as_bytes())
        })
    }

    /// The session's whole transcript.
    pub(crate) fn transcript(&self, session: &str) -> Vec<Value> {
        let mut entries = Vec::new();
        let mut after = 0;
        loop {
            let page = self.get(&format!("/api/sessions/{session}/transcript?after={after}&limit=1000"));
            let page = page.expect("the transcript can be read");
            entries.extend(page["entries"].as_array().unwrap().iter().cloned());
            match page["next"].as_u64() {
                Some(next) => after = next,
                None => return entries,
            }
        }
    }

    /// What the agent said, in the transcript's order.
    pub(crate) fn said(&self, session: &str) -> Vec<String> {
        let entries = self.transcript(session);
        let chunks =
            entries.iter().filter(|entry| entry["payload"]["sessionUpdate"] == "agent_message_chunk");
        chunks.map(|entry| entry["payload"]["content"]["text"].as_str().unwrap().to_owned()).collect()
    }

    /// What the backend itself had to say in the transcript.
    pub(crate) fn notices(&self, session: &str) -> Vec<String> {
        let entries = self.transcript(session);
        let notices = entries.iter().filter(|entry| entry["kind"] == "notice");
        notices.map(|entry| entry["payload"]["text"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits for a permission request of the session and gives its id.
    pub(crate) fn permission(&self, session: &str) -> String {
        self.until("a permission request", || {
            Some(self.session(session)["permissions"][0].as_str()?.to_owned())
        })
    }

    /// What the running backend answers to one GET, if it answers with JSON and success.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        get(&self.home, path)
    }

    /// `status` for people.
    pub(crate) fn status_text(&self) -> String {
        self.tell(&["status"])
    }

    /// Everything that runs for this stage.
    pub(crate) fn processes(&self) -> Vec<u32> {
        processes::of(&self.mark, &self.directory.path().display().to_string())
    }

    /// Waits until nothing runs for this stage any more.
    pub(crate) fn nothing_left(&self) {
        self.until("no process", || self.processes().is_empty().then_some(()));
    }

    /// Waits until `attempt` gives something; tells what runs and what the backends said if it does not.
    pub(crate) fn until<T>(&self, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(found) = attempt() {
                return found;
            }
            if Instant::now() > deadline {
                let last = self.starts.load(Ordering::Relaxed).saturating_sub(1);
                let said = fs::read_to_string(self.path(&format!("backend-{last}.log"))).unwrap_or_default();
                let log = fs::read_to_string(self.home.join("logs/controld.log")).unwrap_or_default();
                let left = self.processes();
                panic!("waited in vain for: {what}\nprocesses {left:?}\nbackend:\n{said}\ncontrold:\n{log}");
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let left = processes::end_all(&self.mark, &self.directory.path().display().to_string());
        if !std::thread::panicking() {
            assert!(left.is_empty(), "these processes could not be ended: {left:?}");
        }
    }
}

/// A running backend; dropped, it is killed.
#[must_use]
pub(crate) struct Backend<'a> {
    stage: &'a Stage,
    child: Option<Child>,
    output: PathBuf,
    home: PathBuf,
}

impl Backend<'_> {
    /// The same backend, whose home is seen at another path from here.
    pub(crate) fn at(mut self, home: PathBuf) -> Self {
        self.home = home;
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it was not ended yet").id()
    }

    /// Waits until recovery is complete, and gives the status.
    pub(crate) fn recovered(&self) -> Value {
        let pid = self.pid();
        self.stage.until("the end of recovery", || {
            // The contact file may still be that of the one before.
            let contact = fs::read(self.home.join("run/backend.json")).ok()?;
            let contact: Value = serde_json::from_slice(&contact).ok()?;
            let status = get(&self.home, "/api/status")?;
            (contact["pid"] == json!(pid) && status["recovered"] == true).then_some(status)
        })
    }

    /// The status as the backend shows it now, if it answers.
    pub(crate) fn status(&self) -> Option<Value> {
        get(&self.home, "/api/status")
    }

    /// What it wrote so far on standard error.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// SIGKILL; returns once it is gone.
    pub(crate) fn kill(mut self) {
        let mut child = self.child.take().expect("it was not ended yet");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM; returns its exit code.
    pub(crate) fn terminate(self) -> i32 {
        processes::signal(self.pid(), Signal::TERM);
        self.ended().0
    }

    /// Waits for its own end; gives its exit code and what it said on standard error.
    pub(crate) fn ended(mut self) -> (i32, String) {
        let status: ExitStatus = {
            let mut child = self.child.take().expect("it was not ended yet");
            self.stage.until("the backend's end", || child.try_wait().unwrap())
        };
        (status.code().unwrap_or(-1), self.said())
    }

    /// Whether it still runs, or has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.as_mut().expect("it was not ended yet").try_wait().unwrap().is_some()
    }
}

impl Drop for Backend<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Already gone is fine; the stage looks for what else there is.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What one command line of a user came to.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A script for the agent: these steps, as a prompt.
pub(crate) fn steps(steps: Value) -> String {
    json!({ "steps": steps }).to_string()
}

/// A program of the workspace, which stands beside this package's own.
pub(crate) fn binary(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_scripted-agent")).with_file_name(name);
    assert!(path.exists(), "build the workspace first: cargo build --profile sim --workspace --bins");
    path
}

/// The error line of a program that ended: its log lines are not it.
pub(crate) fn error_line(said: &str) -> String {
    let line = said.lines().rev().find(|line| line.starts_with("backend-recovery: "));
    line.unwrap_or_else(|| panic!("no error line in {said:?}")).to_owned()
}

/// Requires that the text holds each of these.
#[track_caller]
pub(crate) fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

/// A port of the loopback address that nobody used a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn get(home: &Path, path: &str) -> Option<Value> {
    let contact: Value = serde_json::from_slice(&fs::read(home.join("run/backend.json")).ok()?).ok()?;
    let address: SocketAddr = contact["address"].as_str()?.parse().ok()?;
    let token = contact["token"].as_str()?;
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT).ok()?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).ok()?;
    let head = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let body = answer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    (answer.get(9..12)? == b"200").then(|| serde_json::from_slice(&answer[body..]).ok())?
}

/// How long any state may take to come: far more than two loaded cores need.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// Between two looks.
pub(crate) const POLL: Duration = Duration::from_millis(15);

const ANSWER_LIMIT: Duration = Duration::from_secs(5);
