use gpufleet_protocol::{OpStatus, message::Mode};

use super::*;
use crate::tasks::testing::{Bench, changed, told};

fn declared(add: &[&str], remove: &[&str]) -> KernelCmdline {
    let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    KernelCmdline { add: own(add), remove: own(remove) }
}

fn bench() -> Bench {
    let bench = Bench::new();
    bench.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 quiet\n");
    bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"\"\n");
    bench
}

#[test]
fn a_word_is_written_and_awaits_a_reboot() {
    let bench = bench();
    bench
        .script("usr/sbin/update-grub", &format!("#!/bin/sh\necho ran >> {}\n", bench.path("ran").display()));
    let task = declared(&["iommu=pt"], &[]);
    let before = bench.snapshot();
    let predicted = bench.run(&task, Mode::Predict);
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
    let change = &done.changes[0];
    assert_eq!(told(change), ("kernel command line", Some("without iommu=pt"), "iommu=pt"));
    assert_eq!(change.disruption, Disruption::Reboot);
    assert_eq!(done.awaiting[0].reason, "the running kernel was booted without `iommu=pt`");
    assert_eq!(done.awaiting, predicted.awaiting);
    assert_eq!(
        bench.read("etc/default/grub"),
        "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"iommu=pt\"\n"
    );
    assert_eq!(bench.read("ran"), "ran\n");
    let again = bench.run(&task, Mode::Apply);
    assert_eq!((again.status, again.awaiting.len()), (OpStatus::Ok, 1));
    assert_eq!(bench.read("ran"), "ran\n");
    bench.write("proc/cmdline", "root=/dev/sda1 quiet iommu=pt\n");
    let rebooted = bench.run(&task, Mode::Apply);
    assert_eq!((rebooted.status, rebooted.awaiting.len()), (OpStatus::Ok, 0));
}

#[test]
fn an_assumed_reboot_takes_the_word_over() {
    let bench = bench();
    let task = declared(&["iommu=pt"], &["quiet"]);
    assert_eq!(bench.run(&task, Mode::Predict).awaiting.len(), 2);
    let again = bench.run(&task, Mode::Predict);
    assert_eq!((again.status, again.awaiting.len()), (OpStatus::Ok, 2));
    bench.activate(Disruption::Reboot);
    let after = bench.run(&task, Mode::Predict);
    assert_eq!((after.status, after.awaiting.len()), (OpStatus::Ok, 0));
}

#[test]
fn a_prediction_foresees_the_generated_file() {
    let bench = bench();
    bench.write("boot/grub/grub.cfg", "menuentry x {\n\tlinux /vmlinuz root=/a quiet\n}\n");
    bench.script("usr/sbin/update-grub", "#!/bin/sh\n");
    let task = declared(&["iommu=pt"], &[]);
    assert_eq!(bench.run(&task, Mode::Predict).changes.len(), 1);
    bench.activate(Disruption::Reboot);
    let after = bench.run(&task, Mode::Predict);
    assert_eq!((after.status, after.changes), (OpStatus::Ok, vec![]));
}

