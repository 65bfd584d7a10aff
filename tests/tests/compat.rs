//! What an Ansible user brings along works as with ansible-core: the cases of tests/compat.
//!
//! A case is a folder: case.yaml (the rows of rows.yaml that it stands for, what it is about, and steps), the files its
//! steps use, and expected.json, which the real ansible-core wrote (`make compat`). A step is a line of gpufleet's; it
//! has to end as Ansible did, with the same data, unless it says why not: `differs` where Ansible does otherwise,
//! `gpufleet_only` where it has nothing to compare; then `exit`, `output` and `says` (parts of the error) are what has
//! to come. `GPUFLEET_COMPAT=part of a name` takes fewer cases.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use gpufleet_tests::Home;
use serde_json::Value;

/// Each row has at least this many cases.
const CASES_A_ROW: usize = 3;
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

    fn all() -> Vec<Self> {
        let mut folders = vec![root().join("cases")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            if folder.join("case.yaml").is_file() {
                found.push(Self::read(folder));
                continue;
            }
            let entries = std::fs::read_dir(&folder).expect("the cases");
            folders.extend(entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// What is not as it should be, empty if all is.
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
            problems.extend(step.problem(&home, theirs).map(|problem| format!("`{}`: {problem}", step.run)));
        }
        problems
    }
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
        let done = home.gpufleet(&words).run();
        let ours = if words.first().is_some_and(|word| word == "hosts") {
            Value::from(done.stdout.lines().map(Value::from).collect::<Vec<_>>())
        } else {
            serde_json::from_str(&done.stdout).unwrap_or_else(|_| done.stdout.trim_end().into())
        };
        let code = done.code.map_or(-1, i64::from);
        let their_code = theirs.map_or(0, |theirs| theirs["exit"].as_i64().unwrap_or(1));
        let same = code == their_code && (code != 0 || theirs.is_some_and(|theirs| theirs["output"] == ours));
        let own = self.differs.is_some() || self.gpufleet_only;
        if let Some(missing) = self.says.iter().find(|part| !done.stderr.contains(*part)) {
            return Some(format!("does not say `{missing}`: {done}"));
        }
        if own && same && theirs.is_some() {
            return Some("is marked as different, and is the same".to_owned());
        }
        if own {
            let output = self.output.as_ref().is_none_or(|output| *output == ours);
            return (Some(code) != self.exit || !output)
                .then(|| format!("exit code {code}, {ours}\n{}", done.stderr));
        }
        // Why any failure: Ansible's exit codes for wrong input differ from program to program.
        let both_refuse = code == 1 && their_code != 0;
        (!same && !both_refuse).then(|| {
            let theirs = theirs.map(ToString::to_string).unwrap_or_default();
            format!("differs\n  ours   {code} {ours}\n  theirs {theirs}\n{}", done.stderr)
        })
    }
}

/// Splits a line as a shell does; the cases use blanks and quotes only.
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
    let cases: Vec<Case> = Case::all().into_iter().filter(|case| case.name.contains(&part)).collect();
    assert!(!cases.is_empty(), "no case has `{part}` in its name");
    let failed: Vec<String> = cases
        .iter()
        .flat_map(|case| case.problems().into_iter().map(|problem| format!("{}: {problem}", case.name)))
        .collect();
    assert!(failed.is_empty(), "{} differences:\n{}", failed.len(), failed.join("\n"));
}

/// The generated part of docs/ansible.md.
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
    out
}

#[test]
fn reference_of_differences_is_true() {
    let path = root().join("../../docs/ansible.md");
    let there = std::fs::read_to_string(&path).expect("docs/ansible.md");
    let (by_hand, _) = there.split_once(BEGIN).expect("docs/ansible.md has a generated part");
    let wanted = format!("{by_hand}{BEGIN}{}", reference(&Case::all()));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).expect("docs/ansible.md");
        return;
    }
    assert!(there == wanted, "docs/ansible.md is out of date: type make reference");
}
