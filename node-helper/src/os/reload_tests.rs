//! What a reload of systemd would take, in trees of files.

use std::os::unix::fs::symlink;

use super::*;
use crate::tasks::testing::Bench;

const DEVTMPFS: Number = (0, 6);
const CTL: Number = (195, 255);

fn device(name: &str, number: Number) -> Device {
    Device { place: DEV, name: name.to_owned(), number, system: DEVTMPFS }
}

fn gpus() -> Vec<Device> {
    let caps = device("nvidia-caps/nvidia-cap1", (236, 1));
    vec![caps, device("nvidia0", (195, 0)), device("nvidiactl", CTL)]
}

/// The unit of a container as systemd 249 keeps what runc 1.1 tells it for docker, with these rules first. The rule
/// of `c *:* m` is of runc's own list.
fn docker(first: &str) -> String {
    format!(
        "# This is a transient unit file, created programmatically via the systemd API. Do not edit.\n[Unit]\n\
         Description=libcontainer container ab\n\n[Scope]\nSlice=system.slice\nDelegate=yes\nMemoryAccounting=yes\n\
         CPUAccounting=yes\nIOAccounting=yes\nTasksAccounting=yes\n\n[Unit]\nDefaultDependencies=no\n\n[Scope]\n\
         DevicePolicy=strict\nDeviceAllow=\nDeviceAllow=\n{first}DeviceAllow=char-136 rwm\n\
         DeviceAllow=/dev/char/10:200 rwm\nDeviceAllow=/dev/char/5:2 rwm\nDeviceAllow=/dev/char/5:1 rwm\n\
         DeviceAllow=/dev/char/5:0 rwm\nDeviceAllow=/dev/char/1:9 rwm\nDeviceAllow=/dev/char/1:8 rwm\n\
         DeviceAllow=/dev/char/1:7 rwm\nDeviceAllow=/dev/char/1:5 rwm\nDeviceAllow=/dev/char/1:3 rwm\n\
         DeviceAllow=char-* m\nDeviceAllow=block-* m\n"
    )
}

/// Mounts of a container; those of the legacy mode follow what every container has.
fn mounts(bench: &Bench, legacy: bool) {
    let every = "812 655 0:61 / / rw,relatime master:245 - overlay overlay rw,lowerdir=/l/A\n\
                 814 812 0:65 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755\n\
                 815 814 0:66 / /dev/pts rw,nosuid,noexec - devpts devpts rw,gid=5\n\
                 818 814 0:64 / /dev/mqueue rw - mqueue mqueue rw\n";
    let given = "840 814 0:6 /nvidiactl /dev/nvidiactl ro,nosuid,noexec master:2 - devtmpfs udev rw,mode=755\n\
                 841 814 0:6 /nvidia0 /dev/nvidia0 ro,nosuid,noexec master:2 - devtmpfs udev rw,mode=755\n\
                 842 812 0:22 /driver/nvidia/gpus /proc/driver/nvidia/gpus ro - proc proc rw\n";
    bench.write("proc/77/mountinfo", &format!("{every}{}", if legacy { given } else { "" }));
}

/// A container of docker that has GPUs by the legacy mode, with this unit.
fn container(bench: &Bench, unit: &str) {
    bench.write("run/systemd/transient/docker-ab.scope", unit);
    bench.write(
        "proc/devices",
        "Character devices:\n  1 mem\n136 pts\n195 nvidia\n195 nvidiactl\n236 nvidia-caps\n\nBlock devices:\n  8 sd\n",
    );
    bench.write("proc/77/cgroup", "0::/system.slice/docker-ab.scope\n");
    mounts(bench, true);
}

/// Gives the process a file that is open.
fn open(bench: &Bench, target: &Path) {
    let _ = fs::remove_dir_all(bench.path("proc/77/fd"));
    fs::create_dir_all(bench.path("proc/77/fd")).unwrap();
    symlink(target, bench.path("proc/77/fd/9")).unwrap();
}

fn reload(bench: &Bench, devices: &[Device]) -> Result<(), String> {
    check("daemon-reload", &bench.roots, devices, true).map_err(|loss| loss.to_string())
}

#[track_caller]
fn takes(bench: &Bench, devices: &[Device], taken: &str) {
    let loss = reload(bench, devices).unwrap_err();
    assert!(loss.contains(&format!("would take {taken} from what runs in docker-ab.scope:")), "{loss}");
}

