//! Turns texts into [`Settings`]: parses and checks every value, and completes it from the machine's facts.
//!
//! The only files that it accesses are the secret file (owner and mode) and those that [`super::network`]
//! reads.

use super::datasets;
use super::layer::{Layer, Source};
use super::machine::Machine;
use super::network::Network;
use super::reader::{Reader, Words, absolute_path, number_at_least};
use super::settings::{
    CacheSettings, DatasetSpec, EvictionPolicy, Freshness, IndexSpec, LogSettings, OpenMode,
    OriginSpec, Orphan, PushSettings, ReaddirPlus, Settings, SymlinkPolicy, Toggle,
};
use super::{ConfigError, ValueError, indexes, origins};
use crate::budgets::ServedPaths;
use crate::budgets::registry::Registry;
use copperfs_overlay::ItemPath;
use copperfs_policy::amounts::{
    ByteSize, Size, parse_bool, parse_cpus, parse_duration, share, whole_percent,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The least memory that a node can work with: a few blocks in flight and the names of a job.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// The maximum length of a Unix socket's path (`sun_path` without its NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Attributes and listings each get one part in 20 of the memory.
const METADATA_SHARE: u64 = 20;

/// Names that the kernel holds may take one part in 10 of the memory.
const INODES_SHARE: u64 = 10;

/// A daemon with at least this many processors has [`MANY_THREADS`] by default.
const MANY_PROCESSORS: usize = 8;
/// Threads that answer the kernel, and worker threads. With few threads, requests change threads less often,
/// and a small machine is left to its job (docs/adr/0004-one-worker-thread.md).
const FEW_THREADS: [usize; 2] = [2, 1];
/// The same for many processors. More threads would slow down a single reader of small files
/// (docs/BENCHMARKS.md, "Processors").
const MANY_THREADS: [usize; 2] = [4, 2];

const SYMLINKS: &Words<SymlinkPolicy> = &[
    ("relative", SymlinkPolicy::Relative),
    ("keep", SymlinkPolicy::Keep),
];
const OPEN: &Words<OpenMode> = &[
    ("zero-message", OpenMode::ZeroMessage),
    ("tracked", OpenMode::Tracked),
    ("passthrough", OpenMode::Passthrough),
];
const TOGGLE: &Words<Toggle> = &[
    ("auto", Toggle::Auto),
    ("on", Toggle::On),
    ("off", Toggle::Off),
];
const ORPHAN: &Words<Orphan> = &[
    ("wait", Orphan::Wait),
    ("origin", Orphan::Origin),
    ("error", Orphan::Error),
];
const READDIR_PLUS: &Words<ReaddirPlus> =
    &[("auto", ReaddirPlus::Auto), ("always", ReaddirPlus::Always)];

/// Makes settings from `layer`, whose paths are absolute ([`Layer::absolute`]).
///
/// # Errors
/// The first invalid value, with its location and a valid alternative.
pub fn resolve(layer: &Layer, machine: &Machine) -> Result<Settings, ConfigError> {
    let reader = Reader { layer };
    let mountpoint = reader.path("mountpoint")?.unwrap_or_default();
    let origins = reader.origins(machine.uid)?;
    let network = Network::resolve(reader, machine)?;
    let cache = reader.cache(machine)?;
    let disk = super::disk::resolve(reader, &network.peers.identity)?;
    let runtime_dir = reader.runtime_dir(&mountpoint, machine)?;
    let control_socket = control_socket(reader, &runtime_dir)?;
    let foreground = reader.parsed("foreground", parse_bool)?;
    let log = reader.log(&runtime_dir, foreground)?;
    let data_mount = reader.data_mount(&mountpoint)?;
    let mounts = data_mount.iter().chain([&mountpoint]).cloned().collect();
    let served = ServedPaths { origins, mounts };
    let threads = reader.threads(machine)?;
    Ok(Settings {
        indexes: reader.indexes(&served.origins)?,
        datasets: reader.datasets(&served)?,
        // 100 % would leave nothing to datasets, and 0 % nothing to all other files.
        shared_reserve_percent: reader
            .parsed("shared_reserve", |text| whole_percent(text, 1..=99))?,
        remote_io: reader.rate("remote_io")?,
        allocation_policy: reader.parsed("allocation_policy", policy)?,
        gpus: reader.optional("gpus", number_at_least(1))?,
        api_listen: reader.optional("api_listen", socket_address)?,
        origins: served.origins,
        environment: machine.origin_environment(),
        exclude: reader.exclude()?,
        members: network.peers.members,
        identity: network.peers.identity,
        roots: network.roots,
        orphan: reader.word("orphan", ORPHAN)?,
        silence: reader.positive_duration("silence")?,
        listen: network.listen,
        network: network.network,
        crossings: network.peers.crossings,
        arity: reader.count("arity", 1)?,
        secret_file: network.secret_file,
        cpus: threads.cpus,
        symlinks: reader.word("symlinks", SYMLINKS)?,
        open: reader.word("open", OPEN)?,
        allow_other: reader.parsed("allow_other", parse_bool)?,
        posix_acl: reader.word("posix_acl", TOGGLE)?,
        readdir_plus: reader.word("readdir_plus", READDIR_PLUS)?,
        whole_file_max: reader.bytes("whole_file_max")?.min(cache.data_bytes / 2),
        cache,
        disk,
        bundles: reader.parsed("bundles", parse_bool)?,
        bypass_above: reader.bytes_or_off("bypass_above")?,
        listing_attributes_max: reader.count("listing_attributes_max", 0)?,
        listing_entries_max: reader.count("listing_entries_max", 1)?,
        posix_concurrency: reader.count("posix_concurrency", 1)?,
        object_concurrency: reader.count("object_concurrency", 1)?,
        clock_skew: reader.parsed("clock_skew", parse_duration)?,
        request_timeout: reader.positive_duration("request_timeout")?,
        freshness: reader.parsed("freshness", freshness)?,
        ttl: reader.parsed("ttl", parse_duration)?,
        negative_ttl: reader.parsed("negative_ttl", parse_duration)?,
        push: reader.push()?,
        fuse_threads: threads.fuse,
        max_background: reader.parsed("max_background", number_at_least(1))?,
        worker_threads: threads.workers,
        control_socket,
        runtime_dir,
        log,
        foreground,
        data_mount,
        page_cache: reader.parsed("page_cache", parse_bool)?,
        mountpoint,
    })
}

fn control_socket(reader: Reader<'_>, runtime_dir: &Path) -> Result<PathBuf, ConfigError> {
    let path = runtime_dir.join("control.sock");
    if path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return Ok(path);
    }
    let why = format!(
        "{} is too long for a Unix socket in it; at most {} bytes",
        runtime_dir.display(),
        SOCKET_PATH_BYTES_MAX - "/control.sock".len()
    );
    Err(reader.wrong("runtime_dir", why))
}