#[test]
fn drop_ins_are_used_where_the_distribution_reads_them() {
    let bench = bench();
    bench.write("etc/default/grub.d/50-cloudimg.cfg", "GRUB_CMDLINE_LINUX_DEFAULT=\"console=ttyS0\"\n");
    assert_eq!(bench.run(&declared(&["iommu=pt"], &[]), Mode::Apply).status, OpStatus::Changed);
    let ours = "etc/default/grub.d/99-gpufleet.cfg";
    assert_eq!(
        bench.read(ours),
        "# Written by gpufleet.\nGRUB_CMDLINE_LINUX=\"${GRUB_CMDLINE_LINUX} iommu=pt\"\n"
    );
    assert_eq!(bench.run(&declared(&["iommu=pt"], &[]), Mode::Apply).status, OpStatus::Ok);
    assert_eq!(bench.run(&declared(&["a=1"], &[]), Mode::Apply).status, OpStatus::Changed);
    assert_eq!(
        bench.read(ours),
        "# Written by gpufleet.\nGRUB_CMDLINE_LINUX=\"${GRUB_CMDLINE_LINUX} iommu=pt a=1\"\n"
    );
    let swapped = bench.run(&declared(&["iommu=off"], &["console"]), Mode::Apply);
    assert_eq!(swapped.changes[0].from_text().as_deref(), Some("iommu=pt"));
    assert_eq!(bench.read("etc/default/grub.d/50-cloudimg.cfg"), "GRUB_CMDLINE_LINUX_DEFAULT=\"\"\n");
    assert_eq!(bench.run(&declared(&["iommu=off", "a=1"], &["console"]), Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn boot_entries_are_each_edited() {
    let bench = Bench::new();
    bench.write("proc/cmdline", "root=/a\n");
    bench.write("etc/kernel/cmdline", "root=/a\n");
    for name in ["one", "two"] {
        bench.write(&format!("boot/loader/entries/{name}.conf"), "title x\noptions root=/a quiet\n");
    }
    assert_eq!(bench.run(&declared(&["iommu=pt"], &[]), Mode::Apply).status, OpStatus::Changed);
    assert_eq!(bench.read("etc/kernel/cmdline"), "root=/a iommu=pt\n");
    assert_eq!(bench.read("boot/loader/entries/two.conf"), "title x\noptions root=/a quiet iommu=pt\n");
    assert_eq!(bench.run(&declared(&["iommu=pt"], &[]), Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn a_stale_grub_cfg_is_generated_again() {
    let bench = bench();
    bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX=\"iommu=pt\"\n");
    bench.write("boot/grub/grub.cfg", "menuentry x {\n\tlinux /vmlinuz root=/a\n}\n");
    let cfg = bench.path("boot/grub/grub.cfg");
    bench.script(
        "usr/sbin/update-grub",
        &format!("#!/bin/sh\necho 'linux /vmlinuz root=/a iommu=pt' > {}\n", cfg.display()),
    );
    let task = declared(&["iommu=pt"], &[]);
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((done.status, done.changes.len()), (OpStatus::Changed, 1));
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn an_unreadable_kernel_is_unknown() {
    let bench = bench();
    std::fs::remove_file(bench.path("proc/cmdline")).unwrap();
    let done = bench.run(&declared(&["a"], &[]), Mode::Predict);
    assert!(matches!(done.status, OpStatus::Unknown { .. }), "{done:?}");
}

#[test]
fn without_a_boot_loader_it_says_so() {
    let bench = Bench::new();
    bench.write("proc/cmdline", "x\n");
    let done = bench.run(&declared(&["a"], &[]), Mode::Predict);
    let OpStatus::Failed { kind: FailureKind::Invalid, message } = done.status else { panic!("{done:?}") };
    assert!(message.contains("neither /etc/default/grub"), "{message}");
}

#[test]
fn a_failing_generator_is_a_failure() {
    let bench = bench();
    bench.script("usr/sbin/update-grub", "#!/bin/sh\necho broken >&2\nexit 1\n");
    let done = bench.run(&declared(&["a"], &[]), Mode::Apply);
    let OpStatus::Failed { message, .. } = done.status else { panic!("{done:?}") };
    assert_eq!(message, "update-grub: exit status 1: broken");
}

/// Written by Debian's update-grub from [`DEBIAN`], with memtest86+ and recovery entries.
const RECORDED: &str = include_str!("recorded/debian-12.cfg");
const RECORDED_TUNED: &str = include_str!("recorded/debian-12-tuned.cfg");
const DEBIAN: &str = "GRUB_DISTRIBUTOR=`lsb_release -i -s 2> /dev/null || echo Debian`\n\
                      GRUB_CMDLINE_LINUX_DEFAULT=\"quiet iommu=pt\"\n\
                      GRUB_CMDLINE_LINUX=\"console=tty0 console=ttyS0,115200\"\n";
const TUNED: &str = "GRUB_CMDLINE_LINUX_DEFAULT=\"${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }\\$tuned_params\"\n";

/// Returns a Debian node whose update-grub must not run.
fn debian() -> Bench {
    let bench = Bench::new();
    bench.write("proc/cmdline", "root=/dev/vda1 ro console=tty0 console=ttyS0,115200 quiet iommu=pt\n");
    bench.write("etc/default/grub", DEBIAN);
    bench.write("boot/grub/grub.cfg", RECORDED);
    bench.script("usr/sbin/update-grub", "#!/bin/sh\necho called for nothing >&2\nexit 1\n");
    bench
}

fn tuned() -> Bench {
    let bench = debian();
    bench.write("etc/default/grub", &format!("{DEBIAN}{TUNED}"));
    bench.write("boot/grub/grub.cfg", RECORDED_TUNED);
    bench.write(
        "etc/tuned/bootcmdline",
        "TUNED_BOOT_CMDLINE=\"skew_tick=1 nohz=on\"\nTUNED_BOOT_INITRD_ADD=\"\"\n",
    );
    bench
}

fn refusal(bench: &Bench, task: &KernelCmdline) -> String {
    match bench.run(task, Mode::Predict).status {
        OpStatus::Failed { kind: FailureKind::Invalid, message } => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_testers_and_recovery_entries_are_not_regenerated_for_ever() {
    let bench = debian();
    let before = bench.snapshot();
    for task in [declared(&["iommu=pt"], &[]), declared(&["quiet", "console=ttyS0,115200"], &["nosmt"])] {
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((done.status, done.changes, done.awaiting.len()), (OpStatus::Ok, vec![], 0));
    }
    assert_eq!(bench.snapshot(), before);
}

#[test]
fn the_line_of_tuned_is_no_difference_and_its_words_are_its_own() {
    let bench = tuned();
    let before = bench.snapshot();
    for task in [declared(&["iommu=pt"], &[]), declared(&["skew_tick=1"], &[])] {
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok, "{task:?}");
    }
    assert_eq!(bench.snapshot(), before);
    for task in [declared(&[], &["nohz=on"]), declared(&["nohz=off"], &[])] {
        let message = refusal(&bench, &task);
        assert!(message.starts_with("tuned adds `nohz=on` at boot ("), "{message}");
        assert!(message.contains("etc/tuned/bootcmdline"), "{message}");
    }
    bench.script("usr/sbin/update-grub", "#!/bin/sh\nexit 0\n");
    let task = declared(&["a=1"], &["quiet"]);
    let predicted = bench.run(&task, Mode::Predict);
    assert_eq!(predicted.changes.len(), 2, "{predicted:?}");
    assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
    bench.run(&task, Mode::Apply);
    let expected = DEBIAN.replace("quiet ", "").replace("115200\"", "115200 a=1\"");
    assert_eq!(bench.read("etc/default/grub"), format!("{expected}{TUNED}"));
}

#[test]
fn a_second_console_keeps_the_first() {
    let bench = bench();
    bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX=\"console=tty0\"\n");
    let task = declared(&["console=ttyS1"], &[]);
    let done = bench.run(&task, Mode::Apply);
    assert_eq!(done.changes[0].from_text().as_deref(), Some("without console=ttyS1"));
    assert_eq!(bench.read("etc/default/grub"), "GRUB_CMDLINE_LINUX=\"console=tty0 console=ttyS1\"\n");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    let other_way = declared(&["console=ttyS1", "console=tty0"], &[]);
    let done = bench.run(&other_way, Mode::Apply);
    assert_eq!(done.changes[0].from_text().as_deref(), Some("console=ttyS1 in another order"));
    assert_eq!(bench.read("etc/default/grub"), "GRUB_CMDLINE_LINUX=\"console=ttyS1 console=tty0\"\n");
    assert_eq!(bench.run(&other_way, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn what_a_shell_computes_is_unknown_and_nothing_is_written() {
    let bench = bench();
    bench.write("etc/default/grub", "X=1\nGRUB_CMDLINE_LINUX=\"root=$(findmnt -no SOURCE /) iommu=pt\"\n");
    let before = bench.snapshot();
    let task = declared(&["iommu=pt"], &[]);
    let OpStatus::Unknown { reason } = bench.run(&task, Mode::Predict).status else { panic!("not unknown") };
    assert!(
        reason.contains("etc/default/grub:2: what `\"root=$(findmnt -no SOURCE /) iommu=pt\"` gives"),
        "{reason}"
    );
    let applied = bench.run(&task, Mode::Apply);
    assert!(matches!(applied.status, OpStatus::Failed { kind: FailureKind::Io, .. }), "{applied:?}");
    assert_eq!(bench.snapshot(), before);
}

#[test]
fn with_boot_entries_nothing_is_generated_and_later_kernels_get_the_words_too() {
    let bench = Bench::new();
    bench.write("proc/cmdline", "BOOT_IMAGE=(hd0,gpt2)/vmlinuz root=/a rhgb\n");
    bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX=\"rhgb\"\nGRUB_ENABLE_BLSCFG=true\n");
    bench.write("boot/grub2/grub.cfg", "set default=0\ninsmod blscfg\nblscfg\n");
    bench.write("boot/loader/entries/one.conf", "title x\noptions root=/a rhgb $tuned_params\n");
    bench.script("usr/sbin/grub2-mkconfig", "#!/bin/sh\necho it would overwrite the entries >&2\nexit 1\n");
    let task = declared(&["iommu=pt"], &[]);
    let predicted = bench.run(&task, Mode::Predict);
    assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
    assert_eq!(
        bench.read("boot/loader/entries/one.conf"),
        "title x\noptions root=/a rhgb $tuned_params iommu=pt\n"
    );
    assert_eq!(
        bench.read("etc/default/grub"),
        "GRUB_CMDLINE_LINUX=\"rhgb iommu=pt\"\nGRUB_ENABLE_BLSCFG=true\n"
    );
    assert_eq!(bench.read("etc/kernel/cmdline"), "root=/a rhgb iommu=pt\n");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn options_in_the_environment_of_grub_are_edited_there() {
    let bench = Bench::new();
    bench.write("proc/cmdline", "root=/a only_here\n");
    bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX=\"\"\nGRUB_ENABLE_BLSCFG=true\n");
    bench.write("boot/grub2/grub.cfg", "blscfg\n");
    bench.write(
        "boot/grub2/grubenv",
        "# GRUB Environment Block\nsaved_entry=one\nkernelopts=root=/a only_here\n####",
    );
    bench.write("boot/loader/entries/one.conf", "title x\noptions $kernelopts $tuned_params\n");
    bench.script("usr/bin/grub2-editenv", "#!/bin/sh\nsed -i \"s|^kernelopts=.*|$3|\" \"$1\"\n");
    bench.script("usr/sbin/grub2-mkconfig", "#!/bin/sh\necho it would lose words >&2\nexit 1\n");
    let task = declared(&["iommu=pt"], &[]);
    assert_eq!(bench.run(&task, Mode::Predict).changes.len(), 1);
    assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
    assert!(bench.read("boot/grub2/grubenv").contains("\nkernelopts=root=/a only_here iommu=pt\n"));
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn boot_loaders_that_it_does_not_change_are_refused_by_name() {
    let task = declared(&["a"], &[]);
    for (path, text, says) in [
        ("run/ostree-booted", "", "rpm-ostree kargs"),
        ("boot/extlinux/extlinux.conf", "APPEND x\n", "extlinux"),
        ("etc/kernel/install.conf", "layout=uki\n", "unified kernel images"),
        ("boot/efi/EFI/Linux/debian.efi", "", "unified kernel images"),
    ] {
        let bench = Bench::new();
        bench.write("proc/cmdline", "x\n");
        bench.write(path, text);
        bench.write("etc/kernel/cmdline", "x\n");
        let message = refusal(&bench, &task);
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn proxmox_copies_the_line_although_it_has_grub_too() {
    let bench = bench();
    bench.write("etc/kernel/cmdline", "root=ZFS=rpool quiet\n");
    bench.script("usr/sbin/update-grub", "#!/bin/sh\n");
    bench.script(
        "usr/sbin/proxmox-boot-tool",
        &format!("#!/bin/sh\necho $1 >> {}\n", bench.path("ran").display()),
    );
    let task = declared(&["iommu=pt"], &[]);
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
    assert_eq!(bench.read("ran"), "refresh\n");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn a_list_of_which_the_last_word_counts_grows_where_that_word_stands() {
    let task = declared(&["module_blacklist=nouveau"], &[]);
    for (linux, default, then) in [
        (
            "module_blacklist=nouveau",
            "quiet module_blacklist=a",
            ("module_blacklist=nouveau", "quiet module_blacklist=a,nouveau"),
        ),
        ("module_blacklist=a", "quiet", ("module_blacklist=a,nouveau", "quiet")),
    ] {
        for has_drop_ins in [false, true] {
            let bench = bench();
            if has_drop_ins {
                std::fs::create_dir_all(bench.path("etc/default/grub.d")).unwrap();
            }
            let text = |(linux, default): (&str, &str)| {
                format!("GRUB_CMDLINE_LINUX_DEFAULT=\"{default}\"\nGRUB_CMDLINE_LINUX=\"{linux}\"\n")
            };
            bench.write("etc/default/grub", &text((linux, default)));
            assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
            assert_eq!(bench.read("etc/default/grub"), text(then));
            assert!(!bench.path("etc/default/grub.d/99-gpufleet.cfg").exists());
            assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        }
    }
    let bench = bench();
    bench.write("etc/default/grub", "GRUB_X=module_blacklist=a\nGRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_X\"\n");
    let message = refusal(&bench, &task);
    assert!(
        message.starts_with("the kernel reads only the last `module_blacklist`, and `module_blacklist=a`"),
        "{message}"
    );
}

#[test]
fn a_whole_list_is_removed() {
    let bench = bench();
    bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX=\"modprobe.blacklist=nouveau,nvidiafb quiet\"\n");
    let task = declared(&[], &["modprobe.blacklist=nouveau,nvidiafb"]);
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
    assert_eq!(bench.read("etc/default/grub"), "GRUB_CMDLINE_LINUX=\"quiet\"\n");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}
