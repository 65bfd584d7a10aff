use gpufleet_protocol::{Disruption, OpStatus, message::Mode, tasks::GpuDriver};
use serde_json::json;

use super::{
    Driver,
    attempt::{Attempt, Former},
    seen::{Module, Seen},
};
use crate::{
    declare::Trouble,
    gpu::{
        Gpus,
        sim::{Sim, SimGpu, SimMachine},
    },
    state::Record,
    tasks::testing::Bench,
    world::{Content, Effect, Entry, Owned},
};

/// A node with one GPU, a loaded module and its library.
fn bench() -> Bench {
    let bench = Bench::new();
    for (file, text) in [("vendor", "0x10de\n"), ("class", "0x030200\n")] {
        bench.write(&format!("sys/bus/pci/devices/0000:1b:00.0/{file}"), text);
    }
    bench.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
    bench.write("proc/sys/kernel/random/boot_id", "first\n");
    bench.write("sys/module/nvidia/version", "580.159.04\n");
    bench.write("sys/module/nvidia/refcnt", "0\n");
    bench.write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n",
    );
    bench.write("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04", "");
    let link = bench.path("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1");
    std::os::unix::fs::symlink("libnvidia-ml.so.580.159.04", link).unwrap();
    modinfo(&bench, "580.159.04", "Dual MIT/GPL");
    bench
}

fn modinfo(bench: &Bench, version: &str, license: &str) {
    bench.script(
        "usr/sbin/modinfo",
        &format!("#!/bin/sh\ncase $4 in version) echo {version};; license) echo '{license}';; esac\n"),
    );
}

fn seen(bench: &Bench) -> Seen {
    bench.node(Seen::read).unwrap()
}

#[test]
fn a_driver_is_seen_on_the_bus_in_the_kernel_and_on_disk() {
    let bench = bench();
    let now = seen(&bench);
    assert_eq!((now.gpus, now.kernel.as_str(), now.kernels_own.len()), (1, "6.8.0-45-generic", 0));
    assert_eq!(now.loaded, now.disk);
    assert_eq!(
        now.loaded.as_ref().map(|module| (module.version.as_str(), module.open)),
        Some(("580.159.04", Some(true)))
    );
    assert!(now.is_whole() && now.fixed.is_none() && now.unsigned.is_none() && now.foreign.is_none());

    modinfo(&bench, "590.44.01", "NVIDIA");
    let armed = seen(&bench);
    assert_eq!(
        armed.disk.as_ref().map(|module| (module.version.as_str(), module.open)),
        Some(("590.44.01", Some(false)))
    );
    assert!(!armed.is_whole(), "the library is of the former driver");

    // A module that tells no version is no absent module.
    std::fs::remove_file(bench.path("sys/module/nvidia/version")).unwrap();
    std::fs::remove_file(bench.path("proc/driver/nvidia/version")).unwrap();
    assert!(matches!(bench.node(Seen::read), Err(Trouble::Failed { .. })));
}

#[test]
fn without_modinfo_the_file_tells() {
    let bench = bench();
    std::fs::remove_file(bench.path("usr/sbin/modinfo")).unwrap();
    assert_eq!(seen(&bench).disk, None, "no kernel has modules here");
    let folder = "lib/modules/6.8.0-45-generic";
    bench.write(
        &format!("{folder}/kernel/nvidia-580/nvidia.ko"),
        "\u{7f}ELF\0license=NVIDIA\0version=580.1.2\0srcversion=x\0",
    );
    let disk = seen(&bench).disk.unwrap();
    assert_eq!((disk.version.as_str(), disk.open), ("580.1.2", Some(false)));
    std::fs::rename(
        bench.path(&format!("{folder}/kernel/nvidia-580/nvidia.ko")),
        bench.path(&format!("{folder}/kernel/nvidia-580/nvidia.ko.zst")),
    )
    .unwrap();
    let Err(Trouble::Failed { message, .. }) = bench.node(Seen::read) else { panic!() };
    assert!(message.contains("nvidia.ko.zst is compressed"), "{message}");
}

