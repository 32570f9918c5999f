//! Recording, as the control socket asks for it: the recorder is in [`crate::record`], what feeds it
//! in the front.

use super::front::Front;
use crate::control::Talk;
use crate::profile::Profile;
use copperfs_overlay::ItemPath;
use serde_json::json;
use std::io;

/// Begins a recording, with a kernel that holds nothing of this mount.
///
/// # Errors
/// The client is gone.
pub(super) async fn start(front: &Front, talk: &mut Talk) -> io::Result<()> {
    let (_, voice) = talk.halves();
    if !front.recorder.start() {
        let error =
            "something is being recorded on this mount already: `copperfs record stop` ends it";
        return voice.say(&json!({ "error": error })).await;
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
    let Some(recording) = front.recorder.stop() else {
        let error = "nothing is being recorded on this mount: `copperfs record start` begins";
        return voice.say(&json!({ "error": error })).await;
    };
    let Profile { accesses } = recording.profile;
    let head = json!({ "accesses": accesses.len(), "full": recording.full });
    voice.say(&head).await?;
    for some in accesses.chunks(1024) {
        voice.say_all(some).await?;
    }
    Ok(())
}
