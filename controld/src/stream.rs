//! One event stream of one instance: kept events out, acknowledgements in.
//!
//! Writing and reading go on beside each other, so that a reader that is slow to take events can still acknowledge,
//! and neither holds up anything outside this stream. Nothing counts as delivered because it was written (ruling 4).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use seam::{Clock, within};
use tracing::{debug, warn};
use wire::{ClientFrame, Seq, ServerFrame};

use crate::instance::{Instance, StreamNumber, StreamOver};
use crate::ownership::Admitted;
use crate::server::Server;

/// Why a stream ended.
enum Ended {
    /// A newer one took over.
    Replaced,
    /// Another backend has adopted the server.
    Superseded,
    /// The instance is being stopped.
    Stopping,
    /// The reader closed it, or the connection broke.
    Closed,
    /// The reader was silent for [`SILENT_INTERVALS`].
    Silent,
    /// The reader said something that no reader says.
    Misspoken,
}

/// Runs the stream to its end. Between the request's accept check and here lies the upgrade, at the caller's pace:
/// whoever was superseded meanwhile is closed without a frame.
pub(crate) async fn run(
    mut socket: WebSocket,
    server: Arc<Server>,
    admitted: Admitted,
    instance: Arc<Instance>,
    after: Seq,
) {
    let clock = Arc::clone(&server.seams().clock);
    let Ok((id, stream)) = server.open_stream(admitted, &instance) else {
        let _ = within(&*clock, FAREWELL_WAIT, socket.send(Message::Close(None))).await;
        return;
    };
    let (mut sink, mut source) = socket.split();
    let ended = tokio::select! {
        biased;
        over = instance.stream_over(stream) => match over {
            StreamOver::Replaced => Ended::Replaced,
            StreamOver::Superseded => Ended::Superseded,
            StreamOver::Stopping => Ended::Stopping,
        },
        ended = read(&mut source, &instance, stream, &*clock) => ended,
        ended = write(&mut sink, &instance, &*clock, after) => ended,
        never = expire_permissions(&instance, &*clock) => match never {},
    };
    instance.detach(stream, ended.name());
    server.forget_stream(id);
    let farewell = async {
        if matches!(ended, Ended::Replaced) {
            let _ = send(&mut sink, &ServerFrame::Replaced {}).await;
        }
        let _ = sink.close().await;
    };
    let _ = within(&*clock, FAREWELL_WAIT, farewell).await;
}

async fn read(
    source: &mut SplitStream<WebSocket>,
    instance: &Instance,
    stream: StreamNumber,
    clock: &dyn Clock,
) -> Ended {
    loop {
        let text = match within(clock, HEARTBEAT * SILENT_INTERVALS, source.next()).await {
            Err(_) => return Ended::Silent,
            Ok(Some(Ok(Message::Text(text)))) => text,
            Ok(Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_)))) => continue,
            Ok(None | Some(Err(_) | Ok(Message::Close(_)))) => return Ended::Closed,
        };
        match serde_json::from_str(&text) {
            Ok(ClientFrame::Heartbeat {}) => {}
            Ok(ClientFrame::Acknowledge { seq }) => {
                if let Err(ahead) = instance.acknowledge(stream, seq) {
                    warn!(instance = %instance.id(), %ahead, "acknowledgement refused");
                    return Ended::Misspoken;
                }
            }
            // A frame of a newer build.
            Err(_) => debug!(instance = %instance.id(), "client frame skipped"),
        }
    }
}

async fn write(
    sink: &mut SplitSink<WebSocket, Message>,
    instance: &Instance,
    clock: &dyn Clock,
    after: Seq,
) -> Ended {
    let mut news = instance.news();
    let mut sent = after;
    loop {
        // Marked as seen before looking: what comes in between wakes again.
        news.borrow_and_update();
        let Ok(batch) = instance.events_after(sent, BATCH_EVENTS, BATCH_BYTES) else {
            return Ended::Misspoken;
        };
        if let Some((from, to)) = batch.gap {
            debug!(instance = %instance.id(), from = from.0, to = to.0, "gap named");
            sent = to;
            if send(sink, &ServerFrame::Gap { from, to }).await.is_err() {
                return Ended::Closed;
            }
        }
        let frame = if let Some(last) = batch.events.last() {
            sent = last.seq;
            ServerFrame::Events(batch.events)
        } else {
            match within(clock, HEARTBEAT, news.changed()).await {
                Ok(_) => continue,
                Err(_) => ServerFrame::Heartbeat {},
            }
        };
        if send(sink, &frame).await.is_err() {
            return Ended::Closed;
        }
    }
}

/// Ends permission requests whose wait is over. Part of the stream, since without one nothing expires (S-001.9).
async fn expire_permissions(instance: &Instance, clock: &dyn Clock) -> std::convert::Infallible {
    let mut news = instance.news();
    loop {
        news.borrow_and_update();
        match instance.expire_permissions() {
            Some(deadline) => tokio::select! {
                biased;
                () = clock.sleep_until(deadline) => {}
                _ = news.changed() => {}
            },
            None => {
                let _ = news.changed().await;
            }
        }
    }
}

async fn send(sink: &mut SplitSink<WebSocket, Message>, frame: &ServerFrame) -> Result<(), axum::Error> {
    let text = serde_json::to_string(frame).expect("wire values always serialize");
    sink.send(Message::text(text)).await
}

impl Ended {
    fn name(&self) -> &'static str {
        match self {
            Self::Replaced => "replaced",
            Self::Superseded => "superseded",
            Self::Stopping => "instance stopping",
            Self::Closed => "closed",
            Self::Silent => "silent",
            Self::Misspoken => "misspoken",
        }
    }
}

/// How often either side speaks at least.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// After this many silent intervals a stream is a half-open one and detaches its instance (ruling 10).
const SILENT_INTERVALS: u32 = 3;

/// The most events of one frame: a reader stores a frame at once.
const BATCH_EVENTS: usize = 256;

/// About the most bytes of one frame; one larger event goes alone.
const BATCH_BYTES: usize = 1024 * 1024;

/// How long a stream that is over may take for its last frame.
const FAREWELL_WAIT: Duration = Duration::from_secs(1);
