use gpufleet_protocol::{OpStatus, message::Mode};

use super::*;
use crate::tasks::testing::{Bench, changed, told};

fn declared(add: &[&str], remove: &[&str]) -> KernelCmdline {
    let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    KernelCmdline { add: own(add), remove: own(remove) }
}

/// Makes grub.cfg as the real one does, by the shell's own reading.
const UPDATE_GRUB: &str = "#!/bin/sh\nd=$(dirname \"$0\")/../..\n. $d/etc/default/grub\n\
                           for f in $d/etc/default/grub.d/*.cfg; do [ ! -e \"$f\" ] || . \"$f\"; done\nmkdir -p $d/boot/grub\n\
                           echo \"linux /vmlinuz root=/a $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT\" > $d/boot/grub/grub.cfg\n";

fn bench() -> Bench {
    let bench = Bench::new();
    bench.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 quiet\n");
    bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"\"\n");
    bench
}

#[test]
fn a_word_is_written_and_awaits_a_reboot() {
    let bench = bench();
    bench.script(
        "usr/sbin/update-grub",
        &format!("{UPDATE_GRUB}echo ran >> {}\n", bench.path("ran").display()),
    );
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
    let path = bench.path("etc/default/grub");
    assert_eq!(
        message,
        format!(
            "update-grub: exit status 1: broken; {} stays as written, the boot loader does not have it yet, and the next run makes \
             up for that",
            path.display()
        )
    );
}

/// What a file declares is done only when what is made from it has it.
#[test]
fn a_failed_generator_is_made_up_for() {
    let line = "### BEGIN /etc/grub.d/10_linux ###\nlinux /vmlinuz root=/a quiet\n";
    for (what, grub_cfg) in
        [("absent", None), ("older", Some(line)), ("of a form nobody knows", Some("configfile x\n"))]
    {
        for program in ["#!/bin/sh\necho broken >&2\nexit 1\n", "#!/bin/sh\nkill -9 $$\n"] {
            let bench = bench();
            std::fs::create_dir_all(bench.path("etc/default/grub.d")).unwrap();
            if let Some(text) = grub_cfg {
                bench.write("boot/grub/grub.cfg", text);
            }
            bench.script("usr/sbin/update-grub", program);
            let task = declared(&["iommu=pt"], &[]);
            for _ in 0..2 {
                let failed = bench.run(&task, Mode::Apply);
                assert!(matches!(failed.status, OpStatus::Failed { .. }), "{what}: {failed:?}");
            }
            bench.script("usr/sbin/update-grub", UPDATE_GRUB);
            let before = bench.snapshot();
            let predicted = bench.run(&task, Mode::Predict);
            assert_eq!(bench.snapshot(), before, "{what}");
            assert_eq!((&predicted.status, predicted.changes.len()), (&OpStatus::Changed, 1), "{what}");
            let again = bench.run(&task, Mode::Predict);
            assert_eq!(again.status, OpStatus::Ok, "{what}: {again:?}");
            bench.forget();
            let done = bench.run(&task, Mode::Apply);
            assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{what}");
            assert!(bench.read("boot/grub/grub.cfg").contains("iommu=pt"), "{what}");
            assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok, "{what}");
        }
    }
}

#[test]
fn a_generator_that_makes_no_grub_cfg_is_no_success() {
    let bench = bench();
    bench.script("usr/sbin/update-grub", "#!/bin/sh\n");
    let done = bench.run(&declared(&["iommu=pt"], &[]), Mode::Apply);
    let OpStatus::Failed { kind: FailureKind::Unconverged, message } = done.status else {
        panic!("{done:?}")
    };
    assert_eq!(message, "kernel command line was set to iommu=pt, but reads in no grub.cfg afterwards");
}

