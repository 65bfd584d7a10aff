//! Programs on a login node, as a scheduler's drainer runs them.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use gpufleet::{
    drain::{Call, LoginRunner, Output, RunError, Runner as _},
    transport::{TargetDefaults, Transport},
};
use serde_json::json;

use crate::node::{Node, Setup, connector};

fn runner(node: &Node) -> LoginRunner {
    LoginRunner::new(node.connector(), node.target())
}

fn call(argv: &[&str]) -> Call {
    Call::new(argv.iter().copied(), Duration::from_secs(60))
}

fn counting() -> Setup {
    // At INFO, each accepted login is a line of the log.
    Setup::with(&["LogLevel INFO"])
}

fn logins(node: &Node) -> usize {
    fs::read_to_string(node.path("etc/log")).unwrap().matches("Accepted publickey").count()
}

/// Ends the processes of this sshd's connections, and so the connections.
fn cut(node: &Node) {
    let output = std::process::Command::new("ps").args(["-eo", "pid,ppid"]).output().unwrap();
    let parent = fs::read_to_string(node.path("etc/pid")).unwrap().trim().to_owned();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut words = line.split_whitespace();
        if let (Some(pid), Some(of)) = (words.next(), words.next())
            && of == parent
        {
            std::process::Command::new("kill").args(["-9", pid]).status().unwrap();
        }
    }
}

#[tokio::test]
async fn words_streams_and_status_arrive_as_they_are() {
    let node = Node::start();
    let runner = runner(&node);
    assert_eq!(runner.place(), " on gpu001");
    let odd = ["it's", "$HOME `id` \"x\" \\ ; # *", "", "a  b", "ä\tb"];
    let mut argv = vec!["printf", "<%s>"];
    argv.extend(odd);
    let output = runner.run(call(&argv)).await.unwrap();
    let expected: String = odd.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);

    let mut with_input = call(&["sh", "-c", "cat; echo \"$MARK\" >&2; exit 3"]);
    with_input.stdin = vec![b'x'; 3_000_000];
    with_input.env.push(("MARK".to_owned(), "it's here".to_owned()));
    let Output { status, stdout, stderr } = runner.run(with_input).await.unwrap();
    assert_eq!((status, stdout.len(), stderr), (Some(3), 3_000_000, b"it's here\n".to_vec()));

    let mut ignored = call(&["true"]);
    ignored.stdin = vec![b'x'; 3_000_000];
    assert_eq!(runner.run(ignored).await.unwrap().status, Some(0));
    let killed = runner.run(call(&["sh", "-c", "echo before; kill -9 $$"])).await.unwrap();
    // Either, because the login shell may wait for the program and then turns its signal into a status.
    assert!(matches!(killed.status, None | Some(137)), "{killed:?}");
    assert_eq!(killed.stdout, b"before\n");
    let missing = runner.run(call(&["no-such-program-here"])).await.unwrap();
    assert_eq!(missing.status, Some(127));
}

#[tokio::test]
async fn many_calls_share_one_connection_and_its_sessions() {
    let node = Node::start_with(&counting());
    let runner = Arc::new(runner(&node));
    let calls = (0..30).map(|number| {
        let runner = Arc::clone(&runner);
        async move { runner.run(call(&["sh", "-c", &format!("sleep 0.1; echo {number}")])).await }
    });
    // This proves the bound, because sshd refuses an eleventh session of a connection.
    let outputs = futures::future::join_all(calls).await;
    for (number, output) in outputs.into_iter().enumerate() {
        assert_eq!(output.unwrap().stdout, format!("{number}\n").into_bytes());
    }
    assert_eq!(logins(&node), 1);
}

#[tokio::test]
async fn a_call_ends_at_its_timeout_and_frees_its_session() {
    let node = Node::start_with(&counting());
    let runner = runner(&node);
    let begin = Instant::now();
    for _ in 0..12 {
        let after = Duration::from_millis(200);
        let slow = Call::new(["sleep", "15"], after);
        assert_eq!(runner.run(slow).await, Err(RunError::TimedOut { after }));
    }
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert_eq!(runner.run(call(&["echo", "on"])).await.unwrap().stdout, b"on\n");
}

#[tokio::test]
async fn what_is_left_in_the_background_delays_nobody() {
    let node = Node::start();
    let begin = Instant::now();
    let output = runner(&node).run(call(&["sh", "-c", "sleep 50 & echo done; exit 1"])).await.unwrap();
    assert_eq!((output.status, output.stdout), (Some(1), b"done\n".to_vec()));
    assert!(begin.elapsed() < Duration::from_secs(50), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_broken_connection_is_made_anew_and_a_lost_call_is_not_made_again() {
    let setup = Setup::with(&["LogLevel INFO", "PidFile @DIR@/etc/pid"]);
    let node = Node::start_with(&setup);
    let runner = runner(&node);
    assert_eq!(runner.run(call(&["echo", "1"])).await.unwrap().stdout, b"1\n");
    cut(&node);
    assert_eq!(runner.run(call(&["echo", "2"])).await.unwrap().stdout, b"2\n");
    assert_eq!(logins(&node), 2);

    let ran = node.path("ran");
    let line = format!("echo once >> {}; sleep 50", ran.display());
    let argv = ["sh", "-c", &line];
    let lost = runner.run(call(&argv));
    tokio::pin!(lost);
    let end = Instant::now() + Duration::from_secs(25);
    while !ran.exists() {
        assert!(Instant::now() < end, "never ran");
        let early = tokio::time::timeout(Duration::from_millis(50), &mut lost).await;
        assert!(early.is_err(), "{early:?}");
    }
    cut(&node);
    let error = lost.await.unwrap_err();
    assert!(matches!(error, RunError::Lost(_)), "{error}");
    assert_eq!(runner.run(call(&["echo", "3"])).await.unwrap().stdout, b"3\n");
    assert_eq!(fs::read_to_string(&ran).unwrap(), "once\n");
}

#[tokio::test]
async fn who_cannot_be_reached_had_nothing_run() {
    let node = Node::start();
    node.authorize("");
    let error = runner(&node).run(call(&["true"])).await.unwrap_err();
    assert!(matches!(&error, RunError::NotStarted(text) if text.contains("was not let in")), "{error}");
    assert!(matches!(runner(&node).run(call(&[])).await, Err(RunError::NotStarted(_))));
}

#[tokio::test]
async fn the_openssh_client_serves_as_well() {
    let node = Node::start();
    let defaults = TargetDefaults { transport: Transport::OpenSsh, ..TargetDefaults::default() };
    let arguments =
        format!("-o UserKnownHostsFile={}/known_hosts -o IdentitiesOnly=yes", node.ssh_dir().display());
    let target = node.target_from(
        json!({
            "ansible_user": "root",
            "ansible_ssh_private_key_file": node.client_key().display().to_string(),
            "ansible_ssh_common_args": arguments,
        }),
        &defaults,
    );
    let runner = LoginRunner::new(connector(node.environment()), target);
    let output = runner.run(call(&["sh", "-c", "echo it\\'s; exit 4"])).await.unwrap();
    assert_eq!((output.status, output.stdout), (Some(4), b"it's\n".to_vec()));
    node.authorize("");
    let error = runner.run(call(&["true"])).await.unwrap_err();
    assert!(matches!(&error, RunError::Lost(text) if text.contains("Permission denied")), "{error}");
}
