//! Checks every machine-readable document of a test's commands against its schema.
//!
//! The format follows from the command line and from file names; formats without a schema are not checked.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

use jsonschema::Validator;
use serde_json::Value;

/// The format of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Printed {
    Report,
    Difference,
    Events,
    Check,
    Sarif,
    Else,
}

macro_rules! schema {
    ($name:literal) => {
        LazyLock::new(|| {
            let text = include_str!(concat!("../../docs/schema/", $name, ".schema.json"));
            let schema = serde_json::from_str(text).expect("a schema is JSON");
            jsonschema::validator_for(&schema).expect("a schema")
        })
    };
}
static REPORT: LazyLock<Validator> = schema!("report");
static DIFFERENCE: LazyLock<Validator> = schema!("report-diff");
static EVENT: LazyLock<Validator> = schema!("event");
static CHECK: LazyLock<Validator> = schema!("check");

/// Checks a command's output and the files that it wrote into `folder`, and the reports below `runs`.
///
/// # Panics
/// If a document does not fit its schema.
pub fn hold_to_schemas(words: &[String], stdout: &str, folder: &Path, runs: &Path) {
    if let Some(problem) = problem(words, stdout, folder, runs) {
        panic!("{}: {problem}\n--- stdout\n{stdout}", words.join(" "));
    }
}

fn problem(words: &[String], stdout: &str, folder: &Path, runs: &Path) -> Option<String> {
    printed(words, stdout).or_else(|| written(words, folder)).or_else(|| junit(words)).or_else(|| {
        let runs = std::fs::read_dir(runs).into_iter().flatten().flatten();
        let mut reports = runs.filter_map(|run| {
            let path = run.path().join("report.json");
            Some((std::fs::read_to_string(&path).ok()?, path))
        });
        reports.find_map(|(text, path)| Some(format!("{}: {}", path.display(), fits(&REPORT, &text)?)))
    })
}

fn printed(words: &[String], stdout: &str) -> Option<String> {
    // The command failed before it had anything to print, or its output was lost.
    if stdout.trim().is_empty() {
        return None;
    }
    match printed_by(words) {
        Printed::Else => None,
        Printed::Report => fits(&REPORT, stdout),
        Printed::Difference => fits(&DIFFERENCE, stdout),
        Printed::Check => fits(&CHECK, stdout),
        Printed::Sarif => {
            serde_json::from_str::<serde_sarif::sarif::Sarif>(stdout).err().map(|error| error.to_string())
        }
        of => {
            // An incomplete last line is ignored, as the command may have been killed in it.
            let lines = stdout.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            (0_u64..).zip(lines).find_map(|(at, line)| {
                let number = serde_json::from_str::<Value>(line).ok().and_then(|event| event["seq"].as_u64());
                let wrong = (number != Some(at)).then(|| format!("seq is {number:?}"));
                let wrong = wrong.or_else(|| fits(&EVENT, line));
                wrong.map(|wrong| format!("line {at} of {of:?}: {wrong}"))
            })
        }
    }
}

fn printed_by(words: &[String]) -> Printed {
    const MADE_OF_RUNS: [&str; 8] = ["run", "plan", "audit", "resume", "adopt", "abort", "report", "exec"];
    // The first that is a command, as global options may precede it.
    let commands = MADE_OF_RUNS.into_iter().chain(["check", "mig"]);
    let command = words.iter().skip(1).find_map(|word| commands.clone().find(|command| command == word));
    let format = words.windows(2).rev().find(|pair| pair[0] == "--format").map(|pair| pair[1].as_str());
    let format = format.or_else(|| words.iter().rev().find_map(|word| word.strip_prefix("--format=")));
    match (command, format) {
        (Some("check"), Some("json")) => Printed::Check,
        (Some("check"), Some("sarif")) => Printed::Sarif,
        (Some("check" | "mig"), _) | (None, _) => Printed::Else,
        // The answers of a program are no run, and have no schema.
        (Some("exec"), _) if words.iter().any(|word| word == "--") => Printed::Else,
        (Some("report"), Some("json")) if words.iter().any(|word| word == "diff") => Printed::Difference,
        (Some(_), Some("jsonl")) => Printed::Events,
        (Some(_), Some("json")) if report_file(words).is_none() => Printed::Report,
        _ => Printed::Else,
    }
}