/// The kernel ignores a size given twice, the number behind it included.
#[test]
fn a_size_that_stands_alone_goes_for_the_pair() {
    let bench = bench();
    std::fs::create_dir_all(bench.path("etc/default/grub.d")).unwrap();
    bench.script("usr/sbin/update-grub", UPDATE_GRUB);
    bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX=\"quiet hugepagesz=1G default_hugepagesz=2M\"\n");
    let task = declared(&["hugepagesz=1G", "hugepages=8"], &[]);
    let done = bench.run(&task, Mode::Apply);
    let (_, from, to) = told(&done.changes[0]);
    assert_eq!((from, to), (Some("hugepagesz=1G"), "hugepagesz=1G hugepages=8"));
    assert_eq!(bench.read("etc/default/grub"), "GRUB_CMDLINE_LINUX=\"quiet default_hugepagesz=2M\"\n");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
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
fn a_killed_helper_costs_later_kernels_no_word() {
    let bench = Bench::new();
    bench.write("proc/cmdline", "root=/a rhgb\n");
    bench.write("boot/loader/entries/one.conf", "title x\noptions root=/a rhgb\n");
    let task = declared(&["iommu=pt"], &[]);
    let plan = bench.node(|node| task.plan(&task.observe(node).unwrap())).unwrap();
    let first = plan.steps.first();
    assert!(
        matches!(first, Some(Step::Write { path, .. }) if path.ends_with("etc/kernel/cmdline")),
        "{first:?}"
    );
    // As after a helper of an older version that was killed.
    bench.write("boot/loader/entries/one.conf", "title x\noptions root=/a rhgb iommu=pt\n");
    let predicted = bench.run(&task, Mode::Predict);
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
    assert_eq!(told(&done.changes[0]), ("kernel command line", Some("without iommu=pt"), "iommu=pt"));
    assert_eq!(bench.read("etc/kernel/cmdline"), "root=/a rhgb iommu=pt\n");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn a_killed_refresh_of_the_boot_loader_is_made_up_for() {
    let bench = Bench::new();
    bench.write("proc/cmdline", "root=/a\n");
    bench.write("etc/kernel/cmdline", "root=/a\n");
    bench.script(
        "usr/sbin/proxmox-boot-tool",
        "#!/bin/sh\nhere=$(dirname \"$0\")/../..\ncp $here/etc/kernel/cmdline $here/partition\n",
    );
    let task = declared(&["iommu=pt"], &[]);
    bench.killed(&task, Disruption::Live, "running proxmox-boot-tool");
    assert_eq!(bench.read("etc/kernel/cmdline"), "root=/a iommu=pt\n");
    assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Changed);
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((done.status, done.changes.len()), (OpStatus::Changed, 1));
    assert_eq!(bench.read("partition"), "root=/a iommu=pt\n");
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
    for (id, says) in [
        ("bottlerocket", "apiclient set settings.boot.kernel-parameters"),
        ("flatcar", "linux_append"),
        ("sl-micro", "transactional-update shell"),
    ] {
        let bench = bench();
        bench.write("etc/os-release", &format!("ID={id}\n"));
        let message = refusal(&bench, &task);
        assert!(message.contains(says), "{message}");
    }
    let bench = bench();
    bench.write("proc/self/mountinfo", "1 0 0:1 / / rw - tmpfs tmpfs rw\n");
    let message = refusal(&bench, &task);
    assert!(message.starts_with("the files of this system are in memory (tmpfs)"), "{message}");
}

#[test]
fn a_line_that_the_kernel_would_cut_is_refused() {
    let bench = debian();
    bench.script("usr/sbin/update-grub", "#!/bin/sh\nexit 0\n");
    let long = |length: usize| declared(&[&format!("x={}", "y".repeat(length))], &[]);
    let message = refusal(&bench, &long(2000));
    assert!(message.starts_with("the kernel command line has 2"), "{message}");
    assert!(message.contains("the kernel keeps 2047"), "{message}");
    assert_eq!(bench.run(&long(1000), Mode::Predict).status, OpStatus::Changed);
    bench.forget();
    let grown = DEBIAN.replace("quiet", &format!("quiet y={}", "z".repeat(2100)));
    bench.write("etc/default/grub", &grown);
    let shrunk = bench.run(&declared(&[], &["quiet"]), Mode::Predict);
    assert_eq!(shrunk.status, OpStatus::Changed, "a shorter line is no worse");
    assert!(shrunk.warnings.iter().any(|told| told.contains("cuts off the rest")), "{shrunk:?}");
}

#[test]
fn another_kernel_at_the_next_boot_is_told() {
    let bench = debian();
    bench.write("proc/sys/kernel/osrelease", "6.1.0-9-amd64\n");
    let task = declared(&["iommu=pt"], &[]);
    let told = "the next boot starts the kernel 6.1.0-13-amd64, not 6.1.0-9-amd64, which runs";
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((done.status, done.warnings.as_slice()), (OpStatus::Ok, [told.to_owned()].as_slice()));
    assert_eq!(done.data["next_kernel"], json!("6.1.0-13-amd64"));
    bench.write("boot/grub/grubenv", "# GRUB Environment Block\nnext_entry=1>2\n###");
    assert_eq!(bench.run(&task, Mode::Apply).warnings, Vec::<String>::new());
}

