//! The main job: many nodes start the same program at once, and storage sees every file once.

use crate::skip;
use crate::support::command::has_program;
use crate::support::fixture::{self, packages, packages_total, real_packages};
use crate::support::kernel::KernelCache;
use crate::support::stats::undisturbed;
use crate::support::{Background, Scratch, Tree, check, is_root, python};
use copperfs_overlay::BLOCK_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs `script` in one Python on each node, all at once, with the mount's top in `PYTHONPATH`. Returns the output of
/// each.
fn import_on_all(tree: &Tree, script: &str) -> Vec<String> {
    let mut running: Vec<Background> = tree
        .nodes
        .iter()
        .map(|node| {
            let mut command = import(&node.point, script);
            Background::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))
        })
        .collect();
    running
        .iter_mut()
        .map(|process| {
            let mut said = String::new();
            std::io::Read::read_to_string(&mut process.stdout(), &mut said).unwrap();
            let status = process
                .exit_within(Duration::from_secs(60))
                .expect("an end");
            assert!(status.success(), "{status}");
            said.trim_end().to_owned()
        })
        .collect()
}

/// A Python that imports from `path` and from nowhere else but its own library.
fn import(path: &Path, script: &str) -> Command {
    let mut command = python();
    command
        .args(["-S", "-s", "-c", script])
        .env("PYTHONPATH", path);
    command
}

/// Eight nodes read two thousand modules at once: the origin opens each file once, reads each byte once, and lists each
/// directory once. When they do it again, no node sends a request, and no kernel asks its daemon.
#[test]
fn eight_nodes_import_a_tree_and_storage_sees_each_file_once() {
    if !is_root() {
        skip!("needs root");
    }
    let tree_of_files = packages();
    let script = "import everything; print(everything.TOTAL)";
    let tree = Tree::launch(8, 2, &tree_of_files.path, &[]);
    let _kernel = KernelCache::undisturbed();

    let said = import_on_all(&tree, script);
    assert!(
        said.iter().all(|total| *total == packages_total()),
        "{said:?}"
    );
    let first = tree.stats();
    let (nodes, total) = tree.leaf().cluster_stats();
    assert_eq!(nodes.len(), 8);
    assert_eq!(total.get("origin.opens"), tree_of_files.modules);
    assert_eq!(total.get("origin.read_bytes"), tree_of_files.bytes);
    assert_eq!(total.get("origin.listings"), tree_of_files.directories);
    assert_eq!(total.get("origin.errors"), 0);
    assert_eq!(total.get("verify.failures"), 0);
    for node in &first[1..] {
        assert_eq!(
            node.get("origin.opens") + node.get("origin.listings"),
            0,
            "only the root reads"
        );
    }

    let said = import_on_all(&tree, script);
    assert!(
        said.iter().all(|total| *total == packages_total()),
        "{said:?}"
    );
    for (now, before) in tree.stats().iter().zip(&first) {
        now.assert_nothing_upstream(before);
    }
    for node in &tree.nodes {
        undisturbed(node, || drop(check(&mut import(&node.point, script))));
    }
}

/// A cold import sends at most one LOOKUP per path, at most one READ per file, and one listing per directory to the
/// parent.
#[test]
fn a_cold_import_sends_no_more_messages_than_it_touches_things() {
    if !is_root() {
        skip!("needs root");
    }
    let files = packages();
    let tree = Tree::launch(2, 1, &files.path, &[]);
    let _kernel = KernelCache::undisturbed();
    let before = tree.stats();
    check(&mut import(&tree.leaf().point, "import everything"));
    let after = tree.leaf().stats();
    let requests = after.requests_since(&before[1]);
    eprintln!(
        "cold import of {} files in {} directories: {requests:?}",
        files.modules, files.directories
    );
    let count = |name: &str| requests.get(name).copied().unwrap_or(0);
    // A package is looked for as a directory, and `__pycache__` in each, beside the modules.
    assert!(
        count("lookup") <= files.modules + 4 * files.directories,
        "{requests:?}"
    );
    assert!(count("read") <= files.modules, "{requests:?}");
    assert!(
        count("readdir") + count("readdirplus") <= 3 * files.directories,
        "{requests:?}"
    );
    assert!(count("open") <= 1 && count("opendir") <= 1, "{requests:?}");
    let upstream = after.since(&before[1], "upstream.requests");
    assert!(
        upstream <= files.modules + files.directories,
        "{upstream} requests upstream"
    );
}

