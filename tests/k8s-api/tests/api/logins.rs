//! Tokens that expire, and the ways in which a client gets new ones.

use std::process::Command as Process;
use std::time::Duration;

use gpufleet_k8s_api::kubeconfig::Login;
use serde_json::Value;

use crate::client::Client;
use crate::cluster::start;

#[test]
fn a_token_ends_on_the_servers_clock() {
    let (server, _) = start("{pace: 0, nodes: [{name: n1}]}");
    let token = server.token("ci", Some(Duration::from_secs(60)));
    let client = Client::new(&server, &Login::Token(token));
    assert_eq!(client.get("/api/v1/nodes/n1").code, 200);
    server.advance(Duration::from_secs(61));
    assert_eq!(client.get("/api/v1/nodes/n1").code, 401);
}

#[test]
fn an_exec_plugin_hands_out_a_new_token_when_the_old_one_has_ended() {
    let (server, _) = start("{pace: 0, nodes: [{name: n1}]}");
    let dir = tempfile::tempdir().expect("a directory");
    let plugin = server.exec_plugin(dir.path(), "ci", Duration::from_secs(60), true).expect("a script");
    let run = || {
        let output = Process::new(plugin.script()).output().expect("the script runs");
        let credential: Value = serde_json::from_slice(&output.stdout).expect("a credential");
        assert_eq!(credential["kind"], "ExecCredential");
        assert!(credential["status"]["expirationTimestamp"].is_string());
        credential["status"]["token"].as_str().expect("a token").to_owned()
    };
    let first = run();
    assert_eq!(Client::new(&server, &Login::Token(first.clone())).get("/api/v1/nodes").code, 200);
    server.advance(Duration::from_secs(61));
    assert_eq!(Client::new(&server, &Login::Token(first.clone())).get("/api/v1/nodes").code, 401);
    let second = run();
    assert_ne!(first, second);
    assert_eq!(Client::new(&server, &Login::Token(second.clone())).get("/api/v1/nodes").code, 200);
    assert_eq!(
        (plugin.calls(), std::fs::read_to_string(plugin.token_file()).expect("a token file")),
        (2, second)
    );
}

#[test]
fn every_kubeconfig_says_how_to_log_in() {
    let (server, _) = start("{pace: 0}");
    let read =
        |login: &Login| -> Value { serde_json::from_str(&server.kubeconfig(login)).expect("JSON, so YAML") };
    let certificate = read(&server.certificate("admin").expect("a certificate"));
    assert!(certificate["users"][0]["user"]["client-key-data"].is_string());
    assert_eq!(certificate["clusters"][0]["cluster"]["server"], server.url());
    assert_eq!(
        read(&Login::Exec("/x/credential.sh".into()))["users"][0]["user"]["exec"]["command"],
        "/x/credential.sh"
    );
    assert_eq!(read(&Login::TokenFile("/x/token".into()))["users"][0]["user"]["tokenFile"], "/x/token");
}
