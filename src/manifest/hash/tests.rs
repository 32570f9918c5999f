use super::*;
use crate::testing::path;
use copperfs_overlay::Version;
use proptest::prelude::*;

fn plan(files: &[(&str, u64)]) -> Plan {
    let file = |(name, size): &(&str, u64)| DatasetFile {
        path: path(name),
        size: *size,
        version: Version::of(name.as_bytes()),
        content: None,
        parts: Box::default(),
    };
    Plan::by_path(files.iter().map(file).collect())
}

/// The names of the files of each task.
fn tasks(plan: &Plan, known: impl Fn(u32) -> bool) -> Vec<Vec<String>> {
    let name = |unread: &Unread| unread.file.path.to_string();
    let names = |work| match work {
        Work::Bundle(_, files) => files.iter().map(name).collect(),
        Work::File(file) => vec![name(&file)],
    };
    works(plan, known).map(names).collect()
}

#[test]
fn small_files_of_one_directory_are_read_together() {
    let large = BUNDLE_FILE_BYTES_MAX + 1;
    let files = [
        ("a/1", 5),
        ("a/2", large - 1),
        ("a/3", large),
        ("a/4", 5),
        ("a/5", 0),
        ("a/6", 7),
        ("a/7", 7),
        ("b/1", 7),
    ];
    let plan = plan(&files);
    assert_eq!(
        tasks(&plan, |_| false),
        [
            &["/a/1", "/a/2"][..],
            &["/a/3"],
            &["/a/4"],
            &["/a/5"],
            &["/a/6", "/a/7"],
            &["/b/1"],
        ]
    );
    assert_eq!(tasks(&plan, |entry| entry != 5), [["/a/6"]]);
    let many: Vec<String> = (0..600).map(|number| format!("d/{number:03}")).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|name| (&name[..], 9)).collect();
    let tasks = tasks(&self::plan(&many), |_| false);
    let lengths: Vec<usize> = tasks.iter().map(Vec::len).collect();
    assert_eq!(
        lengths,
        [BUNDLE_FILES, BUNDLE_FILES, 600 - 2 * BUNDLE_FILES]
    );
}

proptest! {
    /// Every byte of an entry is requested, no block twice, and no long gap.
    #[test]
    fn runs_cover_all_entries_once(lengths in prop::collection::vec((0..5 * BLOCK_BYTES, 1..3 * BLOCK_BYTES), 1..20)) {
        let mut at = 0;
        let spans: Vec<ByteSpan> = lengths.into_iter().map(|(gap, length)| {
            let offset = at + gap;
            at = offset + length;
            ByteSpan { offset, length }
        }).collect();
        let runs = runs(spans.iter().copied());
        for pair in runs.windows(2) {
            prop_assert!(pair[1].start > pair[0].end + GAP_BLOCKS);
        }
        for span in &spans {
            let within = |run: &&std::ops::Range<u64>| {
                run.start * BLOCK_BYTES <= span.offset && span.end() <= run.end * BLOCK_BYTES
            };
            prop_assert_eq!(runs.iter().filter(within).count(), 1);
        }
    }
}
