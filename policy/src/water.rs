//! Max-min water filling: divides a capacity so that no need is exceeded, and all needs that are
//! not met have the same share per unit of weight.

/// Divides `capacity` among `needs` evenly, so the smallest needs are met first.
///
/// The parts sum to the smaller of the capacity and the sum of the needs. A need that is not
/// positive gets nothing. Works for any unit.
#[must_use]
pub fn fill(capacity: f64, needs: &[f64]) -> Vec<f64> {
    fill_weighted(capacity, needs, &vec![1.0; needs.len()])
}

/// Divides `capacity` among `needs`: `min(need, level · weight)` with the highest level that the
/// capacity allows.
///
/// Needs of weight 0 share evenly what the others leave.
///
/// # Panics
/// If the numbers of weights and needs differ.
#[must_use]
pub fn fill_weighted(capacity: f64, needs: &[f64], weights: &[f64]) -> Vec<f64> {
    assert_eq!(needs.len(), weights.len(), "a weight for each need");
    let mut given = vec![0.0; needs.len()];
    let mut left = capacity.max(0.0);
    let weighty: Vec<usize> = (0..needs.len())
        .filter(|&at| needs[at] > 0.0 && weights[at] > 0.0)
        .collect();
    left = pour(left, needs, weights, weighty, &mut given);
    let others: Vec<usize> = (0..needs.len())
        .filter(|&at| needs[at] > 0.0 && weights[at] <= 0.0)
        .collect();
    if !others.is_empty() {
        pour(left, needs, &vec![1.0; needs.len()], others, &mut given);
    }
    given
}

/// Fills the needs at the indices `open`, and returns the rest of the capacity.
fn pour(
    mut left: f64,
    needs: &[f64],
    weights: &[f64],
    mut open: Vec<usize>,
    given: &mut [f64],
) -> f64 {
    // Needs that are met at a lower level come first.
    open.sort_by(|&a, &b| {
        let level = |at: usize| needs[at] / weights[at];
        level(a).total_cmp(&level(b)).then(a.cmp(&b))
    });
    // Sum the weights from the end, so that rounding in a few large weights does not lose later
    // small ones.
    let mut behind = vec![0.0; open.len() + 1];
    for (place, &at) in open.iter().enumerate().rev() {
        behind[place] = behind[place + 1] + weights[at];
    }
    for (place, &at) in open.iter().enumerate() {
        // The level of the remaining needs, if none of them is met below it.
        let level = left / behind[place];
        let share = needs[at].min(level * weights[at]).min(left);
        given[at] = share;
        left -= share;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_needs_first() {
        assert_eq!(fill(200.0, &[52.5, 69.0, 8.0, 0.0]), [52.5, 69.0, 8.0, 0.0]);
        assert_eq!(fill(100.0, &[52.5, 69.0, 8.0]), [46.0, 46.0, 8.0]);
        assert_eq!(fill(30.0, &[52.5, 69.0, 8.0]), [11.0, 11.0, 8.0]);
        assert_eq!(fill(0.0, &[1.0, 2.0]), [0.0, 0.0]);
        assert_eq!(fill(10.0, &[]), [0.0; 0]);
        assert_eq!(fill(-1.0, &[1.0]), [0.0]);
    }

    #[test]
    fn weights_set_the_pace() {
        assert_eq!(
            fill_weighted(40.0, &[100.0, 100.0, 100.0], &[2.0, 1.0, 1.0]),
            [20.0, 10.0, 10.0]
        );
        assert_eq!(
            fill_weighted(40.0, &[5.0, 100.0, 100.0], &[2.0, 1.0, 1.0]),
            [5.0, 17.5, 17.5]
        );
        assert_eq!(
            fill_weighted(40.0, &[30.0, 100.0], &[1.0, 0.0]),
            [30.0, 10.0]
        );
    }

    proptest! {
        #[test]
        fn the_level_is_one(
            capacity in 0.0..1e9_f64,
            jobs in prop::collection::vec((0.0..1e9_f64, 0.01..100.0_f64), 0..30),
        ) {
            let (needs, weights): (Vec<f64>, Vec<f64>) = jobs.into_iter().unzip();
            let given = fill_weighted(capacity, &needs, &weights);
            let sum: f64 = given.iter().sum();
            let wanted: f64 = needs.iter().sum();
            prop_assert!((sum - capacity.min(wanted)).abs() <= 1e-9 * capacity.max(1.0));
            // A need that is not met has the highest level.
            let level = |at: usize| given[at] / weights[at];
            for short in 0..needs.len() {
                prop_assert!(given[short] <= needs[short]);
                if given[short] < needs[short] * (1.0 - 1e-9) {
                    for other in 0..needs.len() {
                        prop_assert!(level(other) <= level(short) * (1.0 + 1e-6) + 1e-9);
                    }
                }
            }
        }
    }
}
