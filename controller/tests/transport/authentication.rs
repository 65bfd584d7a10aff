//! Every way of authentication, against a real sshd.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use serde_json::json;

use crate::{
    node::{Agent, Node, Setup, connector, exec, keygen, public, run},
    users::User,
};

async fn whoami(node: &Node) -> String {
    node.exec("echo in").await.unwrap().stdout
}

#[tokio::test]
async fn a_command_runs_and_its_streams_and_exit_come_back() {
    let node = Node::start();
    let output = node.exec("echo out; echo err >&2; exit 3").await.unwrap();
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(output.exit.as_deref(), Some("exit code 3"));
}

#[tokio::test]
async fn every_key_type_works() {
    let node = Node::start();
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let key = keygen(node.dir.path(), kind, kind, "");
        node.authorize(&public(&key));
        let target = node.target_with(json!({"ansible_ssh_private_key_file": key}));
        let output = exec(&node.connector(), &target, "echo in").await.unwrap();
        assert_eq!(output.stdout, "in\n", "{kind}");
    }
}

/// One key in 256 is one: its secret number begins with a zero byte, which OpenSSH leaves out.
#[tokio::test]
async fn p256_keys_with_a_short_secret_number_work() {
    let node = Node::start();
    for (name, passphrases) in [
        ("short_scalar", &[] as &[&str]),
        ("short_scalar_encrypted", &["wrong", "open sesame"]),
        ("short_scalar_gcm", &["open sesame"]),
    ] {
        let key = node.path(name);
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transport/keys").join(name), &key)
            .unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        node.authorize(include_str!("keys/short_scalar.pub"));
        node.prompt.answers.lock().unwrap().extend(passphrases.iter().map(ToString::to_string));
        let target = node.target_with(json!({"ansible_ssh_private_key_file": key}));
        let output = exec(&node.connector(), &target, "echo in").await.unwrap();
        assert_eq!(output.stdout, "in\n", "{name}");
        assert!(node.prompt.answers.lock().unwrap().is_empty(), "{name}");
    }
}

