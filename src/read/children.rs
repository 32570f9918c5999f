//! The read path as children use it: requests that come from the nodes below.

use super::ReadPath;
use super::data::Feed;
use super::file::FileRef;
use copperfs_overlay::{
    BundleRequest, BundleStream, Failure, FailureKind, Files, FilesFuture, FilesystemUsage,
    ItemPath, Leased, ListRequest, Listed, RangeAnswer, RangeRequest, ReadRequest, ReadStream,
    StatAnswers, StatRequest, XattrList,
};
use futures_util::{FutureExt, StreamExt, stream};

impl Files for ReadPath {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        if request.cursor.is_some() {
            // A later page of a large directory is not cached on the way: each node pages in its own steps.
            return self.source.list(request);
        }
        let metadata = self.metadata.clone();
        async move { metadata.list_for_child(request).await }.boxed()
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        let metadata = self.metadata.clone();
        async move { metadata.stat_for_child(request).await }.boxed()
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        if request.through {
            return self.source.read(request);
        }
        let blocks = request.first_block..request.first_block.saturating_add(request.block_count);
        let file = FileRef::requested(request.path, request.version, request.size, request.content);
        let parts = stream::unfold(
            Feed::new(self.data.clone(), file, blocks),
            |mut feed| async move {
                let part = feed.next().await?;
                Some((part, feed))
            },
        );
        std::future::ready(Ok(parts.boxed())).boxed()
    }

    fn read_range(&self, request: RangeRequest) -> FilesFuture<RangeAnswer> {
        let data = self.data.clone();
        async move {
            if let Some(fault) = request.fault() {
                return Err(Failure::new(FailureKind::Corrupt, fault));
            }
            let block = request.block();
            let range = request.offset..request.offset + request.len;
            // The content hash cannot be checked with a part of a block.
            let file = FileRef::new(request.path, request.version, request.size, None);
            let cut = data.pieces(&file, block, &range).await?;
            Ok(RangeAnswer::of(cut.bytes))
        }
        .boxed()
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        std::future::ready(Ok(self.data.bundle_for_child(request))).boxed()
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        let metadata = self.metadata.clone();
        async move {
            let list = metadata.xattrs_for_child(&path).await?;
            Ok(list.map(|list| list.as_ref().clone()))
        }
        .boxed()
    }

    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage> {
        let metadata = self.metadata.clone();
        async move { metadata.usage(&path).await }.boxed()
    }
}
