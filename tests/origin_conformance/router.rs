//! Several origins as one namespace.

use crate::fixtures::{path, pattern};
use crate::posix::Hanging;
use bytes::Bytes;
use copperfs::origin::{OriginError, OriginOptions, OriginSpec, Origins, SymlinkPolicy};
use copperfs_overlay::{
    Attributes, BLOCK_BYTES, BlockPart, Failure, FailureKind, FileKind, Files, ReadRequest,
};
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;

fn spec(prefix: &str, dir: &Path) -> OriginSpec {
    OriginSpec {
        prefix: path(prefix),
        uri: format!("file://{}", dir.display()),
        options: BTreeMap::new(),
    }
}

fn open(specs: &[OriginSpec]) -> Origins {
    Origins::open(specs, &OriginOptions::default()).expect("origins")
}

async fn names(files: &Origins, dir: &str, limit: usize) -> Result<Vec<String>, Failure> {
    let (mut names, mut cursor) = (Vec::new(), None);
    loop {
        let page = files.list_page(path(dir), cursor, limit).await?;
        assert!(page.entries.len() <= limit);
        for entry in page.entries {
            names.push(String::from_utf8(entry.name.to_vec()).expect("text"));
        }
        cursor = page.next;
        if cursor.is_none() {
            names.sort();
            return Ok(names);
        }
    }
}

async fn stat(files: &Origins, file: &str) -> Result<Attributes, Failure> {
    let (parent, name) = match path(file).split() {
        Some((parent, name)) => (parent, Bytes::copy_from_slice(name)),
        None => (path(""), Bytes::new()),
    };
    loop {
        let looked = files.stat_names(parent.clone(), vec![name.clone()]).await?;
        let found = looked.value.into_iter().next().expect("one answer")?;
        if found.version.is_settled() {
            return Ok(found);
        }
        tokio::time::sleep(found.granularity() + std::time::Duration::from_millis(10)).await;
    }
}

async fn blocks(
    files: &Origins,
    file: &str,
    first_block: u64,
    block_count: u64,
) -> Result<Vec<Vec<u8>>, Failure> {
    let found = stat(files, file).await?;
    let request = ReadRequest {
        path: path(file),
        version: found.version,
        size: found.size,
        first_block,
        block_count,
        content: None,
        through: false,
    };
    let mut parts = files.read(request).await?;
    let (mut blocks, mut block) = (Vec::new(), Vec::new());
    while let Some(part) = parts.next().await {
        match part? {
            BlockPart::Bytes(bytes) => block.extend_from_slice(&bytes),
            BlockPart::Restart => panic!("storage takes nothing back"),
            BlockPart::End(hash) => {
                assert_eq!(hash.0, *blake3::hash(&block).as_bytes());
                blocks.push(std::mem::take(&mut block));
            }
        }
    }
    assert!(block.is_empty());
    Ok(blocks)
}

#[tokio::test]
async fn the_longest_prefix_answers_and_the_way_there_is_made_up() {
    let (one, two, three) = three_dirs();
    std::fs::write(one.path().join("f"), b"one").expect("a file");
    std::fs::write(two.path().join("f"), b"two").expect("a file");
    std::fs::write(three.path().join("f"), b"three").expect("a file");
    std::fs::create_dir_all(one.path().join("inner/real")).expect("a directory");
    let files = open(&[
        spec("a/b", one.path()),
        spec("a/b/inner/deep", two.path()),
        spec("ab", three.path()),
    ]);
    for limit in [1, 2, 100] {
        assert_eq!(
            names(&files, "", limit).await.expect("the top"),
            ["a", "ab"]
        );
        assert_eq!(names(&files, "a", limit).await.expect("made up"), ["b"]);
        assert_eq!(
            names(&files, "a/b", limit).await.expect("an origin"),
            ["f", "inner"]
        );
        assert_eq!(
            names(&files, "a/b/inner", limit).await.expect("merged"),
            ["deep", "real"]
        );
        assert_eq!(
            names(&files, "a/b/inner/deep", limit)
                .await
                .expect("inside"),
            ["f"]
        );
    }
    for (file, content) in [
        ("a/b/f", "one"),
        ("a/b/inner/deep/f", "two"),
        ("ab/f", "three"),
    ] {
        assert_eq!(
            blocks(&files, file, 0, 1).await.expect(file).concat(),
            content.as_bytes()
        );
    }
    for dir in ["", "a", "a/b", "a/b/inner", "a/b/inner/deep", "ab"] {
        assert_eq!(
            stat(&files, dir).await.expect(dir).kind,
            FileKind::Directory,
            "{dir}"
        );
        files.usage(path(dir)).await.expect("usage");
        files.xattrs(path(dir)).await.expect("attributes");
    }
    for file in ["b", "a/c", "a/bx", "a/b/none", "ac/f", "abx"] {
        let failure = stat(&files, file).await.expect_err(file);
        assert_eq!(failure.kind, FailureKind::NotFound, "{file}");
    }
    let failure = names(&files, "none", 9).await.expect_err("nothing there");
    assert_eq!(failure.kind, FailureKind::NotFound);
    assert_eq!(
        stat(&files, "a").await.expect("it").version,
        stat(&files, "a").await.expect("it").version
    );
}

