//! `copperfs dataset`: declares, lists and shows datasets.

use super::amount::{amount_or_null, told};
use super::daemon::{bytes, list, number, percent, run, text};
use super::manifest::{ManifestArgs, manifest};
use super::mounted::AskArgs;
use super::{Table, fail, or_dash, print, say};
use crate::config::Machine;
use crate::config::layer::without_dots;
use crate::control::client::encoded;
use clap::{Args, Subcommand};
use copperfs_policy::Keep;
use copperfs_policy::amounts::{ByteSize, Whole, parse_duration};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// What is done with datasets.
#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    /// Declare what lies at a path as a dataset
    #[command(after_help = "Examples:\n  \
            copperfs dataset add imagenet /copper_data/lus/imagenet\n  \
            copperfs dataset add imagenet /lus/imagenet --index /lus/imagenet/.index --budget 120GB\n  \
            copperfs dataset add web s3://bucket/web-search --origin-readers homes\n\n\
            Its size comes from its index, or from a walk that goes on when this command has ended.")]
    Add(AddArgs),
    /// Change a declared dataset, while jobs read it
    #[command(after_help = "Examples:\n  \
            copperfs dataset set imagenet --budget 120GB\n  \
            copperfs dataset set imagenet --budget auto        # as the policy decides\n  \
            copperfs dataset set imagenet --keep none")]
    Set(SetArgs),
    /// List the datasets
    List(AskArgs),
    /// Show a dataset: its budget, and the part that each node holds
    Show(OneArgs),
    /// Remove a dataset, and free its cache
    Rm(OneArgs),
    /// Read one once, and write down the hashes of its entries
    #[command(after_help = "Examples:\n  \
            copperfs dataset manifest /lus/imagenet -o imagenet.manifest\n  \
            copperfs dataset manifest s3://bucket/train -o train.manifest --index train.index\n  \
            copperfs dataset manifest /lus/shards -o shards.manifest --entries samples.tsv\n\n\
            A manifest that was interrupted goes on when the command is repeated: files that have not \
            changed are not read again. The format: docs/manifest-format.md")]
    Manifest(ManifestArgs),
}

/// Flags of `dataset add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// Its name
    name: String,
    /// Where it begins: a path in a mount point or in the namespace, or a URI that an origin serves
    #[arg(value_name = "PATH|URI")]
    place: String,
    /// Take its size and its items from this index, which copperfs index has made: a path of the
    /// namespace, or of the roots' hosts
    #[arg(long, value_name = "FILE")]
    index: Option<String>,
    /// Take its entries from this manifest, which copperfs dataset manifest has made: a path of the
    /// namespace. Items of equal content are then kept once, wherever they lie
    #[arg(long, value_name = "FILE", conflicts_with = "index")]
    manifest: Option<String>,
    /// Bytes of cache, set by hand [default: the allocator decides]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    budget: Option<String>,
    /// Who reads storage: the roots, or each home by itself
    #[arg(long, value_name = "WHO", default_value = "roots", value_parser = ["roots", "homes"])]
    origin_readers: String,
    /// What its homes keep: items up to the budget (uniform), two chunks that change as jobs read them, the items that
    /// pipelines refer to most (references), nothing, or as the policy decides
    #[arg(long, value_name = "RULE", default_value = "auto", value_parser = KEEP)]
    keep: String,
    /// The largest a chunk may be; there are at least ten [default: 15GB]
    #[arg(long, value_name = "SIZE", requires = "manifest")]
    chunk_size: Option<ByteSize>,
    /// How long a chunk that is to be evicted stays after the first job has exhausted it [default: 60s]
    #[arg(long, value_name = "DURATION", requires = "manifest", value_parser = parse_duration)]
    evict_after: Option<Duration>,
    /// Give its items to processes that read its files only, and not to those that know a hash (see docs/client.md)
    #[arg(long)]
    private: bool,
    /// Replace a dataset of this name, if there is one; jobs that read it go on
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    how: AskArgs,
}

/// Flags of `dataset set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Its name
    name: String,
    /// What its homes keep: items up to the budget (uniform), two chunks that change as jobs read them, the items that
    /// pipelines refer to most (references), nothing, or as the policy decides
    #[arg(long, value_name = "RULE", value_parser = KEEP, required_unless_present = "budget")]
    keep: Option<String>,
    /// Bytes of cache over all nodes, with a unit: 120GB, 1TiB; auto: as the policy decides
    #[arg(long, value_name = "SIZE|auto", allow_hyphen_values = true)]
    budget: Option<String>,
    #[command(flatten)]
    how: AskArgs,
}

/// The names of the rules that homes have, for flags.
const KEEP: [&str; 5] = [
    Keep::Auto.name(),
    Keep::Uniform.name(),
    Keep::Chunks.name(),
    Keep::References.name(),
    Keep::None.name(),
];

/// Flags of what is about one of them.
#[derive(Debug, Args)]
pub struct OneArgs {
    /// Its name
    pub(super) name: String,
    #[command(flatten)]
    pub(super) how: AskArgs,
}

