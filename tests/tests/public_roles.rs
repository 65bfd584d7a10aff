//! A role that installs a driver, written as public roles are: the system decides which tasks are included, expressions decide
//! states and names, and the role reboots by itself after a change. With a real apt, and packages of the tests' own.

use gpufleet_tests::{Document, Driver, Drivers, Fleet, FleetOptions, Home};

const OLD: &str = "575.57.08";
const NEW: &str = "580.173.02";

const DEFAULTS: &str = r#"
driver_state: present
driver_version: ''
driver_branch: "580"
driver_skip_reboot: no
driver_options: ''
driver_packages:
- "nvidia-open-{{ driver_branch }}"
- nvidia-kernel-open-dkms
- libnvidia-ml1
driver_options_file: /etc/modprobe.d/driver.conf
"#;

const MAIN: &str = r#"
- name: another driver
  modprobe: {name: nouveau, state: absent}
  ignore_errors: true
- name: tasks of Ubuntu
  include_tasks: ubuntu.yml
  when: ansible_distribution == 'Ubuntu'
- name: tasks of Red Hat
  include_tasks: redhat.yml
  when: ansible_os_family == 'RedHat'
- name: folder of the unit
  file: {path: /etc/systemd/system/nvidia-persistenced.service.d/, state: directory, recurse: yes}
- name: unit
  copy: {src: override.conf, dest: /etc/systemd/system/nvidia-persistenced.service.d/override.conf}
- name: unit at boot
  systemd: {name: nvidia-persistenced, enabled: yes}
  when: driver_state != 'absent'
- name: folder of options
  file: {path: "{{ driver_options_file | dirname }}", state: directory}
- name: options
  template: {src: driver.conf.j2, dest: "{{ driver_options_file }}", mode: '0644'}
- name: reboot into it
  reboot:
  when: driver.changed and not driver_skip_reboot
"#;

const UBUNTU: &str = r#"
- name: old source
  apt_repository: {repo: "ppa:graphics-drivers/ppa", state: absent}
- name: packages
  apt:
    name: "{{ driver_version | ternary(item + '=' + driver_version, item) }}"
    state: "{{ driver_state }}"
    autoremove: "{{ driver_state == 'absent' }}"
    purge: "{{ driver_state == 'absent' }}"
  loop: "{{ driver_packages }}"
  register: driver
  environment: "{{ proxy_env if proxy_env is defined else {} }}"
"#;

const RED_HAT: &str = r#"
- name: packages
  dnf: {name: "@nvidia-driver:{{ driver_branch }}-open", state: "{{ driver_state }}"}
  register: driver
"#;

const UBUNTU_RELEASE: &str = r#"NAME="Ubuntu"
ID=ubuntu
ID_LIKE=debian
VERSION_ID="22.04"
VERSION="22.04.4 LTS (Jammy Jellyfish)"
VERSION_CODENAME=jammy
"#;

fn fleet() -> (Fleet, Drivers) {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, ..FleetOptions::default() });
    let drivers = Drivers::new(&[Driver::new(OLD), Driver::new(NEW)]);
    drivers.install(&fleet, "gpu001");
    fleet.read(
        "gpu001",
        &format!("rm -f /etc/os-release && cat >/etc/os-release <<'END'\n{UBUNTU_RELEASE}END"),
    );
    (fleet, drivers)
}

/// Writes the role as its own repository, with a playbook in its folder of tests.
fn role(home: &Home) {
    for (name, text) in [
        ("driver/defaults/main.yml", DEFAULTS),
        ("driver/tasks/main.yml", MAIN),
        ("driver/tasks/ubuntu.yml", UBUNTU),
        ("driver/tasks/redhat.yml", RED_HAT),
        ("driver/files/override.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/nvidia-persistenced\n"),
        ("driver/templates/driver.conf.j2", "options nvidia {{ driver_options }}\n"),
        ("driver/tests/playbook.yml", "- hosts: all\n  become: yes\n  roles:\n    - ../..\n"),
    ] {
        home.write(name, text);
    }
}

fn gpufleet(home: &Home, fleet: &Fleet, verb: &str, more: &[&str]) -> Document {
    let inventory = fleet.inventory();
    let mut words = vec![verb, "driver/tests/playbook.yml", "--format", "json", "-i", &inventory];
    words.extend((verb == "run").then_some("--yes"));
    words.extend(more);
    home.gpufleet(words).run().expect(0).document()
}

/// The version that programs see.
fn loaded(fleet: &Fleet) -> String {
    fleet.read("gpu001", "nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0")
}

#[test]
fn a_role_reboots_into_the_driver_that_it_installed_and_once() {
    let (fleet, _drivers) = fleet();
    let home = Home::new();
    role(&home);
    let done = gpufleet(&home, &fleet, "run", &[]);
    assert_eq!((loaded(&fleet).as_str(), fleet.boots("gpu001")), (NEW, 2), "{:#}", done.value());
    let again = gpufleet(&home, &fleet, "run", &[]);
    assert_eq!((again.total("changed"), fleet.boots("gpu001")), (0, 2), "{:#}", again.value());
}

#[test]
fn without_its_reboot_a_role_is_done_and_a_warning_says_what_waits() {
    let (fleet, _drivers) = fleet();
    let home = Home::new();
    role(&home);
    let done = gpufleet(&home, &fleet, "run", &["-e", "{\"driver_skip_reboot\": true}"]);
    assert_eq!((done.state("gpu001"), fleet.boots("gpu001")), ("done", 1));
    let told = done.value().to_string();
    assert!(told.contains("the kernel and the driver that run now stay until the node reboots"), "{told}");
}
