use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

use super::*;
use crate::{
    declare::drive,
    tasks::testing::{Bench, failure, shown},
};

/// Knows two swap units: one of fstab, one that a generator makes of the partition table.
const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
while case "$1" in --no-*) true;; *) false;; esac; do shift; done
[ "$1" = show ] || echo "systemctl $*" >> $d/log
gpt='dev-disk-by\x2dpartuuid-7.swap'
case "$1" in
show)
  printf 'Id=swap.img.swap\nLoadState=loaded\nActiveState=active\nUnitFileState=generated\nFragmentPath=/run/systemd/generator/swap.img.swap\nSourcePath=/etc/fstab\n\n'
  load=loaded; state=generated; [ -e $d/masked ] && load=masked && state=masked
  printf 'Id=%s\nLoadState=%s\nActiveState=active\nUnitFileState=%s\nFragmentPath=/run/systemd/generator.late/x.swap\nSourcePath=\n\n' "$gpt" $load $state
  printf 'Id=zramswap.service\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\nFragmentPath=\n';;
mask) [ "$3" = "$gpt" ] && : > $d/masked;;
unmask) rm -f $d/masked;;
start) echo "/dev/sda7 partition 2097148 0 -3" >> $d/proc/swaps;;
esac
exit 0
"#;

const SWAPOFF: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
echo "swapoff $2" >> $d/log
[ -e $d/full ] && { echo "swapoff: $2: swapoff failed: Cannot allocate memory" >&2; exit 4; }
grep -v "^$2 " $d/proc/swaps > $d/new; mv $d/new $d/proc/swaps
"#;

const SWAPON: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
echo "swapon $*" >> $d/log
grep -q '^/swap.img none swap' $d/etc/fstab && echo "/swap.img file 8388604 0 -2" >> $d/proc/swaps
exit 0
"#;

const FSTAB: &str = "UUID=1 / ext4 defaults 0 1\n/swap.img none swap sw 0 0\n";

fn bench(used: u64) -> Bench {
    let bench = Bench::new();
    bench.script("usr/bin/systemctl", SYSTEMCTL);
    bench.script("usr/sbin/swapoff", SWAPOFF);
    bench.script("usr/sbin/swapon", SWAPON);
    bench.write("etc/fstab", FSTAB);
    bench.write("log", "");
    let header = "Filename Type Size Used Priority\n";
    let areas = format!("/swap.img file 8388604 {used} -2\n/dev/sda7 partition 2097148 0 -3\n");
    bench.write("proc/swaps", &format!("{header}{areas}"));
    bench.write("proc/meminfo", "MemTotal:       10485760 kB\nMemAvailable:   1048576 kB\n");
    bench
}

fn run(bench: &Bench, word: &str, mode: Mode, allowed: Disruption) -> OpOutcome {
    let task: Swap = serde_json::from_value(json!({"state": word})).unwrap();
    bench.node(|node| drive(&task, node, mode, &bench.overlay, allowed, &|_| Ok(())))
}

