//! Datasets that are declared in the configuration: `[[dataset]]` tables and `--dataset`.

use super::ValueError;
use super::layer::{RawValue, split_name};
use super::settings::Settings;
use crate::budgets::ServedPaths;
use crate::budgets::registry::{Limits, Registry};
use crate::model::{DatasetSpec, OriginReaders};
use copperfs_policy::amounts::ByteSize;

/// The optional keys of a dataset's table.
pub const OPTIONS: [&str; 3] = ["index", "budget", "origin_readers"];

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
    let text = &value.text;
    let (name, location) = split_name(text).ok_or_else(|| {
        format!("{text:?} has no name in front; write imagenet=/lus/data/imagenet")
    })?;
    let location = served.locate(location)?;
    let mut spec = DatasetSpec {
        uri: location.uri,
        ..DatasetSpec::new(name, location.path)
    };
    for (option, value) in &value.options {
        match option.as_str() {
            "index" => {
                drop(served.locate_index(value)?);
                spec.index = Some(value.clone());
            }
            "budget" => spec.budget = Some(value.parse::<ByteSize>()?.0),
            "origin_readers" => spec.origin_readers = parse_origin_readers(value)?,
            other => return Err(format!("{other:?} is no option of a dataset").into()),
        }
    }
    Ok(spec)
}

/// Parses `roots` or `homes`.
///
/// # Errors
/// The text is another word.
pub fn parse_origin_readers(text: &str) -> Result<OriginReaders, ValueError> {
    match text {
        "roots" => Ok(OriginReaders::Roots),
        "homes" => Ok(OriginReaders::Homes),
        _ => Err(format!("{text:?} is neither roots nor homes").into()),
    }
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
        let table = [("budget", "2GiB"), ("origin_readers", "homes")];
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
        let wrong = written("a=/lus/a", &[("budget", "-1")]);
        let error = parse_all(&[wrong], &served()).unwrap_err().to_string();
        assert!(error.contains("is not a size"), "{error}");
    }
}