/// Returns the file of `report -o FILE`.
fn report_file(words: &[String]) -> Option<&str> {
    words.iter().find(|word| *word == "report")?;
    let pair = words.windows(2).find(|pair| pair[0] == "-o" || pair[0] == "--output")?;
    Some(&pair[1])
}

/// Returns what is wrong with the JSON document that `report -o FILE` wrote into the folder that it ran in.
fn written(words: &[String], folder: &Path) -> Option<String> {
    let path = folder.join(report_file(words).filter(|name| name.ends_with(".json"))?);
    let text = std::fs::read_to_string(&path).ok()?;
    Some(format!("{}: {}", path.display(), fits(&REPORT, &text)?))
}

/// Returns the file of `--junit`, if it exists.
fn junit(words: &[String]) -> Option<String> {
    let path = words.windows(2).find(|pair| pair[0] == "--junit").map(|pair| PathBuf::from(&pair[1]))?;
    let text = std::fs::read_to_string(path).ok()?;
    let report = match quick_junit::Report::deserialize_from_str(&text) {
        Ok(report) => report,
        Err(error) => return Some(format!("the JUnit document: {error}")),
    };
    let cases: usize = report.test_suites.iter().map(|suite| suite.test_cases.len()).sum();
    (report.tests != cases).then(|| format!("the JUnit document says {} tests and has {cases}", report.tests))
}

fn fits(schema: &Validator, text: &str) -> Option<String> {
    let document: Value = match serde_json::from_str(text) {
        Ok(document) => document,
        Err(error) => return Some(format!("no JSON: {error}")),
    };
    let wrong: Vec<String> = schema
        .iter_errors(&document)
        .take(5)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_document_that_does_not_fit_is_found() {
        let nowhere = Path::new("/nonexistent");
        let found = |line: &str, stdout: &str| problem(&words(line), stdout, nowhere, nowhere);
        assert!(found("gpufleet audit p.yaml --format json", "{\"format\": 1}").is_some());
        assert!(found("gpufleet --quiet check p.yaml --format=json", "{}").is_some());
        assert!(found("gpufleet check p.yaml --format sarif", "{}").is_some());
        let event = r#"{"seq":1,"at":"2026-11-20T12:00:00Z","what":{"event":"notice","with":{"level":"info","text":"x"}}}"#;
        let wrong = found("gpufleet run p.yaml --format jsonl", &format!("{event}\n"));
        assert_eq!(wrong.as_deref(), Some("line 0 of Events: seq is Some(1)"));
        let first = event.replace(":1,", ":0,");
        assert_eq!(found("gpufleet run p.yaml --format jsonl", &format!("{first}\n{event}\n{{\"se")), None);
        assert!(
            found("gpufleet run p.yaml --format jsonl", &format!("{}\n", first.replace("info", "loud")))
                .is_some()
        );
        assert!(found("gpufleet exec all -o -m stat -a path=/ --format json", "{}").is_some());
        assert_eq!(found("gpufleet exec all --format json -- true", "[]"), None);
        assert_eq!(found("gpufleet hosts --format json", "[]"), None);
        assert_eq!(found("gpufleet audit p.yaml --format json", ""), None);
    }

    #[test]
    fn a_report_beside_a_journal_is_held_to_its_schema_too() {
        let runs = tempfile::tempdir().unwrap();
        std::fs::create_dir(runs.path().join("01JD")).unwrap();
        std::fs::write(runs.path().join("01JD/report.json"), "{}").unwrap();
        let found = |line: &str| problem(&words(line), "", runs.path(), runs.path()).unwrap();
        assert!(found("gpufleet run p.yaml").contains("01JD/report.json"));
        std::fs::write(runs.path().join("copy.json"), "{}").unwrap();
        assert!(found("gpufleet report latest -o copy.json").contains("copy.json"));
    }
}
