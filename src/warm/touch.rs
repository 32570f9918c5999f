//! The helper process that accesses a mount as a program would, so that the kernel caches the files.
//!
//! It is a separate process, because a daemon whose own threads wait for its own mount cannot be killed: the
//! pending request blocks the thread, and the thread keeps the connection open that would have to end first.
//! The helper ends with the mount, or with its standard input.
//!
//! Standard input delivers steps as frames ([`pipe`]) of a postcard [`Step`]. Standard output
//! receives one [`Touched`] per step in the same form and order. All paths are opened beneath the mount's root
//! (`openat2`), so a plan cannot lead outside of the mount. The images over its directories are parts of it.

use super::Step;
use crate::process::pipe;
use copperfs_fuse::mountinfo;
use copperfs_overlay::ItemPath;
use rustix::fs::{Advice, AtFlags, Dir, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest frame in bytes: a path and some numbers.
pub const FRAME_BYTES_MAX: usize = 8 << 10;
/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The outcome of a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Touched {
    /// The kernel caches it, with this number of bytes of a file.
    Here(u64),
    /// The path does not exist any more.
    Vanished,
    /// The access failed.
    Failed(String),
}

/// A mount to access.
#[derive(Debug)]
pub struct Toucher {
    root: OwnedFd,
    mountpoint: PathBuf,
    /// The numbers of the images over the mount, as far as they are known.
    images: Vec<u64>,
    buffer: Vec<u8>,
}

impl Toucher {
    /// The mount at `mountpoint`.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(mountpoint: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            mountpoint: mountpoint.to_owned(),
            images: Vec::new(),
            root: rustix::fs::open(mountpoint, flags, Mode::empty())?,
            buffer: vec![0; PIECE_BYTES],
        })
    }

    /// Carries out one step.
    pub fn touch(&mut self, step: &Step) -> Touched {
        let outcome = match step {
            Step::List(path) => self.list(path),
            Step::Stat(path) | Step::Xattrs(path) => self.stat(path),
            Step::Absent(path) => match self.stat(path) {
                // The name may exist by now, which is no failure.
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(0),
                Err(errno) => Err(errno),
            },
            Step::Read { path, offset, len } => self.read(path, *offset, *len),
        };
        match outcome {
            Ok(bytes) => Touched::Here(bytes),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => Touched::Vanished,
            Err(errno) => Touched::Failed(format!("{}: {errno}", step.path())),
        }
    }

    fn at(&mut self, path: &ItemPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let name = if path.is_root() {
            &b"."[..]
        } else {
            path.as_bytes()
        };
        let flags = flags | OFlags::CLOEXEC;
        let name = OsStr::from_bytes(name);
        let open = |resolve| {
            let (root, mode) = (&self.root, Mode::empty());
            rustix::io::retry_on_intr(|| rustix::fs::openat2(root, name, flags, mode, resolve))
        };
        let opened = open(ResolveFlags::BENEATH | ResolveFlags::NO_XDEV);
        if !matches!(opened, Err(Errno::XDEV)) {
            return opened;
        }
        let opened = open(ResolveFlags::BENEATH)?;
        match self.is_in_image(&opened)? {
            true => Ok(opened),
            false => Err(Errno::XDEV),
        }
    }

    /// Whether an open file is in an image over the mount.
    fn is_in_image(&mut self, file: &OwnedFd) -> Result<bool, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let number = rustix::fs::statx(file, c"", flags, StatxFlags::MNT_ID)?.stx_mnt_id;
        if !self.images.contains(&number) {
            let mounts = mountinfo::read().unwrap_or_default();
            let images = mountinfo::natives(&mounts, &self.mountpoint);
            self.images = images.iter().map(|image| image.id).collect();
        }
        Ok(self.images.contains(&number))
    }

    fn list(&mut self, path: &ItemPath) -> Result<u64, Errno> {
        let fd = self.at(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Dir::read_from(fd)? {
            entry?;
        }
        Ok(0)
    }

    fn stat(&mut self, path: &ItemPath) -> Result<u64, Errno> {
        let fd = self.at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let stat = rustix::fs::statat(&fd, c"", AtFlags::EMPTY_PATH)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
            rustix::fs::readlinkat(&fd, c"", Vec::new())?;
        }
        Ok(0)
    }

    fn read(&mut self, path: &ItemPath, offset: u64, len: u64) -> Result<u64, Errno> {
        // Non-blocking, because the path may be a FIFO by now.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = self.at(path, flags)?;
        // Starts the read of the whole range before the first piece is awaited. A kernel that ignores the
        // advice reads ahead by itself.
        let _advice = rustix::fs::fadvise(&file, offset, NonZeroU64::new(len), Advice::WillNeed);
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
            let room = wanted.min(self.buffer.len());
            let buffer = &mut self.buffer[..room];
            let got =
                rustix::io::retry_on_intr(|| rustix::io::pread(file.as_fd(), &mut *buffer, at))?;
            if got == 0 {
                break;
            }
            at += got as u64;
        }
        Ok(at - offset)
    }
}

