use super::*;
use crate::config::keys::{KEYS, Key};
use crate::config::settings::NodeIdentity;
use crate::config::topology::TopologyError;
use crate::config::{FileLocation, FrontChoice};
use crate::config::{file, gather};
use copperfs_policy::Keep;
use std::error::Error as _;
use std::os::unix::fs::PermissionsExt;

fn machine() -> Machine {
    Machine {
        uid: rustix::process::geteuid().as_raw(),
        host_names: vec!["nid002".into(), "10.1.2.3".into()],
        addresses: vec![
            ("lo".into(), "127.0.0.1".parse().unwrap()),
            ("hsn0".into(), "fe80::1".parse().unwrap()),
            ("hsn0".into(), "10.1.2.3".parse().unwrap()),
        ],
        memory_bytes: 64 << 30,
        processors: 2,
        variables: BTreeMap::new(),
        working_dir: "/home/user".into(),
        runtime_bases: Vec::new(),
    }
}

fn flags(given: &[(&'static str, &str)]) -> Layer {
    let mut layer = Layer::default();
    layer.set("origin", Source::Flag, vec!["/lus=file:///lus".into()]);
    for (key, value) in given {
        layer.set(key, Source::Flag, vec![(*value).to_owned()]);
    }
    layer
}

fn settings(given: &[(&'static str, &str)]) -> Result<Settings, String> {
    resolve(&flags(given), &machine()).map_err(|e| e.to_string())
}

#[test]
fn threads_follow_the_processors() {
    let threads = |processors, given: &[(&'static str, &str)]| {
        let machine = Machine {
            processors,
            ..machine()
        };
        let settings = resolve(&flags(given), &machine).unwrap();
        (settings.threads.fuse, settings.threads.workers)
    };
    let lanes = |processors, given: &[(&'static str, &str)]| {
        let machine = Machine {
            processors,
            ..machine()
        };
        resolve(&flags(given), &machine).unwrap().threads.lanes
    };
    for (processors, count) in [(0, 0), (2, 0), (15, 0), (16, 2), (23, 2), (64, 8), (512, 8)] {
        assert_eq!(lanes(processors, &[]), count, "{processors}");
    }
    assert_eq!(lanes(128, &[("cpus", "0-15")]), 2, "the daemon's own");
    assert_eq!(lanes(128, &[("lanes", "1")]), 0);
    assert_eq!(lanes(2, &[("lanes", "16")]), 16);
    assert!(refused(&[("lanes", "17")]).contains("at most 16"));
    assert!(refused(&[("lanes", "0")]).contains("at least 1"));
    assert_eq!(threads(0, &[]), (2, 1), "unknown");
    assert_eq!(threads(7, &[]), (2, 1));
    assert_eq!(threads(8, &[]), (4, 2));
    assert_eq!(threads(128, &[]), (4, 2));
    assert_eq!(threads(128, &[("cpus", "0-3")]), (2, 1), "the daemon's own");
    assert_eq!(threads(2, &[("fuse_threads", "8")]), (8, 1));
    assert_eq!(threads(128, &[("worker_threads", "1")]), (4, 1));
    assert_eq!(threads(128, &[("fuse_threads", "auto")]), (4, 2));
    assert!(refused(&[("worker_threads", "0")]).contains("at least 1"));
}

fn refused(given: &[(&'static str, &str)]) -> String {
    settings(given).err().unwrap()
}

#[test]
fn the_defaults() {
    let settings = settings(&[]).unwrap();
    assert_eq!(settings.mountpoint, Path::new("/copper_mnt"));
    assert_eq!(settings.members.len(), 1);
    assert_eq!(
        (settings.identity, settings.listen),
        (NodeIdentity::Member(0), None)
    );
    assert_eq!(settings.cache.memory_bytes, (64 << 30) / 20);
    assert_eq!(
        settings.cache.memory_bytes,
        settings.cache.data_bytes
            + settings.cache.attributes_bytes
            + settings.cache.listings_bytes
            + settings.cache.inodes_bytes
    );
    assert_eq!(settings.whole_file_max, 64 << 20);
    assert_eq!(settings.bypass_above, None);
    assert!(settings.max_background >= 1024);
    assert_eq!(settings.log.file, Some(settings.runtime_dir.join("log")));
    assert_eq!(settings.exclude, None);
}

#[test]
fn the_data_mount_is_a_directory_of_its_own() {
    let at = |path| settings(&[("mountpoint", "/m/mnt"), ("data_mount", path)]);
    let settings = at("/m/data").unwrap();
    assert_eq!(settings.data_mount.as_deref(), Some(Path::new("/m/data")));
    assert!(settings.page_cache);
    for path in ["/m/mnt", "/m/mnt/data", "/m", "/"] {
        let error = at(path).err().unwrap().to_string();
        assert!(error.contains("neither within the other"), "{error}");
    }
    let error = refused(&[("data_mount", "data")]);
    assert!(error.contains("not an absolute path"), "{error}");
}

#[test]
fn flags_go_before_variables_and_variables_before_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("job.toml");
    std::fs::write(
        &config,
        "arity = 2\nfuse_threads = 5\nworker_threads = 6\nsecret_file = \"secret\"\n\
         origin = [\"/a=file:///a\"]\n",
    )
    .unwrap();
    let mut machine = machine();
    machine
        .variables
        .insert("COPPERFS_ARITY".into(), "3".into());
    machine
        .variables
        .insert("COPPERFS_FUSE_THREADS".into(), "7".into());
    machine
        .variables
        .insert("COPPERFS_HOME".into(), "/opt/copperfs".into());
    machine
        .variables
        .insert("COPPERFS_CONFIG".into(), config.display().to_string());
    machine.variables.insert("AWS_REGION".into(), "x".into());
    let mut given = Layer::default();
    given.set("arity", Source::Flag, vec!["4".into()]);
    let layer = gather(given, None, &machine).unwrap();
    assert_eq!(layer.text("arity"), Some("4"));
    assert_eq!(layer.text("fuse_threads"), Some("7"));
    assert_eq!(layer.text("worker_threads"), Some("6"));
    let secret = dir.path().join("secret").display().to_string();
    assert_eq!(layer.text("secret_file"), Some(secret.as_str()));
    let mut bad = layer.clone();
    bad.remove("secret_file");
    bad.set(
        "memory",
        layer.location("fuse_threads").source,
        vec!["10 bananas".into()],
    );
    let error = resolve(&bad, &machine).err().unwrap().to_string();
    assert!(
        error.starts_with("COPPERFS_MEMORY: \"10 bananas\""),
        "{error}"
    );
    bad.set("memory", Source::Default, vec!["1GiB".into()]);
    let settings = resolve(&bad, &machine).unwrap();
    assert_eq!(settings.arity, 4);
    assert_eq!(settings.environment.len(), 1);
}

#[test]
fn values_in_a_file_name_their_line() {
    let layer = file::parse("\n\narity = 0\n", Path::new("/etc/job.toml")).unwrap();
    let error = resolve(&flags(&[]).over(layer), &machine())
        .err()
        .unwrap()
        .to_string();
    assert_eq!(error, "/etc/job.toml:3: arity: 0 is too small; at least 1");
}

#[test]
fn errors_of_wrong_values_show_valid_ones() {
    for (key, value, hint) in [
        (
            "memory",
            "10 bananas",
            "--memory: \"10 bananas\" is not a size",
        ),
        ("memory", "1MiB", "at least 16.0 MiB"),
        ("memory", "65GiB", "more than the 64.0 GiB"),
        ("open", "zero-mesage", "did you mean zero-message?"),
        ("arity", "many", "not a whole number"),
        ("listen", "somewhere", "0.0.0.0:7470"),
        ("request_timeout", "0s", "30s"),
        ("cpus", "a", "0,2-3,8"),
        ("log_level", "a=b=c", "is not a filter"),
        ("origin", "s4://x", "did you mean s3://?"),
        ("exclude", "tmp", "not an absolute path"),
        ("max_background", "70000", "too large"),
    ] {
        let error = refused(&[(key, value)]);
        assert!(error.contains(hint), "{key}: {error}");
    }
}

/// The values of a choice are listed in the order of its words.
#[test]
fn each_word_stands_for_the_value_of_its_name() {
    // See `each_rack_is_an_instance_of_its_own`: racks need a topology; and `images_need_an_index`.
    let elsewhere = ["instance_per", "front"];
    let is_here = |key: &&Key| !key.choices.is_empty() && !elsewhere.contains(&key.name);
    for key in KEYS.iter().filter(is_here) {
        for &word in key.choices {
            let settings = settings(&[(key.name, word)]).unwrap();
            let found = match key.name {
                "symlinks" => format!("{:?}", settings.symlinks),
                "orphan" => format!("{:?}", settings.orphan),
                "eviction" => format!("{:?}", settings.cache.policy),
                "open" => format!("{:?}", settings.open),
                "readdir_plus" => format!("{:?}", settings.readdir_plus),
                "policy" => settings.allocation_policy.replace('-', ""),
                "posix_acl" => continue,
                other => panic!("{other} is not checked"),
            };
            assert_eq!(found.to_lowercase(), word.replace('-', ""), "{}", key.name);
        }
    }
    for (other_users, word, enforced) in [
        ("true", "auto", true),
        ("false", "auto", false),
        ("false", "on", true),
        ("true", "off", false),
    ] {
        let given = [("allow_other", other_users), ("posix_acl", word)];
        assert_eq!(settings(&given).unwrap().posix_acl, enforced, "{word}");
    }
}

#[test]
fn images_need_an_index() {
    let origin = ("origin", "/lus=file:///lus");
    let index = ("index", "/lus=file:///var/index");
    for (word, front) in [
        ("fuse", FrontChoice::Fuse),
        ("auto", FrontChoice::Auto),
        ("erofs", FrontChoice::EroFs),
    ] {
        let found = settings(&[origin, index, ("front", word)]).unwrap();
        assert_eq!(found.images.front, front);
        assert_eq!(
            found.images.directories,
            found
                .indexes
                .iter()
                .map(|it| it.prefix.clone())
                .collect::<Vec<_>>()
        );
    }
    let found = settings(&[origin, ("front", "auto")]).unwrap();
    assert_eq!(found.images.directories, [ItemPath::root()]);
    assert!(refused(&[origin, ("front", "erofs")]).contains("--index"));
    let erofs = [origin, index, ("front", "erofs")];
    let changing = [&erofs[..], &[("freshness", "ttl=5s")]].concat();
    assert!(refused(&changing).contains("--front"));
    for (native, hint) in [
        ("lus", "no path of the namespace"),
        ("/other", "has no index"),
    ] {
        let error = refused(&[&erofs[..], &[("native", native)]].concat());
        assert!(error.contains(hint), "{error}");
    }
    let found = settings(&[&erofs[..], &[("native", "/lus/sw/")]].concat()).unwrap();
    assert_eq!(found.images.directories[0].as_bytes(), b"lus/sw");
    assert_eq!(found.images.profile, None);
    for (text, shown) in [
        ("/lus/sw/start.profile", "/lus/sw/start.profile"),
        ("file:///lus/start.profile", "/lus/start.profile"),
        ("/home/me/start.profile", "/home/me/start.profile"),
    ] {
        let found = settings(&[&erofs[..], &[("native_profile", text)]].concat()).unwrap();
        let profile = found.images.profile.unwrap();
        assert_eq!(profile.to_string(), shown);
        let is_in_tree = matches!(profile, FileLocation::Tree(_));
        assert_eq!(is_in_tree, text.starts_with("/lus"), "{text}");
    }
    let wrong = refused(&[&erofs[..], &[("native_profile", "s3://other/profile")]].concat());
    assert!(wrong.contains("s3://other/profile"), "{wrong}");
}

#[test]
fn options_of_an_image_ask_for_one() {
    let common = [("origin", "/lus=file:///lus"), ("index", "/lus=file:///i")];
    for option in [("native", "/lus/sw"), ("native_profile", "/lus/start")] {
        let given = [&common[..], &[option]].concat();
        let front = |given: &[_]| settings(given).unwrap().images.front;
        assert_eq!(front(&given), FrontChoice::Auto, "{option:?}");
        let given = [&given[..], &[("front", "fuse")]].concat();
        assert_eq!(front(&given), FrontChoice::Fuse, "{option:?}");
    }
}

#[test]
fn origins_by_user() {
    let mut machine = machine();
    machine.uid = 1000;
    let settings = resolve(&Layer::default(), &machine).unwrap();
    assert_eq!(settings.origins[0].uri, "file:///");
    assert!(settings.runtime_dir.starts_with("/tmp/copperfs-1000"));
    machine.uid = 0;
    let error = resolve(&Layer::default(), &machine)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("--origin /lus=file:///lus"), "{error}");
    let mut twice = Layer::default();
    let both = vec!["/a=/x".into(), "/a/=/y".into()];
    twice.set("origin", Source::Flag, both);
    let error = resolve(&twice, &machine).err().unwrap().to_string();
    assert!(error.contains("two origins for /a"), "{error}");
}

#[test]
fn a_tree_needs_a_secret_that_only_its_owner_reads() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    let path = secret.display().to_string();
    let hosts = ("hosts", "nid001,nid002:9000,nid003");
    assert!(refused(&[hosts]).contains("--secret-file"));
    let with = |more: &[(&'static str, &str)]| {
        settings(&[&[hosts, ("secret_file", &path)], more].concat())
    };
    assert!(with(&[]).err().unwrap().contains("no such file"));
    std::fs::write(&secret, "s").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = with(&[]).err().unwrap();
    assert!(
        error.contains("mode 0640") && error.contains("chmod 600"),
        "{error}"
    );
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let settings = with(&[]).unwrap();
    assert_eq!(settings.identity, NodeIdentity::Member(1));
    assert_eq!((settings.members.len(), settings.roots), (3, vec![0]));
    assert_eq!(settings.listen, Some("0.0.0.0:9000".parse().unwrap()));
    let by_name = with(&[("interface", "hsn0")]).unwrap();
    assert_eq!(by_name.listen, Some("10.1.2.3:9000".parse().unwrap()));
    let by_network = with(&[("interface", "10.1.0.0/16"), ("listen", ":99")]).unwrap();
    let holds = |address: &str| {
        let network = by_network.network.unwrap();
        network.holds(address.parse().unwrap())
    };
    assert!(holds("10.1.255.1") && !holds("10.2.0.1") && !holds("fe80::1"));
    assert_eq!(by_network.listen, Some("10.1.2.3:99".parse().unwrap()));
    assert!(
        with(&[("interface", "ib7")])
            .err()
            .unwrap()
            .contains("hsn0 10.1.2.3")
    );
    assert!(
        with(&[("interface", "10.1/16")])
            .err()
            .unwrap()
            .contains("10.12.0.0/16")
    );
    let both = with(&[("interface", "hsn0"), ("listen", "127.0.0.1")]);
    assert!(both.err().unwrap().contains("one of the two"));
    assert!(
        with(&[("rank", "3")])
            .err()
            .unwrap()
            .contains("ranks 0 to 2")
    );
    std::fs::write(&secret, "").unwrap();
    assert!(with(&[]).err().unwrap().contains("is empty"));
}

#[test]
fn one_host_is_a_single_node() {
    let settings = settings(&[("hosts", "nid002,")]).unwrap();
    assert_eq!((settings.members.len(), settings.listen), (1, None));
    let error = refused(&[("hosts", "nid001,")]);
    assert!(error.contains("this host (nid002, 10.1.2.3) is not in the host list: nid001"));
    assert!(refused(&[("hosts", "a,b,a")]).contains("names a more than once"));
    assert!(refused(&[("hosts", "/no/such/hosts")]).contains("cannot read the host list"));
}

#[test]
fn a_scheduler_says_the_hosts() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&secret, "0123").unwrap();
    let path = secret.path().display().to_string();
    let with = |host: &str, variables: &[(&str, &str)], more: &[(&'static str, &str)]| {
        let mut machine = machine();
        machine.host_names = vec![host.into()];
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        machine.variables = variables.iter().map(owned).collect();
        let common = [("hosts", "slurm"), ("secret_file", path.as_str())];
        resolve(&flags(&[&common, more].concat()), &machine).map_err(|e| e.to_string())
    };
    let list = ("SLURM_JOB_NODELIST", "nid[001-003]");
    let settings = with("nid002", &[list], &[]).unwrap();
    assert_eq!((settings.members.len(), settings.rank()), (3, Some(1)));
    assert_eq!(settings.members[1].address, "nid002:7470");

    // The name of the fast network, the host's own or Slurm's; a variable that an MPI launcher has
    // carried from another node does not count against the host's name.
    let suffix = ("host_suffix", "-hsn0");
    let settings = with("nid003", &[list], &[suffix]).unwrap();
    assert_eq!(
        (settings.rank(), settings.members[2].name.as_str()),
        (Some(2), "nid003")
    );
    assert_eq!(settings.members[0].address, "nid001-hsn0:7470");
    assert_eq!(
        with("nid003-hsn0", &[list], &[suffix]).unwrap().rank(),
        Some(2)
    );
    let node = ("SLURMD_NODENAME", "nid001");
    assert_eq!(
        with("container7", &[list, node], &[]).unwrap().rank(),
        Some(0)
    );
    assert_eq!(with("nid002", &[list, node], &[]).unwrap().rank(), Some(1));
    assert!(
        with("container7", &[list], &[])
            .err()
            .unwrap()
            .contains("--rank N")
    );
    assert!(
        with("nid002", &[], &[])
            .err()
            .unwrap()
            .contains("--hosts: slurm: neither")
    );
    let error = with("nid002", &[list], &[("host_suffix", "a b")])
        .err()
        .unwrap();
    assert!(error.contains("--host-suffix: a suffix is"), "{error}");
}

#[test]
fn a_topology_orders_the_nodes_and_moves_the_rank_along() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&secret, "0123").unwrap();
    let path = secret.path().display().to_string();
    let topology = "a nid00[1-2]\nb nid003,nid005\nc nid004,nid006\n";
    let with = |rank: &str| {
        settings(&[
            ("hosts", "nid[001-006]"),
            ("rank", rank),
            ("arity", "2"),
            ("topology", topology),
            ("secret_file", &path),
        ])
        .unwrap()
    };
    let all: Vec<Settings> = ["0", "1", "2", "3", "4", "5"].map(with).into();
    let names = |settings: &Settings| -> Vec<String> {
        settings.members.iter().map(|m| m.name.clone()).collect()
    };
    let mut ranks: Vec<usize> = all.iter().filter_map(Settings::rank).collect();
    for (given, settings) in all.iter().enumerate() {
        assert_eq!(
            names(settings),
            names(&all[0]),
            "the same order on all nodes"
        );
        assert_eq!(
            settings.members[settings.rank().unwrap()].name,
            format!("nid00{}", given + 1)
        );
    }
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2, 3, 4, 5]);
    assert_eq!(all[0].rank(), Some(0), "the first host stays the root");
    let crossings = all[0].crossings.unwrap();
    assert!(crossings.used < crossings.given, "{crossings:?}");
    let error = refused(&[("hosts", "nid002,"), ("topology", "/no/such/topology.conf")]);
    assert!(error.contains("cannot read the topology file"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "r1\n").unwrap();
    let path = file.path().display().to_string();
    let layer = flags(&[("hosts", "nid002,"), ("topology", &path)]);
    let error = resolve(&layer, &machine()).err().unwrap();
    let found = error.to_string();
    assert!(
        found.contains(&format!("--topology: {path}: line 1: ")),
        "{found}"
    );
    let source = error.source().and_then(|part| part.source()).unwrap();
    assert!(source.is::<TopologyError>(), "{source:?}");
}

#[test]
fn each_rack_is_an_instance_of_its_own() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&secret, "0123").unwrap();
    let path = secret.path().display().to_string();
    let layer = |more: &[(&'static str, &str)]| {
        let mut all = vec![
            ("hosts", "nid[001-005]"),
            ("instance_per", "rack"),
            (
                "topology",
                "a nid001,nid004\nb nid[002-003]\nc nid005,nid009\n",
            ),
            ("secret_file", path.as_str()),
        ];
        all.extend(more);
        settings(&all)
    };
    let racks = |settings: Settings| {
        let names: Vec<String> = settings.members.iter().map(|m| m.name.clone()).collect();
        (settings.rack.unwrap(), names.join(","), settings.identity)
    };
    let expected = [
        ("a", "nid001,nid004", 0),
        ("b", "nid002,nid003", 0),
        ("b", "nid002,nid003", 1),
        ("a", "nid001,nid004", 1),
        ("c", "nid005", 0),
    ];
    for (given, (rack, members, rank)) in expected.into_iter().enumerate() {
        let settings = layer(&[("rank", &given.to_string())]).unwrap();
        assert_eq!(settings.crossings, None);
        assert_eq!(settings.roots, [0]);
        let identity = NodeIdentity::Member(rank);
        assert_eq!(
            racks(settings),
            (rack.to_owned(), members.to_owned(), identity)
        );
    }
    // Names of other racks are roots there.
    let settings = layer(&[("rank", "0"), ("roots", "nid004,nid003,nid005")]).unwrap();
    assert_eq!(settings.roots, [1]);
    for (more, part) in [
        (
            &[("roots", "nid003")][..],
            "it names no node of this node's rack",
        ),
        (&[("roots", "2"), ("rank", "4")], "2 roots among 1 nodes"),
        (&[("hosts", "nid[001-006]")], "nid006 is in no line of it"),
        (&[("topology", "")], "rack needs a topology"),
        (&[("instance_per", "row")], "row"),
    ] {
        let error = layer(&[&[("rank", "0")], more].concat()).err().unwrap();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_runtime_directory_has_room_for_a_socket() {
    let dir = format!("/{}", "x".repeat(93));
    assert!(settings(&[("runtime_dir", &dir)]).is_ok());
    let error = refused(&[("runtime_dir", &format!("{dir}x"))]);
    assert!(error.contains("at most 94 bytes"), "{error}");
}

#[test]
fn instance_names_differ_by_path_and_host() {
    let name = |path: &str, host: &str| instance_name(Path::new(path), host);
    assert_ne!(name("/a/mnt", "h1"), name("/b/mnt", "h1"));
    assert_ne!(name("/a/mnt", "h1"), name("/a/mnt", "h2"));
    assert!(name("/copper_mnt", "h1").starts_with("copper_mnt-"));
    assert!(name(&format!("/{}", "x".repeat(255)), "h1").len() < 50);
}

#[test]
fn secrets_are_not_shown() {
    let text = "[[origin]]\nuri = \"s3://b\"\n[origin.options]\naws_secret_access_key = \"hush\"\n";
    let layer = file::parse(text, Path::new("/x.toml")).unwrap();
    assert!(!format!("{layer:?}").contains("hush"));
}

#[test]
fn example_configurations_are_valid() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        // What the simulator reads is not a mount's.
        if entry.file_name().to_string_lossy().starts_with("simulate") {
            continue;
        }
        let mut layer = file::read(&entry.path()).unwrap();
        // What only exists on the machine that the example is for.
        layer.remove("hosts");
        layer.remove("secret_file");
        layer.remove("interface");
        layer.remove("listen");
        resolve(&layer.clone().over(flags(&[])), &machine()).unwrap();
        // Datasets lie in origins of their own.
        layer.remove("dataset");
        resolve(&flags(&[]).over(layer), &machine()).unwrap();
        count += 1;
    }
    assert!(count >= 4, "{count} examples");
}

#[test]
fn the_example_with_datasets_declares_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/datasets.toml");
    let mut layer = file::read(&path).unwrap();
    layer.remove("hosts");
    layer.remove("secret_file");
    let settings = resolve(&layer, &machine()).unwrap();
    assert_eq!(settings.remote_io, Some(200_000_000));
    assert_eq!(settings.allocation_policy, "greedy");
    assert_eq!(
        (settings.gpus, settings.shared_reserve_percent),
        (Some(16), 20)
    );
    assert_eq!(settings.api_listen, None);
    let [first, second] = &settings.datasets[..] else {
        panic!("{:?}", settings.datasets);
    };
    assert_eq!(first.path.to_string(), "/lus/imagenet-1k");
    assert_eq!(first.index.as_deref(), Some("/lus/imagenet-1k/.index"));
    assert_eq!(second.path.to_string(), "/data/web-search");
    assert_eq!(second.budget, Some(500_000_000_000));
    assert_eq!(second.origin_readers, crate::model::OriginReaders::Homes);
}

