//! Finds the dataset of a run, and the path at which it is read.

use crate::cli::daemon::{self, list, sockets_of, text};
use crate::cli::mounted::MountFlag;
use crate::cli::{fail, listed};
use crate::control::client::{ClientError, ControlClient, encoded};
use crate::daemon::mountpoint::{canonical, is_copperfs, within};
use crate::daemon::runtime_dir::{self, DATA_MOUNT_FILE};
use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Datasets that a message names.
const NAMES_SHOWN: usize = 8;
/// How long the look-up of the dataset's root may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// A dataset and its place on this node.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) dataset: String,
    /// Where it is read, below the data mount.
    pub(super) root: PathBuf,
}

/// Finds the dataset `name`, or the only one, at `data_mount`, or at the data mount of the daemon.
///
/// # Errors
/// There is no daemon, no such dataset, no data mount, or nothing at the dataset's path there.
pub(super) fn find(
    mounted: &MountFlag,
    name: Option<&str>,
    data_mount: Option<&Path>,
) -> anyhow::Result<Place> {
    let client = mounted.client()?;
    let dataset = daemon::run(dataset(&client, name))?;
    let name = text(&dataset, "name");
    if text(&dataset, "keep") != "references" {
        fail(format_args!(
            "warning: the homes of dataset {name} do not evict by reference counts: copperfs dataset set {name} \
             --keep references"
        ));
    }
    let mount = match data_mount {
        Some(path) => {
            let path = canonical(path);
            ensure!(
                is_copperfs(&path),
                "--data-mount {}: no copperfs is mounted there",
                path.display()
            );
            path
        }
        None => noted_data_mount(&mounted.find()?)?,
    };
    let path = text(&dataset, "path");
    let root = mount.join(path.trim_start_matches('/'));
    exists(&root).with_context(|| {
        let root = root.display();
        format!("dataset {name} cannot be read at {root}: is it below the data mount of this node?")
    })?;
    Ok(Place {
        dataset: name,
        root,
    })
}

/// The view of the dataset `name`, or of the only one.
pub(super) async fn dataset(client: &ControlClient, name: Option<&str>) -> anyhow::Result<Value> {
    if let Some(name) = name {
        let path = format!("/v1/datasets/{}", encoded(name));
        return match client.ask("GET", &path, None).await {
            Err(error @ ClientError::Refused { status: 404, .. }) => {
                let all = client.ask("GET", "/v1/datasets", None).await?;
                let known = match names(&all) {
                    none if none.is_empty() => "None is declared: copperfs dataset add".to_owned(),
                    names => format!("Declared are {}", listed(&names, NAMES_SHOWN)),
                };
                Err(error).context(format!(
                    "--dataset {name}: there is no such dataset. {known}"
                ))
            }
            answer => Ok(answer?),
        };
    }
    let all = client.ask("GET", "/v1/datasets", None).await?;
    match list(&all, "datasets") {
        [] => bail!("no dataset is declared: copperfs dataset add NAME PATH --keep references"),
        [only] => Ok(only.clone()),
        _ => bail!(
            "several datasets are declared: name one with --dataset ({})",
            listed(&names(&all), NAMES_SHOWN)
        ),
    }
}

fn names(all: &Value) -> Vec<String> {
    let all = list(all, "datasets").iter();
    all.map(|dataset| text(dataset, "name")).collect()
}

/// The data mount of the daemon at `mountpoint`, as it has noted it in its runtime directory.
fn noted_data_mount(mountpoint: &Path) -> anyhow::Result<PathBuf> {
    let sockets = sockets_of(mountpoint)?;
    let dir = sockets
        .owner
        .parent()
        .context("the daemon's socket is in no directory")?;
    let noted = runtime_dir::noted(dir, DATA_MOUNT_FILE);
    // The directory of another user's daemon cannot be read.
    let is_hidden =
        std::fs::read_dir(dir).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    match noted {
        Some(path) if is_copperfs(&path) => Ok(path),
        Some(path) => bail!(
            "the data mount {} of this node is gone: mount again, with --data-mount",
            path.display()
        ),
        None if is_hidden => bail!(
            "the daemon at {} is another user's, and only its user can find its data mount: name the data mount with \
             --data-mount",
            mountpoint.display()
        ),
        None => bail!(
            "the daemon at {} has no data mount, below which datasets are read: mount again, with --data-mount DIR",
            mountpoint.display()
        ),
    }
}

/// Looks a path up. The mount may hang, so this has a time limit.
fn exists(path: &Path) -> anyhow::Result<()> {
    let asked = path.to_owned();
    let found = within(LOOKUP_TIMEOUT, move || std::fs::metadata(asked));
    found.context("the data mount does not answer")??;
    Ok(())
}
