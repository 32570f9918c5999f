//! A medium of tests, whose writers are killed.

use super::Medium;
use crate::num::to_usize;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A writer that is killed after a number of bytes. Only places that were written take memory.
pub(crate) struct Killed {
    pages: Mutex<BTreeMap<u64, [u8; PAGE]>>,
    length: Mutex<u64>,
    left: Mutex<usize>,
}

pub(crate) const PAGE: usize = 4096;

/// The page and the place in it.
fn place(offset: u64) -> (u64, usize) {
    (offset / PAGE as u64, to_usize(offset % PAGE as u64))
}

impl Killed {
    pub(crate) fn after(left: usize) -> Arc<Self> {
        Arc::new(Self {
            pages: Mutex::default(),
            length: Mutex::default(),
            left: Mutex::new(left),
        })
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.left.lock() == 0
    }

    /// Another writer may write `left` bytes.
    pub(crate) fn revive(&self, left: usize) {
        *self.left.lock() = left;
    }

    /// Returns another one with the same bytes. What this one's writer does from now on is not in it.
    pub(crate) fn survivor(&self) -> Arc<Self> {
        Arc::new(Self {
            pages: Mutex::new(self.pages.lock().clone()),
            length: Mutex::new(*self.length.lock()),
            left: Mutex::new(usize::MAX),
        })
    }

    /// Its bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.lock().len() * PAGE
    }
}

impl Medium for Arc<Killed> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut left = self.left.lock();
        let written = bytes.len().min(*left);
        *left -= written;
        let mut pages = self.pages.lock();
        let mut at = offset;
        let mut rest = &bytes[..written];
        while !rest.is_empty() {
            let (page, from) = place(at);
            let here = rest.len().min(PAGE - from);
            let page = pages.entry(page).or_insert([0; PAGE]);
            page[from..from + here].copy_from_slice(&rest[..here]);
            (at, rest) = (at + here as u64, &rest[here..]);
        }
        let mut length = self.length.lock();
        *length = (*length).max(at);
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = self.length.lock().saturating_sub(offset);
        let read = buffer.len().min(to_usize(rest));
        let pages = self.pages.lock();
        let (mut at, mut done) = (offset, 0);
        while done < read {
            let (page, from) = place(at);
            let here = (read - done).min(PAGE - from);
            let into = &mut buffer[done..done + here];
            match pages.get(&page) {
                Some(page) => into.copy_from_slice(&page[from..from + here]),
                None => into.fill(0),
            }
            (at, done) = (at + here as u64, done + here);
        }
        Ok(read)
    }

    fn release(&self, range: Range<u64>) -> io::Result<()> {
        if !self.is_dead() {
            // Whole pages, as the kernel does.
            let whole = range.start.div_ceil(PAGE as u64)..range.end / PAGE as u64;
            self.pages.lock().retain(|page, _| !whole.contains(page));
        }
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        *self.length.lock() = length;
        let (last, from) = place(length);
        let mut pages = self.pages.lock();
        pages.retain(|page, _| *page <= last);
        if let Some(page) = pages.get_mut(&last) {
            page[from..].fill(0);
        }
        Ok(())
    }
}
