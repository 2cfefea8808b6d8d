//! The scripted agent against the control server's own side of the protocol: in one process over in-memory pipes,
//! with time that only moves when everybody waits, and once as a real process.
#![expect(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controld::agent_protocol::{
    AgentLink, AgentObserver, AgentSetup, OpenFailed, OpenFailure, PermissionQuestion, PromptEnd, Room, open,
};
use seam::{
    Blocking, BoxFuture, Child, ChildInput, ChildOutput, Clock, Disk, Entropy, FileEntry, HostFacts,
    Listener, Lock, LockRefused, Monotonic, Network, OwnStdio, Privacy, ProcessIdentity, Processes, Reaper,
    Seams, SecretStore, Signal, SpawnRequest, Stdio, Stream, Target, Wall,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sim::scripted_agent;
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use wire::AgentError;

#[tokio::test(start_paused = true)]
async fn without_a_script_it_echoes_in_three_numbered_chunks() {
    let agent = Running::start(None).await;
    assert_eq!(agent.prompt("abcdef").await, ended("end_turn"));
    assert_eq!(agent.prompt("xyz").await, ended("end_turn"));
    assert_eq!(agent.texts(), ["1.1 ab", "1.2 cd", "1.3 ef", "2.1 x", "2.2 y", "2.3 z"]);
}

#[tokio::test(start_paused = true)]
async fn it_does_its_steps_in_order_and_its_log_holds_exactly_what_it_said() {
    let said = Said::default();
    let _log = tracing::subscriber::set_default(tracing_subscriber::registry().with(said.clone()));
    let script = json!({"turns": [[
        {"say": "hello"},
        {"say_many": {"count": 3, "bytes": 12, "every_ms": 20}},
        {"noise": "Loading plugins..."},
        {"tool_call": {"title": "compile"}},
        {"stderr": "a warning"},
        {"sleep_ms": 3_600_000},
        {"say": "bye"},
        {"end": "max_tokens"},
        {"say": "never"},
    ]]});
    let mut agent = Running::start(Some(script)).await;
    assert_eq!(agent.prompt("go").await, ended("max_tokens"));
    let texts =
        ["1.1 hello", "1.2 ........", "1.3 ........", "1.4 ........", "1.5 compile", "1.6 done", "1.7 bye"];
    assert_eq!(agent.texts(), texts);
    assert_eq!(*said.0.lock().unwrap(), texts);
    assert_eq!(*agent.observer.noise.lock().unwrap(), ["Loading plugins..."]);
    let AgentPipes { mut stderr, .. } = agent.pipes.take().unwrap();
    let mut line = [0; 10];
    stderr.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"a warning\n");
}

