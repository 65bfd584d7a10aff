//! `check`, `import`, `schema`, `completion` and `man` of the built binary, as people and other programs use them.

use std::collections::BTreeSet;

use gpufleet_tests::Home;
use serde_json::Value;

/// Six mistakes of different kinds, and one warning.
const WRONG: &str = "\
- hosts: gpu
  seriall: 10
  tasks:
    - name: no such kind
      comand: uptime
    - name: no such parameter
      copy: {src: a, dset: /b}
    - name: not a template
      debug: {msg: \"{{ a | upper\"}
    - name: wrong value
      file: {path: /x, state: directoy}
    - name: no such filter
      debug: {msg: \"{{ a | uper }}\"}
    - name: an open quote
      debug: msg=\"open
    - name: Doubtful
      command: uptime
";

const DOUBTFUL: &str = "\
- name: Read
  hosts: gpu
  tasks:
    - name: Read the load
      command: uptime
    - command: uptime   # noqa: no-changed-when, name-missing
    - name: Quiet
      command: uptime   # noqa
";

const GOOD: &str = "- name: Look\n  hosts: gpu\n  tasks:\n    - {name: Say, debug: {msg: hi}}\n";

fn texts<'a>(values: &'a Value, key: &str) -> Vec<&'a str> {
    values.as_array().into_iter().flatten().filter_map(|value| value[key].as_str()).collect()
}

#[test]
fn all_mistakes_come_in_one_go_and_nothing_runs() {
    let home = Home::new();
    let play = home.write("p.yml", WRONG);
    let wanted = [
        "did you mean `serial`?",
        "did you mean `command`?",
        "did you mean `dest`?",
        "p.yml:9:",
        "directoy",
        "did you mean `upper`?",
        "a quote is opened and never closed",
    ];
    let done = home.gpufleet(["check", &play]).run().expect(1).says(&wanted);
    assert!(done.stdout.is_empty() || done.stdout.contains("p.yml"), "{done}");
    let ran = home.gpufleet(["run", &play, "-i", "n1,", "--yes"]).run().expect(1).says(&wanted);
    assert!(ran.stderr.contains("no node was contacted"), "{ran}");
    assert!(!home.runs().exists() || home.records() == 0, "nothing began");
}

#[test]
fn exit_codes_and_silenced_rules() {
    let home = Home::new();
    let doubtful = home.write("d.yml", DOUBTFUL);
    let good = home.write("g.yml", GOOD);
    home.gpufleet(["check", &good, "--strict"]).run().expect(0);
    let done = home.gpufleet(["check", &doubtful]).run().expect(0).says(&["no-changed-when", "d.yml:5"]);
    let text = format!("{}{}", done.stdout, done.stderr);
    assert!(!text.contains("d.yml:6") && !text.contains("d.yml:8"), "silenced: {done}");
    home.gpufleet(["check", &doubtful, "--strict"]).run().expect(3);
    home.gpufleet(["check", &doubtful, "--strict", "--skip-rule", "no-changed-when"]).run().expect(0);
    home.gpufleet(["check", &doubtful, "--skip-rule", "no-chnged-when"])
        .run()
        .expect(1)
        .says(&["did you mean `no-changed-when`?"]);
    home.gpufleet(["check", "nowhere.yml"]).run().expect(1).says(&["nowhere.yml"]);
    home.gpufleet(["check", "--list-rules"]).run().expect(0).says(&["no-changed-when"]);
}

#[test]
fn an_inventory_lets_variables_be_judged() {
    let home = Home::new();
    let play =
        home.write("p.yml", "- hosts: gpu\n  tasks:\n    - {name: Say, debug: {msg: '{{ limitt }}'}}\n");
    home.gpufleet(["check", &play]).run().expect(0);
    home.write("inv.yml", "gpu: {hosts: {n1: }, vars: {limit: 600}}\n");
    home.gpufleet(["check", &play, "-i", "inv.yml"])
        .run()
        .expect(1)
        .says(&["limitt", "did you mean `limit`?"]);
    home.gpufleet(["check", &play, "-i", "inv.yml", "-e", "limitt=1"]).run().expect(0);
    home.write("hots.yml", "gpu: {hosts: {n1: {ansible_hots: 10.0.0.1}}, vars: {limitt: 600}}\n");
    home.gpufleet(["check", &play, "-i", "hots.yml"])
        .run()
        .expect(0)
        .says(&["no connection reads `ansible_hots`, which is set for n1", "did you mean `ansible_host`?"]);
}

