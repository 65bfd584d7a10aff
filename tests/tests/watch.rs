//! `watch`: audits of a simulated fleet on a schedule, with a real receiver of webhooks and a real reader of metrics.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use gpufleet_tests::{Fleet, FleetOptions, Home, Running};
use rustix::process::Signal;
use serde_json::Value;

/// How long something may take that is waited for.
const LIMIT: Duration = Duration::from_secs(60);
/// Few checks, so that the state of this machine, which the nodes share, does not matter.
const BASELINE: &str = "name: lab\nchecks: [mem.remap_failed, mem.remap_pending, cfg.drain_state]\n";

/// A receiver of webhooks that takes everything.
struct Receiver {
    address: String,
    seen: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/hook", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                let mut length = 0;
                let mut id = String::new();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    match line.trim_end().split_once(": ") {
                        None if line.trim_end().is_empty() => break,
                        Some(("content-length", value)) => length = value.parse().unwrap(),
                        Some(("idempotency-key", value)) => id = value.to_owned(),
                        _ => {}
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let document: Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(document["id"], id);
                kept.lock().unwrap().push(document);
                let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
                reader.get_mut().write_all(answer).unwrap();
            }
        });
        Self { address, seen }
    }

    fn seen(&self) -> Vec<Value> {
        self.seen.lock().unwrap().clone()
    }

    #[track_caller]
    fn await_count(&self, count: usize) -> Vec<Value> {
        until("a notification", || Some(self.seen()).filter(|seen| seen.len() >= count))
    }
}

#[track_caller]
fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + LIMIT;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < limit, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The port that a watcher with `listen: 127.0.0.1:0` was given: that of the one socket on which it listens.
#[track_caller]
fn port_of(watch: &Running) -> u16 {
    until("a port", || {
        let process = format!("/proc/{}", watch.pid());
        let files = std::fs::read_dir(format!("{process}/fd")).ok()?;
        let sockets: BTreeSet<String> = files
            .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
            .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
            .collect();
        let table = std::fs::read_to_string(format!("{process}/net/tcp")).ok()?;
        table.lines().skip(1).find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Its state is LISTEN; see proc_net_tcp in the kernel's documentation.
            let mine = words.get(3) == Some(&"0A") && sockets.contains(*words.get(9)?);
            u16::from_str_radix(words.get(1)?.rsplit(':').next()?, 16).ok().filter(|_| mine)
        })
    })
}

fn get(port: u16, path: &str, headers: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// The value of the first sample that begins so.
fn metric(port: u16, begin: &str) -> Option<f64> {
    let text = get(port, "/metrics", "")?;
    text.lines().find_map(|line| line.strip_prefix(begin)?.trim().parse().ok())
}

fn audits(port: u16) -> f64 {
    metric(port, "gpufleet_watch_audits_total{schedule=\"lab\",result=\"reported\"}").unwrap_or_default()
}

/// Waits until two more audits have ended: one of them began after this call.
#[track_caller]
fn await_audits(port: u16) {
    let before = audits(port);
    until("two more audits", || (audits(port) >= before + 2.0).then_some(()));
}

fn configuration(fleet: &Fleet, webhook: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\naudits:\n  - {{name: lab, inventory: {}, baselines: [./baseline.yaml], waivers: waivers.yaml, \
         every: 2s}}\n\
         notifications:\n  - {{name: hook, webhook: '{webhook}'}}\n  - {{name: file, command: [tee, -a, told.jsonl]}}\n",
        fleet.inventory()
    )
}

fn start(home: &Home) -> Running {
    home.gpufleet(["watch", "watch.yaml"]).within(Duration::from_secs(200)).start()
}

/// A waiver that covers nothing, so that there are metrics of one.
fn waivers() -> String {
    let today = jiff::Zoned::now().date();
    let end = today.saturating_add(jiff::Span::new().days(30));
    format!(
        "- {{id: W1, check: pcie.width, match: {{nodes: [none]}}, reason: none, owner: me, created: {today}, expires: {end}}}\n"
    )
}

