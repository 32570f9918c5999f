use super::*;
use crate::model::{ChunkOptions, ErrorKind, OriginReaders, Serial};
use crate::testing::path;
use copperfs_policy::Mode;
use std::time::Duration;

fn dataset(name: &str, at: &str) -> DatasetSpec {
    DatasetSpec::new(name, path(at))
}

fn job(name: &str, dataset: &str) -> JobSpec {
    JobSpec {
        name: name.into(),
        dataset: dataset.into(),
        ideal_rate: Some(100_000_000),
        gpus: 1,
        epochs: None,
        owner: None,
    }
}

const LIMITS: Limits = Limits {
    cache: Some(1000),
    remote_io: Some(200),
    gpus: Some(4),
    pipelines_percent: 20,
};

/// Two datasets, each with a job.
fn registry() -> Registry {
    let mut registry = Registry::default();
    for (name, at) in [("a", "/d/a"), ("b", "/d/b")] {
        registry.add_dataset(dataset(name, at), &LIMITS).unwrap();
        let reader = job(&format!("j{name}"), name);
        registry.add_job(reader, &LIMITS).unwrap();
    }
    registry
}

/// Applies `command`, which must be refused without a change. Returns the kind and the text.
fn refused(command: &Command) -> (ErrorKind, String) {
    let mut registry = registry();
    let before = registry.clone();
    let error = registry.apply(command, &LIMITS).unwrap_err();
    assert_eq!(registry, before);
    (error.kind, error.to_string())
}

