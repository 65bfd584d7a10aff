//! `gpu_driver` on lab nodes with a real dnf, and packages of the tests' own.

use std::path::PathBuf;

use gpufleet_tests::{Document, Driver, Fleet, FleetOptions, Home, Rpms};

const OLD: &str = "575.57.08";
const NEW: &str = "580.173.02";
const NEXT: &str = "590.44.01";

fn playbook() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../playbooks/driver-upgrade.yaml")
}

/// A node whose packages are those of the old driver.
fn fleet(drivers: &[Driver], streams: bool) -> (Fleet, Rpms) {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, ..FleetOptions::default() });
    let mut all = vec![Driver::new(OLD)];
    all.extend_from_slice(drivers);
    let rpms = Rpms::new(&all, streams);
    rpms.install(&fleet, "gpu001");
    let install = match streams {
        true => "dnf -y -q module enable nvidia-driver:575-open && dnf -y -q install nvidia-open".to_owned(),
        false => format!("dnf -y -q install nvidia-open-3:{OLD}"),
    };
    let load = "rmmod nvidia_uvm nvidia_modeset nvidia && modprobe nvidia_uvm";
    fleet.read("gpu001", &format!("{install} && {load}"));
    assert_eq!(loaded(&fleet), OLD);
    (fleet, rpms)
}

/// The version that programs see.
fn loaded(fleet: &Fleet) -> String {
    fleet.read("gpu001", "nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0")
}

fn packages(fleet: &Fleet) -> String {
    fleet.read("gpu001", "rpm -qa --qf '%{NAME}=%{VERSION}\\n' | grep -v ^shell= | sort")
}

/// The packages of a version with the open modules.
fn open(version: &str) -> String {
    format!("kmod-nvidia-open-dkms={version}\nnvidia-driver-cuda={version}\nnvidia-open={version}")
}

fn stream(fleet: &Fleet) -> String {
    fleet.read("gpu001", "sed -n 's/^stream=//p' /etc/dnf/modules.d/nvidia-driver.module")
}

fn gpufleet(home: &Home, fleet: &Fleet, verb: &str, words: &str, code: i32) -> Document {
    let inventory = fleet.inventory();
    let mut all = vec![verb, "--format", "json", "-i", &inventory, "-e", words];
    if verb == "run" {
        all.push("--yes");
    }
    home.gpufleet(all).arg(playbook()).run().expect(code).document()
}

#[test]
fn a_branch_is_a_stream_and_nightly_updates_leave_it_alone() {
    let newer = Driver::new("580.95.05");
    let (fleet, _rpms) = fleet(&[newer, Driver::new(NEW), Driver::new(NEXT)], true);
    let home = Home::new();
    let before =
        fleet.read("gpu001", "cat /etc/dnf/modules.d/* /etc/dnf/plugins/versionlock.list; rpm -qa | sort");
    let planned = gpufleet(&home, &fleet, "plan", "driver_branch=580", 0);
    let after =
        fleet.read("gpu001", "cat /etc/dnf/modules.d/* /etc/dnf/plugins/versionlock.list; rpm -qa | sort");
    assert_eq!(before, after, "a plan changes nothing");
    let told = planned.value().to_string();
    assert!(told.contains("580-open") && told.contains("kmod-nvidia-open-dkms"), "{told}");
    let done = gpufleet(&home, &fleet, "run", "driver_branch=580", 0);
    assert_eq!((loaded(&fleet).as_str(), fleet.boots("gpu001")), (NEW, 1));
    assert_eq!(done.stat("gpu001", "changed"), planned.stat("gpu001", "changed"));
    assert_eq!((packages(&fleet), stream(&fleet)), (open(NEW), "580-open".to_owned()));
    assert_eq!(gpufleet(&home, &fleet, "run", "driver_branch=580", 0).total("changed"), 0);
    // Even where somebody lets dnf see everything.
    fleet.read("gpu001", "dnf -y -q --setopt=cuda.module_hotfixes=1 upgrade");
    assert_eq!(packages(&fleet), open(NEW));
    assert!(!fleet.has("gpu001", "var/lib/gpufleet/driver"));

    // An older one of the branch, by its version.
    gpufleet(&home, &fleet, "run", "driver_version=580.95.05", 0);
    assert_eq!((loaded(&fleet).as_str(), packages(&fleet)), ("580.95.05", open("580.95.05")));
    let locks = fleet.read("gpu001", "dnf -q versionlock list 2>/dev/null");
    assert!(locks.lines().count() == 3 && !locks.contains(NEW), "{locks}");
    assert_eq!(gpufleet(&home, &fleet, "run", "driver_version=580.95.05", 0).total("changed"), 0);
}

