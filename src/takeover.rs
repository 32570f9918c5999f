//! What outlives a daemon, so that another one can take its mounts over.
//!
//! The watchdog ([`crate::watchdog`]) holds the same open files as the daemon: the connections of its mounts, its
//! journal, its options, its log, and its lock. When the daemon has died, the watchdog starts a successor and passes
//! them on ([`Legacy`]). The kernel keeps the mounts, their open files, and the requests that have no answer, as long
//! as one process holds the connections.

mod in_hand;
mod legacy;
mod passthrough;
pub mod successor;
pub mod suspects;
#[cfg(test)]
mod tests;
pub mod upgrade;

pub use legacy::{Legacy, Role};

use crate::failpoint;
use crate::job::RememberedJobs;
use crate::journal::{Journal, JournalError, JournalPart, Latest, MemoryFile};
use crate::model::{Decision, decode, encode};
use crate::namespace::RememberedInodes;
use crate::namespace::handles::{HandleTable, RememberedHandles};
use copperfs_fuse::{Handshake, InHandRecord, Inherited, PassthroughRecord, Quarantine};
use copperfs_metrics::{Counter, Counts, Gauge, Scope, Unit};
use copperfs_overlay::Attributes;
use in_hand::InHand;
use passthrough::{Opens, RememberedOpens};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::SystemTime;
use suspects::{RememberedSuspects, Suspects};

/// The tag of the node's own records in the journal.
const NODE: u8 = 0;
/// The tag of the records of inodes of the software mount. Those of the data mount have the next one.
const SOFTWARE: u8 = 1;
/// The tag of the records of open files of the data mount.
const HANDLES: u8 = SOFTWARE + 2;
/// The tag of the records of requests that may have killed a daemon.
const SUSPECTS: u8 = HANDLES + 1;
/// The tag of the records of jobs that read datasets.
const JOBS: u8 = SUSPECTS + 1;
/// The tag of the records of opens of the software mount whose reads may bypass the daemon.
const OPENS: u8 = JOBS + 1;
/// The maximum number of mounts of a node: the software mount and the data mount.
pub const MOUNTS_MAX: usize = 2;
/// Beside the mounts, the number of the filesystem with the files of images, for [`Estate::quarantine`].
pub const IMAGES: u8 = 2;
/// The message of a daemon when its mounts answer.
pub const READY: &str = "ready\n";

/// Why a daemon cannot take over.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The predecessor's journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Something else that the predecessor left cannot be used.
    #[error("cannot use what the daemon before has left: {0}")]
    Io(#[from] io::Error),
    /// It has left no options.
    #[error("the daemon before has left no options")]
    NoOptions,
    /// The journal and the mounts do not fit.
    #[error("the journal tells of {known} mounts, and {found} were passed on")]
    Mounts {
        /// Mounts that the journal tells of.
        known: usize,
        /// Mounts that were passed on.
        found: usize,
    },
}

/// What the node says of itself in the journal.
#[derive(Debug, Serialize, Deserialize)]
enum NodeRecord {
    /// What was agreed with the kernel about a mount.
    Handshake {
        mount: u8,
        init: Vec<u8>,
        answer: Vec<u8>,
    },
    /// The number of daemons before the one that writes this.
    Generation(u32),
    /// The attributes of the root of the namespace.
    Root(Attributes),
    /// The requests of a mount that its daemon may have in hand have these numbers.
    InHand { mount: u8, numbers: Range<u64> },
}

/// What a journal tells, while it is read.
#[derive(Default)]
struct Remembered {
    handshakes: [Option<Handshake>; MOUNTS_MAX],
    in_hand: [Range<u64>; MOUNTS_MAX],
    inodes: [RememberedInodes; MOUNTS_MAX],
    handles: RememberedHandles,
    suspects: RememberedSuspects,
    jobs: RememberedJobs,
    opens: RememberedOpens,
    root: Option<Attributes>,
    /// The number of daemons that have written it.
    generation: u32,
}

impl Remembered {
    /// Takes the next record.
    fn take(&mut self, record: &[u8]) {
        match record.split_first() {
            Some((&NODE, record)) => match postcard::from_bytes(record) {
                Ok(record) => self.take_own(record),
                Err(error) => tracing::warn!(%error, "an unknown record in the journal"),
            },
            Some((&HANDLES, record)) => self.handles.take(record),
            Some((&SUSPECTS, record)) => self.suspects.take(record),
            Some((&JOBS, record)) => self.jobs.take(record),
            Some((&OPENS, record)) => self.opens.take(record),
            Some((tag, record)) => {
                if let Some(inodes) = self.inodes.get_mut(usize::from(tag - SOFTWARE)) {
                    inodes.take(record);
                }
            }
            None => {}
        }
    }

