use super::view::tests::{link, tree_of};
use super::*;
use crate::report::{Link, LinkState};

fn drawn(view: &View, style: Style) -> String {
    let all: Vec<&TreeView> = view.trees.iter().collect();
    text(view, &all, style)
}

#[test]
fn a_small_tree_is_drawn_whole() {
    let connecting = Link {
        state: LinkState::Connecting,
        using: None,
        reason: Some("n2:7470 does not answer".into()),
        since_ms: 3_400,
        ..link(0, 2, 2)
    };
    let view = tree_of((7, 2), vec![(3, link(0, 1, 0)), (6, connecting)], &[1, 4]);
    let wanted = "\
node      rank  role      lag  children     up  state
n0           0  inner       -         2  3m12s  ok
├─ n1        1  -           -         0      -  missing: no answer
│  └─ n4     4  -           -         0      -  missing: no answer
├─ n2        2  inner  120 us         1  3m12s  ok
│  ├─ n5     5  inner  120 us         0  3m12s  ok
│  └─ n6     6  inner       -         0  3m12s  connecting to n2 since 3s: n2:7470 does not answer
└─ n3        3  inner  120 us         0  3m12s  moved: under n0 instead of n1 since 12s

7 nodes, 3 well, 2 missing, 1 connecting, 1 moved; 1 root, depth 2, at most 2 connections a node
no answer from: n1, n4";
    let shown = drawn(&view, Style::default());
    assert_eq!(shown, wanted, "\n{shown}");
    let coloured = Style {
        colours: true,
        ..Style::default()
    };
    let coloured = drawn(&view, coloured);
    for (code, state) in [(32, "ok"), (31, "missing: no answer")] {
        assert!(coloured.contains(&format!("\x1b[{code}m{state}\x1b[0m\n")));
    }
    assert_eq!(coloured.matches("\x1b[33m").count(), 2);
}

#[test]
fn a_large_tree_is_folded_except_for_unhealthy_nodes() {
    // A root with 100 leaves, one of which is missing.
    let view = tree_of((101, 100), Vec::new(), &[70]);
    let shown = drawn(&view, Style::default());
    let wanted = "\
node                    rank  role      lag  children     up  state
n0                         0  inner       -        99  3m12s  ok
├─ n1                      1  inner  120 us         0  3m12s  ok
├─ n2                      2  inner  120 us         0  3m12s  ok
├─ n3                      3  inner  120 us         0  3m12s  ok
├─ n70                    70  -           -         0      -  missing: no answer
└─ … 96 more, all well

101 nodes, 100 well, 1 missing; 1 root, depth 1, at most 99 connections a node
no answer from: n70";
    assert_eq!(shown, wanted, "\n{shown}");
    let all = Style {
        all: true,
        ..Style::default()
    };
    let all = drawn(&view, all);
    assert_eq!(all.lines().count(), 1 + 101 + 3);
}

#[test]
fn a_deep_tree_stays_within_a_screen_or_two() {
    let view = tree_of((8_300, 4), vec![(8_299, link(0, 2_074, 0))], &[2_074]);
    let shown = drawn(&view, Style::default());
    assert!(shown.lines().count() < 160, "{}", shown.lines().count());
    for line in [" n8299 ", "missing: no answer", "below, all well"] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    // Every node has its line or is counted in one.
    let folded = |line: &str| -> usize {
        let words: Vec<&str> = line.split(' ').collect();
        let after = |mark: &str| {
            let at = words.iter().position(|word| *word == mark)?;
            words.get(at + 1)?.parse::<usize>().ok()
        };
        after("…").unwrap_or(0) + after("with").unwrap_or(0)
    };
    let table = shown.lines().skip(1).take_while(|line| !line.is_empty());
    let counted: usize = table.map(|line| folded(line).max(1)).sum();
    assert_eq!(counted, 8_300);
}

#[test]
fn edges_that_cross_switches_are_counted_where_they_are_known() {
    let mut view = tree_of((7, 2), Vec::new(), &[]);
    assert!(!drawn(&view, Style::default()).contains("cross"));
    view.summary.crossings = Some(crate::config::Crossings {
        edges: 6,
        given: 4,
        used: 1,
    });
    let shown = drawn(&view, Style::default());
    assert!(
        shown.ends_with("at most 3 connections a node, 1 of 6 edges cross switches"),
        "{shown}"
    );
}

#[test]
fn trees_are_chosen() {
    let view = tree_of((7, 2), Vec::new(), &[]);
    assert_eq!(chosen(&view.trees, None).unwrap().len(), 1);
    assert_eq!(chosen(&view.trees, Some(0)).unwrap().len(), 1);
    let error = chosen(&view.trees, Some(1)).unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no tree 1: the trees of this cluster are 0 to 0"
    );
}