/// Every metric that the expressions of the alerts and of the dashboard name.
fn named_metrics() -> Vec<String> {
    let rules = include_str!("../../docs/monitoring/gpufleet.rules.yaml");
    let rules = rules.lines().filter(|line| line.trim_start().starts_with("expr:"));
    let dashboard = include_str!("../../docs/monitoring/gpufleet.dashboard.json");
    let dashboard = dashboard.lines().filter(|line| line.trim_start().starts_with("\"expr\":"));
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let words = rules.chain(dashboard).flat_map(|line| line.split(word));
    let mut all: Vec<String> =
        words.filter(|word| word.starts_with("gpufleet_")).map(str::to_owned).collect();
    all.sort();
    all.dedup();
    all
}

fn kinds(seen: &[Value]) -> Vec<&str> {
    seen.iter().map(|it| it["kind"].as_str().unwrap()).collect()
}

#[test]
fn a_defect_is_told_once_and_so_is_its_end_across_a_restart() {
    let options = FleetOptions { nodes: 2, gpus_per_node: 2, ..FleetOptions::default() };
    let (fleet, home, receiver) = (Fleet::start(&options), Home::new(), Receiver::start());
    home.write("baseline.yaml", BASELINE);
    home.write("waivers.yaml", &waivers());
    home.write("watch.yaml", &configuration(&fleet, &receiver.address));
    let before = (fleet.digests(), fleet.activity(&fleet.names()));
    let watch = start(&home);
    let port = port_of(&watch);
    await_audits(port);
    assert_eq!(receiver.seen(), Vec::<Value>::new(), "all is well");
    assert_eq!(before, (fleet.digests(), fleet.activity(&fleet.names())), "watching changes nothing");

    fleet.control("gpu002", &["set", "1", "remap_failed", "on"]);
    let seen = receiver.await_count(1);
    await_audits(port);
    assert_eq!(kinds(&receiver.seen()), ["opened"], "once: {seen:?}");
    let finding = &seen[0]["finding"];
    assert_eq!(
        (&finding["control"], &finding["verdict"], &finding["nodes_total"]),
        (&"mem.remap_failed".into(), &"fail".into(), &1.into())
    );
    let place = &finding["nodes"][0];
    assert_eq!((&place["node"], &place["subject"]), (&"gpu002".into(), &"GPU 1".into()), "{place}");
    let schema: Value =
        serde_json::from_str(include_str!("../../docs/schema/notification.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    assert!(schema.is_valid(&seen[0]), "{}", seen[0]);
    let run = seen[0]["run_id"].as_str().unwrap();
    home.gpufleet(["report", run]).run().expect(0).says(&["mem.remap_failed", "gpu002"]);

    // The last audit's own metrics, for which alerts and dashboard ask.
    let finding = "gpufleet_check_findings{schedule=\"lab\",node=\"gpu002\",check=\"mem.remap_failed\"";
    let metrics = until("the finding in the metrics", || {
        get(port, "/metrics", "").filter(|text| text.contains(finding))
    });
    let told: BTreeSet<&str> = metrics.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let missing: Vec<String> =
        named_metrics().into_iter().filter(|name| !told.contains(name.as_str())).collect();
    assert_eq!(missing, Vec::<String>::new(), "{metrics}");

    // A restart neither repeats nor forgets.
    watch.signal(Signal::TERM);
    watch.wait().expect(0).says(&["lab: opened: fail: gpu002 GPU 1", "stopped"]);
    let watch = start(&home);
    let port = port_of(&watch);
    await_audits(port);
    assert_eq!(kinds(&receiver.seen()), ["opened"]);
    fleet.control("gpu002", &["set", "1", "remap_failed", "off"]);
    let seen = receiver.await_count(2);
    await_audits(port);
    assert_eq!(kinds(&receiver.seen()), ["opened", "recovered"]);
    assert_eq!(seen[0]["incident"], seen[1]["incident"]);
    let text = std::fs::read_to_string(home.work().join("told.jsonl")).unwrap();
    assert_eq!(text.matches("\"format\":1").count(), 2, "the command is told the same: {text}");
    watch.signal(Signal::INT);
    watch.wait().expect(0);
}

#[test]
fn a_wrong_configuration_is_not_adopted_and_metrics_tell_so() {
    let options = FleetOptions { nodes: 1, gpus_per_node: 1, ..FleetOptions::default() };
    let (fleet, home) = (Fleet::start(&options), Home::new());
    home.write("baseline.yaml", BASELINE);
    // Nobody listens there: what cannot be delivered holds nothing up.
    home.write("waivers.yaml", &waivers());
    let good = configuration(&fleet, "http://127.0.0.1:9/hook");
    home.write("watch.yaml", &good);
    let watch = start(&home);
    let port = port_of(&watch);
    until("readiness", || get(port, "/readyz", "").filter(|text| text.starts_with("HTTP/1.1 200")));
    await_audits(port);
    let reload = "gpufleet_watch_config_last_reload_successful";
    assert_eq!(metric(port, reload), Some(1.0));
    home.write("watch.yaml", "audits: [{every: never}]\n");
    watch.signal(Signal::HUP);
    until("the failed reload", || metric(port, reload).filter(|ok| *ok == 0.0));
    await_audits(port);
    home.write("watch.yaml", &good.replace("name: lab", "name: other"));
    watch.signal(Signal::HUP);
    until("the other schedule", || {
        metric(port, "gpufleet_watch_audits_total{schedule=\"other\",result=\"reported\"}")
            .filter(|n| *n > 0.0)
    });
    assert_eq!(metric(port, reload), Some(1.0));
    assert_eq!(audits(port), 0.0, "the old schedule is told no more");
    let metrics = get(port, "/metrics", "accept: application/openmetrics-text\r\n").unwrap();
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    watch.signal(Signal::TERM);
    let done = watch.wait().expect(0);
    done.says(&["the old one stays in force", "watch.yaml:1:", "`every` wants a duration"]);
}

#[test]
fn a_wrong_command_line_is_refused_before_anything_begins() {
    let home = Home::new();
    home.write("bad.yaml", "audits:\n  - {health: true, evry: 6h}\n");
    home.write("typo.yaml", "audits: [{baselines: [croe], every: 6h}]\n");
    home.write("gone.yaml", "audits: [{health: true, inventory: [none/], every: 6h}]\n");
    home.write("good.yaml", "audits: [{health: true, at: ['02:00'], timezone: Europe/Berlin}]\n");
    for (arguments, hint) in [
        (&["bad.yaml"][..], "bad.yaml:2:20"),
        (&["none.yaml"], "cannot read none.yaml"),
        (&["typo.yaml", "--check"], "there is no baseline `croe`"),
        (&["gone.yaml", "--check"], "cannot be made: none/"),
        (&["good.yaml", "--every", "6h"], "cannot be used with"),
        (&["--health"], "required"),
        (&["--health", "--every", "1h", "--jitter", "2h"], "must be less than"),
        (&["--health", "--at", "25:00"], "no time of day"),
        (&["--health", "--every", "1h", "--listen", "0.0.0.0:0"], "there is no token"),
        (&["--health", "--every", "1h", "--webhook", "ftp://x/secret"], "must begin with https"),
        (&["good.yaml", "--test-notifications"], "nobody to notify"),
    ] {
        let done = home.gpufleet(["watch"]).args(arguments).run();
        assert_eq!(done.code, Some(1), "{done}");
        assert!(done.stderr.contains(hint) && !done.stderr.contains("secret"), "{done}");
    }
    let done = home.gpufleet(["watch", "good.yaml", "--check"]).run().expect(0);
    done.says(&["gpufleet audit --health --format json", "next: "]);
    let test = ["watch", "--health", "--every", "1h", "--notify", "tee told.json", "--test-notifications"];
    home.gpufleet(test).run().expect(0).says(&["delivered to tee"]);
    let text = std::fs::read_to_string(home.work().join("told.json")).unwrap();
    assert!(text.contains("\"kind\":\"test\""), "{text}");
}

#[test]
fn an_audit_that_cannot_be_made_is_told_once() {
    let (home, receiver) = (Home::new(), Receiver::start());
    let words = ["watch", "--health", "-i", "missing/", "--every", "1s", "--listen", "127.0.0.1:0"];
    let watch = home.gpufleet(words).args(["--webhook", &receiver.address]).start();
    let port = port_of(&watch);
    let seen = receiver.await_count(1);
    let failed = "gpufleet_watch_audits_total{schedule=\"audit\",result=\"failed\"}";
    until("more failures", || metric(port, failed).filter(|count| *count >= 4.0));
    assert_eq!(kinds(&receiver.seen()), ["audit_failed"]);
    assert!(seen[0]["summary"].as_str().unwrap().contains("missing"), "{}", seen[0]);
    assert_eq!(metric(port, "gpufleet_watch_audit_failing{schedule=\"audit\"}"), Some(1.0));
    watch.signal(Signal::TERM);
    watch.wait().expect(0);
}
