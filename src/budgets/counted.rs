//! What a dataset holds, as a count or an index says.

/// What a dataset holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Files, and the stripes of larger ones.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of each slot.
    pub slots: Vec<u64>,
    /// What this count was made from, so that a change shows: an index's time and length, say.
    pub source: u64,
}
