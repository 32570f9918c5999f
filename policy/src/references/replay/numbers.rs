//! Numbers for names, so that the maps of a replay have small keys.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Numbers from 0 on, in the order in which their keys were first seen.
#[derive(Debug, Clone)]
pub(super) struct Numbers<K>(HashMap<K, u32>);

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Numbers<K> {
    /// Returns the number of the key, a new one if it has none. `None`: all numbers are taken.
    pub(super) fn id<Q>(&mut self, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(number) = self.0.get(key) {
            return Some(*number);
        }
        let number = u32::try_from(self.0.len()).ok()?;
        self.0.insert(key.to_owned(), number);
        Some(number)
    }

    /// Returns all keys; the index of each is its number.
    pub(super) fn into_keys(self) -> Vec<K> {
        let mut keys: Vec<_> = self.0.into_iter().collect();
        keys.sort_unstable_by_key(|(_, number)| *number);
        keys.into_iter().map(|(key, _)| key).collect()
    }
}
