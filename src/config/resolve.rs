//! Turns texts into [`Settings`]: parses and checks every value, and completes it from the machine's facts.
//!
//! The only files that it accesses are the secret file (owner and mode) and those that [`super::network`]
//! reads.

use super::datasets;
use super::layer::{Layer, Source};
use super::machine::Machine;
use super::network::Network;
use super::reader::{absolute_path, number_at_least};
use super::settings::{
    CacheSettings, EvictionPolicy, IndexSpec, LogSettings, OpenMode, OriginSpec, Orphan,
    PushSettings, ReaddirPlus, Settings, SymlinkPolicy, ThreadSettings,
};
use super::{ConfigError, ValueError, indexes, origins};
use crate::budgets::ServedPaths;
use crate::budgets::registry::Registry;
use crate::model::CommandError;
use crate::model::DatasetSpec;
use copperfs_overlay::ItemPath;
use copperfs_overlay::transport::LANES_MAX;
use copperfs_policy::amounts::{
    ByteRate, ByteSize, Size, parse_bool, parse_cpus, parse_duration, share, whole_percent,
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

/// A daemon with at least this many processors has [`MANY_THREADS`] by default.
const MANY_PROCESSORS: usize = 8;
/// Threads that answer the kernel, and worker threads. With few threads, requests change threads less often,
/// and a small machine is left to its job (docs/adr/0004-one-worker-thread.md).
const FEW_THREADS: [usize; 2] = [2, 1];
/// The same for many processors. More threads would slow down a single reader of small files
/// (docs/BENCHMARKS.md, "Processors").
const MANY_THREADS: [usize; 2] = [4, 2];

/// Processors for each lane by default: one for each GPU of a usual training node.
const PROCESSORS_OF_LANE: usize = 8;
/// Most lanes by default.
const AUTO_LANES_MAX: usize = 8;

/// Makes settings from `layer`, whose paths are absolute ([`Layer::absolute`]).
///
/// # Errors
/// The first invalid value, with its location and a valid alternative.
pub fn resolve(layer: &Layer, machine: &Machine) -> Result<Settings, ConfigError> {
    use OpenMode::{Passthrough, Tracked, ZeroMessage};
    let mountpoint = layer.path("mountpoint")?.unwrap_or_default();
    let origins = layer.origins(machine.uid)?;
    let network = Network::resolve(layer, machine)?;
    let cache = layer.cache(machine)?;
    let runtime_dir = layer.runtime_dir(&mountpoint, machine)?;
    let allow_other = layer.parsed("allow_other", parse_bool)?;
    let foreground = layer.parsed("foreground", parse_bool)?;
    let data_mount = layer.data_mount(&mountpoint)?;
    let mounts = data_mount.iter().chain([&mountpoint]).cloned().collect();
    let served = ServedPaths { origins, mounts };
    let indexes = layer.indexes(&served)?;
    Ok(Settings {
        control_socket: control_socket(layer, &runtime_dir)?,
        log: layer.log(&runtime_dir, foreground)?,
        images: super::images::resolve(layer, &served, &indexes)?,
        indexes,
        datasets: layer.datasets(&served)?,
        // 100 % would leave nothing to datasets, and 0 % nothing to all other files.
        shared_reserve_percent: layer
            .parsed("shared_reserve", |text| whole_percent(text, 1..=99))?,
        pipelines_percent: layer.parsed("pipelines_share", |text| whole_percent(text, 0..=100))?,
        max_refs_per_tenant: layer.parsed("max_refs_per_tenant", number_at_least(1))?,
        remote_io: layer.optional("remote_io", |text| text.parse().map(|ByteRate(rate)| rate))?,
        allocation_policy: layer.parsed("policy", policy)?,
        gpus: layer.optional("gpus", number_at_least(1))?,
        api_listen: layer.optional("api_listen", socket_address)?,
        origins: served.origins,
        environment: machine.origin_environment(),
        exclude: layer.exclude()?,
        members: network.members,
        disk: super::disk::resolve(layer, &network.identity)?,
        identity: network.identity,
        roots: network.roots,
        orphan: layer.word("orphan", &[Orphan::Wait, Orphan::Origin, Orphan::Error])?,
        silence: layer.positive_duration("silence")?,
        listen: network.listen,
        network: network.network,
        crossings: network.crossings,
        rack: network.rack,
        arity: layer.count("arity", 1)?,
        secret_file: network.secret_file,
        threads: layer.threads(machine)?,
        symlinks: layer.word("symlinks", &[SymlinkPolicy::Relative, SymlinkPolicy::Keep])?,
        open: layer.word("open", &[ZeroMessage, Tracked, Passthrough])?,
        allow_other,
        posix_acl: layer.word("posix_acl", &[allow_other, true, false])?,
        readdir_plus: layer.word("readdir_plus", &[ReaddirPlus::Always, ReaddirPlus::Auto])?,
        whole_file_max: layer.bytes("whole_file_max")?.min(cache.data_bytes / 2),
        cache,
        bundles: layer.parsed("bundles", parse_bool)?,
        bypass_above: layer.bytes_or_off("bypass_above")?,
        listing_attributes_max: layer.count("listing_attributes_max", 0)?,
        listing_entries_max: layer.count("listing_entries_max", 1)?,
        posix_concurrency: layer.count("posix_concurrency", 1)?,
        object_concurrency: layer.count("object_concurrency", 1)?,
        clock_skew: layer.parsed("clock_skew", parse_duration)?,
        request_timeout: layer.positive_duration("request_timeout")?,
        lease: layer.parsed("freshness", lease)?,
        ttl: layer.parsed("ttl", parse_duration)?,
        negative_ttl: layer.parsed("negative_ttl", parse_duration)?,
        push: layer.push()?,
        max_background: layer.parsed("max_background", number_at_least(1))?,
        runtime_dir,
        foreground,
        takeover: layer.parsed("takeover", parse_bool)?,
        data_mount,
        page_cache: layer.parsed("page_cache", parse_bool)?,
        mountpoint,
    })
}

fn control_socket(layer: &Layer, runtime_dir: &Path) -> Result<PathBuf, ConfigError> {
    let path = runtime_dir.join("control.sock");
    if path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return Ok(path);
    }
    let why = format!(
        "{} is too long for a Unix socket in it; at most {} bytes",
        runtime_dir.display(),
        SOCKET_PATH_BYTES_MAX - "/control.sock".len()
    );
    Err(layer.wrong("runtime_dir", why))
}

