//! Tests of the document against its schema, of verdicts, exit codes, and the model's invariants.

use std::sync::LazyLock;

use gpufleet_protocol::{
    Awaiting, Certainty, Change, Disruption, Layer, Property, Subject, change,
    change::{MigInstances, MigLayout},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    sample::{self, Stream},
    *,
};
use crate::event::{
    DrainStep, DurationOrigin, EVENT_VERSION, Event, NodeOutcome, NodeState, Phase, TaskReport, TaskStatus,
    UNMET, Verb, What,
};
use crate::index::PlayIndex;

/// Checks a document; every document that a test creates passes through this.
///
/// # Panics
/// If the document does not fit the schema.
pub(super) fn fits_its_schema(document: &Value) {
    static SCHEMA: LazyLock<jsonschema::Validator> =
        LazyLock::new(|| jsonschema::validator_for(&document_schema()).unwrap());
    let wrong: Vec<String> =
        SCHEMA.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn documents_fit_their_schema() {
    for events in [sample::run(), sample::plan(), sample::audit(400), Vec::new()] {
        for end in [events.len(), events.len() / 2] {
            document(&RunModel::of(&events[..end]));
        }
    }
    let mut events = sample::plan();
    for event in &mut events {
        if let What::PlayStarted(play) = &mut event.what {
            let mut policy = sample::policy();
            policy.worst_case[0].parts[1].from = DurationOrigin::Learned { nodes: 23, runs: 3 };
            play.policy = Some(policy);
            play.work = Some("6f1c".to_owned());
        }
    }
    let with_policy = document(&RunModel::of(&events));
    let worst_case = &with_policy["plays"][0]["policy"]["worst_case"];
    assert_eq!(worst_case[2]["seconds"], 9000);
    assert_eq!(worst_case[0]["parts"][1]["from"]["nodes"], 23);
    let mut wrong = document(&RunModel::of(&sample::run()));
    wrong["nodes"]["gpu001"]["state"] = Value::from("fine");
    assert!(!jsonschema::is_valid(&document_schema(), &wrong));
}

#[test]
fn what_was_not_judged_is_not_as_declared() {
    let reading = |verb: Verb, reports: &[TaskReport]| {
        let mut s = Stream::new();
        let hosts = sample::names(1);
        s.started(verb, &hosts);
        for report in reports {
            s.task(&hosts[0], report.clone());
        }
        s.end(&hosts[0], NodeState::Compliant, None);
        RunModel::of(&s.events)
    };
    let command = sample::report("command", 2, TaskStatus::Possible);
    let fine = sample::report("sysctl", 3, TaskStatus::Ok);
    for verb in [Verb::Audit, Verb::Plan] {
        let model = reading(verb, &[command.clone(), fine.clone()]);
        let node = &model.nodes()[0];
        assert_eq!((node.verdict(verb), model.not_judged()), (Verdict::Unknown, vec!["gpu001"]), "{verb:?}");
        assert_eq!(model.counts_text(), "1 not judged");
        let document = document(&model);
        assert_eq!(document["nodes"]["gpu001"]["judged"], serde_json::json!({"tasks": 2, "judged": 1}));
        assert_eq!(document["verdicts"]["ok"], 0);
        let page = html(&model).unwrap();
        assert!(
            page.contains("The node is not as declared") && page.contains("1 of 2 tasks judged"),
            "{page}"
        );
        assert!(page.contains("was not judged in full") && !page.contains("could not be read."), "{page}");
    }
    let rules = ExitRules::default();
    assert_eq!(computed_exit_code(&reading(Verb::Audit, std::slice::from_ref(&command)), rules), 3);
    // Known: the rest is as declared. Not known: what the command does. `--strict` counts that.
    let partly = reading(Verb::Audit, &[command.clone(), fine.clone()]);
    let unread = reading(Verb::Audit, &[sample::report("sysctl", 2, TaskStatus::Unknown), fine.clone()]);
    let strict = ExitRules { strict: true, ..rules };
    assert_eq!(computed_exit_code(&partly, rules), 0);
    assert_eq!((computed_exit_code(&partly, strict), computed_exit_code(&unread, rules)), (3, 3));
    assert_eq!(computed_exit_code(&reading(Verb::Plan, std::slice::from_ref(&command)), rules), 0);
    assert_eq!(computed_exit_code(&reading(Verb::Audit, std::slice::from_ref(&fine)), rules), 0);
    // A name of a group that is misspelt in each `when`, and a playbook whose tag was not given.
    let skipped = |why: &str| TaskReport {
        message: Some(why.to_owned()),
        ..sample::report("sysctl", 2, TaskStatus::Skipped)
    };
    let answered = reading(Verb::Audit, &[skipped("no GPU of this node is drained")]);
    assert_eq!(
        (answered.nodes()[0].verdict(Verb::Audit), computed_exit_code(&answered, rules)),
        (Verdict::Na, 0)
    );
    for tasks in [vec![skipped(UNMET)], Vec::new()] {
        let nothing = reading(Verb::Audit, &tasks);
        assert_eq!(
            (nothing.nodes()[0].verdict(Verb::Audit), computed_exit_code(&nothing, rules)),
            (Verdict::Na, 3)
        );
        let page = html(&nothing).unwrap();
        assert!(
            page.contains("Nothing that is declared applies to the node") && page.contains("0.0"),
            "{page}"
        );
    }
    // A run changes what is known to differ, whatever else is unknown.
    let drift = reading(Verb::Audit, &[command, sample::swappiness(5)]);
    let verdict = (drift.nodes()[0].verdict(Verb::Audit), drift.nodes()[0].next_action(Verb::Audit));
    assert_eq!(verdict, (Verdict::Drift, NextAction::Apply));
}

#[test]
fn a_run_that_is_not_over_has_no_result() {
    let events = sample::run();
    let mut model = RunModel::of(&events[..events.len() - 1]);
    assert_eq!((model.standing(), exit_code(&model)), (Standing::CutOff, NOT_OVER));
    model.at_work = true;
    let document = document(&model);
    assert_eq!((&document["standing"], &document["exit_code"]), (&"running".into(), &6.into()));
    assert!(document["finished"].is_null() && document["as_of"].is_string());
    let page = html(&model).unwrap();
    assert!(page.contains("This run is still running.") && page.contains("as declared so far"), "{page}");
    assert_eq!(RunModel::of(&events).standing(), Standing::Finished);
}

#[test]
fn facts_that_were_read_before_a_change_are_no_result_of_it() {
    let hosts = sample::names(1);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts).facts(&hosts[0], sample::facts("H100", false));
    let read = |s: &Stream| RunModel::of(&s.events).nodes()[0].facts_are_old();
    assert!(!read(&s));
    s.task(&hosts[0], sample::report("sysctl", 3, TaskStatus::Ok));
    assert!(!read(&s));
    s.task(&hosts[0], sample::swappiness(5));
    assert!(read(&s));
    assert!(html(&RunModel::of(&s.events)).unwrap().contains("before this run changed the node"));
    s.facts(&hosts[0], sample::facts("H100", false));
    assert!(!read(&s), "they were read again");
    s.task(&hosts[0], TaskReport { status: TaskStatus::Held, ..sample::swappiness(6) });
    assert!(!read(&s), "what is held was not done");
    s.task(&hosts[0], TaskReport { status: TaskStatus::Failed, ..sample::swappiness(7) });
    assert!(read(&s), "it failed half-way");
    s.facts(&hosts[0], sample::facts("H100", false));
    let host = hosts[0].clone();
    let reboot =
        |host| What::RebootIssued { host, boot_id: "5c1f".to_owned(), why: Vec::new(), deadline: None };
    s.push(reboot(host.clone()));
    assert!(read(&s), "it reboots");
    s.push(What::RebootRefused { host: host.clone(), why: Vec::new() });
    assert!(!read(&s), "nothing was asked of it");
    s.push(reboot(host.clone())).push(What::PowerCycled { host, deadline: None });
    assert!(read(&s));
}

