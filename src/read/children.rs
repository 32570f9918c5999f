//! The read path as children use it: requests that come from the nodes below.

use super::ReadPath;
use super::data::Feed;
use super::file::FileRef;
use super::metadata::LookupOutcome;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BundleRequest, BundleStream, Cursor, Failure, FailureKind, Files, FilesystemUsage,
    ItemPath, Leased, Listed, Listing, ListingDigest, RangeAnswer, RangeRequest, ReadRequest,
    ReadStream, StatAnswers, Version, XattrList,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};

impl Files for ReadPath {
    fn list(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        let parts = self.list_parts(path, cursor, limit, None);
        async move { parts.await?.stream()?.collect().await }.boxed()
    }

    fn list_parts(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
        known: Option<ListingDigest>,
    ) -> BoxFuture<'static, Result<Listed, Failure>> {
        if cursor.is_some() {
            // A later page of a large directory is not cached on the way: each node pages in its own steps.
            return self.source.list_parts(path, cursor, limit, known);
        }
        let metadata = self.metadata.clone();
        async move { metadata.list_for_child(path, limit, known).await }.boxed()
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<Leased<StatAnswers>, Failure>> {
        let metadata = self.metadata.clone();
        async move {
            let lookups = metadata.look_up_all(&parent, &names).await?;
            let lease = lookups.lease;
            let lookups = names.iter().zip(lookups.value);
            let answers = lookups.map(|(name, lookup)| match lookup? {
                LookupOutcome::Attributes(attributes) => Ok(attributes),
                LookupOutcome::Absent => {
                    let path = parent.join(name).unwrap_or_else(|_| parent.clone());
                    Err(Failure::not_found(&path))
                }
            });
            Ok(Leased {
                value: answers.collect(),
                lease,
            })
        }
        .boxed()
    }

    fn stat_again(
        &self,
        parent: ItemPath,
        name: Bytes,
        denied: Version,
    ) -> BoxFuture<'static, Result<Leased<Attributes>, Failure>> {
        let metadata = self.metadata.clone();
        async move {
            let path = parent.join(&name).map_err(|invalid| {
                Failure::new(FailureKind::NameTooLong, format!("{parent}: {invalid}"))
            })?;
            metadata.attributes_unlike(&path, denied).await
        }
        .boxed()
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
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

    fn read_range(
        &self,
        request: RangeRequest,
    ) -> BoxFuture<'static, Result<RangeAnswer, Failure>> {
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

    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        std::future::ready(Ok(self.data.bundle_for_child(request))).boxed()
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<Leased<XattrList>, Failure>> {
        let metadata = self.metadata.clone();
        async move {
            let list = metadata.xattrs_for_child(&path).await?;
            Ok(list.map(|list| list.as_ref().clone()))
        }
        .boxed()
    }

    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
        let metadata = self.metadata.clone();
        async move { metadata.usage(&path).await }.boxed()
    }
}