fn lease(text: &str) -> Result<Option<Duration>, ValueError> {
    /// A shorter lease would expire before the answer that carries it is used.
    const LEASE_MIN: Duration = Duration::from_millis(100);
    if text == "job" {
        return Ok(None);
    }
    let Some(length) = text.strip_prefix("ttl=") else {
        return Err(format!("{text:?} is not valid: write job, or ttl=30s").into());
    };
    let length = parse_duration(length)?;
    if length < LEASE_MIN {
        return Err(format!("ttl={length:?} is too short; at least 100ms").into());
    }
    Ok(Some(length))
}

fn policy(text: &str) -> Result<String, CommandError> {
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
    let path = mountpoint.as_os_str().as_encoded_bytes();
    let hash = blake3::hash(&[host.as_bytes(), &[0], path].concat()).to_hex();
    let name = mountpoint.file_name().unwrap_or_default().to_string_lossy();
    let readable = |c: &char| c.is_ascii_alphanumeric() || "_-".contains(*c);
    let name: String = name.chars().filter(readable).take(32).collect();
    format!("{name}-{}", &hash[..12])
}

impl Layer {
    fn threads(&self, machine: &Machine) -> Result<ThreadSettings, ConfigError> {
        let cpus = self.optional("cpus", parse_cpus)?.unwrap_or_default();
        let processors = match cpus.len() {
            0 => machine.processors,
            own => own,
        };
        let [fuse, workers] = match processors {
            MANY_PROCESSORS.. => MANY_THREADS,
            _ => FEW_THREADS,
        };
        let count = |key, auto| match self.value(key) {
            Some("auto") => Ok(auto),
            _ => self.count(key, 1),
        };
        let lanes = (processors / PROCESSORS_OF_LANE).clamp(1, AUTO_LANES_MAX);
        let lanes = count("lanes", lanes)?;
        if lanes > LANES_MAX {
            let why = format!("{lanes} is too many; at most {LANES_MAX}");
            return Err(self.wrong("lanes", why));
        }
        Ok(ThreadSettings {
            fuse: count("fuse_threads", fuse)?,
            workers: count("worker_threads", workers)?,
            // One alone would do what the workers can do, and wake them for everything else.
            lanes: if lanes == 1 { 0 } else { lanes },
            cpus,
        })
    }