    fn take_own(&mut self, record: NodeRecord) {
        match record {
            NodeRecord::Generation(number) => self.generation = number + 1,
            NodeRecord::InHand { mount, numbers } => {
                if let Some(known) = self.in_hand.get_mut(usize::from(mount)) {
                    *known = numbers;
                }
            }
            NodeRecord::Root(attributes) => self.root = Some(attributes),
            NodeRecord::Handshake {
                mount,
                init,
                answer,
            } => {
                if let Some(known) = self.handshakes.get_mut(usize::from(mount)) {
                    *known = Some(Handshake { init, answer });
                }
            }
        }
    }
}

/// Counters of take-overs.
#[derive(Clone, Default)]
pub struct Counters {
    daemons_before: Gauge,
    poison_requests: Counter,
}

impl Counters {
    /// Declares the counters in `scope`.
    pub fn declare(&self, scope: &Scope) {
        let help = "Earlier daemons of these mounts: they have died, or were upgraded.";
        scope.gauge("daemons_before", Unit::Count, help, &self.daemons_before);
        let help = "Requests that got EIO because requests of their kind have killed daemons.";
        scope.counter("poison_requests", Unit::Count, help, &self.poison_requests);
    }
}

/// What outlives the daemon of one mount.
pub struct MountMemory {
    /// The journal of its inodes.
    pub journal: JournalPart,
    /// The inodes of earlier daemons.
    pub inodes: RememberedInodes,
    /// The number of earlier daemons.
    pub generation: u32,
}

/// What a daemon writes for its successor, and what its predecessor has left.
pub struct Estate {
    journal: Arc<Journal<MemoryFile>>,
    decision: Arc<Latest<MemoryFile>>,
    /// The decision that the predecessor followed.
    followed: Option<Decision>,
    counts: Arc<Latest<MemoryFile>>,
    /// The counts of all earlier daemons.
    counted: Option<Counts>,
    options: Arc<Latest<MemoryFile>>,
    /// What the successor gets, but for the connections and the log.
    files: Legacy,
    /// The mounts of the predecessor, until they are taken over: the software mount, and the data mount.
    inherited: Vec<Inherited>,
    /// Their inodes.
    remembered: Vec<RememberedInodes>,
    /// The open files of the data mount.
    handles: RememberedHandles,
    /// The jobs that read datasets.
    jobs: RememberedJobs,
    suspects: Suspects,
    /// The requests in hand of each mount.
    in_hand: [Arc<InHand>; MOUNTS_MAX],
    /// The opens of the software mount.
    opens: Arc<Opens>,
    /// The attributes of the root of the namespace.
    root: Option<Attributes>,
    /// The number of earlier daemons.
    generation: u32,
    /// When earlier daemons have died, in seconds since 1970.
    died: Vec<u64>,
    /// Why another program did not take over.
    refused: Option<String>,
}

/// How the predecessor has ended.
#[derive(Debug, Clone, Default)]
pub struct Before {
    /// When earlier daemons have died, in seconds since 1970.
    pub died: Vec<u64>,
    /// Why another program did not take over.
    pub refused: Option<String>,
}

impl Estate {
    /// Begins that of a daemon without a predecessor. `options` are those of its successor, in a form that this module
    /// does not know, and `lock` is its locked pid file.
    ///
    /// # Errors
    /// There is no memory or descriptor left.
    pub fn new(options: &[u8], lock: OwnedFd) -> io::Result<Self> {
        let mut files = Legacy::default();
        let mut memory = |role| {
            let memory = MemoryFile::new()?;
            files.add(role, memory.as_fd().try_clone_to_owned()?);
            Ok::<_, io::Error>(memory)
        };
        let latest = Latest::create(memory(Role::Options)?);
        latest.write(options)?;
        let journal = Arc::new(Journal::create(memory(Role::Journal)?)?);
        let decision = memory(Role::Decision)?;
        let counts = memory(Role::Counts)?;
        files.add(Role::Lock, lock);
        Ok(Self {
            options: Arc::new(latest),
            files,
            suspects: suspects(&journal, 0, RememberedSuspects::default()),
            in_hand: in_hand(&journal),
            opens: opens(&journal, RememberedOpens::default()),
            journal,
            decision: Arc::new(Latest::create(decision)),
            followed: None,
            counts: Arc::new(Latest::create(counts)),
            counted: None,
            inherited: Vec::new(),
            remembered: Vec::new(),
            handles: RememberedHandles::default(),
            jobs: RememberedJobs::default(),
            root: None,
            generation: 0,
            died: Vec::new(),
            refused: None,
        })
    }

