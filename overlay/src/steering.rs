//! Steering: reports that go up the trees, decisions that come down, and commands that go up.
//!
//! Each node keeps one stream to its parent in a tree. It sends its reports up and receives decisions on it.
//! The [`Service`](crate::Service) at both ends defines the frames and their version.
//!
//! Each direction holds one frame: a newer frame replaces one that was not read yet. So each report and each
//! decision must be complete in itself, and nothing queues up for a slow peer.

use crate::model::{Failure, FailureKind};
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::message::{self, NodeId};
use crate::wire::{FrameKind, STEERING_BYTES_MAX, WireError};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// Interval at which a side that has nothing to send shows that it is alive.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// Commands of children that one node answers or forwards at a time; further ones wait unread. Each may hold
/// 2 MiB.
pub(crate) const COMMANDS_MAX: usize = 16;

/// Both directions of a stream to the parent ([`crate::Upstream::steer`]). Dropping either half ends it.
#[derive(Debug)]
pub struct Steering {
    /// Frames to the parent.
    pub up: LatestSender,
    /// Frames from the parent. Ends when the parent is lost, or this node moves to another one.
    pub down: LatestReceiver,
}

/// The sending half of one direction. Clones replace each other's frames.
#[derive(Clone, Debug)]
pub struct LatestSender(watch::Sender<Option<Bytes>>);

/// The receiving half of one direction.
#[derive(Debug)]
pub struct LatestReceiver(watch::Receiver<Option<Bytes>>);

/// Why a frame was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SteeringSendError {
    /// The receiving half is gone.
    #[error("the stream has ended")]
    Ended,
    /// The frame is empty or too long.
    #[error("a frame of {0} bytes: there must be 1 to 1,048,576")]
    Length(usize),
}

/// Makes one direction, which holds one frame.
#[must_use]
pub fn latest() -> (LatestSender, LatestReceiver) {
    let (sender, receiver) = watch::channel(None);
    (LatestSender(sender), LatestReceiver(receiver))
}

impl LatestSender {
    /// Sends `frame`, which replaces one that was not read yet.
    ///
    /// # Errors
    /// See [`SteeringSendError`]; a frame has 1 to [`STEERING_BYTES_MAX`] bytes.
    pub fn send(&self, frame: Bytes) -> Result<(), SteeringSendError> {
        if frame.is_empty() || frame.len() > STEERING_BYTES_MAX {
            return Err(SteeringSendError::Length(frame.len()));
        }
        let sent = self.0.send(Some(frame));
        sent.map_err(|_unsent| SteeringSendError::Ended)
    }

    /// Resolves when the stream has ended.
    pub async fn ended(&self) {
        self.0.closed().await;
    }
}

impl LatestReceiver {
    /// Returns the newest frame, once there is one that was not returned before; `None` when the stream has
    /// ended. Cancel safe.
    pub async fn recv(&mut self) -> Option<Bytes> {
        self.0.changed().await.ok()?;
        self.0.borrow_and_update().clone()
    }
}

/// Carries frames both ways over an open stream, until it ends, a half is dropped, or the peer breaks the
/// protocol. Sends at least one frame every [`KEEP_ALIVE`], so that the reader's timeout tells a dead peer from
/// one that has nothing to send.
pub(crate) async fn carry(
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
    incoming: &LatestSender,
    mut outgoing: LatestReceiver,
) -> Result<(), StreamError> {
    let receiving = async {
        loop {
            match reader.frame_or_end().await? {
                // An empty frame is only a sign of life.
                Some((FrameKind::Steering, body)) if body.is_empty() => {}
                Some((FrameKind::Steering, body)) => {
                    if incoming.send(body).is_err() {
                        return Ok(());
                    }
                }
                Some((FrameKind::Failure, body)) => {
                    let failure: Failure = message::decode("failure", &body)?;
                    tracing::warn!(%failure, "a stream of steering was ended by the other side");
                    return Ok(());
                }
                Some((got, _)) => return Err(WireError::unexpected(got, "steering").into()),
                None => return Ok(()),
            }
        }
    };
    let sending = async {
        loop {
            let frame = match timeout(KEEP_ALIVE, outgoing.recv()).await {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(_elapsed) => Bytes::new(),
            };
            writer.frame(FrameKind::Steering, frame).await?;
        }
    };
    // Whichever side ends first ends the stream.
    tokio::select! {
        ended = receiving => ended,
        ended = sending => ended,
        () = incoming.ended() => Ok(()),
    }
}

