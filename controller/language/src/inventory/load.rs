//! Loads the sources that a user names into one inventory.
//!
//! Owns what a source is (file, directory, list of hosts, script), the order of sources and their parts, and which
//! format a file has. Invariant: nothing is skipped silently; a source that cannot be read is an error.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::draft::{Draft, Origin, UNGROUPED};
use super::model::Inventory;
use super::var_files::VarFiles;
use super::{constructed, ini, range, script, tree};
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};
use crate::vault::{self, Keyring};
use crate::yaml::{self, Node};

/// What to load, and how.
#[derive(Clone)]
pub struct LoadOptions {
    /// Files, directories, executable scripts, or lists of hosts with a comma in them; later ones win.
    pub sources: Vec<String>,
    /// The directory of the playbook, whose `group_vars/` and `host_vars/` win over those beside the sources.
    pub playbook_dir: Option<PathBuf>,
    /// Whether that directory is the current one by default. Hosts then get its variables, but `--graph` does not
    /// show them as variables of groups.
    pub playbook_dir_implied: bool,
    /// Variables of the command line: passed to constructed groups that ask for them, and shown with every host.
    pub extra_vars: Map<String, Value>,
    /// Whether an inventory or a selection may be without hosts.
    pub allow_empty: bool,
    /// Time limit of one call of a script.
    pub script_timeout: Duration,
    /// Skips all scripts.
    pub skip_scripts: bool,
    /// Opens variable files that are encrypted as a whole, and `!vault` strings of the hosts that are used.
    pub keyring: Arc<Keyring>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            sources: Vec::new(),
            playbook_dir: None,
            playbook_dir_implied: false,
            extra_vars: Map::new(),
            allow_empty: false,
            script_timeout: Duration::from_mins(1),
            skip_scripts: false,
            keyring: Arc::default(),
        }
    }
}

impl std::fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("sources", &self.sources)
            .field("playbook_dir", &self.playbook_dir)
            .field("allow_empty", &self.allow_empty)
            .finish_non_exhaustive()
    }
}

/// Largest size of a file in bytes; larger ones are no inventories.
const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// Deepest nesting of directories that is followed, as links may form a circle.
const MAX_DIRECTORY_DEPTH: usize = 16;

/// Names in a directory of sources that are no sources.
const IGNORED_NAMES: [&str; 3] = ["group_vars", "host_vars", "vars_plugins"];
const IGNORED_ENDINGS: [&str; 12] =
    [".pyc", ".pyo", ".swp", ".bak", "~", ".rpm", ".md", ".txt", ".rst", ".orig", ".cfg", ".retry"];

const YAML_ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Reads all sources and merges all variables.
pub(super) fn load(options: &LoadOptions) -> Result<Inventory, Diagnostics> {
    let mut draft = Draft::new();
    let mut errors = Diagnostics::new();
    for source in options.sources.iter().filter(|source| !source.is_empty()) {
        errors.absorb(read_source(&mut draft, source, options));
    }
    if draft.hosts.is_empty() && !errors.has_errors() && !options.allow_empty {
        return Err(no_hosts(options).into());
    }
    errors.append(draft.names_without_a_pattern());
    draft.finish();
    let beside_sources =
        options.sources.iter().filter_map(|source| variable_base(source)).map(|base| VarFiles::beside(&base));
    let beside_playbook = options.playbook_dir.as_deref().map(VarFiles::beside);
    // Also after errors, so that mistakes in variable files are reported too.
    let inventory =
        errors.absorb(Inventory::build(draft, beside_sources.collect(), beside_playbook, options));
    match inventory {
        Some(inventory) if !errors.has_errors() => Ok(inventory),
        _ => Err(errors),
    }
}

fn no_hosts(options: &LoadOptions) -> Diagnostic {
    let sources: Vec<&str> =
        options.sources.iter().map(String::as_str).filter(|source| !source.is_empty()).collect();
    if sources.is_empty() {
        return Diagnostic::error("no inventory is given")
            .help("name one with `-i`: a file, a directory, or `host1,host2,`");
    }
    Diagnostic::error(format!("the inventory has no hosts: {}", sources.join(", ")))
        .help("add hosts, or allow an empty inventory with `--allow-empty`")
}

