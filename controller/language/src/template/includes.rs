//! Templates that include others: `include`, `extends`, `import`.
//!
//! Owns where these are looked for, and the messages for one that is missing or wrong. Must not read files itself: it
//! asks [`Outside`].

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind};

use super::engine::{Document, bounded, line_breaks, whole};
use super::inert;
use super::outside::{Content, Outside};
use super::{Syntax, TemplateError, frame, scan};

/// Folders in which a template looks for the templates that it includes.
#[derive(Clone, Debug, Default)]
pub struct Shelves(Arc<[String]>);

fn below(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{}/{name}", folder.trim_end_matches('/')) }
}

/// Returns the folder of a file.
fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Shelves {
    fn of(folders: impl Iterator<Item = String>) -> Self {
        let mut found: Vec<String> = Vec::new();
        for folder in folders {
            if !found.contains(&folder) {
                found.push(folder);
            }
        }
        Self(found.into())
    }

    /// Returns the folders for a task's template at `path`; the task looks for its files in `search`.
    pub fn of_task(search: &[String], path: &str) -> Self {
        let all = search.iter().map(String::as_str).chain([folder(path)]);
        Self::of(all.flat_map(|one| [below(one, "templates"), one.to_owned()]))
    }

    /// Returns the folders for a template that a lookup found at `path`: its own folder comes first.
    pub(super) fn of_lookup(search: &[String], path: &str) -> Self {
        let others = search.iter().flat_map(|one| [below(one, "templates"), one.clone()]);
        Self::of(std::iter::once(folder(path).to_owned()).chain(others))
    }

    fn places(&self, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        for path in self.0.iter().map(|folder| below(folder, name.trim_start_matches('/'))) {
            if !found.contains(&path) {
                found.push(path);
            }
        }
        found
    }

    /// Returns the path and content of an included template, or in `Ok(Err(…))` where it was looked for.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn find(
        &self,
        outside: &dyn Outside,
        name: &str,
    ) -> Result<Result<(String, Content), String>, String> {
        // As in Jinja, a name never leads out of the folders.
        if !name.split('/').any(|part| part == "..") {
            for path in self.places(name) {
                if let Some(content) = outside.content(&path)? {
                    if outside.is_fetched(&path) {
                        return Err(format!("{path}: {}", inert::REFUSED_FILE));
                    }
                    return Ok(Ok((path, content)));
                }
            }
        }
        let looked = match name.split('/').any(|part| part == "..") {
            true => "its name has `..` in it, which leads out of the folders of templates".to_owned(),
            false => format!("looked for {}", self.places(name).join(" and ")),
        };
        Ok(Err(looked))
    }
}

/// Whether a text may include others.
pub(super) fn takes_in(source: &str) -> bool {
    ["include", "import", "extends"].iter().any(|word| source.contains(word))
}

/// An included template.
struct Taken {
    name: String,
    path: String,
    document: Document,
    source: String,
}

/// The templates that one rendering included.
#[derive(Clone)]
pub(super) struct TakenIn(Arc<Mutex<Notes>>);

#[derive(Default)]
struct Notes {
    taken: Vec<Taken>,
    /// A template that was not found, and where it was looked for.
    missing: Option<(String, String)>,
    /// The names that the templates so far set.
    sets: HashSet<String>,
}

impl TakenIn {
    /// Creates the record for a template, with the names that it sets itself.
    pub(super) fn of(document: &Document) -> Self {
        let notes = Notes { sets: document.sets().cloned().collect(), ..Notes::default() };
        Self(Arc::new(Mutex::new(notes)))
    }

