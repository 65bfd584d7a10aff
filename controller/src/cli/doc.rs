//! `doc`, `schema`, `completion` and `man`: what gpufleet tells about itself.

use std::{fs, path::PathBuf};

use clap::{Args, CommandFactory, ValueEnum, builder::PossibleValue};
use gpufleet::{diagnostic, playbook, reference, visible::command_line};
use gpufleet_compliance::Catalogue;
use gpufleet_protocol::tasks;

use super::{
    args::{Cli, DocArgs},
    complete::Names,
    error::CommandError,
    groups, guide,
    output::Output,
};

/// The page about drainers, beside those of kinds.
const DRAIN: &str = "drain";
/// The page that lists the checks; each has one of its own under its id.
const CHECKS: &str = "checks";

const OTHERS: [(&str, &str); 2] = [
    (DRAIN, "How nodes are taken out of service and given back."),
    (CHECKS, "What an audit judges; each check has a page under its id."),
];

/// Every page of `gpufleet doc`, with its summary.
fn pages() -> impl Iterator<Item = (&'static str, &'static str)> {
    let kinds = tasks::KINDS.iter().map(|kind| (kind.name, kind.summary));
    kinds.chain(OTHERS).chain(guide::pages())
}

/// Names and summaries of all pages by what they are about, one per line.
fn list() -> String {
    let width = pages().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, summary): (&str, &str)| format!("  {name:width$}  {summary}\n");
    let kinds: Vec<&str> = tasks::KINDS.iter().map(|kind| kind.name).collect();
    let mut out = String::new();
    for (subject, names) in groups::kinds(&kinds) {
        let summary = |name: &'static str| Some((name, tasks::find(name)?.summary));
        out.push_str(&format!("{subject}:\n"));
        out.extend(names.into_iter().filter_map(summary).map(line));
        out.push('\n');
    }
    out.push_str("Pages:\n");
    out.extend(OTHERS.into_iter().chain(guide::pages()).map(line));
    out.push_str(
        "\n`gpufleet doc WORD` also explains each check, key of `rollout`, word and exit code of a report, and Xid.\n",
    );
    out
}

/// Takes any name; lists those that shells complete.
#[derive(Clone, Debug)]
pub struct KindName;

impl clap::builder::TypedValueParser for KindName {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        clap::builder::StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(pages().map(|(name, summary)| PossibleValue::new(name).help(summary))))
    }
}

pub fn doc(args: &DocArgs, output: &Output) -> Result<u8, CommandError> {
    let name = args.words.join(" ");
    if name.is_empty() {
        output.data(&if args.all { reference::kinds_markdown() } else { list() })?;
        return Ok(0);
    }
    if let (true, Some(kind)) = (args.schema, tasks::find(&name)) {
        output.data(&gpufleet::visible::json_document(&kind.schema()).map_err(CommandError::internal)?)?;
        return Ok(0);
    }
    let text = if args.schema { String::new() } else { explain(&name) };
    if text.is_empty() {
        return Err(not_found(&name, args.schema));
    }
    output.data(&text)?;
    Ok(0)
}

