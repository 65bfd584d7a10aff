//! What nodes assert at each boot: real machines with a real systemd, the real helper, real boots and power cuts.
//!
//! What the GPUs are is read from the driver's own state, and what a scheduler found at its start from its own note.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use gpufleet_protocol::keep::{KeptReport, KeptVerdict};
use gpufleet_systems_tests::{Machines, install_gpus, unit};
use gpufleet_tests::{Document, Home};
use nvml_sim::model::ModelKey;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(180);

const PLAY: &str = "
- hosts: fleet
  rollout: {health_gate: []}
  keep: {on_failure: hold, hold: [slurmd.service], timeout: 100s}
  tasks:
    - gpu_persistence: {mode: legacy}
    - gpu_power: {limit_watts: WATTS}
    - gpu_mig: {mode: enabled, layout: {3g.40gb: 1, 1g.10gb: 3}, gpus: [0]}
    - gpu_mig: {mode: disabled, gpus: [1]}
";

/// Notes what it finds when it starts, as a scheduler registers the GPUs that it finds.
const SLURMD: &str = "[Unit]
Description=A scheduler's daemon
[Service]
Type=exec
ExecStartPre=/bin/sh -c 'echo $(cat /proc/sys/kernel/random/boot_id) $(nvidia-smi -L | grep -c MIG) >>/var/log/slurmd'
ExecStart=/bin/sleep infinity
";

struct Fleet {
    machines: Machines,
    home: Home,
}

impl Fleet {
    fn start(count: usize) -> Self {
        let machines = Machines::start_with(count, |disk: &Path| {
            // Two machines never have the same GPUs.
            let name = disk.display().to_string();
            install_gpus(disk, &name, &[ModelKey::H100, ModelKey::H100]);
            unit(disk, "slurmd", SLURMD);
        });
        let home = Home::new();
        home.write("play.yaml", &PLAY.replace("WATTS", "500"));
        Self { machines, home }
    }

    fn run(&self, code: i32) -> Document {
        let inventory = self.machines.inventory();
        let done = self
            .machines
            .gpufleet(&self.home, &["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"])
            .within(LIMIT)
            .run()
            .expect(code);
        done.document()
    }

    fn says(&self, words: &[&str], code: i32) -> String {
        let inventory = self.machines.inventory();
        // Behind `--` are the words of the command on the node.
        let at = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        let (own, nodes) = words.split_at(at);
        let all = [own, &["-i", &inventory], nodes].concat();
        self.machines.gpufleet(&self.home, &all).within(LIMIT).run().expect(code).stdout
    }

    /// What the nodes say that they keep, by name.
    fn kept(&self) -> BTreeMap<String, Option<KeptReport>> {
        let inventory = self.machines.inventory();
        let done = self
            .machines
            .gpufleet(&self.home, &["keep", "status", "-i", &inventory, "--format", "json"])
            .within(LIMIT)
            .run();
        let all: Vec<Value> = serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{done}"));
        all.into_iter()
            .map(|node| {
                let name = node["host"].as_str().expect("a name").to_owned();
                (name, serde_json::from_value(node["kept"].clone()).unwrap_or_else(|_| panic!("{node}")))
            })
            .collect()
    }

    fn kept_of(&self, name: &str) -> KeptReport {
        self.kept().remove(name).flatten().unwrap_or_else(|| panic!("{name} keeps nothing"))
    }

    /// Restarts a machine in order, at somebody else's hands.
    fn restart(&self, name: &str) {
        let before = self.machines.boots(name).len();
        self.machines.tried(name, "systemctl reboot");
        self.booted(name, before + 1);
    }

    /// Cuts the power and switches it on again.
    fn power_cycle(&self, name: &str, meanwhile: impl FnOnce(&Machines)) {
        self.machines.cut_power(name);
        self.machines.await_off(name);
        meanwhile(&self.machines);
        let before = self.machines.boots(name).len();
        self.machines.switch_on(name);
        self.booted(name, before + 1);
    }