#[test]
fn without_streams_the_version_is_named() {
    let (fleet, _rpms) = fleet(&[Driver::new(NEW), Driver::new(NEXT)], false);
    let home = Home::new();
    let planned = gpufleet(&home, &fleet, "plan", "driver_branch=580", 0);
    let done = gpufleet(&home, &fleet, "run", "driver_branch=580", 0);
    assert_eq!(done.stat("gpu001", "changed"), planned.stat("gpu001", "changed"));
    assert_eq!((loaded(&fleet).as_str(), packages(&fleet)), (NEW, open(NEW)));
    assert!(!fleet.has("gpu001", "etc/dnf/modules.d/nvidia-driver.module"));
    assert_eq!(gpufleet(&home, &fleet, "run", "driver_branch=580", 0).total("changed"), 0);
    let none = gpufleet(&home, &fleet, "run", "driver_branch=570", 5);
    assert!(
        none.message("gpu001").contains("nvidia-open is there as 575.57.08, 580.173.02, 590.44.01"),
        "{}",
        none.message("gpu001")
    );
}

#[test]
fn another_flavour_replaces_the_packages_of_the_first() {
    let (fleet, _rpms) = fleet(&[Driver::new(NEW)], true);
    let home = Home::new();
    home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_driver: {branch: 580, flavour: proprietary}\n",
    );
    let inventory = fleet.inventory();
    let run =
        || home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"]).run().expect(0);
    run();
    assert_eq!((loaded(&fleet).as_str(), stream(&fleet).as_str()), (NEW, "580-dkms"));
    assert_eq!(
        packages(&fleet),
        format!("cuda-drivers={NEW}\nkmod-nvidia-latest-dkms={NEW}\nnvidia-driver-cuda={NEW}")
    );
    assert_eq!(run().document().total("changed"), 0);
}

#[test]
fn a_driver_that_does_not_come_up_is_replaced_by_the_former_one() {
    let broken = Driver { fault: Some("Key was rejected by service"), ..Driver::new(NEW) };
    let unbuilt = Driver { unbuilt: true, ..Driver::new(NEXT) };
    let (fleet, _rpms) = fleet(&[broken, unbuilt], true);
    let home = Home::new();
    for (word, says) in [
        ("driver_branch=580", "could not insert 'nvidia': Key was rejected"),
        ("driver_version=590.44.01", "there is no module nvidia for the kernel"),
    ] {
        let done = gpufleet(&home, &fleet, "run", word, 5);
        let message = done.message("gpu001");
        assert!(message.contains(says), "{message}");
        assert!(message.contains(&format!("the node is back at {OLD}, which runs")), "{message}");
        assert_eq!((loaded(&fleet).as_str(), packages(&fleet)), (OLD, open(OLD)));
        assert_eq!(stream(&fleet), "575-open");
    }
}

#[test]
fn a_driver_that_waits_for_a_reboot_comes_up_with_it_or_goes_back_after_it() {
    let broken = Driver { fault: Some("Exec format error"), ..Driver::new(NEXT) };
    let (fleet, _rpms) = fleet(&[Driver::new(NEW), broken], true);
    let home = Home::new();
    fleet.control("gpu001", &["machine", "nvidia_drm_refs", "1"]);
    fleet.read("gpu001", "modprobe nvidia_drm");
    let planned = gpufleet(&home, &fleet, "plan", "driver_branch=580", 0);
    let done = gpufleet(&home, &fleet, "run", "driver_branch=580", 0);
    assert_eq!((loaded(&fleet).as_str(), fleet.boots("gpu001")), (NEW, 2));
    assert_eq!(done.stat("gpu001", "changed"), planned.stat("gpu001", "changed"));
    let failed = gpufleet(&home, &fleet, "run", "driver_branch=590", 5);
    let message = failed.message("gpu001");
    assert!(
        message.contains("Exec format error") && message.contains(&format!("back at {NEW}, which runs")),
        "{message}"
    );
    assert_eq!((loaded(&fleet).as_str(), stream(&fleet).as_str()), (NEW, "580-open"));
    assert_eq!(packages(&fleet), open(NEW));
    // It is held as before, in the version that came back.
    let locks = fleet.read("gpu001", "dnf -q versionlock list 2>/dev/null");
    assert!(locks.contains(&format!("nvidia-open-3:{NEW}")) && !locks.contains(NEXT), "{locks}");
}