#[tokio::test(start_paused = true)]
async fn a_prompt_may_say_what_to_do() {
    let agent = Running::start(Some(json!({"turns": [[{"say": "script"}]]}))).await;
    agent.prompt(r#"{"steps": [{"say": "asked for"}, {"fail": "out of tokens"}]}"#).await;
    agent.prompt("{ no steps }").await;
    assert_eq!(agent.texts(), ["1.1 asked for", "2.1 script"]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_the_prompts_error() {
    let agent = Running::start(Some(json!({"turns": [[{"fail": "out of tokens"}]]}))).await;
    let error = "Internal error [-32603]: out of tokens".to_owned();
    assert_eq!(agent.prompt("go").await, PromptEnd::Failed { error });
}

#[tokio::test(start_paused = true)]
async fn it_says_which_permission_was_given() {
    let script = json!({"turns": [[{"permission": {"title": "delete it", "options": ["allow_always", "reject_once"]}}]]});
    let agent = Running::start(Some(script)).await;
    for answer in [Some("allow_always".to_owned()), None] {
        let prompt = agent.prompting("go");
        let question = agent.observer.question().await;
        assert_eq!(question.tool_call["title"], "delete it");
        assert_eq!(question.options.len(), 2);
        question.answer.send(answer).unwrap();
        assert_eq!(prompt.await.unwrap(), ended("end_turn"));
    }
    assert_eq!(agent.texts(), ["1.1 chosen: allow_always", "2.1 not permitted: cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_the_turn_as_the_script_says() {
    let aborted = PromptEnd::Failed { error: "Internal error [-32603]: the turn was aborted".to_owned() };
    for (on_cancel, end, said) in
        [("stop", ended("cancelled"), 1), ("error", aborted, 1), ("ignore", ended("end_turn"), 2)]
    {
        let steps = json!([{"say": "start"}, {"sleep_ms": 1000}, {"say": "end"}]);
        let agent = Running::start(Some(json!({"on_cancel": on_cancel, "turns": [steps]}))).await;
        let prompt = agent.prompting("go");
        agent.observer.wait_for(1).await;
        agent.link.cancel();
        assert_eq!(prompt.await.unwrap(), end, "{on_cancel}");
        assert_eq!(agent.texts().len(), said, "{on_cancel}");
        // A cancel belongs to its turn.
        assert_eq!(agent.prompt("again").await, ended("end_turn"), "{on_cancel}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_a_turn_that_waits_for_a_permission() {
    let agent = Running::start(Some(json!({"turns": [[{"permission": {"title": "x"}}]]}))).await;
    let prompt = agent.prompting("go");
    let question = agent.observer.question().await;
    agent.link.cancel();
    assert_eq!(prompt.await.unwrap(), ended("cancelled"));
    drop(question);
}

#[tokio::test(start_paused = true)]
async fn it_exits_in_mid_turn_after_what_it_said() {
    let agent =
        Running::start(Some(json!({"turns": [[{"say": "last words"}, {"exit": 7}, {"say": "never"}]]})))
            .await;
    assert_eq!(agent.prompt("go").await, PromptEnd::Closed);
    agent.link.drained().await;
    assert_eq!(agent.texts(), ["1.1 last words"]);
    assert_eq!(agent.task.await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_its_input_ends_it_unless_it_ignores_that() {
    let Running { link, task, .. } = Running::start(None).await;
    drop(link);
    assert_eq!(task.await.unwrap(), 0);

    let Running { link, task, world, .. } = Running::start(Some(json!({"ignore_stdin_end": true}))).await;
    drop(link);
    world.clock().sleep(Duration::from_secs(3600)).await;
    assert!(!task.is_finished());
    world.stop.notify_one();
    assert_eq!(task.await.unwrap(), 143);
}

#[tokio::test(start_paused = true)]
async fn one_that_ignores_the_end_of_its_streams_goes_on_writing_files() {
    let script = json!({"ignore_stdin_end": true, "turns": [[
        {"say": "start"},
        {"sleep_ms": 1000},
        {"say": "to nobody"},
        {"write_file": {"path": "late.txt", "text": "still here"}},
    ]]});
    let agent = Running::start(Some(script)).await;
    let prompt = agent.prompting("go");
    agent.observer.wait_for(1).await;
    prompt.abort();
    let Running { link, world, task, .. } = agent;
    drop(link);
    world.clock().sleep(Duration::from_secs(2)).await;
    assert!(!task.is_finished());
    assert!(world.files.lock().unwrap().contains_key(Path::new("/work-tree/late.txt")));
}

#[tokio::test(start_paused = true)]
async fn sigterm_ends_it_unless_it_ignores_that() {
    let agent = Running::start(Some(json!({"ignore_term": true}))).await;
    agent.world.stop.notify_one();
    assert_eq!(agent.prompt("abc").await, ended("end_turn"));
    let agent = Running::start(None).await;
    agent.world.stop.notify_one();
    assert_eq!(agent.task.await.unwrap(), 143);
}

#[tokio::test(start_paused = true)]
async fn it_hangs_in_the_step_that_the_script_names() {
    for step in ["initialize", "session/new"] {
        let (opened, ..) = start(Some(json!({"hang_in": step}))).await;
        let failed = opened.err().unwrap();
        assert_eq!(failed.step, step);
        assert!(matches!(failed.reason, OpenFailure::TimedOut { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn it_writes_files_in_its_session_alone_and_leaves_grandchildren() {
    let script = json!({"turns": [[
        {"write_file": {"path": "notes/a.txt", "text": "one"}},
        {"write_file": {"path": "notes/a.txt", "text": "two", "append": true}},
        {"write_file": {"path": "../b.txt", "text": "x"}},
        {"write_file": {"path": "/etc/b.txt", "text": "x"}},
        {"spawn_grandchild": {"ignore_term": true}},
    ]]});
    let agent = Running::start(Some(script)).await;
    assert_eq!(agent.prompt("go").await, ended("end_turn"));
    let files = BTreeMap::from([(PathBuf::from("/work-tree/notes/a.txt"), b"onetwo".to_vec())]);
    assert_eq!(*agent.world.files.lock().unwrap(), files);
    assert_eq!(agent.texts().len(), 2, "the refused ones are said");
    let spawned = agent.world.spawned.lock().unwrap();
    assert_eq!(spawned[0].args, ["--linger", "--ignore-term"]);
    assert_eq!(spawned[0].env["KANDEV_SESSION_ID"], "s-1", "the marker is passed on");
}

#[tokio::test(start_paused = true)]
async fn a_script_that_is_none_is_refused_with_the_reason() {
    let (pipes, stdio) = pipes();
    let world =
        World::new(stdio, BTreeMap::from([("SCRIPTED_AGENT".to_owned(), r#"{"turm":[]}"#.to_owned())]));
    assert_eq!(scripted_agent::run(world.seams()).await, 2);
    drop(world);
    let mut complaint = String::new();
    let AgentPipes { mut stderr, .. } = pipes;
    stderr.read_to_string(&mut complaint).await.unwrap();
    assert!(complaint.contains("cannot understand the script: unknown field `turm`"), "{complaint}");
}

#[tokio::test]
async fn as_a_process_it_does_the_same() {
    let seams = system::seams();
    let script =
        json!({"turns": [[{"say": "from a process"}, {"permission": {"title": "end?"}}, {"exit": 5}]]});
    let request = SpawnRequest {
        program: env!("CARGO_BIN_EXE_scripted-agent").to_owned(),
        args: Vec::new(),
        env: BTreeMap::from([("SCRIPTED_AGENT".to_owned(), script.to_string())]),
        directory: None,
        stdio: Stdio::Piped,
    };
    let mut child = seams.processes.spawn(request).await.unwrap();
    let observer = Recorder::new();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let link = open(stdin, stdout, setup(), observer.clone(), Arc::clone(&seams.clock)).await.unwrap();
    let prompt = tokio::spawn({
        let link = link.clone();
        async move { link.prompt("go".to_owned()).await }
    });
    observer.question().await.answer.send(Some("allow_once".to_owned())).unwrap();
    assert_eq!(prompt.await.unwrap(), PromptEnd::Closed);
    assert_eq!(child.exit.wait().await.unwrap(), seam::ExitStatus::Code(5));
    link.drained().await;
    assert_eq!(observer.texts(), ["1.1 from a process", "1.2 chosen: allow_once"]);
}

/// An agent in this process with an open conversation.
struct Running {
    link: AgentLink,
    observer: Arc<Recorder>,
    world: Arc<World>,
    task: JoinHandle<u8>,
    pipes: Option<AgentPipes>,
}

impl Running {
    async fn start(script: Option<Value>) -> Self {
        let (opened, observer, world, task, pipes) = start(script).await;
        Self { link: opened.unwrap(), observer, world, task, pipes: Some(pipes) }
    }

    fn prompting(&self, text: &str) -> JoinHandle<PromptEnd> {
        let (link, text) = (self.link.clone(), text.to_owned());
        tokio::spawn(async move { link.prompt(text).await })
    }

    async fn prompt(&self, text: &str) -> PromptEnd {
        self.link.prompt(text.to_owned()).await
    }

    fn texts(&self) -> Vec<String> {
        self.observer.texts()
    }
}

type Started = (Result<AgentLink, OpenFailed>, Arc<Recorder>, Arc<World>, JoinHandle<u8>, AgentPipes);

async fn start(script: Option<Value>) -> Started {
    let (mut pipes, stdio) = pipes();
    let mut env = BTreeMap::from([("KANDEV_SESSION_ID".to_owned(), "s-1".to_owned())]);
    env.extend(script.map(|script| ("SCRIPTED_AGENT".to_owned(), script.to_string())));
    let world = World::new(stdio, env);
    let task = tokio::spawn(scripted_agent::run(world.seams()));
    let observer = Recorder::new();
    let (stdin, stdout) = (pipes.stdin.take().unwrap(), pipes.stdout.take().unwrap());
    let opened = open(stdin, stdout, setup(), observer.clone(), world.clock()).await;
    (opened, observer, world, task, pipes)
}

fn setup() -> AgentSetup {
    let mode = Some("yolo".to_owned());
    AgentSetup { directory: "/work-tree".to_owned(), mode, resume: None, step_limit: Duration::from_secs(30) }
}

fn ended(stop_reason: &str) -> PromptEnd {
    PromptEnd::Ended { stop_reason: stop_reason.to_owned() }
}

/// The other ends of an agent's streams.
struct AgentPipes {
    stdin: Option<ChildInput>,
    stdout: Option<ChildOutput>,
    stderr: DuplexStream,
}

fn pipes() -> (AgentPipes, OwnStdio) {
    let [(stdin, own_stdin), (own_stdout, stdout), (own_stderr, stderr)] =
        std::array::from_fn(|_| tokio::io::duplex(64 * 1024));
    let pipes = AgentPipes { stdin: Some(Box::new(stdin)), stdout: Some(Box::new(stdout)), stderr };
    let own =
        OwnStdio { stdin: Box::new(own_stdin), stdout: Box::new(own_stdout), stderr: Box::new(own_stderr) };
    (pipes, own)
}

/// Writes down what the agent says.
struct Recorder {
    updates: watch::Sender<Vec<Value>>,
    noise: Mutex<Vec<String>>,
    question: Mutex<Option<PermissionQuestion>>,
    asked: Notify,
    rooms: Arc<Semaphore>,
}

impl Recorder {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            updates: watch::channel(Vec::new()).0,
            noise: Mutex::default(),
            question: Mutex::default(),
            asked: Notify::new(),
            rooms: Arc::new(Semaphore::new(1)),
        })
    }

    fn texts(&self) -> Vec<String> {
        let text = |update: &Value| {
            update["content"]["text"].as_str().or(update["title"].as_str()).map(str::to_owned)
        };
        self.updates.borrow().iter().map(|update| text(update).unwrap()).collect()
    }

    async fn wait_for(&self, count: usize) {
        self.updates.subscribe().wait_for(|updates| updates.len() >= count).await.unwrap();
    }

    async fn question(&self) -> PermissionQuestion {
        self.asked.notified().await;
        self.question.lock().unwrap().take().unwrap()
    }
}

impl AgentObserver for Recorder {
    fn room(&self) -> BoxFuture<'static, Option<Room>> {
        let rooms = Arc::clone(&self.rooms);
        Box::pin(async move { rooms.acquire_owned().await.ok().map(Room) })
    }

    fn update(&self, _room: Room, update: Box<RawValue>) {
        let update = serde_json::from_str(update.get()).unwrap();
        self.updates.send_modify(|updates| updates.push(update));
    }

    fn permission_asked(&self, _room: Room, question: PermissionQuestion) {
        *self.question.lock().unwrap() = Some(question);
        self.asked.notify_one();
    }

    fn problem(&self, _room: Room, error: AgentError) {
        panic!("the agent did something wrong: {error:?}");
    }

    fn noise(&self, line: &[u8]) {
        self.noise.lock().unwrap().push(String::from_utf8_lossy(line).into_owned());
    }
}

/// The texts of the agent's own log of what it said.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> Layer<S> for Said {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        #[derive(Default)]
        struct Fields(BTreeMap<&'static str, String>);
        impl Visit for Fields {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0.insert(field.name(), format!("{value:?}"));
            }
            fn record_str(&mut self, field: &Field, value: &str) {
                self.0.insert(field.name(), value.to_owned());
            }
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        if fields.0.get("message").is_some_and(|message| message == "agent said") {
            assert_eq!(fields.0["session"], "s-1");
            self.0.lock().unwrap().push(fields.0["text"].clone());
        }
    }
}

/// As much of a world as an agent touches.
struct World {
    stdio: Mutex<Option<OwnStdio>>,
    env: BTreeMap<String, String>,
    stop: Notify,
    files: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
    spawned: Mutex<Vec<SpawnRequest>>,
}

impl World {
    fn new(stdio: OwnStdio, env: BTreeMap<String, String>) -> Arc<Self> {
        Arc::new(Self {
            stdio: Mutex::new(Some(stdio)),
            env,
            stop: Notify::new(),
            files: Mutex::default(),
            spawned: Mutex::default(),
        })
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(PausedClock(tokio_now()))
    }

    fn seams(self: &Arc<Self>) -> Seams {
        let nothing = Arc::new(Nothing);
        Seams {
            clock: self.clock(),
            entropy: nothing.clone(),
            network: nothing.clone(),
            processes: Arc::new(Handle(Arc::clone(self))),
            disk: Arc::new(Handle(Arc::clone(self))),
            secrets: nothing.clone(),
            blocking: nothing,
            host: Arc::new(Handle(Arc::clone(self))),
        }
    }
}

struct Handle(Arc<World>);

impl Processes for Handle {
    fn own_identity(&self) -> ProcessIdentity {
        identity(1)
    }

    fn own_stdio(&self) -> OwnStdio {
        self.0.stdio.lock().unwrap().take().unwrap()
    }

    fn stop_requested(&self) -> BoxFuture<'_, Signal> {
        Box::pin(async {
            self.0.stop.notified().await;
            Signal::Terminate
        })
    }

    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, io::Result<Child>> {
        struct Never;
        impl seam::Exit for Never {
            fn wait(&mut self) -> BoxFuture<'_, io::Result<seam::ExitStatus>> {
                Box::pin(std::future::pending())
            }
        }
        self.0.spawned.lock().unwrap().push(request);
        let child =
            Child { identity: identity(2), stdin: None, stdout: None, stderr: None, exit: Box::new(Never) };
        Box::pin(async { Ok(child) })
    }

    fn signal(&self, _target: Target, _signal: Signal) -> BoxFuture<'_, io::Result<bool>> {
        panic!("an agent sends no signals")
    }

    fn runs(&self, _identity: &ProcessIdentity) -> BoxFuture<'_, io::Result<bool>> {
        panic!("an agent looks at no other process")
    }

    fn marked<'a>(
        &'a self,
        _name: &'a str,
        _value: &'a str,
    ) -> BoxFuture<'a, io::Result<Vec<ProcessIdentity>>> {
        panic!("an agent looks at no other process")
    }

    fn become_reaper(&self) -> io::Result<Reaper> {
        panic!("an agent reaps nobody")
    }
}

impl Disk for Handle {
    fn read<'a>(&'a self, path: &'a Path, _limit: u64) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        Box::pin(async {
            self.0.files.lock().unwrap().get(path).cloned().ok_or(io::ErrorKind::NotFound.into())
        })
    }

    fn write_atomic<'a>(
        &'a self,
        path: &'a Path,
        bytes: &'a [u8],
        _privacy: Privacy,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.0.files.lock().unwrap().insert(path.to_owned(), bytes.to_owned());
        Box::pin(async { Ok(()) })
    }

    fn append<'a>(
        &'a self,
        path: &'a Path,
        bytes: &'a [u8],
        _privacy: Privacy,
    ) -> BoxFuture<'a, io::Result<u64>> {
        let mut files = self.0.files.lock().unwrap();
        let file = files.entry(path.to_owned()).or_default();
        file.extend_from_slice(bytes);
        let size = file.len() as u64;
        Box::pin(async move { Ok(size) })
    }

    fn rename<'a>(&'a self, _from: &'a Path, _to: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        panic!("an agent renames nothing")
    }

    fn remove<'a>(&'a self, _path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        panic!("an agent removes nothing")
    }

    fn list<'a>(&'a self, _directory: &'a Path) -> BoxFuture<'a, io::Result<Vec<FileEntry>>> {
        panic!("an agent lists nothing")
    }

    fn create_directory<'a>(&'a self, _path: &'a Path, _privacy: Privacy) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn canonical<'a>(&'a self, _path: &'a Path) -> BoxFuture<'a, io::Result<PathBuf>> {
        panic!("an agent resolves nothing")
    }

    fn lock<'a>(
        &'a self,
        _path: &'a Path,
        _note: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Lock>, LockRefused>> {
        panic!("an agent locks nothing")
    }

    fn sqlite_vfs(&self) -> Option<&str> {
        None
    }
}

