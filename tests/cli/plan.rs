//! `copperfs plan`: its output, and its messages about invalid problems. The messages themselves are tested in
//! policy/src/json/tests.rs.

use super::{copperfs, refused};
use std::io::Write;
use std::process::{Command, Stdio};

/// §7.1.1 of SiloD's paper.
const PROBLEM: &str = r#"{"totals":{"gpus":8,"cache":"2TB","remote_io":"200MB/s"},
 "datasets":[{"name":"A","size":"1.3TB"},{"name":"B","size":"1.3TB"},{"name":"C","size":"1.3TB"},
             {"name":"D","size":"1.3TB"},{"name":"web","size":"20.9TB"}],
 "jobs":[{"id":"r0","dataset":"A","ideal_rate":"114MB/s","gpus":1,"work":"16.9TB"},
         {"id":"r1","dataset":"B","ideal_rate":"114MB/s","gpus":1,"work":"16.9TB"},
         {"id":"e0","dataset":"C","ideal_rate":"69MB/s","gpus":1,"work":"13TB"},
         {"id":"e1","dataset":"D","ideal_rate":"69MB/s","gpus":1,"work":"13TB"},
         {"id":"bert","dataset":"web","ideal_rate":"8MB/s","gpus":4,"work":"1.463TB"}]}"#;

struct Problem(tempfile::TempDir);

impl Problem {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("p.json"), text).unwrap();
        Self(dir)
    }

    fn planned(&self, args: &[&str]) -> String {
        let output = copperfs(self.0.path(), &[&["plan", "p.json"], args].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, args: &[&str]) -> String {
        refused(self.0.path(), &[&["plan", "p.json"], args].concat())
    }
}

#[test]
fn the_papers_example_as_json() {
    let problem = Problem::new(PROBLEM);
    for policy in ["greedy", "max-min", "sjf", "benefit", "lru", "static"] {
        let text = problem.planned(&["--policy", policy, "--json"]);
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["policy"], policy);
        let keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["policy", "datasets", "jobs", "objective"]);
        let (datasets, jobs) = (&answer["datasets"], &answer["jobs"]);
        let cache = |name: &str| datasets[name]["cache"].as_u64().unwrap();
        assert!(["A", "B", "C", "D", "web"].map(cache).iter().sum::<u64>() <= 2_000_000_000_000);
        assert!(jobs["bert"]["order"].is_u64() && jobs["bert"]["throughput"].is_number());
        if policy == "greedy" {
            assert_eq!(
                (cache("A"), cache("B")),
                (1_300_000_000_000, 700_000_000_000)
            );
            let needed = jobs["r1"]["remote_io"].as_f64().unwrap();
            assert!((needed - 52.6e6).abs() < 0.1e6, "{needed}");
        }
    }
}

#[test]
fn the_papers_example_as_a_table() {
    let text = Problem::new(PROBLEM).planned(&[]);
    assert!(
        text.starts_with("greedy: at ideal speed the cache saves 175 MB/s of remote IO\n"),
        "{text}"
    );
    assert!(
        text.contains("B        1.30 TB   700 GB   53.8 %\n"),
        "{text}"
    );
    let row = "r1    B         53.8 %  52.6 MB/s  53.0 MB/s   114 MB/s   114 MB/s  8.77e-5\n";
    assert!(text.contains(row), "{text}");
}

#[test]
fn a_problem_on_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_copperfs"))
        .args(["plan", "-", "--json"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(PROBLEM.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, Problem::new(PROBLEM).planned(&["--json"]));
}

#[test]
fn invalid_problems_are_explained() {
    let said = Problem::new(PROBLEM).refused(&["--policy", "fair"]);
    assert_eq!(
        said,
        "copperfs: --policy: \"fair\" is not a policy. The policies: greedy (the default), max-min, \
         sjf, benefit, lru, static\n"
    );
    for (from, to, wanted) in [
        (
            r#""id":"r1""#,
            r#""id":"r0""#,
            "p.json: jobs 0 and 1 have the same name, \"r0\": every job needs its own",
        ),
        (
            r#""8MB/s""#,
            r#""8""#,
            "p.json: jobs[4] (\"bert\"): ideal_rate: \"8\" has no unit: write \"114MB/s\", or 8 without \
          quotes for bytes per second",
        ),
        (
            r#""20.9TB""#,
            "-1",
            "p.json: datasets[4] (\"web\"): size: -1 is negative",
        ),
        (
            r#""web","ideal"#,
            r#""wep","ideal"#,
            "p.json: jobs[4] (\"bert\"): there is no dataset \"wep\" (did you mean \"web\"?). The \
          datasets: A, B, C, D, web",
        ),
        (
            r#""gpus":8"#,
            r#""gpus":2"#,
            "p.json: jobs[4] (\"bert\") wants 4 GPUs; the cluster has 2",
        ),
        (
            "{\"totals\"",
            "{totals",
            "p.json: the problem is not JSON: key must be a string at line 1 column 2",
        ),
    ] {
        let said = Problem::new(&PROBLEM.replacen(from, to, 1)).refused(&[]);
        assert_eq!(said, format!("copperfs: {wanted}\n"));
    }
    let said = refused(tempfile::tempdir().unwrap().path(), &["plan", "gone.json"]);
    assert_eq!(
        said,
        "copperfs: gone.json: No such file or directory (os error 2)\n"
    );
}

#[test]
fn consequences_are_noted() {
    let problem = Problem::new(&PROBLEM.replacen("\"200MB/s\"", "0", 1));
    let output = copperfs(problem.0.path(), &["plan", "p.json"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.starts_with("copperfs: note: without remote IO only jobs whose whole dataset"),
        "{said}"
    );
}
