//! Law 4: pipes and connections are byte-true.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use sim::{Answering, Fault, Plan, Program, Start};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tracing::info;

use crate::support::{Story, grain, logged};

fn address() -> SocketAddr {
    "127.0.0.1:5000".parse().unwrap()
}

const LIMIT: Duration = Duration::from_secs(5);

/// Accepts one connection, reads as many bytes as its first argument says, and then does nothing any more.
fn server() -> Program {
    Program::new("server", |process| async move {
        let mut listener = process.seams.network.listen(address()).await.unwrap();
        info!("listening");
        let (mut stream, _) = listener.accept().await.unwrap();
        let wanted: usize = process.seams.host.arguments()[0].parse().unwrap();
        let mut bytes = vec![0; wanted];
        stream.read_exact(&mut bytes).await.unwrap();
        info!("has read");
        process.seams.clock.sleep(Duration::from_secs(10_000)).await;
        0
    })
}

#[test]
fn a_writer_without_a_reader_stops_at_64_kib() {
    let story = Story::new([server()], |director| async move {
        director.start(Start::new("server").args(["0"])).await.unwrap();
        director.wait_for("it listens", LIMIT, |line| line.text == "listening").await?;
        let mut stream = director.seams.network.connect(address(), LIMIT).await.unwrap();
        let mut written = 0;
        let clock = director.seams.clock.clone();
        while let Ok(count) =
            seam::within(clock.as_ref(), Duration::from_secs(1), stream.write(&[7; 5000])).await
        {
            written += count.unwrap();
        }
        director.require(written == 64 * 1024, "exactly 65536 bytes", format!("{written} bytes"))
    });
    for seed in 0..10 {
        story.passes(seed);
    }
}

#[test]
fn a_death_with_unread_bytes_is_a_reset_and_one_without_is_an_end() {
    let story = |read: &'static str| {
        Story::new([server()], move |director| async move {
            let started = director.start(Start::new("server").args([read])).await.unwrap();
            director.wait_for("it listens", LIMIT, |line| line.text == "listening").await?;
            let mut stream = director.seams.network.connect(address(), LIMIT).await.unwrap();
            stream.write_all(b"0123456789").await.unwrap();
            director.wait_for("it has read", LIMIT, |line| line.text == "has read").await?;
            director.kill(&started.identity).await;
            let end = stream.read(&mut [0; 8]).await.map_err(|error| error.kind());
            director.note("end", [("how", format!("{end:?}"))]);
            // The peer is gone: at the latest the second write says so.
            let mut refused = None;
            for _ in 0..3 {
                director.sleep(Duration::from_millis(100)).await;
                refused = refused.or(stream.write(b"x").await.err());
            }
            director.require(
                refused.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe),
                "a broken pipe",
                "writes go on",
            )
        })
    };
    for seed in 0..10 {
        for (read, expected) in [("10", "Ok(0)"), ("4", "Err(ConnectionReset)")] {
            let report = story(read).passes(seed);
            let end = report.lines.iter().find(|line| line.text == "end").unwrap();
            assert_eq!(end.field("how"), expected, "{read} of 10 bytes were read");
        }
    }
}

#[test]
fn a_full_backlog_makes_a_connect_wait_and_time_out() {
    let hoarder = Program::new("hoarder", |process| async move {
        let _listener = process.seams.network.listen(address()).await.unwrap();
        info!("listening");
        process.seams.clock.sleep(Duration::from_secs(10_000)).await;
        0
    });
    let story = Story::new([hoarder], |director| async move {
        director.start(Start::new("hoarder")).await.unwrap();
        director.wait_for("it listens", LIMIT, |line| line.text == "listening").await?;
        let mut held = Vec::new();
        let refused = loop {
            match director.seams.network.connect(address(), LIMIT).await {
                Ok(stream) => held.push(stream),
                Err(error) => break error,
            }
        };
        director.require(
            held.len() == 128 && refused.kind() == ErrorKind::TimedOut,
            "128 connections, then a timeout",
            format!("{} connections, then {refused}", held.len()),
        )
    });
    story.planned(grain(5)).passes(1);
}

