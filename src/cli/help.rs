//! The help of the program itself: its commands in groups, which clap does not know.

use clap::Command;

/// The commands by what they are for, in the order in which they are shown.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Use",
        &["mount", "launch", "unmount", "list", "reload", "upgrade"],
    ),
    (
        "Look",
        &["status", "stats", "top", "logs", "config", "doctor"],
    ),
    ("Cache", &["clear", "record", "warm", "index"]),
    (
        "Training",
        &["dataset", "job", "policy", "allocation", "lrc"],
    ),
    ("Plan", &["plan", "simulate", "bench"]),
    (
        "Other",
        &["secret", "attend", "api", "completions", "man", "help"],
    ),
];

/// Shows the commands of `command` in groups.
pub(super) fn grouped(command: Command) -> Command {
    let text = commands(&command);
    let template =
        format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}\n{{after-help}}");
    command.help_template(template)
}

fn commands(command: &Command) -> String {
    let name = |name: &&str| name.chars().count();
    let names = GROUPS.iter().flat_map(|(_, names)| *names);
    let width = names.map(name).max().unwrap_or(0);
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text.push_str(&format!("{heading}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            // Clap adds this command when it parses.
            let about = match (about, *name) {
                (None, "help") => "Show the help of a command".to_owned(),
                (about, _) => about.map(ToString::to_string).unwrap_or_default(),
            };
            text.push_str(&format!("  {name:<width$}  {about}\n"));
        }
        text.push('\n');
    }
    text.push_str("`copperfs COMMAND -h` shows its most used options, `--help` all of them.");
    text
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::GROUPS;
    use clap::CommandFactory;

    #[test]
    fn every_command_is_in_one_group() {
        let cli = Cli::command();
        let visible = cli.get_subcommands().filter(|one| !one.is_hide_set());
        let mut commands: Vec<&str> = visible.map(clap::Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        commands.push("help");
        commands.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(commands, grouped);
    }
}
