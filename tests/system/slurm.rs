//! Jobs on a real Slurm cluster with `proctrack/cgroup`: copperfs from Prolog and Epilog, and brought by
//! the job itself.

use crate::skip;
use crate::support::command::has_program;
use crate::support::fixture::packages_total;
use crate::support::is_root;
use crate::support::slurm::Cluster;
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

/// One job after another on a cluster of this many nodes.
type Step = fn(&Cluster, usize);

/// An import in every task, scancel, a killed daemon, a node that crashes and comes back: each job works
/// as far as it can, and after each there is no mount, no daemon and no secret on any node.
fn prolog_and_epilog(nodes: usize) {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let start = Instant::now();
    let cluster = Cluster::up(nodes);
    let tracked = cluster.user("scontrol show config").text();
    assert!(tracked.contains("proctrack/cgroup"), "{tracked}");
    let figure =
        |what: &str, start: Instant| eprintln!("{nodes} nodes, {what}: {:?}", start.elapsed());
    figure("up", start);
    let steps: [(&str, Step); 4] = [
        ("an import in every task", import_in_every_task),
        ("a job seen from inside, and scancel", scancel),
        ("a killed daemon", killed_daemon),
        ("a crash, a boot, and an import again", crash_and_boot),
    ];
    for (what, step) in steps {
        let start = Instant::now();
        step(&cluster, nodes);
        figure(what, start);
    }
}

fn shape(nodes: usize) -> String {
    format!("-N{nodes} --ntasks-per-node=2")
}

fn import_in_every_task(cluster: &Cluster, nodes: usize) {
    let script = format!("srun bash -c \"{}\"", IMPORT.replace('$', "\\$"));
    let job = cluster.submit(&shape(nodes), &script);
    cluster.settled();
    imported(&cluster.output(&job), nodes, 2);
}

/// While it runs: as the job's user, with one secret on all nodes that no other may read and no command
/// line or environment shows.
fn scancel(cluster: &Cluster, nodes: usize) {
    let read = "srun bash -c 'echo up on $(hostname); while :; do cat $COPPER_MNT/everything.py; \
                sleep 0.2; done' | grep --line-buffered ^up";
    let job = cluster.submit(&shape(nodes), read);
    cluster.printed(&job, &format!("up on h{nodes}"));
    let look = format!(
        "stat -c '%a %u' /run/copperfs-jobs/{job} /run/copperfs-jobs/{job}/secret
         ps -o uid= -p \"$(pidof copperfs)\"
         cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null \
           | grep -a -c -F -f /run/copperfs-jobs/{job}/secret || true"
    );
    let seen = cluster.root(2, &look);
    let words: Vec<&str> = seen.split_whitespace().collect();
    let wanted = ["700", "65534", "600", "65534", "65534", "0"];
    assert_eq!(words, wanted, "{seen}");
    let secrets: std::collections::BTreeSet<String> = (1..=nodes)
        .map(|number| cluster.root(number, &format!("cat /run/copperfs-jobs/{job}/secret")))
        .collect();
    assert_eq!(secrets.len(), 1, "the same on all nodes");
    cluster.user(&format!("scancel {job}"));
    let took = cluster.settled();
    eprintln!("clean after scancel: {took:?}");
}

/// The tasks on its node read on, too: another daemon follows, which the Epilog ends.
fn killed_daemon(cluster: &Cluster, nodes: usize) {
    let script = "srun bash -c 'while [ ! -e go ]; do sleep 0.1; done; echo $(hostname) \
                  $(cat $COPPER_MNT/package_01/module_01.py 2>&1)'";
    let script = format!("cd {}\necho up\n{script}", cluster.out.display());
    let job = cluster.submit(&shape(nodes), &script);
    cluster.printed(&job, "up");
    // The job's script runs as soon as the first node is ready; the last one's Prolog may still mount.
    let kill = format!(
        "for i in $(seq 200); do grep -q ' /run/copper_mnt/{job} fuse' /proc/mounts && break; \
         sleep 0.1; done; kill -9 $(pidof copperfs)"
    );
    cluster.root(nodes, &kill);
    std::fs::write(cluster.out.join("go"), "").unwrap();
    cluster.settled();
    let output = cluster.output(&job);
    for number in 1..=nodes {
        let read = format!("h{number} VALUE = 50");
        assert_eq!(output.matches(&read).count(), 2, "{output}");
    }
}

