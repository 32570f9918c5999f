//! Makes the kernel forget what it caches of this node's mounts.

use super::Front;
use bytes::Bytes;
use copperfs_fuse as fuse;
use copperfs_overlay::ItemPath;
use fuse::Ino;
use futures_util::FutureExt;
use std::sync::Weak;

impl Front {
    /// Drops the cached state of `path` and below on this node and in its kernel, on both mounts. Returns
    /// after the kernel has dropped it, and returns whether anything was cached.
    pub(in crate::node) async fn clear(&self, path: &ItemPath) -> bool {
        let was_cached = self.clear_caches(path).await;
        self.forget_in_kernels(path).await;
        was_cached
    }

    /// The first part of [`Front::clear`]: drops what this node caches. Returns whether this node or its
    /// kernel had anything.
    pub(in crate::node) async fn clear_caches(&self, path: &ItemPath) -> bool {
        let is_known = |front: &Self| !front.inodes.below(path).is_empty();
        let was_known = is_known(self) || self.other_mount().as_ref().is_some_and(is_known);
        let was_cached = self.parts.clear_caches(path).await;
        was_known || was_cached
    }

    /// The second part of [`Front::clear`]: drops what the kernel has, on both mounts. It waits for reads
    /// in progress, because they lock pages.
    pub(in crate::node) async fn forget_in_kernels(&self, path: &ItemPath) {
        if let Some(images) = self.images.get() {
            images.release(path).await;
        }
        match self.other_mount() {
            Some(other) => {
                tokio::join!(self.forget_in_kernel(path), other.forget_in_kernel(path));
            }
            None => self.forget_in_kernel(path).await,
        }
        if let Some(images) = self.images.get() {
            images.renew(path);
        }
    }

    /// Has the kernel ask the daemon for everything, for as long as something is recorded.
    pub(in crate::node) async fn show_all_accesses(&self) {
        if let Some(images) = self.images.get() {
            let this = self.clone();
            images.pause(Box::new(move || this.recorder.is_on())).await;
        }
        self.forget_in_kernel(&ItemPath::root()).await;
    }

    fn other_mount(&self) -> Option<Self> {
        self.other.get().and_then(Weak::upgrade).map(Self)
    }

    /// Drops the kernel's caches of `path` and below on this mount, and returns after the kernel has done so. This node's
    /// caches stay.
    pub(in crate::node) async fn forget_in_kernel(&self, path: &ItemPath) {
        let Some(notifier) = self.notifier.get() else {
            return;
        };
        for number in self.inodes.below(path) {
            notifier.invalidate_inode(Ino(number)).await;
            self.inodes.invalidated(number);
            if !path.is_root() {
                self.invalidate_entry_of(notifier, number).await;
            }
        }
        if path.is_root() {
            self.invalidate_top(notifier).await;
        } else {
            // The kernel drops the names below a directory with it, present or absent, except those in use (an
            // open file, a working directory). Those were dropped above.
            self.invalidate_place(notifier, path).await;
        }
        notifier.flush().await;
    }

    /// Makes the kernel forget the name of an inode.
    async fn invalidate_entry_of(&self, notifier: &fuse::Notifier, number: u64) {
        if let Some((parent, name)) = self.inodes.entry(number)
            && let Some(parent) = self.inodes.number_at(&parent)
        {
            notifier.invalidate_entry(Ino(parent), name).await;
        }
    }

    /// Makes the kernel forget the name `path` and the listing that contains it, if it knows the directory.
    async fn invalidate_place(&self, notifier: &fuse::Notifier, path: &ItemPath) {
        if let Some((parent, name)) = path.split()
            && let Some(parent) = self.inodes.number_at(&parent)
        {
            let name = Bytes::copy_from_slice(name);
            notifier.invalidate_entry(Ino(parent), name).await;
            notifier.invalidate_inode(Ino(parent)).await;
        }
    }

    /// Like [`Front::invalidate_place`], but does not wait for room in the queue.
    pub(super) fn invalidate_place_soon(&self, path: &ItemPath) {
        let (this, path) = (self.clone(), path.clone());
        soon(async move {
            if let Some(notifier) = this.notifier.get() {
                this.invalidate_place(notifier, &path).await;
            }
        });
    }

    /// Makes the kernel forget the attributes of an inode, but does not wait for room in the queue.
    pub(super) fn invalidate_attributes_soon(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get().cloned() {
            soon(async move { notifier.invalidate_attributes(ino).await });
        }
    }

    /// Makes the kernel forget every name of the mount.
    async fn invalidate_top(&self, notifier: &fuse::Notifier) {
        let expired = notifier.expire_all_entries().await;
        let absent: Vec<Bytes> = self
            .absent_at_root
            .iter()
            .map(|name| name.clone())
            .collect();
        self.absent_at_root.clear();
        if expired {
            return;
        }
        for number in self.inodes.below(&ItemPath::root()) {
            self.invalidate_entry_of(notifier, number).await;
        }
        for name in absent {
            notifier.invalidate_entry(Ino::ROOT, name).await;
        }
    }
}

/// Queues invalidations for the answer to a request. It must not wait for room in the queue: the thread that makes room
/// may wait for a page that this request has locked.
fn soon(queueing: impl Future<Output = ()> + Send + 'static) {
    let mut queueing = queueing.boxed();
    if queueing.as_mut().now_or_never().is_none() {
        drop(tokio::spawn(queueing));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn an_answer_does_not_wait_for_room_in_the_queue() {
        let (make_room, room) = oneshot::channel::<()>();
        let (queued, told) = oneshot::channel();
        soon(async move {
            room.await.unwrap();
            queued.send(()).unwrap();
        });
        make_room.send(()).unwrap();
        told.await.unwrap();
    }

    #[tokio::test]
    async fn with_room_it_is_queued_at_once() {
        let (queued, mut told) = oneshot::channel();
        soon(async move { queued.send(()).unwrap() });
        told.try_recv().unwrap();
    }
}
