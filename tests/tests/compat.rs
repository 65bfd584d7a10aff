//! Compares gpufleet with ansible-core: the cases of tests/compat.
//!
//! A case is a folder with case.yaml (the rows of rows.yaml that it covers, its subject, and steps), the files of its
//! steps, and expected.json, which the real ansible-core wrote (`make compat`). A step is a command line of gpufleet.
//! It must end as Ansible did, with the same data, unless it says why not: `differs` if Ansible does otherwise,
//! `gpufleet_only` if it has no equivalent; `exit`, `output` and `says` (parts of the error) are then what is
//! expected. `open` describes a known gap: the step does not end as with Ansible yet, and the mark must be removed
//! when it does (`UPDATE=1` removes it). `GPUFLEET_COMPAT=part of a name` selects cases.
//!
//! The effects of a playbook are compared in one normal form (tests/compat/callback/compat.py): for each host its
//! tasks in order with their status and the messages of `debug`, `fail` and `assert`, the recap, and the files below
//! `out`. The order between hosts is ignored, and so are hosts without any result. If Ansible ends with 4 and a host
//! failed, gpufleet ends with 2; if it ends with 2 and hosts were left out for that, gpufleet may report it with 5;
//! if Ansible began nothing, gpufleet ends with 1. In `output` of a playbook's step, only the listed parts are
//! required.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpufleet_tests::Home;
use serde_json::{Map, Value, json};

/// Smallest number of cases for each row.
const CASES_A_ROW: usize = 3;
/// Options with which nothing runs.
const LISTS: [&str; 4] = ["--list-hosts", "--list-tasks", "--list-tags", "--syntax-check"];
/// Kinds whose message is compared.
const SPEAKING: [&str; 3] = ["debug", "fail", "assert"];
const BEGIN: &str = "<!-- from tests/compat: `make reference` writes it -->\n";

struct Case {
    name: String,
    folder: PathBuf,
    rows: Vec<String>,
    about: String,
    steps: Vec<Step>,
    expected: Vec<Value>,
}

struct Step {
    run: String,
    differs: Option<String>,
    open: Option<String>,
    gpufleet_only: bool,
    exit: Option<i64>,
    output: Option<Value>,
    says: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("compat")
}

fn yaml(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(ToOwned::to_owned)
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    let items = value.get(key).and_then(Value::as_array);
    items.into_iter().flatten().filter_map(|item| item.as_str().map(ToOwned::to_owned)).collect()
}

impl Case {
    fn read(folder: PathBuf) -> Self {
        let case = yaml(&folder.join("case.yaml"));
        let expected = std::fs::read_to_string(folder.join("expected.json"));
        let expected =
            expected.unwrap_or_else(|error| panic!("{}: {error}; type make compat", folder.display()));
        let steps = case["steps"].as_array().into_iter().flatten().map(|step| Step {
            run: text(step, "run").expect("a step has `run`"),
            differs: text(step, "differs"),
            open: text(step, "open"),
            gpufleet_only: text(step, "gpufleet_only").is_some(),
            exit: step["exit"].as_i64(),
            output: step.get("output").cloned(),
            says: texts(step, "says"),
        });
        Self {
            name: folder.strip_prefix(root().join("cases")).unwrap_or(&folder).display().to_string(),
            rows: texts(&case, "rows"),
            about: text(&case, "about").expect("a case has `about`"),
            steps: steps.collect(),
            expected: serde_json::from_str(&expected).expect("JSON"),
            folder,
        }
    }

