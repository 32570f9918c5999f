//! Steering and commands, as the child sees them: [`crate::steering`] says what they are.

use super::{Upstream, again, impossible};
use crate::exchange::{trimmed, unexpected};
use crate::model::{Failure, FailureKind};
use crate::peer::{Asking, Peer};
use crate::steering::{LatestReceiver, LatestSender, Steering, carry, latest};
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::upstream::climb::{Hold, NoPeer};
use crate::wire::{FrameKind, Request, STEERING_BYTES_MAX, message};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// What an ancestor is given beyond the silence after which it counts as dead: it says something twice
/// in that time.
const GRACE: Duration = Duration::from_secs(1);
/// As long as a node lives.
const ALWAYS: Duration = Duration::from_secs(100 * 365 * 86_400);

/// An open stream.
struct Open {
    reader: FrameReader,
    writer: FrameWriter,
    asking: Asking,
}

impl Upstream {
    /// Whether this node is the root of `tree`: nobody is above it there, so that [`Upstream::steer`]
    /// and [`Upstream::command`] have nobody to turn to.
    #[must_use]
    pub fn is_root_of(&self, tree: usize) -> bool {
        self.inner.membership.is_root_of(tree)
    }

    /// How many trees there are.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.inner.membership.trees()
    }

    /// A stream to the ancestor from which this node hangs in `tree`, whom it waits for within the
    /// request time-out. It ends within two seconds after that ancestor has died, and when this node
    /// moves to another one: ask for the next then, after a pause if it ended at once.
    ///
    /// Must be called within a tokio runtime, which then carries the frames until the stream ends.
    ///
    /// # Errors
    /// `Unsupported` where there is nobody above ([`Upstream::is_root_of`]), or the ancestor does not
    /// steer; `Unavailable` when none can be reached.
    pub async fn steer(&self, tree: usize) -> Result<Steering, Failure> {
        let hold = self.hold_of(tree)?;
        let deadline = Instant::now() + self.inner.patience;
        let mut resets = 0;
        let open = loop {
            let peer = self.above(hold, deadline).await?;
            let opening = timeout_at(deadline, self.open_steering(&peer, tree));
            let error = match opening.await {
                Ok(Ok(opened)) => break opened?,
                Ok(Err(error)) => error,
                Err(_elapsed) => StreamError::Silent(self.inner.patience),
            };
            if !again(&error, &mut resets) || Instant::now() >= deadline {
                return Err(self.inner.failure(&peer, &error));
            }
            hold.left(&peer, deadline.min(Instant::now() + super::SOON))
                .await;
        };
        let (up, said) = latest();
        let (heard, down) = latest();
        tokio::spawn(keep(Arc::clone(hold), open, heard, said));
        Ok(Steering { up, down })
    }

    /// Asks the ancestor from which this node hangs in `tree`, once, and gives its answer. At most
    /// [`STEERING_BYTES_MAX`] each way. A command whose answer was lost is not repeated: it may have
    /// been carried out.
    ///
    /// # Errors
    /// `Unsupported` where there is nobody above, or the ancestor takes no commands; `Unavailable` when
    /// none can be reached or the answer does not come, within the request time-out; what the answerer
    /// failed with.
    pub async fn command(&self, tree: usize, command: Bytes) -> Result<Bytes, Failure> {
        let hold = self.hold_of(tree)?;
        if command.len() > STEERING_BYTES_MAX {
            let detail = format!("a command of {} bytes is too long", command.len());
            return Err(Failure::new(FailureKind::Unsupported, detail));
        }
        let deadline = Instant::now() + self.inner.patience;
        let peer = self.above(hold, deadline).await?;
        let exchange = async {
            let number = u8::try_from(tree).unwrap_or(u8::MAX);
            let request = Request::Command { tree: number };
            let Open {
                mut reader,
                mut writer,
                asking: _asking,
            } = self.open(&peer, &request).await?;
            writer.frame(FrameKind::Steering, command).await?;
            writer.finish();
            match reader.frame().await?.ok_or(StreamError::Truncated)? {
                (FrameKind::Steering, body) => {
                    reader.finish()?;
                    Ok(Ok(body))
                }
                (FrameKind::Failure, body) => Ok(Err(trimmed(message::decode("failure", &body)?))),
                (got, _) => Err(unexpected(got, "steering")),
            }
        };
        match timeout_at(deadline, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Err(self.inner.failure(&peer, &error)),
            Err(_elapsed) => {
                let error = StreamError::Silent(self.inner.patience);
                Err(self.inner.failure(&peer, &error))
            }
        }
    }

    /// This node's hold in `tree`, where there is anybody above it.
    fn hold_of(&self, tree: usize) -> Result<&Arc<Hold>, Failure> {
        self.hold(tree).ok_or_else(|| {
            let detail = match tree < self.trees() {
                true => format!("this node is the root of tree {tree}: nobody is above it"),
                false => format!("there is no tree {tree}"),
            };
            Failure::new(FailureKind::Unsupported, detail)
        })
    }

    async fn above(&self, hold: &Hold, deadline: Instant) -> Result<Arc<Peer>, Failure> {
        let found = hold.peer(deadline).await;
        found.map_err(|why| match why {
            NoPeer::Stranded(reason) | NoPeer::Late(reason) => self.inner.unreachable(&reason),
        })
    }

    async fn open_steering(
        &self,
        peer: &Arc<Peer>,
        tree: usize,
    ) -> Result<Result<Open, Failure>, StreamError> {
        let number = u8::try_from(tree).unwrap_or(u8::MAX);
        let mut open = self.open(peer, &Request::Steer { tree: number }).await?;
        // What is steered must not wait behind files.
        open.writer.precede();
        let first = open.reader.frame().await?;
        match first.ok_or(StreamError::Truncated)? {
            (FrameKind::Steering, body) if body.is_empty() => {}
            (FrameKind::Steering, _body) => return Ok(Err(impossible("a decision too early"))),
            (FrameKind::Failure, body) => {
                return Ok(Err(trimmed(message::decode("failure", &body)?)));
            }
            (got, _) => return Err(unexpected(got, "steering")),
        }
        open.reader.be_patient(self.inner.liveness.silence + GRACE);
        Ok(Ok(open))
    }

    /// A stream that begins with `request` and stays open.
    async fn open(&self, peer: &Arc<Peer>, request: &Request) -> Result<Open, StreamError> {
        let asking = peer.asking();
        let opening = peer.connection.open_bi();
        let (send, recv) = opening.await.map_err(StreamError::Lost)?;
        let body = message::encode_question(0, request)?;
        let mut writer = FrameWriter::new(send, self.inner.patience);
        writer.frame(FrameKind::Request, body).await?;
        Ok(Open {
            reader: FrameReader::new(recv, self.inner.patience),
            writer,
            asking,
        })
    }
}

/// Carries the frames of one stream until it ends, or this node hangs from somebody else. The peer is
/// watched for life meanwhile, so that this node looks elsewhere once it is silent.
async fn keep(hold: Arc<Hold>, mut open: Open, heard: LatestSender, said: LatestReceiver) {
    let carrying = carry(&mut open.reader, &mut open.writer, &heard, said);
    let moved = hold.left(open.asking.peer(), Instant::now() + ALWAYS);
    let ended = tokio::select! {
        ended = carrying => ended,
        () = moved => return,
    };
    match ended {
        Ok(()) => open.writer.finish(),
        Err(error) => {
            let peer = &open.asking.peer().label;
            tracing::info!(%peer, %error, "a stream of steering has ended");
        }
    }
}
