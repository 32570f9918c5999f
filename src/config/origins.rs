//! Values of `--origin`, checked without access to storage.

use super::ValueError;
use super::error::InvalidPart;
use super::layer::RawValue;
use super::settings::OriginSpec;
use crate::nearest::nearest;
use copperfs_overlay::ItemPath;

/// The URI schemes of the supported storage.
const SCHEMES: [&str; 8] = ["file", "s3", "az", "gs", "http", "https", "abfs", "abfss"];

/// Splits `PREFIX=URI` and its short forms: a lone URI is served from `/`, a lone path below itself,
/// a path after the prefix is a `file` URI.
#[must_use]
pub fn split(text: &str) -> (String, String) {
    let uri = |text: &str| match text.starts_with('/') {
        true => format!("file://{text}"),
        false => text.to_owned(),
    };
    match text.split_once('=') {
        Some((prefix, rest)) if !prefix.contains("://") => (prefix.to_owned(), uri(rest)),
        _ if text.starts_with('/') => (text.to_owned(), uri(text)),
        _ => ("/".to_owned(), text.to_owned()),
    }
}

/// Parses an origin.
///
/// # Errors
/// The value is invalid.
pub(super) fn parse(value: &RawValue) -> Result<OriginSpec, ValueError> {
    const FORM: &str = "write PREFIX=URI, as in /lus=file:///lus or /data=s3://bucket/prefix";
    let (prefix, uri) = split(&value.text);
    let Some((scheme, rest)) = uri.split_once("://") else {
        return Err(format!("{uri:?} is not a URI; {FORM}").into());
    };
    if !SCHEMES.contains(&scheme) {
        let hint = nearest(scheme, SCHEMES.into_iter()).map_or_else(
            || format!("known: {}", SCHEMES.join(", ")),
            |near| format!("did you mean {near}://?"),
        );
        return Err(format!("the scheme {scheme}:// is not served; {hint}").into());
    }
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') && !scheme.starts_with("abfs") {
        return Err(
            "a URI with a user or password in it would show them to every user of this machine; \
             give them in the environment or in [origin.options] of a configuration file"
                .into(),
        );
    }
    match scheme {
        "file" if !authority.is_empty() => {
            let why = "names a host; a path on this machine has three slashes";
            return Err(format!("{uri:?} {why}: file:///{rest}").into());
        }
        "file" if rest.split('/').any(|part| part == "..") => {
            return Err(format!("{uri:?} has a .. component; write the path without it").into());
        }
        _ if scheme != "file" && authority.is_empty() => {
            return Err(format!("{uri:?} names no bucket, container or host; {FORM}").into());
        }
        _ => {}
    }
    Ok(OriginSpec {
        prefix: parse_prefix(&prefix, FORM)?,
        uri,
        options: value.options.clone(),
    })
}

/// Parses the prefix of an origin or an index. `form` shows a valid value.
pub(super) fn parse_prefix(prefix: &str, form: &str) -> Result<ItemPath, ValueError> {
    if !prefix.starts_with('/') {
        return Err(format!("the prefix {prefix:?} does not begin with a slash; {form}").into());
    }
    ItemPath::parse(prefix.as_bytes()).map_err(|error| {
        let (part, source) = (format!("the prefix {prefix:?}"), error.into());
        InvalidPart { part, source }.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(String, String), ValueError> {
        parse(&RawValue::from(text.to_owned())).map(|spec| (spec.prefix.to_string(), spec.uri))
    }

    #[test]
    fn the_forms_of_an_origin() {
        for (text, prefix, uri) in [
            ("/lus=file:///lus", "/lus", "file:///lus"),
            ("/lus/=/lus", "/lus", "file:///lus"),
            ("/lus", "/lus", "file:///lus"),
            ("s3://bucket/a=b", "/", "s3://bucket/a=b"),
            ("/d=s3://bucket/a=b", "/d", "s3://bucket/a=b"),
            ("/=file:///", "/", "file:///"),
        ] {
            assert_eq!(parsed(text).unwrap(), (prefix.into(), uri.into()), "{text}");
        }
    }

    #[test]
    fn wrong_origins_say_how_it_should_look() {
        for (text, hint) in [
            ("lus", "PREFIX=URI"),
            ("lus=file:///lus", "does not begin with a slash"),
            ("/d=s4://bucket", "did you mean s3://?"),
            ("/d=file://lus/x", "three slashes"),
            ("/d=s3://", "no bucket"),
            ("/d=https://me:pw@host/x", "show them to every user"),
            ("/a/../b=/x", ".."),
            ("/a=/x/../y", ".."),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
        let error = parsed("/a/../b=/x").unwrap_err();
        let source = std::error::Error::source(&*error).unwrap();
        assert!(source.is::<copperfs_overlay::InvalidPath>(), "{source:?}");
    }
}
