//! What was recorded, and going on with it: `runs`, `report`, `resume`, `pause`, `abort`; and `doc`.

use std::{ffi::OsStr, path::PathBuf};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use gpufleet::report::{RENDERERS, Renderer};

use super::super::doc::KindName;
use super::{Format, Overruling};

#[derive(Clone, Debug, Args)]
pub struct RunsArgs {
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
}

#[derive(Clone, Debug, Args)]
pub struct ResumeArgs {
    /// Run: its id, or either end of it; without it the newest that is unfinished.
    pub run: Option<String>,
    /// Does not ask before nodes are disturbed; needed where there is no terminal to ask on.
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    pub overruling: Overruling,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
}

#[derive(Clone, Debug, Args)]
pub struct AbortArgs {
    /// Run: its id, or either end of it.
    pub run: String,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
}

#[derive(Clone, Debug, Args)]
pub struct PauseArgs {
    /// Run: its id, either end of it, or `latest`.
    #[arg(default_value = "latest")]
    pub run: String,
}

#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Run: its id, either end of it, or `latest`.
    #[arg(default_value = "latest")]
    pub run: String,
    /// What is printed.
    #[arg(long, value_name = "FORMAT", default_value = "human", value_parser = ReportWord)]
    pub format: ReportFormat,
    /// Writes the document that belongs to the name's ending (`.html`, `.xml` for JUnit, else JSON) to this file.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What `report` prints.
#[derive(Clone, Copy, Debug)]
pub enum ReportFormat {
    Human,
    Jsonl,
    Path,
    Document(&'static Renderer),
}

/// Reads the word of a [`ReportFormat`].
#[derive(Clone, Copy, Debug)]
struct ReportWord;

impl TypedValueParser for ReportWord {
    type Value = ReportFormat;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<ReportFormat, clap::Error> {
        let words = PossibleValuesParser::new(report_words());
        let word = words.parse_ref(command, arg, value)?;
        Ok(match (word.as_str(), Renderer::of(&word)) {
            (_, Some(renderer)) => ReportFormat::Document(renderer),
            ("jsonl", None) => ReportFormat::Jsonl,
            ("path", None) => ReportFormat::Path,
            (_, None) => ReportFormat::Human,
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(report_words().into_iter()))
    }
}

fn report_words() -> Vec<PossibleValue> {
    let word = |name, help: &'static str| PossibleValue::new(name).help(help);
    let documents = RENDERERS.iter().map(|renderer| word(renderer.name, renderer.summary));
    let mut words = vec![word("human", "The screen that the run showed at its end")];
    words.extend(documents);
    words.push(word("jsonl", "Every event, a line each"));
    words.push(word("path", "The name of the HTML page"));
    words
}

#[derive(Clone, Debug, Args)]
pub struct DocArgs {
    /// Kind, such as `gpu_mig`; `drain` for the drainers.
    #[arg(value_parser = KindName, hide_possible_values = true)]
    pub kind: Option<String>,
    /// Prints the reference of all kinds as Markdown.
    #[arg(long, conflicts_with = "kind")]
    pub all: bool,
    /// Prints the JSON schema of the kind's parameters.
    #[arg(long, requires = "kind")]
    pub schema: bool,
}
