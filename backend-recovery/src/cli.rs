//! The command line.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use seam::{ChildInput, Seams};
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use wire::{PermissionId, SessionId, kind};

use crate::api::{
    CreateSession, PromptInput, ResumeInput, SessionState, SessionView, StatusView, TranscriptEntry,
    TurnState, TurnView, WorkspaceRequest, entry_kind,
};
use crate::backend::chain;
use crate::client::{UserCallFailed, UserClient};
use crate::config::{Config, ConfigRefused};
use crate::startup::serve;

/// Runs coding agents that outlive it.
#[derive(Parser)]
#[command(name = "backend-recovery", version, disable_help_subcommand = true)]
struct CommandLine {
    /// The configuration file, instead of `config.toml` in the home.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The home directory, absolute; wins over KANDEV_HOME_DIR and the configuration file.
    #[arg(long, global = true, value_name = "DIR")]
    home: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the backend until it is asked to stop (SIGTERM or Ctrl-C).
    Serve,
    /// Work with sessions.
    #[command(subcommand)]
    Session(SessionCommand),
    /// Give a session its next prompt.
    Prompt {
        /// The session.
        session: String,
        /// What to say.
        text: String,
        /// Follow the turn to its end and print what the agent says.
        #[arg(long)]
        wait: bool,
    },
    /// Ask the agent to end the open turn.
    Cancel {
        /// The session.
        session: String,
    },
    /// Answer a permission request.
    Permission {
        /// The session.
        session: String,
        /// The request, as the transcript names it.
        permission: String,
        /// The chosen option's id; without one the request is cancelled.
        option: Option<String>,
    },
    /// Print a session's transcript.
    Transcript {
        /// The session.
        session: String,
    },
    /// Show the backend: the switch, its control server, what recovery did.
    Status,
}

#[derive(Subcommand)]
enum SessionCommand {
    /// Start an agent on a folder, or on a git worktree of its own.
    Create {
        /// A profile of the configuration file.
        #[arg(long)]
        profile: String,
        /// Work in this folder, absolute.
        #[arg(long, value_name = "DIR", required_unless_present = "worktree", conflicts_with = "worktree")]
        folder: Option<String>,
        /// Make a git worktree of this repository, absolute.
        #[arg(long, value_name = "REPOSITORY")]
        worktree: Option<String>,
        /// The worktree's new branch.
        #[arg(long, conflicts_with = "folder")]
        branch: Option<String>,
        /// For people.
        #[arg(long)]
        title: Option<String>,
    },
    /// List the sessions.
    List,
    /// Show one session.
    Show {
        /// The session.
        session: String,
    },
    /// Start a new agent for a session that has none, in its workspace and, if the agent can load it, its conversation.
    Resume {
        /// The session.
        session: String,
        /// Also while a control server that was left running may still run its agent.
        #[arg(long)]
        beside_survivor: bool,
    },
    /// Stop a session's agent; its workspace stays.
    Stop {
        /// The session.
        session: String,
    },
}

/// Runs one command line and gives its exit code: 0, 2 for a wrong command line or configuration, 1 for anything
/// else that went wrong.
pub(crate) async fn run(seams: Seams, required: BTreeSet<String>) -> u8 {
    let stdio = seams.processes.own_stdio();
    let (mut out, mut err) = (stdio.stdout, stdio.stderr);
    let line = match parse(&seams) {
        Ok(line) => line,
        Err(error) if error.use_stderr() => {
            print(&mut err, &error.render().to_string()).await;
            return WRONG_CONFIGURATION;
        }
        Err(help) => {
            print(&mut out, &help.render().to_string()).await;
            return 0;
        }
    };
    match execute(seams, line, required, &mut out).await {
        Ok(code) => code,
        Err(failed) => {
            print(&mut err, &format!("backend-recovery: {}\n", chain(failed.error()))).await;
            failed.code()
        }
    }
}