/// Does it.
///
/// # Errors
/// The daemon cannot be reached, or refuses; a manifest cannot be made.
pub fn dataset(command: &DatasetCommand) -> anyhow::Result<()> {
    let path = |name: &str| format!("/v1/datasets/{}", encoded(name));
    match command {
        DatasetCommand::Add(args) => add(args),
        DatasetCommand::Set(args) => set(args, &path(&args.name)),
        DatasetCommand::List(how) => how.show("GET", "/v1/datasets", None, datasets),
        DatasetCommand::Show(OneArgs { name, how }) => how.show("GET", &path(name), None, one),
        DatasetCommand::Rm(OneArgs { name, how }) => {
            let told = |_: &Value| format!("removed dataset {name}");
            how.show("DELETE", &path(name), None, told)
        }
        DatasetCommand::Manifest(args) => manifest(args),
    }
}

fn set(args: &SetArgs, path: &str) -> anyhow::Result<()> {
    let name = &args.name;
    if let Some(keep) = &args.keep {
        let body = json!({ "keep": keep });
        let told = |_: &Value| format!("{name}: keep {keep}");
        args.how
            .show("PUT", &format!("{path}/keep"), Some(&body), told)?;
    }
    if let Some(budget) = &args.budget {
        let body = json!({ "size": amount_or_null(budget) });
        let told = |_: &Value| format!("{name}: budget {}", told(budget));
        args.how
            .show("PUT", &format!("{path}/cache"), Some(&body), told)?;
    }
    Ok(())
}

fn add(args: &AddArgs) -> anyhow::Result<()> {
    let here = Machine::inspect().working_dir;
    let mut body = json!({
        "name": args.name,
        "origin_readers": args.origin_readers,
        "keep": args.keep,
        "private": args.private,
        "replace": args.replace,
    });
    if args.place.contains("://") {
        body["uri"] = json!(args.place);
    } else {
        body["path"] = json!(absolute(&args.place, &here));
    }
    if let Some(index) = &args.index {
        body["index"] = json!(absolute(index, &here));
    }
    if let Some(manifest) = &args.manifest {
        body["manifest"] = json!(absolute(manifest, &here));
    }
    if let Some(budget) = &args.budget {
        body["budget"] = json!(budget);
    }
    if let Some(ByteSize(size)) = args.chunk_size {
        body["chunk_size"] = json!(size);
    }
    if let Some(evict_after) = args.evict_after {
        body["evict_after_s"] = json!(evict_after.as_secs_f64());
    }
    let answer = args.how.mounted.ask("POST", "/v1/datasets", Some(&body))?;
    if let Some(trouble) = answer["trouble"].as_str() {
        fail(format_args!("warning: {}: {trouble}", args.name));
    }
    print(args.how.json, &answer, added)?;
    if !args.how.json && args.origin_readers == "roots" {
        proposed(args)?.into_iter().for_each(say);
    }
    Ok(())
}

