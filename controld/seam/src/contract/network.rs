//! What every network keeps to.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{pattern, pattern_byte, pending, rest, soon};
use crate::{Listener, Network, Seams, Stream, within};

/// The contract of [`Network`] on the loopback address.
pub async fn network(seams: &Seams) {
    soon(seams, "the network", async {
        binds_exactly(seams).await;
        refuses_where_nobody_listens(seams.network.as_ref()).await;
        queues_connections(seams).await;
        carries_bytes_in_order(seams).await;
        closes_one_direction(seams).await;
        shows_that_the_peer_is_gone(seams).await;
        resolves_literal_addresses(seams.network.as_ref()).await;
    })
    .await;
}

async fn binds_exactly(seams: &Seams) {
    let network = seams.network.as_ref();
    let listener = network.listen(any_port()).await.expect("port 0 takes a free one");
    let address = listener.local_address();
    assert_eq!(address.ip(), any_port().ip());
    assert_ne!(address.port(), 0, "the real port is known");
    let other = network.listen(any_port()).await.expect("port 0 takes another free one");
    assert_ne!(other.local_address(), address);

    let taken = network.listen(address).await.err().expect("the port is taken");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse, "{taken}");
    // TEST-NET-1 (RFC 5737): no host has this address.
    let foreign = network.listen(SocketAddr::from(([192, 0, 2, 1], 0))).await.err().expect("not this host's");
    assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable, "{foreign}");
}

async fn refuses_where_nobody_listens(network: &dyn Network) {
    // A freed port may be taken by a stranger in between, on a real host: then another one is tried.
    for _ in 0..10 {
        let listener = network.listen(any_port()).await.expect("listening");
        let address = listener.local_address();
        drop(listener);
        match network.connect(address, LIMIT).await {
            Ok(_) => continue,
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}"),
        }
        if network.listen(address).await.is_ok() {
            return;
        }
    }
    panic!("ten freed ports, and none could be found closed and then bound again");
}

async fn queues_connections(seams: &Seams) {
    let mut listener = seams.network.listen(any_port()).await.expect("listening");
    let address = listener.local_address();
    pending(seams, "accept without a connection", listener.accept()).await;

    // Connected before anybody accepts, and after an accept that was given up.
    let mut first = connect(seams, address).await;
    first.write_all(b"first").await.expect("written");
    first.shutdown().await.expect("closed");
    let mut second = connect(seams, address).await;
    second.write_all(b"second").await.expect("written");
    second.shutdown().await.expect("closed");
    for expected in [&b"first"[..], b"second"] {
        let (mut stream, peer) = listener.accept().await.expect("queued");
        assert_eq!(peer.ip(), address.ip());
        assert_ne!(peer.port(), address.port());
        assert_eq!(rest(&mut stream).await, expected);
    }

    // What was never accepted ends with the listener.
    let mut forlorn = connect(seams, address).await;
    drop(listener);
    let mut buffer = [0_u8; 1];
    match forlorn.read(&mut buffer).await {
        Ok(count) => assert_eq!(count, 0, "bytes from nobody"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
}

async fn carries_bytes_in_order(seams: &Seams) {
    let (mut client, mut server) = pair(seams).await;

    // Both ways at once, 200 KiB each.
    let length = 200 * 1024;
    let echo = tokio::spawn(async move {
        let mut buffer = [0_u8; 4096];
        let mut seen = 0;
        while seen < length {
            let count = server.read(&mut buffer).await.expect("readable");
            assert_ne!(count, 0, "ended after {seen} bytes");
            seen += count;
            server.write_all(&buffer[..count]).await.expect("writable");
        }
        server
    });
    let (mut reading, mut writing) = tokio::io::split(client);
    let writer = tokio::spawn(async move {
        writing.write_all(&pattern(0, length)).await.expect("writable");
        writing
    });
    let mut answer = vec![0_u8; length];
    reading.read_exact(&mut answer).await.expect("the whole answer");
    assert!(answer == pattern(0, length), "bytes were lost, doubled or reordered");
    client = reading.unsplit(writer.await.expect("the writer ends"));
    server = echo.await.expect("the echo ends");

    // A reader that does not read stops the writer; nothing is lost by it.
    let mut written = 0;
    loop {
        assert!(written < 64 * 1024 * 1024, "no reader, and still nothing stops the writer");
        let piece = pattern(written, 64 * 1024);
        match within(seams.clock.as_ref(), STALLED, client.write(&piece)).await {
            Ok(count) => written += count.expect("writable"),
            Err(_) => break,
        }
    }
    let closer = tokio::spawn(async move {
        client.shutdown().await.expect("closed after everything was written");
        client
    });
    let mut buffer = vec![0_u8; 64 * 1024];
    let mut seen = 0;
    loop {
        let count = server.read(&mut buffer).await.expect("readable");
        if count == 0 {
            break;
        }
        let right = buffer[..count].iter().enumerate().all(|(at, byte)| *byte == pattern_byte(seen + at));
        assert!(right, "bytes were lost, doubled or reordered after {seen}");
        seen += count;
    }
    assert_eq!(seen, written, "exactly what was written arrives");
    drop(closer.await.expect("the closer ends"));
}

async fn closes_one_direction(seams: &Seams) {
    let (mut client, mut server) = pair(seams).await;
    client.write_all(b"question").await.expect("written");
    client.shutdown().await.expect("closed for writing");
    assert_eq!(rest(&mut server).await, b"question", "the end is seen after the bytes before it");
    pending(seams, "an answer that nobody has written", client.read_u8()).await;
    server.write_all(b"answer").await.expect("the other direction is still open");
    drop(server);
    assert_eq!(rest(&mut client).await, b"answer");
}

async fn shows_that_the_peer_is_gone(seams: &Seams) {
    let (mut client, mut server) = pair(seams).await;
    server.write_all(b"last words").await.expect("written");
    drop(server);
    assert_eq!(rest(&mut client).await, b"last words");
    assert_eq!(client.read(&mut [0_u8; 8]).await.expect("the end stays the end"), 0);
    // The first writes may vanish on their way; then the peer's answer is known.
    let error = loop {
        if let Err(error) = client.write(b"anybody there?").await {
            break error;
        }
        seams.clock.sleep(Duration::from_millis(5)).await;
    };
    assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
}

async fn resolves_literal_addresses(network: &dyn Network) {
    let four = network.resolve("127.0.0.1", 80).await.expect("stands for itself");
    assert_eq!(four, [SocketAddr::from(([127, 0, 0, 1], 80))]);
    let six = network.resolve("::1", 81).await.expect("stands for itself");
    assert_eq!(six, [SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 81))]);
}

/// A connection's two ends.
async fn pair(seams: &Seams) -> (Stream, Stream) {
    let mut listener: Box<dyn Listener> = seams.network.listen(any_port()).await.expect("listening");
    let client = connect(seams, listener.local_address()).await;
    let (server, _) = listener.accept().await.expect("accepted");
    (client, server)
}

async fn connect(seams: &Seams, address: SocketAddr) -> Stream {
    seams.network.connect(address, LIMIT).await.expect("somebody listens")
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// For connections that are answered at once.
const LIMIT: Duration = Duration::from_secs(30);

/// A write that takes this long counts as stopped. If only the machine is slow, the test is merely weaker.
const STALLED: Duration = Duration::from_millis(200);
