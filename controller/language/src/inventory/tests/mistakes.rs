//! Every mistake is reported with its place and a next step.

use super::*;

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
    help: align it with the keys it belongs to, or add the `:` that the line above lacks
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
    insta::assert_snapshot!(no_match("gpu[:2]"), @r"
    error: `gpu[:2]` matches no host and no group
      --> host pattern:1:1
       |
     1 | gpu[:2]
       | ^^^^^^^ selects nothing
    help: a position is `gpu[2]` or `gpu[-1]`, a slice `gpu[0:3]` or `gpu[2:]`
    ");
    insta::assert_snapshot!(no_match("login[a:c]"), @r"
    error: `login[a:c]` matches no host and no group
      --> host pattern:1:1
       |
     1 | login[a:c]
       | ^^^^^^^^^^ selects nothing
    help: a range of names has two numbers here, `gpu[01:16]`; letters and steps count only in an inventory
    ");
    insta::assert_snapshot!(no_match("gpu[001,002,0…"), @r"
    error: `gpu[001` matches no host and no group
      --> host pattern:1:1
       |
     1 | gpu[001,002,0…
       | ^^^^^^^ selects nothing
    help: did you mean `gpu001`?
    error: `002` matches no host and no group
      --> host pattern:1:9
       |
     1 | gpu[001,002,0…
       |         ^^^ selects nothing
    help: `gpufleet inventory --graph` shows all groups and hosts
    error: `0…` matches no host and no group
      --> host pattern:1:13
       |
     1 | gpu[001,002,0…
       |             ^^ selects nothing
    help: a list that ends in `…` was cut to fit; `--format json` has all names
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
fn numbers_in_brackets_are_names_or_positions_and_never_both() {
    let unpadded = load("hosts.ini", "[gpu]\ngpu[1:8]\n[n]\nm1\nm2\n");
    let select = |pattern: &str| {
        unpadded
            .select(pattern, None)
            .map(|hosts| names(&hosts).join(" "))
            .map_err(|errors| errors.to_string())
    };
    insta::assert_snapshot!(select("gpu[1-4]").unwrap_err(), @r"
    error: `gpu[1-4]` may mean two things, and they are not the same hosts
      --> host pattern:1:1
       |
     1 | gpu[1-4]
       | ^^^^^^^^ hosts called `gpu` and a number, or positions (from 0) in `gpu`
    note: hosts by name: `gpu[1-3,4]`
    note: positions (from 0) in `gpu`: `gpu[2-4,5]`
    help: write the one that is meant, as it stands here; numbers with a comma are always names
    ");
    insta::assert_snapshot!(select("gpu[1:4]").unwrap_err(), @r"
    error: `gpu[1:4]` may mean two things, and they are not the same hosts
      --> host pattern:1:1
       |
     1 | gpu[1:4]
       | ^^^^^^^^ hosts called `gpu` and a number, or positions (from 0) in `gpu`
    note: hosts by name: `gpu[1-3,4]`
    note: positions (from 0) in `gpu`: `gpu[2-4,5]`
    help: write the one that is meant, as it stands here; numbers with a comma are always names
    ");
    insta::assert_snapshot!(select("gpu[7-12]").unwrap_err(), @r"
    error: `gpu[7-12]` may mean two things, and they are not the same hosts
      --> host pattern:1:1
       |
     1 | gpu[7-12]
       | ^^^^^^^^^ hosts called `gpu` and a number, or positions (from 0) in `gpu`
    note: hosts by name: `gpu[7,8]`
    note: positions (from 0) in `gpu`: `gpu8`
    help: write the one that is meant, as it stands here; numbers with a comma are always names
    ");
    insta::assert_snapshot!(select("gpu[1-3,9]").unwrap_err(), @r"
    error: gpu9 is no host
      --> host pattern:1:1
       |
     1 | gpu[1-3,9]
       | ^^^^^^^^^^ names 3 hosts of the inventory
    help: the hosts that there are: `gpu[1,2,3]`
    ");
    insta::assert_snapshot!(select("gpu[01-03]").unwrap_err(), @r"
    error: gpu[01-03] are no hosts
      --> host pattern:1:1
       |
     1 | gpu[01-03]
       | ^^^^^^^^^^ names no host of the inventory
    help: numbers with leading zeros or commas are names; positions in the group `gpu` are `gpu[0:3]`
    ");
    insta::assert_snapshot!(select("m[1-3]").unwrap_err(), @r"
    error: m3 is no host
      --> host pattern:1:1
       |
     1 | m[1-3]
       | ^^^^^^ names 2 hosts of the inventory
    help: the hosts that there are: `m[1,2]`
    ");
    assert_eq!(select("gpu[1-3,4]").unwrap(), "gpu1 gpu2 gpu3 gpu4");
    assert_eq!(
        select("gpu[0:3]").unwrap(),
        "gpu1 gpu2 gpu3 gpu4",
        "there is no gpu0, so these are positions"
    );
    assert_eq!(select("gpu[2:]").unwrap(), "gpu3 gpu4 gpu5 gpu6 gpu7 gpu8");
    assert_eq!(select("m[1-2]").unwrap(), "m1 m2");
    assert_eq!(select("n[0-1]").unwrap(), "m1 m2");
    assert_eq!(select("gpu[1,3]:m2:!gpu[3,4]").unwrap(), "gpu1 m2");
    assert_eq!(select("all,&gpu[2,7],!gpu7").unwrap(), "gpu2");
    let padded = fleet();
    for pattern in ["gpu[001-003]", "gpu[001:003]", "gpu00[1-3]", "gpu[001-002,003]", "gpu[001,002],gpu003"] {
        assert_eq!(
            names(&padded.select(pattern, None).unwrap()),
            ["gpu001", "gpu002", "gpu003"],
            "{pattern}"
        );
    }
    assert_eq!(names(&padded.select("gpu[1-2]", None).unwrap()), ["gpu002", "gpu003"], "as in Ansible");
    insta::assert_snapshot!(padded.positions(&[("gpu[1-2]", None)], Some("all:!gpu[3:4]")), @r"
    warning: `gpu[1-2]` takes hosts by their positions in `gpu`, from 0: gpu[002,003]
      --> host pattern:1:1
       |
     1 | gpu[1-2]
       | ^^^^^^^^
    note: hosts with these numbers in their names: gpu[001,002]
    help: write `gpu[001,002]` if those are meant, and `gpu[002,003]` if not
    warning: `gpu[3:4]` takes hosts by their positions in `gpu`, from 0: gpu004
      --> --limit:1:5
       |
     1 | all:!gpu[3:4]
       |     ^^^^^^^^^
    note: hosts with these numbers in their names: gpu[003,004]
    help: write `gpu[003,004]` if those are meant, and `gpu004` if not
    ");
    for quiet in ["gpu[0:3]", "gpu[001-004]", "gpu[1]", "gpu[2:]", "gpu[1,2]", "all"] {
        assert_eq!(padded.positions(&[(quiet, None)], None).to_string(), "", "{quiet}");
    }
    let zero = load("hosts.ini", "[gpu]\ngpu[0:7]\n");
    assert_eq!(zero.select("gpu[0:3]", None).unwrap().len(), 4, "both are the same hosts");
}

#[test]
fn hosts_that_no_pattern_could_select_are_refused() {
    let text = "all:\n  hosts:\n    \"a b\":\n    \"a,b\":\n    \"@a\":\n    \"a\\e[2Jb\":\n    \"a\\u202eb\":\n    \"x:y\":\n    fine:\n";
    let errors = Files::new(&[("h.yaml", text)]).load(&["h.yaml"]).unwrap_err();
    assert!(errors.contains("--> h.yaml:3:5"), "{errors}");
    let lines: Vec<&str> = errors.lines().filter(|line| line.starts_with("error")).collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    error: a range needs its closing `]`
    error: `a b` is no name for a host: it has a blank
    error: `a,b` is no name for a host: to a pattern, commas and brackets separate and number names
    error: `@a` is no name for a host: to a pattern or a command line, its first character means something
    error: `a\u202eb` is no name for a host: it has characters that are not seen, or that change how others are
    error: `x:y` is no name for a host: to a pattern, `:` separates names
    ");
}

#[test]
fn the_place_of_a_variable_is_that_of_the_value_that_counts() {
    let files = Files::new(&[
        (
            "inv/hosts.ini",
            "[gpu]\ngpu1\n[all:vars]\nansible_port=1\n[gpu:vars]\nansible_port=2\nansible_host=b\n",
        ),
        ("inv/group_vars/gpu.yml", "ansible_user: a b\n"),
        ("inv/group_vars/all.yml", "ansible_user: x\nansible_host: c\nansible_timeout: 1\n"),
        ("pl/group_vars/all.yml", "ansible_user: ops\nansible_timeout: 2\n"),
    ]);
    let options = LoadOptions {
        playbook_dir: Some(files.folder.path().join("pl")),
        ..files.options(&["inv/hosts.ini"])
    };
    let inventory = Inventory::load(&options).unwrap();
    for (name, value, place) in [
        ("ansible_user", json!("a b"), "inv/group_vars/gpu.yml:1"),
        ("ansible_host", json!("c"), "inv/group_vars/all.yml:2"),
        ("ansible_timeout", json!(2), "pl/group_vars/all.yml:2"),
        ("ansible_port", json!(2), "inv/hosts.ini:6"),
    ] {
        assert_eq!(inventory.host_vars("gpu1").unwrap().get(name), Some(&value), "{name}");
        let found = inventory.place_of("gpu1", name).unwrap();
        assert_eq!(files.plain(&format!("{}:{}", found.file(), found.line)), place, "{name}");
    }
}
