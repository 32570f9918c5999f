//! The errors below an error of `object_store`, which has some facts only in their texts.

use std::error::Error;

/// `error` and its sources.
pub(super) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

pub(super) fn texts(error: &(dyn Error + 'static)) -> impl Iterator<Item = String> {
    chain(error).map(ToString::to_string)
}

/// The innermost error: "Connection refused (os error 111)". It names no URL.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    texts(error).last().unwrap_or_default()
}

/// The HTTP status, which `object_store` has only in its text. A test with a real server checks the wording.
pub(super) fn status(error: &(dyn Error + 'static)) -> Option<u16> {
    const BEFORE: &str = "Server returned non-2xx status code: ";
    texts(error).find_map(|text| {
        let at = text.find(BEFORE)? + BEFORE.len();
        text.get(at..at + 3)?.parse().ok()
    })
}
