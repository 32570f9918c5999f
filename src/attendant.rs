//! The attendant: a process beside a daemon that mounts and takes away images over directories of its mount.
//!
//! It is not the daemon, because mounting needs more rights than a daemon should have, and because the kernel opens files
//! that the daemon serves meanwhile. It asks the daemon which images are wanted (`POST /v1/attend`), reads each as a tree
//! of names from a filesystem for this purpose (`connection.rs`), and writes the image itself: the kernel's parser gets no
//! byte that the daemon has laid out. It runs as the user of the mount, and keeps of root's rights only those that it needs.
//!
//! It ends when the daemon says so, and when the mount is gone; then it has taken all images away.

mod connection;
mod erofs;
mod rights;

use crate::control::client::{ClientError, ControlClient};
use crate::control::{Attendance, CoverState, FailedImage, NodeImages, WantedImages};
use crate::daemon::mountpoint::within;
use crate::daemon::runtime_dir;
use crate::image::files::ImageFile;
use crate::image::{Layout, transfer, write};
use crate::pressure::trim;
use crate::process::Companion;
use anyhow::{Context, bail, ensure};
use connection::Connection;
pub use connection::{KeepArgs, keep};
use copperfs_fuse::ioctl::client;
use copperfs_fuse::mountinfo::{self, MountEntry};
use copperfs_fuse::{Sockets, resolve};
use copperfs_overlay::ItemPath;
use rustix::fs::{FlockOperation, Mode, OFlags, ResolveFlags, flock, open, openat2, statfs};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::stdio::dup2_stdout;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// The pause before the daemon is asked again that has not answered: another one may take its mount over.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The largest tree that is read: fifty million names.
const TREE_BYTES_MAX: u64 = 8 << 30;

/// Flags of `attend`.
#[derive(Debug, Clone, clap::Args)]
pub struct AttendArgs {
    /// The mount
    #[arg(value_name = "MOUNT")]
    mountpoint: PathBuf,
    /// Stay in the foreground until the mount is gone
    #[arg(short, long)]
    foreground: bool,
    /// The daemon has started this process, and listens here
    #[arg(long, hide = true, value_name = "SOCKET")]
    beside: Option<PathBuf>,
}

impl AttendArgs {
    /// Whether this process itself is to attend the mount.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.foreground || self.beside.is_some()
    }

    /// The mount.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}

