use proptest::prelude::*;
use serde_json::json;

use super::*;

fn json(text: &str) -> serde_json::Value {
    parse("t", text).unwrap_or_else(|errors| panic!("{errors}")).to_json()
}

fn error(text: &str) -> String {
    match parse("t.yaml", text) {
        Ok(node) => panic!("no error, but {node:?}"),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn scalars_are_typed_as_ansible_types_them() {
    let text = "[yes, No, on, OFF, True, y, ~, null, '', 0644, 08, 1_000, 0x1F, 0b101, -12, +3, 1:30, 0:30, 1.5, 1., \
                .5, 1e3, 1.0e+3, -.inf, 0o14, 'yes', \"5\", 12e, 1.2.3, 685_230.15, +, 0, -0, 00, 190:20:30.15, 2026-01-02]";
    assert_eq!(
        json(text),
        json!([
            true,
            false,
            true,
            false,
            true,
            "y",
            null,
            null,
            "",
            420,
            "08",
            1000,
            31,
            5,
            -12,
            3,
            90,
            "0:30",
            1.5,
            1.0,
            0.5,
            "1e3",
            1000.0,
            "-inf",
            "0o14",
            "yes",
            "5",
            "12e",
            "1.2.3",
            685_230.15,
            "+",
            0,
            0,
            0,
            685_230.15,
            "2026-01-02"
        ])
    );
}

#[test]
fn tags_of_yaml_itself_set_the_type() {
    assert_eq!(json("[!!str 5, !!int '7', !!float 3, !!bool 'yes', ! 12]"), json!(["5", 7, 3.0, true, 12]));
    insta::assert_snapshot!(error("a: !!int nope"), @r"
    error: this is no YAML `!!int`
      --> t.yaml:1:10
       |
     1 | a: !!int nope
       |          ^^^^
    help: quote strings, and leave the tag out: types are found by themselves
    ");
}

#[test]
fn keys_and_values_know_their_places() {
    let root = parse("t", "# c\nall:\n  hosts:\n    gpu1: {port: 22}\n    gpu2:\n").unwrap();
    let (all, groups) = root.entry("all").unwrap();
    assert_eq!((all.span.line, all.span.column, all.span.length), (2, 1, 3));
    let (key, hosts) = groups.entry("hosts").unwrap();
    assert_eq!((key.span.line, key.span.column), (3, 3));
    assert_eq!((hosts.span.line, hosts.span.column, hosts.span.length), (4, 5, 4));
    let port = hosts.get("gpu1").unwrap().get("port").unwrap();
    assert_eq!((port.span.line, port.span.column, port.span.length), (4, 18, 2));
    let nothing = hosts.get("gpu2").unwrap();
    assert_eq!(
        (nothing.is_null(), nothing.span.line, nothing.span.column, nothing.span.length),
        (true, 5, 5, 4)
    );
    let list = parse("t", "- a\n- b: 1\n").unwrap();
    assert_eq!(list.as_seq().unwrap()[1].span.to_string(), "t:2:3");
}

#[test]
fn key_order_is_kept_and_keys_become_text() {
    let root = parse("t", "z: 1\na: 2\n5: x\non: y\n~: n\n1.5: f\n").unwrap();
    let keys: Vec<String> = root.as_map().unwrap().iter().map(|(key, _)| key.key_text()).collect();
    assert_eq!(keys, ["z", "a", "5", "true", "null", "1.5"]);
}

#[test]
fn merge_keys_give_way_to_own_keys() {
    let text =
        "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\nd: {x: 4, <<: *a}\ne: {'<<': 1}\n";
    assert_eq!(
        json(text),
        json!({"a": {"x": 1, "y": 1}, "b": {"y": 2, "z": 2}, "c": {"x": 3, "y": 1, "z": 2}, "d": {"x": 4, "y": 1}, "e": {"<<": 1}})
    );
    insta::assert_snapshot!(error("a: {<<: 5}"), @r"
    error: `<<` wants a mapping or a list of mappings, got a whole number
      --> t.yaml:1:9
       |
     1 | a: {<<: 5}
       |         ^
    ");
}

#[test]
fn the_tags_for_nothing_and_unsafe_leave_types_to_be_found() {
    assert_eq!(
        json("[! 5, ! yes, ! '5', ! '~', ! [a], !unsafe 5, !unsafe '5', !unsafe ~, !unsafe , !unsafe yes]"),
        json!([5, true, 5, null, ["a"], 5, 5, null, null, true])
    );
    assert_eq!(
        json("a: !unsafe {k: x, l: [y, 1, ~], !unsafe m: {n: !vault z}}"),
        json!({"a": {
            "k": {"__ansible_unsafe": "x"},
            "l": [{"__ansible_unsafe": "y"}, 1, null],
            "m": {"n": {"__ansible_vault": "z"}},
        }})
    );
}

#[test]
fn sets_pairs_and_dates_with_a_tag_are_lists_and_texts() {
    assert_eq!(
        json("[!!set {a, b}, !!omap [a: 1, b: 2], !!pairs [a: 1, a: 2], !!timestamp 2024-01-01]"),
        json!([["a", "b"], [["a", 1], ["b", 2]], [["a", 1], ["a", 2]], "2024-01-01"])
    );
    assert_eq!(json("!!timestamp '2024-01-01 10:00:00'"), json!("2024-01-01T10:00:00"));
    for text in
        ["!!set [a]", "!!omap {a: 1}", "!!omap [1]", "!!pairs [{a: 1, b: 2}]", "!!timestamp x", "!!set x"]
    {
        let core = text.trim_start_matches('!').split(' ').next().unwrap();
        assert!(
            error(&format!("a: {text}")).starts_with(&format!("error: this is no YAML `!!{core}`")),
            "{text}"
        );
    }
}

#[test]
fn times_are_written_as_python_writes_them() {
    assert_eq!(
        json(
            "[2024-1-1 1:02:03, 2024-01-01 1:2:3, 2024-01-01 01:02:3, 2024-01-01T10:00:00Z, 2024-01-01\t10:00:00.5 +5:30, \
             2024-1-1, 2024-01-01 10:00:00+05:3]"
        ),
        json!([
            "2024-01-01T01:02:03",
            "2024-01-01 1:2:3",
            "2024-01-01 01:02:3",
            "2024-01-01T10:00:00+00:00",
            "2024-01-01T10:00:00.500000+05:30",
            "2024-1-1",
            "2024-01-01 10:00:00+05:3"
        ])
    );
}

#[test]
fn json_has_the_numbers_of_python() {
    assert_eq!(
        json(r#"{"a": [NaN, -Infinity, 1e3], "b\"NaN": "Infinity", "N": "I"}"#),
        json!({"a": ["nan", "-inf", 1000.0], "b\"NaN": "Infinity", "N": "I"})
    );
    assert!(check_json(r#"{"a": NaN"#).is_err());
    assert!(check_json(r#"{"a": "NaN}"#).is_err());
}

#[test]
fn vault_and_unsafe_are_kept_apart() {
    let text = "a: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  3132\nb: !unsafe '{{ x }}'\n";
    assert_eq!(
        json(text),
        json!({"a": {"__ansible_vault": "$ANSIBLE_VAULT;1.1;AES256\n3132\n"}, "b": {"__ansible_unsafe": "{{ x }}"}})
    );
    insta::assert_snapshot!(error("a: !valt x"), @r"
    error: unknown tag `!valt`
      --> t.yaml:1:4
       |
     1 | a: !valt x
       |    ^^^^^
    note: known tags: !vault, !vault-encrypted, !unsafe
    help: did you mean `!vault`?
    ");
}

#[test]
fn empty_texts_are_null() {
    for text in ["", "\n\n", "# only a comment\n", "---\n", "--- ~\n...\n"] {
        assert!(parse("t", text).unwrap().is_null(), "{text:?}");
    }
    assert_eq!(parse_bytes("t", b"\xef\xbb\xbfa: 1").unwrap().to_json(), json!({"a": 1}));
}

#[test]
fn duplicate_keys_are_all_told() {
    insta::assert_snapshot!(error("a: 1\nb:\n  c: 1\n  c: 2\n\"a\": 3\n"), @r#"
    error: the key `c` is written twice
      --> t.yaml:4:3
       |
     4 |   c: 2
       |   ^ first on line 3
    help: remove one of the two: only one of them could count
    error: the key `a` is written twice
      --> t.yaml:5:1
       |
     5 | "a": 3
       | ^^^ first on line 1
    help: remove one of the two: only one of them could count
    "#);
    let many: String = (0..100).map(|i| format!("k{i}: 1\n")).collect();
    assert!(error(&format!("{many}k3: 1\n")).contains("first on line 4"));
}

#[test]
fn tabs_are_told_at_their_place() {
    for text in ["a:\n\tb: 1\n", "a:\n  b: 1\n\tc: 2\n", "a:\n  - b\n\t- c\n", "\ta: 1\n", "a:\n \t b: 1\n"] {
        assert!(error(text).starts_with("error: a tab cannot indent YAML"), "{text:?}: {}", error(text));
    }
    insta::assert_snapshot!(error("a:\n\tb: 1\n"), @r"
    error: a tab cannot indent YAML
      --> t.yaml:2:1
       |
     2 |     b: 1
       | ^^^^ tab
    help: indent with spaces
    ");
}

#[test]
fn common_mistakes_have_a_next_step() {
    insta::assert_snapshot!(error("name: {{ user }}\n"), @r#"
    error: a value that begins with `{{` must stand in quotes
      --> t.yaml:1:7
       |
     1 | name: {{ user }}
       |       ^^^^^^^^^^ YAML reads a brace as the start of a mapping
    help: write "{{ … }}"
    "#);
    insta::assert_snapshot!(error("msg: a: b\n"), @r"
    error: a `:` is not allowed here
      --> t.yaml:1:7
       |
     1 | msg: a: b
       |       ^ this value already belongs to a key on this line
    help: put a value that holds `: ` in quotes
    ");
    insta::assert_snapshot!(error("a: 1\n   b: 2\n"), @r"
    error: a key is not allowed here
      --> t.yaml:2:5
       |
     2 |    b: 2
       |     ^ the line above already has a value, and this one is indented below it
    help: align it with the keys it belongs to, or add the `:` that the line above lacks
    ");
    insta::assert_snapshot!(error("a:\n    b: 1\n  c: 2\n"), @r"
    error: the indentation of this line fits nothing above it
      --> t.yaml:3:3
       |
     3 |   c: 2
       |   ^ a key of the mapping above was expected
    help: align it with the line it belongs to
    ");
    insta::assert_snapshot!(error("a: \"x\" y\n"), @r#"
    error: text follows the closing quote
      --> t.yaml:1:8
       |
     1 | a: "x" y
       |        ^
    help: put the whole value in quotes, or use the other kind of quotes around it
    "#);
    insta::assert_snapshot!(error("a: @x\n"), @r"
    error: a value cannot begin with `@`
      --> t.yaml:1:4
       |
     1 | a: @x
       |    ^
    help: put the value in quotes
    ");
    insta::assert_snapshot!(error("a: [1, 2\nb: 3\n"), @r"
    error: a `:` is not allowed here
      --> t.yaml:2:2
       |
     2 | b: 3
       |  ^
    help: is a `[` or `{` above never closed?
    ");
    insta::assert_snapshot!(error("a: 'x\nb: 3\n"), @r"
    error: a quoted text goes on here without being indented
      --> t.yaml:2:1
       |
     2 | b: 3
       | ^
    help: is a quote above never closed?
    ");
    insta::assert_snapshot!(error("a: *x\n"), @r"
    error: an alias names no value above it
      --> t.yaml:1:4
       |
     1 | a: *x
       |    ^ nothing is marked with this name
    help: quote the text if it is meant to begin with `*`
    ");
    insta::assert_snapshot!(error("a: 1\n---\nb: 2\n"), @r"
    error: a second YAML document begins here
      --> t.yaml:2:1
       |
     2 | ---
       | ^^^ one file holds one document
    help: remove this `---` or put the document into a file of its own
    ");
    insta::assert_snapshot!(error("a: 1\njust words\nb: 2\n"), @r"
    error: a `key: value` line was expected
      --> t.yaml:2:1
       |
     2 | just words
       | ^
    help: is a `:` missing, or a space behind it?
    ");
    insta::assert_snapshot!(error("a: x\u{1}y\n"), @r"
    error: a control character is not allowed in YAML
      --> t.yaml:1:5
       |
     1 | a: x\u0001y
       |     ^^^^^^ character 0x01
    help: remove it, or write it as an escape in double quotes
    ");
    insta::assert_snapshot!(error("? [a, b]\n: 1\n"), @r"
    error: a list cannot be the key of a mapping
      --> t.yaml:1:3
       |
     1 | ? [a, b]
       |   ^
    ");
}

#[test]
fn bytes_that_are_not_utf8_are_told_at_their_place() {
    insta::assert_snapshot!(parse_bytes("t.yaml", b"a: 1\nb: x\xffy\n").unwrap_err().to_string(), @r"
    error: the file is not UTF-8 text
      --> t.yaml:2:5
       |
     2 | b: x�y
       |     ^ byte 0xff is not valid here
    help: save the file as UTF-8
    ");
}

#[test]
fn bombs_are_refused() {
    let mut text = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (previous, next) in ('a'..='h').zip('b'..='i') {
        text.push_str(&format!("{next}: &{next} [{}]\n", vec![format!("*{previous}"); 9].join(", ")));
    }
    assert!(error(&text).starts_with("error: aliases expand to more than 500000 values"), "{}", error(&text));
    assert!(error(&"[".repeat(20_000)).contains("nested deeper than 100 levels"));
    assert!(error(&"{a: ".repeat(20_000)).contains("nested deeper than 100 levels"));
    let deep: String = (0..20_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).take(300).collect();
    assert!(error(&deep).contains("nested deeper than 100 levels"));
    let mut chain = format!("a0: &a0 {}1{}\n", "[".repeat(60), "]".repeat(60));
    for next in 1..50 {
        chain.push_str(&format!("a{next}: &a{next} {}*a{}{}\n", "[".repeat(60), next - 1, "]".repeat(60)));
    }
    assert!(error(&chain).contains("nested deeper than 100 levels"));
    assert!(error("a: &a [*a]\n").contains("inside the very value"));
}

#[test]
fn typed_access_says_what_was_expected() {
    let root = parse("t.yaml", "a: 5\nb: [1]\nwhne: x\n").unwrap();
    let errors = root.get("a").unwrap().expect_str("`a`").unwrap_err();
    insta::assert_snapshot!(errors.to_string(), @r"
    error: `a` wants a string, got a whole number
      --> t.yaml:1:4
       |
     1 | a: 5
       |    ^
    help: put it in quotes to make it a string
    ");
    insta::assert_snapshot!(root.get("b").unwrap().expect_map("`b`").unwrap_err().to_string(), @r"
    error: `b` wants a mapping, got a list
      --> t.yaml:2:4
       |
     2 | b: [1]
       |    ^
    ");
    insta::assert_snapshot!(root.refuse_unknown_keys("a task", &["a", "b", "when"]).to_string(), @r"
    error: unknown key `whne`
      --> t.yaml:3:1
       |
     3 | whne: x
       | ^^^^ not a key of a task
    help: did you mean `when`?
    ");
    assert_eq!(root.get("a").unwrap().expect_i64("`a`"), Ok(5));
    assert_eq!(root.get("b").unwrap().expect_seq("`b`").unwrap().len(), 1);
}

#[test]
fn scalar_text_is_what_python_prints() {
    for (text, printed) in [
        ("yes", "True"),
        ("~", "None"),
        ("1.0", "1.0"),
        ("1.0e+20", "1e+20"),
        ("0.00001", "1e-05"),
        ("0x10", "16"),
    ] {
        assert_eq!(parse("t", text).unwrap().scalar_text().as_deref(), Some(printed), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Err(errors) = parse_bytes("t", &bytes) {
            prop_assert!(!errors.to_string().is_empty());
        }
    }

    #[test]
    fn yaml_like_text_never_panics(text in "([a-z]{1,3}|: |- |\n|  |\\{|\\}|\\[|\\]|,|&a |\\*a|<<|\"|'|!vault |\\||>|#|\t|---|%|0x|[0-9]){0,60}") {
        match parse("t", &text) {
            Ok(node) => { node.to_json(); }
            Err(errors) => prop_assert!(errors.iter().all(|error| error.span.is_some())),
        }
    }

    #[test]
    fn json_is_read_back(value in json_values()) {
        prop_assert_eq!(json(&serde_json::to_string(&value).unwrap()), value.clone());
        prop_assert_eq!(json(&serde_json::to_string_pretty(&value).unwrap()), value);
    }
}

fn json_values() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|value| json!(value)),
        any::<i64>().prop_map(|value| json!(value)),
        "[ -~äß]{0,12}".prop_map(|value| json!(value)),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(|items| json!(items)),
            proptest::collection::btree_map("[a-z <~:]{1,8}", inner, 0..6).prop_map(|map| json!(map)),
        ]
    })
}

#[test]
fn quoted_text_may_go_on_at_any_column() {
    let text = "a:\n  b: \"one\ntwo\n   three\"\n  c: 'x\n\ny'\n  d: [1]\n";
    let node = super::parse("t.yaml", text).unwrap();
    assert_eq!(node.to_json(), serde_json::json!({"a": {"b": "one two three", "c": "x\ny", "d": [1]}}));
    let d = node.get("a").and_then(|a| a.get("d")).unwrap();
    assert_eq!((d.span.line, d.span.column), (8, 6));
}
