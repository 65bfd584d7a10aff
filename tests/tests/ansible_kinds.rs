//! Kinds that are common in Ansible's playbooks, on real nodes: file transfers, archives, waiting, results.

use gpufleet_tests::{Fleet, FleetOptions, Home};

const PLAY: &str = r#"
- name: What playbooks bring along
  hosts: gpu
  become: true
  tasks:
    - name: tree
      copy: {src: tree, dest: /srv/, mode: preserve, directory_mode: '0750'}
    - name: json
      copy: {content: {a: 1, b: [x]}, dest: /srv/data.json}
      register: json
    - assert: {that: ["json.owner == 'root'", "json.mode == '0644'", "json.size == 20", "json.state == 'file'"]}
    - name: block
      blockinfile: {path: /srv/hosts, block: "10.0.0.1 one\n10.0.0.2 two", create: true}
      register: block
    - assert: {that: ["block.msg == ('File created' if block is changed else '')"]}
    - name: plain
      copy: {content: "10.0.0.2 two\n", dest: /srv/plain, force: false}
    - name: replace
      replace: {path: /srv/plain, regexp: '^10\.0\.0\.2', replace: 10.0.0.3}
    - name: marks
      template: {src: marks.j2, dest: /srv/marks, variable_start_string: '[[', variable_end_string: ']]', lstrip_blocks: true}
    - name: archive
      unarchive: {src: app.tar.gz, dest: /srv/tree, owner: root}
      register: archive
    - assert: {that: ["archive.dest == '/srv/tree'", "archive.state == 'directory'"]}
    - name: wait
      wait_for: {path: /srv/hosts, search_regex: '10.0.0.(?P<last>[0-9])', timeout: 5}
      register: waited
    - assert: {that: ["waited.match_groupdict.last == '1'", "waited.state == 'file'"]}
    - name: never
      wait_for: {path: /srv/none, timeout: 1, sleep: 1, msg: it did not come}
      register: late
      ignore_errors: true
    - assert: {that: [late is failed, "late.msg == 'it did not come'", late.elapsed >= 1]}
    - name: raw
      raw: printf 'a\n'
      register: raw
      changed_when: false
    - assert: {that: ["raw.stdout == 'a\\n'", "raw.stdout_lines == ['a']", raw.rc == 0]}
    - name: slurp
      slurp: {src: /srv/data.json}
      register: slurped
    - assert: {that: ["(slurped.content | b64decode | from_json).b == ['x']", "slurped.encoding == 'base64'"]}
    - name: fetch
      fetch: {src: /srv/data.json, dest: collected}
      register: fetched
    - assert: {that: ["fetched.checksum == json.checksum", "fetched.dest is match('.*collected/' ~ inventory_hostname ~ '/srv/data.json')"]}
    - name: nothing to fetch
      fetch: {src: /srv/none, dest: collected, fail_on_missing: false}
    - name: stat
      stat: {path: /srv/data.json, checksum_algorithm: sha256}
      register: there
    - assert: {that: [there.stat.checksum | length == 64, there.stat.isreg, "there.stat.pw_name == 'root'"]}
    - name: skipped by creates
      command: {cmd: /bin/false, creates: /srv/hosts}
      register: skipped
    - assert: {that: [skipped.rc == 0, not skipped.changed, "skipped.stdout == 'skipped, since /srv/hosts exists'"]}
    - name: fails
      command: /bin/sh -c 'echo out; exit 3'
      register: failing
      ignore_errors: true
    - assert: {that: ["failing.msg == 'non-zero return code'", failing.rc == 3, "failing.stdout == 'out'", "failing.cmd[0] == '/bin/sh'"]}
    - name: items
      stat: {path: "/srv/{{ item }}"}
      loop: [hosts, none]
      register: items
    - assert: {that: ["items.results | map(attribute='item') | list == ['hosts', 'none']", "items.results[0].stat.exists", "not items.results[1].stat.exists", "items.results[0].ansible_loop_var == 'item'"]}
    - name: facts
      setup: {filter: ansible_kernel}
      register: facts
    - assert: {that: ["facts.ansible_facts.keys() | list == ['ansible_kernel']", ansible_kernel is defined]}
    - ping:
      register: pong
    - assert: {that: ["pong.ping == 'pong'"]}
    - name: pause
      pause: {seconds: 1}
      register: paused
    - assert: {that: [paused.delta >= 1, paused.rc == 0]}
    - name: reload
      systemd: {daemon_reload: true, name: cron, state: started, enabled: true, scope: system}
"#;

