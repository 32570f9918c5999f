//! Finds an allocator to follow, or takes its turn as one.

use super::Inner;
use super::allocate::allocate;
use super::link::{Found, Link, PATIENCE, PATIENCE_FIRST, follow, search};
use std::sync::Arc;

/// Looks for an allocator, in tree after tree, or is it; without end.
pub(super) async fn climb(inner: Arc<Inner>) {
    let mut next: Option<Link> = None;
    let mut patience = PATIENCE_FIRST;
    loop {
        let found = match next.take() {
            Some(link) => Found::Link(link),
            None => search(&inner, patience).await,
        };
        patience = PATIENCE;
        next = match found {
            Found::Link(link) => follow(&inner, link).await,
            Found::Own(tree) => Some(allocate(&inner, tree).await),
        };
    }
}
