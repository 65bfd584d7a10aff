//! Peers that refuse, hang, send garbage or vanish: each gives a clear error in bounded time and delays no other.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use gpufleet::transport::{ConnectError, Connector, ConnectorOptions, Phase, Target};
use serde_json::json;

use crate::node::{Node, Setup, deadlines, exec, free_port, run};

/// Serves every connection to a port, until the test ends.
fn serve(handle: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> u16 {
    let port = free_port();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handle = handle.clone();
            std::thread::spawn(move || handle(stream));
        }
    });
    port
}

async fn error_at(node: &Node, port: u16) -> ConnectError {
    let target = node.target_with(json!({"ansible_port": port}));
    exec(&node.connector(), &target, "true").await.unwrap_err()
}

#[tokio::test]
async fn a_refused_connection_says_so() {
    let node = Node::start();
    let port = free_port();
    assert_eq!(
        error_at(&node, port).await.to_string(),
        format!(
            "gpu001: 127.0.0.1:{port} refuses the connection; is sshd running there, and is the port right?"
        )
    );
}

#[tokio::test]
async fn a_name_that_nobody_knows_says_so() {
    let node = Node::start();
    let target = node.target_with(json!({"ansible_host": "gpu001.invalid"}));
    let error = exec(&node.connector(), &target, "true").await.unwrap_err();
    assert!(matches!(error, ConnectError::Resolve { .. }), "{error}");
    assert!(
        error.to_string().starts_with("gpu001: its address `gpu001.invalid` cannot be resolved ("),
        "{error}"
    );
}