fn with_budget(budget: u64) -> Command {
    Command::AddDataset(DatasetSpec {
        budget: Some(budget),
        ..dataset("c", "/d/c")
    })
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn invalid_commands_are_refused_with_a_reason_and_advice() {
    use ErrorKind::{Conflict, Invalid, NotFound};
    let cases = [
        (
            Command::AddDataset(dataset("a", "/e")),
            Conflict,
            "there is a dataset \"a\" already, at /d/a. Choose another name",
        ),
        (
            Command::AddDataset(dataset("c", "/d/a/deep")),
            Conflict,
            "overlaps \"a\" at /d/a",
        ),
        (
            Command::AddDataset(dataset("c", "/d")),
            Conflict,
            "copperfs dataset rm a",
        ),
        (
            Command::AddDataset(dataset("-c", "/e")),
            Invalid,
            "cannot be the name",
        ),
        (
            Command::AddDataset(dataset("c d", "/e")),
            Invalid,
            "letters, digits",
        ),
        (
            Command::AddDataset(dataset("", "/e")),
            Invalid,
            "cannot be the name",
        ),
        (with_budget(0), Invalid, "a budget of zero"),
        (
            with_budget(1001),
            Conflict,
            "the nodes that live have 1000 B",
        ),
        (
            Command::AddJob(job("ja", "b")),
            Conflict,
            "copperfs job end ja",
        ),
        (
            Command::AddJob(job("jc", "c")),
            Invalid,
            "job \"jc\" is on no dataset",
        ),
        (
            Command::AddJob(job(UNATTRIBUTED, "a")),
            Invalid,
            "belong to no job",
        ),
        (
            Command::AddJob(JobSpec {
                ideal_rate: Some(0),
                ..job("jc", "a")
            }),
            Invalid,
            "ideal rate of zero",
        ),
        (
            Command::AddJob(JobSpec {
                epochs: Some(0),
                ..job("jc", "a")
            }),
            Invalid,
            "zero epochs",
        ),
        (
            Command::AddJob(JobSpec {
                gpus: 3,
                ..job("jc", "a")
            }),
            Conflict,
            "wants 3 GPUs; the cluster has 4, of which 2 are taken",
        ),
        (
            Command::RemoveDataset("a".into()),
            Conflict,
            "job \"ja\" reads dataset \"a\"",
        ),
        (
            Command::RemoveDataset("quux".into()),
            NotFound,
            "There are: a, b",
        ),
        (Command::EndJob("jaa".into()), NotFound, "Did you mean ja?"),
        (
            Command::AllocateCacheSize {
                dataset: "a".into(),
                size: Some(1001),
            },
            Conflict,
            "more than there is",
        ),
        (
            Command::AllocateRemoteIo {
                job: "ja".into(),
                rate: Some(201),
            },
            Conflict,
            "remote_io is 200 B/s",
        ),
        (
            Command::AllocateRemoteIo {
                job: "ja".into(),
                rate: Some(0),
            },
            Invalid,
            "would stop job",
        ),
        (
            Command::SetPolicy("gredy".into()),
            Invalid,
            "Did you mean greedy?",
        ),
    ];
    for (command, kind, hint) in cases {
        let (found, text) = refused(&command);
        assert!(
            found == kind && text.contains(hint),
            "{command:?}: {found:?} {text}"
        );
    }
}

#[test]
fn manual_settings_are_checked_together() {
    let mut registry = registry();
    let cache = |dataset: &str, size| Command::AllocateCacheSize {
        dataset: dataset.into(),
        size,
    };
    registry.apply(&cache("a", Some(600)), &LIMITS).unwrap();
    assert!(registry.apply(&cache("b", Some(401)), &LIMITS).is_err());
    registry.apply(&cache("b", Some(400)), &LIMITS).unwrap();
    // A budget that is set again does not count twice.
    registry.apply(&cache("a", Some(500)), &LIMITS).unwrap();
    registry.apply(&cache("a", None), &LIMITS).unwrap();
    assert_eq!(registry.dataset("a").unwrap().pinned, None);
    let io = |job: &str, rate| Command::AllocateRemoteIo {
        job: job.into(),
        rate,
    };
    registry.apply(&io("ja", Some(150)), &LIMITS).unwrap();
    assert!(registry.apply(&io("jb", Some(51)), &LIMITS).is_err());
    registry.apply(&io("jb", Some(50)), &LIMITS).unwrap();
    let resources = |rate| {
        Command::SetResources(Resources {
            remote_io: rate,
            gpus: None,
            pipelines_percent: 20,
        })
    };
    let refused = registry.apply(&resources(Some(199)), &LIMITS).unwrap_err();
    assert_eq!(refused.kind, Conflict, "{refused}");
    registry.apply(&resources(Some(200)), &LIMITS).unwrap();
    registry.apply(&resources(None), &LIMITS).unwrap();
}

#[test]
fn a_rule_that_keeps_nothing_goes_with_no_budget() {
    let (mut registry, limits) = (registry(), Limits::default());
    let keep = |keep| Command::SetKeep {
        dataset: "a".into(),
        keep,
    };
    let budget = Command::AllocateCacheSize {
        dataset: "a".into(),
        size: Some(1 << 30),
    };
    registry.apply(&keep(Keep::None), &limits).unwrap();
    assert_eq!(registry.dataset("a").unwrap().keep, Keep::None);
    let error = registry.apply(&budget, &limits).unwrap_err();
    assert_eq!(error.kind, Conflict, "{error}");
    assert!(
        error
            .advice
            .contains("copperfs dataset set a --keep uniform")
    );
    registry.apply(&keep(Keep::Uniform), &limits).unwrap();
    registry.apply(&budget, &limits).unwrap();
    let error = registry.apply(&keep(Keep::None), &limits).unwrap_err();
    assert!(error.message.contains("1.00 GiB has no use"), "{error}");
    assert_eq!(registry.dataset("a").unwrap().keep, Keep::Uniform);
    let unknown = Command::SetKeep {
        dataset: "aa".into(),
        keep: Keep::None,
    };
    assert_eq!(
        registry.apply(&unknown, &limits).unwrap_err().kind,
        NotFound
    );
}

#[test]
fn an_observed_job_may_be_declared_and_is_removed_when_it_is_no_longer_observed() {
    let mut registry = registry();
    registry.observe_job("slurm:7", "a", false);
    registry.observe_job("slurm:7", "b", true);
    let observed = registry.job("slurm:7").unwrap();
    assert_eq!(observed.dataset.as_deref(), Some("b"));
    assert!(observed.irregular && !observed.declared);
    registry.observe_job("slurm:8", "a", false);
    // An undeclared dataset, no name, and no job: ignored.
    registry.observe_job("slurm:9", "x", false);
    registry.observe_job("", "a", false);
    registry.observe_job(UNATTRIBUTED, "a", false);
    assert_eq!(registry.jobs().len(), 4);
    registry.add_job(job("slurm:7", "a"), &LIMITS).unwrap();
    assert!(registry.job("slurm:7").unwrap().irregular);
    // The dataset of a declared job stands.
    registry.observe_job("slurm:7", "b", true);
    assert_eq!(
        registry.job("slurm:7").unwrap().dataset.as_deref(),
        Some("a")
    );
    registry.retain_observed(|_| false);
    let names: Vec<&str> = registry
        .jobs()
        .iter()
        .map(|job| job.name.as_str())
        .collect();
    assert_eq!(names, ["ja", "jb", "slurm:7"]);
}

#[test]
fn observed_readers_of_a_removed_dataset_have_none() {
    let mut registry = registry();
    registry.observe_job("slurm:7", "a", false);
    registry.end_job("ja").unwrap();
    registry.remove_dataset("a").unwrap();
    assert_eq!(registry.job("slurm:7").unwrap().dataset, None);
    registry
        .add_dataset(dataset("a2", "/d/a"), &LIMITS)
        .unwrap();
}

#[test]
fn an_empty_dataset_is_in_trouble_until_it_has_bytes() {
    let mut registry = registry();
    let id = registry.dataset("a").unwrap().id;
    let counted = |bytes, items| Counted {
        bytes,
        items,
        ..Counted::default()
    };
    registry.counted(id, &counted(0, 0));
    let trouble = registry.dataset("a").unwrap().trouble.clone();
    assert_eq!(trouble, Some(DatasetTrouble::Empty));
    registry.counted(id, &counted(10, 2));
    assert_eq!(registry.dataset("a").unwrap().trouble, None);
    // A later failure keeps the known size.
    assert!(registry.count_failed(id, "storage is gone".into()));
    assert!(
        !registry.count_failed(id, "storage is gone".into()),
        "no news"
    );
    assert_eq!(registry.dataset("a").unwrap().size, 10);
    assert!(!registry.count_failed(1, "not declared".into()));
}

#[test]
fn a_registry_is_restored_from_a_decision() {
    let decision = Decision {
        serial: Serial { term: 3, count: 9 },
        policy: "max-min".into(),
        datasets: vec![DatasetDecision {
            name: "a".into(),
            id: 7,
            path: path("/d/a"),
            uri: Some("s3://b/a".into()),
            size: 100,
            items: 10,
            index: Some("/x".into()),
            manifest: Some(path("/d/a.manifest")),
            identity: Some([1; 32]),
            entries: 100,
            origin_readers: OriginReaders::Homes,
            keep: Keep::Uniform,
            chunk_options: ChunkOptions {
                size: 10,
                evict_after: Duration::from_secs(5),
            },
            is_private: false,
            resident: None,
            pinned: Some(50),
            budget: 50,
            homed: vec![100],
            owners: vec![2],
            trouble: None,
        }],
        jobs: ["ja", UNATTRIBUTED]
            .map(|name| JobDecision {
                name: name.into(),
                dataset: Some("a".into()),
                declared: name == "ja",
                owner: Some(1000),
                ideal_rate: Some(5),
                gpus: 2,
                epochs: Some(3),
                irregular: false,
                mode: Mode::Cached,
                measured: None,
                pinned: Some(4),
                remote_io: Some(4),
                nodes: Vec::new(),
            })
            .into(),
        ..Decision::default()
    };
    let registry = Registry::of(&decision);
    assert_eq!(registry.policy(), "max-min");
    assert_eq!(registry.dataset("a").unwrap().pinned, Some(50));
    assert_eq!(registry.dataset("a").unwrap().size, 100);
    assert_eq!(registry.jobs().len(), 1);
    assert_eq!(registry.job("ja").unwrap().pinned, Some(4));
}