#[test]
fn without_the_plugin_nothing_is_touched_and_the_next_step_is_told() {
    let (fleet, _rpms) = fleet(&[Driver::new(NEW)], true);
    let home = Home::new();
    fleet.read("gpu001", "rm /usr/lib/python3/dist-packages/dnf-plugins/versionlock.py");
    for verb in ["plan", "run"] {
        let code = if verb == "plan" { 2 } else { 5 };
        let refused = gpufleet(&home, &fleet, verb, "driver_branch=580", code);
        let message = refused.message("gpu001");
        assert!(
            message.contains("python3-dnf-plugin-versionlock") && message.contains("`hold: false`"),
            "{message}"
        );
    }
    assert_eq!(packages(&fleet), open(OLD));
    home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_driver: {branch: 580, hold: false}\n",
    );
    let inventory = fleet.inventory();
    let run =
        || home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"]).run().expect(0);
    run();
    assert_eq!(loaded(&fleet), NEW);
    assert_eq!(run().document().total("changed"), 0);
}

#[test]
fn a_helper_killed_among_the_packages_leaves_a_way_on_and_back() {
    let broken = Driver { fault: Some("Exec format error"), ..Driver::new(NEW) };
    let (fleet, _rpms) = fleet(&[broken, Driver::new(NEXT)], true);
    let home = Home::new();
    fleet.control(
        "gpu001",
        &["fault", "add", "{program: modprobe, args: nvidia, effect: kill_parent, times: 1}"],
    );
    let killed = home
        .gpufleet(["run", "--format", "json", "-i", &fleet.inventory(), "--yes", "-e", "driver_branch=580"])
        .arg(playbook())
        .run();
    assert_ne!(killed.code, Some(0), "{killed}");
    assert_eq!(packages(&fleet), open(NEW));
    // As rpm leaves them that is killed before it removes the packages that it replaced.
    let half = format!(
        "rpm --force-debian -i --justdb --force --nodeps /opt/drivers/noarch/nvidia-open-{OLD}-*.rpm"
    );
    fleet.read(
        "gpu001",
        &format!(
            "{half} && sleep 1 && rpm --force-debian -e --justdb --nodeps nvidia-open-{NEW} && \
        rpm --force-debian -i --justdb --force --nodeps /opt/drivers/noarch/nvidia-open-{NEW}-*.rpm"
        ),
    );
    assert!(
        packages(&fleet).contains(&format!("nvidia-open={OLD}\nnvidia-open={NEW}")),
        "{}",
        packages(&fleet)
    );
    let planned = gpufleet(&home, &fleet, "plan", "driver_branch=580", 0);
    assert!(planned.value().to_string().contains("half installed"), "{:#}", planned.value());
    let failed = gpufleet(&home, &fleet, "run", "driver_branch=580", 5);
    let message = failed.message("gpu001");
    assert!(message.contains(&format!("the node is back at {OLD}, which runs")), "{message}");
    assert_eq!((loaded(&fleet).as_str(), packages(&fleet)), (OLD, open(OLD)));
    assert_eq!(stream(&fleet), "575-open");
    gpufleet(&home, &fleet, "run", "driver_branch=590", 0);
    assert_eq!((loaded(&fleet).as_str(), packages(&fleet)), (NEXT, open(NEXT)));
}

#[test]
fn going_back_after_a_reboot_leaves_no_lock_of_the_failed_driver() {
    let broken = Driver { fault: Some("Exec format error"), ..Driver::new(NEW) };
    let (fleet, _rpms) = fleet(&[broken], true);
    let home = Home::new();
    fleet.control("gpu001", &["machine", "nvidia_drm_refs", "1"]);
    fleet.read(
        "gpu001",
        "modprobe nvidia_drm && echo '!nvidia-open-3:570.1.2-1.*' >> /etc/dnf/plugins/versionlock.list",
    );
    let locks = || fleet.read("gpu001", "dnf -q versionlock list 2>/dev/null");
    let before = locks();
    let failed = gpufleet(&home, &fleet, "run", "driver_branch=580", 5);
    let message = failed.message("gpu001");
    assert!(message.contains(&format!("back at {OLD}, which runs")), "{message}");
    assert_eq!(
        (packages(&fleet), stream(&fleet), fleet.boots("gpu001")),
        (open(OLD), "575-open".to_owned(), 2)
    );
    assert_eq!(locks(), before);
}

#[test]
fn the_way_back_needs_no_repository() {
    let broken = Driver { fault: Some("Exec format error"), ..Driver::new(NEW) };
    let (fleet, _rpms) = fleet(&[broken], true);
    let home = Home::new();
    fleet.control(
        "gpu001",
        &["fault", "add", "{program: modprobe, args: nvidia, effect: kill_parent, times: 1}"],
    );
    let inventory = fleet.inventory();
    let run = || {
        let words = ["run", "--format", "json", "-i", &inventory, "--yes", "-e", "driver_branch=580"];
        home.gpufleet(words).arg(playbook()).run()
    };
    let killed = run();
    assert_ne!(killed.code, Some(0), "{killed}");
    assert_eq!(packages(&fleet), open(NEW));
    fleet.read("gpu001", "rm -r /opt/drivers /var/cache/dnf");
    let failed = run().expect(5).document();
    let message = failed.message("gpu001");
    assert!(message.contains(&format!("back at {OLD}, which runs")), "{message}");
    assert_eq!((loaded(&fleet).as_str(), packages(&fleet)), (OLD, open(OLD)));
    let told = failed.value().to_string();
    assert!(told.contains("dnf module enable nvidia-driver:575-open"), "{told}");
}

