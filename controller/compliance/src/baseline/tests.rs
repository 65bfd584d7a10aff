use gpufleet_protocol::signal::Signal;
use serde_json::json;

use super::*;
use crate::samples::policy;
use crate::{Severity, Verdict};

fn refused(text: &str) -> String {
    let hint = |group: &str| match group {
        "h200" | "gpu001" => GroupHint::Known,
        "h20" => GroupHint::Unknown(Some("h200".to_owned())),
        _ => GroupHint::Unknown(None),
    };
    match load(&[Choice::File(SourceFile::new("site.yaml", text))], &hint) {
        Ok(loaded) => panic!("{:?}", loaded.policy.data()),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn every_built_in_baseline_is_read() {
    for (name, _) in built_in() {
        let policy = policy(name);
        assert!(policy.data().checks.len() > 40, "{name}");
        assert!(policy.missing_checks().is_empty(), "{name}");
        assert!(policy.data().require.is_subset(&policy.data().checks), "{name}");
        assert!(policy.data().checks.contains("mem.remap_failed"), "{name}");
    }
}

#[test]
fn baselines_are_put_on_top_of_each_other() {
    let choice = |name: &str| Choice::BuiltIn(name.to_owned());
    let both = load(&[choice("training"), choice("slurm")], &|_| GroupHint::Known).unwrap().policy;
    assert_eq!(both.data().name, "core+training+slurm");
    assert_eq!(both.data().declared["swappiness"], json!(10));
    assert!(both.data().checks.contains("os.thp") && both.data().checks.contains("proc.pids"));

    let text = "extends: [training]\nname: site\nwithout: ['os.*', err.log_complete]\nchecks: [os.taint]\n\
                params:\n  disk.space: {warn: 0.7}\ndeclared: {power_w: 600, persistence: null, thp: always}\n\
                min_coverage: 0.5\n";
    let site = policy(text);
    let data = site.data();
    assert_eq!(data.name, "core+training+site");
    // What is left out is left out, though the same file names it.
    assert!(!data.checks.contains("os.taint") && !data.checks.contains("err.log_complete"));
    assert_eq!(data.declared["power_w"], json!(600));
    assert_eq!(data.declared["thp"], json!(["always"]));
    assert!(!data.declared.contains_key("persistence"));
    assert_eq!(data.min_coverage, 0.5);
}

#[test]
fn groups_differ_and_share_what_they_have() {
    let text = "extends: core\ndeclared: {power_w: 700, gpu_count: 8}\ngroups:\n  h200:\n    declared: {power_w: 600, thp: always}\n    \
                params:\n      disk.space: {fail: 0.99}\n    checks: [os.thp]\n  quiet:\n    without: ['thermal.*']\n  \
                gpu007:\n    declared: {gpu_count: 7, power_w: null}\n";
    let policy = policy(text);
    let plain = policy.for_node("gpu001", &["all"]);
    let h200 = policy.for_node("gpu002", &["all", "h200"]);
    assert!(Arc::ptr_eq(&h200, &policy.for_node("gpu003", &["h200"])));
    assert!(!Arc::ptr_eq(&plain, &h200));
    assert_eq!(plain.declared["power_w"], json!(700));
    assert_eq!(h200.declared["power_w"], json!(600));
    let has = |node: &crate::NodePolicy, id: &str| node.checks.iter().any(|entry| &*entry.check.id == id);
    assert!(has(&h200, "os.thp") && !has(&plain, "os.thp"));
    let space = h200.checks.iter().find(|entry| &*entry.check.id == "disk.space").unwrap();
    assert_eq!((&space.params["fail"], &space.params["warn"]), (&json!(0.99), &json!(0.85)));
    let seven = policy.for_node("gpu007", &["quiet"]);
    assert_eq!(seven.declared.get("power_w"), None);
    assert_eq!(seven.declared["gpu_count"], json!(7));
    assert!(!has(&seven, "thermal.margin") && has(&plain, "thermal.margin"));
}

#[test]
fn own_checks_are_checks() {
    let text = "own_checks:\n  - id: site.cool\n    title: GPUs are cool\n    severity: high\n    \
                when: temp_c > 70 and not bit(reasons, 0x1)\n    verdict: warn\n    why: Our room is small.\n";
    let policy = policy(text);
    let check = policy.check("site.cool").unwrap();
    assert_eq!((check.scope, check.severity), (crate::Scope::Gpu, Severity::High));
    let mut signals = crate::samples::node();
    signals.gpus[1].readings.insert("temp_c".to_owned(), 80.into());
    signals.gpus[1].readings.insert("reasons".to_owned(), 0.into());
    let findings = crate::judge(&policy.for_node("x", &[]), &signals);
    let verdicts: Vec<Verdict> = findings.iter().map(|finding| finding.verdict).collect();
    assert_eq!(verdicts, [Verdict::Ok, Verdict::Warn]);
}

#[test]
fn own_checks_read_files_and_commands() {
    let text = "own_checks:\n  - {id: site.raid, title: A, severity: high, read: {command: [raid, state]}, \
                when: 'exit_code > 1 or not matches(value, \"^Optimal\")'}\n  \
                - {id: site.role, title: B, severity: low, read: {file: /etc/n, as: number}, when: value < 3}\n\
                without: [site.role]\ngroups:\n  storage: {checks: [site.role]}\n  gpu007: {without: [site.raid]}\n";
    let policy = policy(text);
    let asked: Vec<_> = (policy.own_readings().iter())
        .map(|asked| (asked.read.id.clone(), asked.everywhere, asked.turns.clone()))
        .collect();
    assert_eq!(
        asked,
        [
            ("site.raid".to_owned(), true, vec![("gpu007", false)]),
            ("site.role".to_owned(), false, vec![("storage", true)])
        ]
    );
    assert_eq!(policy.source_of("site.raid.exit_code"), "The command raid.");
    assert_eq!(policy.source_of("site.role"), "The file /etc/n.");
    assert!(policy.source_of("swappiness").contains("swappiness"));

    let judged = |value: Signal, code: Signal, role: Signal| {
        let mut signals = crate::samples::node();
        signals.node.insert("site.raid".to_owned(), value);
        signals.node.insert("site.raid.exit_code".to_owned(), code);
        signals.node.insert("site.role".to_owned(), role);
        let findings = crate::judge(&policy.for_node("x", &["storage"]), &signals);
        findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>()
    };
    let unread = || Signal::Unknown("no".to_owned());
    assert_eq!(judged("Optimal".into(), 0.into(), 3.into()), [Verdict::Ok, Verdict::Ok]);
    assert_eq!(judged("Degraded".into(), 0.into(), 2.into()), [Verdict::Fail, Verdict::Fail]);
    assert_eq!(judged(unread(), 2.into(), Signal::Absent), [Verdict::Fail, Verdict::Na]);
    assert_eq!(judged(unread(), 1.into(), unread()), [Verdict::Unknown, Verdict::Unknown]);
    // What was not asked of a node is not judged there either.
    assert_eq!(crate::judge(&policy.for_node("gpu007", &[]), &crate::samples::node()).len(), 0);
}

#[test]
fn wrong_readings_of_own_checks_are_refused() {
    let own = |read: &str, when: &str| {
        refused(&format!(
            "own_checks:\n  - {{id: site.a, title: A, severity: low, read: {read}, when: '{when}'}}\n"
        ))
    };
    insta::assert_snapshot!(own("{file: /x, command: [x]}", "value == 1"), @r"
    error: `file` and `command` are two readings, and a check has one
      --> site.yaml:2:49
       |
     2 |   - {id: site.a, title: A, severity: low, read: {file: /x, command: [x]}, when: 'value =…
       |                                                 ^
    ");
    insta::assert_snapshot!(own("{file: x}", "value == 1"), @r"
    error: `file` wants an absolute path
      --> site.yaml:2:49
       |
     2 |   - {id: site.a, title: A, severity: low, read: {file: x}, when: 'value == 1'}
       |                                                 ^
    ");
    insta::assert_snapshot!(own("{command: [x], timeout_s: 600}", "value == 1"), @r"
    error: `timeout_s` wants a number from 1 to 60
      --> site.yaml:2:49
       |
     2 |   - {id: site.a, title: A, severity: low, read: {command: [x], timeout_s: 600}, when: 'v…
       |                                                 ^
    ");
    insta::assert_snapshot!(own("{command: x, as: int}", "value == 1"), @r"
    error: `command` wants a list, got a string
      --> site.yaml:2:59
       |
     2 |   - {id: site.a, title: A, severity: low, read: {command: x, as: int}, when: 'value == 1…
       |                                                           ^
    ");
    insta::assert_snapshot!(own("{file: /x}", "exit_code == 1"), @r"
    error: there is no signal `exit_code`
      --> site.yaml:2:68
       |
     2 |   - {id: site.a, title: A, severity: low, read: {file: /x}, when: 'exit_code == 1'}
       |                                                                    ^^^^^^^^^
    help: a file has none; `read` with `command` has
    ");
    insta::assert_snapshot!(own("{file: /x}", "value > 1"), @r"
    error: a number is expected here, and this is a text
      --> site.yaml:2:68
       |
     2 |   - {id: site.a, title: A, severity: low, read: {file: /x}, when: 'value > 1'}
       |                                                                    ^^^^^
    help: `read` with `as: number` reads a number
    ");
    insta::assert_snapshot!(own("{file: /x}", r#"matches(value, "(")"#), @r#"
    error: this is not a regular expression: unclosed group
      --> site.yaml:2:83
       |
     2 |   - {id: site.a, title: A, severity: low, read: {file: /x}, when: 'matches(value, "(")'}
       |                                                                                   ^^^
    "#);
    insta::assert_snapshot!(
        refused("own_checks:\n  - {id: site.a, title: A, severity: low, when: value == 1}\n"),
        @r"
    error: there is no signal `value`
      --> site.yaml:2:49
       |
     2 |   - {id: site.a, title: A, severity: low, when: value == 1}
       |                                                 ^^^^^
    help: `read` says what a check reads beside the signals
    "
    );
}

#[test]
fn a_policy_comes_back_from_a_document_as_it_was() {
    let text = "extends: training\ngroups:\n  h200: {declared: {power_w: 600}}\nown_checks:\n  \
                - {id: site.a, title: A, severity: low, when: nvml_count > 9}\n";
    let before = policy(text);
    let document = serde_json::to_string(&before).unwrap();
    let after: Policy = serde_json::from_str(&document).unwrap();
    assert_eq!(before, after);
    assert!(after.check("site.a").is_some());
    let broken = document.replace("nvml_count > 9", "nvml_cont > 9");
    // A check that this release cannot judge is missed, and never passed over.
    let foreign: Policy = serde_json::from_str(&broken).unwrap();
    assert_eq!(foreign.missing_checks(), ["site.a"]);
    assert!(foreign.for_node("x", &[]).require.contains("site.a"));
    assert!(!after.for_node("x", &[]).require.contains("site.a"));
    let schema = schemars::schema_for!(Policy);
    assert!(schema.get("properties").is_some_and(|properties| properties.get("own_checks").is_some()));
}

#[test]
fn a_group_that_the_inventory_lacks_is_a_warning() {
    let hint = |group: &str| match group {
        "h20" => GroupHint::Unknown(Some("h200".to_owned())),
        _ => GroupHint::Known,
    };
    let source = SourceFile::new("site.yaml", "extends: core\ngroups:\n  h20: {without: [os.taint]}\n");
    let loaded = load(&[Choice::File(source)], &hint).unwrap();
    insta::assert_snapshot!(loaded.warnings, @r"
    warning: the inventory has no group or host `h20`
      --> site.yaml:3:3
       |
     3 |   h20: {without: [os.taint]}
       |   ^^^
    help: did you mean `h200`?
    ");
}

#[test]
fn mistakes_are_told_with_their_places() {
    insta::assert_snapshot!(refused("extends: trainig\nchecs: []\nchecks: [mem.remap_faild, 'men.*', 3]\nmin_coverage: 90\n"), @r"
    error: unknown key `checs`
      --> site.yaml:2:1
       |
     2 | checs: []
       | ^^^^^ not a key of a baseline
    help: did you mean `checks`?
    error: there is no baseline `trainig`
      --> site.yaml:1:10
       |
     1 | extends: trainig
       |          ^^^^^^^
    help: built-in baselines are core, training, inference, mig-shared, benchmark, kubernetes, slurm
    help: did you mean `training`?
    error: `min_coverage` wants a number from 0 to 1
      --> site.yaml:4:15
       |
     4 | min_coverage: 90
       |               ^^
    error: there is no check `mem.remap_faild`
      --> site.yaml:3:10
       |
     3 | checks: [mem.remap_faild, 'men.*', 3]
       |          ^^^^^^^^^^^^^^^
    help: did you mean `mem.remap_failed`?
    error: no check matches `men.*`
      --> site.yaml:3:27
       |
     3 | checks: [mem.remap_faild, 'men.*', 3]
       |                           ^^^^^^^
    help: groups of checks are inv, err, mem, pcie, nvl, thermal, power, clock, cfg, sw, proc, net, os, disk, ctr, audit
    error: the id of a check wants a string, got a whole number
      --> site.yaml:3:36
       |
     3 | checks: [mem.remap_faild, 'men.*', 3]
       |                                    ^
    help: put it in quotes to make it a string
    ");
    insta::assert_snapshot!(
        refused(
            "params:\n  disk.space: {wrn: 0.5, warn: much}\n  disk.spce: {}\n  err.xid_other: {unknown_verdict: bad}\n  sw.gsp: {x: 1}\n"
        ),
        @r"
    error: the check `disk.space` has no parameter `wrn`
      --> site.yaml:2:16
       |
     2 |   disk.space: {wrn: 0.5, warn: much}
       |                ^^^
    help: did you mean `warn`?
    help: its parameters are fail, warn
    error: `warn` of `disk.space` wants a number, got a string
      --> site.yaml:2:32
       |
     2 |   disk.space: {wrn: 0.5, warn: much}
       |                                ^^^^
    error: there is no check `disk.spce`
      --> site.yaml:3:3
       |
     3 |   disk.spce: {}
       |   ^^^^^^^^^
    help: did you mean `disk.space`?
    error: `bad` is not a verdict
      --> site.yaml:4:36
       |
     4 |   err.xid_other: {unknown_verdict: bad}
       |                                    ^^^
    help: verdicts are na, ok, warn, drift, unknown, fail
    error: the check `sw.gsp` has no parameter `x`
      --> site.yaml:5:12
       |
     5 |   sw.gsp: {x: 1}
       |            ^
    help: it has no parameters at all
    "
    );
    insta::assert_snapshot!(
        refused("declared: {power: 600, power_w: high, gpu_count: null, mig: 2}\ngroups:\n  h200: {declard: {}}\n"),
        @r#"
    error: nothing can be declared as `power`
      --> site.yaml:1:12
       |
     1 | declared: {power: 600, power_w: high, gpu_count: null, mig: 2}
       |            ^^^^^
    help: did you mean `power_w`?
    error: `declared.power_w` wants a number, got a string
      --> site.yaml:1:33
       |
     1 | declared: {power: 600, power_w: high, gpu_count: null, mig: 2}
       |                                 ^^^^
    note: The power limit of each GPU.
    error: `declared.mig` wants true or false, got a whole number
      --> site.yaml:1:61
       |
     1 | declared: {power: 600, power_w: high, gpu_count: null, mig: 2}
       |                                                             ^
    note: Whether MIG is on.
    error: unknown key `declard`
      --> site.yaml:3:10
       |
     3 |   h200: {declard: {}}
       |          ^^^^^^^ not a key of a group of a baseline
    help: did you mean `declared`?
    "#);
}

/// What is asked for by name and can be judged on no node is a slip, and not a check that does not apply.
#[test]
fn a_check_without_the_value_that_it_needs_is_refused() {
    let text = "name: site\nchecks:\n  - os.taint\n  - os.limits\nrequire: [sw.cuda_compat]\n";
    let told = refused(text);
    for part in [
        "`os.limits` compares with `memlock`",
        "site.yaml:4:5",
        "`sw.cuda_compat` compares with `cuda`",
        "site.yaml:5:11",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    for text in [
        "checks: [os.limits]\ndeclared: {memlock: unlimited}\n",
        "checks: [os.limits]\ngroups:\n  h200:\n    declared: {memlock: unlimited}\n",
        // A pattern names no check, and what is compared with other nodes needs no value.
        "checks: ['os.*', sw.driver_version]\n",
        "extends: core\nwithout: [sw.cuda_compat]\n",
    ] {
        assert!(
            load(&[Choice::File(SourceFile::new("site.yaml", text))], &|_| GroupHint::Known).is_ok(),
            "{text}"
        );
    }
    let null = "checks: [os.limits]\ndeclared: {memlock: null}\n";
    assert!(refused(null).contains("`memlock`, and no value of it is declared"));
}

/// What can be judged of no node is all that is refused.
#[test]
fn the_checks_that_need_a_value_are_those_that_nothing_declared_leaves_out() {
    let nothing = BTreeMap::new();
    for check in
        Catalogue::get().checks().iter().filter(|check| !check.rules.is_empty() && check.outliers.is_empty())
    {
        let policy = policy(&format!("checks: ['{}*']\nmin_coverage: 0\n", check.id)).for_node("x", &[]);
        let findings = crate::judge(&policy, &crate::samples::node());
        let found: Vec<_> = findings.iter().filter(|it| it.check.id == check.id).collect();
        let left_out = !found.is_empty() && found.iter().all(|it| it.note.starts_with("not declared: "));
        let judged = found.iter().any(|it| !matches!(it.verdict, Verdict::Na | Verdict::Unknown));
        let comparable = check.is_comparable(&nothing);
        assert!(!(left_out && comparable), "{}", check.id);
        assert!(comparable || !judged, "{}", check.id);
    }
}
