//! Object stores as an origin: S3, Azure Blob, Google Cloud Storage, plain HTTP servers.
//!
//! Objects have a size, a time of modification and an `ETag`; the other attributes are constant. Slashes in keys make directories (the rules are in `listing`). Times are
//! whole seconds, because some answers of a store hold no more. A version is the `ETag`, or time and size if
//! there is none, together with the store's address and the object's key: equal tags on two servers, or of
//! two keys, are two versions. A version of time and size alone is valid for one launch only
//! ([`Standing::Launch`]).
//!
//! Every request to a store passes its `gate`, which limits the load on the store.

mod aimd;
mod aws;
mod build;
mod chain;
mod codes;
mod credentials;
mod error;
mod examine;
mod gate;
mod http;
mod listed_keys;
mod listing;
mod permissions;
mod read;

pub(super) use examine::VersionSource;
pub use permissions::permission_options;

use super::bundle::ranges;
use super::counters::StorePressure;
use super::error::OriginError;
use super::failure::Cause;
use super::options::{OriginOptions, OriginSpec};
use super::settling::{FileTimes, ObservedAt, SettlingTable};
use super::{
    Answer, ByteRange, ByteStream, ClaimFile, ClaimedStream, Origin, StatAnswers, child_of, now_ns,
    own_directory,
};
use crate::logging::TO_THE_USER;
use crate::num::to_usize;
use aws::AwsCredentials;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BundleRequest, Cursor, Failure, FailureKind, FileKind, FilesystemUsage, ItemPath,
    Listing, Standing, Timestamp, Version, XattrList, granularity,
};
use credentials::CredentialService;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use gate::{Gate, Permit, Priority};
use http::AsDirectory;
use object_store::list::PaginatedListStore;
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStore};
use parking_lot::RwLock;
use permissions::Permissions;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// The preferred size of a read, in bytes, as `stat` shows it.
const BLOCK_SIZE: u32 = 1 << 20;

/// Bytes of one bundle that are requested at the same time: as many concurrent GETs as the store can handle.
const BUNDLE_BYTES_AT_ONCE: u64 = 8 << 20;
/// Files of one bundle that are requested at the same time, at most.
const BUNDLE_FILES_AT_ONCE: u64 = 128;

/// An object store, or a part of one below a prefix. Cheap to clone.
#[derive(Clone)]
pub struct ObjectOrigin {
    shared: Arc<Shared>,
}

/// The way to a store.
struct Connection {
    /// Replaced as a whole when the credentials change. Locked for an instant, never across an await.
    client: RwLock<Arc<Client>>,
    /// Whether the store lists its keys, with any client.
    lists: bool,
    gate: Arc<Gate>,
    /// The prefix of all keys.
    prefix: object_store::path::Path,
    /// The name in messages.
    label: String,
    /// The address and prefix in canonical form, without credentials.
    address: String,
}

impl Connection {
    /// The present client. A request goes on with its client after another one has replaced it.
    fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client.read())
    }
}

/// A client of a store, with its credentials.
struct Client {
    store: Arc<dyn ObjectStore>,
    listing: ListingMode,
    /// The service that supplies credentials to a client of Azure or Google if none are configured.
    credentials: CredentialService,
    /// The credentials of a client of S3 that are not in its settings.
    aws: Option<Arc<AwsCredentials>>,
}

impl Client {
    /// The answer to a request. It is sent again if the store refuses its credentials and others are found.
    async fn with_others_if_refused<'a, T>(
        &self,
        send: impl Fn() -> BoxFuture<'a, object_store::Result<T>>,
    ) -> object_store::Result<T> {
        let Some(aws) = &self.aws else {
            return send().await;
        };
        let generation = aws.generation();
        match send().await {
            Err(error) if error::is_refusal(&error) && aws.has_others(generation).await => {
                send().await
            }
            answer => answer,
        }
    }
}

/// How the directories of a store are listed.
enum ListingMode {
    /// In pages of keys.
    Pages(Arc<dyn PaginatedListStore>),
    /// Whole.
    Whole,
    /// Not at all: a directory is found by a request for `name/`.
    Unsupported,
}

struct Shared {
    connection: Connection,
    /// A hash of the store's address: part of every version.
    seed: [u8; 32],
    /// The attributes of a directory, without its version.
    directory: Attributes,
    /// The permission bits of a file, whose owner is that of a directory.
    file_mode: u16,
    /// The maximum number of concurrent requests for one question.
    concurrency: usize,
    /// A permit for each prefetched part of an object, until its last piece is returned.
    prefetch: Arc<Semaphore>,
    /// The store is known to support ranges. A store without them sends the whole object for each part.
    supports_ranges: AtomicBool,
    /// Decides which states of young objects without reliable versions have settled.
    settling: SettlingTable,
}