#[test]
fn a_plan_foresees_a_refusal_and_makes_nothing() {
    use gpufleet_protocol::{OpStatus, message::Mode, tasks::UnitSettings};
    let bench = Bench::new();
    container(&bench, &docker(""));
    let before = bench.snapshot();
    let foreseen = check("daemon-reload", &bench.roots, &gpus(), false).unwrap_err().to("enable");
    assert!(foreseen.to_string().starts_with("`systemctl enable` was not run, because systemd would take"));
    assert_eq!(crate::tasks::testing::changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    // Each kind that reloads says so, in the words of its run.
    bench.script(
        "usr/bin/systemctl",
        "#!/bin/sh\ncase $* in *show*) printf 'Id=cron.service\nLoadState=loaded\n';; esac\n",
    );
    let task: UnitSettings = serde_json::from_value(serde_json::json!({
        "unit": "cron.service", "settings": {"Service": {"LimitMEMLOCK": "infinity"}}
    }))
    .unwrap();
    let planned = bench.run(&task, Mode::Predict);
    let failed = bench.run(&task, Mode::Apply);
    let OpStatus::Failed { message, .. } = &failed.status else { panic!("{failed:?}") };
    assert!(message.starts_with("`systemctl daemon-reload` was not run"), "{message}");
    let told = planned.blockers.iter().map(|blocker| format!("{}; {}", blocker.what, blocker.next));
    assert_eq!(told.collect::<Vec<_>>(), std::slice::from_ref(message), "{planned:?}");
    // Not after a boot, which has ended the container.
    bench.forget();
    bench.activate(gpufleet_protocol::Disruption::Reboot);
    let booted = bench.run(&task, Mode::Predict);
    assert_eq!(booted.blockers, [], "{booted:?}");
}

#[test]
fn a_node_is_asked_once_and_answers_each_verb() {
    let bench = Bench::new();
    container(&bench, &docker(""));
    let ask = || bench.overlay.reload_refused(|| foreseen(&bench.roots).err());
    let first = ask();
    assert!(first.is_some());
    fs::remove_dir_all(bench.path("proc/77")).unwrap();
    assert_eq!(ask(), first);
    bench.forget();
    assert_eq!(ask(), None);
}

#[test]
fn names_by_number_are_made_and_old_ones_mended() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("dev/char")).unwrap();
    symlink("../nvidia-uvm", bench.path("dev/char/236:1")).unwrap();
    symlink("../null", bench.path("dev/char/1:3")).unwrap();
    let mut devices = gpus();
    let place = PLACES[1];
    devices.push(Device { place, ..device("nvidia0", (195, 0)) });
    devices.push(Device { place, ..device("nvidia1", (195, 1)) });
    for _ in 0..2 {
        reload(&bench, &devices).unwrap();
        for (number, name) in [
            ("195:0", "../nvidia0"),
            ("195:1", "../../run/nvidia/driver/dev/nvidia1"),
            ("195:255", "../nvidiactl"),
            ("236:1", "../nvidia-caps/nvidia-cap1"),
            ("1:3", "../null"),
        ] {
            assert_eq!(fs::read_link(bench.path("dev/char").join(number)).unwrap(), Path::new(name));
        }
    }
}

#[test]
fn what_scripts_of_packages_would_cost_is_told_and_nothing_is_made() {
    let bench = Bench::new();
    container(&bench, &docker(""));
    let told = at_stake_of(&bench.roots, &gpus()).unwrap();
    assert!(
        told.contains("would take /dev/nvidia0, /dev/nvidiactl from what runs in docker-ab.scope"),
        "{told}"
    );
    assert!(!bench.path("dev/char").exists());
    // Whose rules name the devices by their numbers: the names are made before, and nothing is lost.
    container(&bench, &docker("DeviceAllow=/dev/char/195:0 rwm\nDeviceAllow=/dev/char/195:255 rwm\n"));
    assert_eq!(at_stake_of(&bench.roots, &gpus()), None);
    assert_eq!(at_stake_of(&Bench::new().roots, &[]), None, "without a driver there is nothing to lose");
}

