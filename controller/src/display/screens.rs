//! Screens at the usual width of a terminal, during a run and at its end.

use gpufleet_protocol::{Change, Disruption, Property, Subject, change::Value, facts::Facts};
use jiff::SignedDuration;

use super::*;
use crate::{
    event::{DrainStep, NodeState, TaskReport, TaskStatus, Verb, What},
    index::PlayIndex,
    report::{
        RunModel,
        sample::{self, Stream},
    },
};

fn narrow() -> Style {
    Style { width: 80, ..Style::default() }
}

fn fits(screen: &str, width: usize) {
    for line in screen.lines() {
        assert!(line.chars().count() <= width, "{} columns: {line}\n{screen}", line.chars().count());
    }
}

#[test]
fn facts_at_80_columns_break_no_word() {
    let (one, two) = (sample::facts("H100", false), sample::facts("H200", true));
    let hosts = sample::names(198);
    let facts = |at: usize| -> &Facts { if at.is_multiple_of(2) { &one } else { &two } };
    let rows: Vec<FactsRow<'_>> =
        hosts.iter().enumerate().map(|(at, host)| FactsRow { host, facts: Ok(facts(at)) }).collect();
    let folded = facts_table(&rows, true, &narrow());
    insta::assert_snapshot!(folded, @r"
    HOST  GPUS, DRIVER       ECC  MIG         POWER  OS, KERNEL
    gpu[001,003,005,007,009,011,013,015,017,019,021,023,025,027,029,031,033,03… (99)
          8x H100 80GB HBM3  on   off         700 W  ubuntu 24.04
          580.159.04                                 6.8.0-79-generic
    gpu[002,004,006,008,010,012,014,016,018,020,022,024,026,028,030,032,034,03… (99)
          8x H200            on   7x 1g.18gb  700 W  ubuntu 24.04
          580.159.04                                 6.8.0-79-generic
    ");
    let all = facts_table(&rows, false, &narrow());
    for screen in [&folded, &all] {
        fits(screen, 80);
        for word in ["580.159.04", "6.8.0-79-generic", "80GB HBM3", "1g.18gb"] {
            assert!(screen.contains(word), "{word}\n{screen}");
        }
    }
    let tiny = facts_table(&rows[..2], false, &Style { width: 50, ..narrow() });
    insta::assert_snapshot!(tiny, @r"
    HOST    GPUS, DRIVER       ECC  MIG         POWER
    gpu001  8x H100 80GB HBM3  on   off         700 W
            580.159.04
    gpu002  8x H200            on   7x 1g.18gb  700 W
            580.159.04
    OS and kernel do not fit here; --format json has them
    ");
    let log = facts_table(&rows, true, &Style { width: Style::UNCUT, ..narrow() });
    assert!(log.contains("KERNEL") && !log.contains('…') && log.lines().count() == 3, "{log}");
}

#[test]
fn plan_at_80_columns() {
    let screen = plan_screen(&RunModel::of(&sample::plan()), PlanView::Diff, &narrow());
    fits(&screen, 80);
    insta::assert_snapshot!(screen, @r#"
    Plan for "Bring up training nodes": 16 nodes, 2 hardware classes, read in 1.4
      s. Nothing was changed.

      reboot      3 nodes   gpu[033,037,041]          ECC disabled -> enabled,
                                                      kernel command line ->
                                                      iommu=pt
      live        7 nodes   gpu[034-036,038-040,042]  power limit 700 -> 600 W,
                                                      vm.swappiness 60 -> 10
      not judged  5 nodes   gpu[043,045-048]          1 of 2 tasks judged
      unknown     1 node    gpu044                    gpu_ecc: NVML did not answer
                                                      in 10 s; the worker was killed
                                                      (playbooks/bringup.yaml:12);…

      Waves       1    canary  2 nodes   gpu[033,034]  one of each class
                  2    10%     1 node    gpu035
                  3-6  25%     13 nodes  gpu[036-048]  4 at a time
                  at most 1 out at once
      Not sure    task "tune fabric" (playbooks/bringup.yaml:41): depends on the
                  output of a command: may add live changes; on 15 nodes

      gpu_ecc  playbooks/bringup.yaml:12
        3 nodes: gpu[033,037,041]
          GPU 0-7 ECC               disabled -> enabled       reboot
      gpu_power  playbooks/bringup.yaml:18
        10 nodes: gpu[033-042]
          GPU 0-7 power limit       700 -> 600 W              live
      gpu_mig  playbooks/bringup.yaml:14
        1 node: gpu041
          GPU 0-7 MIG layout        7x 1g.10gb -> 2x 3g.40gb  clients
      kernel_cmdline  playbooks/bringup.yaml:30
        3 nodes: gpu[033,037,041]
          kernel command line       -> iommu=pt               reboot
              (current after the next boot)
      sysctl  playbooks/bringup.yaml:24
        10 nodes: gpu[033-042]
          vm.swappiness             60 -> 10                  live
    "#);
}

#[test]
fn recap_at_80_columns() {
    let model = RunModel::of(&sample::run());
    let screen = recap(&model, &narrow()) + &failures(&model, &narrow());
    fits(&screen, 80);
    insta::assert_snapshot!(screen, @r"
    PLAY RECAP
    gpu001 : ok=1 changed=1 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
        reboot 06:02, verified
    gpu002 : ok=1 changed=1 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
    gpu003 : ok=1 changed=1 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
    gpu004 : ok=1 changed=0 unreachable=0 failed=1 skipped=0 rescued=0 ignored=0
        gpu_power: limit 900 W is above this GPU's maximum 700 W
        (playbooks/bringup.yaml:18)
    gpu005 : ok=1 changed=0 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
    gpu006 : ok=0 changed=0 unreachable=0 failed=1 skipped=0 rescued=0 ignored=0
        held, see below
    gpu007 : ok=0 changed=0 unreachable=1 failed=0 skipped=0 rescued=0 ignored=0
        no answer to SSH on 10.0.0.7:22 in 10 s
    gpu008 : ok=1 changed=0 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0
    ");
}

#[test]
fn changes_of_gpus_come_first_and_digests_are_short() {
    let hosts = sample::names(1);
    let digest = "ab".repeat(32);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    let (motd, to) = (Subject::file("/etc/motd"), format!("sha256 {digest}"));
    let file = Change::new(motd, Property::CONTENT, Value::Absent, to, Disruption::Live);
    s.task(&hosts[0], TaskReport { changes: vec![file], ..sample::report("copy", 3, TaskStatus::Changed) });
    s.task(&hosts[0], sample::on_gpus("gpu_power", 9, "power limit", "700 W", "600 W", Disruption::Live));
    let model = RunModel::of(&s.events);
    for screen in [changes_screen(&model, &narrow()), node_screen(&model.nodes()[0], &narrow())] {
        assert!(screen.find("gpu_power") < screen.find("/etc/motd"), "{screen}");
        assert!(screen.contains("sha256 abababab…") && !screen.contains(&digest), "{screen}");
    }
    let log = changes_screen(&model, &Style { width: Style::UNCUT, ..narrow() });
    assert!(log.contains(&digest), "{log}");
}

#[test]
fn the_last_node_that_is_read_is_named() {
    let hosts = sample::names(197);
    let mut s = Stream::new();
    s.started(Verb::Plan, &hosts);
    for host in &hosts {
        s.state(host, NodeState::Preflight, None);
        // A play with file tasks only reads no facts.
        if host == "gpu017" {
            s.facts(host, Facts::default());
        }
    }
    for host in hosts.iter().filter(|host| *host != "gpu017") {
        s.state(host, NodeState::Preflight, Some("read"));
    }
    let now = s.now() + SignedDuration::from_secs(12);
    let frame = progress_frame(&RunModel::of(&s.events), now, &narrow()).join("\n");
    insta::assert_snapshot!(frame, @r"
    196 read, waiting for gpu017, 0 of 197 nodes  00:12
      [                    ]  failed 0  preflight 197
      gpu017  preflight      00:12
    ");
    s.state("gpu017", NodeState::Preflight, Some("read"));
    let frame = progress_frame(&RunModel::of(&s.events), now, &narrow()).join("\n");
    assert!(!frame.contains("waiting for") && !frame.contains("gpu"), "{frame}");
}

#[test]
fn what_is_left_is_estimated_once_there_is_a_pace() {
    let hosts = sample::names(20);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    let head = |s: &Stream, seconds| {
        let now = s.now() + SignedDuration::from_secs(seconds);
        progress_frame(&RunModel::of(&s.events), now, &narrow()).remove(0)
    };
    for host in &hosts[..4] {
        s.end(host, NodeState::Done, None);
    }
    assert_eq!(head(&s, 120), "4 of 20 nodes  02:00  at this pace 8m left");
    assert_eq!(head(&s, 20), "4 of 20 nodes  00:20");
    for host in &hosts[4..] {
        s.end(host, NodeState::Done, None);
    }
    assert_eq!(head(&s, 120), "20 of 20 nodes  02:00");
}

#[test]
fn no_line_of_a_frame_is_wider_than_the_terminal() {
    let hosts: Vec<String> = (0..30).map(|at| format!("a-host-with-a-long-name-{at:03}")).collect();
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    s.play(&hosts, &[("canary", 2), ("a label of some length", 28)]);
    s.push(What::WaveStarted { play: PlayIndex(0), wave: 0, hosts: hosts[..2].to_vec() });
    for host in &hosts {
        s.state(
            host,
            NodeState::Draining,
            Some("waits for job 4711 of somebody who calculates for a long time"),
        );
    }
    let model = RunModel::of(&s.events);
    for width in [200, 100, 80, 60] {
        for color in [false, true] {
            let frame = progress_frame(&model, s.now(), &Style { width, color, ..narrow() });
            fits(&crate::visible::without_colors(&frame.join("\n")), width);
        }
    }
}

#[test]
fn a_warning_is_shown_with_its_own_reason() {
    let hosts = sample::names(1);
    let mut s = Stream::new();
    s.started(Verb::Audit, &hosts);
    let drift = sample::swappiness(3);
    let warned = vec!["the limit does not persist".to_owned()];
    s.task(&hosts[0], TaskReport { warnings: warned, ..sample::report("gpu_power", 5, TaskStatus::Ok) });
    s.end(&hosts[0], NodeState::Compliant, None);
    let screen = audit_screen(&RunModel::of(&s.events), &Style::default());
    assert!(screen.contains("warn") && screen.contains("the limit does not persist"), "{screen}");
    s.task(&hosts[0], drift).end(&hosts[0], NodeState::Drift, None);
    let screen = audit_screen(&RunModel::of(&s.events), &Style::default());
    let lines_of = |text: &str| screen.lines().filter(|line| line.contains(text)).collect::<Vec<_>>();
    assert!(lines_of("vm.swappiness 60 -> 10")[0].trim_start().starts_with("drift"), "{screen}");
    assert!(lines_of("the limit does not persist")[0].trim_start().starts_with("warn"), "{screen}");
}

#[test]
fn a_node_that_somebody_else_cordoned_does_not_stay_in_service() {
    let hosts = sample::names(2);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    let refused = DrainStep::Refused { by: "cordoned by ana".to_owned() };
    s.push(What::Drain { host: hosts[0].clone(), step: refused });
    for host in &hosts {
        s.end(host, NodeState::Held, Some("it is not drained"));
    }
    let model = RunModel::of(&s.events);
    let screens: Vec<String> =
        model.nodes().iter().map(|node| held_screen(&model, node, &Style::default())).collect();
    assert!(screens[0].contains("not rebooted, and somebody else has it out of service"), "{}", screens[0]);
    assert!(screens[1].contains("not rebooted and stays in service"), "{}", screens[1]);
}

#[test]
fn a_reason_stands_on_the_terminal_when_it_happens_and_once_at_the_end() {
    let hosts = sample::names(150);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    for (at, host) in hosts.iter().enumerate() {
        let why = match at {
            0 => "reason A",
            1..=3 => "reason B",
            _ if at < 100 => {
                s.end(host, NodeState::Done, None);
                continue;
            }
            _ => "reason C",
        };
        s.task(host, sample::failed("gpu_power", 18, why)).end(host, NodeState::Failed, None);
    }
    s.end(&hosts[9], NodeState::Held, Some("reason D"));
    let model = RunModel::of(&s.events);
    let mut announcer = Announcer::new(narrow(), false);
    let mut seen: Vec<String> = s.events.iter().flat_map(|event| announcer.event(&model, event)).collect();
    seen.push(recap(&model, &narrow()));
    seen.extend(explained(&model).map(|node| held_screen(&model, node, &narrow())));
    seen.push(failures(&model, &narrow()));
    seen.push(ending_lines(&model, None, &narrow()));
    let seen = seen.join("\n");
    for reason in ["reason A", "reason B", "reason C", "reason D"] {
        assert_eq!(seen.matches(reason).count(), 2, "{reason}\n{seen}");
    }
}

#[test]
fn a_node_that_warns_without_end_delays_nobody() {
    let hosts = sample::names(2);
    let mut s = Stream::new();
    s.started(Verb::Plan, &hosts);
    let many = 20_000_u32;
    let warnings: Vec<String> = (0..many).map(|at| format!("warning {at}")).collect();
    let change = |at: u32| {
        let gpu = Subject::Gpu { index: at % 8, uuid: format!("GPU-{}", at % 8) };
        let limit = Property::from(format!("limit {}", at / 16));
        Change::new(gpu, limit, Value::Unknown, "1", Disruption::Live)
    };
    let changes: Vec<Change> = (0..many).map(change).collect();
    for host in &hosts {
        let report = sample::report("gpu_power", 3, TaskStatus::Changed);
        s.task(host, TaskReport { warnings: warnings.clone(), changes: changes.clone(), ..report });
    }
    let model = RunModel::of(&s.events);
    let begin = std::time::Instant::now();
    let folded = crate::report::fold_changes(model.nodes()[0].changes());
    // Each label occurs twice for each GPU, the second time as another change.
    assert_eq!(folded.len(), 2 * many as usize / 16);
    assert!(folded.iter().all(|group| group.gpus == [0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(model.nodes()[0].warnings().len(), many as usize);
    let screen = plan_screen(&model, PlanView::Diff, &narrow());
    assert!(screen.contains("warning 19999"));
    // Quadratic growth took minutes; 20 s allow for a busy machine.
    assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn long_names_of_a_log_set_nothing_else_apart() {
    let hosts: Vec<String> = (0..150).map(|at| format!("n{}", at * 7 + at % 3)).collect();
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    for host in &hosts[..149] {
        s.task(host, sample::swappiness(3)).end(host, NodeState::Done, None);
    }
    s.task(&hosts[149], sample::failed("shell", 5, &"long ".repeat(100))).end(
        &hosts[149],
        NodeState::Failed,
        None,
    );
    let log = recap(&RunModel::of(&s.events), &Style { width: Style::UNCUT, ..narrow() });
    let failed = log.lines().find(|line| line.contains("failed=1")).unwrap();
    assert!(failed.find(" : ").unwrap() <= 60, "{failed}");
    assert!(!log.contains('…') && failed.contains(&"long ".repeat(99)), "neither cut nor wrapped: {log}");
}

#[test]
fn a_reading_that_was_cut_off_is_begun_anew() {
    for (verb, wanted) in [
        (Verb::Plan, "it only read: begin the plan anew"),
        (Verb::Run, "gpufleet resume 01JD8Q4T9X goes on with it"),
    ] {
        let mut s = Stream::new();
        s.started(verb, &sample::names(1));
        let text = not_over(&RunModel::of(&s.events), &jiff::tz::TimeZone::UTC, &narrow());
        assert!(text.contains(wanted), "{text}");
    }
}
