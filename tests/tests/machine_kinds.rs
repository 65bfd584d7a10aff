//! Accounts, packages and mounts with the real tools of a machine.

use gpufleet_tests::{Fleet, FleetOptions, Home};

const MACHINE: &str = r#"
- hosts: gpu
  become: true
  tasks:
    - group: {name: gfgroup, gid: 4242}
    - ansible.builtin.user: {name: gfann, uid: 4711, groups: gfgroup, shell: /bin/bash, create_home: false, password: '*'}
      register: ann
    - file: {path: /srv/gfann, state: directory, owner: gfann, group: gfgroup}
    - ansible.posix.mount: {path: /gfscratch, src: tmpfs, fstype: tmpfs, opts: 'size=1m,nodev', state: mounted}
    - cron: {name: scrub, special_time: daily, job: /bin/true, user: root, cron_file: gf}
    - hostname: {name: "{{ inventory_hostname }}.lab"}
    - package: {name: bash}
    - apt: {name: [bash, coreutils], state: present}
      register: packages
    - assert: {that: ["ann.uid == 4711", "ann.name == 'gfann'", "packages is not changed"]}
"#;

/// Uses the real tools of a machine, in the nodes' own roots.
#[test]
fn a_machine_is_declared_with_its_real_tools() {
    let fleet = Fleet::start(&FleetOptions { gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write("play.yaml", MACHINE);
    let inventory = fleet.inventory();
    let arguments = |verb| [verb, "play.yaml", "-i", &inventory, "--format", "json"].map(str::to_owned);
    home.gpufleet(arguments("plan")).run().expect(0);
    assert!(fleet.read("gpu001", "getent passwd gfann || echo none") == "none", "a plan writes nothing");
    home.gpufleet(arguments("run")).run().expect(0);
    for name in fleet.names() {
        let read = |command: &str| fleet.read(&name, command);
        assert_eq!(read("id -un 4711; id -nG gfann"), "gfann\ngfann gfgroup");
        assert_eq!(read("stat -c '%U %G' /srv/gfann"), "gfann gfgroup");
        assert_eq!(read("grep -c ' /gfscratch .*nodev' /proc/self/mountinfo"), "1");
        assert_eq!(read("tail -1 /etc/fstab"), "tmpfs /gfscratch tmpfs size=1m,nodev 0 0");
        assert_eq!(read("cat /etc/cron.d/gf"), "#Ansible: scrub\n@daily root /bin/true");
        assert_eq!(read("cat /etc/hostname"), format!("{name}.lab"));
    }
    let again = home.gpufleet(arguments("run")).run().expect(0);
    assert_eq!(again.document().total("changed"), 0, "{again}");
    home.gpufleet(arguments("audit")).run().says(&["compliant"]);
}
