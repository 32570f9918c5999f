//! The writer, with synthetic hashes.

use super::format::Counts;
use super::write::ManifestWriter;
use super::*;
use copperfs_overlay::Version;
use std::time::Instant;

/// Writes a manifest with this number of files, each an entry of 100 kB.
fn write(target: &Path, files: u32) {
    let path = |file: u32| format!("train/{:04}/{file:08}.jpeg", file / 1300);
    let mut counts = Counts {
        entries: files.into(),
        files: files.into(),
        ..Counts::default()
    };
    counts.path_bytes = (0..files).map(|file| path(file).len() as u64).sum();
    let mut writer = ManifestWriter::create(target, "test", &counts).unwrap();
    for file in 0..files {
        let entry = testing::entry(&format!("{file}"), file, 0, 100_000);
        let number = writer.file(path(file).as_bytes(), 100_000, &Version::from_data([1; 16]));
        assert_eq!(number, file);
        writer.entry(&entry, &[]).unwrap();
    }
    writer.finish(testing::MADE_AT).unwrap();
}

#[test]
fn a_manifest_that_is_written_in_pieces_equals_one_in_memory() {
    let out = TempDir::new().unwrap();
    let target = out.path().join("m");
    // Most sections are longer than their buffers.
    write(&target, 20_000);
    let manifest = Manifest::open(&target).unwrap();
    assert_eq!(manifest.len(), 20_000);
    let files: Vec<(Vec<u8>, u64, u8)> = (0..20_000)
        .map(|file| (manifest.path(file).unwrap().to_vec(), 100_000, 1))
        .collect();
    let files: Vec<testing::File<'_>> = files
        .iter()
        .map(|file| (&file.0[..], file.1, file.2))
        .collect();
    let entries: Vec<Entry> = (0..20_000)
        .map(|number| manifest.entry(number).unwrap())
        .collect();
    assert!(std::fs::read(&target).unwrap() == testing::encoded(&files, &entries));
}

/// For measurements: `cargo test --release -p copperfs --lib -- --ignored --nocapture a_million_entries`.
#[test]
#[ignore = "a measurement"]
fn a_million_entries() {
    let out = TempDir::new().unwrap();
    let target = out.path().join("m");
    let memory = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            / 1024
    };
    let (begun, before) = (Instant::now(), memory());
    write(&target, 1_000_000);
    println!(
        "written in {:?}, peak memory + {} MiB",
        begun.elapsed(),
        memory() - before
    );
    let (begun, before) = (Instant::now(), memory());
    let manifest = Manifest::open(&target).unwrap();
    let bytes = manifest.header().file_bytes;
    println!(
        "{bytes} bytes opened in {:?}, peak memory + {} MiB",
        begun.elapsed(),
        memory() - before
    );
    let begun = Instant::now();
    let found = manifest.hashes().iter().filter(|hash| {
        let found = manifest.with_hash(&copperfs_overlay::ContentHash(**hash));
        found.len() == 1
    });
    assert_eq!(found.count(), 1_000_000);
    println!("a million look-ups by hash in {:?}", begun.elapsed());
}
