use super::*;
use proptest::prelude::*;
use std::process::Command;

fn expanded(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for entry in split(text) {
        expand(entry, 1 << 20, &mut names).unwrap_or_else(|why| panic!("{entry}: {why:?}"));
    }
    names
}

fn wrong(text: &str) -> Malformed {
    let mut names = Vec::new();
    let outcome = split(text).try_for_each(|entry| expand(entry, 1 << 20, &mut names));
    outcome.unwrap_err()
}

#[test]
fn ranges_padding_suffixes_and_several_brackets() {
    let cases: [(&str, &[&str]); 7] = [
        (
            "nid[001-003,200],login1",
            &["nid001", "nid002", "nid003", "nid200", "login1"],
        ),
        ("n[9-11]", &["n9", "n10", "n11"]),
        ("n[099-101]-hsn0", &["n099-hsn0", "n100-hsn0", "n101-hsn0"]),
        ("r[1-2]n[07,3]", &["r1n07", "r1n3", "r2n07", "r2n3"]),
        ("b[3,1,2]", &["b3", "b1", "b2"]),
        (" a , ,b[1] ", &["a", "b1"]),
        ("[1-2]", &["1", "2"]),
    ];
    for (text, names) in cases {
        assert_eq!(expanded(text), names, "{text}");
    }
}

#[test]
fn malformed_entries_are_refused() {
    for text in [
        "n[1-3", "n]1", "n[]", "n[x]", "n[3-1]", "n[1-2-3]", "n[1,]", "n[-1]", "a]b[1]",
    ] {
        assert!(matches!(wrong(text), Malformed::Text(_)), "{text}");
    }
    assert_eq!(wrong("n[0-999999999999999999]"), Malformed::TooMany);
    assert_eq!(
        wrong("a[0-9999]b[0-9999]c[0-9999]d[0-9999]e[0-9999]"),
        Malformed::TooMany
    );
    assert_eq!(wrong("n[0-1048576]"), Malformed::TooMany);
    assert_eq!(expanded("n[1-1048576]").len(), 1 << 20);
    let long = format!("{}[1-2]", "x".repeat(300));
    assert!(matches!(wrong(&long), Malformed::Text(_)));
}

#[test]
fn folding_keeps_the_order() {
    let cases = [
        ("n1,n2,n3,n7", "n[1-3,7]"),
        ("n3,n2,n1", "n[3,2,1]"),
        ("n8,n9,n10", "n[8-10]"),
        ("n08,n09,n10", "n[08-10]"),
        ("n8,n09,n10", "n[8,09-10]"),
        ("r1n1,r1n2,r2n1,r2n2", "r[1-2]n[1-2]"),
        // A bracket on the right would change the order.
        ("n1-a0,n2-a0,n1-a1,n2-a1", "n[1-2]-a0,n[1-2]-a1"),
        ("n1:7470,n2:7470,n2:7471", "n[1-2]:7470,n2:7471"),
        ("a,b", "a,b"),
        ("n1,n1x", "n1,n1x"),
    ];
    for (names, folded) in cases {
        assert_eq!(fold(names.split(',')), folded);
        assert_eq!(expanded(folded).join(","), names);
    }
}

#[test]
fn a_big_machine_folds_to_little() {
    let names: Vec<String> = (0..10_000).map(|i| format!("nid{:06}", i + 1)).collect();
    assert_eq!(fold(names.iter().map(String::as_str)), "nid[000001-010000]");
    let cray: Vec<String> = (0..9_216)
        .map(|i| {
            format!(
                "x{}c{}s{}b{}n{}",
                4000 + i / 512,
                i / 64 % 8,
                i / 8 % 8,
                i / 4 % 2,
                i % 4
            )
        })
        .collect();
    let folded = fold(cray.iter().map(String::as_str));
    assert_eq!(folded, "x[4000-4017]c[0-7]s[0-7]b[0-1]n[0-3]");
}

/// Texts as Slurm writes them: its own parser takes no text behind the last bracket, so that only with
/// `suffixes` there is some.
fn hostlist(suffixes: bool) -> impl Strategy<Value = String> {
    let bracket =
        prop::collection::vec((0_u64..120, 0_u64..4, 1_usize..4), 1..4).prop_map(|ranges| {
            let ranges = ranges.iter().map(|&(first, more, width)| match more {
                0 => format!("{first:0width$}"),
                _ => format!("{first:0width$}-{:0width$}", first + more),
            });
            format!("[{}]", ranges.collect::<Vec<_>>().join(","))
        });
    let entry = prop_oneof![
        "[a-z]{1,3}[0-9]{0,3}",
        ("[a-z]{1,3}", bracket.clone()).prop_map(|(name, b)| name + &b),
        ("[a-z]{1,3}", bracket.clone(), "-[a-z]{1,3}[0-9]{0,2}")
            .prop_map(move |(n, b, s)| { if suffixes { n + &b + &s } else { n + &b } }),
        ("[a-z]{1,2}", bracket.clone(), "[a-z]", bracket).prop_map(|(n, a, m, b)| n + &a + &m + &b),
    ];
    prop::collection::vec(entry, 1..6).prop_map(|entries| entries.join(","))
}

/// What `scontrol show hostnames` says, asked once for many lists.
fn scontrol(lists: &[String]) -> Option<Vec<Vec<String>>> {
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("slurm.conf");
    std::fs::write(&conf, "ClusterName=x\nSlurmctldHost=h1\nNodeName=h[1-2]\n").unwrap();
    let ask = |list: &String| {
        let output = Command::new("scontrol")
            .args(["show", "hostnames", list])
            .env("SLURM_CONF", &conf)
            .output()
            .ok()?;
        assert!(output.status.success(), "{list}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        Some(text.lines().map(ToOwned::to_owned).collect())
    };
    lists.iter().map(ask).collect()
}

#[test]
fn slurm_itself_expands_to_the_same() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut lists: Vec<String> = (0..60)
        .map(|_| hostlist(false).new_tree(&mut runner).unwrap().current())
        .collect();
    lists.push("nid[001-128,200],login1,a[098-101]".into());
    let Some(theirs) = scontrol(&lists) else {
        use std::io::Write as _;
        let _no_terminal = writeln!(std::io::stderr(), "skipped: scontrol is not installed");
        let strict =
            std::env::vars().any(|(name, value)| name == "COPPERFS_TEST_STRICT" && value == "1");
        assert!(!strict, "skipped in strict mode: scontrol is not installed");
        return;
    };
    for (list, theirs) in lists.iter().zip(theirs) {
        assert_eq!(expanded(list), theirs, "{list}");
    }
}

proptest! {
    #[test]
    fn folded_names_expand_to_themselves(list in hostlist(true)) {
        let names = expanded(&list);
        let folded = fold(names.iter().map(String::as_str));
        prop_assert_eq!(expanded(&folded), names);
    }

    #[test]
    fn any_names_fold(names in prop::collection::vec("[a-c0-2.:-]{1,6}", 0..24)) {
        let folded = fold(names.iter().map(String::as_str));
        prop_assert_eq!(expanded(&folded), names);
    }

    #[test]
    fn any_text_is_expanded_or_refused(text in "[a-c0-9,\\[\\] -]{0,40}") {
        let mut names = Vec::new();
        for entry in split(&text) {
            let before = names.len();
            match expand(entry, 1000, &mut names) {
                Ok(()) => prop_assert!(names.len() > before && names.len() <= before + 1000),
                Err(_) => prop_assert_eq!(names.len(), before),
            }
        }
    }
}
