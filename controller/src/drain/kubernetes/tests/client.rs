//! The client against a listener on loopback: what is sent, how often, and with which credentials.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::super::{Api, ApiClient, Credentials, Request};

/// Requests as they came, each answered by `answer`; the address.
async fn listener(
    answer: impl Fn(&str) -> String + Clone + Send + Sync + 'static,
) -> (Arc<Mutex<Vec<String>>>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (log, answer) = (Arc::clone(&log), answer.clone());
            tokio::spawn(async move {
                let mut text = String::new();
                let mut piece = [0; 4096];
                loop {
                    let Ok(length @ 1..) = stream.read(&mut piece).await else { return };
                    text.push_str(&String::from_utf8_lossy(&piece[..length]));
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let wanted = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    if body.len() >= wanted.map_or(0, |length| length.parse().unwrap()) {
                        break;
                    }
                }
                log.lock().unwrap().push(text.clone());
                let reply = answer(&text);
                if !reply.is_empty() {
                    let _ = stream.write_all(reply.as_bytes()).await;
                } else {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    (seen, address)
}

fn reply(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

/// A kubeconfig whose exec plugin gives what the file `token` holds.
fn kubeconfig(folder: &Path, server: &str) -> Credentials {
    let (plugin, token) = (folder.join("plugin.sh"), folder.join("token"));
    fs::write(&token, "token-1").unwrap();
    // Why not a count of its calls: kube asks once for a certificate and once for a token.
    let text = format!(
        "echo '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{{\"token\":\"'$(cat {})'\"}}}}'\n",
        token.display()
    );
    fs::write(&plugin, text).unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "other",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": [plugin], "interactiveMode": "Never"}}}],
        "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
    });
    let path = folder.join("config");
    fs::write(&path, config.to_string()).unwrap();
    Credentials::Files { paths: vec![path], context: Some("prod".into()) }
}

#[tokio::test]
async fn credentials_that_are_refused_are_got_anew_once() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    let (seen, address) = listener(move |request| match request.contains("Bearer token-2") {
        true => reply("200 OK", "", "{}"),
        false => {
            fs::write(&token, "token-2").unwrap();
            reply("401 Unauthorized", "", "{}")
        }
    })
    .await;
    let client = ApiClient::new(kubeconfig(folder.path(), &address));
    assert_eq!(client.place(), "");
    let answer = client
        .send(Request::patch("/api/v1/nodes/n?fieldManager=gpufleet", vec![json!({"op": "test"})]))
        .await;
    assert_eq!(answer.unwrap().status, 200);
    assert_eq!(client.place(), format!(" at {address}"));
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2);
    assert!(seen[1].starts_with("PATCH /api/v1/nodes/n?fieldManager=gpufleet HTTP/1.1\r\n"), "{}", seen[1]);
    assert!(seen[1].contains("content-type: application/json-patch+json"), "{}", seen[1]);
    assert!(seen[1].ends_with("[{\"op\":\"test\"}]"), "{}", seen[1]);
    // A server that refuses everybody is not asked for ever.
    let (seen, address) = listener(|_| reply("401 Unauthorized", "", "{}")).await;
    let client = ApiClient::new(kubeconfig(folder.path(), &address));
    assert_eq!(client.send(Request::get("/x")).await.unwrap().status, 401);
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_refusal_is_an_answer_and_asked_for_once() {
    for status in ["429 Too Many Requests", "503 Service Unavailable", "504 Gateway Timeout"] {
        let (seen, address) = match status.as_bytes()[0..3] {
            [b'4', ..] => listener(|_| reply("429 Too Many Requests", "retry-after: 7\r\n", "{}")).await,
            [_, _, b'3'] => listener(|_| reply("503 Service Unavailable", "retry-after: 7\r\n", "{}")).await,
            _ => listener(|_| reply("504 Gateway Timeout", "retry-after: 7\r\n", "{}")).await,
        };
        let folder = tempfile::tempdir().unwrap();
        let client = ApiClient::new(kubeconfig(folder.path(), &address));
        let answer = client.send(Request::get("/x")).await.unwrap();
        assert_eq!(answer.retry_after, Some(Duration::from_secs(7)), "{status}");
        assert_eq!(seen.lock().unwrap().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_server_that_is_silent_is_unknown() {
    let (_, address) = listener(|_| String::new()).await;
    let folder = tempfile::tempdir().unwrap();
    let client = ApiClient::new(kubeconfig(folder.path(), &address));
    let request = Request { timeout: Duration::from_secs(1), ..Request::get("/x") };
    assert_eq!(client.send(request).await.unwrap_err().0, "no answer within 1 s");
}

#[tokio::test]
async fn mistakes_in_a_kubeconfig_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let told = |paths: Vec<std::path::PathBuf>, context: &str| {
        let client = ApiClient::new(Credentials::Files { paths, context: Some(context.into()) });
        async move { client.send(Request::get("/x")).await.unwrap_err().0 }
    };
    let none = told(vec![folder.path().join("none")], "prod").await;
    assert!(none.contains("none") && none.contains("No such file"), "{none}");
    kubeconfig(folder.path(), "http://127.0.0.1:1");
    let context = told(vec![folder.path().join("config")], "staging").await;
    assert!(context.contains("staging"), "{context}");
    let nobody = told(vec![folder.path().join("config")], "prod").await;
    assert!(nobody.to_lowercase().contains("connect"), "{nobody}");
}

/// The kubeconfig of a plugin that does this.
fn with_plugin(folder: &Path, server: &str, script: &str) -> Credentials {
    let credentials = kubeconfig(folder, server);
    fs::write(folder.join("plugin.sh"), script).unwrap();
    credentials
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_hangs_is_waited_for_once() {
    let folder = tempfile::tempdir().unwrap();
    let client = ApiClient::new(with_plugin(folder.path(), "http://127.0.0.1:1", "exec sleep 600\n"));
    let begin = tokio::time::Instant::now();
    let asked = futures::future::join_all((0..20).map(|_| client.send(Request::get("/x")))).await;
    assert_eq!(begin.elapsed().as_secs(), 60, "all wait at the same time");
    for answer in asked {
        let said = answer.unwrap_err().0;
        assert!(
            said.starts_with("the kubeconfig gave no credentials within 60 s; its exec plugin"),
            "{said}"
        );
    }
    let said = client.send(Request::get("/x")).await.unwrap_err().0;
    assert_eq!(begin.elapsed().as_secs(), 60, "who comes next is told at once");
    assert!(said.ends_with("(tried 0 s ago)"), "{said}");
    tokio::time::advance(Duration::from_secs(11)).await;
    assert!(client.send(Request::get("/x")).await.is_err());
    assert_eq!(begin.elapsed().as_secs(), 131, "and tried again later");
}

#[tokio::test]
async fn plugins_that_fail_say_nothing_secret() {
    let folder = tempfile::tempdir().unwrap();
    for (script, wanted) in [
        ("echo hunter2 >&2; exit 3", "failed (exit status 3); run it by hand to see why"),
        ("echo hunter2", "printed no credentials that can be read"),
        ("echo '{\"status\":{}}'", "printed no credentials that can be read"),
    ] {
        let client = ApiClient::new(with_plugin(folder.path(), "http://127.0.0.1:1", script));
        let said = client.send(Request::get("/x")).await.unwrap_err().0;
        assert_eq!(said, format!("the kubeconfig's exec plugin `sh` {wanted}"));
    }
}

#[tokio::test]
async fn credentials_that_say_when_they_end_are_got_anew_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let (seen, address) = listener(|_| reply("200 OK", "", "{}")).await;
    let calls = folder.path().join("calls");
    let script = |until: jiff::Timestamp| {
        let file = calls.display();
        format!(
            "case $KUBERNETES_EXEC_INFO in *ExecCredential*) echo call >> {file} ;; esac\n\
             echo '{{\"status\":{{\"token\":\"t'$(wc -l < {file})'\",\"expirationTimestamp\":\"{until}\"}}}}'\n"
        )
    };
    let soon = jiff::Timestamp::now() + Duration::from_secs(5);
    let client = ApiClient::new(with_plugin(folder.path(), &address, &script(soon)));
    client.send(Request::get("/x")).await.unwrap();
    fs::write(folder.path().join("plugin.sh"), script(soon + Duration::from_secs(3600))).unwrap();
    for _ in 0..3 {
        client.send(Request::get("/x")).await.unwrap();
    }
    let tokens: Vec<bool> =
        seen.lock().unwrap().iter().map(|request| request.contains("Bearer t2")).collect();
    assert_eq!(tokens, [false, true, true, true]);
    assert_eq!(fs::read_to_string(calls).unwrap().lines().count(), 2);
}

#[tokio::test]
async fn an_auth_provider_is_refused_and_never_run() {
    let folder = tempfile::tempdir().unwrap();
    let (program, ran) = (folder.path().join("provider.sh"), folder.path().join("ran"));
    fs::write(&program, format!("#!/bin/sh\ntouch {}\nexec sleep 600\n", ran.display())).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let credentials = kubeconfig(folder.path(), "http://127.0.0.1:1");
    let path = folder.path().join("config");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(credentials.refused(), None);
    config["users"][0]["user"] = json!({"auth-provider": {"name": "gcp", "config": {
        "cmd-path": program, "cmd-args": "", "token-key": "{.token}", "expiry-key": "{.expiry}"}}});
    fs::write(&path, config.to_string()).unwrap();
    let why = credentials.refused().unwrap();
    assert!(
        why.starts_with("its user logs in by `auth-provider: gcp`, which Kubernetes 1.26 took away"),
        "{why}"
    );
    let said = ApiClient::new(credentials).send(Request::get("/x")).await.unwrap_err().0;
    assert_eq!(said, format!("the kubeconfig cannot be used: {why}"));
    assert!(!ran.exists());
}
