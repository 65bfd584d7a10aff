//! Parses YAML trees into the program. All mistakes are collected; none ends the parsing.

mod disturbing;
mod include;
mod job;
mod keys;
mod kind;
mod looping;
mod parameters;
mod play;
mod reach;
mod role;
mod rollout;
mod task;
mod values;
mod words;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use self::reach::LogsIn;
use super::library::{Library, names_below};
use super::names::Reference;
use super::program::{Condition, Play, Program, Task};
use super::role::Role;
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};
use crate::template::Dict;
use crate::vault::{self, Keyring};
use crate::yaml::{self, Node};

pub(super) use include::include_again;
pub(super) use keys::CONNECTION;
pub use role::{RoleCall, RoleParts};
pub(super) use task::Inherited;
pub use words::key_values;

/// Deepest nesting of imported files.
const MAX_IMPORTS: usize = 20;

/// The keys of plays, blocks and tasks, for descriptions of the language.
#[derive(Debug)]
pub struct Vocabulary {
    pub play: &'static [&'static str],
    /// Keys of `rollout`.
    pub rollout: &'static [&'static str],
    /// Keys that tasks and blocks share.
    pub shared: &'static [&'static str],
    pub block: &'static [&'static str],
    /// Keys of tasks only, without the names of kinds.
    pub task: &'static [&'static str],
}

pub static VOCABULARY: Vocabulary = Vocabulary {
    play: keys::PLAY,
    rollout: keys::ROLLOUT,
    shared: keys::SHARED,
    block: keys::BLOCK,
    task: keys::TASK,
};

/// Returns what to do instead of a key of Ansible that is not supported.
pub fn unavailable(key: &str) -> Option<&'static str> {
    keys::not_yet(key)
}

/// Where the parser gets files from: the disk, a journal's copies, or a test's map.
pub trait Reader {
    /// Returns the bytes of a file, named as in the playbook, relative to the folder of the file that names it.
    ///
    /// # Errors
    /// If it cannot be read; the message becomes part of the diagnostic.
    fn read(&self, path: &str) -> std::io::Result<Vec<u8>>;

    /// Returns the content of a regular file of at most `most` bytes; a task or a template may name any path.
    ///
    /// # Errors
    /// If it cannot be read, is no regular file, or is larger.
    fn read_regular(&self, path: &str, most: u64) -> std::io::Result<Vec<u8>> {
        let bytes = self.read(path)?;
        if bytes.len() as u64 > most { Err(too_large(most)) } else { Ok(bytes) }
    }

    /// Returns the names in a folder; folders end with `/`. The empty name is the current folder.
    ///
    /// # Errors
    /// If it cannot be read.
    fn list(&self, folder: &str) -> std::io::Result<Vec<String>> {
        let _ = folder;
        Err(std::io::Error::from(std::io::ErrorKind::NotFound))
    }

    /// Returns the target of a link, if the reader knows links.
    fn link(&self, path: &str) -> Option<String> {
        let _ = path;
        None
    }

    /// Returns the permission bits of a file, if the reader knows them.
    fn mode(&self, path: &str) -> Option<u32> {
        let _ = path;
        None
    }
}

/// Returns the error for a file that is larger than `most` bytes.
pub fn too_large(most: u64) -> std::io::Error {
    let most = if most >= 1 << 30 { format!("{} GiB", most >> 30) } else { format!("{} MiB", most >> 20) };
    std::io::Error::new(std::io::ErrorKind::FileTooLarge, format!("it has more than {most}"))
}

impl<F: Fn(&str) -> std::io::Result<Vec<u8>>> Reader for F {
    fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
        self(path)
    }
}

impl Reader for HashMap<String, String> {
    fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
        self.get(path)
            .map(|text| text.clone().into_bytes())
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, "no such file"))
    }

    fn list(&self, folder: &str) -> std::io::Result<Vec<String>> {
        Ok(names_below(self.keys().map(String::as_str), folder))
    }
}

impl Program {
    /// Parses playbooks and all files that they import.
    ///
    /// # Errors
    /// Every mistake in any of them, with its place.
    pub fn load<P: AsRef<str>>(paths: &[P], reader: &dyn Reader) -> Result<Self, Diagnostics> {
        Self::load_with(paths, reader, &Arc::default(), &[])
    }

    /// Parses playbooks with passwords for encrypted parts, and further folders of roles.
    ///
    /// # Errors
    /// As [`Program::load`], and for each part that no password opens.
    pub fn load_with<P: AsRef<str>>(
        paths: &[P],
        reader: &dyn Reader,
        keyring: &Arc<Keyring>,
        roles_path: &[String],
    ) -> Result<Self, Diagnostics> {
        Self::load_knowing(paths, reader, keyring, roles_path, &Arc::default(), false)
    }

