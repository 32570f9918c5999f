//! The log of a daemon. Its filter and its file can change while the daemon runs.

use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// A log that is longer than this when it is opened is renamed to `log.1`.
const LOG_BYTES_KEPT: u64 = 8 << 20;

/// The target of warnings that concern the user who mounts. The command that starts the daemon shows them, so each must be
/// understood alone.
pub const TO_THE_USER: &str = "copperfs::start";

/// The maximum number of bytes of a log that are searched for warnings.
const SEARCHED_MAX: u64 = 1 << 20;

/// Returns the warnings for the user in the log at `path`, after its first `begin` bytes.
#[must_use]
pub fn warnings_since(path: &Path, begin: u64) -> Vec<String> {
    let read = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        file.take(SEARCHED_MAX).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    // The mount stands, whether its log can be read or not.
    let text = read().unwrap_or_default();
    let mark = format!(" WARN {TO_THE_USER}: ");
    let lines = text.lines();
    let warnings = lines.filter_map(|line| Some(line.split_once(&mark)?.1.to_owned()));
    warnings.collect()
}

/// Opens the log at `path` for appending. A long log is renamed first.
///
/// # Errors
/// It cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() > LOG_BYTES_KEPT) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".1");
        let _kept_if_it_fails = fs::rename(path, aside);
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).open(path)
}

/// Where messages go.
enum Target {
    /// To standard error, with all that others write there: that of a daemon in the background.
    StandardError,
    /// To a file, or to the terminal if there is none.
    Own(Mutex<Option<File>>),
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    filter: reload::Handle<Targets, Registry>,
    target: Target,
    /// The file of the log, if it has a name.
    path: Mutex<Option<PathBuf>>,
}

impl Log {
    /// Begins the log of a process whose standard error is the file at `path`.
    ///
    /// # Errors
    /// `filter` is no filter, or there is a log already.
    pub fn of_background(filter: &str, path: Option<PathBuf>) -> io::Result<Self> {
        Self::begin(filter, Target::StandardError, path)
    }

    /// Begins the log of a process on a terminal, in the file at `path` if there is one.
    ///
    /// # Errors
    /// As [`Log::of_background`], or the file cannot be opened.
    pub fn of_foreground(filter: &str, path: Option<PathBuf>) -> io::Result<Self> {
        let file = path.as_deref().map(open).transpose()?;
        Self::begin(filter, Target::Own(Mutex::new(file)), path)
    }

    fn begin(filter: &str, target: Target, path: Option<PathBuf>) -> io::Result<Self> {
        let (layer, filter) = reload::Layer::new(parsed(filter)?);
        let log = Self(Arc::new(Inner {
            filter,
            target,
            path: Mutex::new(path),
        }));
        let writer = log.clone();
        let lines = fmt::layer()
            .with_ansi(false)
            .with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(layer).with(lines);
        subscriber.try_init().map_err(io::Error::other)?;
        Ok(log)
    }

    /// Changes what is logged.
    ///
    /// # Errors
    /// It is no filter.
    pub fn set_filter(&self, filter: &str) -> io::Result<()> {
        let filter = parsed(filter)?;
        self.0.filter.reload(filter).map_err(io::Error::other)
    }

    /// Writes to `file` from now on, which is at `path`.
    ///
    /// # Errors
    /// Standard error cannot be replaced.
    pub fn redirect(&self, file: File, path: PathBuf) -> io::Result<()> {
        match &self.0.target {
            Target::StandardError => rustix::stdio::dup2_stderr(&file)?,
            Target::Own(own) => *own.lock() = Some(file),
        }
        *self.0.path.lock() = Some(path);
        Ok(())
    }

    /// Opens the file again, which may have been renamed.
    ///
    /// # Errors
    /// It cannot be opened: the messages go where they have gone before.
    pub fn reopen(&self) -> io::Result<()> {
        let path = self.0.path.lock().clone();
        path.map_or(Ok(()), |path| self.redirect(open(&path)?, path))
    }
}

/// Parses a filter: words `LEVEL` and `MODULE=LEVEL`, with commas and perhaps spaces between them.
///
/// # Errors
/// It is no filter.
pub fn parsed(filter: &str) -> io::Result<Targets> {
    let filter: String = filter.split_whitespace().collect();
    let parsed = filter.parse::<Targets>();
    parsed.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Each message is one call.
impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0.target {
            Target::StandardError => io::stderr().write(bytes),
            Target::Own(own) => match &mut *own.lock() {
                Some(file) => file.write(bytes),
                None => io::stderr().write(bytes),
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_between_the_words_of_a_filter_are_no_part_of_them() {
        let spaced = parsed("info, copperfs_overlay=debug").unwrap();
        assert_eq!(spaced, parsed("info,copperfs_overlay=debug").unwrap());
        assert!(spaced.would_enable("copperfs_overlay::peer", &tracing::Level::DEBUG));
        assert!(!spaced.would_enable("copperfs::node", &tracing::Level::DEBUG));
    }

    #[test]
    fn warnings_for_the_user_are_those_of_this_start() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let warning = |text: &str| format!("2026-01-01T00:00:00Z  WARN {TO_THE_USER}: {text}\n");
        let before = warning("old");
        let after = [
            &*warning("one"),
            "2026-01-01T00:00:00Z  WARN copperfs::node: two\n",
            &*warning("three"),
        ];
        fs::write(log.path(), format!("{before}{}", after.concat())).unwrap();
        let begin = before.len() as u64;
        assert_eq!(warnings_since(log.path(), begin), ["one", "three"]);
        assert_eq!(warnings_since(Path::new("/nowhere"), 0), [""; 0]);
    }
}
