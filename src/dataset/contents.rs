//! Items by their hash alone, for clients that know a hash and no path.
//!
//! The hash is the capability: a client that knows it may have the bytes, if they are in a cache and a
//! manifest names them, whether or not it could read the file (Quiver, section 4). Storage is never read
//! for it. An item that is not resident, one that no manifest names, and one of a private dataset get the
//! same answer, by the same requests: one to the home of the hash. Nothing lists hashes.

use super::reader::HomeClient;
use super::{Catalog, DatasetReader};
use crate::dataset::residency::Resident;
use crate::dataset::searches::Searches;
use bytes::Bytes;
use copperfs_overlay::{ContentHash, ITEM_BYTES_MAX, Insertion};
use futures_util::StreamExt;
use futures_util::stream;
use std::collections::HashMap;
use std::sync::Arc;

/// Requests to homes at a time, of one client's request.
const REQUESTS_AT_A_TIME: usize = 16;
/// The maximum number of bytes that one request is answered with.
pub const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Answers that are collected before other tasks run. An item that this node is home of and does not hold is answered
/// without a pause, after a few searches: these take a fraction of a millisecond.
const ANSWERS_AT_A_TIME: usize = 64;

/// The items would be more than [`ANSWER_BYTES_MAX`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the answer would have more than {ANSWER_BYTES_MAX} bytes")]
pub struct TooLarge;

/// The outcome of an insert, for the client. A client can compute [`OtherBytes`](Self::OtherBytes) and
/// [`NoItem`](Self::NoItem) from its own request, so these tell it nothing about the datasets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inserted {
    /// The home holds the item.
    Kept,
    /// There is no room for the item, or its dataset's rule does not keep it.
    NoRoom,
    /// No manifest of a public dataset names the item.
    Unnamed,
    /// The bytes have another hash.
    OtherBytes,
    /// No item has this length: the bytes are none, or more than [`ITEM_BYTES_MAX`].
    NoItem,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Contents {
    homes: Arc<dyn HomeClient>,
    reader: DatasetReader,
    searches: Searches,
}

impl Contents {
    /// Creates one that asks by way of `homes`. `reader` knows which node is whose home.
    #[must_use]
    pub fn new(homes: Arc<dyn HomeClient>, reader: DatasetReader) -> Self {
        Self {
            homes,
            reader,
            searches: Searches::default(),
        }
    }

    /// See [`Searches::look_up`].
    pub async fn look_up(
        &self,
        datasets: Vec<(Arc<Catalog>, Resident)>,
        hashes: Vec<ContentHash>,
    ) -> Vec<bool> {
        self.searches.look_up(datasets, hashes).await
    }

    /// Returns the items with these hashes; `None` for those that are not resident, or that no client may have
    /// by their hash. May be cancelled.
    ///
    /// # Errors
    /// They are too large together.
    pub async fn get(&self, hashes: Vec<ContentHash>) -> Result<Vec<Option<Bytes>>, TooLarge> {
        let asking = stream::iter(hashes).map(|hash| async move {
            let home = self.reader.home_of_content(&hash)?;
            // A home that cannot be reached holds nothing.
            self.homes.content(home, hash).await.ok().flatten()
        });
        let mut answers = asking.buffered(REQUESTS_AT_A_TIME);
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(answer) = answers.next().await {
            bytes += answer.as_ref().map_or(0, |item| item.len() as u64);
            if bytes > ANSWER_BYTES_MAX {
                return Err(TooLarge);
            }
            found.push(answer);
            if found.len().is_multiple_of(ANSWERS_AT_A_TIME) {
                tokio::task::yield_now().await;
            }
        }
        Ok(found)
    }

    /// Gives items to their homes, which the process `from` has read from storage. Their bytes are checked here and
    /// there, and charged to its job. May be cancelled; some are then kept, and all are charged if one is kept.
    pub async fn insert(
        &self,
        from: Option<u32>,
        items: Vec<(ContentHash, Bytes)>,
    ) -> Vec<Inserted> {
        let checking = stream::iter(items).map(|(hash, bytes)| check(hash, bytes));
        let checked: Vec<_> = checking.buffered(REQUESTS_AT_A_TIME).collect().await;
        let right = checked.iter().flatten();
        let right = right.map(|(hash, bytes)| (*hash, bytes.len() as u64));
        // Before they are kept, so that a client that goes away pays too.
        self.charge(from, right.collect()).await;
        let giving = stream::iter(checked).map(|checked| async move {
            let (hash, bytes) = match checked {
                Ok(item) => item,
                Err(refused) => return refused,
            };
            let Some(home) = self.reader.home_of_content(&hash) else {
                return Inserted::NoRoom;
            };
            match self.homes.insert(home, hash, bytes).await {
                Ok(Insertion::Kept) => Inserted::Kept,
                Ok(Insertion::NoRoom) | Err(_) => Inserted::NoRoom,
                Ok(Insertion::Refused) => Inserted::Unnamed,
            }
        });
        giving.buffered(REQUESTS_AT_A_TIME).collect().await
    }

    /// Charges items, given with their lengths in bytes, to the job of the process `from`: each to the first dataset
    /// that has it.
    async fn charge(&self, from: Option<u32>, items: Vec<(ContentHash, u64)>) {
        let (names, catalogs): (Vec<_>, Vec<_>) = self.reader.public_catalogs().into_iter().unzip();
        let (hashes, lens): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let found = self.searches.first_with(catalogs, hashes).await;
        let mut bytes: HashMap<&str, u64> = HashMap::new();
        for (dataset, len) in found.into_iter().zip(lens) {
            if let Some(dataset) = dataset {
                *bytes.entry(&names[dataset]).or_default() += len;
            }
        }
        self.reader.read_by_client(from, bytes).await;
    }
}

/// Returns an item whose bytes have the hash.
///
/// # Errors
/// They have not, or are no item.
async fn check(hash: ContentHash, bytes: Bytes) -> Result<(ContentHash, Bytes), Inserted> {
    if !(1..=ITEM_BYTES_MAX).contains(&(bytes.len() as u64)) {
        return Err(Inserted::NoItem);
    }
    let checked = bytes.clone();
    let hashing = tokio::task::spawn_blocking(move || *blake3::hash(&checked).as_bytes());
    match hashing.await {
        Ok(found) if found == hash.0 => Ok((hash, bytes)),
        Ok(_) => Err(Inserted::OtherBytes),
        // The daemon is ending.
        Err(_) => Err(Inserted::NoRoom),
    }
}

#[cfg(test)]
mod tests;
