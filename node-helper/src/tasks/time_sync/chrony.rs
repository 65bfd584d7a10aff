//! Servers of chrony: those that its files name, those that the running daemon asks, and which of them answer.

use std::{collections::BTreeSet, path::PathBuf};

use gpufleet_protocol::{glob::Glob, tasks::TimeSync};

use super::{Runs, Servers, asked};
use crate::{
    declare::{Node, Trouble},
    os::glob,
    tasks::{edits::Present, layered, started},
};

/// More files than any configuration includes.
const MOST: usize = 256;

/// A server, pool or peer that a file names.
struct Named {
    directive: String,
    name: String,
    file: String,
}

/// What chrony reads at its start.
struct Config {
    main: Present,
    /// Each sourcedir line.
    folders: Vec<Vec<String>>,
    named: Vec<Named>,
    /// Files and folders of which a change counts only after a new start.
    places: Vec<PathBuf>,
}

/// A line of `chronyc sources`.
struct Source {
    name: String,
    answers: bool,
}

/// Returns the words of each line that is no comment.
fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with(['#', '!', ';', '%']));
    lines.map(|line| line.split_whitespace().collect())
}

/// Returns what a file names of servers.
fn named(text: &str, file: &str) -> Vec<Named> {
    let of = |words: Vec<&str>| {
        let directive = words.first()?.to_ascii_lowercase();
        let name = (*words.get(1)?).to_owned();
        let is_source = matches!(directive.as_str(), "server" | "pool" | "peer");
        is_source.then(|| Named { directive, name, file: file.to_owned() })
    };
    lines(text).filter_map(of).collect()
}

/// Returns the files of an `include`, whose last part may be a pattern, and so its folders.
fn included(node: &Node<'_>, pattern: &str) -> Result<Vec<String>, Trouble> {
    let Some((folder, last)) = pattern.rsplit_once('/') else { return Ok(Vec::new()) };
    if !Glob::is_glob(pattern) {
        return Ok(vec![pattern.to_owned()]);
    }
    let mut found = Vec::new();
    for place in glob::expand(&node.roots.path(folder), Glob::of_shell) {
        let names = node.world.names(&place)?;
        let fits = |name: &String| Glob::of_shell(last).matches(name) && !name.starts_with('.');
        found.extend(names.into_iter().filter(fits).map(|name| place.join(name).display().to_string()));
    }
    Ok(found)
}

impl Config {
    fn read(node: &Node<'_>) -> Result<Self, Trouble> {
        let mut main = Present::read(node, "/etc/chrony/chrony.conf")?;
        if main.bytes.is_none() {
            main = Present::read(node, "/etc/chrony.conf")?;
        }
        if main.bytes.is_none() {
            return Err(Trouble::missing("neither /etc/chrony/chrony.conf nor /etc/chrony.conf is there"));
        }
        let mut open = vec![main.shown.clone()];
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut config = Self { main, folders: Vec::new(), named: Vec::new(), places: Vec::new() };
        while let Some(path) = open.pop() {
            if seen.len() >= MOST || !seen.insert(path.clone()) {
                continue;
            }
            let place = node.roots.path(&path);
            let bytes = node.world.read(&place)?.unwrap_or_default();
            config.places.push(place);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            config.named.extend(named(&text, &path));
            for words in lines(&text) {
                let Some((first, rest)) = words.split_first() else { continue };
                match first.to_ascii_lowercase().as_str() {
                    "include" => {
                        for pattern in rest {
                            open.extend(included(node, pattern)?);
                        }
                    }
                    "confdir" => {
                        open.extend(layered::files(node, rest, ".conf")?);
                        config.places.extend(rest.iter().map(|folder| node.roots.path(folder)));
                    }
                    "sourcedir" => config.folders.push(rest.iter().map(|word| (*word).to_owned()).collect()),
                    _ => {}
                }
            }
        }
        Ok(config)
    }