/// All that there is of a word; empty where that is nothing.
fn explain(word: &str) -> String {
    let page = match word {
        drainer if drainer == DRAIN || playbook::DRAINERS.iter().any(|info| info.word == drainer) => {
            Some(reference::drainers_text())
        }
        CHECKS => Some(reference::checks_text()),
        _ => reference::check_text(word)
            .or_else(|| reference::kind_text(word))
            .or_else(|| guide::page(word).map(str::to_owned)),
    };
    // Why also where there is a page: `reboot` is a kind, a key and a word of disruption.
    let parts = [page, Some(guide::about(word)), xid(word).map(reference::xid_text)];
    let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

/// `79`, `xid 79` or `Xid79` as the number of an error of the driver.
fn xid(word: &str) -> Option<u32> {
    let lower = word.to_lowercase();
    lower.strip_prefix("xid").unwrap_or(&lower).trim().parse().ok().filter(|code| *code < 1000)
}

fn not_found(word: &str, wants_schema: bool) -> CommandError {
    if wants_schema {
        let error = CommandError::user(format!("no task kind `{word}`"));
        return match diagnostic::did_you_mean(word, tasks::KINDS.iter().map(|kind| kind.name)) {
            Some(near) => error.hint(near),
            None => error.hint("`gpufleet doc` lists the kinds"),
        };
    }
    let error = CommandError::user(format!(
        "nothing is known of `{word}`: no task kind, no check, no word of the guide"
    ));
    if let Some(advice) = playbook::module_advice(word) {
        return error.hint(advice.text());
    }
    let checks = Catalogue::get().checks().iter().map(|check| &*check.id);
    let known: Vec<&str> = pages().map(|(name, _)| name).chain(checks).chain(guide::explained()).collect();
    let near = nearest(word, &known);
    let mentioned: Vec<String> = guide::mention(word)
        .into_iter()
        .take(MOST)
        .map(|page| format!("`{}`", command_line(["gpufleet", "doc", page])))
        .collect();
    match (near.is_empty(), mentioned.is_empty()) {
        (true, true) => error.hint("`gpufleet doc` lists kinds and pages, `gpufleet doc checks` the checks"),
        (false, true) => error.hint(format!("did you mean {}?", near.join(", "))),
        (true, false) => error.hint(format!("it is written of in {}", mentioned.join(", "))),
        (false, false) => error
            .hint(format!("did you mean {}?", near.join(", ")))
            .hint(format!("it is written of in {}", mentioned.join(", "))),
    }
}

/// How many names are offered for a word that is none.
const MOST: usize = 4;

/// The names that a word was most likely meant to be, in backquotes: the nearest by edits, then those that contain it.
fn nearest(word: &str, known: &[&'static str]) -> Vec<String> {
    let mut found: Vec<&str> = Vec::new();
    while let Some(next) =
        diagnostic::suggest(word, known.iter().copied().filter(|name| !found.contains(name)))
            .filter(|_| found.len() < MOST)
    {
        found.push(next);
    }
    let lower = word.to_lowercase();
    for name in known.iter().filter(|name| lower.chars().count() > 2 && name.to_lowercase().contains(&lower))
    {
        if found.len() < MOST && !found.contains(name) {
            found.push(name);
        }
    }
    found.into_iter().map(|name| format!("`{name}`")).collect()
}

#[derive(Clone, Debug, Args)]
pub struct SchemaArgs {
    /// Which schema.
    pub what: SchemaName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaName {
    /// Playbooks.
    Playbook,
    /// Files of tasks, such as those of roles.
    Tasks,
    /// Inventories in YAML.
    Inventory,
    /// The document of `--format json`.
    Report,
    /// The document of `gpufleet report diff --format json`.
    ReportDiff,
    /// A line of `--format jsonl`.
    Event,
    /// The document of `gpufleet check --format json`.
    Check,
    /// The settings in `gpufleet.toml`.
    Config,
    /// The configuration of `gpufleet watch`.
    Watch,
    /// What `gpufleet watch` tells webhooks and commands.
    Notification,
}

pub fn schema(args: &SchemaArgs, output: &Output) -> Result<u8, CommandError> {
    let schema = match args.what {
        SchemaName::Playbook => reference::playbook_schema(),
        SchemaName::Tasks => reference::tasks_schema(),
        SchemaName::Inventory => reference::inventory_schema(),
        SchemaName::Config => reference::config_schema(),
        SchemaName::Report => reference::report_schema(),
        SchemaName::ReportDiff => reference::difference_schema(),
        SchemaName::Event => reference::event_schema(),
        SchemaName::Check => reference::check_schema(),
        SchemaName::Watch => gpufleet_watch::config::schema(),
        SchemaName::Notification => gpufleet_watch::notification::schema(),
    };
    output.data(&gpufleet::visible::json_document(&schema).map_err(CommandError::internal)?)?;
    Ok(0)
}

pub fn completion(shell: clap_complete::Shell, output: &Output) -> Result<u8, CommandError> {
    output.data(&completions(shell))?;
    Ok(0)
}

/// Names of hosts, groups and runs come from `gpufleet complete`; without any, the words of the command line are offered.
const BASH_NAMES: &str = r#"
_gpufleet_names() {
    _gpufleet "$@"
    local line="${COMP_LINE:0:COMP_POINT}" words word name typed=""
    local -a found
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    mapfile -t found < <("${words[0]}" complete -- "${words[@]:1}" 2> /dev/null)
    (( ${#found[@]} )) || return 0
    word="${words[${#words[@]} - 1]}"
    # What stands before the last `:` is a word of its own to the shell, unless it is in quotes.
    if [[ "$word" == *:* && "$word" != [\"\']* && "$COMP_WORDBREAKS" == *:* ]]; then
        typed="${word%"${word##*:}"}"
    fi
    COMPREPLY=()
    for name in "${found[@]}"; do
        COMPREPLY+=("${name#"$typed"}")
    done
}
complete -F _gpufleet_names -o bashdefault -o default gpufleet
"#;

const ZSH_NAMES: &str = r#"
_gpufleet() {
    local -a found
    found=(${(f)"$("${words[1]}" complete -- "${(@)words[2,CURRENT-1]}" "$PREFIX" 2> /dev/null)"})
    if (( $#found )); then
        compset -P '--*='
        compadd -a found
    else
        _gpufleet_words "$@"
    fi
}
"#;

/// For fish, each argument says by itself where its words come from.
fn fish_names() -> String {
    let mut text = "\nfunction __gpufleet_names\n    set -l words (commandline -opc) (commandline -ct)\n    \
                    $words[1] complete -- $words[2..-1] 2> /dev/null\nend\n"
        .to_owned();
    for command in Cli::command().get_subcommands() {
        let at = format!(
            "complete -c gpufleet -n \"__fish_gpufleet_using_subcommand {}\" -f -a \"(__gpufleet_names)\"",
            command.get_name()
        );
        for arg in command.get_arguments().filter(|arg| Names::of(arg).is_some()) {
            text.push_str(&at);
            text.extend(arg.get_short().map(|short| format!(" -r -s {short}")));
            text.extend(arg.get_long().map(|long| format!(" -r -l {long}")));
            text.push('\n');
        }
    }
    text
}

fn completions(shell: clap_complete::Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gpufleet", &mut text);
    let mut text = String::from_utf8_lossy(&text).into_owned();
    match shell {
        clap_complete::Shell::Bash => text.push_str(BASH_NAMES),
        clap_complete::Shell::Zsh => {
            // Why under another name: the shell calls the one of the file, and that one asks for names first.
            text = text.replacen("_gpufleet() {", "_gpufleet_words() {", 1);
            let end = text.rfind("\nif [").unwrap_or(text.len());
            text.insert_str(end, ZSH_NAMES);
        }
        clap_complete::Shell::Fish => text.push_str(&fish_names()),
        _ => {}
    }
    if shell == clap_complete::Shell::Fish {
        // Why: for fish, clap leaves out the words that stand without an option.
        let schemas = SchemaName::value_variants().iter().filter_map(|name| name.to_possible_value());
        let words = pages().map(|(name, summary)| ("doc", name.to_owned(), summary.to_owned())).chain(
            schemas.map(|name| {
                let help = name.get_help().map(ToString::to_string).unwrap_or_default();
                ("schema", name.get_name().to_owned(), help)
            }),
        );
        for (command, word, help) in words {
            let help = help.replace('\\', "\\\\").replace('\'', "\\'");
            text.push_str(&format!(
                "complete -c gpufleet -n \"__fish_gpufleet_using_subcommand {command}\" -f -a \"{word}\" -d '{help}'\n"
            ));
        }
    }
    text
}

#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// Command whose page is printed, such as `run`; without it gpufleet's own.
    #[arg(conflicts_with = "out")]
    pub command: Option<String>,
    /// Writes the pages of all commands into this folder.
    #[arg(short, long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub out: Option<PathBuf>,
}

pub fn man(args: &ManArgs, output: &Output) -> Result<u8, CommandError> {
    let mut program = Cli::command();
    program.build();
    if let Some(folder) = &args.out {
        let failed = |error: &dyn std::fmt::Display| {
            CommandError::user(format!("cannot write man pages to {}: {error}", folder.display()))
        };
        fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        clap_mangen::generate_to(program, folder).map_err(|error| failed(&error))?;
        return Ok(0);
    }
    let page = match &args.command {
        None => clap_mangen::Man::new(program),
        Some(name) => {
            let known: Vec<String> =
                program.get_subcommands().map(|command| command.get_name().to_owned()).collect();
            let Some(command) = program.find_subcommand(name) else {
                let error = CommandError::user(format!("gpufleet has no command `{name}`"));
                return Err(match diagnostic::did_you_mean(name, known.iter().map(String::as_str)) {
                    Some(near) => error.hint(near),
                    None => error.hint(format!("commands are: {}", known.join(", "))),
                });
            };
            clap_mangen::Man::new(command.clone())
        }
    };
    let mut text = Vec::new();
    page.render(&mut text)?;
    output.bytes(&text)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_every_kind_and_command() {
        use clap_complete::Shell;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = completions(shell);
            for kind in tasks::KINDS {
                assert!(text.contains(kind.name), "{shell}: {}", kind.name);
            }
            for command in Cli::command().get_subcommands() {
                assert!(text.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }

    /// What a person reads on a screen of gpufleet, and types behind `doc`.
    #[test]
    fn each_word_that_gpufleet_shows_is_explained() {
        use gpufleet_protocol::Disruption;
        for key in playbook::VOCABULARY.rollout {
            assert!(!explain(key).is_empty(), "{key}");
        }
        for word in [Disruption::Live, Disruption::Clients, Disruption::GpuReset, Disruption::Reboot] {
            assert!(explain(&word.to_string()).contains("what happens: "), "{word}");
        }
        for word in ["ok", "warn", "drift", "unknown", "fail", "na"] {
            assert!(explain(word).contains("Verdicts; `gpufleet doc reports-and-exit-codes`"), "{word}");
        }
        for code in ["0", "1", "2", "3", "4", "5", "6", "130"] {
            assert!(explain(code).contains("Exit codes; `gpufleet doc reports-and-exit-codes`"), "{code}");
        }
        for word in ["rollout", "window", "keep", "night", "gpu_mig", "drain", "mem.remap_failed", "xid 13"] {
            assert!(!explain(word).is_empty(), "{word}");
        }
        for check in Catalogue::get().checks() {
            assert!(!explain(&check.id).is_empty(), "{}", check.id);
        }
        let lost = explain("79");
        for part in ["GPU has fallen off the bus", "reboot it", "`gpufleet doc err.xid_reboot`"] {
            assert!(lost.contains(part), "{lost}");
        }
        assert_eq!(explain("Xid79"), lost);
    }

    #[test]
    fn an_unknown_word_has_its_nearest_names() {
        let told = |word: &str| format!("{:?}", not_found(word, false));
        assert!(told("gpu_mgi").contains("`gpu_mig`"), "{}", told("gpu_mgi"));
        assert!(told("max_unavailble").contains("`max_unavailable`"), "{}", told("max_unavailble"));
        assert!(told("xid_").contains("`err.xid_reset`, `err.xid_reboot`"), "{}", told("xid_"));
        assert!(told("bastion1").contains("`gpufleet doc reboots`"), "{}", told("bastion1"));
        assert!(told("qqqqqq").contains("lists kinds and pages"), "{}", told("qqqqqq"));
    }

    #[test]
    fn a_shell_takes_the_completions() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpufleet.bash");
        fs::write(&file, completions(clap_complete::Shell::Bash)).unwrap();
        let ended = std::process::Command::new("bash").arg("-n").arg(&file).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }

    #[test]
    fn every_shell_asks_for_names() {
        use clap_complete::Shell;
        for (shell, asks) in [
            (Shell::Bash, "complete -F _gpufleet_names"),
            (Shell::Zsh, "\n_gpufleet_words() {"),
            (Shell::Zsh, "        _gpufleet_words \"$@\""),
            (Shell::Fish, "using_subcommand run\" -f -a \"(__gpufleet_names)\" -r -s l -r -l limit\n"),
            (Shell::Fish, "using_subcommand report\" -f -a \"(__gpufleet_names)\"\n"),
        ] {
            let text = completions(shell);
            assert!(text.contains(asks), "{shell}: {asks}");
        }
        let zsh = completions(Shell::Zsh);
        assert_eq!(zsh.matches("\n_gpufleet() {").count(), 1);
        assert!(zsh.find("\n_gpufleet() {") < zsh.rfind("\nif ["));
    }

    #[test]
    fn the_reference_of_commands_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/commands.md");
        let wanted = clap_markdown::help_markdown::<Cli>();
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &wanted).unwrap();
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        assert!(there == wanted, "docs/reference/commands.md is out of date: run `make reference`");
    }

    #[test]
    fn every_command_has_a_man_page() {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Cli::command();
        program.build();
        clap_mangen::generate_to(program, folder.path()).unwrap();
        for name in ["gpufleet.1", "gpufleet-run.1", "gpufleet-check.1", "gpufleet-vault-view.1"] {
            let page = fs::read_to_string(folder.path().join(name)).unwrap();
            assert!(page.contains(".TH"), "{name}");
        }
    }
}