    /// Returns the cases with this text in their path.
    fn all(part: &str) -> Vec<Self> {
        let mut folders = vec![root().join("cases")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            if folder.join("case.yaml").is_file() {
                if folder.display().to_string().contains(part) {
                    found.push(Self::read(folder));
                }
                continue;
            }
            let entries = std::fs::read_dir(&folder).expect("the cases");
            folders.extend(entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// Removes the mark of a gap.
    fn close(&self, run: &str) {
        let path = self.folder.join("case.yaml");
        let text = std::fs::read_to_string(&path).expect("case.yaml");
        let index = self.steps.iter().position(|step| step.run == run).expect("its step");
        let mut at = None;
        let kept = text.lines().filter(|line| {
            if line.starts_with("  - run:") {
                at = Some(at.map_or(0, |at: usize| at + 1));
            }
            at != Some(index) || !line.starts_with("    open:")
        });
        let kept: String = kept.map(|line| format!("{line}\n")).collect();
        std::fs::write(path, kept).expect("case.yaml");
    }

    /// Returns what is not as expected; empty if everything is.
    fn problems(&self) -> Vec<String> {
        let home = Home::new();
        copy(&self.folder, &home.work());
        let mut expected = self.expected.iter();
        let mut problems = Vec::new();
        for step in &self.steps {
            let theirs = if step.gpufleet_only { None } else { expected.next() };
            if !step.gpufleet_only
                && theirs.and_then(|theirs| text(theirs, "run")).as_ref() != Some(&step.run)
            {
                problems.push(format!("`{}`: expected.json is of other steps; type make compat", step.run));
                break;
            }
            let problem = step.problem(&home, theirs);
            let problem = match (&step.open, problem) {
                (Some(_), None) if updates() => {
                    self.close(&step.run);
                    None
                }
                (Some(_), None) => Some("is marked as open, and ends as with Ansible".to_owned()),
                (Some(_), Some(_)) => None,
                (None, problem) => problem,
            };
            problems.extend(problem.map(|problem| format!("`{}`: {problem}", step.run)));
        }
        problems
    }
}

fn updates() -> bool {
    std::env::var_os("UPDATE").is_some()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

impl Step {
    fn problem(&self, home: &Home, theirs: Option<&Value>) -> Option<String> {
        let words = shell_words(&self.run);
        let playbook = words.first().is_some_and(|word| word == "run");
        let lists = words.iter().any(|word| LISTS.contains(&word.as_str()));
        let mut command = home.gpufleet(&words);
        if playbook && !lists {
            command =
                command.args(["--yes", "--format", "jsonl"]).env("COMPAT_VARIABLE", "from the environment");
        }
        let done = command.run();
        let ours = match (playbook, lists) {
            (true, false) => played(&done.stdout, home),
            (true, true) => hosts_sorted(words_of_lines(&done.stdout)),
            _ if words.first().is_some_and(|word| word == "hosts") => {
                Value::from(done.stdout.lines().map(Value::from).collect::<Vec<_>>())
            }
            _ => serde_json::from_str(&done.stdout).unwrap_or_else(|_| done.stdout.trim_end().into()),
        };
        let code = done.code.map_or(-1, i64::from);
        let their_code = theirs.map_or(0, |theirs| their_code(theirs, playbook, code));
        let data =
            if playbook { theirs.is_some_and(|theirs| theirs.get("output").is_some()) } else { code == 0 };
        let their_output = |theirs: &Value| match playbook && lists {
            true => hosts_sorted(theirs["output"].clone()),
            false => theirs["output"].clone(),
        };
        let same = code == their_code && (!data || theirs.is_some_and(|theirs| their_output(theirs) == ours));
        let own = self.differs.is_some() || self.gpufleet_only;
        if let Some(missing) = self.says.iter().find(|part| !done.stderr.contains(*part)) {
            return Some(format!("does not say `{missing}`: {done}"));
        }
        if own && same && theirs.is_some() {
            return Some("is marked as different, and is the same".to_owned());
        }
        if own {
            let output = self
                .output
                .as_ref()
                .is_none_or(|output| *output == ours || playbook && !lists && contains(&ours, output));
            return (Some(code) != self.exit || !output)
                .then(|| format!("exit code {code}, {ours}\n{}", done.stderr));
        }
        // Any failure, because Ansible's exit codes for wrong input differ between programs.
        let both_refuse = code == 1 && their_code != 0 && !data;
        (!same && !both_refuse).then(|| {
            if let Some(theirs) = theirs.filter(|_| playbook && !lists) {
                let parts = differing(&theirs["output"], &ours);
                return format!("exit code {code}, theirs {their_code}\n{parts}{}", done.stderr);
            }
            let theirs = theirs.map(ToString::to_string).unwrap_or_default();
            format!("differs\n  ours   {code} {ours}\n  theirs {theirs}\n{}", done.stderr)
        })
    }
}

/// Returns the exit code of gpufleet that corresponds to Ansible's.
fn their_code(theirs: &Value, playbook: bool, ours: i64) -> i64 {
    let code = theirs["exit"].as_i64().unwrap_or(1);
    if playbook && code == 2 && ours == 5 {
        return ours;
    }
    if !playbook || code != 4 {
        return code;
    }
    let recap = theirs["output"]["recap"].as_object();
    let failed = recap.is_some_and(|recap| recap.values().any(|counts| counts["failed"] != 0));
    match recap {
        None => 1,
        Some(_) if failed => 2,
        Some(_) => 4,
    }
}

/// Whether everything expected is there; in mappings, only listed keys count.
fn contains(there: &Value, wanted: &Value) -> bool {
    match (there, wanted) {
        (Value::Object(there), Value::Object(wanted)) => {
            wanted.iter().all(|(name, wanted)| there.get(name).is_some_and(|there| contains(there, wanted)))
        }
        _ => there == wanted,
    }
}

/// Returns the differences of two normal forms, one in each line.
fn differing(theirs: &Value, ours: &Value) -> String {
    let mut out = String::new();
    for part in ["recap", "tasks", "files"] {
        let empty = Map::new();
        let of = |value: &Value| value[part].as_object().cloned().unwrap_or_else(|| empty.clone());
        let (theirs, ours) = (of(theirs), of(ours));
        let names: std::collections::BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
        for name in names.into_iter().filter(|name| theirs.get(*name) != ours.get(*name)) {
            let (theirs, ours) = (theirs.get(name), ours.get(name));
            if let (Some(Value::Array(theirs)), Some(Value::Array(ours))) = (theirs, ours) {
                let at = theirs.iter().zip(ours).take_while(|(theirs, ours)| theirs == ours).count();
                let show = |list: &[Value]| list.get(at).map_or("nothing".to_owned(), ToString::to_string);
                let _ = writeln!(out, "  {part} {name}[{at}]: {}, theirs {}", show(ours), show(theirs));
                continue;
            }
            let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), ToString::to_string);
            let _ = writeln!(out, "  {part} {name}: {}, theirs {}", show(ours), show(theirs));
        }
    }
    out
}

fn words_of_lines(text: &str) -> Value {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    Value::from(lines.collect::<Vec<_>>())
}

/// Sorts the lines below `hosts (N):`.
///
/// Ansible prints a set there, in another order each time.
fn hosts_sorted(mut lines: Value) -> Value {
    let lines_of = lines.as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
    let mut from = 0;
    while let Some(line) = lines_of.get(from) {
        let count = line.as_str().and_then(|line| line.strip_prefix("hosts (")?.strip_suffix("):"));
        let count = count.and_then(|count| count.parse().ok()).unwrap_or(0_usize);
        from += 1;
        if let Some(hosts) = lines_of.get_mut(from..from + count) {
            hosts.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        }
    }
    lines
}

/// Returns the effects of a run in the normal form; null if it began nothing.
fn played(lines: &str, home: &Home) -> Value {
    let here = std::fs::canonicalize(home.work()).expect("the working folder").display().to_string();
    let mut tasks: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut items: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut recap: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for line in lines.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let what = &event["what"];
        let with = &what["with"];
        let host = with["host"].as_str().unwrap_or_default().to_owned();
        match what["event"].as_str() {
            Some("task_finished") => {
                let report = &with["report"];
                // An unreachable host has no task, and the recap reports it.
                if report["phase"] != "declared" || report["status"] == "unreachable" {
                    continue;
                }
                let says = said(report);
                if !report["item"].is_null() {
                    if report["status"] != "skipped" && report["message"] != "hidden by `no_log`" {
                        items.entry(host).or_default().push(says.unwrap_or_default());
                    }
                    continue;
                }
                let mut entry = Map::new();
                entry.insert("task".to_owned(), report["task"].clone());
                entry.insert("status".to_owned(), status(report));
                let of_items = items.remove(&host);
                // The wording of errors differs between the programs.
                let spoke = report["status"] != "skipped"
                    && (report["kind"] != "debug" || report["status"] != "failed");
                if spoke && SPEAKING.iter().any(|kind| report["kind"] == *kind) {
                    entry.extend(of_items.map(Value::from).or(says).map(|says| ("says".to_owned(), says)));
                }
                tasks.entry(host).or_default().push(Value::Object(entry));
            }
            Some("node_finished") => {
                let sum = recap.entry(host).or_default();
                for (name, count) in with["outcome"]["counts"].as_object().into_iter().flatten() {
                    *sum.entry(name.clone()).or_default() += count.as_u64().unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    recap.retain(|_, counts| counts.values().any(|count| *count > 0));
    let mut files = Map::new();
    written(&home.work().join("out"), &home.work(), &mut files);
    let mut all = json!({"tasks": tasks, "recap": recap});
    if !files.is_empty() {
        all["files"] = Value::Object(files);
    }
    serde_json::from_str(&all.to_string().replace(&here, "[HERE]")).expect("JSON")
}

fn status(report: &Value) -> Value {
    match report["ignored"].as_bool() {
        Some(true) if report["status"] == "failed" => "ignored".into(),
        _ => report["status"].clone(),
    }
}

/// Returns the message of a task; hidden if `no_log` hides it.
fn said(report: &Value) -> Option<Value> {
    if !SPEAKING.iter().any(|kind| report["kind"] == *kind) {
        return None;
    }
    let data = report["data"].as_object();
    let own = data.and_then(|data| data.get("msg").or_else(|| data.values().next()));
    if own.is_none() && report["message"] == "hidden by `no_log`" {
        return None;
    }
    own.or_else(|| report.get("message").filter(|message| !message.is_null())).cloned()
}

fn written(folder: &Path, root: &Path, files: &mut Map<String, Value>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            written(&path, root, files);
            continue;
        }
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        files.insert(name, String::from_utf8_lossy(&std::fs::read(&path).expect("a file")).into());
    }
}

/// Splits a line as a shell does; the cases use only blanks and quotes.
fn shell_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match quote {
            Some(open) if open == c => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c == ' ' => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn cases_end_as_with_ansible() {
    let part = std::env::var("GPUFLEET_COMPAT").unwrap_or_default();
    let cases = Case::all(&part);
    assert!(!cases.is_empty(), "no case has `{part}` in its name");
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from).min(8) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let problems = case.problems().into_iter();
                    let problems = problems.map(|problem| format!("{}: {problem}", case.name));
                    failed.lock().expect("no panic").extend(problems);
                }
            });
        }
    });
    let mut failed = failed.into_inner().expect("no panic");
    failed.sort();
    assert!(failed.is_empty(), "{} differences:\n{}", failed.len(), failed.join("\n"));
}

