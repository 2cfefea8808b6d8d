//! One installation on one machine: its home, its configuration, and whoever starts its backend again.

use std::time::Duration;

use seam::{ProcessIdentity, Signal};

use crate::observer::{ProcessView, Violation};
use crate::scenario::{Director, Start};

/// An installation with the capability on and one agent profile, `scripted`.
pub struct Installation<'a> {
    pub(super) director: &'a Director,
    pub(super) place: Place,
}

/// Where an installation is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The home of the user that runs it.
    pub(super) user: &'static str,
    /// Its own home.
    pub(super) home: &'static str,
    /// The folder that its sessions work in.
    pub(super) workspace: &'static str,
}

impl<'a> Installation<'a> {
    /// Lays out the home and a workspace, as an installer and a user would.
    pub fn lay_out(director: &'a Director) -> Self {
        Self::lay_out_with(director, "")
    }

    /// The same, with more in its configuration.
    pub(super) fn lay_out_with(director: &'a Director, more: &str) -> Self {
        Self::lay_out_at(director, USUAL, more)
    }

    /// The same, at another place.
    pub(super) fn lay_out_at(director: &'a Director, place: Place, more: &str) -> Self {
        director.install(format!("{}/config.toml", place.home), format!("{SURVIVAL_ON}{PROFILES}\n{more}"));
        director.install(format!("{}/README.md", place.workspace), "a project\n");
        Self { director, place }
    }

    /// The command that runs its backend.
    pub(super) fn serve(&self) -> Start {
        Start::new("backend-recovery")
            .args(["serve"])
            .env("KANDEV_HOME_DIR", self.place.home)
            .env("HOME", self.place.user)
            .env("PATH", "/usr/bin")
    }

    /// Writes its configuration anew, for the next start.
    pub(super) fn configure(&self, more: &str) {
        let config = format!("{}/config.toml", self.place.home);
        self.director.install(config, format!("{PROFILES}\n{more}"));
    }

    /// Starts the backend whenever none runs, as a service manager does, for ever.
    pub async fn keep_backend_running(&self) -> Result<std::convert::Infallible, Violation> {
        loop {
            let mut backend = self.director.start(self.serve()).await.map_err(|error| {
                Violation::new("required", "S-001.2", "a backend can be started", error.to_string())
            })?;
            let status = backend.exit().await.map_err(|error| {
                Violation::new("required", "S-001.2", "a backend's end can be seen", error.to_string())
            })?;
            self.director.note("backend ended", [("label", backend.label), ("status", status.to_string())]);
            self.director.sleep(RESTART_PAUSE).await;
        }
    }

    /// The backend that runs now, if one does.
    pub fn backend(&self) -> Option<ProcessView> {
        self.living("backend-recovery").into_iter().next()
    }

    /// The living processes of a program that belong to this installation, oldest first.
    pub(super) fn living(&self, program: &str) -> Vec<ProcessView> {
        let ours = |process: &ProcessView| {
            process.env.get("KANDEV_HOME_DIR").is_some_and(|home| home == self.place.home)
        };
        self.director.living(program).into_iter().filter(ours).collect()
    }

    /// SIGTERM to the backend that runs now; false if none does.
    pub async fn ask_backend_to_stop(&self) -> bool {
        match self.backend() {
            Some(backend) => self.director.signal(&backend.identity, Signal::Terminate).await,
            None => false,
        }
    }

    /// SIGKILL to the backend that runs now; false if none does.
    pub async fn kill_backend(&self) -> bool {
        match self.backend() {
            Some(backend) => self.director.kill(&backend.identity).await,
            None => false,
        }
    }

    /// The living agent processes of a session.
    pub fn agents_of(&self, session: &str) -> Vec<ProcessIdentity> {
        let agents = self.director.living("scripted-agent").into_iter();
        agents
            .filter(|agent| agent.env.get("KANDEV_SESSION_ID").is_some_and(|id| id == session))
            .map(|agent| agent.identity)
            .collect()
    }
}

/// The one that most scenarios have.
pub(super) const USUAL: Place = Place { user: "/home/user", home: HOME, workspace: WORKSPACE };

/// Its home.
pub(super) const HOME: &str = "/home/user/.kandev";

/// Where its first control server listens, as configured by default.
pub(super) const CONTROL_ADDRESS: &str = "127.0.0.1:39429";

/// The folder that the sessions work in.
pub(super) const WORKSPACE: &str = "/home/user/project";

/// An agent that does as it is told, and one that hears neither SIGTERM nor the end of its input.
const PROFILES: &str = "\
[profiles.scripted]
command = \"scripted-agent\"

[profiles.deaf]
command = \"scripted-agent\"
env = { SCRIPTED_AGENT = '{\"ignore_term\":true,\"ignore_stdin_end\":true}' }
";

/// The capability on.
pub(super) const SURVIVAL_ON: &str = "[features]\nagentSurvival = true\n\n";

/// The capability off.
pub(super) const SURVIVAL_OFF: &str = "[features]\nagentSurvival = false\n\n";

/// What a service manager waits before it starts its service again.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
