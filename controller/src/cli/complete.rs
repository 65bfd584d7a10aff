//! `complete`, which the scripts of `completion` call: names of hosts, groups and runs for the word that is being typed.
//!
//! Owns which of them a word may be, judged by the command line that clap knows, and nothing of shells. It runs no
//! inventory script, asks for no password, and gives up after a short time, because a person waits for it.

use std::{collections::BTreeSet, sync::mpsc, thread, time::Duration};

use clap::{Arg, Args, CommandFactory as _, FromArgMatches as _};
use gpufleet::{
    inventory::{Inventory, LoadOptions},
    journal::newest_runs,
};

use super::{
    args::{Cli, Command, HostsArgs},
    configuration::Configuration,
    environment::Environment,
    error::CommandError,
    output::Output,
    sources,
};

/// How long names are looked for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Runs that are offered, the newest.
const RUNS: usize = 50;
/// What separates the parts of a pattern, or stands before one.
const SIGNS: [char; 4] = [',', ':', '&', '!'];

#[derive(Clone, Debug, Args)]
pub struct CompleteArgs {
    /// The words behind `gpufleet`, up to the one that is being typed.
    #[arg(last = true)]
    pub words: Vec<String>,
}

/// What a word may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Hosts and groups, alone or in a pattern.
    Pattern,
    Host,
    Group,
    Run,
}

impl Names {
    /// What the value of an argument names.
    pub fn of(arg: &Arg) -> Option<Self> {
        match arg.get_id().as_str() {
            "pattern" | "limit" => Some(Self::Pattern),
            "host" | "node" => Some(Self::Host),
            "group" | "graph" => Some(Self::Group),
            "run" => Some(Self::Run),
            _ => None,
        }
    }
}

/// The word that is being typed, and what is said before it.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    names: Names,
    word: String,
    inventories: Vec<String>,
}

pub fn complete(
    args: &CompleteArgs,
    configuration: &Configuration,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    let Some(asked) = asked(&args.words) else { return Ok(0) };
    let found = match asked.names {
        Names::Run => newest_runs(&environment.state_dir)
            .into_iter()
            .take(RUNS)
            .map(|run| run.to_string())
            .chain(["latest".to_owned()])
            .collect(),
        names => {
            let mut command = hosts_of(asked.inventories)?;
            configuration.apply(&mut command);
            let Command::Hosts(HostsArgs { inventory, .. }) = command else { return Ok(0) };
            let sources = sources::named(&inventory, environment);
            known_in_time(sources, names)
        }
    };
    let text: String = matching(&found, &asked.word, asked.names).map(|name| format!("{name}\n")).collect();
    output.data(&text)?;
    Ok(0)
}

/// `gpufleet hosts` with these inventories, for the settings to fill in.
fn hosts_of(inventories: Vec<String>) -> Result<Command, CommandError> {
    let words = inventories.into_iter().flat_map(|source| ["-i".to_owned(), source]);
    let words = ["gpufleet", "hosts"].map(str::to_owned).into_iter().chain(words);
    let parsed =
        Cli::command().try_get_matches_from(words).and_then(|matches| Cli::from_arg_matches(&matches));
    Ok(parsed.map_err(CommandError::user)?.command)
}

/// The names in these inventories; none where they cannot be read in time.
fn known_in_time(sources: Vec<String>, names: Names) -> BTreeSet<String> {
    let (sender, receiver) = mpsc::channel();
    // Why left alone where it is too late: a read of a file that hangs cannot be ended, and this process ends.
    thread::spawn(move || {
        let options =
            LoadOptions { sources, allow_empty: true, skip_scripts: true, ..LoadOptions::default() };
        let Ok(inventory) = Inventory::load(&options) else { return };
        let hosts = inventory.hosts().into_iter().map(|host| host.to_string());
        let groups = inventory.groups().map(|(group, _)| group.to_owned());
        let found: BTreeSet<String> = match names {
            Names::Host => hosts.collect(),
            Names::Group => groups.collect(),
            Names::Pattern | Names::Run => hosts.chain(groups).collect(),
        };
        // Why no error: the caller gave up.
        let _ = sender.send(found);
    });
    receiver.recv_timeout(PATIENCE).unwrap_or_default()
}