    #[track_caller]
    fn booted(&self, name: &str, boots: usize) {
        wait(&format!("boot {boots} of {name}:\n{}", self.machines.console(name)), || {
            self.machines.boots(name).len() >= boots && self.machines.tried(name, "true").is_some()
        });
    }

    /// Waits until the unit of this boot has ended, and returns what came of it.
    #[track_caller]
    fn ended(&self, name: &str) -> (KeptVerdict, String, KeptReport) {
        let id = self.machines.read(name, "cat /proc/sys/kernel/random/boot_id");
        let now = |report: &KeptReport| {
            report.boots.last().filter(|boot| boot.boot_id == id).map(|boot| boot.verdict)
        };
        wait(&format!("the end of the unit on {name}"), || {
            let state = self.machines.tried(name, "systemctl show -P ActiveState gpufleet-keep.service");
            // A run that took the node over starts it again.
            matches!(state.as_deref(), Some("active" | "failed"))
                && now(&self.kept_of(name)) != Some(KeptVerdict::Yielded)
        });
        let report = self.kept_of(name);
        match report.boots.last().filter(|boot| boot.boot_id == id) {
            Some(boot) => (boot.verdict, boot.reasons.join("; "), report),
            None => (KeptVerdict::Begun, "no record".to_owned(), report),
        }
    }

    /// Whether the GPUs are as the play declares.
    fn as_declared(&self, name: &str) -> bool {
        let gpus = self.machines.gpus(name);
        let sizes: Vec<usize> = gpus.iter().map(|gpu| gpu.instances.len()).collect();
        gpus.iter().all(|gpu| gpu.power_limit_mw == 500_000) && sizes == [4, 0]
    }

    fn slurmd(&self, name: &str) -> String {
        self.machines.tried(name, "systemctl is-active slurmd.service || true").unwrap_or_default()
    }

    /// Checks the invariant of every boot: as declared and open, or held with the reason told.
    #[track_caller]
    fn never_half_silent(&self, name: &str, what: &str) -> KeptVerdict {
        let (verdict, reasons, report) = self.ended(name);
        let told = format!("{what}: {verdict} ({reasons}) {report:?}\n{}", self.journal(name));
        if verdict == KeptVerdict::Asserted {
            assert!(self.as_declared(name), "{told}");
            assert!(report.concerns().is_empty(), "{told}");
            wait(&format!("slurmd of {name}"), || self.slurmd(name) == "active");
        } else {
            assert_ne!(self.slurmd(name), "active", "{told}");
            assert!(!report.concerns().is_empty() && !report.open, "{told}");
        }
        verdict
    }

    fn journal(&self, name: &str) -> String {
        self.machines
            .tried(name, "journalctl -b --no-pager -u gpufleet-keep -u slurmd | tail -40")
            .unwrap_or_default()
    }
}

