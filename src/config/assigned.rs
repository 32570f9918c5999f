//! Values of the form `NAME=PLACE`.

use std::path::{Path, PathBuf};

/// Splits `NAME=PATH`.
///
/// # Errors
/// There is no name in front.
pub fn split_name(text: &str) -> Result<(&str, &str), String> {
    match text.split_once('=') {
        Some((name, place)) if !name.contains('/') => Ok((name, place)),
        _ => Err(format!(
            "{text:?} has no name in front; write imagenet=/lus/data/imagenet"
        )),
    }
}

/// Splits `[PREFIX=]FILE`.
#[must_use]
pub fn split_prefix(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((prefix, file)) => (Some(prefix), file),
        None => (None, text),
    }
}

/// `text` with an absolute path in place of one relative to `base`; URIs stay.
pub(super) fn absolute(text: &str, base: &Path, tidy: impl Fn(&Path) -> PathBuf) -> String {
    match split_name(text) {
        Ok((name, place))
            if !place.is_empty() && !place.starts_with('/') && !place.contains("://") =>
        {
            format!("{name}={}", tidy(&base.join(place)).display())
        }
        _ => text.to_owned(),
    }
}
