//! The port thief: asks a control server everything that it tells anybody, waits for its death, takes its endpoint,
//! and answers in its place from what it saw. Whatever it hears is in the trace.
//!
//! `port-thief ADDRESS ANSWER`, where ANSWER says what it makes of a challenge, see [`Answer`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use seam::{Seams, Stream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tracing::info;
use wire::proof::Challenge;

use super::client;

/// What it answers to a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What the server once answered to a challenge of the thief's own.
    Replayed,
    /// No MAC at all.
    Empty,
    /// Two MACs of nothing.
    Invented,
    /// Something that is no answer.
    Garbage,
    /// Nothing, ever.
    Silence,
    /// It does not get that far: it says that it is somebody else.
    AnotherIdentity,
    /// It does not say who it is.
    NoIdentity,
    /// It advertises nothing.
    NoCapabilities,
}

impl Answer {
    /// All of them, for the seed to draw from.
    pub(crate) const ALL: [Self; 8] = [
        Self::Replayed,
        Self::Empty,
        Self::Invented,
        Self::Garbage,
        Self::Silence,
        Self::AnotherIdentity,
        Self::NoIdentity,
        Self::NoCapabilities,
    ];

    /// The one reason for which a backend refuses it (O-001.6).
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::AnotherIdentity | Self::NoIdentity | Self::NoCapabilities => "identity_mismatch",
            _ => "authentication_failure",
        }
    }
}

/// What the server told anybody.
struct Seen {
    identity: Value,
    proof: Value,
}

/// Its main.
pub(crate) async fn run(seams: Seams) -> u8 {
    let arguments = seams.host.arguments();
    let [address, answer] = arguments.as_slice() else { return 2 };
    let Ok(address) = address.parse::<SocketAddr>() else { return 2 };
    let Some(answer) = answer.parse().ok().and_then(|index: usize| Answer::ALL.get(index).copied()) else {
        return 2;
    };
    let Some(seen) = interview(&seams, address).await else { return 1 };
    info!("thief is ready");
    let mut listener = loop {
        match seams.network.listen(address).await {
            Ok(listener) => break listener,
            Err(_) => seams.clock.sleep(TRY_AGAIN).await,
        }
    };
    info!(%address, ?answer, "thief took the endpoint");
    let seen = Arc::new(seen);
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&seen), answer));
        }
    }
}

async fn interview(seams: &Seams, address: SocketAddr) -> Option<Seen> {
    let stranger = client(seams, address, None);
    let identity = stranger.identity().await.ok()?;
    let proof = stranger.prove(&Challenge::fresh(&*seams.entropy)).await.ok()?;
    let identity = serde_json::to_value(identity).ok()?;
    let told: Vec<&str> = identity.as_object()?.keys().map(String::as_str).collect();
    info!(told = told.join(", "), "thief was told");
    Some(Seen { identity, proof: serde_json::to_value(proof).ok()? })
}

async fn serve(mut stream: Stream, seen: Arc<Seen>, answer: Answer) {
    // Who connects and closes asks only whether somebody listens.
    let Some(heard) = request(&mut stream).await else { return };
    let (head, body) = heard.split_once("\r\n\r\n").unwrap_or((heard.as_str(), ""));
    let mut words = head.split_ascii_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let credential = head.to_ascii_lowercase().contains("\r\nauthorization:");
    info!(method, path, credential, body, "thief heard");
    let said = match (path, answer) {
        ("/identity", Answer::AnotherIdentity) => {
            let mut identity = seen.identity.clone();
            identity["server"] = json!("somebody-else");
            identity.to_string()
        }
        ("/identity", Answer::NoIdentity) => json!({ "hello": "world" }).to_string(),
        ("/identity", Answer::NoCapabilities) => {
            let mut identity = seen.identity.clone();
            identity["capabilities"] = json!([]);
            identity.to_string()
        }
        ("/identity", _) => seen.identity.to_string(),
        ("/ownership/prove", Answer::Replayed) => seen.proof.to_string(),
        ("/ownership/prove", Answer::Empty) => json!({ "macs": [] }).to_string(),
        ("/ownership/prove", Answer::Invented) => {
            json!({ "macs": ["00".repeat(32), "ff".repeat(32)] }).to_string()
        }
        ("/ownership/prove", Answer::Silence) => return std::future::pending().await,
        ("/ownership/prove", _) => "<html>".to_owned(),
        // Whatever else anybody asks of it, it says yes.
        _ => "{}".to_owned(),
    };
    let length = said.len();
    let text = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{said}"
    );
    // Whoever hung up has heard enough.
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// One request with its body, as far as it comes.
async fn request(stream: &mut Stream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut some = [0; 1024];
    loop {
        let length = stream.read(&mut some).await.unwrap_or(0);
        bytes.extend_from_slice(&some[..length]);
        let text = String::from_utf8_lossy(&bytes);
        if length == 0 || is_whole(&text) || bytes.len() > REQUEST_BYTES {
            return (!text.is_empty()).then(|| text.into_owned());
        }
    }
}

fn is_whole(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    body.len() >= length.unwrap_or(0)
}

/// Quicker than any service manager starts a control server again.
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// More than any honest request to a stranger has.
const REQUEST_BYTES: usize = 64 * 1024;
