//! Jobs on a real Slurm cluster with `proctrack/cgroup`: copperfs from Prolog and Epilog, and brought by
//! the job itself.

use crate::skip;
use crate::support::command::has_program;
use crate::support::fixture::packages_total;
use crate::support::is_root;
use crate::support::slurm::Cluster;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

fn missing() -> Option<&'static str> {
    if !is_root() {
        return Some("needs root");
    }
    if !Path::new("/sys/fs/cgroup/freezer").is_dir() {
        return Some("needs the freezer of cgroup v1, which Slurm 22.05 tracks steps by,");
    }
    let programs = [
        "ip",
        "nft",
        "nsenter",
        "unshare",
        "setpriv",
        "fusermount3",
        "munged",
    ];
    ["slurmctld", "slurmd", "sbatch"]
        .into_iter()
        .chain(programs)
        .find(|name| !has_program(name))
}

/// Imports everything and says the sum, with the name of the host.
const IMPORT: &str = "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$COPPER_MNT python3 -S -s -c 'import \
                      everything, socket; print(socket.gethostname(), everything.TOTAL)'";

fn imported(output: &str, nodes: usize, tasks: usize) {
    for number in 1..=nodes {
        let line = format!("h{number} {}", packages_total());
        let count = output.lines().filter(|found| **found == line).count();
        assert_eq!(count, tasks, "h{number}: {output}");
    }
}

/// An import in every task, scancel, a killed daemon, a node that crashes and comes back: each job works
/// as far as it can, and after each there is no mount, no daemon and no secret on any node. `patient`: Slurm
/// finds out for itself that a node is gone.
fn prolog_and_epilog(nodes: usize, patient: bool) {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let mut figures = String::new();
    let start = Instant::now();
    let cluster = Cluster::up(nodes);
    let tracked = cluster.user("scontrol show config").text();
    assert!(tracked.contains("proctrack/cgroup"), "{tracked}");
    let _infallible = writeln!(figures, "{nodes} nodes up after {:?}", start.elapsed());
    let shape = format!("-N{nodes} --ntasks-per-node=2");

    let start = Instant::now();
    let job = cluster.submit(
        &shape,
        &format!("srun bash -c \"{}\"", IMPORT.replace('$', "\\$")),
    );
    cluster.settled();
    imported(&cluster.output(&job), nodes, 2);
    let _infallible = writeln!(
        figures,
        "import in {} tasks: {:?}",
        2 * nodes,
        start.elapsed()
    );

    // As the job's user, from a file of his own; nothing of it on a command line.
    let read = "srun bash -c 'echo up on $(hostname); while :; do cat $COPPER_MNT/everything.py; sleep 0.2; done' \
                | grep --line-buffered ^up";
    let job = cluster.submit(&shape, read);
    cluster.printed(&job, &format!("up on h{nodes}"));
    let look = format!(
        "stat -c '%a %u' /run/copperfs-jobs/{job} /run/copperfs-jobs/{job}/secret
         ps -o uid= -p \"$(pidof copperfs)\"
         cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null \
           | grep -a -c -F -f /run/copperfs-jobs/{job}/secret"
    );
    let seen = cluster.root(2, &(look + " || true"));
    let words: Vec<&str> = seen.split_whitespace().collect();
    assert_eq!(
        words,
        ["700", "65534", "600", "65534", "65534", "0"],
        "{seen}"
    );
    let secrets: std::collections::BTreeSet<String> = (1..=nodes)
        .map(|number| cluster.root(number, &format!("cat /run/copperfs-jobs/{job}/secret")))
        .collect();
    assert_eq!(secrets.len(), 1, "the same on all nodes");
    let start = Instant::now();
    cluster.user(&format!("scancel {job}"));
    cluster.settled();
    let _infallible = writeln!(figures, "clean after scancel: {:?}", start.elapsed());

    let script = "srun bash -c 'while [ ! -e go ]; do sleep 0.1; done; echo $(hostname) \
                  $(cat $COPPER_MNT/package_01/module_01.py 2>&1)'";
    let job = cluster.submit(
        &shape,
        &format!("cd {}\necho up\n{script}", cluster.out.display()),
    );
    cluster.printed(&job, "up");
    cluster.root(nodes, "kill -9 $(pidof copperfs)");
    std::fs::write(cluster.out.join("go"), "").unwrap();
    cluster.settled();
    let output = cluster.output(&job);
    let dead = format!("h{nodes} cat: /run/copper_mnt/{job}/package_01/module_01.py: Transport");
    assert!(output.contains(&dead), "{output}");
    assert!(output.contains("h1 VALUE = 50"), "{output}");
    let _infallible = writeln!(figures, "clean after a killed daemon");

    let job = cluster.submit(&shape, "echo up; srun sleep 1000");
    cluster.printed(&job, "up");
    let start = Instant::now();
    cluster.control(&["crash", &nodes.to_string()]);
    if !patient {
        // As an administrator would; Slurm itself takes half a minute to notice.
        let down = "scontrol update nodename=h4 state=down reason=crashed";
        cluster.root(1, &down.replace("h4", &format!("h{nodes}")));
    }
    cluster.settled();
    let _infallible = writeln!(
        figures,
        "clean after the crash of a node: {:?}",
        start.elapsed()
    );
    cluster.control(&["boot", &nodes.to_string()]);
    cluster.idle(nodes);
    let job = cluster.submit(
        &shape,
        &format!("srun bash -c \"{}\"", IMPORT.replace('$', "\\$")),
    );
    cluster.settled();
    imported(&cluster.output(&job), nodes, 2);
    eprintln!("{figures}");
}

