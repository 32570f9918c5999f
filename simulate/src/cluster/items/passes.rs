//! Substitutable look-ups: a job takes the items that are there first (Quiver, section 4.7).

/// The unread items of a job's epoch, in the job's random order.
///
/// A look-up takes those that are resident. Items that were looked at in vain are pending until the next
/// pass, which begins at the end of the list. How many items a client looks up at a time (ten batches)
/// changes only the number of its requests, which is not modelled.
#[derive(Debug, Default)]
pub(super) struct Passes {
    rest: Vec<u32>,
    at: usize,
    pending: Vec<u32>,
}

impl Passes {
    /// Begins an epoch.
    pub(super) fn new(order: Vec<u32>) -> Self {
        Self {
            rest: order,
            ..Self::default()
        }
    }

    /// Returns the number of unread items.
    pub(super) fn len(&self) -> usize {
        self.rest.len() - self.at + self.pending.len()
    }

    /// Takes the next items that are resident, until `taken` has `count` of them or each item has been
    /// looked at.
    pub(super) fn take(
        &mut self,
        count: usize,
        taken: &mut Vec<u32>,
        mut is_resident: impl FnMut(u32) -> bool,
    ) {
        for _ in 0..self.len() {
            if taken.len() >= count {
                return;
            }
            if self.at == self.rest.len() {
                self.rest = std::mem::take(&mut self.pending);
                self.at = 0;
            }
            let item = self.rest[self.at];
            self.at += 1;
            if is_resident(item) {
                taken.push(item);
            } else {
                self.pending.push(item);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shuffled;
    use super::*;
    use crate::random::Random;

    const ITEMS: u32 = 51_200;
    const BATCH: usize = 512;

    /// Quiver's arithmetic: with a tenth resident, a batch takes ten times as many look-ups in the first
    /// pass, and an epoch takes ten passes and 5.5 look-ups an item.
    #[test]
    fn a_resident_tenth_serves_a_whole_epoch_in_ten_passes() {
        let mut passes = Passes::new(shuffled(ITEMS, &mut Random::new(3)));
        let mut all = Vec::new();
        let mut looks = 0.0_f64;
        for tenth in 0..10 {
            for batch in 0..10 {
                let mut taken = Vec::new();
                passes.take(BATCH, &mut taken, |item| {
                    looks += 1.0;
                    item % 10 == tenth
                });
                assert_eq!(taken.len(), BATCH);
                all.append(&mut taken);
                if tenth == 0 && batch == 8 {
                    // The tenth batch of a pass may end before the list does.
                    assert!((looks / 9.0 / 5120.0 - 1.0).abs() < 0.02, "{looks}");
                }
            }
        }
        let an_item = looks / f64::from(ITEMS);
        assert!((an_item - 5.5).abs() < 0.05, "{an_item}");
        all.sort_unstable();
        assert!(passes.len() == 0 && all.into_iter().eq(0..ITEMS));
    }

    #[test]
    fn nothing_resident_ends_after_one_look_at_each() {
        let mut passes = Passes::new((0..100).collect());
        let mut taken = vec![7];
        let mut looks = 0;
        passes.take(64, &mut taken, |_| {
            looks += 1;
            false
        });
        assert_eq!((looks, taken.len(), passes.len()), (100, 1, 100));
    }
}
