//! A real agent whose behaviour is a script.
//!
//! It speaks the Agent Client Protocol over its standard streams with the protocol crate's own agent side, and does
//! in each turn what its [`Script`] says. The same code is a process (the binary `scripted-agent`) and a task of the
//! simulation: it touches the world through the seams alone, spawns no task and holds no global state, so that
//! dropping its future is its death.
//!
//! Everything it says is numbered, `<turn>.<n> text`, and logged as `agent said` once its line was accepted by the
//! standard output: that log is the ground truth of what a transcript must hold.

mod output;
mod script;
mod turn;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    AgentCapabilities, CancelNotification, ContentBlock, ContentChunk, InitializeRequest, InitializeResponse,
    LoadSessionRequest, LoadSessionResponse, NewSessionRequest, NewSessionResponse, PromptRequest,
    PromptResponse, SessionId, SessionNotification, SessionUpdate, SetSessionModeRequest,
    SetSessionModeResponse,
};
use agent_client_protocol::{Channel, Client, Error, Responder, TransportFrame, V1};
use agent_client_protocol::{on_receive_notification, on_receive_request};
use futures_util::Sink;
use seam::{ChildInput, ChildOutput, Seams, Signal, random_hex};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use output::Output;
pub use script::{Grandchild, Hang, OnCancel, Permission, SayMany, Script, Step, ToolCall, WriteFile};
use turn::{End, Turn};

/// Runs an agent to its end and gives its exit code: 0 after its standard input ended, 143 after SIGTERM or SIGINT,
/// what the script says after an `exit`, 1 if its standard output failed, 2 for a script that is no script.
///
/// With `--linger [--ignore-term]` it is a grandchild instead: it speaks to nobody and waits to be ended.
pub async fn run(seams: Seams) -> u8 {
    let arguments = seams.host.arguments();
    if arguments.first().is_some_and(|flag| flag == LINGER) {
        return linger(&seams, arguments.iter().any(|flag| flag == IGNORE_TERM)).await;
    }
    let stdio = seams.processes.own_stdio();
    let mut stderr = stdio.stderr;
    let script = match Script::load(&seams).await {
        Ok(script) => script,
        Err(error) => {
            // If even that cannot be written, the exit code is all there is.
            let _ = stderr.write_all(format!("scripted-agent: {error}\n").as_bytes()).await;
            let _ = stderr.flush().await;
            return 2;
        }
    };
    let session = seams.host.environment().remove(SESSION_VARIABLE).unwrap_or_default();
    let agent = Arc::new(Agent {
        seams,
        script,
        session,
        output: Output::new(stdio.stdout),
        stderr: tokio::sync::Mutex::new(stderr),
        exit: watch::channel(None).0,
        state: Mutex::default(),
    });
    let mut exit = agent.exit.subscribe();
    let code = tokio::select! {
        biased;
        code = async { exit.wait_for(Option::is_some).await.map_or(1, |code| code.unwrap_or(1)) } => code,
        code = stopped(&agent.seams, agent.script.ignore_term) => code,
        code = converse(&agent, stdio.stdin) => code,
    };
    info!(session = %agent.session, code, "agent ends");
    code
}

/// What all turns of one agent share.
pub(crate) struct Agent {
    seams: Seams,
    script: Script,
    /// The session that the backend runs this agent for, from its environment; for the log alone.
    session: String,
    output: Output,
    stderr: tokio::sync::Mutex<ChildInput>,
    /// The code to exit with, once a step says so.
    exit: watch::Sender<Option<u8>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many prompts were received.
    turns: u64,
    conversations: BTreeMap<String, Conversation>,
    /// The opening's requests that are never answered: a dropped one would be answered with an error.
    unanswered: Vec<Box<dyn std::any::Any + Send>>,
}

/// One conversation with its open turn, if one is.
struct Conversation {
    directory: PathBuf,
    cancelled: CancellationToken,
}

