//! Jump hosts, proxy commands and `ssh_config`, with real daemons on both ends.

use std::{
    fs,
    time::{Duration, Instant},
};

use gpufleet::{
    session::NodeSession,
    transport::{ConnectError, Environment, Target, TargetDefaults},
};
use serde_json::{Value, json};

use crate::{
    fake_helper::fake,
    node::{Node, Setup, connector, exec, free_port},
};

/// A jump host and a node behind it, with one client configuration for both.
struct Route {
    bastion: Node,
    node: Node,
    environment: Environment,
}

impl Route {
    fn start(bastion: &Setup) -> Self {
        Self::between(Node::start_with(bastion), Node::start())
    }

    fn between(bastion: Node, node: Node) -> Self {
        let config = node.path("client/ssh_config");
        let text = format!(
            "Host bastion\n HostName 127.0.0.1\n Port {0}\n User root\n IdentityFile {1}\n UserKnownHostsFile {2}/known_hosts\n\
             Host loop\n ProxyJump loop2\nHost loop2\n ProxyJump loop\n\
             Host gpu-*\n HostName 127.0.0.1\n Port {3}\n ProxyJump bastion\n\
             Host *\n User root\n IdentityFile {4}\n UserKnownHostsFile {5}/known_hosts\n GlobalKnownHostsFile none\n",
            bastion.port,
            bastion.client_key().display(),
            bastion.ssh_dir().display(),
            node.port,
            node.client_key().display(),
            node.ssh_dir().display(),
        );
        fs::write(&config, text).unwrap();
        let mut environment = node.environment();
        environment.ssh_config = Some(config);
        Self { bastion, node, environment }
    }

    fn target(&self, variables: Value) -> Target {
        let Value::Object(variables) = variables else { panic!() };
        Target::from_variables("gpu-001", &variables, &TargetDefaults::default()).unwrap()
    }