/// How long the first images may take.
const FIRST_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts a process that attends the mount, and returns what it says of the first images.
///
/// # Errors
/// There is no such mount, or this process may not mount.
pub fn start(mountpoint: &Path) -> anyhow::Result<String> {
    let mut child = Companion::Attendant
        .command()
        .arg("--foreground")
        .arg("--")
        .arg(resolve(mountpoint)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (said, errors) = (child.stdout.take(), child.stderr.take());
    let listening = move || {
        let mut text = String::new();
        let read = said.map(|mut said| said.read_to_string(&mut text));
        read.transpose().map(|_length| text)
    };
    let text = within(FIRST_TIMEOUT, listening).context("it does not say anything")??;
    if !text.is_empty() {
        return Ok(text.trim_end().to_owned());
    }
    let mut error = String::new();
    errors
        .map(|mut errors| errors.read_to_string(&mut error))
        .transpose()?;
    bail!("{}", error.trim_end().trim_start_matches("copperfs: "))
}

/// Attends the mount until it is gone. Writes what it says of the first images to standard output, and closes that.
///
/// # Errors
/// There is no such mount, or this process may not mount.
pub fn attend(args: &AttendArgs) -> anyhow::Result<()> {
    // Not `exe`, for process lists.
    let _shown_otherwise = rustix::thread::set_name(c"copperfs-attend");
    let path = resolve(&args.mountpoint)?;
    let mounts = mountinfo::read()?;
    let shown = path.display();
    let mount = mountinfo::at(&mounts, &path).filter(|mount| mount.is_copperfs());
    let mount = mount.with_context(|| format!("{shown} is not a copperfs mount"))?;
    let (user, group) = (
        mount.owner.unwrap_or_default(),
        mount.group.unwrap_or_default(),
    );
    rights::become_user(user, group).with_context(|| {
        format!("cannot attend {shown}: mounting an image needs root (CAP_SYS_ADMIN)")
    })?;
    let sockets = match &args.beside {
        Some(socket) => Sockets {
            owner: socket.clone(),
            users: String::new(),
        },
        None => client::sockets(&path)?,
    };
    let _one_at_a_time = lock(&sockets.owner, args.beside.is_some())?;
    let runtime_dir = sockets.owner.parent().unwrap_or(&path);
    let mut attended = Attended {
        device: mount.device,
        connection: Connection::new(&path, runtime_dir),
        hidden_top: runtime_dir::hidden_top(runtime_dir),
        path,
        mounted: BTreeMap::new(),
    };
    // Those of an attendant that has died.
    attended.release_all();
    let client = ControlClient::new(sockets);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(async {
        if args.beside.is_some() {
            return attended.serve(&client).await;
        }
        let (outcome, told) = tokio::join!(attended.serve(&client), tell(&client));
        outcome.and(told)
    });
    attended.release_all();
    outcome
}

/// Waits until no other process attends the mount whose daemon listens on `socket`. With `beside`, this process ends with
/// the daemon while it waits.
fn lock(socket: &Path, beside: bool) -> anyhow::Result<File> {
    let path = socket.with_file_name("attendant.lock");
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let shown = path.display();
    let file = open(&path, flags, Mode::RUSR | Mode::WUSR);
    let file = file.with_context(|| format!("cannot open {shown}"))?;
    if !beside {
        let busy = "another process attends this mount already";
        flock(&file, FlockOperation::NonBlockingLockExclusive).context(busy)?;
        return Ok(file.into());
    }
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let locked = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
    locked.with_context(|| format!("cannot lock {shown}"))?;
    set_parent_process_death_signal(None)?;
    Ok(file.into())
}

fn open_directory(path: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = open(path, flags, Mode::empty());
    opened.with_context(|| format!("cannot open {}", path.display()))
}

/// A mount, and the images over it.
struct Attended {
    /// The mount point.
    path: PathBuf,
    /// The number of the FUSE mount.
    device: (u32, u32),
    /// Where the files of images are.
    connection: Connection,
    /// Where the FUSE mount can be reached if an image lies over all of it.
    hidden_top: PathBuf,
    /// The number of the image over each directory that has one.
    mounted: BTreeMap<String, u32>,
}

impl Attended {
    /// Does what the daemon says until it ends.
    async fn serve(&mut self, client: &ControlClient) -> anyhow::Result<()> {
        let (mut failed, mut begins) = (None, true);
        loop {
            self.look();
            let attendance = Attendance {
                begins,
                mounted: self.mounted.clone(),
                failed: failed.take(),
            };
            let asked = json!(attendance);
            let answer = client.ask("POST", "/v1/attend", Some(&asked)).await;
            let wanted = match answer {
                Ok(answer) => wanted(answer)?,
                Err(refused @ ClientError::Refused { .. }) => return Err(refused.into()),
                Err(error) => {
                    tracing::debug!(%error, "the daemon does not answer");
                    if !is_there(&self.path, self.device)? {
                        break;
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                    continue;
                }
            };
            if wanted.ends {
                // The daemon waits for this, and answers at once.
                self.release_all();
                let done = json!(Attendance::default());
                let _ending = client.ask("POST", "/v1/attend", Some(&done)).await;
                break;
            }
            begins = false;
            failed = self.change_to(&wanted.images);
        }
        Ok(())
    }

    /// Leaves out what others have unmounted, and takes away what cannot be read any more.
    fn look(&mut self) {
        if self.connection.is_lost() {
            return self.release_all();
        }
        let mounts = mountinfo::read().unwrap_or_default();
        let natives = mountinfo::natives(&mounts, &self.path);
        let mounted = |path: &str| {
            let at = below(&self.path, path);
            natives.iter().any(|native| native.mountpoint == at)
        };
        self.mounted.retain(|path, _| mounted(path));
    }

    /// Opens the top directory of the FUSE mount, below all images. It is not kept open, because that would be a use of the
    /// mount.
    fn top(&self) -> anyhow::Result<OwnedFd> {
        let mounts = mountinfo::read()?;
        let at = mountinfo::at(&mounts, &self.path);
        let is_same = at.is_some_and(|mount| mount.device == self.device);
        ensure!(
            is_same,
            "{} is mounted by another daemon now",
            self.path.display()
        );
        open_directory(mountinfo::uncovered(&mounts, &self.path))
    }

    /// Mounts the wanted images that are not there, and takes all others away. Returns the first image that cannot be mounted.
    fn change_to(&mut self, wanted: &BTreeMap<String, u32>) -> Option<FailedImage> {
        let before = std::mem::take(&mut self.mounted);
        for (path, number) in before {
            if wanted.get(&path) == Some(&number) {
                self.mounted.insert(path, number);
            } else {
                self.release(&path);
            }
        }
        for (path, number) in wanted {
            if self.mounted.contains_key(path) {
                continue;
            }
            if let Err(error) = self.mount(path, *number) {
                return Some(FailedImage {
                    image: *number,
                    reason: format!("{error:#}"),
                });
            }
            self.mounted.insert(path.clone(), *number);
            // It stays for as long as the mount does, and needs nothing of the image any more.
            trim();
        }
        None
    }

    /// Writes image `number` and mounts it over the directory `path` of the namespace.
    fn mount(&mut self, path: &str, number: u32) -> anyhow::Result<()> {
        let (path, top) = (ItemPath::parse(path.as_bytes())?, self.top()?);
        let directory = OFlags::PATH | OFlags::DIRECTORY;
        let target = match path.is_root() {
            true => open_directory(&self.path)?,
            false => open_in(&top, OsStr::from_bytes(path.as_bytes()), directory)?,
        };
        let mut open = |file: ImageFile| self.connection.open(file.name(number).as_ref());
        let tree = File::from(open(ImageFile::Tree)?);
        let contents = [open(ImageFile::Small)?, open(ImageFile::Large)?];
        let written = written(tree)?;
        for content in &contents {
            let has = rustix::fs::fstat(content)?.st_size;
            let other = "the daemon's data file is not that of the image";
            ensure!(u64::try_from(has).ok() == Some(written.size), other);
        }
        if path.is_root() {
            self.keep_top(&top)?;
        }
        let contents = contents.each_ref().map(AsFd::as_fd);
        let read_ahead = written.read_ahead;
        erofs::mount(&written.metadata, &contents, read_ahead, target.as_fd())?;
        Ok(())
    }

    /// Mounts the FUSE mount at a second place, where commands reach its daemon while an image lies over it.
    fn keep_top(&self, top: &OwnedFd) -> anyhow::Result<()> {
        let mounts = mountinfo::read()?;
        let is_kept = |mount: &MountEntry| mount.mountpoint == self.hidden_top;
        if mounts.iter().any(is_kept) {
            return Ok(());
        }
        let shown = self.hidden_top.display();
        match std::fs::create_dir(&self.hidden_top) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot make {shown}"));
            }
            _ => {}
        }
        let target = open_directory(&self.hidden_top)?;
        erofs::bind(top.as_fd(), target.as_fd())?;
        Ok(())
    }

    /// Takes the image over the directory `path` away. Programs that use it go on with it.
    fn release(&self, path: &str) {
        let at = below(&self.path, path);
        let mounts = mountinfo::read().unwrap_or_default();
        let natives = mountinfo::natives(&mounts, &at).into_iter();
        natives
            .filter(|native| native.mountpoint == at)
            .for_each(|native| detach(&native.mountpoint));
        if at == self.path {
            self.leave_top();
        }
    }

    /// Takes all images away.
    fn release_all(&mut self) {
        self.mounted.clear();
        let mounts = mountinfo::read().unwrap_or_default();
        for native in mountinfo::natives(&mounts, &self.path) {
            detach(&native.mountpoint);
        }
        let is_kept = |mount: &MountEntry| mount.mountpoint == self.hidden_top;
        if mounts
            .iter()
            .any(|mount| is_kept(mount) && mount.device == self.device)
        {
            self.leave_top();
        }
    }

    /// Undoes [`keep_top`](Self::keep_top).
    fn leave_top(&self) {
        detach(&self.hidden_top);
        // Another mount namespace may have it.
        let _stays = std::fs::remove_dir(&self.hidden_top);
    }
}