/// The steering streams of children: at most one for each child and tree.
#[derive(Debug, Default)]
pub(crate) struct SteeringStreams(
    /// Each sender is dropped when a newer stream replaces its own. Held for look-ups only.
    Mutex<HashMap<(NodeId, usize), oneshot::Sender<()>>>,
);

/// The registration of one stream, removed on drop.
pub(crate) struct StreamRegistration<'a> {
    streams: &'a SteeringStreams,
    key: (NodeId, usize),
    replaced: oneshot::Receiver<()>,
}

impl SteeringStreams {
    /// Registers a stream of `child` in `tree`, which replaces an older one.
    pub(crate) fn register(&self, child: NodeId, tree: usize) -> StreamRegistration<'_> {
        let (replace, replaced) = oneshot::channel();
        let key = (child, tree);
        self.0.lock().insert(key.clone(), replace);
        StreamRegistration {
            streams: self,
            key,
            replaced,
        }
    }
}

impl StreamRegistration<'_> {
    /// Resolves when a newer stream has replaced this one.
    pub(crate) async fn replaced(&mut self) {
        // Nothing is ever sent: the sender is dropped.
        let _dropped = (&mut self.replaced).await;
    }
}

impl Drop for StreamRegistration<'_> {
    fn drop(&mut self) {
        self.replaced.close();
        // A newer stream may have the key by now: its channel is open.
        let mut streams = self.streams.0.lock();
        let newest = streams.get(&self.key);
        if newest.is_some_and(oneshot::Sender::is_closed) {
            streams.remove(&self.key);
        }
    }
}

/// The failure of a node that steers nothing.
pub(crate) fn no_steering() -> Failure {
    Failure::new(FailureKind::Unsupported, "this node steers nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_newer_frame_replaces_an_unread_one() {
        let (sender, mut receiver) = latest();
        sender.send(Bytes::from_static(b"one")).unwrap();
        sender.send(Bytes::from_static(b"two")).unwrap();
        assert_eq!(receiver.recv().await.unwrap(), "two");
        sender.send(Bytes::from_static(b"last")).unwrap();
        assert_eq!(sender.send(Bytes::new()), Err(SteeringSendError::Length(0)));
        let long = Bytes::from(vec![0; STEERING_BYTES_MAX + 1]);
        assert_eq!(
            sender.send(long),
            Err(SteeringSendError::Length(STEERING_BYTES_MAX + 1))
        );
        drop(sender);
        assert_eq!(receiver.recv().await.unwrap(), "last");
        assert_eq!(receiver.recv().await, None);
        let (sender, receiver) = latest();
        drop(receiver);
        sender.ended().await;
        assert_eq!(
            sender.send(Bytes::from_static(b"x")),
            Err(SteeringSendError::Ended)
        );
    }

    #[tokio::test]
    async fn a_newer_stream_replaces_an_older_one() {
        let registry = SteeringStreams::default();
        let id = || NodeId::Member(3);
        let mut older = registry.register(id(), 0);
        let other = registry.register(id(), 1);
        let newer = registry.register(id(), 0);
        older.replaced().await;
        drop(older);
        assert_eq!(registry.0.lock().len(), 2);
        drop(newer);
        drop(other);
        assert!(registry.0.lock().is_empty());
    }
}