fn freshness(text: &str) -> Result<Freshness, ValueError> {
    /// A shorter lease would expire before the answer that carries it is used.
    const LEASE_MIN: Duration = Duration::from_millis(100);
    if text == "job" {
        return Ok(Freshness::Job);
    }
    let Some(length) = text.strip_prefix("ttl=") else {
        return Err(format!("{text:?} is neither job nor ttl=30s, say").into());
    };
    let length = parse_duration(length)?;
    if length < LEASE_MIN {
        return Err(format!("ttl={length:?} is too short; at least 100ms").into());
    }
    Ok(Freshness::Ttl(length))
}

fn policy(text: &str) -> Result<String, ValueError> {
    Registry::default().set_policy(text)?;
    Ok(text.to_owned())
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let forms = "write ADDR:PORT, as in 10.0.0.1:7480 or [::]:7480";
    text.parse()
        .map_err(|error| format!("{text:?}: {error}; {forms}"))
}

/// The name of a mount's runtime directory: readable, and different for different mount points and hosts.
/// Hosts may share the parent directory, as containers and test hosts do.
#[must_use]
pub fn instance_name(mountpoint: &Path, host: &str) -> String {
    let mut identity = host.as_bytes().to_vec();
    identity.push(0);
    identity.extend_from_slice(mountpoint.as_os_str().as_encoded_bytes());
    let hash = blake3::hash(&identity).to_hex();
    let name: String = mountpoint
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "_-".contains(*c))
        .take(32)
        .collect();
    format!("{name}-{}", &hash[..12])
}

