//! Amounts that are set by hand, or left to the policy.

use serde_json::{Value, json};

/// The JSON form of an amount that is set by hand. Null leaves it to the policy.
pub(super) fn amount_or_null(amount: &str) -> Value {
    match amount {
        "auto" => Value::Null,
        amount => json!(amount),
    }
}

/// Tells by whom an amount is set.
pub(super) fn told(amount: &str) -> String {
    match amount {
        "auto" => "left to the policy".to_owned(),
        amount => format!("{amount}, set by hand"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_leaves_it_to_the_policy() {
        assert_eq!(amount_or_null("auto"), Value::Null);
        assert_eq!(amount_or_null("5GB"), json!("5GB"));
        assert_eq!(told("auto"), "left to the policy");
    }
}
