//! The jobs that an environment and a cgroup name. Pure.
//!
//! The order of preference is `copperfs job run`, Slurm, PBS, Kubernetes, torchrun: explicit names
//! come first, and a scheduler knows better than a program inside its job.
//!
//! A process's environment is written by its user, and its cgroup by the scheduler alone. So if
//! Slurm or PBS create cgroups, the cgroup names their job, and variables that contradict it are
//! ignored. (A pod's cgroup contradicts neither, because schedulers may run in pods.)
//!
//! - Slurm: each task of an array is a job, because each trains by itself, and its cgroup says so,
//!   too. All components of a heterogeneous job are one job, named by the first
//!   (`SLURM_HET_JOB_ID`). Only the environment has that name; it precedes the cgroup if the rest
//!   of the environment agrees with the cgroup.
//! - PBS: the number without the server, because cgroups and variables write the server
//!   differently; `77[3]` for a task of an array.
//! - Kubernetes: the pod's uid. A job of several pods sets `COPPERFS_JOB` in their template.

use crate::job::name::JobName;

/// A job that a process names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) job: JobName,
    /// The claim comes from the cgroup, which no user can write; otherwise from the environment.
    pub(super) by_cgroup: bool,
}

/// Returns the claims of both, in order of preference. `environment`: variables, each followed by a
/// zero byte; `cgroup`: the text of `/proc/PID/cgroup`. Either may be empty.
pub(super) fn claims(environment: &[u8], cgroup: &str) -> Vec<Claim> {
    let variable = |name| variable(environment, name);
    let said = |kind, id: Option<&str>| claim(kind, id, false);
    let placed = |kind, id: Option<&str>| claim(kind, id, true);
    let number =
        |names: [&'static str; 2]| names.into_iter().filter_map(variable).find(|id| digits(id));
    let (slurm, pbs) = (slurm_cgroup(cgroup), pbs_cgroup(cgroup));
    let whole = number(["SLURM_HET_JOB_ID", "SLURM_PACK_JOB_ID"]);
    let own = number(["SLURM_JOB_ID", "SLURM_JOBID"]);
    // Without a scheduler's cgroup the variables are all there is.
    let free = slurm.is_none() && pbs.is_none();
    // A heterogeneous job's name is only in the environment, which is trusted if the rest of it is
    // right.
    let agrees = free || (slurm.is_some() && own == slurm);
    let pbs_said = variable("PBS_JOBID").and_then(pbs_number);
    let torchrun = variable("TORCHELASTIC_RUN_ID").filter(|id| *id != "none");
    let claims = [
        said("run", variable("COPPERFS_JOB")),
        said("slurm", whole.filter(|_| agrees)),
        placed("slurm", slurm),
        said("slurm", own.filter(|_| free)),
        placed("pbs", pbs),
        said("pbs", pbs_said.filter(|_| free)),
        placed("k8s", pod(cgroup).as_deref()),
        said("torchrun", torchrun),
    ];
    claims.into_iter().flatten().collect()
}

/// The maximum length of a task's name with its job's: longer than any engine's.
const TASK_BYTES_MAX: usize = 1024;

/// Returns the task of a pipeline that an environment names.
pub(super) fn task(environment: &[u8]) -> Option<&str> {
    let task = variable(environment, "COPPERFS_TASK")?;
    (!task.is_empty() && task.len() <= TASK_BYTES_MAX).then_some(task)
}

fn claim(kind: &str, id: Option<&str>, by_cgroup: bool) -> Option<Claim> {
    let job = JobName::of_kind(kind, id?)?;
    Some(Claim { job, by_cgroup })
}

fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a str> {
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    std::str::from_utf8(value).ok()
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the components of all cgroups' paths.
fn components(cgroup: &str) -> impl Iterator<Item = &str> {
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.flat_map(|path| path.split('/'))
}

/// Returns the first id in a component below one that `begins` a scheduler's part of a path.
fn id_below<'a>(
    cgroup: &'a str,
    begins: impl Fn(&str) -> bool,
    id: impl Fn(&'a str) -> Option<&'a str>,
) -> Option<&'a str> {
    let mut below = false;
    for component in components(cgroup) {
        // An empty component is the beginning of the next path.
        let found = id(component).filter(|_| below && !component.is_empty());
        if found.is_some() {
            return found;
        }
        below = !component.is_empty() && (below || begins(component));
    }
    None
}

/// `/slurm/uid_1000/job_1234/step_0` (v1), `/system.slice/slurmstepd.scope/job_1234/step_0/user`
/// (v2), with the node's name before `slurm` where several daemons share one node.
fn slurm_cgroup(cgroup: &str) -> Option<&str> {
    id_below(
        cgroup,
        |component| component.contains("slurm"),
        |component| component.strip_prefix("job_").filter(|id| digits(id)),
    )
}

/// `1234.server`, `1234[5].server`: up to the first dot.
fn pbs_number(id: &str) -> Option<&str> {
    let number = id.split('.').next()?;
    let (plain, task) = number.split_once('[').unwrap_or((number, "]"));
    let task = task.strip_suffix(']')?;
    (digits(plain) && (task.is_empty() || digits(task))).then_some(number)
}

/// `/pbspro/1234.server`, `/pbs_jobs.service/jobid/1234.server`, `/torque/1234.server`,
/// `/pbspro.slice/pbspro-1234.server.slice`.
fn pbs_cgroup(cgroup: &str) -> Option<&str> {
    id_below(
        cgroup,
        |component| component.starts_with("pbs") || component == "torque",
        |component| pbs_number(component.strip_prefix("pbspro-").unwrap_or(component)),
    )
}

/// `/kubepods/burstable/pod<uid>/<container>`, `/kubepods.slice/…/kubepods-burstable-pod<uid>.slice/…`,
/// the latter with underscores for dashes. A uid has 36 characters; the digest of a static pod's file 32.
fn pod(cgroup: &str) -> Option<String> {
    components(cgroup).find_map(|component| {
        let name = component.strip_suffix(".slice").unwrap_or(component);
        let uid = match name.strip_prefix("pod") {
            Some(uid) => uid,
            None if name.starts_with("kubepods") => name.rsplit_once("-pod")?.1,
            None => return None,
        };
        let uid = uid.replace('_', "-");
        // Other components begin with `pod`, too.
        let hexadecimal = uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        (hexadecimal && matches!(uid.len(), 32 | 36)).then_some(uid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(environment: &str, cgroup: &str) -> Option<String> {
        let environment = environment.replace(' ', "\0");
        let first = claims(environment.as_bytes(), cgroup).into_iter().next();
        first.map(|claim| claim.job.to_string())
    }

    #[test]
    fn environments_name_jobs() {
        for (environment, wanted) in [
            ("", None),
            ("PATH=/bin HOME=/", None),
            ("SLURM_JOB_ID=1234 SLURM_PROCID=0", Some("slurm:1234")),
            (
                "SLURM_ARRAY_JOB_ID=1 SLURM_ARRAY_TASK_ID=4 SLURM_JOB_ID=5",
                Some("slurm:5"),
            ),
            (
                "SLURM_JOB_ID=1235 SLURM_HET_JOB_ID=1234",
                Some("slurm:1234"),
            ),
            ("SLURM_JOB_ID=x;y", None),
            ("PBS_JOBID=77.pbs.site", Some("pbs:77")),
            ("PBS_JOBID=77[3].pbs", Some("pbs:77[3]")),
            ("PBS_JOBID=77[", None),
            ("TORCHELASTIC_RUN_ID=none", None),
            ("TORCHELASTIC_RUN_ID=abc-1", Some("torchrun:abc-1")),
            (
                "TORCHELASTIC_RUN_ID=a SLURM_JOB_ID=1 COPPERFS_JOB=me",
                Some("run:me"),
            ),
            ("XSLURM_JOB_ID=1 SLURM_JOB_IDX=2", None),
            ("COPPERFS_JOB= SLURM_JOB_ID=1", Some("slurm:1")),
        ] {
            assert_eq!(named(environment, "").as_deref(), wanted, "{environment}");
        }
    }

    #[test]
    fn cgroups_name_jobs() {
        let uid = "0f5b7f0a-1c2d-4e3f-8a9b-0123456789ab";
        let escaped = uid.replace('-', "_");
        for (cgroup, wanted) in [
            (
                "0::/user.slice/user-1000.slice/session-3.scope\n".to_owned(),
                None,
            ),
            ("0::/".to_owned(), None),
            (
                "12:cpuset:/slurm/uid_1000/job_1234/step_0\n0::/x\n".to_owned(),
                Some("slurm:1234".to_owned()),
            ),
            (
                "0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0".to_owned(),
                Some("slurm:9".to_owned()),
            ),
            (
                "5:memory:/slurm_nid001/uid_7/job_8/step_batch".to_owned(),
                Some("slurm:8".to_owned()),
            ),
            (
                "0::/system.slice/n1_slurmstepd.scope/job_10/step_extern".to_owned(),
                Some("slurm:10".to_owned()),
            ),
            // Not every component that begins with `job` is Slurm's.
            ("0::/other/job_7/x".to_owned(), None),
            ("1:a:/slurm\n2:b:/x/job_7".to_owned(), None),
            (
                "4:memory:/pbspro/1234.server".to_owned(),
                Some("pbs:1234".to_owned()),
            ),
            (
                "4:memory:/pbspro.slice/pbspro-12.pbs\\x2dserver.slice".to_owned(),
                Some("pbs:12".to_owned()),
            ),
            (
                "0::/pbs_jobs.service/jobid/7[1].server".to_owned(),
                Some("pbs:7[1]".to_owned()),
            ),
            (
                format!("0::/kubepods/burstable/pod{uid}/0a1b"),
                Some(format!("k8s:{uid}")),
            ),
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice/cri-containerd-0a.scope"
                ),
                Some(format!("k8s:{uid}")),
            ),
            ("0::/machine.slice/libpod-0a1b.scope".to_owned(), None),
        ] {
            assert_eq!(named("", &cgroup), wanted, "{cgroup}");
        }
    }

    #[test]
    fn a_scheduler_precedes_programs_in_its_job() {
        let cgroup = "0::/system.slice/slurmstepd.scope/job_9/step_0";
        assert_eq!(
            named("TORCHELASTIC_RUN_ID=a", cgroup).as_deref(),
            Some("slurm:9")
        );
        assert_eq!(named("COPPERFS_JOB=a", cgroup).as_deref(), Some("run:a"));
    }

    /// Only the scheduler writes a cgroup, so a variable that contradicts it is ignored.
    #[test]
    fn variables_that_contradict_the_cgroup_are_ignored() {
        let slurm = "0::/system.slice/slurmstepd.scope/job_9/step_0";
        let pbs = "0::/pbs_jobs.service/jobid/7.server";
        for (environment, cgroup, wanted) in [
            ("SLURM_JOB_ID=9", slurm, &["slurm:9"][..]),
            ("SLURM_JOB_ID=8", slurm, &["slurm:9"]),
            ("PBS_JOBID=8.server", slurm, &["slurm:9"]),
            ("SLURM_JOB_ID=8", pbs, &["pbs:7"]),
            ("PBS_JOBID=8.server", pbs, &["pbs:7"]),
            (
                "SLURM_JOB_ID=9 SLURM_HET_JOB_ID=8",
                slurm,
                &["slurm:8", "slurm:9"],
            ),
            ("SLURM_JOB_ID=7 SLURM_HET_JOB_ID=8", slurm, &["slurm:9"]),
            ("SLURM_HET_JOB_ID=8", slurm, &["slurm:9"]),
            ("SLURM_HET_JOB_ID=8", pbs, &["pbs:7"]),
        ] {
            let environment = environment.replace(' ', "\0");
            let found = claims(environment.as_bytes(), cgroup);
            let names: Vec<&str> = found.iter().map(|claim| claim.job.as_str()).collect();
            assert_eq!(names, wanted, "{environment} in {cgroup}");
            assert!(found.last().is_some_and(|claim| claim.by_cgroup));
        }
        let own = claims(b"COPPERFS_JOB=a", slurm);
        assert_eq!(
            own.iter().map(|claim| claim.by_cgroup).collect::<Vec<_>>(),
            [false, true]
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(environment: Vec<u8>, cgroup in "([0-9:/a-z_.\\[\\]-]|pod|job_|slurm|pbs|é){0,30}") {
            let _anything = claims(&environment, &cgroup);
        }
    }
}
