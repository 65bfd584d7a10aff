//! Where packages come from, on real machines: their own apt, and a signed repository in their network. The machines
//! have neither curl nor wget, gpg nor Python.

use std::path::Path;
use std::time::Duration;

use gpufleet_systems_tests::{Machines, Mirror};
use gpufleet_tests::{Finished, Home};

const LIMIT: Duration = Duration::from_secs(240);

/// What roles that install drivers do, in the ways that they do it.
const DRIVER: &str = r#"
- hosts: fleet
  vars: {mirror: "http://10.99.0.254:8000"}
  tasks:
    - apt_repository: {repo: "ppa:graphics-drivers/ppa", codename: jammy, state: absent}
    - apt_key: {id: 7fa2af80, state: absent}
    - name: keyring
      apt: {deb: "{{ mirror }}/tests-keyring_1.0_all.deb", state: present}
    - name: source
      apt_repository: {repo: "deb [signed-by=/usr/share/keyrings/tests.gpg] {{ mirror }} /", filename: tests}
      register: source
    - name: lists
      apt: {update_cache: true}
      changed_when: false
    - name: blacklist
      kernel_blacklist: {name: nouveau, state: present}
    - name: driver
      apt: {name: "{{ '' | ternary('tests-driver=' + '', 'tests-driver') }}", state: present}
    - name: hold
      dpkg_selections: {name: tests-driver, selection: hold}
    - name: unit
      systemd: {name: tests-driver, enabled: true}
    - package_facts: {manager: auto}
    - service_facts:
"#;

/// What only a run can know.
const FACTS: &str = r#"
    - assert:
        that:
          - ansible_facts.packages['tests-driver'][0].version == '2.0'
          - packages['tests-driver'][0].origin == 'gpufleet tests'
          - packages['tests-driver'][0].category == 'misc'
          - "services['ssh.service'] == {'name': 'ssh.service', 'state': 'running', 'status': 'enabled', 'source': 'systemd'}"
          - ansible_facts['services']['tests-driver.service'].status == 'enabled'
          - "source.repo == 'deb [signed-by=/usr/share/keyrings/tests.gpg] http://10.99.0.254:8000 /'"
"#;

/// The same repository in other forms.
const FORMS: &str = r#"
- hosts: fleet
  vars: {mirror: "http://10.99.0.254:8000"}
  tasks:
    - name: stanza
      deb822_repository: {name: Tests repo, uris: "{{ mirror }}", suites: /, signed_by: "{{ mirror }}/key.asc"}
      register: stanza
    - assert: {that: ["stanza.key_filename == '/etc/apt/keyrings/tests-repo.asc'", "stanza.dest == '/etc/apt/sources.list.d/tests-repo.sources'"]}
    - name: there in the other form
      apt_repository: {repo: "deb {{ mirror }} /", update_cache: true}
      register: there
    - assert: {that: [not there.changed]}
    - name: package
      apt: {name: tests-driver, update_cache: true}
    - name: gone
      deb822_repository: {name: tests repo, state: absent}
      when: inventory_hostname == 'node2'
    - name: key of all
      apt_key: {url: "{{ mirror }}/key.gpg"}
      register: key
      when: inventory_hostname == 'node2'
    - name: line
      apt_repository: {repo: "deb {{ mirror }} /"}
      when: inventory_hostname == 'node2'
    - name: older
      apt: {name: tests-driver=1.0, allow_downgrade: true}
      when: inventory_hostname == 'node2'
"#;

const BROKEN: &str = r#"
- hosts: fleet
  tasks:
    - apt_repository: {repo: "deb http://10.99.0.254:8000/nothing /", update_cache_retries: 1}
"#;

/// Returns packages of the repository, and the folder of their files.
fn packages() -> (tempfile::TempDir, [String; 3]) {
    let unit = tempfile::tempdir().expect("a folder");
    let path = unit.path().join("tests-driver.service");
    let text = "[Service]\nType=oneshot\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n";
    std::fs::write(&path, text).expect("a unit");
    let driver = format!("tests-driver=2.0=lib/systemd/system/tests-driver.service:{}", path.display());
    let keyring = "tests-keyring=1.0=usr/share/keyrings/tests.gpg:key.gpg".to_owned();
    (unit, ["tests-driver=1.0".to_owned(), driver, keyring])
}

