//! What was recorded, and going on with it: `runs`, `report`, `resume`, `pause`, `abort`; and `doc`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
    /// What is printed: the screen, the JSON document, or the path of the HTML page.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: ReportFormat,
    /// Writes the HTML page or the JSON document (by the name's ending) to this file.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    Human,
    Json,
    Jsonl,
    Html,
    Path,
}

#[derive(Clone, Debug, Args)]
pub struct DocArgs {
    /// Kind, such as `gpu_mig`.
    #[arg(value_parser = KindName, hide_possible_values = true)]
    pub kind: Option<String>,
    /// Prints the reference of all kinds as Markdown.
    #[arg(long, conflicts_with = "kind")]
    pub all: bool,
    /// Prints the JSON schema of the kind's parameters.
    #[arg(long, requires = "kind")]
    pub schema: bool,
}