#[test]
fn four_nodes_with_prolog_and_epilog() {
    prolog_and_epilog(4, false);
}

/// The acceptance of a release: `cargo test --test system eight_nodes -- --ignored --nocapture`.
#[test]
#[ignore = "the same as with four, and twice as long"]
fn eight_nodes_with_prolog_and_epilog() {
    prolog_and_epilog(8, true);
}

/// A job that brings its own: `copperfs launch` by srun and by both MPI launchers, `unmount --all` at its
/// end, and scancel, which leaves no time for it.
#[test]
fn a_job_launches_and_takes_down_its_own() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let cluster = Cluster::up(4);
    // Without what the site mounts; a mount point of its own on each host.
    for number in 1..=4 {
        cluster.root(number, "install -d -m 0777 /run/own");
    }
    std::fs::write(
        cluster.out.join("train.py"),
        "import socket, everything\nprint(socket.gethostname(), everything.TOTAL)\n",
    )
    .unwrap();
    let example = include_str!("../../scripts/slurm/launch-job.sbatch")
        .replace("/tmp/copper-$SLURM_JOB_ID", "/run/own/$SLURM_JOB_ID")
        .replace("lus/$USER/packages", "lus");
    let settings = format!(
        "export ORIGIN=/lus=file://{} PROGRAM={}/train.py PYTHONDONTWRITEBYTECODE=1",
        cluster.origin.display(),
        cluster.out.display()
    );
    let shape = "-N4 --ntasks-per-node=2";
    let job = cluster.submit(shape, &format!("{settings}\n{example}"));
    cluster.settled();
    let output = cluster.output(&job);
    imported(&output, 4, 2);
    assert_eq!(output.matches(" ended)").count(), 4, "{output}");

    // As long as the job runs, whatever ends it.
    let endless = example.replace("python3", "sh -c 'echo up; exec sleep 1000'");
    let job = cluster.submit(shape, &format!("{settings}\n{endless}"));
    cluster.printed(&job, "up\nup\nup\nup\nup\nup\nup\nup\n");
    cluster.user(&format!("scancel {job}"));
    cluster.settled();

    // A mistake fails everywhere, and is said once; nothing stays.
    let wrong = "copperfs launch --hosts slurm --origin /lus=file:///gone /run/own/wrong";
    let job = cluster.submit(shape, wrong);
    cluster.settled();
    let output = cluster.output(&job);
    assert!(
        output.contains("nodes did not come up") && output.contains("/gone"),
        "{output}"
    );

    let mut launchers = 0;
    for (name, mpirun) in [("Open MPI", "mpirun.openmpi"), ("Hydra", "mpiexec.hydra")] {
        if !has_program(mpirun) {
            crate::support::skipped(&format!("{name} is not installed"));
            continue;
        }
        launchers += 1;
        let bin = cluster.out.join(format!("bin.{mpirun}"));
        std::fs::create_dir(&bin).unwrap();
        for alias in ["mpirun", "mpiexec"] {
            let path = bin.join(alias);
            std::fs::write(&path, format!("#!/bin/sh\nexec {mpirun} \"$@\"\n")).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&path, mode).unwrap();
        }
        let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/mpi/copperfs-mpirun");
        let here = cluster.out.join("copperfs-mpirun");
        std::fs::copy(wrapper, &here).unwrap();
        let script = format!(
            "{settings} PATH={}:$PATH\n{} /run/own/m \"--origin $ORIGIN\" mpirun -n 8 \
             sh -c 'PYTHONPATH=$COPPER_MNT/lus python3 $PROGRAM'",
            bin.display(),
            here.display()
        );
        let job = cluster.submit(shape, &script);
        cluster.settled();
        let output = cluster.output(&job);
        let sums = output
            .lines()
            .filter(|line| line.ends_with(&packages_total()));
        assert_eq!(sums.count(), 8, "{name}: {output}");
        assert_eq!(output.matches(" ended)").count(), 4, "{name}: {output}");
        let left = std::fs::read_dir(&cluster.out).unwrap();
        let secret = |name: &str| name.starts_with(".copperfs-launch");
        let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(|name| secret(name)).count(), 0);
    }
    assert!(launchers > 0 || !has_program("mpirun"));
}