/// The daemon's threads.
struct Threads {
    /// The CPUs that they run on; empty for all.
    cpus: Vec<usize>,
    /// The number of threads that answer the kernel.
    fuse: usize,
    /// The number of threads of the async runtime.
    workers: usize,
}

impl Reader<'_> {
    fn threads(self, machine: &Machine) -> Result<Threads, ConfigError> {
        let cpus = self.optional("cpus", parse_cpus)?.unwrap_or_default();
        let processors = if cpus.is_empty() {
            machine.processors
        } else {
            cpus.len()
        };
        let [fuse, workers] = if processors < MANY_PROCESSORS {
            FEW_THREADS
        } else {
            MANY_THREADS
        };
        let count = |key, auto| match self.text(key) {
            Some("auto") => Ok(auto),
            _ => self.count(key, 1),
        };
        Ok(Threads {
            cpus,
            fuse: count("fuse_threads", fuse)?,
            workers: count("worker_threads", workers)?,
        })
    }

    fn cache(self, machine: &Machine) -> Result<CacheSettings, ConfigError> {
        let memory_bytes = match self.parsed("memory", Size::from_str)? {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => share(machine.memory_bytes, percent),
        };
        // The default, a share of the machine's memory, is raised to the minimum instead.
        if self.layer.is_set("memory") && memory_bytes < MEMORY_BYTES_MIN {
            let why = format!(
                "{} is too little; at least {} are needed",
                ByteSize(memory_bytes),
                ByteSize(MEMORY_BYTES_MIN)
            );
            return Err(self.wrong("memory", why));
        }
        if memory_bytes > machine.memory_bytes {
            let why = format!(
                "{} is more than the {} that this machine or cgroup has",
                ByteSize(memory_bytes),
                ByteSize(machine.memory_bytes)
            );
            return Err(self.wrong("memory", why));
        }
        let memory_bytes = memory_bytes.max(MEMORY_BYTES_MIN);
        let metadata_bytes = memory_bytes / METADATA_SHARE;
        Ok(CacheSettings {
            memory_bytes,
            data_bytes: memory_bytes - 2 * metadata_bytes - memory_bytes / INODES_SHARE,
            attributes_bytes: metadata_bytes,
            listings_bytes: metadata_bytes,
            inodes_bytes: memory_bytes / INODES_SHARE,
            policy: self.word(
                "cache_policy",
                &[
                    ("s3-fifo", EvictionPolicy::S3Fifo),
                    ("lru", EvictionPolicy::Lru),
                ],
            )?,
        })
    }

    fn runtime_dir(self, mountpoint: &Path, machine: &Machine) -> Result<PathBuf, ConfigError> {
        let name = instance_name(mountpoint, machine.host_name());
        let usual = || machine.runtime_base().join(name);
        Ok(self.path("runtime_dir")?.unwrap_or_else(usual))
    }

    fn log(self, runtime_dir: &Path, foreground: bool) -> Result<LogSettings, ConfigError> {
        let file = self
            .path("log_file")?
            .or_else(|| (!foreground).then(|| runtime_dir.join("log")));
        Ok(LogSettings {
            level: self.parsed("log_level", log_filter)?,
            file,
        })
    }

    fn data_mount(self, mountpoint: &Path) -> Result<Option<PathBuf>, ConfigError> {
        let Some(path) = self.path("data_mount")? else {
            return Ok(None);
        };
        if path.starts_with(mountpoint) || mountpoint.starts_with(&path) {
            let why = format!(
                "{} and the mount point {} must be two directories, neither within the other",
                path.display(),
                mountpoint.display()
            );
            return Err(self.wrong("data_mount", why));
        }
        Ok(Some(path))
    }

    fn push(self) -> Result<PushSettings, ConfigError> {
        Ok(PushSettings {
            enabled: self.parsed("push", parse_bool)?,
            file_max_bytes: self.bytes("push_file_max")?,
            bytes_max: self.bytes("push_bytes_max")?,
        })
    }

    fn origins(self, uid: u32) -> Result<Vec<OriginSpec>, ConfigError> {
        if !self.layer.is_set("origin") {
            if uid == 0 {
                return Err(ConfigError::NoOrigin);
            }
            return Ok(vec![OriginSpec {
                prefix: ItemPath::root(),
                uri: "file:///".into(),
                options: BTreeMap::new(),
            }]);
        }
        let mut origins: Vec<OriginSpec> = Vec::new();
        for value in self.layer.values("origin") {
            let spec = origins::parse(value).map_err(|error| self.wrong("origin", error))?;
            if let Some(twin) = origins.iter().find(|other| other.prefix == spec.prefix) {
                let why = format!(
                    "two origins for {}: {} and {}; each needs its own prefix",
                    spec.prefix, twin.uri, spec.uri
                );
                return Err(self.wrong("origin", why));
            }
            origins.push(spec);
        }
        if origins.is_empty() {
            return Err(self.wrong(
                "origin",
                "the list is empty; leave it out or name an origin",
            ));
        }
        Ok(origins)
    }

    fn indexes(self, origins: &[OriginSpec]) -> Result<Vec<IndexSpec>, ConfigError> {
        let mut found: Vec<IndexSpec> = Vec::new();
        let values = self.layer.values("index").iter();
        for value in values.filter(|value| !value.text.is_empty()) {
            let spec =
                indexes::parse(&value.text, origins).map_err(|error| self.wrong("index", error))?;
            if found.iter().any(|other| other.prefix == spec.prefix) {
                let why = format!("two indexes for {}; name one", spec.prefix);
                return Err(self.wrong("index", why));
            }
            found.push(spec);
        }
        Ok(found)
    }

    fn datasets(self, served: &ServedPaths) -> Result<Vec<DatasetSpec>, ConfigError> {
        datasets::parse_all(self.layer.values("dataset"), served)
            .map_err(|error| self.wrong("dataset", error))
    }

    fn exclude(self) -> Result<Option<Vec<PathBuf>>, ConfigError> {
        if !self.layer.is_set("exclude") {
            return Ok(None);
        }
        let texts = self.layer.values("exclude").iter().map(|value| &value.text);
        texts
            .filter(|text| !text.is_empty())
            .map(|text| absolute_path(text).map_err(|error| self.wrong("exclude", error)))
            .collect::<Result<_, _>>()
            .map(Some)
    }
}

fn log_filter(text: &str) -> Result<String, String> {
    tracing_subscriber::EnvFilter::try_new(text)
        .map(|_| text.to_owned())
        .map_err(|error| format!("{text:?} is not a filter ({error}); write info, or debug"))
}

/// The path of the configuration file that sets the origins of `layer`, if it holds credentials and other
/// users may read it.
#[must_use]
pub fn exposed_credentials(layer: &Layer) -> Option<PathBuf> {
    let Source::File { path, .. } = layer.location("origin").source else {
        return None;
    };
    let secret = |name: &String| {
        let name = name.to_ascii_lowercase();
        ["secret", "password", "token", "key"]
            .iter()
            .any(|word| name.contains(word))
    };
    let mut origins = layer.values("origin").iter();
    let holds = origins.any(|origin| origin.options.keys().any(secret));
    let mode = std::fs::metadata(&path).ok()?.mode();
    (holds && mode & 0o077 != 0).then_some(path)
}

#[cfg(test)]
mod tests;
