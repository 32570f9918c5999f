//! The open files that a daemon passes on.

use super::TakeoverError;
use crate::journal::{self, Journal, Latest, MemoryFile};
use copperfs_fuse::descriptors;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// What an open file is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Role {
    /// The options of the daemon, in the form of [`super::Estate::new`].
    Options = b'o',
    /// The journal.
    Journal = b'j',
    /// The decision about caches that the daemon follows.
    Decision = b'd',
    /// The counters of all daemons of these mounts.
    Counts = b'n',
    /// Where standard error goes.
    Log = b'e',
    /// The locked pid file.
    Lock = b'l',
    /// A mount's connection to the kernel: first that of the software mount, then that of the data mount.
    Connection = b'c',
    /// A UDP socket for other nodes: first that of the node, then those of its lanes.
    Peers = b'p',
    /// The TCP socket for commands.
    Api = b'a',
}

impl Role {
    const ALL: [Self; 9] = [
        Self::Options,
        Self::Journal,
        Self::Decision,
        Self::Counts,
        Self::Log,
        Self::Lock,
        Self::Connection,
        Self::Peers,
        Self::Api,
    ];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|role| *role as u8 == byte)
    }
}

/// What a daemon passes on: open files, each with its role.
#[derive(Debug, Default)]
pub struct Legacy(Vec<(Role, OwnedFd)>);

impl Legacy {
    /// Adds an open file.
    pub fn add(&mut self, role: Role, file: OwnedFd) {
        self.0.push((role, file));
    }

    /// Returns the same open files under other descriptors.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        let files = self.0.iter();
        let files = files.map(|(role, file)| Ok((*role, file.try_clone()?)));
        Ok(Self(files.collect::<io::Result<_>>()?))
    }

    /// Returns the number of its files.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Sends it to the process at the other end of a Unix socket, which may start later.
    ///
    /// # Errors
    /// The socket cannot be written.
    pub fn send(&self, socket: impl AsFd) -> io::Result<()> {
        let mut files = self.0.iter();
        files
            .try_for_each(|(role, file)| Ok(descriptors::send(&socket, *role as u8, file.as_fd())?))
    }

    /// Receives one of `count` files, blocking. Files whose role this program does not know are left out.
    ///
    /// # Errors
    /// The socket cannot be read, or has fewer files.
    pub fn receive(socket: impl AsFd, count: usize) -> io::Result<Self> {
        let mut legacy = Self::default();
        for _ in 0..count {
            let received = descriptors::receive(&socket)?;
            let (byte, file) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
            if let Some(role) = Role::of(byte) {
                legacy.add(role, file);
            }
        }
        Ok(legacy)
    }

    /// Returns another descriptor of the first file of `role`.
    ///
    /// # Errors
    /// There is none, or no descriptor left.
    pub fn file(&self, role: Role) -> io::Result<OwnedFd> {
        let found = self.0.iter().find(|(own, _)| *own == role);
        let (_, file) = found.ok_or_else(|| {
            let error = format!("the daemon before has left no {role:?}");
            io::Error::new(io::ErrorKind::NotFound, error)
        })?;
        file.try_clone()
    }

    /// Returns other descriptors of the files of `role`.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn files(&self, role: Role) -> io::Result<Vec<OwnedFd>> {
        let found = self.0.iter().filter(|(own, _)| *own == role);
        found.map(|(_, file)| file.try_clone()).collect()
    }

    /// Takes the files of `role`.
    pub fn take(&mut self, role: Role) -> Vec<OwnedFd> {
        let taken = self.0.extract_if(.., |(own, _)| *own == role);
        taken.map(|(_, file)| file).collect()
    }

    /// Checks that this program could take over. Nothing changes.
    ///
    /// # Errors
    /// See [`TakeoverError`].
    pub fn check(&self) -> Result<(), TakeoverError> {
        let file = MemoryFile::from(self.file(Role::Journal)?);
        Ok(Journal::check(&file)?)
    }

    /// Returns the number of the daemon that has begun to serve last: see [`super::Estate::serve`].
    ///
    /// # Errors
    /// There is no journal, or it cannot be read.
    pub fn served_by(&self) -> io::Result<u64> {
        journal::served_by(&MemoryFile::from(self.file(Role::Journal)?))
    }

    /// Returns the latest options of the daemon.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read_options(&self) -> Result<Vec<u8>, TakeoverError> {
        let file = MemoryFile::from(self.file(Role::Options)?);
        let (_, options) = Latest::adopt(file)?;
        options.ok_or(TakeoverError::NoOptions)
    }
}
