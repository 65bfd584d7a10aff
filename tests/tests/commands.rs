//! All commands except for run, plan and audit.

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home};
use serde_json::Value;

fn fleet() -> (Fleet, Home) {
    let options = FleetOptions { gpus: "h100-80gb,a100-80gb", ..FleetOptions::default() };
    (Fleet::start(&options), Home::new())
}

const PLAY: &str = "- name: Bring up\n  hosts: gpu\n  become: true\n  tasks:\n    - gpu_persistence: {mode: legacy}\n    \
                    - sysctl: {name: vm.swappiness, value: 10}\n";

#[test]
fn facts_are_a_table_or_a_document() {
    let (fleet, home) = fleet();
    let inventory = fleet.inventory();
    let table = home.gpufleet(["facts", "all", "-i", &inventory]).run().expect(0);
    for text in ["gpu001", "gpu002", "H100", "A100", "580."] {
        assert!(table.stdout.contains(text), "{text}: {table}");
    }
    let done = home.gpufleet(["facts", "h100", "-i", &inventory, "--format", "json"]).run().expect(0);
    let all: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(all.as_object().map(serde_json::Map::len), Some(1), "{done}");
    let gpus = all["gpu001"]["gpu"]["gpus"].as_array().cloned().unwrap_or_default();
    assert_eq!(gpus.len(), 2, "{done}");
    assert!(fleet.setters("gpu001").is_empty());
    let lines = home.gpufleet(["facts", "-i", &inventory, "--format", "jsonl"]).run().expect(0);
    assert_eq!(lines.stdout.lines().count(), 2, "{lines}");
    home.write(
        "mine/mine.yml",
        "plugin: constructed\nuse_extra_vars: true\ncompose: {picked: pick}\ngroups: {mine: inventory_hostname == picked}\n",
    );
    let words =
        ["facts", "mine", "-i", &inventory, "-i", "mine/mine.yml", "-e", "pick=gpu002", "--format", "jsonl"];
    let lines = home.gpufleet(words).run().expect(0);
    assert!(lines.stdout.lines().count() == 1 && lines.stdout.contains("gpu002"), "{lines}");
}

#[test]
fn programs_run_and_equal_answers_are_shown_once() {
    let (fleet, home) = fleet();
    let inventory = fleet.inventory();
    let done = home.gpufleet(["exec", "all", "-i", &inventory, "--", "echo", "a  b"]).run().expect(0);
    assert_eq!(done.stdout, "gpu[001,002] (2 nodes) | rc=0 >>\na  b\n");
    let done =
        home.gpufleet(["exec", "all", "-i", &inventory, "--shell", "--", "hostname; exit 3"]).run().expect(2);
    assert_eq!(done.stdout, "gpu001 | rc=3 >>\ngpu001\ngpu002 | rc=3 >>\ngpu002\n");
    let done = home.gpufleet(["exec", "h100", "-i", &inventory, "--", "nvidia-smi", "-L"]).run().expect(0);
    assert!(done.stdout.contains("H100") && !done.stdout.contains("A100"), "{done}");
    let done = home.gpufleet(["exec", "all", "-i", &inventory, "--", "no-such-program"]).run().expect(2);
    done.says(&["no-such-program"]);
    let done =
        home.gpufleet(["exec", "h100", "-i", &inventory, "--", "echo", "hi", "|", "wc"]).run().expect(0);
    assert!(done.stdout.ends_with("hi | wc\n"), "{done}");
    done.says(&["`|` means something to a shell only", "`-s`"]);
    let done = home
        .gpufleet(["exec", "all", "-i", &inventory, "--format", "json", "--", "sh", "-c", "echo x >&2"])
        .run()
        .expect(0);
    let all: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(all[1]["host"], "gpu002");
    assert_eq!(all[1]["stderr"].as_str().map(str::trim), Some("x"), "{done}");
}