#[test]
fn what_cannot_be_read_refuses_a_reload() {
    let bench = Bench::new();
    container(&bench, &docker("DeviceAllow=char-195 rwm\n"));
    // A process that has ended, and a mount whose name is in another encoding.
    bench.write("proc/78/cgroup", "0::/system.slice/docker-ab.scope\n");
    let mut mounts = bench.read("proc/77/mountinfo").into_bytes();
    mounts.extend(b"850 812 0:70 / /data/caf\xe9 rw - ext4 /dev/sda rw\n");
    fs::write(bench.path("proc/77/mountinfo"), &mounts).unwrap();
    assert_eq!(reload(&bench, &gpus()), Ok(()));
    container(&bench, &docker(""));
    fs::write(bench.path("proc/77/mountinfo"), mounts).unwrap();
    takes(&bench, &gpus(), "/dev/nvidia0, /dev/nvidiactl");
    let unit = bench.path("run/systemd/transient/docker-ab.scope");
    fs::write(&unit, vec![b'#'; usize::try_from(MOST).unwrap() + 1]).unwrap();
    let refused = reload(&bench, &gpus()).unwrap_err();
    assert!(
        refused.starts_with("`systemctl daemon-reload` was not run, because nobody can tell whether it")
            && refused.contains("docker-ab.scope"),
        "{refused}"
    );
}

#[test]
fn only_character_devices_of_the_driver_get_a_name() {
    let bench = Bench::new();
    bench.write("dev/nvidia0", "");
    bench.write("dev/nvidia-caps/nvidia-cap1", "");
    bench.write("run/nvidia/driver/dev/nvidia0", "");
    before("daemon-reload", &bench.roots).unwrap();
    assert!(!bench.path("dev/char").exists());
}

#[test]
fn a_plain_container_refuses_no_reload() {
    let bench = Bench::new();
    container(&bench, &docker(""));
    mounts(&bench, false);
    open(&bench, Path::new("/dev/null"));
    assert_eq!(reload(&bench, &gpus()), Ok(()));
}

#[test]
fn a_container_that_has_gpus_past_systemd_refuses_a_reload() {
    let bench = Bench::new();
    container(&bench, &docker(""));
    assert_eq!(
        reload(&bench, &gpus()).unwrap_err(),
        "`systemctl daemon-reload` was not run, because systemd would take /dev/nvidia0, /dev/nvidiactl from what runs \
         in docker-ab.scope: its rules there do not name these devices (NVIDIA/nvidia-container-toolkit#48); drain the \
         node first, or give containers their GPUs by CDI"
    );
    // So do older ones, which name the driver of pts, and the rules of an update, which replace those of the unit.
    container(&bench, &docker("DeviceAllow=char-pts rwm\n"));
    takes(&bench, &gpus(), "/dev/nvidia0, /dev/nvidiactl");
    container(&bench, &docker("DeviceAllow=char-195 rwm\n"));
    assert_eq!(reload(&bench, &gpus()), Ok(()));
    bench.write(
        "run/systemd/transient/docker-ab.scope.d/50-DeviceAllow.conf",
        "# This is a drop-in unit file extension, created via \"systemctl set-property\"\n\
         # or an equivalent operation. Do not edit.\n[Scope]\nDeviceAllow=\nDeviceAllow=char-* m\n",
    );
    takes(&bench, &gpus(), "/dev/nvidia0, /dev/nvidiactl");
}

#[test]
fn a_container_whose_rules_name_its_gpus_refuses_no_reload() {
    let bench = Bench::new();
    for rules in [
        // CDI and `--device`.
        "DeviceAllow=/dev/char/195:255 rwm\nDeviceAllow=/dev/char/195:0 rwm\n",
        // crun tells one rule after the other, and systemd writes the list each time.
        "DeviceAllow=/dev/char/195:0 rw\nDeviceAllow=\nDeviceAllow=/dev/char/195:255 rw\n\
         DeviceAllow=/dev/char/195:0 rw\n",
        "DeviceAllow=/dev/nvidia0\nDeviceAllow=/dev/nvidiactl rwm\n",
        // `--device-cgroup-rule='c 195:* rwm'`, before and after systemd 240.
        "DeviceAllow=char-nvidia rwm\n",
        "DeviceAllow=char-nvidiactl rw\n",
        "DeviceAllow=char-195 rwm\n",
        "DeviceAllow=char-nvid*a rw\n",
        "DeviceAllow=char-* rwm\n",
    ] {
        container(&bench, &docker(rules));
        assert_eq!(reload(&bench, &gpus()), Ok(()), "{rules}");
    }
    for rules in [
        "DeviceAllow=/dev/char/195:0 m\nDeviceAllow=/dev/char/195:255 rwm\n",
        "DeviceAllow=/dev/char/195:0 r\nDeviceAllow=/dev/char/195:0 w\nDeviceAllow=/dev/char/195:255 rwm\n",
        "DeviceAllow=/dev/char/195:255 rwm\nDeviceAllow=/dev/block/195:0 rwm\nDeviceAllow=block-195 rwm\n",
        "DeviceAllow=/dev/char/195:255 rwm\nDeviceAllow=char-19 rwm\nDeviceAllow=char-nvidia-* rwm\n",
    ] {
        container(&bench, &docker(rules));
        takes(&bench, &gpus(), "/dev/nvidia0");
    }
}

