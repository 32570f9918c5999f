//! The capabilities of each kind of storage, in one place. Each part of the suite names its requirements. If one
//! is missing, the part says so, and `suite::left_out_parts` checks which parts are left out for which kind.

/// Something that not all storage does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Can {
    /// Tells the names in a directory.
    List,
    /// Has directories of its own: they stay when they are empty, and reading one says that it is one.
    Directories,
    /// Holds a key and others below it: `a` and `a/b`.
    KeyAndPrefix,
    /// Holds keys that are no paths: `a//b`, `a/../b`, `a/`.
    AnyKey,
    /// Holds names with a backslash.
    Backslash,
    /// Holds names that end in a dot.
    TrailingDot,
    /// Holds files with holes, so that one of more than 4 GiB costs nothing.
    Sparse,
    /// Gives each write a version of its own, also when it comes within the same second.
    VersionPerWrite,
    /// Replaces a file while it is being read, and goes on with the old bytes or fails.
    Replace,
}

/// The effect on the version when the same bytes are written again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SameBytes {
    /// A version is a write: another one.
    AnotherVersion,
    /// A version is made of the content: the same one.
    SameVersion,
}

/// One kind of storage.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) can: &'static [Can],
    pub(crate) same_bytes: SameBytes,
    /// A crowd of names that is made and listed within seconds: more than one page of any store.
    pub(crate) many: usize,
}

impl Kind {
    pub(crate) fn can(&self, what: Can) -> bool {
        self.can.contains(&what)
    }
}

pub(crate) const POSIX: Kind = Kind {
    name: "POSIX",
    can: &[
        Can::List,
        Can::Directories,
        Can::Backslash,
        Can::TrailingDot,
        Can::Sparse,
        Can::VersionPerWrite,
        Can::Replace,
    ],
    same_bytes: SameBytes::AnotherVersion,
    many: 100_000,
};

pub(crate) const MEMORY: Kind = Kind {
    name: "objects in memory",
    can: &[
        Can::List,
        Can::KeyAndPrefix,
        Can::Backslash,
        Can::TrailingDot,
        Can::VersionPerWrite,
        Can::Replace,
    ],
    same_bytes: SameBytes::AnotherVersion,
    many: 100_000,
};

/// `rclone serve s3`: a bucket is a directory, so that a key is either an object or a prefix; it reads
/// the whole directory for each page of a listing.
pub(crate) const S3: Kind = Kind {
    name: "S3",
    can: &[
        Can::List,
        Can::Backslash,
        Can::TrailingDot,
        Can::VersionPerWrite,
        Can::Replace,
    ],
    same_bytes: SameBytes::SameVersion,
    many: 10_000,
};

/// Google's client at the same server.
pub(crate) const GOOGLE: Kind = Kind {
    name: "Google Cloud Storage",
    many: 2_500,
    ..S3
};

/// Azurite. An upload takes a millisecond or two, and its listings are 5,000 long at most.
pub(crate) const AZURE: Kind = Kind {
    name: "Azure",
    can: &[
        Can::List,
        Can::KeyAndPrefix,
        Can::AnyKey,
        Can::TrailingDot,
        Can::VersionPerWrite,
        Can::Replace,
    ],
    same_bytes: SameBytes::AnotherVersion,
    many: 5_001,
};

/// A web server with ranges. Its versions consist of the second of the last change.
pub(crate) const WEB: Kind = Kind {
    name: "web server",
    can: &[Can::Backslash, Can::TrailingDot, Can::Sparse, Can::Replace],
    same_bytes: SameBytes::AnotherVersion,
    many: 0,
};

/// A web server that sends whole files only. It gets no request for one byte of gigabytes here.
pub(crate) const WEB_WITHOUT_RANGES: Kind = Kind {
    name: "web server without ranges",
    can: &[Can::Backslash, Can::TrailingDot, Can::Replace],
    ..WEB
};
