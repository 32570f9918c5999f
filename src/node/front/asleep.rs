//! Wakes the inodes of an earlier daemon when the kernel asks for them.

use super::{Front, pending, report};
use copperfs_fuse as fuse;
use copperfs_overlay::FailureKind;
use fuse::{FsError, Ino, Response};

impl Front {
    /// Tells the journal of all that the next daemon has to know, for its snapshot.
    pub(in crate::node) fn tell_all(&self) {
        self.inodes.tell_all();
        if let Some(data) = &self.data {
            data.handles().tell_all();
        }
    }

    /// Asks for `ino` when it is awake.
    pub(super) fn when_awake<T: Send + 'static>(
        &self,
        ino: Ino,
        ask: impl FnOnce(&Self) -> Response<T> + Send + 'static,
    ) -> Response<T> {
        let this = self.clone();
        pending(async move {
            this.wake(ino).await?;
            ask(&this)?.resolve().await
        })
    }

    /// Wakes an inode under the attributes that its path has now.
    async fn wake(&self, ino: Ino) -> Result<(), FsError> {
        let path = self.inodes.asleep_path(ino.0);
        // Another request may have woken it meanwhile.
        let Some(path) = path else {
            return match self.inodes.get(ino.0) {
                Some(_) => Ok(()),
                None => Err(FsError::Stale),
            };
        };
        let is_awake = match self.metadata().attributes_of(&path).await {
            Ok(now) => self.inodes.wake(&path, ino.0, now.value),
            Err(failure) => match failure.kind {
                FailureKind::NotFound | FailureKind::NotADirectory => false,
                _ => return Err(report(&path, &failure)),
            },
        };
        if is_awake {
            return Ok(());
        }
        tracing::debug!(%path, "a file has changed since the daemon before had it: a reader gets ESTALE");
        self.invalidate_place_soon(&path);
        Err(FsError::Stale)
    }
}
