use super::*;
use crate::config::keys::find;

const FILE: &str = "/etc/copperfs.toml";

fn in_file(text: &str) -> Layer {
    file::parse(text, Path::new(FILE)).unwrap()
}

/// A daemon that was started with `flags`, and with `text` as its file.
fn options(flags: &[(&'static str, &str)], text: &str) -> Options {
    let mut layer = Layer::default();
    for (key, value) in flags {
        layer.set(key, Source::Flag, vec![(*value).to_owned()]);
    }
    Options::new(layer.over(in_file(text)), Some(FILE.into()))
}

fn named(key: &'static str, value: &str) -> Request {
    let mut request = Request::default();
    (request.options).set(key, Source::Flag, vec![value.to_owned()]);
    request
}

fn with_file(text: &str) -> Request {
    Request {
        config: Some((FILE.into(), in_file(text))),
        again: true,
        ..Request::default()
    }
}

/// The lines of the changes, or the refusal.
fn outcome(before: &Options, request: &Request) -> Result<Vec<String>, String> {
    let none = BTreeMap::new();
    let next = before.after(request, &none).map_err(|e| e.to_string())?;
    let after = next.environment.clone().unwrap_or_default();
    let changes = before.changes(&next, &none, &after);
    check(&changes).map_err(|error| error.to_string())?;
    Ok(changes.iter().map(ToString::to_string).collect())
}

#[test]
fn named_options_change_and_the_others_stay() {
    let before = options(&[("arity", "8")], "ttl = \"1h\"\n");
    let request = named("log_level", "debug");
    assert_eq!(
        outcome(&before, &request).unwrap(),
        ["log_level: info -> debug"]
    );
    let next = before.after(&request, &BTreeMap::new()).unwrap();
    assert_eq!(next.layer.text("ttl"), Some("1h"));
    assert!(outcome(&next, &request).unwrap().is_empty());
    // A value that is named and equals the default is no change.
    assert!(
        outcome(&before, &named("symlinks", "relative"))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_key_that_the_file_no_longer_sets_returns_to_its_default() {
    let before = options(
        &[("gpus", "8")],
        "ttl = \"1h\"\nlog_level = \"warn\"\ngpus = 4\n",
    );
    let changed = outcome(&before, &with_file("log_level = \"debug\"\ngpus = 2\n"));
    // The flag of the mount overrides the file, as ever.
    assert_eq!(
        changed.unwrap(),
        ["ttl: 1h -> 1d", "log_level: warn -> debug"]
    );
    let again = before.after(&named("ttl", "2h"), &BTreeMap::new()).unwrap();
    let changed = outcome(&again, &with_file("ttl = \"3h\"\n")).unwrap();
    assert_eq!(
        changed,
        ["log_level: warn -> info"],
        "a reload's flags stay"
    );
}

#[test]
fn options_of_a_launch_are_flags() {
    let text = "arity = 8\nlog_level = \"warn\"\n";
    let layer = file::parse(text, Path::new("options")).unwrap().as_flags();
    let before = Options::new(layer, None);
    let changed = outcome(&before, &with_file("ttl = \"1h\"\n")).unwrap();
    assert_eq!(changed, ["ttl: 1d -> 1h"]);
}

#[test]
fn the_file_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.toml");
    std::fs::write(&path, "log_level = \"warn\"\nlog_file = \"here/log\"\n").unwrap();
    let layer = file::read(&path).unwrap().absolute(Path::new("/"));
    let before = Options::new(layer, Some(path.clone()));
    let again = Request {
        again: true,
        ..Request::default()
    };
    assert!(outcome(&before, &again).unwrap().is_empty());
    std::fs::write(&path, "log_level = \"debug\"\nlog_file = \"here/log\"\n").unwrap();
    assert_eq!(
        outcome(&before, &again).unwrap(),
        ["log_level: warn -> debug"]
    );
    std::fs::write(&path, "log_levle = \"debug\"\n").unwrap();
    let error = outcome(&before, &again).unwrap_err();
    assert!(
        error.contains("job.toml:1: unknown key") && error.contains("log_level?"),
        "{error}"
    );
}

#[test]
fn every_key_changes_or_is_refused_by_name() {
    let before = options(
        &[],
        "mountpoint = \"/mnt\"\n[[origin]]\nuri = \"s3://bucket\"\n",
    );
    let mut live = Vec::new();
    for key in KEYS.iter() {
        let other = match key.choices {
            [_, other, ..] => (*other).to_owned(),
            _ => format!("{}9", key.default),
        };
        match outcome(&before, &named(key.name, &other)) {
            Ok(changed) => {
                assert!(
                    changed[0].starts_with(&format!("{}: ", key.name)),
                    "{changed:?}"
                );
                live.push(key.name);
            }
            Err(refusal) => {
                assert_ne!(key.reload, Reload::Live, "{refusal}");
                assert!(refusal.contains("nothing has changed"), "{refusal}");
                assert!(refusal.contains(&format!(": {} ", key.name)), "{refusal}");
                if key.name != "mountpoint" {
                    let asked = format!("--{} asks for ", key.flag());
                    assert!(refusal.contains(&asked), "{refusal}");
                }
            }
        }
    }
    let marked = KEYS.iter().filter(|key| key.reload == Reload::Live);
    assert_eq!(live, marked.map(|key| key.name).collect::<Vec<_>>());
    assert!(live.contains(&"log_level") && find("arity").unwrap().reload == Reload::Remount);
}

#[test]
fn all_refused_keys_are_named_and_nothing_else_changes() {
    let before = options(&[], "arity = 4\n");
    let mut request = with_file("arity = 8\nopen = \"tracked\"\nttl = \"1h\"\n");
    (request.options).set("push", Source::Environment, vec!["false".into()]);
    let refusal = outcome(&before, &request).unwrap_err();
    assert_eq!(
        refusal,
        "only a new mount can change this, so nothing has changed: \
         arity is 4, and /etc/copperfs.toml:1: arity asks for 8; \
         open is zero-message, and /etc/copperfs.toml:2: open asks for tracked; \
         push is true, and COPPERFS_PUSH asks for false"
    );
}

#[test]
fn parts_of_an_option_change() {
    let text = |key: &str, owner: &str, uri: &str| {
        format!(
            "[[origin]]\nuri = \"{uri}\"\n[origin.options]\naws_secret_access_key = \"{key}\"\n\
             owner = \"{owner}\"\n"
        )
    };
    let before = options(&[], &text("one", "1:1", "s3://bucket"));
    let changed = outcome(&before, &with_file(&text("two", "1:1", "s3://bucket"))).unwrap();
    assert_eq!(changed, ["origin: (changed)"]);
    for refused in [
        text("one", "2:1", "s3://bucket"),
        text("one", "1:1", "s3://other"),
    ] {
        let refusal = outcome(&before, &with_file(&refused)).unwrap_err();
        assert!(
            refusal.contains("credentials") && !refusal.contains("two"),
            "{refusal}"
        );
    }
    let disk = |value| options(&[("disk", value)], "");
    let changed = outcome(&disk("/d:1GiB"), &named("disk", "/d:2GiB")).unwrap();
    assert_eq!(changed, ["disk: /d:1GiB -> /d:2GiB"]);
    let refusal = outcome(&disk("/d:1GiB"), &named("disk", "/e:1GiB")).unwrap_err();
    assert!(refusal.contains("what can change: its size"), "{refusal}");
    assert!(outcome(&options(&[], ""), &named("disk", "/d:1GiB")).is_err());
}

#[test]
fn variables_replace_those_of_the_same_name_and_are_not_shown() {
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(text).collect()
    };
    let present = map(&[
        ("AWS_REGION", "x"),
        ("AWS_ACCESS_KEY_ID", "old"),
        ("AWS_SECRET_ACCESS_KEY", "old"),
        ("AWS_SESSION_TOKEN", "old"),
    ]);
    let request = Request {
        environment: map(&[("AWS_ACCESS_KEY_ID", "new"), ("AWS_REGION", "")]),
        ..Request::default()
    };
    let before = options(&[], "");
    let next = before.after(&request, &present).unwrap();
    let after = next.environment.clone().unwrap();
    // A token belongs to the key that it came with.
    let expected = map(&[
        ("AWS_ACCESS_KEY_ID", "new"),
        ("AWS_SECRET_ACCESS_KEY", "old"),
    ]);
    assert_eq!(after, expected);
    let changes = before.changes(&next, &present, &after);
    let lines: Vec<String> = changes.iter().map(ToString::to_string).collect();
    let expected = [
        "AWS_ACCESS_KEY_ID: (changed)",
        "AWS_REGION: (changed)",
        "AWS_SESSION_TOKEN: (changed)",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn options_are_read_back() {
    let mut before = options(
        &[("arity", "8")],
        "[[origin]]\nuri = \"s3://b\"\n[origin.options]\nkey = \"x\"\n",
    );
    before.environment = Some(BTreeMap::from([("AWS_REGION".into(), "x".into())]));
    let text = serde_json::to_string(&before).unwrap();
    let again: Options = serde_json::from_str(&text).unwrap();
    assert!(again.layer == before.layer && again.config == before.config);
    assert_eq!(again.environment, before.environment);
    let misspelt = text.replace("\"arity\"", "\"artiy\"");
    let error = serde_json::from_str::<Options>(&misspelt).err().unwrap();
    assert!(error.to_string().contains("did you mean arity?"), "{error}");
}