fn archive(home: &Home) {
    home.write("app/bin/tool", "tool\n");
    home.write("files/.keep", "");
    let work = home.work();
    let done = std::process::Command::new("tar")
        .current_dir(work.join("app"))
        .arg("czf")
        .arg(work.join("files/app.tar.gz"))
        .arg("bin")
        .status()
        .expect("tar runs");
    assert!(done.success());
}

#[test]
fn playbooks_find_the_kinds_and_results_that_they_know() {
    let fleet = Fleet::start(&FleetOptions { gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write("play.yaml", PLAY);
    home.write("files/tree/one", "1\n");
    home.write("files/tree/sub/two", "2\n");
    home.write(
        "templates/marks.j2",
        "[[ inventory_hostname ]] {{ literally }}\n  {% if true %}\nyes\n  {% endif %}\n",
    );
    archive(&home);
    let inventory = fleet.inventory();
    let arguments = |verb| [verb, "play.yaml", "-i", &inventory, "--format", "json"].map(str::to_owned);

    // 2, because tasks that depend on the result of a command cannot be predicted.
    home.gpufleet(arguments("plan")).run().expect(2);
    assert!(!fleet.has("gpu001", "/srv/tree"), "a plan writes nothing");
    assert!(!home.work().join("collected").exists(), "a plan fetches nothing");
    let done = home.gpufleet(arguments("run")).run().expect(0);
    for name in fleet.names() {
        let read = |path: &str| fleet.read(&name, &format!("cat /srv/{path}"));
        assert_eq!((read("tree/one"), read("tree/sub/two")), ("1".into(), "2".into()), "{done}");
        assert_eq!(fleet.read(&name, "stat -c %a /srv/tree/sub"), "750");
        assert_eq!(read("data.json"), r#"{"a": 1, "b": ["x"]}"#);
        assert_eq!(read("tree/bin/tool"), "tool");
        assert_eq!(read("marks"), format!("{name} {{{{ literally }}}}\nyes"));
        assert_eq!(read("plain"), "10.0.0.3 two");
        assert!(read("hosts").contains("10.0.0.2 two"));
        let fetched = home.work().join("collected").join(&name).join("srv/data.json");
        assert_eq!(std::fs::read_to_string(fetched).expect("the fetched file"), r#"{"a": 1, "b": ["x"]}"#);
    }
    let again = home.gpufleet(arguments("run")).run().expect(0);
    // Not 0: as in Ansible, a failed command with ignored errors may have changed something.
    assert_eq!(again.document().total("changed"), 2, "{again}");
}

/// A large file is fetched completely, and what cannot be read or written fails with a reason.
#[test]
fn files_of_any_size_are_fetched() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write(
        "play.yaml",
        r#"
- hosts: gpu
  become: true
  tasks:
    - shell: head -c 9000000 /dev/urandom > /root/large
    - command: sha1sum /root/large
      register: sum
    - fetch: {src: /root/large, dest: large, flat: true}
      register: fetched
    - assert: {that: ["fetched.checksum == sum.stdout.split()[0]"]}
    - fetch: {src: /root/large, dest: large, flat: true}
      register: again
    - assert: {that: [not again.changed]}
    - fetch: {src: /root/none, dest: x}
      register: absent
      ignore_errors: true
    - assert: {that: [absent is failed, "absent.msg is search('does not exist')"]}
"#,
    );
    let inventory = fleet.inventory();
    home.gpufleet(["run", "play.yaml", "-i", &inventory]).run().expect(0);
    assert_eq!(std::fs::metadata(home.work().join("large")).expect("the file").len(), 9_000_000);
}

/// Parameters without an effect are refused at their place in the playbook.
#[test]
fn parameters_that_do_nothing_are_refused() {
    let home = Home::new();
    home.write("hosts", "gpu001\n");
    for (task, says) in [
        ("fetch: {src: /a, dest: b, validate_checksum: false}", "always checked"),
        ("systemd: {name: a, state: started, scope: user}", "scope"),
        ("get_url: {url: 'ssh://x/y', dest: /a}", "begins with https://"),
        ("unarchive: {src: 'https://x/y', dest: /a}", "remote_src: true"),
        ("wait_for: {port: 1, path: /a}", "exclude each other"),
        ("file: {path: /a, state: touch, selevel: s0}", "selevel"),
        ("get_url: {url: 'https://x/y', dest: /a, checksum: 'sha256:12'}", "64 hexadecimal digits"),
    ] {
        home.write("play.yaml", &format!("- hosts: all\n  tasks:\n    - {task}\n"));
        home.gpufleet(["plan", "play.yaml", "-i", "hosts"]).run().expect(1).says(&[says]);
    }
}
