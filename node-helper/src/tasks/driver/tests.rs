use gpufleet_protocol::tasks::GpuDriver;
use serde_json::json;

use super::{
    attempt::{Attempt, Former},
    seen::Seen,
};
use crate::{declare::Trouble, tasks::testing::Bench};

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
        &format!("#!/bin/sh\ncase $2 in version) echo {version};; license) echo '{license}';; esac\n"),
    );
}

fn seen(bench: &Bench) -> Seen {
    bench.node(Seen::read).unwrap()
}

#[test]
fn a_driver_is_seen_on_the_bus_in_the_kernel_and_on_disk() {
    let bench = bench();
    let now = seen(&bench);
    assert_eq!((now.gpus, now.kernel.as_str(), now.nouveau), (1, "6.8.0-45-generic", false));
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
    };
    let mut now = Attempt {
        wanted: "590.2".to_owned(),
        before: None,
        boot_id: "second".to_owned(),
        former: vec![former("lib", "590.1"), former("new", "590.1"), former("other", "1")],
        added: vec!["more".to_owned()],
        held: Vec::new(),
        modules: Vec::new(),
    };
    now.continues(&earlier);
    assert_eq!(now.former, [former("other", "1"), former("lib", "575.1")]);
    assert_eq!(now.added, ["more", "new"]);
    assert_eq!((now.before.as_deref(), now.modules.len(), now.held.len()), (Some("575.1"), 1, 1));
    assert!(now.can_go_back());
}

#[test]
fn the_example_is_a_driver() {
    let task: GpuDriver = serde_json::from_value(json!({"branch": 580, "flavour": "open"})).unwrap();
    assert!(task.hold && task.accepts("580.159.04"));
    assert!(GpuDriver::is_awaited(&GpuDriver::reason("580.1", None, "why")));
}
