//! `--plot PATH`: charts as one file, or as a directory with a file for each.

use anyhow::Context;
use copperfs_simulate::chart::{Chart, stack};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Endings of other images, which would otherwise name a directory.
const OTHER_IMAGES: [&str; 5] = ["png", "pdf", "jpg", "jpeg", "gif"];

/// Writes `charts`, and returns the written files. A path that ends with `.svg` is a file with all charts, one
/// below the other. Any other path is a directory, which is created, and has a file for each chart.
pub(super) fn write(path: &Path, charts: &[Chart]) -> anyhow::Result<Vec<PathBuf>> {
    let has_ending = |wanted: &str| {
        let ending = path.extension().and_then(OsStr::to_str);
        ending.is_some_and(|ending| ending.eq_ignore_ascii_case(wanted))
    };
    anyhow::ensure!(
        !OTHER_IMAGES.into_iter().any(has_ending),
        "--plot: cannot write {}: figures are SVG. Name a file that ends with .svg, or a directory",
        path.display()
    );
    if has_ending("svg") && !path.is_dir() {
        let text = match charts {
            [chart] => chart.svg()?,
            charts => stack(charts)?,
        };
        put(path, text)?;
        return Ok(vec![path.to_owned()]);
    }
    std::fs::create_dir_all(path)
        .with_context(|| format!("cannot create the directory {}", path.display()))?;
    let files = charts.iter().map(|chart| {
        let file = path.join(format!("{}.svg", chart.file));
        put(&file, chart.svg()?)?;
        Ok(file)
    });
    files.collect()
}

fn put(path: &Path, text: String) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Names the written files on standard error, because standard output may be JSON.
pub(super) fn say_wrote(files: &[PathBuf]) {
    for file in files {
        let _closed = writeln!(std::io::stderr(), "wrote {}", file.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_file_or_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let chart = |file: &str| Chart {
            file: file.to_owned(),
            title: file.to_owned(),
            ..Chart::default()
        };
        let charts = [chart("one"), chart("two")];
        let file = directory.path().join("all.svg");
        assert_eq!(write(&file, &charts).unwrap(), vec![file.clone()]);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("one") && text.contains("two"), "{text}");
        let figures = directory.path().join("a/figures");
        let written = write(&figures, &charts).unwrap();
        assert_eq!(written, [figures.join("one.svg"), figures.join("two.svg")]);
        assert!(written.iter().all(|file| file.is_file()));
        let error = write(&directory.path().join("all.png"), &charts).unwrap_err();
        assert!(error.to_string().contains("ends with .svg"), "{error}");
        let error = write(&file.join("below"), &charts).unwrap_err().to_string();
        assert!(error.contains("cannot create the directory"), "{error}");
    }
}
