//! Object stores as an origin: S3, Azure Blob, Google Cloud Storage, plain HTTP servers.
//!
//! Objects know a size, a time of modification and an `ETag`; the rest of the attributes is configured
//! ([`super::ObjectAttributes`]). Directories are what lies between slashes (`listing`'s rules). Times
//! are whole seconds, because that is all that some answers of a store hold. A version is the `ETag`,
//! or time and size if there is none, together with the store's address and the object's key: equal tags on
//! two servers, or of two keys, are two versions. Time and size alone are valid for one launch only
//! ([`Standing::Launch`]).
//!
//! Whatever is asked of a store goes through its `gate`, which knows how much the store can take.

mod aimd;
mod build;
mod bundle;
mod codes;
mod credentials;
mod error;
mod examine;
mod gate;
mod http;
mod listed_keys;
mod listing;
mod read;

pub use examine::{ObjectTraits, VersionSource};

use super::error::OriginError;
use super::failure::worded;
use super::options::{ObjectAttributes, OriginOptions, OriginSpec};
use super::sightings::{Moment, Sightings, Times};
use super::{ByteRange, ByteStream, Origin, StatAnswers, TurnStream, Turns, now_ns};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BundleRequest, Cursor, Failure, FailureKind, FileKind, FilesystemUsage, ItemPath,
    Listing, Standing, Timestamp, Version, XattrList, granularity,
};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use gate::{Gate, Permit, Turn};
use http::AsDirectory;
use object_store::list::PaginatedListStore;
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStore};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What `stat` tells as the best size of a read, in bytes.
const BLOCK_SIZE: u32 = 1 << 20;

/// An object store, or a part of one below a prefix. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ObjectOrigin {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    names: Names,
    /// Key prefix, without slashes at its ends.
    prefix: String,
    label: String,
    /// The service that supplies credentials if none are configured.
    credentials: credentials::CredentialService,
    /// The address and prefix in canonical form.
    place: String,
    /// A hash of `place`: part of every version.
    seed: [u8; 32],
    attributes: ObjectAttributes,
    uid: u32,
    gid: u32,
    concurrency: usize,
    gate: Arc<Gate>,
    reads: read::Reads,
    /// Decides which states of young objects without reliable versions have settled.
    sightings: Sightings,
}

/// A store and its way of telling names.
struct Names {
    store: Arc<dyn ObjectStore>,
    /// Pages of keys, where the store can.
    pages: Option<Arc<dyn PaginatedListStore>>,
    /// No listing at all: directories are found by asking for `name/`.
    probed: bool,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The store's own form may show its configuration.
        f.debug_struct("Names")
            .field("probed", &self.probed)
            .finish_non_exhaustive()
    }
}

impl Names {
    fn paged<S: ObjectStore + PaginatedListStore>(store: Arc<S>) -> Self {
        Self {
            pages: Some(Arc::clone(&store) as Arc<dyn PaginatedListStore>),
            store,
            probed: false,
        }
    }

    fn probed(store: Arc<dyn ObjectStore>) -> Self {
        Self {
            store,
            pages: None,
            probed: true,
        }
    }
}

impl ObjectOrigin {
    /// A client for `spec`; nothing is sent yet (see [`ObjectOrigin::check`]).
    ///
    /// # Errors
    /// A URI or option that cannot be understood.
    pub fn connect(spec: &OriginSpec, options: &OriginOptions) -> Result<Self, OriginError> {
        build::connect(spec, options)
    }

    /// Serves `store` below `prefix`, under the name `label`. The store lists without pages.
    #[must_use]
    pub fn over(
        store: Arc<dyn ObjectStore>,
        prefix: &object_store::path::Path,
        label: &str,
        options: &OriginOptions,
    ) -> Self {
        let names = Names {
            store,
            pages: None,
            probed: false,
        };
        let gate = Gate::new(options.object_concurrency);
        let place = format!("{label} {prefix}");
        Self::new(names, gate, prefix, (label, &place), options)
    }