    /// Takes over what a predecessor has left.
    ///
    /// # Errors
    /// See [`TakeoverError`].
    pub fn inherit(mut legacy: Legacy, before: Before) -> Result<Self, TakeoverError> {
        let file = MemoryFile::from(legacy.file(Role::Journal)?);
        let mut found = Remembered::default();
        let journal = Arc::new(Journal::adopt(file, |record| found.take(record))?);
        let generation = found.generation;
        failpoint::hit("takeover.adopted");
        // It notes which request is convicted before its own number: if it dies between them, the next one finds the same.
        let suspects = suspects(&journal, generation, found.suspects);
        report(&suspects, &found.inodes);
        // Before any request comes, because what it leaves is told from what earlier daemons have left by this number.
        let part = JournalPart::new(Arc::clone(&journal), NODE);
        part.put(&NodeRecord::Generation(generation), 0);
        part.commit();
        failpoint::hit("takeover.numbered");
        let (decision, followed) = adopt(&legacy, Role::Decision)?;
        let (counts, counted) = adopt(&legacy, Role::Counts)?;
        let (options, _) = Latest::adopt(MemoryFile::from(legacy.file(Role::Options)?))?;
        let known = found.handshakes.iter().flatten().count();
        let connections = legacy.take(Role::Connection);
        let passed = connections.len();
        if known != passed {
            return Err(TakeoverError::Mounts {
                known,
                found: passed,
            });
        }
        let handshakes = found.handshakes.into_iter().zip(found.in_hand);
        let mounts = connections.into_iter().zip(handshakes);
        // This daemon has its own standard error, which may be another file by now.
        drop(legacy.take(Role::Log));
        // Only the software mount may have such opens.
        let mut opened = Some(found.opens.all());
        let inherited = mounts.filter_map(|(connection, (handshake, in_hand))| {
            Some(Inherited {
                connection,
                handshake: handshake?,
                in_hand,
                opens: opened.take().unwrap_or_default(),
            })
        });
        let inherited = inherited.collect();
        let estate = Self {
            suspects,
            in_hand: in_hand(&journal),
            opens: opens(&journal, found.opens),
            journal,
            decision: Arc::new(decision),
            followed,
            counts: Arc::new(counts),
            counted,
            options: Arc::new(options),
            files: legacy,
            inherited,
            remembered: found.inodes.into(),
            handles: found.handles,
            jobs: found.jobs,
            root: found.root,
            generation,
            died: before.died,
            refused: before.refused,
        };
        Ok(estate)
    }

    /// Returns when earlier daemons have died, in seconds since 1970.
    #[must_use]
    pub fn died(&self) -> &[u64] {
        &self.died
    }

    /// Returns why another program did not take over, if the last upgrade failed.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Returns the number of this daemon among those that serve the same mounts, from one on.
    #[must_use]
    pub fn number(&self) -> u64 {
        u64::from(self.generation) + 1
    }

    /// Notes that this daemon serves. From now on its own watchdog, and no longer that of its predecessor, starts a
    /// successor when it dies. Both read the note after the death, so exactly one of them does.
    ///
    /// # Errors
    /// There is no memory left.
    pub fn serve(&self) -> io::Result<()> {
        failpoint::hit("takeover.unserved");
        self.journal.serve(self.number())?;
        failpoint::hit("takeover.served");
        Ok(())
    }

    /// Returns whether there are mounts to take over, which are in use.
    #[must_use]
    pub fn has_mounts(&self) -> bool {
        !self.inherited.is_empty()
    }

    /// Returns the attributes of the root of the namespace, if an earlier daemon knew them.
    #[must_use]
    pub fn root(&self) -> Option<&Attributes> {
        self.root.as_ref()
    }

    /// Keeps the attributes of the root of the namespace for the successor.
    pub fn keep_root(&mut self, root: Attributes) {
        self.root = Some(root);
    }