#[test]
fn a_library_behind_debians_alternatives_is_found() {
    let bench = bench();
    let link = bench.path("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("/etc/alternatives/libnvidia-ml.so.1", &link).unwrap();
    bench.write("etc/alternatives/x", "");
    let folder = "/usr/lib/x86_64-linux-gnu/nvidia/current";
    std::os::unix::fs::symlink(
        format!("{folder}/libnvidia-ml.so.1"),
        bench.path("etc/alternatives/libnvidia-ml.so.1"),
    )
    .unwrap();
    bench.write(&format!("{}/libnvidia-ml.so.535.247.01", &folder[1..]), "");
    std::os::unix::fs::symlink(
        "libnvidia-ml.so.535.247.01",
        bench.path(&format!("{}/libnvidia-ml.so.1", &folder[1..])),
    )
    .unwrap();
    assert_eq!(seen(&bench).library.as_deref(), Some("535.247.01"));
}

#[test]
fn what_keeps_a_driver_from_being_changed_is_said() {
    let bench = bench();
    bench.write("sys/module/nvidia_drm/refcnt", "1\n");
    let shown = seen(&bench);
    assert_eq!(shown.modules, ["nvidia_drm", "nvidia"]);
    assert!(shown.fixed.unwrap().contains("use count 1 of nvidia_drm"));
    // A module above that is unused itself holds nothing.
    bench.write("sys/module/nvidia_drm/holders/nvidia_other/x", "");
    assert_eq!(seen(&bench).fixed, None);
    std::fs::remove_file(bench.path("sys/module/nvidia/refcnt")).unwrap();
    assert_eq!(seen(&bench).fixed.unwrap(), "this kernel unloads no modules");

    bench.write("usr/bin/nvidia-uninstall", "");
    assert!(seen(&bench).foreign.unwrap().contains("runfile"));
    bench.write("run/nvidia/driver/usr/bin/x", "");
    assert!(seen(&bench).foreign.unwrap().contains("GPU operator"));
}

#[test]
fn modules_built_here_need_a_key_that_the_firmware_knows() {
    let bench = bench();
    let variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    bench.write(variable, "");
    std::fs::write(bench.path(variable), [6, 0, 0, 0, 1]).unwrap();
    assert!(seen(&bench).unsigned.unwrap().contains("there is no key"));
    bench.write("var/lib/dkms/mok.pub", "");
    bench.script("usr/bin/mokutil", "#!/bin/sh\necho \"$2 is not enrolled\"\nexit 0\n");
    assert!(seen(&bench).unsigned.unwrap().contains("does not know the key"));
    bench.script("usr/bin/mokutil", "#!/bin/sh\necho \"$2 is already enrolled\"\nexit 1\n");
    assert_eq!(seen(&bench).unsigned, None);
    std::fs::write(bench.path(variable), [6, 0, 0, 0, 0]).unwrap();
    bench.script("usr/bin/mokutil", "#!/bin/sh\nexit 9\n");
    assert_eq!(seen(&bench).unsigned, None);
}

#[test]
fn what_the_kernel_enforces_counts_before_the_variable_of_the_firmware() {
    const NONE: &str = "[none] integrity confidentiality";
    let variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    for (on, enforces, lockdown, wanted) in [
        (1, Some("N"), Some(NONE), false),
        (0, Some("Y"), Some(NONE), true),
        (0, Some("N"), Some("none [integrity] confidentiality"), true),
        (0, None, Some("none integrity [confidentiality]"), true),
        (0, Some("Y"), None, true),
        // Where the kernel does not tell.
        (1, Some("N"), None, true),
        (1, None, Some(NONE), true),
        (0, None, None, false),
    ] {
        let bench = bench();
        bench.write(variable, "");
        std::fs::write(bench.path(variable), [6, 0, 0, 0, on]).unwrap();
        let files = [
            ("sys/module/module/parameters/sig_enforce", enforces),
            ("sys/kernel/security/lockdown", lockdown),
        ];
        for (path, text) in files {
            if let Some(text) = text {
                bench.write(path, &format!("{text}\n"));
            }
        }
        let found = seen(&bench);
        assert_eq!(
            (found.secure, found.unsigned.is_some()),
            (wanted, wanted),
            "{on} {enforces:?} {lockdown:?}"
        );
    }
}

#[test]
fn a_module_without_a_signature_that_counts_is_told_before_the_driver_is_unloaded() {
    let bench = bench();
    let check = |bench: &Bench| bench.node(|node| super::modules::check_disk(node, "580.159.04", false));
    bench.write("lib/firmware/nvidia/580.159.04/gsp_ga10x.bin", "");
    let module = |fields: &str| {
        let text = format!(
            "#!/bin/sh\ncase $4 in version) echo 580.159.04;; license) echo 'Dual MIT/GPL';; {fields} esac\n"
        );
        bench.script("usr/sbin/modinfo", &text);
    };
    module("");
    assert!(check(&bench).is_ok(), "without Secure Boot nobody asks");
    let variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    bench.write(variable, "");
    std::fs::write(bench.path(variable), [6, 0, 0, 0, 1]).unwrap();
    let told = |bench: &Bench| match check(bench) {
        Err(Trouble::Failed { message, .. }) => message,
        other => panic!("{other:?}"),
    };
    assert!(told(&bench).contains("the module has no signature"), "{}", told(&bench));
    // Built by DKMS, with a key that is not enrolled, whatever the package is called.
    module("sig_id) echo PKCS#7;; filename) echo /lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko.zst;;");
    assert!(told(&bench).contains("there is no key"), "{}", told(&bench));
    module(
        "sig_id) echo PKCS#7;; filename) echo /lib/modules/6.8.0-45-generic/kernel/nvidia-580/nvidia.ko;;",
    );
    assert!(check(&bench).is_ok());
    // NVIDIA's precompiled modules lie where DKMS puts its own on Red Hat's family.
    module(
        "sig_id) echo PKCS#7;; filename) echo /lib/modules/6.8.0-45-generic/extra/drivers/video/nvidia/nvidia.ko;;",
    );
    assert!(check(&bench).is_ok());
    let built = bench.node(|node| super::modules::check_disk(node, "580.159.04", true));
    assert!(matches!(built, Err(Trouble::Failed { message, .. }) if message.contains("there is no key")));
}

#[test]
fn an_image_that_holds_nouveau_is_built_before_the_reboot() {
    let bench = unloaded();
    bench.write("lib/firmware/nvidia/580.159.04/gsp_ga10x.bin", "");
    bench.write("sys/module/nouveau/refcnt", "0\n");
    bench.write("boot/initrd.img-6.8.0-45-generic", "old\n");
    bench.write("lib/modules/6.8.0-45-generic/modules.builtin", "");
    bench.script(
        "usr/bin/lsinitramfs",
        "#!/bin/sh\necho usr/lib/modules/6.8.0-45-generic/kernel/drivers/gpu/drm/nouveau/nouveau.ko.zst\n",
    );
    bench.script(
        "usr/sbin/update-initramfs",
        "#!/bin/sh\nd=$(dirname \"$0\")/../..\necho \"$@\" >>$d/built\nfor i in $d/boot/*; do echo new >$i; done\n",
    );
    // Ticks of the file system's clock.
    std::thread::sleep(std::time::Duration::from_millis(50));
    bench.write("usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\n");
    let planned = predicted(&bench);
    let line = crate::tasks::testing::shown(&planned);
    assert_eq!(
        line,
        ["module nouveau in the initramfs: with an older modprobe.d -> as in modprobe.d (live)"]
    );
    assert!(planned.awaiting[0].reason.contains("nouveau"), "{planned:?}");
    std::thread::sleep(std::time::Duration::from_millis(50));
    let done = ran(&bench, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &planned.changes), "{done:?}");
    assert_eq!(bench.read("built"), "-u -k all\n");
    assert_eq!(ran(&bench, Mode::Apply).changes, []);
    assert_eq!(bench.read("built"), "-u -k all\n", "once");
}