    /// Parses like [`Program::load_with`], with the command line's variables, which names of files and keys of plays
    /// may use. With `keeps`, each play with GPU tasks that does not say otherwise has `keep: true`.
    ///
    /// # Errors
    /// As [`Program::load_with`].
    pub fn load_knowing<P: AsRef<str>>(
        paths: &[P],
        reader: &dyn Reader,
        keyring: &Arc<Keyring>,
        roles_path: &[String],
        extra: &Arc<Dict>,
        keeps: bool,
    ) -> Result<Self, Diagnostics> {
        let library = Arc::new(Library::new(Arc::clone(keyring), roles_path.to_vec(), Arc::clone(extra)));
        let mut parser = Parser::new(reader, library);
        parser.keeps = keeps;
        let mut plays = Vec::new();
        for path in paths {
            parser.given_file = plays.len();
            plays.extend(parser.playbook(path.as_ref(), None, &Base::default()));
        }
        if plays.is_empty() && !parser.errors.has_errors() {
            let names: Vec<_> = paths.iter().map(AsRef::as_ref).collect();
            parser.errors.push(
                Diagnostic::error(format!("there is no play in {}", names.join(", ")))
                    .help("a playbook is a list of plays, each with `hosts` and `tasks`"),
            );
        }
        let order = |error: &Diagnostic| {
            let span = error.span.as_ref()?;
            let file = parser.sources.iter().position(|source| source.name() == span.file());
            Some((file, span.line, span.column))
        };
        parser.errors.0.sort_by_key(order);
        let Parser { sources, warnings, library, errors, .. } = parser;
        let program = Self { plays, sources, warnings, library };
        errors.into_result(program)
    }
}

/// What `import_playbook` adds to the plays of its file.
#[derive(Clone, Default)]
struct Base {
    vars: Arc<Dict>,
    tags: Vec<String>,
    when: Vec<Condition>,
}

pub(super) struct Parser<'a> {
    reader: &'a dyn Reader,
    library: Arc<Library>,
    keyring: Arc<Keyring>,
    /// The folder of the playbook.
    directory: String,
    /// Whether the run has begun, so that no includes are parsed ahead.
    on: bool,
    errors: Diagnostics,
    warnings: Diagnostics,
    sources: Vec<Arc<SourceFile>>,
    /// Uses of variables since they were last taken.
    references: Vec<Reference>,
    /// Uses of variables in keys of the play's blocks.
    block_references: Vec<Reference>,
    imports: usize,
    /// What is being included now, to stop endless includes.
    under_way: Vec<String>,
    /// Roles that tasks of the play import.
    imported_roles: Vec<Arc<Role>>,
    /// Handlers of these roles, which follow those of the play.
    role_handlers_behind: Vec<Arc<Task>>,
    /// Variables defined by files that tasks of the play read.
    file_names: HashSet<String>,
    /// Variables with a value that uses no other variable.
    settled_names: HashSet<String>,
    /// Whether a file of variables is not known before the run.
    open_names: bool,
    /// Whether a template that a task of the play renders mentions facts.
    templates_ask: bool,
    /// Variables of the play and of those that import it, in falling precedence.
    statics: Vec<Arc<Dict>>,
    /// Whether the current file may never be included, so that files named in it may be missing.
    doubtful: bool,
    /// `remote_user` and `connection` of the play.
    logs_in: LogsIn,
    /// Index of the first play of the current playbook of the command line.
    given_file: usize,
    /// Whether plays with GPU tasks keep their state unless they say otherwise.
    keeps: bool,
}

impl<'a> Parser<'a> {
    fn new(reader: &'a dyn Reader, library: Arc<Library>) -> Self {
        Self {
            reader,
            keyring: Arc::clone(&library.keyring),
            library,
            directory: String::new(),
            on: false,
            errors: Diagnostics::new(),
            warnings: Diagnostics::new(),
            sources: Vec::new(),
            references: Vec::new(),
            block_references: Vec::new(),
            imports: 0,
            under_way: Vec::new(),
            imported_roles: Vec::new(),
            role_handlers_behind: Vec::new(),
            file_names: HashSet::new(),
            settled_names: HashSet::new(),
            open_names: false,
            templates_ask: false,
            statics: Vec::new(),
            doubtful: false,
            logs_in: LogsIn::default(),
            given_file: 0,
            keeps: false,
        }
    }

    pub(super) fn error(&mut self, diagnostic: Diagnostic) {
        self.errors.push(diagnostic);
    }

