use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode, tasks::Kind as _};

use super::*;
use crate::{
    declare::drive,
    tasks::testing::{Bench, Told, told},
};

const FAKE: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
echo "$@" >> $d/log
if [ "$1" = -r ]; then grep -v "^$3 " $d/proc/modules > $d/proc/new; cat $d/proc/new > $d/proc/modules; rm $d/proc/new; exit 0; fi
if [ "$2" = nosuch ]; then echo "modprobe: FATAL: Module nosuch not found in directory /lib/modules/6.1" >&2; exit 1; fi
echo "$2 16384 0 - Live 0x0" | tr - _ >> $d/proc/modules
"#;

fn bench() -> Bench {
    let bench = Bench::new();
    bench.script("usr/sbin/modprobe", FAKE);
    bench.write("proc/modules", "nvidia 16384 0 - Live 0x0\n");
    bench.write("proc/sys/kernel/osrelease", "6.1\n");
    bench.write("lib/modules/6.1/modules.builtin", "kernel/fs/ext4/ext4.ko\nkernel/drivers/tun-tap.ko.xz\n");
    bench.write("log", "");
    bench
}

fn module(value: Value) -> Modprobe {
    serde_json::from_value(value).unwrap()
}

fn shown(outcome: &OpOutcome) -> Vec<(&str, &str, &str)> {
    let each = |(what, from, to): Told| (what, from.unwrap_or_default(), to);
    outcome.changes.iter().map(told).map(each).collect()
}

#[test]
fn a_module_is_loaded_now_and_at_boot_once() {
    let bench = bench();
    let task = module(json!({"name": "nvidia-peermem", "params": "a=1  b=2", "persistent": "present"}));
    let before = bench.snapshot();
    let predicted = bench.run(&task, Mode::Predict);
    assert_eq!(bench.snapshot(), before);
    assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
    assert_eq!(
        shown(&done),
        [
            ("module nvidia-peermem", "not loaded", "loaded"),
            ("module nvidia-peermem at boot", "left to others", "loaded"),
            ("module nvidia-peermem options at boot", "none", "a=1 b=2"),
        ]
    );
    assert_eq!(bench.read("log"), "-- nvidia-peermem a=1 b=2\n");
    assert_eq!(bench.read("etc/modules-load.d/nvidia-peermem.conf"), "nvidia-peermem\n");
    assert_eq!(bench.read("etc/modprobe.d/nvidia-peermem.conf"), "options nvidia-peermem a=1 b=2\n");
    let settled = bench.snapshot();
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    assert_eq!(bench.snapshot(), settled);
}

