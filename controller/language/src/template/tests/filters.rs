//! Compares filters and tests with ansible-core's results (tests/compat/filters.py writes the file).

use serde_json::{Value as Json, json};

use super::scope;
use crate::template::{filters, inspect_template, render};

/// Where gpufleet differs from Ansible, and why.
const DIFFERENCES: &[(&str, &str)] = &[];

#[test]
fn filters_and_tests_give_what_ansible_gives() {
    let file: Json = serde_json::from_str(include_str!("ansible_filters.json")).expect("the file is JSON");
    let scope = scope(file["variables"].clone());
    let mut wrong = Vec::new();
    for case in file["cases"].as_array().expect("cases") {
        let expression = case[0].as_str().expect("an expression");
        let different = DIFFERENCES.iter().any(|(known, _)| *known == expression);
        let found = match render(&format!("{{{{ {expression} }}}}"), &scope) {
            Ok(value) => json!({"value": value.to_json()}),
            Err(error) => json!({"error": error.to_string()}),
        };
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

/// Filters of Ansible and Jinja that are not supported, and why.
const ABSENT: &[(&str, &str)] = &[
    ("expanduser", "the library looks at no home directory; write the path"),
    ("expandvars", "the library looks at no environment; use a variable"),
    ("password_hash", "known, and refused: its salt would be another one at each evaluation"),
    ("realpath", "it depends on the folder of the controller's process"),
    ("unvault", "vault text is decrypted where it is read"),
    ("urlize", "it makes HTML"),
    ("vault", "vault text is made by Ansible's tools"),
];

const DISK: &str = "it looks deeper at the controller's disk than `exists`, `file` and `directory`; `stat` looks at the node's";

/// Tests of Ansible and Jinja that are not supported, and why.
const ABSENT_TESTS: &[(&str, &str)] = &[
    ("callable", "values are never functions"),
    ("is_link", DISK),
    ("is_mount", DISK),
    ("is_same_file", DISK),
    ("link", DISK),
    ("link_exists", DISK),
    ("mount", DISK),
    ("same_file", DISK),
    ("vault_encrypted", "vault text is decrypted where it is read"),
    ("vaulted_file", "vault text is decrypted where it is read"),
];

#[test]
fn every_name_of_ansible_is_known_or_left_out_on_purpose() {
    let file: Json = serde_json::from_str(include_str!("ansible_filters.json")).expect("the file is JSON");
    for (key, test, absent) in [("filters", false, ABSENT), ("tests", true, ABSENT_TESTS)] {
        let known = filters::known(test);
        for name in file[key].as_array().expect("names").iter().filter_map(Json::as_str) {
            let listed = absent.iter().any(|(absent, _)| *absent == name);
            assert!(known.contains(&name) || listed, "{name} of {key} is neither known nor left out");
        }
    }
}

fn reference() -> String {
    let mut out = String::from(
        "<!-- written by `make reference` -->\n# Filters and tests of templates\n\nThose of ansible-core 2.19 and of Jinja, \
         with the same arguments and results; about 850 expressions are\ncompared with ansible-core (`make compat`). \
         `ansible.builtin.` may stand before a name. Of `ansible.utils` there are\n`ipaddr`, `ipv4`, `ipv6` and `ipwrap`.\n",
    );
    for (title, test, absent) in [("Filters", false, ABSENT), ("Tests", true, ABSENT_TESTS)] {
        let mut known = filters::known(test);
        known.sort_unstable();
        known.dedup();
        let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
        out.push_str(&format!("\n## {title}\n\n{}\n\nNot there:\n\n", known.join(", ")));
        for (name, why) in absent {
            out.push_str(&format!("- `{name}`: {why}\n"));
        }
    }
    out.push_str(
        "\n## Where they differ from Ansible\n\n\
         - `union`, `intersect`, `difference` and `symmetric_difference` keep the order of the lists; Ansible's order is that of a \
         Python set.\n\
         - `random` and `shuffle` need a `seed`, and give what Python gives for it: a run that goes on after a crash has to get \
         the same values.\n\
         - `strftime` needs the seconds and `utc=true`, for the same reason.\n\
         - Dates of `to_datetime` live within an expression: a variable keeps the text of a date, which `-` takes for one. A date \
         without a time zone counts as UTC in `timestamp()`.\n\
         - Regular expressions that look around or refer back may take a million steps a match.\n\
         - `%` between a text and values works behind a text that is written out (`'%02d' % n`); behind a variable `format` does it.\n\
         - `exists`, `file`, `directory` and `fileglob` look at the controller's disk once a run; a run that is resumed looks again.\n\
         - Keys of mappings are always text.\n\
         - Files that a template imports or includes see its variables, also where it says `without context`.\n\
         - Macros give text, also where they write nothing but a list. What a macro asks for and its own text sets only further down has to be there before.\n\
         - Whole numbers beyond 64 bits become floating-point numbers.\n\
         - `now()` is refused: a run that goes on after a crash has to write the same files. `ansible_date_time` of the facts is the time at which they were read.\n\
         - Of the variables of template files there are `ansible_managed`, `template_path`, `template_fullpath` and `template_destpath`; `template_host`, `template_uid`, `template_mtime` and `template_run_date` would give another file on each machine and in each run.\n",
    );
    out
}

#[test]
fn the_reference_of_filters_is_up_to_date() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/filters.md");
    let wanted = reference();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).expect("written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == wanted, "docs/reference/filters.md is out of date: run this test with UPDATE=1");
}

#[test]
fn addresses_answer_as_the_documentation_of_ipaddr_says() {
    let cases = [
        ("'192.168.1.5' | ipaddr", json!("192.168.1.5")),
        ("'nonsense' | ipaddr", json!(false)),
        ("'192.168.32.0/24' | ansible.utils.ipaddr", json!("192.168.32.0/24")),
        ("['192.24.2.1', 'host.fqdn', '::1', ''] | ipaddr", json!(["192.24.2.1", "::1"])),
        ("['192.24.2.1', '::1', 'fe80::100/10'] | ipv4", json!(["192.24.2.1"])),
        ("['192.24.2.1', '::1', 'fe80::100/10'] | ipv6", json!(["::1", "fe80::100/10"])),
        ("'192.168.1.5/24' | ipaddr('address')", json!("192.168.1.5")),
        ("'192.168.1.5/24' | ipaddr('network')", json!("192.168.1.0")),
        ("'192.168.1.5/24' | ipaddr('netmask')", json!("255.255.255.0")),
        ("'192.168.1.5/255.255.240.0' | ipaddr('prefix')", json!(20)),
        ("'192.168.1.5/24' | ipaddr('broadcast')", json!("192.168.1.255")),
        ("'192.168.1.5/24' | ipaddr('host')", json!("192.168.1.5/24")),
        ("'192.168.1.5/24' | ipaddr('subnet')", json!("192.168.1.0/24")),
        ("'192.168.1.5/24' | ipaddr('size')", json!(256)),
        ("'192.0.2.0/24' | ipaddr(1)", json!("192.0.2.1/24")),
        ("'192.0.2.0/24' | ipaddr('-1' | int)", json!("192.0.2.255/24")),
        ("'192.168.1.5' | ipaddr('192.168.0.0/16')", json!("192.168.1.5")),
        ("'10.1.1.5' | ipaddr('192.168.0.0/16')", json!(false)),
        ("'10.1.1.5' | ipaddr('private')", json!("10.1.1.5")),
        ("'10.1.1.5' | ipaddr('public')", json!(false)),
        ("'2001:db8::1/64' | ipaddr('network')", json!("2001:db8::")),
        ("'::1' | ipwrap", json!("[::1]")),
        ("'10.0.0.1' | ipwrap", json!("10.0.0.1")),
    ];
    for (source, expected) in cases {
        assert_eq!(super::give(source, json!({})), expected, "{source}");
    }
    insta::assert_snapshot!(
        super::fails("'10.0.0.1' | ipaddr('netmusk')", json!({})),
        @"`ipaddr`: `netmusk` is not a question here; there are address, network, prefix, netmask, hostmask, broadcast, host, subnet, net, size, version, private, public, loopback, a number, or a network"
    );
}

#[test]
fn refusals_name_the_filter_and_what_it_got() {
    let cases = [
        (
            "60 | random",
            "`random`: without a seed it would give something else when a run is resumed; write `seed=inventory_hostname`",
        ),
        (
            "'%Y' | strftime",
            "`strftime`: it would give another time when a run is resumed; give the seconds, as `ansible_date_time.epoch`",
        ),
        ("[1] | dict2items", "`dict2items`: a mapping is needed, this is a list"),
        ("['a', 1] | sort", "`sort`: a whole number and text have no order"),
        ("'a' | regex_replace('(a', '')", "`regex_replace`: it is not a regular expression"),
        (
            "'1.0' is version('1.x', '<')",
            "`version`: the versions cannot be compared: `0` of one meets `x` of the other",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(super::fails(source, json!({})), expected, "{source}");
    }
}

proptest::proptest! {
    #[test]
    fn no_filter_panics_whatever_it_gets(
        name in proptest::sample::select(filters::known(false)),
        test in proptest::sample::select(filters::known(true)),
        picks in proptest::array::uniform3(0_usize..16),
    ) {
        let values = json!([
            null, true, 0, 3, -1, i64::MAX, i64::MIN, 2.5, -1e300, "", "a\u{e4}b c-d", "[(\\", "%s %(a)d %",
            [1, "a", null], {"a": [1, {"b": null}]}, [["a", 1], ["b", 2]],
        ]);
        let scope = scope(json!({"v": values[picks[0]], "a": values[picks[1]], "b": values[picks[2]]}));
        for arguments in ["", "(a)", "(a, b)"] {
            let _ = render(&format!("{{{{ v | {name}{arguments} }}}}"), &scope);
            let _ = render(&format!("{{{{ v is {test}{arguments} }}}}"), &scope);
        }
    }
}