/// Returns the folder of a source's variable files; `None` for a list of hosts.
fn variable_base(source: &str) -> Option<PathBuf> {
    let path = Path::new(source);
    if source.is_empty() || (source.contains(',') && !path.exists()) {
        return None;
    }
    Some(if path.is_dir() { path.to_owned() } else { parent_of(path) })
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn read_source(draft: &mut Draft, source: &str, options: &LoadOptions) -> Result<(), Diagnostics> {
    let path = Path::new(source);
    if path.exists() {
        return read_path(draft, path, options, 0);
    }
    if source.contains(',') {
        return read_list(draft, source);
    }
    let error = Diagnostic::error(format!("there is no inventory `{source}`"));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let siblings: Vec<String> = std::fs::read_dir(parent_of(path))
        .map(|entries| entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    Err(match crate::diagnostic::suggest(name, siblings.iter().map(String::as_str)) {
        Some(near) => error.help(format!("did you mean `{}`?", path.with_file_name(near).display())),
        None => error.help(format!("if `{source}` is a host, write a comma behind it: `{source},`")),
    }
    .into())
}

/// Reads `host1,host2:2222,`.
fn read_list(draft: &mut Draft, list: &str) -> Result<(), Diagnostics> {
    let source = SourceFile::new("host list", list);
    draft.origin = Arc::new(Origin { file: list.to_owned(), dir: None });
    let mut errors = Diagnostics::new();
    let mut column = 0;
    for entry in list.split(',') {
        let name = entry.trim();
        let blanks = entry.chars().take_while(|c| c.is_whitespace()).count();
        let place = Span::new(&source, 1, 1, 0).part(column + blanks, name.chars().count());
        column += entry.chars().count() + 1;
        if name.is_empty() {
            continue;
        }
        match ini::hosts_of(name, &place) {
            Ok(hosts) => {
                for name in &hosts.names {
                    if !draft.host_index.contains_key(name.as_str()) {
                        draft.add_host(name, UNGROUPED, hosts.port, &place);
                    }
                }
            }
            Err(error) => errors.push(*error),
        }
    }
    errors.into_result(())
}

fn read_path(draft: &mut Draft, path: &Path, options: &LoadOptions, depth: usize) -> Result<(), Diagnostics> {
    if !path.is_dir() {
        return read_inventory_file(draft, path, options);
    }
    if depth > MAX_DIRECTORY_DEPTH {
        return Err(Diagnostic::error(format!("directories are nested too deep: {}", path.display())).into());
    }
    let entries = std::fs::read_dir(path).map_err(|error| unreadable(path, &error))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(path, &error))?;
        match entry.file_name().into_string() {
            Ok(name) => names.push(name),
            Err(name) => {
                return Err(Diagnostic::error(format!(
                    "the file name is not UTF-8: {}",
                    Path::new(&name).display()
                ))
                .into());
            }
        }
    }
    names.sort();
    let mut errors = Diagnostics::new();
    for name in names.iter().filter(|name| !is_ignored(name)) {
        errors.absorb(read_path(draft, &path.join(name), options, depth + 1));
    }
    errors.into_result(())
}

fn is_ignored(name: &str) -> bool {
    name.starts_with('.')
        || IGNORED_NAMES.contains(&name)
        || IGNORED_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(format!("cannot read {}: {error}", path.display()))
}

/// Reads a text file. Messages call it by `path` as given.
pub(super) fn read_file(path: &Path) -> Result<Arc<SourceFile>, Diagnostics> {
    vault::decode(&path.display().to_string(), &read_bytes(path)?)
}

/// Reads an inventory. Comment lines may be in any encoding.
fn read_inventory_text(path: &Path) -> Result<Arc<SourceFile>, Diagnostics> {
    let bytes = read_bytes(path)?;
    let name = path.display().to_string();
    vault::decode(&name, &bytes).or_else(|errors| {
        let plain = |line: &[u8]| std::str::from_utf8(line).is_ok();
        let lines: Vec<&[u8]> = bytes
            .split(|byte| *byte == b'\n')
            .map(
                |line| {
                    if matches!(line.first(), Some(b'#' | b';')) && !plain(line) { &b"#"[..] } else { line }
                },
            )
            .collect();
        yaml::decode(&name, &lines.join(&b'\n')).map_err(|_| errors)
    })
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, Diagnostics> {
    let file = std::fs::File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Diagnostic::error(format!(
            "{} is larger than {} MiB",
            path.display(),
            MAX_FILE_BYTES >> 20
        ))
        .into());
    }
    Ok(bytes)
}

fn read_inventory_file(draft: &mut Draft, path: &Path, options: &LoadOptions) -> Result<(), Diagnostics> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    draft.origin = Arc::new(Origin {
        file: absolute.display().to_string(),
        dir: absolute.parent().map(|parent| parent.display().to_string()),
    });
    let result = read_file_of_any_kind(draft, path, options);
    let base = parent_of(path);
    if result.is_ok() && !draft.bases.contains(&base) {
        draft.bases.push(base);
    }
    result
}