/// Returns the proposal for a new dataset. The homes look at storage when they hear of it, which is waited for a while.
fn proposed(args: &AddArgs) -> anyhow::Result<Option<String>> {
    let client = args.how.mounted.client()?;
    let path = format!("/v1/datasets/{}", encoded(&args.name));
    run(async {
        for _ in 0..LOOKS {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let found = proposal(&client.ask("GET", &path, None).await?);
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    })
}

/// How often `dataset add` looks whether homes can read storage by themselves.
const LOOKS: u32 = 8;
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// What would relieve the roots, if all homes of a dataset can read its storage by themselves.
fn proposal(dataset: &Value) -> Option<String> {
    let could = dataset["homes_can_read"] == true && dataset["origin_readers"] == "roots";
    could.then(|| {
        "all homes can read this storage by themselves: with --origin-readers homes (and --replace) no root \
         is in the way of the first epoch"
            .to_owned()
    })
}

/// `path` as an absolute path. URIs are not changed.
fn absolute(path: &str, here: &Path) -> String {
    if path.starts_with('/') || path.contains("://") {
        return path.to_owned();
    }
    without_dots(&here.join(path)).display().to_string()
}

fn added(answer: &Value) -> String {
    let name = text(answer, "name");
    match number(answer, "size") {
        Some(_) => format!(
            "{name}: {} items, {} in total; cache budget {}",
            number(answer, "items").unwrap_or(0),
            bytes(answer, "size"),
            bytes(answer, "budget"),
        ),
        None => format!(
            "added {name}; its files are being counted (progress: copperfs dataset show {name})"
        ),
    }
}

/// The datasets of an answer as a table.
pub(super) fn datasets(answer: &Value) -> String {
    let all = list(answer, "datasets");
    if all.is_empty() {
        return "no dataset is declared: copperfs dataset add NAME PATH".into();
    }
    let mut out = Table::of(all)
        .column("dataset", |one| text(one, "name"))
        .column("path", |one| text(one, "path"))
        .column("items", |one| or_dash(number(one, "items")))
        .column("size", |one| bytes(one, "size"))
        .column("budget", |one| budget(one))
        .column("cached", |one| bytes(one, "cached"))
        .column("", |one| percent(one, "cached_ratio"))
        .text();
    for one in all {
        if let Some(trouble) = one["trouble"].as_str() {
            out.push_str(&format!("{}: {trouble}\n", text(one, "name")));
        }
    }
    out
}

fn budget(one: &Value) -> String {
    match number(one, "pinned") {
        None => bytes(one, "budget"),
        Some(set) if number(one, "budget") == Some(set) => format!("{} (set)", Whole(set)),
        Some(_) => format!("{} (set)", bytes(one, "budget")),
    }
}

fn one(answer: &Value) -> String {
    let mut out = format!(
        "{} at {}, storage read by {}, keep {}\n",
        text(answer, "name"),
        text(answer, "path"),
        text(answer, "origin_readers"),
        text(answer, "keep"),
    );
    let counting = &answer["counting"];
    if !counting.is_null() {
        out.push_str(&format!(
            "being counted: {} items of {} in {} directories so far\n",
            number(counting, "items").unwrap_or(0),
            bytes(counting, "bytes"),
            number(counting, "directories").unwrap_or(0),
        ));
    }
    if let Some(items) = number(answer, "items") {
        out.push_str(&format!("{items} items of {}\n", bytes(answer, "size")));
    }
    out.push_str(&format!(
        "budget {}, cached {} ({}), read from storage {}\n",
        budget(answer),
        bytes(answer, "cached"),
        percent(answer, "cached_ratio"),
        bytes(answer, "origin_bytes"),
    ));
    if let Some(proposal) = proposal(answer) {
        out.push_str(&format!("{proposal}\n"));
    }
    if let references @ Value::Object(_) = &answer["references"] {
        out.push_str(&by_count(references));
    }
    if let Some(index) = answer["index"].as_str() {
        out.push_str(&format!("index {index}\n"));
    }
    if let Some(manifest) = answer["manifest"].as_str() {
        out.push_str(&format!("manifest {manifest}\n"));
    }
    for chunk in list(answer, "chunks") {
        out.push_str(&format!(
            "chunk {}: {}, {} of {} entries{}\n",
            number(chunk, "chunk").unwrap_or(0),
            text(chunk, "state"),
            number(chunk, "held").unwrap_or(0),
            number(chunk, "entries").unwrap_or(0),
            match number(chunk, "lost") {
                None | Some(0) => String::new(),
                Some(lost) => format!(", {lost} could not be kept"),
            }
        ));
    }
    if let Some(trouble) = answer["trouble"].as_str() {
        out.push_str(&format!("trouble: {trouble}\n"));
    }
    let homes = list(answer, "homes");
    if !homes.is_empty() {
        let homes = Table::of(homes)
            .column("home", |home| text(home, "node"))
            .column("share", |home| bytes(home, "share"))
            .column("cached", |home| bytes(home, "cached"));
        out.push_str(&format!("\n{}", homes.text()));
    }
    out
}

/// What homes keep by the references of pipelines.
fn by_count(references: &Value) -> String {
    let count = |key: &str| number(references, key).unwrap_or(0);
    format!(
        "{} live pipelines with {} references: cached {} that they refer to, {} without references, {} undeclared\n\
         {} reads hit, {} missed ({}), {} items made room for others\n",
        count("jobs"),
        count("references"),
        bytes(references, "referenced"),
        bytes(references, "unreferenced"),
        bytes(references, "undeclared"),
        count("hits"),
        count("misses"),
        percent(references, "hit_ratio"),
        count("evicted"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_is_told_in_a_few_lines() {
        let answer = json!({
            "name": "imagenet", "path": "/lus/imagenet", "origin_readers": "roots",
            "keep": "uniform",
            "size": 1_u64 << 40, "items": 1_281_167, "counting": null, "budget": 1_u64 << 39,
            "pinned": 1_u64 << 39, "cached": 1_u64 << 38, "cached_ratio": 0.25, "origin_bytes": 0,
            "index": "/lus/imagenet/.index", "trouble": "n1: storage is gone",
            "homes": [{"node": "n0", "share": 1_u64 << 39, "cached": 1_u64 << 38}],
        });
        assert_eq!(
            one(&answer),
            "imagenet at /lus/imagenet, storage read by roots, keep uniform\n\
             1281167 items of 1.00 TiB\n\
             budget 512 GiB (set), cached 256 GiB (25.0 %), read from storage 0 B\n\
             index /lus/imagenet/.index\n\
             trouble: n1: storage is gone\n\n\
             home    share   cached\nn0    512 GiB  256 GiB\n"
        );
        let all = datasets(&json!({ "datasets": [answer] }));
        assert!(all.ends_with("imagenet: n1: storage is gone\n"), "{all}");
        assert!(datasets(&json!({ "datasets": [] })).contains("copperfs dataset add"));
        let counted = json!({ "name": "a", "size": null });
        assert!(added(&counted).contains("are being counted"));
    }

    #[test]
    fn paths_are_made_absolute_and_uris_stay() {
        let here = Path::new("/home/user");
        assert_eq!(absolute("./data/a", here), "/home/user/data/a");
        assert_eq!(absolute("/lus/a", here), "/lus/a");
        assert_eq!(absolute("s3://b/a", here), "s3://b/a");
    }
}
