//! A backend that is started by an agent of another backend: neither may take the other's for its own.

use std::fs;

use serde_json::json;

use crate::processes;
use crate::stage::{Stage, steps};
use rustix::process::Signal;

#[test]
fn a_backend_in_an_agents_environment_hands_on_nothing_of_it() {
    let outer = Stage::new().set("KANDEV_ACP_DETACHED_EVENT_LIMIT", "77");
    let outer_backend = outer.serve();
    let (outer_session, outer_agent) = outer.ready_session();
    let inherited = processes::environment(outer_agent);
    let ours: Vec<_> =
        inherited.iter().map(|(name, _)| name.as_str()).filter(|name| name.starts_with("KANDEV_")).collect();
    assert!(ours.contains(&"KANDEV_SESSION_ID"), "{ours:?}");
    assert!(!ours.contains(&"KANDEV_HOME_DIR"), "an agent's tools would work on our home: {ours:?}");
    assert!(!ours.iter().any(|name| name.starts_with("KANDEV_ACP_")), "{ours:?}");

    let mut inner = Stage::new();
    for (name, value) in inherited.iter().filter(|(name, _)| name.starts_with("KANDEV_")) {
        inner = inner.set(name, value);
    }
    let inner_backend = inner.serve();
    let (session, agent) = inner.ready_session();
    let server = inner.controld().unwrap();
    let of_outer = |pid: u32| {
        let environment = processes::environment(pid);
        let taken =
            environment.into_iter().filter(|pair| pair.0.starts_with("KANDEV_") && inherited.contains(pair));
        taken.map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!((of_outer(server), of_outer(agent)), (Vec::new(), Vec::new()));

    // The inner one loses, stops and recovers its own, and the outer's agent never notices.
    inner.tell(&["prompt", &session, &steps(json!([{ "sleep_ms": 600_000 }]))]);
    processes::signal(server, Signal::KILL);
    inner.session_in(&session, "IDLE");
    assert!(!processes::runs(agent));
    let server = inner.until("a new control server", || {
        let usable = inner.get("/api/status")?["server"].is_object();
        inner.controld().filter(|pid| usable && *pid != server)
    });
    let (stopped, _) = inner.ready_session();
    inner.tell(&["session", "stop", &stopped]);
    let (session, agent) = inner.ready_session();
    inner.tell(&["prompt", &session, &steps(json!([{ "permission": { "title": "go on?" } }]))]);
    let permission = inner.permission(&session);
    inner_backend.kill();
    let inner_backend = inner.serve();
    inner.tracked(&session);
    inner.tell(&["permission", &session, &permission, "allow_once"]);
    inner.turn_in(&session, "COMPLETED");
    assert!(processes::runs(outer_agent));

    // Whoever stops the outer agent ends what it started, but not the inner agents behind their server.
    outer.tell(&["session", "stop", &outer_session]);
    assert!(!processes::runs(outer_agent));
    assert_eq!([server, agent].map(processes::runs), [true, true]);
    drop(inner_backend);
    let _inner_backend = inner.serve();
    assert_eq!(agent, inner.agent(&session));
    drop(outer_backend);
    assert!(
        !fs::read_dir(outer.home.join("run"))
            .unwrap()
            .flatten()
            .any(|entry| { entry.file_name().to_string_lossy().starts_with("nonce") })
    );
}