impl ObjectOrigin {
    /// A client for `spec`. Sends nothing yet (see [`ObjectOrigin::check`]).
    ///
    /// # Errors
    /// A URI or option that cannot be understood.
    pub fn connect(spec: &OriginSpec, options: &OriginOptions) -> Result<Self, OriginError> {
        let permissions = Permissions::of(spec)?;
        let gate = Gate::new(options.object_concurrency);
        let connection = build::connect(spec, options, gate)?;
        Ok(Self::new(connection, permissions, options))
    }

    /// Another client of the same store, for [`ObjectOrigin::adopt`]. Reads files of credentials again. Sends nothing
    /// yet.
    ///
    /// # Errors
    /// A URI or option that cannot be understood, or that leads to another store.
    pub(super) fn again(
        &self,
        spec: &OriginSpec,
        options: &OriginOptions,
    ) -> Result<Self, OriginError> {
        let permissions = Permissions::of(spec)?;
        // The load on the store is that of both clients together.
        let gate = Arc::clone(&self.shared.connection.gate);
        let connection = build::connect(spec, options, gate)?;
        if connection.address != self.shared.connection.address {
            return Err(OriginError::Elsewhere {
                uri: connection.label,
            });
        }
        Ok(Self::new(connection, permissions, options))
    }

    /// Sends further requests with the client of `other`, which is for the same store.
    pub(super) fn adopt(&self, other: &Self) {
        let client = other.shared.connection.client();
        *self.shared.connection.client.write() = client;
    }

    /// The name in messages.
    pub(super) fn label(&self) -> &str {
        &self.shared.connection.label
    }

    /// Serves `store` below `prefix`, under the name `label`. The store lists without pages.
    #[must_use]
    pub fn over(
        store: Arc<dyn ObjectStore>,
        prefix: &object_store::path::Path,
        label: &str,
        options: &OriginOptions,
    ) -> Self {
        let client = Client {
            store,
            listing: ListingMode::Whole,
            credentials: CredentialService::default(),
            aws: None,
        };
        let connection = Connection {
            lists: client.listing.is_supported(),
            client: RwLock::new(Arc::new(client)),
            gate: Gate::new(options.object_concurrency),
            prefix: prefix.clone(),
            label: label.to_owned(),
            address: format!("{label} {prefix}"),
        };
        Self::new(connection, Permissions::default(), options)
    }

    fn new(connection: Connection, permissions: Permissions, options: &OriginOptions) -> Self {
        let store = store_of(&connection.address, &connection.prefix);
        let own = own_directory();
        let (uid, gid) = permissions.owner.unwrap_or((own.uid, own.gid));
        Self {
            shared: Arc::new(Shared {
                prefetch: Arc::new(Semaphore::new(read::PREFETCH_PARTS_TOTAL)),
                // A plain HTTP origin may be any web server, which first has to prove it.
                supports_ranges: AtomicBool::new(connection.lists),
                settling: SettlingTable::new(options.clock_skew),
                seed: *blake3::hash(store.as_bytes()).as_bytes(),
                directory: Attributes {
                    block_size: BLOCK_SIZE,
                    mode: permissions.directories.unwrap_or(own.mode),
                    uid,
                    gid,
                    ..own
                },
                file_mode: permissions.files,
                concurrency: options.object_concurrency.max(1),
                connection,
            }),
        }
    }

    /// Its canonical address and prefix, without credentials, as used in versions.
    pub(super) fn address(&self) -> &str {
        &self.shared.connection.address
    }

    /// How the store copes with the requests.
    pub(super) fn pressure(&self) -> StorePressure {
        let gate = &self.shared.connection.gate;
        StorePressure {
            throttled: gate.throttled(),
            concurrency: gate.limit() as u64,
        }
    }

