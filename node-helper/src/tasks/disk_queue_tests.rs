//! `disk_queue` on trees of sysfs.

use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

use super::*;
use crate::tasks::testing::{Bench, failure};

fn bench() -> Bench {
    let bench = Bench::new();
    for (disk, rotational, scheduler) in [
        ("nvme0n1", "0", "[none] mq-deadline kyber"),
        ("nvme1n1", "0", "none [mq-deadline] kyber"),
        ("sda", "1", "none [mq-deadline] bfq"),
        ("loop0", "0", "none [mq-deadline]"),
    ] {
        for (name, value) in [
            ("scheduler", scheduler),
            ("rotational", rotational),
            ("nr_requests", "256"),
            ("read_ahead_kb", "128"),
            ("max_sectors_kb", "1280"),
            ("max_hw_sectors_kb", "2048"),
        ] {
            bench.write(&format!("sys/block/{disk}/queue/{name}"), &format!("{value}\n"));
        }
        bench.write(&format!("sys/block/{disk}/mq/0/nr_tags"), "1023\n");
    }
    bench.write("sys/block/nvme0c0n1/hidden", "1\n");
    bench
}

fn run(bench: &Bench, task: Value, mode: Mode) -> OpOutcome {
    let task: DiskQueue = serde_json::from_value(task).unwrap();
    bench.run(&task, mode)
}

fn shown(outcome: &OpOutcome) -> Vec<String> {
    crate::tasks::testing::shown(outcome)
}

const RULES: &str = "etc/udev/rules.d/99-gpufleet-disk.rules";

#[test]
fn the_scheduler_comes_first_now_and_at_boot() {
    let bench = bench();
    let task = || json!({"type": "nvme", "scheduler": "none", "nr_requests": 256, "read_ahead_kb": 4096});
    let predicted = run(&bench, task(), Mode::Predict);
    assert_eq!(
        shown(&predicted),
        [
            "queue/scheduler of nvme0n1, nvme1n1: mq-deadline (1), none (1) -> none (live)",
            "queue/read_ahead_kb of nvme0n1, nvme1n1: 128 -> 4096 (live)",
            "queue/scheduler of nvme0n1, nvme1n1 at boot: nothing -> none (live)",
            "queue/nr_requests of nvme0n1, nvme1n1 at boot: nothing -> 256 (live)",
            "queue/read_ahead_kb of nvme0n1, nvme1n1 at boot: nothing -> 4096 (live)",
        ]
    );
    bench.activate(Disruption::Reboot);
    assert_eq!(run(&bench, task(), Mode::Predict).status, OpStatus::Ok, "after the boot");
    let plan = bench.node(|node| {
        let task: DiskQueue = serde_json::from_value(task()).unwrap();
        task.plan(&task.observe(node).unwrap()).unwrap()
    });
    let live: Vec<String> = plan
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Live { disk, name, .. } => Some(format!("{disk} {name}")),
            Step::File(_) => None,
        })
        .collect();
    let order =
        ["nvme1n1 scheduler", "nvme1n1 nr_requests", "nvme0n1 read_ahead_kb", "nvme1n1 read_ahead_kb"];
    assert_eq!(live, order, "the new scheduler resets nr_requests");
    let done = run(&bench, task(), Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    assert_eq!(
        bench.read(RULES),
        format!(
            "# Written by gpufleet: `disk_queue`.\n\
             ACTION==\"add|change\", SUBSYSTEM==\"block\", ENV{{DEVTYPE}}==\"disk\", KERNEL!=\"{SOFT}\", KERNEL==\"nvme*\", \
             ATTR{{queue/scheduler}}=\"none\", ATTR{{queue/nr_requests}}=\"256\", ATTR{{queue/read_ahead_kb}}=\"4096\"\n"
        )
    );
    assert_eq!(run(&bench, task(), Mode::Apply).status, OpStatus::Ok);
    // Another task of the same disks, and one of others.
    bench.write("sys/block/nvme0n1/queue/rq_affinity", "1\n");
    bench.write("sys/block/nvme1n1/queue/rq_affinity", "1\n");
    let done = run(&bench, json!({"type": "nvme", "rq_affinity": 2, "read_ahead_kb": 128}), Mode::Apply);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let done = run(&bench, json!({"device": ["sd*"], "scheduler": "bfq"}), Mode::Apply);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let text = bench.read(RULES);
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("ATTR{queue/scheduler}=\"none\", ATTR{queue/nr_requests}=\"256\", ATTR{queue/read_ahead_kb}=\"128\", ATTR{queue/rq_affinity}=\"2\""), "{text}");
    assert!(text.contains("KERNEL==\"sd*\", ATTR{queue/scheduler}=\"bfq\""), "{text}");
    assert_eq!(bench.read("sys/block/loop0/queue/read_ahead_kb"), "128\n");
}