fn three_dirs() -> (tempfile::TempDir, tempfile::TempDir, tempfile::TempDir) {
    let dir = || tempfile::tempdir().expect("a directory");
    (dir(), dir(), dir())
}

#[tokio::test]
async fn reads_come_in_hashed_blocks_and_are_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let content = pattern(5 * usize::try_from(BLOCK_BYTES).expect("small") + 17);
    std::fs::write(dir.path().join("f"), &content).expect("a file");
    std::fs::write(dir.path().join("empty"), b"").expect("a file");
    let files = open(&[spec("d", dir.path())]);
    for young in ["d/f", "d/empty"] {
        stat(&files, young).await.expect("it settles");
    }
    let stats_before = files.counters().stats.get();
    let whole = blocks(&files, "d/f", 0, u64::MAX)
        .await
        .expect("all blocks");
    assert_eq!(whole.len(), 6);
    assert!(whole.concat() == content);
    let counters = files.counters();
    assert_eq!(
        (counters.opens.get(), counters.read_bytes.get()),
        (1, content.len() as u64)
    );
    let middle = blocks(&files, "d/f", 2, 2).await.expect("blocks");
    assert!(middle.concat() == content[2 << 20..4 << 20]);
    assert!(
        blocks(&files, "d/empty", 0, 1)
            .await
            .expect("nothing")
            .is_empty()
    );
    assert!(
        blocks(&files, "d/f", 6, 1)
            .await
            .expect("beyond")
            .is_empty()
    );
    names(&files, "d", 1).await.expect("a listing");
    let counters = files.counters();
    assert_eq!(
        (
            counters.opens.get(),
            counters.listings.get(),
            counters.errors.get()
        ),
        (4, 1, 0)
    );
    assert_eq!(counters.stats.get() - stats_before, 4);
    stat(&files, "d/none").await.expect_err("none");
    assert_eq!(files.counters().errors.get(), 0, "not found is an answer");
}

#[tokio::test]
async fn absolute_links_stay_inside() {
    let (one, two, _) = three_dirs();
    let (a, b) = (one.path(), two.path());
    std::fs::create_dir_all(a.join("sub/dir")).expect("directories");
    symlink(a.join("file"), a.join("sub/dir/up")).expect("a link");
    symlink(b.join("x"), a.join("across")).expect("a link");
    symlink("/etc/passwd", a.join("out")).expect("a link");
    symlink("sub/dir", a.join("relative")).expect("a link");
    let specs = [spec("one", a), spec("other/two", b)];
    let target = |found: &Attributes| {
        let target = found.link_target.clone().expect("a link");
        assert_eq!(found.size, target.len() as u64);
        String::from_utf8(target.to_vec()).expect("text")
    };
    let files = open(&specs);
    for (link, text) in [
        ("one/sub/dir/up", "../../file"),
        ("one/across", "../other/two/x"),
        ("one/out", "/etc/passwd"),
        ("one/relative", "sub/dir"),
    ] {
        assert_eq!(target(&stat(&files, link).await.expect(link)), text);
    }
    let listing = files
        .list_page(path("one"), None, 100)
        .await
        .expect("a listing");
    let across = listing
        .entries
        .iter()
        .find(|entry| entry.name == "across")
        .expect("it");
    assert_eq!(
        target(across.attributes.as_ref().expect("attributes")),
        "../other/two/x"
    );
    let keep = OriginOptions {
        symlinks: SymlinkPolicy::Keep,
        ..OriginOptions::default()
    };
    let files = Origins::open(&specs, &keep).expect("origins");
    let kept = stat(&files, "one/sub/dir/up").await.expect("a link");
    assert_eq!(target(&kept), a.join("file").to_str().expect("text"));
}

#[tokio::test]
async fn excluded_paths_do_not_exist_and_their_neighbours_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let real = dir.path().canonicalize().expect("a path");
    for name in ["mnt3", "mnt3x", "deep/mnt3"] {
        std::fs::create_dir_all(real.join(name)).expect("directories");
        std::fs::write(real.join(name).join("f"), b"x").expect("a file");
    }
    symlink(real.join("mnt3/f"), real.join("link")).expect("a link");
    let own_mount = path(real.join("mnt3").to_str().expect("text"));
    let options = OriginOptions {
        exclude: vec![own_mount],
        ..OriginOptions::default()
    };
    let files = Origins::open(&[spec("d", &real)], &options).expect("origins");
    assert_eq!(
        names(&files, "d", 100).await.expect("names"),
        ["deep", "link", "mnt3x"]
    );
    for hidden in ["d/mnt3", "d/mnt3/f"] {
        let failure = stat(&files, hidden).await.expect_err(hidden);
        assert_eq!(failure.kind, FailureKind::NotFound);
    }
    assert_eq!(
        names(&files, "d/mnt3", 9).await.expect_err("hidden").kind,
        FailureKind::NotFound
    );
    for shown in ["d/mnt3x/f", "d/deep/mnt3/f"] {
        stat(&files, shown).await.expect(shown);
    }
    // A link to a path that is not served keeps its text.
    let link = stat(&files, "d/link").await.expect("a link");
    assert_eq!(link.link_target.expect("a target")[0], b'/');
}

