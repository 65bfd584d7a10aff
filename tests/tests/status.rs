//! `status` on simulated nodes: what GPUs do, who holds them, what is free; and `--watch` on a real terminal.

use std::{
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home, Running};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

struct Ward {
    fleet: Fleet,
    home: Home,
}

impl Ward {
    fn new(nodes: usize, gpus_per_node: usize, faults: &str) -> Self {
        let options = FleetOptions { nodes, gpus_per_node, faults: faults.into(), ..FleetOptions::default() };
        Self { fleet: Fleet::start(&options), home: Home::new() }
    }

    fn status(&self, arguments: &[&str]) -> Finished {
        let inventory = self.fleet.inventory();
        self.home.gpufleet(["status"]).args(arguments).args(["-i", &inventory]).run()
    }

    fn run(&self, play: &str) {
        self.home.write("play.yaml", play);
        let inventory = self.fleet.inventory();
        self.home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes"]).run().expect(0);
    }
}

/// The states of a node's GPUs.
fn states(document: &Value, node: usize) -> Vec<&str> {
    let gpus = document["nodes"][node]["gpus"].as_array().map(Vec::as_slice).unwrap_or_default();
    gpus.iter().map(|gpu| gpu["state"].as_str().unwrap_or_default()).collect()
}

fn held_ms(document: &Value, gpu: usize) -> u64 {
    document["nodes"][0]["gpus"][gpu]["held_ms"].as_u64().unwrap_or_else(|| panic!("{document}"))
}

fn document(done: &Finished) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done}"))
}

#[test]
fn every_gpu_is_shown_as_it_is_and_nothing_changes() {
    let ward = Ward::new(3, 4, "");
    ward.run(
        "- hosts: gpu002\n  become: true\n  gather_facts: false\n  tasks:\n    \
         - gpu_mig: {mode: enabled, layout: {1g.10gb: 7}, gpus: [0]}\n\
         - hosts: gpu003\n  become: true\n  gather_facts: false\n  tasks:\n    - gpu_mps: {state: started}\n",
    );
    let control = |words: &[&str]| ward.fleet.control("gpu001", words);
    control(&["client", "add", "0", "70000"]);
    control(&["client", "add", "1", "70000"]);
    control(&["set", "1", "utilization", "1"]);
    control(&["client", "add", "2", "70000"]);
    control(&["set", "2", "busy_fifths", "2"]);
    control(&["set", "2", "event_reasons", "64"]);
    control(&["set", "2", "power_draw_mw", "355000"]);
    let instance = ward.fleet.machine("gpu002")["gpus"][0]["instances"][0]["id"].to_string();
    ward.fleet.control("gpu002", &["client", "add", "0", "9000", &instance]);
    ward.fleet.control("gpu002", &["set", "1", "drain", "on"]);
    ward.fleet.control("gpu002", &["set", "2", "lost", "on"]);
    ward.fleet.control("gpu002", &["set", "3", "remap_pending", "on"]);
    let names = ["gpu001", "gpu002", "gpu003"];
    let before = (ward.fleet.digests(), names.map(|node| ward.fleet.setters(node).len()));

    // Of processes that began just now nothing is said but that they are there.
    let done = ward.status(&["gpu", "-o", "json"]).expect(0);
    if held_ms(&document(&done), 2) < 4500 {
        assert_eq!(states(&document(&done), 0)[..3], ["busy"; 3], "{done}");
    }
    let limit = Instant::now() + Duration::from_secs(80);
    let (done, found) = loop {
        let done = ward.status(&["gpu", "-o", "json"]).expect(0);
        let found = document(&done);
        if states(&found, 0)[2] == "starved" {
            break (done, found);
        }
        assert!(Instant::now() < limit, "{done}");
    };
    assert_eq!(states(&found, 0), ["busy", "idle-held", "starved", "free"], "{done}");
    let recent = &found["nodes"][0]["gpus"][2]["recent"];
    assert!(recent["span_ms"].as_u64().unwrap() <= held_ms(&found, 2), "{done}");
    assert_eq!(states(&found, 1), ["part-free", "drain", "lost", "degraded"], "{done}");
    assert_eq!(states(&found, 2), ["free"; 4], "{done}");
    assert_eq!(found["free"], serde_json::json!({"whole": 1, "mig": {"1g.10gb": 6}, "mps": 4}), "{done}");
    let busy = &found["nodes"][0]["gpus"][0];
    assert_eq!((&busy["recent"]["permille"], &busy["recent"]["peak"]), (&970.into(), &97.into()), "{done}");
    assert_eq!(
        (&busy["holders"][0]["memory_mib"], &busy["holders"][0]["user"]),
        (&70000.into(), &"root".into())
    );
    assert_eq!(found["nodes"][0]["gpus"][2]["readings"]["power_draw_w"], 355);
    let slice = &found["nodes"][1]["gpus"][0]["holders"][0];
    assert_eq!(slice["instance"].to_string(), instance, "{done}");

    let table = ward.status(&["gpu", "--sort-by", "use"]).expect(0);
    let first = table.stdout.lines().nth(1).unwrap_or_default();
    assert!(
        first.starts_with("gpu001    0  H100") && first.contains("97") && first.ends_with("busy"),
        "{table}"
    );
    let table = table.says(&["6/7 1g.10gb", "355/700", "hw-thermal", "free: 1 whole, 6 MIG 1g.10gb, 4 MPS"]);
    table.says(&[
        "lost: gpu002 GPU 2: the GPU has fallen off the bus",
        "degraded: gpu002 GPU 3",
        "12 GPUs: 1 lost",
    ]);
    let nodes = ward.status(&["node", "-o", "node,gpus,held,free,state", "--sort-by", "state"]).expect(0);
    let lines: Vec<Vec<&str>> =
        nodes.stdout.lines().take(4).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["gpu002", "4", "1", "6", "MIG", "1g.10gb", "lost"], "{nodes}");
    assert_eq!(lines[3], ["gpu003", "4", "0", "4", "MPS", "free"], "{nodes}");
    let csv = ward.status(&["gpu", "-o", "csv"]).expect(0);
    assert_eq!(csv.stdout.lines().count(), 13, "{csv}");
    assert!(csv.stdout.lines().all(|line| line.matches(',').count() >= 20), "{csv}");

    assert_eq!(before, (ward.fleet.digests(), names.map(|node| ward.fleet.setters(node).len())));
}

