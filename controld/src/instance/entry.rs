//! What is written down of an agent before it runs (ruling 15).
//!
//! ```text
//!   entry with the mark ── spawn ──> entry with the process ── ... ── nothing of it is left ──> no entry
//! ```
//!
//! A control server that is itself killed leaves agents that nobody supervises. Whoever finds it dead reads the entries
//! and ends what still matches. The mark is in the agent's environment from its first moment on, so that one that was
//! being started is found, too.

use std::io;

use seam::{Privacy, ProcessIdentity};
use tracing::warn;
use wire::{AgentEntry, ProcessRef};

use super::Instance;

impl Instance {
    /// Writes the entry, or writes it anew with the process.
    pub(super) async fn write_entry(&self, process: Option<&ProcessIdentity>) -> io::Result<()> {
        let entry = AgentEntry {
            server: self.server.clone(),
            instance: self.id().clone(),
            session: self.request.session.clone(),
            mark: self.mark.clone(),
            process: process.map(|process| ProcessRef {
                pid: process.pid,
                start_time: process.start_time,
                boot_id: process.boot_id.clone(),
            }),
        };
        let bytes = serde_json::to_vec(&entry).expect("wire values always serialize");
        self.seams.disk.create_directory(&self.entries, Privacy::Owner).await?;
        self.seams.disk.write_atomic(&self.entry_file(), &bytes, Privacy::Owner).await
    }

    /// Nothing of the agent is left.
    pub(super) async fn remove_entry(&self) {
        match self.seams.disk.remove(&self.entry_file()).await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Whoever reads it finds nobody who matches.
            Err(error) => warn!(instance = %self.id(), %error, "agent's entry could not be removed"),
        }
    }

    fn entry_file(&self) -> std::path::PathBuf {
        self.entries.join(format!("{}.json", self.id()))
    }
}
