//! `gpufleet watch` with a real systemd, and its metrics and alerts with Prometheus' own tool.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use gpufleet_ports::Ports;
use gpufleet_systems_tests::Machines;
use gpufleet_tests::{Fleet, FleetOptions, Home, binary};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(120);

fn docs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(path)
}

#[track_caller]
fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + LIMIT;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < limit, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn promtool(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(docs("monitoring"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed (`make test-systems`)");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn promtool_takes_the_alerts() {
    for arguments in
        [["check", "rules", "gpufleet.rules.yaml"], ["test", "rules", "gpufleet.rules.test.yaml"]]
    {
        let output = promtool(&arguments, "");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn promtool_takes_the_metrics_of_a_fleet() {
    let options = FleetOptions { nodes: 2, gpus_per_node: 2, ..FleetOptions::default() };
    let (fleet, home) = (Fleet::start(&options), Home::new());
    let port = Ports::default().reserve().expect("a port");
    let address = format!("127.0.0.1:{}", port.number());
    let inventory = fleet.inventory();
    let words = ["watch", "--health", "-i", &inventory, "--every", "1h", "--listen", &address];
    let watch = home.gpufleet(words).within(LIMIT * 2).start();
    let metrics = until("metrics of the fleet", || {
        let mut stream = TcpStream::connect(&address).ok()?;
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let body = text.split_once("\r\n\r\n")?.1.to_owned();
        body.contains("gpufleet_node_verdict{").then_some(body)
    });
    let output = promtool(&["check", "metrics"], &metrics);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}\n{metrics}");
    watch.signal(Signal::TERM);
    watch.wait().expect(0);
}

/// The secret as `openssl rand -base64 32` prints it, and as the specification writes it.
#[test]
fn the_library_of_standard_webhooks_verifies_a_notification() {
    let python = std::env::var_os("GPUFLEET_FORMATS_PYTHON").expect("run `make test-systems`");
    let receiver = Path::new(env!("CARGO_MANIFEST_DIR")).join("formats/webhook.py");
    for secret in
        ["J0n2iB4wYqJ2eCRrTy2mYjmD4Xb0wq0v3yZ4l0mJ1bY=", "whsec_J0n2iB4wYqJ2eCRrTy2mYjmD4Xb0wq0v3yZ4l0mJ1bY="]
    {
        let home = Home::new();
        home.write("secret", secret);
        home.write("hosts", "localhost ansible_connection=local\n");
        let file = home.work().join("secret");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let mut child =
            Command::new(&python).arg(&receiver).arg(&file).stdout(Stdio::piped()).spawn().expect("python");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = format!("http://127.0.0.1:{}/", lines.next().expect("a port").unwrap());
        let words = ["watch", "--health", "-i", "hosts", "--every", "1h", "--webhook", &url];
        home.gpufleet(words).args(["--secret-file", "secret", "--test-notifications"]).run().expect(0);
        let said = lines.next().expect("a word").unwrap();
        assert!(said.starts_with("verified "), "{secret}: {said}");
        child.wait().unwrap();
    }
}

const MACHINE: &str = "
audits:
  - {name: here, inventory: hosts, baselines: [./baseline.yaml], every: 5s}
";

/// Everything of the unit as it is shipped, but a watchdog that a test can wait for.
const DROP_IN: &str = "[Service]\nWatchdogSec=20s\nRestartSec=1s\n";

#[test]
fn the_unit_runs_reloads_and_is_restarted_when_it_is_stuck() {
    let machines = Machines::start_with(1, |disk| {
        let write = |path: &str, text: &str| {
            let path = disk.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
        };
        write("etc/gpufleet/watch.yaml", MACHINE);
        write("etc/gpufleet/hosts", "localhost ansible_connection=local\n");
        write("etc/gpufleet/baseline.yaml", "name: here\nchecks: [os.oom]\n");
        let unit = fs::read_to_string(docs("packaging/gpufleet-watch.service")).unwrap();
        write("etc/systemd/system/gpufleet-watch.service", &unit);
        write("etc/systemd/system/gpufleet-watch.service.d/test.conf", DROP_IN);
        write("usr/lib/sysusers.d/gpufleet.conf", "u gpufleet - \"gpufleet\" /var/lib/gpufleet\n");
        let program = disk.join("usr/bin/gpufleet");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::copy(binary("gpufleet"), &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    });
    let read = |command: &str| machines.read("node1", command);
    let journal = || read("journalctl -u gpufleet-watch --no-pager -o cat");
    read("systemd-analyze verify /etc/systemd/system/gpufleet-watch.service");
    read("systemd-sysusers && systemctl daemon-reload");
    // It returns when the watcher says that it is ready.
    read("systemctl start gpufleet-watch || (journalctl -u gpufleet-watch --no-pager >&2; false)");
    assert_eq!(read("systemctl is-active gpufleet-watch"), "active");
    until("an audit", || journal().contains("1 node audited").then_some(()));
    let status = read("systemctl show -P StatusText gpufleet-watch");
    assert!(status.contains("1 schedule,"), "{status}");

    read("cp /etc/gpufleet/watch.yaml /root/good; echo 'audits: 3' >/etc/gpufleet/watch.yaml");
    read("systemctl reload gpufleet-watch");
    until("the refusal", || journal().contains("the old one stays in force").then_some(()));
    read("cp /root/good /etc/gpufleet/watch.yaml; systemctl reload gpufleet-watch");
    until("the reload", || journal().contains("was read again").then_some(()));
    assert_eq!(read("systemctl show -P NRestarts gpufleet-watch"), "0");

    read("kill -STOP $(systemctl show -P MainPID gpufleet-watch)");
    until("the watchdog", || (read("systemctl show -P NRestarts gpufleet-watch") != "0").then_some(()));
    until("the restart", || (read("systemctl is-active gpufleet-watch || true") == "active").then_some(()));
    read("systemctl stop gpufleet-watch");
    assert_eq!(read("systemctl show -P Result gpufleet-watch"), "success");
    assert_eq!(read("stat -c %a:%U /var/lib/gpufleet/watch"), "700:gpufleet");
}
