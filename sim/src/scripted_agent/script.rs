//! What an agent is to do, as JSON.

use std::path::Path;

use agent_client_protocol::v1::schema::{PermissionOptionKind, StopReason};
use seam::Seams;
use serde::Deserialize;

/// The behaviour of one agent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// The steps of each prompt in turn; the last entry repeats. None: every prompt is echoed in three chunks.
    pub turns: Vec<Vec<Step>>,
    /// SIGTERM and SIGINT do nothing.
    pub ignore_term: bool,
    /// The end of the standard input does nothing, and so does a standard output that nobody reads any more.
    pub ignore_stdin_end: bool,
    /// The step of the opening that is never answered.
    pub hang_in: Option<Hang>,
    /// What a cancel does to the open turn.
    pub on_cancel: OnCancel,
}

/// A step of the opening that is never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Hang {
    /// `initialize`.
    #[serde(rename = "initialize")]
    Initialize,
    /// `session/new`.
    #[serde(rename = "session/new")]
    SessionNew,
}

/// What a cancel does to the open turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCancel {
    /// It ends before the next step, as cancelled.
    #[default]
    Stop,
    /// It ends before the next step, with an error.
    Error,
    /// Nothing.
    Ignore,
}

/// One thing that an agent does in a turn, as `{"name": argument}`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Says one chunk.
    Say(String),
    /// Says many chunks.
    SayMany(SayMany),
    /// Does nothing for so many milliseconds.
    SleepMs(u64),
    /// Tells of a tool call and of its completion.
    ToolCall(ToolCall),
    /// Asks for a permission and says what was chosen.
    Permission(Permission),
    /// Writes a file in the session's directory.
    WriteFile(WriteFile),
    /// Starts a process that lives on by itself, with this agent's environment and no tie to its streams.
    SpawnGrandchild(Grandchild),
    /// Writes a line on the standard output that is not of the protocol.
    Noise(String),
    /// Writes a line on the standard error.
    Stderr(String),
    /// Exits at once with this code.
    Exit(u8),
    /// Ends the turn with this stop reason. Without it a turn ends with `end_turn` after its last step.
    End(StopReason),
    /// Ends the turn with an error of this text.
    Fail(String),
}

/// Many chunks of the same size.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SayMany {
    /// How many.
    pub count: u64,
    /// The length of each one's text, filled up if it is shorter.
    #[serde(default)]
    pub bytes: usize,
    /// The pause before each, in milliseconds.
    #[serde(default)]
    pub every_ms: u64,
}

/// A tool call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// What people read.
    pub title: String,
}

/// A permission request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permission {
    /// What it is asked for.
    pub title: String,
    /// What may be chosen: kinds of the protocol, each its own id and name. None: allow and reject once.
    #[serde(default)]
    pub options: Vec<PermissionOptionKind>,
}

/// A file to write.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Relative to the session's directory, without `..`.
    pub path: String,
    /// The content.
    pub text: String,
    /// Adds at the end instead of replacing.
    #[serde(default)]
    pub append: bool,
}

/// A process that an agent leaves behind.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grandchild {
    /// SIGTERM and SIGINT do nothing to it.
    pub ignore_term: bool,
}

impl Script {
    /// The script of the command line (`--script FILE`, absolute), else of the environment, else the default.
    pub(super) async fn load(seams: &Seams) -> Result<Self, String> {
        let arguments = seams.host.arguments();
        let text = match arguments.as_slice() {
            [] => seams.host.environment().remove(SCRIPT_VARIABLE),
            [flag, path] if flag == "--script" => {
                let bytes = seams.disk.read(Path::new(path), SCRIPT_LIMIT).await;
                let bytes = bytes.map_err(|error| format!("cannot read the script {path}: {error}"))?;
                Some(String::from_utf8(bytes).map_err(|_| format!("the script {path} is not text"))?)
            }
            _ => return Err("usage: scripted-agent [--script FILE]".to_owned()),
        };
        match text {
            None => Ok(Self::default()),
            Some(text) => {
                serde_json::from_str(&text).map_err(|error| format!("cannot understand the script: {error}"))
            }
        }
    }

    /// The steps of the turn with this number (the first is 1), asked for by this prompt.
    pub(super) fn steps(&self, turn: u64, prompt: &str) -> Vec<Step> {
        if let Some(asked) = asked_for(prompt) {
            return asked;
        }
        let index = usize::try_from(turn - 1).unwrap_or(usize::MAX);
        match self.turns.get(index).or(self.turns.last()) {
            Some(steps) => steps.clone(),
            None => thirds(prompt).map(Step::Say).into(),
        }
    }
}

/// A prompt may itself say what to do: `{"steps": [...]}`.
fn asked_for(prompt: &str) -> Option<Vec<Step>> {
    #[derive(Deserialize)]
    struct Asked {
        steps: Vec<Step>,
    }
    if !prompt.starts_with('{') {
        return None;
    }
    serde_json::from_str::<Asked>(prompt).ok().map(|asked| asked.steps)
}

fn thirds(text: &str) -> [String; 3] {
    let length = text.chars().count();
    let mut chars = text.chars();
    let mut part = |from: usize, to: usize| chars.by_ref().take(to - from).collect();
    [part(0, length / 3), part(length / 3, length * 2 / 3), part(length * 2 / 3, length)]
}

/// The environment variable that holds a script.
pub(super) const SCRIPT_VARIABLE: &str = "SCRIPTED_AGENT";

/// The largest script file in bytes; a larger one is a wrong path.
const SCRIPT_LIMIT: u64 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_turn_repeats_and_a_prompt_may_ask_for_steps() {
        let script: Script =
            serde_json::from_str(r#"{"turns":[[{"say":"a"}],[{"exit":3}]],"hang_in":"session/new"}"#)
                .unwrap();
        assert!(matches!(&script.steps(1, "x")[..], [Step::Say(text)] if text == "a"));
        assert!(matches!(script.steps(2, "x")[..], [Step::Exit(3)]));
        assert!(matches!(script.steps(9, "x")[..], [Step::Exit(3)]));
        assert!(matches!(
            script.steps(9, r#"{"steps":[{"sleep_ms":5},{"end":"max_tokens"}]}"#)[..],
            [Step::SleepMs(5), Step::End(StopReason::MaxTokens)]
        ));
    }

    #[test]
    fn a_misspelt_script_is_refused() {
        for text in
            [r#"{"turn":[]}"#, r#"{"turns":[[{"sayy":"a"}]]}"#, r#"{"turns":[[{"say_many":{"cuont":1}}]]}"#]
        {
            assert!(serde_json::from_str::<Script>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn without_a_script_the_prompt_is_echoed_in_three_parts() {
        assert_eq!(thirds("größer"), ["gr", "öß", "er"]);
        assert_eq!(thirds(""), ["", "", ""]);
        assert_eq!(Script::default().steps(1, "abcd").len(), 3);
    }
}
