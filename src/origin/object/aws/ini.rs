//! The syntax of `~/.aws/config` and `~/.aws/credentials`.
//!
//! Sections have a header in brackets, and properties `name = value`. An indented line below a property without a
//! value is a property of that property. Lines that are none of these are skipped, as Amazon's tools do.

use std::collections::BTreeMap;

/// The properties of a section: nested ones as `parent.name`.
pub(super) type Section = BTreeMap<String, String>;

/// The sections of a file by header, with single spaces and without quotes: `profile lab`, `default`.
pub(super) fn parse(text: &str) -> BTreeMap<String, Section> {
    let mut sections = BTreeMap::<String, Section>::new();
    let (mut header, mut parent) = (None, None);
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = trimmed.strip_prefix('[') {
            let name = rest.split_once(']').map(|(name, _)| title(name));
            if let Some(name) = &name {
                sections.entry(name.clone()).or_default();
            }
            (header, parent) = (name, None);
            continue;
        }
        let section = header.as_ref().and_then(|name| sections.get_mut(name));
        let (Some(section), Some((name, value))) = (section, trimmed.split_once('=')) else {
            continue;
        };
        let (name, value) = (name.trim().to_ascii_lowercase(), without_comment(value));
        match &parent {
            Some(parent) if line.starts_with([' ', '\t']) => {
                section.insert(format!("{parent}.{name}"), value.to_owned());
            }
            _ => {
                parent = value.is_empty().then(|| name.clone());
                section.insert(name, value.to_owned());
            }
        }
    }
    sections
}

/// A header with single spaces and without quotes.
fn title(header: &str) -> String {
    let words: Vec<&str> = header.split_whitespace().collect();
    words.join(" ").replace(['"', '\''], "")
}

/// A value without the comment after it, which a space separates.
fn without_comment(value: &str) -> &str {
    let comments = [" #", " ;", "\t#", "\t;"].into_iter();
    let end = comments.filter_map(|mark| value.find(mark)).min();
    value[..end.unwrap_or(value.len())].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_and_nested_properties() {
        let text = "stray = 1\n# a comment\n[default]\nRegion=eu-west-1 # where\n\
                    [profile  \"my lab\"]\naws_secret_access_key = a=b#c\ns3 =\n  endpoint_url = http://x\n\
                    \tmore = 2\noutput = json\n[services x]\nno equals sign\n[torn\nlost = 1\n";
        let sections = parse(text);
        let headers: Vec<&str> = sections.keys().map(String::as_str).collect();
        assert_eq!(headers, ["default", "profile my lab", "services x"]);
        assert_eq!(sections["default"]["region"], "eu-west-1");
        let lab = &sections["profile my lab"];
        assert_eq!(lab["aws_secret_access_key"], "a=b#c");
        assert_eq!(lab["s3.endpoint_url"], "http://x");
        assert_eq!((&*lab["s3.more"], &*lab["output"]), ("2", "json"));
        assert!(sections["services x"].is_empty());
    }
}
