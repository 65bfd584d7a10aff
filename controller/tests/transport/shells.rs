//! The bootstrap reaches `sh` through every common login shell.

use std::{fs, path::Path};

use gpufleet::session::NodeSession;
use gpufleet_protocol::{Reply, Request};
use serde_json::json;

use crate::{
    fake_helper::{fake, forget},
    node::{Node, Setup},
    users::User,
};

#[tokio::test]
async fn every_login_shell_starts_the_helper() {
    let node = Node::start_with(&Setup::with(&["SetEnv X=1"]));
    for shell in [
        "/bin/sh",
        "/bin/bash",
        "/bin/dash",
        "/usr/bin/zsh",
        "/bin/tcsh",
        "/bin/csh",
        "/usr/bin/fish",
        "/bin/ksh",
        "/bin/mksh",
    ] {
        assert!(Path::new(shell).exists(), "this test needs {shell}; `make setup` installs it");
        let user = User::create(shell, Some("USER ALL=(ALL) NOPASSWD: ALL"));
        fs::write(format!("{}/.cshrc", user.home()), "echo csh noise\n").unwrap();
        for escalated in [false, true] {
            let target = node.target_with(json!({"ansible_user": user.name, "ansible_become": escalated}));
            let session = NodeSession::open(&node.connector(), &target, &fake(shell)).await;
            let session = session.unwrap_or_else(|error| panic!("{shell}: {error}"));
            assert_eq!(session.hello().uid == 0, escalated, "{shell}");
            assert_eq!(session.simple(Request::ForgetPredictions).await.unwrap(), Reply::Done, "{shell}");
            forget(session).await;
        }
    }
}
