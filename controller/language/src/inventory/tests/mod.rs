//! Tests of the whole path from files to hosts; comparisons with Ansible are in tests/inventory.rs.

mod mistakes;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::{
    diagnostic::{SourceFile, Span},
    processor_time,
};

/// Files in a folder of their own; a file that begins with `#!` is executable.
pub(super) struct Files {
    pub(super) folder: tempfile::TempDir,
}

impl Files {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            if content.starts_with("#!") {
                use std::os::unix::fs::PermissionsExt as _;
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        Self { folder }
    }

    fn options(&self, sources: &[&str]) -> LoadOptions {
        let at = |name: &&str| {
            if name.contains(',') {
                (*name).to_owned()
            } else {
                self.folder.path().join(name).display().to_string()
            }
        };
        LoadOptions { sources: sources.iter().map(at).collect(), ..LoadOptions::default() }
    }

    pub(super) fn load(&self, sources: &[&str]) -> Result<Inventory, String> {
        self.load_with(&self.options(sources))
    }

    /// [`Files::load`] with variables of the command line.
    pub(super) fn load_given(
        &self,
        sources: &[&str],
        extra_vars: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<Inventory, String> {
        self.load_with(&LoadOptions { extra_vars: extra_vars.clone(), ..self.options(sources) })
    }

    fn load_with(&self, options: &LoadOptions) -> Result<Inventory, String> {
        Inventory::load(options).map_err(|errors| self.plain(&errors.to_string()))
    }

    fn plain(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

pub(super) fn load(name: &str, text: &str) -> Inventory {
    Files::new(&[(name, text)]).load(&[name]).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Returns the errors for one file.
fn refused(name: &str, text: &str) -> String {
    Files::new(&[(name, text)])
        .load(&[name])
        .map(|inventory| inventory.list_text(None, false).unwrap())
        .unwrap_err()
}

fn fleet() -> Inventory {
    load(
        "hosts.ini",
        "login1\n[gpu]\ngpu[001:004]\n[rack1]\ngpu001\ngpu002\n[rack2]\ngpu003\ngpu004\n[training:children]\nrack1\n",
    )
}

fn names(hosts: &[HostName]) -> Vec<&str> {
    hosts.iter().map(|host| &**host).collect()
}

fn no_match(pattern: &str) -> String {
    fleet().select(pattern, None).map(|hosts| format!("{hosts:?}")).unwrap_err().to_string()
}

#[test]
fn values_of_secrets_are_in_no_error() {
    for text in [
        "[g]\nx ansible_password=hunter2 hunter2\n",
        "[g]\nx api_token='hunter2\n",
        "[g:vars]\nvault_key=hunter2\n[h]\ny ssh_pass=hunter2 ssh_pass=hunter2 z\n",
    ] {
        let errors = refused("hosts.ini", text);
        assert!(!errors.contains("hunter2"), "{errors}");
    }
    let errors = refused("a.yaml", "all:\n  hosts:\n    x:\n      db_password: hunter2: hunter2\n");
    assert!(!errors.contains("hunter2"), "{errors}");
}

#[test]
fn lists_of_patterns_are_split_one_by_one() {
    let inventory = fleet();
    let parts = [("rack1:!gpu001", None), ("login1,&all", None)];
    assert_eq!(names(&inventory.select_parts(&parts, None).unwrap()), ["gpu002", "login1"]);
}

/// Holds `db_password: planted-secret` and `port: 5432`.
const ENCRYPTED: &str = include_str!("../../vault/fixtures/default.vault");

fn hunter2() -> std::sync::Arc<crate::vault::Keyring> {
    std::sync::Arc::new(crate::vault::Keyring::new(vec![crate::vault::Key::new(
        "default",
        b"hunter2".to_vec(),
    )]))
}

#[test]
fn encrypted_variable_files_are_read_and_never_shown() {
    let files = Files::new(&[("hosts", "x\n"), ("group_vars/all.yml", ENCRYPTED)]);
    let error = files.load_with(&files.options(&["hosts"])).unwrap_err().to_string();
    assert!(error.contains("no vault password is given"), "{error}");
    let options = LoadOptions { keyring: hunter2(), ..files.options(&["hosts"]) };
    let inventory = files.load_with(&options).unwrap();
    let vars = inventory.host_vars("x").unwrap();
    assert_eq!(vars.get("db_password"), Some(&json!({"__gpufleet_secret": "planted-secret"})));
    let list = inventory.list_text(None, true).unwrap();
    let shown = [
        list,
        inventory.host_text("x", false).unwrap(),
        inventory.list_yaml(None, false).unwrap(),
        inventory.graph_text("all", true, false).unwrap(),
    ]
    .concat();
    assert!(
        shown.contains("********") && !shown.contains("planted-secret") && !shown.contains("5432"),
        "{shown}"
    );
}

#[test]
fn encrypted_strings_are_opened_for_the_hosts_that_are_worked_on() {
    let body: String = ENCRYPTED.lines().map(|line| format!("  {line}\n")).collect();
    let files = Files::new(&[
        ("hosts", "[a]\nx\n[b]\ny\n"),
        ("group_vars/a.yml", &format!("secret: !vault |\n{body}")),
    ]);
    let mut inventory = files.load_with(&files.options(&["hosts"])).unwrap();
    inventory.unlock(&["y".to_owned()]).unwrap();
    let error = inventory.unlock(&["x".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("group_vars/a.yml:2:3"), "{error}");
    assert!(!error.contains("ANSIBLE_VAULT"), "{error}");
    let options = LoadOptions { keyring: hunter2(), ..files.options(&["hosts"]) };
    let mut inventory = files.load_with(&options).unwrap();
    assert!(inventory.host_text("x", false).unwrap().contains("$ANSIBLE_VAULT;"));
    inventory.unlock(&["x".to_owned()]).unwrap();
    let opened = inventory.host_vars("x").unwrap().get("secret").unwrap();
    assert_eq!(opened, &json!({"__gpufleet_secret": "db_password: planted-secret\nport: 5432\n"}));
}

#[test]
fn places_in_playbooks_are_used() {
    let source = SourceFile::new("site.yaml", "- hosts: \"gpu:!rack9\"\n");
    let quoted = Span::new(&source, 1, 10, 12);
    insta::assert_snapshot!(fleet().select_some("gpu:!rack9", Some(&quoted), None).unwrap_err().to_string(), @r#"
    error: `rack9` matches no host and no group
      --> site.yaml:1:15
       |
     1 | - hosts: "gpu:!rack9"
       |               ^^^^^^ excludes nothing
    help: did you mean `rack1`?
    "#);
}

#[test]
fn limits_leave_fewer_hosts() {
    let inventory = fleet();
    let select = |pattern: &str, limit: &str| {
        inventory.select(pattern, Some(limit)).map(|hosts| names(&hosts).join(" "))
    };
    assert_eq!(select("gpu", "rack2").unwrap(), "gpu003 gpu004");
    assert_eq!(select("gpu", "!rack2").unwrap(), "gpu001 gpu002");
    assert_eq!(select("gpu", "gpu004,gpu001").unwrap(), "gpu001 gpu004");
    insta::assert_snapshot!(select("gpu", "gpu009").unwrap_err().to_string(), @r"
    error: `gpu009` matches no host and no group
      --> --limit:1:1
       |
     1 | gpu009
       | ^^^^^^ selects nothing
    help: did you mean `gpu001`?
    ");
    insta::assert_snapshot!(select("gpu", "login1").unwrap_err().to_string(), @r"
    error: no host is left of `gpu` with the limit `login1`
    help: `gpufleet hosts PATTERN` shows what a pattern selects; `--allow-empty` makes this no error
    ");
    assert_eq!(inventory.select_some("gpu", None, Some("login1")).unwrap().len(), 0);

    let files = Files::new(&[
        ("failed.txt", "gpu002\n\n# a comment\n gpu003 \n"),
        ("bad.txt", "gpu002\ngpu0O3\n"),
        ("empty", "\n"),
    ]);
    let at = |name: &str| format!("@{}", files.folder.path().join(name).display());
    assert_eq!(select("gpu", &at("failed.txt")).unwrap(), "gpu002 gpu003");
    insta::assert_snapshot!(files.plain(&select("gpu", &at("bad.txt")).unwrap_err().to_string()), @r"
    error: `gpu0O3` matches no host and no group
      --> bad.txt:2:1
       |
     2 | gpu0O3
       | ^^^^^^ selects nothing
    help: did you mean `gpu003`?
    ");
    assert!(select("gpu", &at("missing")).unwrap_err().to_string().contains("there is no file"));
    assert!(select("gpu", &at("empty")).unwrap_err().to_string().contains("names no host"));
}

#[test]
fn hosts_know_their_groups_and_magic_variables() {
    let files = Files::new(&[("inv/hosts", "[gpu]\ngpu1.example.com\n10.0.0.1\n[dc:children]\ngpu\n")]);
    let inventory = files.load(&["inv"]).unwrap();
    assert_eq!(inventory.groups_of("gpu1.example.com"), ["dc", "gpu"]);
    let magic = inventory.magic_vars("gpu1.example.com");
    let folder = files.folder.path().display();
    assert_eq!(
        json!(magic),
        json!({
            "inventory_hostname": "gpu1.example.com", "inventory_hostname_short": "gpu1", "group_names": ["dc", "gpu"],
            "inventory_file": format!("{folder}/inv/hosts"), "inventory_dir": format!("{folder}/inv"),
        })
    );
    assert_eq!(inventory.magic_vars("10.0.0.1")["inventory_hostname_short"], "10.0.0.1");
    assert_eq!(inventory.groups_json()["dc"], json!(["gpu1.example.com", "10.0.0.1"]));
    assert_eq!(inventory.host_vars("localhost").unwrap().get("ansible_connection"), Some(&json!("local")));
    assert_eq!(inventory.host_vars("nope"), None);
    assert!(inventory.magic_vars("nope").is_empty());
}

#[test]
fn hosts_of_equal_groups_share_their_variables() {
    let inventory = load("hosts.ini", "[gpu]\na x=1\nb\nc\n[rack]\nc\n[all:vars]\nv=1\n");
    let shared = |host| inventory.host_vars(host).unwrap().shared();
    assert!(std::sync::Arc::ptr_eq(shared("a"), shared("b")));
    assert!(!std::sync::Arc::ptr_eq(shared("a"), shared("c")));
    assert_eq!(json!(inventory.host_vars("a").unwrap().merged()), json!({"v": 1, "x": 1}));
    assert_eq!(inventory.host_vars("a").unwrap().iter().count(), 2);
}

#[test]
fn scripts_that_fail_or_hang_are_errors() {
    let within = |script_timeout, body: &str| {
        let files = Files::new(&[("inv.sh", &format!("#!/bin/sh\n{body}\n"))]);
        let options = LoadOptions { script_timeout, ..files.options(&["inv.sh"]) };
        files.load_with(&options).map(|inventory| names(&inventory.hosts()).join(" "))
    };
    let script = |body: &str| within(Duration::from_secs(60), body);
    insta::assert_snapshot!(script("echo 'no credentials' >&2; exit 3").unwrap_err(), @r"
    error: the inventory script `inv.sh --list` failed: exit status: 3
    note: the script says: no credentials
    ");
    insta::assert_snapshot!(script("echo '{\"a\": [\"h1\"'").unwrap_err(), @r"
    error: an inventory script must print JSON
      --> output of inv.sh --list:2:1
       |
     2 |
       | ^ EOF while parsing a list
    ");
    insta::assert_snapshot!(script("echo '{\"a\": {\"hosts\": {\"h1\": 1}}, \"b\": {\"children\": [\"b\"]}, \"_meta\": []}'").unwrap_err(), @r#"
    error: `hosts` of the group `a` wants a list, got a mapping
      --> output of inv.sh --list:1:17
       |
     1 | {"a": {"hosts": {"h1": 1}}, "b": {"children": ["b"]}, "_meta": []}
       |                 ^
    error: the group `b` cannot be its own child
      --> output of inv.sh --list:1:48
       |
     1 | {"a": {"hosts": {"h1": 1}}, "b": {"children": ["b"]}, "_meta": []}
       |                                                ^^^
    error: `_meta` wants a mapping with `hostvars`, got a list
      --> output of inv.sh --list:1:64
       |
     1 | {"a": {"hosts": {"h1": 1}}, "b": {"children": ["b"]}, "_meta": []}
       |                                                                ^
    "#);
    let before = Instant::now();
    insta::assert_snapshot!(within(Duration::from_millis(300), "sleep 60 & sleep 60").unwrap_err(), @r"
    error: the inventory script `inv.sh --list` did not end within 0.3 s and was stopped
    help: give it more time with `--script-timeout`
    ");
    assert!(before.elapsed() < Duration::from_secs(40));
    assert_eq!(script("[ $1 = --list ] && echo '{\"a\": [\"h1\", \"h2\"]}' || echo '{}'").unwrap(), "h1 h2");
}

#[test]
fn a_script_may_know_nothing_of_a_host() {
    let files = Files::new(&[("inv.sh", "#!/bin/sh\n[ $1 = --list ] && echo '{\"a\": [\"h1\"]}'\nexit 0\n")]);
    assert_eq!(names(&files.load(&["inv.sh"]).unwrap().hosts()), ["h1"]);
}

#[test]
fn comments_may_be_in_any_encoding() {
    let files = Files::new(&[]);
    std::fs::write(files.folder.path().join("hosts"), b"# caf\xe9\n[a]\nn1\n; \xff\n").unwrap();
    assert_eq!(names(&files.load(&["hosts"]).unwrap().hosts()), ["n1"]);
    std::fs::write(files.folder.path().join("hosts"), b"[a]\nn1 x=\xff\n").unwrap();
    assert!(files.load(&["hosts"]).unwrap_err().contains("not UTF-8"));
}

#[test]
fn mistakes_of_sources_and_variable_files_are_told_in_one_go() {
    let files = Files::new(&[
        ("a", "[gpu]\nn1 x\n"),
        ("b.yml", "gpu:\n  hots: {}\n"),
        ("group_vars/gpu.yml", "- 1\n"),
        ("host_vars/n2.yml", "a: 1\na: 2\n"),
        ("c", "n2\n"),
    ]);
    let errors = files.load(&["a", "b.yml", "c"]).unwrap_err();
    for part in ["a:2:4", "b.yml:2:3", "group_vars/gpu.yml:1:3", "host_vars/n2.yml:2:1"] {
        assert!(errors.contains(part), "{part}\n{errors}");
    }
}

#[test]
fn priorities_are_read_as_python_reads_whole_numbers() {
    for (written, wanted) in [("5", "b"), ("5.9", "b"), ("'5'", "b"), ("true", "a"), ("0", "a"), ("-3", "a")]
    {
        let text = format!(
            "a: {{hosts: {{n: }}, vars: {{x: a}}}}\nb: {{hosts: {{n: }}, vars: {{x: b, ansible_group_priority: {written}}}}}\nz: {{hosts: {{n: }}, vars: {{ansible_group_priority: 9}}}}\n"
        );
        let text = if wanted == "a" { text.replace("x: a", "x: a, ansible_group_priority: 2") } else { text };
        let inventory = load("hosts.yaml", &text);
        assert_eq!(inventory.host_vars("n").unwrap().get("x"), Some(&json!(wanted)), "{written}");
    }
}

#[test]
fn names_of_this_machine_are_one_host() {
    let inventory = fleet();
    assert_eq!(
        names(&inventory.select("127.0.0.1:localhost:login1", None).unwrap()),
        ["127.0.0.1", "login1"]
    );
    assert_eq!(names(&inventory.select("localhost", Some("127.0.0.1")).unwrap()), ["localhost"]);
}

#[test]
fn graph_and_host_need_a_known_name() {
    let inventory = fleet();
    insta::assert_snapshot!(inventory.graph_text("rack3", false, false).unwrap_err().to_string(), @r"
    error: there is no group `rack3`
    help: did you mean `rack1`?
    ");
    insta::assert_snapshot!(inventory.host_text("gpu", false).unwrap_err().to_string(), @r"
    error: `gpu` is not one host but 4
    ");
    assert_eq!(inventory.host_text("gpu001", false).unwrap(), "{}");
    assert_eq!(inventory.hosts_text("rack1:login1", None).unwrap(), "gpu001\ngpu002\nlogin1");
}

#[test]
fn the_shipped_examples_are_the_same_fleet_twice() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../inventory");
    let load = |source: &str| {
        let options =
            LoadOptions { sources: vec![root.join(source).display().to_string()], ..LoadOptions::default() };
        Inventory::load(&options).unwrap_or_else(|errors| panic!("{errors}"))
    };
    let (yaml, ini) = (load("production/hosts.yaml"), load("production-ini/hosts"));
    assert!(yaml.host_count() > 100);
    let sizes = yaml.group_sizes();
    assert_eq!(sizes, ini.group_sizes());
    assert_eq!(yaml.hosts().iter().collect::<BTreeSet<_>>(), ini.hosts().iter().collect::<BTreeSet<_>>());
    for host in yaml.hosts() {
        let (a, b) = (yaml.host_vars(&host).unwrap().merged(), ini.host_vars(&host).unwrap().merged());
        assert_eq!(json!(a), json!(b), "{host}");
    }
    assert!(yaml.select("gpu:&training:!rack_a01", None).unwrap().len() > 10);
}

/// Prints how long loading takes; the bound allows for a slow machine with a debug build.
#[test]
fn five_thousand_hosts_load_quickly() {
    let mut text =
        "all:\n  children:\n    gpu:\n      vars: {ansible_user: root}\n      children:\n".to_owned();
    for rack in 0..50 {
        text.push_str(&format!("        rack{rack:02}:\n          hosts:\n"));
        for node in 0..100 {
            text.push_str(&format!(
                "            gpu{:04}: {{ansible_host: 10.1.{rack}.{node}, serial: \"x{node}\", slot: {node}}}\n",
                rack * 100 + node
            ));
        }
    }
    let files = Files::new(&[
        ("hosts.yaml", &text),
        ("group_vars/gpu.yml", "a: 1\nb: [1, 2]\n"),
        ("host_vars/gpu0001.yml", "c: 1\n"),
    ]);
    let before = processor_time();
    let inventory = files.load(&["hosts.yaml"]).unwrap();
    let loaded = processor_time() - before;
    let list = inventory.list_text(None, false).unwrap();
    println!(
        "5,000 hosts: loaded in {loaded:?}, listed in {:?}, {} KiB",
        processor_time() - before - loaded,
        list.len() / 1024
    );
    assert_eq!(inventory.host_count(), 5000);
    assert_eq!(inventory.select("gpu:!rack07", None).unwrap().len(), 4900);
    assert!(loaded < Duration::from_secs(8), "{loaded:?}");
}

#[test]
fn a_key_twice_in_compact_json_makes_no_host() {
    for name in ["h.json", "h.yml", "h"] {
        let text = "{\"all\":{\"hosts\":{\"h\":{\"a\":1,\"a\":2}}}}";
        let error = Files::new(&[(name, text)]).load(&[name]).unwrap_err();
        assert!(error.starts_with("error: the key `a` is written twice"), "{error}");
    }
    let error = Files::new(&[("h.json", "{\"all\":{\"hosts\":{\"h\":{}}}")]).load(&["h.json"]).unwrap_err();
    assert!(error.starts_with("error: "), "{error}");
}

#[test]
fn a_host_line_may_begin_with_a_range() {
    let inventory = load("hosts", "[a:c].example.com x=1\n[1:2]-[01:02].z\n[1:2] y=1\n[gpu]\nn1\n");
    assert_eq!(
        inventory.select("ungrouped", None).unwrap().join(" "),
        "a.example.com b.example.com c.example.com 1-01.z 1-02.z 2-01.z 2-02.z 1 2"
    );
    assert_eq!(inventory.groups_of("n1"), ["gpu"]);
    for line in ["[gpu", "[a:c", "[a:c]", "[a:c] # x", "[g]x", "[1:2]x]", "[gpu:vars] x=1", "[fe80::1] x=1"] {
        assert!(Files::new(&[("hosts.ini", line)]).load(&["hosts.ini"]).is_err(), "{line}");
    }
}

#[test]
fn a_section_that_comes_again_sets_its_variables_again() {
    let inventory = load("hosts", "[g]\nh\n[g:vars]\nx=1\n[g:vars]\nx=2\n");
    assert_eq!(json!(inventory.host_vars("h").unwrap().merged()), json!({"x": 2}));
}

#[test]
fn what_is_empty_or_false_counts_for_no_variables() {
    let values = ["\"\"", "[]", "false", "0", "0.0", "{}", "~"];
    for value in values {
        let files =
            [("h.yml", format!("all: {{hosts: {{h: {value}}}}}")), ("host_vars/h.yml", value.to_owned())];
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let inventory =
            Files::new(&files).load(&["h.yml"]).unwrap_or_else(|error| panic!("{value}: {error}"));
        assert_eq!(json!(inventory.host_vars("h").unwrap().merged()), json!({}), "{value}");
    }
}

#[test]
fn a_link_that_leads_nowhere_is_no_file_of_variables() {
    let files = Files::new(&[
        ("hosts", "[g]\nh\n[d]\nh\n"),
        ("group_vars/g.json", "x: 1"),
        ("group_vars/d/y", "y: 2"),
    ]);
    for link in ["group_vars/g.yml", "group_vars/d/x.yml"] {
        std::os::unix::fs::symlink("nowhere", files.folder.path().join(link)).unwrap();
    }
    let inventory = files.load(&["hosts"]).unwrap();
    assert_eq!(json!(inventory.host_vars("h").unwrap().merged()), json!({"x": 1, "y": 2}));
}

#[test]
fn a_graph_for_an_export_shows_variables_where_they_are_set() {
    let inventory = load("h.yml", "all: {vars: {v: 1}, children: {g: {vars: {w: 2}, hosts: {h: {a: 1}}}}}");
    insta::assert_snapshot!(inventory.graph_text("all", true, true).unwrap(), @r"
    @all:
      |--@ungrouped:
      |--@g:
      |  |--h
      |  |  |--{a = 1}
      |  |--{w = 2}
      |--{v = 1}
    ");
}

#[test]
fn scripts_may_print_the_json_of_python_and_children_with_contents() {
    let inventory = load(
        "s.sh",
        "#!/bin/sh\necho '{\"g\": {\"children\": {\"c\": {}}, \"hosts\": [\"h\"]}, \"_meta\": {\"hostvars\": {\"h\": {\"a\": NaN, \"b\": 1e3}}}}'\n",
    );
    assert_eq!(json!(inventory.host_vars("h").unwrap().merged()), json!({"a": "nan", "b": 1000.0}));
    let groups: Vec<&str> = inventory.groups().map(|(name, _)| name).collect();
    assert_eq!(groups, ["all", "ungrouped", "g", "c"]);
}