    /// Returns the number of connections of the jump host's sshd.
    fn connections(&self) -> usize {
        let output = std::process::Command::new("ps").args(["-eo", "pid,ppid,args"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let parent = fs::read_to_string(self.bastion.path("etc/pid")).unwrap().trim().to_owned();
        text.lines().filter(|line| line.split_whitespace().nth(1) == Some(parent.as_str())).count()
    }
}

fn bastion() -> Setup {
    Setup::with(&["PidFile @DIR@/etc/pid"])
}

#[tokio::test]
async fn a_node_behind_a_jump_host_is_reached_by_configuration_and_by_arguments() {
    let route = Route::start(&bastion());
    let connector = connector(route.environment.clone());
    let output = exec(&connector, &route.target(json!({})), "echo $SSH_CONNECTION").await.unwrap();
    assert!(output.stdout.trim().ends_with(&route.node.port.to_string()), "{output:?}");
    let target = route.target(json!({
        "ansible_host": "127.0.0.1", "ansible_port": route.node.port, "ansible_ssh_common_args": "-J bastion",
    }));
    assert_eq!(exec(&connector, &target, "echo in").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn many_nodes_share_one_connection_to_their_jump_host() {
    let route = Route::start(&bastion());
    let connector = connector(route.environment.clone());
    let options = fake("behind-bastion");
    let target = route.target(json!({}));
    let opening = (0..12).map(|_| NodeSession::open(&connector, &target, &options));
    let sessions: Vec<_> = futures::future::join_all(opening).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(route.connections(), 1);
    for session in &sessions {
        session.simple(gpufleet_protocol::Request::ForgetPredictions).await.unwrap();
    }
    drop(sessions);
    connector.close().await;
}

#[tokio::test]
async fn two_jump_hosts_in_a_row_are_crossed() {
    let route = Route::start(&bastion());
    let connector = connector(route.environment.clone());
    let target = route.target(json!({
        "ansible_host": "127.0.0.1", "ansible_port": route.node.port,
        "ansible_ssh_common_args": format!("-J bastion,root@bastion:{}", route.bastion.port),
    }));
    assert_eq!(exec(&connector, &target, "echo in").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn what_is_wrong_with_a_jump_host_is_told() {
    let route = Route::start(&Setup::with(&["PidFile @DIR@/etc/pid", "AllowTcpForwarding no"]));
    let connector_ = connector(route.environment.clone());
    let error = exec(&connector_, &route.target(json!({})), "true").await.unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "gpu-001: the jump host bastion cannot reach 127.0.0.1:{}: it forbids forwarding (AllowTcpForwarding, PermitOpen)",
            route.node.port
        )
    );

    let route = Route::start(&bastion());
    let connector_ = connector(route.environment.clone());
    let closed = free_port();
    let target = route.target(json!({"ansible_port": closed}));
    let error = exec(&connector_, &target, "true").await.unwrap_err().to_string();
    assert_eq!(
        error,
        format!("gpu-001: the jump host bastion cannot reach 127.0.0.1:{closed}: connect failed")
    );

    route.bastion.authorize("");
    let fresh = connector(route.environment.clone());
    let error = exec(&fresh, &route.target(json!({})), "true").await.unwrap_err().to_string();
    assert!(
        error.starts_with(
            "gpu-001: the jump host bastion cannot be used: bastion: user `root` was not let in; tried key "
        ),
        "{error}"
    );

    let target = route.target(json!({"ansible_host": "loop"}));
    let error = exec(&fresh, &target, "true").await.unwrap_err();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    assert!(cause.to_string().contains("jump through each other"), "{error}");
}

#[tokio::test]
async fn a_dead_jump_host_costs_its_deadline_once() {
    let route = Route::start(&bastion());
    let dead = free_port();
    let target = route.target(json!({
        "ansible_host": "127.0.0.1", "ansible_port": route.node.port, "ansible_ssh_common_args": format!("-J 127.0.0.1:{dead}"),
    }));
    let connector = connector(route.environment.clone());
    let begin = Instant::now();
    let runs = (0..50).map(|_| exec(&connector, &target, "true"));
    for result in futures::future::join_all(runs).await {
        let error = result.unwrap_err();
        assert!(matches!(error, ConnectError::Jump { .. }), "{error}");
    }
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_jump_host_that_comes_back_is_used_again() {
    let route = Route::start(&bastion());
    let connector = connector(route.environment.clone());
    let session = NodeSession::open(&connector, &route.target(json!({})), &fake("again")).await.unwrap();
    connector.close().await;
    let reason = tokio::time::timeout(Duration::from_secs(60), session.closed()).await.unwrap();
    assert!(!reason.is_empty());
    assert_eq!(exec(&connector, &route.target(json!({})), "echo in").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn a_proxy_command_carries_the_connection_and_its_words_are_shown() {
    let node = Node::start();
    // With bash's /dev/tcp, so that nc is not needed.
    let script = node.path("proxy");
    fs::write(&script, "exec 3<>/dev/tcp/$1/$2; cat <&3 & cat >&3; kill $!\n").unwrap();
    let proxy = |command: String| {
        node.target_with(json!({"ansible_ssh_common_args": format!("-o 'ProxyCommand={command}'")}))
    };
    let target = proxy(format!("bash {} %h %p", script.display()));
    assert_eq!(exec(&node.connector(), &target, "echo in").await.unwrap().stdout, "in\n");

    let target = proxy("sh -c \"echo no route to %h >&2; exit 1\"".to_owned());
    let error = exec(&node.connector(), &target, "true").await.unwrap_err().to_string();
    assert!(error.ends_with("failed: no route to 127.0.0.1"), "{error}");
}

#[tokio::test]
async fn a_configured_key_user_and_port_are_used() {
    let route = Route::start(&bastion());
    fs::remove_file(route.bastion.client_key()).unwrap();
    let connector = connector(route.environment.clone());
    let error = exec(&connector, &route.target(json!({})), "true").await.unwrap_err().to_string();
    let key = route.bastion.client_key();
    assert!(error.contains(&format!("key {}: only its public half is there", key.display())), "{error}");
    let target = route.target(json!({"ansible_ssh_common_args": "-o ProxyJump=none"}));
    assert_eq!(exec(&connector, &target, "echo in").await.unwrap().stdout, "in\n");
}
