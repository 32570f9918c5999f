use super::*;
use crate::model::DatasetDecision;
use copperfs_policy::Keep;
use copperfs_policy::chunks::{CHUNK_BYTES, ChunkState};

fn process(pid: u32) -> Process {
    Process { pid, started: 7 }
}

fn reader(job: &str, process: Option<Process>) -> ChunkReader {
    ChunkReader {
        dataset: 1,
        job: job.into(),
        rank: 0,
        process,
        user: None,
    }
}

fn resident(chunks: &[u32]) -> Vec<ResidentChunk> {
    let state = ChunkState::Loading;
    let chunks = chunks.iter().map(|&chunk| ResidentChunk {
        chunk,
        state,
        held: 0,
        lost: 0,
        entries: 10,
    });
    chunks.collect()
}

fn decision(chunks: Option<&[u32]>) -> Decision {
    Decision {
        datasets: vec![DatasetDecision {
            id: 1,
            resident: chunks.map(resident),
            ..DatasetDecision::default()
        }],
        ..Decision::default()
    }
}

fn layout() -> ChunkLayout {
    ChunkLayout::new(100, 1, CHUNK_BYTES).unwrap()
}

/// Joins without an epoch.
fn join(readers: &ChunkReaders, reader: ChunkReader) -> Result<bool, ReaderError> {
    readers.join(reader, &layout(), None, &[])
}