/// The home that this process works on, if its configuration can be read; what is wrong with it is told by
/// [`run`].
pub(crate) async fn home(seams: &Seams) -> Option<PathBuf> {
    let config = load(seams, &parse(seams).ok()?).await.ok()?;
    Some(config.home.path().to_owned())
}

fn parse(seams: &Seams) -> Result<CommandLine, clap::Error> {
    let arguments = std::iter::once("backend-recovery".to_owned()).chain(seams.host.arguments());
    CommandLine::try_parse_from(arguments)
}

async fn load(seams: &Seams, line: &CommandLine) -> Result<Config, ConfigRefused> {
    Config::load(&*seams.disk, &*seams.host, line.config.clone(), line.home.clone()).await
}

/// Why a command line came to nothing.
enum Failed {
    Config(ConfigRefused),
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Failed {
    fn error(&self) -> &(dyn std::error::Error + 'static) {
        match self {
            Self::Config(error) => error,
            Self::Other(error) => &**error,
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::Config(_) => WRONG_CONFIGURATION,
            Self::Other(_) => 1,
        }
    }
}

impl From<UserCallFailed> for Failed {
    fn from(error: UserCallFailed) -> Self {
        Self::Other(error.into())
    }
}

async fn execute(
    seams: Seams,
    line: CommandLine,
    required: BTreeSet<String>,
    out: &mut ChildInput,
) -> Result<u8, Failed> {
    let config = load(&seams, &line).await.map_err(Failed::Config)?;
    if let Command::Serve = line.command {
        serve(seams, config, required).await.map_err(|error| Failed::Other(error.into()))?;
        return Ok(0);
    }
    let client = UserClient::of_home(&seams, &config.home).await?;
    let mut shown = Shown { seams, client, out, json: line.json };
    match line.command {
        Command::Serve => Ok(0),
        Command::Session(command) => shown.session(command).await,
        Command::Prompt { session, text, wait } => shown.prompt(SessionId::new(session), text, wait).await,
        Command::Cancel { session } => {
            shown.client.cancel(&SessionId::new(session)).await?;
            Ok(0)
        }
        Command::Permission { session, permission, option } => {
            let (session, permission) = (SessionId::new(session), PermissionId::new(permission));
            shown.client.answer_permission(&session, &permission, option).await?;
            Ok(0)
        }
        Command::Transcript { session } => shown.transcript(SessionId::new(session)).await,
        Command::Status => {
            let status = shown.client.status().await?;
            shown.say(&status, status_text).await;
            Ok(0)
        }
    }
}

/// A user's commands, and where their results are printed.
struct Shown<'a> {
    seams: Seams,
    client: UserClient,
    out: &'a mut ChildInput,
    json: bool,
}