#[test]
fn what_a_person_excluded_or_held_by_a_pattern_stays_so() {
    let (fleet, _rpms) = fleet(&[Driver::new("580.95.05"), Driver::new(NEW)], true);
    let home = Home::new();
    let own = format!("!nvidia-open-3:{NEW}-1.*\nkmod-nvidia-*-3:580.95.05-1.*");
    fleet.read("gpu001", &format!("echo '{own}' >> /etc/dnf/plugins/versionlock.list"));
    let locks = || fleet.read("gpu001", "dnf -q versionlock list 2>/dev/null");
    // The newest of the branch is excluded.
    gpufleet(&home, &fleet, "run", "driver_branch=580", 0);
    assert_eq!((loaded(&fleet).as_str(), packages(&fleet)), ("580.95.05", open("580.95.05")));
    assert!(locks().contains(&own), "{}", locks());
    let refused = gpufleet(&home, &fleet, "run", &format!("driver_version={NEW}"), 5);
    let message = refused.message("gpu001");
    assert!(message.contains(&format!("somebody excluded nvidia-open 3:{NEW}-1")), "{message}");
    home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_driver: {branch: 580, hold: false}\n",
    );
    fleet.read(
        "gpu001",
        &format!(
            "echo '{own}' > /etc/dnf/plugins/versionlock.list && dnf -q versionlock add nvidia-driver-cuda"
        ),
    );
    let inventory = fleet.inventory();
    let run =
        || home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"]).run().expect(0);
    let released = run().document();
    assert_eq!(locks().trim(), own);
    assert!(
        released.value().to_string().contains("kmod-nvidia-open-dkms stay held"),
        "{:#}",
        released.value()
    );
    assert_eq!(run().document().total("changed"), 0);
}

/// What roles do that bring a driver to Red Hat's family: they try packages of the running kernel, take a repository of their
/// own, and install a stream under a condition, whose result another task passes on.
const ROLE: &str = r#"
- hosts: gpu
  become: yes
  vars: {branch: "580", version: '', skip_reboot: no}
  tasks:
    - name: packages of the kernel
      block:
        - yum: {name: ["kernel-headers-{{ ansible_kernel }}", "kernel-devel-{{ ansible_kernel }}"], state: present}
          environment: "{{ proxy_env if proxy_env is defined else {} }}"
      rescue:
        - yum: {name: [shell], state: latest}
    - yum_repository: {name: drivers, description: of the role, baseurl: "file:///opt/drivers", gpgcheck: no}
    - name: of an old release
      yum: {name: "nvidia-driver-branch-{{ branch }}", state: present}
      register: of_7
      when: ansible_distribution_major_version < '8'
    - name: of a new release
      dnf:
        name: "{{ version | ternary('@nvidia-driver:' + version, '@nvidia-driver:' + branch + '-open/default') }}"
        state: present
        autoremove: "{{ branch == 'none' }}"
      register: of_8
      when: ansible_distribution_major_version > '7'
    - debug: {msg: installed}
      when: of_7.changed or of_8.changed
      register: installed
      changed_when: of_7.changed or of_8.changed
    - reboot:
      when: installed.changed and not skip_reboot
"#;

#[test]
fn a_role_for_red_hat_runs_as_it_is_and_reboots_into_its_stream() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, ..FleetOptions::default() });
    let rpms = Rpms::new(&[Driver::new(OLD), Driver::new(NEW)], true);
    rpms.install(&fleet, "gpu001");
    let release = "NAME=\"Rocky Linux\"\nID=rocky\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.4\"\nVERSION=\"9.4\"\n\
                   PLATFORM_ID=platform:el9\n";
    fleet.read(
        "gpu001",
        &format!(
            "rm -f /etc/os-release /etc/debian_version && echo 'Rocky Linux release 9.4 (Blue Onyx)' >/etc/redhat-release && \
             cat >/etc/os-release <<'END'\n{release}END"
        ),
    );
    let home = Home::new();
    home.write("play.yaml", ROLE);
    let inventory = fleet.inventory();
    let run =
        || home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"]).run().expect(0);
    let done = run();
    assert_eq!((loaded(&fleet).as_str(), fleet.boots("gpu001")), (NEW, 2), "{done}");
    assert_eq!((packages(&fleet), stream(&fleet)), (open(NEW), "580-open".to_owned()));
    assert_eq!((run().document().total("changed"), fleet.boots("gpu001")), (0, 2));
}