#[test]
fn an_attempt_goes_back_to_what_was_before_a_killed_one() {
    let former = |name: &str, version: &str| Former {
        name: name.to_owned(),
        version: version.to_owned(),
        file: Some(format!("/{name}")),
    };
    let earlier = Attempt {
        wanted: "590.1".to_owned(),
        before: Some("575.1".to_owned()),
        boot_id: "first".to_owned(),
        former: vec![former("lib", "575.1")],
        added: vec!["new".to_owned()],
        held: vec!["lib".to_owned()],
        modules: vec!["nvidia".to_owned()],
        stream: Some("575-open".to_owned()),
    };
    let mut now = Attempt {
        wanted: "590.2".to_owned(),
        before: None,
        boot_id: "second".to_owned(),
        former: vec![former("lib", "590.1"), former("new", "590.1"), former("other", "1")],
        added: vec!["more".to_owned()],
        held: Vec::new(),
        modules: Vec::new(),
        stream: None,
    };
    now.continues(&earlier);
    assert_eq!(now.former, [former("other", "1"), former("lib", "575.1")]);
    assert_eq!(now.added, ["more", "new"]);
    assert_eq!((now.before.as_deref(), now.modules.len(), now.held.len()), (Some("575.1"), 1, 1));
    assert_eq!(now.stream.as_deref(), Some("575-open"));
    assert!(now.can_go_back());
}