/// Whether the FUSE mount `device` at `path` is there. Waits while its daemon is replaced by another one.
fn is_there(path: &Path, device: (u32, u32)) -> anyhow::Result<bool> {
    let mounts = mountinfo::read()?;
    let is_mounted = mounts.iter().any(|mount| mount.device == device);
    // The kernel never answers this itself. It fails at once if the connection has ended.
    let top = mountinfo::uncovered(&mounts, path);
    Ok(is_mounted && !has_ended(&statfs(top)))
}

/// Whether the answer of a FUSE filesystem to a request says that its connection has ended.
fn has_ended<T>(answer: &rustix::io::Result<T>) -> bool {
    matches!(answer, Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// The place in the mount at `mountpoint` of a path of the namespace.
fn below(mountpoint: &Path, path: &str) -> PathBuf {
    match path.trim_start_matches('/') {
        "" => mountpoint.to_owned(),
        below => mountpoint.join(below),
    }
}

/// Opens a file below the directory `top`, on the same mount.
fn open_in(top: &OwnedFd, below: &OsStr, flags: OFlags) -> anyhow::Result<OwnedFd> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = openat2(top, below, flags, Mode::empty(), inside);
    opened.with_context(|| format!("cannot open {}", below.display()))
}

/// Writes how the directories of the mount are served, as soon as that is clear.
async fn tell(client: &ControlClient) -> anyhow::Result<()> {
    loop {
        let answer = client.ask("GET", "/v1/images", None).await?;
        let now: NodeImages = serde_json::from_value(answer).context(OTHER_VERSION)?;
        let is_clear = |cover: &CoverState| cover.image.is_some() || cover.why_not.is_some();
        if now.images.is_empty() || now.attended && now.images.iter().all(is_clear) {
            let mut output = std::io::stdout().lock();
            output.write_all(text(&now).as_bytes())?;
            output.flush()?;
            return close_stdout();
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Closes a pipe, whose end the process waits for that has started this one.
fn close_stdout() -> anyhow::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    Ok(dup2_stdout(&null)?)
}

fn text(images: &NodeImages) -> String {
    if images.images.is_empty() {
        return "this mount wants no images: it has --front fuse, or no index\n".to_owned();
    }
    images.lines()
}

const OTHER_VERSION: &str = "the daemon is of another version";

fn wanted(answer: Value) -> anyhow::Result<WantedImages> {
    serde_json::from_value(answer).context(OTHER_VERSION)
}

/// An image that is ready to be mounted.
struct Written {
    metadata: Vec<u8>,
    /// The size of the data file in bytes.
    size: u64,
    read_ahead: erofs::ReadAhead,
}

/// Reads a tree and writes the metadata of its image.
fn written(tree: File) -> anyhow::Result<Written> {
    let mut bytes = Vec::new();
    let read = tree.take(TREE_BYTES_MAX).read_to_end(&mut bytes);
    let read = read.context("cannot read the names for the image")?;
    ensure!(
        (read as u64) < TREE_BYTES_MAX,
        "the image has too many names"
    );
    let (tree, wanted) = transfer::decode(&bytes)?;
    drop(bytes);
    let layout = Layout::new(&tree, &wanted)?;
    Ok(Written {
        metadata: write(&tree, &layout)?,
        size: layout.size(),
        read_ahead: match wanted.is_empty() {
            true => erofs::ReadAhead::Long,
            false => erofs::ReadAhead::Short,
        },
    })
}

fn detach(path: &Path) {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    if let Err(error) = rustix::mount::unmount(path, flags) {
        tracing::warn!(%error, path = %path.display(), "an image stays");
    }
}
