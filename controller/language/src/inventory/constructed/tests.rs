use super::super::tests::Files;
use super::*;

const HOSTS: &str = "[gpu]\nn1 model=H100 rack=r1 tags=\"['a', 'b']\"\nn2 model='A100 80GB' rack=r2 note=''\nn3 rack=r1\n[gpu:vars]\nslots=8\n[all:vars]\nsite=x\n";

fn constructed(text: &str) -> Result<super::super::Inventory, String> {
    Files::new(&[("hosts", HOSTS), ("z.yml", text)]).load(&["hosts", "z.yml"])
}

fn groups(text: &str) -> Vec<String> {
    let inventory = constructed(&format!("plugin: constructed\n{text}")).unwrap();
    let shown = |(name, hosts): (&str, Vec<super::super::HostName>)| format!("{name}={}", hosts.join(","));
    inventory.groups().skip(3).map(shown).collect()
}

#[test]
fn groups_follow_from_conditions_and_keys() {
    assert_eq!(
        groups("groups:\n  big: slots > 4 and rack == 'r1'\n  \"9 odd\": true\n  none: nope == 1\n"),
        ["big=n1,n3", "__odd=n1,n2,n3"]
    );
    assert_eq!(groups("keyed_groups: [{key: model, prefix: m}]"), ["m_H100=n1", "m_A100_80GB=n2"]);
    assert_eq!(groups("keyed_groups: [{key: rack, separator: ''}]"), ["r1=n1,n3", "r2=n2"]);
    assert_eq!(groups("leading_separator: no\nkeyed_groups: [{key: rack}]"), ["r1=n1,n3", "r2=n2"]);
    assert_eq!(
        groups("keyed_groups: [{key: tags, prefix: t, separator: '-', parent_group: 'all {{ rack }}'}]"),
        ["t_a=n1", "all_r1=n1", "t_b=n1"]
    );
    assert_eq!(groups("keyed_groups: [{key: note, prefix: n, default_value: other}]"), ["n_other=n2"]);
    assert_eq!(
        groups("keyed_groups: [{key: \"{'k': rack, 'e': ''}\", trailing_separator: false}]"),
        ["_k_r1=n1,n3", "_e=n1,n2,n3", "_k_r2=n2"]
    );
}

#[test]
fn composed_variables_are_seen_by_what_comes_behind_them() {
    let inventory = constructed(
        "plugin: ansible.builtin.constructed\ncompose: {where: \"rack ~ '-' ~ slots\", same: model, more: slots + 1, lost: site}\nkeyed_groups: [{key: where, separator: ''}]\n",
    )
    .unwrap();
    assert_eq!(
        json!(inventory.host_vars("n1").unwrap().own()),
        json!({
            "model": "H100", "rack": "r1", "tags": ["a", "b"], "more": 9, "same": "H100",
            "where": {"__ansible_unsafe": "r1-8"},
        })
    );
    assert_eq!(inventory.groups_of("n2"), ["gpu", "r2_8"]);
}

#[test]
fn texts_that_were_written_keep_their_marks() {
    let files = Files::new(&[
        ("a.yml", "all: {hosts: {h: {raw: !unsafe '{{ x }}', low: r1}}}"),
        (
            "z.yml",
            "plugin: constructed\nstrict:\nuse_extra_vars: true\ncompose: {q: raw, l: '[raw, low]', e: env}\n",
        ),
    ]);
    let extra = json!({"env": "prod"});
    let inventory = files.load_given(&["a.yml", "z.yml"], extra.as_object().unwrap()).unwrap();
    let unsafe_text = json!({"__ansible_unsafe": "{{ x }}"});
    assert_eq!(
        json!(inventory.host_vars("h").unwrap().own()),
        json!({"raw": unsafe_text, "low": "r1", "q": unsafe_text, "l": [unsafe_text, "r1"], "e": "prod"})
    );
}

