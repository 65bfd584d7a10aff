mod doubts;
mod drainers;
mod errors;
mod errors_in_plays;
mod errors_in_templates;
mod jobs;
mod language;
mod mistakes;
mod mistakes_in_tasks;
mod policy;
mod policy_errors;

use std::collections::HashMap;

use super::*;

/// Parses one playbook called `play.yml`.
fn load(text: &str) -> Result<Program, crate::diagnostic::Diagnostics> {
    let files: HashMap<String, String> = [("play.yml".to_owned(), text.to_owned())].into();
    Program::load(&["play.yml"], &files)
}

/// Returns the messages for a playbook, those about variables included.
fn errors_of(text: &str) -> String {
    match load(text) {
        Err(errors) => errors.to_string(),
        Ok(program) => program.check_variables(&Known::default()).to_string(),
    }
}

fn play(text: &str) -> std::sync::Arc<Play> {
    match load(text) {
        Ok(program) => std::sync::Arc::clone(&program.plays[0]),
        Err(errors) => panic!("{errors}"),
    }
}
