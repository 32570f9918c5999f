//! Reads of many files at a time into memory that a client shares with the daemon.
//!
//! A READ of the mount costs a reader and the daemon some 100 µs, most of it for wake-ups. A client that knows which
//! files it wants next (a training process has the indices of its mini-batch) sends their paths in one message over a
//! Unix socket. The daemon writes their bytes into the client's memory, and answers with one message.
//!
//! A client has the rights of its user and no others ([`Credentials`]), and must have reached the root of the mount itself.
//! What it may not read here, and everything that only the mount can do (symbolic links, for one), has an errno in the
//! answer; the client then opens the file by its path, as usual. docs/client.md describes the messages.
//!
//! Bounds: the messages, the files of a batch, a client's memory, the memory of all clients, the clients of a user, and
//! the bytes in progress. A client that ends cancels its batch.

mod access;
mod memory;
mod message;
mod server;
mod socket;

pub use access::{Credentials, Permissions};
pub use message::{FILES_MAX, Outcome};
pub use server::{BatchReads, FileSource, SOCKET_SUFFIX};
