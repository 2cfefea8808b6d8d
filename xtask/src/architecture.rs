//! The architecture's rules that no compiler checks: who may depend on whom, who may name the operating system,
//! and what must not stand in the code at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{Failed, root};

/// Checks every rule and names every place that breaks one.
pub(crate) fn check() -> Result<(), Failed> {
    let mut broken = Vec::new();
    check_arrows(&mut broken)?;
    check_top_level(&mut broken)?;
    for file in rust_files()? {
        check_file(&file, &mut broken)?;
    }
    if broken.is_empty() {
        return Ok(());
    }
    Err(Failed(format!("{} broken:\n  {}", broken.len(), broken.join("\n  "))))
}

/// The members of the workspace that each member may depend on. Tests may use more.
fn arrows() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        ("seam", &[] as &[&str]),
        ("wire", &["seam"]),
        ("system", &["seam"]),
        ("controld", &["seam", "wire", "system"]),
        ("backend-recovery", &["seam", "wire", "system"]),
        ("sim", &["seam", "wire", "system", "controld", "backend-recovery"]),
        ("snapshots", &["sim"]),
        ("xtask", &[]),
    ])
}

fn check_arrows(broken: &mut Vec<String>) -> Result<(), Failed> {
    let arrows = arrows();
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let members: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(allowed) = arrows.get(name) else {
            broken.push(format!("{name}: no arrow is drawn for this package in xtask/src/architecture.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let on = dependency["name"].as_str().unwrap_or_default();
            let normal = dependency["kind"].is_null();
            if normal && members.contains(&on) && !allowed.contains(&on) {
                broken.push(format!("{name}: must not depend on {on}"));
            }
            if normal && ["turmoil", "rsqlite-vfs", "seccompiler"].contains(&on) && name != "sim" {
                broken.push(format!("{name}: {on} is the simulator's alone"));
            }
        }
    }
    Ok(())
}

/// What the root may hold beside dotfiles and the lock file.
const TOP_LEVEL: [&str; 9] = [
    "Cargo.toml",
    "README.md",
    "LICENSE",
    "sim",
    "controld",
    "backend-recovery",
    "k8s-retention",
    "snapshots",
    "xtask",
];

fn check_top_level(broken: &mut Vec<String>) -> Result<(), Failed> {
    for path in tracked_files()? {
        let first = path.iter().next().unwrap_or_default().to_string_lossy().into_owned();
        if !first.starts_with('.') && first != "Cargo.lock" && !TOP_LEVEL.contains(&first.as_str()) {
            broken.push(format!("{}: the layout has no top-level entry {first}", path.display()));
        }
    }
    Ok(())
}

fn check_file(path: &Path, broken: &mut Vec<String>) -> Result<(), Failed> {
    let text = std::fs::read_to_string(root().join(path))
        .map_err(|error| Failed(format!("{} cannot be read: {error}", path.display())))?;
    let shown = path.to_string_lossy();
    let is_main = path.file_name().is_some_and(|name| name == "main.rs") || shown.contains("/src/bin/");
    let is_system = shown.starts_with("controld/system/");
    let is_production =
        ["controld/src/", "controld/wire/src/", "backend-recovery/src/", "k8s-retention/src/"]
            .iter()
            .any(|package| shown.starts_with(package));
    for (index, line) in text.lines().enumerate() {
        let mut break_rule = |rule: &str| broken.push(format!("{shown}:{}: {rule}", index + 1));
        let code = without_texts(line.split("//").next().unwrap_or_default());
        if code.contains("system::") && !is_main && !is_system && !shown.contains("/tests/") {
            break_rule("only a main.rs names `system`");
        }
        if is_production && ["cfg(feature", "cfg!(", "simulat"].iter().any(|word| code.contains(word)) {
            break_rule("production code does not know that it is being simulated, and has no switches");
        }
        for (word, rule) in forbidden_words() {
            if code.contains(word.as_str()) {
                break_rule(rule);
            }
        }
    }
    let is_root = shown.ends_with("/src/lib.rs") || shown.ends_with("/src/main.rs");
    let may_be_unsafe = is_system || shown.starts_with("sim/");
    if is_root && !may_be_unsafe && !text.contains("#![forbid(unsafe_code)]") {
        broken.push(format!("{shown}: a crate's root forbids unsafe code"));
    }
    Ok(())
}

/// The line without what stands between quotes.
fn without_texts(code: &str) -> String {
    code.split('"').step_by(2).collect()
}

/// Words that must not stand in code. They are put together here so that this file does not break its own rule.
fn forbidden_words() -> [(String, &'static str); 4] {
    [
        (format!("{}!(", "todo"), "unfinished"),
        (format!("{}!(", "unimplemented"), "unfinished"),
        (format!("#[{}", "ignore"), "a test that is not run proves nothing"),
        (format!("#[{}(", "allow"), "use #[expect(lint, reason = …)]"),
    ]
}

fn rust_files() -> Result<Vec<PathBuf>, Failed> {
    Ok(tracked_files()?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|kind| kind == "rs"))
        .collect())
}

fn tracked_files() -> Result<Vec<PathBuf>, Failed> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|error| Failed(format!("`git ls-files` could not be started: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(PathBuf::from).filter(|path| root().join(path).exists()).collect())
}

fn metadata() -> Result<serde_json::Value, Failed> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .map_err(|error| Failed(format!("`cargo metadata` could not be started: {error}")))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failed(format!("`cargo metadata` printed something else than JSON: {error}")))
}
