use std::collections::{BTreeMap, BTreeSet};

use gpufleet_protocol::signal::{KernelRecord, RecordSort, Signal, Signals, SubjectReadings};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::verdict::{Scope, Verdict};

struct Others1(Verdict);

impl Others for Others1 {
    fn verdict_of(&self, check: &str) -> Option<Verdict> {
        (check == "mem.ecc_mode").then_some(self.0)
    }
}

fn params() -> BTreeMap<String, Value> {
    [("limit".to_owned(), json!(5)), ("word".to_owned(), json!("x"))].into()
}

fn checks() -> BTreeSet<String> {
    ["mem.ecc_mode", "mem.class", "err.sxid"].map(str::to_owned).into()
}

fn compiled(text: &str) -> Result<Code, RuleError> {
    compile(&parse(text)?, Context { scope: None, params: &params(), checks: &checks(), own: None })
}

/// Readings: `nvml_count` 4, `pci_count` absent, `taint` unknown, `driver_version`, and GPU readings.
fn signals() -> Signals {
    let record = |code, pci: &str, settled| KernelRecord {
        at_us: Some(1),
        sort: RecordSort::Xid,
        code: Some(code),
        pci: Some(pci.to_owned()),
        settled,
        text: format!("NVRM: Xid (PCI:{pci}): {code}"),
    };
    let gpu = |pci: &str, name: &str| SubjectReadings {
        id: format!("GPU-{pci}"),
        label: pci.to_owned(),
        readings: [
            ("pci".to_owned(), Signal::from(pci)),
            ("name".to_owned(), Signal::from(name)),
            ("temp_c".to_owned(), Signal::from(40)),
            ("margin_c".to_owned(), Signal::Absent),
            ("reasons".to_owned(), Signal::from(0x40)),
            ("remap_pending".to_owned(), Signal::from(true)),
        ]
        .into(),
    };
    Signals {
        uptime_s: 1_000,
        node: [
            ("nvml_count".to_owned(), Signal::from(4)),
            ("pci_count".to_owned(), Signal::Absent),
            ("taint".to_owned(), Signal::Unknown("no permission".to_owned())),
            ("driver_version".to_owned(), Signal::from("580.159.04")),
            ("system_state".to_owned(), Signal::from("running")),
            ("nouveau_loaded".to_owned(), Signal::from(false)),
            ("log_from".to_owned(), Signal::from("complete")),
        ]
        .into(),
        gpus: vec![gpu("00000000:5D:00.0", "NVIDIA H200"), gpu("00000000:5E:00.0", "NVIDIA H100")],
        records: vec![record(79, "0000:5d:00.0", false), record(119, "0000:5e:00.0", true)],
        ..Signals::default()
    }
}