#[test]
fn an_attempt_that_a_boot_brought_up_is_over() {
    let module = |version: &str| Some(Module { version: version.to_owned(), open: Some(true) });
    let bench = bench();
    let attempt = Attempt {
        wanted: "580.1".to_owned(),
        before: Some("575.1".to_owned()),
        boot_id: "first".to_owned(),
        former: Vec::new(),
        added: Vec::new(),
        held: Vec::new(),
        modules: Vec::new(),
        stream: None,
    };
    let now = |boot: &str, loaded: &str, disk: &str| {
        let state =
            Seen { boot_id: boot.to_owned(), loaded: module(loaded), disk: module(disk), ..seen(&bench) };
        state.came_up_with(&attempt)
    };
    assert!(now("second", "580.1", "580.1"));
    assert!(!now("first", "580.1", "580.1"), "the boot that it waits for has not come");
    assert!(!now("second", "575.1", "580.1"), "it did not come up");
    assert!(!now("second", "580.1", "590.1"), "somebody else's change is under way");
}

#[test]
fn the_example_is_a_driver() {
    let task: GpuDriver = serde_json::from_value(json!({"branch": 580, "flavour": "open"})).unwrap();
    assert!(task.hold && task.accepts("580.159.04"));
    assert!(GpuDriver::is_awaited(&GpuDriver::reason("580.1", None, "why")));
}

/// A node whose driver is installed and not loaded.
fn unloaded() -> Bench {
    let bench = bench();
    for (tool, script) in [
        ("apt-get", "exit 0"),
        ("apt-mark", "exit 0"),
        ("dpkg-query", "case \"$2\" in\n*Architecture*) ;;\n*) echo 'bash installed';;\nesac"),
    ] {
        bench.script(&format!("usr/bin/{tool}"), &format!("#!/bin/sh\n{script}\n"));
    }
    std::fs::remove_dir_all(bench.path("sys/module/nvidia")).unwrap();
    std::fs::remove_file(bench.path("proc/driver/nvidia/version")).unwrap();
    bench
}

fn predicted(bench: &Bench) -> gpufleet_protocol::OpOutcome {
    ran(bench, Mode::Predict)
}

fn ran(bench: &Bench, mode: Mode) -> gpufleet_protocol::OpOutcome {
    let task: GpuDriver = serde_json::from_value(json!({"branch": 580, "hold": false})).unwrap();
    let record = Record::of(Some(&bench.path("state")));
    let machine = SimMachine::new(Sim::new(vec![SimGpu::new(0, true)]));
    let mut gpus = Gpus::with_machine(Box::new(machine), record.clone());
    let fence = || Ok(());
    let folder = bench.path("state");
    bench.forget();
    bench.run(&Driver::new(&task, &mut gpus, &record, &folder, &fence), mode)
}

#[test]
fn what_only_the_run_can_tell_of_a_driver_is_named_with_what_it_does_then() {
    let bench = unloaded();
    bench.script("usr/bin/apt-cache", "#!/bin/sh\nexit 0\n");
    let record = Record::of(Some(&bench.path("state")));
    let folder = bench.path("state");
    let note = |with: serde_json::Value| {
        let task: GpuDriver = serde_json::from_value(with).unwrap();
        let mut gpus = Gpus::with_machine(
            Box::new(SimMachine::new(Sim::new(vec![SimGpu::new(0, true)]))),
            record.clone(),
        );
        let fence = || Ok(());
        let planned = bench.run(&Driver::new(&task, &mut gpus, &record, &folder, &fence), Mode::Predict);
        assert_eq!(planned.status, OpStatus::Possible, "{planned:?}");
        planned.changes[0].note.clone().unwrap()
    };
    let then = "the run plans again with it, asks for a permit where it needs a reset or a reboot, and replaces nothing where none is \
                offered";
    assert_eq!(
        note(json!({"branch": 590, "update_cache": true})),
        format!(
            "the run updates the package lists first (`update_cache`), so that which driver 590.x is offered is known only then; \
             {then}"
        )
    );
    let file = Entry::File {
        owned: Owned { uid: 0, gid: 0, mode: 0o644 },
        content: Content::Known(b"Types: deb"[..].into()),
    };
    bench
        .overlay
        .assume([Effect::Path { path: bench.path("etc/apt/sources.list.d/cuda.sources"), entry: file }]);
    assert_eq!(
        note(json!({"version": "590.44.01"})),
        format!(
            "an earlier task changes where packages come from, so that whether 590.44.01 is offered is known only then; {then}"
        )
    );
}