    /// Checks that the store answers and accepts the credentials. Sends one request, with its retries.
    ///
    /// # Errors
    /// No such bucket, no permission, no answer.
    pub async fn check(&self) -> Result<(), OriginError> {
        let shared = &self.shared;
        let Connection { prefix, label, .. } = &shared.connection;
        let error = match shared.has_directory(prefix.as_ref()).await {
            Err(error) => error,
            Ok(is_there) => {
                if !is_there {
                    tracing::warn!(
                        target: TO_THE_USER,
                        "no object lies below {label}: check the bucket and the prefix"
                    );
                }
                return Ok(());
            }
        };
        let mut cause = error::cause(&error, &shared.connection.client().credentials);
        let root = ItemPath::root();
        // A web server may have no index of its top and still serve the files below.
        let is_hidden = matches!(
            cause.kind,
            FailureKind::PermissionDenied | FailureKind::NotFound
        );
        if !shared.connection.lists && is_hidden {
            let detail = shared.failure("reach", &root, &cause).detail;
            tracing::warn!(detail, "the server shows no top directory");
            return Ok(());
        }
        if cause.kind == FailureKind::NotFound && cause.hint.is_empty() {
            cause = cause.with_hint(
                "nothing is there: check the bucket or container, the account and the endpoint",
            );
        }
        let failure = shared.failure("reach", &root, &cause);
        Err(OriginError::Unreachable(failure))
    }
}

impl ListingMode {
    fn is_supported(&self) -> bool {
        !matches!(self, Self::Unsupported)
    }
}