    /// Adds what the folders of sources name, without our own file.
    fn read_sources(&mut self, node: &Node<'_>, own: &str) -> Result<(), Trouble> {
        for line in &self.folders {
            let folders: Vec<&str> = line.iter().map(|folder| folder.trim_end_matches('/')).collect();
            for path in layered::files(node, &folders, ".sources")? {
                if path != own {
                    let bytes = node.world.read(&node.roots.path(&path))?.unwrap_or_default();
                    self.named.extend(named(&String::from_utf8_lossy(&bytes), &path));
                }
            }
        }
        Ok(())
    }
}

/// Returns what the daemon asks, clocks of the machine itself aside. Source: chronyc(1): mode, state, name, stratum, interval and
/// reach.
fn sources(node: &Node<'_>) -> Result<Vec<Source>, Trouble> {
    // With those that have no address yet, which is so right after a start.
    let answer = asked(node, "chronyc", &["-N", "-c", "sources", "-a"])?.map_err(Trouble::io)?;
    let source = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let (mode, state) = (*fields.first()?, *fields.get(1)?);
        let is_reached = fields.get(5).is_some_and(|reach| !reach.trim_matches('0').is_empty());
        let answers = is_reached && matches!(state, "*" | "+" | "-");
        (mode != "#").then_some(Source { name: (*fields.get(2)?).to_owned(), answers })
    };
    Ok(answer.lines().filter_map(source).collect())
}

/// Returns how the declared servers are with chrony.
///
/// # Errors
/// If chrony is too old, does not answer, or its files cannot be read.
pub fn servers(node: &Node<'_>, servers: &[String], runs: &Runs) -> Result<Servers, Trouble> {
    let version = asked(node, "chronyc", &["--version"])?.map_err(Trouble::io)?;
    let major = version.split("version ").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    if major.is_none_or(|major| major < 4) {
        return Err(Trouble::invalid(
            "chrony before 4.0 reads no folder of sources: `template` or `lineinfile` declares its servers in chrony.conf",
        ));
    }
    let mut config = Config::read(node)?;
    let lasting = config.folders.iter().flatten().find(|folder| folder.starts_with("/etc/"));
    let is_listed = lasting.is_some();
    // AppArmor lets chronyd of Debian and Ubuntu read folders in /etc/chrony only.
    let usual = match config.main.shown.starts_with("/etc/chrony/") {
        true => "/etc/chrony/sources.d",
        false => "/etc/chrony.sources.d",
    };
    let folder = lasting.map_or(usual, |folder| folder.trim_end_matches('/')).to_owned();
    let conf = config.main.text()?;
    let edit = (!is_listed).then(|| {
        let end = if conf.is_empty() || conf.ends_with('\n') { "" } else { "\n" };
        format!("{conf}{end}# Added by gpufleet: `time_sync`.\nsourcedir {folder}\n")
    });
    let file = Present::read(node, &format!("{folder}/{}", TimeSync::SOURCES))?;
    config.read_sources(node, &file.shown)?;
    let mut text = "# Written by gpufleet.\n".to_owned();
    servers.iter().for_each(|server| text.push_str(&format!("server {server} iburst\n")));
    let is_in = |name: &str| servers.iter().any(|own| TimeSync::same_server(own, name));
    let others = config.named.iter().filter(|named| !is_in(&named.name));
    let others = others.map(|named| format!("{} {} ({})", named.directive, named.name, named.file)).collect();
    let sources = sources(node)?;
    let mut strays: Vec<String> = Vec::new();
    for Source { name, .. } in &sources {
        let is_named = config.named.iter().any(|named| TimeSync::same_server(&named.name, name));
        if !is_in(name) && !is_named && !strays.contains(name) {
            strays.push(name.clone());
        }
    }
    let is_of = |source: &Source, server: &str| TimeSync::same_server(&source.name, server);
    let is_asked = |server: &&String| sources.iter().any(|source| is_of(source, server));
    let answers = |server: &&String| sources.iter().any(|source| source.answers && is_of(source, server));
    let now = servers.iter().filter(is_asked).chain(&strays).cloned().collect();
    let silent = servers.iter().filter(|server| !answers(server)).cloned().collect();
    let stale = edit.is_some() || started::before(node, runs.pid, &config.places)?;
    let main = edit.map(|text| (config.main, text));
    Ok(Servers { file, text, main, now: Some(now), strays, silent: Some(silent), stale, others })
}