#[tokio::test]
async fn copperfs_mounts_are_recognised_while_they_are_there() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(dir.path().join("with space/inside")).expect("a directory");
    std::fs::create_dir(dir.path().join("with space2")).expect("a directory");
    let files = open(&[spec("d", dir.path())]);
    stat(&files, "d/with space/inside")
        .await
        .expect("not yet a mount");
    // It has the type of copperfs, and every call into it hangs.
    let Some(mount) = Hanging::mount(dir.path().join("with space"), "fuse.copperfs") else {
        return; // needs privilege
    };
    let asked = async {
        assert_eq!(names(&files, "d", 9).await.expect("names"), ["with space2"]);
        for hidden in ["d/with space", "d/with space/inside"] {
            let failure = stat(&files, hidden).await.expect_err(hidden);
            assert_eq!(failure.kind, FailureKind::NotFound);
        }
    };
    let limit = std::time::Duration::from_secs(10);
    tokio::time::timeout(limit, asked)
        .await
        .expect("nothing asks the mount");
    drop(mount);
    stat(&files, "d/with space/inside")
        .await
        .expect("no mount any more");
}

#[tokio::test]
async fn an_origin_of_the_whole_host_leaves_out_local_trees() {
    let files = open(&[spec("", Path::new("/"))]);
    let top = names(&files, "", 1000).await.expect("the top");
    for hidden in ["proc", "sys", "dev", "run", "tmp", "var"] {
        assert!(!top.contains(&hidden.to_owned()), "{hidden}");
        assert_eq!(
            stat(&files, hidden).await.expect_err(hidden).kind,
            FailureKind::NotFound
        );
    }
    assert!(top.contains(&"etc".to_owned()));
    let found = stat(&files, "etc/passwd").await.expect("a file");
    let bytes = blocks(&files, "etc/passwd", 0, 1)
        .await
        .expect("bytes")
        .concat();
    assert_eq!(bytes.len() as u64, found.size);
}

#[test]
fn origins_that_cannot_be_served_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let fail = |specs: &[OriginSpec]| {
        Origins::open(specs, &OriginOptions::default())
            .err()
            .expect("no origins")
    };
    assert!(matches!(fail(&[]), OriginError::None));
    let twice = [spec("a", dir.path()), spec("a", dir.path())];
    assert!(matches!(fail(&twice), OriginError::Duplicate { .. }));
    for uri in [
        "ftp://host/x",
        "nonsense",
        "file://relative/path",
        "s3://",
        "memory:///x",
    ] {
        let spec = OriginSpec {
            prefix: path("x"),
            uri: uri.to_owned(),
            options: BTreeMap::new(),
        };
        let error = fail(std::slice::from_ref(&spec));
        assert!(matches!(error, OriginError::Uri { .. }), "{uri}: {error}");
    }
    let missing = fail(&[spec("x", &dir.path().join("none"))]).to_string();
    assert!(
        missing.contains("/none") && missing.contains("check the path"),
        "{missing}"
    );
}

/// Roots compare their storage while it is in use: a write to a file at the top must not make the storage
/// look different. A directory with the same names, contents and times must.
#[tokio::test]
async fn a_fingerprint_stays_while_files_grow_and_tells_copies_apart() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (one, two) = (scratch.path().join("one"), scratch.path().join("two"));
    std::fs::create_dir_all(one.join("dir")).expect("a directory");
    std::fs::write(one.join("job.log"), "begun\n").expect("a file");
    symlink("dir", one.join("link")).expect("a link");
    let print = async |dir: &Path| {
        let origins = open(&[spec("data", dir)]);
        let prints = origins.fingerprints().await.expect("fingerprints");
        // As for directories with the same name on two nodes; here they have two names.
        (prints[0].prefix.clone(), prints[0].fingerprint)
    };
    let first = print(&one).await;
    let mut log = std::fs::File::options()
        .append(true)
        .open(one.join("job.log"))
        .expect("the file");
    std::io::Write::write_all(&mut log, b"a line\n").expect("written");
    std::fs::write(one.join("dir/new"), "below the top").expect("a file");
    assert_eq!(print(&one).await, first, "a file grew");
    std::fs::write(one.join("second.log"), "").expect("a file");
    assert_ne!(print(&one).await, first, "a name is new");
    std::fs::remove_file(one.join("second.log")).expect("removed");
    assert_eq!(print(&one).await, first);

    // Another directory replaces it, under the same URI and with the same entries.
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([&one, &two])
        .status()
        .expect("cp");
    assert!(copied.success());
    std::fs::rename(&one, scratch.path().join("away")).expect("moved");
    std::fs::rename(&two, &one).expect("moved");
    assert_ne!(print(&one).await, first, "a copy is not the same storage");
}
