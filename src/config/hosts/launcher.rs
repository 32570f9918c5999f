//! Host lists of launchers: Slurm, PBS, and MPI launchers below them.
//!
//! Pure except for one file that PBS names: takes the variables from [`Machine`], and returns the text of a
//! list for [`super::parse`], which is the same on every node.
//!
//! An MPI launcher tells a rank its number, but not the hosts of the other ranks. So `mpi` means the list of
//! the scheduler below it. Without a scheduler, `copperfs launch --hosts mpi` queries the ranks.

use super::unique;
use crate::config::machine::Machine;
use std::path::{Path, PathBuf};

/// A source of host lists that a word names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// Slurm, in a job, a step, a Prolog or an Epilog.
    Slurm,
    /// PBS: Torque, OpenPBS, PBS Professional.
    Pbs,
    /// `mpirun`, `mpiexec`.
    Mpi,
}

/// Why a launcher's list is not available.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    /// Not in a Slurm job.
    #[error(
        "slurm: neither SLURM_JOB_NODELIST (in jobs) nor SLURM_NODELIST (in Prolog and Epilog) is \
         set, so this is no Slurm job. Run it below salloc, sbatch or srun, or name the hosts: \
         --hosts nid[001-004]"
    )]
    NoSlurm,
    /// Not in a PBS job.
    #[error(
        "pbs: PBS_NODEFILE is not set, so this is no PBS job, or a shell that was reached by ssh \
         from one. Run it in the job's script, or give the file itself: --hosts FILE"
    )]
    NoPbs,
    /// The file that PBS names cannot be read here.
    #[error(
        "pbs: cannot read {}, which PBS_NODEFILE names: {source}. It lies on the job's first host \
         only: run this there, or copy it and give --hosts FILE",
        path.display()
    )]
    NodeFile {
        /// The file.
        path: PathBuf,
        /// The failure of the read.
        source: std::io::Error,
    },
    /// An MPI launcher without a scheduler that lists the hosts.
    #[error(
        "mpi: an MPI launcher tells a rank its number, but not the hosts of the others, and neither \
         Slurm nor PBS says them here. Start the nodes before the program instead: copperfs launch \
         --hosts mpi asks the ranks of an mpirun of its own; or give the host file that mpirun was \
         given: --hosts FILE"
    )]
    NoMpi,
}

impl Launcher {
    /// The launcher that `word` names: `slurm`, `pbs`, `mpi`.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        match word {
            "slurm" => Some(Self::Slurm),
            "pbs" => Some(Self::Pbs),
            "mpi" => Some(Self::Mpi),
            _ => None,
        }
    }

    /// The text of the launcher's host list.
    ///
    /// # Errors
    /// This is no job of that launcher.
    pub fn hosts(self, machine: &Machine) -> Result<String, LauncherError> {
        match self {
            Self::Slurm => slurm(machine).ok_or(LauncherError::NoSlurm),
            Self::Pbs => pbs(machine)?.ok_or(LauncherError::NoPbs),
            Self::Mpi => match slurm(machine) {
                Some(list) => Ok(list),
                None => pbs(machine)?.ok_or(LauncherError::NoMpi),
            },
        }
    }
}

/// This task's number among those that a launcher started, from any launcher's variable.
#[must_use]
pub fn task_rank(machine: &Machine) -> Option<u64> {
    [
        "OMPI_COMM_WORLD_RANK",
        "PMIX_RANK",
        "PMI_RANK",
        "SLURM_PROCID",
    ]
    .into_iter()
    .find_map(|name| machine.variable(name)?.parse().ok())
}

/// The allocation's list, not the step's, because a daemon serves the whole job. The parts of a heterogeneous
/// job are joined.
fn slurm(machine: &Machine) -> Option<String> {
    /// More parts than Slurm allows.
    const PARTS_MAX: usize = 128;
    let part = |index: usize| machine.variable(&format!("SLURM_JOB_NODELIST_HET_GROUP_{index}"));
    let parts: Vec<&str> = (0..PARTS_MAX).map_while(part).collect();
    if !parts.is_empty() {
        return Some(parts.join(","));
    }
    let mut names = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"].into_iter();
    let list = names.find_map(|name| machine.variable(name));
    list.map(ToOwned::to_owned)
}

/// The list of PBS; `None` outside of PBS.
fn pbs(machine: &Machine) -> Result<Option<String>, LauncherError> {
    let Some(path) = machine.variable("PBS_NODEFILE").map(Path::new) else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path).map_err(|source| {
        let path = path.to_owned();
        LauncherError::NodeFile { path, source }
    });
    text.map(|text| Some(unique(&text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(variables: &[(&str, &str)]) -> Machine {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Machine {
            variables: variables.iter().map(owned).collect(),
            ..Machine::default()
        }
    }

    #[test]
    fn slurm_says_it_in_jobs_and_in_prologs() {
        let list = |variables: &[(&str, &str)]| Launcher::Slurm.hosts(&machine(variables));
        let step = [
            ("SLURM_JOB_NODELIST", "nid[001-128,200]"),
            ("SLURM_NODELIST", "nid001"),
        ];
        assert_eq!(list(&step).unwrap(), "nid[001-128,200]");
        assert_eq!(list(&[("SLURM_NODELIST", "h[1-4]")]).unwrap(), "h[1-4]");
        let parts = [
            ("SLURM_JOB_NODELIST", "a[1-2]"),
            ("SLURM_JOB_NODELIST_HET_GROUP_0", "a[1-2]"),
            ("SLURM_JOB_NODELIST_HET_GROUP_1", "gpu7"),
        ];
        assert_eq!(list(&parts).unwrap(), "a[1-2],gpu7");
        let error = list(&[("SLURM_JOB_NODELIST", "")]).unwrap_err().to_string();
        assert!(
            error.contains("SLURM_JOB_NODELIST") && error.contains("salloc"),
            "{error}"
        );
    }

    #[test]
    fn pbs_says_it_in_a_file_with_a_line_per_core() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nodes");
        std::fs::write(&path, "n3\nn3\nn1\nn1\n").unwrap();
        let machine = machine(&[("PBS_NODEFILE", path.to_str().unwrap())]);
        assert_eq!(Launcher::Pbs.hosts(&machine).unwrap(), "n3\nn1");
        assert_eq!(Launcher::Mpi.hosts(&machine).unwrap(), "n3\nn1");
        std::fs::remove_file(&path).unwrap();
        let error = Launcher::Pbs.hosts(&machine).unwrap_err().to_string();
        assert!(error.contains("first host only"), "{error}");
    }

    #[test]
    fn an_absent_launcher_is_an_error_with_advice() {
        let nothing = machine(&[]);
        let error = Launcher::Pbs.hosts(&nothing).unwrap_err().to_string();
        assert!(error.contains("PBS_NODEFILE is not set"), "{error}");
        let error = Launcher::Mpi.hosts(&nothing).unwrap_err().to_string();
        assert!(error.contains("copperfs launch --hosts mpi"), "{error}");
        assert_eq!(Launcher::named("slurm"), Some(Launcher::Slurm));
        assert_eq!(Launcher::named("Slurm"), None);
    }
}
