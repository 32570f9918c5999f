//! Datasets that are declared in the configuration: `[[dataset]]` tables and `--dataset`.

use super::ValueError;
use super::layer::{RawValue, split_name};
use super::settings::Settings;
use crate::budgets::ServedPaths;
use crate::budgets::registry::{Limits, Registry};
use crate::model::{ChunkOptions, DatasetSpec, OriginReaders};
use copperfs_policy::Keep;
use copperfs_policy::amounts::{ByteSize, parse_bool, parse_duration};
use std::collections::BTreeMap;

/// The optional keys of a dataset's table.
pub const OPTIONS: [&str; 8] = [
    "index",
    "manifest",
    "budget",
    "origin_readers",
    "keep",
    "chunk_size",
    "evict_after",
    "private",
];

impl ServedPaths {
    /// The namespace of a node with these settings.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let mounts = [&settings.mountpoint].into_iter();
        Self {
            origins: settings.origins.clone(),
            mounts: mounts.chain(&settings.data_mount).cloned().collect(),
        }
    }
}

/// Parses the datasets in `values`, and checks them against each other.
///
/// # Errors
/// The first invalid dataset.
pub(super) fn parse_all(
    values: &[RawValue],
    served: &ServedPaths,
) -> Result<Vec<DatasetSpec>, ValueError> {
    let mut registry = Registry::default();
    let mut specs = Vec::new();
    for value in values.iter().filter(|value| !value.text.is_empty()) {
        let spec = parse(value, served)?;
        // No limits yet: the amount of cache is known only after the nodes have started.
        registry.add_dataset(spec.clone(), &Limits::default())?;
        specs.push(spec);
    }
    Ok(specs)
}

fn parse(value: &RawValue, served: &ServedPaths) -> Result<DatasetSpec, ValueError> {
    let RawValue { text, options } = value;
    let (name, location) = split_name(text).ok_or_else(|| {
        format!("{text:?} has no name in front; write imagenet=/lus/data/imagenet")
    })?;
    let budget = options.get("budget");
    let budget = budget.map(|budget| budget.parse::<ByteSize>());
    let readers = options.get("origin_readers").map(String::as_str);
    let files = DatasetFiles {
        index: options.get("index"),
        manifest: options.get("manifest"),
    };
    let keep = options.get("keep").map(|keep| keep.parse::<Keep>());
    let private = options.get("private").map(|text| parse_bool(text));
    Ok(DatasetSpec {
        budget: budget.transpose()?.map(|budget| budget.0),
        keep: keep.transpose()?.unwrap_or_default(),
        chunk_options: chunk_options(options)?,
        is_private: private.transpose()?.unwrap_or(false),
        ..declare(served, name, location, &files, readers)?
    })
}

fn chunk_options(options: &BTreeMap<String, String>) -> Result<ChunkOptions, ValueError> {
    let size = options
        .get("chunk_size")
        .map(|size| size.parse::<ByteSize>());
    let evict_after = options.get("evict_after").map(|text| parse_duration(text));
    let default = ChunkOptions::default();
    Ok(ChunkOptions {
        size: size.transpose()?.map_or(default.size, |size| size.0),
        evict_after: evict_after.transpose()?.unwrap_or(default.evict_after),
    })
}

/// The files that describe a dataset.
#[derive(Clone, Copy, Debug, Default)]
pub struct DatasetFiles<'a> {
    /// The index of its files.
    pub index: Option<&'a String>,
    /// The manifest of its entries.
    pub manifest: Option<&'a String>,
}

/// The dataset `name` at `location` of the namespace `served`, without a budget and with the default rule.
///
/// # Errors
/// `location`, the index or the manifest is not in the namespace, or `readers` is neither `roots` nor `homes`.
pub fn declare(
    served: &ServedPaths,
    name: &str,
    location: &str,
    files: &DatasetFiles<'_>,
    readers: Option<&str>,
) -> Result<DatasetSpec, ValueError> {
    let location = served.locate(location)?;
    if let Some(index) = files.index {
        drop(served.locate_file(index, &location.path)?);
    }
    // Every node reads it, so it must be in the namespace.
    let manifest = files.manifest.map(|manifest| served.locate(manifest));
    let manifest = manifest.transpose()?.map(|location| location.path);
    Ok(DatasetSpec {
        uri: location.uri,
        index: files.index.cloned(),
        manifest,
        origin_readers: match readers {
            None => OriginReaders::default(),
            Some("roots") => OriginReaders::Roots,
            Some("homes") => OriginReaders::Homes,
            Some(text) => return Err(format!("{text:?} is neither roots nor homes").into()),
        },
        ..DatasetSpec::new(name, location.path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budgets::served::tests::served;

    fn written(text: &str, options: &[(&str, &str)]) -> RawValue {
        let options = options.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        RawValue {
            text: text.into(),
            options: options.collect(),
        }
    }

    #[test]
    fn datasets_are_checked_against_each_other() {
        let table = [
            ("budget", "2GiB"),
            ("origin_readers", "homes"),
            ("keep", "uniform"),
        ];
        let specs = parse_all(
            &[
                written("a=/lus/a", &table),
                written("b=s3://bucket/set", &[]),
            ],
            &served(),
        )
        .unwrap();
        assert_eq!(specs[0].budget, Some(2 << 30));
        assert_eq!(specs[0].origin_readers, OriginReaders::Homes);
        assert_eq!([specs[0].keep, specs[1].keep], [Keep::Uniform, Keep::Auto]);
        assert_eq!(specs[1].path.to_string(), "/data");
        for (texts, hint) in [
            (["a=/lus/a", "a=/lus/b"], "already"),
            (["a=/lus/a", "b=/lus/a/b"], "overlaps"),
            (["a=/lus/a", "/lus/b"], "no name in front"),
            (["a=/lus/a", "b /=/lus/b"], "no name in front"),
            (["a=/lus/a", "b c=/lus/b"], "cannot be the name"),
        ] {
            let all = texts.map(|text| written(text, &[]));
            let error = parse_all(&all, &served()).unwrap_err().to_string();
            assert!(error.contains(hint), "{texts:?}: {error}");
        }
        for (options, hint) in [
            (&[("budget", "-1")][..], "is not a size"),
            (&[("keep", "all")], "is not a rule of what is kept"),
            (&[("keep", "none"), ("budget", "1GB")], "has no use"),
        ] {
            let wrong = written("a=/lus/a", options);
            let error = parse_all(&[wrong], &served()).unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
        }
    }
}
