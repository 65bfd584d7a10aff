//! The whole path from files to hosts; comparisons with ansible itself are in tests/inventory.rs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::diagnostic::{SourceFile, Span};

/// Files in a folder of their own; a file that begins with `#!` can be executed.
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

/// The errors for one file.
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
fn every_mistake_of_an_ini_file_has_its_place() {
    insta::assert_snapshot!(refused("hosts.ini", "[gpu]\ngpu1 a\ngpu2 b=1 b=2\ngpu[1-4]\nx y='\n=5\n"), @r"
    error: `a` is no `key=value`
      --> hosts.ini:2:6
       |
     2 | gpu1 a
       |      ^ behind a host name stand variables
    help: one host a line; quote a value that has blanks in it
    error: the variable `b` is set twice
      --> hosts.ini:3:10
       |
     3 | gpu2 b=1 b=2
       |          ^^^ first on line 3
    help: remove one of the two: only one of them could count
    error: a range is written `[begin:end]` or `[begin:end:step]`
      --> hosts.ini:4:4
       |
     4 | gpu[1-4]
       |    ^^^^^
    help: for example `gpu[001:128]` or `rack[a:f]`
    error: a quote is opened and never closed
      --> hosts.ini:5:5
       |
     5 | x y='
       |     ^
    ");
    insta::assert_snapshot!(refused("hosts.ini", "[gpu nodes]\nx\n[gpu\n[fe80::1]\n[gpu:varz]\na=1\n"), @r"
    error: this is no section header
      --> hosts.ini:1:1
       |
     1 | [gpu nodes]
       | ^^^^^^^^^^^ no blanks inside of the brackets
    help: write `[gpu_nodes]`
    error: this is no section header
      --> hosts.ini:3:1
       |
     3 | [gpu
       | ^^^^ the closing `]` is missing
    error: this is no section header
      --> hosts.ini:4:1
       |
     4 | [fe80::1]
       | ^^^^^^^^^ an IPv6 address in brackets needs a port behind it
    help: write `fe80::1` or `[fe80::1]:22`
    error: unknown kind of section `varz`
      --> hosts.ini:5:6
       |
     5 | [gpu:varz]
       |      ^^^^ a section is `[group]`, `[group:vars]` or `[group:children]`
    help: did you mean `vars`?
    ");
    insta::assert_snapshot!(refused("hosts.ini", "[gpu]\nx\n[all:children]\ngpuu\n[gpus:vars]\na=1\n"), @r"
    error: undefined group `gpuu`
      --> hosts.ini:4:1
       |
     4 | gpuu
       | ^^^^ named as a child, but no section of this name exists
    help: did you mean `gpu`?
    error: variables for the undefined group `gpus`
      --> hosts.ini:5:2
       |
     5 | [gpus:vars]
       |  ^^^^ no `[group]` or `[group:children]` section of this name
    help: did you mean `gpu`?
    ");
    insta::assert_snapshot!(refused("hosts.ini", "[a:children]\nb\n[b:children]\nc\n[c:children]\na\n[d:children]\nall\n"), @r"
    error: the group `a` cannot be a child of `c`: that is a loop
      --> hosts.ini:6:1
       |
     6 | a
       | ^ already: a > b > c
    help: remove one of these relations
    error: `all` is above every group and cannot be a child
      --> hosts.ini:8:1
       |
     8 | all
       | ^^^
    ");
    insta::assert_snapshot!(refused("hosts.ini", "[g]\nx\n[g:vars]\na=1\nb\nc: 2\n  a = 2\nansible_group_priority=high\n"), @r#"
    error: a line of a `:vars` section is `key=value`
      --> hosts.ini:5:1
       |
     5 | b
       | ^
    error: a line of a `:vars` section is `key=value`
      --> hosts.ini:6:1
       |
     6 | c: 2
       | ^^^^
    help: an INI inventory assigns with `=`
    error: the variable `a` is set twice
      --> hosts.ini:7:3
       |
     7 |   a = 2
       |   ^ first on line 4
    help: remove one of the two: only one of them could count
    error: `ansible_group_priority` wants a whole number
      --> hosts.ini:8:24
       |
     8 | ansible_group_priority=high
       |                        ^^^^
    note: got "high"
    "#);
    insta::assert_snapshot!(refused("hosts.ini", "[g]\nx:99999\ny:\n[g:children]\na b\n"), @r"
    error: 99999 is no port
      --> hosts.ini:2:1
       |
     2 | x:99999
       | ^^^^^^^ 1 to 65535
    error: `y:` ends with `:`, which stands in front of a port
      --> hosts.ini:3:1
       |
     3 | y:
       | ^^
    help: remove the `:`, or name the file `.yaml` if this is YAML
    error: a line of a `:children` section is the name of one group
      --> hosts.ini:5:1
       |
     5 | a b
       | ^^^
    ");
    insta::assert_snapshot!(refused("hosts.ini", "all:\n  hosts:\n    x: {}\n"), @r"
    error: this file is YAML, but its name does not say so
      --> hosts.ini:1:1
       |
     1 | all:
       | ^^^ read as INI because of the ending of the name
    help: name it `.yaml`, `.yml` or `.json`
    ");
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

#[test]
fn every_mistake_of_a_yaml_file_has_its_place() {
    insta::assert_snapshot!(refused("a.yaml", "all:\n  host:\n    x:\n  children:\n    g:\n      vars: [1]\n      hosts:\n        - x\n"), @r"
    error: unknown key `host` in the group `all`
      --> a.yaml:2:3
       |
     2 |   host:
       |   ^^^^ a group has `hosts`, `children` and `vars`
    help: did you mean `hosts`?
    error: `vars` wants a mapping, got a list
      --> a.yaml:6:13
       |
     6 |       vars: [1]
       |             ^
    error: `hosts` of the group `g` wants a mapping, got a list
      --> a.yaml:8:11
       |
     8 |         - x
       |           ^
    help: write every name as a key: `name:`, without a `-`
    ");
    insta::assert_snapshot!(refused("a.yaml", "gpu:\n  rack1:\n    hosts:\n      x:\n"), @r"
    error: unknown key `rack1` in the group `gpu`
      --> a.yaml:2:3
       |
     2 |   rack1:
       |   ^^^^^ a group has `hosts`, `children` and `vars`
    help: put the group `rack1` under `children:`
    ");
    insta::assert_snapshot!(refused("a.yaml", "all:\n  hosts:\n    x: 10.0.0.1\n    5:\n    y[1-3]:\n    z: [1]\n"), @r#"
    error: the host `x` wants a mapping of variables, got a string
      --> a.yaml:3:8
       |
     3 |     x: 10.0.0.1
       |        ^^^^^^^^
    help: for an address, write `ansible_host: 10.0.0.1` below it
    error: the name of a host is a string, got a whole number
      --> a.yaml:4:5
       |
     4 |     5:
       |     ^
    help: write "5" in quotes
    error: a range is written `[begin:end]` or `[begin:end:step]`
      --> a.yaml:5:6
       |
     5 |     y[1-3]:
       |      ^^^^^
    help: for example `gpu[001:128]` or `rack[a:f]`
    error: the host `z` wants a mapping of variables, got a list
      --> a.yaml:6:8
       |
     6 |     z: [1]
       |        ^
    "#);
    insta::assert_snapshot!(refused("a.yaml", "a:\n  children:\n    b:\n      children:\n        a:\nhosts: x\n"), @r"
    error: the group `b` cannot be a child of `a`: that is a loop
      --> a.yaml:3:5
       |
     3 |     b:
       |     ^ already: b > a
    help: remove one of these relations
    error: the group `hosts` wants a mapping, got a string
      --> a.yaml:6:8
       |
     6 | hosts: x
       |        ^
    help: a group has the keys `hosts`, `children` and `vars`
    ");
    insta::assert_snapshot!(refused("a.yaml", "- x\n- y\n"), @r"
    error: an inventory wants a mapping of groups, got a list
      --> a.yaml:1:3
       |
     1 | - x
       |   ^
    help: begin with `all:`, and hosts under `hosts:`
    ");
    insta::assert_snapshot!(refused("a.yaml", "plugin: aws_ec2\nregions: [x]\n"), @r"
    error: the inventory plugin `aws_ec2` is not supported
      --> a.yaml:1:1
       |
     1 | plugin: aws_ec2
       | ^^^^^^ this file configures a plugin, it lists no hosts
    help: use an executable script that prints the inventory as JSON (`--list`)
    ");
    insta::assert_snapshot!(refused("a.yaml", "all:\n  hosts:\n    x:\n    x:\n"), @r"
    error: the key `x` is written twice
      --> a.yaml:4:5
       |
     4 |     x:
       |     ^ first on line 3
    help: remove one of the two: only one of them could count
    ");
    insta::assert_snapshot!(refused("a.yaml", "all:\n  hosts:\n\tx:\n"), @r"
    error: a tab cannot indent YAML
      --> a.yaml:3:1
       |
     3 |     x:
       | ^^^^ tab
    help: indent with spaces
    ");
    insta::assert_snapshot!(refused("a.toml", "[x]\n"), @r"
    error: TOML inventories are not supported
      --> a.toml:1:1
       |
     1 | [x]
       | ^
    help: write it as YAML or INI
    ");
    insta::assert_snapshot!(refused("hosts", "all:\n  hosts:\n    x: [\n"), @r"
    error: `[` is opened and never closed
      --> hosts:3:8
       |
     3 |     x: [
       |        ^
    ");
    insta::assert_snapshot!(refused("hosts", "[gpu]\nx y\n"), @r"
    error: `y` is no `key=value`
      --> hosts:2:3
       |
     2 | x y
       |   ^ behind a host name stand variables
    help: one host a line; quote a value that has blanks in it
    ");
}

#[test]
fn missing_and_empty_sources_are_errors() {
    let files = Files::new(&[("hosts.yaml", "all:\n"), ("dir/README.md", "x"), ("x.ini", "")]);
    insta::assert_snapshot!(files.load(&["host.yaml"]).unwrap_err(), @r"
    error: there is no inventory `host.yaml`
    help: did you mean `hosts.yaml`?
    ");
    insta::assert_snapshot!(files.load(&["gpu1"]).unwrap_err(), @r"
    error: there is no inventory `gpu1`
    help: if `gpu1` is a host, write a comma behind it: `gpu1,`
    ");
    insta::assert_snapshot!(files.load(&["hosts.yaml", "dir"]).unwrap_err(), @r"
    error: the inventory has no hosts: hosts.yaml, dir
    help: add hosts, or allow an empty inventory with `--allow-empty`
    ");
    insta::assert_snapshot!(files.load(&[]).unwrap_err(), @r"
    error: no inventory is given
    help: name one with `-i`: a file, a directory, or `host1,host2,`
    ");
    insta::assert_snapshot!(files.load(&["h1,h[2-3],"]).unwrap_err(), @r"
    error: a range is written `[begin:end]` or `[begin:end:step]`
      --> host list:1:5
       |
     1 | h1,h[2-3],
       |     ^^^^^
    help: for example `gpu[001:128]` or `rack[a:f]`
    ");
    let empty = LoadOptions { allow_empty: true, ..files.options(&["hosts.yaml"]) };
    let inventory = files.load_with(&empty).unwrap();
    assert_eq!(inventory.select("all", None).unwrap().len(), 0);
    assert_eq!(names(&inventory.select("localhost", None).unwrap()), ["localhost"]);
    assert!(inventory.select("gpu", None).is_err());
}

#[test]
fn broken_variable_files_are_errors() {
    let files = Files::new(&[
        ("hosts", "[gpu]\nx\n"),
        ("group_vars/gpu.yml", "a: 1\nb: {{ x }}\n"),
        ("group_vars/all/list.yml", "- a\n"),
        ("group_vars/all/vault.yml", "db: hunter2\n token: hunter2\n"),
        ("host_vars/x.yml", "a: 1\na: 2\n"),
        ("group_vars/ungrouped.yml", "$ANSIBLE_VAULT;1.1;AES256\n3132\n"),
    ]);
    let errors = files.load(&["hosts"]).unwrap_err();
    assert!(!errors.contains("hunter2"), "{errors}");
    insta::assert_snapshot!(errors, @r#"
    error: a file of variables holds a mapping, got a list
      --> group_vars/all/list.yml:1:3
       |
     1 | - a
       |   ^
    help: write `name: value` lines
    error: a key is not allowed here
      --> group_vars/all/vault.yml:2:7
    note: the line above already has a value, and this one is indented below it
    help: align it with the keys it belongs to
    error: this is encrypted with ansible-vault, and no vault password is given
      --> group_vars/ungrouped.yml:1:1
    help: give it with `--vault-password-file FILE`, or let gpufleet ask with `--ask-vault-pass`
    error: a value that begins with `{{` must stand in quotes
      --> group_vars/gpu.yml:2:4
       |
     2 | b: {{ x }}
       |    ^^^^^^^ YAML reads a brace as the start of a mapping
    help: write "{{ … }}"
    error: the key `a` is written twice
      --> host_vars/x.yml:2:1
       |
     2 | a: 2
       | ^ first on line 1
    help: remove one of the two: only one of them could count
    "#);
}

/// `db_password: planted-secret` and `port: 5432`.
const ENCRYPTED: &str = include_str!("../vault/fixtures/default.vault");

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
        inventory.graph_text("all", true).unwrap(),
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
fn patterns_that_match_nothing_have_a_next_step() {
    insta::assert_snapshot!(no_match("gpu:!rack9"), @r"
    error: `rack9` matches no host and no group
      --> host pattern:1:5
       |
     1 | gpu:!rack9
       |     ^^^^^^ excludes nothing
    help: did you mean `rack1`?
    ");
    insta::assert_snapshot!(no_match("trainin"), @r"
    error: `trainin` matches no host and no group
      --> host pattern:1:1
       |
     1 | trainin
       | ^^^^^^^ selects nothing
    help: did you mean `training`?
    ");
    insta::assert_snapshot!(no_match("gpu:&zzz,login1"), @r"
    error: `gpu:&zzz` matches no host and no group
      --> host pattern:1:1
       |
     1 | gpu:&zzz,login1
       | ^^^^^^^^ selects nothing
    help: in a pattern with a comma, `:` separates nothing: write `gpu,&zzz`
    ");
    insta::assert_snapshot!(no_match("rack1:rack2,&gpu"), @r"
    error: `rack1:rack2` matches no host and no group
      --> host pattern:1:1
       |
     1 | rack1:rack2,&gpu
       | ^^^^^^^^^^^ selects nothing
    help: in a pattern with a comma, `:` separates nothing: write `rack1,rack2`
    ");
    insta::assert_snapshot!(no_match("all:!gpu00[1-4]"), @r"
    error: `gpu00[1-4]` matches no host and no group
      --> host pattern:1:5
       |
     1 | all:!gpu00[1-4]
       |     ^^^^^^^^^^^ excludes nothing
    help: `[…]` at the end is a position in a group, not a set of characters: write `gpu00[1-4]*` or `~gpu00[1-4]$`
    ");
    insta::assert_snapshot!(no_match("gpu[:2]"), @r"
    error: `gpu[:2]` matches no host and no group
      --> host pattern:1:1
       |
     1 | gpu[:2]
       | ^^^^^^^ selects nothing
    help: a position is `gpu[2]` or `gpu[-1]`, a slice `gpu[0:3]` or `gpu[2:]`
    ");
    insta::assert_snapshot!(no_match("gpu0[01:03]"), @r"
    error: `gpu0[01:03]` matches no host and no group
      --> host pattern:1:1
       |
     1 | gpu0[01:03]
       | ^^^^^^^^^^^ selects nothing
    help: `[…:…]` is a slice of a group here; it is a range of names only in an inventory
    ");
    insta::assert_snapshot!(no_match("gpu[4]"), @r"
    error: `gpu[4]` selects nothing
      --> host pattern:1:1
       |
     1 | gpu[4]
       | ^^^^^^ `gpu` has 4 hosts, at positions 0 to 3
    ");
    insta::assert_snapshot!(no_match("gpu[9:]"), @r"
    error: `gpu[9:]` selects nothing
      --> host pattern:1:1
       |
     1 | gpu[9:]
       | ^^^^^^^ `gpu` has 4 hosts, at positions 0 to 3
    ");
    insta::assert_snapshot!(no_match("~gpu(1"), @r"
    error: this is no valid regular expression
      --> host pattern:1:1
       |
     1 | ~gpu(1
       | ^^^^^^ unclosed group
    ");
    insta::assert_snapshot!(no_match("gpu:!"), @r"
    error: a name is missing behind `!`
      --> host pattern:1:5
       |
     1 | gpu:!
       |     ^
    ");
    insta::assert_snapshot!(no_match("gpu:!all"), @r"
    error: no host is left of `gpu:!all`
    help: `gpufleet hosts PATTERN` shows what a pattern selects; `--allow-empty` makes this no error
    ");
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
    let script = |body: &str| {
        let files = Files::new(&[("inv.sh", &format!("#!/bin/sh\n{body}\n"))]);
        let options =
            LoadOptions { script_timeout: Duration::from_millis(300), ..files.options(&["inv.sh"]) };
        files.load_with(&options).map(|inventory| names(&inventory.hosts()).join(" "))
    };
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
    insta::assert_snapshot!(script("sleep 60 & sleep 60").unwrap_err(), @r"
    error: the inventory script `inv.sh --list` did not end within 0.3 s and was stopped
    help: give it more time with `--script-timeout`
    ");
    assert!(before.elapsed() < Duration::from_secs(10));
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
    insta::assert_snapshot!(inventory.graph_text("rack3", false).unwrap_err().to_string(), @r"
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
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../inventory");
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

/// Prints what loading costs; the bound is for a slow machine with a debug build.
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
    let before = Instant::now();
    let inventory = files.load(&["hosts.yaml"]).unwrap();
    let loaded = before.elapsed();
    let list = inventory.list_text(None, false).unwrap();
    println!(
        "5,000 hosts: loaded in {loaded:?}, listed in {:?}, {} KiB",
        before.elapsed() - loaded,
        list.len() / 1024
    );
    assert_eq!(inventory.host_count(), 5000);
    assert_eq!(inventory.select("gpu:!rack07", None).unwrap().len(), 4900);
    assert!(loaded < Duration::from_secs(8), "{loaded:?}");
}
