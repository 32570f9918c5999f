//! How many items have each content.

use super::{Keeps, Shared};
use copperfs_overlay::ContentHash;
use std::collections::HashMap;

/// How many blocks of items have each content. Kept by the writer's thread alone, which is the one that
/// notes and removes: so nothing that an item has goes with another one.
pub(super) struct Claims(HashMap<ContentHash, u32>);

impl Claims {
    /// Those of what the index told; `None` where the store decides for itself.
    pub(super) fn of(shared: &Shared) -> Option<Self> {
        if shared.keeps == Keeps::WhatFits {
            return None;
        }
        let mut claims = Self(HashMap::new());
        shared.catalog.for_each_file(|_, blocks| {
            let here = blocks.into_iter().map(|(_, hash)| hash);
            let here = here.filter(|hash| shared.catalog.has_content(*hash));
            here.for_each(|hash| claims.add(hash));
        });
        Some(claims)
    }

    pub(super) fn add(&mut self, hash: ContentHash) {
        *self.0.entry(hash).or_default() += 1;
    }

    /// Says whether it was the last.
    pub(super) fn drop_one(&mut self, hash: ContentHash) -> bool {
        match self.0.get_mut(&hash) {
            Some(claims) if *claims > 1 => {
                *claims -= 1;
                false
            }
            _ => {
                self.0.remove(&hash);
                true
            }
        }
    }
}