#[tokio::test]
async fn keys_in_pem_work() {
    let node = Node::start();
    let key = keygen(node.dir.path(), "pem", "rsa", "");
    run(Command::new("ssh-keygen").args(["-q", "-p", "-m", "PEM", "-N", "", "-f"]).arg(&key));
    node.authorize(&public(&key));
    let target = node.target_with(json!({"ansible_ssh_private_key_file": key}));
    assert_eq!(exec(&node.connector(), &target, "echo in").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn an_encrypted_key_asks_once_for_all_nodes() {
    let node = Node::start();
    let key = keygen(node.dir.path(), "locked", "ed25519", "open sesame");
    node.authorize(&public(&key));
    node.prompt.answers.lock().unwrap().extend(["wrong".to_owned(), "open sesame".to_owned()]);
    let (connector, target) =
        (node.connector(), node.target_with(json!({"ansible_ssh_private_key_file": key})));
    let runs = (0..4).map(|_| exec(&connector, &target, "echo in"));
    for output in futures::future::join_all(runs).await {
        assert_eq!(output.unwrap().stdout, "in\n");
    }
    assert_eq!(node.prompt.asked.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn an_encrypted_key_without_a_terminal_is_a_clear_error() {
    let node = Node::start();
    let key = keygen(node.dir.path(), "locked", "ed25519", "open sesame");
    node.authorize(&public(&key));
    let target = node.target_with(json!({"ansible_ssh_private_key_file": key}));
    let error = exec(&node.connector(), &target, "true").await.unwrap_err().to_string();
    assert!(error.starts_with("gpu001: user `root` was not let in; tried key "), "{error}");
    assert!(
        error.contains(
            "it is encrypted and there is no terminal to ask on; add it to the agent with `ssh-add`"
        ),
        "{error}"
    );
}

#[tokio::test]
async fn no_passphrase_is_asked_for_a_key_that_the_node_does_not_take() {
    let node = Node::start();
    let key = keygen(node.dir.path(), "locked", "ed25519", "open sesame");
    let target = node.target_with(json!({"ansible_ssh_private_key_file": key}));
    assert!(exec(&node.connector(), &target, "true").await.is_err());
    assert!(node.prompt.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_agent_signs_with_every_key_type() {
    let node = Node::start();
    fs::remove_file(node.client_key()).unwrap();
    let agent = Agent::start(node.dir.path());
    let mut environment = node.environment();
    environment.ssh_auth_sock = Some(agent.socket.clone());
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let key = keygen(node.dir.path(), kind, kind, "");
        agent.add(&key);
        node.authorize(&public(&key));
        let output = exec(&connector(environment.clone()), &node.target(), "echo in").await.unwrap();
        assert_eq!(output.stdout, "in\n", "{kind}");
    }
}

#[tokio::test]
async fn identities_only_offers_no_other_agent_key() {
    let node = Node::start();
    let agent = Agent::start(node.dir.path());
    let in_agent = keygen(node.dir.path(), "agent", "ed25519", "");
    agent.add(&in_agent);
    node.authorize(&public(&in_agent));
    let mut environment = node.environment();
    environment.ssh_auth_sock = Some(agent.socket.clone());
    let target = node.target_with(json!({"ansible_ssh_common_args": "-o IdentitiesOnly=yes"}));
    assert!(exec(&connector(environment.clone()), &target, "true").await.is_err());
    // A public key alone selects the agent's key.
    let named = node.path("named");
    fs::copy(format!("{}.pub", in_agent.display()), &named).unwrap();
    let target = node.target_with(json!({
        "ansible_ssh_common_args": "-o IdentitiesOnly=yes", "ansible_ssh_private_key_file": named,
    }));
    assert_eq!(exec(&connector(environment), &target, "echo in").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn too_many_agent_keys_are_named_as_the_reason() {
    let node = Node::start_with(&Setup::with(&["MaxAuthTries 3"]));
    let agent = Agent::start(node.dir.path());
    for n in 0..5 {
        agent.add(&keygen(node.dir.path(), &format!("k{n}"), "ed25519", ""));
    }
    let mut environment = node.environment();
    environment.ssh_auth_sock = Some(agent.socket.clone());
    let error = exec(&connector(environment), &node.target(), "true").await.unwrap_err().to_string();
    assert!(error.contains("Too many authentication failures"), "{error}");
    assert!(error.contains("IdentitiesOnly=yes"), "{error}");
}

fn certify(node: &Node, kind: &str, ca_kind: &str) -> std::path::PathBuf {
    let ca = keygen(node.dir.path(), &format!("ca-{kind}"), ca_kind, "");
    let key = keygen(node.dir.path(), &format!("user-{kind}"), kind, "");
    run(Command::new("ssh-keygen")
        .args(["-q", "-s"])
        .arg(&ca)
        .args(["-I", "id", "-n", "root", "-V", "+1h"])
        .arg(format!("{}.pub", key.display())));
    node.authorize("");
    fs::write(node.path("etc/user_ca"), format!("{}\n", public(&ca))).unwrap();
    key
}

#[tokio::test]
async fn user_certificates_work_from_files_and_from_the_agent() {
    let node = Node::start_with(&Setup::with(&["TrustedUserCAKeys @DIR@/etc/user_ca"]));
    fs::remove_file(node.client_key()).unwrap();
    for (kind, ca) in [("ed25519", "ed25519"), ("ecdsa", "ecdsa"), ("rsa", "rsa")] {
        let key = certify(&node, kind, ca);
        let target = node.target_with(json!({"ansible_ssh_private_key_file": key}));
        assert_eq!(exec(&node.connector(), &target, "echo in").await.unwrap().stdout, "in\n", "{kind} file");
        let agent = Agent::start(&node.path("client"));
        agent.add(&key);
        let mut environment = node.environment();
        environment.ssh_auth_sock = Some(agent.socket.clone());
        let output = exec(&connector(environment), &node.target(), "echo in").await.unwrap();
        assert_eq!(output.stdout, "in\n", "{kind} agent");
        drop(agent);
        let _ = fs::remove_file(node.path("client/agent.sock"));
    }
}

#[tokio::test]
async fn a_password_and_keyboard_interactive_work() {
    let user = User::create("/bin/sh", None);
    for lines in [
        &["PasswordAuthentication yes", "SetEnv X=1"][..],
        &["UsePAM yes", "KbdInteractiveAuthentication yes", "PasswordAuthentication no", "SetEnv X=1"][..],
    ] {
        let node = Node::start_with(&Setup::with(lines));
        node.authorize("");
        let target = node.target_with(json!({"ansible_user": user.name, "ansible_password": user.password}));
        let output = exec(&node.connector(), &target, "id -un").await.unwrap();
        assert_eq!(output.stdout.trim(), user.name, "{lines:?}");

        let target = node.target_with(json!({"ansible_user": user.name, "ansible_password": "wrong-one"}));
        let error = exec(&node.connector(), &target, "true").await.unwrap_err().to_string();
        assert!(error.contains("was not let in") && !error.contains("wrong-one"), "{error}");

        let target = node.target_with(json!({"ansible_user": user.name}));
        let error = exec(&node.connector(), &target, "true").await.unwrap_err().to_string();
        assert!(error.contains("set `ansible_password` or use --ask-pass"), "{error}");
    }
}

#[tokio::test]
async fn a_key_and_then_a_password_work_where_both_are_wanted() {
    let user = User::create("/bin/sh", None);
    let node = Node::start_with(&Setup::with(&[
        "PasswordAuthentication yes",
        "AuthenticationMethods publickey,password",
        "SetEnv X=1",
    ]));
    let target = node.target_with(json!({"ansible_user": user.name, "ansible_password": user.password}));
    assert_eq!(exec(&node.connector(), &target, "echo in").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn keys_that_cannot_be_used_are_named() {
    let node = Node::start();
    let open = keygen(node.dir.path(), "open", "ed25519", "");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let garbage = node.path("garbage");
    fs::write(&garbage, "not a key").unwrap();
    fs::set_permissions(&garbage, fs::Permissions::from_mode(0o600)).unwrap();
    for (key, word) in [
        (open.clone(), "others can read it (mode 0644); `chmod 600"),
        (garbage, "it is no private key that can be read"),
        (node.path("absent"), "does not exist"),
    ] {
        let target = node.target_with(json!({"ansible_ssh_private_key_file": key}));
        let error = exec(&node.connector(), &target, "true").await.unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
        assert!(error.contains("the node takes publickey"), "{error}");
    }
}

#[tokio::test]
async fn the_banner_is_no_obstacle_and_shown_with_a_refusal() {
    let node = Node::start_with(&Setup::with(&["Banner @DIR@/etc/banner"]));
    fs::write(node.path("etc/banner"), "Authorised use only\n").unwrap();
    assert_eq!(whoami(&node).await, "in\n");
    node.authorize("");
    let error = node.exec("true").await.unwrap_err().to_string();
    assert!(error.contains("its banner: Authorised use only"), "{error}");
}