#[test]
fn a_lost_reply_is_a_reset_after_the_request_has_arrived() {
    let echo = Program::new("echo", |process| async move {
        let mut listener = process.seams.network.listen(address()).await.unwrap();
        info!("listening");
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = stream.read_u8().await.unwrap();
            info!(request, "served");
            if stream.write_u8(request).await.is_err() {
                info!("nobody wants the reply");
            }
        }
    });
    let client = Program::new("client", |process| async move {
        for request in [1_u8, 2] {
            let mut stream = process.seams.network.connect(address(), LIMIT).await.unwrap();
            stream.write_u8(request).await.unwrap();
            let reply = stream.read_u8().await.map_err(|error| error.kind());
            info!(request, ?reply, "answered");
        }
        0
    });
    let plan = || -> Plan {
        grain(5)
            .with(Fault::LostReply { process: "client".into(), life: 1, connect: 1 })
            .with(Fault::ConnectRefused { process: "client".into(), life: 2, connect: 1 })
    };
    let story = Story::new([echo, client], |director| async move {
        director.start(Start::new("echo")).await.unwrap();
        director.wait_for("it listens", LIMIT, |line| line.text == "listening").await?;
        let mut client = director.start(Start::new("client")).await.unwrap();
        client.exit().await.unwrap();
        Ok(())
    });
    let report = story.planned(plan()).passes(1);
    let replies: Vec<&str> =
        report.lines.iter().filter(|line| line.text == "answered").map(|line| line.field("reply")).collect();
    assert_eq!(replies, ["Err(ConnectionReset)", "Ok(2)"]);
    assert_eq!(report.lines.iter().filter(|line| line.text == "served").count(), 2);
    assert_eq!((report.faults["lost_reply"].fired, report.faults["lost_reply"].bitten), (1, 1));
    assert_eq!(report.faults["connect_refused"].fired, 0);
}

#[test]
fn answers_go_wrong_in_their_window_and_requests_do_not() {
    let echo = Program::new("echo", |process| async move {
        let mut listener = process.seams.network.listen(address()).await.unwrap();
        info!("listening");
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 5];
            stream.read_exact(&mut request).await.unwrap();
            info!(request = %String::from_utf8_lossy(&request), "served");
            let _ = stream.write_all(b"HTTP/1.1 200 {...}").await;
            let _ = stream.shutdown().await;
        }
    });
    let client = Program::new("client", |process| async move {
        for _ in 0..5 {
            let mut stream = process.seams.network.connect(address(), LIMIT).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            let mut reply = String::new();
            let began = process.seams.clock.monotonic();
            let _ = stream.read_to_string(&mut reply).await;
            let took = process.seams.clock.monotonic().since(began);
            info!(reply, late = took >= Duration::from_millis(400), "answered");
            process.seams.clock.sleep(Duration::from_secs(1)).await;
        }
        0
    });
    let odd = |second: u64, how| Fault::Answers {
        process: "echo".into(),
        from_ms: second * 1000 - 400,
        to_ms: second * 1000 + 400,
        how,
    };
    let plan = grain(5)
        .with(odd(1, Answering::Never))
        .with(odd(2, Answering::Wrong))
        .with(odd(3, Answering::Twice))
        .with(odd(4, Answering::Late { by_ms: 500 }));
    let story = Story::new([echo, client], |director| async move {
        director.start(Start::new("echo")).await.unwrap();
        director.wait_for("it listens", LIMIT, |line| line.text == "listening").await?;
        director.start(Start::new("client")).await.unwrap().exit().await.unwrap();
        Ok(())
    });
    let report = story.planned(plan).passes(1);
    let served: Vec<&str> =
        logged(&report, "echo", "served").iter().map(|line| line.field("request")).collect();
    assert_eq!(served, ["hello"; 5]);
    let answered = logged(&report, "client", "answered");
    let replies: Vec<&str> = answered.iter().map(|line| line.field("reply")).collect();
    assert_eq!((replies[0], replies[1]), ("HTTP/1.1 200 {...}", ""));
    assert!(["HTTP/1.1 200 ?????", "HTTP/1.1 500 ?????"].contains(&replies[2]), "{}", replies[2]);
    assert_eq!(replies[3], "HTTP/1.1 200 {...}".repeat(2));
    assert_eq!(replies[4], "HTTP/1.1 200 {...}");
    let late: Vec<&str> = answered.iter().map(|line| line.field("late")).collect();
    assert_eq!(late, ["false", "false", "false", "false", "true"]);
    for kind in ["answers_never", "answers_wrong", "answers_twice", "answers_late"] {
        assert!(report.faults[kind].bitten > 0, "{kind}");
    }
}