#[test]
fn no_reboot_is_asked_for_that_would_bring_nouveau_back() {
    let bench = unloaded();
    bench.write("lib/firmware/nvidia/580.159.04/gsp_ga10x.bin", "");
    bench.write("sys/module/nouveau/refcnt", "0\n");
    // Whether `rpm-ostree kargs` keeps it away is not read here.
    bench.write("run/ostree-booted", "");
    let unclear = predicted(&bench);
    assert!(unclear.awaiting[0].reason.contains("nouveau"), "{unclear:?}");
    assert!(unclear.warnings.iter().any(|why| why.contains("rpm-ostree kargs")), "{unclear:?}");
    std::fs::remove_file(bench.path("run/ostree-booted")).unwrap();
    bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX=quiet\n");
    bench.write("proc/cmdline", "quiet\n");
    let refused = predicted(&bench);
    let why = crate::tasks::testing::failure(&refused);
    assert!(
        why.contains("would have them again after a reboot")
            && why.contains("`kernel_blacklist: {name: nouveau}`")
    );
    bench.write("usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\n");
    let waits = predicted(&bench);
    assert!(waits.awaiting[0].reason.contains("nouveau"), "{waits:?}");
    assert!(!waits.warnings.iter().any(|why| why.contains("kernel's own driver")), "{waits:?}");
    bench.write("sys/module/nova_core/refcnt", "0\n");
    let both = predicted(&bench);
    let why = crate::tasks::testing::failure(&both);
    assert!(
        why.contains("driver (nova_core) has") && why.contains("`kernel_blacklist: {name: nova_core}`"),
        "{why}"
    );
}

#[test]
fn an_open_module_without_its_firmware_is_not_loaded() {
    let bench = unloaded();
    let refused = predicted(&bench);
    let why = crate::tasks::testing::failure(&refused);
    assert!(why.contains("needs its GSP firmware"), "{why}");
    bench.write("lib/firmware/nvidia/580.159.04/gsp_ga10x.bin", "");
    assert_eq!(predicted(&bench).status, OpStatus::Changed);
}

#[test]
fn finishing_an_interrupted_change_waits_for_the_gpus_and_names_whose_packages_it_finishes() {
    let bench = bench();
    bench.script("usr/bin/apt-get", "#!/bin/sh\nexit 0\n");
    bench.script("usr/bin/apt-mark", "#!/bin/sh\nexit 0\n");
    bench.script("usr/bin/dpkg", "#!/bin/sh\ntouch \"$(dirname \"$0\")/../../configured\"\n");
    bench.script(
        "usr/bin/dpkg-query",
        "#!/bin/sh\ncase \"$2\" in\n*Architecture*) ;;\n\
         *) printf 'nvidia-smi half-configured\\nslurmd unpacked\\nbash installed\\n';;\nesac\n",
    );
    let task: GpuDriver = serde_json::from_value(json!({"branch": 580, "hold": false})).unwrap();
    let record = Record::of(Some(&bench.path("state")));
    let machine = SimMachine::new(Sim::new(vec![SimGpu::new(0, true)]));
    let mut gpus = Gpus::with_machine(Box::new(machine), record.clone());
    let fence = || Ok(());
    let folder = bench.path("state");
    let driver = Driver::new(&task, &mut gpus, &record, &folder, &fence);
    let predicted = bench.run(&driver, Mode::Predict);
    let finish = predicted.changes.first().unwrap_or_else(|| panic!("{predicted:?}"));
    assert_eq!((finish.to_text().as_str(), finish.disruption), ("installed", Disruption::GpuReset));
    let told = format!("{finish:?}");
    assert!(told.contains("slurmd") && !told.contains("bash"), "{told}");
    // Without a permit nothing is touched.
    let refused = bench.run(&driver, Mode::Apply);
    assert_eq!(refused.status, OpStatus::NeedsPermit { class: Disruption::GpuReset });
    assert!(!bench.path("configured").exists());
}
