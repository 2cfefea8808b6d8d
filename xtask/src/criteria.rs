//! Which criteria of the specification a snapshot shows.

use crate::cargo::{Failed, root};

/// Prints a line per criterion that has a snapshot, and the open ones.
pub(crate) fn print() -> Result<(), Failed> {
    let specification = root().join("snapshots/src/specification.txt");
    let all = std::fs::read_to_string(&specification)
        .map_err(|error| Failed(format!("{} cannot be read: {error}", specification.display())))?;
    let shown = shown()?;
    for line in &shown {
        println!("{line}");
    }
    let open: Vec<&str> = all
        .lines()
        .filter(|id| !shown.iter().any(|line| line.split_whitespace().next() == Some(*id)))
        .collect();
    println!("{} shown, {} open: {}", shown.len(), open.len(), open.join(" "));
    Ok(())
}

/// The first line of every snapshot's content: the criterion's id and its sentence.
fn shown() -> Result<Vec<String>, Failed> {
    let directory = root().join("snapshots/tests/snapshots");
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|kind| kind == "snap") {
            let text = std::fs::read_to_string(entry.path())
                .map_err(|error| Failed(format!("{} cannot be read: {error}", entry.path().display())))?;
            let content = text.splitn(3, "---\n").nth(2).unwrap_or_default();
            lines.push(content.lines().next().unwrap_or_default().to_owned());
        }
    }
    lines.sort();
    Ok(lines)
}