#[test]
fn a_node_that_hangs_or_is_gone_is_unknown_with_its_cause() {
    let ward = Ward::new(4, 2, "- {nodes: gpu002, function: nvmlInit_v2, effect: hang}\n");
    ward.fleet.control("gpu003", &["vanish"]);
    let done = ward.status(&["gpu"]).expect(2);
    let line = |node: &str| done.stdout.lines().find(|line| line.starts_with(node)).unwrap_or_default();
    for node in ["gpu002", "gpu003"] {
        assert!(line(node).ends_with("unknown"), "{done}");
    }
    assert!(line("gpu004").ends_with("free"), "{done}");
    assert!(done.took < Duration::from_secs(60), "{done}");
    let done = done.says(&[
        "4 nodes (2 unknown), 4 GPUs: 4 free",
        "free: 4 whole",
        "unknown: gpu002: NVML did not answer",
    ]);
    done.says(&["waiting for gpu002"]);
    ward.status(&["gpu", "-l", "gpu003"]).expect(4);
}

#[test]
fn wrong_columns_are_told_before_any_node_is_contacted() {
    let home = Home::new();
    let wrong = |arguments: &[&str]| {
        home.gpufleet(["status", "gpu", "-i", "nowhere,"]).args(arguments).run().expect(1)
    };
    wrong(&["-o", "node,colour"]).says(&["there is no column `colour`", "columns are node, groups, gpu"]);
    wrong(&["--sort-by", "colour"]).says(&["there is no column `colour`"]);
    wrong(&["--watch"]).says(&["`--watch` needs a terminal"]);
    wrong(&["--watch", "-o", "json"]).says(&["`-o json` and `-o csv` are for programs"]);
}

/// What a terminal of 20 lines with 120 columns shows after these bytes: only what the screen of gpufleet writes is understood.
fn shown(bytes: &str) -> String {
    let (lines, columns) = (20, 120);
    let mut grid = vec![vec![' '; columns]; lines];
    let (mut y, mut x) = (0, 0);
    let mut rest = bytes.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '\u{1b}' && rest.next_if_eq(&'[').is_some() {
            let mut sequence = String::new();
            let end = rest.by_ref().find(|c| {
                sequence.push(*c);
                c.is_ascii_alphabetic()
            });
            let numbers: Vec<usize> =
                sequence.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
            match end {
                Some('H') => {
                    (y, x) = (numbers.first().map_or(0, |y| y - 1), numbers.get(1).map_or(0, |x| x - 1));
                }
                Some('J') => grid = vec![vec![' '; columns]; lines],
                _ => {}
            }
        } else if !c.is_control() && y < lines && x < columns {
            grid[y][x] = c;
            x += 1;
        }
    }
    grid.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned() + "\n").collect()
}