    fn new(
        names: Names,
        gate: Arc<Gate>,
        prefix: &object_store::path::Path,
        (label, place): (&str, &str),
        options: &OriginOptions,
    ) -> Self {
        let attributes = options.object_attributes;
        let uid = attributes
            .uid
            .unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let gid = attributes
            .gid
            .unwrap_or_else(|| rustix::process::getegid().as_raw());
        Self {
            inner: Arc::new(Inner {
                reads: read::Reads::new(&names),
                sightings: Sightings::new(options.clock_skew),
                names,
                gate,
                prefix: prefix.as_ref().to_owned(),
                label: label.to_owned(),
                credentials: credentials::CredentialService::default(),
                place: place.to_owned(),
                seed: *blake3::hash(store_of(place, prefix).as_bytes()).as_bytes(),
                attributes,
                uid,
                gid,
                concurrency: options.object_concurrency.max(1),
            }),
        }
    }

    /// Sets the credential `service` that the client uses. Must be called before the origin is cloned.
    fn asking(mut self, service: credentials::CredentialService) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.credentials = service;
        }
        self
    }

    /// Its canonical address and prefix, without credentials, as it is used in versions.
    pub(super) fn place(&self) -> &str {
        &self.inner.place
    }

    /// Attempts that the store refused for want of room, and how many it may be sent at a time now.
    pub(super) fn pressure(&self) -> (u64, usize) {
        (self.inner.gate.throttled(), self.inner.gate.limit())
    }

    /// Whether the store answers and lets us in. One request, with its retries.
    ///
    /// # Errors
    /// No such bucket, no permission, no answer.
    pub async fn check(&self) -> Result<(), OriginError> {
        let inner = &self.inner;
        let root = ItemPath::root();
        let result = if inner.names.probed {
            inner.head(&inner.prefix, true).await.map(drop)
        } else {
            inner.has_keys_below(&inner.prefix).await.map(|some| {
                if !some {
                    tracing::warn!(origin = inner.label, "no object lies below this prefix");
                }
            })
        };
        match result.map_err(|failure| inner.failure("reach", &root, &failure)) {
            Ok(()) => Ok(()),
            // A web server may have no index of its top and still serve the files below.
            Err(failure)
                if inner.names.probed
                    && matches!(
                        failure.kind,
                        FailureKind::PermissionDenied | FailureKind::NotFound
                    ) =>
            {
                tracing::warn!(detail = failure.detail, "the server shows no top directory");
                Ok(())
            }
            Err(failure) => {
                let bucket =
                    failure.kind == FailureKind::NotFound && !failure.detail.contains("; ");
                let hint = bucket.then_some(
                    "; nothing is there: check the bucket or container, the account and the endpoint",
                );
                let detail = failure.detail + hint.unwrap_or_default();
                Err(OriginError::Unreachable(Failure { detail, ..failure }))
            }
        }
    }
}