#[test]
fn inventories_are_shown_as_they_were_understood() {
    let home = Home::new();
    home.write(
        "fleet/hosts",
        "[gpu]\ngpu[001:003] rack=r1\n[gpu:vars]\nansible_port=2222\n[rack1]\ngpu001\ngpu002\n",
    );
    home.write("fleet/group_vars/gpu.yaml", "watts: 600\n");
    home.write("fleet/host_vars/gpu002.yaml", "watts: 500\n");
    let show = |arguments: &[&str]| home.gpufleet(arguments).run().expect(0).stdout;
    assert_eq!(show(&["hosts", "gpu:!rack1", "-i", "fleet"]), "gpu003\n");
    assert_eq!(show(&["hosts", "-i", "fleet", "--limit", "rack1"]), "gpu001\ngpu002\n");
    assert_eq!(show(&["hosts", "all", "-i", "one,two,"]), "one\ntwo\n");
    let list: Value = serde_json::from_str(&show(&["inventory", "-i", "fleet", "--list"])).expect("JSON");
    assert_eq!(list["gpu"]["hosts"], serde_json::json!(["gpu001", "gpu002", "gpu003"]));
    assert_eq!(list["_meta"]["hostvars"]["gpu002"]["watts"], 500);
    let host: Value =
        serde_json::from_str(&show(&["inventory", "-i", "fleet", "--host", "gpu001"])).expect("JSON");
    assert_eq!(
        (&host["watts"], &host["ansible_port"], &host["rack"]),
        (&600.into(), &2222.into(), &"r1".into())
    );
    insta::assert_snapshot!(show(&["inventory", "-i", "fleet", "--graph"]), @r"
    @all:
      |--@ungrouped:
      |--@gpu:
      |  |--gpu001
      |  |--gpu002
      |  |--gpu003
      |--@rack1:
      |  |--gpu001
      |  |--gpu002
    ");
    home.gpufleet(["inventory", "-i", "fleet"]).run().expect(1);
}

/// A prediction runs no command, so it cannot know whether the command's result is as declared.
#[test]
fn what_nobody_judged_is_not_green() {
    let (fleet, home) = fleet();
    let inventory = fleet.inventory();
    home.write("command.yaml", "- hosts: gpu\n  tasks:\n    - command: echo done\n");
    let run = |words: &[&str]| home.gpufleet(words.iter().copied().chain(["-i", &inventory])).run();
    let audit = run(&["audit", "command.yaml"]).expect(3);
    assert!(audit.stdout.contains("0 compliant") && audit.stdout.contains("0.0 %"), "{audit}");
    assert!(audit.stdout.contains("0 of 2 judgements were made"), "{audit}");
    let document = run(&["audit", "command.yaml", "--format", "json"]).expect(3).document();
    assert_eq!((document.state("gpu001"), document.number("/verdicts/unknown")), ("unknown", 2));
    assert_eq!(document.number("/nodes/gpu001/judged/tasks"), 1);
    let check = run(&["run", "command.yaml", "--check"]).expect(0);
    assert!(check.stdout.contains("not judged") && !check.stdout.contains("2 nodes as declared"), "{check}");
    assert!(!check.stdout.contains("compliant"), "{check}");
    home.gpufleet(["runs"]).run().expect(0).says(&["2 not judged"]);
    // A task that does not apply is no gap.
    home.write(
        "skipped.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - command: echo done\n      when: not ansible_check_mode\n    \
         - sysctl: {name: kernel.pid_max, value: '{{ 4194304 }}'}\n      when: false\n    \
         - file: {path: /etc, state: directory}\n",
    );
    run(&["audit", "skipped.yaml"]).expect(0).says(&["2 compliant", "100.0 %"]);
}

#[test]
fn a_run_under_way_and_an_aborted_one_are_no_success() {
    let (fleet, home) = fleet();
    let inventory = fleet.inventory();
    home.write(
        "slow.yaml",
        "- hosts: gpu\n  serial: 1\n  tasks:\n    - shell: until [ -e /srv/go ]; do sleep 0.1; done\n    - command: echo on\n",
    );
    let mut running = home.gpufleet(["run", "slow.yaml", "-i", &inventory]).start();
    running.until("its first task", |events| events.has("task_started"));
    let now = home.gpufleet(["report", "latest"]).run().expect(6);
    now.says(&["is still running, as of ", "no result"]);
    let document = home.gpufleet(["report", "latest", "--format", "json"]).run().expect(6).document();
    assert_eq!((document.text("/standing"), document.number("/exit_code")), ("running", 6));
    let page = home.gpufleet(["report", "latest", "--format", "html"]).run().expect(6).stdout;
    assert!(page.contains("This run is still running."));

    let run = document.run_id().to_owned();
    let aborted = home.gpufleet(["abort", &run]).start();
    running.until("the stop", |events| {
        events.named("notice").any(|with| with["text"].as_str().is_some_and(|text| text.contains("stopping")))
    });
    fleet.read("gpu001", "touch /srv/go");
    let aborted = aborted.wait().expect(0);
    assert_eq!(running.wait().code, Some(130));
    let report = home.gpufleet(["report", &run, "--format", "json"]).run().expect(0).document();
    assert_eq!(report.state("gpu002"), "skipped", "{aborted}");
    assert_eq!((report.text("/standing"), report.number("/exit_code")), ("finished", 5), "{aborted}");
    let runs = home.gpufleet(["runs", "--format", "json"]).run().expect(0).stdout;
    let runs: Value = serde_json::from_str(&runs).expect("JSON");
    assert_eq!((&runs[0]["exit_code"], &runs[0]["resumable"]), (&5.into(), &false.into()), "{runs}");
}

#[test]
fn runs_are_recorded_and_reported() {
    let (fleet, home) = fleet();
    home.write("play.yaml", PLAY);
    let inventory = fleet.inventory();
    home.gpufleet(["runs"]).run().expect(0);
    home.gpufleet(["report"]).run().expect(1);
    let run =
        home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "-e", "token=geheim"]).run().expect(0);
    run.says(&[
        "PLAY RECAP",
        "gpu001",
        "ok=2",
        "changed=2",
        "unreachable=0",
        "rescued=0",
        "ignored=0",
        "report.html",
    ]);
    let audit = home
        .gpufleet(["audit", "play.yaml", "-i", &inventory, "--format", "json"])
        .run()
        .expect(0)
        .document();

    let runs = home.gpufleet(["runs"]).run().expect(0);
    assert!(runs.stdout.contains(audit.run_id()), "{runs}");
    for text in ["audit", "2 compliant", "run", "2 done"] {
        assert!(runs.stdout.contains(text), "{text}: {runs}");
    }
    let report = home.gpufleet(["report", "latest", "--format", "json"]).run().expect(0);
    assert_eq!(report.document().value(), audit.value());
    home.gpufleet(["report", audit.run_id()]).run().expect(0).says(&["2 nodes, 2 compliant"]);
    let path = home.gpufleet(["report", audit.run_id(), "--format", "path"]).run().expect(0).stdout;
    let page = std::fs::read_to_string(path.trim()).expect("the page");
    assert!(page.contains("gpu001") && page.contains("<html"), "{page}");
    for outside in ["src=\"http", "href=\"http", "@import", "url(http", "<link"] {
        assert!(!page.contains(outside), "the page needs nothing else: {outside}");
    }
    home.gpufleet(["report", "latest", "-o", "copy.html"]).run().expect(0);
    assert_eq!(std::fs::read_to_string(home.work().join("copy.html")).expect("the copy"), page);

    // Journals contain the command line, but no secrets.
    for file in std::fs::read_dir(home.runs()).expect("runs").flatten() {
        for part in std::fs::read_dir(file.path()).expect("a run").flatten() {
            let text = std::fs::read_to_string(part.path()).expect("text");
            assert!(!text.contains("geheim"), "{}", part.path().display());
        }
    }
}

