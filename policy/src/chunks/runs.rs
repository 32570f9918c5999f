//! Sets of chunks as runs of consecutive numbers.
//!
//! A reader exhausts chunks in the order of the ring, so its set is one run or two, however many chunks there are.
//! Reports of thousands of readers travel together, so each must be short.

use super::layout::STRIPES_MAX;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;

/// Serializes `chunks` as pairs: the first number of a run, and how many follow.
pub(super) fn serialize<S: Serializer>(
    chunks: &BTreeSet<u32>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &chunk in chunks {
        match runs.last_mut() {
            Some((first, more)) if u64::from(*first) + u64::from(*more) + 1 == u64::from(chunk) => {
                *more += 1;
            }
            _ => runs.push((chunk, 0)),
        }
    }
    runs.serialize(serializer)
}

/// The inverse of [`serialize`]. Refuses chunks that no layout has, because a run of a few bytes could otherwise name
/// four billion of them.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeSet<u32>, D::Error> {
    let runs = Vec::<(u32, u32)>::deserialize(deserializer)?;
    let mut chunks = BTreeSet::new();
    let mut next = 0;
    for (first, more) in runs {
        let end = first.checked_add(more).filter(|last| *last < STRIPES_MAX);
        let last = end.ok_or_else(|| D::Error::custom("chunks beyond the last possible one"))?;
        // In order, so that few runs stay few chunks.
        if first < next {
            return Err(D::Error::custom("runs of chunks that overlap"));
        }
        chunks.extend(first..=last);
        next = last + 1;
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use super::super::reading::Reading;
    use super::*;
    use proptest::prelude::*;

    fn reading(exhausted: impl IntoIterator<Item = u32>) -> Reading {
        Reading {
            epoch: 3,
            refers: BTreeSet::from([5, 9]),
            exhausted: exhausted.into_iter().collect(),
        }
    }

    #[test]
    fn a_reading_of_a_large_dataset_is_short() {
        let all = reading(0..STRIPES_MAX);
        let json = serde_json::to_string(&all).unwrap();
        assert!(json.len() < 80, "{json}");
        assert_eq!(serde_json::from_str::<Reading>(&json).unwrap(), all);
    }

    #[test]
    fn runs_that_no_reader_sends_are_refused() {
        for runs in [
            "[[0,4294967295]]",
            "[[65536,0]]",
            "[[3,2],[4,0]]",
            "[[5,0],[3,0]]",
        ] {
            let json = format!("{{\"epoch\":0,\"refers\":[],\"exhausted\":{runs}}}");
            let refused = serde_json::from_str::<Reading>(&json).unwrap_err();
            assert!(refused.to_string().contains("chunks"), "{runs}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn sets_come_back(exhausted in prop::collection::btree_set(0..200_u32, 0..100)) {
            let reading = reading(exhausted);
            let json = serde_json::to_string(&reading).unwrap();
            prop_assert_eq!(serde_json::from_str::<Reading>(&json).unwrap(), reading);
        }
    }
}