#[track_caller]
fn wait(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_boot_at_somebody_elses_hands_brings_the_declared_state_back() {
    let fleet = Fleet::start(1);
    let planned = fleet.says(&["plan", "play.yaml", "--diff"], 0);
    assert!(planned.contains("kept GPU state"), "{planned}");
    fleet.run(0);
    assert!(fleet.as_declared("node1"));
    let again = fleet.run(0);
    assert_eq!(again.total("changed"), 0, "{:#}", again.value());
    fleet.restart("node1");
    assert_eq!(fleet.never_half_silent("node1", "a restart"), KeptVerdict::Asserted);
    // What the scheduler found at its start, in each boot: the unit came first.
    let seen = fleet.machines.text("node1", "/var/log/slurmd").expect("its note");
    let instances: Vec<&str> = seen.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(instances, ["0", "4"], "{seen}");
    let status = fleet.says(&["keep", "status"], 0);
    assert!(status.contains("keeps 4 tasks") && status.contains("asserted at the last boot"), "{status}");
    let planned = fleet.says(&["plan", "play.yaml"], 0);
    assert!(!planned.contains("3g.40gb"), "{planned}");
    // The next session's journal has it.
    let events = fleet.says(&["plan", "play.yaml", "--format", "jsonl"], 0);
    assert!(events.lines().any(|line| line.contains("\"kept\"") && line.contains("asserted")), "{events}");
    // Removed, a boot asserts nothing, and nobody waits.
    fleet.says(&["keep", "remove", "all"], 0);
    assert_eq!(fleet.kept()["node1"], None);
    fleet.restart("node1");
    assert!(!fleet.as_declared("node1"));
    wait("slurmd without anything to wait for", || fleet.slurmd("node1") == "active");
    let left = fleet.machines.read("node1", "find / -xdev -name '*gpufleet-keep*' -not -path '/proc/*'");
    assert_eq!(left, "");
}

/// A fault of one boot, and what must come of it.
type Fault = (&'static str, fn(&Fleet), &'static [KeptVerdict]);

const SLOW: &str = "gpusimctl fault add '{function: nvmlDeviceCreateGpuInstance*, effect: {delay_ms: 3000}}'";
const CLEAR: &str = "gpusimctl fault clear";

const FAULTS: &[Fault] = &[
    ("none", |fleet| fleet.restart("node1"), &[KeptVerdict::Asserted]),
    ("power cut", |fleet| fleet.power_cycle("node1", |_| {}), &[KeptVerdict::Asserted]),
    (
        "power cut in mid-apply",
        |fleet| {
            fleet.machines.read("node1", SLOW);
            let before = fleet.machines.boots("node1").len();
            fleet.machines.tried("node1", "systemctl reboot");
            fleet.booted("node1", before + 1);
            wait("the apply", || {
                fleet.machines.gpus("node1").iter().any(|gpu| gpu.mig.current && gpu.instances.is_empty())
            });
            fleet.power_cycle("node1", |_| {});
            fleet.machines.read("node1", CLEAR);
        },
        &[KeptVerdict::Asserted],
    ),
    (
        "unit killed",
        |fleet| {
            fleet.machines.read("node1", SLOW);
            fleet.restart("node1");
            wait("the unit", || {
                fleet
                    .machines
                    .tried("node1", "systemctl show -P ActiveState gpufleet-keep.service")
                    .is_some_and(|state| state == "activating")
            });
            fleet.machines.read("node1", "systemctl kill -s KILL gpufleet-keep.service");
            fleet.machines.read("node1", CLEAR);
        },
        &[KeptVerdict::Begun],
    ),
    (
        "driver late",
        |fleet| {
            let late = std::env::var("GPUFLEET_DRIVER_LATE_S").unwrap_or_else(|_| "12".to_owned());
            fleet.machines.read("node1", &format!("echo {late} >/var/lib/gpusim/late"));
            fleet.restart("node1");
            fleet.machines.read("node1", "rm /var/lib/gpusim/late");
        },
        &[KeptVerdict::Asserted],
    ),
    (
        "a GPU missing",
        |fleet| {
            let mut gone = None;
            fleet.power_cycle("node1", |machines| {
                machines.change_gpus("node1", |machine| gone = machine.gpus.pop());
            });
            let (verdict, reasons, _) = fleet.ended("node1");
            assert_eq!(verdict, KeptVerdict::Refused, "{reasons}");
            assert!(reasons.contains("1 of 2 GPUs are missing: GPU-"), "{reasons}");
            assert_ne!(fleet.slurmd("node1"), "active");
            // It is put back; the boot after it is as declared.
            fleet.power_cycle("node1", |machines| {
                machines.change_gpus("node1", |machine| machine.gpus.extend(gone));
            });
        },
        &[KeptVerdict::Asserted],
    ),
    (
        "disk full",
        |fleet| {
            // Read only, which is what a full disk is to a writer, and which a boot can begin with.
            fleet.machines.read("node1", "touch /var/lib/gpusim/read-only");
            fleet.restart("node1");
            fleet.machines.read("node1", "rm /var/lib/gpusim/read-only");
        },
        &[KeptVerdict::Begun],
    ),
    (
        "another run in between",
        |fleet| {
            fleet.machines.read("node1", SLOW);
            let before = fleet.machines.boots("node1").len();
            fleet.machines.tried("node1", "systemctl reboot");
            fleet.booted("node1", before + 1);
            fleet.says(&["exec", "all", "--", "uptime"], 0);
            fleet.machines.read("node1", CLEAR);
        },
        &[KeptVerdict::Asserted],
    ),
    (
        "a copied file",
        |fleet| {
            let state = "/var/lib/gpufleet/keep/state.json";
            fleet.machines.read("node1", &format!("cp -a {state} /root/state && sed -i s/500/600/ {state}"));
            fleet.restart("node1");
            let (verdict, reasons, _) = fleet.ended("node1");
            assert_eq!(verdict, KeptVerdict::Refused, "{reasons}");
            assert!(reasons.contains("changed after it was signed"), "{reasons}");
            fleet.machines.read("node1", &format!("cp -a /root/state {state}"));
            fleet.restart("node1");
        },
        &[KeptVerdict::Asserted],
    ),
];

/// Mounts the state directory read only where a file asks for it.
const READ_ONLY: &str = "[Unit]
Description=A full disk
DefaultDependencies=no
After=local-fs.target
Before=gpufleet-keep.service
ConditionPathExists=/var/lib/gpusim/read-only
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'mount --bind /var/lib/gpufleet /var/lib/gpufleet && mount -o remount,bind,ro /var/lib/gpufleet'
";

/// `GPUFLEET_KEEP_BOOTS=50` goes through the faults again and again.
#[test]
fn boots_with_faults_end_as_declared_or_held_with_the_reason() {
    let fleet = Fleet::start(1);
    fleet.machines.read(
        "node1",
        &format!(
            "cat >/etc/systemd/system/disk.service <<'END'\n{READ_ONLY}END\n\
             ln -s ../disk.service /etc/systemd/system/multi-user.target.wants/disk.service"
        ),
    );
    fleet.run(0);
    let boots: usize =
        std::env::var("GPUFLEET_KEEP_BOOTS").ok().and_then(|count| count.parse().ok()).unwrap_or(0);
    let mut told = String::new();
    let mut tried = 0;
    while tried < FAULTS.len() || fleet.machines.boots("node1").len() < boots {
        let (what, cause, wanted) = FAULTS[tried % FAULTS.len()];
        cause(&fleet);
        let verdict = fleet.never_half_silent("node1", what);
        let _ = writeln!(told, "boot {}: {what}: {verdict}", fleet.machines.boots("node1").len());
        assert!(wanted.contains(&verdict), "{told}\n{}", fleet.journal("node1"));
        tried += 1;
    }
    println!("{told}");
}

#[test]
fn a_run_that_declares_otherwise_in_the_boot_is_not_undone() {
    let fleet = Fleet::start(1);
    fleet.run(0);
    fleet.machines.read("node1", SLOW);
    let before = fleet.machines.boots("node1").len();
    fleet.machines.tried("node1", "systemctl reboot");
    fleet.booted("node1", before + 1);
    // While the unit works: it takes the node over.
    fleet.home.write(
        "other.yaml",
        "- hosts: fleet\n  rollout: {health_gate: []}\n  tasks:\n    - gpu_power: {limit_watts: 450}\n",
    );
    fleet.says(&["run", "other.yaml", "--yes"], 0);
    fleet.machines.read("node1", CLEAR);
    let (verdict, reasons, _) = fleet.ended("node1");
    assert_eq!(verdict, KeptVerdict::Left, "{reasons}\n{}", fleet.journal("node1"));
    assert!(reasons.contains("has changed the GPUs in this boot") && reasons.contains("450"), "{reasons}");
    assert!(fleet.machines.gpus("node1").iter().all(|gpu| gpu.power_limit_mw == 450_000));
    assert_ne!(fleet.slurmd("node1"), "active");
    // A run that keeps opens the gate.
    fleet.run(0);
    assert!(fleet.as_declared("node1"));
    wait("slurmd", || fleet.slurmd("node1") == "active");
    assert_eq!(fleet.says(&["keep", "status"], 0).matches("open now").count(), 1);
}
