//! The chunks of a dataset, and the training jobs that read them one after the other.

use super::error::ControlError;
use super::request::{Access, Peer, RequestBody};
use super::requests::{self, JoinRequest, RefRequest, UnrefRequest};
use super::{Answer, Control, ControlResult};
use crate::dataset::chunk_readers::{ChunkReader, ReaderError};
use crate::model::DatasetDecision;
use axum::Extension;
use axum::extract::{Path, State};
use copperfs_policy::chunks::{
    ChunkLayout, LayoutError, PARTITIONS, Referred, Released, ResidentChunk,
};
use serde_json::{Value, json};

type This = State<Control>;

/// A dataset with a manifest, in the decision that this node follows.
struct Chunked {
    serial: String,
    dataset: DatasetDecision,
    layout: ChunkLayout,
}

/// `GET /v1/datasets/{name}/chunks`.
pub(super) async fn show(State(this): This, Path(name): Path<String>) -> ControlResult {
    Ok(Answer::of(this.chunked(&name)?.view()))
}

/// `POST /v1/datasets/{name}/chunks`: the sender reads all chunks, one after the other, but for those that it
/// has exhausted. Answers like [`show`].
pub(super) async fn join(
    State(this): This,
    Path(name): Path<String>,
    Extension(peer): Extension<Peer>,
    Extension(access): Extension<Access>,
    body: RequestBody,
) -> ControlResult {
    let chunked = this.chunked(&name)?;
    let JoinRequest {
        job,
        rank,
        epoch,
        exhausted,
    } = requests::parse(&body.bytes)?;
    this.check_speaker(peer, access, &job)?;
    if let Some(&chunk) = exhausted.iter().find(|chunk| !chunked.has(**chunk)) {
        return Err(chunked.no_chunk(chunk));
    }
    if chunked.dataset.may_be_in_chunks() {
        let reader = chunked.reader(job, rank, peer);
        let readers = this.node.chunk_readers();
        let has_changed = readers.join(reader, &chunked.layout, epoch, &exhausted)?;
        if has_changed {
            this.agent.report_soon();
        }
    }
    Ok(Answer::of(chunked.view()))
}

/// `POST /v1/datasets/{name}/chunks/{chunk}/ref`.
pub(super) async fn refer(
    State(this): This,
    Path((name, chunk)): Path<(String, String)>,
    Extension(peer): Extension<Peer>,
    Extension(access): Extension<Access>,
    body: RequestBody,
) -> ControlResult {
    let (chunked, chunk) = (this.chunked(&name)?, number(&chunk)?);
    let RefRequest { job, rank, epoch } = requests::parse(&body.bytes)?;
    this.check_speaker(peer, access, &job)?;
    let resident = chunked.resident()?;
    let reader = chunked.reader(job, rank, peer);
    let readers = this.node.chunk_readers();
    let referred = readers.refer(reader, epoch, chunk, resident)?;
    let refused = |why: &str| {
        let mut refusal = ControlError::new(409, why, "Read one of the resident chunks");
        refusal.0.body["chunks"] = chunked.view();
        refusal
    };
    match referred {
        Referred::Now => this.agent.report_soon(),
        Referred::Already => {}
        Referred::Marked => {
            let why = format!(
                "chunk {chunk} of {name} is about to be evicted, and is for jobs that read it already"
            );
            return Err(refused(&why));
        }
        Referred::Gone => {
            return Err(refused(&format!("chunk {chunk} of {name} is not resident")));
        }
    }
    Ok(Answer::of(chunked.view()))
}

