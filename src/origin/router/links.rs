//! Absolute symlinks whose target is served become relative links.
//!
//! An absolute link would lead its readers through the mount out to the storage itself. If its target is
//! below a served directory of the host, it is replaced by the relative path from the link to that place in
//! the namespace. `..` inside such a target is resolved in the text first, so that the new link cannot climb
//! out of the mount (if a component before `..` is itself a link, the two may differ: a known limit).
//! Targets outside the served directories, and excluded ones, keep their text.

use crate::origin::options::SymlinkPolicy;
use copperfs_overlay::{Attributes, ItemPath};

/// A host directory and the prefix under which it is served.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Served {
    /// Path on the host.
    pub(super) host: ItemPath,
    /// Path in the namespace.
    pub(super) prefix: ItemPath,
}

/// How the links of a namespace are shown.
#[derive(Clone, Default)]
pub(super) struct LinkRules {
    pub(super) policy: SymlinkPolicy,
    pub(super) served: Vec<Served>,
}

impl LinkRules {
    /// Changes the target of a link at `path` to the form in which the namespace shows it. `is_hidden` tells
    /// whether a path of the namespace is excluded.
    pub(super) fn rewrite(
        &self,
        path: &ItemPath,
        attributes: &mut Attributes,
        is_hidden: impl Fn(&ItemPath) -> bool,
    ) {
        if self.policy == SymlinkPolicy::Relative
            && let Some(target) = &attributes.link_target
            && let Some(text) = relative(path, target, &self.served, is_hidden)
        {
            attributes.size = text.len() as u64;
            attributes.link_target = Some(text.into());
        }
    }
}

/// The relative form of the absolute `target` of the link at `link` (in the namespace). Returns `None` if the
/// link keeps its own text.
fn relative(
    link: &ItemPath,
    target: &[u8],
    served: &[Served],
    is_hidden: impl Fn(&ItemPath) -> bool,
) -> Option<Vec<u8>> {
    if target.first() != Some(&b'/') {
        return None;
    }
    let trailing_slash = target.len() > 1 && target.ends_with(b"/");
    let host = normalized(target)?;
    let (below, directory) = served
        .iter()
        .filter_map(|directory| Some((host.strip_prefix(&directory.host)?, directory)))
        // One served directory may be below another one: the deepest is the closest match.
        .max_by_key(|(_, directory)| directory.host.as_bytes().len())?;
    let destination = directory.prefix.below(&below).ok()?;
    if is_hidden(&destination) {
        return None;
    }
    let (parent, _) = link.split()?;
    let mut text = relative_path(&parent, &destination);
    if trailing_slash {
        text.push(b'/');
    }
    // The kernel accepts no longer text of a link.
    (text.len() < ItemPath::BYTES_MAX).then_some(text)
}

/// `target` without `.`, `..` and doubled slashes. The parent of the top is the top, as in the kernel.
fn normalized(target: &[u8]) -> Option<ItemPath> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in target.split(|&b| b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    ItemPath::parse(&names.join(&b'/')).ok()
}

/// The relative path from `directory` to `destination`.
fn relative_path(directory: &ItemPath, destination: &ItemPath) -> Vec<u8> {
    let from: Vec<&[u8]> = directory.components().collect();
    let to: Vec<&[u8]> = destination.components().collect();
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n(&b".."[..], from.len() - common);
    let names: Vec<&[u8]> = up.chain(to[common..].iter().copied()).collect();
    if names.is_empty() {
        return b".".to_vec();
    }
    names.join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    fn shown(link: &str, target: &str) -> Option<String> {
        let served = [
            Served {
                host: path("/lus"),
                prefix: path("/lus"),
            },
            Served {
                host: path("/lus/deep/er"),
                prefix: path("/deep"),
            },
            Served {
                host: path("/disk1"),
                prefix: path("/data/one"),
            },
        ];
        let hidden = |p: &ItemPath| p.as_bytes().starts_with(b"lus/tmp");
        relative(&path(link), target.as_bytes(), &served, hidden)
            .map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn targets_inside_become_relative() {
        for (link, target, text) in [
            ("lus/a/link", "/lus/b/f", Some("../b/f")),
            ("lus/a/link", "/lus/a/f", Some("f")),
            ("lus/a/link", "/lus/a", Some(".")),
            ("lus/a/link", "/lus/a/", Some("./")),
            ("lus/a/link", "//lus/./a//x/../f", Some("f")),
            ("lus/link", "/disk1/f", Some("../data/one/f")),
            ("data/one/x/link", "/lus/deep/er/f", Some("../../../deep/f")),
            ("lus/link", "/lus", Some(".")),
            // Outside, or only alike.
            ("lus/link", "/lusx/f", None),
            ("lus/link", "/etc/passwd", None),
            ("lus/link", "/lus/../etc/passwd", None),
            ("lus/link", "/lus/tmp/x", None),
            ("lus/link", "relative/../x", None),
            ("lus/link", "", None),
        ] {
            assert_eq!(shown(link, target).as_deref(), text, "{link} -> {target}");
        }
    }

    #[test]
    fn an_origin_at_the_top_keeps_everything_inside() {
        let served = [Served {
            host: path("/"),
            prefix: path("/"),
        }];
        let shown = |link: &str, target: &str| {
            let text = relative(&path(link), target.as_bytes(), &served, |_| false).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(shown("a/b/link", "/../../etc/x"), "../../etc/x");
        assert_eq!(shown("a/b/link", "/"), "../..");
        assert_eq!(shown("link", "/"), ".");
    }

    proptest::proptest! {
        /// For every target, the new link stays below the top of the mount and leads to a served prefix.
        #[test]
        fn a_rewritten_link_ends_inside(
            link in "[ab]/([ab]/){0,3}[ab]",
            target in "/(lus|data|[ab.]|[.][.])(/(lus|[ab.]|[.][.]|)){0,6}",
        ) {
            let served = [
                Served { host: path("/lus"), prefix: path("/a") },
                Served { host: path("/data/b"), prefix: path("/b/a") },
            ];
            if let Some(text) = relative(&path(&link), target.as_bytes(), &served, |_| false) {
                let (directory, _) = path(&link).split().unwrap();
                let mut names: Vec<Vec<u8>> = directory.components().map(<[u8]>::to_vec).collect();
                for name in text.split(|&b| b == b'/') {
                    match name {
                        b"" | b"." => {}
                        b".." => proptest::prop_assert!(names.pop().is_some(), "above the top"),
                        name => names.push(name.to_vec()),
                    }
                }
                let end = ItemPath::parse(&names.join(&b'/')).unwrap();
                let below = |prefix: &str| end.strip_prefix(&path(prefix)).is_some();
                proptest::prop_assert!(below("/a") || below("/b/a"));
            }
        }
    }
}
