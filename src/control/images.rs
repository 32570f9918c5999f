//! Images over directories of the mount: which are wanted, and which are there.

use super::request::RequestBody;
use super::{Answer, Control, ControlResult, requests};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// `POST /v1/attend`: what the attendant has done, with which it asks what to do next.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attendance {
    /// This attendant has not asked before.
    #[serde(default)]
    pub begins: bool,
    /// The number of the image over each directory that has one.
    #[serde(default)]
    pub mounted: BTreeMap<String, u32>,
    /// The image that it could not mount.
    #[serde(default)]
    pub failed: Option<FailedImage>,
}

/// An image that could not be mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedImage {
    /// Its number.
    pub image: u32,
    /// Why.
    pub reason: String,
}

/// The images that the attendant is to have mounted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WantedImages {
    /// The number of the image over each directory that is to have one.
    pub images: BTreeMap<String, u32>,
    /// The daemon ends: the attendant takes all images away and ends, too.
    pub ends: bool,
}

/// The images of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeImages {
    /// A process has asked for them that may mount them.
    pub attended: bool,
    /// The directories that may have images.
    pub images: Vec<CoverState>,
}

impl NodeImages {
    /// Says in a line for each directory how it is served.
    #[must_use]
    pub fn lines(&self) -> String {
        let mut text = String::new();
        for cover in &self.images {
            let mut say = |what: &str| text.push_str(&format!("{}: {what}\n", cover.path));
            match &cover.why_not {
                None => say("the kernel has an image"),
                Some(reason) => say(&format!("served by FUSE: {reason}")),
            }
            if !cover.changed.is_empty() {
                let changed = cover.changed.join(", ");
                say(&format!(
                    "changed since it was indexed: {changed}. Make the index again, and clear it"
                ));
            }
        }
        text
    }
}

/// How a directory is served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CoverState {
    /// The directory.
    pub path: String,
    /// The number of the image that the kernel has of it.
    pub image: Option<u32>,
    /// Why it has none.
    pub why_not: Option<String>,
    /// The first files below it that this node could not read, or not at once, because they have changed since they were
    /// indexed.
    pub changed: Vec<String>,
}

/// `GET /v1/images`.
pub(super) async fn images(State(control): State<Control>) -> Answer {
    Answer::of(json!(control.node.images()))
}

/// `POST /v1/attend`. The answer comes when the wanted images differ from the mounted ones, or after some seconds.
pub(super) async fn attend(State(control): State<Control>, body: RequestBody) -> ControlResult {
    let attendance: Attendance = requests::parse(&body.bytes)?;
    let wanted = control.node.attend(attendance).await;
    Ok(Answer::of(json!(wanted)))
}