    /// Makes the templates of an environment able to include others.
    pub(super) fn open(
        &self,
        environment: &mut Environment<'static>,
        outside: &Arc<dyn Outside>,
        shelves: &Shelves,
        syntax: &Syntax,
        marks: &SyntaxConfig,
    ) {
        let (notes, outside, shelves) = (Arc::clone(&self.0), Arc::clone(outside), shelves.clone());
        let (own_marks, syntax, marks) = (syntax.has_own_marks(), syntax.clone(), marks.clone());
        environment.set_loader(move |name| {
            let found = shelves.find(&*outside, name).map_err(|why| TemplateError::new(why).into_engine())?;
            let Ok(mut notes) = notes.lock() else { return Ok(None) };
            let (path, content) = match found {
                Ok(found) => found,
                Err(looked) => {
                    notes.missing = Some((name.to_owned(), looked));
                    return Ok(None);
                }
            };
            if content.secret {
                frame::met_secret();
            }
            let source = std::str::from_utf8(&content.bytes)
                .map_err(|_| TemplateError::new(format!("{path} is not UTF-8 text")).into_engine())?;
            // As in Ansible, an included file loses its last line break.
            let source = line_breaks(source);
            let source = syntax.lines(source.strip_suffix('\n').unwrap_or(&source)).0.into_owned();
            bounded(&source, false, &marks)?;
            frame::note_macros(&source);
            let document = Document::of(&source, &syntax, &marks, own_marks, &notes.sets);
            notes.sets.extend(document.sets().cloned());
            let text = document.text().to_owned();
            notes.taken.push(Taken { name: name.to_owned(), path, document, source });
            drop(notes);
            whole(&text, false, &marks)?;
            Ok(Some(text))
        });
    }

    /// Converts an error of the engine, if it is about an included template or one that was not found.
    pub(super) fn error(&self, error: &minijinja::Error) -> Option<TemplateError> {
        let mut inner = error;
        let mut next: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
        while let Some(source) = next {
            if let Some(engine) = source.downcast_ref::<minijinja::Error>() {
                inner = engine;
            }
            next = source.source();
        }
        let notes = self.0.lock().ok()?;
        let taken = notes.taken.iter().find(|taken| Some(taken.name.as_str()) == inner.name());
        let gone = notes.missing.as_ref().filter(|_| inner.kind() == ErrorKind::TemplateNotFound);
        let told = match (gone, taken) {
            (Some((name, looked)), _) => {
                TemplateError::new(format!("there is no template `{name}`; {looked}"))
            }
            (None, Some(taken)) => taken.document.error(inner),
            (None, None) => return None,
        };
        let own = error.range();
        Some(match taken {
            None => match inner.range().or(own) {
                Some(range) => told.with_range(range),
                None => told,
            },
            Some(taken) => told.inside(&taken.path, inner.line()).at(own),
        })
    }

    /// Adds the included template that an undefined variable is in, unless the outer template has it.
    pub(super) fn located(&self, error: TemplateError) -> TemplateError {
        if error.range().is_some() || error.undefined_name().is_none() {
            return error;
        }
        let Ok(notes) = self.0.lock() else { return error };
        for taken in &notes.taken {
            if let Some(range) = error.clone().located(&taken.source).range() {
                let before = taken.source.get(..range.start).unwrap_or_default();
                return error.inside(&taken.path, Some(before.matches('\n').count() + 1));
            }
        }
        error
    }
}

/// A statement that includes a template by a literal name.
#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    pub name: String,
    /// The range of the name, in bytes of the source.
    pub range: Range<usize>,
    /// Whether every rendering includes it, and it may not be missing.
    pub certain: bool,
}

/// Returns the templates that a text includes by literal names.
pub fn wanted(source: &str) -> Vec<Wanted> {
    let (mut found, mut depth, mut raw) = (Vec::new(), 0_usize, false);
    for range in scan::code(source) {
        let code = source.get(range.clone()).unwrap_or_default();
        if source.get(range.start.saturating_sub(1)..range.start) != Some("%") {
            continue;
        }
        let trimmed = code.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
        let word = trimmed.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        match word {
            "raw" => raw = true,
            "endraw" => raw = false,
            _ if raw => {}
            "if" | "for" | "macro" | "call" => depth += 1,
            "endif" | "endfor" | "endmacro" | "endcall" => depth = depth.saturating_sub(1),
            "include" | "extends" | "import" | "from" => {
                let rest = trimmed.get(word.len()..).unwrap_or_default().trim_start();
                let start = range.end - rest.len();
                let Some(end) = scan::string_end(source.as_bytes(), start)
                    .filter(|end| *end < range.end && rest.starts_with(['\'', '"']))
                else {
                    continue;
                };
                let after = source.get(end + 1..range.end).unwrap_or_default().trim();
                let plain = ["", "-", "+"].contains(&after)
                    || ["with", "as ", "import ", "ignore "].iter().any(|word| after.starts_with(word));
                if plain {
                    found.push(Wanted {
                        name: source.get(start + 1..end).unwrap_or_default().to_owned(),
                        range: start + 1..end,
                        certain: depth == 0 && !after.starts_with("ignore "),
                    });
                }
            }
            _ => {}
        }
    }
    found
}