impl Agent {
    /// Writes a line on the standard error; a reader that is gone changes nothing.
    async fn complain(&self, text: &str) {
        let mut stderr = self.stderr.lock().await;
        let written = async {
            stderr.write_all(format!("{text}\n").as_bytes()).await?;
            stderr.flush().await
        };
        if let Err(error) = written.await {
            debug!(%error, "agent cannot write on its standard error");
        }
    }

    fn open_conversation(&self, directory: PathBuf) -> SessionId {
        let id = format!("conversation-{}", random_hex(&*self.seams.entropy, 8));
        let conversation = Conversation { directory, cancelled: CancellationToken::new() };
        self.state.lock().expect(UNPOISONED).conversations.insert(id.clone(), conversation);
        SessionId::new(id)
    }

    fn load_conversation(&self, id: &SessionId, directory: PathBuf) {
        let conversation = Conversation { directory, cancelled: CancellationToken::new() };
        self.state.lock().expect(UNPOISONED).conversations.insert(id.0.to_string(), conversation);
    }

    fn open_turn(
        self: &Arc<Self>,
        conversation: SessionId,
        connection: ConnectionTo<Client>,
    ) -> Option<Turn> {
        let mut state = self.state.lock().expect(UNPOISONED);
        let number = state.turns + 1;
        let found = state.conversations.get_mut(&*conversation.0)?;
        found.cancelled = CancellationToken::new();
        let (directory, cancelled) = (found.directory.clone(), found.cancelled.clone());
        state.turns = number;
        Some(Turn {
            agent: Arc::clone(self),
            connection,
            conversation,
            directory,
            number,
            said: 0,
            cancelled,
        })
    }

    fn cancel(&self, conversation: &SessionId) {
        info!(session = %self.session, "agent is asked to cancel");
        let state = self.state.lock().expect(UNPOISONED);
        if let Some(conversation) = state.conversations.get(&*conversation.0) {
            conversation.cancelled.cancel();
        }
    }

    fn leave_unanswered(&self, responder: impl std::any::Any + Send) {
        self.state.lock().expect(UNPOISONED).unanswered.push(Box::new(responder));
    }
}

/// Speaks with the client until the standard input ends or the standard output fails.
async fn converse(agent: &Arc<Agent>, stdin: ChildOutput) -> u8 {
    let (ours, crates) = Channel::duplex();
    let (from_crate, to_crate) = ours.into_parts();
    let hearing = hear(stdin, to_crate, agent.script.ignore_stdin_end);
    let speaking = async {
        if let Err(error) = speak(agent, crates).await {
            debug!(code = %i32::from(error.code), "agent's conversation ended by an error");
        }
    };
    let writing = agent.output.serve(from_crate, agent.script.ignore_stdin_end);
    tokio::pin!(writing);
    let conversation = async { tokio::join!(hearing, speaking) };
    tokio::pin!(conversation);
    tokio::select! {
        biased;
        result = &mut writing => return u8::from(result.is_err()),
        ((), ()) = &mut conversation => {}
    }
    // What was said before the end is still written.
    u8::from(writing.await.is_err())
}

/// Hands every line of the input to the crate. The crate ends when its sender is dropped.
async fn hear(stdin: ChildOutput, mut to_crate: impl Sink<TransportFrame> + Unpin, ignore_end: bool) {
    let mut lines = BufReader::new(stdin).lines();
    loop {
        match lines.next_line().await {
            Ok(Some(line)) => {
                // The crate's queue is unbounded, so that it is always ready.
                let _ = std::pin::Pin::new(&mut to_crate).start_send(TransportFrame::parse_json(&line));
            }
            Ok(None) | Err(_) if ignore_end => std::future::pending::<()>().await,
            Ok(None) | Err(_) => return,
        }
    }
}

