use std::{fs, sync::Arc, time::Duration};

use gpufleet_protocol::nvml::Reading;

use super::*;
use crate::{
    gpu::{
        Gpus,
        sim::{Sim, SimGpu, SimMachine},
    },
    state::Record,
};

const GONE: &str =
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.";
const APP: &str = "NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name=python, Ch 00000008, MMU Fault";

fn node(kmsg: &str) -> (tempfile::TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("dev")).unwrap();
    fs::write(dir.path().join("dev/kmsg"), kmsg).unwrap();
    let roots = Roots::below(dir.path());
    (dir, roots)
}

fn ten_seconds() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

/// Returns a node with one GPU at 0000:1b:00.0 whose driver asks for this action.
fn seen(recovery_action: Reading<u32>) -> Seen {
    let gpu = SimGpu { recovery_action, ..SimGpu::new(0, true) };
    let machine = SimMachine(Arc::new(std::sync::Mutex::new(Sim::new(vec![gpu]))));
    Gpus::with_machine(Box::new(machine), Record::of(None)).health(&ten_seconds())
}

fn verdict(kmsg: &str) -> Found {
    check(&seen(Ok(0)), &node(kmsg).1, &ten_seconds())
}

/// The driver's own words come before the table of codes.
#[test]
fn fatal_and_nonfatal_nvlink_codes_are_told_apart() {
    let told = |line: &str| verdict(&format!("4,0,1,-;Linux version 6.8\n4,1,2,-;{line}\n")).0;
    let fatal = "NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00";
    assert_eq!(told(fatal), Verdict::Fail);
    assert_eq!(told(&fatal.replace("149, NETIR_LINK_EVT Fatal", "145, RLW_RXPIPE Nonfatal")), Verdict::Ok);
    assert_eq!(told("NVRM: Xid (PCI:0000:1b:00): 46, Ch 1 caused by previous Xid 149"), Verdict::Ok);
    // A program's name is no word of the driver.
    assert_eq!(told("NVRM: Xid (PCI:0000:1b:00): 46, pid=1, name=Nonfatal"), Verdict::Fail);
}

#[test]
fn a_gpu_off_the_bus_without_an_xid_fails_once() {
    let off =
        "NVRM: The NVIDIA GPU 0000:1b:00.0\\x0aNVRM: fallen off the bus and is not responding to commands.";
    let told = |lines: &[&str]| {
        let line = |(at, line): (usize, &&str)| format!("4,{at},{at}000000,-;{line}\n");
        verdict(&lines.iter().enumerate().map(line).collect::<String>())
    };
    let says = "the driver says that 0000:1b:00.0 has fallen off the bus: with the node drained, reboot it, and power it off and \
                on if the GPU does not come back";
    assert_eq!(told(&["Linux version 6.8", off, off]), (Verdict::Fail, says.to_owned()));
    let xid = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.";
    let (fails, why) = told(&["Linux version 6.8", xid, off]);
    assert!(fails == Verdict::Fail && why.starts_with("Xid 79") && !why.contains("says"), "{why}");
}

#[test]
fn a_lost_gpu_fails_and_a_programs_fault_does_not() {
    let log = |lines: &[&str]| {
        lines
            .iter()
            .enumerate()
            .map(|(at, line)| format!("4,{at},{},-;{line}\n", 1234 + at))
            .collect::<String>()
    };
    assert_eq!(
        verdict(&log(&["Linux version 6.8"])),
        (Verdict::Ok, "no Xid since the node booted".to_owned())
    );
    let (told, why) = verdict(&log(&["Linux version 6.8", APP, APP]));
    assert_eq!(
        (told, why.as_str()),
        (Verdict::Ok, "2 Xids since the node booted, all of programs or for information")
    );
    let (told, why) = verdict(&log(&[APP, GONE, GONE]));
    assert_eq!(
        (told, why.as_str()),
        (
            Verdict::Fail,
            "Xid 79 (GPU has fallen off the bus) of 0000:3b:00 at [0.001236], 2 times: with the node drained, \
             reboot it, and power it off and on if the GPU does not come back"
        )
    );
    let unknown = "NVRM: Xid (PCI:0000:3b:00): 4711, what is this";
    assert_eq!(verdict(&log(&[unknown])).0, Verdict::Fail, "a code that nobody knows");
}

