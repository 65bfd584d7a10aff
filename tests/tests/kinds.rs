//! Kinds for the operating system, and the language around them, on real nodes.

use gpufleet_tests::{Fleet, FleetOptions, Home};

const PLAY: &str = r#"
- name: The operating system
  hosts: gpu
  become: true
  vars:
    motd: "Welcome to {{ inventory_hostname }}"
    users: [alice, bob]
  tasks:
    - name: read
      command: cat /etc/hostname
      register: name
      changed_when: false
    - name: condition
      assert: {that: ["name.stdout == inventory_hostname", "name.rc == 0"]}
    - name: never
      fail: {msg: must not happen}
      when: name.stdout != inventory_hostname
    - name: directory
      file: {path: /srv/data, state: directory, mode: '0750'}
    - name: homes
      file: {path: "/srv/data/{{ item }}", state: directory}
      loop: "{{ users }}"
    - name: content
      copy: {content: "{{ motd }}\n", dest: /srv/data/motd, mode: '0644'}
      notify: told
    - name: source
      ansible.builtin.copy: {src: blob.bin, dest: /srv/data/blob.bin}
    - name: template
      template: {src: limits.conf.j2, dest: /srv/data/limits.conf}
      notify: told
    - name: line
      lineinfile: {path: /srv/data/list, line: "first = 1", create: true}
    - name: replaced line
      lineinfile: {path: /srv/data/list, regexp: '^second', line: "second = {{ users | length }}"}
    - name: link
      file: {path: /srv/data/link, src: /srv/data/motd, state: link}
    - name: setting
      ansible.posix.sysctl: {name: vm.swappiness, value: 13}
    - name: unit
      service: {name: cron, state: stopped, enabled: false}
    - name: unit by another name
      ansible.builtin.systemd: {name: nvidia-dcgm, state: started, enabled: true}
    - name: script
      script: {cmd: "make.sh one two", creates: /srv/data/made}
    - name: shell
      shell: {cmd: "echo $((6 * 7)) > /srv/data/answer", creates: /srv/data/answer}
    - name: facts of a path
      stat: {path: /srv/data/motd}
      register: there
    - set_fact: {size: "{{ there.stat.size }}"}
    - assert: {that: ["there.stat.exists", "size | int > 10"]}
    - name: guarded
      block:
        - name: breaks
          command: /bin/false
          changed_when: false
      rescue:
        - name: saved
          debug: {msg: "{{ ansible_failed_task.name }} failed"}
      always:
        - name: anyway
          debug: {msg: always}
    - name: ignored
      command: /bin/false
      changed_when: false
      ignore_errors: true
    - name: tagged
      debug: {msg: only when asked}
      tags: [never]
  handlers:
    - name: told
      shell: echo told >> /srv/data/handled
"#;

