//! The table of options. The flag, the variable, the key of the file, the line in `config/full.toml` and the lines
//! in `--help` are derived from one entry, so that none of them can be forgotten.

use std::sync::LazyLock;

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The key in the file. The flag has `-` for `_`, and the variable is `COPPERFS_` and the key in capitals.
    pub name: &'static str,
    /// The placeholder for its value in help texts.
    pub value: &'static str,
    /// The default value in the form of the file; empty if the option is unset by default.
    pub default: &'static str,
    /// The allowed words; empty if other values are allowed.
    pub choices: &'static [&'static str],
    /// The number and form of its values.
    pub form: Form,
    /// The heading in help texts.
    pub heading: &'static str,
    /// The help text, in full sentences. The first sentence is the short help.
    pub help: &'static str,
    /// Whether it can change while the mount lasts.
    pub reload: Reload,
}

/// Whether `copperfs reload` can change an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// It takes effect at once.
    Live,
    /// A part of it takes effect at once, which the text describes. [`crate::config::reload`] tells the parts apart.
    Partly(&'static str),
    /// Only a new mount can have another value.
    Remount,
}

/// The number and form of an option's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One value.
    One,
    /// A flag whose value may be omitted.
    Switch,
    /// Repeated flags, a list in the file, commas in the variable.
    Many,
    /// The positional argument.
    Positional,
}

impl Key {
    /// The flag, without dashes in front.
    #[must_use]
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The environment variable.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("COPPERFS_{}", self.name.to_ascii_uppercase())
    }

    const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// The node applies another value at once (`node::reload`).
    const fn live(self) -> Self {
        self.reload(Reload::Live)
    }

    const fn reload(self, reload: Reload) -> Self {
        Self { reload, ..self }
    }
}

/// The entry called `name` in the file.
#[must_use]
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

const fn key(name: &'static str, value: &'static str, help: &'static str) -> Key {
    Key {
        name,
        value,
        default: "",
        choices: &[],
        form: Form::One,
        heading: "",
        help,
        reload: Reload::Remount,
    }
}

const fn many(name: &'static str, value: &'static str, help: &'static str) -> Key {
    Key {
        form: Form::Many,
        ..key(name, value, help)
    }
}

/// An option with a choice of words. The first word is the default.
const fn choice(name: &'static str, choices: &'static [&'static str], help: &'static str) -> Key {
    Key {
        choices,
        ..key(name, "WORD", help).default(choices[0])
    }
}

const fn switch(name: &'static str, default: &'static str, help: &'static str) -> Key {
    Key {
        form: Form::Switch,
        ..key(name, "BOOL", help).default(default)
    }
}

/// Every option, in the order of the help text.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let below = |&(heading, keys): &(&'static str, &'static [Key])| {
        keys.iter().map(move |key| Key { heading, ..*key })
    };
    SECTIONS.iter().flat_map(below).collect()
});

/// The headings of the help text, and the options below each.
const SECTIONS: &[(&str, &[Key])] = &[
    ("What is served", NAMESPACE),
    ("The tree of nodes", TREE),
    ("Caches and requests", CACHES),
    ("Datasets, jobs and budgets", BUDGETS),
    ("The mount", MOUNT),
    ("Freshness", FRESHNESS),
    ("The caches of the kernel", KERNEL_CACHES),
    ("The daemon", PROCESS),
];

