//! The conversation with an agent, over in-memory pipes: with an agent written by hand, line by line, and with the
//! protocol crate's own agent side.
#![expect(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentBlock, ContentChunk, InitializeRequest, InitializeResponse, NewSessionRequest, NewSessionResponse,
    PermissionOption, PermissionOptionKind, PromptRequest, PromptResponse, RequestPermissionRequest,
    SessionNotification, SessionUpdate, StopReason, ToolCallUpdate, ToolCallUpdateFields,
};
use agent_client_protocol::{Agent, ByteStreams, Client, on_receive_request};
use controld::agent_protocol::{
    AgentLink, AgentObserver, AgentSetup, LINE_LIMIT, OpenFailed, OpenFailure, PermissionQuestion, PromptEnd,
    Room, open,
};
use seam::{BoxFuture, Clock, Monotonic, Wall};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};
use wire::AgentError;

#[tokio::test]
async fn updates_are_told_as_written_before_the_prompt_that_they_belong_to_resolves() {
    let (link, mut agent, observer) = opened().await;
    assert_eq!(link.provider_session().as_str(), "conversation-1");
    let prompt = tokio::spawn({
        let (link, observer) = (link.clone(), Arc::clone(&observer));
        async move { (link.prompt("hello".to_owned()).await, observer.told()) }
    });
    let request = agent.hear().await;
    assert_eq!(request["method"], "session/prompt");
    assert_eq!(request["params"]["prompt"][0]["text"], "hello");
    agent.say_update(r#"{"sessionUpdate":"x", "a": 1}"#).await;
    agent.say_update(r#"{"sessionUpdate":"y","b":"\ud83d"}"#).await;
    agent
        .say(&json!({"jsonrpc": "2.0", "id": request["id"], "result": {"stopReason": "a_new_reason"}}))
        .await;
    agent.say_update(r#"{"sessionUpdate":"late"}"#).await;

    let (end, told_by_then) = prompt.await.unwrap();
    assert_eq!(end, PromptEnd::Ended { stop_reason: "a_new_reason".to_owned() });
    let before = [
        Told::Update(r#"{"sessionUpdate":"x", "a": 1}"#.to_owned()),
        Told::Update(r#"{"sessionUpdate":"y","b":"\ufffd"}"#.to_owned()),
    ];
    assert_eq!(told_by_then, before);
    observer.wait_for(3).await;
    assert_eq!(observer.told()[2], Told::Update(r#"{"sessionUpdate":"late"}"#.to_owned()));
}

#[tokio::test]
async fn a_permission_is_asked_in_its_place_and_its_answer_goes_back() {
    let (_link, mut agent, observer) = opened().await;
    agent.say_update(r#"{"n":1}"#).await;
    for id in ["first", "second"] {
        agent.say(&permission_request(id, "allow_once")).await;
        agent.say_update(r#"{"n":2}"#).await;
    }
    observer.wait_for(5).await;
    let asked = Told::Asked { title: "delete it".to_owned(), options: "yes=allow_once".to_owned() };
    let update = |n: u8| Told::Update(format!(r#"{{"n":{n}}}"#));
    assert_eq!(observer.told(), [update(1), asked.clone(), update(2), asked, update(2)]);

    let mut questions = observer.questions();
    // Dropped, which cancels it.
    drop(questions.pop());
    let answer = agent.hear().await;
    assert_eq!(
        (answer["id"].as_str(), &answer["result"]["outcome"]["outcome"]),
        (Some("second"), &json!("cancelled"))
    );
    questions.pop().unwrap().answer.send(Some("yes".to_owned())).unwrap();
    let answer = agent.hear().await;
    assert_eq!(answer["id"], "first");
    assert_eq!(answer["result"]["outcome"], json!({"outcome": "selected", "optionId": "yes"}));
}

#[tokio::test]
async fn a_permission_request_that_cannot_be_read_is_refused_and_told() {
    let (_link, mut agent, observer) = opened().await;
    agent.say(&permission_request("odd", "no_such_kind")).await;
    let answer = agent.hear().await;
    assert_eq!((answer["id"].as_str(), answer["error"]["code"].as_i64()), (Some("odd"), Some(-32602)));
    observer.wait_for(1).await;
    assert!(
        matches!(&observer.told()[0], Told::Problem { step, .. } if step == "session/request_permission")
    );
}

#[tokio::test]
async fn a_request_that_is_not_supported_is_refused_by_name() {
    let (_link, mut agent, _observer) = opened().await;
    agent.say(&json!({"jsonrpc": "2.0", "id": 7, "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}})).await;
    let answer = agent.hear().await;
    assert_eq!((answer["id"].as_i64(), answer["error"]["code"].as_i64()), (Some(7), Some(-32601)));
}

#[tokio::test]
async fn noise_is_kept_and_never_answered() {
    let (link, mut agent, observer) = opened().await;
    let noise =
        ["Welcome!", "{\"level\":\"info\"}", "[]", "{\"jsonrpc\":\"2.0\",\"id\":\"nobody's\",\"result\":1}"];
    for line in noise {
        agent.say_line(line.as_bytes()).await;
    }
    agent.say_line(b"\xff\xfe\x00").await;
    agent.say_line(br#"{"jsonrpc":"2.0","method":"session/update","params":{}}"#).await;
    agent.say_update(r#"{"after":"noise"}"#).await;
    observer.wait_for(7).await;
    let told = observer.told();
    assert_eq!(told.iter().filter(|told| matches!(told, Told::Noise(_))).count(), 5);
    assert!(matches!(&told[5], Told::Problem { step, .. } if step == "session/update"));
    assert_eq!(told[6], Told::Update(r#"{"after":"noise"}"#.to_owned()));

    drop(link);
    assert_eq!(agent.rest_of_input().await, "", "nothing was written into the agent's input");
}

#[tokio::test]
async fn an_oversized_line_is_named_and_the_conversation_lives() {
    let (_link, mut agent, observer) = opened().await;
    let line = vec![b'x'; LINE_LIMIT + 1];
    agent.say_line(&line).await;
    agent.say_update(r#"{"after":"it"}"#).await;
    observer.wait_for(2).await;
    assert!(matches!(&observer.told()[0], Told::Problem { step, message }
        if step == "oversized_line" && message.contains("8388609 bytes")));
}

#[tokio::test]
async fn the_end_of_the_output_ends_the_prompt_after_its_last_line_was_told() {
    let (link, mut agent, observer) = opened().await;
    let prompt = tokio::spawn({
        let link = link.clone();
        async move { link.prompt("hello".to_owned()).await }
    });
    agent.hear().await;
    let Hand { mut output, .. } = agent;
    let last =
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"last":"words"}}}"#;
    output.write_all(last.as_bytes()).await.unwrap();
    drop(output);
    link.drained().await;
    assert_eq!(observer.told(), [Told::Update(r#"{"last":"words"}"#.to_owned())]);
    assert_eq!(prompt.await.unwrap(), PromptEnd::Closed);
    assert_eq!(link.prompt("again".to_owned()).await, PromptEnd::Closed);
    link.cancel();
}

#[tokio::test]
async fn an_error_of_the_agent_right_before_its_end_is_told_as_that_error() {
    let (link, mut agent, _observer) = opened().await;
    let prompt = tokio::spawn({
        let link = link.clone();
        async move { link.prompt("hello".to_owned()).await }
    });
    let id = agent.hear().await["id"].clone();
    let error = json!({"code": -32603, "message": "Internal error", "data": {"details": "quota\nexceeded"}});
    agent.say(&json!({"jsonrpc": "2.0", "id": id, "error": error})).await;
    drop(agent);
    let error = r#"Internal error [-32603]: {"details":"quota\nexceeded"}"#.to_owned();
    assert_eq!(prompt.await.unwrap(), PromptEnd::Failed { error });
}

#[tokio::test]
async fn a_cancel_reaches_the_agent_while_the_prompt_waits() {
    let (link, mut agent, _observer) = opened().await;
    let prompt = tokio::spawn({
        let link = link.clone();
        async move { link.prompt("hello".to_owned()).await }
    });
    let id = agent.hear().await["id"].clone();
    link.cancel();
    let cancel = agent.hear().await;
    assert_eq!(
        (cancel["method"].as_str(), cancel["params"]["sessionId"].as_str()),
        (Some("session/cancel"), Some("conversation-1"))
    );
    agent.say(&json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "cancelled"}})).await;
    assert_eq!(prompt.await.unwrap(), PromptEnd::Ended { stop_reason: "cancelled".to_owned() });
}

#[tokio::test]
async fn dropping_the_last_link_ends_the_agents_input_after_what_was_sent() {
    let (link, mut agent, _observer) = opened().await;
    link.clone().cancel();
    drop(link);
    assert!(agent.rest_of_input().await.contains("session/cancel"));
}

#[tokio::test]
async fn a_step_that_hangs_is_named_after_its_bound() {
    for (answered, step) in [(0, "initialize"), (1, "session/new"), (2, "session/set_mode")] {
        let (failed, mut agent) = failed_open(answered, None).await;
        assert_eq!(failed.step, step);
        assert!(matches!(failed.reason, OpenFailure::TimedOut { limit } if limit == STEP_LIMIT), "{failed}");
        agent.rest_of_input().await;
    }
}

#[tokio::test]
async fn an_agent_that_wants_a_sign_in_is_told_as_such() {
    let error = json!({"code": -32000, "message": "Authentication required", "data": "run agent login"});
    let (failed, _agent) = failed_open(1, Some(json!({"error": error}))).await;
    let text = "session/new: the agent asks for authentication first (Authentication required [-32000]: run agent login)";
    assert_eq!(failed.to_string(), text);
    assert!(matches!(failed.reason, OpenFailure::AuthRequired { .. }));
}

#[tokio::test]
async fn an_agent_of_another_protocol_version_is_refused() {
    let (failed, _agent) = failed_open(0, Some(json!({"result": {"protocolVersion": 0}}))).await;
    assert_eq!(failed.step, "initialize");
}

#[tokio::test]
async fn a_program_that_is_no_agent_fails_at_its_first_step() {
    let (stdin, _input) = tokio::io::duplex(1024);
    let (mut output, stdout) = tokio::io::duplex(1024);
    output.write_all(b"usage: program [options]\n").await.unwrap();
    drop(output);
    let observer = Recorder::new(8);
    let opened = open(Box::new(stdin), Box::new(stdout), setup(), observer.clone(), Arc::new(Still)).await;
    let failed = opened.err().unwrap();
    assert!(matches!((failed.step, &failed.reason), ("initialize", OpenFailure::Closed)), "{failed}");
    assert_eq!(observer.told(), [Told::Noise("usage: program [options]".to_owned())]);
}

#[tokio::test]
async fn without_room_nothing_is_taken_beyond_one_line_and_one_read() {
    let (_link, agent, observer) = opened_with_rooms(3).await;
    let flood = Flood::of(
        agent,
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{}}}"#,
        1_000_000,
    );
    let stuck_at = flood.until_stuck().await;
    assert_eq!(observer.told().len(), 3, "as many as there is room for");
    assert!(stuck_at <= PIPE + 16 * 1024, "{stuck_at} bytes were taken or are in the pipe");
    // Room makes it go on, in order and without loss.
    observer.rooms.add_permits(5);
    observer.wait_for(8).await;
    assert_eq!(observer.told().len(), 8);
}

#[tokio::test]
async fn requests_are_taken_only_while_few_are_unanswered() {
    let (_link, agent, _observer) = opened().await;
    // It asks and asks, and never reads an answer.
    let flood =
        Flood::of(agent, r#"{"jsonrpc":"2.0","id":1,"method":"terminal/create","params":{}}"#, 1_000_000);
    let stuck_at = flood.until_stuck().await;
    assert!(stuck_at <= 3 * PIPE, "{stuck_at} bytes were taken or are in the pipe");
}

#[tokio::test]
async fn a_stop_ends_the_conversation_while_it_waits_for_room() {
    let (link, mut agent, observer) = opened_with_rooms(0).await;
    agent.say_update("{}").await;
    observer.stopped.send_replace(true);
    link.drained().await;
    agent.rest_of_input().await;
    assert_eq!(link.prompt("hello".to_owned()).await, PromptEnd::Closed);
    assert_eq!(observer.told(), []);
}

#[tokio::test]
async fn the_crates_own_agent_side_is_understood() {
    let (stdin, agent_in) = tokio::io::duplex(PIPE);
    let (agent_out, stdout) = tokio::io::duplex(PIPE);
    let agent = Agent
        .v1()
        .on_receive_request(
            async |request: InitializeRequest, responder, _| {
                responder.respond(InitializeResponse::new(request.protocol_version))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |_: NewSessionRequest, responder, _| responder.respond(NewSessionResponse::new("crate-1")),
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: PromptRequest, responder, connection: ConnectionTo<Client>| {
                let session = request.session_id;
                let inner = connection.clone();
                connection.spawn(async move {
                    let option = PermissionOption::new("ok", "OK", PermissionOptionKind::AllowOnce);
                    let call = ToolCallUpdate::new("call-1", ToolCallUpdateFields::new().title("delete it"));
                    let ask = RequestPermissionRequest::new(session.clone(), call, vec![option]);
                    let chosen = inner.send_request(ask).block_task().await?;
                    let chunk = ContentChunk::new(ContentBlock::from(format!("{:?}", chosen.outcome)));
                    let update = SessionUpdate::AgentMessageChunk(chunk);
                    inner.send_notification(SessionNotification::new(session, update))?;
                    responder.respond(PromptResponse::new(StopReason::EndTurn))
                })
            },
            on_receive_request!(),
        )
        .connect_to(ByteStreams::new(agent_out.compat_write(), agent_in.compat()));
    let agent = tokio::spawn(agent);
    let observer = Recorder::new(8);
    let setup = AgentSetup { mode: None, ..setup() };
    let link =
        open(Box::new(stdin), Box::new(stdout), setup, observer.clone(), Arc::new(Still)).await.unwrap();
    let prompt = tokio::spawn({
        let link = link.clone();
        async move { link.prompt("hello".to_owned()).await }
    });
    observer.wait_for(1).await;
    observer.questions().pop().unwrap().answer.send(Some("ok".to_owned())).unwrap();
    assert_eq!(prompt.await.unwrap(), PromptEnd::Ended { stop_reason: "end_turn".to_owned() });
    assert!(matches!(&observer.told()[1], Told::Update(update) if update.contains("Selected")));
    drop(link);
    agent.await.unwrap().unwrap();
}

/// An agent written by hand.
struct Hand {
    input: BufReader<DuplexStream>,
    output: DuplexStream,
}

impl Hand {
    async fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.input.read_line(&mut line).await.unwrap();
        serde_json::from_str(&line).unwrap()
    }

    async fn rest_of_input(&mut self) -> String {
        let mut rest = String::new();
        self.input.read_to_string(&mut rest).await.unwrap();
        rest
    }

    async fn say_line(&mut self, line: &[u8]) {
        self.output.write_all(line).await.unwrap();
        self.output.write_all(b"\n").await.unwrap();
    }

    async fn say(&mut self, message: &Value) {
        self.say_line(message.to_string().as_bytes()).await;
    }

    async fn say_update(&mut self, update: &str) {
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{update}}}}}"#
        );
        self.say_line(line.as_bytes()).await;
    }

    async fn answer(&mut self, mut answer: Value) {
        answer["id"] = self.hear().await["id"].clone();
        answer["jsonrpc"] = json!("2.0");
        self.say(&answer).await;
    }
}

/// An agent that writes the same line without end, and how many bytes its pipe has taken so far.
struct Flood {
    written: Arc<Mutex<usize>>,
    _input: BufReader<DuplexStream>,
}

impl Flood {
    fn of(agent: Hand, line: &'static str, count: usize) -> Self {
        let written = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&written);
        let Hand { input, mut output } = agent;
        tokio::spawn(async move {
            for _ in 0..count {
                let line = format!("{line}\n");
                output.write_all(line.as_bytes()).await.unwrap();
                *counted.lock().unwrap() += line.len();
            }
        });
        Self { written, _input: input }
    }

    /// How many bytes were written when nothing moved any more, with every task of this single thread run often.
    async fn until_stuck(&self) -> usize {
        let mut before = usize::MAX;
        loop {
            for _ in 0..1000 {
                Still.yield_now().await;
            }
            let now = *self.written.lock().unwrap();
            if now == before {
                return now;
            }
            before = now;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Update(String),
    Asked { title: String, options: String },
    Problem { step: String, message: String },
    Noise(String),
}

/// Writes down what it is told; room comes from a semaphore.
struct Recorder {
    rooms: Arc<Semaphore>,
    stopped: watch::Sender<bool>,
    told: watch::Sender<Vec<Told>>,
    kept: Mutex<Vec<OwnedSemaphorePermit>>,
    questions: Mutex<Vec<PermissionQuestion>>,
}

impl Recorder {
    fn new(rooms: usize) -> Arc<Self> {
        Arc::new(Self {
            rooms: Arc::new(Semaphore::new(rooms)),
            stopped: watch::channel(false).0,
            told: watch::channel(Vec::new()).0,
            kept: Mutex::default(),
            questions: Mutex::default(),
        })
    }

    fn told(&self) -> Vec<Told> {
        self.told.borrow().clone()
    }

    async fn wait_for(&self, count: usize) {
        self.told.subscribe().wait_for(|told| told.len() >= count).await.unwrap();
    }

    fn questions(&self) -> Vec<PermissionQuestion> {
        std::mem::take(&mut self.questions.lock().unwrap())
    }

    fn write_down(&self, room: Option<Room>, told: Told) {
        self.kept.lock().unwrap().extend(room.map(|room| room.0));
        self.told.send_modify(|all| all.push(told));
    }
}

impl AgentObserver for Recorder {
    fn room(&self) -> BoxFuture<'static, Option<Room>> {
        let rooms = Arc::clone(&self.rooms);
        let mut stopped = self.stopped.subscribe();
        Box::pin(async move {
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => None,
                permit = rooms.acquire_owned() => Some(Room(permit.unwrap())),
            }
        })
    }

    fn update(&self, room: Room, update: Box<RawValue>) {
        self.write_down(Some(room), Told::Update(update.get().to_owned()));
    }

    fn permission_asked(&self, room: Room, question: PermissionQuestion) {
        let title = question.tool_call["title"].as_str().unwrap().to_owned();
        let options =
            question.options.iter().map(|option| format!("{}={}", option.id, option.kind)).collect();
        self.questions.lock().unwrap().push(question);
        self.write_down(Some(room), Told::Asked { title, options });
    }

    fn problem(&self, room: Room, error: AgentError) {
        self.write_down(Some(room), Told::Problem { step: error.step, message: error.message });
    }

    fn noise(&self, line: &[u8]) {
        self.write_down(None, Told::Noise(String::from_utf8_lossy(line).into_owned()));
    }
}

/// Time stands still: no bound ever passes.
struct Still;

impl Clock for Still {
    fn monotonic(&self) -> Monotonic {
        Monotonic::from_origin(Duration::ZERO)
    }

    fn wall(&self) -> Wall {
        Wall { unix_millis: 0 }
    }

    fn sleep_until(&self, _until: Monotonic) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn yield_now(&self) -> BoxFuture<'static, ()> {
        Box::pin(Yield(false))
    }
}

/// Every bound passes as soon as everybody else has run often: what hangs then hangs for ever.
struct Patient;

impl Clock for Patient {
    fn monotonic(&self) -> Monotonic {
        Still.monotonic()
    }

    fn wall(&self) -> Wall {
        Still.wall()
    }

    fn sleep_until(&self, _until: Monotonic) -> BoxFuture<'static, ()> {
        Box::pin(async {
            for _ in 0..1000 {
                Still.yield_now().await;
            }
        })
    }

    fn yield_now(&self) -> BoxFuture<'static, ()> {
        Still.yield_now()
    }
}

struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

async fn opened() -> (AgentLink, Hand, Arc<Recorder>) {
    opened_with_rooms(64).await
}

async fn opened_with_rooms(rooms: usize) -> (AgentLink, Hand, Arc<Recorder>) {
    let (stdin, stdout, mut agent) = pipes();
    let observer = Recorder::new(rooms);
    let opening = open(stdin, stdout, setup(), observer.clone(), Arc::new(Still));
    let answering = async {
        for answer in answers() {
            agent.answer(answer).await;
        }
    };
    let (link, ()) = tokio::join!(opening, answering);
    (link.unwrap(), agent, observer)
}

/// Opens with an agent that answers so many steps as it should, the next one with `last` if there is one, and then
/// says nothing more.
async fn failed_open(answered: usize, last: Option<Value>) -> (OpenFailed, Hand) {
    let (stdin, stdout, mut agent) = pipes();
    let opening = open(stdin, stdout, setup(), Recorder::new(8), Arc::new(Patient));
    let answering = async {
        for answer in answers().into_iter().take(answered).chain(last) {
            agent.answer(answer).await;
        }
    };
    let (link, ()) = tokio::join!(opening, answering);
    (link.err().unwrap(), agent)
}

fn answers() -> [Value; 3] {
    [
        json!({"result": {"protocolVersion": 1, "agentCapabilities": {}}}),
        json!({"result": {"sessionId": "conversation-1"}}),
        json!({"result": {}}),
    ]
}

fn pipes() -> (seam::ChildInput, seam::ChildOutput, Hand) {
    let (stdin, input) = tokio::io::duplex(PIPE);
    let (output, stdout) = tokio::io::duplex(PIPE);
    (Box::new(stdin), Box::new(stdout), Hand { input: BufReader::new(input), output })
}

fn setup() -> AgentSetup {
    AgentSetup {
        directory: "/work-tree".to_owned(),
        mode: Some("yolo".to_owned()),
        resume: None,
        step_limit: STEP_LIMIT,
    }
}

fn permission_request(id: &str, kind: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
        "sessionId": "s",
        "toolCall": {"toolCallId": "call-1", "title": "delete it"},
        "options": [{"optionId": "yes", "name": "Yes", "kind": kind}],
    }})
}

const STEP_LIMIT: Duration = Duration::from_secs(30);

/// What a Linux pipe holds.
const PIPE: usize = 64 * 1024;