#[test]
fn a_given_variable_that_nothing_uses_is_told_where_another_was_meant() {
    let home = Home::new();
    let text = "- hosts: gpu\n  tasks:\n    - {name: Say, template: {src: a.j2, dest: /a}, when: channel is defined}\n";
    let play = home.write("p.yml", text);
    home.write("a.j2", "{{ channel }} {{ chanels | default(1) }}\n");
    home.write("inv.yml", "gpu: {hosts: {n1: }}\n");
    home.write("more.yml", "chanel: 580\n");
    let told = ["`-e chanel=…`: nothing uses a variable of this name", "did you mean `channel`?"];
    let check = |given: &str| home.gpufleet(["check", &play, "-i", "inv.yml", "-e", given]).run().expect(0);
    check("chanel=580").says(&told);
    home.gpufleet(["run", &play, "-i", "inv.yml", "-e", "chanel=580", "--list-hosts"])
        .run()
        .expect(0)
        .says(&told);
    for fine in ["channel=580", "chanels=580", "driver=580", "@more.yml"] {
        let done = check(fine);
        assert!(!format!("{}{}", done.stdout, done.stderr).contains("nothing uses"), "{fine}: {done}");
    }
    home.write("inv.yml", "gpu: {hosts: {n1: }, vars: {other: '{{ chanel }}'}}\n");
    let done = check("chanel=580");
    assert!(!format!("{}{}", done.stdout, done.stderr).contains("nothing uses"), "{done}");
}

#[test]
fn json_is_one_document() {
    let home = Home::new();
    let play = home.write("p.yml", WRONG);
    let done = home.gpufleet(["check", &play, "--format", "json"]).run().expect(1);
    let document: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done}"));
    assert_eq!(document["format"], 1, "{done}");
    assert_eq!(document["variables_checked"], false);
    let findings = document["findings"].as_array().expect("findings");
    let errors = findings.iter().filter(|finding| finding["severity"] == "error").count();
    assert_eq!(document["errors"].as_u64(), u64::try_from(errors).ok(), "{done}");
    assert!(errors >= 6, "{done}");
    for finding in findings {
        for key in ["rule", "severity", "message"] {
            assert!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {finding}");
        }
        assert!(finding["line"].as_u64().is_some_and(|line| line >= 1), "{finding}");
        assert_eq!(finding["file"], "p.yml");
    }
}

/// Checks the structure of SARIF 2.1.0 with an independent reader, and what code hosts require.
#[test]
fn sarif_is_valid() {
    let home = Home::new();
    let wrong = home.write("some folder/p.yml", WRONG);
    let doubtful = home.write("d.yml", DOUBTFUL);
    for (plays, code) in [(vec![&wrong, &doubtful], 1), (vec![&doubtful], 0)] {
        let done = home.gpufleet(["check", "--format", "sarif"]).args(&plays).run().expect(code);
        let read: serde_sarif::sarif::Sarif =
            serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done}"));
        assert_eq!(read.runs.len(), 1);
        let document: Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert_eq!(document["version"], "2.1.0");
        let run = &document["runs"][0];
        let rules = texts(&run["tool"]["driver"]["rules"], "id");
        assert_eq!(rules.iter().collect::<BTreeSet<_>>().len(), rules.len(), "each rule once");
        let results = run["results"].as_array().expect("results");
        assert!(!results.is_empty(), "{done}");
        for result in results {
            let rule = result["ruleId"].as_str().expect("a rule");
            if let Some(index) = result["ruleIndex"].as_u64() {
                assert_eq!(rules.get(usize::try_from(index).expect("an index")), Some(&rule));
            }
            assert!(matches!(result["level"].as_str(), Some("error" | "warning" | "note")), "{result}");
            assert!(result["message"]["text"].as_str().is_some_and(|text| !text.is_empty()));
            let place = &result["locations"][0]["physicalLocation"];
            let uri = place["artifactLocation"]["uri"].as_str().expect("a file");
            assert!(uri == "d.yml" || uri == "some%20folder/p.yml", "{uri}");
            assert!(place["region"]["startLine"].as_u64() >= Some(1), "{result}");
        }
    }
}

