//! Compares lookups with ansible-core's results (tests/compat/lookups.py writes the file), and tests what differs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::*;
use crate::template::{
    Content, Dict, PathKind, Teller, Truth, condition, inspect_expression, inspect_template, render, watch,
};

/// A folder of this machine.
struct Disk(PathBuf);

impl Outside for Disk {
    fn content(&self, path: &str) -> Result<Option<Content>, String> {
        let Ok(bytes) = fs::read(self.0.join(path)) else { return Ok(None) };
        Ok(Some(Content { secret: path.contains("secret"), bytes: bytes.into() }))
    }

    fn kind(&self, path: &str) -> Option<PathKind> {
        let found = fs::metadata(self.0.join(path)).ok()?;
        Some(if found.is_dir() { PathKind::Folder } else { PathKind::File })
    }

    fn files_of(&self, folder: &str) -> Result<Vec<String>, String> {
        let Ok(entries) = fs::read_dir(self.0.join(folder)) else { return Ok(Vec::new()) };
        let files = entries.flatten().filter(|entry| entry.path().is_file());
        Ok(files.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    }

    fn absolute(&self, path: &str) -> String {
        self.0.join(path).display().to_string()
    }

    fn variable(&self, name: &str) -> Result<Option<String>, String> {
        Ok((name == "GPUFLEET_COMPAT_SET").then(|| "some value".to_owned()))
    }

    fn output(&self, line: &str, folder: &str) -> Result<Arc<str>, String> {
        let done = Command::new("/bin/sh").args(["-c", line]).current_dir(self.0.join(folder)).output();
        let done = done.map_err(|error| error.to_string())?;
        if !done.status.success() {
            return Err("the command failed".to_owned());
        }
        Ok(String::from_utf8_lossy(&done.stdout).into())
    }

    fn hosts(&self, patterns: &[String]) -> Result<Vec<String>, String> {
        match patterns.join(",").as_str() {
            "gpu" => Ok(vec!["g1".to_owned(), "g2".to_owned()]),
            other => Err(format!("`{other}` matches nothing")),
        }
    }
}

fn folder() -> PathBuf {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compat/lookups");
    found.canonicalize().expect("the folder of the lookups")
}

fn scope_of(vars: &Json) -> Arc<Scope> {
    let dict = Dict::trusted(vars.as_object().expect("a mapping"));
    Scope::looking(vec![Arc::new(dict)], Arc::new(Disk(folder())), Vec::new())
}

fn give(source: &str, vars: Json) -> Result<Json, String> {
    render(&format!("{{{{ {source} }}}}"), &scope_of(&vars))
        .map(|value| value.to_json())
        .map_err(|error| error.to_string())
}

/// Where gpufleet differs from Ansible, and why.
const DIFFERENCES: &[(&str, &str)] = &[
    ("q('subelements', users, 'groups', {'nope': true})", "a flag that does not exist is a mistake"),
    (
        "lookup('ini', 'port section=web file=app.ini allow_no_value=true')",
        "Ansible reads the file before this option counts",
    ),
];

#[test]
fn lookups_give_what_ansible_gives() {
    let file: Json =
        serde_json::from_str(include_str!("../tests/ansible_lookups.json")).expect("the file is JSON");
    let folder = folder().display().to_string();
    let mut variables = file["variables"].clone();
    variables["lazy"] = json!("{{ users[0].name }}");
    variables["playbook_dir"] = json!(folder);
    let scope = scope_of(&variables);
    let mut wrong = Vec::new();
    for case in file["cases"].as_array().expect("cases") {
        let expression = case[0].as_str().expect("an expression");
        let different = DIFFERENCES.iter().any(|(known, _)| *known == expression);
        let found = match render(&format!("{{{{ {expression} }}}}"), &scope) {
            Ok(value) => json!({"value": value.to_json()}).to_string().replace(&folder, "FOLDER"),
            Err(error) => json!({"error": error.to_string()}).to_string(),
        };
        let found: Json = serde_json::from_str(&found).expect("JSON");
        let same = match case[1].get("value") {
            Some(value) => found.get("value") == Some(value),
            None => found.get("error").is_some(),
        };
        if same == different {
            wrong.push(format!("{expression}\n  ansible: {}\n  gpufleet: {found}", case[1]));
        }
        if case[1].get("value").is_some()
            && let Err(error) = inspect_template(&format!("{{{{ {expression} }}}}"))
        {
            wrong.push(format!("{expression}\n  the check refuses it: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_lookup_of_ansible_is_known_or_left_out_on_purpose() {
    let file: Json =
        serde_json::from_str(include_str!("../tests/ansible_lookups.json")).expect("the file is JSON");
    for name in file["lookups"].as_array().expect("names").iter().filter_map(Json::as_str) {
        let refused = REFUSED.iter().any(|(refused, _)| *refused == name);
        assert!(find(name).is_ok() || refused, "{name} is neither known nor left out");
        for prefix in PREFIXES {
            assert_eq!(find(&format!("{prefix}{name}")).is_ok(), !refused, "{prefix}{name}");
        }
    }
}

#[test]
fn collections_and_choices() {
    assert_eq!(give("q('flattened', [[1, [2, [none, 3]]], 4], 5)", json!({})), Ok(json!([1, 2, 3, 4, 5])));
    assert_eq!(give("q('cartesian', [1, 2], ['a'])", json!({})), Ok(json!([[1, "a"], [2, "a"]])));
    assert_eq!(give("q('community.general.cartesian', [1, 2])", json!({})), Ok(json!([[1], [2]])));
    assert_eq!(give("q('inventory_hostnames', 'gpu')", json!({})), Ok(json!(["g1", "g2"])));
    assert_eq!(
        give("lookup('ansible.builtin.env', 'GPUFLEET_COMPAT_SET')", json!({})),
        Ok(json!("some value"))
    );
    let choice = |host: &str| {
        give("lookup('random_choice', *range(1000))", json!({"inventory_hostname": host})).expect("a choice")
    };
    assert_eq!(choice("n1"), choice("n1"));
    let hosts: std::collections::BTreeSet<_> =
        (0..50).map(|n| choice(&format!("n{n}")).to_string()).collect();
    assert!(hosts.len() > 40, "{} choices of 50 hosts", hosts.len());
}

#[test]
fn a_role_is_searched_before_the_playbook() {
    let root = tempfile::tempdir().expect("a folder");
    for (path, text) in [("roles/r/files/a", "role\n"), ("files/a", "play\n"), ("files/b", "play b\n")] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }
    let vars = json!({"role_path": "roles/r", "playbook_dir": "."});
    let dict = Arc::new(Dict::trusted(vars.as_object().expect("a mapping")));
    let scope = Scope::looking(vec![dict], Arc::new(Disk(root.path().to_owned())), Vec::new());
    let give = |source: &str| render(&format!("{{{{ {source} }}}}"), &scope).map(|value| value.to_json());
    assert_eq!(give("lookup('file', 'a')"), Ok(json!("role")));
    assert_eq!(give("lookup('file', 'b')"), Ok(json!("play b")));
    assert_eq!(
        give("lookup('file', 'c')").expect_err("no file").to_string(),
        "the lookup `file`: there is no file `c`; looked for roles/r/files/c and roles/r/c and files/c and c"
    );
}

#[test]
fn what_hangs_on_something_unknown_is_unknown() {
    let mut dict = Dict::trusted(json!({"known": "files/motd"}).as_object().expect("a mapping"));
    dict.insert("later", Value::Unknown);
    dict.insert("list", Value::list(vec![Value::Int(1), Value::Unknown]));
    let scope = Scope::looking(vec![Arc::new(dict)], Arc::new(Disk(folder())), Vec::new());
    for source in [
        "lookup('file', later)",
        "lookup(later, 'x')",
        "lookup('pipe', 'touch /nowhere/' ~ later)",
        "q('items', list)",
        "lookup('vars', 'later')",
        "lookup('vars', 'list')",
        "lookup('env', 'NOPE', default=later)",
        "lookup('file', later, errors='ignore')",
    ] {
        assert!(render(&format!("{{{{ {source} }}}}"), &scope) == Ok(Value::Unknown), "{source}");
    }
    assert_eq!(condition("lookup('file', later) == 'a'", &scope), Ok(Truth::Unknown));
    assert!(render("{{ lookup('items', [later, nope]) }}", &scope) == Ok(Value::Unknown));
    assert!(loop_over("nested", vec![Value::Unknown], "debug", &scope) == Ok(None));
}

#[test]
fn encrypted_files_give_secrets() {
    let scope = scope_of(&json!({"playbook_dir": ""}));
    for (source, secret) in [
        ("lookup('file', 'secret.pw')", true),
        ("lookup('file', 'beside.txt')", false),
        ("lookup('template', 'name.j2', template_vars={'users': [{'name': 'x'}]})", false),
        ("lookup('password', 'plain.pw')", true),
        ("lookup('unvault', 'secret.pw') | length", true),
        ("lookup('csvfile', 'x', file='secret.pw')", true),
    ] {
        let (value, met) = watch(|| render(&format!("{{{{ {source} }}}}"), &scope));
        assert!(value.is_ok(), "{source}: {value:?}");
        assert_eq!(met, secret, "{source}");
    }
}

#[test]
fn text_that_is_read_is_not_rendered() {
    let root = tempfile::tempdir().expect("a folder");
    fs::write(root.path().join("a"), "{{ password }}\n").expect("written");
    let scope = Scope::looking(Vec::new(), Arc::new(Disk(root.path().to_owned())), Vec::new());
    let text = render("x {{ lookup('file', 'a') }}", &scope).expect("text");
    assert_eq!(text.to_text(), "x {{ password }}");
    assert_eq!(render("{{ lookup('pipe', 'cat a') }}", &scope).expect("text").to_text(), "{{ password }}");
}

#[test]
fn refusals_say_what_to_do() {
    let fails = |source: &str| give(source, json!({"playbook_dir": ""})).expect_err(source);
    let cases = [
        ("lookup('fil', 'a')", "unknown lookup `fil`; did you mean `file`?"),
        (
            "lookup('community.hashi_vault.vault_read', 'a')",
            "unknown lookup `community.hashi_vault.vault_read`; there are no plug-ins here, `pipe` runs a program of the controller",
        ),
        (
            "lookup('url', 'http://a')",
            "the lookup `url` is not here: a node that waits for a web server holds up its wave; fetch it before the run, or with `get_url` on the node",
        ),
        (
            "lookup('file', 'a', rstripp=false)",
            "the lookup `file`: it has no option `rstripp`; did you mean `rstrip`?",
        ),
        ("lookup('items', 'a', wnt=1)", "the lookup `items`: it has no option `wnt`"),
        (
            "lookup('file', '~/a')",
            "the lookup `file`: a path with `~` means another file for everybody; write it from `/` on",
        ),
        (
            "lookup('password', 'nowhere.pw')",
            "the lookup `password`: there is no file nowhere.pw, and gpufleet makes no passwords; make one as with `openssl rand -base64 15`",
        ),
        ("lookup('inventory_hostnames', 'nope')", "the lookup `inventory_hostnames`: `nope` matches nothing"),
        ("lookup('vars', 'nope')", "`nope` is undefined"),
        ("lookup(7)", "the name of a lookup is text, this is a whole number"),
    ];
    for (source, expected) in cases {
        assert_eq!(fails(source), expected, "{source}");
    }
    assert_eq!(
        fails("('%' ~ 's') % 'a'"),
        "there is no `%` between a text and values; write `'…' | format(value)`"
    );
    let bare = Scope::new(Vec::new());
    assert_eq!(
        render("{{ lookup('env', 'HOME') }}", &bare).expect_err("nobody answers").to_string(),
        "the lookup `env`: only tasks can look outside of the variables; give the value with `-e` or set it in a task"
    );
}

#[test]
fn the_check_knows_lookups() {
    let wrong = |source: &str| inspect_template(source).expect_err(source);
    let error = wrong("a {{ lookup('fiel', 'x') }}");
    assert_eq!(
        (error.message(), error.suggestion(), error.range()),
        ("unknown lookup `fiel`", Some("file"), Some(13..17))
    );
    let error = wrong("{% if q(\"url\", 'x') %}{% endif %}");
    assert!(error.message().starts_with("the lookup `url` is not here"), "{error}");
    assert_eq!(
        wrong("{{ lookup('env', '{{ name }}') }}").message(),
        "this is an expression already: write the variable's name without quotes and `{{ }}`"
    );
    assert_eq!(inspect_expression("now()").expect_err("no clock").range(), Some(0..3));
    let found = inspect_expression(
        "lookup('vars', 'a') + lookup('vars', 'b', default=c) + lookup(d, e) + q('items', f)",
    );
    let found = found.expect("an expression");
    let mut names = found.names.clone();
    names.sort();
    assert_eq!(names, ["a", "b", "c", "d", "e", "f"]);
    assert_eq!(found.guarded, ["b"]);
    let found = inspect_expression("lookup('vars', 'a') | default('x')").expect("an expression");
    assert_eq!(found.guarded, ["a"]);
    assert_eq!(
        inspect_template("lookup('nope') in plain text {# lookup('nope') #}").map(|found| found.names),
        Ok(vec![])
    );
}

#[test]
fn tests_and_filters_of_the_disk_look_outside() {
    let give = |source: &str| give(source, json!({"name": "beside.txt"}));
    assert_eq!(give("[name is file, name is exists, name is directory]"), Ok(json!([true, true, false])));
    assert_eq!(give("['files' is is_dir, 'files' is is_file]"), Ok(json!([true, false])));
    assert_eq!(give("'nope' is not exists"), Ok(json!(true)));
    assert_eq!(give("'files/sub/*.conf' | fileglob"), Ok(json!(["files/sub/a.conf", "files/sub/deep.conf"])));
    assert_eq!(give("'*.txt' | ansible.builtin.fileglob"), Ok(json!(["beside.txt"])));
    assert_eq!(give("['files', 'nope'] | select('exists') | list"), Ok(json!(["files"])));
    assert_eq!(
        give("'f*/x' | fileglob"),
        Err("`fileglob`: only the last part of the path can be a pattern".to_owned())
    );
    assert_eq!(give("1 is divisibleby 0"), Err("`divisibleby`: nothing can be divided by 0".to_owned()));
}

#[test]
fn loops_take_terms() {
    let scope = scope_of(&json!({"playbook_dir": ""}));
    let items = |name: &str, terms: Json| {
        let terms = terms.as_array().expect("terms").iter().map(Value::literal).collect();
        let found = loop_over(name, terms, "debug", &scope).map_err(|error| error.to_string())?;
        Ok::<_, String>(Json::from(found.expect("items").iter().map(Value::to_json).collect::<Vec<_>>()))
    };
    assert_eq!(items("dict", json!([{"a": 1}])), Ok(json!([{"key": "a", "value": 1}])));
    assert_eq!(items("nested", json!([["a"], [1, 2]])), Ok(json!([["a", 1], ["a", 2]])));
    assert_eq!(items("file", json!(["motd"])), Ok(json!(["  hello\nworld"])));
    assert_eq!(items("sequence", json!(["0-4/2"])), Ok(json!(["0", "2", "4"])));
    assert_eq!(
        items("dict", json!([1])),
        Err("the lookup `dict`: a mapping is needed, this is a whole number".to_owned())
    );
    let found = |kind: &str| {
        let terms = vec![Value::str("name.j2"), Value::str("motd")];
        loop_over("first_found", terms, kind, &scope)
            .expect("found")
            .expect("known")
            .first()
            .map(Value::to_text)
    };
    assert!(found("template").is_some_and(|path| path.ends_with("templates/name.j2")));
    assert!(found("copy").is_some_and(|path| path.ends_with("files/motd")));
}

fn reference() -> String {
    let mut out = String::from(
        "<!-- written by `make reference` -->\n# Lookups of templates\n\n`lookup('name', terms…, options…)` gives one value: what the \
         lookup found, several texts joined with commas, or a\nlist of other things. `query` (or `q`, or `wantlist=true`) always gives \
         a list. With `errors='ignore'` or\n`errors='warn'` a lookup that fails gives nothing, with a warning for the latter. `with_name: terms` in a task loops over \
         what a lookup gives.\n`ansible.builtin.` may stand before a name. About 270 expressions are compared with ansible-core \
         (`make compat`).\n\n| lookup | gives | options |\n|---|---|---|\n",
    );
    let mut known: Vec<_> = all().collect();
    known.sort_by_key(|lookup| lookup.name);
    for lookup in known {
        let options: Vec<_> = lookup.options.iter().map(|option| format!("`{option}`")).collect();
        out.push_str(&format!("| `{}` | {} | {} |\n", lookup.name, lookup.about, options.join(", ")));
    }
    out.push_str("\nNot there:\n\n");
    for (name, why) in REFUSED {
        out.push_str(&format!("- `{name}`: {why}\n"));
    }
    out.push_str(
        "\n## Where they look\n\n\
         - Files are looked for in the role, then beside the playbook, each time first in `files/` (`templates/` for `template`). \
         `first_found` in\n  a template looks beside the playbook only, as in Ansible; `with_first_found` in the folder of the \
         task's kind first.\n\
         - `pipe` and `lines` run `/bin/sh` on the controller, in the playbook's folder, for at most 60 s; also in predictions.\n\
         - What a node said (facts, results, items of loops over them) goes into such a line only where a shell does nothing \
         with it; else\n  put `| quote` behind it (Ansible runs the node's words on the controller).\n\
         - Nor does it lead a lookup out of a folder: facts, and variables of other nodes, go into a path without `/`, `..` and `~`.\n\
         - What `fetch` brought in this run is text of a node: no template, and no file of variables.\n\
         - Every file, folder, variable and program is read once a run, so that all tasks and nodes see the same. A run that is \
         resumed reads\n  them again.\n\
         - What comes out of an encrypted file, and out of `password`, is a secret: tasks that use it count as `no_log`.\n\
         - What hangs on the result of a task that a prediction does not run is not known yet, like everything else.\n\
         \n## Where they differ from Ansible\n\n\
         - Options that a lookup does not have are errors; Ansible ignores them.\n\
         - `random_choice` chooses by the host, the play and the terms, not by chance: a run that goes on after a crash has to get \
         the same.\n\
         - `password` reads passwords and makes none; `encrypt` is refused, because a salt that is made would be another one each \
         time.\n\
         - `fileglob` and `varnames` sort what they find.\n\
         - `inventory_hostnames` with a pattern that matches nothing is an error, as everywhere here.\n\
         - Paths with `~` are refused: they mean another file for everybody.\n\
         - Text in the arguments is no template: `lookup('env', '{{ name }}')` is an error, `lookup('env', name)` is meant.\n",
    );
    out
}

#[test]
fn the_reference_of_lookups_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/lookups.md");
    let wanted = reference();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &wanted).expect("written");
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(there == wanted, "docs/reference/lookups.md is out of date: run this test with UPDATE=1");
}

/// Has one file's text for every path, and nothing else.
struct Book(String);

impl Outside for Book {
    fn content(&self, _: &str) -> Result<Option<Content>, String> {
        Ok(Some(Content { bytes: self.0.as_bytes().into(), secret: false }))
    }
    fn kind(&self, _: &str) -> Option<PathKind> {
        Some(PathKind::Folder)
    }
    fn files_of(&self, _: &str) -> Result<Vec<String>, String> {
        Ok(vec![self.0.clone(), "a".to_owned()])
    }
    fn absolute(&self, path: &str) -> String {
        path.to_owned()
    }
    fn variable(&self, _: &str) -> Result<Option<String>, String> {
        Ok(Some(self.0.clone()))
    }
    fn output(&self, _: &str, _: &str) -> Result<Arc<str>, String> {
        Ok(self.0.as_str().into())
    }
    fn hosts(&self, _: &[String]) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
}

/// Renders a template with a node's text `said` in `h`, and a person's text `own`.
fn heard(source: &str, said: &str, own: &str) -> Result<String, String> {
    let facts: Arc<Dict> = Arc::new([(Arc::<str>::from("h"), Value::str(said))].into_iter().collect());
    let vars = Dict::trusted(json!({"own": own, "line": "echo {{ h }}"}).as_object().unwrap());
    let layers = vec![Arc::new(vars), Arc::clone(&facts)];
    let scope = Scope::looking(layers, Arc::new(Disk(folder())), vec![(facts, Teller::Facts)]);
    render(source, &scope).map(|value| value.to_text()).map_err(|error| error.to_string())
}

#[test]
fn no_shell_reads_what_a_node_said() {
    let bad = "x$(echo y)";
    for source in [
        "{{ lookup('pipe', 'echo ' ~ h) }}",
        "{{ lookup('pipe', 'echo ' ~ h[1:]) }}",
        "{{ query('lines', 'echo ' ~ h) }}",
        "{{ lookup('pi' ~ 'pe', 'echo ' ~ h) }}",
        "{{ lookup('pipe', line) }}",
        "{{ lookup('vars', 'own') ~ lookup('pipe', line) }}",
        "{% for c in [h] %}{{ lookup('pipe', 'echo ' ~ c) }}{% endfor %}",
        "{% macro m(f) %}{{ lookup(f, 'echo ' ~ h) }}{% endmacro %}{{ m('pipe') }}",
        "{{ lookup('pipe', own) if '$' in h else '' }}{{ lookup('pipe', h) }}",
    ] {
        let refused = heard(source, bad, "{{ lookup('pipe', 'echo own') }}");
        assert!(
            refused.as_ref().is_err_and(|why| why.contains("put `| quote` behind it")),
            "{source}: {refused:?}"
        );
    }
    for (source, own, printed) in [
        ("{{ lookup('pipe', 'echo ' ~ h | quote) }}", "", bad),
        ("{{ lookup('pipe', 'echo ' ~ h | length) }}", "", "10"),
        ("{{ lookup('pipe', own) }}", "echo a b | tr a c; echo $((1+1))", "c b\n2"),
        ("{{ lookup('pipe', 'echo ' ~ own) }}", "{{ lookup('pipe', 'echo b | tr b c') }}", "c"),
        ("{{ lookup('pipe', 'echo a | cat') ~ h }}", "", "ax$(echo y)"),
    ] {
        assert_eq!(heard(source, bad, own).as_deref(), Ok(printed), "{source}");
    }
    assert_eq!(
        heard("{{ lookup('pipe', 'echo ' ~ h) }}", "gpu001.example.com", ""),
        Ok("gpu001.example.com".to_owned())
    );
}

/// A file that a person names may be anywhere; a node chooses among those of a folder.
#[test]
fn no_lookup_follows_a_node_out_of_a_folder() {
    for source in [
        "{{ lookup('file', h) }}",
        "{{ lookup('file', 'keys/' ~ h) }}",
        "{{ lookup('unvault', own ~ '/' ~ h) }}",
        "{{ lookup('template', h) }}",
        "{{ lookup('first_found', {'files': [h], 'paths': ['vars']}) }}",
        "{{ query('fileglob', h ~ '/*') }}",
        "{{ lookup('fi' ~ 'le', h) }}",
        "{{ lookup('password', h) }}",
        "{{ lookup('csvfile', 'a file=' ~ h) }}",
        "{{ lookup('file', h | b64encode | b64decode) }}",
    ] {
        for said in ["../secret", "a/../../b", "..", "/etc/shadow", "~/.ssh/id_ed25519"] {
            let refused = heard(source, said, "/srv");
            let leads = said.starts_with(['/', '~']) && source.contains("/' ~")
                || said.starts_with('~') && source.contains("paths");
            assert!(
                leads || refused.as_ref().is_err_and(|why| why.contains("leads to another folder")),
                "{source} {said}: {refused:?}"
            );
        }
    }
    for source in [
        "{{ lookup('file', own) }}",
        "{{ lookup('file', own if h else h) }}",
        "{{ lookup('file', h | basename) }}",
    ] {
        let found = heard(source, "../x", "/nowhere");
        assert!(found.as_ref().is_err_and(|why| why.contains("there is no file")), "{source}: {found:?}");
    }
}

proptest::proptest! {
    #[test]
    fn no_lookup_panics_whatever_it_gets(
        name in proptest::sample::select(all().map(|lookup| lookup.name).collect::<Vec<_>>()),
        picks in proptest::array::uniform3(0_usize..16),
        content in "[a-c=:\\[\\]\"',;%()\n\t {}#]{0,30}",
        term in "[0-9a-cx/:%=\\-\\[\\]*?!\"' .d]{0,16}",
    ) {
        let values = json!([
            null, true, 0, 3, i64::MAX, 2.5, "", term, "a\u{e4}b", "start=1 end=3", "end=99999999999",
            [1, "a", null], {"a": [1, {"b": null}]}, [["a", 1], ["b", 2]], [{"a": [1]}], {"skip_missing": 1},
        ]);
        let mut variables = json!({"v": values[picks[0]], "a": values[picks[1]], "b": values[picks[2]]});
        variables["playbook_dir"] = json!("");
        let dict = Arc::new(Dict::literal(variables.as_object().expect("a mapping")));
        let scope = Scope::looking(vec![dict], Arc::new(Book(content)), Vec::new());
        let lookup = find(name).expect("known");
        for arguments in ["", ", v", ", v, a", ", v, a, b", ", *v"] {
            let _ = render(&format!("{{{{ q('{name}'{arguments}) }}}}"), &scope);
            for option in lookup.options {
                let _ = render(&format!("{{{{ lookup('{name}'{arguments}, {option}=b) }}}}"), &scope);
            }
        }
    }

    #[test]
    fn rows_of_tables_read_as_they_were_written(rows in proptest::collection::vec(proptest::collection::vec("[a-c\", \n]{1,5}", 1..4), 1..5)) {
        let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
        let line = |row: &Vec<String>| row.iter().map(quoted).collect::<Vec<_>>().join(",");
        let text = rows.iter().map(line).collect::<Vec<_>>().join("\n");
        proptest::prop_assert_eq!(tables::rows(&text, ','), rows);
    }

    #[test]
    fn sequences_count_as_written(start in -50_i64..50, steps in 0_i64..20, stride in 1_i64..9) {
        let end = start + steps * stride;
        let found = give(&format!("q('sequence', 'start={start} end={end} stride={stride}')"), json!({}));
        let wanted: Vec<Json> = (0..=steps).map(|step| json!((start + step * stride).to_string())).collect();
        proptest::prop_assert_eq!(found, Ok(Json::from(wanted)));
    }
}
