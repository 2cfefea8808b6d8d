//! The control server's own log file (S-001.3).

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::Value;

use crate::processes;
use crate::stage::Stage;

#[test]
fn the_control_server_writes_its_own_file_and_survives_its_removal() {
    let stage = Stage::new();
    let backend = stage.serve();
    let file = stage.home.join("logs/controld.log");
    assert_eq!(file.display().to_string(), backend.recovered()["server"]["log"].as_str().unwrap());
    let controld = stage.controld().unwrap();
    let (first, _) = stage.ready_session();
    logged(&stage, &file, &first);
    backend.kill();
    let _backend = stage.serve();
    fs::remove_dir_all(stage.home.join("logs")).unwrap();
    let (second, _) = stage.ready_session();
    stage.tell(&["session", "stop", &second]);
    let (third, _) = stage.ready_session();
    logged(&stage, &file, &third);
    assert_eq!(Some(controld), stage.controld());
    // A file in the directory's place, for as long as somebody likes.
    fs::remove_dir_all(stage.home.join("logs")).unwrap();
    fs::write(stage.home.join("logs"), "in the way").unwrap();
    stage.tell(&["prompt", &third, "hello"]);
    stage.turn_in(&third, "COMPLETED");
    stage.tell(&["session", "stop", &third]);
    assert!(processes::runs(controld));
    fs::remove_file(stage.home.join("logs")).unwrap();
    let mut last = stage.ready_session().0;
    stage.until("the log again", || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if text.contains("log lines lost") {
            return Some(());
        }
        stage.tell(&["session", "stop", &last]);
        last = stage.ready_session().0;
        None
    });
    assert_eq!(Some(controld), stage.controld());
}

#[test]
fn a_full_log_is_renamed_away_and_backups_go_by_count_and_age() {
    let stage = Stage::new();
    let logs = stage.home.join("logs");
    fs::create_dir(&logs).unwrap();
    let now = u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let day = 24 * 3600 * 1000;
    let backup = |days: u64| logs.join(format!("controld.log.{}", now - days * day));
    for days in [1, 2, 3, 40] {
        fs::write(backup(days), "old\n").unwrap();
    }
    for foreign in ["backend.log", "controld.log.old", "controld.log.1.gz"] {
        fs::write(logs.join(foreign), "not ours to remove\n").unwrap();
    }
    let full = vec![b'.'; 8 * 1024 * 1024 - 1];
    fs::write(logs.join("controld.log"), &full).unwrap();
    let _backend = stage.serve();
    let (session, _) = stage.ready_session();
    logged(&stage, &logs.join("controld.log"), &session);

    let mut names: Vec<_> = fs::read_dir(&logs)
        .unwrap()
        .flatten()
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
        .collect();
    names.sort();
    let kept: Vec<_> = names
        .iter()
        .filter(|(name, _)| name.starts_with("controld.log.1") && !name.ends_with("gz"))
        .collect();
    assert_eq!(3, kept.len(), "{names:?}");
    assert_eq!(full.len() as u64, kept.last().unwrap().1, "the newest backup is the file that was full");
    assert!(backup(1).exists() && backup(2).exists() && !backup(3).exists() && !backup(40).exists());
    assert!(
        ["backend.log", "controld.log.old", "controld.log.1.gz"].iter().all(|name| logs.join(name).exists())
    );
    assert!(fs::metadata(logs.join("controld.log")).unwrap().len() < 1024 * 1024);
}

/// Waits until the file's lines are JSON and one of them names the session.
fn logged(stage: &Stage, file: &Path, session: &str) {
    stage.until("the session in the log", || {
        let text = fs::read_to_string(file).ok()?;
        let whole = text.rsplit_once('\n')?.0;
        let lines: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.iter().any(|line| line["session"] == session).then_some(())
    });
}
