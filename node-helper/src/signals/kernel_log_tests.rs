use std::fs;

use proptest::prelude::*;

use super::*;

fn node(kmsg: &str) -> (tempfile::TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("dev")).unwrap();
    fs::write(dir.path().join("dev/kmsg"), kmsg).unwrap();
    let roots = Roots::below(dir.path());
    (dir, roots)
}

fn journal_says(dir: &tempfile::TempDir, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(dir.path().join("usr/bin")).unwrap();
    let path = dir.path().join("usr/bin/journalctl");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn read_of(roots: &Roots) -> Log {
    read(roots, &Deadline::after(Duration::from_secs(20)))
}

/// Returns a ring with these lines, one each second.
fn ring(lines: &[&str]) -> String {
    let line = |(at, line): (usize, &&str)| format!("4,{at},{}000000,-;{line}\n", at);
    lines.iter().enumerate().map(line).collect()
}

fn records_of(lines: &[&str]) -> Vec<KernelRecord> {
    read_of(&node(&ring(lines)).1).records(&Resets::new()).0
}

#[test]
fn each_sort_of_line_is_known_by_its_words() {
    let sorts = |lines: &[&str]| -> Vec<RecordSort> {
        records_of(lines).into_iter().map(|record| record.sort).collect()
    };
    use RecordSort::*;
    for (line, sort) in [
        ("NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name=python", Xid),
        ("nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 36 LTSSM Fault Up", Sxid),
        ("NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x26:0x56:1474)", Nvrm),
        ("nvidia: Loading of module with unavailable key is rejected", Nvrm),
        ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python,pid=1,uid=0", Oom),
        ("{1}[Hardware Error]: event severity: fatal", Hardware),
        ("mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 5: be00000000800400", Hardware),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", Hardware),
        ("Oops: 0000 [#1] SMP NOPTI", Kernel),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", Kernel),
        ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", Kernel),
        ("INFO: task kworker/1:1:77 blocked for more than 122 seconds.", Kernel),
        ("I/O error, dev nvme0n1, sector 1 op 0x0:(READ)", Disk),
        ("nvme nvme0: I/O 12 QID 3 timeout, aborting", Disk),
        ("EXT4-fs (sda1): Remounting filesystem read-only", Disk),
    ] {
        assert_eq!(sorts(&["Linux version 6.8", line]), [sort], "{line}");
    }
    for line in [
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.03",
        "NVRM: Persistence mode is deprecated and will be removed in a future release.",
        "traps: python[1] general protection fault ip:1 sp:1 error:0 in libc.so",
        "Oops: x[4711]: segfault at 0 ip 1 sp 1 error 4",
        "NVRM: Xid (x):1[4711]: segfault at 0 ip 1 sp 1 error 4",
        "I/O error, dev sr0, sector 0",
        "Buffer I/O error on dev loop7, logical block 0",
        "sd 0:0:0:0: timeout, but of no NVMe",
    ] {
        assert_eq!(sorts(&["Linux version 6.8", line]), [], "{line}");
    }
}

#[test]
fn records_name_the_code_and_the_gpu_as_sysfs_does() {
    let records = records_of(&[
        "Linux version 6.8",
        "NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 36",
        "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
    ]);
    let told: Vec<_> =
        records.iter().map(|record| (record.at_us, record.code, record.pci.as_deref())).collect();
    assert_eq!(
        told,
        [
            (Some(1_000_000), Some(79), Some("0000:3b:00.0")),
            (Some(2_000_000), Some(20034), Some("0000:85:00.0")),
            (Some(3_000_000), None, Some("0000:1b:00.0")),
        ]
    );
}

#[test]
fn what_programs_write_to_the_log_does_not_count() {
    let text = "4,0,0,-;Linux version 6.8\n12,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n";
    assert_eq!(read_of(&node(text).1).lines, []);
    for line in [
        "[    5.140900] node evil[7]: NVRM: Xid (PCI:0000:1b:00): 79, gone",
        "[    5.140900] node evil: NVRM: Xid (PCI:0000:1b:00): 79, gone",
    ] {
        assert_eq!(record(line), None, "{line}");
    }
}

#[test]
fn an_empty_or_cut_ring_has_a_gap_unless_the_journal_fills_it() {
    let (_dir, roots) = node("");
    assert!(!read_of(&roots).gap.unwrap().whole, "no record proves nothing");
    let none = tempfile::tempdir().unwrap();
    assert!(read_of(&Roots::below(none.path())).gap.unwrap().whole);
    let (dir, roots) = node("4,9,9000000,-;Oops: 0000 [#1] SMP\n");
    assert!(!read_of(&roots).gap.unwrap().whole);
    journal_says(
        &dir,
        "case \"$*\" in *--boot*SYSLOG_FACILITY=0*) ;; *) exit 9 ;; esac
echo '[    0.000000] node kernel: Linux version 6.8'; echo '[    9.000000] node kernel: Oops: 0000 [#1] SMP'",
    );
    let log = read_of(&roots);
    assert_eq!((log.lines.len(), log.gap), (1, None), "the journal repeats the ring");
}

#[test]
fn the_journal_is_asked_for_every_line_that_counts() {
    let asked = regex::Regex::new(&expression()).unwrap();
    for text in wanted() {
        assert!(asked.is_match(text), "{text}");
    }
    assert!(!asked.is_match("NVRM: Persistence mode is deprecated"));
}

#[test]
fn a_journal_that_is_too_long_leaves_a_gap() {
    let (dir, roots) = node("4,9,9000000,-;something\n");
    journal_says(&dir, "echo Linux version 6.8; head -c 9000000 /dev/zero | tr '\\0' x");
    let gap = read_of(&roots).gap.unwrap();
    assert!(gap.why.ends_with("it has more than 8 MiB of such messages"), "{}", gap.why);
}

/// Drivers from 570 on tell it without an Xid, and over several lines.
#[test]
fn a_gpu_off_the_bus_without_an_xid_is_found() {
    let three = [
        "NVRM: The NVIDIA GPU 0000:3b:00.0",
        "               NVRM: (PCI ID: 10de:2330) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
    ];
    let one = three.map(str::trim).join("\\x0a");
    for lines in [&three[..], &[one.as_str()]] {
        // The driver says that it loads after it looked for its GPUs: a load settles nothing of this.
        let lines: Vec<&str> = lines.iter().copied().chain([LOADS]).collect();
        let line = |(at, line): (usize, &&str)| format!("4,{at},91{at:06},-;{line}\n");
        let kmsg: String = lines.iter().enumerate().map(line).collect();
        let records = read_of(&node(&kmsg).1).records(&Resets::new()).0;
        assert_eq!(records.len(), 1, "{records:?}");
        assert_eq!(
            (records[0].pci.as_deref(), records[0].settled),
            (Some("0000:3b:00.0"), false),
            "{records:?}"
        );
        assert!(records[0].text.starts_with("NVRM: The NVIDIA GPU 0000:3b:00.0"), "{records:?}");
    }
    // The first line of another message names no GPU for one that is told as a whole.
    let other = ["NVRM: The NVIDIA GPU 0000:1b:00.0", one.as_str()];
    assert_eq!(records_of(&other)[0].pci.as_deref(), Some("0000:3b:00.0"));
}

#[test]
fn a_flood_of_one_message_hides_no_other() {
    let gone = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.";
    let mut lines = vec!["Linux version 6.8", gone, "Oops: 0000 [#1] SMP"];
    lines.extend(std::iter::repeat_n("NVRM: Xid (PCI:0000:1b:00): 13, pid=1", 1000));
    let (records, dropped) = read_of(&node(&ring(&lines)).1).records(&Resets::new());
    assert_eq!((records.len(), dropped), (Signals::MOST_RECORDS, 1002 - Signals::MOST_RECORDS));
    assert!(records.iter().any(|record| record.code == Some(79)));
    assert!(records.iter().any(|record| record.sort == RecordSort::Kernel));
    assert_eq!(records.last().and_then(|record| record.at_us), Some(1_002_000_000), "the newest is kept");
    assert!(records.is_sorted_by_key(|record| record.at_us));
}

#[test]
fn a_new_start_of_the_driver_settles_its_errors_and_no_others() {
    let log = ring(&[
        "Linux version 6.8",
        "nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 20034, Fatal",
        "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
        "Oops: 0000 [#1] SMP",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.03",
        "NVRM: Xid (PCI:0000:1b:00): 62, halt",
    ]);
    let settled = |resets: Resets| -> Vec<bool> {
        read_of(&node(&log).1).records(&resets).0.iter().map(|record| record.settled).collect()
    };
    assert_eq!(settled(Resets::new()), [true, true, false, false, false]);
    let reset = [("0000:1b:00.0".to_owned(), 7_000_000)].into();
    assert_eq!(settled(reset), [true, true, false, false, true]);
}

#[test]
fn the_last_word_on_a_server_counts() {
    let lines = [
        "Linux version 6.8",
        "nfs: server nas not responding, still trying",
        "nfs: server nas OK",
        "nfs: server other OK",
        "nfs: server other not responding, timed out",
    ];
    assert_eq!(read_of(&node(&ring(&lines)).1).hung_servers(), Ok(1));
    assert_eq!(read_of(&node(&ring(&lines[..4])).1).hung_servers(), Ok(0));
    assert!(read_of(&node("4,9,9,-;nfs: server nas OK\n").1).hung_servers().is_err(), "the log has a gap");
    let many: Vec<String> =
        (0..2000).map(|n| format!("nfs: server s{n} not responding, still trying")).collect();
    let lines: Vec<&str> = ["Linux version"].into_iter().chain(many.iter().map(String::as_str)).collect();
    assert_eq!(read_of(&node(&ring(&lines)).1).hung_servers(), Ok(MOST_SERVERS));
}

#[test]
fn older_kernels_tell_a_kill_in_other_words() {
    let kill = "oom-kill:constraint=CONSTRAINT_NONE,task=python,pid=1";
    let killed = "Out of memory: Killed process 1 (python)";
    assert_eq!(records_of(&["Linux version 6.8", kill, killed]).len(), 1);
    assert_eq!(records_of(&["Linux version 4.18", killed]).len(), 1);
}

#[test]
fn older_drivers_lines_are_understood() {
    let xid = |at, body| Line::parse(at, body).filter(|line| line.sort == RecordSort::Xid);
    let (at, body) = record("[  12.3] NVRM: Xid (0000:03:00): 13, 0001 00000000").unwrap();
    let line = xid(at, body).unwrap();
    assert_eq!(
        (line.at, line.code, line.device.as_deref(), line.to_none),
        (Some(12_300_000), Some(13), Some("0000:03:00"), false)
    );
    let line = "[    5.140900] node kernel: NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=x, Ch 8; MMU";
    let (at, body) = record(line).unwrap();
    assert_eq!(
        xid(at, body).map(|xid| (xid.at, xid.code)),
        Some((Some(5_140_900), Some(31))),
        "a `;` is no head"
    );
    for line in ["NVRM: Xid", "NVRM: Xid (x", "NVRM: Xid (x): ", "NVRM: Xid (x): abc", "6,1;NVRM"] {
        assert_eq!(xid(None, line), None, "{line}");
    }
}

#[test]
fn the_end_of_the_log_is_that_of_its_last_record() {
    let (dir, _) = node("4,0,3000000,-;a\n4,1,7000000,-;b\n DEVICE=x\n");
    assert_eq!(log_end(&dir.path().join("dev/kmsg")), Some(7_000_000));
    assert_eq!(log_end(&dir.path().join("dev/none")), None);
}

#[test]
fn a_log_without_end_is_bounded() {
    let (dir, roots) = node("");
    fs::remove_file(dir.path().join("dev/kmsg")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("dev/kmsg")).unwrap();
    let log = read_of(&roots);
    assert_eq!(log.lines, []);
    assert!(log.gap.is_some());
}

proptest! {
    #[test]
    fn no_line_that_counts_is_passed_over(before in ".{0,20}", at in 0..RULES.len() + 4, after in ".{0,20}") {
        let line = [&before, wanted().nth(at).unwrap(), &after].concat();
        prop_assert!(may_count(&line));
    }

    #[test]
    fn any_text_is_read_and_its_records_are_short(text in "(.{0,40}(NVRM: Xid \\(|Oops: |\\): |SXid \\(|0000:3b:00|;|,){0,4}.{0,600}\n?){0,6}") {
        let mut log = Log::default();
        Reader::default().take(&text, &mut log);
        for record in log.records(&Resets::new()).0 {
            prop_assert!(record.text.len() <= MOST_TEXT && !record.text.contains(char::is_control));
        }
    }
}
