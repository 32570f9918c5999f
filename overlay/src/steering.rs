//! Steering: frames that go up and down the trees while nodes live, and commands that climb.
//!
//! Each node keeps one stream to the ancestor from which it hangs in a tree. Up it says what it has to
//! report, down it hears what was decided; whoever is in charge is found by climbing. What the frames
//! mean is the business of the [`Service`](crate::Service) at both ends, and so is their version.
//!
//! On each way there is one place for a frame: a newer one takes the place of one that was not taken
//! yet. So a report or a decision must be whole in itself, and nothing queues up behind a slow peer.

use crate::exchange::unexpected;
use crate::model::{Failure, FailureKind};
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::message::{self, NodeId};
use crate::wire::{FrameKind, STEERING_BYTES_MAX};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// How often a side that has nothing to say shows that it lives.
const TICK: Duration = Duration::from_millis(500);
/// Commands that one node answers or passes on at a time, its children's; further ones wait unread.
/// Each may hold 2 MiB.
pub(crate) const COMMANDS_AT_ONCE: usize = 16;

/// Both ways of a stream to an ancestor ([`crate::Upstream::steer`]). Dropping either half ends it.
#[derive(Debug)]
pub struct Steering {
    /// Towards the ancestor.
    pub up: LatestSender,
    /// From the ancestor; ends when it is lost, or this node moves to another.
    pub down: LatestReceiver,
}

/// Where frames are put in. Clones put into the same place.
#[derive(Clone, Debug)]
pub struct LatestSender(watch::Sender<Option<Bytes>>);

/// Where frames come out.
#[derive(Debug)]
pub struct LatestReceiver(watch::Receiver<Option<Bytes>>);

/// Why a frame is not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotSent {
    /// Nobody takes frames any more.
    #[error("the stream has ended")]
    Ended,
    /// It has none or too many.
    #[error("a frame of {0} bytes: there must be 1 to 1,048,576")]
    Length(usize),
}

/// One way: a place for one frame.
#[must_use]
pub fn latest() -> (LatestSender, LatestReceiver) {
    let (sender, receiver) = watch::channel(None);
    (LatestSender(sender), LatestReceiver(receiver))
}

impl LatestSender {
    /// Puts `frame` in, in the place of one that was not taken yet.
    ///
    /// # Errors
    /// The stream has ended; a frame of no bytes, or of more than [`STEERING_BYTES_MAX`].
    pub fn send(&self, frame: Bytes) -> Result<(), NotSent> {
        if frame.is_empty() || frame.len() > STEERING_BYTES_MAX {
            return Err(NotSent::Length(frame.len()));
        }
        self.0.send(Some(frame)).map_err(|_unsent| NotSent::Ended)
    }

    /// Resolves when the stream has ended.
    pub async fn ended(&self) {
        self.0.closed().await;
    }
}

impl LatestReceiver {
    /// The next frame, the newest that there is; `None` when the stream has ended. May be cancelled.
    pub async fn recv(&mut self) -> Option<Bytes> {
        self.0.changed().await.ok()?;
        self.0.borrow_and_update().clone()
    }
}

/// Carries frames both ways over an open stream, until it ends, a half is dropped, or something comes
/// that has no place in it. Something is sent every [`TICK`], so that a reader's patience tells who is
/// gone from who has nothing to say.
pub(crate) async fn carry(
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
    heard: &LatestSender,
    mut said: LatestReceiver,
) -> Result<(), StreamError> {
    let hearing = async {
        loop {
            match reader.frame().await? {
                Some((FrameKind::Steering, body)) if body.is_empty() => {}
                Some((FrameKind::Steering, body)) => {
                    if heard.send(body).is_err() {
                        return Ok(());
                    }
                }
                Some((FrameKind::Failure, body)) => {
                    let failure: Failure = message::decode("failure", &body)?;
                    tracing::warn!(%failure, "a stream of steering was ended by the other side");
                    return Ok(());
                }
                Some((got, _)) => return Err(unexpected(got, "steering")),
                None => return Ok(()),
            }
        }
    };
    let telling = async {
        loop {
            let frame = match timeout(TICK, said.recv()).await {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(_elapsed) => Bytes::new(),
            };
            writer.frame(FrameKind::Steering, frame).await?;
        }
    };
    tokio::select! {
        ended = hearing => ended,
        ended = telling => ended,
        () = heard.ended() => Ok(()),
    }
}

/// Who is told when another stream takes a place, and which it is, by child and tree.
type Places = HashMap<(NodeId, usize), (u64, oneshot::Sender<()>)>;

/// The streams of steering that lead to this node: one for each child and tree.
#[derive(Debug, Default)]
pub(crate) struct Steered {
    /// Held for look-ups only; at most one entry for each connected child and tree.
    streams: Mutex<Places>,
    opened: AtomicU64,
}

/// The place of one stream among them.
pub(crate) struct Place<'a> {
    steered: &'a Steered,
    key: (NodeId, usize),
    number: u64,
    replaced: oneshot::Receiver<()>,
}

impl Steered {
    /// A place for a stream of `child` in `tree`, in that of an older one if there is one.
    pub(crate) fn enter(&self, child: NodeId, tree: usize) -> Place<'_> {
        let (replace, replaced) = oneshot::channel();
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let key = (child, tree);
        self.streams.lock().insert(key.clone(), (number, replace));
        Place {
            steered: self,
            key,
            number,
            replaced,
        }
    }
}

impl Place<'_> {
    /// Resolves when a newer stream has taken it.
    pub(crate) async fn replaced(&mut self) {
        // The sender goes when a newer one comes.
        let _gone = (&mut self.replaced).await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut streams = self.steered.streams.lock();
        if streams
            .get(&self.key)
            .is_some_and(|(number, _)| *number == self.number)
        {
            streams.remove(&self.key);
        }
    }
}

/// That this node steers nothing.
pub(crate) fn nobody() -> Failure {
    Failure::new(FailureKind::Unsupported, "this node steers nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_newer_frame_takes_the_place_of_one_not_taken() {
        let (sender, mut receiver) = latest();
        sender.send(Bytes::from_static(b"one")).unwrap();
        sender.send(Bytes::from_static(b"two")).unwrap();
        assert_eq!(receiver.recv().await.unwrap(), "two");
        sender.send(Bytes::from_static(b"last")).unwrap();
        assert_eq!(sender.send(Bytes::new()), Err(NotSent::Length(0)));
        let long = Bytes::from(vec![0; STEERING_BYTES_MAX + 1]);
        assert_eq!(
            sender.send(long),
            Err(NotSent::Length(STEERING_BYTES_MAX + 1))
        );
        drop(sender);
        assert_eq!(receiver.recv().await.unwrap(), "last");
        assert_eq!(receiver.recv().await, None);
        let (sender, receiver) = latest();
        drop(receiver);
        sender.ended().await;
        assert_eq!(sender.send(Bytes::from_static(b"x")), Err(NotSent::Ended));
    }

    #[tokio::test]
    async fn a_newer_stream_takes_the_place_of_an_older_one() {
        let steered = Steered::default();
        let id = || NodeId::Member(3);
        let mut older = steered.enter(id(), 0);
        let other = steered.enter(id(), 1);
        let newer = steered.enter(id(), 0);
        older.replaced().await;
        drop(older);
        assert_eq!(steered.streams.lock().len(), 2);
        drop(newer);
        drop(other);
        assert!(steered.streams.lock().is_empty());
    }
}
