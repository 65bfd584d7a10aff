//! `audit` with checks, on simulated nodes: silent where all is well, unknown where nobody knows, and no change anywhere.
//! The faults are those of `audit_faults.rs`.

use std::{cell::Cell, collections::BTreeSet};

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home};
use serde_json::Value;

/// What a simulated node lacks of a good one: nothing keeps the driver loaded, and the host's settings are not the node's.
const PREPARE: &str = "
- hosts: gpu
  become: true
  gather_facts: false
  tasks:
    - gpu_persistence: {mode: legacy}
";

struct Ward {
    fleet: Fleet,
    home: Home,
    audits: Cell<u32>,
}

impl Ward {
    fn new(nodes: usize, faults: &str) -> Self {
        let options = FleetOptions { nodes, faults: faults.into(), ..FleetOptions::default() };
        let ward = Self { fleet: Fleet::start(&options), home: Home::new(), audits: Cell::new(0) };
        ward.home.write("prepare.yaml", PREPARE);
        if options.faults.is_empty() {
            let inventory = ward.fleet.inventory();
            ward.home.gpufleet(["run", "prepare.yaml", "-i", &inventory, "--yes"]).run().expect(0);
        }
        ward
    }

    /// An audit that no other one came before.
    fn audit(&self, arguments: &[&str]) -> Finished {
        self.audit_by(&["--health"], arguments)
    }

    /// The same, by these baselines.
    fn audit_by(&self, baselines: &[&str], arguments: &[&str]) -> Finished {
        self.audits.set(self.audits.get() + 1);
        let store = format!("sqlite:history-{}.db", self.audits.get());
        let inventory = self.fleet.inventory();
        let words = ["audit", "-i", &inventory, "--format", "json", "--store", &store];
        self.home.gpufleet(words).args(baselines).args(arguments).run()
    }
}

/// The ids of the checks that found something on a node, symptoms included; `host` are those of the machine that all nodes
/// of a lab share.
fn found(done: &Finished, node: &str) -> BTreeSet<String> {
    let document = done.document();
    let findings = document.node(node)["findings"].as_array().cloned().unwrap_or_default();
    let of_host = ["os.", "disk.", "proc."];
    let id = |finding: &Value| finding["control"].as_str().unwrap_or_default().to_owned();
    findings.iter().map(id).filter(|id| !of_host.iter().any(|group| id.starts_with(group))).collect()
}

#[test]
fn healthy_nodes_have_no_finding_and_an_audit_changes_nothing() {
    let ward = Ward::new(3, "");
    let names = ["gpu001", "gpu002", "gpu003"];
    let state = || (ward.fleet.digests(), names.map(|node| ward.fleet.setters(node).len()));
    let before = state();
    let done = ward.audit(&[]);
    let document = done.document();
    for node in names {
        assert_eq!(found(&done, node), BTreeSet::new(), "{node}: {done}");
        let checks = &document.node(node)["checks"];
        assert!(checks["judged"].as_u64() > Some(80), "{node}: {checks}");
    }
    assert_eq!(before, state());
}

#[test]
fn what_cannot_be_read_is_unknown_and_never_ok() {
    let ward = Ward::new(
        3,
        "- {nodes: gpu001, function: nvmlInit_v2, effect: hang}\n\
         - {nodes: gpu002, function: nvmlDeviceGetRemappedRows, effect: {return: 999}}\n",
    );
    let done = ward.audit(&[]);
    let document = done.document();
    for (node, check) in [("gpu001", "err.nvml_responsive"), ("gpu002", "mem.remap_failed")] {
        assert_eq!(document.node(node)["verdict"], "unknown", "{node}: {done}");
        assert!(found(&done, node).contains(check), "{node}: {done}");
    }
    assert_eq!(found(&done, "gpu001").len(), 1, "one silence: {done}");
    assert_eq!(document.node("gpu001")["next_action"], "reboot", "{done}");
    assert_eq!(done.code, Some(3), "{done}");
}