const NAMESPACE: &[Key] = &[
    Key {
        form: Form::Positional,
        ..key(
            "mountpoint",
            "MOUNT",
            "Where to mount; the sources may stand before it. Without a place: /copper_mnt, or, \
             for users if there is no such directory, /tmp/copperfs-UID/mnt. MOUNT is an empty \
             directory, which is made where it is missing. A SOURCE is a URI or a path, or \
             PREFIX=URI as for --origin; without PREFIX it is all that is mounted.",
        )
        .default("/copper_mnt")
    },
    many(
        "origin",
        "PREFIX=URI",
        "Serve URI below PREFIX of the mount; may be repeated. URI is file:///path, \
         s3://bucket/prefix, az://container/prefix, gs://bucket/prefix or http(s)://host/path; \
         /path alone is short for /path=file:///path. Credentials come from the usual places of \
         each store (docs/OBJECT-STORES.md), never from here. Without an origin, users get the whole \
         file system from /; root must name at least one.",
    )
    .reload(Reload::Partly(
        "an origin's options, such as credentials, but neither its prefix nor its uri",
    )),
    many(
        "index",
        "[PREFIX=]FILE",
        "Read the names below PREFIX from an index. Storage is not listed then. `copperfs index` \
         makes the index. FILE is a path, or a URI below an origin. If an origin serves it, every \
         node reads it through the tree. Otherwise, and if it is written as file:///path, the roots \
         read it on their hosts. PREFIX may be left out if there is one origin. May be repeated.",
    ),
    many(
        "exclude",
        "PATH",
        "Do not serve PATH of a POSIX origin; may be repeated. Replaces the default list of an \
         origin file:///, which is /proc, /sys, /dev, /run, /tmp, /var: directories that differ \
         from node to node are not shared storage. An empty value excludes nothing.",
    ),
    choice(
        "symlinks",
        &["relative", "keep"],
        "How absolute symlinks into served paths are shown. relative: as relative links, so that \
         they do not lead out of the mount. keep: with the text of the origin, as git and rsync \
         expect.",
    ),
];

const TREE: &[Key] = &[
    key(
        "hosts",
        "HOSTS",
        "All nodes in the order of the tree: a file, or h1,h2. The file has one host, \
         host:port or name=host:port per line (# begins a comment). slurm, pbs: the nodes of this job; mpi: those of the job \
         that an MPI launcher runs in. Slurm's short form is accepted anywhere: nid[001-128,200]. \
         The first node is the root, the only one that reads storage. Unset: this node is alone.",
    ),
    key(
        "host_suffix",
        "SUFFIX",
        "Reach the other nodes on the network that this suffix names. -hsn0 makes nid1-hsn0 of \
         nid1, and nid1-hsn0.cluster of nid1.cluster; .hsn is added at the end. Schedulers often \
         list the names of the management network. The same on all nodes.",
    ),
    key(
        "topology",
        "FILE",
        "Order the nodes so that few edges of the tree cross switches. FILE is Slurm's topology.conf, \
         or has lines of a rack and its hosts: r1 nid[001-016]. The first host stays the root. The \
         same content on all nodes.",
    ),
    choice(
        "instance_per",
        &["cluster", "rack"],
        "Which nodes form an instance: a tree or forest with its own roots, allocator and homes. \
         cluster: all of the host list. rack: those of one rack or lowest switch of the topology; \
         instances neither send each other anything nor share caches, and each one reads storage \
         for itself. The same on all nodes.",
    ),
    key(
        "rank",
        "N",
        "This node's place in the host list, from 0. Found by host name or address when not given.",
    ),
    key(
        "listen",
        "ADDR",
        "UDP address to listen on: ADDR:PORT, ADDR or :PORT. With other nodes the default is \
         0.0.0.0 and the port of this node's entry in the host list, or 7470.",
    ),
    key(
        "interface",
        "NAME|CIDR",
        "Listen only on this network: the name of the interface (hsn0), or a network that \
         contains its address (10.12.0.0/16). A host name with several addresses then stands for \
         the address in that network.",
    ),
    key(
        "arity",
        "K",
        "Children per node of the tree. The same on all nodes.",
    )
    .default("4"),
    key(
        "roots",
        "N|LIST",
        "The number of nodes that read storage, spread evenly over the host list, or their names: \
         r1,r2,... Each one answers for its share of the paths, and for the share of a root that \
         is gone. They must see the same storage. The same on all nodes; use at most as many as \
         the arity.",
    )
    .default("1"),
    choice(
        "orphan",
        &["wait", "origin", "error"],
        "What a node does when it cannot reach any root. wait: readers wait until a root can be \
         reached again, for request_timeout at most. origin: the node reads storage itself. \
         error: readers get EIO at once.",
    ),
    switch(
        "join",
        "false",
        "Join a running tree as a leaf, without being in its host list.",
    ),
    key(
        "silence",
        "DURATION",
        "The time without a packet from its parent after which a node turns to the next ancestor, \
         while requests are in progress.",
    )
    .default("1s"),
    key(
        "secret_file",
        "FILE",
        "The job secret, needed with other nodes. A file with the same content on all nodes, \
         readable by its owner only (mode 0600). copperfs launch makes one.",
    ),
];

