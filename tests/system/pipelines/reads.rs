//! Reads by processes that are tasks of a pipeline.

use super::{BYTES, file, held, submission, submit, told, with};
use crate::skip;
use crate::support::command::{as_user, check};
use crate::support::datasets::{Nodes, SOON, datasets};
use crate::support::{Scratch, eventually, is_root};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A user and a group that own nothing.
const NOBODY: u32 = 65_534;

/// Longer than reads take from their node to the owner: homes are told every 100 ms.
const A_WHILE: Duration = Duration::from_secs(2);

#[track_caller]
fn cat(task: Option<&str>, path: &Path) {
    let mut cat = Command::new("cat");
    if let Some(task) = task {
        cat.env("COPPERFS_TASK", task);
    }
    check(cat.arg(path).stdout(std::process::Stdio::null()));
}

#[track_caller]
fn holds(nodes: &Nodes, rank: usize, job: &str, wanted: &[u64]) {
    let mut last = Vec::new();
    let begun = Instant::now();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually(SOON, "references", || {
            last = held(nodes, rank, job);
            last == wanted
        });
    }));
    outcome.unwrap_or_else(|_| panic!("the tasks of {job} hold {last:?}, and not {wanted:?}"));
    eprintln!("{wanted:?} after {:?} (issue: 1 s)", begun.elapsed());
}

/// The first read by a process of the task releases its reference, on any node, also if the page cache answers it. Other
/// processes release nothing, and neither does a read of a job whose tasks release at their ends.
#[test]
fn the_first_read_of_a_task_releases_its_reference() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 20, BYTES)]);
    let nodes = Nodes::with_page_cache(3, origin.path(), &["--allow-other"]);
    nodes.add("set", &["--keep", "references", "--budget", "200kB"]);
    let tasks = [("t/0", 0..3), ("t/1", 0..3), ("t/2", 0..3)];
    let by_read = with(&submission("app/sql-0", "set", &tasks), "consume", "read");
    submit(&nodes, 2, &by_read);
    submit(&nodes, 2, &submission("by end", "set", &tasks));
    told(&nodes);
    let path = |rank, number| nodes.path(rank, "set").join(file(number));
    // On another node than the owner.
    cat(Some("app/sql-0/t/0"), &path(1, 0));
    holds(&nodes, 2, "app/sql-0", &[2, 3, 3]);
    // Now the kernel has the pages.
    cat(Some("app/sql-0/t/1"), &path(1, 0));
    holds(&nodes, 2, "app/sql-0", &[2, 2, 3]);
    // Again: it is released once.
    cat(Some("app/sql-0/t/1"), &path(1, 0));
    // The owner's own node, and a child of the process that has the variable.
    check(
        Command::new("sh")
            .args(["-c", "cat \"$1\"; true", "sh"])
            .arg(path(2, 1))
            .env("COPPERFS_TASK", "app/sql-0/t/1"),
    );
    holds(&nodes, 2, "app/sql-0", &[2, 1, 3]);
    // All of these release nothing.
    for task in [
        None,
        Some("by end/t/0"),
        Some("app/sql-0/t/9"),
        Some("app/sql-0"),
        Some("app"),
        Some("/"),
        Some("app/sql-1/t/2"),
        Some(&"x".repeat(5000)),
    ] {
        cat(task, &path(1, 0));
        cat(task, &path(1, 1));
    }
    // A file that the task did not list.
    cat(Some("app/sql-0/t/2"), &path(1, 15));
    // Opens without a read, and attributes.
    let quiet = [
        "-c",
        "exec 3<\"$1\"; stat \"$1\" > /dev/null; ls -l \"$1\" > /dev/null",
        "sh",
    ];
    check(Command::new("bash").args(quiet).arg(path(0, 2)));
    let mut other = as_user(NOBODY, NOBODY, "cat");
    check(other.env("COPPERFS_TASK", "app/sql-0/t/2").arg(path(1, 0)));
    std::thread::sleep(A_WHILE);
    assert_eq!(held(&nodes, 2, "app/sql-0"), [2, 1, 3]);
    assert_eq!(held(&nodes, 2, "by end"), [3, 3, 3]);
    // A failed task holds all of its references again, and releases them again.
    super::lrc(&nodes, 2, &["taskfail", "app/sql-0", "t/1"]);
    assert_eq!(held(&nodes, 2, "app/sql-0"), [2, 3, 3]);
    cat(Some("app/sql-0/t/1"), &path(0, 2));
    holds(&nodes, 2, "app/sql-0", &[2, 2, 3]);
    for task in ["t/0", "t/1", "t/2"] {
        super::lrc(&nodes, 2, &["done", "app/sql-0", task]);
    }
    super::lrc(&nodes, 2, &["end", "by end"]);
    told(&nodes);
    assert_eq!(nodes.total("pipelines.references"), 0);
}

/// Of a large file, a read releases the stripes that it touches, and no others.
#[test]
fn a_read_releases_the_stripes_that_it_touches() {
    if !is_root() {
        skip!("needs root");
    }
    const STRIPE: usize = 4 << 20;
    let origin = datasets(&[("large", 1, 4 * STRIPE)]);
    // Without read-ahead of the kernel, which reads further stripes.
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("large", &["--keep", "references", "--budget", "20MB"]);
    let job = with(
        &submission("j", "large", &[("t", 0..1), ("u", 0..1)]),
        "consume",
        "read",
    );
    submit(&nodes, 1, &job);
    assert_eq!(held(&nodes, 1, "j"), [4, 4]);
    let path = nodes.path(0, "large").join(file(0));
    let dd = |skip: usize| {
        let mut dd = Command::new("dd");
        dd.arg(format!("if={}", path.display())).args([
            "of=/dev/null",
            "bs=64K",
            "count=1",
            "status=none",
        ]);
        check(
            dd.arg(format!("skip={}", skip * STRIPE / 65_536))
                .env("COPPERFS_TASK", "j/t"),
        );
    };
    dd(2);
    holds(&nodes, 1, "j", &[3, 4]);
    dd(2);
    dd(0);
    holds(&nodes, 1, "j", &[2, 4]);
    cat(Some("j/u"), &path);
    holds(&nodes, 1, "j", &[2, 0]);
}

/// Many processes of tasks read at the same time, each file on each node.
#[test]
fn reads_of_many_tasks_at_once() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 60, BYTES)]);
    let nodes = Nodes::launch(3, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "600kB"]);
    let names: Vec<String> = (0..60).map(|number| format!("t{number}")).collect();
    let tasks: Vec<_> = (0..)
        .zip(&names)
        .map(|(number, name)| (&**name, number..number + 1))
        .collect();
    submit(
        &nodes,
        0,
        &with(&submission("j", "set", &tasks), "consume", "read"),
    );
    let scratch = Scratch::new();
    let script = scratch.file(
        "read.sh",
        "for number in $(seq 0 59); do COPPERFS_TASK=j/t$number cat \"$1/d0/f$number\" > /dev/null & done; wait\n",
    );
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let (script, directory) = (&script, nodes.path(rank, "set"));
            scope.spawn(move || check(Command::new("bash").arg(script).arg(directory)));
        }
    });
    holds(&nodes, 0, "j", &[0; 60]);
    told(&nodes);
    assert_eq!(nodes.total("pipelines.references"), 0, "none below 0");
}
