//! Settings that cannot be meant.

use std::fs;

use crate::stage::{Stage, assert_says, error_line};

#[test]
fn a_configuration_file_of_garbage_is_refused_by_name() {
    let stage = Stage::new();
    let file = stage.home.join("config.toml");
    let shown = file.display().to_string();
    fs::write(&file, "[agent\nstandalonePort = 1\n").unwrap();
    assert_says(&refused(&stage), &[&shown, "is not valid TOML", "line 1", "repair"]);
    fs::write(&file, "[profiles.secret]\ncommand = \"a\"\nenv = { KEY = \"hunter2 }\n").unwrap();
    let line = refused(&stage);
    assert_says(&line, &[&shown, "is not valid TOML", "line 3"]);
    assert!(!line.contains("hunter2"), "a profile's environment may hold keys: {line}");
    fs::write(&file, [0xff, 0xfe, 0x00]).unwrap();
    assert_says(&refused(&stage), &[&shown, "is not valid TOML"]);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_says(&refused(&stage), &[&shown, "cannot be read", "--config"]);
    let said = stage.run(&["serve", "--config", "/nowhere/config.toml"]);
    assert_eq!(2, said.code);
    assert_says(&said.err, &["/nowhere/config.toml", "cannot be read", "--config"]);
}

#[test]
fn a_value_out_of_range_is_refused_with_its_name_itself_and_its_rule() {
    for (name, value, rule) in [
        ("KANDEV_ACP_RECOVERY_DEADLINE", "301s", "a duration between 1s and 5m is needed"),
        ("KANDEV_ACP_RECOVERY_DEADLINE", "999ms", "a duration between 1s and 5m is needed"),
        ("KANDEV_ACP_RECOVERY_READ_TIMEOUT", "99ms", "a duration of 100ms or more is needed"),
        ("KANDEV_ACP_RECOVERY_READ_RETRIES", "11", "a whole number between 0 and 10 is needed"),
        ("KANDEV_ACP_RECOVERY_READ_RETRIES", "+2", "a whole number between 0 and 10 is needed"),
        ("KANDEV_AGENT_STANDALONE_PORT", "0", "a port between 1 and 65535 is needed"),
        ("KANDEV_AGENT_STANDALONE_PORT", "65536", "a port between 1 and 65535 is needed"),
        ("KANDEV_FEATURES_AGENT_SURVIVAL", "yes", "allowed are true and false"),
        ("KANDEV_SERVER_LISTEN", "localhost", "an address and port is needed, such as 127.0.0.1:38429"),
        ("KANDEV_HOME_DIR", "relative/home", "an absolute path is needed"),
        ("KANDEV_HOME_DIR", "", "an absolute path is needed"),
    ] {
        let stage = Stage::new().set(name, value);
        assert_says(&refused(&stage), &[&format!("{name} = {value:?}: {rule}")]);
    }
    let stage = Stage::with("[agent.more]\n");
    fs::write(stage.home.join("config.toml"), "[agent]\nstandalonePort = 70000\n").unwrap();
    assert_says(
        &refused(&stage),
        &["agent.standalonePort = \"70000\": a port between 1 and 65535 is needed"],
    );
}

#[test]
fn a_value_that_only_the_control_server_reads_is_refused_by_it_and_told_in_the_status() {
    for (name, value, rule) in [
        ("KANDEV_ACP_DETACHED_EVENT_LIMIT", "0", "a whole number from 1 to 10000"),
        ("KANDEV_ACP_DETACHED_EVENT_LIMIT", "10001", "a whole number from 1 to 10000"),
        ("KANDEV_ACP_UNOWNED_PERIOD", "soon", "10m"),
    ] {
        let stage = Stage::new().set(name, value);
        let backend = stage.serve();
        let text = stage.status_text();
        assert_says(&text, &["server     none: the control server refused its configuration", rule]);
        assert_says(&text, &[&format!("{name}={value:?}")]);
        let workspace = stage.workspace().display().to_string();
        let said = stage.run(&["session", "create", "--profile", "scripted", "--folder", &workspace]);
        assert_eq!(1, said.code);
        assert_says(
            &said.err,
            &["there is no control server to work with", rule, "control_server_unavailable"],
        );
        assert_eq!(0, backend.terminate());
        stage.nothing_left();
    }
}

fn refused(stage: &Stage) -> String {
    let (code, said) = stage.refused();
    assert_eq!(2, code, "{said}");
    stage.nothing_left();
    error_line(&said)
}
