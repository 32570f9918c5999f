//! The origins of a node: which of them it opens, and with which options.

use super::NodeError;
use crate::config::Settings;
use crate::logging::TO_THE_USER;
use crate::origin::{CoalescedStorage, HangingBound, OriginError, OriginOptions, Origins, Retries};
use copperfs_overlay::{Failure, ItemPath, Orphan, Overlay, Upstream};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

/// Opens those that this node reads by itself. Roots read all; other nodes big files, if configured so, or everything
/// when they are cut off. It is enough for a successor that they answer later.
pub(super) async fn open(
    settings: &Settings,
    is_successor: bool,
) -> Result<Option<Arc<Origins>>, NodeError> {
    let alone = settings.orphan == Orphan::Origin || settings.bypass_above.is_some();
    if !settings.is_root() && !alone {
        return Ok(None);
    }
    let origins = opened(settings, is_successor)?;
    if !is_successor {
        origins.check().await?;
    }
    Ok(Some(Arc::new(origins)))
}

/// The origins of a node that is no root, for the datasets whose homes read storage themselves. They are not
/// used before such a dataset is read, because such a node need not reach storage otherwise.
pub(super) fn of_home(settings: &Settings, is_successor: bool) -> Option<Arc<Origins>> {
    if settings.data_mount.is_none() && settings.datasets.is_empty() {
        return None;
    }
    match opened(settings, is_successor) {
        Ok(origins) => Some(Arc::new(origins)),
        Err(error) => {
            tracing::warn!(
                target: TO_THE_USER,
                "this node cannot read storage by itself, so not as the home of a dataset with \
                 origin_readers = homes: {error}"
            );
            None
        }
    }
}

fn opened(settings: &Settings, is_successor: bool) -> Result<Origins, OriginError> {
    let options = OriginOptions {
        opens_later: is_successor,
        ..options(settings)
    };
    Origins::open(&settings.origins, &options)
}

/// Storage with equal requests merged, where this node reads it.
pub(super) fn coalesced(
    settings: &Settings,
    origins: Option<&Arc<Origins>>,
) -> Option<CoalescedStorage> {
    let timeout = options(settings).hang_timeout;
    let origins = origins.cloned();
    origins.map(|origins| CoalescedStorage::new(origins, timeout))
}

/// The options of all origins.
pub(super) fn options(settings: &Settings) -> OriginOptions {
    let excluded = settings
        .exclude
        .iter()
        .flatten()
        .chain([&settings.mountpoint])
        .chain(&settings.data_mount);
    // No request can have a path that is not one of the namespace, such as one with `..`.
    let exclude = excluded.filter_map(|path| ItemPath::parse(path.as_os_str().as_bytes()).ok());
    // Storage times out before the nodes that wait for it, so that its reason still reaches them.
    let patience = copperfs_overlay::level_timeouts::of_storage(settings.request_timeout);
    let usual = Retries::default();
    let (hanging_max, _charged) = HangingBound::of_memory(settings.cache.memory_bytes);
    OriginOptions {
        exclude: exclude.collect(),
        default_exclude: settings.exclude.is_none(),
        symlinks: settings.symlinks,
        listing_attributes_max: settings.listing_attributes_max,
        hang_timeout: patience,
        clock_skew: settings.clock_skew,
        posix_concurrency: settings.posix_concurrency,
        hanging: Arc::new(HangingBound::new(hanging_max)),
        object_concurrency: settings.object_concurrency,
        env: settings.environment.clone(),
        retries: Retries {
            timeout: patience,
            connect_timeout: usual.connect_timeout.min(patience),
            read_timeout: usual.read_timeout.min(patience),
            ..usual
        },
        ..OriginOptions::default()
    }
}

/// Returns the prefixes of the origins that this node reads by itself and that are those of the first root.
///
/// # Errors
/// An origin does not answer, or is refused to this node; the root cannot be reached.
pub(super) async fn reached(
    upstream: &Upstream,
    origins: &Origins,
) -> Result<Vec<ItemPath>, Failure> {
    let own = origins.fingerprints().await?;
    let of_root = match upstream.is_root_of(0) {
        true => own.clone(),
        false => upstream.origins(0).await?,
    };
    let same = own.into_iter().filter(|one| of_root.contains(one));
    Ok(same.map(|one| one.prefix).collect())
}

/// How often roots look at their storage again before they refuse to differ, and how long they wait:
/// a file may have appeared between two looks.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Checks that this root and the earlier roots serve the same storage.
pub(super) async fn compare(overlay: &Overlay, origins: Option<&Origins>) -> Result<(), NodeError> {
    let Some(origins) = origins else {
        return Ok(());
    };
    let membership = overlay.membership();
    let roots = membership.forest().roots();
    let Some(own) = membership.rank().filter(|own| roots.contains(own)) else {
        return Ok(());
    };
    for (tree, root) in roots.iter().enumerate().filter(|(_, root)| **root < own) {
        for look in 1..=LOOKS {
            let theirs = match overlay.upstream().origins(tree).await {
                Ok(theirs) => theirs,
                Err(failure) => {
                    tracing::warn!(tree, %failure, "another root's origins cannot be compared now");
                    break;
                }
            };
            let own = origins.fingerprints().await;
            let own = own.map_err(NodeError::Fingerprint)?;
            let Some(differs) = own.iter().find(|own| !theirs.contains(own)) else {
                return Ok(());
            };
            if look == LOOKS {
                let other = membership.members().get(*root);
                return Err(NodeError::OriginsDiffer {
                    prefix: differs.prefix.clone(),
                    other: other.map_or_else(String::new, |member| member.name.clone()),
                });
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }
    Ok(())
}