    /// Returns the number of earlier daemons of these mounts.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let daemons_before = Gauge::default();
        daemons_before.set(self.generation.into());
        Counters {
            daemons_before,
            poison_requests: self.suspects.refused().clone(),
        }
    }

    /// Returns another descriptor of the locked pid file.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn lock(&self) -> io::Result<OwnedFd> {
        self.files.file(Role::Lock)
    }

    /// Returns the socket of `role` that the predecessor had. Without one `bind` makes it. The successor gets it, too: what
    /// arrives meanwhile waits in it, and a daemon that is dead and hangs in the kernel keeps no address.
    ///
    /// # Errors
    /// Those of `bind`, or there is no descriptor left.
    pub fn socket<S: Into<OwnedFd> + From<OwnedFd>>(
        &mut self,
        role: Role,
        bind: impl FnOnce() -> io::Result<S>,
    ) -> io::Result<S> {
        let mut sockets = self.sockets(role, || Ok(vec![bind()?]))?;
        let none = || io::Error::from(io::ErrorKind::NotFound);
        sockets.pop().ok_or_else(none)
    }

    /// As [`Estate::socket`], for several sockets, in the order of `bind`.
    ///
    /// # Errors
    /// As above.
    pub fn sockets<S: Into<OwnedFd> + From<OwnedFd>>(
        &mut self,
        role: Role,
        bind: impl FnOnce() -> io::Result<Vec<S>>,
    ) -> io::Result<Vec<S>> {
        let inherited = self.files.files(role)?;
        if !inherited.is_empty() {
            return Ok(inherited.into_iter().map(S::from).collect());
        }
        let bound = bind()?.into_iter().map(|socket| {
            let socket: OwnedFd = socket.into();
            self.files.add(role, socket.try_clone()?);
            Ok(socket.into())
        });
        bound.collect()
    }

    /// Takes the predecessor's mount number `mount`, with its inodes.
    pub fn take_mount(&mut self) -> Option<Inherited> {
        (!self.inherited.is_empty()).then(|| self.inherited.remove(0))
    }

    /// Takes what outlives the daemon of mount number `mount`.
    pub fn take_memory(&mut self, mount: u8) -> MountMemory {
        let inodes = self.remembered.get_mut(usize::from(mount));
        MountMemory {
            journal: JournalPart::new(Arc::clone(&self.journal), SOFTWARE + mount),
            inodes: inodes.map(std::mem::take).unwrap_or_default(),
            generation: self.generation,
        }
    }

    /// Takes the numbers of the open files of the data mount.
    pub fn take_handles(&mut self) -> HandleTable {
        let journal = JournalPart::new(Arc::clone(&self.journal), HANDLES);
        let handles = std::mem::take(&mut self.handles);
        HandleTable::journaled(journal, self.generation, handles)
    }

    /// Returns what decides about requests of mount number `mount` that may have killed a daemon.
    #[must_use]
    pub fn quarantine(&self, mount: u8) -> Arc<dyn Quarantine> {
        self.suspects.of_mount(mount)
    }

    /// Returns what keeps the numbers of requests that mount number `mount` has in hand.
    #[must_use]
    pub fn in_hand(&self, mount: u8) -> Arc<dyn InHandRecord> {
        let [software, data] = &self.in_hand;
        Arc::clone(if mount == 0 { software } else { data }) as Arc<dyn InHandRecord>
    }

    /// Returns what keeps the opens of the software mount.
    #[must_use]
    pub fn opens(&self) -> Arc<dyn PassthroughRecord> {
        Arc::clone(&self.opens) as Arc<dyn PassthroughRecord>
    }

    /// Returns the requests that may have killed a daemon.
    #[must_use]
    pub fn suspects(&self) -> &Suspects {
        &self.suspects
    }

    /// Takes the jobs that read datasets on this node, and their journal.
    pub fn take_jobs(&mut self) -> (JournalPart, RememberedJobs) {
        let journal = JournalPart::new(Arc::clone(&self.journal), JOBS);
        (journal, std::mem::take(&mut self.jobs))
    }

    /// Takes the decision that the predecessor followed.
    pub fn take_followed(&mut self) -> Option<Decision> {
        self.followed.take()
    }

    /// Takes the counts of all earlier daemons of these mounts.
    pub fn take_counts(&mut self) -> Option<Counts> {
        self.counted.take()
    }

    /// Returns a function that keeps counts for the successor.
    pub fn keep_counts(&self) -> impl Fn(&Counts) + Send + Sync + 'static {
        keep(
            &self.counts,
            "a successor of this daemon would begin with old counts",
        )
    }

    /// Returns a function that keeps a decision for the successor.
    pub fn keep_decision(&self) -> impl Fn(&Decision) + Send + Sync + 'static {
        keep(
            &self.decision,
            "a successor of this daemon would follow an old decision",
        )
    }

    /// Returns a function that replaces the options of the successor. If it fails, the ones before stay.
    pub fn keep_options(&self) -> impl Fn(&[u8]) -> io::Result<()> + Send + Sync + 'static {
        let latest = Arc::clone(&self.options);
        move |options| latest.write(options)
    }

    /// Returns the journal.
    #[must_use]
    pub fn journal(&self) -> &Arc<Journal<MemoryFile>> {
        &self.journal
    }

    /// Writes what was agreed with the kernel about each mount, and what else the node itself leaves.
    pub fn tell(&self, made: &[Handshake]) {
        let part = JournalPart::new(Arc::clone(&self.journal), NODE);
        part.put(&NodeRecord::Generation(self.generation), 0);
        if let Some(root) = &self.root {
            part.put(&NodeRecord::Root(root.clone()), 0);
        }
        for (mount, made) in (0..).zip(made) {
            let record = NodeRecord::Handshake {
                mount,
                init: made.init.clone(),
                answer: made.answer.clone(),
            };
            part.put(&record, 0);
        }
        self.in_hand.iter().for_each(|in_hand| in_hand.tell());
        self.opens.tell_all();
        part.commit();
    }

    /// Returns what the successor gets, with these connections.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn legacy(&self, connections: Vec<OwnedFd>) -> io::Result<Legacy> {
        let mut legacy = self.files.try_clone()?;
        legacy.add(Role::Log, io::stderr().as_fd().try_clone_to_owned()?);
        for connection in connections {
            legacy.add(Role::Connection, connection);
        }
        Ok(legacy)
    }
}