    fn cache(&self, machine: &Machine) -> Result<CacheSettings, ConfigError> {
        use EvictionPolicy::{Lru, S3Fifo};
        let memory_bytes = match self.parsed("memory", Size::from_str)? {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => share(machine.memory_bytes, percent),
        };
        let [given, least, most] =
            [memory_bytes, MEMORY_BYTES_MIN, machine.memory_bytes].map(ByteSize);
        // The default, a share of the machine's memory, is raised to the minimum instead.
        if self.is_set("memory") && given < least {
            let why = format!("{given} is too little; at least {least} are needed");
            return Err(self.wrong("memory", why));
        }
        if given > most {
            let why = format!("{given} is more than the {most} that this machine or cgroup has");
            return Err(self.wrong("memory", why));
        }
        let memory_bytes = memory_bytes.max(MEMORY_BYTES_MIN);
        let policy = self.word("eviction", &[S3Fifo, Lru])?;
        Ok(CacheSettings::new(memory_bytes, policy))
    }

    fn runtime_dir(&self, mountpoint: &Path, machine: &Machine) -> Result<PathBuf, ConfigError> {
        let name = instance_name(mountpoint, machine.host_name());
        let usual = || machine.runtime_base().join(name);
        Ok(self.path("runtime_dir")?.unwrap_or_else(usual))
    }

    fn data_mount(&self, mountpoint: &Path) -> Result<Option<PathBuf>, ConfigError> {
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

    fn log(&self, runtime_dir: &Path, foreground: bool) -> Result<LogSettings, ConfigError> {
        let usual = || (!foreground).then(|| runtime_dir.join("log"));
        Ok(LogSettings {
            level: self.parsed("log_level", log_filter)?,
            file: self.path("log_file")?.or_else(usual),
        })
    }

    fn push(&self) -> Result<PushSettings, ConfigError> {
        Ok(PushSettings {
            enabled: self.parsed("push", parse_bool)?,
            file_max_bytes: self.bytes("push_file_max")?,
            bytes_max: self.bytes("push_bytes_max")?,
        })
    }

    fn origins(&self, uid: u32) -> Result<Vec<OriginSpec>, ConfigError> {
        if !self.is_set("origin") {
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
        for value in self.values("origin") {
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
            let why = "the list is empty; leave it out or name an origin";
            return Err(self.wrong("origin", why));
        }
        Ok(origins)
    }

    fn datasets(&self, served: &ServedPaths) -> Result<Vec<DatasetSpec>, ConfigError> {
        let declared = datasets::parse_all(self.values("dataset"), served);
        declared.map_err(|error| self.wrong("dataset", error))
    }

    fn indexes(&self, served: &ServedPaths) -> Result<Vec<IndexSpec>, ConfigError> {
        let mut found: Vec<IndexSpec> = Vec::new();
        let values = self.values("index").iter();
        for value in values.filter(|value| !value.text.is_empty()) {
            let spec =
                indexes::parse(&value.text, served).map_err(|error| self.wrong("index", error))?;
            if found.iter().any(|other| other.prefix == spec.prefix) {
                let why = format!("two indexes for {}; name one", spec.prefix);
                return Err(self.wrong("index", why));
            }
            found.push(spec);
        }
        Ok(found)
    }

    fn exclude(&self) -> Result<Option<Vec<PathBuf>>, ConfigError> {
        if !self.is_set("exclude") {
            return Ok(None);
        }
        let values = self.values("exclude").iter();
        let texts = values.map(|value| value.text.as_str());
        let paths = texts.filter(|text| !text.is_empty()).map(absolute_path);
        let paths = paths.collect::<Result<_, _>>().map(Some);
        paths.map_err(|error| self.wrong("exclude", error))
    }
}

fn log_filter(text: &str) -> Result<String, String> {
    // A word that is no level would be the name of a part of the program, and hide all others.
    let mut words = text.split(',').map(str::trim);
    if let Some(word) = words.find(|word| is_misspelt_level(word)) {
        return Err(format!(
            "{word:?} is no level; write error, warn, info, debug or trace"
        ));
    }
    if text.contains(['[', '{']) {
        return Err(format!(
            "{text:?} names a span, and only modules have levels; write MODULE=LEVEL"
        ));
    }
    crate::logging::parsed(text)
        .map(|_| text.to_owned())
        .map_err(|error| format!("{text:?} is not a filter ({error}); write info, or debug"))
}

fn is_misspelt_level(word: &str) -> bool {
    let names_a_part = word.contains(['=', ':', '[', '_']) || word.starts_with("copperfs");
    let is_level = word.parse::<tracing::level_filters::LevelFilter>().is_ok();
    !word.is_empty() && !names_a_part && !is_level
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
        let words = ["secret", "password", "token", "key"];
        words.iter().any(|word| name.contains(word))
    };
    let mut origins = layer.values("origin").iter();
    let holds = origins.any(|origin| origin.options.keys().any(secret));
    let mode = std::fs::metadata(&path).ok()?.mode();
    (holds && mode & 0o077 != 0).then_some(path)
}

#[cfg(test)]
mod tests;
