//! Bytes that were written once and must decode for ever. A line is never changed or removed here; a new shape gets a
//! new line.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::*;

/// What this build writes today, and reads.
fn same<T: Serialize + DeserializeOwned>(golden: &str) {
    let value: T = serde_json::from_str(golden).unwrap_or_else(|error| panic!("{golden}: {error}"));
    assert_eq!(golden, serde_json::to_string(&value).expect("wire values always serialize"));
}

/// What another build wrote, and how this one understands it.
fn reads_as<T: Serialize + DeserializeOwned>(other: &str, golden: &str) {
    let value: T = serde_json::from_str(other).unwrap_or_else(|error| panic!("{other}: {error}"));
    assert_eq!(golden, serde_json::to_string(&value).expect("wire values always serialize"));
}

#[test]
fn ownership_and_identity() {
    same::<IdentityAnswer>(
        r#"{"server":"a1b2","capabilities":["events-acknowledged","instances"],"unowned_period_ms":600000}"#,
    );
    same::<HandshakeRequest>(r#"{"nonce":"n-1"}"#);
    same::<HandshakeAnswer>(r#"{"credential":"00ff"}"#);
    same::<RotationAnswer>(r#"{"rotation_id":3,"credential":"00ff"}"#);
    same::<ConfirmRotation>(r#"{"rotation_id":3}"#);
    same::<RotationConfirmed>(r#"{"took_effect":true}"#);
    same::<Stopping>(r#"{"left":3}"#);
    same::<Done>("{}");
}

#[test]
fn creating_an_instance() {
    same::<CreateInstance>(
        r#"{"instance":"i-1","session":"s-1","command":"agent","args":["--acp"],"env":{"A":"1"},"directory":"/w","source_roots":["/w"],"mode":"code"}"#,
    );
    reads_as::<CreateInstance>(
        r#"{"instance":"i-1","session":"s-1","command":"agent","directory":"/w"}"#,
        r#"{"instance":"i-1","session":"s-1","command":"agent","args":[],"env":{},"directory":"/w","source_roots":[]}"#,
    );
}

#[test]
fn resuming_and_what_is_left_of_an_agent() {
    same::<CreateInstance>(
        r#"{"instance":"i-1","session":"s-1","command":"agent","args":[],"env":{},"directory":"/w","source_roots":[],"resume":"conv"}"#,
    );
    same::<AgentEntry>(
        r#"{"server":"a1b2","instance":"i-1","session":"s-1","mark":"a1b2/i-1","process":{"pid":7,"start_time":99,"boot_id":"b"}}"#,
    );
    same::<AgentEntry>(r#"{"server":"a1b2","instance":"i-1","session":"s-1","mark":"a1b2/i-1"}"#);
}

#[test]
fn instances() {
    same::<InstanceList>(
        r#"{"instances":[{"instance":"i-1","session":"s-1","state":"ready","agent":{"pid":7,"start_time":99,"boot_id":"b"},"provider_session":"conv","source_roots":["/w"],"last_seq":5,"acknowledged":2,"retained":{"events":3,"bytes":120},"paused_since_ms":1700000000000,"attached":true,"turn":{"open":{"turn":4,"key":"k-4"},"kept":[{"turn":3,"key":"k-3","end":{"completed":{"stop_reason":"end_turn"}},"at_ms":1700000000001}]},"permissions":["p1"],"failure":"gone"}]}"#,
    );
    reads_as::<InstanceStatus>(
        r#"{"instance":"i-1","session":"s-1","state":"starting","last_seq":0,"acknowledged":0,"retained":{"events":0,"bytes":0},"attached":false,"turn":{}}"#,
        r#"{"instance":"i-1","session":"s-1","state":"starting","source_roots":[],"last_seq":0,"acknowledged":0,"retained":{"events":0,"bytes":0},"attached":false,"turn":{"kept":[]},"permissions":[]}"#,
    );
    for state in ["starting", "ready", "ended", "stopping"] {
        same::<InstanceState>(&format!("\"{state}\""));
    }
}

#[test]
fn turns() {
    same::<PromptRequest>(r#"{"key":"k-1","text":"hello"}"#);
    same::<PromptAccepted>(r#"{"turn":1}"#);
    same::<AcknowledgeTurn>(r#"{"turn":1}"#);
    same::<TurnStatus>(r#"{"kept":[]}"#);
    same::<TurnOutcome>(r#"{"turn":1,"key":"k-1","end":"cancelled","at_ms":1}"#);
    same::<TurnOutcome>(r#"{"turn":1,"key":"k-1","end":{"failed":{"error":"the agent ended"}},"at_ms":1}"#);
}

#[test]
fn events_of_every_kind_and_of_kinds_to_come() {
    let event = |kind: &str, payload: &str| {
        format!(
            r#"{{"instance":"i-1","seq":1,"at_ms":1700000000000,"kind":"{kind}","turn":2,"payload":{payload}}}"#
        )
    };
    // The payload is passed on byte for byte, whatever its spacing and its numbers.
    same::<Event>(&event(kind::UPDATE, r#"{"sessionUpdate": "x", "n": 1.0e2}"#));
    same::<Event>(&event("of_a_newer_build", "[1,null]"));
    same::<Event>(r#"{"instance":"i-1","seq":1,"at_ms":1,"kind":"update","payload":null}"#);
    let known = [
        kind::UPDATE,
        kind::PERMISSION_ASKED,
        kind::PERMISSION_ENDED,
        kind::TURN_STARTED,
        kind::TURN_ENDED,
        kind::ERROR,
    ];
    assert_eq!(
        known,
        ["update", "permission_asked", "permission_ended", "turn_started", "turn_ended", "error"]
    );
}

#[test]
fn payloads() {
    same::<OpenTurn>(r#"{"turn":1,"key":"k-1"}"#);
    same::<PermissionAsked>(
        r#"{"permission":"p1","options":[{"id":"yes","name":"Yes","kind":"allow_once"}],"tool_call":{"toolCallId":"t1"}}"#,
    );
    same::<AnswerPermission>(r#"{"option":"yes"}"#);
    same::<AnswerPermission>(r#"{"option":null}"#);
    same::<PermissionEnded>(r#"{"permission":"p1","option":null}"#);
    same::<AgentError>(
        r#"{"step":"agent_exited","message":"the agent ended with exit code 7","stderr":"it broke\n"}"#,
    );
    same::<AgentError>(r#"{"step":"oversized_line","message":"a line was skipped"}"#);
}

#[test]
fn frames() {
    same::<ServerFrame>(
        r#"{"events":[{"instance":"i-1","seq":1,"at_ms":1,"kind":"update","payload":{"a":1}}]}"#,
    );
    same::<ServerFrame>(r#"{"gap":{"from":1,"to":4}}"#);
    same::<ServerFrame>(r#"{"heartbeat":{}}"#);
    same::<ServerFrame>(r#"{"replaced":{}}"#);
    same::<ClientFrame>(r#"{"acknowledge":{"seq":4}}"#);
    same::<ClientFrame>(r#"{"heartbeat":{}}"#);
}

#[test]
fn refusals_and_refusals_to_come() {
    let codes = [
        (RefusalCode::Unauthorized, "unauthorized"),
        (RefusalCode::CredentialSuperseded, "credential_superseded"),
        (RefusalCode::HandshakeRefused, "handshake_refused"),
        (RefusalCode::UnknownRotation, "unknown_rotation"),
        (RefusalCode::ShuttingDown, "shutting_down"),
        (RefusalCode::UnknownInstance, "unknown_instance"),
        (RefusalCode::InstanceConflict, "instance_conflict"),
        (RefusalCode::NotReady, "not_ready"),
        (RefusalCode::TurnOpen, "turn_open"),
        (RefusalCode::OutcomesUnacknowledged, "outcomes_unacknowledged"),
        (RefusalCode::UnknownPermission, "unknown_permission"),
        (RefusalCode::BadRequest, "bad_request"),
        (RefusalCode::TooMany, "too_many"),
    ];
    for (code, text) in codes {
        assert_eq!(format!("\"{text}\""), serde_json::to_string(&code).unwrap());
        same::<Refusal>(&format!(r#"{{"code":"{text}","message":"m"}}"#));
    }
    let newer: Refusal = serde_json::from_str(r#"{"code":"of_a_newer_build","message":"m"}"#).unwrap();
    assert_eq!(RefusalCode::Unknown, newer.code);
}

#[test]
fn unknown_fields_are_ignored() {
    reads_as::<PromptRequest>(r#"{"key":"k-1","text":"t","newer":{"a":[1]}}"#, r#"{"key":"k-1","text":"t"}"#);
    reads_as::<ServerFrame>(r#"{"heartbeat":{"newer":1}}"#, r#"{"heartbeat":{}}"#);
    reads_as::<Stopping>(r#"{"left":1,"newer":null}"#, r#"{"left":1}"#);
}
