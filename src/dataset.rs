//! Datasets: items, their homes, and the caches that hold them there.
//!
//! An *item* is a file of up to 4 MiB, or a 4 MiB stripe of a larger file. Every item has one
//! *home* among the nodes that store datasets ([`crate::model::slots`]). The dataset's rule
//! ([`copperfs_policy::keep`]) says which items a home admits and evicts, within the home's *share*
//! of the dataset's budget.
//!
//! It does not decide budgets ([`crate::budgets`]), hold jobs' tokens ([`crate::job`]), or connect
//! nodes (`copperfs_overlay`).

pub mod catalog;
pub mod chunk_readers;
pub mod contents;
mod fetch;
pub(crate) mod files;
pub mod home;
pub mod item;
mod item_store;
pub mod manifests;
pub mod reader;
pub mod recency;
pub mod residency;
pub mod searches;
pub mod task_reads;

pub use catalog::{Catalog, Piece};
pub use home::{Home, HomeOptions, HomeStorage};
pub use item::ItemId;
pub use manifests::{CatalogLoader, Manifests};
pub use reader::DatasetReader;