fn read_file_of_any_kind(draft: &mut Draft, path: &Path, options: &LoadOptions) -> Result<(), Diagnostics> {
    if script::is_script(path) {
        if options.skip_scripts {
            return Ok(());
        }
        return script::read(draft, path, options.script_timeout);
    }
    let mut source = read_inventory_text(path)?;
    if vault::is_encrypted(source.text()) {
        source = options.keyring.open_file(&source)?;
    }
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    if ending == "toml" {
        return Err(Diagnostic::error("TOML inventories are not supported")
            .at(&Span::new(&source, 1, 1, 0))
            .help("write it as YAML or INI")
            .into());
    }
    let text = TextFile { path, source: &source, options };
    if ending.is_empty() || ending == "config" || YAML_ENDINGS.contains(&ending) {
        text.read_yaml_or_ini(draft, ending.is_empty())
    } else {
        read_ini(draft, &source)
    }
}

fn read_ini(draft: &mut Draft, source: &Arc<SourceFile>) -> Result<(), Diagnostics> {
    let result = ini::read(draft, source);
    if result.is_err()
        && let Ok(root) = yaml::parse_source(source)
        && root.as_map().is_some()
    {
        return Err(Diagnostic::error("this file is YAML, but its name does not say so")
            .at(&root.span)
            .label("read as INI because of the ending of the name")
            .help("name it `.yaml`, `.yml` or `.json`")
            .into());
    }
    result
}

/// An inventory file that is no script.
struct TextFile<'a> {
    path: &'a Path,
    source: &'a Arc<SourceFile>,
    options: &'a LoadOptions,
}

impl TextFile<'_> {
    /// Reads YAML or else INI, in the order in which Ansible tries them, so that any file ending will do.
    fn read_yaml_or_ini(&self, draft: &mut Draft, open: bool) -> Result<(), Diagnostics> {
        let source = self.source;
        let yaml_errors = match yaml::parse_source(source) {
            Ok(root) if root.as_map().is_some() => return self.read_tree(draft, &root),
            Ok(root) if root.is_null() => return Ok(()),
            Ok(root) => not_a_mapping(&root),
            Err(errors) => errors,
        };
        // A brace begins neither a host nor a section, so the mistake must be one in JSON.
        if source.text().trim_start().starts_with('{') {
            return Err(yaml_errors);
        }
        let mut trial = Draft::new();
        for group in &draft.groups {
            trial.add_group(&group.name);
        }
        match ini::read(&mut trial, source) {
            Ok(()) => ini::read(draft, source),
            Err(ini_errors) if looks_like_ini(source.text(), open) => Err(ini_errors),
            Err(_) => Err(yaml_errors),
        }
    }

    /// Reads groups and hosts, or a file that constructs them from earlier ones.
    fn read_tree(&self, draft: &mut Draft, root: &Node) -> Result<(), Diagnostics> {
        self.options.keyring.note(root);
        if !root.get("plugin").and_then(Node::as_str).is_some_and(constructed::is_constructed) {
            return tree::read(draft, root);
        }
        // Without an error, the file would silently do nothing.
        if draft.hosts.is_empty() {
            let at = root.entry("plugin").map_or(&root.span, |(key, _)| &key.span);
            return Err(Diagnostic::error("no host is known where this file is read, so it constructs nothing")
                .at(at)
                .label("works on the hosts of the sources before it")
                .help("sources are read as they are given with -i, those of a folder by their names: name it behind the others, such as `zz-constructed.yml`")
                .into());
        }
        let before = draft.bases.clone();
        let surroundings = constructed::Surroundings {
            folder: &parent_of(self.path),
            before: &before,
            extra_vars: &self.options.extra_vars,
            keyring: &self.options.keyring,
        };
        // Parsed again with a source that may show the value of `key`, which is an expression here.
        let source = SourceFile::with_plain_key(self.source.name(), self.source.text());
        constructed::read(draft, &yaml::parse_source(&source)?, &surroundings)
    }
}

fn not_a_mapping(root: &Node) -> Diagnostics {
    root.wrong_type("an inventory", "a mapping of groups")
        .help("begin with `all:`, and hosts under `hosts:`")
        .into()
}

/// Whether the author probably meant INI.
fn looks_like_ini(text: &str, open: bool) -> bool {
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    let section = |line: &str| {
        line.strip_prefix('[')
            .and_then(|line| line.split_once(']'))
            .is_some_and(|(name, _)| !name.contains([',', '"']))
    };
    let Some(first) = lines.next() else { return false };
    if section(first) {
        return true;
    }
    let yaml =
        first == "---" || first.starts_with(['{', '-', '"']) || first.ends_with(':') || first.contains(": ");
    !yaml && (open || lines.any(section))
}

/// Whether a text holds a range, so that it stands for several names.
pub(super) fn expands(text: &str) -> bool {
    range::expand(text).is_ok_and(|names| names.len() > 1)
}