#[test]
fn programs_cannot_write_errors_of_the_driver() {
    assert_eq!(verdict(&format!("6,0,1,-;Linux\n14,1,2,-;{GONE}\n")).0, Verdict::Ok);
}

#[test]
fn a_ring_that_lost_its_beginning_proves_nothing() {
    let (told, why) = verdict("6,991,1,-;something\n");
    assert_eq!(told, Verdict::Unknown);
    assert_eq!(
        why,
        "the kernel's log has lost its beginning; and the journal cannot be read: there is no journalctl"
    );
    assert_eq!(verdict(&format!("6,991,1,-;something\n4,992,1,-;{GONE}\n")).0, Verdict::Fail);
    let none = tempfile::tempdir().unwrap();
    let (told, why) = check(&seen(Ok(0)), &Roots::below(none.path()), &ten_seconds());
    assert_eq!(told, Verdict::Unknown);
    assert!(why.starts_with("/dev/kmsg: No such file"), "{why}");
}

#[test]
fn the_journal_speaks_for_what_the_ring_lost() {
    use std::os::unix::fs::PermissionsExt;
    for (says, expected) in [
        (format!("echo Linux version 6; echo '{}'", GONE.replace('\'', "")), Verdict::Fail),
        (format!("echo Linux version 6; echo '{APP}'"), Verdict::Ok),
        ("echo Linux version 6".to_owned(), Verdict::Ok),
        ("exit 1".to_owned(), Verdict::Unknown),
        ("echo 'insufficient permissions' >&2; exit 1".to_owned(), Verdict::Unknown),
    ] {
        let (dir, roots) = node("6,991,1,-;something\n");
        fs::create_dir_all(dir.path().join("usr/bin")).unwrap();
        let path = dir.path().join("usr/bin/journalctl");
        fs::write(&path, format!("#!/bin/sh\n{says}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(check(&seen(Ok(0)), &roots, &ten_seconds()).0, expected, "{says}");
    }
}

#[test]
fn a_recovery_action_that_is_over_asks_for_nothing() {
    let line = |to: &str| {
        format!(
            "4,0,1,-;NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to {to}\n"
        )
    };
    assert_eq!(verdict(&line("0x0 (None)")).0, Verdict::Ok);
    assert_eq!(verdict(&line("0x2 (Node Reboot Required)")).0, Verdict::Fail);
}

/// Returns a log of one GPU; times are in seconds of the boot.
fn log(lines: &[(u64, &str)]) -> String {
    let text =
        |(at, (seconds, line)): (usize, &(u64, &str))| format!("4,{at},{},-;{line}\n", seconds * 1_000_000);
    lines.iter().enumerate().map(text).collect()
}

const HALT: &str = "NVRM: Xid (PCI:0000:1b:00): 62, pid=1, halt";
const LOAD: &str = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.03";

#[test]
fn what_a_new_start_of_the_driver_or_our_reset_healed_is_settled() {
    let judged = |text: &str, resets: &[(&str, u64)]| {
        let resets = resets.iter().map(|(pci, at)| ((*pci).to_owned(), at * 1_000_000)).collect();
        check(&Seen { resets, ..seen(Ok(0)) }, &node(text).1, &ten_seconds())
    };
    let halted = log(&[(1, LOAD), (100, HALT)]);
    let (told, why) = judged(&halted, &[]);
    assert_eq!(told, Verdict::Fail);
    assert_eq!(
        why,
        "Xid 62 (internal micro-controller halt) of 0000:1b:00 at [100.000000]: with the node drained, reset the GPU"
    );
    let reloaded = log(&[(1, LOAD), (100, HALT), (200, LOAD)]);
    assert_eq!(
        judged(&reloaded, &[]),
        (
            Verdict::Ok,
            "no Xid since the node booted that still counts, 1 settled by a reset or a new start of the driver".to_owned()
        )
    );
    assert_eq!(judged(&halted, &[("0000:1b:00.0", 150)]).0, Verdict::Ok);
    assert_eq!(judged(&halted, &[("0000:1b:00.0", 99)]).0, Verdict::Fail, "it came after the reset");
    assert_eq!(judged(&halted, &[("0000:1c:00.0", 150)]).0, Verdict::Fail, "another GPU was reset");
    let none = "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";
    assert_eq!(judged(&log(&[(100, HALT), (101, none)]), &[]).0, Verdict::Ok);
    assert_eq!(judged(&log(&[(100, none), (101, HALT)]), &[]).0, Verdict::Fail, "it came after the word");
    let gone = log(&[(100, GONE), (101, LOAD)]);
    assert_eq!(judged(&gone, &[("0000:3b:00.0", 150)]).0, Verdict::Fail, "only a new boot settles that");
}

#[test]
fn the_drivers_own_word_counts_before_the_codes() {
    let contained = log(&[
        (100, "NVRM: Xid (PCI:0000:1b:00): 48, pid=1, DBE"),
        (100, "NVRM: Xid (PCI:0000:1b:00): 171, pid=1, DRAM"),
        (100, "NVRM: Xid (PCI:0000:1b:00): 63, pid=1, row remapper"),
        (100, "NVRM: Xid (PCI:0000:1b:00): 94, pid=1, contained"),
        (101, "NVRM: Xid (PCI:0000:1b:00): 149, NETIR"),
        (102, "NVRM: Xid (PCI:0000:1b:00): 45, pid=1, channel"),
    ]);
    let judged = |action, text: &str| check(&seen(action), &node(text).1, &ten_seconds());
    assert_eq!(judged(Ok(0), &contained).0, Verdict::Ok);
    let (told, why) = judged(Ok(1), &contained);
    assert_eq!(told, Verdict::Fail);
    assert!(
        why.starts_with("GPU 0: the driver asks for a reset of the GPU (recovery action 1); Xid 48"),
        "{why}"
    );
    for action in [Err(Code::NOT_SUPPORTED), Err(Code::UNKNOWN)] {
        assert_eq!(judged(action, &contained).0, Verdict::Fail, "an older driver settles nothing");
    }
    let quiet = log(&[(1, "Linux version 6.8")]);
    for (action, expected) in [
        (Ok(0), Verdict::Ok),
        (Ok(2), Verdict::Fail),
        (Ok(6), Verdict::Fail),
        (Ok(8), Verdict::Fail),
        (Err(Code::NOT_SUPPORTED), Verdict::Ok),
        (Err(Code::INVALID_ARGUMENT), Verdict::Ok),
        (Err(Code::UNKNOWN), Verdict::Unknown),
    ] {
        assert_eq!(judged(action, &quiet).0, expected, "{action:?}");
    }
    let uncontained = log(&[(100, "NVRM: Xid (PCI:0000:1b:00): 95, pid=1, uncontained")]);
    assert_eq!(judged(Ok(0), &uncontained).0, Verdict::Fail);
}

/// A person types what a code asks for, at night, on a node whose other GPUs have jobs.
#[test]
fn what_ends_work_has_the_drain_before_it() {
    for asks in [Asks::Nothing, Asks::Reset, Asks::Reboot, Asks::Driver, Asks::Investigate] {
        let text = asks.next_step();
        let harm = ["reset", "reboot", "power"].iter().filter_map(|word| text.find(word)).min();
        assert!(harm.is_none_or(|harm| text.find("drained").is_some_and(|drained| drained < harm)), "{text}");
    }
}
