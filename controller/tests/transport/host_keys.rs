//! Host keys against a real sshd, and gpufleet's matching against `ssh-keygen -F`.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::node::{Node, Setup, exec, keygen, public, run};

async fn try_with(node: &Node, arguments: &str) -> Result<String, String> {
    let target = node.target_with(json!({"ansible_ssh_common_args": arguments}));
    exec(&node.connector(), &target, "echo in")
        .await
        .map(|output| output.stdout)
        .map_err(|error| error.to_string())
}

async fn connects(node: &Node) -> Result<String, String> {
    try_with(node, "").await
}

#[tokio::test]
async fn an_unknown_key_is_refused_with_a_way_on() {
    let node = Node::start();
    node.know("");
    let error = connects(&node).await.unwrap_err();
    let port = node.port;
    assert!(
        error.starts_with(&format!("gpu001: the host key of [127.0.0.1]:{port} is unknown (ED25519 SHA256:")),
        "{error}"
    );
    assert!(
        error.contains(&format!(
            "`ssh-keyscan -p {port} 127.0.0.1 >> {}/known_hosts`",
            node.ssh_dir().display()
        )),
        "{error}"
    );
}

#[tokio::test]
async fn accept_new_records_the_key_and_then_is_strict() {
    let node = Node::start();
    let file = node.ssh_dir().join("known_hosts");
    fs::write(&file, "# no newline at the end").unwrap();
    assert_eq!(try_with(&node, "-o StrictHostKeyChecking=accept-new").await.unwrap(), "in\n");
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(
        text,
        format!("# no newline at the end\n[127.0.0.1]:{} {}\n", node.port, node.host_key("ed25519"))
    );
    assert_eq!(connects(&node).await.unwrap(), "in\n");
    // A changed key is still refused.
    let other = keygen(node.dir.path(), "other", "ed25519", "");
    node.know(&format!("[127.0.0.1]:{} {}", node.port, public(&other)));
    for policy in ["accept-new", "no", "yes"] {
        let error = try_with(&node, &format!("-o StrictHostKeyChecking={policy}")).await.unwrap_err();
        assert!(error.contains("has changed"), "{error}");
    }
}

#[tokio::test]
async fn accept_new_can_hash_and_creates_the_file() {
    let node = Node::start();
    let file = node.path("client/new/folder/known_hosts");
    let arguments = format!(
        "-o StrictHostKeyChecking=accept-new -o HashKnownHosts=yes -o UserKnownHostsFile={}",
        file.display()
    );
    assert_eq!(try_with(&node, &arguments).await.unwrap(), "in\n");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("|1|") && text.lines().count() == 1, "{text}");
    assert_eq!(try_with(&node, &format!("-o UserKnownHostsFile={}", file.display())).await.unwrap(), "in\n");
    assert!(keygen_finds(&file, &format!("[127.0.0.1]:{}", node.port)));
}

#[tokio::test]
async fn many_connections_that_learn_a_key_at_once_write_it_once() {
    for hashed in ["no", "yes"] {
        let node = Node::start();
        node.know("");
        let arguments = format!("-o StrictHostKeyChecking=accept-new -o HashKnownHosts={hashed}");
        let (connector, target) =
            (node.connector(), node.target_with(json!({"ansible_ssh_common_args": arguments})));
        let runs = (0..8).map(|_| exec(&connector, &target, "echo in"));
        for output in futures::future::join_all(runs).await {
            assert_eq!(output.unwrap().stdout, "in\n");
        }
        let text = fs::read_to_string(node.ssh_dir().join("known_hosts")).unwrap();
        assert_eq!(text.lines().filter(|line| !line.is_empty()).count(), 1, "hashed {hashed}: {text}");
    }
}

#[tokio::test]
async fn a_changed_key_names_file_and_line() {
    let node = Node::start();
    let other = keygen(node.dir.path(), "other", "ed25519", "");
    node.know(&format!("# first\n\n[127.0.0.1]:{} {}", node.port, public(&other)));
    let error = connects(&node).await.unwrap_err();
    let file = node.ssh_dir().join("known_hosts");
    assert!(error.contains(&format!("but {}:3 has ED25519 SHA256:", file.display())), "{error}");
    assert!(
        error.contains(&format!("`ssh-keygen -R '[127.0.0.1]:{}' -f {}`", node.port, file.display())),
        "{error}"
    );
    // The suggested command helps.
    run(Command::new("ssh-keygen").args(["-R", &format!("[127.0.0.1]:{}", node.port), "-f"]).arg(&file));
    assert!(connects(&node).await.unwrap_err().contains("is unknown"));
}