impl Shown<'_> {
    async fn session(&mut self, command: SessionCommand) -> Result<u8, Failed> {
        match command {
            SessionCommand::Create { profile, folder, worktree, branch, title } => {
                let workspace = match (folder, worktree) {
                    (Some(path), _) => WorkspaceRequest::Folder { path },
                    (None, Some(repository)) => WorkspaceRequest::Worktree { repository, branch },
                    (None, None) => unreachable!("the command line requires one of them"),
                };
                let request = CreateSession { profile, workspace, title };
                let view = self.client.create_session(&request).await?;
                self.started(view).await
            }
            SessionCommand::List => {
                let list = self.client.sessions().await?;
                self.say(&list, |list| list.sessions.iter().map(session_text).collect()).await;
                Ok(0)
            }
            SessionCommand::Show { session } => {
                let view = self.client.session(&SessionId::new(session)).await?;
                self.say(&view, session_text).await;
                Ok(0)
            }
            SessionCommand::Resume { session, beside_survivor } => {
                let input = ResumeInput { beside_survivor };
                let view = self.client.resume(&SessionId::new(session), &input).await?;
                self.started(view).await
            }
            SessionCommand::Stop { session } => {
                let view = self.client.stop(&SessionId::new(session)).await?;
                self.say(&view, session_text).await;
                Ok(0)
            }
        }
    }

    /// Waits until the agent is up, so that a program that does not exist is told here and now.
    async fn started(&mut self, mut view: SessionView) -> Result<u8, Failed> {
        // Every step of a start has its bound; what has none, a store that cannot be written, is told as a failure.
        while view.failure.is_none() && matches!(view.state, SessionState::Created | SessionState::Starting) {
            self.seams.clock.sleep(POLL).await;
            view = self.client.session(&view.session).await?;
        }
        self.say(&view, session_text).await;
        Ok(u8::from(view.failure.is_some()))
    }

    async fn prompt(&mut self, session: SessionId, text: String, wait: bool) -> Result<u8, Failed> {
        let mut after = if wait { self.end_of_transcript(&session).await? } else { 0 };
        let mut turn = self.client.prompt(&session, &PromptInput { text, key: None }).await?;
        if !wait {
            self.say(&turn, turn_text).await;
            return Ok(u8::from(turn.state == TurnState::NotDelivered));
        }
        loop {
            let view = self.client.session(&session).await?;
            if let Some(newest) = view.turn.filter(|newest| newest.turn == turn.turn) {
                turn = newest;
            }
            // Read after the turn's end was seen, so that its last words are among them.
            after = self.print_from(&session, after).await?;
            if turn.state.is_terminal() {
                break;
            }
            self.seams.clock.sleep(POLL).await;
        }
        if !self.json {
            print(self.out, "\n").await;
        }
        self.say(&turn, turn_text).await;
        Ok(u8::from(!matches!(turn.state, TurnState::Completed | TurnState::Cancelled)))
    }

    async fn end_of_transcript(&self, session: &SessionId) -> Result<u64, Failed> {
        let mut after = 0;
        loop {
            let page = self.client.transcript(session, after, PAGE).await?;
            after = page.entries.last().map_or(after, |entry| entry.position);
            if page.next.is_none() {
                return Ok(after);
            }
        }
    }

    async fn transcript(&mut self, session: SessionId) -> Result<u8, Failed> {
        self.print_from(&session, 0).await?;
        if !self.json {
            print(self.out, "\n").await;
        }
        Ok(0)
    }

    async fn print_from(&mut self, session: &SessionId, mut after: u64) -> Result<u64, Failed> {
        loop {
            let page = self.client.transcript(session, after, PAGE).await?;
            for entry in &page.entries {
                after = entry.position;
                let text = match self.json {
                    true => serde_json::to_string(entry).expect("api values always serialize") + "\n",
                    false => entry_text(entry),
                };
                print(self.out, &text).await;
            }
            if page.next.is_none() {
                return Ok(after);
            }
        }
    }

    async fn say<T: Serialize>(&mut self, value: &T, text: impl FnOnce(&T) -> String) {
        let text = match self.json {
            true => serde_json::to_string(value).expect("api values always serialize") + "\n",
            false => text(value),
        };
        print(self.out, &text).await;
    }
}

/// A reader that is gone wants no more.
async fn print(out: &mut ChildInput, text: &str) {
    let _gone = out.write_all(text.as_bytes()).await;
    let _gone = out.flush().await;
}

fn session_text(view: &SessionView) -> String {
    let mut line =
        format!("{}  {:17}  {:12}  {}", view.session, view.state.as_str(), view.profile, view.directory);
    if let Some(agent) = &view.agent {
        line.push_str(&format!("  agent {}", agent.pid));
    }
    for permission in &view.permissions {
        line.push_str(&format!("  asks {permission}"));
    }
    if let Some(failure) = &view.failure {
        line.push_str(&format!("\n    {failure}"));
    }
    line + "\n"
}

fn turn_text(turn: &TurnView) -> String {
    let detail = turn.stop_reason.as_ref().or(turn.error.as_ref());
    let detail = detail.map(|detail| format!("  {detail}")).unwrap_or_default();
    format!("turn {}  {}{detail}\n", turn.turn, turn.state)
}

