//! Runs all rules over playbooks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::rules::{Severity, rule};
use super::{contradictions, noqa, tasks, unused};
use crate::diagnostic::{self, Diagnostic, Diagnostics, Severity as DiagnosticSeverity, Span};
use crate::migration::{FileRole, Recorder, tasks_of};
use crate::playbook::{Known, Program, Reader};
use crate::template::Dict;
use crate::vault::{self, Keyring, is_encrypted};
use crate::yaml::{self, Node};

/// One place that a rule reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub rule: &'static str,
    pub severity: Severity,
    pub diagnostic: Diagnostic,
    /// First line of the task that it is in, where a comment may silence it.
    pub(super) task_line: Option<u32>,
}

impl Finding {
    /// Creates a finding of a rule, with the rule's severity.
    pub(super) fn new(name: &'static str, mut diagnostic: Diagnostic) -> Self {
        let severity = rule(name).map_or(Severity::Warning, |rule| rule.severity);
        diagnostic.severity = match severity {
            Severity::Error => DiagnosticSeverity::Error,
            Severity::Warning => DiagnosticSeverity::Warning,
            Severity::Note => DiagnosticSeverity::Note,
        };
        Self { rule: name, severity, diagnostic, task_line: None }
    }

    pub(super) fn in_task(mut self, line: u32) -> Self {
        self.task_line = Some(line);
        self
    }

    /// Returns the machine-readable form: that of the diagnostic, and `rule`.
    pub fn to_json(&self) -> serde_json::Value {
        let mut json = self.diagnostic.to_json();
        if let Some(map) = json.as_object_mut() {
            map.insert("severity".to_owned(), self.severity.as_str().into());
            map.shift_insert(0, "rule".to_owned(), self.rule.into());
        }
        json
    }
}

/// All findings, sorted by file, line and column.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Files that were checked.
    pub files: Vec<String>,
    /// The program, if the parser accepts it.
    pub program: Option<Program>,
}

impl Report {
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// Adds findings about variables, for which the hosts must be known.
    pub fn check_variables(&mut self, known: &Known) {
        let Some(program) = &self.program else { return };
        let found = program.check_variables(known);
        self.findings.extend(found.into_iter().map(|error| match error.severity {
            DiagnosticSeverity::Error => Finding::new("undefined-variable", error),
            DiagnosticSeverity::Warning | DiagnosticSeverity::Note => {
                Finding { rule: "undefined-variable", ..warned(error) }
            }
        }));
        self.sort();
    }

    /// Adds other errors, such as those that need the inventory.
    pub fn add(&mut self, errors: Diagnostics) {
        self.findings.extend(errors.into_iter().map(|error| match error.severity {
            DiagnosticSeverity::Error => Finding::new("invalid", error),
            DiagnosticSeverity::Warning | DiagnosticSeverity::Note => warned(error),
        }));
        self.sort();
    }

    /// Renders the findings for people, each with the name of its rule.
    pub fn text(&self, colour: bool) -> String {
        let named = self.findings.iter().map(|finding| {
            let mut diagnostic = finding.diagnostic.clone();
            diagnostic.message = format!("{} [{}]", diagnostic.message, finding.rule);
            diagnostic
        });
        diagnostic::render(&Diagnostics(named.collect()), colour)
    }

    /// Returns one line with the number of findings of each severity.
    pub fn summary(&self) -> String {
        let count = |severity: Severity, one: &str| match self.count(severity) {
            1 => format!("1 {one}"),
            many => format!("{many} {one}s"),
        };
        let files =
            if self.files.len() == 1 { "1 file".to_owned() } else { format!("{} files", self.files.len()) };
        if self.findings.is_empty() {
            return format!("{files}: nothing found, no node was contacted.");
        }
        format!(
            "{files}: {}, {}, {}; no node was contacted.",
            count(Severity::Error, "error"),
            count(Severity::Warning, "warning"),
            count(Severity::Note, "note")
        )
    }

    pub fn skip(&mut self, rules: &BTreeSet<&str>) {
        self.findings.retain(|finding| finding.severity == Severity::Error || !rules.contains(finding.rule));
    }

    fn sort(&mut self) {
        let files = &self.files;
        self.findings.sort_by_key(|finding| {
            let span = finding.diagnostic.span.as_ref();
            let file = span.and_then(|span| files.iter().position(|file| file == span.file()));
            (file, span.map(|span| (span.line, span.column)))
        });
        // A file that several plays read reports its mistakes for each of them.
        self.findings.dedup();
    }
}

/// Checks playbooks and all files that they read. Roles may be in `roles_path` too; `extra` are the command line's
/// variables.
pub fn check(
    paths: &[String],
    reader: &dyn Reader,
    keyring: &Arc<Keyring>,
    roles_path: &[String],
    extra: &Arc<Dict>,
) -> Report {
    let recorder = Recorder::new(reader);
    let mut report = Report::default();
    match Program::load_knowing(paths, &recorder, keyring, roles_path, extra, false) {
        Ok(program) => {
            let warnings = program.warnings.clone();
            report.findings.extend(warnings.into_iter().map(warned));
            report.program = Some(program);
        }
        Err(errors) => {
            // The parser reports warnings beside errors.
            report.findings.extend(errors.into_iter().map(|error| match error.severity {
                DiagnosticSeverity::Error => Finding::new("invalid", error),
                DiagnosticSeverity::Warning | DiagnosticSeverity::Note => warned(error),
            }));
        }
    }
    let mut trees: BTreeMap<String, Node> = BTreeMap::new();
    let mut files = paths.to_vec();
    files.extend(recorder.names().into_iter().filter(|name| !paths.contains(name)));
    for path in &files {
        let Ok(bytes) = recorder.read(path) else { continue };
        let Ok(source) = vault::decode(path, &bytes) else { continue };
        // Nothing of an encrypted file may be shown, and no playbook is encrypted.
        if is_encrypted(source.text()) {
            continue;
        }
        let Ok(tree) = yaml::parse_source(&source) else { continue };
        if FileRole::of(&tree) != FileRole::Other {
            tasks::check_file(&tree, &mut report.findings);
        }
        tasks::check_values(&tree, &mut report.findings);
        noqa::check(&source, &mut report.findings);
        trees.insert(path.clone(), tree);
    }
    let views: Vec<_> = trees.values().flat_map(tasks_of).collect();
    unused::check(&trees, &views, &recorder, &mut report.findings);
    if let Some(program) = &report.program {
        let first_line = |span: &Span| {
            let mut views = views.iter();
            let view = views.find(|view| view.found().is_some_and(|found| found.key.span == *span))?;
            Some(view.lines().0)
        };
        contradictions::check(program, first_line, &mut report.findings);
    }
    report.findings.retain(|finding| !is_silenced(finding));
    report.files = files;
    report.sort();
    report
}

fn warned(warning: Diagnostic) -> Finding {
    let mut finding = Finding::new("invalid", warning);
    finding.severity = Severity::Warning;
    finding.diagnostic.severity = DiagnosticSeverity::Warning;
    finding
}

fn is_silenced(finding: &Finding) -> bool {
    let Some(span) = finding.diagnostic.span.as_ref().filter(|_| finding.severity < Severity::Error) else {
        return false;
    };
    let lines = [Some(span.line), finding.task_line];
    lines
        .into_iter()
        .flatten()
        .filter_map(|line| noqa::of_line(&span.source, line))
        .any(|silence| silence.covers(finding.rule))
}