fn truth_in(text: &str, signals: &Signals, gpu: Option<usize>) -> Truth {
    let code = compiled(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let declared = [("power_w".to_owned(), json!(600)), ("thp".to_owned(), json!(["always"]))].into();
    let scene = Scene {
        signals,
        subject: gpu.and_then(|at| signals.gpus.get(at)),
        declared: &declared,
        params: &params(),
        others: &Others1(Verdict::Warn),
        past: None,
        watch: None,
    };
    code.holds(&scene)
}

fn truth(text: &str) -> Truth {
    truth_in(text, &signals(), Some(0))
}

#[test]
fn what_is_known_is_compared() {
    for text in [
        "nvml_count == 4",
        "nvml_count != 5 and not (nvml_count > 4)",
        "nvml_count * 2 - 1 >= 7 and nvml_count / 8 == 0.5",
        "nvml_count + 1 <= p.limit",
        "-nvml_count == -4",
        "abs(nvml_count - 10) == 6",
        "declared.power_w == 600 and declared.ecc == null",
        "system_state in [\"running\", \"degraded\"]",
        "\"always\" in declared.thp and \"never\" not in declared.thp",
        "bit(reasons, 0x48) and not bit(reasons, 0x80)",
        "mask(reasons, 4, 0x7) == 4",
        "first(declared.cpus, declared.power_w, 3) == 600",
        "version_matches(driver_version, \">=580\")",
        "remap_pending == 1 and remap_pending",
        "distinct(name) == 2",
        "verdict_of(\"mem.ecc_mode\") == \"warn\" and any_not_ok(\"mem.*\")",
        "not any_not_ok(\"err.sxid\")",
        "uptime_s > 900",
        "not nouveau_loaded",
    ] {
        assert_eq!(truth(text), Truth::TRUE, "{text}");
    }
}

#[test]
fn null_makes_a_comparison_neither_hold_nor_not() {
    for text in [
        "pci_count > 3",
        "not (pci_count > 3)",
        "pci_count == nvml_count",
        "pci_count in [1]",
        "pci_count not in [1]",
        "bit(pci_count, 1)",
        "pci_count + 1 > 0",
        "version_matches(driver_version, declared.kernel)",
        "margin_c <= 5 and temp_c > 3",
    ] {
        assert_eq!(truth(text), Truth::NEITHER, "{text}");
    }
    assert_eq!(truth("pci_count == null"), Truth::TRUE);
    assert_eq!(truth("pci_count != null"), Truth::FALSE);
    assert_eq!(truth("pci_count > 3 or nvml_count == 4"), Truth::TRUE);
}

#[test]
fn what_is_unknown_is_open() {
    for text in [
        "taint > 3",
        "not (taint > 3)",
        "taint == null",
        "taint != null",
        "bit(taint, 16)",
        "cpus_online == 1",
    ] {
        assert!(truth(text).may_hold(), "{text}");
    }
    assert_eq!(truth("taint > 3 or nvml_count == 4"), Truth::TRUE);
    assert_eq!(truth("taint > 3 and nvml_count == 5"), Truth::FALSE);
    // Whatever the taint is: a null operand keeps the whole from holding.
    assert!(!truth("taint > 3 and pci_count > 1").may_hold());
}

#[test]
fn values_of_another_type_than_they_should_have_are_unknown() {
    let mut odd = signals();
    odd.node.insert("nvml_count".to_owned(), Signal::from("many"));
    odd.node.insert("nouveau_loaded".to_owned(), Signal::from(7));
    odd.node.insert("system_state".to_owned(), Signal::Known(json!({"a": 1})));
    for text in [
        "nvml_count < 3",
        "nvml_count == 3",
        "nouveau_loaded",
        "system_state == \"running\"",
        "nvml_count / 0 > 1",
    ] {
        assert!(truth_in(text, &odd, None).may_hold(), "{text}");
    }
    assert!(truth("nvml_count / 0 > 1").may_hold());
}

#[test]
fn lines_of_the_log_count_for_their_gpu() {
    let first = |text| truth_in(text, &signals(), Some(0));
    let second = |text| truth_in(text, &signals(), Some(1));
    assert!(first("count_xid([79], settled=false) == 1").holds());
    assert!(second("count_xid([79]) == 0").holds());
    assert!(first("count_xid(kind=\"reboot\", settled=false) > 0").holds());
    assert!(
        second("count_xid(kind=\"reset\") == 1 and count_xid(kind=\"reset\", settled=false) == 0").holds()
    );
    assert!(truth_in("log_match(\"Xid\", sort=\"xid\") == 2", &signals(), None).holds());
    assert!(truth_in("log_match(\"Xid\", sort=\"nvrm\") == 0", &signals(), None).holds());
}

#[test]
fn a_log_that_is_not_whole_holds_at_least_what_is_in_it() {
    let mut partial = signals();
    partial.node.insert("log_from".to_owned(), Signal::from("partial"));
    let holds = |text| truth_in(text, &partial, Some(0));
    assert!(holds("count_xid([79]) > 0").holds());
    assert!(holds("count_xid([79]) >= 1 and 0 < count_xid([79])").holds());
    assert_eq!(holds("count_xid([79]) == 0"), Truth::FALSE);
    for text in
        ["count_xid([46]) > 0", "count_xid([46]) == 0", "not (count_xid([46]) > 0)", "count_xid([79]) <= 1"]
    {
        assert!(holds(text).may_hold(), "{text}");
    }
    let mut full = signals();
    let record = full.records[0].clone();
    full.records.resize(Signals::MOST_RECORDS, record);
    assert!(truth_in("count_xid([46]) > 0", &full, Some(0)).may_hold());
}

#[test]
fn records_of_a_gpu_without_an_address_are_not_given_to_anybody() {
    let mut odd = signals();
    odd.gpus[0].readings.insert("pci".to_owned(), Signal::Unknown("GPU is lost".to_owned()));
    assert!(truth_in("count_xid([79]) > 0", &odd, Some(0)).may_hold());
    assert!(truth_in("count_xid([46]) == 0", &odd, Some(0)).holds());
}

#[test]
fn a_gpu_that_does_not_answer_leaves_the_number_of_products_open() {
    let mut odd = signals();
    odd.gpus[1].readings.remove("name");
    assert!(truth_in("distinct(name) > 1", &odd, None).may_hold());
    odd.gpus[1].readings.insert("name".to_owned(), Signal::Absent);
    assert!(truth_in("distinct(name) == 1", &odd, None).holds());
}

#[test]
fn ports_are_counted_by_a_condition() {
    let mut signals = signals();
    let port = |state: Signal| SubjectReadings {
        readings: [("ib_state".to_owned(), state)].into(),
        ..SubjectReadings::default()
    };
    signals.ports = vec![port("ACTIVE".into()), port("DOWN".into()), port("ACTIVE".into())];
    let up = "count_ports(ib_state == \"ACTIVE\")";
    // Without the number of devices there may be more ports than are listed.
    assert!(truth_in(&format!("{up} > 2"), &signals, None).may_hold());
    signals.node.insert("rdma_devices".to_owned(), 3.into());
    assert!(truth_in(&format!("{up} == 2"), &signals, None).holds());
    assert!(truth_in("count_ports(ib_state == \"ACTIVE\" and nvml_count == 4) == 2", &signals, None).holds());
    signals.ports.push(port(Signal::Unknown("x".to_owned())));
    assert!(truth_in(&format!("{up} >= 2"), &signals, None).holds());
    assert!(truth_in(&format!("{up} < 3"), &signals, None).may_hold());
    for text in [
        "count_ports(temp_c > 3) > 1",
        "count_ports(verdict_of(\"mem.class\") == \"ok\") > 1",
        "count_ports(delta(link_downed) > 0) > 1",
        "count_ports(link_downed) > 1",
    ] {
        assert!(compiled(text).is_err(), "{text}");
    }
    let params = BTreeMap::new();
    let context = Context { scope: Some(Scope::Gpu), params: &params, checks: &checks(), own: None };
    assert!(compile(&parse("count_ports(link_downed > 0) > 1").unwrap(), context).is_err());
}

#[test]
fn what_a_list_or_a_text_lacks_is_counted() {
    let mut signals = signals();
    let words = "a=1 b=\"x y\"  c";
    signals.node.insert("cmdline".to_owned(), words.into());
    signals.node.insert("failed_units".to_owned(), json!(["a", 1]).into());
    for text in [
        "missing([\"a=1\", \"c\"], cmdline) == 0",
        "missing([\"b=x y\"], cmdline) == 0",
        "missing([\"a\", \"y\", \"c\"], cmdline) == 2",
        "missing(declared.thp, [\"always\"]) == 0",
        "missing([\"a\", 1.0, 2], failed_units) == 1",
    ] {
        assert_eq!(truth_in(text, &signals, None), Truth::TRUE, "{text}");
    }
    assert_eq!(truth_in("missing(declared.vbios, cmdline) > 0", &signals, None), Truth::NEITHER);
    assert!(compiled("missing(\"a\", cmdline) > 0").is_err() && compiled("missing([1], 2) > 0").is_err());
}

#[test]
fn the_narrowest_scope_of_the_signals_is_that_of_the_rule() {
    assert_eq!(compiled("nvml_count > 1").unwrap().scope(), Scope::Node);
    assert_eq!(compiled("nvml_count > 1 and temp_c > 80").unwrap().scope(), Scope::Gpu);
    assert_eq!(compiled("disk_used_ratio > 0.5").unwrap().scope(), Scope::Disk);
    assert_eq!(compiled("link_downed > 0").unwrap().scope(), Scope::Port);
    assert_eq!(compiled("count_ports(link_downed > 0) > 0").unwrap().scope(), Scope::Node);
}

#[test]
fn mistakes_are_told_with_their_columns() {
    let texts = [
        "or",
        "temp_c >",
        "temp_c > 80 80",
        "1 < temp_c < 3",
        "temp_c > 80 && true",
        "not",
        "(temp_c > 80",
        "temp_c in [1, temp_c]",
        "temp_c == 'hot'",
        "system_state == \"run",
        "tmp_c > 80",
        "declared.powr_w > 3",
        "declared.a.b > 3",
        "p.limt > 3",
        "count_xd([79]) > 0",
        "count_xid(79) > 0",
        "count_xid(kind=\"rest\") > 0",
        "count_xid() > 0",
        "count_sxid(fatl=true) > 0",
        "log_match(\"(\") > 0",
        "log_match(\"x\", sort=\"nvidia\") > 0",
        "verdict_of(\"mem.clas\") == \"fail\"",
        "any_not_ok(\"men.*\")",
        "temp_c",
        "temp_c and nouveau_loaded",
        "temp_c == \"hot\"",
        "driver_version > 580",
        "driver_version in \"580\"",
        "null > 3",
        "first()",
        "first(temp_c, \"x\") == 3",
        "temp_c > 3 and disk_used_ratio > 1",
        "distinct(nvml_count) > 1",
        "0xfffffffff > temp_c",
        "1e999 > temp_c",
        "abs(temp_c, settled=false) > 1",
    ];
    let told: Vec<String> = texts
        .iter()
        .map(|text| match compiled(text) {
            Ok(_) => panic!("{text} is read"),
            Err(error) => format!("{text}\n  {error}"),
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"), @r#"
    or
      column 1: `or` stands where a value is expected
    temp_c >
      column 9: the rule ends where a value is expected
    temp_c > 80 80
      column 13: the number 80 is not expected here (operators are `and`, `or`, `not`, `in`, ==, !=, <, <=, >, >=, +, -, *, /)
    1 < temp_c < 3
      column 12: a comparison has two sides (join two comparisons with `and`)
    temp_c > 80 && true
      column 13: `&` has no meaning here (write `and`)
    not
      column 4: the rule ends where a value is expected
    (temp_c > 80
      column 13: `)` is missing (what it closes begins in column 1)
    temp_c in [1, temp_c]
      column 15: a list holds numbers, texts and booleans only
    temp_c == 'hot'
      column 11: `'` has no meaning here (texts stand in double quotes)
    system_state == "run
      column 17: this text does not end (close it with `"`)
    tmp_c > 80
      column 1: there is no signal `tmp_c` (did you mean `temp_c`?)
    declared.powr_w > 3
      column 1: there is no declared value `powr_w` (did you mean `power_w`?)
    declared.a.b > 3
      column 1: `declared.a.b` is not a name (a name is that of a signal, `declared.NAME`, or `p.PARAMETER`)
    p.limt > 3
      column 1: this check has no parameter `limt` (did you mean `limit`?)
    count_xd([79]) > 0
      column 1: there is no function `count_xd` (did you mean `count_xid`?)
    count_xid(79) > 0
      column 1: `count_xid` has other arguments (write count_xid([CODE, …]) or count_xid(kind="reset"), with settled=false)
    count_xid(kind="rest") > 0
      column 16: there is no kind of Xid `rest` (did you mean `reset`?)
    count_xid() > 0
      column 1: `count_xid` has other arguments (write count_xid([CODE, …]) or count_xid(kind="reset"), with settled=false)
    count_sxid(fatl=true) > 0
      column 17: `count_sxid` has no argument `fatl` of this type (write count_sxid(fatal=true, settled=false))
    log_match("(") > 0
      column 11: this is not a regular expression: unclosed group
    log_match("x", sort="nvidia") > 0
      column 21: there is no sort of record `nvidia` (sorts are xid, sxid, nvrm, oom, hardware, kernel, disk)
    verdict_of("mem.clas") == "fail"
      column 12: there is no check `mem.clas` (did you mean `mem.class`?)
    any_not_ok("men.*")
      column 12: no check matches `men.*`
    temp_c
      column 1: a condition is expected here, and this is a number
    temp_c and nouveau_loaded
      column 1: a condition is expected here, and this is a number
    temp_c == "hot"
      column 11: a number is never equal to a text
    driver_version > 580
      column 1: a number is expected here, and this is a text
    driver_version in "580"
      column 19: a list is expected here, and this is a text
    null > 3
      column 1: `null` stands only beside `==` and `!=`
    first()
      column 1: `first` has other arguments (write first(VALUE, …))
    first(temp_c, "x") == 3
      column 15: a text stands beside a number
    temp_c > 3 and disk_used_ratio > 1
      column 16: this is a signal of each disk, and the rule is about each gpu (only signals of the node stand in every check; `distinct(SIGNAL)` counts the values of all GPUs)
    distinct(nvml_count) > 1
      column 10: `distinct` wants the name of a signal of GPUs
    0xfffffffff > temp_c
      column 1: `0xfffffffff` is not a number
    1e999 > temp_c
      column 1: `1e999` is not a number
    abs(temp_c, settled=false) > 1
      column 1: `abs` has other arguments (write abs(VALUE))
    "#);
}

#[test]
fn length_and_depth_are_bounded() {
    let long = format!("temp_c > 1{}", " ".repeat(MAX_LENGTH));
    assert!(parse(&long).is_err());
    for deep in [
        format!("{}temp_c > 1{}", "(".repeat(100), ")".repeat(100)),
        format!("{}true", "not ".repeat(100)),
        format!("{}1 > 1", "- -".repeat(100)),
        vec!["true"; 100].join(" and "),
        format!("{}1{}", "abs(".repeat(100), ")".repeat(100)),
    ] {
        let error = parse(&deep).unwrap_err();
        assert!(error.message.contains("deep"), "{error}");
    }
    assert!(parse(&vec!["true"; MAX_DEPTH].join(" and ")).is_ok());
}

fn names() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "nvml_count",
        "pci_count",
        "taint",
        "temp_c",
        "margin_c",
        "driver_version",
        "nouveau_loaded",
        "declared.power_w",
        "declared.thp",
        "p.limit",
        "disk_used_ratio",
        "nothing_of_this_name",
    ])
    .prop_map(str::to_owned)
}

fn literal() -> impl Strategy<Value = ExprKind> {
    prop_oneof![
        any::<bool>().prop_map(ExprKind::Bool),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(ExprKind::Number),
        (-100_i32..100).prop_map(|number| ExprKind::Number(number.into())),
        "[a-z\"\\\\ ]{0,6}".prop_map(ExprKind::Text),
        Just(ExprKind::Null),
        prop::collection::vec(
            prop_oneof![
                any::<bool>().prop_map(Value::from),
                (-9..9).prop_map(|n| json!(f64::from(n))),
                "[a-z\"]{0,3}".prop_map(Value::from)
            ],
            0..4
        )
        .prop_map(ExprKind::List),
    ]
}

fn name_of(text: &str) -> Name {
    match text.split_once('.') {
        Some(("declared", name)) => Name::Declared(name.to_owned()),
        Some((_, name)) => Name::Param(name.to_owned()),
        None => Name::Signal(text.to_owned()),
    }
}

fn expr() -> impl Strategy<Value = Expr> {
    let made = |kind| Expr { kind, at: 0, length: 1 };
    let leaf = prop_oneof![literal(), names().prop_map(|name| ExprKind::Name(name_of(&name)))].prop_map(made);
    leaf.prop_recursive(4, 24, 3, move |inner| {
        let operator = prop::sample::select(vec![
            Operator::Or,
            Operator::And,
            Operator::Equal,
            Operator::Differ,
            Operator::Less,
            Operator::AtMost,
            Operator::More,
            Operator::AtLeast,
            Operator::In,
            Operator::NotIn,
            Operator::Add,
            Operator::Subtract,
            Operator::Multiply,
            Operator::Divide,
        ]);
        let function = prop::sample::select(vec![
            "bit",
            "mask",
            "first",
            "abs",
            "count_xid",
            "log_match",
            "distinct",
            "version_matches",
            "verdict_of",
            "any_not_ok",
            "nothing",
        ]);
        prop_oneof![
            inner.clone().prop_map(move |a| made(ExprKind::Not(Box::new(a)))),
            inner.clone().prop_map(move |a| made(ExprKind::Negative(Box::new(a)))),
            (operator, inner.clone(), inner.clone())
                .prop_map(move |(operator, a, b)| made(ExprKind::Binary(operator, Box::new(a), Box::new(b)))),
            (function, prop::collection::vec(inner.clone(), 0..4), prop::option::of(inner)).prop_map(
                move |(function, args, named)| {
                    let named = named.into_iter().map(|value| ("settled".to_owned(), value)).collect();
                    made(ExprKind::Call { function: function.to_owned(), args, named })
                }
            ),
        ]
    })
}

fn any_signal() -> impl Strategy<Value = Signal> {
    prop_oneof![
        Just(Signal::Absent),
        Just(Signal::Unknown("x".to_owned())),
        any::<i64>().prop_map(Signal::from),
        any::<bool>().prop_map(Signal::from),
        any::<f64>().prop_map(Signal::from),
        "\\PC{0,6}".prop_map(Signal::from),
        Just(Signal::Known(json!([1, "a", null, [2], {"b": 3}]))),
        Just(Signal::Known(json!({"a": 1}))),
    ]
}

/// A condition of which every operand is `taint`, `temp_c` or `nouveau_loaded`, compared with what is known.
fn of_unknowns() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "taint > 3",
        "taint == 0",
        "taint != 0",
        "taint == null",
        "taint != null",
        "bit(taint, 1)",
        "taint in [0, 1]",
        "taint not in [0, 1]",
        "nouveau_loaded",
        "abs(taint - 4) <= taint * 2",
        "mask(taint, 1, 3) == 1",
        "first(taint, 4) >= 0",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(5, 20, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|a| format!("not ({a})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) and ({b})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("({a}) or ({b})")),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_printed_reads_back(expr in expr()) {
        let text = expr.to_string();
        let read = parse(&text);
        prop_assert_eq!(read.as_ref(), Ok(&expr), "{}", text);
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,60}", words in "([a-z_.]{1,8}|[0-9(),\\[\\]=<>+*/\" -]){0,30}") {
        for text in [text, words] {
            if let Ok(expr) = parse(&text) {
                prop_assert_eq!(parse(&expr.to_string()), Ok(expr));
            }
        }
    }

    #[test]
    fn no_reading_makes_it_panic(
        expr in expr(),
        readings in prop::collection::vec(any_signal(), 6),
        gpu in prop::option::of(0_usize..2),
    ) {
        let Ok(code) = compile(&expr, Context { scope: None, params: &params(), checks: &checks(), own: None }) else {
            return Ok(());
        };
        let mut signals = signals();
        for (name, signal) in ["nvml_count", "taint", "driver_version", "log_from"].into_iter().zip(&readings) {
            signals.node.insert(name.to_owned(), signal.clone());
        }
        for (name, signal) in ["temp_c", "pci"].into_iter().zip(&readings[4..]) {
            signals.gpus[0].readings.insert(name.to_owned(), signal.clone());
        }
        let declared = BTreeMap::new();
        let scene = Scene {
            signals: &signals,
            subject: gpu.and_then(|at| signals.gpus.get(at)),
            declared: &declared,
            params: &params(),
            others: &Others1(Verdict::Unknown),
            past: None,
            watch: None,
        };
        let truth = code.holds(&scene);
        prop_assert!(!(truth.holds() && truth.may_hold()));
        code.lines(&scene, &mut Vec::new());
    }

    #[test]
    fn what_is_made_of_unknowns_never_holds(text in of_unknowns()) {
        let Ok(expr) = parse(&text) else { return Ok(()) };
        let compiles = compile(&expr, Context { scope: None, params: &params(), checks: &checks(), own: None }).is_ok();
        prop_assert!(compiles, "{}", text);
        prop_assert!(truth_in(&text, &Signals::default(), None).may_hold(), "{}", text);
    }
}
