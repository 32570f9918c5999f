//! Plans everything below a path: each directory before its entries, depth first.

use super::planner::{PlanError, Planner};
use crate::read::{LookupOutcome, ReadPath};
use crate::warm::Step;
use copperfs_overlay::{Attributes, FailureKind, FileKind, ItemPath};

/// Adds `top` and everything below it to `plan`. Symlinks are not followed. Of a directory that cannot be listed only the
/// listing itself is planned, so that the nodes report the reason.
pub(super) async fn walk(
    read: &ReadPath,
    top: &ItemPath,
    plan: &mut Planner,
) -> Result<(), PlanError> {
    let attributes = read.metadata().attributes_of(top).await;
    let attributes = attributes.map_err(|failure| match failure.kind {
        FailureKind::NotFound | FailureKind::NotADirectory => PlanError::NoSuchPath(top.clone()),
        _ => PlanError::Walk(failure),
    })?;
    let mut directories = Vec::new();
    add(top.clone(), &attributes.value, &mut directories, plan).await?;
    while let Some(directory) = directories.pop() {
        plan.add(Step::List(directory.clone())).await?;
        let first_below = directories.len();
        match list(read, &directory, &mut directories, plan).await {
            Err(PlanError::Walk(failure)) => {
                tracing::debug!(path = %directory, %failure, "not walked");
            }
            listed => listed?,
        }
        // The last directory is taken next, so this restores the order of the listing.
        directories[first_below..].reverse();
    }
    Ok(())
}

async fn list(
    read: &ReadPath,
    directory: &ItemPath,
    directories: &mut Vec<ItemPath>,
    plan: &mut Planner,
) -> Result<(), PlanError> {
    let mut next = 0;
    loop {
        let page = read.page_with(directory, next).await;
        let (first, page) = page.map_err(PlanError::Walk)?;
        let skipped = next.saturating_sub(first);
        let entries = page.entries.get(skipped..).unwrap_or_default();
        if entries.is_empty() {
            return Ok(());
        }
        for entry in entries {
            let Ok(path) = directory.join(&entry.name) else {
                continue;
            };
            let attributes = match read.metadata().peek_attributes(directory, &page, entry) {
                Some(found) => found.value,
                None => {
                    let found = read.metadata().look_up(directory, &entry.name).await;
                    match found.map_err(PlanError::Walk)?.value {
                        LookupOutcome::Attributes(attributes) => attributes,
                        LookupOutcome::Absent => continue,
                    }
                }
            };
            add(path, &attributes, directories, plan).await?;
        }
        next += entries.len();
    }
}

async fn add(
    path: ItemPath,
    attributes: &Attributes,
    directories: &mut Vec<ItemPath>,
    plan: &mut Planner,
) -> Result<(), PlanError> {
    match attributes.kind {
        FileKind::Directory => {
            directories.push(path);
            Ok(())
        }
        FileKind::File if attributes.size > 0 => {
            let (offset, len) = (0, attributes.size);
            plan.add(Step::Read { path, offset, len }).await
        }
        _ => plan.add(Step::Stat(path)).await,
    }
}
