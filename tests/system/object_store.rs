//! object_store