impl HostFacts for Handle {
    fn arguments(&self) -> Vec<String> {
        Vec::new()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        self.0.env.clone()
    }

    fn executable(&self) -> Option<PathBuf> {
        None
    }

    fn operating_system(&self) -> &'static str {
        "linux"
    }
}

/// What an agent has no use for.
struct Nothing;

impl Entropy for Nothing {
    fn fill(&self, buffer: &mut [u8]) {
        buffer.fill(7);
    }
}

impl Network for Nothing {
    fn listen(&self, _address: std::net::SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        panic!("an agent opens no socket")
    }

    fn connect(&self, _address: std::net::SocketAddr, _limit: Duration) -> BoxFuture<'_, io::Result<Stream>> {
        panic!("an agent opens no socket")
    }

    fn resolve(&self, _host: &str, _port: u16) -> BoxFuture<'_, io::Result<Vec<std::net::SocketAddr>>> {
        panic!("an agent opens no socket")
    }
}

impl SecretStore for Nothing {
    fn store<'a>(&'a self, _name: &'a str, _secret: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        panic!("an agent has no secrets")
    }

    fn load<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        panic!("an agent has no secrets")
    }

    fn remove<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, io::Result<()>> {
        panic!("an agent has no secrets")
    }

    fn names(&self) -> BoxFuture<'_, io::Result<Vec<String>>> {
        panic!("an agent has no secrets")
    }
}

impl Blocking for Nothing {
    fn run(&self, _work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        panic!("an agent blocks nowhere")
    }
}

/// Tokio's paused time.
struct PausedClock(tokio::time::Instant);

impl Clock for PausedClock {
    fn monotonic(&self) -> Monotonic {
        Monotonic::from_origin(tokio_now().duration_since(self.0))
    }

    fn wall(&self) -> Wall {
        Wall { unix_millis: 0 }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the Clock of these tests")]
    fn sleep_until(&self, until: Monotonic) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(self.0 + until.since_origin()))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the Clock of these tests")]
    fn yield_now(&self) -> BoxFuture<'static, ()> {
        Box::pin(tokio::task::yield_now())
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the Clock of these tests")]
fn tokio_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

fn identity(pid: u32) -> ProcessIdentity {
    ProcessIdentity { pid, start_time: 1, boot_id: "boot-1".to_owned() }
}
