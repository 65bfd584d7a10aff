//! Every screen, as snapshots.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use gpufleet_protocol::{Disruption, facts::GpuSystemState};
use jiff::{Timestamp, tz::TimeZone};

use super::*;
use crate::{
    event::{
        DurationOrigin, NodeState, OpId, OutagePart, PolicyShape, TaskReport, TaskStatus, Verb, What,
        WorstCase, WorstPart,
    },
    index::PlayIndex,
    report::{
        RunModel,
        sample::{self, Stream},
    },
};

fn style() -> Style {
    Style::default()
}

#[test]
fn plan() {
    let model = RunModel::of(&sample::plan());
    insta::assert_snapshot!(plan_screen(&model, PlanView::Summary, &style()), @r#"
    Plan for "Bring up training nodes": 16 nodes, 2 hardware classes, read in 1.4 s. Nothing was
      changed.

      reboot      3 nodes   gpu[033,037,041]          ECC disabled -> enabled, kernel command line ->
                                                      iommu=pt
      live        7 nodes   gpu[034-036,038-040,042]  power limit 700 -> 600 W, vm.swappiness 60 -> 10
      not judged  5 nodes   gpu[043,045-048]          1 of 2 tasks judged
      unknown     1 node    gpu044                    gpu_ecc: NVML did not answer in 10 s; the worker
                                                      was killed (playbooks/bringup.yaml:12); counted as
                                                      not compliant

      Waves       1    canary  2 nodes   gpu[033,034]  one of each class
                  2    10%     1 node    gpu035
                  3-6  25%     13 nodes  gpu[036-048]  4 at a time
                  at most 1 out at once
      Not sure    task "tune fabric" (playbooks/bringup.yaml:41): depends on the output of a command:
                  may add live changes; on 15 nodes

      --diff shows every change; --node HOST shows one node; --format json is the same for programs.
    "#);
}

#[test]
fn a_task_that_comes_twice_on_a_node_is_unsure_on_one_node() {
    let hosts = sample::names(2);
    let mut s = Stream::new();
    s.started(Verb::Plan, &hosts).play(&hosts, &[("all", 2)]);
    for _ in 0..2 {
        let message = Some("may be notified".to_owned());
        s.task(&hosts[0], TaskReport { message, ..sample::report("command", 8, TaskStatus::Possible) });
    }
    s.finished(0, "2 nodes read");
    let screen = plan_screen(&RunModel::of(&s.events), PlanView::Summary, &style());
    assert!(screen.contains("may be notified; on 1 node\n"), "{screen}");
}

/// Returns the plan of the sample with this policy.
fn planned(policy: PolicyShape) -> String {
    let mut events = sample::plan();
    for event in &mut events {
        if let What::PlayStarted(play) = &mut event.what {
            play.policy = Some(policy.clone());
            play.max_unavailable = 2;
        }
    }
    let screen = plan_screen(&RunModel::of(&events), PlanView::Summary, &style());
    let from = screen.find("  Waves").unwrap();
    let to = screen.find("  Not sure").unwrap();
    screen[from..to].to_owned()
}

#[test]
fn plan_with_a_policy() {
    insta::assert_snapshot!(planned(sample::policy()), @r#"
    Waves       1    canary  2 nodes   gpu[033,034]  one of each class
                2    10%     1 node    gpu035
                3-6  25%     13 nodes  gpu[036-048]  4 at a time
                at most 2 out at once, 1 of each rack (2 of them; 1 node in none); each wave is
                watched for 10m
    Drain       slurm, up to 2h a node; given back when gpu_count, mig_layout, ecc, xid hold
    Time        a node is out for up to 2h 30m (reboot); all of them take up to 8h
    Window      Sat 02:00-06:00 Europe/Berlin, 4h long; a node is begun up to 2h 30m before its end
    "#);
}

#[test]
fn plan_with_a_window_that_is_too_short() {
    let short =
        PolicyShape { window_longest_s: Some(2 * 3600), soak_s: 0, failure_domain: None, ..sample::policy() };
    insta::assert_snapshot!(planned(short), @r#"
    Waves       1    canary  2 nodes   gpu[033,034]  one of each class
                2    10%     1 node    gpu035
                3-6  25%     13 nodes  gpu[036-048]  4 at a time
                at most 2 out at once
    Drain       slurm, up to 2h a node; given back when gpu_count, mig_layout, ecc, xid hold
    Time        a node is out for up to 2h 30m (reboot); all of them take up to 7h 30m
    Window      Sat 02:00-06:00 Europe/Berlin, 2h long, which is too short: no node is begun that may
                need 2h 30m; shorten the timeouts or widen the window
    "#);
}

#[test]
fn plan_without_a_drainer() {
    let none = PolicyShape {
        drain: "none".to_owned(),
        drain_s: 0,
        worst_case: vec![WorstCase { class: Disruption::Reboot, seconds: 1800, parts: Vec::new() }],
        ..PolicyShape::default()
    };
    insta::assert_snapshot!(planned(none), @r#"
    Waves       1    canary  2 nodes   gpu[033,034]  one of each class
                2    10%     1 node    gpu035
                3-6  25%     13 nodes  gpu[036-048]  4 at a time
                at most 2 out at once
    Drain       none: a busy node is held; given back without a check
    Time        a node is out for up to 30m (reboot); all of them take up to 1h 30m
    "#);
}

#[test]
fn plan_with_times_that_were_learned() {
    let part = |what, seconds, from| WorstPart { what, seconds, from };
    let learned = DurationOrigin::Learned { nodes: 23, runs: 3 };
    let drain = part(OutagePart::Drain, 420, learned);
    let reboot = part(OutagePart::Reboot, 540, learned);
    let work = part(OutagePart::Work, 240, learned);
    let with = |parts: Vec<WorstPart>| PolicyShape {
        worst_case: vec![WorstCase::new(Disruption::Reboot, parts)],
        failure_domain: None,
        soak_s: 0,
        ..sample::policy()
    };
    let lines = |parts: Vec<WorstPart>| {
        let screen = planned(with(parts));
        let from = screen.find("  Time").unwrap();
        screen[from..].to_owned()
    };
    insta::assert_snapshot!(lines(vec![drain, reboot, work]), @r#"
    Time        a node is out for up to 20m (reboot, learned from 23 nodes of 3 runs); all of them
                take up to 1h
    Window      Sat 02:00-06:00 Europe/Berlin, 4h long; a node is begun up to 20m before its end
    "#);
    let declared = |what, seconds| part(what, seconds, DurationOrigin::Declared);
    insta::assert_snapshot!(lines(vec![declared(OutagePart::Drain, 3600), reboot, work]), @r#"
    Time        a node is out for up to 1h 13m (reboot; reboot and work learned from 23 nodes of 3
                runs); all of them take up to 3h 39m
    Window      Sat 02:00-06:00 Europe/Berlin, 4h long; a node is begun up to 1h 13m before its end
    "#);
    insta::assert_snapshot!(lines(vec![declared(OutagePart::Reboot, 900), work]), @r#"
    Time        a node is out for up to 19m (reboot; work learned from 23 nodes of 3 runs); all of
                them take up to 57m
    Window      Sat 02:00-06:00 Europe/Berlin, 4h long; a node is begun up to 19m before its end
    "#);
    insta::assert_snapshot!(lines(vec![part(OutagePart::Work, 600, DurationOrigin::Default)]), @r#"
    Time        a node is out for up to 10m (reboot); all of them take up to 30m
    Window      Sat 02:00-06:00 Europe/Berlin, 4h long; a node is begun up to 10m before its end
    "#);
}

#[test]
fn plan_with_every_change() {
    let model = RunModel::of(&sample::plan());
    let screen = plan_screen(&model, PlanView::Diff, &style());
    let changes = screen.split_once("once\n").unwrap().1;
    insta::assert_snapshot!(changes, @r#"
    Not sure    task "tune fabric" (playbooks/bringup.yaml:41): depends on the output of a command:
                may add live changes; on 15 nodes

    gpu_ecc  playbooks/bringup.yaml:12
      3 nodes: gpu[033,037,041]
        GPU 0-7 ECC                       disabled -> enabled               reboot
    gpu_power  playbooks/bringup.yaml:18
      10 nodes: gpu[033-042]
        GPU 0-7 power limit               700 -> 600 W                      live
    gpu_mig  playbooks/bringup.yaml:14
      1 node: gpu041
        GPU 0-7 MIG layout                7x 1g.10gb -> 2x 3g.40gb          clients
    kernel_cmdline  playbooks/bringup.yaml:30
      3 nodes: gpu[033,037,041]
        kernel command line               -> iommu=pt                       reboot
            (current after the next boot)
    sysctl  playbooks/bringup.yaml:24
      10 nodes: gpu[033-042]
        vm.swappiness                     60 -> 10                          live
    "#);
}

#[test]
fn plan_of_one_node() {
    let model = RunModel::of(&sample::plan());
    insta::assert_snapshot!(node_screen(model.node("gpu041").unwrap(), &style()), @r"
    gpu041  8x H100 80GB HBM3, driver 580.159.04  drift
      gpu_ecc  playbooks/bringup.yaml:12
        GPU 0-7 ECC                       disabled -> enabled               reboot
      gpu_mig  playbooks/bringup.yaml:14
        GPU 0-7 MIG layout                7x 1g.10gb -> 2x 3g.40gb          clients
          before  | 1g  | 1g  | 1g  | 1g  | 1g  | 1g  | 1g  | ..  |
          after   |        3g.40gb        |        3g.40gb        |
      gpu_power  playbooks/bringup.yaml:18
        GPU 0-7 power limit               700 -> 600 W                      live
      kernel_cmdline  playbooks/bringup.yaml:30
        kernel command line               -> iommu=pt                       reboot
            (current after the next boot)
      sysctl  playbooks/bringup.yaml:24
        vm.swappiness                     60 -> 10                          live
      possible  tune fabric (playbooks/bringup.yaml:41): depends on the output of a command: may add live changes
    ");
    insta::assert_snapshot!(node_screen(model.node("gpu044").unwrap(), &style()), @r"
    gpu044  unknown
      NVML did not answer in 10 s; the worker was killed
      unknown  gpu_ecc (playbooks/bringup.yaml:12): NVML did not answer in 10 s; the worker was killed
    ");
}

#[test]
fn audit() {
    let model = RunModel::of(&sample::audit(1000));
    insta::assert_snapshot!(audit_screen(&model, &style()), @r"
    1000 nodes, 956 compliant, 31 drift, 3 fail, 10 unknown        95.6 %
    1028 of 1034 judgements were made
      fail     3 nodes   -> investigate  gpu[006,339,672]          the driver shows 7 of 8 GPUs on the
                                                                   PCI bus
      unknown  4 nodes   -> investigate  gpu[121,371,621,871]      no route to host
      unknown  6 nodes   -> investigate  gpu[045,225,405,585,765…  NVML did not answer in 10 s; the
                                                                   worker was killed
                                                                   (playbooks/bringup.yaml:18)
      drift    12 nodes  -> apply        gpu[003,101-111]          GPU 0-7 power limit 700 -> 600 W
                                                                   (playbooks/bringup.yaml:18)
      drift    11 nodes  -> reset        gpu[008,105,202,299,396…  GPU 0-7 MIG layout 7x 1g.10gb -> 2x
                                                                   3g.40gb (playbooks/bringup.yaml:14)
      drift    9 nodes   -> reboot       gpu[004,124,244,364,484…  GPU 0-7 ECC disabled -> enabled
                                                                   (playbooks/bringup.yaml:12)
      drift    9 nodes   -> apply        gpu[004,124,244,364,484…  vm.swappiness 60 -> 10
                                                                   (playbooks/bringup.yaml:24)
    ");
    insta::assert_snapshot!(audit_screen(&RunModel::of(&sample::audit(2)), &style()), @r"
    2 nodes, 2 compliant        100.0 %
    2 of 2 judgements were made
    ");
}

#[test]
fn end_of_a_run() {
    let model = RunModel::of(&sample::run());
    let report = Some("~/.local/state/gpufleet/runs/01JD8Q4T9X/report.html");
    let text = format!(
        "{}{}{}",
        recap(&model, &style()),
        failures(&model, &style()),
        ending_lines(&model, report, &style())
    );
    insta::assert_snapshot!(text, @r"
    PLAY RECAP
    gpu001 : ok=1 changed=1 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
        reboot 06:02, verified
    gpu002 : ok=1 changed=1 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
    gpu003 : ok=1 changed=1 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
    gpu004 : ok=1 changed=0 unreachable=0 failed=1 skipped=0 rescued=0 ignored=0
        gpu_power: limit 900 W is above this GPU's maximum 700 W (playbooks/bringup.yaml:18)
    gpu005 : ok=1 changed=0 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
    gpu006 : ok=0 changed=0 unreachable=0 failed=1 skipped=0 rescued=0 ignored=0   held, see below
    gpu007 : ok=0 changed=0 unreachable=1 failed=0 skipped=0 rescued=0 ignored=0
        no answer to SSH on 10.0.0.7:22 in 10 s
    gpu008 : ok=1 changed=0 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
    5 of 8 nodes as declared, 1 failed, 1 held, 1 unreachable. Report: ~/.local/state/gpufleet/runs/01JD8Q4T9X/report.html
    Exit 2. Still out of service: none.
    Again for those that are left: gpufleet run playbooks/bringup.yaml -i inventory/ --limit 'gpu[004,006,007]'
    ");
}

#[test]
fn what_only_commands_did_is_done_and_not_as_declared() {
    let ending = |declared: usize| {
        let hosts = sample::names(3);
        let mut s = Stream::new();
        s.started(Verb::Run, &hosts);
        for (at, host) in hosts.iter().enumerate() {
            s.task(host, sample::report("command", 12, TaskStatus::Changed));
            if at < declared {
                s.task(host, sample::swappiness(24));
            }
            s.end(host, NodeState::Done, None);
        }
        let text = ending_lines(&RunModel::of(&s.events), None, &style());
        text.lines().next().unwrap_or_default().to_owned()
    };
    insta::assert_snapshot!(ending(0), @"0 of 3 nodes as declared, 3 done, not judged.");
    insta::assert_snapshot!(ending(1), @"1 of 3 nodes as declared, 2 done, not judged, commands on 1 of them not judged.");
    insta::assert_snapshot!(ending(3), @"3 nodes as declared, commands on 3 of them not judged.");
}

#[test]
fn an_ignored_failure_of_declared_state_is_listed_and_not_as_declared() {
    let mut s = Stream::new();
    s.started(Verb::Run, &["gpu001".to_owned(), "gpu002".to_owned(), "gpu003".to_owned()]);
    let ignored = |kind: &str| TaskReport {
        message: Some("`memlock` cannot be raised on gpu001".to_owned()),
        ignored: true,
        ..sample::report(kind, 5, TaskStatus::Failed)
    };
    // What a command says is its own matter.
    let fine = sample::report("gpu_power", 9, TaskStatus::Ok);
    for (host, report) in [
        ("gpu001", ignored("limits")),
        ("gpu002", ignored("command")),
        ("gpu002", fine.clone()),
        ("gpu003", fine),
    ] {
        s.push(What::TaskFinished { host: host.to_owned(), report });
    }
    for host in ["gpu001", "gpu002", "gpu003"] {
        s.push(What::NodeState { host: host.to_owned(), state: NodeState::Compliant, detail: None });
    }
    s.finished(0, "3 compliant");
    let model = RunModel::of(&s.events);
    insta::assert_snapshot!(ending_lines(&model, None, &style()), @r"
    ignored: gpu001  limits: `memlock` cannot be raised on the node (playbooks/bringup.yaml:5)
    2 of 3 nodes as declared, 1 with failures that are ignored.
    ");
}

#[test]
fn end_of_a_quiet_run_names_only_trouble() {
    let quiet = Style { verbosity: Verbosity::Quiet, ..style() };
    let text = recap(&RunModel::of(&sample::run()), &quiet);
    let nodes: Vec<&str> =
        text.lines().skip(1).filter(|line| !line.starts_with(' ')).map(|line| &line[..6]).collect();
    assert_eq!(nodes, ["gpu004", "gpu006", "gpu007"], "{text}");
}

#[test]
fn recap_of_a_large_fleet() {
    let hosts = sample::names(1000);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    for (at, host) in hosts.iter().enumerate() {
        match at {
            400..500 => {
                s.task(
                    host,
                    sample::failed("gpu_power", 18, "limit 900 W is above this GPU's maximum 700 W"),
                );
                s.end(host, NodeState::Failed, None);
            }
            _ if at % 2 == 0 => {
                s.task(host, sample::swappiness(24)).end(host, NodeState::Done, None);
            }
            _ => {
                s.task(host, sample::report("sysctl", 24, TaskStatus::Ok)).end(
                    host,
                    NodeState::Compliant,
                    None,
                );
            }
        }
    }
    let model = RunModel::of(&s.events);
    let text = recap(&model, &style());
    assert!(text.lines().count() < 70, "{text}");
    let head: Vec<&str> = text.lines().take(4).collect();
    insta::assert_snapshot!(head.join("\n"), @r"
    PLAY RECAP
    gpu[001,003,005,007,009,011,013,015,017… (450 nodes) :
        ok=1 changed=1 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
    gpu[002,004,006,008,010,012,014,016,018… (450 nodes) :
    ");
    assert!(text.ends_with("… and 40 more nodes in trouble, by cause below\n"), "{text}");
    insta::assert_snapshot!(failures(&model, &style()), @r"
    failed  100 nodes: gpu[401-499,500]
        gpu_power: limit 900 W is above this GPU's maximum 700 W (playbooks/bringup.yaml:18)
    ");
    let command = "gpufleet run playbooks/bringup.yaml -i inventory/ --limit 'gpu[401-499,500]'";
    assert_eq!(again(&model).unwrap(), command);
    let all = recap(&model, &Style { verbosity: Verbosity::Changed, ..style() });
    assert_eq!(all.lines().count(), 1001);
}

#[test]
fn a_held_node() {
    let model = RunModel::of(&sample::run());
    insta::assert_snapshot!(held_screen(&model, model.node("gpu006").unwrap(), &style()), @r"
    gpu006 is held: a process holds the GPUs
      GPU 2    pid 41277 python3 train.py --epochs 40 (user alice, slurmstepd.scope)
      not done GPU 0-7 MIG mode disabled -> enabled
      state    The node was not rebooted and stays in service.
      next     end what holds it, or wait for it; then run again with --limit gpu006
      run      01JD8Q4T9X
    ");
}

#[test]
fn facts() {
    let mut hung = sample::facts("H100", false);
    hung.gpu.gpus.clear();
    hung.gpu.driver_version = None;
    hung.gpu.module_version = None;
    hung.gpu.state = GpuSystemState::Hung { detail: "no answer in 10 s".to_owned() };
    let (one, two) = (sample::facts("H100", false), sample::facts("H200", true));
    let mut short = one.clone();
    short.gpu.gpus.truncate(7);
    short.gpu.gpus[0].ecc_pending = Some(false);
    let row = |host, facts| FactsRow { host, facts: Ok(facts) };
    let rows = [
        row("gpu001", &one),
        row("gpu002", &one),
        row("gpu003", &two),
        row("gpu004", &short),
        row("gpu005", &hung),
        FactsRow { host: "gpu006", facts: Err("no answer to SSH on 10.0.0.6:22 in 10 s") },
    ];
    insta::assert_snapshot!(facts_table(&rows, true, &style()), @r"
    HOST              GPUS          DRIVER      ECC    MIG         POWER  OS            KERNEL
    gpu[001,002] (2)  8x H100 80GB  580.159.04  on     off         700 W  ubuntu 24.04  6.8.0-79-generic
                      HBM3
    gpu003            8x H200       580.159.04  on     7x 1g.18gb  700 W  ubuntu 24.04  6.8.0-79-generic
    gpu004            7x H100 80GB  580.159.04  mixed  off         700 W  ubuntu 24.04  6.8.0-79-generic
                      HBM3
    gpu005            not known                                           ubuntu 24.04  6.8.0-79-generic
    gpu006            not known
    note: gpu004: the driver shows 7 of 8 GPUs on the PCI bus
    note: gpu005: NVML did not answer: no answer in 10 s
    note: gpu006: no answer to SSH on 10.0.0.6:22 in 10 s
    ");
    assert_eq!(facts_table(&rows, false, &style()).lines().count(), 7 + 3);
}

#[test]
fn runs() {
    let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
    let row = |run: &str, verb, started, exit_code, summary: &str| RunRow {
        run_id: run.to_owned(),
        verb,
        started,
        exit_code,
        playbooks: if verb == Verb::Run {
            vec!["site/bringup.yaml".to_owned()]
        } else {
            vec!["mig.yaml".to_owned()]
        },
        resumable: verb == Verb::Run,
        nodes: 512,
        summary: summary.to_owned(),
    };
    let rows = [
        row("01JD8Q4T9X", Verb::Run, at("2026-11-21T09:12:00Z"), None, "the run did not end"),
        row("01JD8Q11AB", Verb::Audit, at("2026-11-21T09:00:00Z"), Some(3), "496 of 512 nodes as declared"),
        row("01JD7Z0000", Verb::Plan, at("2026-11-20T23:59:59Z"), Some(0), "512 nodes read"),
    ];
    insta::assert_snapshot!(runs_table(&rows, &TimeZone::UTC, &style()), @r"
    RUN         STARTED                  VERB   PLAYBOOK      NODES  EXIT  SUMMARY
    01JD8Q4T9X  2026-11-21 09:12 +00:00  run    bringup.yaml    512  open  can be resumed: the run did…
    01JD8Q11AB  2026-11-21 09:00 +00:00  audit  mig.yaml        512  3     496 of 512 nodes as declared
    01JD7Z0000  2026-11-20 23:59 +00:00  plan   mig.yaml        512  0     512 nodes read
    ");
    assert_eq!(runs_table(&[], &TimeZone::UTC, &style()), "No runs yet.\n");
}

#[test]
fn colour_is_only_decoration() {
    let model = RunModel::of(&sample::run());
    let plain = recap(&model, &style());
    let painted = recap(&model, &Style { color: true, ..style() });
    assert!(painted.contains('\u{1b}') && !plain.contains('\u{1b}'));
    let escape = regex::Regex::new("\u{1b}\\[[0-9;]*m").unwrap();
    assert_eq!(escape.replace_all(&painted, ""), plain);
}

#[test]
fn the_live_frame_names_the_slowest() {
    let hosts = sample::names(1000);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    s.play(&hosts, &[("canary", 2), ("25%", 250), ("25%", 250), ("25%", 250), ("25%", 248)]);
    for host in &hosts[..2] {
        s.state(host, NodeState::Applying, None).end(host, NodeState::Done, None);
    }
    s.push(What::WaveStarted { play: PlayIndex(0), wave: 1, hosts: hosts[2..252].to_vec() });
    for host in &hosts[2..40] {
        s.wait_ms(1000).state(host, NodeState::Applying, None);
    }
    s.state("gpu004", NodeState::Rebooting, Some("waiting for SSH"));
    s.push(What::TaskStarted {
        host: "gpu003".into(),
        op_id: OpId::new(PlayIndex(0), "tasks.1", "gpu003"),
        task: "tune fabric".into(),
        kind: "shell".into(),
    });
    s.push(What::Progress { host: "gpu003".into(), text: "12 of 18 links\x1b[2J".into() });
    s.state("gpu041", NodeState::Waiting, Some("1 of 1 out"));
    let model = RunModel::of(&s.events);
    let now = s.now() + jiff::SignedDuration::from_secs(161);
    insta::assert_snapshot!(progress_frame(&model, now, &style()).join("\n"), @r"
    wave 2/5 25%: 0 of 250, 2 of 1000 nodes  03:19
      [                    ]  done 2  failed 0  rebooting 1  waiting 1  applying 37  pending 959
      gpu005  applying       03:16
      gpu006  applying       03:15
      gpu007  applying       03:14
      gpu008  applying       03:13
      gpu009  applying       03:12
      gpu010  applying       03:11
      gpu011  applying       03:10
      gpu012  applying       03:09
      … and 30 more at work
    ");
    insta::assert_snapshot!(plain_status(&model, now, &style()), @r"wave 2/5 25%: 0 of 250, 2 of 1000 nodes  03:19  done 2  failed 0  rebooting 1  waiting 1  applying 37  pending 959  waiting for: gpu005 (applying 196 s), gpu006 (applying 195 s), gpu007 (applying 194 s) and 35 more");
}

#[test]
fn the_status_says_that_the_window_is_waited_for() {
    let hosts = sample::names(2);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    s.play(&hosts, &[("100%", 2)]);
    for host in &hosts {
        s.state(host, NodeState::Preflight, None);
    }
    let opens = s.now() + jiff::SignedDuration::from_mins(192);
    s.push(What::AwaitsWindow { play: PlayIndex(0), opens });
    let line = plain_status(&RunModel::of(&s.events), s.now(), &style());
    insta::assert_snapshot!(line, @r"
    waits for the window, which opens in 3h 12m, 0 of 2 nodes  00:00  failed 0  pending 2
    ");
    s.push(What::WaveStarted { play: PlayIndex(0), wave: 0, hosts: hosts.clone() });
    let line = plain_status(&RunModel::of(&s.events), s.now(), &style());
    insta::assert_snapshot!(line, @r"
    0 of 2 nodes  00:00  failed 0  pending 2
    ");
}

#[test]
fn the_status_names_what_is_in_the_way_of_a_drain() {
    let hosts = sample::names(2);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    s.play(&hosts, &[("100%", 2)]);
    s.state(&hosts[0], NodeState::Applying, None);
    let why = "waits for pod a/web-1 (PodDisruptionBudget web needs 2 healthy pods and has 2 currently)";
    s.state(&hosts[1], NodeState::Draining, Some(why));
    let line = plain_status(&RunModel::of(&s.events), s.now(), &style());
    insta::assert_snapshot!(line, @"0 of 2 nodes  00:00  failed 0  draining 1  applying 1  waiting for: gpu001 (applying 0 s), gpu002 (draining 0 s)  gpu002: waits for pod a/web-1 (PodDisruptionBudget web needs 2 healthy pods and has 2 currently)");
    s.state(&hosts[1], NodeState::Resuming, Some("waits: the kubelet has not reported since the boot"));
    let line = plain_status(&RunModel::of(&s.events), s.now(), &style());
    insta::assert_snapshot!(line, @"0 of 2 nodes  00:00  failed 0  resuming 1  applying 1  waiting for: gpu001 (applying 0 s), gpu002 (resuming 0 s)  gpu002: waits: the kubelet has not reported since the boot");
    s.state(&hosts[0], NodeState::Done, None);
    s.state(&hosts[1], NodeState::Waiting, Some("for the budget: out are gpu009, which --limit leaves out"));
    let line = plain_status(&RunModel::of(&s.events), s.now(), &style());
    insta::assert_snapshot!(line, @"1 of 2 nodes  00:00  done 1  failed 0  waiting 1  gpu002: for the budget: out are gpu009, which --limit leaves out");
}

/// A writer that a test reads while a sink holds it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn plain_log(stream: &Stream, style: Style) -> String {
    let out = Shared::default();
    let mut sink = Progress::plain(Box::new(out.clone()), style);
    let mut model = RunModel::new();
    for event in &stream.events {
        model.apply(event);
        sink.event(&model, event);
        sink.tick(&model, event.at);
    }
    sink.finish();
    out.text()
}

fn stream_of(events: Vec<crate::event::Event>) -> Stream {
    let mut stream = Stream::new();
    stream.events = events;
    stream
}

#[test]
fn a_log_without_a_terminal() {
    insta::assert_snapshot!(plain_log(&stream_of(sample::run()), style()), @r"
    wave 1/5 canary: 1 node, gpu001
    gpu001  reboots: ECC enabled is pending
    wave 1/5 canary: 0 of 1, 0 of 8 nodes  06:02  failed 0  rebooting 1  pending 7  waiting for: gpu001 (rebooting 362 s)
    ✗ gpu004  gpu_power: limit 900 W is above this GPU's maximum 700 W   playbooks/bringup.yaml:18
    ✗ gpu006  held: gpu_mig: a process holds the GPUs   playbooks/bringup.yaml:14
    ✗ gpu007  unreachable: no answer to SSH on 10.0.0.7:22 in 10 s
    warning: 1 node is held for a decision
    ");
}

#[test]
fn more_words_tell_of_every_task() {
    let run = stream_of(sample::run());
    let log = plain_log(&run, Style { verbosity: Verbosity::All, ..style() });
    assert!(log.contains("changed  gpu002  gpu_power  GPU 0-7 power limit 700 -> 600 W"), "{log}");
    assert!(log.contains("ok  gpu005  gpu_ecc"), "{log}");
    assert!(log.contains("gpu001  is back after 06:02, with a new boot id"), "{log}");
    let log = plain_log(&run, Style { verbosity: Verbosity::Quiet, ..style() });
    assert_eq!(log.lines().count(), 4, "{log}");
}

#[test]
fn equal_failures_share_a_line() {
    let hosts = sample::names(40);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    for host in &hosts {
        s.wait_ms(10);
        let message = format!("{host}: limit 900 W is above this GPU's maximum 700 W");
        s.task(host, sample::failed("gpu_power", 18, &message)).end(host, NodeState::Failed, None);
    }
    insta::assert_snapshot!(plain_log(&s, style()), @r"
    ✗ gpu001  gpu_power: limit 900 W is above this GPU's maximum 700 W   playbooks/bringup.yaml:18
    ✗ 39 more nodes: gpu[002-040]  gpu_power: limit 900 W is above this GPU's maximum 700 W   playbooks/bringup.yaml:18
    ");
}

#[test]
fn ignored_and_rescued_failures_are_no_alarm() {
    let mut s = Stream::new();
    s.started(Verb::Run, &sample::names(1));
    s.task("gpu001", TaskReport { ignored: true, ..sample::failed("shell", 9, "exit 1") });
    s.task("gpu001", TaskReport { rescued: true, ..sample::failed("shell", 10, "exit 1") });
    s.end("gpu001", NodeState::Done, None);
    assert_eq!(plain_log(&s, style()), "");
}

#[test]
fn events_as_lines() {
    let events = sample::run();
    let out = Shared::default();
    let mut sink = JsonLines::new(out.clone());
    for event in &events {
        sink.event(event).unwrap();
    }
    let back: Vec<crate::event::Event> =
        out.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(back, events);
}

/// CPU time of this thread, so that other work on the machine does not decide a test.
fn cpu_us() -> u128 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u128::try_from(time.tv_sec).unwrap() * 1_000_000 + u128::try_from(time.tv_nsec).unwrap() / 1000
}

#[test]
fn a_thousand_nodes_stay_readable_and_cheap() {
    let hosts = sample::names(1000);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    s.play(&hosts, &[("100%", 1000)]);
    for host in &hosts {
        s.state(host, NodeState::Preflight, None);
        s.facts(host, gpufleet_protocol::facts::Facts::default());
        s.state(host, NodeState::Applying, None);
    }
    for line in 1..=10 {
        for (at, host) in hosts.iter().enumerate() {
            s.wait_ms(5);
            let report = match (line, at % 5) {
                (4, 0) => sample::failed("gpu_power", 18, &format!("GPU lost, code {}", at % 300)),
                (2, _) => sample::on_gpus("gpu_power", 18, "power limit", "700 W", "600 W", Disruption::Live),
                _ => sample::report("sysctl", line, TaskStatus::Ok),
            };
            s.task(host, report);
        }
    }
    for (at, host) in hosts.iter().enumerate() {
        let state = if at % 5 == 0 { NodeState::Failed } else { NodeState::Done };
        s.push(What::NodeFinished {
            host: host.clone(),
            outcome: crate::event::NodeOutcome {
                state,
                message: None,
                counts: Default::default(),
                seconds: 9,
                rebooted: false,
                out_of_service: false,
            },
        });
    }
    let out = Shared::default();
    let mut sink = Progress::plain(Box::new(out.clone()), style());
    let mut live = Progress::live(indicatif::ProgressDrawTarget::hidden(), style(), || 100);
    let mut model = RunModel::new();
    let before = cpu_us();
    for event in &s.events {
        model.apply(event);
        sink.event(&model, event);
        live.event(&model, event);
    }
    sink.finish();
    live.finish();
    let each = (cpu_us() - before) / s.events.len() as u128;
    // A build without optimisation is several times slower.
    let limit = if cfg!(debug_assertions) { 150 } else { 20 };
    assert!(each < limit, "{each} us an event");
    let log = out.text();
    assert!(log.lines().count() < 100, "{} lines", log.lines().count());
    assert!(log.len() < 20_000, "{} bytes", log.len());
    let frame = progress_frame(&model, s.now(), &style());
    assert!(frame.len() <= 11);
    let report = plan_screen(&model, PlanView::Summary, &style());
    assert!(report.len() < 60_000, "{} bytes", report.len());
}
