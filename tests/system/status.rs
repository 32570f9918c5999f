//! The cluster as operators see it: `status`, `top`, and each node's report of its connections.

use crate::skip;
use crate::support::hosts::{Job, missing};
use crate::support::tree::Members;
use crate::support::{
    Finished, Mount, Scratch, Tree, check, copperfs, eventually, is_root, python, run,
};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

fn origin() -> Scratch {
    let origin = Scratch::new();
    for number in 0..20 {
        origin.file(&format!("f{number}"), vec![b'x'; 10_000]);
    }
    origin.settle();
    origin
}

fn status(point: &Path, flags: &[&str]) -> Finished {
    run(copperfs(["status"]).args(flags).arg(point))
}

/// What `status --json` says, and whether it ended with 0.
#[track_caller]
fn status_json(point: &Path) -> (Value, bool) {
    let finished = status(point, &["--json"]);
    let said = serde_json::from_slice(&finished.stdout);
    let said = said.unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    (said, finished.status.success())
}

/// The reports of all nodes that answer.
fn reports(point: &Path) -> Vec<Value> {
    let said = check(copperfs(["stats", "--all", "--json"]).arg(point));
    let mut said: Value = serde_json::from_str(&said).unwrap();
    serde_json::from_value(said["nodes"].take()).unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap().iter();
    list.map(|name| name.as_str().unwrap()).collect()
}

/// A tree of seven nodes, two children each, started one by one.
struct Seven {
    /// Removed before they are taken away, and put back when they run again.
    nodes: Vec<Option<Mount>>,
    members: Members,
    _origin: Scratch,
}

impl Seven {
    fn start() -> Self {
        let origin = origin();
        let mut this = Self {
            members: Members::with_arity(7, 2, origin.path()),
            nodes: Vec::new(),
            _origin: origin,
        };
        this.nodes = (0..7).map(|rank| Some(this.mount(rank))).collect();
        this
    }

    fn mount(&self, rank: usize) -> Mount {
        self.members.start(rank, &["--request-timeout", "10s"])
    }

    fn name(&self, rank: usize) -> &str {
        self.members.hosts.split(',').nth(rank).unwrap()
    }

    /// What node 6 says.
    #[track_caller]
    fn status(&self) -> (Value, bool) {
        status_json(&self.members.point(6))
    }

    /// Kills node 1; then 3 and 4 read something, and so notice at once, and see no error.
    fn kill_1(&self) {
        self.nodes[1].as_ref().unwrap().kill();
        for rank in [3, 4] {
            let file = self.members.point(rank).join(format!("f{rank}"));
            assert_eq!(std::fs::read(file).unwrap().len(), 10_000);
        }
        let (said, well) = self.status();
        assert!(!well && said["healthy"] == false, "{said}");
        let limit = Duration::from_secs(20);
        eventually(limit, "nodes 3 and 4 are with the root", || {
            let (said, _) = self.status();
            let moved = [self.name(3), self.name(4)];
            names(&said["missing"]) == [self.name(1)] && names(&said["moved"]) == moved
        });
    }
}

#[test]
fn a_tree_that_is_well_is_drawn_as_the_list_says() {
    if !is_root() {
        skip!("needs root");
    }
    let tree = Seven::start();
    let (said, well) = tree.status();
    assert!(well && said["healthy"] == true, "{said}");
    assert_eq!((&said["nodes"], &said["depth"]), (&7.into(), &2.into()));
    assert_eq!(said["connections_max"], 3);
    let place = &said["trees"][0]["nodes"][3];
    let parent: Value = tree.name(1).into();
    assert_eq!((&place["using"], &place["home"]), (&parent, &parent));
    assert_eq!(
        (&place["state"], &place["role"]),
        (&"ok".into(), &"leaf".into())
    );
}