#[test]
fn a_playbook_of_ansible_is_surveyed() {
    let home = Home::new();
    home.write(
        "roles/gpu/tasks/main.yml",
        "- name: Persistence\n  shell: nvidia-smi -pm 1\n- name: Tune\n  sysctl: {name: vm.swappiness, value: '10'}\n",
    );
    let play = home.write(
        "site.yml",
        "- hosts: gpu\n  roles: [gpu]\n  tasks:\n    - name: Clocks\n      command: nvidia-smi -lgc 1410,1410\n    \
         - name: Firewall\n      ufw: {rule: allow, port: '22'}\n    - name: Fine\n      debug: {msg: hi}\n",
    );
    let done = home.gpufleet(["import", &play]).run();
    assert!(done.code == Some(0) || done.code == Some(1), "{done}");
    let done = done.says(&[
        "roles/gpu/tasks/main.yml",
        "Persistence",
        "gpu_persistence",
        "Clocks",
        "gpu_clocks",
        "Firewall",
        "ufw",
        "5 tasks:",
    ]);
    assert!(!done.stdout.contains("Tune") && !done.stdout.contains("Fine"), "what runs as it is: {done}");
    home.gpufleet(["import", &play, "--all"]).run().says(&["Tune", "Fine"]);
    let done = home.gpufleet(["import", &play, "--format", "json"]).run();
    let document: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done}"));
    let tasks = document["tasks"].as_array().expect("tasks");
    assert_eq!(tasks.len(), 5, "{done}");
    let task = |name: &str| tasks.iter().find(|task| task["name"] == name).expect("a task");
    assert!(task("Persistence").to_string().contains("gpu_persistence"), "{done}");
    assert_ne!(task("Firewall")["verdict"], task("Fine")["verdict"], "{done}");
    home.gpufleet(["import", "nowhere.yml"]).run().expect(1).says(&["nowhere.yml"]);
}

#[test]
fn schemas_are_json_and_name_what_there_is() {
    let home = Home::new();
    for (name, part) in [
        ("playbook", "gpu_persistence"),
        ("tasks", "rescue"),
        ("inventory", "hosts"),
        ("report", "nodes"),
        ("config", "vault_identity"),
    ] {
        let done = home.gpufleet(["schema", name]).run().expect(0);
        let schema: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done}"));
        assert!(schema["$schema"].as_str().is_some_and(|url| url.contains("json-schema.org")), "{name}");
        assert!(done.stdout.contains(part), "{name}: {part}");
    }
    home.gpufleet(["schema", "playbok"]).run().expect(1).says(&["playbook"]);
}

#[test]
fn shells_and_man_know_every_command() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        home.gpufleet(["completion", shell]).run().expect(0).says(&[
            "gpufleet",
            "audit",
            "vault",
            "gpu_persistence",
            "start-at-task",
        ]);
    }
    home.gpufleet(["man"]).run().expect(0).says(&[".TH gpufleet 1", "audit"]);
    home.gpufleet(["man", "run"]).run().expect(0).says(&["start", "diff", "Exit codes"]);
    home.gpufleet(["man", "rn"]).run().expect(1).says(&["did you mean `run`?"]);
    home.gpufleet(["man", "--out", "man1"]).run().expect(0);
    for page in ["gpufleet.1", "gpufleet-run.1", "gpufleet-vault-encrypt.1", "gpufleet-schema.1"] {
        assert!(home.work().join("man1").join(page).is_file(), "{page}");
    }
}