const CACHES: &[Key] = &[
    key(
        "memory",
        "SIZE",
        "Memory for all caches: 10GiB, or a share such as 5%. It is also for reads in progress \
         and for the names that the kernel holds. A share is of the memory of the machine or of the \
         cgroup, whichever is smaller. The process takes up to 64 MiB more.",
    )
    .default("5%")
    .live(),
    key(
        "disk",
        "DIR:SIZE",
        "Keep file data below DIR too, up to SIZE: /nvme/copperfs:500GiB. SIZE may be a share of the \
         file system: /nvme/copperfs:80%. The data outlives the daemon and is checked when it is read. DIR is \
         this mount's own: an empty directory, one that does not exist yet, or one of an earlier \
         launch; {rank} in it stands for this node's place in the host list. On a tmpfs it is \
         memory that outlives the daemon.",
    ).reload(Reload::Partly("its size, but not its directory")),
    key(
        "disk_reserve",
        "PERCENT",
        "The share of the disk's file system that is left free.",
    )
    .default("5%").live(),
    choice(
        "eviction",
        &["s3-fifo", "lru"],
        "What a full cache evicts. s3-fifo: what was read only once goes first, so that one big \
         scan does not push out what is used again. lru: the least recently used goes first.",
    ),
    key(
        "whole_file_max",
        "SIZE",
        "Fetch files up to this size whole on their first read, if they take at most a quarter of \
         the memory for data. Of larger files the requested part is fetched, and readers that go \
         forward get blocks of 1 MiB with read-ahead.",
    )
    .default("64MiB").live(),
    switch(
        "bundles",
        "true",
        "Fetch the small files of a directory together when its first reads show that more will \
         follow, and the listings of directories ahead of a program that lists one after the \
         other. Prefetching is limited by the number of earlier prefetched files that were read.",
    ),
    key(
        "bypass_above",
        "SIZE",
        "Read files above this size straight from storage on every node, not through the tree. \
         off: never.",
    )
    .default("off"),
    key(
        "listing_attributes_max",
        "N",
        "The largest POSIX directory whose listing includes attributes. In larger ones attributes \
         are requested in batches when they are needed, because a stat costs the servers of a \
         parallel file system.",
    )
    .default("2000"),
    key(
        "listing_entries_max",
        "N",
        "The largest directory that is held as a whole. Larger ones are listed in pages, and \
         their names are looked up one by one.",
    )
    .default("100000"),
    key(
        "posix_concurrency",
        "N",
        "System calls at a time on a POSIX origin (root only); one that hangs is not counted.",
    )
    .default("16"),
    key(
        "object_concurrency",
        "N",
        "Requests at a time to one object store (root only). It begins with up to 32, rises while \
         the store answers, and is halved each time that the store answers 503 or 429.",
    )
    .default("64"),
    key(
        "clock_skew",
        "DURATION",
        "The largest difference between the clocks of storage and of the roots. A file whose \
         times are older than this is trusted; a younger one is examined twice before its times \
         count.",
    )
    .default("5m"),
    key(
        "request_timeout",
        "DURATION",
        "The time after which a waiting reader gets EIO. Only waiting for the tokens of a job takes longer.",
    )
    .default("30s"),
];