#[test]
fn a_dead_inner_node_is_missing_its_children_move_and_come_home() {
    if !is_root() {
        skip!("needs root");
    }
    let mut tree = Seven::start();
    tree.kill_1();
    let (said, _) = tree.status();
    let places = &said["trees"][0]["nodes"];
    assert_eq!(places[1]["state"], "missing");
    assert_eq!(places[1]["home"], tree.name(0));
    assert_eq!(places[3]["using"], tree.name(0));
    assert_eq!(places[3]["home"], tree.name(1));
    assert_eq!(places[0]["children"], 3);
    let text = status(&tree.members.point(6), &[]);
    assert_eq!(text.status.code(), Some(1));
    let text = text.text();
    for wanted in [
        "missing: no answer".to_owned(),
        format!(
            "moved: under {} instead of {} since",
            tree.name(0),
            tree.name(1)
        ),
        format!("no answer from: {}", tree.name(1)),
        "7 nodes, 4 well, 1 missing, 2 moved; 1 root, depth 2".to_owned(),
    ] {
        assert!(text.contains(&wanted), "{wanted}\n{text}");
    }
    assert!(!text.contains('\x1b'), "there is no terminal: {text:?}");

    tree.nodes[1] = None;
    tree.nodes[1] = Some(tree.mount(1));
    eventually(Duration::from_secs(20), "all are at home", || {
        let (said, well) = tree.status();
        well && names(&said["moved"]).is_empty()
    });
    let reports = reports(&tree.members.point(0));
    for rank in [3, 4] {
        let healing = &reports[rank]["healing"];
        assert!(healing["failovers"].as_u64() >= Some(1), "{healing}");
        assert!(healing["returns"].as_u64() >= Some(1), "{healing}");
        let link = &reports[rank]["links"][0];
        assert_eq!(link["failovers"], healing["failovers"]);
    }
}

#[test]
fn every_node_reports_where_it_stands() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let tree = Tree::launch(4, 2, origin.path(), &["--roots", "2"]);
    let reports = reports(&tree.leaf().point);
    assert_eq!(reports.len(), 4);
    // Tree 0 over 0 1 2 3, tree 1 over 2 3 0 1.
    for (rank, (role, homes, children)) in [
        ("root", vec![(1, 2)], [2, 0]),
        ("inner", vec![(0, 0), (1, 3)], [1, 0]),
        ("root", vec![(0, 0)], [0, 2]),
        ("inner", vec![(0, 1), (1, 2)], [0, 1]),
    ]
    .into_iter()
    .enumerate()
    {
        let report = &reports[rank];
        assert_eq!(report["role"], role, "{rank}");
        assert_eq!(report["guest"], false);
        let links = report["links"].as_array().unwrap();
        assert_eq!(links.len(), homes.len());
        for (link, (tree, home)) in links.iter().zip(homes) {
            assert_eq!((&link["tree"], &link["home"]), (&tree.into(), &home.into()));
            assert_eq!(
                (&link["using"], &link["state"]),
                (&home.into(), &"connected".into())
            );
            assert!(link["reason"].is_null() && link["since_ms"].is_u64());
            assert!(link["round_trip_us"].as_u64() > Some(0), "{link}");
            assert_eq!(
                (&link["failovers"], &link["returns"]),
                (&0.into(), &0.into())
            );
        }
        for (tree, connected) in children.into_iter().enumerate() {
            let entry = &report["children"][tree];
            assert_eq!(
                (&entry["tree"], &entry["connected"]),
                (&tree.into(), &connected.into())
            );
        }
        for key in ["failovers", "returns", "replays"] {
            assert_eq!(report["healing"][key], 0, "{key}");
        }
    }
    let text = status(&tree.leaf().point, &["--tree", "1"]);
    assert!(text.status.success(), "{text:?}");
    let first = text.text().lines().next().unwrap().to_owned();
    let root = reports[2]["node"].as_str().unwrap();
    assert_eq!(first, format!("tree 1 of 2, root {root}"));
    let none = status(&tree.leaf().point, &["--tree", "2"]);
    assert!(
        none.refused()
            .contains("the trees of this cluster are 0 to 1"),
        "{none:?}"
    );
}

#[test]
fn a_guest_is_shown_and_has_no_rank() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let members = Members::with_arity(3, 2, origin.path());
    let _nodes: Vec<Mount> = (0..3).map(|rank| members.start(rank, &[])).collect();
    let mut join = copperfs(["mount", "--join", "--arity", "2", "--hosts", &members.hosts]);
    let served = format!("/=file://{}", origin.path().display());
    join.args(["--listen", "127.0.0.1:0", "--origin", &served]);
    join.arg("--secret-file").arg(&members.secret);
    let guest = Mount::at(&members.point(9), &mut join);
    let reports = reports(&members.point(0));
    let last = reports.last().unwrap();
    assert_eq!(reports.len(), 4);
    assert!(last["rank"].is_null() && last["guest"] == true, "{last}");
    let (said, well) = status_json(&guest.point);
    assert!(well, "{said}");
    assert_eq!((&said["nodes"], &said["guests"]), (&4.into(), &1.into()));
    let text = status(&guest.point, &[]).text();
    assert!(text.contains("4 nodes, all well, 1 guest;"), "{text}");
    let stats = check(copperfs(["stats"]).arg(&guest.point));
    assert!(stats.contains(" (guest, leaf, parent rank "), "{stats}");
}

