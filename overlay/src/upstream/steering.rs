//! The child's side of steering and commands; see [`crate::steering`].

use super::{Retries, Upstream, answer_failure, impossible};
use crate::exchange::{AnswerError, expect_body, open_stream};
use crate::model::{Failure, FailureKind};
use crate::peer::{InFlight, Peer};
use crate::steering::{LatestReceiver, LatestSender, Steering, carry, latest};
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::upstream::parent_link::ParentLink;
use crate::wire::{FrameKind, Request, STEERING_BYTES_MAX};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Silence that a steering stream tolerates beyond that of a live connection. The parent sends at least two
/// frames in this time.
const SILENCE_MARGIN: Duration = Duration::from_secs(1);
/// Longer than any node runs.
const NO_DEADLINE: Duration = Duration::from_secs(100 * 365 * 86_400);

/// An open stream to a parent.
struct OpenStream {
    reader: FrameReader,
    writer: FrameWriter,
    in_flight: InFlight,
}

impl Upstream {
    /// Whether this node is the root of `tree`. A root has no parent to steer or to send commands to.
    #[must_use]
    pub fn is_root_of(&self, tree: usize) -> bool {
        self.inner.membership.is_root_of(tree)
    }

    /// The number of trees.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.inner.membership.trees()
    }

    /// Opens a steering stream to the parent in `tree`, and waits for a parent within the request timeout.
    /// The stream ends within two seconds after the parent has died, and when this node moves to another
    /// parent. The caller then opens the next one, after a pause if the stream ended at once.
    ///
    /// Must be called within a tokio runtime, which carries the frames until the stream ends.
    ///
    /// # Errors
    /// `Unsupported` if this node is the root ([`Upstream::is_root_of`]), or the parent does not steer;
    /// `Unavailable` if no ancestor can be reached.
    pub async fn steer(&self, tree: usize) -> Result<Steering, Failure> {
        let link = self.link_above(tree)?;
        let timeout = self.inner.config.request_timeout;
        let deadline = Instant::now() + timeout;
        let mut retries = Retries::default();
        let open = loop {
            let peer = link.parent(deadline).await?;
            let opening = timeout_at(deadline, self.open_steering(&peer, tree)).await;
            match opening.unwrap_or(Err(StreamError::Silent(timeout).into())) {
                Ok(opened) => break opened,
                Err(AnswerError::Stream(error))
                    if retries.may_replay(&error) && Instant::now() < deadline => {}
                Err(error) => return Err(answer_failure(&peer, error)),
            }
            let soon = deadline.min(Instant::now() + super::RESET_DELAY);
            link.moved_from(&peer, soon).await;
        };
        let (up, outgoing) = latest();
        let (incoming, down) = latest();
        tokio::spawn(run_stream(Arc::clone(link), open, incoming, outgoing));
        Ok(Steering { up, down })
    }

    /// Sends `command` to the parent in `tree`, once, and returns its answer. Both have at most
    /// [`STEERING_BYTES_MAX`] bytes. A command whose answer was lost is not repeated: it may have been
    /// carried out.
    ///
    /// # Errors
    /// `Unsupported` if this node is the root, or the parent takes no commands; `Unavailable` if no ancestor
    /// can be reached or the answer does not come within the request timeout; the failure of the node that
    /// answers.
    pub async fn command(&self, tree: usize, command: Bytes) -> Result<Bytes, Failure> {
        let link = self.link_above(tree)?;
        if command.len() > STEERING_BYTES_MAX {
            let detail = format!("a command of {} bytes is too long", command.len());
            return Err(Failure::new(FailureKind::Unsupported, detail));
        }
        let timeout = self.inner.config.request_timeout;
        let deadline = Instant::now() + timeout;
        let peer = link.parent(deadline).await?;
        let exchange = async {
            let tree = u8::try_from(tree).unwrap_or(u8::MAX);
            let mut open = self.open(&peer, &Request::Command { tree }).await?;
            open.writer.frame(FrameKind::Steering, command).await?;
            open.writer.finish();
            let answer = expect_body(&mut open.reader, FrameKind::Steering, "steering").await?;
            open.reader.finish()?;
            Ok(answer)
        };
        let outcome = timeout_at(deadline, exchange).await;
        let outcome = outcome.unwrap_or(Err(StreamError::Silent(timeout).into()));
        outcome.map_err(|error| answer_failure(&peer, error))
    }

    /// The link to the parent in `tree`.
    fn link_above(&self, tree: usize) -> Result<&Arc<ParentLink>, Failure> {
        self.parent_link(tree).ok_or_else(|| {
            let detail = match tree < self.trees() {
                true => format!("this node is the root of tree {tree}: nobody is above it"),
                false => format!("there is no tree {tree}"),
            };
            Failure::new(FailureKind::Unsupported, detail)
        })
    }

    /// Opens a steering stream to `peer`, which confirms it with an empty frame.
    async fn open_steering(
        &self,
        peer: &Arc<Peer>,
        tree: usize,
    ) -> Result<OpenStream, AnswerError> {
        let tree = u8::try_from(tree).unwrap_or(u8::MAX);
        let mut open = self.open(peer, &Request::Steer { tree }).await?;
        // Steering frames must not wait for file data on the same connection.
        open.writer.prioritize();
        let first = expect_body(&mut open.reader, FrameKind::Steering, "steering").await?;
        if !first.is_empty() {
            return Err(impossible("a decision too early").into());
        }
        open.reader.timeout = self.inner.config.silence + SILENCE_MARGIN;
        Ok(open)
    }

    /// Opens a stream that begins with `request` and stays open.
    async fn open(&self, peer: &Arc<Peer>, request: &Request) -> Result<OpenStream, StreamError> {
        let in_flight = peer.begin_request();
        let timeout = self.inner.config.request_timeout;
        let (reader, writer) = open_stream(&peer.connection, 0, request, timeout).await?;
        Ok(OpenStream {
            reader,
            writer,
            in_flight,
        })
    }
}

/// Carries the frames of one steering stream until it ends, or this node has another parent. The stream
/// counts as a request in flight, so that the parent is watched for life.
async fn run_stream(
    link: Arc<ParentLink>,
    mut open: OpenStream,
    incoming: LatestSender,
    outgoing: LatestReceiver,
) {
    let carrying = carry(&mut open.reader, &mut open.writer, &incoming, outgoing);
    let moved = link.moved_from(&open.in_flight, Instant::now() + NO_DEADLINE);
    let ended = tokio::select! {
        ended = carrying => ended,
        () = moved => return,
    };
    match ended {
        Ok(()) => open.writer.finish(),
        Err(error) => {
            let peer = &open.in_flight.label;
            tracing::info!(%peer, %error, "a stream of steering has ended");
        }
    }
}
