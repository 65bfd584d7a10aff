//! The pages over real HTTP on loopback, with a history and runs made up here.

mod client;
mod made_up;

use std::time::Duration;

use client::{Client, get, raw};
use gpufleet_serve::{RunStanding, Server, TlsFiles};
use made_up::{EVIL, TOKEN, fleet, site, site_of, with_token};
use tokio::sync::oneshot;

/// A server at work; dropping it stops it.
struct Served {
    address: std::net::SocketAddr,
    _stop: oneshot::Sender<()>,
}

async fn serve(site: gpufleet_serve::Site, tls: Option<&TlsFiles>) -> Served {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), tls, false, false).await.unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(server.run(site, async move { _ = stopped.await }));
    Served { address, _stop: stop }
}

#[tokio::test]
async fn the_fleet_leads_to_a_node_and_from_there_to_its_check() {
    let served = serve(site().await, None).await;
    let page = get(served.address, "/").await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("<h1>6 of 8 nodes compliant</h1>"), "{}", page.body);
    let worst = page.body.find("<h3>rack2").unwrap();
    assert!(worst < page.body.find("<h3>rack1").unwrap(), "the worst rack first");
    assert!(
        page.body.contains("<a class=\"v fail\" href=\"/nodes/gpu007\"><i>gpu007 fail</i></a>"),
        "{}",
        page.body
    );
    let node = get(served.address, "/nodes/gpu007").await;
    assert!(node.body.contains("<a href=\"/checks/mem.remap_failed\">"), "{}", node.body);
    assert!(node.body.contains("class=\"f-fail\"") && node.body.contains("class=\"f-ok\""), "{}", node.body);
    assert!(
        node.body.contains("<a href=\"/checks/pcie.width\">") && node.body.contains("<h2>Past</h2>"),
        "{}",
        node.body
    );
    let check = get(served.address, "/checks/mem.remap_failed").await;
    assert!(check.body.contains("<a href=\"/nodes/gpu007\">gpu007</a>"), "{}", check.body);
    assert!(check.body.contains("What to do") && check.body.contains("How it is judged"), "{}", check.body);
    for (path, text) in [
        ("/checks", "mem.remap_failed"),
        ("/runs", "01JD0000000000000000000001"),
        ("/runs/01JD0000000000000000000001", "the report"),
        ("/?by=group&group=training&verdict=fail", "gpu007"),
    ] {
        let page = get(served.address, path).await;
        assert!(page.status == 200 && page.body.contains(text), "{path}: {} {}", page.status, page.body);
    }
}

/// Somebody tries a stricter baseline once, by which no node is well.
#[tokio::test]
async fn one_trial_with_another_baseline_says_nothing_of_the_fleet() {
    let mut audits = fleet();
    let mut trial = audits.last().unwrap().clone();
    trial.run = "01JDTRIAL00000000000000001".to_owned();
    trial.baselines = vec!["strict".to_owned()];
    let later = jiff::SignedDuration::from_mins(5);
    (trial.started, trial.finished) = (trial.started + later, trial.finished + later);
    for node in &mut trial.nodes {
        node.at += later;
        (node.verdict, node.compliant) = (gpufleet_compliance::Verdict::Fail, false);
        node.findings.push(made_up::found("strict.rule", "too warm"));
        node.controls.judged.push("strict.rule".to_owned());
    }
    audits.push(trial);
    let (site, _runs) = site_of(&audits).await;
    let served = serve(site, None).await;
    let page = get(served.address, "/").await;
    assert!(page.body.contains("<h1>6 of 8 nodes compliant</h1>"), "{}", page.body);
    assert!(
        page.body.contains("<code>training</code>") && !page.body.contains("strict.rule"),
        "{}",
        page.body
    );
    let beside = "an audit by <code>strict</code> that was made once";
    assert!(page.body.contains(beside) && page.body.contains("0 of 8 compliant"), "{}", page.body);
    let api = get(served.address, "/api/v1/fleet").await;
    assert!(api.body.contains("\"compliant\":6"), "{}", api.body);
}

