//! `copperfs status`: shows the current trees, and the nodes that are not below their parent in the list.
//!
//! The daemon of the mount collects the reports of all nodes. Nodes that do not answer are drawn below their parent
//! in the list.

mod draw;
mod fold;
pub(super) mod view;

use super::daemon::{client_of, run};
use super::mounted::MountArg;
use super::print;
use super::stats::cluster_reports;
use crate::config::Machine;
use crate::control::NodeImages;
use anyhow::Context;
use draw::Style;
use serde_json::json;
use std::io::IsTerminal;
use std::path::Path;
use view::{TreeView, View};

/// All trees are drawn by default if they have at most this many lines together.
const LINES_UNASKED: usize = 64;

/// What to show.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    mount: MountArg,
    /// Draw this tree only; there is one for each root, from 0 on
    #[arg(long, value_name = "K")]
    tree: Option<usize>,
    /// Draw every node of a large tree, also those that are all well
    #[arg(long)]
    full: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the state of the cluster. Returns whether all nodes answer and none is stranded.
///
/// # Errors
/// It is no copperfs mount, its daemon does not answer, or there is no such tree.
pub fn status(args: &StatusArgs) -> anyhow::Result<bool> {
    let mountpoint = args.mount.find()?;
    let cannot = || format!("cannot ask the daemon of {}", mountpoint.display());
    let reports = cluster_reports(&mountpoint).with_context(cannot)?;
    let view = View::of(&reports)?;
    let images = images(&mountpoint)?;
    let trees = chosen(&view.trees, args.tree)?;
    let mut value = serde_json::to_value(&view.summary)?;
    value["trees"] = match args.tree {
        None => json!(view.trees),
        Some(_) => json!(trees),
    };
    if !images.images.is_empty() {
        value["images"] = json!(images.images);
    }
    let style = Style {
        colours: std::io::stdout().is_terminal() && Machine::inspect().wants_colours(),
        all: args.full,
    };
    print(args.json, &value, |_| {
        let text = text(&view, &trees, style);
        match images.lines() {
            none if none.is_empty() => text,
            lines => format!("{text}\n\n{}", lines.trim_end()),
        }
    })?;
    Ok(view.summary.healthy)
}

/// The images of the node at `mountpoint`.
fn images(mountpoint: &Path) -> anyhow::Result<NodeImages> {
    let client = client_of(mountpoint)?;
    let answer = run(async move { Ok(client.ask("GET", "/v1/images", None).await?) })?;
    serde_json::from_value(answer).context("the daemon is of another version")
}

/// The trees to show: the requested tree, else all trees if they are small, else the first.
fn chosen(trees: &[TreeView], asked: Option<usize>) -> anyhow::Result<Vec<&TreeView>> {
    if let Some(asked) = asked {
        let last = trees.len().saturating_sub(1);
        let none =
            || format!("there is no tree {asked}: the trees of this cluster are 0 to {last}");
        return Ok(vec![trees.get(asked).with_context(none)?]);
    }
    let lines: usize = trees.iter().map(|tree| tree.nodes.len()).sum();
    let shown = match lines {
        0..=LINES_UNASKED => trees.len(),
        _ => 1,
    };
    Ok(trees.iter().take(shown).collect())
}

fn text(view: &View, shown: &[&TreeView], style: Style) -> String {
    let mut text = String::new();
    for tree in shown {
        if view.trees.len() > 1 {
            let (number, of) = (tree.tree, view.trees.len());
            text.push_str(&format!("tree {number} of {of}, root {}\n", tree.root));
        }
        text.push_str(&draw::tree(tree, style));
        text.push('\n');
    }
    text.push_str(&draw::summary(&view.summary));
    let is_shown = |tree: &&TreeView| shown.iter().any(|shown| shown.tree == tree.tree);
    let hidden = view.trees.iter().filter(|tree| !is_shown(tree));
    for hint in hidden.filter_map(draw::hint) {
        text.push('\n');
        text.push_str(&hint);
    }
    text
}

#[cfg(test)]
mod tests;
