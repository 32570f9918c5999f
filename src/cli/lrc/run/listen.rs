//! The socket of a run, on which adapters write lines.

use super::relay::Input;
use crate::process::Process;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Connections at the same time. A further one is closed, and its adapter goes on without.
const CONNECTIONS_MAX: usize = 256;
/// Bytes of a line: a job of a few million inputs. An adapter that writes a longer one is cut off.
const LINE_BYTES_MAX: u64 = 256 << 20;
/// Lines of a connection that wait for their answers. Then no further line is read.
const ANSWERS_QUEUED: usize = 256;
/// Between two looks whether a process has ended.
const PROCESS_INTERVAL: Duration = Duration::from_millis(500);
/// How long lines that are on their way may take when the command has ended. An adapter that lives on in the background
/// is cut off then.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves adapters until `stop`, and then until all have closed their connections. Returns the number of connections.
/// With `ends_with_process`, the jobs of an adapter end when it has closed its connection and its process has ended.
pub(super) async fn listen(
    listener: UnixListener,
    inputs: mpsc::Sender<Input>,
    ends_with_process: bool,
    mut stop: oneshot::Receiver<()>,
) -> u64 {
    let (mut connections, mut watched) = (JoinSet::new(), JoinSet::new());
    let mut count = 0;
    loop {
        tokio::select! {
            _ = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < CONNECTIONS_MAX => {
                    count += 1;
                    let process = if ends_with_process { peer(&stream) } else { None };
                    let serving = serve(stream, count, inputs.clone());
                    let connection = count;
                    connections.spawn(async move {
                        serving.await;
                        (connection, process)
                    });
                }
                Ok(_) => tracing::debug!("too many connections"),
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    // Such as too many open files: without a pause this would be a busy loop.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(closed) = connections.join_next() => {
                if let Ok((connection, Some(process))) = closed {
                    let inputs = inputs.clone();
                    watched.spawn(async move {
                        ended(process).await;
                        let _finished = inputs.send(Input::Gone(connection)).await;
                    });
                }
            }
            Some(_) = watched.join_next() => {}
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    let _cut_off = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
    count
}

/// The process at the other end, if this process can see it.
fn peer(stream: &UnixStream) -> Option<Process> {
    let pid = u32::try_from(stream.peer_cred().ok()?.pid()?).ok()?;
    Process::open(pid).ok()?
}

/// Waits for the end of a process that has closed its connection, which is rare.
async fn ended(process: Process) {
    while !process.wait(Duration::ZERO).unwrap_or(true) {
        tokio::time::sleep(PROCESS_INTERVAL).await;
    }
}

/// Serves one connection until the adapter closes it.
async fn serve(stream: UnixStream, connection: u64, inputs: mpsc::Sender<Input>) {
    let (read, mut write) = stream.into_split();
    let (queue, mut answers) = mpsc::channel::<oneshot::Receiver<Vec<u8>>>(ANSWERS_QUEUED);
    let reading = async move {
        let mut lines = BufReader::new(read);
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut lines).take(LINE_BYTES_MAX);
            // A line without an end was cut off with its adapter.
            if bounded.read_until(b'\n', &mut line).await.is_err() || line.pop() != Some(b'\n') {
                break;
            }
            let (answer, answered) = oneshot::channel();
            let input = Input::Line {
                connection,
                line,
                answer,
            };
            if inputs.send(input).await.is_err() || queue.send(answered).await.is_err() {
                break;
            }
        }
    };
    let writing = async move {
        let mut is_open = true;
        while let Some(answered) = answers.recv().await {
            let Ok(mut answer) = answered.await else {
                break;
            };
            answer.push(b'\n');
            // An adapter that has gone away may have left lines, which are relayed all the same.
            is_open = is_open && write.write_all(&answer).await.is_ok();
        }
    };
    tokio::join!(reading, writing);
}
