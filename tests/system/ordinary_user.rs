//! ordinary_user