/// `POST /v1/datasets/{name}/chunks/{chunk}/unref`. Succeeds if the sender does not refer to the chunk.
pub(super) async fn release(
    State(this): This,
    Path((name, chunk)): Path<(String, String)>,
    Extension(peer): Extension<Peer>,
    Extension(access): Extension<Access>,
    body: RequestBody,
) -> ControlResult {
    let (chunked, chunk) = (this.chunked(&name)?, number(&chunk)?);
    let request: UnrefRequest = requests::parse(&body.bytes)?;
    this.check_speaker(peer, access, &request.job)?;
    // Refuses if the dataset is not kept in chunks.
    chunked.resident()?;
    let reader = chunked.reader(request.job, request.rank, peer);
    let readers = this.node.chunk_readers();
    match readers.release(reader, &chunked.layout, chunk, request.exhausted)? {
        Released::Now | Released::NotReferred => this.agent.report_soon(),
        Released::NoSuchChunk => return Err(chunked.no_chunk(chunk)),
    }
    Ok(Answer::of(chunked.view()))
}

impl Control {
    fn chunked(&self, name: &str) -> Result<Chunked, ControlError> {
        let decision = std::sync::Arc::clone(&self.agent.watch().borrow());
        let dataset = decision.dataset(name);
        let dataset = dataset.ok_or_else(|| ControlError::missing("dataset", name))?;
        Ok(Chunked {
            serial: decision.serial.to_string(),
            layout: dataset
                .layout()
                .map_err(|error| undivided(dataset, &error))?,
            dataset: dataset.clone(),
        })
    }
}

impl Chunked {
    fn reader(&self, job: String, rank: Option<u32>, peer: Peer) -> ChunkReader {
        ChunkReader {
            dataset: self.dataset.id,
            job,
            rank: rank.unwrap_or(0),
            process: peer.process,
            user: peer.user,
        }
    }

    fn resident(&self) -> Result<&[ResidentChunk], ControlError> {
        self.dataset.resident.as_deref().ok_or_else(|| {
            let name = &self.dataset.name;
            let why = format!("{name} is not kept in chunks");
            let advice = format!("copperfs dataset set {name} --keep chunks");
            ControlError::new(409, why, advice)
        })
    }

    fn has(&self, chunk: u32) -> bool {
        chunk < self.layout.stripes()
    }

    /// The refusal of a chunk that the dataset does not have.
    fn no_chunk(&self, chunk: u32) -> ControlError {
        let (name, last) = (&self.dataset.name, self.layout.stripes() - 1);
        let why = format!("{name} has no chunk {chunk}: they are numbered 0 to {last}");
        let advice = "GET /v1/datasets/NAME/chunks tells the numbers";
        ControlError::new(404, why, advice)
    }

    fn view(&self) -> Value {
        json!({
            "serial": self.serial,
            "partitions": PARTITIONS,
            "stripes": self.layout.stripes(),
            "entries": self.layout.entries(),
            "resident": self.dataset.resident,
        })
    }
}

impl From<ReaderError> for ControlError {
    fn from(error: ReaderError) -> Self {
        let (status, advice) = match error {
            ReaderError::JobName => (
                422,
                "COPPERFS_JOB names a job; docs/JOBS.md lists the others",
            ),
            ReaderError::TooManyOfProcess => (429, "Give each process its own rank"),
            ReaderError::TooMany | ReaderError::TooManyOfUser => (
                503,
                "End some of them; until then it reads what is resident",
            ),
        };
        Self::new(status, error.to_string(), advice)
    }
}

/// Parses the number of a chunk.
fn number(text: &str) -> Result<u32, ControlError> {
    text.parse().map_err(|error| {
        let why = format!("{text:?} is not the number of a chunk: {error}");
        ControlError::malformed(why, "GET /v1/datasets/NAME/chunks tells the numbers")
    })
}

/// The refusal for a dataset without chunks.
fn undivided(dataset: &DatasetDecision, error: &LayoutError) -> ControlError {
    let name = &dataset.name;
    if dataset.manifest.is_none() {
        let why = format!("{name} has no chunks: they consist of the entries of a manifest");
        let advice = "Declare it with --manifest; copperfs dataset manifest makes one";
        return ControlError::new(409, why, advice);
    }
    if dataset.entries == 0 {
        let why = format!("{name} has not been counted yet");
        return ControlError::new(503, why, "Try again in a moment; copperfs dataset show");
    }
    ControlError::new(
        409,
        format!("{name}: {error}"),
        "copperfs dataset add --chunk-size",
    )
}