#[test]
fn what_gpufleet_never_does_is_an_error_though_the_file_is_not_strict() {
    for expression in [
        "lookup('env', 'HOME')",
        "lookup('pipe', 'true') | default('')",
        "rack is exists",
        "rack | password_hash",
    ] {
        for text in [
            format!("compose:\n  a: {expression}\n"),
            format!("groups:\n  a: {expression}\n"),
            format!("keyed_groups:\n  - key: {expression}\n"),
        ] {
            let error = constructed(&format!("plugin: constructed\n{text}")).unwrap_err();
            assert!(error.contains("--> z.yml:3:"), "{expression}: {error}");
            assert!(error.contains("for the host `n1`"), "{expression}: {error}");
        }
    }
    insta::assert_snapshot!(constructed("plugin: constructed\ncompose:\n  home: lookup('env', 'HOME')\n  b: nope\n").unwrap_err(), @r"
    error: the lookup `env`: only tasks can look outside of the variables; give the value with `-e` or set it in a task
      --> z.yml:3:9
       |
     3 |   home: lookup('env', 'HOME')
       |         ^^^^^^^^^^^^^^^^^^^^^
    note: the variable `home` is not set
    note: for the host `n1`
    ");
    insta::assert_snapshot!(constructed("plugin: constructed\ncompose: {a: true, b: 5}\nkeyed_groups: [{key: true}]\n").unwrap_err(), @r"
    error: the expression of `a` wants a string, got a boolean
      --> z.yml:2:14
       |
     2 | compose: {a: true, b: 5}
       |              ^^^^
    help: put it in quotes to make it a string
    error: the expression of `b` wants a string, got a whole number
      --> z.yml:2:23
       |
     2 | compose: {a: true, b: 5}
       |                       ^
    help: put it in quotes to make it a string
    error: `key` wants a string, got a boolean
      --> z.yml:3:22
       |
     3 | keyed_groups: [{key: true}]
       |                      ^^^^
    help: put it in quotes to make it a string
    ");
}

#[test]
fn variable_files_and_facts_count_when_they_are_asked_for() {
    let files = Files::new(&[
        ("inv/hosts", "[gpu]\nn1\nn2\n"),
        ("inv/group_vars/gpu.yml", "zone: a\n"),
        ("inv/host_vars/n2.yml", "zone: b\n"),
        (
            "inv/z.yml",
            "plugin: constructed\nuse_vars_plugins: true\nfacts: facts.md\nkeyed_groups: [{key: zone, prefix: z}, {key: 'gpufleet_facts.gpu.gpus[0].name', prefix: gpu}]\n",
        ),
        (
            "inv/facts.md",
            r#"{"n1": {"gpu": {"gpus": [{"name": "NVIDIA H100 80GB HBM3"}]}}, "n2": {"error": "x"}}"#,
        ),
    ]);
    let inventory = files.load(&["inv"]).unwrap();
    assert_eq!(inventory.groups_of("n1"), ["gpu", "gpu_NVIDIA_H100_80GB_HBM3", "z_a"]);
    assert_eq!(inventory.groups_of("n2"), ["gpu", "z_b"]);
}

#[test]
fn mistakes_have_their_place() {
    insta::assert_snapshot!(
        constructed("plugin: constructed\ncompse: {}\ncompose:\n  a: rack +\n  b: rack | uper\ngroups: [x]\nkeyed_groups:\n  - {prefx: y, key: rack}\n  - prefix: y\n").unwrap_err(),
        @r"
    error: unknown key `compse`
      --> z.yml:2:1
       |
     2 | compse: {}
       | ^^^^^^ not a key of a file with `plugin: constructed`
    help: did you mean `compose`?
    error: syntax error: unexpected end of input, expected expression
      --> z.yml:4:11
       |
     4 |   a: rack +
       |           ^
    error: unknown filter `uper`
      --> z.yml:5:13
       |
     5 |   b: rack | uper
       |             ^^^^
    help: did you mean `upper`?
    error: `groups` wants a mapping, got a list
      --> z.yml:6:9
       |
     6 | groups: [x]
       |         ^
    error: unknown key `prefx`
      --> z.yml:8:6
       |
     8 |   - {prefx: y, key: rack}
       |      ^^^^^ not a key of an entry of `keyed_groups`
    help: did you mean `prefix`?
    error: an entry of `keyed_groups` needs a `key`
      --> z.yml:9:5
       |
     9 |   - prefix: y
       |     ^^^^^^
    help: an expression whose value names the group, for example `key: gpu_model`
    "
    );
    insta::assert_snapshot!(
        constructed("plugin: constructed\nstrict: true\ncompose:\n  a: model ~ 'x'\ngroups:\n  b: slots\nkeyed_groups:\n  - key: note\n  - key: slots\n").unwrap_err(),
        @r"
    error: a condition must be true or false, this one gives a whole number; use `| bool`, `| length > 0` or a comparison
      --> z.yml:6:6
       |
     6 |   b: slots
       |      ^^^^^
    note: nobody knows whether it is in `b`
    note: for the host `n1`
    error: `note` is undefined
      --> z.yml:8:10
       |
     8 |   - key: note
       |          ^^^^
    note: no group follows from it
    note: for the host `n1`
    error: the key of a group is text, a list or a mapping; use `| string`
      --> z.yml:9:10
       |
     9 |   - key: slots
       |          ^^^^^
    note: for the host `n1`
    error: `model` is undefined
      --> z.yml:4:6
       |
     4 |   a: model ~ 'x'
       |      ^^^^^
    note: the variable `a` is not set
    note: for the host `n3`
    "
    );
    insta::assert_snapshot!(constructed("plugin: construct\n").unwrap_err(), @r"
    error: the inventory plugin `construct` is not supported
      --> z.yml:1:1
       |
     1 | plugin: construct
       | ^^^^^^ this file configures a plugin, it lists no hosts
    help: did you mean `constructed`?
    ");
    let early = Files::new(&[("hosts", HOSTS), ("a.yml", "plugin: constructed\ngroups: {}\n")]);
    insta::assert_snapshot!(early.load(&["a.yml", "hosts"]).unwrap_err(), @r"
    error: no host is known where this file is read, so it constructs nothing
      --> a.yml:1:1
       |
     1 | plugin: constructed
       | ^^^^^^ works on the hosts of the sources before it
    help: sources are read as they are given with -i, those of a folder by their names: name it behind the others, such as `zz-constructed.yml`
    ");
    insta::assert_snapshot!(constructed("plugin: constructed\nfacts: nope.json\n").unwrap_err(), @r"
    error: there is no file `nope.json`
      --> z.yml:2:8
       |
     2 | facts: nope.json
       |        ^^^^^^^^^
    help: write it with `gpufleet facts all --format json`
    ");
    insta::assert_snapshot!(constructed("plugin: constructed\nkeyed_groups: [{key: rack, separator: '', parent_group: r1}]\n").unwrap_err(), @r"
    error: the group `r1` cannot be its own child
      --> z.yml:2:57
       |
     2 | keyed_groups: [{key: rack, separator: '', parent_group: r1}]
       |                                                         ^^
    note: for the host `n1`
    ");
}