#[test]
fn a_module_goes_and_stays_away() {
    let bench = bench();
    bench.write("etc/modules-load.d/all.conf", "nvidia\nipmi_si\n");
    bench.write("etc/modprobe.d/x.conf", "options nvidia NVreg_A=1\nblacklist nouveau\n");
    let task = module(json!({"name": "nvidia", "state": "absent", "persistent": "absent"}));
    let permit = Disruption::GpuReset;
    let done = bench.node(|node| drive(&task, node, Mode::Apply, &bench.overlay, permit, &|_| Ok(())));
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(bench.read("etc/modules-load.d/all.conf"), "#nvidia\nipmi_si\n");
    assert_eq!(bench.read("etc/modprobe.d/x.conf"), "#options nvidia NVreg_A=1\nblacklist nouveau\n");
    assert_eq!(bench.read("proc/modules"), "");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn other_options_are_replaced() {
    let bench = bench();
    bench.write("etc/modprobe.d/other.conf", "options nvidia NVreg_A=1\n");
    let task = module(json!({"name": "nvidia", "params": "NVreg_A=2", "persistent": "present"}));
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
    assert_eq!(bench.read("etc/modprobe.d/other.conf"), "#options nvidia NVreg_A=1\n");
    assert_eq!(bench.read("etc/modprobe.d/nvidia.conf"), "options nvidia NVreg_A=2\n");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn files_of_other_folders_that_set_the_same_option_are_named() {
    let bench = bench();
    bench.write("usr/lib/modprobe.d/nvidia-dist.conf", "options nvidia \\\n NVreg_A=0\n");
    bench.write("usr/lib/modprobe.d/zz-dist.conf", "options nvidia NVreg_A=3\n");
    bench.write("usr/lib/modprobe.d/nvidia.conf", "softdep nvidia post: nvidia-uvm\n");
    bench.write("etc/modprobe.d/site.conf", "options nvidia NVreg_B=1 \\\n NVreg_C=1\n");
    let task = module(json!({"name": "nvidia", "params": "NVreg_A=1", "persistent": "present"}));
    let done = bench.run(&task, Mode::Apply);
    assert_eq!(bench.read("etc/modprobe.d/site.conf"), "#options nvidia NVreg_B=1 \\\n# NVreg_C=1\n");
    let options = done.changes.last().unwrap();
    assert_eq!(options.from_text().as_deref(), Some("NVreg_B=1 NVreg_C=1"));
    let lower = bench.path("usr/lib/modprobe.d/nvidia-dist.conf");
    let counts = format!("counts over NVreg_A=0 of {}", lower.display());
    assert_eq!(options.note.as_deref(), Some(counts.as_str()));
    let wins = format!(
        "{} sets NVreg_A=3 for nvidia too, and counts, because its name is the later one: an empty \
             /etc/modprobe.d/zz-dist.conf would hide it",
        bench.path("usr/lib/modprobe.d/zz-dist.conf").display()
    );
    assert_eq!(done.warnings.len(), 2);
    assert_eq!(done.warnings[0], wins);
    assert!(done.warnings[1].contains("takes the place of "), "{done:?}");
    let again = bench.run(&task, Mode::Apply);
    assert_eq!((again.status, again.warnings), (OpStatus::Ok, vec![wins]));
    bench.write("etc/modprobe.d/zz-dist.conf", "");
    assert_eq!(bench.run(&task, Mode::Apply).warnings, Vec::<String>::new());
}

/// Returns a node with an initramfs, listed like lsinitramfs of initramfs-tools.
fn with_initramfs(listing: &str) -> Bench {
    let bench = bench();
    bench.write("boot/initrd.img-6.1", "old\n");
    bench.write("boot/initrd.img-6.0", "old\n");
    bench.write("lib/modules/6.0/modules.builtin", "");
    bench.script("usr/bin/lsinitramfs", &format!("#!/bin/sh\n{listing}\n"));
    bench.script(
            "usr/sbin/update-initramfs",
            "#!/bin/sh\nd=$(dirname \"$0\")/../..\necho update-initramfs $@ >> $d/log\nfor i in $d/boot/*; do echo new > $i; done\n",
        );
    bench
}

#[test]
fn options_of_a_module_in_the_initramfs_rebuild_it_once() {
    let held = "echo usr/lib/modules/6.1/kernel/drivers/net/mlx5-core.ko.xz";
    let bench = with_initramfs(held);
    let task = module(json!({"name": "mlx5_core", "params": "a=1", "persistent": "present"}));
    let before = bench.snapshot();
    let predicted = bench.run(&task, Mode::Predict);
    assert_eq!(bench.snapshot(), before);
    assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
    bench.forget();
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
    let last = shown(&done).pop();
    assert_eq!(last, Some(("module mlx5_core in the initramfs", "with older options", "as in modprobe.d")));
    assert!(bench.read("log").ends_with("update-initramfs -u -k all\n"), "{}", bench.read("log"));
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    // An image that was built before the options, as after a run that died in between.
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::options()
        .write(true)
        .open(bench.path("boot/initrd.img-6.0"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    assert_eq!(bench.run(&task, Mode::Apply).changes.len(), 1);
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

fn age(bench: &Bench, below: &str, hours: u64) {
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600 * hours);
    fs::File::options().write(true).open(bench.path(below)).unwrap().set_modified(then).unwrap();
}

#[test]
fn an_image_whose_kernel_is_gone_is_nobodys_matter() {
    let bench = with_initramfs("echo usr/lib/modules/6.1/kernel/mlx5_core.ko");
    bench.write("boot/initrd.img-5.10.0-x", "old\n");
    bench.write("etc/modprobe.d/mlx5_core.conf", "options mlx5_core a=1\n");
    age(&bench, "etc/modprobe.d/mlx5_core.conf", 2);
    age(&bench, "boot/initrd.img-5.10.0-x", 9);
    bench.write("etc/modules-load.d/mlx5_core.conf", "mlx5_core\n");
    bench.write("proc/modules", "mlx5_core 16384 0 - Live 0x0\n");
    let task = module(json!({"name": "mlx5_core", "params": "a=1", "persistent": "present"}));
    assert_eq!(bench.run(&task, Mode::Apply).changes, []);
    bench.write("boot/initramfs-linux.img", "old\n");
    age(&bench, "boot/initramfs-linux.img", 9);
    assert_eq!(bench.run(&task, Mode::Apply).changes.len(), 1, "this one is named after no release");
}

#[test]
fn images_are_built_by_the_next_run_where_the_last_one_failed_to() {
    let bench = with_initramfs("echo usr/lib/modules/6.1/kernel/mlx5_core.ko");
    for image in ["boot/initrd.img-6.1", "boot/initrd.img-6.0"] {
        age(&bench, image, 2);
    }
    bench.write("etc/modprobe.d/site.conf", "options mlx5_core a=1\n");
    let build = bench.read("usr/sbin/update-initramfs");
    bench.script("usr/sbin/update-initramfs", "#!/bin/sh\necho no space >&2\nexit 1\n");
    let task = module(json!({"name": "mlx5_core", "persistent": "absent", "state": "absent"}));
    let failed = bench.run(&task, Mode::Apply);
    assert!(matches!(failed.status, OpStatus::Failed { .. }), "{failed:?}");
    assert_eq!(bench.read("etc/modprobe.d/site.conf"), "#options mlx5_core a=1\n");
    bench.script("usr/sbin/update-initramfs", &build);
    let predicted = bench.run(&task, Mode::Predict);
    assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
    assert_eq!(done.changes[0].what(), "module mlx5_core in the initramfs");
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn an_initramfs_without_the_module_stays_and_one_that_nobody_can_read_is_built() {
    let task = module(json!({"name": "nvidia-peermem", "params": "a=1", "persistent": "present"}));
    let without =
        with_initramfs("echo usr/lib/modules/6.1/kernel/nvidia.ko; echo etc/modprobe.d/nvidia-peermem.conf");
    assert_eq!(without.run(&task, Mode::Apply).changes.len(), 3);
    assert!(!without.read("log").contains("update-initramfs"));
    let unreadable = with_initramfs("echo broken >&2; exit 1");
    let done = unreadable.run(&task, Mode::Apply);
    assert_eq!(shown(&done).pop().unwrap().1, "perhaps with older options");
    assert_eq!(unreadable.run(&task, Mode::Apply).status, OpStatus::Ok);
    let nobody = with_initramfs("echo broken >&2; exit 1");
    fs::remove_file(nobody.path("usr/sbin/update-initramfs")).unwrap();
    let warned = nobody.run(&task, Mode::Apply);
    assert_eq!(
        warned.warnings,
        [
            "the initramfs may hold nvidia-peermem with older options (lsinitramfs: exit status 1: broken), and neither \
              update-initramfs nor dracut nor mkinitcpio is there to build it again"
        ]
    );
}

#[test]
fn a_loaded_module_with_other_options_awaits_a_reload_or_a_reboot() {
    let bench = bench();
    bench.write("proc/driver/nvidia/params", "EnableGpuFirmware: 18\nModifyDeviceFiles: 1\n");
    let task = |persistent: &str| {
        module(json!({"name": "nvidia", "params": "NVreg_EnableGpuFirmware=0", "persistent": persistent}))
    };
    let now_only = bench.run(&task("disabled"), Mode::Apply);
    assert_eq!((&now_only.status, now_only.awaiting.len()), (&OpStatus::Ok, 0));
    assert!(
        now_only.warnings[0].starts_with("the module nvidia runs with NVreg_EnableGpuFirmware=18, not 0")
    );
    let predicted = bench.run(&task("present"), Mode::Predict);
    bench.activate(Disruption::Reboot);
    assert_eq!(bench.run(&task("present"), Mode::Predict).awaiting, []);
    let done = bench.run(&task("present"), Mode::Apply);
    assert_eq!((&done.changes, &done.awaiting), (&predicted.changes, &predicted.awaiting));
    assert_eq!(
        done.awaiting[0].reason,
        "the module nvidia runs with NVreg_EnableGpuFirmware=18, not 0; it takes its options when it is loaded, after an \
             unload or a reboot"
    );
    let again = bench.run(&task("present"), Mode::Apply);
    assert_eq!((again.status, again.awaiting.len()), (OpStatus::Ok, 1));
    // Booted with them, and still other: another boot would find the same.
    bench.write("proc/stat", "btime 4000000000\n");
    bench.write("proc/1/stat", "1 (systemd) S 0 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 10\n");
    let still = bench.run(&task("present"), Mode::Apply);
    assert_eq!((still.status, still.awaiting.len()), (OpStatus::Ok, 0));
    assert!(still.warnings[0].contains("were there when the node booted"), "{:?}", still.warnings);
    bench.write("proc/driver/nvidia/params", "EnableGpuFirmware: 0\n");
    assert_eq!(bench.run(&task("present"), Mode::Apply).awaiting, []);
}

#[test]
fn options_of_a_built_in_module_are_words_of_the_kernel_command_line() {
    let bench = bench();
    let task = module(json!({"name": "tun_tap", "params": "debug=1", "persistent": "present"}));
    let done = bench.run(&task, Mode::Apply);
    assert!(done.warnings[0].ends_with("`kernel_cmdline: {add: [tun_tap.debug=1]}` sets them"), "{done:?}");
}

#[test]
fn built_in_modules_are_there_and_stay() {
    let bench = bench();
    assert_eq!(bench.run(&module(json!({"name": "tun_tap"})), Mode::Apply).status, OpStatus::Ok);
    let refused = bench.run(&module(json!({"name": "ext4", "state": "absent"})), Mode::Predict);
    let OpStatus::Failed { message, .. } = refused.status else { panic!("{refused:?}") };
    assert_eq!(message, "ext4 is part of the kernel itself: it cannot be unloaded");
}

#[test]
fn what_modprobe_says_is_told_and_an_unreadable_list_is_unknown() {
    let bench = bench();
    let failed = bench.run(&module(json!({"name": "nosuch"})), Mode::Apply);
    let OpStatus::Failed { message, .. } = failed.status else { panic!("{failed:?}") };
    assert_eq!(
        message,
        "modprobe nosuch: exit status 1: modprobe: FATAL: Module nosuch not found in directory /lib/modules/6.1"
    );
    fs::remove_file(bench.path("proc/modules")).unwrap();
    bench.write("proc/sys/kernel/modprobe", "/sbin/modprobe\n");
    let unknown = bench.run(&module(json!({"name": "nvidia"})), Mode::Predict);
    assert!(matches!(unknown.status, OpStatus::Unknown { .. }), "{unknown:?}");
}

/// Such as those of virtual machines that are built in one piece.
#[test]
fn a_kernel_that_loads_no_modules_has_none() {
    let bench = bench();
    fs::remove_file(bench.path("proc/modules")).unwrap();
    let of = |value: Value| bench.run(&module(value), Mode::Predict).status;
    let OpStatus::NotApplicable { reason } = of(json!({"name": "nvidia"})) else { panic!() };
    assert_eq!(
        reason,
        "the running kernel loads no modules (there is no /proc/modules), and nvidia is no part of it"
    );
    assert_eq!(of(json!({"name": "ext4"})), OpStatus::Ok);
    assert_eq!(of(json!({"name": "nvidia", "state": "absent"})), OpStatus::Ok);
}

#[test]
fn options_with_quotes_reach_the_kernel_as_one() {
    for params in ["dyndbg=\"file a.c +p; func  b -p\" x=1", "'dyndbg=file a.c +p; func  b -p' x=1"] {
        let bench = bench();
        bench.script(
                "usr/sbin/modprobe",
                "#!/bin/sh\nd=$(dirname \"$0\")/../..\nfor w; do echo \"<$w>\" >> $d/log; done\necho \"$2 1 0 - Live 0x0\" >> $d/proc/modules\n",
            );
        let task = module(json!({"name": "x", "params": params, "persistent": "present"}));
        let done = bench.run(&task, Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert_eq!(bench.read("log"), "<-->\n<x>\n<dyndbg=file a.c +p; func  b -p>\n<x=1>\n");
        assert_eq!(bench.read("etc/modprobe.d/x.conf"), "options x dyndbg=\"file a.c +p; func  b -p\" x=1\n");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }
    let refused = |params: &str| {
        let read = Modprobe::INFO.parse(json!({"name": "x", "params": params}));
        read.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(refused("a=\"b"), "a quote is opened and not closed");
    assert_eq!(refused("a='\"'"), "`a=\"`: the kernel knows quotes around a value, and none within it");
}