impl Inner {
    /// The key of `path`. Keys are UTF-8: other names exist nowhere here.
    fn key(&self, path: &ItemPath) -> Result<String, Failure> {
        let missing = || {
            self.fault(
                FailureKind::NotFound,
                "look up",
                path,
                "no object has such a name",
            )
        };
        let below = match std::str::from_utf8(path.as_bytes()) {
            Ok(below) if !below.contains(|c: char| c.is_ascii_control()) => below,
            _ => return Err(missing()),
        };
        Ok(match (self.prefix.as_str(), below) {
            ("", below) => below.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, below) => format!("{prefix}/{below}"),
        })
    }

    fn failure(&self, action: &str, path: &ItemPath, error: &object_store::Error) -> Failure {
        error::failure(&self.label, action, path, error, &self.credentials)
    }

    fn fault(&self, kind: FailureKind, action: &str, path: &ItemPath, cause: &str) -> Failure {
        worded(kind, &self.label, action, path, &cause, "")
    }

    /// One GET or HEAD, for which there is a permit.
    async fn get(
        &self,
        key: &str,
        options: GetOptions,
        _permit: &Permit,
    ) -> object_store::Result<GetResult> {
        let location = object_store::path::Path::parse(key)?;
        self.names.store.get_opts(&location, options).await
    }

    /// Metadata of the object `key`, or of `key/`.
    async fn head(&self, key: &str, as_directory: bool) -> object_store::Result<ObjectMeta> {
        let permit = self.gate.enter(Turn::Demand).await;
        self.head_by(key, as_directory, &permit).await
    }

    /// As [`Inner::head`], for one who has a permit: two of them could wait for each other.
    async fn head_by(
        &self,
        key: &str,
        as_directory: bool,
        permit: &Permit,
    ) -> object_store::Result<ObjectMeta> {
        let mut options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        if as_directory {
            options.extensions.insert(AsDirectory);
        }
        Ok(self.get(key, options, permit).await?.meta)
    }

    /// Attributes of one path: a directory if there is one, otherwise the object.
    async fn stat_one(&self, path: ItemPath) -> Result<Attributes, Failure> {
        let key = self.key(&path)?;
        if path.is_root() {
            return Ok(self.directory_attributes(&key));
        }
        let directory = async {
            if self.names.probed {
                self.head(&key, true).await.map(|_| true)
            } else {
                self.has_keys_below(&key).await
            }
        };
        let asked = Instant::now();
        let (directory, object) = tokio::join!(directory, self.head(&key, false));
        match (directory, object) {
            (Ok(true), _) => Ok(self.directory_attributes(&key)),
            // Whoever may not list can still read objects by name.
            (_, Ok(meta)) => Ok(self.file_attributes(&meta, asked)),
            (Ok(false) | Err(object_store::Error::NotFound { .. }), Err(failure))
            | (Err(failure), Err(_)) => Err(self.failure("stat", &path, &failure)),
        }
    }

    /// Whether any change of the object of `meta` shows, also one while it is sent. A web server makes
    /// its tags of a file's time and size, nginx of the whole second, and sends what is in the file.
    fn has_sure_version(&self, meta: &ObjectMeta) -> bool {
        has_strong_tag(meta) && !self.names.probed
    }

    /// How far the version of an object can be trusted. `asked` is the time of the request. An object
    /// without a tag has only the times of a web server's file, which another file may have in the next
    /// launch.
    fn standing(&self, meta: &ObjectMeta, asked: Instant) -> Standing {
        if self.has_sure_version(meta) {
            return Standing::Lasting;
        }
        let settled = match tag(meta) {
            Some(_) => Standing::Lasting,
            None => Standing::Launch,
        };
        if self.sightings.is_old(times(meta), now_ns()) {
            return settled;
        }
        let answered = Instant::now();
        let at = Moment { asked, answered };
        let key = meta.location.as_ref().as_bytes();
        let look = (self.sightings).look(key, &self.version(meta), GRANULARITY, at);
        look.map_or(settled, Standing::Unsettled)
    }

    /// Whether a whole object may be read, in one answer, under a version that has not settled.
    fn admits(&self, meta: &ObjectMeta, range: &ByteRange) -> bool {
        let key = meta.location.as_ref().as_bytes();
        let old = self.sightings.is_old(times(meta), now_ns());
        let now = Instant::now();
        !old && (self.sightings).admits(key, &range.version, GRANULARITY, now)
    }

    /// Attributes of an object; `asked` is the time of the request.
    fn file_attributes(&self, meta: &ObjectMeta, asked: Instant) -> Attributes {
        let seconds = meta.last_modified.timestamp();
        let time = Timestamp {
            seconds,
            nanoseconds: 0,
        };
        Attributes {
            kind: FileKind::File,
            mode: self.attributes.file_mode & 0o7777,
            size: meta.size,
            blocks: meta.size.div_ceil(512),
            version: self.version(meta).standing_as(self.standing(meta, asked)),
            ..self.attributes_at(time)
        }
    }

    /// A store knows nothing of directories; what is constant says so everywhere alike.
    fn directory_attributes(&self, key: &str) -> Attributes {
        let epoch = Timestamp {
            seconds: 0,
            nanoseconds: 0,
        };
        Attributes {
            version: self.version_of(&format!("directory/{key}")),
            ..self.attributes_at(epoch)
        }
    }

    /// The version for the object's state. It includes the store and the whole key, because another server
    /// under the same name may give the same tag to other bytes. It does not include the origin's prefix,
    /// so that an index of a part of the origin stays valid for it.
    fn version(&self, meta: &ObjectMeta) -> Version {
        let (size, key) = (meta.size, &meta.location);
        match tag(meta) {
            Some(tag) => self.version_of(&format!("tag/{size}/{tag}\0{key}")),
            None => {
                let seconds = meta.last_modified.timestamp();
                self.version_of(&format!("time/{size}/{seconds}\0{key}"))
            }
        }
    }

    fn version_of(&self, state: &str) -> Version {
        Version::of(&[&self.seed, state.as_bytes()].concat())
    }

    fn attributes_at(&self, time: Timestamp) -> Attributes {
        Attributes {
            kind: FileKind::Directory,
            mode: self.attributes.directory_mode & 0o7777,
            uid: self.uid,
            gid: self.gid,
            // 1 for directories too: "unknown" to find, which would otherwise skip subdirectories.
            links: 1,
            device: 0,
            size: 0,
            blocks: 0,
            block_size: BLOCK_SIZE,
            atime: time,
            mtime: time,
            ctime: time,
            version: Version::from_data([0; 16]),
            link_target: None,
            content: None,
        }
    }
}