impl Shared {
    /// The key of `path`. Keys are UTF-8, so no object has another name.
    fn key(&self, path: &ItemPath) -> Result<String, Failure> {
        let below = match std::str::from_utf8(path.as_bytes()) {
            Ok(below) if !below.contains(|c: char| c.is_ascii_control()) => below,
            _ => {
                let cause = Cause::new(FailureKind::NotFound, "no object has such a name");
                return Err(self.failure("look up", path, &cause));
            }
        };
        Ok(match (self.connection.prefix.as_ref(), below) {
            ("", below) => below.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, below) => format!("{prefix}/{below}"),
        })
    }

    fn failure(&self, action: &str, path: &ItemPath, cause: &Cause) -> Failure {
        cause.failure(&self.connection.label, action, path)
    }

    /// The failure for an error of the store's client.
    fn failed(&self, action: &str, path: &ItemPath, error: &object_store::Error) -> Failure {
        let cause = error::cause(error, &self.connection.client().credentials);
        self.failure(action, path, &cause)
    }

    /// One GET or HEAD, for which the caller has a permit.
    async fn get(
        &self,
        key: &str,
        options: GetOptions,
        _permit: &Permit,
    ) -> object_store::Result<GetResult> {
        let location = object_store::path::Path::parse(key)?;
        let client = self.connection.client();
        let send = || client.store.get_opts(&location, options.clone());
        client.with_others_if_refused(send).await
    }

    /// Metadata of the object `key`, or of `key/`. Takes the permit of a caller that has one: waiting for a second one could
    /// deadlock.
    async fn head(
        &self,
        key: &str,
        as_directory: bool,
        permit: Option<Permit>,
    ) -> object_store::Result<ObjectMeta> {
        let permit = match permit {
            Some(permit) => permit,
            None => self.connection.gate.enter(Priority::Demand).await,
        };
        let mut options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        if as_directory {
            options.extensions.insert(AsDirectory);
        }
        Ok(self.get(key, options, &permit).await?.meta)
    }

    /// Attributes of one path: a directory if there is one, otherwise the object.
    async fn stat_one(&self, path: &ItemPath) -> Result<Attributes, Failure> {
        let key = self.key(path)?;
        if path.is_root() {
            return Ok(self.directory_attributes(&key));
        }
        let requested = Instant::now();
        let object = self.head(&key, false, None);
        let (directory, object) = tokio::join!(self.has_directory(&key), object);
        match (directory, object) {
            (Ok(true), _) => Ok(self.directory_attributes(&key)),
            // Also if listing is refused: objects can be read by name without it.
            (_, Ok(meta)) => Ok(self.file_attributes(&meta, requested)),
            (Ok(false) | Err(object_store::Error::NotFound { .. }), Err(error))
            | (Err(error), Err(_)) => Err(self.failed("stat", path, &error)),
        }
    }

    /// Whether the version shows every change of the object, also during a transfer. A web server makes the
    /// tag of a file from its time and size (nginx from whole seconds), and sends the current content.
    fn has_reliable_version(&self, meta: &ObjectMeta) -> bool {
        has_strong_tag(meta) && self.connection.lists
    }

    /// Whether a whole object may be read, in one answer, under a version that has not settled.
    fn admits(&self, meta: &ObjectMeta, range: &ByteRange) -> bool {
        let key = meta.location.as_ref().as_bytes();
        !self.settling.is_old(times(meta), now_ns())
            && (self.settling).admit_read(key, &range.version, GRANULARITY, Instant::now())
    }

    /// Attributes of an object; `requested` is the time of the request. An object without a tag has only the times of a web
    /// server's file, which another file may have in the next launch.
    fn file_attributes(&self, meta: &ObjectMeta, requested: Instant) -> Attributes {
        let version = self.version(meta);
        let mut standing = tag(meta).map_or(Standing::Launch, |_| Standing::Lasting);
        if !self.has_reliable_version(meta) && !self.settling.is_old(times(meta), now_ns()) {
            let at = ObservedAt {
                requested,
                answered: Instant::now(),
            };
            let key = meta.location.as_ref().as_bytes();
            let unsettled = self.settling.observe(key, &version, GRANULARITY, at);
            standing = unsettled.map_or(standing, Standing::Unsettled);
        }
        let time = Timestamp {
            seconds: meta.last_modified.timestamp(),
            nanoseconds: 0,
        };
        Attributes {
            kind: FileKind::File,
            mode: self.file_mode,
            size: meta.size,
            blocks: meta.size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            version: version.standing_as(standing),
            ..self.directory.clone()
        }
    }

    /// Attributes of a directory. They are constant, because a store has no attributes of directories.
    fn directory_attributes(&self, key: &str) -> Attributes {
        Attributes {
            version: self.version_of(&format!("directory/{key}")),
            ..self.directory.clone()
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
}

/// `address` without the origin's prefix, which follows the address of the store in it.
fn store_of(address: &str, prefix: &object_store::path::Path) -> String {
    let (address, settings) = address.split_once(' ').unwrap_or((address, ""));
    let store = address.strip_suffix(prefix.as_ref()).unwrap_or(address);
    format!("{} {settings}", store.trim_end_matches('/'))
}

/// The tag of an object without quotes, which stores use in some answers and not in others.
fn tag(meta: &ObjectMeta) -> Option<&str> {
    let tag = meta.e_tag.as_deref()?;
    let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
    (!tag.is_empty()).then_some(tag)
}

fn has_strong_tag(meta: &ObjectMeta) -> bool {
    let is_weak = |tag: &str| tag.starts_with("W/");
    tag(meta).is_some() && !meta.e_tag.as_deref().is_some_and(is_weak)
}

/// The granularity of times in whole seconds.
const GRANULARITY: Duration = granularity(0);

fn times(meta: &ObjectMeta) -> FileTimes {
    FileTimes {
        newest_ns: i128::from(meta.last_modified.timestamp()) * 1_000_000_000,
        granularity: GRANULARITY,
    }
}

impl Origin for ObjectOrigin {
    fn list(&self, dir: ItemPath, cursor: Option<Cursor>, limit: usize) -> Answer<Listing> {
        Box::pin(Arc::clone(&self.shared).list(dir, cursor, limit))
    }

    fn stat(&self, parent: ItemPath, names: Vec<Bytes>) -> Answer<StatAnswers> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let concurrency = shared.concurrency;
            let answers = names.into_iter().map(|name| {
                let (shared, path) = (Arc::clone(&shared), child_of(&parent, &name));
                let path = path.map_err(|invalid| shared.failure("stat", &parent, &invalid));
                async move { shared.stat_one(&path?).await }
            });
            Ok(stream::iter(answers).buffered(concurrency).collect().await)
        })
    }

    fn open(&self, range: ByteRange) -> Answer<ByteStream> {
        Box::pin(Arc::clone(&self.shared).open(range))
    }

    fn bundle(&self, request: BundleRequest, claim: ClaimFile) -> ClaimedStream {
        let shared = Arc::clone(&self.shared);
        let largest = request.files.iter().map(|file| file.size).max();
        let at_once = BUNDLE_BYTES_AT_ONCE / largest.unwrap_or(0).max(1);
        let files: Vec<_> = ranges(request).collect();
        stream::iter(files)
            .map(move |(index, range)| Arc::clone(&shared).fetch(index, range, Arc::clone(&claim)))
            .buffer_unordered(to_usize(at_once.clamp(8, BUNDLE_FILES_AT_ONCE)))
            .filter_map(std::future::ready)
            .boxed()
    }

    fn xattrs(&self, path: ItemPath) -> Answer<XattrList> {
        let text = "objects have no extended attributes";
        let cause = Cause::new(FailureKind::Unsupported, text);
        let failure = self.shared.failure("read the attributes of", &path, &cause);
        Box::pin(std::future::ready(Err(failure)))
    }

    /// A store reports no limits. A pebibyte, all free, keeps programs from considering it full.
    fn usage(&self, _path: ItemPath) -> Answer<FilesystemUsage> {
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
        Box::pin(std::future::ready(Ok(usage)))
    }
}
