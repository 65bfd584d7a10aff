//! What was recorded, and going on with it: `runs`, `report`, `resume`, `pause`, `abort`; and `doc`.

use std::{ffi::OsStr, path::PathBuf};

use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use gpufleet::report::{RENDERERS, Renderer};

use super::super::doc::KindName;
use super::{Format, Overruling, duration};

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
#[command(args_conflicts_with_subcommands = true)]
pub struct ReportArgs {
    #[command(subcommand)]
    pub command: Option<ReportCommand>,
    /// Run: its id, either end of it, or `latest`.
    #[arg(default_value = "latest")]
    pub run: String,
    /// The newest one of this kind, in place of RUN.
    #[arg(long, value_name = "VERB", conflicts_with = "run")]
    pub of: Option<RunKind>,
    /// What is printed or written; without it the screen, or what the ending of FILE says.
    #[arg(long, value_name = "FORMAT", value_parser = ReportWord)]
    pub format: Option<ReportFormat>,
    /// Writes the document to this file; without --format the one of the name's ending: `.html`, `.xml` (JUnit),
    /// `.sarif`, `.csv`, `.md`, `.prom`, `.om`, else JSON.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Signs FILE with this SSH key into FILE.sig: a private key, or a public one whose private half the SSH agent has.
    #[arg(long, value_name = "KEY", requires = "output")]
    pub sign: Option<PathBuf>,
}

/// What a run was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunKind {
    Run,
    Plan,
    Audit,
}

#[derive(Clone, Debug, Subcommand)]
pub enum ReportCommand {
    /// Tells what is different in a run from an earlier one: verdicts, findings, waivers, baseline, nodes.
    #[command(after_help = "Examples:\n  \
        gpufleet report diff 01JD8Q4T9X latest\n  \
        gpufleet report diff monday.json tuesday.json --format json")]
    Diff(ReportDiffArgs),
    /// Checks who signed a report, and whether the run's journal gives the same document.
    #[command(after_help = "Examples:\n  \
        gpufleet report verify audit.json --allowed-signers ~/.ssh/allowed_signers\n  \
        gpufleet report verify audit.html --key ops.pub\n\n\
        Exit codes: 0 signed by an allowed key, 1 wrong input, 2 not so, or the journal gives another document.")]
    Verify(ReportVerifyArgs),
}

#[derive(Clone, Debug, Args)]
pub struct ReportDiffArgs {
    /// The earlier run: its id, either end of it, or the file of its JSON document.
    pub before: String,
    /// The later run.
    #[arg(default_value = "latest")]
    pub after: String,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: DiffFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiffFormat {
    /// A line for each cause.
    Human,
    /// One JSON document, as docs/schema/report-diff.schema.json describes it.
    Json,
}

#[derive(Clone, Debug, Args)]
#[group(id = "trusted", required = true, multiple = false)]
pub struct Trusted {
    /// File of who may sign, as `ssh-keygen -Y verify -f` reads it.
    #[arg(long, value_name = "FILE")]
    pub allowed_signers: Option<PathBuf>,
    /// The public key that has to have signed.
    #[arg(long, value_name = "PUBKEY")]
    pub key: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct ReportVerifyArgs {
    /// The report; its signature is FILE.sig.
    pub file: PathBuf,
    #[command(flatten)]
    pub trusted: Trusted,
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
    /// Kind, such as `gpu_mig`; a page of the guide, such as `night`; the id of a check; a key, such as `window`; a word of a
    /// report, such as `drift`; an exit code; the number of an Xid.
    #[arg(value_name = "WORD", value_parser = KindName, hide_possible_values = true)]
    pub words: Vec<String>,
    /// Prints the reference of all kinds as Markdown.
    #[arg(long, conflicts_with = "words")]
    pub all: bool,
    /// Prints the JSON schema of the kind's parameters.
    #[arg(long, requires = "words")]
    pub schema: bool,
}

/// Where the history of audits is.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreChoice {
    /// The history of audits: `sqlite:PATH`, or `postgres://USER@HOST/DATABASE` for several controllers; unless given,
    /// `history.db` below the state directory.
    #[arg(long, value_name = "URL", global = true)]
    pub store: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct HistoryArgs {
    /// Node, or the id of a check or the place of a task; without it the fleet.
    #[arg(value_name = "NODE|CHECK")]
    pub about: Option<String>,
    /// What goes to standard output; `human` unless given.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    #[command(flatten)]
    pub store: StoreChoice,
    #[command(subcommand)]
    pub command: Option<HistoryCommand>,
}

#[derive(Clone, Debug, Subcommand)]
pub enum HistoryCommand {
    /// Records again what the audits of this machine found; what other controllers recorded stays.
    Rebuild,
    /// Removes one audit and the findings that follow from it, such as a trial with a baseline of one's own.
    Forget {
        /// The run, as `gpufleet runs` names it.
        #[arg(value_name = "RUN")]
        run: String,
    },
    /// Removes nodes that are no more, with all that audits found of them.
    Retire {
        /// Nodes, by their names in the history.
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
    },
    /// Removes audits that are older than this; since when a finding is open stays known.
    Prune {
        /// How long audits are kept, such as `400d`.
        #[arg(long, value_name = "TIME", value_parser = duration)]
        keep: u64,
    },
}
