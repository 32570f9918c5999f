use super::*;
use clap::Parser;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: PipelinesArgs,
}

fn parse(flags: &str) -> Result<PipelinesArgs, String> {
    let words = ["simulate"].into_iter().chain(flags.split_whitespace());
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    Ok(line.args)
}

fn refused(flags: &str) -> String {
    let studies = parse(flags).map(|args| args.studies());
    studies.map_or_else(
        |error| error,
        |studies| format!("{:#}", studies.unwrap_err()),
    )
}

#[test]
fn wrong_flags_are_refused_with_their_reason() {
    for (flags, wanted) in [
        ("", "WORKLOAD|FILE"),
        ("pregel --cache 5", "is not the size of a cache"),
        ("pregel --cache 0%", "is not the size of a cache"),
        ("pregel --hit-ratio 1", "is not a hit ratio"),
        ("pregel --seeds 0", "0 is not in 1..=1000"),
        ("pregel --policy arc", "\"arc\" is not a policy of eviction"),
        ("pregel --tenants 4", "\"pregel\" has none"),
        ("tenants --tenants 0", "tenants must be 1 to 100000, not 0"),
        ("page-rank", "The workloads: pagerank, pregel"),
    ] {
        let error = refused(flags);
        assert!(error.contains(wanted), "{flags}: {error}");
    }
}

#[test]
fn a_file_that_is_wrong_is_named() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text, wanted) in [
        ("a.toml", "[a]\nkind = \"sort\"", "a.toml: TOML parse error"),
        (
            "b.json",
            "{}",
            "b.json: the trace is not valid: missing field",
        ),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        let error = refused(&path.display().to_string());
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn studies_are_printed_as_text_and_drawn() {
    let flags = "tenants --tenants 2,4 --cache 100MB,1GB --policy lrc,lru --hit-ratio 0.5";
    let studies = parse(flags).unwrap().studies().unwrap();
    let text = tables::report(&studies);
    assert_eq!(text.split("\n\n").count(), 5, "{text}");
    for wanted in [
        "tenants, 4",
        "inactive: median",
        "for hit ratio",
        "all workloads",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert_eq!(figures(&studies).len(), 5);
}

#[test]
fn recorded_traces_and_files_of_workloads_are_studied() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine.json");
    let trace = r#"{"cache": 1, "blocks": {"A": 5, "B": 5}, "events": [
        {"ev": "read", "block": "A"}, {"ev": "read", "block": "B"}, {"ev": "read", "block": "A"}]}"#;
    std::fs::write(&path, trace).unwrap();
    let flags = format!("{} --cache 100%,50% --policy lru", path.display());
    let study = parse(&flags).unwrap().studies().unwrap().remove(0);
    assert_eq!(
        (study.workload.as_str(), study.inputs_bytes, study.blocks),
        ("mine", 10, 2)
    );
    let storage: Vec<f64> = study.rows.iter().map(|row| row.storage_bytes).collect();
    assert_eq!(storage, [10.0, 15.0]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("config/simulate-pipelines-tenants.toml");
    let flags = format!("{} --tenants 2 --seeds 2", file.display());
    let pipelines = parse(&flags).unwrap().pipelines().unwrap();
    assert_eq!((pipelines.len(), pipelines[0].len()), (1, 2));
}
