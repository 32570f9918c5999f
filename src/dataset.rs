//! Datasets: items, where each is at home, and the uniform cache that keeps them there.
//!
//! An *item* is a file, or of a file larger than 4 MiB each 4 MiB stripe. Every item has one *home*
//! among the nodes that store datasets ([`crate::model::slots`]). A home admits items until its *share* of the
//! dataset's budget is full, and evicts nothing until the budget shrinks (`SiloD`, section 2.2).
//!
//! What it does not do: decide budgets ([`crate::budgets`]), hold jobs' tokens ([`crate::job`]), or
//! travel (`copperfs_overlay`).

mod fetch;
pub mod home;
pub mod item;
mod item_store;
pub mod reader;
pub mod recency;
pub mod uniform;

pub use home::{Home, HomeOptions, HomePlace};
pub use item::ItemId;
