//! Pipelines of several users on one mount.

use super::{BYTES, live, lrc, submission, submit, submitting, with};
use crate::skip;
use crate::support::command::{Finished, as_user};
use crate::support::datasets::{Nodes, datasets};
use crate::support::{Scratch, command, copperfs, is_root, program_for_all};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// Users that own nothing.
const USERS: [u32; 2] = [64_011, 64_012];

/// The program where other users can run it, and a place for their files.
struct Program {
    path: PathBuf,
    scratch: Scratch,
}

impl Program {
    fn new() -> Self {
        let scratch = Scratch::new();
        let path = program_for_all(&scratch);
        Self { path, scratch }
    }

    /// `copperfs WORDS` of `user`, about node `rank`.
    fn command(&self, user: u32, nodes: &Nodes, rank: usize, words: &[&str]) -> Command {
        let mut command = as_user(user, user, self.path.to_str().unwrap());
        let plain = copperfs([""; 0]);
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("COPPERFS_MOUNTPOINT", &nodes.tree.nodes[rank].point);
        command.args(words);
        command
    }

    fn ask(&self, user: u32, nodes: &Nodes, words: &[&str]) -> Finished {
        command::run(&mut self.command(user, nodes, 1, words))
    }

    fn submit(&self, user: u32, nodes: &Nodes, submission: &Value) -> Finished {
        let line = submission.to_string();
        submitting(&self.scratch, line.as_bytes(), |words| {
            // The file is the tester's.
            let mut command = self.command(user, nodes, 1, &["lrc", "submit", "-"]);
            let path = words[2].to_owned();
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec \"$@\" < \"$0\""]).arg(path);
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            shell.arg(command.get_program()).args(command.get_args());
            command = shell;
            command
        })
    }
}

/// A user sees and ends its own jobs only, names no other tenant, and has a limit. The owner of the mount sees all.
#[test]
#[expect(clippy::too_many_lines, reason = "one of everything")]
fn users_have_their_own_jobs() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 60, BYTES)]);
    let nodes = Nodes::launch(
        2,
        origin.path(),
        &["--allow-other", "--max-refs-per-tenant", "100"],
    );
    nodes.add("set", &["--keep", "references", "--budget", "600kB"]);
    let program = Program::new();
    let [one, two] = USERS;
    let job = submission("j", "set", &[("t", 0..10)]);
    for user in USERS {
        let finished = program.submit(user, &nodes, &job);
        assert_eq!(super::answers(&finished)[0]["blocks"], 10);
    }
    submit(&nodes, 1, &job);
    // The owner sees the jobs of all, by their tenants.
    let all = super::lrc_json(&nodes, 1, &["ls"]);
    let tenants: Vec<&str> = all["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["tenant"].as_str().unwrap())
        .collect();
    assert_eq!(tenants, ["0", "64011", "64012"]);
    let seen = program.ask(one, &nodes, &["lrc", "ls", "--json"]);
    let seen: Value = serde_json::from_str(&seen.text()).unwrap();
    assert_eq!(seen["jobs"].as_array().unwrap().len(), 1, "{seen}");
    assert_eq!(seen["jobs"][0]["tenant"], "64011");
    let shown = program.ask(one, &nodes, &["lrc", "show", "j"]);
    assert!(shown.status.success(), "{shown:?}");
    let shown = program.ask(one, &nodes, &["lrc", "show", "j", "--tenant", "64012"]);
    assert!(shown.refused().contains("no live job"), "{shown:?}");

    // Another tenant.
    for words in [
        ["end", "j", "--tenant", "64012"].to_vec(),
        ["done", "j", "t", "--tenant", "0"].to_vec(),
        ["taskfail", "j", "t", "--tenant", "64012"].to_vec(),
    ] {
        let refused = program.ask(one, &nodes, &[&["lrc"], &words[..]].concat());
        assert!(
            refused.refused().contains("another's: you are user 64011"),
            "{refused:?}"
        );
    }
    let refused = program.submit(one, &nodes, &with(&job, "tenant", "64012"));
    assert!(refused.refused().contains("another's"), "{refused:?}");
    let own = program.submit(
        one,
        &nodes,
        &with(&with(&job, "tenant", "64011"), "attempt", 1),
    );
    assert_eq!(super::answers(&own)[0]["accepted"], true);
    assert_eq!(live(&nodes, 1).len(), 3);

    // The limit, which counts the live jobs together.
    let more = |name: &str, files| submission(name, "set", &[("a", 0..files), ("b", 0..files)]);
    let accepted = program.submit(one, &nodes, &more("k", 30));
    assert_eq!(super::answers(&accepted)[0]["accepted"], true);
    let refused = program.submit(one, &nodes, &more("l", 16));
    let said = refused.refused();
    assert!(
        said.contains("would hold 102 references") && said.contains("100 are allowed"),
        "{said}"
    );
    assert!(said.contains("max-refs-per-tenant"), "{said}");
    let accepted = program.submit(one, &nodes, &more("l", 15));
    assert!(accepted.status.success(), "{accepted:?}");
    let refused = program.submit(one, &nodes, &submission("m", "set", &[("a", 0..1)]));
    assert!(
        refused.refused().contains("would hold 101 references"),
        "{refused:?}"
    );
    let accepted = program.submit(two, &nodes, &more("k", 30));
    assert!(
        accepted.status.success(),
        "another user has a limit of its own: {accepted:?}"
    );

    // Only the owner empties homes.
    let refused = program.ask(one, &nodes, &["lrc", "flush-zero", "set"]);
    let said = refused.refused();
    assert!(said.contains("only the owner of the mount"), "{said}");

    let ended = program.ask(one, &nodes, &["lrc", "end", "k"]);
    assert_eq!(ended.text(), "k has ended\n");
    // The owner ends the jobs of others, and submits for them.
    let ended = lrc(&nodes, 1, &["end", "j", "--tenant", "64012"]);
    assert_eq!(ended, "j has ended\n");
    let tenant = with(&submission("m", "set", &[("t", 0..5)]), "tenant", "daily");
    assert_eq!(submit(&nodes, 1, &tenant)["accepted"], true);
    assert_eq!(
        lrc(&nodes, 1, &["done", "m", "t", "--tenant", "daily"]),
        "t of m has released its inputs\n"
    );
    let seen = program.ask(two, &nodes, &["lrc", "ls", "--json"]);
    let seen: Value = serde_json::from_str(&seen.text()).unwrap();
    assert_eq!(
        seen["jobs"].as_array().unwrap().len(),
        1,
        "only k is left: {seen}"
    );
}

/// A mount that is its owner's alone takes no jobs of others.
#[test]
fn a_closed_mount_takes_no_jobs_of_others() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 2, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "20kB"]);
    let program = Program::new();
    let refused = program.submit(USERS[0], &nodes, &submission("j", "set", &[("t", 0..2)]));
    let said = refused.refused();
    assert!(said.contains("Permission denied"), "{said}");
    assert!(live(&nodes, 1).is_empty());
}