#[test]
fn it_is_off_now_and_at_boot_and_comes_back() {
    let bench = bench(1024);
    let before = bench.snapshot();
    let predicted = run(&bench, "off", Mode::Predict, Disruption::Live);
    assert_eq!(run(&bench, "off", Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.activate(Disruption::Reboot);
    assert_eq!(run(&bench, "off", Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.forget();
    assert_eq!(bench.snapshot(), before);
    assert_eq!(
        shown(&predicted),
        [
            r"dev-disk-by\x2dpartuuid-7.swap at boot: started -> masked (live)",
            "/swap.img in /etc/fstab: /swap.img none swap sw 0 0 -> commented out (live)",
            "swap on /swap.img: 1 of 8191 MiB used -> off (live)",
            "swap on /dev/sda7: 0 of 2047 MiB used -> off (live)",
        ]
    );
    let done = run(&bench, "off", Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    assert_eq!(
        bench.read("log"),
        "systemctl mask -- dev-disk-by\\x2dpartuuid-7.swap\nsystemctl daemon-reload\nswapoff /swap.img\nswapoff /dev/sda7\n"
    );
    let settled = bench.snapshot();
    assert_eq!(run(&bench, "off", Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(bench.snapshot(), settled);
    let predicted = run(&bench, "on", Mode::Predict, Disruption::Live);
    assert_eq!(run(&bench, "on", Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.forget();
    let on = run(&bench, "on", Mode::Apply, Disruption::Live);
    assert_eq!((&on.status, &on.changes), (&OpStatus::Changed, &predicted.changes), "{on:?}");
    assert_eq!(bench.read("etc/fstab"), FSTAB);
    assert!(!bench.path("etc/gpufleet/swap-masked").exists() && !bench.path("masked").exists());
    assert_eq!(run(&bench, "on", Mode::Apply, Disruption::Live).status, OpStatus::Ok);
}

#[test]
fn what_does_not_fit_into_memory_is_refused_with_numbers() {
    let bench = bench(1_048_576);
    let refused = run(&bench, "off", Mode::Predict, Disruption::Reboot);
    assert!(
        failure(&refused)
            .starts_with("1024 MiB are swapped out, and 1024 MiB of memory are available, of which 204 MiB"),
        "{refused:?}"
    );
    assert_eq!(bench.read("etc/fstab"), FSTAB);
}

#[test]
fn much_memory_that_is_read_back_disturbs_programs() {
    let bench = bench(512 * 1024);
    let asked = run(&bench, "off", Mode::Apply, Disruption::Live);
    assert_eq!(asked.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    bench.write("full", "");
    let failed = run(&bench, "off", Mode::Apply, Disruption::Clients);
    assert!(failure(&failed).contains("Cannot allocate memory"), "{failed:?}");
    // What a boot would do is done, and only what is left is planned.
    let left = run(&bench, "off", Mode::Predict, Disruption::Live);
    assert_eq!(left.changes.len(), 2, "{left:?}");
}

#[test]
fn masks_of_others_are_not_taken_back() {
    let bench = bench(0);
    bench.write("masked", "");
    bench.write("etc/fstab", "UUID=1 / ext4 defaults 0 1\n");
    bench.write("proc/swaps", "Filename Type Size Used Priority\n");
    assert_eq!(run(&bench, "off", Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    let none = run(&bench, "on", Mode::Apply, Disruption::Live);
    assert!(failure(&none).contains("no swap that could be turned on"), "{none:?}");
    bench.write("run/systemd/container", "docker");
    assert!(matches!(
        run(&bench, "off", Mode::Apply, Disruption::Live).status,
        OpStatus::NotApplicable { .. }
    ));
}

#[test]
fn an_area_of_somebody_else_does_not_stand_in_for_one_that_is_off() {
    let bench = bench(0);
    std::fs::create_dir_all(bench.path("dev/disk/by-partuuid")).unwrap();
    std::os::unix::fs::symlink("../../sda7", bench.path("dev/disk/by-partuuid/7")).unwrap();
    bench.write("dev/sda7", "");
    assert_eq!(run(&bench, "off", Mode::Apply, Disruption::Live).status, OpStatus::Changed);
    let header = "Filename Type Size Used Priority\n";
    // Two areas that are on, and two that are to be on, but other ones.
    bench.write(
        "proc/swaps",
        &format!("{header}/swap.img file 8388604 0 -2\n/dev/zram0 partition 1048572 0 100\n"),
    );
    let on = run(&bench, "on", Mode::Predict, Disruption::Live);
    assert!(shown(&on).iter().any(|line| line == "swap: partly on -> on (live)"), "{on:?}");
    bench.forget();
    bench.write(
        "proc/swaps",
        &format!("{header}/swap.img file 8388604 0 -2\n/dev/zram0 partition 1048572 0 100\n/dev/sda7 partition 2097148 0 -3\n"),
    );
    let on = run(&bench, "on", Mode::Predict, Disruption::Live);
    assert!(!shown(&on).iter().any(|line| line.starts_with("swap:")), "{on:?}");
}