/// Reads the latest value of `role` that a predecessor has left, and continues it.
fn adopt<T: DeserializeOwned>(
    legacy: &Legacy,
    role: Role,
) -> Result<(Latest<MemoryFile>, Option<T>), TakeoverError> {
    let file = MemoryFile::from(legacy.file(role)?);
    let (latest, bytes) = Latest::adopt(file)?;
    let value = bytes.and_then(|bytes| {
        let decoded = decode(&bytes);
        decoded
            .inspect_err(|error| tracing::warn!(%error, ?role, "the daemon before has left a value that cannot be read"))
            .ok()
    });
    Ok((latest, value))
}

/// Returns a function that replaces the value of `latest`. Warns with `otherwise` if it fails.
fn keep<T: Serialize>(
    latest: &Arc<Latest<MemoryFile>>,
    otherwise: &'static str,
) -> impl Fn(&T) + Send + Sync + 'static {
    let latest = Arc::clone(latest);
    move |value| {
        if let Err(error) = latest.write(&encode(value)) {
            tracing::warn!(%error, "{otherwise}");
        }
    }
}

fn suspects(
    journal: &Arc<Journal<MemoryFile>>,
    generation: u32,
    remembered: RememberedSuspects,
) -> Suspects {
    let part = JournalPart::new(Arc::clone(journal), SUSPECTS);
    Suspects::new(part, generation, remembered, SystemTime::now())
}

fn opens(journal: &Arc<Journal<MemoryFile>>, remembered: RememberedOpens) -> Arc<Opens> {
    let part = JournalPart::new(Arc::clone(journal), OPENS);
    Arc::new(Opens::new(part, remembered))
}

fn in_hand(journal: &Arc<Journal<MemoryFile>>) -> [Arc<InHand>; MOUNTS_MAX] {
    let part = JournalPart::new(Arc::clone(journal), NODE);
    [0, 1].map(|mount| Arc::new(InHand::new(part.clone(), mount)))
}

/// Logs which requests get EIO because they have killed daemons.
fn report(suspects: &Suspects, inodes: &[RememberedInodes]) {
    for convicted in suspects.convicted() {
        let inodes = inodes.get(usize::from(convicted.mount));
        let path = inodes.map(|inodes| inodes.path(convicted.ino));
        tracing::error!(
            request = %convicted,
            path = path.unwrap_or_default(),
            seconds = suspects::SENTENCE.as_secs(),
            "poison: this request has killed four daemons. It gets EIO for a while; please report it"
        );
    }
}
