//! Datasets: items, their homes, and the uniform cache that holds them there.
//!
//! An *item* is a file of up to 4 MiB, or a 4 MiB stripe of a larger file. Every item has one
//! *home* among the nodes that store datasets ([`crate::model::slots`]). A home admits items until
//! its *share* of the dataset's budget is full, and evicts nothing until the budget shrinks
//! (`SiloD`, section 2.2).
//!
//! It does not decide budgets ([`crate::budgets`]), hold jobs' tokens ([`crate::job`]), or connect
//! nodes (`copperfs_overlay`).

mod fetch;
pub mod home;
pub mod item;
mod item_store;
pub mod reader;
pub mod recency;
pub mod uniform;

pub use home::{Home, HomeOptions, HomeStorage};
pub use item::ItemId;
