//! Standard output and standard error of the commands.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

/// Why output could not be written, as on a full disk.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Prints a line on standard output. A closed pipe is no error, because the user has closed it.
pub(super) fn say(line: impl Display) {
    say_bytes(format!("{line}\n").as_bytes());
}

/// Prints `bytes` on standard output, as [`say`] does.
pub(super) fn say_bytes(bytes: &[u8]) {
    let mut output = io::stdout();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            LOST.get_or_init(|| error);
        }
        _ => {}
    }
}

/// The error of [`say`], if not all lines could be written.
pub(super) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

/// Prints a line on standard error.
pub(super) fn fail(line: impl Display) {
    let _closed = writeln!(io::stderr(), "copperfs: {line}");
}