#[test]
fn a_waiver_covers_its_finding_until_it_ends() {
    let ward = Ward::new(1, "");
    ward.fleet.control("gpu001", &["set", "0", "pcie_width", "8"]);
    let today = jiff::Zoned::now().date();
    let waiver = |matches: &str, created: i32, expires: i32| {
        let day = |days: i32| today.saturating_add(jiff::Span::new().days(days));
        format!(
            "- id: RISER-1\n  check: pcie.width\n  match: {{{matches}}}\n  reason: the riser is on order\n  \
             owner: hardware\n  created: {}\n  expires: {}\n",
            day(created),
            day(expires)
        )
    };
    let finding = |done: &Finished| {
        let document = done.document();
        let findings = document.node("gpu001")["findings"].as_array().unwrap().clone();
        findings.into_iter().find(|finding| finding["control"] == "pcie.width").unwrap()
    };
    ward.home.write("waivers.yaml", &waiver("groups: [gpu]", -1, 30));
    let done = ward.audit(&["--waivers", "waivers.yaml"]);
    assert_eq!(finding(&done)["waived"], "RISER-1", "{done}");
    ward.home.write("waivers.yaml", &waiver("nodes: [gpu001]", -60, -1));
    let done = ward.audit(&["--waivers", "waivers.yaml"]);
    assert_eq!(finding(&done)["waived"], Value::Null, "{done}");
    assert!(found(&done, "gpu001").contains("audit.waiver"), "{done}");
    assert_eq!(done.code, Some(3));
}

#[test]
fn a_playbook_and_checks_are_judged_together_and_every_format_tells_the_same() {
    let ward = Ward::new(2, "");
    ward.home.write(
        "play.yaml",
        "- hosts: gpu001\n  become: true\n  tasks:\n    - file: {path: /root/there, state: directory}\n",
    );
    ward.fleet.control("gpu001", &["set", "0", "remap_failed", "on"]);
    let inventory = ward.fleet.inventory();
    let done = ward.home.gpufleet(["audit", "play.yaml", "--baseline", "training", "-i", &inventory]).run();
    assert_eq!(done.code, Some(3), "{done}");
    assert!(done.stdout.contains("mem.remap_failed") && done.stdout.contains("/root/there"), "{done}");
    assert!(!done.stdout.contains("gpu002"), "the playbook selects one node: {done}");
    let formats = [
        ("json", "mem.remap_failed"),
        ("csv", "mem.remap_failed"),
        ("md", "remap"),
        ("sarif", "mem.remap_failed"),
    ];
    for (format, text) in formats {
        let done = ward.home.gpufleet(["report", "latest", "--format", format]).run().expect(0);
        assert!(done.stdout.contains(text) && done.stdout.contains("gpu001"), "{format}: {done}");
    }
}

#[test]
fn a_baseline_is_learned_from_a_good_node() {
    let ward = Ward::new(2, "");
    let inventory = ward.fleet.inventory();
    let before = ward.fleet.digests();
    let from = |arguments: &[&str]| {
        let words = ["baseline", "from", "-i", &inventory, "-b", "-o", "learned.yaml"];
        ward.home.gpufleet(words).args(arguments).run()
    };
    // The lab's nodes share one machine, whose own settings may be anything: `--anyway`.
    from(&["gpu001", "--anyway"]).expect(0);
    assert_eq!(ward.fleet.digests(), before, "nothing was changed");
    let again = from(&["gpu001", "--anyway"]);
    assert_eq!(again.code, Some(1), "{again}");
    assert!(again.stderr.contains("exists already"), "{again}");
    let learned = std::fs::read_to_string(ward.home.work().join("learned.yaml")).unwrap();
    assert!(learned.contains("  gpu_count: 2\n") && learned.contains("driver_version: \""), "{learned}");
    let audit = || ward.audit_by(&["--baseline", "learned.yaml"], &[]);
    let done = audit();
    assert_eq!((found(&done, "gpu001"), found(&done, "gpu002")), Default::default(), "{done}\n{learned}");
    ward.fleet.control("gpu002", &["set", "0", "gsp_mode", "0"]);
    assert!(found(&audit(), "gpu002").contains("sw.gsp"));
    ward.fleet.control("gpu002", &["set", "0", "remap_failed", "on"]);
    std::fs::remove_file(ward.home.work().join("learned.yaml")).unwrap();
    let bad = from(&["gpu002"]);
    assert_eq!(bad.code, Some(1), "{bad}");
    assert!(bad.stderr.contains("mem.remap_failed of GPU 0 fail"), "{bad}");
}

#[test]
fn commands_count_with_strict_only() {
    let ward = Ward::new(1, "");
    let inventory = ward.fleet.inventory();
    ward.home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - file: {path: /root, state: directory}\n    - command: /bin/true\n",
    );
    let audit = |arguments: &[&str]| {
        ward.home.gpufleet(["audit", "play.yaml", "-i", &inventory]).args(arguments).run()
    };
    let lax = audit(&[]);
    assert_eq!(lax.code, Some(0), "{lax}");
    assert!(
        lax.stdout.contains("0 compliant, 1 unknown") && lax.stdout.contains("1 of 2 judgements"),
        "{lax}"
    );
    assert_eq!(audit(&["--strict"]).code, Some(3));
}

