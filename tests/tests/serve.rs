//! `gpufleet serve`, the real program: what it shows of runs and audits, and who it lets in.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use gpufleet_ports::{Ports, ReservedPort};
use gpufleet_tests::{Fleet, FleetOptions, Home, Running};
use rustix::process::Signal;

/// A server, and its port.
struct Served {
    running: Running,
    port: ReservedPort,
}

impl Served {
    fn start(home: &Home, arguments: &[&str]) -> Self {
        let port = Ports::default().reserve().expect("a port");
        let address = format!("127.0.0.1:{}", port.number());
        let running = home.gpufleet(["serve", "--listen", &address]).args(arguments).start();
        let served = Self { running, port };
        served.until("/healthz", "ok\n");
        served
    }

    /// Sends a request; none while nobody listens.
    fn request(&self, path: &str, header: &str) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.number())).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        Some(stream)
    }

    /// Asks for a page; none while nobody listens.
    fn ask(&self, path: &str, header: &str) -> Option<(u16, String)> {
        let mut text = String::new();
        self.request(path, header)?.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.ask(path, "").expect("an answer")
    }

    /// Asks again and again until the page has a text.
    fn until(&self, path: &str, text: &str) -> String {
        let begin = Instant::now();
        loop {
            let answer = self.ask(path, "");
            match answer {
                Some((200, body)) if body.contains(text) => return body,
                answer => assert!(begin.elapsed() < Duration::from_secs(60), "{path}: {text}: {answer:?}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops it as a service manager does.
    fn stop(self) {
        self.running.signal(Signal::TERM);
        self.running.wait().expect(0).says(&["Serving http://127.0.0.1:"]);
    }
}

#[test]
fn a_run_changes_on_its_page_and_becomes_its_report() {
    let fleet = Fleet::start(&FleetOptions { nodes: 2, gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - name: take a while\n      shell: until [ -e /srv/go ]; do sleep 0.1; done\n",
    );
    let served = Served::start(&home, &[]);
    assert!(served.get("/runs").1.contains("There is no run yet"));
    let mut run = home.gpufleet(["run", "play.yaml", "-i", &fleet.inventory(), "--yes"]).start();
    run.until("the task", |events| events.has("task_started"));
    let list = served.until("/runs", "is running");
    let page = list.split("href=\"").find(|part| part.starts_with("/runs/")).expect("a run");
    let page = page.split('"').next().expect("an address").to_owned();
    let live = served.until(&page, "take a while");
    assert!(live.contains(&format!("data-events=\"{page}/events\"")) && live.contains("gpu001"), "{live}");
    // The stream goes on to the end of the run, and ends with it.
    let mut events = BufReader::new(served.request(&format!("{page}/events"), "").expect("a stream"));
    let mut stream = String::new();
    while !stream.contains("\"over\":false") {
        assert!(events.read_line(&mut stream).expect("a line") > 0, "{stream}");
    }
    for node in fleet.names() {
        fleet.read(&node, "touch /srv/go");
    }
    events.read_to_string(&mut stream).expect("the rest");
    assert!(stream.starts_with("HTTP/1.1 200") && stream.contains("\"over\":true"), "{stream}");
    run.wait().expect(0);
    let report = served.until(&page, "exit code <b>0</b>");
    assert!(report.contains("Content-Security-Policy") && report.contains("href=\"/runs\""), "{report}");
    for path in
        ["/runs/..%2f..%2fpid", "/runs/01JD0000000000000000000000", "/nodes/gpu009", "/checks/no.such"]
    {
        assert_eq!(served.get(path).0, 404, "{path}");
    }
    served.stop();
}

#[test]
fn it_starts_only_where_somebody_says_who_may_read() {
    let home = Home::new();
    let done = home.gpufleet(["serve", "--listen", "0.0.0.0:0"]).run().expect(1);
    done.says(&["can be reached from other machines", "--token-file"]);
    home.write("token", "3f0c9a4b7d5e61280f9c3f0c9a4b7d5e\n");
    let done = home.gpufleet(["serve", "--listen", "0.0.0.0:0", "--token-file", "token"]).run().expect(1);
    done.says(&["without TLS the token travels readable", "--insecure"]);
    home.write("short", "secret\n");
    let done = home.gpufleet(["serve", "--token-file", "short"]).run().expect(1);
    let done = done.says(&["fewer than 20 characters", "openssl rand"]);
    assert!(!done.to_string().contains("secret"), "{done}");
    home.gpufleet(["serve", "--tls-cert", "none.pem"]).run().expect(1).says(&["--tls-key"]);

    let served = Served::start(&home, &["--token-file", "token"]);
    assert_eq!(served.get("/").0, 401);
    let bearer = "Authorization: Bearer 3f0c9a4b7d5e61280f9c3f0c9a4b7d5e\r\n";
    assert_eq!(served.ask("/api/v1/fleet", bearer).map(|(status, _)| status), Some(200));
    served.stop();
}
