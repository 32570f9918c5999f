//! The parent's side of steering and commands; see [`crate::steering`].

use super::{Answer, Requester};
use crate::exchange::{AnswerError, expect_body};
use crate::model::{Failure, FailureKind};
use crate::steering::{carry, latest, no_steering};
use crate::wire::message::NodeId;
use crate::wire::{FrameKind, STEERING_BYTES_MAX};
use bytes::Bytes;
use futures_util::FutureExt;
use std::time::Duration;

/// A child that sends nothing for this long is gone. A live child sends a frame twice a second, and opens a new
/// stream if it was only slow.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

impl<'a> Answer<'a> {
    /// Keeps a steering stream with a child in `tree` until either side ends it.
    pub(super) async fn steer(&mut self, tree: usize) -> Result<(), AnswerError> {
        let child = self.child_in(tree)?;
        let shared = self.shared;
        let mut registration = shared.steering.register(child.clone(), tree);
        let (incoming, up) = latest();
        let (down, outgoing) = latest();
        let name = shared.membership.name_of(child).to_owned();
        let mut steering = shared.service.steer(name, tree, up, down);
        // A service that refuses at once gets no stream.
        if let Some(ended) = (&mut steering).now_or_never() {
            return Err(ended.err().unwrap_or_else(no_steering).into());
        }
        self.writer.prioritize();
        self.writer.frame(FrameKind::Steering, Bytes::new()).await?;
        self.reader.timeout = SILENCE_TIMEOUT;
        // Dropping the others ends them: the service's future, the frames, or an older stream of the child.
        tokio::select! {
            ended = &mut steering => Ok(ended?),
            carried = carry(self.reader, self.writer, &incoming, outgoing) => Ok(carried?),
            () = registration.replaced() => Ok(()),
        }
    }

    /// Has the service carry out a child's command.
    pub(super) async fn command(&mut self, tree: usize) -> Result<(), AnswerError> {
        self.child_in(tree)?;
        // Never closed. A waiting command stays in QUIC's windows.
        let _permit = self.shared.commands.acquire().await.ok();
        let command = expect_body(self.reader, FrameKind::Steering, "steering").await?;
        let answer = self.shared.service.command(tree, command).await?;
        self.answer_frame(answer).await
    }

    /// Sends the answer to a command or a message.
    pub(super) async fn answer_frame(&mut self, answer: Bytes) -> Result<(), AnswerError> {
        if answer.len() > STEERING_BYTES_MAX {
            let detail = format!("an answer of {} bytes is too long", answer.len());
            return Err(Failure::new(FailureKind::Unsupported, detail).into());
        }
        self.frame(FrameKind::Steering, answer).await
    }

    /// The requester, if it is a child of this node in `tree`.
    fn child_in(&self, tree: usize) -> Result<&'a NodeId, Failure> {
        match self.requester {
            Requester::Child(child, connection)
                if self.shared.children.contains(child, tree, connection) =>
            {
                Ok(child)
            }
            _ => {
                let detail = format!("who asks does not hang from this node in tree {tree}");
                Err(Failure::new(FailureKind::PermissionDenied, detail))
            }
        }
    }
}