#[tokio::test]
async fn a_peer_that_hangs_in_the_handshake_delays_nobody() {
    let node = Node::start();
    let hanging = [
        serve(|mut stream| {
            drop(stream.read(&mut [0; 1]).map(|_| std::thread::sleep(Duration::from_secs(600))))
        }),
        // A node whose sshd sends its name and then hangs.
        serve(|mut stream| {
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n");
            std::thread::sleep(Duration::from_secs(600));
        }),
    ];
    // Both permits are taken by hanging peers.
    let mut options = ConnectorOptions { handshakes: 2, deadlines: deadlines() };
    let target = |port: u16| node.target_with(json!({"ansible_port": port}));
    let slow = |connector: &Arc<Connector>| {
        hanging.map(|port| {
            let (connector, target) = (connector.clone(), target(port));
            tokio::spawn(async move { exec(&connector, &target, "true").await })
        })
    };
    let connector = Connector::new(node.environment(), options);
    let waiting = slow(&connector);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(exec(&connector, &target(node.port), "echo in").await.unwrap().stdout, "in\n");
    for task in waiting {
        assert!(!task.is_finished(), "it was not waited for until a hanging peer's deadline");
        task.abort();
    }
    options.deadlines.handshake = Duration::from_secs(6);
    for task in slow(&Connector::new(node.environment(), options)) {
        let error = task.await.unwrap().unwrap_err();
        assert!(matches!(error, ConnectError::Timeout { phase: Phase::Handshake, .. }), "{error}");
        assert!(error.to_string().contains("the SSH handshake with 127.0.0.1:"), "{error}");
        assert!(
            error.to_string().contains("took longer than 6 s; something accepts connections there"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn what_is_not_ssh_is_shown() {
    let node = Node::start();
    let port = serve(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n");
    });
    let error = error_at(&node, port).await;
    assert!(matches!(error, ConnectError::NotSsh { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("does not speak SSH, it sent `HTTP/1.1 400 Bad Request Server: x`; check the port"),
        "{error}"
    );

    let port = serve(|mut stream| {
        let _ = stream.write_all(&[0xff; 4000]);
        std::thread::sleep(Duration::from_secs(1));
    });
    let error = error_at(&node, port).await;
    assert!(matches!(error, ConnectError::NotSsh { .. }), "{error}");
}

#[tokio::test]
async fn a_peer_that_closes_at_once_is_retried_and_told() {
    let node = Node::start();
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = count.clone();
    let port = serve(move |stream| {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        drop(stream);
    });
    let error = error_at(&node, port).await;
    assert!(matches!(error, ConnectError::Closed { phase: Phase::Handshake, .. }), "{error}");
    assert!(error.to_string().contains("MaxStartups"), "{error}");
    assert!(count.load(std::sync::atomic::Ordering::Relaxed) > 1);
}

#[tokio::test]
async fn a_busy_sshd_takes_everybody_in_the_end() {
    let node = Node::start_with(&Setup::with(&["MaxStartups 3:60:6"]));
    let (connector, target) = (node.connector(), node.target());
    let runs = (0..25).map(|_| exec(&connector, &target, "echo in"));
    for output in futures::future::join_all(runs).await {
        assert_eq!(output.unwrap().stdout, "in\n");
    }
}

#[tokio::test]
async fn a_node_that_runs_no_commands_says_so() {
    let node = Node::start_with(&Setup::with(&["MaxSessions 0"]));
    let error = node.exec("true").await.unwrap_err();
    assert!(matches!(error, ConnectError::ChannelRefused { .. }), "{error}");
}

#[tokio::test]
async fn an_unreachable_address_has_a_deadline() {
    let node = Node::start();
    // TEST-NET-1 is not routed; some machines return an error at once.
    let target =
        node.target_with(json!({"ansible_host": "192.0.2.1", "ansible_port": 22, "ansible_ssh_timeout": 1}));
    let begin = Instant::now();
    let error = exec(&node.connector(), &target, "true").await.unwrap_err();
    // Less than the deadline that it would have without its own.
    assert!(begin.elapsed() < Duration::from_secs(40));
    assert!(error.to_string().starts_with("gpu001: "), "{error}");
}

#[tokio::test]
async fn a_connection_that_is_cut_ends_the_channel_with_a_reason() {
    let node = Node::start();
    let mut channel = node.connector().exec(&node.target(), "echo $PPID; exec sleep 60").await.unwrap();
    let Some(gpufleet::transport::ChannelEvent::Stdout(bytes)) = channel.reader.next().await else {
        panic!()
    };
    // The parent of the command is the sshd of this connection.
    run(std::process::Command::new("kill").args(["-9", String::from_utf8_lossy(&bytes).trim()]));
    let ended = async {
        while channel.reader.next().await.is_some() {}
        channel.reader.ended_because()
    };
    let reason = tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
    assert!(reason.is_some());
}

#[tokio::test]
async fn a_frozen_node_is_noticed_by_keepalives() {
    let node = Node::start();
    let target = node.target_with(json!({
        "ansible_ssh_common_args": "-o ServerAliveInterval=3 -o ServerAliveCountMax=3",
    }));
    let mut channel = node.connector().exec(&target, "echo $PPID; exec sleep 100").await.unwrap();
    let Some(gpufleet::transport::ChannelEvent::Stdout(bytes)) = channel.reader.next().await else {
        panic!()
    };
    let pid = String::from_utf8_lossy(&bytes).trim().to_owned();
    run(std::process::Command::new("kill").args(["-STOP", &pid]));
    let ended = async {
        while channel.reader.next().await.is_some() {}
        channel.reader.ended_because()
    };
    let reason = tokio::time::timeout(Duration::from_secs(60), ended).await;
    run(std::process::Command::new("kill").args(["-KILL", &pid]));
    assert_eq!(reason.unwrap().as_deref(), Some("the node stopped answering keepalives"));
}

#[tokio::test]
async fn local_commands_run_without_ssh() {
    let node = Node::start();
    let output =
        exec(&node.connector(), &Target::local("here"), "echo out; echo err >&2; exit 4").await.unwrap();
    assert_eq!(
        (output.stdout.as_str(), output.stderr.as_str(), output.exit.as_deref()),
        ("out\n", "err\n", Some("exit code 4"))
    );
}