/// What people read of one entry: words run together as the agent wrote them, all else on lines of its own.
fn entry_text(entry: &TranscriptEntry) -> String {
    let payload: serde_json::Value = serde_json::from_str(entry.payload.get()).unwrap_or_default();
    match entry.kind.as_str() {
        entry_kind::PROMPT => format!("\n> {}\n", payload["text"].as_str().unwrap_or_default()),
        entry_kind::NOTICE => format!("\n[{}]\n", payload["text"].as_str().unwrap_or_default()),
        kind::UPDATE => match payload["content"]["text"].as_str() {
            Some(words) => words.to_owned(),
            None => format!(
                "\n[{} {}]\n",
                payload["sessionUpdate"].as_str().unwrap_or("update"),
                payload["title"].as_str().unwrap_or_default()
            ),
        },
        kind::PERMISSION_ASKED => {
            let options = payload["options"].as_array().cloned().unwrap_or_default();
            let options: Vec<_> = options.iter().filter_map(|option| option["id"].as_str()).collect();
            let permission = payload["permission"].as_str().unwrap_or_default();
            format!("\n[permission {permission} asked: {}]\n", options.join(", "))
        }
        kind::ERROR => format!("\n[error: {}]\n", payload["message"].as_str().unwrap_or_default()),
        _ => String::new(),
    }
}

fn status_text(status: &StatusView) -> String {
    let mut text = format!("survival   {}", status.survival);
    if let Some(reason) = &status.survival_reason {
        text.push_str(&format!(" ({reason})"));
    }
    let recovery = match (status.recovered, status.recovery_ms) {
        (true, Some(took)) => format!("complete after {took} ms"),
        _ => "running".to_owned(),
    };
    text.push_str(&format!("\nrecovery   {recovery}"));
    if let Some(adoption) = &status.adoption {
        text.push_str(&format!("\nadoption   {adoption}"));
    }
    match (&status.server, &status.server_failure) {
        (Some(server), _) => {
            text.push_str(&format!(
                "\nserver     {} at {} ({})",
                server.identity, server.address, server.origin
            ));
            if let Some(elsewhere) = &server.elsewhere {
                text.push_str(&format!("\n           not at the configured port: {elsewhere}"));
            }
            text.push_str(&format!("\nlog        {}", server.log));
        }
        (None, failure) => {
            text.push_str(&format!("\nserver     none: {}", failure.as_deref().unwrap_or("?")))
        }
    }
    for session in &status.retracked {
        text.push_str(&format!("\nre-tracked {session}"));
    }
    for (what, named) in [
        ("stopped   ", &status.stopped),
        ("left      ", &status.left),
        ("guarded   ", &status.guards),
        ("survivor  ", &status.survivors),
    ] {
        for named in named {
            text.push_str(&format!("\n{what} {}  {}", named.id, named.reason));
        }
    }
    text + "\n"
}

/// Exit code 2: the command line or the configuration is wrong.
const WRONG_CONFIGURATION: u8 = 2;
const POLL: Duration = Duration::from_millis(50);
const PAGE: u32 = 500;

#[cfg(test)]
mod tests {
    use super::*;

    fn parses(line: &str) -> bool {
        CommandLine::try_parse_from(std::iter::once("backend-recovery").chain(line.split(' '))).is_ok()
    }

    #[test]
    fn a_session_needs_a_folder_or_a_worktree() {
        assert!(parses("session create --profile p --folder /w"));
        assert!(parses("session create --profile p --worktree /r --branch b --json"));
        assert!(!parses("session create --profile p"));
        assert!(!parses("session create --profile p --folder /w --worktree /r"));
        assert!(!parses("session create --profile p --folder /w --branch b"));
    }

    #[test]
    fn every_command_of_a_user_parses() {
        for line in [
            "serve --config /etc/kandev.toml",
            "session list",
            "session stop s-1",
            "prompt s-1 hello --wait",
            "cancel s-1",
            "permission s-1 p-1 allow",
            "permission s-1 p-1",
            "transcript s-1 --json",
            "status --json",
        ] {
            assert!(parses(line), "{line}");
        }
    }
}
