//! `drain: command` with the real binary: hooks of a shell over a scheduler that is a folder of files.
//!
//! What happened is read from the hooks' own log and from the lab's, never from gpufleet's.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpufleet_tests::{Command, Finished, Fleet, FleetOptions, Home, Running};
use rustix::process::Signal;

const NODES: [&str; 3] = ["gpu001", "gpu002", "gpu003"];
const ALICE: &str = "alice: bad DIMM";

/// `cordon/NODE` names the holder of a node and `jobs/NODE` its jobs; `log` has a line for each action of a hook,
/// with the number of the node's boots so far.
const SCHEDULER: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 2
node=$GPUFLEET_NODE
note() {
    printf '%s %s %s\n' "$1" "$node" "$(grep -c '"boot"' "$(cat lab)/nodes/$node/events.jsonl")" >> log
}
held() {
    echo "held by $(cat cordon/$node)"
    exit 1
}
case $1 in
drain)
    test ! -e silent || exit 3
    test ! -e hangs || { touch hanging; sleep 600; }
    test ! -e cordon/$node || test "$(cat cordon/$node)" = "$GPUFLEET_MARKER" || held
    test -e cordon/$node || { printf %s "$GPUFLEET_MARKER" > cordon/$node; note drain; }
    ;;
is_idle)
    test ! -e jobs/$node || { cat jobs/$node; exit 1; }
    ;;
resume)
    rm cordon/$node && note resume
    ;;
still_ours)
    test -e cordon/$node || { echo not drained; exit 1; }
    test "$(cat cordon/$node)" = "$GPUFLEET_MARKER" || held
    ;;
notice)
    note notice
    ;;