#[test]
fn the_helper_is_sent_once_and_cleaned_away() {
    let (fleet, home) = fleet();
    home.write("play.yaml", PLAY);
    let inventory = fleet.inventory();
    let names = fleet.names();
    let pushed = || -> Vec<bool> {
        let done = home
            .gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "--format", "jsonl"])
            .run()
            .expect(0);
        done.events().named("connected").map(|with| with["pushed"] == true).collect()
    };
    assert_eq!(pushed(), [true, true]);
    assert_eq!(pushed(), [false, false]);
    let traces = "ls -d /var/lib/gpufleet ~/.cache/gpufleet 2>/dev/null | wc -l";
    for name in &names {
        assert_eq!(fleet.read(name, traces), "2");
        assert_eq!(fleet.read(name, "stat -c %a /var/lib/gpufleet ~/.cache/gpufleet"), "700\n700");
        // The file, and the record of its properties when its digest was correct.
        assert_eq!(fleet.read(name, "ls ~/.cache/gpufleet | wc -l"), "2");
    }
    home.gpufleet(["clean", "all", "-i", &inventory, "--become"])
        .run()
        .expect(0)
        .says(&["gpu001: clean", "gpu002: clean"]);
    for name in &names {
        assert_eq!(fleet.read(name, traces), "0");
        assert_eq!(fleet.read(name, "ps ax | grep -c '[g]pufleet.*serve' || true"), "0");
    }
    assert_eq!(pushed(), [true, true]);
}

#[test]
fn the_newest_run_of_each_kind_is_shown_and_named() {
    let (fleet, home) = (Fleet::start(&FleetOptions::default()), Home::new());
    let inventory = fleet.inventory();
    let play = "- hosts: gpu\n  become: true\n  tasks:\n    - sysctl: {name: vm.swappiness, value: '10'}\n";
    home.write("play.yaml", play);
    home.gpufleet(["run", "play.yaml", "--yes", "-i", &inventory]).run().expect(0);
    home.gpufleet(["plan", "play.yaml", "-i", &inventory]).run().expect(0);
    // The tests' clock is in UTC.
    let named = |done: Finished, verb: &str| {
        let line = done.stderr.lines().next().unwrap_or_default().to_owned();
        assert!(line.starts_with(&format!("{verb} ")) && line.contains(" +00:00: gpufleet "), "{done}");
        done
    };
    named(home.gpufleet(["report"]).run().expect(0), "plan").says(&["Plan for"]);
    named(home.gpufleet(["report", "--of", "run"]).run().expect(0), "run").says(&["PLAY RECAP"]);
    home.gpufleet(["report", "--of", "audit"]).run().expect(1).says(&["no record of an audit"]);
    // Without a word of its own, `status` is about nodes.
    let status = home.gpufleet(["status", "-i", &inventory]).run().expect(0);
    assert_eq!(
        status.stdout.lines().filter(|line| line.starts_with("gpu00")).count(),
        fleet.names().len(),
        "{status}"
    );
}

