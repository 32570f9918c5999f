//! How much to prefetch for readers that take the files of a large directory in no order.
//!
//! Nothing shows which file is next, and each costs a round trip to storage. But a job that has read a few dozen
//! files of one directory usually reads many more of it. So the directory is prefetched in steps that grow with
//! the evidence. A program that picks a few dozen files and stops has wasted the steps that it reached.

/// The number of files read, and the bytes to prefetch at that moment.
const STEPS: [(u32, u64); 3] = [(8, 8 << 20), (16, 32 << 20), (32, u64::MAX)];
/// After the last step, the next part of a directory is due after each this many reads.
const MORE_EVERY: u32 = 64;

/// The bytes to prefetch after `reads` files were read in no order; `None`: nothing now.
pub(super) fn due_bytes(reads: u32) -> Option<u64> {
    let step = STEPS.iter().find(|(at, _)| *at == reads);
    let (last, rest) = STEPS[STEPS.len() - 1];
    let more = reads > last && reads.is_multiple_of(MORE_EVERY);
    step.map(|(_, bytes)| *bytes).or(more.then_some(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_with_the_number_of_files_read() {
        let steps: Vec<_> = (1..300)
            .filter_map(|reads| Some((reads, due_bytes(reads)?)))
            .collect();
        let rest = u64::MAX;
        let expected = [
            (8, 8 << 20),
            (16, 32 << 20),
            (32, rest),
            (64, rest),
            (128, rest),
            (192, rest),
            (256, rest),
        ];
        assert_eq!(steps, expected);
    }
}
