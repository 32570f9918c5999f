//! `copperfs dataset manifest` used wrongly.

use super::{copperfs, refused};

#[test]
fn a_manifest_of_nothing_or_in_no_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    std::fs::create_dir(here.join("set")).unwrap();
    let manifest =
        |place: &str, output: &str| refused(here, &["dataset", "manifest", place, "-o", output]);
    let said = manifest("set", "m");
    assert!(said.contains("set has no file"), "{said}");
    let said = manifest("none", "m");
    assert!(said.contains("cannot open none"), "{said}");
    let said = manifest("set", "none/m");
    assert!(
        said.contains("its directory does not exist; make it"),
        "{said}"
    );
    let names: Vec<_> = std::fs::read_dir(here).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "nothing is left behind: {names:?}");
}

/// The manifest, the index and the list may lie in the dataset, and are not entries of it.
#[test]
fn a_manifest_within_its_dataset_has_no_entry_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    for (name, content) in [("b", "bb"), ("a", "a"), ("order", "b\na\n")] {
        std::fs::write(here.join(name), content).unwrap();
    }
    let made = |flags: &[&str]| {
        let output = copperfs(
            here,
            &[&["dataset", "manifest", ".", "-o", "m", "--json"], flags].concat(),
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let by_order = made(&["--order", "order"]);
    assert_eq!(
        (&by_order["entries"], &by_order["bytes"]),
        (&2.into(), &3.into())
    );
    // Made again over the first one.
    assert_eq!(
        made(&["--order", "order"])["identity"],
        by_order["identity"]
    );
    std::fs::remove_file(here.join("order")).unwrap();
    let by_path = made(&[]);
    assert_eq!(by_path["entries"], 2);
    assert_ne!(by_path["identity"], by_order["identity"]);
    let index = copperfs(
        here,
        &["index", "build", ".", "-o", "i", "--hash", "--force"],
    );
    assert!(index.status.success());
    let indexed = made(&["--index", "i"]);
    assert_eq!(indexed["identity"], by_path["identity"]);
    assert_eq!(indexed["read_bytes"], 0);
}
