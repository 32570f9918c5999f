//! The settings of images: `--front`, `--native` and `--native-profile`.

use super::ConfigError;
use super::layer::Layer;
use super::settings::{FrontChoice, ImageSettings, IndexSpec};
use crate::budgets::ServedPaths;
use copperfs_overlay::ItemPath;

/// Reads them; the namespace is `served`, with these indexes.
///
/// # Errors
/// The first invalid value.
pub(super) fn resolve(
    layer: &Layer,
    served: &ServedPaths,
    indexes: &[IndexSpec],
) -> Result<ImageSettings, ConfigError> {
    Ok(ImageSettings {
        front: layer.front()?,
        directories: layer.native(indexes)?,
        profile: layer.optional("native_profile", |text| {
            served.locate_file(text, &ItemPath::root())
        })?,
    })
}

impl Layer {
    fn front(&self) -> Result<FrontChoice, ConfigError> {
        use FrontChoice::{Auto, EroFs, Fuse};
        let front = self.word("front", &[Fuse, Auto, EroFs])?;
        // Options that say what an image is like ask for one.
        let is_asked_for = self.is_set("native") || self.is_set("native_profile");
        if is_asked_for && !self.is_set("front") {
            return Ok(Auto);
        }
        if front != EroFs {
            return Ok(front);
        }
        if !self.is_set("index") {
            let why = "an image is made of an index: name one with --index (copperfs index build makes it), or use \
                       --front auto";
            return Err(self.wrong("front", why));
        }
        if self.value("freshness").is_some_and(|value| value != "job") {
            let why =
                "an image cannot change with storage: leave --freshness out, or use --front auto";
            return Err(self.wrong("front", why));
        }
        Ok(front)
    }

    /// The directories of images: those that are named, or the prefixes of all indexes. Without an index the root, so
    /// that the reason against its image is told.
    fn native(&self, indexes: &[IndexSpec]) -> Result<Vec<ItemPath>, ConfigError> {
        let mut found: Vec<ItemPath> = Vec::new();
        let values = self.values("native").iter();
        for value in values.filter(|value| !value.text.is_empty()) {
            let text = &value.text;
            let path = text
                .starts_with('/')
                .then(|| ItemPath::parse(text.as_bytes()));
            let path = path.and_then(Result::ok).ok_or_else(|| {
                self.wrong(
                    "native",
                    format!("{text:?} is no path of the namespace: write /lus/sw"),
                )
            })?;
            if !indexes.iter().any(|index| path.is_within(&index.prefix)) {
                let why = format!(
                    "{path} has no index: name one with --index (copperfs index build makes it)"
                );
                return Err(self.wrong("native", why));
            }
            found.push(path);
        }
        if found.is_empty() {
            found.extend(indexes.iter().map(|index| index.prefix.clone()));
        }
        if found.is_empty() {
            found.push(ItemPath::root());
        }
        // What lies within another one is a part of that image.
        let all = found.clone();
        found.retain(|path| {
            !all.iter()
                .any(|other| other != path && path.is_within(other))
        });
        found.sort();
        found.dedup();
        Ok(found)
    }
}