/// Leaves a machine's apt without the distribution's mirror, which its network does not have.
fn no_sources(disk: &Path) {
    std::fs::create_dir_all(disk.join("etc/apt")).expect("a folder");
    std::fs::write(disk.join("etc/apt/sources.list"), "").expect("an empty list");
}

fn start(machines: &Machines) -> Mirror {
    let (_unit, packages) = packages();
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    Mirror::start(machines, &packages)
}

fn play(machines: &Machines, home: &Home, verb: &str, text: &str) -> Finished {
    home.write("play.yaml", text);
    let inventory = machines.inventory();
    let mut words = vec![verb, "play.yaml", "-i", &inventory, "--format", "json"];
    words.extend((verb == "run").then_some("--yes"));
    machines.gpufleet(home, &words).within(LIMIT).run()
}

#[test]
fn a_driver_comes_from_a_repository_that_the_play_brings() {
    let machines = Machines::start_with(1, no_sources);
    let _mirror = start(&machines);
    let home = Home::new();
    let before = machines.read("node1", "ls -lR --full-time /etc/apt /etc/modprobe.d /var/lib/dpkg/info");
    // 2, because which packages come is known only once the lists of the new repository are fetched.
    let plan = play(&machines, &home, "plan", DRIVER).expect(2);
    let after = machines.read("node1", "ls -lR --full-time /etc/apt /etc/modprobe.d /var/lib/dpkg/info");
    assert_eq!(before, after, "a plan writes nothing: {plan}");
    let done = play(&machines, &home, "run", &format!("{DRIVER}{FACTS}")).expect(0);
    // keyring, source, blacklist, driver, hold, unit.
    assert_eq!(done.document().stat("node1", "changed"), 6, "{done}");
    let read = |command: &str| machines.read("node1", command);
    assert_eq!(read("dpkg-query -W -f '${Version}' tests-driver"), "2.0");
    assert_eq!(read("dpkg --get-selections tests-driver | tr -s '\\t' ' '"), "tests-driver hold");
    assert_eq!(read("cat /etc/modprobe.d/blacklist-ansible.conf"), "blacklist nouveau");
    assert_eq!(
        read("cat /etc/apt/sources.list.d/tests.list"),
        "deb [signed-by=/usr/share/keyrings/tests.gpg] http://10.99.0.254:8000 /"
    );
    assert_eq!(read("ls /tmp /var/tmp | grep gpufleet || true"), "", "nothing is left of the downloads");
    let again = play(&machines, &home, "run", &format!("{DRIVER}{FACTS}")).expect(0);
    assert_eq!(again.document().stat("node1", "changed"), 0, "{again}");
}

#[test]
fn a_repository_has_several_forms_and_a_broken_one_is_undone() {
    let machines = Machines::start_with(2, no_sources);
    let _mirror = start(&machines);
    let home = Home::new();
    let done = play(&machines, &home, "run", FORMS).expect(0);
    assert_eq!(done.document().stat("node1", "changed"), 2, "{done}");
    assert_eq!(machines.read("node1", "dpkg-query -W -f '${Version}' tests-driver"), "2.0");
    assert_eq!(done.document().stat("node2", "changed"), 6, "{done}");
    assert_eq!(machines.read("node2", "dpkg-query -W -f '${Version}' tests-driver"), "1.0");
    assert_eq!(
        machines.read("node2", "ls /etc/apt/sources.list.d /etc/apt/keyrings"),
        "/etc/apt/keyrings:\n\n/etc/apt/sources.list.d:\n10_99_0_254_8000.list"
    );
    let before = machines.read("node1", "ls -R /etc/apt");
    let broken = play(&machines, &home, "run", BROKEN);
    assert_ne!(broken.code, Some(0), "{broken}");
    assert_eq!(machines.read("node1", "ls -R /etc/apt"), before, "{broken}");
}
