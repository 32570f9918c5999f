//! Levels: how a bound amount is shared among those who want at most so much.

/// Who wants how much, at which weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Want {
    /// At most this.
    pub(super) most: f64,
    /// Shares grow in proportion to this, above zero.
    pub(super) weight: f64,
    /// What one unit given costs of the total; nothing for what is free.
    pub(super) cost: f64,
}

/// The largest level at which everybody can have `min(most, level · weight)`: max-min fairness. It is
/// infinite where all get what they want. `order` is room to work in.
pub(super) fn level(wants: &[Want], total: f64, order: &mut Vec<(f64, usize)>) -> f64 {
    let mut left = total;
    let mut slope = 0.0;
    order.clear();
    for (at, want) in wants.iter().enumerate() {
        if want.cost > 0.0 {
            slope += want.weight * want.cost;
            order.push((want.most / want.weight, at));
        }
    }
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    for &(full, at) in order.iter() {
        if slope * full >= left {
            return left / slope;
        }
        left -= wants[at].most * wants[at].cost;
        // Rounding must not make what is left of the slope negative.
        slope = (slope - wants[at].weight * wants[at].cost).max(f64::MIN_POSITIVE);
    }
    f64::INFINITY
}