#[test]
fn a_new_scheduler_keeps_the_depth_that_an_earlier_task_set() {
    let bench = bench();
    assert_eq!(
        run(&bench, json!({"type": "nvme", "nr_requests": 64}), Mode::Apply).status,
        OpStatus::Changed
    );
    let live = |task: Value| {
        let steps = bench.node(|node| {
            let task: DiskQueue = serde_json::from_value(task).unwrap();
            task.plan(&task.observe(node).unwrap()).unwrap().steps
        });
        let one = |step: &Step| match step {
            Step::Live { disk, name, value } => Some(format!("{disk} {name}={value}")),
            Step::File(_) => None,
        };
        steps.iter().filter_map(one).collect::<Vec<_>>()
    };
    let none = || json!({"type": "nvme", "scheduler": "none"});
    assert_eq!(live(none()), ["nvme1n1 scheduler=none", "nvme1n1 nr_requests=64"]);
    assert_eq!(live(json!({"device": "nvme1*", "scheduler": "kyber"})).len(), 2, "by another rule too");
    bench.write("sys/block/nvme1n1/mq/0/nr_tags", "63\n");
    assert_eq!(live(none()), ["nvme1n1 scheduler=none"], "the kernel would refuse it");
    bench.write("sys/block/nvme1n1/queue/nr_requests", "128\n");
    assert_eq!(
        live(json!({"device": "nvme1*", "scheduler": "kyber"})).len(),
        1,
        "somebody else's depth is none of ours"
    );
}

#[test]
fn the_rule_of_other_disks_is_not_ours() {
    let bench = bench();
    let of_disks = |text: &str| text.lines().filter(|line| line.contains("sd*")).count();
    let one = json!({"device": ["sd*"], "type": "rotational", "read_ahead_kb": 256});
    assert_eq!(run(&bench, one.clone(), Mode::Apply).status, OpStatus::Changed);
    let all = json!({"device": ["sd*"], "nr_requests": 128});
    let done = run(&bench, all.clone(), Mode::Apply);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let text = bench.read(RULES);
    assert_eq!(of_disks(&text), 2, "{text}");
    assert!(text.contains("ATTR{queue/rotational}==\"1\", ATTR{queue/read_ahead_kb}=\"256\"\n"), "{text}");
    assert!(text.contains("KERNEL==\"sd*\", ATTR{queue/nr_requests}=\"128\"\n"), "{text}");
    for task in [one, all] {
        let again = run(&bench, task, Mode::Apply);
        assert_eq!((again.status, again.warnings), (OpStatus::Ok, Vec::new()));
    }
    assert_eq!(of_rule("X==\"a\", ATTR{queue/b}=\"1\", ATTR{queue/c}=\"2\"", "X==\"a\"").unwrap().len(), 2);
    for other in [
        "X==\"a\", ATTR{queue/b}!=\"1\", ATTR{queue/c}=\"2\"",
        "X==\"a\", ATTR{queue/c}=\"2\", RUN+=\"x\"",
        "X==\"a\"",
    ] {
        assert_eq!(of_rule(other, "X==\"a\""), None, "{other}");
    }
}

#[test]
fn tasks_that_undo_each_other_are_refused() {
    let bench = bench();
    let ssd = json!({"type": "ssd", "scheduler": "mq-deadline"});
    assert_eq!(run(&bench, ssd.clone(), Mode::Predict).status, OpStatus::Changed);
    let nvme = json!({"type": "nvme", "scheduler": "none"});
    let told = run(&bench, nvme.clone(), Mode::Predict);
    assert!(failure(&told).contains("sets scheduler of nvme0n1 to mq-deadline"), "{told:?}");
    bench.forget();
    assert_eq!(run(&bench, ssd, Mode::Apply).status, OpStatus::Changed);
    for disk in ["nvme0n1", "nvme1n1"] {
        bench.write(&format!("sys/block/{disk}/queue/scheduler"), "none [mq-deadline] kyber\n");
    }
    let before = bench.snapshot();
    assert!(failure(&run(&bench, nvme, Mode::Apply)).contains("would undo each other at every run"));
    assert_eq!(bench.snapshot(), before);
    // The same value, and another setting, are no conflict.
    let beside = json!({"type": "nvme", "scheduler": "mq-deadline", "read_ahead_kb": 256});
    assert_eq!(run(&bench, beside, Mode::Apply).status, OpStatus::Changed);
}