#[tokio::test]
async fn a_known_key_of_another_type_decides_what_is_negotiated() {
    for kind in ["ecdsa", "rsa", "ed25519"] {
        let node =
            Node::start_with(&Setup { host_keys: vec!["ed25519", "ecdsa", "rsa"], ..Setup::default() });
        node.know(&format!("[127.0.0.1]:{} {}", node.port, node.host_key(kind)));
        assert_eq!(connects(&node).await.unwrap(), "in\n", "{kind}");
    }
}

#[tokio::test]
async fn hashed_globbed_negated_portless_and_aliased_names_are_found() {
    let node = Node::start();
    let (port, key) = (node.port, node.host_key("ed25519"));
    for (line, arguments, known) in [
        (format!("[127.0.0.*]:{port} {key}"), "", true),
        (format!("*,!*127.0.0.1* {key}"), "", false),
        (format!("127.0.0.1 {key}"), "", true),
        (format!("[127.0.0.1]:1,[127.0.0.1]:{port} {key} comment # x"), "", true),
        (format!("gpu-alias {key}"), "-o HostKeyAlias=gpu-alias", true),
        (format!("[127.0.0.1]:{port} {key}"), "-o HostKeyAlias=gpu-alias", false),
    ] {
        node.know(&line);
        assert_eq!(try_with(&node, arguments).await.is_ok(), known, "{line}");
    }
    node.know(&format!("[127.0.0.1]:{port} {key}"));
    run(Command::new("ssh-keygen").arg("-H").arg("-f").arg(node.ssh_dir().join("known_hosts")));
    assert!(fs::read_to_string(node.ssh_dir().join("known_hosts")).unwrap().starts_with("|1|"));
    assert_eq!(connects(&node).await.unwrap(), "in\n");
}

#[tokio::test]
async fn several_files_are_read_and_an_unreadable_one_refuses() {
    let node = Node::start();
    let second = node.path("second");
    fs::rename(node.ssh_dir().join("known_hosts"), &second).unwrap();
    let first = node.path("absent");
    let arguments = format!("-o 'UserKnownHostsFile={} {}'", first.display(), second.display());
    assert_eq!(try_with(&node, &arguments).await.unwrap(), "in\n");
    let global = format!("-o UserKnownHostsFile=none -o GlobalKnownHostsFile={}", second.display());
    assert_eq!(try_with(&node, &global).await.unwrap(), "in\n");
    fs::create_dir(&first).unwrap();
    let error = try_with(&node, &arguments).await.unwrap_err();
    assert!(error.contains(&format!("{} cannot be read", first.display())), "{error}");
}

#[tokio::test]
async fn a_revoked_key_is_refused_whatever_else_is_known() {
    let node = Node::start();
    let (port, key) = (node.port, node.host_key("ed25519"));
    node.know(&format!("[127.0.0.1]:{port} {key}\n@revoked * {key}"));
    let error = try_with(&node, "-o StrictHostKeyChecking=accept-new").await.unwrap_err();
    assert!(error.contains(&format!("is revoked by {}/known_hosts:2", node.ssh_dir().display())), "{error}");
}

fn certify(node: &Node, extra: &[&str]) -> String {
    let ca = node.path("ca");
    if !ca.exists() {
        keygen(node.dir.path(), "ca", "ed25519", "");
    }
    let key = node.path("etc/host_ed25519.pub");
    run(Command::new("ssh-keygen").args(["-q", "-s"]).arg(&ca).args(["-I", "gpu-cert"]).args(extra).arg(key));
    public(&ca)
}