const BUDGETS: &[Key] = &[
    many(
        "dataset",
        "NAME=PATH|URI",
        "Declare a dataset: the files at PATH of the mount, or at a URI that an origin serves; \
         may be repeated. They are cached once in the cluster, within a budget. A [[dataset]] \
         table of the configuration file also has index, budget, origin_readers and keep. The \
         same on all nodes.",
    ),
    key(
        "shared_reserve",
        "PERCENT",
        "The share of memory for data, or of the disk, that datasets never touch: it is kept for all \
         other files, which in turn never touch the rest while datasets are declared.",
    )
    .default("20%"),
    key(
        "pipelines_share",
        "PERCENT",
        "The share of the cache for datasets that those with keep = references have together, as far as \
         submitted pipelines refer to their files. Budgets set by hand come on top. The same on all nodes.",
    )
    .default("20%").live(),
    key(
        "max_refs_per_tenant",
        "N",
        "References to files that the pipelines of one user may hold on this node. A submission that \
         exceeds it is refused. A million takes about 100 MB of memory.",
    )
    .default("2000000").live(),
    key(
        "remote_io",
        "RATE",
        "The bandwidth of storage for datasets, as in 1.6Gbit/s. It is that of all nodes \
         together. It is divided among the jobs, and never exceeded. Unset: no limit. The same on \
         all nodes.",
    ).live(),
    choice(
        "policy",
        &["greedy", "max-min", "sjf", "benefit", "lru", "static"],
        "How cache and remote IO are divided among datasets and jobs. greedy: cache goes where it \
         saves most remote IO. max-min: to the job that gains least over an equal share. sjf: to the \
         shortest job. benefit: whole datasets, by benefit over cost. lru, static: what systems without \
         an allocator do. The same on all nodes.",
    ).live(),
    key(
        "gpus",
        "N",
        "GPUs of the cluster. Declared jobs that want more than are left are refused. Unset: not \
         checked. The same on all nodes.",
    ).live(),
    key(
        "api_listen",
        "ADDR:PORT",
        "Accept commands (docs/openapi.json) on this TCP address too, under the mutual TLS of the \
         cluster. They are always accepted on the Unix socket control.sock in the runtime \
         directory.",
    ),
];

const MOUNT: &[Key] = &[
    choice(
        "open",
        &["zero-message", "tracked", "passthrough"],
        "What opening a file costs and gives. zero-message: opens send nothing to the daemon, \
         fastest for software trees. tracked: the daemon sees every open. passthrough: reads of \
         big files bypass the daemon after the first; needs CAP_SYS_ADMIN.",
    ),
    choice(
        "front",
        &["fuse", "auto", "erofs"],
        "How the kernel reads the mount. fuse: it asks the daemon. erofs: for the directories of --native it \
         has an image of all names, made of an index, and asks for bytes alone, at nearly the speed of a \
         local disk. Needs root and Linux 6.12. auto: erofs where it is possible; the log and `status` say \
         why not. It is the default if --native or --native-profile is given. Changes nothing that programs \
         see but for what docs/SEMANTICS.md lists.",
    ),
    many(
        "native",
        "PATH",
        "A directory of the namespace that --front erofs or auto serves by an image; may be repeated. It \
         must have an index and must not change while the mount lasts. Without it, every prefix of --index.",
    ),
    key(
        "native_profile",
        "FILE",
        "A profile of `copperfs record`. A first start on a node then reads the files of an image in the \
         order of the profile, and the node requests the next ones ahead. FILE is a path, or a URI below an \
         origin. If an origin serves it, every node reads it through the tree.",
    ),
    key(
        "data_mount",
        "DIR",
        "Mount the same files at DIR too, for datasets. There the daemon sees every open and close, \
         whatever --open says. An empty directory, made where it is missing, and not within MOUNT. Local nodes \
         of a launch have DIR/0, DIR/1 and so on.",
    ),
    switch(
        "page_cache",
        "true",
        "Whether the kernel may keep what is read through --data-mount. Without it every read reaches \
         the daemon, and is counted.",
    ),
    switch(
        "allow_other",
        "false",
        "Let other users use the mount. The kernel checks permissions; ordinary users need \
         user_allow_other in /etc/fuse.conf.",
    ),
    choice(
        "posix_acl",
        &["auto", "on", "off"],
        "Whether the kernel enforces the origin's POSIX ACLs. auto: when other users are allowed.",
    ),
    choice(
        "readdir_plus",
        &["always", "auto"],
        "When listings give attributes to the kernel, where they are at hand. auto: only the \
         first batch, and more while the reader looks names up; fewer files are pushed then.",
    ),
];

