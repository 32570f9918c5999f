use super::*;
use clap::CommandFactory;

/// `docs/cli.md`: what `--help` says, of every command.
fn documented() -> String {
    let mut text = String::from(
        "# Command line\n\nGenerated from the program (`just snapshots`); a test keeps it equal to \
         `--help`.\n\n",
    );
    // Built, it knows its subcommands' full names; a fixed width keeps it the same everywhere.
    let mut cli = cli().term_width(100);
    cli.build();
    let mut section = |command: &mut clap::Command| {
        let help = command.render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        text.push_str(&format!(
            "## {}\n\n```text\n{}\n```\n\n",
            command.get_bin_name().unwrap_or("copperfs"),
            help.join("\n").trim_end()
        ));
    };
    section(&mut cli.clone());
    for command in cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        section(&mut command.clone().term_width(100));
        for inner in command
            .get_subcommands()
            .filter(|inner| !inner.is_hide_set())
        {
            section(&mut inner.clone().term_width(100));
        }
    }
    text.push_str("## Keys of `stats --json`\n\n");
    rows(include_str!("../report.rs")).for_each(|row| text.push_str(&row));
    text.push_str(
        "\n`stats --all --json` gives `{\"nodes\": [one such object per node], \"total\": {the \
         sums}, \"missing\": [names of nodes that did not answer]}`.\n",
    );
    text.push_str("\n## Keys of `status --json`\n\n");
    rows(include_str!("status/view.rs")).for_each(|row| text.push_str(&row));
    text
}

/// The table at the head of a module.
fn rows(module: &str) -> impl Iterator<Item = String> {
    let rows = module.lines();
    rows.filter_map(|line| Some(format!("|{}\n", line.strip_prefix("//! |")?)))
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn docs_cli_md_equals_help() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    let wanted = documented();
    if std::env::vars().any(|(name, _)| name == "UPDATE_SNAPSHOTS") {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/cli.md is out of date: just snapshots"
    );
}

#[test]
fn every_command_shows_examples() {
    for command in Cli::command()
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        let after = command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        assert!(after.starts_with("Examples:"), "{}", command.get_name());
    }
}

#[test]
fn tables_align_numbers_right_and_words_left() {
    let rows = [["a", "1.00 KiB"], ["long-name", "12 B"]];
    let table = Table::of(rows);
    let table = table.column("node", |row| row[0]);
    assert_eq!(
        table.column("bytes", |row| row[1]).text(),
        "node          bytes\na          1.00 KiB\nlong-name      12 B\n"
    );
}

#[test]
fn wrapping_breaks_at_blanks() {
    assert_eq!(crate::config::wrapped("aa bb cc", 5), "aa bb\ncc");
    assert_eq!(crate::config::wrapped("abcdefgh i", 3), "abcdefgh\ni");
}

#[test]
fn a_cause_is_told_once() {
    let cause = std::io::Error::other("no space");
    let shows = anyhow::Error::new(cause).context("cannot write x: no space");
    assert_eq!(explained(&shows), "cannot write x: no space");
    let hides = anyhow::anyhow!("no space").context("cannot write x");
    assert_eq!(explained(&hides), "cannot write x: no space");
}

#[test]
fn many_users_are_counted_and_few_named() {
    use crate::daemon::busy::User;
    let user = |pid| User::Process {
        pid,
        command: "sh".into(),
        by: "open file",
    };
    let users: Vec<User> = (1..=10).map(user).collect();
    assert!(listed(&users, 8).ends_with("8 (sh: open file) and 2 more"));
    assert_eq!(listed(&[User::Mount("/m".into())], 8), "a mount at /m");
}