#[test]
fn a_privileged_container_refuses_no_reload() {
    let bench = Bench::new();
    container(&bench, "[Scope]\nSlice=system.slice\nDelegate=yes\nDevicePolicy=auto\nDeviceAllow=\n");
    open(&bench, Path::new("/dev/null"));
    let opened = device("nvidia1", (1, 3));
    assert_eq!(reload(&bench, &[gpus(), vec![opened]].concat()), Ok(()));
    // Nor one that runc tells nothing about devices.
    container(&bench, "[Scope]\nSlice=system.slice\nDelegate=yes\n");
    assert_eq!(reload(&bench, &gpus()), Ok(()));
}

#[test]
fn a_device_that_is_open_counts_and_a_file_with_its_name_does_not() {
    let bench = Bench::new();
    container(&bench, &docker("").replace("DeviceAllow=/dev/char/1:3 rwm\n", ""));
    mounts(&bench, false);
    let opened = device("nvidia0", (1, 3));
    open(&bench, Path::new("/dev/null"));
    takes(&bench, std::slice::from_ref(&opened), "/dev/nvidia0");
    // Files of the container: one that it opened, and one that is mounted there.
    bench.write("dev/nvidia0", "");
    open(&bench, &bench.path("dev/nvidia0"));
    bench.write(
        "proc/77/mountinfo",
        "814 812 0:65 /nvidia0 /dev/nvidia0 rw - tmpfs tmpfs rw\n\
         815 812 0:6 /no-nvidia0 /dev/nvidia0 rw - devtmpfs udev rw\n\
         816 812 8:1 /var/lib/x/nvidia0 /dev/nvidia0 rw - ext4 /dev/sda1 rw\n",
    );
    assert_eq!(reload(&bench, &[opened]), Ok(()));
}

#[test]
fn a_device_that_is_open_as_a_path_only_is_not_in_use() {
    use std::os::fd::AsRawFd as _;
    let open = |flags| {
        let file = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).unwrap();
        in_use(&Path::new("/proc/self/fd").join(file.as_raw_fd().to_string()))
    };
    assert_eq!(open(rustix::fs::OFlags::RDWR), Some((1, 3)));
    assert_eq!(open(rustix::fs::OFlags::PATH), None);
}

#[test]
fn device_files_of_the_drivers_container_count() {
    let bench = Bench::new();
    container(&bench, &docker(""));
    let own = Device { place: PLACES[1], system: (0, 91), ..device("nvidia0", (195, 0)) };
    bench.write("proc/77/mountinfo", "841 814 0:91 /nvidia0 /dev/nvidia0 ro - tmpfs tmpfs rw,mode=755\n");
    takes(&bench, &[own], "/dev/nvidia0");
}

#[test]
fn devices_whose_files_are_not_found_are_known_by_their_numbers() {
    let bench = Bench::new();
    container(&bench, &docker(""));
    takes(&bench, &[], "/dev/char/195:0, /dev/char/195:255");
    container(&bench, &docker("DeviceAllow=char-195 rw\n"));
    assert_eq!(reload(&bench, &[]), Ok(()));
    // By their driver where they are open.
    container(&bench, &docker("").replace("DeviceAllow=/dev/char/1:3 rwm\n", ""));
    mounts(&bench, false);
    bench.write("proc/devices", "Character devices:\n  1 nvidia-uvm\n\nBlock devices:\n  8 sd\n");
    open(&bench, Path::new("/dev/null"));
    takes(&bench, &[], "/dev/char/1:3");
    // A node without the driver.
    bench.write("proc/devices", "Character devices:\n  1 mem\n\nBlock devices:\n  8 sd\n");
    assert_eq!(reload(&bench, &[]), Ok(()));
}

#[test]
fn a_rule_by_number_does_not_count_where_its_name_cannot_be_made() {
    let bench = Bench::new();
    container(&bench, &docker("DeviceAllow=/dev/char/195:0 rw\n"));
    bench.write("dev/char", "no folder");
    let loss = reload(&bench, &[device("nvidia0", (195, 0))]).unwrap_err();
    assert!(loss.contains("take /dev/nvidia0 from what runs in docker-ab.scope"), "{loss}");
    assert!(loss.contains(", and cannot make "), "{loss}");
}