#[test]
fn the_file_that_a_word_comes_from_is_named() {
    let bench = bench();
    bench.write(
        "etc/default/grub.d/50-cloudimg-settings.cfg",
        "GRUB_CMDLINE_LINUX_DEFAULT=\"iommu=off nosmt\"\n",
    );
    let done = bench.run(&declared(&["iommu=pt"], &["nosmt"]), Mode::Predict);
    for change in &done.changes {
        let note = change.note.as_deref().unwrap_or_default();
        assert!(note.ends_with("etc/default/grub.d/50-cloudimg-settings.cfg"), "{change:?}");
    }
    assert_eq!(done.changes.len(), 2);
}

/// RHEL 8 with BLS: the entries have their options in GRUB's environment, and grub.cfg is on the EFI system partition.
#[test]
fn rhel_8_keeps_its_words_in_the_environment_of_grub() {
    let bench = Bench::new();
    let options = "root=/dev/mapper/rhel-root ro crashkernel=auto resume=/dev/mapper/rhel-swap rd.lvm.lv=rhel/root \
                   rd.lvm.lv=rhel/swap only_here=1";
    bench.write(
        "proc/cmdline",
        &format!("BOOT_IMAGE=(hd0,gpt2)/vmlinuz-4.18.0-553.el8_10.x86_64 {options}\n"),
    );
    bench.write("proc/sys/kernel/osrelease", "4.18.0-553.el8_10.x86_64\n");
    bench.write(
        "etc/default/grub",
        "GRUB_DEFAULT=saved\nGRUB_CMDLINE_LINUX=\"crashkernel=auto rd.lvm.lv=rhel/root\"\nGRUB_ENABLE_BLSCFG=true\n",
    );
    bench.write("boot/efi/EFI/redhat/grub.cfg", "set default=\"${saved_entry}\"\ninsmod blscfg\nblscfg\n");
    let id = "0123456789abcdef0123456789abcdef-4.18.0-553.el8_10.x86_64";
    bench.write(
        "boot/grub2/grubenv",
        &format!("# GRUB Environment Block\nsaved_entry={id}\nkernelopts={options}\nboot_success=0\n#####"),
    );
    bench.write(
        &format!("boot/loader/entries/{id}.conf"),
        "title Red Hat Enterprise Linux\nversion 4.18.0-553.el8_10.x86_64\nlinux /vmlinuz-4.18.0-553.el8_10.x86_64\n\
         initrd /initramfs-4.18.0-553.el8_10.x86_64.img $tuned_initrd\noptions $kernelopts $tuned_params\n",
    );
    bench.script("usr/bin/grub2-editenv", "#!/bin/sh\nsed -i \"s|^kernelopts=.*|$3|\" \"$1\"\n");
    bench.script("usr/sbin/grub2-mkconfig", "#!/bin/sh\necho it would lose only_here >&2\nexit 1\n");
    let task = declared(&["crashkernel=512M", "rd.lvm.lv=rhel/data"], &[]);
    let predicted = bench.run(&task, Mode::Predict);
    let note = predicted.changes[0].note.as_deref().unwrap_or_default();
    assert!(note.ends_with("boot/grub2/grubenv (kernelopts)"), "{predicted:?}");
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    let now = bench.read("boot/grub2/grubenv");
    let then = options.replace("crashkernel=auto ", "");
    assert!(now.contains(&format!("\nkernelopts={then} crashkernel=512M rd.lvm.lv=rhel/data\n")), "{now}");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

/// RHEL 9: entries with options of their own, which a new kernel gets from /etc/kernel/cmdline.
#[test]
fn rhel_9_keeps_its_words_in_the_entries_and_in_a_file_for_new_kernels() {
    let bench = Bench::new();
    let (old, new) = ("5.14.0-427.el9.x86_64", "5.14.0-503.el9.x86_64");
    bench.write("proc/cmdline", &format!("BOOT_IMAGE=(hd0,gpt2)/vmlinuz-{old} root=/dev/sda4 ro quiet\n"));
    bench.write("proc/sys/kernel/osrelease", &format!("{old}\n"));
    bench.write(
        "etc/default/grub",
        "GRUB_DEFAULT=saved\nGRUB_CMDLINE_LINUX=\"quiet\"\nGRUB_ENABLE_BLSCFG=true\n",
    );
    bench.write("etc/kernel/cmdline", "root=/dev/sda4 ro quiet\n");
    bench.write("boot/grub2/grub.cfg", "set default=\"${saved_entry}\"\ninsmod blscfg\nblscfg\n");
    bench.write("boot/grub2/grubenv", &format!("# GRUB Environment Block\nsaved_entry=abc-{new}\n####"));
    for version in [old, new] {
        bench.write(
            &format!("boot/loader/entries/abc-{version}.conf"),
            &format!(
                "version {version}\nlinux /vmlinuz-{version}\noptions root=/dev/sda4 ro quiet $tuned_params\n"
            ),
        );
    }
    bench.write(
        "boot/loader/entries/abc-0-rescue.conf",
        "version 0-rescue-abc\nlinux /vmlinuz-0-rescue-abc\noptions root=/dev/sda4 ro quiet\n",
    );
    let task = declared(&["iommu=pt"], &["quiet"]);
    let done = bench.run(&task, Mode::Apply);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(done.warnings, [format!("the next boot starts the kernel {new}, not {old}, which runs")]);
    assert_eq!(bench.read("etc/kernel/cmdline"), "root=/dev/sda4 ro iommu=pt\n");
    let entry = bench.read(&format!("boot/loader/entries/abc-{new}.conf"));
    assert!(entry.ends_with("options root=/dev/sda4 ro $tuned_params iommu=pt\n"), "{entry}");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

/// SLES: /etc/default/grub alone, without drop-ins, and grub2-mkconfig.
#[test]
fn sles_generates_from_the_one_file() {
    let bench = Bench::new();
    bench.write("proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-6.4.0-default root=UUID=1 splash=silent quiet\n");
    bench.write(
        "etc/default/grub",
        "GRUB_DISTRIBUTOR=\nGRUB_DEFAULT=saved\nGRUB_CMDLINE_LINUX_DEFAULT=\"splash=silent quiet\"\nGRUB_CMDLINE_LINUX=\"\"\n",
    );
    bench.write(
        "boot/grub2/grub.cfg",
        "### BEGIN /etc/grub.d/10_linux ###\nmenuentry 'SLES' $menuentry_id_option 'gnulinux-simple-1' {\n\
         \tlinux\t/boot/vmlinuz-6.4.0-default root=UUID=1  splash=silent quiet\n}\n### END /etc/grub.d/10_linux ###\n",
    );
    // As 10_linux composes the line.
    bench.script(
        "usr/sbin/grub2-mkconfig",
        "#!/bin/sh\nset -e\n# reads no drop-ins\n. \"$(dirname \"$0\")/../../etc/default/grub\"\n\
         sed -i \"s|root=UUID=1.*|root=UUID=1 $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT|\" \"$2\"\n",
    );
    let task = declared(&["iommu=pt"], &["quiet"]);
    let predicted = bench.run(&task, Mode::Predict);
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    assert!(bench.read("boot/grub2/grub.cfg").contains("root=UUID=1 iommu=pt splash=silent\n"));
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

/// systemd-boot without /etc/kernel/cmdline: kernel-install would give a new kernel the words of the running one.
#[test]
fn systemd_boot_gets_a_file_for_new_kernels() {
    let bench = Bench::new();
    bench.write("proc/cmdline", "initrd=\\m\\6.1.0\\initrd root=UUID=1 quiet\n");
    bench.write("boot/efi/loader/loader.conf", "default m-*\n");
    bench.write(
        "boot/efi/loader/entries/m-6.1.0.conf",
        "title Debian\nversion 6.1.0\noptions root=UUID=1 quiet\nlinux /m/6.1.0/linux\n",
    );
    let task = declared(&["iommu=pt"], &[]);
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
    assert_eq!(bench.read("etc/kernel/cmdline"), "root=UUID=1 quiet iommu=pt\n");
    assert!(
        bench.read("boot/efi/loader/entries/m-6.1.0.conf").contains("options root=UUID=1 quiet iommu=pt\n")
    );
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
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