#[test]
fn the_operating_system_is_declared_once() {
    let fleet = Fleet::start(&FleetOptions { gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write("play.yaml", PLAY);
    home.write("files/blob.bin", "\u{1}binary\u{2}");
    home.write(
        "templates/limits.conf.j2",
        "{% for user in users %}\n{{ user }} memlock {{ loop.index }}\n{% endfor %}\n",
    );
    home.write("files/make.sh", "#!/bin/sh\necho \"$1-$2\" > /srv/data/made\n");
    let inventory = fleet.inventory();
    let arguments = |verb| [verb, "play.yaml", "-i", &inventory, "--format", "json"].map(str::to_owned);

    let plan = home.gpufleet(arguments("plan")).run().expect(0).document();
    assert!(!fleet.has("gpu001", "/srv/data"), "a plan writes nothing");
    let done = home.gpufleet(arguments("run")).run().expect(0);
    let document = done.document();
    for name in fleet.names() {
        let read = |path: &str| fleet.read(&name, &format!("cat /srv/data/{path}"));
        assert_eq!(read("motd"), format!("Welcome to {name}"));
        assert_eq!(read("link"), format!("Welcome to {name}"));
        assert_eq!(read("blob.bin"), "\u{1}binary\u{2}");
        assert_eq!(read("limits.conf"), "alice memlock 1\nbob memlock 2");
        assert_eq!(read("list"), "first = 1\nsecond = 2");
        assert_eq!(
            (read("made"), read("answer"), read("handled")),
            ("one-two".into(), "42".into(), "told".into())
        );
        assert_eq!(fleet.read(&name, "stat -c %a /srv/data /srv/data/motd"), "750\n644");
        assert_eq!(fleet.read(&name, "ls -d /srv/data/alice /srv/data/bob | wc -l"), "2");
        assert_eq!(fleet.read(&name, "cat /proc/sys/vm/swappiness"), "13");
        assert_eq!(fleet.read(&name, "systemctl is-active cron nvidia-dcgm || true"), "inactive\nactive");
        let stat = |field| document.stat(&name, field);
        assert_eq!(
            (stat("failed"), stat("rescued"), stat("ignored"), stat("skipped")),
            (0, 1, 1, 1),
            "{done}"
        );
        assert!(!plan.changes(&name).is_empty());
        assert_eq!(document.state(&name), "done");
    }
    let again = home.gpufleet(arguments("run")).run().expect(0);
    assert_eq!(again.document().total("changed"), 0, "{again}");
    assert_eq!(fleet.read("gpu001", "cat /srv/data/handled"), "told", "nobody notified a second time");
    // Everything that can be predicted is as declared; the effect of a command cannot be.
    home.gpufleet(arguments("audit")).arg("--strict").run().expect(3);
    let audit = home.gpufleet(arguments("audit")).run().expect(0).document();
    for name in fleet.names() {
        let node = audit.node(&name);
        assert_eq!(
            (audit.state(&name), node["changes"].as_array().map(Vec::len)),
            ("unknown", Some(0)),
            "{node:#}"
        );
        assert!(audit.message(&name).contains("tasks judged; not `"), "{node:#}");
        assert!(node["judged"]["judged"].as_u64() > Some(10), "{node:#}");
    }
}

/// Limits and selections: tags, `--limit`, `-e`, host variables, `run_once`.
#[test]
fn a_run_does_what_was_selected() {
    let fleet = Fleet::start(&FleetOptions { nodes: 3, gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write(
        "play.yaml",
        r#"
- hosts: all:!gpu003
  become: true
  tasks:
    - name: text
      copy: {content: "{{ words }} in {{ rack }}", dest: /root/text}
      tags: [text]
    - name: once
      command: hostname
      register: first
      run_once: true
      changed_when: false
      tags: [once]
    - copy: {content: "{{ first.stdout }}", dest: /root/first}
      tags: [once]
"#,
    );
    let inventory = fleet.inventory();
    home.gpufleet(["run", "play.yaml", "-i", &inventory, "-e", "words='so be it'", "--tags", "text"])
        .run()
        .expect(0);
    for (name, expected) in
        [("gpu001", "so be it in rack1"), ("gpu002", "so be it in rack1"), ("gpu003", "none")]
    {
        assert_eq!(fleet.read(name, "cat /root/text 2>/dev/null || echo none"), expected);
        assert_eq!(fleet.read(name, "ls /root/first 2>/dev/null || echo none"), "none");
    }
    let done = home
        .gpufleet(["run", "play.yaml", "-i", &inventory, "-e", r#"{"words": "no"}"#, "--skip-tags", "text"])
        .run()
        .expect(0);
    for name in ["gpu001", "gpu002"] {
        assert_eq!(fleet.read(name, "cat /root/first"), fleet.read("gpu001", "cat /root/first"), "{done}");
        assert_eq!(fleet.read(name, "cat /root/text"), "so be it in rack1");
    }
    home.gpufleet([
        "run",
        "play.yaml",
        "-i",
        &inventory,
        "-e",
        "words=one",
        "--limit",
        "gpu002",
        "--tags",
        "text",
    ])
    .run()
    .expect(0);
    assert_eq!(fleet.read("gpu001", "cat /root/text"), "so be it in rack1");
    assert_eq!(fleet.read("gpu002", "cat /root/text"), "one in rack1");
}

/// A wrong rendered value fails its task on its node before the task does anything.
#[test]
fn a_rendered_value_is_judged_before_its_task_acts() {
    let fleet = Fleet::start(&FleetOptions { gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write("hosts.yaml", "gpu: {hosts: {gpu001: {watts: 9000}, gpu002: {watts: 600}}}\n");
    home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_persistence: {mode: legacy}\n    \
         - gpu_power: {limit_watts: '{{ watts }}'}\n",
    );
    let done = home
        .gpufleet([
            "run",
            "play.yaml",
            "-i",
            &fleet.inventory(),
            "-i",
            "hosts.yaml",
            "--yes",
            "--format",
            "json",
        ])
        .run()
        .expect(2);
    let document = done.document();
    assert_eq!((document.state("gpu001"), document.state("gpu002")), ("failed", "done"), "{done}");
    assert!(document.message("gpu001").contains("9000"), "{done}");
    assert_eq!(fleet.machine("gpu001")["gpus"][0]["power_limit_mw"], 700_000);
    assert_eq!(fleet.machine("gpu002")["gpus"][0]["power_limit_mw"], 600_000);
}
