//! The whole server as a process, with an agent that is a shell script, through the client.
#![expect(clippy::unwrap_used, reason = "a test's helpers panic as its tests do")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use seam::{Child, ExitStatus, Seams, Signal, SpawnRequest, Stdio, Target, within};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wire::client::{CallFailed, ControlClient, EventStream};
use wire::http::Endpoint;
use wire::proof::{Binding, Challenge};
use wire::{
    AnswerPermission, CreateInstance, Credential, Event, InstanceId, InstanceState, InstanceStatus,
    PermissionId, PromptKey, PromptRequest, RefusalCode, RotationId, Seq, ServerFrame, SessionId, TurnEnd,
    TurnId, kind,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_reaches_its_reader_in_order_and_is_kept_until_acknowledged() {
    let server = TestServer::start(&[]).await;
    let instance = server.ready_instance("i-1").await;
    let turn = server.prompt(&instance, "k-1", "say 3").await;
    assert_eq!(turn, server.prompt(&instance, "k-1", "say 3").await, "the same key is the same turn");

    let mut stream = server.client.events(&instance, Seq::ZERO).await.unwrap();
    let events = until(&mut stream, kind::TURN_ENDED).await;
    assert_eq!(told(&events), ["turn_started", "1", "2", "3", "turn_ended"]);
    assert_eq!(places(&events), [1, 2, 3, 4, 5]);
    assert!(events.iter().all(|event| event.turn == Some(turn)));

    let status = server.status(&instance).await;
    assert_eq!((Seq(5), Seq::ZERO, 5), (status.last_seq, status.acknowledged, status.retained.events));
    assert_eq!(status.turn.open, None);
    assert_eq!(status.turn.kept[0].end, TurnEnd::Completed { stop_reason: "end_turn".into() });
    server.client.acknowledge_turn(&instance, turn).await.unwrap();
    server.client.acknowledge_turn(&instance, TurnId(99)).await.unwrap();
    assert!(server.client.turn(&instance).await.unwrap().kept.is_empty());

    stream.acknowledge(Seq(4)).await.unwrap();
    server.wait_for(&instance, |status| status.acknowledged == Seq(4)).await;
    let mut stream = server.client.events(&instance, Seq(1)).await.unwrap();
    assert!(matches!(next(&mut stream).await, Some(ServerFrame::Gap { from: Seq(2), to: Seq(4) })));
    assert_eq!(places(&until(&mut stream, kind::TURN_ENDED).await), [5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unattached_production_pauses_at_the_limit_and_nothing_is_lost() {
    let server = TestServer::start(&[("KANDEV_ACP_DETACHED_EVENT_LIMIT", "3")]).await;
    let instance = server.ready_instance("i-1").await;
    server.prompt(&instance, "k-1", "say 200").await;
    let status = server.wait_for(&instance, |status| status.paused_since_ms.is_some()).await;
    assert_eq!((3, Seq(3)), (status.retained.events, status.last_seq));

    let mut stream = server.client.events(&instance, Seq::ZERO).await.unwrap();
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Event| event.kind != kind::TURN_ENDED) {
        events.extend(some_events(&mut stream).await);
        assert!(server.status(&instance).await.retained.events <= 3);
        stream.acknowledge(events.last().unwrap().seq).await.unwrap();
    }
    assert_eq!(places(&events), (1..=202).collect::<Vec<_>>());
    let said: Vec<_> = (1..=200).map(|n| n.to_string()).collect();
    assert_eq!(told(&events)[1..201], said);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_production_is_paused_stops() {
    let server = TestServer::start(&[("KANDEV_ACP_DETACHED_EVENT_LIMIT", "1")]).await;
    let instance = server.ready_instance("i-1").await;
    server.prompt(&instance, "k-1", "say 200").await;
    let status = server.wait_for(&instance, |status| status.paused_since_ms.is_some()).await;
    server.client.stop_instance(&instance).await.unwrap();
    server.gone(&instance).await;
    assert!(!server.runs(&status).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_in_mid_turn_is_told_after_the_last_words_and_before_the_turns_end() {
    let server = TestServer::start(&[]).await;
    let instance = server.ready_instance("i-1").await;
    server.prompt(&instance, "k-1", "break down").await;
    let mut stream = server.client.events(&instance, Seq::ZERO).await.unwrap();
    let events = until(&mut stream, kind::TURN_ENDED).await;
    assert_eq!(told(&events), ["turn_started", "last words", "error", "turn_ended"]);
    let error: Value = serde_json::from_str(events[2].payload.get()).unwrap();
    assert_eq!(error["step"], "agent_exited");
    assert!(error["message"].as_str().unwrap().contains("exit code 7"));
    assert_eq!(error["stderr"], "it broke\n");

    let status = server.status(&instance).await;
    assert_eq!(InstanceState::Ended, status.state);
    assert!(matches!(&status.turn.kept[0].end, TurnEnd::Failed { error } if error.contains("exit code 7")));
    let refused = server.try_prompt(&instance, "k-2", "say 1").await.unwrap_err();
    assert_eq!(Some(RefusalCode::NotReady), refused.refusal());
    // What left the group while it was dying is ended, too, though nobody stopped the instance.
    let mark = format!("{}/{instance}", server.client.identity().await.unwrap().server);
    server.until("no marked process", async || server.marked(&mark).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_our_cancel_the_turn_is_cancelled_whatever_the_agent_answers() {
    let server = TestServer::start(&[]).await;
    let instance = server.ready_instance("i-1").await;
    server.prompt(&instance, "k-1", "wait").await;
    let refused = server.try_prompt(&instance, "k-2", "say 1").await.unwrap_err();
    assert_eq!(Some(RefusalCode::TurnOpen), refused.refusal());
    server.wait_for(&instance, |status| status.last_seq == Seq(2)).await;
    server.client.cancel(&instance).await.unwrap();
    server.client.cancel(&instance).await.unwrap();
    let status = server.wait_for(&instance, |status| status.turn.open.is_none()).await;
    assert_eq!(TurnEnd::Cancelled, status.turn.kept[0].end);
    server.prompt(&instance, "k-2", "say 1").await;
    let status = server.wait_for(&instance, |status| status.turn.kept.len() == 2).await;
    assert_eq!(TurnEnd::Completed { stop_reason: "end_turn".into() }, status.turn.kept[1].end);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_is_answered_once_and_the_agent_goes_on() {
    let server = TestServer::start(&[]).await;
    let instance = server.ready_instance("i-1").await;
    server.prompt(&instance, "k-1", "ask").await;
    let status = server.wait_for(&instance, |status| !status.permissions.is_empty()).await;
    let permission = &status.permissions[0];
    let answer = |option: &str| AnswerPermission { option: Some(option.to_owned()) };
    let client = &server.client;
    let refused = client.answer_permission(&instance, permission, &answer("maybe")).await.unwrap_err();
    assert_eq!(Some(RefusalCode::BadRequest), refused.refusal());
    client.answer_permission(&instance, permission, &answer("yes")).await.unwrap();
    for gone in [permission, &PermissionId::new("p99")] {
        let refused = client.answer_permission(&instance, gone, &answer("yes")).await.unwrap_err();
        assert_eq!(Some(RefusalCode::UnknownPermission), refused.refusal());
    }
    let mut stream = server.client.events(&instance, Seq::ZERO).await.unwrap();
    let events = until(&mut stream, kind::TURN_ENDED).await;
    let expected = ["turn_started", "permission_asked", "permission_ended", "was allowed", "turn_ended"];
    assert_eq!(told(&events), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_whose_agent_exits_ends_visibly_as_cancelled() {
    let server = TestServer::start(&[]).await;
    let instance = server.ready_instance("i-1").await;
    server.prompt(&instance, "k-1", "ask and exit").await;
    let mut stream = server.client.events(&instance, Seq::ZERO).await.unwrap();
    let events = until(&mut stream, kind::TURN_ENDED).await;
    assert_eq!(
        told(&events),
        ["turn_started", "permission_asked", "permission_ended", "error", "turn_ended"]
    );
    let ended: Value = serde_json::from_str(events[2].payload.get()).unwrap();
    assert_eq!(ended["option"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_stream_replaces_the_first() {
    let server = TestServer::start(&[]).await;
    let instance = server.ready_instance("i-1").await;
    let mut first = server.client.events(&instance, Seq::ZERO).await.unwrap();
    server.wait_for(&instance, |status| status.attached).await;
    let mut second = server.client.events(&instance, Seq::ZERO).await.unwrap();
    assert!(matches!(next(&mut first).await, Some(ServerFrame::Replaced {})));
    assert!(next(&mut first).await.is_none());
    server.prompt(&instance, "k-1", "say 1").await;
    assert_eq!(places(&until(&mut second, kind::TURN_ENDED).await), [1, 2, 3]);
    assert!(server.status(&instance).await.attached);
    drop(second);
    server.wait_for(&instance, |status| !status.attached).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_never_reads_holds_up_nobody() {
    let server = TestServer::start(&[("KANDEV_ACP_DETACHED_EVENT_LIMIT", "10000")]).await;
    let instance = server.ready_instance("i-1").await;
    let _unread = server.client.events(&instance, Seq::ZERO).await.unwrap();
    server.prompt(&instance, "k-1", "say 3000").await;
    let other = server.ready_instance("i-2").await;
    server.prompt(&other, "k-2", "say 1").await;
    for id in [&other, &instance] {
        server.wait_for(id, |status| !status.turn.kept.is_empty()).await;
    }
    let mut stream = server.client.events(&instance, Seq::ZERO).await.unwrap();
    let events = until(&mut stream, kind::TURN_ENDED).await;
    assert_eq!(places(&events), (1..=3002).collect::<Vec<_>>());
    server.client.stop_instance(&instance).await.unwrap();
    server.gone(&instance).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_was_never_produced_is_refused() {
    let server = TestServer::start(&[]).await;
    let instance = server.ready_instance("i-1").await;
    let Err(refused) = server.client.events(&instance, Seq(7)).await else { panic!("it was accepted") };
    assert_eq!(Some(RefusalCode::BadRequest), refused.refusal());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_no_agent_ends_with_what_it_wrote() {
    let server = TestServer::start(&[]).await;
    let request = CreateInstance {
        args: vec!["-c".into(), "echo usage: me; echo no >&2; exit 3".into()],
        ..server.request("i-1")
    };
    server.client.create_instance(&request).await.unwrap();
    let status = server.wait_for(&request.instance, |status| status.state == InstanceState::Ended).await;
    let failure = status.failure.unwrap();
    for part in ["initialize", "exit code 3", "usage: me"] {
        assert!(failure.contains(part), "{failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_is_the_same_instance_and_another_one_a_conflict() {
    let server = TestServer::start(&[]).await;
    let instance = server.ready_instance("i-1").await;
    let before = server.status(&instance).await;
    let again = server.client.create_instance(&server.request("i-1")).await.unwrap();
    assert_eq!(before.agent, again.agent);
    let other = CreateInstance { session: SessionId::new("s-2"), ..server.request("i-1") };
    let refused = server.client.create_instance(&other).await.unwrap_err();
    assert_eq!(Some(RefusalCode::InstanceConflict), refused.refusal());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ownership_shutdown_stops_everything_and_ends_the_server() {
    let mut server = TestServer::start(&[]).await;
    let mut agents = Vec::new();
    for id in ["i-1", "i-2", "i-3"] {
        let instance = server.ready_instance(id).await;
        agents.push(server.status(&instance).await);
    }
    assert_eq!(3, server.client.shutdown().await.unwrap().left);
    assert_eq!(ExitStatus::Code(0), server.exit().await);
    for agent in &agents {
        assert!(!server.runs(agent).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_proves_that_it_holds_our_credential_for_this_home_and_endpoint() {
    let server = TestServer::start(&[]).await;
    let identity = server.client.identity().await.unwrap().server;
    let home = server.seams.disk.canonical(server.home.path()).await.unwrap();
    let endpoint = server.client.endpoint().address;
    let held = Credential::parse(&server.credential()).unwrap();
    let stranger = Credential::fresh(&*server.seams.entropy);
    for (home, endpoint, credential, proves) in [
        (home.as_path(), endpoint, &held, true),
        (std::path::Path::new("/elsewhere"), endpoint, &held, false),
        (home.as_path(), "127.0.0.1:1".parse().unwrap(), &held, false),
        (home.as_path(), endpoint, &stranger, false),
    ] {
        let challenge = Challenge::fresh(&*server.seams.entropy);
        let answer = server.client.prove(&challenge).await.unwrap();
        let verdict = challenge.verify(&answer, credential, Binding::new(home, &identity, endpoint));
        assert_eq!(proves, verdict.is_ok(), "{home:?} {endpoint}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_ends_the_streams_of_the_superseded_credential_and_everything_it_drove() {
    let server = TestServer::start(&[]).await;
    let instance = server.ready_instance("i-1").await;
    let superseded = &server.client;
    let mut stream = superseded.events(&instance, Seq::ZERO).await.unwrap();
    server.wait_for(&instance, |status| status.attached).await;

    let (rotation, credential) = superseded.rotate().await.unwrap();
    assert_eq!(RotationId(1), rotation);
    assert!(next(&mut stream).await.is_none(), "it is closed without a frame");
    let driver = superseded.with_credential(credential.to_text());
    assert!(!driver.instance(&instance).await.unwrap().attached);
    for refused in [
        superseded.instances().await.map(drop),
        superseded.claim().await.map(drop),
        superseded.confirm(rotation).await.map(drop),
        superseded.cancel(&instance).await.map(drop),
        superseded.events(&instance, Seq::ZERO).await.map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(Some(RefusalCode::CredentialSuperseded), refused.refusal());
        assert!(refused.is_unauthorized());
    }

    // Until the confirmation a lost reply costs nothing: the same replacement is told again.
    let (again, same) = superseded.rotate().await.unwrap();
    assert!(again == rotation && same == credential);
    let unknown = driver.confirm(RotationId(2)).await.unwrap_err();
    assert_eq!(Some(RefusalCode::UnknownRotation), unknown.refusal());
    assert!(driver.confirm(rotation).await.unwrap().took_effect);
    assert!(!driver.confirm(rotation).await.unwrap().took_effect);
    for refused in [superseded.rotate().await.map(drop), superseded.shutdown().await.map(drop)] {
        assert_eq!(Some(RefusalCode::Unauthorized), refused.unwrap_err().refusal());
    }
    let mut stream = driver.events(&instance, Seq::ZERO).await.unwrap();
    driver
        .prompt(&instance, &PromptRequest { key: PromptKey::new("k-1"), text: "say 1".into() })
        .await
        .unwrap();
    assert_eq!(places(&until(&mut stream, kind::TURN_ENDED).await), [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unconfirmed_superseded_credential_still_shuts_the_server_down() {
    let mut server = TestServer::start(&[]).await;
    server.client.rotate().await.unwrap();
    server.client.shutdown().await.unwrap();
    assert_eq!(ExitStatus::Code(0), server.exit().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_whose_body_arrives_after_a_rotation_has_no_effect() {
    let server = TestServer::start(&[]).await;
    let instance = server.ready_instance("i-1").await;
    let address = server.client.endpoint().address;
    let body = r#"{"key":"k-1","text":"say 1"}"#;
    let head = format!(
        "POST /api/v1/instances/{instance}/prompt HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\n\
         content-length: {}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n",
        server.credential(),
        body.len()
    );
    let mut socket = server.seams.network.connect(address, PATIENCE).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    // The server asks for the body once the caller has been admitted.
    let mut asked = vec![0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    socket.read_exact(&mut asked).await.unwrap();
    let (_, credential) = server.client.rotate().await.unwrap();
    socket.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("credential_superseded"), "{answer}");
    let driver = server.client.with_credential(credential.to_text());
    let status = driver.instance(&instance).await.unwrap();
    assert_eq!((None, Seq::ZERO), (status.turn.open, status.last_seq));
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_and_the_end_of_the_launcher_stop_everything() {
    let mut server = TestServer::start(&[]).await;
    let agent = server.ready_instance("i-1").await;
    let agent = server.status(&agent).await;
    let target = Target::Process(server.child.identity.clone());
    server.seams.processes.signal(target, Signal::Terminate).await.unwrap();
    assert_eq!(ExitStatus::Code(0), server.exit().await);
    assert!(!server.runs(&agent).await);

    let mut server = TestServer::start(&[]).await;
    let agent = server.ready_instance("i-1").await;
    let agent = server.status(&agent).await;
    server.child.stdin = None;
    assert_eq!(ExitStatus::Code(0), server.exit().await);
    assert!(!server.runs(&agent).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_breaks_a_rule_and_an_address_in_use_have_their_exit_codes() {
    let server = TestServer::start(&[]).await;
    let address = server.client.endpoint().address;
    for (env, listen, code) in [
        (("KANDEV_ACP_DETACHED_EVENT_LIMIT", "1e2"), "127.0.0.1:0".to_owned(), 2),
        (("KANDEV_ACP_UNOWNED_PERIOD", "soon"), "127.0.0.1:0".to_owned(), 2),
        (("PATH", ""), address.to_string(), 3),
    ] {
        let mut other =
            TestServer::spawn(&server.seams, server.home.path().to_owned(), &listen, &[env]).await;
        assert_eq!(ExitStatus::Code(code), other.exit.wait().await.unwrap());
    }
}

/// A server process that ends with the test: it ends when its standard input does.
struct TestServer {
    seams: Seams,
    home: tempfile::TempDir,
    child: Child,
    client: ControlClient,
}

impl TestServer {
    async fn start(env: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let seams = system::seams_for(home.path());
        let nonce = home.path().join("nonce");
        seams.disk.write_atomic(&nonce, b"nonce-1\n", seam::Privacy::Owner).await.unwrap();
        let child = Self::spawn(&seams, home.path().to_owned(), "127.0.0.1:0", env).await;
        let address = listening(&seams, home.path().join("logs/controld.log")).await;
        let client = ControlClient::new(Endpoint {
            network: Arc::clone(&seams.network),
            clock: Arc::clone(&seams.clock),
            address,
            credential: None,
            limit: PATIENCE,
        });
        let credential = client.handshake(&SecretString::from("nonce-1")).await.unwrap();
        Self { client: client.with_credential(credential.to_text()), seams, home, child }
    }

    /// The handshake's.
    fn credential(&self) -> String {
        self.client.endpoint().credential.as_ref().unwrap().expose_secret().to_owned()
    }

    async fn spawn(seams: &Seams, home: PathBuf, listen: &str, env: &[(&str, &str)]) -> Child {
        let home_text = home.to_str().unwrap().to_owned();
        let nonce = format!("{home_text}/nonce");
        let args = ["--home", &home_text, "--listen", listen, "--nonce-file", &nonce, "--until-stdin-closes"];
        let request = SpawnRequest {
            program: env!("CARGO_BIN_EXE_controld").to_owned(),
            args: args.map(str::to_owned).to_vec(),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            directory: Some(home),
            stdio: Stdio::InputOnly,
        };
        seams.processes.spawn(request).await.unwrap()
    }

    fn request(&self, id: &str) -> CreateInstance {
        CreateInstance {
            instance: InstanceId::new(id),
            session: SessionId::new("s-1"),
            command: "sh".into(),
            args: vec![concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent.sh").into()],
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            directory: self.home.path().to_str().unwrap().to_owned(),
            source_roots: vec![],
            mode: None,
            resume: None,
        }
    }

    async fn ready_instance(&self, id: &str) -> InstanceId {
        let request = self.request(id);
        self.client.create_instance(&request).await.unwrap();
        self.wait_for(&request.instance, |status| status.state != InstanceState::Starting).await;
        let status = self.status(&request.instance).await;
        assert_eq!((InstanceState::Ready, None), (status.state, status.failure));
        request.instance
    }

    async fn status(&self, id: &InstanceId) -> InstanceStatus {
        self.client.instance(id).await.unwrap()
    }

    async fn try_prompt(&self, id: &InstanceId, key: &str, text: &str) -> Result<TurnId, CallFailed> {
        let request = PromptRequest { key: PromptKey::new(key), text: text.to_owned() };
        Ok(self.client.prompt(id, &request).await?.turn)
    }

    async fn prompt(&self, id: &InstanceId, key: &str, text: &str) -> TurnId {
        self.try_prompt(id, key, text).await.unwrap()
    }

    async fn wait_for(&self, id: &InstanceId, reached: impl Fn(&InstanceStatus) -> bool) -> InstanceStatus {
        self.until("the instance's state", async || reached(&self.status(id).await)).await;
        self.status(id).await
    }

    async fn gone(&self, id: &InstanceId) {
        self.until("the instance's end", async || {
            let listed = self.client.instances().await.unwrap();
            listed.instances.iter().all(|instance| instance.instance != *id)
        })
        .await;
    }

    async fn runs(&self, status: &InstanceStatus) -> bool {
        let agent = status.agent.clone().unwrap();
        let identity =
            seam::ProcessIdentity { pid: agent.pid, start_time: agent.start_time, boot_id: agent.boot_id };
        self.seams.processes.runs(&identity).await.unwrap()
    }

    async fn marked(&self, mark: &str) -> Vec<seam::ProcessIdentity> {
        self.seams.processes.marked("KANDEV_INSTANCE_MARK", mark).await.unwrap()
    }

    async fn exit(&mut self) -> ExitStatus {
        within(&*self.seams.clock, PATIENCE, self.child.exit.wait()).await.unwrap().unwrap()
    }

    async fn until(&self, what: &str, reached: impl AsyncFn() -> bool) {
        poll(&self.seams, what, reached).await;
    }
}

async fn listening(seams: &Seams, log: PathBuf) -> SocketAddr {
    let address = std::sync::Mutex::new(None);
    poll(seams, "the server to listen", async || {
        let log = seams.disk.read(&log, 1 << 20).await.unwrap_or_default();
        let found = String::from_utf8(log).unwrap().lines().find_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == "listening").then(|| line["address"].as_str()?.parse().ok())?
        });
        *address.lock().unwrap() = found;
        found.is_some()
    })
    .await;
    address.into_inner().unwrap().unwrap()
}

async fn poll(seams: &Seams, what: &str, reached: impl AsyncFn() -> bool) {
    let wait = async {
        while !reached().await {
            seams.clock.sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(within(&*seams.clock, PATIENCE, wait).await.is_ok(), "waited in vain for {what}");
}

async fn next(stream: &mut EventStream) -> Option<ServerFrame> {
    loop {
        let clock = system::RealClock;
        match within(&clock, PATIENCE, stream.next())
            .await
            .expect("a frame in time")
            .expect("an unbroken stream")
        {
            Some(ServerFrame::Heartbeat {}) => {}
            frame => return frame,
        }
    }
}

async fn some_events(stream: &mut EventStream) -> Vec<Event> {
    match next(stream).await {
        Some(ServerFrame::Events(events)) => events,
        other => panic!("events were expected, not {other:?}"),
    }
}

/// The events up to the first of that kind.
async fn until(stream: &mut EventStream, kind: &str) -> Vec<Event> {
    let mut events = Vec::new();
    while !events.iter().any(|event: &Event| event.kind == kind) {
        events.extend(some_events(stream).await);
    }
    events
}

fn places(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.seq.0).collect()
}

/// An update's text, and any other event's kind.
fn told(events: &[Event]) -> Vec<String> {
    let text = |event: &Event| {
        let payload: Value = serde_json::from_str(event.payload.get()).unwrap();
        payload["content"]["text"].as_str().unwrap_or(&event.kind).to_owned()
    };
    events.iter().map(text).collect()
}

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);
