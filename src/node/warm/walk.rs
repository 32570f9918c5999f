//! Plans everything below a path: each directory before its entries, depth first.

use super::planner::{PlanError, Planner};
use crate::read::{LookupOutcome, ReadPath};
use crate::warm::Step;
use copperfs_overlay::{Attributes, Failure, FailureKind, FileKind, ItemPath};

/// Adds `top` and everything below it to `plan`. Symlinks are not followed. Of a directory that cannot be listed only the
/// listing itself is planned, so that the nodes report the reason.
pub(super) async fn walk(
    read: &ReadPath,
    top: &ItemPath,
    plan: &mut Planner,
) -> Result<(), PlanError> {
    let attributes = read.metadata().attributes_of(top).await;
    let attributes = attributes.map_err(|failure| missing(top, &failure))?;
    let mut directories = Vec::new();
    add(top.clone(), &attributes.value, &mut directories, plan).await?;
    while let Some(directory) = directories.pop() {
        plan.add(Step::List(directory.clone())).await?;
        let first_below = directories.len();
        if let Err(failure) = list(read, &directory, &mut directories, plan).await? {
            tracing::debug!(path = %directory, %failure, "not walked");
        }
        // The last directory is taken next, so this restores the order of the listing.
        directories[first_below..].reverse();
    }
    Ok(())
}

fn missing(path: &ItemPath, failure: &Failure) -> PlanError {
    match failure.kind {
        FailureKind::NotFound | FailureKind::NotADirectory => PlanError::NoSuchPath(path.clone()),
        _ => PlanError::Walk(failure.clone()),
    }
}

/// The inner failure is storage's, and the outer one ends the plan.
async fn list(
    read: &ReadPath,
    directory: &ItemPath,
    directories: &mut Vec<ItemPath>,
    plan: &mut Planner,
) -> Result<Result<(), Failure>, PlanError> {
    let mut next = 0;
    loop {
        let (first, page) = match read.page_with(directory, next).await {
            Ok(found) => found,
            Err(failure) => return Ok(Err(failure)),
        };
        let skipped = next.saturating_sub(first);
        let entries = page.entries.get(skipped..).unwrap_or_default();
        if entries.is_empty() {
            return Ok(Ok(()));
        }
        for entry in entries {
            let Ok(path) = directory.join(&entry.name) else {
                continue;
            };
            let attributes = match read.metadata().peek_attributes(directory, &page, entry) {
                Some(found) => found.value,
                None => match read.metadata().look_up(directory, &entry.name).await {
                    Ok(answer) => match answer.value {
                        LookupOutcome::Attributes(attributes) => attributes,
                        LookupOutcome::Absent => continue,
                    },
                    Err(failure) => return Ok(Err(failure)),
                },
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