/// Returns the generated part of docs/ansible/cases.md.
fn reference(cases: &[Case]) -> String {
    let mut out = String::from("## What is compared\n\n| feature | mark | cases |\n|---|---|---|\n");
    let mut by_row: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for case in cases {
        for row in &case.rows {
            by_row.entry(row).or_default().push(&case.name);
        }
    }
    let rows = yaml(&root().join("rows.yaml"));
    for row in rows.as_array().expect("a list of rows") {
        let field = |key| text(row, key).unwrap_or_else(|| panic!("a row without `{key}`"));
        let id = field("id");
        let names = by_row.remove(id.as_str()).unwrap_or_default();
        assert!(names.len() >= CASES_A_ROW, "the row {id} has {} cases", names.len());
        let names: Vec<&str> = names.iter().map(|name| name.rsplit('/').next().unwrap_or(name)).collect();
        let _ = writeln!(out, "| {} | {} | {} |", field("what"), field("mark"), names.join(", "));
    }
    assert!(by_row.is_empty(), "rows that rows.yaml does not know: {by_row:?}");
    out.push_str("\n## Differences that cases hold\n\n| case | what it is about | why gpufleet differs |\n|---|---|---|\n");
    for case in cases {
        let mut reasons: Vec<&str> = case.steps.iter().filter_map(|step| step.differs.as_deref()).collect();
        reasons.dedup();
        for reason in reasons {
            let name = case.name.rsplit('/').next().unwrap_or(&case.name);
            let _ = writeln!(out, "| {name} | {} | {reason} |", case.about);
        }
    }
    out.push_str(
        "\n## Gaps that cases hold\n\n| case | what it is about | what is missing |\n|---|---|---|\n",
    );
    for case in cases {
        let gaps: std::collections::BTreeSet<&str> =
            case.steps.iter().filter_map(|step| step.open.as_deref()).collect();
        for gap in gaps {
            let name = case.name.rsplit('/').next().unwrap_or(&case.name);
            let _ = writeln!(out, "| {name} | {} | {gap} |", case.about);
        }
    }
    out
}

#[test]
fn reference_of_differences_is_true() {
    let path = root().join("../../docs/ansible/cases.md");
    let there = std::fs::read_to_string(&path).expect("docs/ansible/cases.md");
    let (by_hand, _) = there.split_once(BEGIN).expect("docs/ansible/cases.md has a generated part");
    let wanted = format!("{by_hand}{BEGIN}{}", reference(&Case::all("")));
    if updates() {
        std::fs::write(&path, &wanted).expect("docs/ansible/cases.md");
        return;
    }
    assert!(there == wanted, "docs/ansible/cases.md is out of date: type make reference");
}
