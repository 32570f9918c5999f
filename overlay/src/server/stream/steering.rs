//! Steering and commands, as the parent sees them: [`crate::steering`] says what they are.

use super::{Answer, Asker};
use crate::exchange::unexpected;
use crate::model::{Failure, FailureKind};
use crate::steering::{carry, latest};
use crate::transport::stream::{FrameReader, StreamError};
use crate::wire::message::NodeId;
use crate::wire::{FrameKind, STEERING_BYTES_MAX};
use bytes::Bytes;
use futures_util::FutureExt;
use std::time::Duration;

/// A child that says nothing for so long is gone: it says something twice a second, and finds its own
/// way back if it only was slow.
const SILENCE: Duration = Duration::from_secs(5);

impl Answer<'_> {
    /// Keeps a stream with a child in `tree` for as long as both want it.
    pub(super) async fn steer(
        &mut self,
        from: &Asker,
        tree: usize,
        reader: &mut FrameReader,
    ) -> Result<(), StreamError> {
        let child = match self.below(from, tree) {
            Ok(child) => child,
            Err(failure) => return self.failure(&failure).await,
        };
        let shared = self.shared;
        let mut place = shared.steered.enter(child.clone(), tree);
        let (heard, up) = latest();
        let (down, said) = latest();
        let name = shared.membership.name_of(child).to_owned();
        let mut steering = shared.service.steer(name, tree, up, down);
        // One that refuses at once is not begun.
        if let Some(ended) = (&mut steering).now_or_never() {
            let refused = ended.err().unwrap_or_else(crate::steering::nobody);
            return self.failure(&refused).await;
        }
        self.writer.precede();
        self.writer.frame(FrameKind::Steering, Bytes::new()).await?;
        reader.be_patient(SILENCE);
        let ended = tokio::select! {
            ended = &mut steering => ended,
            carried = carry(reader, self.writer, &heard, said) => return carried,
            () = place.replaced() => return Ok(()),
        };
        match ended {
            Ok(()) => Ok(()),
            Err(failure) => self.failure(&failure).await,
        }
    }

    /// Has a command of a child carried out.
    pub(super) async fn command(
        &mut self,
        from: &Asker,
        tree: usize,
        reader: &mut FrameReader,
    ) -> Result<(), StreamError> {
        if let Err(failure) = self.below(from, tree) {
            return self.failure(&failure).await;
        }
        // Never closed. What waits for its turn lies in QUIC's windows.
        let _turn = self.shared.commands.acquire().await.ok();
        let (kind, command) = reader.frame().await?.ok_or(StreamError::Truncated)?;
        if kind != FrameKind::Steering {
            return Err(unexpected(kind, "steering"));
        }
        match self.shared.service.command(tree, command).await {
            Ok(answer) if answer.len() > STEERING_BYTES_MAX => {
                let detail = format!("an answer of {} bytes is too long", answer.len());
                let failure = Failure::new(FailureKind::Unsupported, detail);
                self.failure(&failure).await
            }
            Ok(answer) => self.frame(FrameKind::Steering, answer).await,
            Err(failure) => self.failure(&failure).await,
        }
    }

    /// The child that asks, if it hangs from this node in `tree`.
    fn below<'a>(&self, from: &'a Asker, tree: usize) -> Result<&'a NodeId, Failure> {
        match from {
            Asker::Child(child, connection)
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