#[test]
fn edges_that_cross_switches_are_counted() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let scratch = Scratch::new();
    let switches = "SwitchName=a Nodes=h1,h5\nSwitchName=b Nodes=h[2-4]\n";
    let topology = scratch.file("topology.conf", switches);
    let job = Job::new(5, &["--topology", topology.to_str().unwrap()]);
    job.mount_all(1..=5);
    let mut ask = job.hosts.copperfs(3, &["status"]);
    let text = check(ask.arg(&job.point));
    assert!(text.contains("5 nodes, all well;"), "{text}");
    assert!(
        text.trim_end().ends_with(", 1 of 4 edges cross switches"),
        "{text}"
    );
}

/// Runs a program on a terminal of its own, sends it `keys` or a signal once `cue` is on the screen,
/// and prints all that it wrote, how it ended, and whether the terminal is as it was.
const ON_A_TERMINAL: &str = r#"
import fcntl, json, os, pty, select, signal, struct, sys, termios, time
cue, then, argv = sys.argv[1].encode(), sys.argv[2], sys.argv[3:]
keeper, terminal = pty.openpty()
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
before = termios.tcgetattr(terminal)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for fd in (0, 1, 2): os.dup2(terminal, fd)
    os.execv(argv[0], argv)
wrote, acted, end, ended, code = b"", not cue, time.monotonic() + 20, False, None
while time.monotonic() < end and not ended:
    done, how = os.waitpid(pid, os.WNOHANG)
    ended = done == pid
    while select.select([keeper], [], [], 0.05)[0]:
        wrote += os.read(keeper, 65536)
    if not acted and cue in wrote:
        acted = True
        if then == "TERM": os.kill(pid, signal.SIGTERM)
        else: os.write(keeper, then.encode())
if ended: code = os.waitstatus_to_exitcode(how)
else: os.kill(pid, signal.SIGKILL)
same = termios.tcgetattr(terminal) == before
print(json.dumps({"code": code, "same": same, "wrote": wrote.decode(errors="replace")}))
"#;

#[track_caller]
fn on_a_terminal(cue: &str, then: &str, colours: bool, words: &[&str], point: &Path) -> Value {
    let program = copperfs(words);
    let mut terminal = python();
    terminal.args(["-c", ON_A_TERMINAL, cue, then]);
    terminal.arg(program.get_program()).args(words).arg(point);
    terminal
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR");
    if !colours {
        terminal.env("NO_COLOR", "1");
    }
    serde_json::from_str(&check(&mut terminal)).unwrap()
}

#[test]
fn a_terminal_is_used_and_given_back() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let tree = Tree::launch(2, 1, origin.path(), &[]);
    let point = &tree.leaf().point;
    for colours in [true, false] {
        let said = on_a_terminal("", "", colours, &["status"], point);
        let wrote = said["wrote"].as_str().unwrap();
        assert_eq!(wrote.contains("\x1b[32mok"), colours, "{wrote:?}");
        assert_eq!(said["code"], 0);
    }
    // Its line of help is drawn last. q, Ctrl-C and a signal that ends programs.
    for then in ["q", "\x03", "TERM"] {
        let said = on_a_terminal("PgDn", then, true, &["top", "--interval", "200ms"], point);
        assert_eq!(said["code"], 0, "{then:?}: {said}");
        assert_eq!(said["same"], true, "{then:?}: {said}");
        let wrote = said["wrote"].as_str().unwrap();
        let (enter, leave) = (wrote.find("\x1b[?1049h"), wrote.rfind("\x1b[?1049l"));
        assert!(enter.is_some() && enter < leave, "{wrote:?}");
        assert!(wrote.contains("mnt/0"), "{wrote:?}");
    }
}

#[test]
fn without_a_terminal_or_a_daemon_both_say_so() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let top = run(copperfs(["top"]).arg(scratch.path()));
    let why = top.refused();
    assert!(
        why.contains("top needs a terminal") && why.contains("--all --json"),
        "{why}"
    );
    let elsewhere = status(scratch.path(), &[]);
    assert!(
        elsewhere.refused().contains("is not a copperfs mount"),
        "{elsewhere:?}"
    );

    let origin = origin();
    let mount = Mount::of(origin.path());
    let (said, well) = status_json(&mount.point);
    assert!(
        well && said["nodes"] == 1 && said["connections_max"] == 0,
        "{said}"
    );
    mount.kill();
    eventually(Duration::from_secs(5), "the daemon is gone", || {
        !mount.is_alive()
    });
    let dead = status(&mount.point, &[]);
    assert!(
        dead.refused().contains("is gone and left its mount behind"),
        "{dead:?}"
    );
}