out)
    for file in cordon/*; do
        test ! -e "$file" || echo "$(basename "$file") $(cat "$file")"
    done
    ;;
esac
"#;

struct Site {
    fleet: Fleet,
    home: Home,
}

impl Site {
    fn new() -> Self {
        let options = FleetOptions { nodes: NODES.len(), gpus_per_node: 1, ..FleetOptions::default() };
        let site = Self { fleet: Fleet::start(&options), home: Home::new() };
        for folder in ["cordon", "jobs"] {
            std::fs::create_dir(site.path(folder)).unwrap();
        }
        site.home.write("lab", &site.fleet.dir().display().to_string());
        site.home.write("sched", SCHEDULER);
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.work().join(name)
    }

    fn write_play(&self, budget: usize, timeout: &str, more: &[&str]) {
        let sched = self.path("sched").display().to_string();
        let hook = |name: &str| format!("        {name}: \"sh {sched} {name}\"\n");
        let hooks: String =
            ["drain", "is_idle", "resume", "still_ours"].iter().chain(more).map(|name| hook(name)).collect();
        let play = format!(
            "- hosts: gpu
  become: true
  rollout:
    max_unavailable: {budget}
    health_gate: []
    drain:
      command:
        timeout: {timeout}
{hooks}  tasks:
    - kernel_cmdline: {{add: [iommu=pt]}}
    - reboot: {{timeout: 60s}}
"
        );
        self.home.write("play.yaml", &play);
    }

    fn run(&self) -> Command<'_> {
        let inventory = self.fleet.inventory();
        self.home.gpufleet(["run", "play.yaml", "--yes", "--format", "json", "-i", &inventory])
    }

    fn works(&self, node: &str) {
        self.home.write(&format!("jobs/{node}"), "job 7 of bob\n");
    }

    fn is_free(&self, node: &str) {
        std::fs::remove_file(self.path(&format!("jobs/{node}"))).unwrap();
    }

    fn hold(&self, node: &str) {
        self.home.write(&format!("cordon/{node}"), ALICE);
    }

    fn holder(&self, node: &str) -> Option<String> {
        std::fs::read_to_string(self.path(&format!("cordon/{node}"))).ok()
    }

    /// Returns the actions of the hooks on a node, each with the number of boots at that time.
    fn log_of(&self, node: &str) -> Vec<(String, usize)> {
        let of = self.log().into_iter().filter(|(_, name, _)| name == node);
        of.map(|(what, _, boots)| (what, boots)).collect()
    }

    fn log(&self) -> Vec<(String, String, usize)> {
        let text = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        let lines = text.lines().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, node, boots] = words.as_slice() else { panic!("a line of the log: {line}") };
            ((*what).to_owned(), (*node).to_owned(), boots.parse().unwrap())
        });
        lines.collect()
    }

    /// Returns the largest number of nodes that this run had drained at once.
    fn most(&self) -> usize {
        let (mut out, mut most) = (BTreeSet::new(), 0);
        for (what, node, _) in self.log() {
            match what.as_str() {
                "drain" => out.insert(node),
                "resume" => out.remove(&node),
                _ => false,
            };
            most = most.max(out.len());
        }
        most
    }

    /// Checks that nodes were drained, rebooted once and given back.
    #[track_caller]
    fn assert_done(&self, done: &Finished, nodes: &[&str]) {
        for node in nodes {
            assert_eq!(done.document().state(node), "done", "{done}");
            let log: Vec<(String, usize)> =
                self.log_of(node).into_iter().filter(|(what, _)| what != "notice").collect();
            assert_eq!(log, [("drain".to_owned(), 1), ("resume".to_owned(), 2)], "{node}");
            assert_eq!(self.holder(node), None);
        }
    }

    #[track_caller]
    fn until(&self, what: &str, running: &Running, condition: impl Fn() -> bool) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < limit, "no {what}: {:?}\n{:?}", self.log(), running.journal());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the busy node is drained and waits, and the others are back.
    fn until_it_waits(&self, running: &Running, node: &str) {
        self.until("drain", running, || {
            let others = NODES.iter().filter(|name| **name != node);
            self.holder(node).is_some()
                && others.into_iter().all(|name| self.log_of(name).iter().any(|(what, _)| what == "resume"))
                && running.journal().of_host("drain", node).any(|with| with["step"]["step"] == "cordoned")
        });
    }
}

#[test]
fn each_node_is_told_drained_and_given_back_once() {
    let site = Site::new();
    site.write_play(2, "60s", &["notice", "out"]);
    let done = site.run().run().expect(0);
    site.assert_done(&done, &NODES);
    for node in NODES {
        let log: Vec<String> = site.log_of(node).into_iter().map(|(what, _)| what).collect();
        assert_eq!(
            log,
            ["notice", "drain", "resume"],
            "{node}: where a drain ends the work it is told before"
        );
    }
    assert!((1..=2).contains(&site.most()), "{:?}", site.log());
    // A second run finds everything as declared, and runs no hook.
    let again = site.run().run().expect(0).document();
    assert!(again.states().values().all(|state| state == "compliant"), "{:?}", again.states());
    assert_eq!(site.log().len(), 9);
}

#[test]
fn what_a_person_holds_is_theirs() {
    let site = Site::new();
    site.write_play(3, "60s", &[]);
    site.hold("gpu002");
    let done = site.run().run().expect(5);
    assert_eq!(done.document().state("gpu002"), "held", "{done}");
    assert!(done.document().message("gpu002").contains(ALICE), "{done}");
    assert_eq!((site.holder("gpu002"), site.log_of("gpu002").len()), (Some(ALICE.to_owned()), 0));
    assert_eq!(site.fleet.boots("gpu002"), 1);
    site.assert_done(&done, &["gpu001", "gpu003"]);
}

#[test]
fn others_outages_count_and_are_waited_for() {
    let site = Site::new();
    site.write_play(1, "60s", &["out"]);
    site.hold("gpu003");
    let mut running = site.run().within(Duration::from_secs(120)).start();
    running.until("the wait", |events| events.hosts("connected").len() >= NODES.len());
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(site.log(), Vec::new(), "a person's outage takes up the budget");
    assert_eq!(site.holder("gpu003").as_deref(), Some(ALICE));
    std::fs::remove_file(site.path("cordon/gpu003")).unwrap();
    let done = running.wait();
    // Either: the drain is refused if it was requested while the node was held by others.
    assert!(matches!(done.code, Some(0 | 5)), "{done}");
    site.assert_done(&done, &["gpu001", "gpu002"]);
    assert_eq!(site.most(), 1);
}

#[test]
fn outages_that_limit_leaves_out_count_too() {
    let site = Site::new();
    site.write_play(1, "60s", &["out"]);
    site.hold("gpu003");
    let mut running = site.run().args(["--limit", "gpu001"]).within(Duration::from_secs(120)).start();
    running.until("the wait", |events| {
        let waits = |with: &serde_json::Value| {
            with["detail"].as_str().is_some_and(|why| why.contains("gpu003, which --limit leaves out"))
        };
        events.of_host("node_state", "gpu001").any(waits)
    });
    assert_eq!(site.log(), Vec::new(), "a person's outage takes up the budget");
    std::fs::remove_file(site.path("cordon/gpu003")).unwrap();
    let done = running.wait().expect(0);
    site.assert_done(&done, &["gpu001"]);
    assert_eq!((site.log_of("gpu002").len(), site.log_of("gpu003").len()), (0, 0));
}

#[test]
fn a_drain_that_hangs_is_given_up_when_the_run_stops() {
    let site = Site::new();
    site.write_play(1, "30m", &[]);
    site.home.write("hangs", "");
    let running = site.run().start();
    site.until("hook", &running, || site.path("hanging").exists());
    let begin = Instant::now();
    running.signal(Signal::INT);
    let done = running.wait().expect(130);
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    assert_eq!(site.log(), Vec::new(), "{done}");
    for node in NODES {
        assert_eq!((site.holder(node), site.fleet.boots(node)), (None, 1), "{done}");
    }
}

#[test]
fn a_controller_that_was_killed_while_a_node_was_busy_is_resumed() {
    let site = Site::new();
    site.write_play(2, "120s", &["out"]);
    site.works("gpu002");
    let running = site.run().start();
    site.until_it_waits(&running, "gpu002");
    assert_eq!(site.fleet.boots("gpu002"), 1, "rebooted while it works");
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, None);
    assert!(site.holder("gpu002").is_some_and(|holder| holder.starts_with("gpufleet:")));
    site.is_free("gpu002");
    // A program that the controller was just starting when it died holds the journal's lock until it has started.
    let run = std::fs::read_dir(site.home.runs()).unwrap().flatten().next().unwrap();
    let journal = std::fs::File::open(run.path().join("journal.jsonl")).unwrap();
    journal.lock().unwrap();
    let child = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        drop(journal);
    });
    let done = site.home.gpufleet(["resume", "--yes", "--format", "json"]).run().expect(0);
    child.join().unwrap();
    site.assert_done(&done, &NODES);
    assert!(site.most() <= 2);
}

#[test]
fn an_abort_gives_back_what_is_drained_and_ends_the_run_for_good() {
    // While it is running, and after it was killed.
    for killed in [false, true] {
        let site = Site::new();
        site.write_play(2, "120s", &["out"]);
        site.works("gpu002");
        let running = site.run().start();
        site.until_it_waits(&running, "gpu002");
        let mut first = Some(running);
        if killed {
            let running = first.take().unwrap();
            running.signal(Signal::KILL);
            assert_eq!(running.wait().code, None);
            assert!(site.holder("gpu002").is_some());
        }
        let runs: Vec<_> = std::fs::read_dir(site.home.runs()).unwrap().flatten().collect();
        let [run] = runs.as_slice() else { panic!("one run: {runs:?}") };
        let run = run.file_name().into_string().unwrap();
        let aborted = site.home.gpufleet(["abort", &run, "--format", "json"]).run();
        if let Some(running) = first {
            assert_eq!(running.wait().code, Some(130));
        }
        assert!(aborted.code.is_some_and(|code| code != 1), "{aborted}");
        assert_eq!(site.holder("gpu002"), None, "{aborted}");
        let log: Vec<String> = site.log_of("gpu002").into_iter().map(|(what, _)| what).collect();
        assert_eq!((log, site.fleet.boots("gpu002")), (vec!["drain".to_owned(), "resume".to_owned()], 1));
        site.is_free("gpu002");
        let resume = site.home.gpufleet(["resume", "--yes"]).run().expect(0);
        resume.says(&["no run is unfinished"]);
        site.home.gpufleet(["resume", &run, "--yes"]).run().expect(0).says(&["is finished"]);
        assert_eq!(site.fleet.boots("gpu002"), 1);
    }
}

/// The commands that gpufleet printed: behind a colon at the end of a line, and in backquotes.
fn printed(done: &Finished) -> Vec<Vec<String>> {
    let text = format!("{}\n{}", done.stdout, done.stderr);
    let (quoted, behind): (Vec<&str>, Vec<&str>) = (
        text.split('`').filter(|part| part.starts_with("gpufleet ") && !part.contains('\n')).collect(),
        text.lines().filter_map(|line| line.split_once(": gpufleet ")).map(|(_, words)| words).collect(),
    );
    let quoted = quoted.into_iter().filter_map(|command| command.strip_prefix("gpufleet "));
    let all: BTreeSet<&str> = quoted.chain(behind).collect();
    let words = |line: &str| line.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect();
    all.into_iter().map(words).collect()
}

#[test]
fn each_end_of_a_run_prints_commands_that_lead_on() {
    let site = Site::new();
    site.write_play(1, "20s", &["out"]);
    let play = std::fs::read_to_string(site.path("play.yaml")).unwrap();
    let play = play.replace("max_unavailable: 1", "max_unavailable: 34%").replace(
        "    - kernel_cmdline: {add: [iommu=pt]}\n",
        "    - gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}\n",
    );
    site.home.write("play.yaml", &play);
    let inventory = site.fleet.inventory();
    let run =
        |words: &[&str]| site.home.gpufleet(["run", "play.yaml", "-i", &inventory].iter().chain(words)).run();
    let follow = |done: &Finished, verb: &str| {
        let commands = printed(done);
        let command = commands.iter().find(|words| words[0] == verb);
        site.home
            .gpufleet(command.unwrap_or_else(|| panic!("no `gpufleet {verb}` in {commands:?}: {done}")))
            .run()
    };

    // Nobody to ask: the command says what is missing.
    let refused = run(&["--limit", "gpu001"]).expect(5);
    follow(&refused, "run").expect(0).says(&["1 node as declared"]);

    // Failed while it was drained: the same work takes it up, also by the command of `locks`.
    let fault = "{function: nvmlDeviceCreateGpuInstanceWithPlacement, effect: {return: 999}}";
    for (node, by_locks) in [("gpu002", false), ("gpu003", true)] {
        site.fleet.control(node, &["fault", "add", fault]);
        let failed = run(&["--limit", node, "--yes"]).expect(2).says(&["Still out of service: gpu00"]);
        let marker = site.holder(node);
        assert!(marker.is_some(), "{failed}");
        // Another playbook proves nothing about what failed here, and leaves the node as it is.
        site.home.write("other.yaml", &play.replace("{3g.40gb: 2}", "{1g.10gb: 7}"));
        let words = ["run", "other.yaml", "-i", &inventory, "--yes", "--limit", node];
        let other = site.home.gpufleet(words).run().expect(5);
        assert_eq!(site.holder(node), marker, "{other}");
        site.fleet.control(node, &["fault", "clear"]);
        let from = if by_locks { site.home.gpufleet(["locks"]).run().expect(0) } else { failed };
        follow(&from, "run").expect(0).says(&["left drained, is taken over", "1 node as declared"]);
        assert_eq!(site.holder(node), None);
        site.home.gpufleet(["locks"]).run().expect(0).says(&["nobody holds anything"]);
    }

    // The controller is killed while a node is drained, and its journal is there, then lost.
    let cmdline = |value: &str| {
        play.replace(
            "    - gpu_mig",
            &format!(
                "    - kernel_cmdline: {{add: [{value}]}}
    - gpu_mig"
            ),
        )
    };
    for (value, lost) in [("nmi_watchdog=0", false), ("audit=0", true)] {
        site.home.write("play.yaml", &cmdline(value));
        site.works("gpu001");
        let words = ["run", "play.yaml", "-i", &inventory, "--yes", "--limit", "gpu001"];
        let running = site.home.gpufleet(words).start();
        site.until("drain", &running, || site.holder("gpu001").is_some());
        running.signal(Signal::KILL);
        assert_eq!(running.wait().code, None);
        site.is_free("gpu001");
        if lost {
            std::fs::remove_dir_all(site.home.runs()).unwrap();
        }
        let held = run(&["--limit", "gpu001", "--yes"])
            .expect(5)
            .says(&["gpu001 is held: run ", " has it out of service"]);
        follow(&held, if lost { "adopt" } else { "resume" }).expect(0).says(&["1 node as declared"]);
        assert_eq!(site.holder("gpu001"), None);
    }
}

/// One place, and the node that failed has it: no resume tries that node again, and the other one does not get by.
#[test]
fn a_failed_node_that_holds_another_is_led_on_by_what_is_printed() {
    let site = Site::new();
    site.write_play(1, "20s", &["out"]);
    let play = std::fs::read_to_string(site.path("play.yaml")).unwrap();
    let play = play.replace("max_unavailable: 1", "max_unavailable: 1\n    waves: [1, 2]");
    let layout = "gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}";
    site.home.write("play.yaml", &play.replace("kernel_cmdline: {add: [iommu=pt]}", layout));
    let inventory = site.fleet.inventory();
    let fault = "{function: nvmlDeviceCreateGpuInstanceWithPlacement, effect: {return: 999}}";
    // Whichever of the second wave goes first: one fails, and the other is held, for its job or for the budget.
    site.fleet.control("gpu002", &["fault", "add", fault]);
    site.works("gpu003");
    let failed = site.home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes"]).run().expect(2);
    let failed = failed.says(&["1 failed, 1 held", "tried again by no resume: gpu002"]);
    let follow = |verb: &str| {
        let commands = printed(&failed);
        let command = commands.iter().find(|words| words[0] == verb);
        site.home.gpufleet(command.unwrap_or_else(|| panic!("no `gpufleet {verb}`: {failed}"))).run()
    };
    site.fleet.control("gpu002", &["fault", "clear"]);
    site.is_free("gpu003");
    // Before it is over, the run that drained the node stands before it, and the message has the same command.
    let words = ["run", "play.yaml", "-i", &inventory, "--yes", "--limit", "gpu002"];
    let held = site.home.gpufleet(words).run().expect(5);
    assert!(printed(&held).iter().any(|words| words[0] == "abort"), "{held}");
    follow("abort")
        .expect(5)
        .says(&["Still out of service: gpu002", "Again for those that are left: gpufleet run"]);
    follow("run").expect(0).says(&["left drained, is taken over", "2 nodes as declared"]);
    assert_eq!(NODES.map(|node| site.holder(node)), [None, None, None]);
}

#[test]
fn the_ends_of_unreachable_and_of_busy_nodes_print_commands_that_lead_on() {
    let site = Site::new();
    site.write_play(3, "20s", &["out"]);
    let inventory = site.fleet.inventory();
    let run = || site.home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes"]).run();
    let follow = |done: &Finished| {
        let commands = printed(done);
        let next = commands.iter().find(|words| ["run", "resume"].contains(&words[0].as_str()));
        site.home.gpufleet(next.unwrap_or_else(|| panic!("nothing to type in {commands:?}: {done}"))).run()
    };
    // Counts from the node's next boot on: it does not come back from its reboot.
    site.fleet.control("gpu001", &["fault", "add", "{effect: refuse_ssh}"]);
    let done = run().expect(4).says(&["did not come back", "Still out of service: gpu001"]);
    assert!(site.holder("gpu001").is_some());
    site.fleet.control("gpu001", &["fault", "clear"]);
    let cycle = std::process::Command::new(gpufleet_tests::binary("gpufleet-lab"))
        .args(["power", "--dir"])
        .arg(site.fleet.dir())
        .args(["gpu001", "cycle"])
        .status();
    assert!(cycle.is_ok_and(|status| status.success()));
    site.fleet.await_answer("gpu001");
    follow(&done).expect(0);
    assert_eq!(site.holder("gpu001"), None);

    let text = std::fs::read_to_string(site.path("play.yaml")).unwrap();
    site.home.write("play.yaml", &text.replace("iommu=pt", "audit=0"));
    site.works("gpu002");
    let done = run().expect(5).says(&["it still waits for job 7 of bob"]);
    site.is_free("gpu002");
    follow(&done).expect(0).says(&["3 nodes as declared"]);
    assert_eq!(site.holder("gpu002"), None);
}

#[test]
fn work_that_does_not_end_keeps_its_node_and_gives_way_to_force_alone() {
    let site = Site::new();
    // Long enough for the others, however busy the machine is.
    site.write_play(3, "20s", &["out"]);
    site.works("gpu002");
    let done = site.run().run().expect(5);
    assert_eq!(done.document().state("gpu002"), "held", "{done}");
    assert!(done.document().message("gpu002").contains("it still waits for job 7 of bob"), "{done}");
    assert_eq!((site.holder("gpu002"), site.fleet.boots("gpu002")), (None, 1));
    site.assert_done(&done, &["gpu001", "gpu003"]);

    std::fs::remove_file(site.path("log")).unwrap();
    let inventory = site.fleet.inventory();
    let mut running = site.home.gpufleet(["run", "play.yaml", "--yes", "--force", "-i", &inventory]).start();
    running.until("the override", |events| {
        events.of_host("overridden", "gpu002").any(|with| {
            with["what"].as_str().is_some_and(|what| what.contains("it still waits for job 7 of bob"))
        })
    });
    let done = running.wait().expect(0).says(&["gpu002: goes on against this", "job 7 of bob"]);
    let log = site.log_of("gpu002");
    assert_eq!(log, [("drain".to_owned(), 1), ("resume".to_owned(), 2)], "{done}");
}
