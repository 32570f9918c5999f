//! Keys in a listing that cannot be names.
//!
//! The client refuses a whole page for a single key that is no path (`a//b`, `..`), and Azure's client drops
//! the marker of a directory (`a/`), even if it is the only key of that directory. Both are replaced, in the
//! XML of a store, by a key whose name is too long for any entry: it shows that there is a key below the
//! prefix, and is never listed.
//!
//! Any page other than a listing of S3, Google or Azure passes unchanged.

use bytes::Bytes;
use object_store::path::Path;
use quick_xml::escape::{partial_escape, unescape};
use std::borrow::Cow;

/// The elements with one key or common prefix each, of S3 and Google, and of Azure.
const ENTRIES: [&str; 4] = ["Contents", "CommonPrefixes", "Blob", "BlobPrefix"];
/// The elements within these that contain the key itself.
const KEYS: [&str; 3] = ["Key", "Prefix", "Name"];
/// One byte more than the longest name.
const TOO_LONG: usize = 256;

/// The prefix that a request with this query lists. Returns `None` if it is not a request for a listing.
pub(super) fn listed_prefix(query: &str) -> Option<String> {
    let pairs = || url::form_urlencoded::parse(query.as_bytes());
    let lists = |(name, value): (Cow<'_, str>, Cow<'_, str>)| {
        (name == "list-type" && value == "2") || (name == "comp" && value == "list")
    };
    pairs().any(lists).then(|| {
        let prefix = pairs().find(|(name, _)| name == "prefix");
        prefix.map_or_else(String::new, |(_, value)| value.into_owned())
    })
}

/// `page`, which lists `prefix`, with replaced keys where necessary.
pub(super) fn with_valid_keys(page: Bytes, prefix: &str) -> Bytes {
    let Ok(text) = std::str::from_utf8(&page) else {
        return page;
    };
    let mut changed = String::new();
    // The length of the part of `text` that is in `changed`.
    let mut done = 0;
    let mut at = 0;
    let mut in_entry = false;
    while let Some(open) = text[at..].find('<').map(|found| at + found) {
        let Some(close) = text[open..].find('>').map(|found| open + found) else {
            break;
        };
        at = close + 1;
        let tag = &text[open + 1..close];
        if let Some(ended) = tag.strip_prefix('/') {
            in_entry &= !ENTRIES.contains(&ended);
            continue;
        }
        let name = tag.split_ascii_whitespace().next().unwrap_or_default();
        in_entry |= ENTRIES.contains(&name);
        if !in_entry || !KEYS.contains(&name) {
            continue;
        }
        let end = text[at..].find('<').map_or(text.len(), |found| at + found);
        // A text with an unknown entity is taken literally.
        let key = unescape(&text[at..end]).unwrap_or(Cow::Borrowed(&text[at..end]));
        if key == prefix || Path::parse(&*key).is_err() {
            tracing::debug!(key = &*key, "a key that cannot be a name is not shown");
            changed.push_str(&text[done..at]);
            changed.push_str(&partial_escape(prefix));
            changed.extend(std::iter::repeat_n('-', TOO_LONG));
            done = end;
        }
        at = end;
    }
    if done == 0 {
        return page;
    }
    changed.push_str(&text[done..]);
    changed.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(page: &str, prefix: &str) -> String {
        let page = with_valid_keys(Bytes::copy_from_slice(page.as_bytes()), prefix);
        let text = String::from_utf8(page.to_vec()).expect("text");
        text.replace(&"-".repeat(TOO_LONG), "~")
    }

    #[test]
    fn only_listings_are_recognized() {
        for (query, prefix) in [
            ("list-type=2&prefix=a%2Fb%26%2F&max-keys=1", Some("a/b&/")),
            ("restype=container&comp=list&delimiter=%2F", Some("")),
            ("comp=metadata&prefix=a", None),
            ("list-type=1", None),
            ("", None),
        ] {
            assert_eq!(listed_prefix(query).as_deref(), prefix, "{query}");
        }
    }

    #[test]
    fn keys_that_are_no_paths_are_replaced_and_others_kept() {
        for (key, kept) in [
            ("a/b", true),
            ("a/b &amp; c", true),
            ("a/…", true),
            ("a/b/", true),
            ("a/", false),
            ("a//b", false),
            ("a/..", false),
            ("a/b&#x2f;&#47;c", false),
            ("a/&#10;b", false),
            ("a/&unknown; &", true),
        ] {
            let s3 = format!("<R><Prefix>a/</Prefix><Contents><Key>{key}</Key></Contents></R>");
            let expected = if kept {
                s3.clone()
            } else {
                s3.replace(&format!(">{key}</Key"), ">a/~</Key")
            };
            assert_eq!(seen(&s3, "a/"), expected);
            let azure = format!(
                "<R><Blobs><Blob><Name>{key}</Name><Size>1</Size></Blob><BlobPrefix>\
                 <Name>{key}</Name></BlobPrefix></Blobs><NextMarker/></R>"
            );
            let expected = if kept {
                azure.clone()
            } else {
                azure.replace(&format!(">{key}<"), ">a/~<")
            };
            assert_eq!(seen(&azure, "a/"), expected);
        }
        let prefixes = "<CommonPrefixes><Prefix>x//</Prefix></CommonPrefixes><Name>a//</Name>";
        let expected = prefixes.replace("x//", "&lt;~");
        assert_eq!(seen(prefixes, "<"), expected);
    }

    #[test]
    fn malformed_pages_cause_no_panic() {
        for page in [
            "",
            "<",
            "<Contents",
            "<Contents><Key>",
            "<Contents><Key>a//",
            "no xml",
            "<a></a>>",
        ] {
            seen(page, "");
        }
        let bytes = Bytes::from_static(b"\xff<Contents><Key>//</Key>");
        assert_eq!(with_valid_keys(bytes.clone(), ""), bytes);
    }
}