#[tokio::test]
async fn nothing_but_reading_is_answered_and_every_answer_is_guarded() {
    let served = serve(site().await, None).await;
    for path in
        ["/", "/nodes/gpu001", "/nodes/none", "/no/such", "/api/v1/nodes", "/assets/serve.css", "/healthz"]
    {
        let page = get(served.address, path).await;
        let header = |name: &str| page.header(name).unwrap_or_default().to_owned();
        assert!(header("content-security-policy").contains("default-src 'none'"), "{path}");
        assert!(header("content-security-policy").contains("frame-ancestors 'none'"), "{path}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(header("x-frame-options"), "DENY", "{path}");
        assert_eq!(page.header("access-control-allow-origin"), None, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "ODD"] {
        let request =
            format!("{method} /nodes/gpu001 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = raw(served.address, request.as_bytes()).await;
        assert_eq!(answer.status, 405, "{method}");
    }
    let head = raw(served.address, b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn names_are_text_and_never_paths_or_markup() {
    let served = serve(site().await, None).await;
    for path in [
        "/runs/..%2F..%2Fetc%2Fpasswd",
        "/runs/../../etc/passwd",
        "/nodes/..%2f..%2fsecret",
        "/assets/../lib.rs",
    ] {
        assert_eq!(get(served.address, path).await.status, 404, "{path}");
    }
    assert_eq!(get(served.address, &format!("/nodes/{}", "x".repeat(5000))).await.status, 404);
    let page = get(served.address, "/").await;
    let link = page.body.split("href=\"").find(|part| part.starts_with("/nodes/evil")).unwrap();
    let link = link.split('"').next().unwrap();
    let node = get(served.address, link).await;
    let check = get(served.address, "/checks/mem.remap_failed").await;
    assert_eq!(node.status, 200, "{link}");
    for (name, body) in [("fleet", &page.body), ("node", &node.body), ("check", &check.body)] {
        assert!(!body.contains(EVIL) && !body.contains("<img"), "{name}: {body}");
        assert_eq!(body.matches("<script").count(), 1, "{name}: the page's own");
        assert!(!body.contains('\u{202e}'), "{name}: hidden characters are shown");
        assert!(!body.contains(" onerror=\"") && !body.contains("javascript:"), "{name}");
    }
    assert!(node.body.contains("\\u202e"), "{}", node.body);
}

#[tokio::test]
async fn a_name_of_another_site_is_refused() {
    let served = serve(site().await, None).await;
    for (host, status) in [("127.0.0.1:7080", 200), ("localhost", 200), ("evil.example", 421), ("", 421)] {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(raw(served.address, request.as_bytes()).await.status, status, "{host}");
    }
    let none = raw(served.address, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").await;
    assert_eq!(none.status, 421);
}

/// More of them than there are places, from one address: each new one ends the oldest, and a request is answered before any
/// of them has reached its time limit.
#[tokio::test]
async fn idle_connections_keep_nobody_waiting() {
    let served = serve(site().await, None).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(client::open(served.address, b"GET / HTTP/1.1\r\n").await);
    }
    assert_eq!(get(served.address, "/healthz").await.status, 200);
    let is_open = |stream: &tokio::net::TcpStream| {
        let mut byte = [0];
        stream.try_read(&mut byte).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert!(is_open(idle.last().unwrap()) && is_open(&idle[200]), "not by their time limit");
    idle[0].readable().await.unwrap();
    assert!(!is_open(&idle[0]));
}

#[tokio::test]
async fn without_the_token_there_is_a_form_and_with_it_everything() {
    let served = serve(with_token().await, None).await;
    let client = Client::new(served.address).host("fleet.example");
    for path in ["/", "/nodes/gpu001", "/runs", "/no/such", "/runs/01JD0000000000000000000002/events"] {
        let page = client.get(path, &[("Accept", "text/html")]).await;
        assert_eq!(page.status, 401, "{path}");
        assert!(page.body.contains("name=\"token\"") && !page.body.contains("H100"), "{path}: {}", page.body);
        assert_eq!(page.header("www-authenticate"), Some("Bearer"));
    }
    let api = client.get("/api/v1/nodes", &[]).await;
    assert!(api.status == 401 && api.body.starts_with("{\"error\""), "{}", api.body);
    assert_eq!(client.get("/healthz", &[]).await.body, "ok\n");

    let bearer = format!("Bearer {TOKEN}");
    assert_eq!(client.get("/api/v1/nodes", &[("Authorization", &bearer)]).await.status, 200);
    assert_eq!(client.get("/api/v1/nodes", &[("Authorization", "Bearer wrong")]).await.status, 401);

    let wrong = client.post("/login", "token=wrong&next=%2Fnodes%2Fgpu001", &[("Accept", "text/html")]).await;
    assert!(wrong.status == 401 && wrong.header("set-cookie").is_none(), "{}", wrong.body);
    let right = client.post("/login", &format!("token={TOKEN}&next=%2Fnodes%2Fgpu001"), &[]).await;
    assert_eq!((right.status, right.header("location")), (303, Some("/nodes/gpu001")));
    let cookie = right.header("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("HttpOnly; SameSite=Strict") && !cookie.contains(TOKEN), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    let page = client.get("/nodes/gpu001", &[("Cookie", pair)]).await;
    assert!(page.status == 200 && page.body.contains("Log out"), "{}", page.body);

    let elsewhere = client.post("/login", &format!("token={TOKEN}&next=//evil.example"), &[]).await;
    assert_eq!(elsewhere.header("location"), Some("/"));
    let foreign = client.post("/login", &format!("token={TOKEN}"), &[("Sec-Fetch-Site", "cross-site")]).await;
    assert_eq!((foreign.status, foreign.header("set-cookie")), (403, None));
    let large = client.post("/login", &format!("token={}", "x".repeat(10_000)), &[]).await;
    assert_eq!(large.status, 413);
    let out = client.post("/logout", "", &[("Cookie", pair)]).await;
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
}

#[tokio::test]
async fn an_unchanged_page_is_not_sent_again_and_a_large_one_is_packed() {
    let served = serve(site().await, None).await;
    let client = Client::new(served.address);
    let first = client.get("/", &[]).await;
    let tag = first.header("etag").unwrap().to_owned();
    let again = client.get("/", &[("If-None-Match", &tag)]).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    let packed = client.get("/", &[("Accept-Encoding", "gzip")]).await;
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.bytes.starts_with(&[0x1f, 0x8b]) && packed.bytes.len() < first.bytes.len() / 2);
}

#[tokio::test]
async fn too_much_is_refused_and_a_slow_client_is_left() {
    let served = serve(site().await, None).await;
    let client = Client::new(served.address);
    let long = "x".repeat(40_000);
    assert!(matches!(client.get("/", &[("X-Long", &long)]).await.status, 400 | 431));
    let many: Vec<(String, String)> = (0..200).map(|at| (format!("X-{at}"), "1".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert!(matches!(client.get("/", &many).await.status, 400 | 431));
    // Half a request does not keep others from their answers.
    let held: Vec<_> =
        futures::future::join_all((0..50).map(|_| client::open(served.address, b"GET / HTT"))).await;
    assert_eq!(client.get("/", &[]).await.status, 200);
    drop(held);
}

#[tokio::test]
async fn a_run_under_way_tells_what_changes_and_ends() {
    let (site, runs) = site_of(&fleet()).await;
    let served = serve(site, None).await;
    let id = "01JD0000000000000000000002";
    let page = get(served.address, &format!("/runs/{id}")).await;
    assert!(page.body.contains("data-events=\"/runs/01JD0000000000000000000002/events\""), "{}", page.body);
    assert!(page.body.contains("connecting") && !page.body.contains(EVIL), "{}", page.body);
    let mut events = client::events(served.address, &format!("/runs/{id}/events")).await;
    let first = events.next().await.unwrap();
    assert!(first["over"] == false && first["nodes"].as_array().unwrap().len() == 3, "{first}");
    runs.advance("applying");
    let second = events.next().await.unwrap();
    let nodes = second["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 1, "only what changed: {second}");
    assert_eq!((&nodes[0]["at"], &nodes[0]["node"]["state"]), (&1.into(), &"applying".into()));
    runs.end(RunStanding::Finished);
    let last = events.next().await.unwrap();
    assert_eq!(last["over"], true, "{last}");
    assert!(events.next().await.is_none(), "the stream ends with the run");
    let report = get(served.address, &format!("/runs/{id}")).await;
    assert!(report.body.contains("the report") && report.body.contains("href=\"/runs\""), "{}", report.body);
    let policy = report.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"),
        "{policy}"
    );
}

#[tokio::test]
async fn a_history_that_cannot_be_read_is_said_and_not_shown_as_empty() {
    let (site, runs) = site_of(&fleet()).await;
    let served = serve(site, None).await;
    runs.store.close().await;
    let page = Client::new(served.address).get("/", &[("Accept", "text/html")]).await;
    assert!(page.status == 503 && page.body.contains("The history cannot be read"), "{}", page.body);
    assert!(
        !page.body.contains("pool") && !page.body.contains("sqlite"),
        "its cause is for the log: {}",
        page.body
    );
    assert_eq!(get(served.address, "/healthz").await.status, 503);
    assert_eq!(get(served.address, "/api/v1/nodes").await.status, 503);
}

#[tokio::test]
async fn beyond_loopback_it_wants_to_know_who_reads() {
    let bind = async |address: &str, token, insecure| {
        let bound = Server::bind(address.parse().unwrap(), None, token, insecure).await;
        bound.map(|_| ()).map_err(|error| (error.to_string(), error.hint().unwrap_or_default().to_owned()))
    };
    let (open, hint) = bind("0.0.0.0:0", false, true).await.unwrap_err();
    assert!(
        open.contains("neither a token nor client certificates") && hint.contains("--token-file"),
        "{open}"
    );
    let (readable, hint) = bind("[::]:0", true, false).await.unwrap_err();
    assert!(readable.contains("without TLS") && hint.contains("--insecure"), "{readable}");
    bind("0.0.0.0:0", true, true).await.unwrap();
    bind("127.0.0.1:0", false, false).await.unwrap();
}

#[tokio::test]
async fn client_certificates_open_and_nothing_else_does() {
    let files = made_up::certificates();
    let tls = files.tls();
    let served = serve(made_up::with_certificates().await, Some(&tls)).await;
    let with = client::over_tls(served.address, &files, true).await.unwrap();
    assert!(with.status == 200 && with.header("strict-transport-security").is_some(), "{}", with.body);
    assert!(client::over_tls(served.address, &files, false).await.is_none(), "without a certificate");
    assert!(raw_or_none(served.address).await.is_none(), "without TLS");
}

async fn raw_or_none(address: std::net::SocketAddr) -> Option<u16> {
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    client::try_raw(address, request).await.map(|answer| answer.status)
}

#[tokio::test]
async fn it_ends_when_told_also_while_somebody_watches() {
    let (site, _) = site_of(&fleet()).await;
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), None, false, false).await.unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(server.run(site, async move { _ = stopped.await }));
    let mut events = client::events(address, "/runs/01JD0000000000000000000002/events").await;
    events.next().await.unwrap();
    drop(stop);
    tokio::time::timeout(Duration::from_secs(60), running).await.expect("in time").unwrap();
    assert!(events.next().await.is_none());
}

/// What the page of a large fleet costs; `--nocapture` prints it.
#[tokio::test]
async fn five_thousand_nodes() {
    let bound = Duration::from_millis(if cfg!(debug_assertions) { 10_000 } else { 200 });
    let (site, _) = site_of(&made_up::large(5000)).await;
    let served = serve(site, None).await;
    let client = Client::new(served.address);
    for (path, headers) in
        [("/", &[][..]), ("/", &[][..]), ("/", &[("Accept-Encoding", "gzip")][..]), ("/?by=group", &[][..])]
    {
        let begin = std::time::Instant::now();
        let page = client.get(path, headers).await;
        let took = begin.elapsed();
        println!("{path} {headers:?}: {} in {took:?}, {} bytes", page.status, page.bytes.len());
        assert!(page.status == 200 && took < bound, "{path}: {} in {took:?}", page.status);
    }
    if let Some(folder) = std::env::var_os("SAMPLES") {
        let page = client.get("/", &[]).await;
        std::fs::write(std::path::Path::new(&folder).join("fleet-5000.html"), page.body).unwrap();
    }
}
