//! Captures the warnings and errors that the nodes of this process log, so that a test can count them.

use std::fmt::{Debug, Write};
use std::sync::{LazyLock, Mutex, Once};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static LINES: LazyLock<Mutex<Vec<String>>> = LazyLock::new(Mutex::default);

/// More than any test looks at.
const LINES_MAX: usize = 100_000;

struct Keep;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Keep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("copperfs")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let mut lines = LINES.lock().unwrap();
        if lines.len() < LINES_MAX {
            lines.push(line.0);
        }
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

/// Captures log lines from now on.
pub(crate) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Keep).unwrap());
}

/// Lines that hold `text`. Other tests may run in this process: choose it well.
pub(crate) fn lines(text: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    lines
        .iter()
        .filter(|line| line.contains(text))
        .cloned()
        .collect()
}
