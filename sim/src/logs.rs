//! Log events of simulated processes become lines of their trace.

use std::fmt;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::slots::current;
use crate::trace::{Fields, Kind};

/// Routes the events of this whole process; once is enough.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Somebody else's subscriber (a test's own) stays: the run then has no log lines, which its scenario
        // will miss.
        let _kept = set_global_default(Routing);
    });
}

/// Finds the process by the thread that it runs on.
struct Routing;

impl Subscriber for Routing {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let root = metadata.target().split("::").next().unwrap_or_default();
        metadata.is_event() && OURS.contains(&root)
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some((world, key)) = current() else { return };
        let mut line = LineOf { message: String::new(), fields: Fields::new() };
        event.record(&mut line);
        if *event.metadata().level() != Level::INFO {
            line.fields.insert("level".to_owned(), event.metadata().level().to_string());
        }
        let hook = {
            let mut state = world.lock();
            if !state.alive(key) {
                return;
            }
            state.say(key, Kind::Log, line.message, line.fields);
            state.processes.get(&key).and_then(|process| process.log_hook.clone())
        };
        if let Some(hook) = hook {
            hook(event);
        }
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

struct LineOf {
    message: String,
    fields: Fields,
}

impl Visit for LineOf {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, value.to_string());
    }
}

impl LineOf {
    fn put(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.message = value;
        } else {
            self.fields.insert(field.name().to_owned(), value);
        }
    }
}

/// Whose events are lines. `laws` are the programs of this crate's own integration tests.
const OURS: [&str; 7] = ["controld", "backend_recovery", "wire", "seam", "sim", "scripted_agent", "laws"];