#[test]
fn a_disk_without_a_scheduler_is_left_out() {
    let bench = bench();
    // A path to more than one controller, before and since Linux 6.4.
    bench.write("sys/block/nvme2n1/queue/rotational", "0\n");
    bench.write("sys/block/nvme2n1/queue/scheduler", "none\n");
    bench.write("sys/block/nvme2n1/queue/nr_requests", "128\n");
    bench.write("sys/block/nvme3n1/queue/rotational", "0\n");
    let task = || json!({"type": "nvme", "scheduler": "mq-deadline", "nr_requests": 64});
    let predicted = run(&bench, task(), Mode::Predict);
    let done = run(&bench, task(), Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    assert_eq!(done.changes[0].what(), "queue/scheduler of nvme0n1, nvme1n1");
    assert_eq!(
        done.warnings,
        [
            "`scheduler` is not applicable here: the kernel has none for nvme2n1, nvme3n1",
            "`nr_requests` is not applicable here: the kernel has none for nvme2n1, nvme3n1"
        ]
    );
    assert_eq!(bench.read("sys/block/nvme2n1/queue/nr_requests"), "128\n");
    bench.write("sys/block/nvme0n1/queue/scheduler", "none [mq-deadline]\n");
    bench.write("sys/block/nvme1n1/queue/scheduler", "none [mq-deadline]\n");
    assert_eq!(run(&bench, task(), Mode::Apply).status, OpStatus::Ok);
    let none = run(&bench, json!({"device": "nvme2n1", "scheduler": "kyber"}), Mode::Apply);
    assert!(matches!(none.status, OpStatus::NotApplicable { .. }), "{none:?}");
}

#[test]
fn what_a_disk_does_not_take_is_refused() {
    let bench = bench();
    let told = |task: Value| failure(&run(&bench, task, Mode::Predict)).to_owned();
    assert_eq!(
        told(json!({"type": "nvme", "scheduler": "bfq"})),
        "nvme0n1 has no scheduler bfq; it has none, mq-deadline, kyber; a module may bring it: `modprobe: {name: bfq, \
         persistent: present}`"
    );
    assert_eq!(
        told(json!({"device": "sda", "max_sectors_kb": 4096})),
        "max_sectors_kb of sda is at most 2048, not 4096"
    );
    let none = run(&bench, json!({"device": "vd*", "scheduler": "none"}), Mode::Apply);
    assert!(matches!(none.status, OpStatus::NotApplicable { .. }), "{none:?}");
}

#[test]
fn who_comes_after_is_named() {
    let bench = bench();
    bench.write(
        "usr/lib/udev/rules.d/99-zz.rules",
        "# x\nACTION==\"add\", KERNEL==\"nvme[0-9]*n[0-9]*\", \\\n  ATTR{queue/scheduler}=\"kyber\"\nKERNEL==\"sd*\", ATTR{queue/read_ahead_kb}=\"8\"\n",
    );
    bench
        .write("usr/lib/udev/rules.d/60-first.rules", "KERNEL==\"nvme*\", ATTR{queue/scheduler}=\"kyber\"\n");
    // Masked, and so is the file of the same name.
    std::fs::create_dir_all(bench.path("etc/udev/rules.d")).unwrap();
    std::os::unix::fs::symlink("/dev/null", bench.path("etc/udev/rules.d/99-z.rules")).unwrap();
    bench.write("usr/lib/udev/rules.d/99-z.rules", "KERNEL==\"nvme*\", ATTR{queue/scheduler}=\"kyber\"\n");
    bench.write("etc/tuned/active_profile", "throughput-performance\n");
    bench.write("usr/lib/tuned/throughput-performance/tuned.conf", "[disk]\nreadahead=>4096\n");
    bench.write("etc/systemd/system/multi-user.target.wants/tuned.service", "");
    let done = run(&bench, json!({"type": "nvme", "scheduler": "none", "read_ahead_kb": 128}), Mode::Predict);
    assert_eq!(
        done.warnings,
        [
            "/usr/lib/udev/rules.d/99-zz.rules sets scheduler to kyber after /etc/udev/rules.d/99-gpufleet-disk.rules, and \
             wins",
            "tuned's profile throughput-performance (readahead in /usr/lib/tuned/throughput-performance/tuned.conf) sets \
             read_ahead_kb to >4096 after /etc/udev/rules.d/99-gpufleet-disk.rules, and wins"
        ]
    );
    assert_eq!(
        assigned("ATTR{queue/a}==\"1\", ATTR{queue/b}=\"2\", ATTR{queue/c}:=\"3\""),
        [("b", "2"), ("c", "3")]
    );
}
