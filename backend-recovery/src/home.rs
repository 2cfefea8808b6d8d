//! The home directory: its paths and its lock.

use std::path::{Path, PathBuf};

use seam::{Disk, Lock, LockRefused, Privacy, Processes};

/// The paths under one home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home(PathBuf);

impl Home {
    /// The home at this absolute path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The same home in its one spelling, once it exists: what a control server proves itself for (O-001.10).
    pub(crate) async fn canonical(&self, disk: &dyn Disk) -> Result<Self, HomeUnusable> {
        match disk.canonical(&self.0).await {
            Ok(path) => Ok(Self(path)),
            Err(cause) => Err(HomeUnusable::NotWritable { home: self.0.clone(), cause }),
        }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.0.join("config.toml")
    }

    /// How the command line finds the backend.
    pub fn contact(&self) -> PathBuf {
        self.run().join("backend.json")
    }

    /// The control server's own log file (S-001.3).
    pub fn control_server_log(&self) -> PathBuf {
        self.0.join("logs").join("controld.log")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("backend.db")
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    pub(crate) fn worktree(&self, session: &wire::SessionId) -> PathBuf {
        self.0.join("worktrees").join(session.as_str())
    }

    fn lock_file(&self) -> PathBuf {
        self.0.join("backend.lock")
    }

    /// Makes the directories and takes the exclusive lock, before anything else in the home is touched (O-002.4).
    pub(crate) async fn lock(
        &self,
        disk: &dyn Disk,
        processes: &dyn Processes,
        listen: std::net::SocketAddr,
    ) -> Result<Box<dyn Lock>, HomeUnusable> {
        let failed = |cause| HomeUnusable::NotWritable { home: self.0.clone(), cause };
        disk.create_directory(&self.0, Privacy::Owner).await.map_err(failed)?;
        let pid = processes.own_identity().pid;
        let note = format!("pid {pid}, set to listen on {listen}\n");
        let lock = disk.lock(&self.lock_file(), &note).await.map_err(|refused| match refused {
            LockRefused::Held { note } => {
                HomeUnusable::Held { home: self.0.clone(), holder: note.trim().to_owned() }
            }
            LockRefused::Failed(cause) => HomeUnusable::NotWritable { home: self.0.clone(), cause },
        })?;
        for directory in [self.run(), self.0.join("logs"), self.0.join("worktrees")] {
            disk.create_directory(&directory, Privacy::Owner).await.map_err(failed)?;
        }
        Ok(lock)
    }
}

/// Why the home cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HomeUnusable {
    #[error(
        "home {home} is in use by another backend ({holder}): one backend works on one home. \
         Stop that one, or choose another home with KANDEV_HOME_DIR", home = home.display()
    )]
    Held { home: PathBuf, holder: String },
    #[error(
        "home {home} cannot be written to: the backend must own it and needs free space there. \
         Repair its permissions, free some space, or choose another home with KANDEV_HOME_DIR", home = home.display()
    )]
    NotWritable {
        home: PathBuf,
        #[source]
        cause: std::io::Error,
    },
}
