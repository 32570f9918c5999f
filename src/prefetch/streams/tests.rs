//! Patterns of reading, and the blocks that are prefetched for them.

use super::*;
use std::collections::BTreeSet;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SIZE: u64 = 10 << 30;

fn roomy() -> Pace {
    Pace::new(1 << 30)
}

/// What a file's reads have fetched: blocks, and bytes of requests that no block covers.
#[derive(Default)]
struct Fetched {
    blocks: BTreeSet<u64>,
    runs: usize,
    exact: u64,
    asked: u64,
}

impl Fetched {
    fn read(&mut self, ahead: &ReadAhead, pace: &Pace, start: u64, len: u64) {
        let range = start..(start + len).min(SIZE);
        self.asked += range.end - range.start;
        if let Some(run) = ahead.on_read(&range, SIZE, pace) {
            self.runs += usize::from(!run.is_empty());
            self.blocks.extend(run);
        }
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        for block in blocks.filter(|block| !self.blocks.contains(block)) {
            let base = block * BLOCK_BYTES;
            self.exact += range.end.min(base + BLOCK_BYTES) - range.start.max(base);
        }
    }

    fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES + self.exact
    }
}

#[test]
fn a_sequential_reader_gets_a_window_that_doubles() {
    let (ahead, pace, mut fetched) = (ReadAhead::default(), roomy(), Fetched::default());
    let mut at = 0;
    let mut depths = Vec::new();
    while at < 512 * MIB {
        fetched.read(&ahead, &pace, at, 512 * KIB);
        at += 512 * KIB;
        let far = fetched.blocks.last().map_or(0, |last| (last + 1) * MIB);
        depths.push(far.saturating_sub(at) / MIB);
        let most = 2 * fetched.asked + 3 * MIB;
        assert!(fetched.bytes() <= most, "{} for {at}", fetched.bytes());
    }
    assert!(
        fetched.exact <= 2 * MIB,
        "only the beginning comes in pieces"
    );
    assert!(
        depths[7] >= 2 && depths[31] >= 8 && depths[127] >= 32,
        "{depths:?}"
    );
    assert!(depths.iter().all(|&depth| depth <= 64), "{depths:?}");
    assert!(depths[200..].iter().all(|&depth| depth >= 32), "{depths:?}");
    assert!(fetched.runs < 60, "{} runs", fetched.runs);
}

#[test]
fn two_readers_of_one_file_do_not_disturb_each_other() {
    let (ahead, pace, mut fetched) = (ReadAhead::default(), roomy(), Fetched::default());
    for step in 0..400 {
        fetched.read(&ahead, &pace, step * 128 * KIB, 128 * KIB);
        fetched.read(&ahead, &pace, 5 * 1024 * MIB + step * 128 * KIB, 128 * KIB);
    }
    assert!(fetched.exact <= 7 * MIB);
    assert!(fetched.bytes() <= 2 * fetched.asked + 4 * MIB);
    assert!(
        fetched.bytes() >= fetched.asked + 32 * MIB,
        "both are read ahead"
    );
}

#[test]
fn swapped_requests_are_still_sequential() {
    let (ahead, pace, mut fetched) = (ReadAhead::default(), roomy(), Fetched::default());
    for pair in 0..100 {
        fetched.read(&ahead, &pace, (2 * pair + 1) * 512 * KIB, 512 * KIB);
        fetched.read(&ahead, &pace, 2 * pair * 512 * KIB, 512 * KIB);
    }
    assert!(fetched.exact <= 3 * MIB, "{}", fetched.exact);
    assert!(fetched.blocks.len() >= 130, "{}", fetched.blocks.len());
}

#[test]
fn scattered_readers_fetch_only_the_requested_bytes() {
    let mut random = 12345_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut places = |what: &str, step: u64| match what {
        "random" => next() % (SIZE / (4 * KIB)) * 4 * KIB,
        "backward" => SIZE - (step + 1) * 4 * KIB,
        "near stride" => step * 64 * KIB,
        "wide stride" => step * 3 * MIB,
        _ => step % 2 * 7 * MIB + step * 32 * KIB,
    };
    for what in [
        "random",
        "backward",
        "near stride",
        "wide stride",
        "two strides",
    ] {
        let (ahead, pace, mut fetched) = (ReadAhead::default(), roomy(), Fetched::default());
        for step in 0..2000 {
            fetched.read(&ahead, &pace, places(what, step), 4 * KIB);
        }
        assert_eq!(fetched.bytes(), fetched.asked, "{what}");
    }
}