async fn speak(agent: &Arc<Agent>, channel: Channel) -> Result<(), Error> {
    let [initializing, opening, loading, prompted, cancelled] = std::array::from_fn(|_| Arc::clone(agent));
    agent_client_protocol::Agent
        .v1()
        .on_receive_request(
            async move |request: InitializeRequest, responder, _connection: ConnectionTo<Client>| {
                if initializing.script.hang_in == Some(Hang::Initialize) {
                    initializing.leave_unanswered(responder);
                    return Ok(());
                }
                let capabilities = AgentCapabilities::new().load_session(true);
                let answer = InitializeResponse::new(request.protocol_version);
                responder.respond(answer.agent_capabilities(capabilities))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: NewSessionRequest, responder, _connection: ConnectionTo<Client>| {
                if opening.script.hang_in == Some(Hang::SessionNew) {
                    opening.leave_unanswered(responder);
                    return Ok(());
                }
                responder.respond(NewSessionResponse::new(opening.open_conversation(request.cwd)))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: LoadSessionRequest, responder, connection: ConnectionTo<Client>| {
                loading.load_conversation(&request.session_id, request.cwd);
                info!(session = %loading.session, conversation = %request.session_id, "agent loads its conversation");
                // What was said before is said once more, as the protocol has it.
                let words = ContentBlock::from("said before".to_owned());
                let update = SessionUpdate::AgentMessageChunk(ContentChunk::new(words));
                let update = SessionNotification::new(request.session_id, update);
                let (agent, speaker) = (Arc::clone(&loading), connection.clone());
                connection.spawn(async move {
                    // An output that takes nothing more ends the agent soon enough.
                    let _ = agent.output.update(&speaker, update).await;
                    responder.respond(LoadSessionResponse::new())
                })
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |_request: SetSessionModeRequest, responder, _connection: ConnectionTo<Client>| {
                responder.respond(SetSessionModeResponse::new())
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, connection: ConnectionTo<Client>| {
                let text = text(&request.prompt);
                let Some(turn) = prompted.open_turn(request.session_id.clone(), connection.clone()) else {
                    return responder.respond_with_error(Error::invalid_params().data("no such session"));
                };
                let steps = prompted.script.steps(turn.number, &text);
                info!(session = %prompted.session, turn = turn.number, "agent is prompted");
                connection.spawn(take_turn(turn, steps, responder))
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |notification: CancelNotification, _connection: ConnectionTo<Client>| {
                cancelled.cancel(&notification.session_id);
                Ok(())
            },
            on_receive_notification!(),
        )
        .connect_to(channel)
        .await
}

async fn take_turn(
    turn: Turn,
    steps: Vec<Step>,
    responder: Responder<PromptResponse, V1>,
) -> Result<(), Error> {
    let (agent, number) = (Arc::clone(&turn.agent), turn.number);
    match turn.perform(steps).await {
        End::Reason(reason) => {
            info!(session = %agent.session, turn = number, end = ?reason, "agent ended its turn");
            responder.respond(PromptResponse::new(reason))
        }
        End::Failed(error) => {
            info!(session = %agent.session, turn = number, %error, "agent ended its turn");
            responder.respond_with_error(Error::internal_error().data(error))
        }
    }
}

fn text(prompt: &[ContentBlock]) -> String {
    let texts = prompt.iter().filter_map(|block| match block {
        ContentBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Resolves when the process is asked to end, unless it does not listen.
async fn stopped(seams: &Seams, ignore: bool) -> u8 {
    loop {
        let signal = seams.processes.stop_requested().await;
        if !ignore {
            return match signal {
                Signal::Interrupt => 130,
                Signal::Terminate | Signal::Kill => 143,
            };
        }
        debug!("agent ignores a signal");
    }
}

/// The life of a grandchild.
async fn linger(seams: &Seams, ignore_term: bool) -> u8 {
    tokio::select! {
        biased;
        code = stopped(seams, ignore_term) => code,
        () = seams.clock.sleep(LINGER_LIMIT) => 0,
    }
}

const UNPOISONED: &str = "nobody panics while holding the agent's state";

/// Names the session that an agent is run for, in its environment.
const SESSION_VARIABLE: &str = "KANDEV_SESSION_ID";

const LINGER: &str = "--linger";
const IGNORE_TERM: &str = "--ignore-term";

/// How long a grandchild lives if nobody ends it: far beyond every scenario, and not for ever on a real machine.
const LINGER_LIMIT: Duration = Duration::from_secs(600);
