use super::*;
use proptest::prelude::*;

fn members(list: &str) -> Vec<Member> {
    parse(list, 7470).unwrap()
}

const SLURM: &str = "# two leaves below a spine
SwitchName=s1 Nodes=nid[01-05] LinkSpeed=100
switchname=s2 nodes=nid[06-08],\\
  nid[09-10]
SwitchName=s3 Nodes=nid[11-15]
SwitchName=spine Switches=s[1-3]
";

#[test]
fn both_forms_say_the_same() {
    let slurm = Topology::parse(SLURM).unwrap_err();
    assert!(
        slurm.to_string().starts_with("line 3: "),
        "a blank in a list: {slurm}"
    );
    let slurm = Topology::parse(&SLURM.replace(",\\\n  ", ",")).unwrap();
    let racks = "s1 nid01,nid[02-05]\ns2 nid[06-08] nid[09-10]\ns3 nid[11-15]\n";
    assert_eq!(slurm, Topology::parse(racks).unwrap());
    assert_eq!(
        slurm.text_for(&members("nid[01-15],x")),
        "s1 nid[01-05]\ns2 nid[06-10]\ns3 nid[11-15]\n"
    );
    let continued = "SwitchName=s1 \\\n  Nodes=a[1-2]\n";
    assert_eq!(
        Topology::parse(continued)
            .unwrap()
            .text_for(&members("a2,a1")),
        "s1 a[1-2]\n"
    );
}

#[test]
fn wrong_lines_are_named() {
    for (text, part) in [
        ("SwitchName=s1 Nodes=a[1-2\n", "line 1: "),
        ("\nNodes=a1\n", "line 2: SwitchName is missing"),
        ("SwitchName=s1\n", "neither Nodes nor Switches"),
        ("SwitchName=s1 Knoten=a1\n", "unknown key Knoten"),
        ("rack1\n", "rack1 has no hosts"),
        ("r1 a1\nr2 a1\n", "a1 hangs on two switches, r1 and r2"),
    ] {
        let error = Topology::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// A root alone, and four switches that are just the size of its subtrees.
#[test]
fn switches_that_fit_cost_one_edge_each() {
    let topology = Topology::parse("a n[1-5]\nb n[6-10]\nc n[11-15]\nd n[16-20]\nr r1\n").unwrap();
    let list = members("r1,n[1-20]");
    let (order, crossings) = topology.order(&list, 4, 1);
    assert_eq!((crossings.edges, crossings.used), (20, 4));
    assert!(crossings.given > 4, "{crossings:?}");
    assert_eq!(order[0], 0, "the first host stays the root");
}

#[test]
fn a_real_size_gets_near_one_edge_a_switch() {
    let mut text = String::new();
    for switch in 0..64 {
        text.push_str(&format!(
            "s{switch} n[{}-{}]\n",
            switch * 16,
            switch * 16 + 15
        ));
    }
    let topology = Topology::parse(&text).unwrap();
    let (_, crossings) = topology.order(&members("n[0-1023]"), 4, 1);
    // docs/LAUNCHERS.md says these.
    assert_eq!(
        (crossings.edges, crossings.given, crossings.used),
        (1023, 1008, 110)
    );
}

#[test]
fn names_are_found_with_domain_and_port() {
    let topology = Topology::parse("s1 n1,n2.other\n").unwrap();
    let list = members("N1.cluster:9,n2.other,n2.cluster");
    let places: Vec<_> = list
        .iter()
        .map(|member| topology.switch_number(member))
        .collect();
    assert_eq!(places, [Some(0), Some(0), None]);
}

proptest! {
    #[test]
    fn an_order_is_a_permutation_and_never_worse(
        groups in prop::collection::vec(0_u64..12, 1..200),
        arity in 1_usize..6,
        roots in 1_usize..4,
    ) {
        let (order, crossings) = order(&groups, arity, roots);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..groups.len()).collect::<Vec<_>>());
        prop_assert_eq!(order[0], 0);
        prop_assert!(crossings.used <= crossings.given);
        prop_assert!(crossings.given <= crossings.edges);
        prop_assert_eq!(crossings.used, crossing(&groups, &order, arity, roots));
        // One tree cannot have fewer crossing edges than switches to be joined.
        let distinct = groups.iter().collect::<std::collections::BTreeSet<_>>().len();
        prop_assert!(crossings.used >= (distinct - 1) * roots);
        // Ordered once, a list stays as it is: a launch may order it before its nodes do.
        let again: Vec<u64> = order.iter().map(|index| groups[*index]).collect();
        let (same, _) = super::order(&again, arity, roots);
        prop_assert_eq!(same, (0..groups.len()).collect::<Vec<_>>());
    }
}