#[test]
fn page_faults_fetch_only_their_pages() {
    let (ahead, pace, mut fetched) = (ReadAhead::default(), roomy(), Fetched::default());
    for place in [900, 14, 5000, 77, 78, 3000, 9000, 1, 2000, 15] {
        fetched.read(&ahead, &pace, place * MIB + 256 * KIB, 512 * KIB);
    }
    assert_eq!(fetched.bytes(), fetched.asked);
}

#[test]
fn a_footer_first_and_columns_then() {
    let (ahead, pace, mut fetched) = (ReadAhead::default(), roomy(), Fetched::default());
    fetched.read(&ahead, &pace, SIZE - 8 * KIB, 8 * KIB);
    fetched.read(&ahead, &pace, SIZE - 300 * KIB, 292 * KIB);
    assert_eq!(fetched.bytes(), fetched.asked, "the footer alone");
    for column in [500, 100, 4000] {
        for step in 0..64 {
            fetched.read(&ahead, &pace, column * MIB + step * 512 * KIB, 512 * KIB);
        }
    }
    assert!(fetched.bytes() <= 2 * fetched.asked + 9 * MIB);
    assert!(fetched.exact <= 7 * MIB);
}

#[test]
fn a_header_first_and_tensors_in_order() {
    let (ahead, pace, mut fetched) = (ReadAhead::default(), roomy(), Fetched::default());
    fetched.read(&ahead, &pace, 0, 16 * KIB);
    fetched.read(&ahead, &pace, 16 * KIB, 64 * KIB);
    assert_eq!(fetched.bytes(), fetched.asked, "the header alone");
    let mut at = 80 * KIB;
    while at < 256 * MIB {
        fetched.read(&ahead, &pace, at, 512 * KIB);
        at += 512 * KIB;
    }
    assert!(fetched.exact <= 2 * MIB + 512 * KIB && fetched.blocks.len() >= 253);
}

#[test]
fn a_reader_that_jumped_and_then_goes_forward_has_blocks_prefetched() {
    let (ahead, pace, mut fetched) = (ReadAhead::default(), roomy(), Fetched::default());
    for step in 0..2000 {
        fetched.read(&ahead, &pace, step * 64 * KIB, 4 * KIB);
    }
    assert!(fetched.blocks.is_empty());
    for step in 0..128 {
        fetched.read(&ahead, &pace, 125 * MIB + step * 512 * KIB, 512 * KIB);
    }
    assert!(fetched.blocks.len() >= 48, "{}", fetched.blocks.len());
}

/// All windows together stay within their share, whatever the number of readers.
#[test]
fn a_thousand_readers_share_the_room() {
    const SHARE: u64 = 256 * MIB;
    for readers in [1, 2, 16, 64, 200, 1000] {
        let pace = Pace::new(SHARE);
        let files: Vec<ReadAhead> = (0..readers).map(|_| ReadAhead::default()).collect();
        let mut fetched: Vec<Fetched> = files.iter().map(|_| Fetched::default()).collect();
        for step in 0..200 {
            for (file, fetched) in files.iter().zip(&mut fetched) {
                fetched.read(file, &pace, step * 512 * KIB, 512 * KIB);
            }
        }
        let at = 100 * MIB;
        let ahead: u64 = fetched
            .iter()
            .filter_map(|fetched| Some((fetched.blocks.last()? + 1) * MIB))
            .map(|far| far.saturating_sub(at))
            .sum();
        assert!(ahead <= SHARE * 5 / 4, "{readers} readers: {ahead} B ahead");
        assert_eq!(
            ahead > 0,
            readers <= 200,
            "{readers} readers: {ahead} B ahead"
        );
    }
}

#[test]
fn places_beyond_two_tebibytes_are_like_others() {
    let (ahead, pace) = (ReadAhead::default(), roomy());
    let size = 3 << 40;
    let mut given = BTreeSet::new();
    for step in 0..16 {
        let start = (5 << 39) + step * 512 * KIB;
        if let Some(run) = ahead.on_read(&(start..start + 512 * KIB), size, &pace) {
            given.extend(run);
        }
    }
    assert!(given.first() >= Some(&((5 << 19) + 1)) && given.len() > 8);
}
