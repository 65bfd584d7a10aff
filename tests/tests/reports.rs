//! `report` as a user types it: documents by name and ending, signatures, what differs between two runs.

use std::{fs, process::Command};

use gpufleet_tests::Home;

/// A home with an audit of nodes that do not answer.
fn home(hosts: &str) -> Home {
    let home = Home::new();
    home.write("play.yaml", "- hosts: all\n  gather_facts: false\n  tasks: [{ping: {}}]\n");
    audit(&home, hosts);
    home
}

fn audit(home: &Home, hosts: &str) {
    let inventory: String = hosts
        .split_whitespace()
        .map(|host| format!("{host} ansible_host=127.0.0.1 ansible_port=1\n"))
        .collect();
    home.write("hosts", &inventory);
    home.gpufleet(["audit", "play.yaml", "-i", "hosts"]).run().expect(4);
}

fn keygen(home: &Home, arguments: &[&str]) -> String {
    let done =
        Command::new("ssh-keygen").args(arguments).current_dir(home.work()).output().expect("ssh-keygen");
    let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success(), "{text}");
    text
}

#[test]
fn a_signed_report_is_verified_by_gpufleet_and_by_ssh_keygen_and_a_changed_one_is_not() {
    let home = home("gpu001");
    keygen(&home, &["-q", "-t", "ed25519", "-N", "", "-f", "key"]);
    keygen(&home, &["-q", "-t", "ed25519", "-N", "", "-f", "other"]);
    let public = fs::read_to_string(home.work().join("key.pub")).expect("the public half");
    home.write("allowed", &format!("ops@example.com namespaces=\"gpufleet-report\" {public}"));
    for file in ["audit.json", "audit.html", "audit.prom"] {
        let done = home.gpufleet(["report", "latest", "-o", file, "--sign", "key"]).run().expect(0);
        assert!(done.stderr.contains("ED25519 SHA256:"), "{done}");
        let done = home.gpufleet(["report", "verify", file, "--allowed-signers", "allowed"]).run().expect(0);
        assert!(done.stdout.contains("signed by ops@example.com with ED25519 SHA256:"), "{done}");
        let compared = if file == "audit.json" { "gives the same document" } else { "only reports in JSON" };
        assert!(done.stdout.contains(compared), "{done}");
        home.gpufleet(["report", "verify", file, "--key", "key.pub"]).run().expect(0);
        let done = home.gpufleet(["report", "verify", file, "--key", "other.pub"]).run().expect(2);
        assert!(done.stdout.contains("another key"), "{done}");
        let script = format!(
            "ssh-keygen -Y verify -f allowed -I ops@example.com -n gpufleet-report -s {file}.sig < {file}"
        );
        let done = Command::new("sh").args(["-c", &script]).current_dir(home.work()).output().expect("sh");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let path = home.work().join("audit.json");
    let text = fs::read_to_string(&path).expect("the report");
    assert!(text.contains("\"gpufleet\": \""), "the digest of the program is in it");
    fs::write(&path, text.replacen("\"unreachable\"", "\"compliant\"", 1)).expect("written");
    let done =
        home.gpufleet(["report", "verify", "audit.json", "--allowed-signers", "allowed"]).run().expect(2);
    assert!(done.stdout.contains("NOT VERIFIED") && done.stdout.contains("does not fit"), "{done}");
    // Signed again, and still not what the journal says.
    fs::remove_file(home.work().join("audit.json.sig")).expect("removed");
    keygen(&home, &["-Y", "sign", "-q", "-f", "key", "-n", "gpufleet-report", "audit.json"]);
    let done =
        home.gpufleet(["report", "verify", "audit.json", "--allowed-signers", "allowed"]).run().expect(2);
    assert!(done.stdout.contains("NOT THE SAME") && done.stdout.contains("another document"), "{done}");
}

#[test]
fn what_cannot_be_signed_or_verified_says_what_to_do() {
    let home = home("gpu001");
    home.write("play.pub", "no key\n");
    for (arguments, said) in [
        (&["report", "-o", "x.json", "--sign", "none"][..], "no such file"),
        (&["report", "--sign", "none"], "--output"),
        (&["report", "verify", "play.yaml", "--key", "play.pub"], "play.yaml.sig"),
        (&["report", "verify", "play.yaml"], "--allowed-signers"),
        (&["report", "diff", "play.yaml"], "it is no JSON"),
    ] {
        let done = home.gpufleet(arguments).run().expect(1);
        assert!(done.stderr.contains(said), "{arguments:?}: {done}");
    }
    assert!(!home.work().join("x.json").exists(), "nothing is written without its signature");
}

#[test]
fn two_runs_are_compared_by_id_and_by_file() {
    let home = home("gpu001 gpu002");
    home.gpufleet(["report", "-o", "before.json"]).run().expect(0);
    audit(&home, "gpu002 gpu003");
    home.gpufleet(["report", "latest", "--format", "json", "-o", "after.txt"]).run().expect(0);
    for (before, after) in [("before.json", "after.txt"), ("before.json", "latest")] {
        let done = home.gpufleet(["report", "diff", before, after]).run().expect(0);
        assert!(done.stdout.contains("only before (1 node: gpu001)"), "{done}");
        assert!(done.stdout.contains("only after (1 node: gpu003)"), "{done}");
    }
    let done =
        home.gpufleet(["report", "diff", "before.json", "after.txt", "--format", "json"]).run().expect(0);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let schema = include_str!("../../docs/schema/report-diff.schema.json");
    let schema = serde_json::from_str(schema).expect("JSON");
    assert!(jsonschema::is_valid(&schema, &document), "{document}");
    assert_eq!(document["only_after"][0], "gpu003");
    let same = home.gpufleet(["report", "diff", "after.txt"]).run().expect(0);
    assert!(same.stdout.contains("no node, verdict, finding or waiver differs"), "{same}");
}