fn restart(node: &Node) {
    // sshd reads certificates at its start and on SIGHUP.
    let starts = || fs::read_to_string(node.path("etc/log")).unwrap().matches("Server listening on").count();
    let pid = fs::read_to_string(node.path("etc/pid")).unwrap();
    let before = starts();
    run(Command::new("kill").args(["-HUP", pid.trim()]));
    let end = Instant::now() + Duration::from_secs(60);
    while starts() == before {
        assert!(Instant::now() < end, "sshd does not start again");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn host_certificates_are_verified() {
    let node = Node::start_with(&Setup::with(&[
        "HostCertificate @DIR@/etc/host_ed25519-cert.pub",
        "PidFile @DIR@/etc/pid",
        // So that its log tells when it listens.
        "LogLevel INFO",
    ]));
    for (extra, marker_host, wanted) in [
        (&["-h", "-n", "127.0.0.1,gpu001", "-V", "-1h:+1h"][..], "[127.0.0.1]:*", Ok("in\n")),
        (&["-h", "-V", "-1h:+1h"][..], "*", Ok("in\n")),
        (&["-h", "-n", "other", "-V", "-1h:+1h"][..], "*", Err("it is for other, not for 127.0.0.1")),
        (&["-h", "-n", "127.0.0.1", "-V", "-2h:-1h"][..], "*", Err("it has expired")),
        (&["-h", "-n", "127.0.0.1", "-V", "+1h:+2h"][..], "*", Err("it is not valid yet")),
        (&["-h", "-n", "127.0.0.1", "-V", "-1h:+1h"][..], "elsewhere", Err("is unknown")),
    ] {
        let ca = certify(&node, extra);
        restart(&node);
        node.know(&format!("@cert-authority {marker_host} {ca}"));
        match (connects(&node).await, wanted) {
            (Ok(got), Ok(wanted)) => assert_eq!(got, wanted, "{extra:?}"),
            (Err(got), Err(wanted)) => assert!(got.contains(wanted), "{extra:?}: {got}"),
            (got, wanted) => panic!("{extra:?}: {got:?}, wanted {wanted:?}"),
        }
    }
    // A revoked authority, and a known bare key although the certificate is invalid.
    let ca = certify(&node, &["-h", "-n", "127.0.0.1", "-V", "-1h:+1h"]);
    restart(&node);
    node.know(&format!("@cert-authority * {ca}\n@revoked * {ca}"));
    assert!(connects(&node).await.unwrap_err().contains("is revoked by"));
    certify(&node, &["-h", "-n", "other", "-V", "-1h:+1h"]);
    restart(&node);
    node.know(&format!("@cert-authority * {ca}\n[127.0.0.1]:{} {}", node.port, node.host_key("ed25519")));
    assert_eq!(connects(&node).await.unwrap(), "in\n");
}

fn keygen_finds(file: &Path, host: &str) -> bool {
    Command::new("ssh-keygen").args(["-F", host, "-f"]).arg(file).output().unwrap().status.success()
}

/// For names and patterns of all kinds: a host is known exactly if `ssh-keygen -F` knows it.
#[tokio::test]
async fn matching_agrees_with_ssh_keygen() {
    let node = Node::start();
    let key = node.host_key("ed25519");
    let file = node.path("patterns");
    let lines = [
        "plain",
        "Upper.Example",
        "a,b,c",
        "*.gpu,!bad.gpu",
        "gpu0?",
        "[plain]:2222",
        "[*.gpu]:22",
        "!x,*y",
        "*",
        "10.0.0.*",
        "[::1]:22",
        "fe80::1",
        "!*",
        "*,!*z",
        "a b",
    ];
    let hosts = [
        "plain",
        "upper.example",
        "b",
        "x.gpu",
        "bad.gpu",
        "gpu01",
        "gpu001",
        "[plain]:2222",
        "xy",
        "x",
        "10.0.0.7",
        "fe80::1",
        "z",
        "zz",
        "unknown",
    ];
    for line in lines {
        fs::write(&file, format!("{line} {key}\n")).unwrap();
        for host in hosts {
            // -F has no fallback without port, unlike a connection, so plain names are used as aliases.
            let arguments = format!(
                "-o UserKnownHostsFile={} -o GlobalKnownHostsFile=none -o HostKeyAlias={host}",
                file.display()
            );
            assert_eq!(
                try_with(&node, &arguments).await.is_ok(),
                keygen_finds(&file, host),
                "`{line}` and `{host}`"
            );
        }
    }
}
