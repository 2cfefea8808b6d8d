//! The agent's standard output: what it said counts as said once its line was accepted there.

use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::SessionNotification;
use agent_client_protocol::{Client, RawJsonRpcMessage, TransportFrame};
use futures_util::{Stream, StreamExt as _};
use seam::ChildInput;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;

/// Writes lines one at a time, each flushed.
pub(super) struct Output {
    stdout: tokio::sync::Mutex<ChildInput>,
    /// What resolves when an update was written, in the order in which the updates were handed to the crate.
    updates: Mutex<VecDeque<oneshot::Sender<()>>>,
}

/// The output takes nothing more.
pub(super) struct Closed;

impl Output {
    pub(super) fn new(stdout: ChildInput) -> Self {
        Self { stdout: tokio::sync::Mutex::new(stdout), updates: Mutex::default() }
    }

    /// Hands an update to the crate and waits until its line was written.
    pub(super) async fn update(
        &self,
        connection: &ConnectionTo<Client>,
        update: SessionNotification,
    ) -> Result<(), Closed> {
        let written = {
            let mut updates = self.updates.lock().expect(UNPOISONED);
            connection.send_notification(update).map_err(|_| Closed)?;
            let (written, wait) = oneshot::channel();
            updates.push_back(written);
            wait
        };
        written.await.map_err(|_| Closed)
    }

    /// Writes a line that is not of the protocol.
    pub(super) async fn noise(&self, text: &str) -> Result<(), Closed> {
        self.write(format!("{text}\n").as_bytes()).await.map_err(|_| Closed)
    }

    /// Writes everything that the crate says, until it ends or the output fails. If a failure is to be ignored,
    /// what is said after it is said to nobody.
    pub(super) async fn serve(
        &self,
        mut messages: impl Stream<Item = TransportFrame> + Unpin,
        ignore_failure: bool,
    ) -> io::Result<()> {
        while let Some(frame) = messages.next().await {
            let is_update = matches!(&frame, TransportFrame::Single(RawJsonRpcMessage::Notification(notification))
                if &*notification.method == "session/update");
            let mut line = frame.to_json().expect("what the crate says is JSON");
            line.push('\n');
            let result = self.write(line.as_bytes()).await;
            if is_update {
                let written = self.updates.lock().expect(UNPOISONED).pop_front();
                let written = written.expect("every update is announced before the crate has it");
                if result.is_ok() {
                    // Dropped when nobody waits any more: the turn was ended by a cancel.
                    let _ = written.send(());
                }
            }
            if !ignore_failure {
                result?;
            }
        }
        Ok(())
    }

    async fn write(&self, line: &[u8]) -> io::Result<()> {
        let mut stdout = self.stdout.lock().await;
        stdout.write_all(line).await?;
        stdout.flush().await
    }
}

const UNPOISONED: &str = "nobody panics while holding the updates";
