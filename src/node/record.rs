//! Recording, as the control socket asks for it: the recorder is in [`crate::record`], what feeds it
//! in the front.
//!
//! A recording that belongs to a command ends with the command's connection, so a killed command leaves no
//! recording behind. While a recording runs, no file is pushed, so a forgotten recording would slow all
//! later readers.

use super::front::Front;
use crate::control::{Talk, Voice};
use crate::profile::Profile;
use crate::record::{Recorder, Recording, RecordingId};
use copperfs_overlay::ItemPath;
use serde_json::json;
use std::io;

/// A recording that is stopped and discarded on drop.
struct Own<'a> {
    recorder: &'a Recorder,
    id: RecordingId,
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        if self.recorder.stop_own(self.id).is_some() {
            tracing::info!("a recording was discarded: its command has ended");
        }
    }
}

/// Records until the client sends a line, then sends the recording. Discards it if the client disconnects.
///
/// # Errors
/// The client has disconnected.
pub(super) async fn session(front: &Front, talk: &mut Talk) -> io::Result<()> {
    let (lines, voice) = talk.halves();
    let Some(id) = front.recorder.start() else {
        return busy(voice).await;
    };
    let own = Own {
        recorder: &front.recorder,
        id,
    };
    front.forget_in_kernel(&ItemPath::root()).await;
    voice.say(&json!({ "recording": true })).await?;
    if lines.wait().await?.is_none() {
        return Ok(());
    }
    match front.recorder.stop_own(own.id) {
        Some(recording) => tell(recording, voice).await,
        None => {
            let error = "the recording was ended meanwhile by `copperfs record stop`";
            voice.say(&json!({ "error": error })).await
        }
    }
}

/// Begins a recording, with a kernel that holds nothing of this mount.
///
/// # Errors
/// The client is gone.
pub(super) async fn start(front: &Front, talk: &mut Talk) -> io::Result<()> {
    let (_, voice) = talk.halves();
    if front.recorder.start().is_none() {
        return busy(voice).await;
    }
    front.forget_in_kernel(&ItemPath::root()).await;
    voice.say(&json!({ "recording": true })).await
}

/// Ends the recording: one line says how much it is, and one each access follows.
///
/// # Errors
/// The client is gone.
pub(super) async fn stop(front: &Front, talk: &mut Talk) -> io::Result<()> {
    let (_, voice) = talk.halves();
    match front.recorder.stop() {
        Some(recording) => tell(recording, voice).await,
        None => nothing(voice).await,
    }
}

/// Stops the recording and discards it.
///
/// # Errors
/// The client has disconnected.
pub(super) async fn discard(front: &Front, talk: &mut Talk) -> io::Result<()> {
    let (_, voice) = talk.halves();
    match front.recorder.stop() {
        Some(recording) => {
            let count = recording.profile.accesses.len();
            voice.say(&json!({ "discarded": count })).await
        }
        None => nothing(voice).await,
    }
}

async fn busy(voice: &mut Voice) -> io::Result<()> {
    let error = "something is being recorded on this mount already: `copperfs record stop -o FILE` ends \
                 it, `copperfs record stop --discard` forgets it";
    voice.say(&json!({ "error": error })).await
}

async fn nothing(voice: &mut Voice) -> io::Result<()> {
    let error =
        "nothing is being recorded on this mount: start a recording with `copperfs record start`";
    voice.say(&json!({ "error": error })).await
}

async fn tell(recording: Recording, voice: &mut Voice) -> io::Result<()> {
    let Profile { accesses } = recording.profile;
    let head = json!({ "accesses": accesses.len(), "full": recording.full });
    voice.say(&head).await?;
    for some in accesses.chunks(1024) {
        voice.say_all(some).await?;
    }
    Ok(())
}
