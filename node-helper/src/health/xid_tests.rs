use std::fs;

use super::*;

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

fn verdict(kmsg: &str) -> Found {
    check(&node(kmsg).1, &Deadline::after(Duration::from_secs(10)))
}

#[test]
fn a_lost_gpu_fails_and_a_programs_fault_does_not() {
    let log = |lines: &[&str]| {
        lines.iter().enumerate().map(|(at, line)| format!("4,{at},1234,-;{line}\n")).collect::<String>()
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
        (Verdict::Fail, "Xid 79 (GPU has fallen off the bus) of 0000:3b:00, 2 times: reboot the node")
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
    let (told, why) = check(&Roots::below(none.path()), &Deadline::after(Duration::from_secs(10)));
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
        assert_eq!(check(&roots, &Deadline::after(Duration::from_secs(10))).0, expected, "{says}");
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

#[test]
fn older_drivers_lines_are_understood() {
    assert_eq!(
        xid("[  12.3] NVRM: Xid (0000:03:00): 13, 0001 00000000"),
        Some(Xid { code: 13, device: "0000:03:00".into(), settled: false })
    );
    for line in ["NVRM: Xid", "NVRM: Xid (x", "NVRM: Xid (x): ", "NVRM: Xid (x): abc", "6,1;NVRM"] {
        assert_eq!(xid(line), None, "{line}");
    }
}
