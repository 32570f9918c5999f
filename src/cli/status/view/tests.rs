use super::*;
use crate::report::{Identity, Link, Role};
use serde_json::json;

pub(in crate::cli::status) fn link(tree: usize, home: usize, using: usize) -> Link {
    Link {
        tree,
        home,
        using: Some(using),
        state: LinkState::Connected,
        reason: None,
        since_ms: 12_300,
        round_trip_us: Some(120),
        failovers: 0,
        returns: 0,
    }
}

pub(in crate::cli::status) fn report(name: &str, rank: Option<u64>, links: Vec<Link>) -> Report {
    let identity = Identity {
        node: name.to_owned(),
        pid: 17,
        rank: rank.map(|rank| usize::try_from(rank).unwrap()),
        role: Role::Inner,
        parent: None,
    };
    let metrics = json!({ "uptime_seconds": 192 });
    let metrics = metrics.as_object().unwrap().clone();
    Report::new(&identity, metrics).with_standing(&Standing {
        guest: rank.is_none(),
        links,
        children: Vec::new(),
        hanging: None,
        memory_pressure: None,
    })
}

pub(in crate::cli::status) fn cluster(
    (members, arity): (usize, usize),
    roots: Vec<usize>,
    nodes: Vec<Report>,
) -> ClusterReports {
    ClusterReports {
        nodes,
        missing: Vec::new(),
        list: Some(MemberList {
            arity,
            roots,
            names: (0..members).map(|rank| format!("n{rank}")).collect(),
            crossings: None,
        }),
    }
}

/// All `members` of one tree at home, but for those whose links are given, and the missing ones.
pub(in crate::cli::status) fn tree_of(
    (members, arity): (usize, usize),
    others: Vec<(usize, Link)>,
    missing: &[usize],
) -> View {
    let mut others: BTreeMap<usize, Link> = others.into_iter().collect();
    let nodes = (0..members)
        .filter(|rank| !missing.contains(rank))
        .map(|rank| {
            let home = rank.checked_sub(1).map(|below| below / arity);
            let own = others.remove(&rank);
            let links = own.or(home.map(|home| link(0, home, home)));
            let number = u64::try_from(rank).ok();
            report(&format!("n{rank}"), number, links.into_iter().collect())
        });
    View::of(&cluster((members, arity), vec![0], nodes.collect())).unwrap()
}

fn names(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

#[test]
fn a_dead_inner_node_and_its_children() {
    let view = tree_of((7, 2), vec![(3, link(0, 1, 0)), (4, link(0, 1, 0))], &[1]);
    let places = &view.trees[0].nodes;
    assert_eq!(places[0].below, [1, 2, 3, 4]);
    assert_eq!(places[1].state, NodeState::Missing);
    assert_eq!(places[1].home.as_deref(), Some("n0"));
    assert_eq!(places[3].state, NodeState::Moved);
    assert_eq!(
        (places[3].using.as_deref(), places[3].home.as_deref()),
        (Some("n0"), Some("n1"))
    );
    let summary = &view.summary;
    assert_eq!(names(&summary.missing), ["n1"]);
    assert_eq!(names(&summary.moved), ["n3", "n4"]);
    assert!(!summary.healthy && summary.stranded.is_empty());
    // Node 2 with its parent and two children; the root with 2, 3 and 4.
    assert_eq!((summary.depth, summary.connections_max), (2, 3));
}

#[test]
fn moved_is_well_and_stranded_is_not() {
    let moved = tree_of((7, 2), vec![(3, link(0, 1, 0))], &[]);
    assert!(moved.summary.healthy);
    let stranded = Link {
        state: LinkState::Stranded,
        using: None,
        reason: Some("no\u{1b}[2Janswer".into()),
        ..link(0, 1, 1)
    };
    let view = tree_of((7, 2), vec![(3, stranded)], &[]);
    assert!(!view.summary.healthy);
    assert_eq!(names(&view.summary.stranded), ["n3"]);
    let place = &view.trees[0].nodes[3];
    assert_eq!(place.reason.as_deref(), Some("no?[2Janswer"));
    assert_eq!(place.above, Some(1), "where it belongs");
}

#[test]
fn several_roots_make_several_trees() {
    let both = |rank: u64, first: usize, second: usize| {
        let links = vec![link(0, first, first), link(1, second, second)];
        report(&format!("n{rank}"), Some(rank), links)
    };
    // Tree 0 over 0 1 2 3, tree 1 over 2 3 0 1.
    let nodes = vec![
        report("n0", Some(0), vec![link(1, 2, 2)]),
        both(1, 0, 3),
        report("n2", Some(2), vec![link(0, 0, 0)]),
        both(3, 1, 2),
    ];
    let view = View::of(&cluster((4, 2), vec![0, 2], nodes)).unwrap();
    assert_eq!(names(&view.summary.roots), ["n0", "n2"]);
    assert_eq!(view.trees[1].nodes[2].above, None);
    assert_eq!(view.trees[1].nodes[2].below, [0, 3]);
    assert_eq!(view.trees[1].nodes[3].below, [1]);
    assert!(view.summary.healthy && view.summary.moved.is_empty());
    assert_eq!(view.nodes().count(), 4);
}

#[test]
fn guests_hang_where_they_are() {
    let nodes = vec![
        report("n0", Some(0), vec![]),
        report("late", None, vec![link(0, 1, 0)]),
        report("n1", Some(1), vec![link(0, 0, 0)]),
    ];
    let view = View::of(&cluster((2, 2), vec![0], nodes)).unwrap();
    let guest = &view.trees[0].nodes[2];
    assert_eq!(
        (guest.rank, guest.guest, guest.above),
        (None, true, Some(0))
    );
    assert_eq!(guest.state, NodeState::Moved);
    assert_eq!((view.summary.nodes, view.summary.guests), (3, 1));
}

/// Whatever nodes say of themselves, what is drawn is a tree: every place hangs from the root.
#[test]
fn lies_make_no_loops() {
    let odd = |rank: u64, links: serde_json::Value| {
        let report = json!({ "node": "x", "rank": rank, "role": "\u{1b}c", "links": links });
        Report::from_json(report).unwrap()
    };
    let using = |home: usize, using: usize| json!([link(0, home, using)]);
    let nodes = vec![
        odd(0, using(0, 1)),
        odd(1, using(0, 3)),
        odd(2, using(9, 77)),
        odd(3, using(1, 3)),
        odd(4, json!("nothing")),
        odd(99, using(0, 0)),
        report("guest", None, vec![link(0, 50, 60)]),
    ];
    let view = View::of(&cluster((7, 2), vec![0], nodes)).unwrap();
    let places = &view.trees[0].nodes;
    for at in 0..places.len() {
        let above = |at: &usize| places[*at].above;
        let path: Vec<usize> = std::iter::successors(Some(at), above).take(99).collect();
        assert!(path.len() < 9 && path.last() == Some(&0), "{path:?}");
    }
    assert_eq!(places[0].role, "?c");
    assert!(View::of(&cluster((3, 0), vec![0], Vec::new())).is_err());
    assert!(View::of(&cluster((3, 2), vec![7], Vec::new())).is_err());
}
