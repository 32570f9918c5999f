use super::*;
use crate::model::ContentHash;
use crate::wire::HEADER_BYTES;
use proptest::prelude::*;

/// The frames in `chunks`, as kind and body.
fn frames(chunks: &[Bytes]) -> Vec<(FrameKind, Vec<u8>)> {
    let mut bytes = chunks.concat();
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let rest = bytes.split_off(HEADER_BYTES);
        let header = FrameHeader::parse(bytes[..].try_into().unwrap()).unwrap();
        let mut body = rest;
        bytes = body.split_off(usize::try_from(header.len).unwrap());
        frames.push((header.kind, body));
    }
    frames
}

#[test]
fn neighbouring_bytes_share_a_frame_within_a_block() {
    let piece = |text: &'static str| BlockPart::Bytes(Bytes::from_static(text.as_bytes()));
    let end = || BlockPart::End(ContentHash([7; 32]));
    let parts = vec![
        piece("ab"),
        piece(""),
        piece("c"),
        end(),
        piece("d"),
        end(),
        end(),
    ];
    let kinds: Vec<_> = frames(&encode_parts(parts).unwrap())
        .into_iter()
        .map(|(kind, body)| (kind, body.len()))
        .collect();
    let hash = (FrameKind::End, 32);
    assert_eq!(
        kinds,
        [(FrameKind::Data, 3), hash, (FrameKind::Data, 1), hash, hash]
    );
}

#[test]
fn a_part_longer_than_a_frame_is_split() {
    let part = BlockPart::Bytes(Bytes::from(vec![1; (2 << 20) + 5]));
    let lens: Vec<usize> = frames(&encode_parts(vec![part]).unwrap())
        .iter()
        .map(|(_, body)| body.len())
        .collect();
    assert_eq!(lens, [1 << 20, 1 << 20, 5]);
}

proptest! {
    #[test]
    fn encoding_loses_no_byte(pieces: Vec<Vec<u8>>) {
        let parts = pieces.iter().map(|piece| BlockPart::Bytes(piece.clone().into())).collect();
        let sent: Vec<u8> =
            frames(&encode_parts(parts).unwrap()).into_iter().flat_map(|(_, body)| body).collect();
        prop_assert_eq!(sent, pieces.concat());
    }
}