/// The address of the store without the origin's prefix, which is the end of the address in `place`.
fn store_of(place: &str, prefix: &object_store::path::Path) -> String {
    let (address, settings) = place.split_once(' ').unwrap_or((place, ""));
    let store = address.strip_suffix(prefix.as_ref()).unwrap_or(address);
    format!("{} {settings}", store.trim_end_matches('/'))
}

/// Stores quote the tag in some answers and not in others.
fn tag(meta: &ObjectMeta) -> Option<&str> {
    let tag = meta.e_tag.as_deref()?;
    let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
    (!tag.is_empty()).then_some(tag)
}

fn has_strong_tag(meta: &ObjectMeta) -> bool {
    tag(meta).is_some()
        && !meta
            .e_tag
            .as_deref()
            .is_some_and(|tag| tag.starts_with("W/"))
}

/// The granularity of times in whole seconds.
const GRANULARITY: Duration = granularity(0);

fn times(meta: &ObjectMeta) -> Times {
    Times {
        newest_ns: i128::from(meta.last_modified.timestamp()) * 1_000_000_000,
        granularity: GRANULARITY,
    }
}

impl Origin for ObjectOrigin {
    fn list(
        &self,
        dir: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.list(dir, cursor, limit).await })
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<StatAnswers, Failure>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let concurrency = inner.concurrency;
            let answers = names.into_iter().map(|name| {
                let (inner, parent) = (Arc::clone(&inner), parent.clone());
                async move {
                    if name.is_empty() {
                        return inner.stat_one(parent).await;
                    }
                    match parent.join(&name) {
                        Ok(path) => inner.stat_one(path).await,
                        Err(invalid) => Err(inner.fault(
                            FailureKind::NotFound,
                            "stat",
                            &parent,
                            &invalid.to_string(),
                        )),
                    }
                }
            });
            Ok(stream::iter(answers).buffered(concurrency).collect().await)
        })
    }

    fn open(&self, range: ByteRange) -> BoxFuture<'static, Result<ByteStream, Failure>> {
        Box::pin(Arc::clone(&self.inner).open(range))
    }

    fn bundle(&self, request: BundleRequest, turns: Arc<dyn Turns>) -> TurnStream {
        Arc::clone(&self.inner).bundle(request, turns)
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<XattrList, Failure>> {
        let cause = "objects have no extended attributes";
        let failure = self.inner.fault(
            FailureKind::Unsupported,
            "read the attributes of",
            &path,
            cause,
        );
        Box::pin(async move { Err(failure) })
    }

    /// A store has no bounds to tell; a pebibyte, all free, keeps programs from judging it full.
    fn usage(&self, _path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
        const BLOCKS: u64 = 1 << 38;
        let usage = FilesystemUsage {
            blocks: BLOCKS,
            blocks_free: BLOCKS,
            blocks_available: BLOCKS,
            files: u64::from(u32::MAX),
            files_free: u64::from(u32::MAX),
            block_size: 4096,
            name_max: 255,
        };
        Box::pin(async move { Ok(usage) })
    }
}