#[test]
fn the_page_keeps_a_reason_that_another_ends_with() {
    let hosts = sample::names(1);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    s.task(&hosts[0], sample::failed("gpu_power", 3, "GPU is lost, and that is no surprise"));
    s.task(&hosts[0], sample::failed("gpu_clocks", 4, "no surprise"));
    s.end(&hosts[0], NodeState::Failed, None);
    let page = html(&RunModel::of(&s.events)).unwrap();
    assert!(page.contains(r#""task":"gpu_clocks""#) && page.contains(r#""text":"no surprise""#), "{page}");
}

#[test]
fn the_page_says_each_thing_once() {
    let hosts = sample::names(1);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts).facts(&hosts[0], sample::facts("H100", false));
    let why = "the limit of 900 W is above the maximum";
    s.task(&hosts[0], TaskReport { item: Some("a".to_owned()), ..sample::failed("gpu_power", 3, why) });
    s.task(&hosts[0], sample::failed("gpu_power", 3, why));
    let pending = |gpu| Awaiting {
        activation: Disruption::Reboot,
        reason: format!("GPU {gpu} ECC enabled is pending"),
    };
    s.task(
        &hosts[0],
        TaskReport {
            awaiting: (0..8).map(pending).collect(),
            warnings: (0..8).map(|gpu| format!("GPU {gpu} is warm")).collect(),
            ..sample::report("gpu_ecc", 4, TaskStatus::Changed)
        },
    );
    s.end(&hosts[0], NodeState::Failed, Some(why));
    let page = html(&RunModel::of(&s.events)).unwrap();
    let count = |text: &str| page.matches(text).count();
    // Among the causes and in the node's own line, both as the page shows them and as its script reads them.
    assert_eq!(count(why), 4, "{page}");
    assert_eq!((count("GPU 0-7 ECC enabled is pending"), count("GPU 0-7 is warm")), (1, 1));
    assert_eq!((count("GPU 3 "), count("GPU 7 ")), (0, 0));
}

#[test]
fn the_document_of_a_node() {
    let document = document(&RunModel::of(&sample::run()));
    assert_eq!(document["exit_code"], 2);
    assert_eq!(document["stats"]["gpu001"]["changed"], 1);
    assert_eq!(document["nodes"]["gpu006"]["changes"], Value::Array(Vec::new()));
    let mut node = document["nodes"]["gpu003"].clone();
    node["changes"].as_array_mut().unwrap().truncate(1);
    insta::assert_snapshot!(serde_json::to_string_pretty(&node).unwrap(), @r#"
    {
      "state": "done",
      "verdict": "ok",
      "result": "as_declared",
      "next_action": "none",
      "message": null,
      "judged": null,
      "checks": null,
      "findings": [],
      "hardware": "8x H100 80GB HBM3",
      "facts_read": "2026-11-21T09:06:03.5Z",
      "facts_before_changes": true,
      "changes": [
        {
          "task": "gpu_power",
          "kind": "gpu_power",
          "text": "GPU 0 power limit 700 -> 600 W",
          "subject": {
            "type": "gpu",
            "index": 0,
            "uuid": "GPU-0"
          },
          "property": "power limit",
          "from": {
            "type": "number",
            "value": 700,
            "unit": "W"
          },
          "to": {
            "type": "number",
            "value": 600,
            "unit": "W"
          },
          "disruption": "live",
          "certainty": "sure"
        }
      ],
      "not_made": [],
      "awaiting": [],
      "blockers": [],
      "failed": [],
      "unknown": [],
      "held": [],
      "ignored": [],
      "possible": [],
      "warnings": [],
      "clients": [],
      "rebooted": false,
      "reboots": [],
      "drains": [],
      "out_of_service": false,
      "seconds": 4
    }
    "#);
    insta::assert_snapshot!(document["nodes"]["gpu004"]["failed"], @r#"[{"task":"gpu_power","kind":"gpu_power","item":null,"delegated_to":null,"file":"playbooks/bringup.yaml","line":18,"message":"limit 900 W is above this GPU's maximum 700 W"}]"#);
}

#[test]
fn plan_and_run_name_the_same_changes() {
    let tasks = || {
        [
            sample::on_gpus("gpu_ecc", 12, "ECC", "disabled", "enabled", Disruption::Reboot),
            TaskReport {
                phase: Phase::Reassert,
                ..sample::on_gpus("gpu_power", 18, "power limit", "700 W", "600 W", Disruption::Live)
            },
        ]
    };
    let of = |verb: Verb, proof: bool| {
        let mut s = Stream::new();
        s.started(verb, &sample::names(1));
        for task in tasks() {
            s.task("gpu001", task);
        }
        if proof {
            s.task("gpu001", TaskReport { phase: Phase::Verify, ..sample::swappiness(24) });
        }
        RunModel::of(&s.events).nodes()[0].change_records()
    };
    assert_eq!(of(Verb::Plan, false), of(Verb::Run, true));
    assert_eq!(of(Verb::Plan, false).len(), 16);
}

fn one(verb: Verb, state: NodeState, tasks: Vec<TaskReport>) -> RunModel {
    let mut s = Stream::new();
    s.started(verb, &sample::names(1));
    for task in tasks {
        s.task("gpu001", task);
    }
    s.end("gpu001", state, None);
    RunModel::of(&s.events)
}

fn judge(model: &RunModel) -> (Verdict, NextAction) {
    let node = &model.nodes()[0];
    (node.verdict(model.verb()), node.next_action(model.verb()))
}

#[test]
fn the_worst_wins() {
    use NodeState::{Compliant, Done, Drift, Failed, Held, Skipped, Unknown, Unreachable};
    let audit = |state, tasks| judge(&one(Verb::Audit, state, tasks));
    let ok = || sample::report("gpu_ecc", 12, TaskStatus::Ok);
    let power = || sample::on_gpus("gpu_power", 18, "power limit", "700 W", "600 W", Disruption::Live);
    let ecc = || sample::on_gpus("gpu_ecc", 12, "ECC", "off", "on", Disruption::Reboot);
    let warned = TaskReport { warnings: vec!["clocks cannot be read back".into()], ..ok() };
    let waiting =
        Awaiting { activation: Disruption::GpuReset, reason: "GPU 0 ECC enabled is pending".into() };
    let cases = [
        (audit(Compliant, vec![ok()]), Verdict::Ok, NextAction::None),
        (
            audit(Compliant, vec![sample::report("gpu_ecc", 12, TaskStatus::Skipped)]),
            Verdict::Na,
            NextAction::None,
        ),
        (audit(Compliant, vec![warned.clone()]), Verdict::Warn, NextAction::Investigate),
        (audit(Drift, vec![power(), warned]), Verdict::Drift, NextAction::Apply),
        (audit(Drift, vec![power(), ecc()]), Verdict::Drift, NextAction::Reboot),
        (
            audit(Compliant, vec![TaskReport { awaiting: vec![waiting], ..ok() }]),
            Verdict::Drift,
            NextAction::Reset,
        ),
        (
            audit(Drift, vec![power(), sample::report("gpu_ecc", 12, TaskStatus::Unknown)]),
            Verdict::Unknown,
            NextAction::Investigate,
        ),
        (audit(Compliant, vec![sample::failed("gpu_mig", 14, "no")]), Verdict::Fail, NextAction::Investigate),
        (audit(Unknown, vec![]), Verdict::Unknown, NextAction::Investigate),
        (audit(Unreachable, vec![]), Verdict::Unknown, NextAction::Investigate),
        (audit(Skipped, vec![]), Verdict::Unknown, NextAction::Investigate),
        (audit(Failed, vec![]), Verdict::Fail, NextAction::Investigate),
        (judge(&one(Verb::Run, Held, vec![])), Verdict::Drift, NextAction::Investigate),
        // A change that the run has made is no drift any more.
        (judge(&one(Verb::Run, Done, vec![ecc()])), Verdict::Ok, NextAction::None),
    ];
    for (at, (found, verdict, action)) in cases.into_iter().enumerate() {
        assert_eq!(found, (verdict, action), "case {at}");
    }
}

#[test]
fn gpus_that_are_missing_or_silent_are_not_ok() {
    let with = |change: fn(&mut gpufleet_protocol::facts::GpuSystem)| {
        let mut s = Stream::new();
        s.started(Verb::Audit, &sample::names(1));
        let mut facts = sample::facts("H100", false);
        change(&mut facts.gpu);
        s.facts("gpu001", facts).end("gpu001", NodeState::Compliant, None);
        judge(&RunModel::of(&s.events)).0
    };
    use gpufleet_protocol::facts::GpuSystemState::{Hung, VersionMismatch};
    assert_eq!(with(|_| {}), Verdict::Na);
    assert_eq!(with(|gpu| gpu.gpus.truncate(7)), Verdict::Fail);
    assert_eq!(with(|gpu| gpu.state = Hung { detail: String::new() }), Verdict::Unknown);
    assert_eq!(with(|gpu| gpu.state = VersionMismatch { detail: String::new() }), Verdict::Fail);
}

#[test]
fn exit_codes() {
    use NodeState::{Compliant, Done, Drift, Failed, Held, Unknown, Unreachable};
    let code = |verb, states: &[NodeState], rules| {
        let hosts = sample::names(states.len());
        let mut s = Stream::new();
        s.started(verb, &hosts);
        for (host, state) in hosts.iter().zip(states) {
            match state {
                Drift => s.task(host, sample::swappiness(24)),
                Compliant => s.task(host, sample::report("sysctl", 24, TaskStatus::Ok)),
                _ => &mut s,
            };
            s.end(host, *state, None);
        }
        computed_exit_code(&RunModel::of(&s.events), rules)
    };
    let plain = ExitRules::default();
    let ending = |ending| ExitRules { ending, ..plain };
    let strict = ExitRules { fail_on_change: true, ..plain };
    let cases = [
        (code(Verb::Run, &[Done, Compliant], plain), 0),
        (code(Verb::Run, &[Done, Failed], plain), 2),
        (code(Verb::Run, &[Unreachable, Failed], plain), 2),
        (code(Verb::Run, &[Done, Unknown], plain), 2),
        (code(Verb::Run, &[Held, Failed], plain), 2),
        (code(Verb::Run, &[Held, Unreachable], plain), 5),
        (code(Verb::Run, &[Done, Unreachable], plain), 4),
        (code(Verb::Run, &[Failed, Done], ending(Ending::Stopped)), 5),
        (code(Verb::Run, &[Failed, Done], ending(Ending::Interrupted)), 130),
        (code(Verb::Plan, &[Drift], plain), 0),
        (code(Verb::Plan, &[Drift], strict), 3),
        (code(Verb::Plan, &[Compliant], strict), 0),
        (code(Verb::Plan, &[Drift, Failed], plain), 2),
        (code(Verb::Audit, &[Compliant], plain), 0),
        (code(Verb::Audit, &[Compliant, Drift], plain), 3),
        (code(Verb::Audit, &[Compliant, Unknown], plain), 3),
        (code(Verb::Audit, &[Compliant, Failed], plain), 3),
        (code(Verb::Audit, &[Compliant, Unreachable], plain), 4),
        (code(Verb::Audit, &[Drift, Unreachable], plain), 3),
    ];
    for (at, (found, wanted)) in cases.into_iter().enumerate() {
        assert_eq!(found, wanted, "case {at}");
    }
}

#[test]
fn a_retried_task_awaits_only_what_its_last_report_says() {
    let waiting = Awaiting { activation: Disruption::Reboot, reason: "GPU 0 ECC enabled is pending".into() };
    let before = TaskReport { awaiting: vec![waiting], ..sample::report("gpu_ecc", 12, TaskStatus::Changed) };
    let after = TaskReport { phase: Phase::Verify, ..sample::report("gpu_ecc", 12, TaskStatus::Ok) };
    let model = one(Verb::Run, NodeState::Done, vec![before.clone(), after]);
    assert!(model.nodes()[0].awaiting().is_empty());
    assert_eq!(one(Verb::Run, NodeState::Done, vec![before]).nodes()[0].awaiting().len(), 1);
}

#[test]
fn reasons_with_the_same_words_are_told_once() {
    let mut s = Stream::new();
    s.started(Verb::Plan, &sample::names(2));
    for (host, from) in [("gpu001", "off"), ("gpu002", "on")] {
        let changes = ["iommu", "mitigations"].map(|parameter| {
            let subject = Subject::KernelCommandLine { parameter: parameter.to_owned() };
            Change::new(subject, Property::VALUE, from, "pt", Disruption::Reboot)
        });
        let report = sample::report("kernel_cmdline", 18, TaskStatus::Changed);
        s.task(host, TaskReport { changes: changes.to_vec(), ..report });
    }
    let model = RunModel::of(&s.events);
    assert_eq!(reasons(model.nodes(), Disruption::Reboot), ["kernel command line"]);
}

#[test]
fn reasons_name_values_that_all_share() {
    let change = |from: &str| Change {
        certainty: Certainty::Sure,
        ..sample::on_gpus("gpu_power", 18, "power limit", from, "600 W", Disruption::Live).changes.remove(0)
    };
    let mut s = Stream::new();
    s.started(Verb::Plan, &sample::names(2));
    for (host, from) in [("gpu001", "700 W"), ("gpu002", "650 W")] {
        let report = sample::report("gpu_power", 18, TaskStatus::Changed);
        s.task(host, TaskReport { changes: vec![change(from)], ..report });
    }
    s.task("gpu002", sample::swappiness(24));
    let model = RunModel::of(&s.events);
    assert_eq!(reasons(model.nodes(), Disruption::Live), ["power limit", "vm.swappiness 60 -> 10"]);
    assert_eq!(reasons(&model.nodes()[..1], Disruption::Live), ["power limit 700 -> 600 W"]);
}

#[test]
fn a_change_of_the_mig_mode_does_not_hide_the_layout() {
    let layout = |profile: &str, count| {
        let instances = vec![MigInstances { profile: profile.to_owned(), count, start: None }];
        change::Value::from(MigLayout { instances, ..MigLayout::default() })
    };
    let changes = |index, to: change::Value| {
        let gpu = || Subject::Gpu { index, uuid: format!("GPU-{index}") };
        let none = MigLayout::default();
        vec![
            Change::new(gpu(), Property::MIG_MODE, false, true, Disruption::Clients),
            Change::new(gpu(), Property::MIG_LAYOUT, none, to, Disruption::Live),
            Change::new(gpu(), Property::POWER_LIMIT, "700 W", "600 W", Disruption::Live),
        ]
    };
    let told = |layouts: &[change::Value]| {
        let mut s = Stream::new();
        s.started(Verb::Plan, &sample::names(2));
        for (index, to) in (0..).zip(layouts) {
            let report = sample::report("gpu_mig", 18, TaskStatus::Changed);
            s.task("gpu001", TaskReport { changes: changes(index, to.clone()), ..report });
        }
        reasons(RunModel::of(&s.events).nodes(), Disruption::Clients)
    };
    let mode = "MIG mode disabled -> enabled";
    let two = layout("3g.40gb", 2);
    assert_eq!(told(&[two.clone(), two.clone()]), ["MIG layout none -> 2x 3g.40gb", mode]);
    let seven = layout("1g.10gb", 7);
    assert_eq!(
        told(&[two.clone(), seven.clone()]),
        ["MIG layout none -> 2x 3g.40gb or none -> 7x 1g.10gb", mode]
    );
    let many: Vec<_> = (1..=7).map(|count| layout("1g.10gb", count)).collect();
    assert_eq!(
        told(&many),
        ["MIG layout none -> 1x 1g.10gb or none -> 2x 1g.10gb or none -> 3x 1g.10gb or another", mode]
    );
}

proptest! {
    #[test]
    fn counts_by_state_add_up(steps in prop::collection::vec((0_usize..6, 0_usize..17, any::<bool>()), 0..60)) {
        let hosts = sample::names(4);
        let mut s = Stream::new();
        s.started(Verb::Run, &hosts);
        for (host, state, end) in steps {
            // Hosts 5 and 6 were never announced.
            let host = format!("gpu{:03}", host + 1);
            let state = NodeState::ALL[state];
            if end {
                s.end(&host, state, None);
            } else {
                s.state(&host, state, None);
            }
        }
        let model = RunModel::of(&s.events);
        let sum: usize = NodeState::ALL.iter().map(|state| model.count(*state)).sum();
        prop_assert_eq!(sum, model.nodes().len());
        for state in NodeState::ALL {
            prop_assert_eq!(model.count(state), model.in_state(state).len());
        }
    }

    #[test]
    fn a_stream_that_went_over_the_wire_gives_the_same_report(cut in 0_usize..80) {
        let events = sample::run();
        let events = &events[..cut.min(events.len())];
        let text: Vec<String> = events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
        let back: Vec<Event> = text.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        prop_assert_eq!(document(&RunModel::of(events)), document(&RunModel::of(&back)));
    }
}

#[test]
fn what_register_got_is_in_no_report() {
    let mut task = sample::report("shell", 41, TaskStatus::Changed);
    task.data.insert("stdout".into(), "s3cret".into());
    let mut s = Stream::new();
    s.started(Verb::Run, &sample::names(1));
    s.push(What::TaskFinished { host: "gpu001".into(), report: task });
    let model = RunModel::of(&s.events);
    assert!(!document(&model).to_string().contains("s3cret"));
    assert!(!html(&model).unwrap().contains("s3cret"));
}

#[test]
fn nodes_that_were_read_wait_for_their_wave() {
    let hosts = sample::names(3);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    for host in &hosts {
        s.state(host, NodeState::Preflight, None);
    }
    s.push(What::WaveStarted { play: PlayIndex(0), wave: 0, hosts: hosts[..1].to_vec() });
    let model = RunModel::of(&s.events);
    assert_eq!((model.count(NodeState::Preflight), model.count(NodeState::Pending)), (1, 2));
}

#[test]
fn a_process_that_goes_on_forgets_what_an_earlier_one_could_not_do() {
    let hosts = sample::names(2);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    for text in ["stopping: no new node starts; press again to leave now", "the lock could not be given back"]
    {
        s.push(What::Notice { level: crate::event::Level::Warning, text: text.to_owned() });
    }
    s.task("gpu001", sample::report("sysctl", 2, TaskStatus::Ok));
    s.task("gpu001", sample::report("gpu_ecc", 3, TaskStatus::Held));
    s.end("gpu001", NodeState::Held, Some("a process holds the GPUs"));
    s.end("gpu002", NodeState::Failed, Some("no"));
    s.finished(130, "1 held, 1 failed");
    s.push(What::RunResumed { epoch: 2, who: "test".to_owned(), version: EVENT_VERSION });
    let model = RunModel::of(&s.events);
    let notices: Vec<&str> = model.notices.iter().map(|notice| notice.text.as_str()).collect();
    assert_eq!(notices, ["the lock could not be given back"]);
    let node = model.node("gpu001").unwrap();
    assert_eq!(node.seconds(None), 4, "what the first process spent");
    s.end("gpu001", NodeState::Done, None);
    assert_eq!(RunModel::of(&s.events).node("gpu001").unwrap().seconds(None), 8);
    assert_eq!((node.state, node.tasks.len(), node.message()), (NodeState::Pending, 1, None));
    assert_eq!((node.counts().ok, node.counts().failed), (1, 0));
    assert_eq!(model.count(NodeState::Failed), 1);
    assert_eq!(model.out_of_service(), Vec::<String>::new());
}

#[test]
fn a_run_that_was_cut_off_tells_who_may_be_out() {
    let names = sample::names(3);
    let mut s = Stream::new();
    s.started(Verb::Run, &names).play(&names, &[("all", 3)]);
    for host in &names[..2] {
        s.push(What::PermitGranted { host: host.clone(), class: Disruption::Reboot });
    }
    s.push(What::Released { host: names[0].clone() });
    assert_eq!(RunModel::of(&s.events).out_of_service(), [names[1].clone()]);
    let begun = DrainStep::Begun {
        scheduler: "Slurm".to_owned(),
        node: names[2].clone(),
        run: "RUN".to_owned(),
        nonce: "1".to_owned(),
    };
    s.push(What::Drain { host: names[2].clone(), step: begun });
    assert_eq!(RunModel::of(&s.events).out_of_service(), names[1..]);
    s.push(What::Drain { host: names[2].clone(), step: DrainStep::GivenBack });
    assert_eq!(RunModel::of(&s.events).out_of_service(), [names[1].clone()]);
}

#[test]
fn a_node_that_nobody_drained_is_not_left_out_of_service() {
    let names = sample::names(4);
    let mut s = Stream::new();
    s.started(Verb::Run, &names).play(&names, &[("all", 4)]);
    for host in &names {
        s.push(What::PermitGranted { host: host.clone(), class: Disruption::Reboot });
    }
    // Drained, away after its reboot, back from it, and not rebooted.
    s.push(What::Drain { host: names[0].clone(), step: DrainStep::Drained });
    for host in &names[1..3] {
        let why = Vec::new();
        s.push(What::RebootIssued { host: host.clone(), boot_id: "b-1".to_owned(), why, deadline: None });
    }
    s.push(What::Rebooted { host: names[2].clone(), boot_id: "b-2".to_owned(), seconds: 9 });
    // Given back after an earlier play.
    s.push(What::Drain { host: names[3].clone(), step: DrainStep::Drained });
    s.push(What::Drain { host: names[3].clone(), step: DrainStep::GivenBack });
    for host in &names {
        let outcome = NodeOutcome {
            state: NodeState::Failed,
            message: None,
            counts: Default::default(),
            seconds: 9,
            rebooted: false,
            out_of_service: true,
        };
        s.push(What::NodeFinished { host: host.clone(), outcome });
    }
    let check = |model: &RunModel| {
        assert_eq!(model.out_of_service(), names, "all of them count against the budget");
        assert_eq!(model.left_out(), names[..2]);
        assert_eq!(model.left_in_service(), names[2..]);
        let out: Vec<bool> = model.nodes().iter().map(NodeModel::is_left_out).collect();
        assert_eq!(out, [true, true, false, false]);
    };
    check(&RunModel::of(&s.events));
    s.push(What::RunFinished(crate::event::RunFinished {
        exit_code: 2,
        summary: String::new(),
        out_of_service: names.clone(),
        stopped: None,
        resumable: false,
    }));
    let model = RunModel::of(&s.events);
    check(&model);
    let style = crate::display::Style { width: 200, ..Default::default() };
    let text = crate::display::ending_lines(&model, None, &style);
    assert!(text.contains("Still out of service: gpu[001,002].\n"), "{text}");
    assert!(
        text.contains(
            "open to work, as far as this run knows, since it has no scheduler keep it away: gpu[003,004].\n"
        ),
        "{text}"
    );
}

/// A power limit on each of eight GPUs; no two nodes have a GPU in common.
fn limited(node: usize) -> TaskReport {
    let mut report = sample::on_gpus("gpu_power", 18, "power limit", "700 W", "600 W", Disruption::Live);
    for (at, change) in (0_u32..).zip(&mut report.changes) {
        change.subject = Subject::Gpu { index: at, uuid: format!("GPU-{node}-{at}") };
    }
    report
}

#[test]
fn four_hundred_gpus_with_the_same_change_are_one_group_and_one_reason() {
    let hosts = sample::names(50);
    let mut s = Stream::new();
    s.started(Verb::Plan, &hosts);
    for (at, host) in hosts.iter().enumerate() {
        s.task(host, limited(at));
    }
    let model = RunModel::of(&s.events);
    let groups: std::collections::HashSet<ChangeGroup> =
        model.nodes().iter().flat_map(|node| fold_changes(node.changes())).collect();
    let [group] = &groups.into_iter().collect::<Vec<_>>()[..] else { panic!("more than one group") };
    assert_eq!(
        (group.gpu_label().as_str(), group.sentence().as_str()),
        ("GPU 0-7", "power limit 700 -> 600 W")
    );
    assert_eq!(reasons(model.nodes(), Disruption::Live), ["power limit 700 -> 600 W"]);
    let uuids: std::collections::HashSet<String> = model
        .nodes()
        .iter()
        .flat_map(NodeModel::change_records)
        .map(|record| format!("{:?}", record.subject))
        .collect();
    assert_eq!(uuids.len(), 400, "the document names each GPU");
}

#[test]
fn equal_texts_of_different_things_are_not_folded() {
    let of = |layer, from: change::Value| {
        let gpu = Subject::Gpu { index: 0, uuid: "GPU-0".to_owned() };
        Change::new(gpu, Property::ECC, from, true, Disruption::Live).at(layer)
    };
    let on_two = |change: Change| {
        let other = Subject::Gpu { index: 1, uuid: "GPU-1".to_owned() };
        [Change { subject: other, ..change.clone() }, change]
    };
    let changes =
        [of(Layer::Live, false.into()), of(Layer::Pending, false.into()), of(Layer::Live, "disabled".into())];
    let report = TaskReport {
        changes: changes.into_iter().flat_map(on_two).collect(),
        ..sample::report("gpu_ecc", 12, TaskStatus::Changed)
    };
    let groups = fold_changes(report.changes.iter().map(|change| (&report, change)));
    let told: Vec<_> = groups.iter().map(|group| (group.gpus.as_slice(), group.sentence())).collect();
    let both: &[u32] = &[1, 0];
    assert_eq!(
        told,
        [
            (both, "ECC disabled -> enabled".to_owned()),
            (both, "pending ECC disabled -> enabled".to_owned()),
            (both, "ECC disabled -> enabled".to_owned()),
        ]
    );
}

/// A journal of version 1 has texts where this one has subjects and values.
#[test]
fn a_run_of_version_1_is_reported() {
    let mut s = Stream::new();
    s.started(Verb::Plan, &sample::names(1));
    let mut report = serde_json::to_value(sample::report("gpu_power", 18, TaskStatus::Changed)).unwrap();
    report["changes"] = json!([
        {"what": "GPU 0 graphics clock", "from": null, "to": "900 MHz", "disruption": "live", "certainty": "sure"},
        {"what": "GPU 1 graphics clock", "from": null, "to": "900 MHz", "disruption": "live"},
        {"what": "/etc/motd", "from": "a", "to": "b", "disruption": "live", "note": "n", "diff": "-a\n+b\n"},
    ]);
    s.task("gpu001", serde_json::from_value(report).unwrap());
    let model = RunModel::of(&s.events);
    let groups = fold_changes(model.nodes()[0].changes());
    let told: Vec<_> =
        groups.iter().map(|group| format!("{} {}", group.gpu_label(), group.sentence())).collect();
    assert_eq!(told, ["GPU 0,1 graphics clock -> 900 MHz", " /etc/motd a -> b"]);
    let changes = &document(&model)["nodes"]["gpu001"]["changes"];
    assert_eq!(changes[2]["text"], "/etc/motd a -> b");
    assert_eq!(changes[2]["subject"], json!({"type": "described", "text": "/etc/motd"}));
    assert_eq!(changes[0]["to"], json!({"type": "text", "value": "900 MHz"}));
}

proptest! {
    #[test]
    fn folding_loses_no_change_and_mixes_none(
        changes in prop::collection::vec((0_u32..4, 0_usize..3, any::<bool>(), 0_u32..3), 0..60),
    ) {
        let properties = [Property::POWER_LIMIT, Property::ECC, Property::MIG_MODE];
        let change = |(index, property, pending, value): (u32, usize, bool, u32)| {
            let gpu = Subject::Gpu { index, uuid: format!("GPU-{index}") };
            let to = change::Value::number(value);
            Change::new(gpu, properties[property].clone(), change::Value::Unknown, to, Disruption::Live)
                .at(if pending { Layer::Pending } else { Layer::Live })
        };
        let changes: Vec<Change> = changes.into_iter().map(change).collect();
        let report = TaskReport { changes, ..sample::report("gpu_power", 3, TaskStatus::Changed) };
        let groups = fold_changes(report.changes.iter().map(|change| (&report, change)));
        let unfold = |group: &ChangeGroup| {
            let one = |index: &u32| Change {
                subject: Subject::Gpu { index: *index, uuid: format!("GPU-{index}") },
                ..group.change.clone()
            };
            group.gpus.iter().map(one).collect::<Vec<_>>()
        };
        let sorted = |mut all: Vec<Change>| {
            all.sort_by_key(|change| format!("{change:?}"));
            all
        };
        let unfolded = sorted(groups.iter().flat_map(unfold).collect());
        prop_assert_eq!(unfolded, sorted(report.changes.clone()));
        for group in &groups {
            let mut gpus = group.gpus.clone();
            gpus.sort_unstable();
            gpus.dedup();
            prop_assert_eq!(gpus.len(), group.gpus.len(), "a GPU twice in one group");
        }
    }
}
