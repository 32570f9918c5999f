//! Where a dataset lies: from what people write to a path of the namespace.
//!
//! Used for `[[dataset]]` tables and `--dataset`, and by the daemon for what the API is asked to add.

use super::assigned::split_name;
use super::layer::Written;
use super::settings::Settings;
use crate::budgets::ServedPaths;
use crate::budgets::registry::{Limits, Registry};
use crate::model::{DatasetSpec, OriginReaders};
use copperfs_policy::amounts::parse_bytes;

/// What a table of a dataset may hold besides its name and place.
pub const OPTIONS: [&str; 3] = ["index", "budget", "origin_readers"];

impl ServedPaths {
    /// What a node with these settings serves.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let mounts = [&settings.mountpoint].into_iter();
        Self {
            origins: settings.origins.clone(),
            mounts: mounts.chain(&settings.data_mount).cloned().collect(),
        }
    }
}

/// The datasets of `written`, checked against each other.
///
/// # Errors
/// What is wrong with the first that makes no sense, and what to try.
pub(super) fn parse_all(
    written: &[Written],
    served: &ServedPaths,
) -> Result<Vec<DatasetSpec>, String> {
    let mut registry = Registry::default();
    let mut specs = Vec::new();
    for one in written.iter().filter(|one| !one.text.is_empty()) {
        let spec = parse(one, served)?;
        // How much cache there is comes out when the nodes have started.
        registry
            .add_dataset(spec.clone(), &Limits::default())
            .map_err(|error| format!("{error}. {}", error.advice()))?;
        specs.push(spec);
    }
    Ok(specs)
}

fn parse(written: &Written, served: &ServedPaths) -> Result<DatasetSpec, String> {
    let (name, place) = split_name(&written.text)?;
    let location = served.locate(place).map_err(|error| error.to_string())?;
    let mut spec = DatasetSpec {
        uri: location.uri,
        ..DatasetSpec::new(name, location.path)
    };
    for (option, value) in &written.options {
        match option.as_str() {
            "index" => {
                let located = served.locate_index(value);
                drop(located.map_err(|error| error.to_string())?);
                spec.index = Some(value.clone());
            }
            "budget" => spec.budget = Some(parse_bytes(value).map_err(|error| error.to_string())?),
            "origin_readers" => spec.origin_readers = origin_readers(value)?,
            other => return Err(format!("{other:?} is no option of a dataset")),
        }
    }
    Ok(spec)
}

/// `roots` or `homes`.
///
/// # Errors
/// Anything else.
pub fn origin_readers(text: &str) -> Result<OriginReaders, String> {
    match text {
        "roots" => Ok(OriginReaders::Roots),
        "homes" => Ok(OriginReaders::Homes),
        _ => Err(format!("{text:?} is neither roots nor homes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budgets::served::tests::served;

    fn written(text: &str, options: &[(&str, &str)]) -> Written {
        let options = options.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        Written {
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
            let error = parse_all(&all, &served()).unwrap_err();
            assert!(error.contains(hint), "{texts:?}: {error}");
        }
        let wrong = written("a=/lus/a", &[("budget", "-1")]);
        let error = parse_all(&[wrong], &served()).unwrap_err();
        assert!(error.contains("is not a size"), "{error}");
    }
}
