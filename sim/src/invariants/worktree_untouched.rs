//! **worktree-untouched**: only agents and users change a worktree, on every path.

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::{Kind, Line};

/// Has no model: every effect on a path of a workspace names who had it.
#[derive(Default)]
pub(super) struct WorktreeUntouched {
    judged: u64,
}

impl Observer for WorktreeUntouched {
    fn id(&self) -> &'static str {
        "worktree-untouched"
    }

    fn line(&mut self, line: &Line, _world: &WorldView<'_>) -> Result<(), Violation> {
        let paths = ["path", "from", "to"].map(|field| line.field(field));
        let Some(path) = paths.into_iter().find(|path| is_in_workspace(path)) else { return Ok(()) };
        self.judged += u64::from(line.kind == Kind::Effect);
        let may = ["scripted-agent", "director"].contains(&line.program());
        if line.kind != Kind::Effect || may {
            return Ok(());
        }
        Err(Violation::new(
            "worktree-untouched",
            "S-001.7",
            format!("{path} is changed by agents and users alone"),
            format!("{} by {}", line.text, line.process),
        ))
    }

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![("changes", self.judged)]
    }
}

fn is_in_workspace(path: &str) -> bool {
    WORKSPACES.iter().any(|workspace| path.starts_with(workspace))
}

/// Where the workspaces of every scenario lie.
const WORKSPACES: [&str; 2] = ["/home/user/project", "/home/other/project"];