#[tokio::test]
async fn each_process_is_a_reader_of_its_own() {
    let readers = ChunkReaders::default();
    let here = resident(&[3, 4]);
    for pid in [10, 11] {
        assert_eq!(join(&readers, reader("j", Some(process(pid)))), Ok(true));
        let referred = readers.refer(reader("j", Some(process(pid))), None, 3, &here);
        assert_eq!(referred, Ok(Referred::Now));
    }
    assert_eq!(join(&readers, reader("j", Some(process(10)))), Ok(false));
    let first = reader("j", Some(process(10)));
    let released = readers.release(first, &layout(), 3, true);
    assert_eq!(released, Ok(Released::Now));
    let decision = decision(Some(&[3, 4]));
    let reports = readers.report(5, &decision, |_| true);
    let parts: Vec<u64> = reports.iter().map(|one| one.reader.part).collect();
    assert_eq!(parts, [5 << 32 | 1, 5 << 32 | 2]);
    let refers = |at: usize| reports[at].reading.refers.contains(&3);
    assert_eq!((refers(0), refers(1)), (false, true));
    assert!(reports[0].reading.exhausted.contains(&3));
    // A process that ends gives back all references, and nothing waits for it.
    let reports = readers.report(5, &decision, |one| one.pid == 10);
    assert_eq!(reports.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_an_unknown_process_is_forgotten_when_it_is_silent() {
    let readers = ChunkReaders::default();
    let decision = decision(Some(&[]));
    join(&readers, reader("unknown", None)).unwrap();
    join(&readers, reader("known", Some(process(1)))).unwrap();
    let count = || readers.report(0, &decision, |_| true).len();
    tokio::time::advance(SILENT_MAX - Duration::from_secs(1)).await;
    assert_eq!(count(), 2);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(count(), 0);
    assert_eq!(join(&readers, reader("unknown", None)), Ok(true));
    assert_eq!(join(&readers, reader("known", Some(process(1)))), Ok(false));
}

#[tokio::test]
async fn an_eviction_ends_references_and_another_rule_ends_readers() {
    let readers = ChunkReaders::default();
    let one = reader("j", Some(process(1)));
    let referred = readers.refer(one.clone(), None, 3, &resident(&[3, 4]));
    assert_eq!(referred, Ok(Referred::Now));
    let reports = readers.report(0, &decision(Some(&[4, 5])), |_| true);
    assert!(reports[0].reading.refers.is_empty());
    // A dataset of the rule `auto` may be kept in chunks again, and only because this reader is known.
    let auto = decision(None);
    assert_eq!(readers.report(0, &auto, |_| true).len(), 1);
    let mut uniform = auto;
    uniform.datasets[0].keep = Keep::Uniform;
    assert_eq!(readers.report(0, &uniform, |_| true), []);
    assert_eq!(join(&readers, one), Ok(true));
}

/// Its process may have stopped training, and chunks would come in for it for ever.
#[tokio::test(start_paused = true)]
async fn a_silent_reader_is_not_reported_until_it_speaks_again() {
    let readers = ChunkReaders::default();
    let (decision, here) = (decision(Some(&[3, 4])), resident(&[3, 4]));
    let layout = ChunkLayout::new(100, 1, CHUNK_BYTES).unwrap();
    let idle = reader("idle", Some(process(1)));
    let referred = readers.refer(idle.clone(), None, 3, &here);
    assert_eq!(referred, Ok(Referred::Now));
    let released = readers.release(idle.clone(), &layout, 3, true);
    assert_eq!(released, Ok(Released::Now));
    let report = || readers.report(0, &decision, |_| true);
    let before = report();
    assert_eq!(before.len(), 1);
    tokio::time::advance(SILENT_MAX).await;
    assert_eq!(report(), []);
    // Of another dataset, and of another process.
    readers.hear(2, process(1));
    readers.hear(1, process(2));
    assert_eq!(report(), []);
    // It asks which entries are resident, so it goes on.
    readers.hear(1, process(1));
    assert_eq!(report(), before);
    assert_eq!(join(&readers, idle), Ok(false));
}

#[tokio::test]
async fn a_refused_request_makes_no_reader_known() {
    let readers = ChunkReaders::default();
    let layout = ChunkLayout::new(100, 1, CHUNK_BYTES).unwrap();
    let new = || reader("j", Some(process(1)));
    let referred = readers.refer(new(), None, 5, &resident(&[3, 4]));
    assert_eq!(referred, Ok(Referred::Gone));
    let released = readers.release(new(), &layout, u32::MAX, true);
    assert_eq!(released, Ok(Released::NoSuchChunk));
    assert_eq!(readers.report(0, &decision(Some(&[3, 4])), |_| true), []);
    assert_eq!(join(&readers, new()), Ok(true));
}

#[tokio::test]
async fn neither_a_process_nor_a_user_takes_the_place_of_others() {
    let readers = ChunkReaders::default();
    let one = |user, pid, rank| ChunkReader {
        rank,
        user: Some(user),
        ..reader("j", Some(process(pid)))
    };
    let ranks = u32::try_from(PROCESS_READERS_MAX).unwrap();
    for rank in 0..ranks {
        join(&readers, one(1, 1, rank)).unwrap();
    }
    let refused = join(&readers, one(1, 1, ranks));
    assert_eq!(refused, Err(ReaderError::TooManyOfProcess));
    assert_eq!(join(&readers, one(1, 1, 0)), Ok(false));
    let processes = u32::try_from(USER_READERS_MAX - PROCESS_READERS_MAX).unwrap();
    for pid in 2..processes + 2 {
        join(&readers, one(1, pid, 0)).unwrap();
    }
    let refused = join(&readers, one(1, processes + 2, 0));
    assert_eq!(refused, Err(ReaderError::TooManyOfUser));
    assert_eq!(join(&readers, one(2, processes + 2, 0)), Ok(true));
}

#[tokio::test]
async fn readers_are_limited() {
    let readers = ChunkReaders::default();
    for pid in 0..NODE_READERS_MAX {
        let pid = u32::try_from(pid).unwrap();
        join(&readers, reader("j", Some(process(pid)))).unwrap();
    }
    let late = reader("late", None);
    assert_eq!(join(&readers, late), Err(ReaderError::TooMany));
    assert_eq!(join(&readers, reader("j", Some(process(0)))), Ok(false));
    for name in ["", &"x".repeat(JOB_BYTES_MAX + 1)] {
        assert_eq!(
            join(&readers, reader(name, None)),
            Err(ReaderError::JobName)
        );
    }
}

/// A reader repeats its epoch and the chunks that it has exhausted, so a daemon that was started again knows both.
#[tokio::test]
async fn a_reader_states_its_epoch_and_its_exhausted_chunks() {
    let readers = ChunkReaders::default();
    let one = || reader("j", Some(process(1)));
    let said = |epoch, exhausted: &[u32]| readers.join(one(), &layout(), Some(epoch), exhausted);
    let reading = || {
        let reports = readers.report(0, &decision(Some(&[3, 4])), |_| true);
        reports.into_iter().next().unwrap().reading
    };
    assert_eq!(said(8, &[1, 2]), Ok(true));
    assert_eq!(said(8, &[1, 2]), Ok(false));
    let referred = readers.refer(one(), Some(8), 3, &resident(&[3, 4]));
    assert_eq!(referred, Ok(Referred::Now));
    assert_eq!(said(8, &[1, 2, 3, 10, u32::MAX]), Ok(true));
    let after = reading();
    assert_eq!((after.epoch, after.refers.len()), (8, 0));
    assert!(after.exhausted.into_iter().eq([1, 2, 3]));
    // The next epoch needs all chunks but those without an entry of this reader.
    assert_eq!(said(9, &[7]), Ok(true));
    let after = reading();
    assert_eq!(after.epoch, 9);
    assert!(after.exhausted.into_iter().eq([7]));
}

/// A job reads entries twice, ahead and in its mini-batches, and its reads are judged after its processes have ended.
#[tokio::test]
async fn a_job_that_has_ended_is_known_to_have_read_by_chunks() {
    let readers = ChunkReaders::default();
    join(&readers, reader("j", Some(process(1)))).unwrap();
    readers.retain_jobs(|_, _| false);
    assert!(readers.has_read(1, "j"), "its process runs");
    join(&readers, reader("j", Some(process(1)))).unwrap();
    assert_eq!(readers.report(0, &decision(Some(&[])), |_| false), []);
    readers.retain_jobs(|dataset, job| (dataset, job) == (1, "j"));
    assert!(readers.has_read(1, "j"));
    assert!(!readers.has_read(2, "j") && !readers.has_read(1, "k"));
    readers.retain_jobs(|_, _| false);
    assert!(!readers.has_read(1, "j"));
}