/// The names that go on with the word; of a pattern, with its last part.
fn matching<'a>(
    found: &'a BTreeSet<String>,
    word: &'a str,
    names: Names,
) -> impl Iterator<Item = String> + use<'a> {
    let word = word.trim_start_matches(['"', '\'']);
    let (head, part) = match word.rfind(SIGNS).filter(|_| names == Names::Pattern) {
        Some(at) => word.split_at(at + 1),
        None => ("", word),
    };
    found.iter().filter(move |name| name.starts_with(part)).map(move |name| format!("{head}{name}"))
}

/// What the last word may name, as far as clap's own description of the command line tells.
fn asked(words: &[String]) -> Option<Asked> {
    let (word, before) = words.split_last()?;
    let mut program = Cli::command();
    program.build();
    let mut command = &program;
    let mut positionals = 0;
    let mut inventories = Vec::new();
    let mut open: Option<&Arg> = None;
    for word in before {
        if let Some(arg) = open.take() {
            if arg.get_id() == "inventory" {
                inventories.push(word.clone());
            }
            continue;
        }
        if word == "--" {
            return None;
        }
        match option(command, word) {
            Some((arg, Some(value))) if arg.get_id() == "inventory" => inventories.push(value.to_owned()),
            Some((_, Some(_))) => {}
            Some((arg, None)) => open = Some(arg).filter(|arg| takes_value(arg)),
            None if word.starts_with('-') => {}
            None => match command.find_subcommand(word).filter(|_| positionals == 0) {
                Some(next) => command = next,
                None => positionals += 1,
            },
        }
    }
    let (arg, word) = match (open, option(command, word)) {
        (Some(arg), _) => (arg, word.as_str()),
        (None, Some((arg, Some(value)))) => (arg, value),
        (None, _) if word.starts_with('-') => return None,
        (None, _) => (command.get_positionals().nth(positionals)?, word.as_str()),
    };
    Some(Asked { names: Names::of(arg)?, word: word.to_owned(), inventories })
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// The option that a word is, with its value where that is in the same word.
fn option<'a, 'w>(command: &'a clap::Command, word: &'w str) -> Option<(&'a Arg, Option<&'w str>)> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let is_it = |arg: &&Arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
        };
        return Some((command.get_arguments().find(is_it)?, value));
    }
    let mut shorts = word.strip_prefix('-')?.char_indices();
    loop {
        let (at, short) = shorts.next()?;
        let arg = command.get_arguments().find(|arg| arg.get_short() == Some(short))?;
        let rest = word.get(1 + at + short.len_utf8()..).unwrap_or_default();
        if takes_value(arg) {
            return Some((arg, Some(rest).filter(|rest| !rest.is_empty())));
        }
        if rest.is_empty() {
            return Some((arg, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<(Names, String, Vec<String>)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        asked(&words).map(|asked| (asked.names, asked.word, asked.inventories))
    }

    #[test]
    fn a_word_is_judged_by_where_it_stands() {
        let names = |line: &str| found(line).map(|(names, ..)| names);
        for line in
            ["hosts ", "facts gp", "exec gp", "clean gp", "run site.yaml -l gp", "audit a.yaml --limit=gp"]
        {
            assert_eq!(names(line), Some(Names::Pattern), "{line}");
        }
        for line in ["report ", "resume 01", "pause 0", "abort --format json 0"] {
            assert_eq!(names(line), Some(Names::Run), "{line}");
        }
        assert_eq!(names("plan a.yaml --node gp"), Some(Names::Host));
        assert_eq!(names("inventory --graph "), Some(Names::Group));
        for line in ["", "run a", "exec gpu -- ", "hosts gpu001 ", "run a.yaml -", "facts --form", "doc gp"] {
            assert_eq!(names(line), None, "{line}");
        }
    }

    #[test]
    fn the_inventories_of_the_line_are_read() {
        let (_, word, inventories) = found("-vq facts -i a --inventory=b -bic gp").unwrap();
        assert_eq!((word.as_str(), inventories), ("gp", ["a", "b", "c"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn the_last_part_of_a_pattern_goes_on() {
        let all = ["gpu001", "gpu002", "rack1"].map(str::to_owned).into();
        let of = |word: &str, names| matching(&all, word, names).collect::<Vec<_>>();
        assert_eq!(of("rack1:!gp", Names::Pattern), ["rack1:!gpu001", "rack1:!gpu002"]);
        assert_eq!(of("gpu001,r", Names::Pattern), ["gpu001,rack1"]);
        assert_eq!(of("a,r", Names::Host), [""; 0]);
    }
}
