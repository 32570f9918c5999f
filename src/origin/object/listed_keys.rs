//! Keys in a listing that cannot be names.
//!
//! The client refuses a whole page for one key that is no path (`a//b`, `..`), and Azure's drops the
//! marker of a directory (`a/`), which alone may say that the directory is there. Both are replaced, in
//! the XML that a store sends, by a key whose name is too long for any entry: it says that something
//! lies below the prefix, and is shown nowhere.
//!
//! What is not a listing as S3, Google and Azure write it passes unchanged.

use bytes::Bytes;
use object_store::path::Path;
use std::borrow::Cow;

/// The elements that hold one key or common prefix each, in S3's and Google's words, and in Azure's.
const ENTRIES: [&str; 4] = ["Contents", "CommonPrefixes", "Blob", "BlobPrefix"];
/// The elements within these that hold the key itself.
const KEYS: [&str; 3] = ["Key", "Prefix", "Name"];
/// One byte more than a name can have.
const TOO_LONG: usize = 256;

/// The prefix that a request with this query lists; `None` if it lists nothing.
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

/// `page`, which lists `prefix`, with keys that the client understands.
pub(super) fn understandable(page: Bytes, prefix: &str) -> Bytes {
    let Ok(text) = std::str::from_utf8(&page) else {
        return page;
    };
    let mut changed = String::new();
    // Up to where `text` is in `changed`.
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
        let key = unescaped(&text[at..end]);
        if key == prefix || Path::parse(&*key).is_err() {
            tracing::debug!(key = &*key, "a key that cannot be a name is not shown");
            changed.push_str(&text[done..at]);
            changed.push_str(&escaped(prefix));
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

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

/// `text` without XML's entities; those that are none stay as they are.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        let entity = rest.find(';').map(|end| (&rest[1..end], end + 1));
        match entity.and_then(|(name, length)| Some((character(name)?, length))) {
            Some((character, length)) => {
                plain.push(character);
                rest = &rest[length..];
            }
            None => {
                plain.push('&');
                rest = &rest[1..];
            }
        }
    }
    plain.push_str(rest);
    plain.into()
}

fn character(entity: &str) -> Option<char> {
    match entity {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = entity.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(page: &str, prefix: &str) -> String {
        let page = understandable(Bytes::copy_from_slice(page.as_bytes()), prefix);
        let text = String::from_utf8(page.to_vec()).expect("text");
        text.replace(&"-".repeat(TOO_LONG), "~")
    }

    #[test]
    fn only_listings_are_looked_at() {
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
    fn whatever_comes_is_survived() {
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
        assert_eq!(understandable(bytes.clone(), ""), bytes);
    }
}
