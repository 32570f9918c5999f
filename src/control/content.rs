//! Items by their hash alone. Bodies are binary.

use super::Control;
use super::error::ControlError;
use super::items_body::ItemsBody;
use super::request::{Peer, RequestBody};
use crate::dataset::contents::{ANSWER_BYTES_MAX, Inserted, TooLarge};
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes};
use copperfs_overlay::ContentHash;
use hyper::header::CONTENT_TYPE;

/// The maximum number of hashes in a request.
const HASHES_MAX: usize = 65_536;
/// The maximum number of bytes of a request with items.
pub(super) const ITEMS_BYTES_MAX: usize = 64 << 20;
const HASH_BYTES: usize = 32;

/// `POST /v1/content/lookup`: hashes in, a byte for each out: 1 if an item with it is resident.
pub(super) async fn look_up(
    State(control): State<Control>,
    body: RequestBody,
) -> Result<Response, ControlError> {
    let found = control.node.look_up_content(hashes_of(&body.bytes)?).await;
    let found: Vec<u8> = found.into_iter().map(u8::from).collect();
    Ok(binary(found))
}

/// `POST /v1/content/get`: hashes in, an item for each out: its length (u32, little-endian) and its bytes, or
/// 0xFFFFFFFF.
pub(super) async fn get(
    State(control): State<Control>,
    Extension(peer): Extension<Peer>,
    body: RequestBody,
) -> Result<Response, ControlError> {
    let hashes = hashes_of(&body.bytes)?;
    // A request that waits for the turn of its answer must not keep the turn of its body.
    drop(body);
    let turn = control.large_answers.wait(peer.user).await?;
    let items = control.node.get_content(hashes).await;
    let items = items.map_err(|TooLarge| {
        let error = format!("the items are more than {ANSWER_BYTES_MAX} bytes together");
        ControlError::new(413, error, "Ask for fewer at a time")
    })?;
    Ok(binary(Body::new(ItemsBody::new(items, turn))))
}

/// `POST /v1/content/insert`: items in, each as its hash, its length (u32, little-endian) and its bytes; a byte for
/// each out, see [`code`].
pub(super) async fn insert(
    State(control): State<Control>,
    Extension(peer): Extension<Peer>,
    body: RequestBody<ITEMS_BYTES_MAX>,
) -> Result<Response, ControlError> {
    let items = items_of(body.bytes.clone())?;
    let from = peer.process.map(|process| process.pid);
    let outcomes = control.node.insert_content(from, items).await;
    let outcomes: Vec<u8> = outcomes.into_iter().map(code).collect();
    Ok(binary(outcomes))
}

/// Returns the byte that stands for an outcome. An item that no manifest names and one of a private dataset have
/// one code: a difference would tell that the private dataset has the item.
fn code(outcome: Inserted) -> u8 {
    match outcome {
        Inserted::Kept => 0,
        Inserted::NoRoom => 1,
        Inserted::Unnamed => 2,
        Inserted::OtherBytes => 3,
        Inserted::NoItem => 4,
    }
}

fn hashes_of(body: &Bytes) -> Result<Vec<ContentHash>, ControlError> {
    let (hashes, rest) = body.as_chunks::<HASH_BYTES>();
    if !rest.is_empty() {
        let error = format!("{} bytes are no list of hashes", body.len());
        return Err(ControlError::malformed(error, "A hash has 32 bytes"));
    }
    at_most(hashes.len())?;
    Ok(hashes.iter().map(|hash| ContentHash(*hash)).collect())
}

fn items_of(mut body: Bytes) -> Result<Vec<(ContentHash, Bytes)>, ControlError> {
    let mut items = Vec::new();
    while !body.is_empty() {
        let torn = || {
            let error = format!("the bytes after item {} are no item", items.len());
            let advice =
                "An item is its hash (32 bytes), its length (4, little-endian) and its bytes";
            ControlError::malformed(error, advice)
        };
        let (hash, _) = body.split_first_chunk::<HASH_BYTES>().ok_or_else(torn)?;
        let hash = ContentHash(*hash);
        body.advance(HASH_BYTES);
        let len = body.try_get_u32_le().map_err(|_end| torn())?;
        let len = crate::num::to_usize(len.into());
        if len > body.len() {
            return Err(torn());
        }
        items.push((hash, body.split_to(len)));
        at_most(items.len())?;
    }
    Ok(items)
}

fn at_most(count: usize) -> Result<(), ControlError> {
    if count > HASHES_MAX {
        let error = format!("more than {HASHES_MAX} hashes in one request");
        return Err(ControlError::new(
            413,
            error,
            "Divide them among several requests",
        ));
    }
    Ok(())
}

fn binary(body: impl IntoResponse) -> Response {
    ([(CONTENT_TYPE, "application/octet-stream")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_hashes_and_of_items_are_read_to_their_end() {
        let hash = [7; HASH_BYTES];
        let hashes = |len| hashes_of(&Bytes::from(vec![7; len]));
        assert_eq!(hashes(0).unwrap(), []);
        assert_eq!(hashes(64).unwrap(), [ContentHash(hash); 2]);
        assert_eq!(hashes(63).unwrap_err().0.status, 400);
        assert_eq!(hashes(32 * (HASHES_MAX + 1)).unwrap_err().0.status, 413);

        let item = |len: u32, bytes: &[u8]| [&hash[..], &len.to_le_bytes(), bytes].concat();
        let two = [item(3, b"abc"), item(0, b"")].concat();
        let items = items_of(two.clone().into()).unwrap();
        let due = [
            (ContentHash(hash), b"abc".as_slice()),
            (ContentHash(hash), b""),
        ];
        assert!(
            items
                .iter()
                .map(|(hash, bytes)| (*hash, &bytes[..]))
                .eq(due)
        );
        for end in 1..two.len() {
            // Only the end of an item is the end of a list.
            let read = items_of(two[..end].to_vec().into());
            assert_eq!(read.is_ok(), end == 39, "{end}");
        }
        assert!(items_of(item(u32::MAX, b"abc").into()).is_err());
    }
}