/// A baseline with checks that read files and run commands; one of them is asked of a group only.
const OWN: &str = r#"
own_checks:
  - id: site.role
    title: The node has its role
    severity: high
    read: {file: /etc/site-role}
    when: value != "training"
  - id: site.raid
    title: The array is whole
    severity: high
    read: {command: [sh, -c, "printf '%s' '{{.State}}' > /dev/null; cat /etc/raid"], timeout_s: 5}
    when: not matches(value, "^Optimal")
    verdict: warn
  - id: site.tool
    title: The site's tool finds nothing
    severity: low
    read: {command: [sh, -c, "touch /var/tool-ran; exit 3"]}
    when: exit_code != 0
without: [site.tool]
groups:
  gpu002: {checks: [site.tool]}
"#;

#[test]
fn own_checks_read_files_and_run_commands_where_they_are_asked() {
    let ward = Ward::new(3, "");
    ward.home.write("own.yaml", OWN);
    let put = |node: &str, path: &str, text: &str| ward.fleet.read(node, &format!("echo '{text}' > {path}"));
    for node in ["gpu001", "gpu002"] {
        put(node, "/etc/site-role", "training");
    }
    put("gpu001", "/etc/raid", "Optimal (4 of 4)");
    put("gpu002", "/etc/raid", "Degraded");
    let done = ward.audit_by(&["--baseline", "own.yaml"], &[]);
    let document = done.document();
    let of = |node: &str| {
        let findings = document.node(node)["findings"].as_array().unwrap().clone();
        let told = |finding: &Value| {
            let evidence = finding["evidence"].as_array().unwrap().iter().filter_map(Value::as_str);
            let words = ["control", "verdict"].map(|key| finding[key].as_str().unwrap().to_owned());
            format!("{} {} [{}]", words[0], words[1], evidence.collect::<Vec<_>>().join(", "))
        };
        findings.iter().map(told).collect::<Vec<_>>()
    };
    assert_eq!(of("gpu001"), Vec::<String>::new(), "{done}");
    assert_eq!(
        of("gpu002"),
        ["site.tool fail [site.tool.exit_code 3]", "site.raid warn [site.raid Degraded]"],
        "{done}"
    );
    // No file is nothing to judge, and a command that fails is no answer.
    assert_eq!(of("gpu003"), ["node unknown []", "site.raid unknown []"], "{done}");
    let controls = document.value()["controls"].as_array().unwrap().clone();
    let role = controls.iter().find(|control| control["id"] == "site.role").unwrap();
    assert_eq!(role["reads"]["site.role"], "The file /etc/site-role.", "{role}");
    // A playbook of other people runs no command this way.
    ward.home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - health_info: {reads: [{id: a.b, command: [touch, /var/play-ran]}]}\n",
    );
    let inventory = ward.fleet.inventory();
    let refused =
        ward.home.gpufleet(["audit", "play.yaml", "-i", &inventory, "--baseline", "own.yaml"]).run();
    assert!(refused.stdout.contains("own checks of an audit's baseline"), "{refused}");
    assert!(!ward.fleet.has("gpu001", "/var/play-ran"), "{refused}");
    let ran = |node: &str| ward.fleet.has(node, "/var/tool-ran");
    assert!(ran("gpu002") && !ran("gpu001"), "a command runs only where its check is asked");
}

#[test]
fn wrong_baselines_touch_no_node() {
    let home = Home::new();
    home.write("hosts", "gpu001\n");
    home.write("own.yaml", "extends: trainin\nchecks: [mem.remap_faild]\n");
    home.write("play.yaml", "- hosts: all\n  tasks: [{ping: {}}]\n");
    home.write("empty.yaml", "declared: {power_w: 600}\n");
    for (arguments, hint) in [
        (["--baseline", "empty.yaml"], "asks for no check"),
        (["play.yaml", "--deep"], "none are asked for"),
        (["--baseline", "trainin"], "did you mean `training`?"),
        (["--baseline", "own.yaml"], "own.yaml:1"),
        (["--baseline", "none.yaml"], "cannot read none.yaml"),
    ] {
        let done = home.gpufleet(["audit", "-i", "hosts"]).args(arguments).run();
        assert_eq!(done.code, Some(1), "{done}");
        assert!(done.stderr.contains(hint), "{done}");
    }
}
