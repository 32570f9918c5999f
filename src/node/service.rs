//! What this node answers its children and its cluster.

use super::cluster::Cluster;
use super::front::Front;
use crate::read::ReadPath;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BundleRequest, BundleStream, Cursor, Failure, Files, FilesystemUsage, ItemPath,
    Listing, ReadRequest, ReadStream, Service, XattrList,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::OnceLock;

/// Files from the read path; the rest from the node. Serves from the moment the node listens, before
/// it is mounted.
pub(super) struct NodeService {
    pub(super) read: ReadPath,
    pub(super) cluster: Cluster,
    pub(super) front: std::sync::Arc<OnceLock<Front>>,
}

impl Files for NodeService {
    fn list(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        self.read.list(path, cursor, limit)
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<Vec<Result<Attributes, Failure>>, Failure>> {
        self.read.stat(parent, names)
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        Files::read(&self.read, request)
    }

    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        self.read.bundle(request)
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<XattrList, Failure>> {
        Files::xattrs(&self.read, path)
    }

    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
        Files::usage(&self.read, path)
    }
}

impl Service for NodeService {
    fn report(&self) -> Bytes {
        self.cluster.report()
    }

    fn clear(&self, path: ItemPath) -> BoxFuture<'static, Result<(), Failure>> {
        let (read, front) = (self.read.clone(), self.front.get().cloned());
        async move {
            match front {
                Some(front) => front.clear(&path).await,
                None => read.clear(&path),
            }
            Ok(())
        }
        .boxed()
    }
}