/// `status --watch` on a terminal of its own.
struct Watching<'a> {
    home: &'a Home,
    running: Running,
    keys: std::fs::File,
}

impl<'a> Watching<'a> {
    fn start(ward: &'a Ward) -> Self {
        let work = ward.home.work();
        for name in ["in", "screen", "pid"] {
            let _ = std::fs::remove_file(work.join(name));
        }
        let line = format!(
            "stty rows 20 cols 120; sh -c 'echo $$ >pid; exec gpufleet status gpu -i {} --watch 1'; echo left with $?",
            ward.fleet.inventory()
        );
        let shell = "mkfifo in; exec 3<>in; script -qefc \"$LINE\" screen <in >/dev/null";
        let program = ward.home.program(Path::new("/bin/sh"), ["-c", shell]);
        let running = program.env("LINE", &line).env("TERM", "xterm-256color").start();
        let keys = loop {
            match std::fs::File::options().write(true).open(work.join("in")) {
                Ok(keys) => break keys,
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        Self { home: &ward.home, running, keys }
    }

    fn written(&self) -> String {
        let bytes = std::fs::read(self.home.work().join("screen")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the screen shows all of these texts.
    fn until(&self, texts: &[&str]) -> String {
        let limit = Instant::now() + Duration::from_secs(80);
        loop {
            let screen = shown(&self.written());
            if texts.iter().all(|text| screen.contains(text)) {
                return screen;
            }
            assert!(Instant::now() < limit, "{texts:?} is not shown:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal reads");
    }

    /// Sends a signal to gpufleet alone.
    fn signal(&self, signal: Signal) {
        let pid = std::fs::read_to_string(self.home.work().join("pid")).expect("its process id");
        let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process id");
        kill_process(pid, signal).expect("it runs");
    }

    /// Waits for its end, after which the terminal is as it was.
    fn left_with(self, code: u8) {
        let home = self.home;
        self.running.wait().expect(0);
        let written = std::fs::read(home.work().join("screen")).expect("what was on the terminal");
        let written = String::from_utf8_lossy(&written).into_owned();
        let (during, after) =
            written.rsplit_once("\u{1b}[?1049l").unwrap_or_else(|| panic!("not restored: {written:?}"));
        assert!(during.contains("\u{1b}[?1049h"), "{written:?}");
        assert!(
            after.contains("\u{1b}[?25h") && after.contains(&format!("left with {code}\r\n")),
            "{after:?}"
        );
    }
}

#[test]
fn the_screen_follows_the_nodes_and_gives_the_terminal_back() {
    let ward = Ward::new(3, 2, "- {nodes: gpu003, function: nvmlInit_v2, effect: hang}\n");
    let mut watching = Watching::start(&ward);
    // While the third node hangs.
    let screen = watching.until(&["free: 4 whole", "gpu001", "gpu002"]);
    assert!(!screen.contains("NVML did not answer"), "{screen}");
    ward.fleet.control("gpu001", &["client", "add", "0", "70000"]);
    watching.until(&["1 busy, 3 free", "free: 3 whole"]);
    watching.until(&["NVML did not answer"]);
    // A node is gone, and its numbers are not taken for fresh ones.
    ward.fleet.control("gpu002", &["vanish"]);
    watching.until(&["1 of 3 nodes silent", "2 unknown", "free: 1 whole"]);
    watching.press("/gpu001\r");
    let screen = watching.until(&["only /gpu001, lines 1-2 of 2"]);
    assert!(!screen.contains("gpu002"), "{screen}");
    watching.press("f");
    watching.until(&["only free, only /gpu001, lines 1-1 of 1"]);
    watching.press("q");
    watching.left_with(0);
}

#[test]
fn signals_and_control_c_give_the_terminal_back_too() {
    let ward = Ward::new(1, 1, "");
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let watching = Watching::start(&ward);
        watching.until(&["free: 1 whole"]);
        watching.signal(signal);
        watching.left_with(130);
    }
    let mut watching = Watching::start(&ward);
    watching.until(&["free: 1 whole"]);
    watching.press("\u{3}");
    watching.left_with(0);
}