    /// Reads a YAML file; `from` is the place that names it.
    fn file(&mut self, path: &str, from: Option<&Span>) -> Option<Node> {
        let place = |error: Diagnostic| match from {
            Some(span) => error.at(span),
            None => error,
        };
        if self.imports >= MAX_IMPORTS {
            self.error(place(Diagnostic::error("files import one another without end")));
            return None;
        }
        let source = match self.library.text(path) {
            Some(source) => source,
            None => {
                let bytes = match self.reader.read(path) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        self.error(place(Diagnostic::error(format!("cannot read {path}: {error}"))));
                        return None;
                    }
                };
                let mut source = self.errors.absorb(vault::decode(path, &bytes))?;
                if vault::is_encrypted(source.text()) {
                    source = self.errors.absorb(self.keyring.open_file(&source))?;
                }
                self.library.keep(path, &source);
                self.sources.push(Arc::clone(&source));
                source
            }
        };
        self.errors.absorb(yaml::parse_source(&source))
    }

    /// Returns the names in a folder, none if it does not exist; folders end with `/`.
    fn list(&self, folder: &str) -> Vec<String> {
        match self.on {
            true => {
                let mut names = self.library.list(folder);
                names.extend(self.reader.list(folder).unwrap_or_default());
                names.sort();
                names.dedup();
                names
            }
            false => self.reader.list(folder).unwrap_or_default(),
        }
    }

    fn playbook(&mut self, path: &str, from: Option<&Span>, base: &Base) -> Vec<Arc<Play>> {
        let Some(root) = self.file(path, from) else { return Vec::new() };
        if root.is_null() {
            return Vec::new();
        }
        let Some(items) = root.as_seq() else {
            let error = root.wrong_type("a playbook", "a list of plays");
            self.error(error.help(
                if root.get("all").is_some_and(|all| all.get("hosts").or(all.get("children")).is_some()) {
                    "this looks like an inventory: give it with `-i`"
                } else if root.get("hosts").is_some() {
                    "put `- ` in front of `hosts`, and two spaces in front of each line below"
                } else {
                    "begin each play with `- hosts: …`"
                },
            ));
            return Vec::new();
        };
        let is_task = |item: &Node| {
            let keys = item.as_map().unwrap_or_default();
            item.get("hosts").is_none()
                && keys.iter().any(|(key, _)| gpufleet_protocol::tasks::find(&key.key_text()).is_some())
        };
        if !items.is_empty() && items.iter().all(is_task) {
            self.error(
                Diagnostic::error("this is a list of tasks, not a playbook")
                    .at(&root.span)
                    .label("a play begins with `hosts`")
                    .help("put it below a play: `- hosts: all` and `tasks:`, or name it there with `import_tasks`"),
            );
            return Vec::new();
        }
        let directory = directory_of(path);
        let mut plays = Vec::new();
        for item in items {
            match item.entry("import_playbook").or_else(|| item.entry("ansible.builtin.import_playbook")) {
                Some((_, file)) => {
                    let unknown = item.refuse_unknown_keys(
                        "an import",
                        &[
                            "import_playbook",
                            "ansible.builtin.import_playbook",
                            "name",
                            "vars",
                            "tags",
                            "when",
                        ],
                    );
                    self.errors.append(unknown);
                    let mut base = base.clone();
                    if let Some(vars) = item.get("vars") {
                        let vars = self.vars(vars);
                        Arc::make_mut(&mut base.vars).extend(&vars);
                    }
                    let mut own = Inherited::default();
                    own.vars.push(Arc::clone(&base.vars));
                    self.statics.clear();
                    if let Some(name) = self.literal_file(file, "import_playbook", &own) {
                        base.tags.extend(
                            item.get("tags").map(|tags| self.words("tags", tags)).unwrap_or_default(),
                        );
                        base.when.extend(
                            item.get("when").map(|when| self.conditions("when", when)).unwrap_or_default(),
                        );
                        self.imports += 1;
                        plays.extend(self.playbook(&join(&directory, &name), Some(&file.span), &base));
                        self.imports -= 1;
                    }
                }
                None => plays.extend(self.play(item, &directory, base)),
            }
        }
        plays
    }

    /// Returns the name of a file that is read before the run.
    fn literal_file(&mut self, node: &Node, key: &str, own: &Inherited) -> Option<String> {
        let name = match node.scalar_text() {
            Some(name) => name,
            None => match node.get("file").and_then(Node::scalar_text) {
                Some(name) => name,
                None => {
                    self.error(node.wrong_type(&format!("`{key}`"), "the name of a file"));
                    return None;
                }
            },
        };
        if !crate::template::is_template(&name) {
            return Some(name);
        }
        let settled = self.settled_now(&name, own);
        if settled.is_none() {
            self.error(
                Diagnostic::error(format!("`{key}` is read before any host is known, and this name is not"))
                    .at(&node.span)
                    .help("write the name of the file, or use `include_tasks` or `include_role`"),
            );
        }
        settled
    }

    fn take_references(&mut self) -> Vec<Reference> {
        std::mem::take(&mut self.references)
    }
}

/// Returns the folder of a file, empty for the current one.
fn directory_of(path: &str) -> String {
    path.rsplit_once('/').map_or(String::new(), |(directory, _)| {
        if directory.is_empty() { "/".to_owned() } else { directory.to_owned() }
    })
}

/// Returns the path of `name` relative to `directory`.
fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() || name.starts_with('/') {
        name.to_owned()
    } else {
        format!("{}/{name}", directory.trim_end_matches('/'))
    }
}