#[test]
fn a_state_directory_that_cannot_be_used_is_named() {
    let home = Home::new();
    let place = home.dir().join("state/gpufleet");
    std::fs::write(&place, "no directory").unwrap();
    home.write("play.yaml", "- hosts: all\n  tasks:\n    - debug: {msg: hi}\n");
    for words in [vec!["run", "play.yaml", "-i", "gpu001,"], vec!["plan", "play.yaml", "-i", "gpu001,"]] {
        home.gpufleet(words).run().expect(1).says(&[&place.display().to_string()]);
    }
}

#[test]
fn kinds_are_explained() {
    let home = Home::new();
    let all = home.gpufleet(["doc"]).run().expect(0);
    for kind in ["gpu_ecc", "gpu_mig", "kernel_cmdline", "reboot", "lineinfile", "wait_for_connection"] {
        assert!(all.stdout.contains(kind), "{kind}: {all}");
    }
    home.gpufleet(["doc", "gpu_mig"]).run().expect(0).says(&["layout", "strategy", "3g.40gb"]);
    let schema = home.gpufleet(["doc", "gpu_mig", "--schema"]).run().expect(0);
    let schema: Value = serde_json::from_str(&schema.stdout).expect("JSON");
    assert!(schema["properties"]["layout"].is_object());
    assert!(all.stdout.lines().any(|line| line.starts_with("  drain ")), "{all}");
    home.gpufleet(["doc", "drain"]).run().expect(0).says(&["slurm", "kubernetes"]);
    home.gpufleet(["doc", "slurm"]).run().expect(0).says(&["notice"]);
    home.gpufleet(["doc", "window"])
        .run()
        .expect(0)
        .says(&["when nodes may be disturbed", "Maintenance windows"]);
    home.gpufleet(["doc", "xid", "79"]).run().expect(0).says(&["GPU has fallen off the bus"]);
    home.gpufleet(["doc", "night"]).run().expect(0).says(&["# At night"]);
    home.gpufleet(["doc", "gpu_mgi"]).run().expect(1).says(&["gpu_mgi", "gpu_mig"]);
}

#[test]
fn shells_get_completions() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let done = home.gpufleet(["completion", shell]).run().expect(0);
        assert!(done.stdout.contains("gpufleet") && done.stdout.contains("max-unavailable"), "{done}");
    }
}

#[test]
fn help_and_version_are_data() {
    let home = Home::new();
    let help = home.gpufleet(["--help"]).run().expect(0);
    assert!(help.stdout.contains("Exit codes") && help.stderr.is_empty(), "{help}");
    home.gpufleet(["--version"]).run().expect(0).says(&["gpufleet 0."]);
    for command in
        ["run", "plan", "audit", "facts", "exec", "inventory", "hosts", "runs", "report", "doc", "clean"]
    {
        let help = home.gpufleet([command, "--help"]).run().expect(0);
        assert!(help.stdout.contains("Usage: "), "{help}");
    }
}

/// Escape codes only if colours are on.
#[test]
fn colours_are_obeyed() {
    let home = Home::new();
    home.write("play.yaml", "- hosts: gpu\n  tasks:\n    - gpu_powr: {}\n");
    let run = || home.gpufleet(["run", "play.yaml", "-i", "gpu,"]);
    assert!(!run().run().expect(1).stderr.contains('\u{1b}'));
    assert!(run().arg("--color=always").run().expect(1).stderr.contains('\u{1b}'));
    assert!(!run().arg("--color=never").env("CLICOLOR_FORCE", "1").run().expect(1).stderr.contains('\u{1b}'));
}

/// A reader that closes the pipe is no failure.
#[test]
fn a_reader_that_leaves_is_no_failure() {
    let home = Home::new();
    let line = "gpufleet doc --all | head -n 1; exit ${PIPESTATUS[0]}";
    let done = home.program(std::path::Path::new("bash"), ["-c", line]).run().expect(0);
    assert!(done.stderr.is_empty(), "{done}");
}