fn crash_and_boot(cluster: &Cluster, nodes: usize) {
    let job = cluster.submit(&shape(nodes), "echo up; srun sleep 1000");
    cluster.printed(&job, "up");
    cluster.control(&["crash", &nodes.to_string()]);
    // As an administrator would: Slurm itself takes half a minute to notice, and its step on h1 another
    // to stop waiting for the lost part.
    let down = format!("scontrol update nodename=h{nodes} state=down reason=crashed");
    cluster.root(1, &down);
    let took = cluster.settled();
    eprintln!("clean after the crash of a node: {took:?}");
    cluster.control(&["boot", &nodes.to_string()]);
    cluster.idle(nodes);
    import_in_every_task(cluster, nodes);
}

#[test]
fn four_nodes_with_prolog_and_epilog() {
    prolog_and_epilog(4);
}

/// The acceptance of a release: `cargo test --test system eight_nodes -- --ignored --nocapture`.
#[test]
#[ignore = "the same as with four, and twice as long"]
fn eight_nodes_with_prolog_and_epilog() {
    prolog_and_epilog(8);
}

/// A job that mounts for itself: `copperfs launch` by srun and by both MPI launchers, `unmount --all` at its end, and
/// scancel, which leaves no time for it.
#[test]
fn a_job_launches_and_takes_down_its_own() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let cluster = Cluster::up(4);
    // Without the site's mounts, and with a mount point of its own on each host.
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
        "export ORIGIN=/lus=file://{} PROGRAM={out}/train.py PYTHONDONTWRITEBYTECODE=1 \
         COPPERFS_TOPOLOGY={out}/topology COPPERFS_ARITY=1",
        cluster.origin.display(),
        out = cluster.out.display()
    );
    std::fs::write(cluster.out.join("topology"), "left h1 h3\nright h2 h4\n").unwrap();
    let shape = &shape(4);
    // The daemons are replaced before the program runs: the step that holds them stays.
    let upgrade = "\ncopperfs upgrade --all \"$mount\"\nsrun --overlap";
    let upgraded = example.replace("\nsrun --overlap", upgrade);
    let job = cluster.submit(shape, &format!("{settings}\n{upgraded}"));
    cluster.settled();
    let output = cluster.output(&job);
    imported(&output, 4, 2);
    assert_eq!(output.matches(": copperfs 0.").count(), 4, "{output}");
    assert_eq!(output.matches(" ended)").count(), 4, "{output}");
    // A chain in which one edge crosses, and not three.
    let words: Vec<&str> = output.split_whitespace().collect();
    let ranks = [["0", "h1"], ["1", "h3"], ["2", "h2"], ["3", "h4"]];
    let shown = |rank: &[&str; 2]| words.windows(2).any(|pair| pair == rank);
    assert!(ranks.iter().all(shown), "{output}");

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

    for (name, mpirun) in [("Open MPI", "mpirun.openmpi"), ("Hydra", "mpiexec.hydra")] {
        if has_program(mpirun) {
            mpi_wrapper(&cluster, name, mpirun, &settings);
        } else {
            crate::skipping::skipped(&format!("{name} is not installed"));
        }
    }
}

/// `scripts/mpi/copperfs-mpirun` around a program in eight tasks.
fn mpi_wrapper(cluster: &Cluster, name: &str, mpirun: &str, settings: &str) {
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
    let job = cluster.submit(&shape(4), &script);
    cluster.settled();
    let output = cluster.output(&job);
    let total = packages_total();
    let sums = output.lines().filter(|line| line.ends_with(&total));
    assert_eq!(sums.count(), 8, "{name}: {output}");
    assert_eq!(output.matches(" ended)").count(), 4, "{name}: {output}");
    // The file that the secret came by.
    let left = std::fs::read_dir(&cluster.out).unwrap();
    let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let secret = |name: &String| name.starts_with(".copperfs-launch");
    assert_eq!(names.filter(secret).count(), 0);
}
