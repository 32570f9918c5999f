//! Configuration: from flags, environment and file to [`Settings`].
//!
//! The only module that reads the environment.

mod settings;

pub use settings::{
    CachePolicy, CacheSettings, LogSettings, Member, OpenMode, OriginSpec, PushSettings,
    ReaddirPlus, Settings, SymlinkPolicy, Toggle,
};