/// Carries out steps from `input` until its end.
///
/// # Errors
/// The mount cannot be opened, or the daemon is gone.
pub fn serve(mountpoint: &Path, input: impl Read, output: impl Write) -> io::Result<()> {
    let mut toucher = Toucher::open(mountpoint)?;
    let mut input = BufReader::with_capacity(64 << 10, input);
    let mut output = BufWriter::new(output);
    loop {
        // Outcomes are flushed before the next read can block.
        if input.buffer().is_empty() {
            output.flush()?;
        }
        let Some(frame) = pipe::read_frame(&mut input, FRAME_BYTES_MAX)? else {
            return output.flush();
        };
        let step: Step = postcard::from_bytes(&frame).map_err(io::Error::other)?;
        output.write_all(&encode(&toucher.touch(&step))?)?;
    }
}

/// A frame with `value`.
///
/// # Errors
/// The value has no postcard form, which each type of this module has.
pub fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let body = postcard::to_stdvec(value).map_err(io::Error::other)?;
    Ok(pipe::frame(&body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    #[test]
    fn steps_touch_their_paths_and_nothing_outside_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let inside = |name: &str| dir.path().join(name);
        std::fs::create_dir(inside("top")).unwrap();
        std::fs::write(inside("top/file"), [7; 3000]).unwrap();
        std::fs::write(inside("secret"), "x").unwrap();
        std::os::unix::fs::symlink("file", inside("top/link")).unwrap();
        std::os::unix::fs::symlink("..", inside("top/up")).unwrap();
        let mut toucher = Toucher::open(&inside("top")).unwrap();
        let read = |name: &str, offset, len| Step::Read {
            path: path(name),
            offset,
            len,
        };
        assert_eq!(toucher.touch(&Step::List(path("/"))), Touched::Here(0));
        assert_eq!(toucher.touch(&Step::Stat(path("link"))), Touched::Here(0));
        assert_eq!(toucher.touch(&Step::Absent(path("no"))), Touched::Here(0));
        assert_eq!(toucher.touch(&read("file", 0, 3000)), Touched::Here(3000));
        assert_eq!(
            toucher.touch(&read("file", 2000, 5000)),
            Touched::Here(1000)
        );
        assert_eq!(toucher.touch(&read("gone", 0, 1)), Touched::Vanished);
        assert_eq!(toucher.touch(&Step::List(path("file"))), Touched::Vanished);
        let outside = toucher.touch(&read("up/secret", 0, 1));
        assert!(matches!(outside, Touched::Failed(_)), "{outside:?}");
    }

    #[test]
    fn answers_come_in_order_until_the_input_ends() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "12345").unwrap();
        let steps = [
            Step::Stat(path("gone")),
            Step::Read {
                path: path("file"),
                offset: 0,
                len: u64::MAX,
            },
        ];
        let frames = steps.iter().map(|step| encode(step).unwrap());
        let input = frames.collect::<Vec<_>>().concat();
        let mut output = Vec::new();
        serve(dir.path(), &input[..], &mut output).unwrap();
        let answers = [Touched::Vanished, Touched::Here(5)];
        let frames = answers.iter().map(|answer| encode(answer).unwrap());
        assert_eq!(output, frames.collect::<Vec<_>>().concat());
        let huge = u32::MAX.to_le_bytes();
        assert!(serve(dir.path(), &huge[..], Vec::new()).is_err());
    }
}