#[test]
fn the_example_with_pipelines_keeps_datasets_by_references() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/pipelines.toml");
    let mut layer = file::read(&path).unwrap();
    for key in ["hosts", "secret_file", "data_mount"] {
        layer.remove(key);
    }
    let settings = resolve(&layer, &machine()).unwrap();
    assert_eq!(
        (settings.pipelines_percent, settings.max_refs_per_tenant),
        (30, 5_000_000)
    );
    let datasets = settings.datasets.iter();
    let kept: Vec<(Keep, Option<u64>)> = datasets.map(|one| (one.keep, one.budget)).collect();
    let by_hand = Some(200_000_000_000);
    let due = [
        (Keep::References, None),
        (Keep::References, by_hand),
        (Keep::Auto, None),
    ];
    assert_eq!(kept, due);
    let defaults = self::settings(&[]).unwrap();
    assert_eq!(
        (defaults.pipelines_percent, defaults.max_refs_per_tenant),
        (20, 2_000_000)
    );
}

#[test]
fn errors_of_datasets_and_budgets_name_the_flag() {
    let defaults = settings(&[]).unwrap();
    assert_eq!(defaults.remote_io, None);
    assert_eq!((defaults.gpus, defaults.shared_reserve_percent), (None, 20));
    for (key, value, hint) in [
        ("remote_io", "200", "it does not say per second"),
        ("remote_io", "-1MB/s", "no number in front"),
        ("remote_io", "0MB/s", "nothing comes through"),
        ("policy", "gredy", "Did you mean greedy?"),
        ("gpus", "0", "too small"),
        ("shared_reserve", "0%", "1% to 99%"),
        ("shared_reserve", "1GiB", "1% to 99%"),
        ("pipelines_share", "101%", "0% to 100%"),
        ("max_refs_per_tenant", "0", "too small"),
        ("api_listen", "7480", "ADDR:PORT"),
        ("dataset", "a=/nowhere", "no origin serves /nowhere"),
        ("dataset", "/lus/a", "no name in front"),
    ] {
        let error = refused(&[(key, value)]);
        let flag = format!("--{}: ", key.replace('_', "-"));
        assert!(error.starts_with(&flag) && error.contains(hint), "{error}");
    }
    let settings = settings(&[("dataset", "a=/copper_mnt/lus/a"), ("shared_reserve", "35")]);
    let settings = settings.unwrap();
    assert_eq!(settings.datasets[0].path.to_string(), "/lus/a");
    assert_eq!(settings.shared_reserve_percent, 35);
}

#[test]
fn the_full_example_equals_the_table_of_keys() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/full.toml");
    let wanted = crate::config::documented_defaults();
    if std::env::vars().any(|(name, _)| name == "UPDATE_SNAPSHOTS") {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "config/full.toml is out of date: just snapshots"
    );
    let given = file::read(&path).unwrap();
    let defaults = resolve(&flags(&[]).over(given), &machine()).unwrap();
    let none = resolve(&flags(&[]), &machine()).unwrap();
    assert_eq!(format!("{:?}", defaults.cache), format!("{:?}", none.cache));
}
