//! `copperfs clear`: which path it resolves, how much it clears, and what it reports.

use crate::skip;
use crate::support::command::Finished;
use crate::support::{Mount, Scratch, Tree, check, copperfs, is_root, run};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Creates `d/a`, `d/b` and `e/c` below the origin at `/t`.
fn scene() -> (Scratch, Mount) {
    let origin = Scratch::new();
    for name in ["d/a", "d/b", "e/c"] {
        origin.file(name, "old");
    }
    origin.settle();
    let flag = format!("/t={}", origin.path().display());
    let mount = Mount::serving(&["--origin", &flag]);
    (origin, mount)
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[track_caller]
fn says(finished: &Finished, words: &str) {
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.text().contains(words), "{finished:?}");
}

/// A path is cleared in every form: below the mount point or as the mount sees it, absolute or relative,
/// through a link to the mount.
#[test]
fn a_path_clears_what_it_names_in_whatever_form() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, mount) = scene();
    let point = &mount.node.point;
    let beside = Scratch::new();
    symlink(point, beside.path().join("link")).unwrap();
    let below = mount.path("t/d/a").display().to_string();
    let named = point.file_name().unwrap().to_str().unwrap();
    let relative = format!("{named}/t/d/a");
    let linked = beside.path().join("link/t/d/a").display().to_string();
    let at = point.display().to_string();
    let parent = point.parent().unwrap();
    let inside = mount.path("t");
    let forms: [(&Path, &[&str]); 8] = [
        (Path::new("/"), &[&below]),
        (parent, &[&relative]),
        (&inside, &["d/a"]),
        (&inside, &["./d/../d//a"]),
        (&inside, &["/t/d/a"]),
        (Path::new("/"), &["-m", &at, "/t/d/a"]),
        (Path::new("/"), &["-m", &at, "t/d/a"]),
        (Path::new("/"), &[&linked]),
    ];
    let change = |content: &str| {
        origin.file("d/a", content);
        origin.settle();
    };
    assert_eq!(text(&below), "old");
    for (number, (cwd, form)) in forms.into_iter().enumerate() {
        let before = text(&below);
        let content = format!("text {number}");
        change(&content);
        assert_eq!(text(&below), before, "nothing changes before clear");
        let finished = run(copperfs(["clear"]).args(form).current_dir(cwd));
        says(&finished, "cleared");
        assert_eq!(text(&below), content, "{form:?}");
    }
    // With the mount named by a variable.
    change("by variable");
    let mut clear = copperfs(["clear", "/t/d/a"]);
    says(&run(clear.env("COPPERFS_MOUNTPOINT", point)), "cleared");
    assert_eq!(text(&below), "by variable");
}

/// A mount point as a path (an earlier syntax) and a path under no origin are refused with an error.
#[test]
fn what_names_nothing_that_can_be_cleared_is_refused() {
    if !is_root() {
        skip!("needs root");
    }
    let (_origin, mount) = scene();
    let point = &mount.node.point;
    let below = mount.path("t/d/a");
    assert_eq!(text(&below), "old");
    let held = mount.stats().get("cache.data.entries");
    assert_eq!(held, 1);
    let refused = run(copperfs(["clear"]).arg(point));
    assert!(refused.refused().contains("--everything"), "{refused:?}");
    let refused = run(copperfs(["clear"]).arg(point).arg(&below));
    assert!(refused.refused().contains("--everything"), "{refused:?}");
    for path in ["nonexist", "nonexist/x", "u/d/a"] {
        let refused = run(copperfs(["clear"]).arg(point.join(path)));
        assert!(refused.refused().contains("no origin"), "{refused:?}");
    }
    let outside = Scratch::new();
    let mut clear = copperfs(["clear", "x"]);
    let refused = run(clear.current_dir(outside.path()));
    assert!(
        refused.refused().contains("not on a copperfs mount"),
        "{refused:?}"
    );
    let refused = run(copperfs(["clear", "--everything"]).arg(&below));
    assert!(
        refused.refused().contains("not a mount point"),
        "{refused:?}"
    );
    assert_eq!(mount.stats().get("cache.data.entries"), held);
}

/// Clearing one file causes no other file to be read again; clearing everything needs its own option.
#[test]
fn clearing_one_file_leaves_the_others_cached() {
    if !is_root() {
        skip!("needs root");
    }
    let (_origin, mount) = scene();
    let all = ["t/d/a", "t/d/b", "t/e/c"];
    let read = || all.iter().for_each(|path| drop(text(mount.path(path))));
    let counted = || {
        let stats = mount.stats();
        (stats.get("origin.opens"), stats.get("origin.listings"))
    };
    read();
    let (opens, listings) = counted();
    says(
        &run(copperfs(["clear"]).arg(mount.path("t/d/a"))),
        "cleared",
    );
    read();
    let after = counted();
    assert_eq!(after.0, opens + 1, "one file is opened again");
    assert_eq!(
        after.1,
        listings + 1,
        "and the directory that it stands in is listed again"
    );
    let mut everything = copperfs(["clear", "--everything"]);
    says(
        &run(everything.arg(&mount.node.point)),
        "cleared everything",
    );
    read();
    assert_eq!(counted().0, opens + 4);
}

/// If nothing of a path was cached, that is reported, and is no failure.
#[test]
fn what_was_not_cached_is_told_of() {
    if !is_root() {
        skip!("needs root");
    }
    let (_origin, mount) = scene();
    let clear = |path: &str| run(copperfs(["clear"]).arg(mount.path(path)));
    says(&clear("t/e/c"), "was cached on any node");
    says(&clear("t/none/at/all"), "was cached on any node");
    assert_eq!(text(mount.path("t/e/c")), "old");
    says(&clear("t/e/c"), "cleared");
    let mut clear = copperfs(["clear", "--this-node"]);
    says(
        &run(clear.arg(mount.path("t/d/b"))),
        "was cached on this node",
    );
}

/// Every node is cleared unless `--this-node` is given.
#[test]
fn all_nodes_are_cleared_unless_one_is_asked_for() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("d/a", "old");
    origin.settle();
    let tree = Tree::launch(3, 1, origin.path(), &[]);
    let read = |rank: usize| text(tree.path(rank, "d/a"));
    assert!((0..3).all(|rank| read(rank) == "old"));
    origin.file("d/a", "new and longer");
    origin.settle();
    let leaf = tree.path(2, "d/a");
    check(copperfs(["clear", "--this-node"]).arg(&leaf));
    assert!(
        (0..3).all(|rank| read(rank) == "old"),
        "the parents have it still"
    );
    let said = run(copperfs(["clear"]).arg(&leaf));
    says(&said, "on all nodes");
    assert!((0..3).all(|rank| read(rank) == "new and longer"));
}

/// A link within the mount is cleared together with its target.
#[test]
fn a_link_is_cleared_with_what_it_leads_to() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, mount) = scene();
    symlink("d", origin.path().join("current")).unwrap();
    origin.settle();
    let file = mount.path("t/current/a");
    assert_eq!(text(&file), "old");
    origin.file("d/a", "new and longer");
    origin.settle();
    assert_eq!(text(&file), "old");
    says(
        &run(copperfs(["clear"]).arg(mount.path("t/current"))),
        "cleared",
    );
    assert_eq!(text(&file), "new and longer");
    origin.file("d/a", "newest of all");
    origin.settle();
    says(&run(copperfs(["clear"]).arg(&file)), "cleared");
    assert_eq!(text(mount.path("t/d/a")), "newest of all");
}
