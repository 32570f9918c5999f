//! freshness
