//! What one line of an agent is.

use std::borrow::Cow;

use agent_client_protocol::RawJsonRpcMessage;
use serde::Deserialize;
use serde_json::value::RawValue;

/// A line, as far as it concerns us.
#[derive(Debug)]
pub(super) enum Message {
    /// A `session/update`: its `update` object as written.
    Update(Box<RawValue>),
    /// A `session/update` without a session or without an update object.
    UnusableUpdate,
    /// A request or a response, for the protocol's crate.
    Exchange(RawJsonRpcMessage),
    /// Not of the protocol, or a notification that nobody here listens to.
    Noise,
}

impl Message {
    /// Reads one line.
    pub(super) fn of(line: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(line) else { return Self::Noise };
        let Ok(envelope) = serde_json::from_str::<Envelope<'_>>(text) else { return Self::Noise };
        if envelope.jsonrpc.is_none() {
            return Self::Noise;
        }
        if envelope.id.is_none() && envelope.method.as_deref() == Some("session/update") {
            return Self::update(envelope.params);
        }
        // The crate would answer what it cannot read into the agent's standard input; it never sees such a line.
        match serde_json::from_str::<RawJsonRpcMessage>(text) {
            Ok(RawJsonRpcMessage::Notification(_)) | Err(_) => Self::Noise,
            Ok(message) => Self::Exchange(message),
        }
    }

    fn update(params: Option<&RawValue>) -> Self {
        let params = params.and_then(|params| serde_json::from_str::<UpdateParams<'_>>(params.get()).ok());
        match params {
            Some(UpdateParams { update, session: _ }) if update.get().starts_with('{') => {
                Self::Update(without_lone_surrogates(update))
            }
            _ => Self::UnusableUpdate,
        }
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct UpdateParams<'a> {
    #[serde(rename = "sessionId", borrow)]
    #[expect(dead_code, reason = "only that it is there and a text")]
    session: Cow<'a, str>,
    #[serde(borrow)]
    update: &'a RawValue,
}

/// The value as written, but for escapes of half a UTF-16 pair, which become U+FFFD. Agents that cut their text by
/// UTF-16 units send such halves when a chunk ends inside an emoji; JSON's grammar allows them, yet no UTF-8 reader
/// can hold them, so that everybody after us would fail on the event.
fn without_lone_surrogates(value: &RawValue) -> Box<RawValue> {
    let text = value.get();
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return value.to_owned();
    }
    let mut mended = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        mended.push_str(before);
        let (written, taken) = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => (&escape[..12], 12),
            (Some(0xD800..=0xDFFF), _) => ("\\ufffd", 6),
            // Any other escape: the backslash and what it escapes, which may be a backslash itself.
            _ => (&escape[..2], 2),
        };
        mended.push_str(written);
        rest = &escape[taken..];
    }
    mended.push_str(rest);
    RawValue::from_string(mended).expect("replacing an escape by an escape keeps JSON valid")
}

/// The UTF-16 unit of a `\uXXXX` escape that begins here.
fn unit(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(line: &str) -> String {
        match Message::of(line.as_bytes()) {
            Message::Update(update) => update.get().to_owned(),
            other => panic!("not an update: {other:?}"),
        }
    }

    #[test]
    fn an_update_passes_as_written_with_fields_that_nobody_knows() {
        let written =
            r#"{ "sessionUpdate":"agent_message_chunk", "new":[1, 2.50],"content":{"text":"ä\n"} }"#;
        let line = format!(
            r#"{{"method":"session/update","jsonrpc":"2.0","params":{{"update":{written},"sessionId":"s"}}}}"#
        );
        assert_eq!(update(&line), written);
    }

    #[test]
    fn half_a_surrogate_pair_is_mended_and_a_whole_one_is_kept() {
        let line = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"t":"a\ud83d\ude00b\ud83d","u":"\ude00c\\ud83d \uD83D\n"}}}"#;
        let mended = update(line);
        assert_eq!(mended, r#"{"t":"a\ud83d\ude00b\ufffd","u":"\ufffdc\\ud83d \ufffd\n"}"#);
        serde_json::from_str::<serde_json::Value>(&mended).unwrap();
    }

    #[test]
    fn an_update_without_session_or_object_is_named_unusable() {
        for params in [
            "",
            r#","params":{}"#,
            r#","params":{"sessionId":"s","update":3}"#,
            r#","params":[1]"#,
            r#","params":{"update":{}}"#,
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"session/update"{params}}}"#);
            assert!(matches!(Message::of(line.as_bytes()), Message::UnusableUpdate), "{line}");
        }
    }

    #[test]
    fn requests_and_responses_are_exchanges() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"result":null}"#,
            r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32000,"message":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":0,"method":"fs/read_text_file","params":{}}"#,
        ] {
            assert!(matches!(Message::of(line.as_bytes()), Message::Exchange(_)), "{line}");
        }
    }

    #[test]
    fn everything_else_is_noise() {
        for line in [
            &b"Welcome!"[..],
            b"{\"level\":\"info\",\"method\":\"x\"}",
            b"[]",
            b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":1}]",
            b"\xff\xfe",
            b"{\"jsonrpc\":\"2.0\"}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"result\":1}",
            b"{\"jsonrpc\":\"2.0\",\"method\":\"_vendor/log\",\"params\":{}}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":",
            b"17",
            b"null",
        ] {
            assert!(matches!(Message::of(line), Message::Noise), "{}", String::from_utf8_lossy(line));
        }
    }
}