const FRESHNESS: &[Key] = &[key(
    "freshness",
    "job|ttl=TIME",
    "How long names, attributes and listings may be used. job: until copperfs clear. ttl=30s: \
         for 30 s after storage was asked, on every node. After that they are requested again \
         when they are used; a directory that has not changed costs one small message. The same \
         on all nodes.",
)
.default("job")];

const KERNEL_CACHES: &[Key] = &[
    key(
        "ttl",
        "DURATION",
        "How long the kernel may use names and attributes unasked, within their freshness. clear \
         invalidates them at once.",
    )
    .default("1d").live(),
    key(
        "negative_ttl",
        "DURATION",
        "How long the kernel may remember that a name does not exist, within its freshness. clear \
         invalidates it at once.",
    )
    .default("1d").live(),
    switch(
        "push",
        "true",
        "Put small files of a listed directory into the kernel's page cache before they are asked \
         for. The pages are charged to the daemon's cgroup.",
    ),
    key("push_file_max", "SIZE", "The largest file that is pushed.")
        .default("256KiB").live(),
    key(
        "push_bytes_max",
        "SIZE",
        "Pushed bytes that the kernel may hold. They count against the memory cgroup of this \
         daemon. Files beyond that are read in the ordinary way.",
    )
    .default("512MiB"),
    key(
        "fuse_threads",
        "N",
        "Threads that answer the kernel. auto: 2, or 4 where the daemon may use 8 processors or more.",
    )
    .default("auto"),
    key(
        "max_background",
        "N",
        "Background requests (read-ahead) the kernel may have in flight on the software mount. On the data \
         mount it may have as many as it allows.",
    )
    .default("1024"),
];

const PROCESS: &[Key] = &[
    key(
        "worker_threads",
        "N",
        "Threads for the network and for misses. auto: 1, or 2 where the daemon may use 8 processors \
         or more. More lift the throughput of a root with many children, or of a fast network.",
    )
    .default("auto"),
    key(
        "lanes",
        "N",
        "Threads that carry items of datasets between nodes, each with connections of its own, at most \
         16. With 1, the worker threads do it. auto: 1, or one for each 8 processors that the daemon \
         may use, at most 8. All of them are reached at the port of --listen.",
    )
    .default("auto"),
    key(
        "cpus",
        "LIST",
        "CPUs for the daemon's threads, as in 0,2-3. Leaves the others to the job.",
    ),
    key(
        "runtime_dir",
        "DIR",
        "The directory of this log, pid file and control socket. Default: a directory for each \
         mount in $XDG_RUNTIME_DIR/copperfs, in /run/copperfs for root, or in /tmp/copperfs-UID; \
         if another user has taken that name, in /tmp/copperfs-UID.RANDOM.",
    ),
    key(
        "log_level",
        "FILTER",
        "What is logged: error, warn, info, debug, trace, or a filter such as \
         info,copperfs_overlay=debug.",
    )
    .default("info").live(),
    key(
        "log_file",
        "FILE",
        "The file of the daemon's log. Default: log in the runtime directory, or standard error \
         in the foreground.",
    ).live(),
    switch(
        "foreground",
        "false",
        "Stay in the foreground.",
    ),
    switch(
        "takeover",
        "true",
        "Start another daemon when this one dies, which takes its mounts over: open files and \
         working directories remain valid, and requests wait meanwhile. Without it, the mounts \
         end with the daemon.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_distinct_and_helps_are_sentences() {
        let names: BTreeSet<&str> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!(names.len(), KEYS.len());
        for key in KEYS.iter() {
            assert!(key.help.ends_with('.'), "{}", key.name);
            assert!(
                key.choices.is_empty() || key.choices.contains(&key.default),
                "{}",
                key.name
            );
        }
    }
}
