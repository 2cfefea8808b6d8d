//! The catalogue, the tests and the snapshot files name the same criteria.

use std::collections::BTreeSet;
use std::path::Path;

use snapshots::{FAMILIES, SHOWN, specification};

#[test]
fn every_shown_criterion_is_of_the_specification() {
    let specification = specification();
    assert_eq!(specification.len(), 105);
    for criterion in SHOWN {
        assert!(specification.contains(&criterion.id), "{} is not in specification.txt", criterion.id);
    }
}

#[test]
fn every_criterion_has_exactly_one_snapshot_file_and_there_are_no_others() {
    let expected: BTreeSet<String> =
        SHOWN.iter().map(|criterion| format!("{}.snap", criterion.test_name())).collect();
    assert_eq!(files("tests/snapshots"), expected);
    assert_eq!(expected.len(), SHOWN.len(), "an id stands twice in the catalogue");
}

#[test]
fn every_snapshot_opens_with_its_criterion_and_its_sentence() {
    for criterion in SHOWN {
        let text = read(&format!("tests/snapshots/{}.snap", criterion.test_name()));
        let content = text.splitn(3, "---\n").nth(2).unwrap_or_default();
        let opening = format!("{} {}\n", criterion.id, criterion.sentence);
        assert!(content.starts_with(&opening), "{} does not open with: {opening}", criterion.id);
        assert!(content.len() > opening.len() + 40, "{} shows nothing", criterion.id);
    }
}

#[test]
fn every_criterion_has_exactly_one_test() {
    let files = ["survival", "admission", "tenure"];
    let tests: String = files.iter().map(|file| read(&format!("tests/criteria/{file}.rs"))).collect();
    for criterion in SHOWN {
        let declared = format!("fn {}()", criterion.test_name());
        assert_eq!(tests.matches(&declared).count(), 1, "{declared} in tests/criteria");
    }
    assert_eq!(tests.matches("#[test]").count(), SHOWN.len(), "a test that shows no criterion");
}

#[test]
fn every_family_that_is_shown_names_a_planted_bug() {
    let families: BTreeSet<&str> =
        SHOWN.iter().filter_map(|criterion| criterion.id.split('.').next()).collect();
    let named: BTreeSet<&str> = FAMILIES.iter().map(|family| family.prefix).collect();
    assert_eq!(named, families);
}

#[test]
fn the_open_criteria_are_listed() {
    let open: Vec<&str> =
        specification().into_iter().filter(|id| !SHOWN.iter().any(|criterion| criterion.id == *id)).collect();
    println!("{} criteria are shown, {} are open: {}", SHOWN.len(), open.len(), open.join(" "));
    assert_eq!(open.len() + SHOWN.len(), specification().len());
}

fn files(directory: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    list(&path).into_iter().filter(|name| name.ends_with(".snap")).collect()
}

#[expect(clippy::disallowed_methods, reason = "a test of the repository's own files")]
fn list(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[expect(clippy::disallowed_methods, reason = "a test of the repository's own files")]
fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
