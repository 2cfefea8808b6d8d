//! Strangers on our ports.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::stage::{Stage, assert_says, error_line};

#[test]
fn a_stranger_on_the_control_port_makes_the_backend_take_another_and_say_so() {
    let stage = Stage::new();
    let _stranger = TcpListener::bind(("127.0.0.1", stage.port)).unwrap();
    let backend = stage.serve();
    let configured = format!("127.0.0.1:{}", stage.port);
    let text = stage.status_text();
    assert_says(&text, &[&format!("not at the configured port: somebody else listens at {configured}")]);
    let server = backend.recovered()["server"].clone();
    assert_ne!(server["address"], configured);
    assert_says(&backend.said(), &["configured control port is taken, using another", &configured]);
    let (session, agent) = stage.ready_session();
    backend.kill();
    // What is recorded is where it listens, not what is configured.
    let backend = stage.serve();
    let after = backend.recovered();
    assert_eq!((&after["server"]["address"], &after["adoption"]), (&server["address"], &"adopted".into()));
    assert_eq!(agent, stage.agent(&session));
}

#[test]
fn a_stranger_who_answers_200_at_the_recorded_endpoint_is_not_taken_for_ours() {
    let stage = Stage::new();
    let (session, _) = killed_with_its_server(&stage);
    let stranger = Stranger::answering(stage.port);
    let backend = stage.serve();
    let text = stage.status_text();
    let elsewhere = format!("not at the configured port: somebody else listens at 127.0.0.1:{}", stage.port);
    assert_says(&text, &["adoption   identity_mismatch", &elsewhere, &format!("left       {session}")]);
    let asked = stranger.asked();
    assert!(!asked.is_empty() && asked.iter().all(|head| head.starts_with("GET /identity ")), "{asked:?}");
    assert!(!asked.concat().to_lowercase().contains("authorization"), "a stranger was given our credential");
    // The rest of the backend works.
    stage.ready_session();
    drop(backend);
}

#[test]
fn a_stranger_who_accepts_and_never_answers_costs_the_bound_of_the_reads_and_no_more() {
    let stage = Stage::new().set("KANDEV_ACP_RECOVERY_READ_TIMEOUT", "100ms");
    let (session, _) = killed_with_its_server(&stage);
    let _stranger = TcpListener::bind(("127.0.0.1", stage.port)).unwrap();
    let backend = stage.serve();
    let text = stage.status_text();
    assert_says(
        &text,
        &["adoption   no_answer", "not at the configured port", &format!("left       {session}")],
    );
    // Whoever is silent may be ours and stuck: the session is not said to be dead, and why is said.
    assert_says(&text, &["was left running (no_answer)", "it ends by itself before"]);
    stage.ready_session();
    drop(backend);
}

#[test]
fn a_taken_port_for_users_is_refused_by_name_and_nothing_is_started() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let stage = Stage::new().set("KANDEV_SERVER_LISTEN", &address);
    let (code, said) = stage.refused();
    assert_eq!(1, code);
    let line = error_line(&said);
    assert_says(&line, &[&address, "server.listen", "KANDEV_SERVER_LISTEN", "in use"]);
    stage.nothing_left();
    drop(taken);
    drop(stage.serve());
}

/// A session in a home whose backend, control server and agent were all killed.
fn killed_with_its_server(stage: &Stage) -> (String, u32) {
    let backend = stage.serve();
    let (session, agent) = stage.ready_session();
    let controld = stage.controld().unwrap();
    backend.kill();
    crate::processes::signal(controld, rustix::process::Signal::KILL);
    stage.nothing_left();
    (session, agent)
}

/// Somebody else's web server: says 200 to everybody, and keeps what it was asked.
struct Stranger {
    asked: Arc<Mutex<Vec<String>>>,
}

impl Stranger {
    fn answering(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        // Ends with the test's process; it holds nothing but its port.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || answer(stream, &kept));
            }
        });
        Self { asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(mut stream: TcpStream, asked: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|length| length > 0) {
        head.push(byte[0]);
    }
    // Whoever only looked whether somebody listens asked nothing.
    if head.is_empty() {
        return;
    }
    asked.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
    let body = r#"{"status":"ok"}"#;
    let length = body.len();
    // The caller may have hung up.
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
}