/// Names that do not exist cost no request upstream, and when asked for again no message at all.
#[test]
fn names_that_do_not_exist_cost_nothing() {
    if !is_root() {
        skip!("needs root");
    }
    let tree = Tree::launch(3, 1, &packages().path, &[]);
    let _kernel = KernelCache::undisturbed();
    let leaf = tree.leaf();
    let dir = leaf.point.join("package_07");
    std::fs::metadata(dir.join("module_00.py")).unwrap();
    let ask_all = || {
        for number in 0..5_000 {
            let error = std::fs::metadata(dir.join(format!("no_such_{number}.so"))).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
    };
    let before = leaf.stats();
    ask_all();
    let once = leaf.stats();
    assert_eq!(once.since(&before, "fuse.software.requests.lookup"), 5_000);
    once.assert_nothing_upstream(&before);
    undisturbed(leaf, ask_all);
}

/// What a native run of a program touches below a directory, as `strace` sees it.
#[derive(Debug, Default)]
struct Touched {
    files: BTreeMap<PathBuf, u64>,
    directories: BTreeSet<PathBuf>,
}

fn trace(top: &Path, script: &str) -> Touched {
    let scratch = Scratch::new();
    let log = scratch.path().join("log");
    let program = import(top, script);
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "--seccomp-bpf", "-e", "trace=%file", "-o"])
        .arg(&log);
    strace.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    check(&mut strace);
    let mut touched = Touched::default();
    for line in std::fs::read_to_string(&log).unwrap().lines() {
        let Some(path) = line.split('"').nth(1) else {
            continue;
        };
        let Some(path) = normal(Path::new(path)) else {
            continue;
        };
        let Ok(inside) = path.strip_prefix(top) else {
            continue;
        };
        for directory in inside.ancestors().skip(1) {
            if top.join(directory).is_dir() {
                touched.directories.insert(directory.to_owned());
            }
        }
        let opened = line.contains("openat(") && !line.contains(" = -1 ");
        match std::fs::metadata(&path) {
            Ok(meta) if opened && meta.is_dir() => {
                touched.directories.insert(inside.to_owned());
            }
            Ok(meta) if opened && meta.len() > 0 => {
                touched.files.insert(inside.to_owned(), meta.len());
            }
            _ => {}
        }
    }
    touched
}

/// Without `..`, which the dynamic linker leaves in the paths that it tries.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            other => normal.push(other),
        }
    }
    normal.is_absolute().then_some(normal)
}

/// The same with real packages, including shared libraries: without bundles storage sees only the files of one native
/// run, for any number of nodes; with bundles, little more.
#[test]
fn eight_nodes_import_real_packages_and_storage_sees_what_one_process_reads() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    let top = match real_packages() {
        Ok(top) => top,
        Err(reason) => skip!("{reason}"),
    };
    let script =
        "import numpy, networkx; print(numpy.arange(10).sum(), networkx.path_graph(5).size())";
    check(&mut import(top, script));
    let touched = trace(top, script);
    assert!(touched.files.len() > 300, "{} files", touched.files.len());

    fixture::settle(top);
    let bytes = touched.files.values().sum::<u64>();
    let total = import_everywhere(top, script, &[]);
    eprintln!("{} bytes read of {bytes}", total.get("origin.read_bytes"));
    let more = total.get("origin.read_bytes") - bytes;
    assert!(
        more * 5 <= bytes,
        "bundles brought {more} bytes more than the {bytes} that are read"
    );
    assert_eq!(total.get("verify.failures"), 0);

    let total = import_everywhere(top, script, &["--bundles=false"]);
    eprintln!(
        "{} files in {} directories; bundles brought {more} of {bytes} bytes more",
        touched.files.len(),
        touched.directories.len()
    );
    assert_eq!(total.get("origin.read_bytes"), bytes);
    // A block of a large file that comes a second late is requested separately, which is another open.
    let files = touched.files.len() as u64;
    let blocks = touched.files.values().map(|len| len.div_ceil(BLOCK_BYTES));
    let opens = total.get("origin.opens");
    let most = files + blocks.filter(|blocks| *blocks > 1).sum::<u64>();
    assert!((files..=most).contains(&opens), "{opens} opens of {files}");
    assert_eq!(
        total.get("origin.listings"),
        touched.directories.len() as u64
    );
    assert_eq!(total.get("verify.failures"), 0);
}

/// The counters of eight nodes, summed, after all of them have run `script` at once.
fn import_everywhere(top: &Path, script: &str, flags: &[&str]) -> crate::support::Stats {
    let tree = Tree::launch(8, 2, top, flags);
    let said = import_on_all(&tree, script);
    assert!(said.iter().all(|line| line == "45 4"), "{said:?}");
    tree.leaf().cluster_stats().1
}
