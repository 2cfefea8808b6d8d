//! Homes that cannot be written to, in ways that stop the superuser too.

use std::fs;
use std::path::PathBuf;

use crate::stage::{Stage, assert_says, error_line};

#[test]
fn a_home_that_cannot_be_made_is_refused_by_name() {
    let stage = Stage::new();
    let file = stage.path("a-file");
    fs::write(&file, "mine").unwrap();
    for home in [file.join("home"), file.clone(), PathBuf::from("/proc/kandev-home")] {
        refuses(
            Stage::new().set("KANDEV_HOME_DIR", &home.display().to_string()),
            &home.display().to_string(),
        );
    }
    assert_eq!("mine", fs::read_to_string(&file).unwrap());
}

#[test]
fn a_file_in_the_way_of_a_directory_of_the_home_is_named() {
    let stage = Stage::new();
    let (run, home) = (stage.home.join("run"), stage.home.display().to_string());
    fs::write(&run, "mine").unwrap();
    let line = refuses(stage, &home);
    assert_says(&line, &[&run.display().to_string(), "a file is in the way"]);
}

#[test]
fn a_user_without_a_running_backend_is_told_how_to_start_one() {
    let stage = Stage::new();
    let without = |stage: &Stage| {
        let said = stage.run(&["status"]);
        assert_eq!((1, ""), (said.code, said.out.as_str()));
        let home = format!("no backend runs on home {}", stage.home.display());
        assert_says(&said.err, &[&home, "start it with `backend-recovery serve`"]);
    };
    without(&stage);
    stage.serve().kill();
    // A killed backend leaves its address behind; whoever asks there is told that nobody is.
    let said = stage.run(&["status"]);
    assert_eq!(1, said.code);
    assert_says(&said.err, &["the backend did not answer"]);
    fs::write(stage.home.join("run/backend.json"), "{garbage").unwrap();
    without(&stage);
}

fn refuses(stage: Stage, home: &str) -> String {
    let (code, said) = stage.refused();
    assert_eq!(1, code, "{said}");
    let line = error_line(&said);
    assert_says(
        &line,
        &[
            &format!("home {home} cannot be written to"),
            "the backend must own it and needs free space there",
            "choose another home with KANDEV_HOME_DIR",
        ],
    );
    stage.nothing_left();
    line
}
