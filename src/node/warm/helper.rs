//! The daemon's handle of the helper process, whose own code is [`crate::warm::touch`].

use crate::process::Companion;
use crate::warm::touch::{FRAME_BYTES_MAX, Touched};
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, BufReader, BufWriter};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// How long a helper may take to end after its last answer.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// A helper process. Dropping it kills the process and reaps it.
pub(super) struct Helper(Option<Child>);

/// A killed child that is not waited for would stay a zombie while the daemon lives.
impl Drop for Helper {
    fn drop(&mut self) {
        if let (Some(mut child), Ok(runtime)) =
            (self.0.take(), tokio::runtime::Handle::try_current())
        {
            drop(runtime.spawn(async move {
                // It may have ended already.
                let _killed = child.kill().await;
            }));
        }
    }
}

/// Its standard input. Dropping it ends the helper.
pub(super) type Orders = BufWriter<ChildStdin>;

/// Its standard output.
pub(super) type Answers = BufReader<ChildStdout>;

impl Helper {
    /// Starts a helper for the mount at `mountpoint`: this same program, even if its file was replaced on disk.
    pub(super) fn start(mountpoint: &Path) -> io::Result<(Self, Orders, Answers)> {
        let mut child = Command::from(Companion::Helper.command())
            .arg(mountpoint)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("started without pipes"));
        };
        let orders = BufWriter::with_capacity(32 << 10, stdin);
        let answers = BufReader::with_capacity(32 << 10, stdout);
        Ok((Self(Some(child)), orders, answers))
    }

    /// Waits until it has ended, after its orders and its answers have.
    pub(super) async fn end(mut self) -> io::Result<()> {
        let Some(child) = &mut self.0 else {
            return Ok(());
        };
        let status: ExitStatus = tokio::time::timeout(END_PATIENCE, child.wait()).await??;
        if status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("it ended with {status}")))
    }
}

/// The next answer; `None` when the helper has ended. Must not be cancelled.
pub(super) async fn next(answers: &mut Answers) -> io::Result<Option<Touched>> {
    let mut length = [0; 4];
    match answers.read_exact(&mut length).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        outcome => outcome?,
    };
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    answers.read_exact(&mut body).await?;
    postcard::from_bytes(&body)
        .map(Some)
        .map_err(io::Error::other)
}
