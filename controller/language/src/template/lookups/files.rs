//! Lookups of files on the controller.
//!
//! Owns where they are looked for: as in Ansible, in the role, then beside the playbook, each time first in the
//! folder for the purpose (`files`, `templates`).

use std::sync::Arc;

use gpufleet_protocol::glob::Glob;

use super::surroundings::words_and_options;
use super::{Failure, Found, Lookup, Request, rendered, text, truth};
use crate::template::outside::{Content, PathKind};
use crate::template::value::{Dict, Value};
use crate::template::{Shelves, Syntax, engine, frame, inert, met_secret};

pub(super) const LOOKUPS: &[Lookup] = &[
    Lookup {
        name: "file",
        about: "what a file holds, without the blanks at its end",
        options: &["lstrip", "rstrip"],
        run: file,
    },
    Lookup {
        name: "unvault",
        about: "what an encrypted file holds, with the blanks at its end",
        options: &[],
        run: |request| {
            request.texts()?.iter().map(|name| Ok(read(request, "files", name)?.1.into())).collect()
        },
    },
    Lookup {
        name: "template",
        about: "what a template gives; of `convert_data` and `jinja2_native` nothing is left to decide",
        options: &[
            "template_vars",
            "convert_data",
            "jinja2_native",
            "trim_blocks",
            "variable_start_string",
            "variable_end_string",
            "comment_start_string",
            "comment_end_string",
        ],
        run: template,
    },
    Lookup {
        name: "fileglob",
        about: "the files that a pattern matches, in alphabetical order; the pattern stands in the last part of the path",
        options: &[],
        run: glob,
    },
    Lookup {
        name: "first_found",
        about: "the first of some files that is there",
        options: &["files", "paths", "skip"],
        run: first_found,
    },
    Lookup {
        name: "password",
        about: "a password from a file; it makes none",
        options: &["length", "encrypt", "chars", "ident", "seed"],
        run: password,
    },
];

/// Normalises an absolute path as Python's `normpath` does.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        match parts.last() {
            Some(last) if part == ".." && *last != ".." => {
                parts.pop();
            }
            None if part == ".." && path.starts_with('/') => {}
            _ => parts.push(part),
        }
    }
    format!("{}{}", if path.starts_with('/') { "/" } else { "" }, parts.join("/"))
}

fn below(folder: &str, name: &str) -> String {
    let name = name.strip_prefix("./").unwrap_or(name);
    if folder.is_empty() { name.to_owned() } else { format!("{}/{name}", folder.trim_end_matches('/')) }
}

/// Returns the folders to which names are relative, in order of precedence.
fn bases(request: &Request) -> Result<Vec<String>, Failure> {
    let mut bases = Vec::new();
    let value = |name: &str| request.scope.get(name).map(|value| rendered(value, &request.scope)).transpose();
    match value("ansible_search_path")? {
        Some(Value::List(list)) => bases.extend(list.items().iter().map(Value::to_text)),
        _ => bases.extend(value("role_path")?.map(|path| path.to_text())),
    }
    bases.push(request.playbook_folder()?);
    for base in &mut bases {
        if base == "." {
            base.clear();
        }
    }
    let mut seen = std::collections::HashSet::new();
    bases.retain(|base| seen.insert(base.clone()));
    Ok(bases)
}

/// Returns the paths at which a file or folder of this name may be.
fn candidates(request: &Request, folder: Option<&str>, name: &str) -> Result<Vec<String>, Failure> {
    frame::may_look_at(name)?;
    if name.starts_with('/') {
        return Ok(vec![name.to_owned()]);
    }
    if name.starts_with('~') {
        return Err("a path with `~` means another file for everybody; write it from `/` on".into());
    }
    let mut found = Vec::new();
    for base in bases(request)? {
        if let Some(folder) = folder.filter(|folder| name.split('/').next() != Some(folder)) {
            found.push(below(&base, &format!("{folder}/{name}")));
        }
        found.push(below(&base, name));
    }
    Ok(found)
}

/// Returns a file's path and content; `None` if it is found nowhere.
fn find(request: &Request, folder: &str, name: &str) -> Result<Option<(String, Content)>, Failure> {
    for path in candidates(request, Some(folder), name)? {
        if let Some(content) = request.outside()?.content(&path)? {
            return Ok(Some((path, content)));
        }
    }
    Ok(None)
}

/// Returns a file's path and text.
pub(super) fn read(request: &Request, folder: &str, name: &str) -> Result<(String, String), Failure> {
    let Some((path, content)) = find(request, folder, name)? else {
        let places = candidates(request, Some(folder), name)?;
        return Err(format!("there is no file `{name}`; looked for {}", places.join(" and ")).into());
    };
    if content.secret {
        met_secret();
    }
    match std::str::from_utf8(&content.bytes) {
        Ok(text) if request.outside()?.is_fetched(&path) => Ok((path, inert::said(text))),
        Ok(text) => Ok((path, text.to_owned())),
        Err(_) => Err(format!("{path} is not UTF-8 text").into()),
    }
}

fn file(request: &Request) -> Found {
    let (left, right) = (request.flag("lstrip", false)?, request.flag("rstrip", true)?);
    let mut out = Vec::new();
    for name in request.texts()? {
        let (_, content) = read(request, "files", &name)?;
        let content = if left { content.trim_start() } else { &content };
        out.push(Value::str(if right { content.trim_end() } else { content }));
    }
    Ok(out)
}

fn template(request: &Request) -> Found {
    let pair =
        |what: &str| ["start", "end"].map(|end| request.text_option(&format!("{what}_{end}_string"))).into();
    let wanted = Syntax {
        trim_blocks: request.flag("trim_blocks", true)?,
        variable: pair("variable"),
        comment: pair("comment"),
        ..Syntax::default()
    };
    let mut out = Vec::new();
    for name in request.texts()? {
        let (path, source) = read(request, "templates", &name)?;
        if request.outside()?.is_fetched(&path) {
            return Err(Failure::Because(format!("{path}: {}", inert::REFUSED_FILE)));
        }
        let mut layer: Dict = [
            ("template_path", Value::str(&name)),
            ("template_fullpath", Value::from(request.outside()?.absolute(&path))),
        ]
        .into_iter()
        .collect();
        match request.option("template_vars") {
            None | Some(Value::Null) => {}
            Some(Value::Map(vars)) => {
                for (name, value) in vars.iter() {
                    layer.insert(Arc::clone(name), value.clone());
                }
            }
            Some(other) => {
                return Err(format!("`template_vars` is a mapping, this is {}", other.kind()).into());
            }
        }
        let scope = request.scope.with(Arc::new(layer));
        let header = wanted.clone().from_header(&source);
        let (syntax, body) = header.map_err(|why| Failure::Because(format!("{path}:1: {why}")))?;
        let skipped = source.len() - body.len();
        let shelves = Shelves::of_lookup(&bases(request)?, &path);
        out.push(engine::render_file(body, &scope, &syntax, &shelves).map_err(|error| {
            let line = error.range().map_or_else(String::new, |range| {
                let before = source.get(..skipped + range.start).unwrap_or_default();
                format!(":{}", before.matches('\n').count() + 1)
            });
            Failure::Because(format!("{path}{line}: {error}"))
        })?);
    }
    Ok(out)
}

fn glob(request: &Request) -> Found {
    let outside = request.outside()?;
    let mut out = Vec::new();
    for term in request.texts()? {
        let (folder, name) = match term.rsplit_once('/') {
            Some(("", name)) => ("/", name),
            Some((folder, name)) => (folder, name),
            None => ("", term.as_str()),
        };
        let folders: Vec<String> = if folder.is_empty() {
            bases(request)?.iter().flat_map(|base| [below(base, "files"), base.clone()]).collect()
        } else {
            // As in Ansible, the first such folder is used, even if the files are in another one.
            let there = candidates(request, Some("files"), folder)?;
            there.into_iter().find(|path| outside.kind(path) == Some(PathKind::Folder)).into_iter().collect()
        };
        let pattern = Glob::new(name);
        let shows = |file: &str| pattern.matches(file) && (!file.starts_with('.') || name.starts_with('.'));
        for folder in folders {
            let mut files: Vec<String> =
                outside.files_of(&folder)?.into_iter().filter(|file| shows(file)).collect();
            files.sort_unstable();
            if !files.is_empty() {
                out.extend(
                    files.iter().map(|file| Value::from(plain(&outside.absolute(&below(&folder, file))))),
                );
                break;
            }
        }
    }
    Ok(out)
}

#[derive(Default)]
struct Search {
    files: Vec<String>,
    paths: Vec<String>,
    skip: bool,
}

impl Search {
    fn set(&mut self, name: &str, value: &Value) -> Result<(), Failure> {
        match name {
            "files" => self.files = split(value, &[',', ';'])?,
            "paths" => self.paths = split(value, &[',', ':', ';'])?,
            "skip" => self.skip = truth("skip", value)?,
            _ => return Err(format!("it has no option `{name}`; there are files, paths, skip").into()),
        }
        Ok(())
    }

    /// Adds the files of some terms. As in Ansible, the options of a term apply to those behind it too.
    fn note(&mut self, terms: &[Value], out: &mut Vec<String>) -> Result<(), Failure> {
        for term in terms {
            let files = match term {
                Value::Map(options) => {
                    for (name, value) in options.iter() {
                        self.set(name, value)?;
                    }
                    self.files.clone()
                }
                Value::Str(name) => split(&Value::Str(Arc::clone(name)), &[',', ';'])?,
                Value::List(list) => {
                    self.note(list.items(), out)?;
                    continue;
                }
                other => {
                    return Err(
                        format!("a term is text, a list or a mapping, this is {}", other.kind()).into()
                    );
                }
            };
            if self.paths.is_empty() {
                out.extend(files);
                continue;
            }
            for path in &self.paths {
                for file in &files {
                    out.push(if file.starts_with('/') {
                        file.clone()
                    } else {
                        format!("{}/{file}", path.trim_end_matches('/'))
                    });
                }
            }
        }
        Ok(())
    }
}

fn split(value: &Value, at: &[char]) -> Result<Vec<String>, Failure> {
    let items = match value {
        Value::Null => return Ok(Vec::new()),
        Value::List(list) => list.items(),
        other => std::slice::from_ref(other),
    };
    let mut out = Vec::new();
    for item in items {
        out.extend(text(item, "a file's name")?.split(at).map(ToOwned::to_owned));
    }
    Ok(out)
}

fn first_found(request: &Request) -> Found {
    let mut search = Search::default();
    for (name, value) in &request.options {
        search.set(name, value)?;
    }
    let mut names = Vec::new();
    if request.terms.is_empty() {
        let files = search.files.iter().map(Value::str).collect::<Vec<_>>();
        search.note(&files, &mut names)?;
    } else {
        search.note(&request.terms, &mut names)?;
    }
    let outside = request.outside()?;
    for name in &names {
        for path in candidates(request, request.folder, name)? {
            if outside.kind(&path).is_some() {
                return Ok(vec![Value::from(plain(&outside.absolute(&path)))]);
            }
        }
    }
    if search.skip {
        return Ok(Vec::new());
    }
    Err(format!("none of the files is there: {}", names.join(", ")).into())
}

fn password(request: &Request) -> Found {
    if request.option("encrypt").is_some_and(|value| *value != Value::Null) {
        return Err(ENCRYPT.into());
    }
    let mut out = Vec::new();
    for term in request.texts()? {
        let (path, options) = words_and_options(&term);
        for (name, _) in options {
            match name.as_str() {
                "length" | "chars" | "ident" | "seed" => {}
                "encrypt" => return Err(ENCRYPT.into()),
                other => return Err(format!("it has no option `{other}`").into()),
            }
        }
        frame::may_look_at(&path)?;
        let path = if path.starts_with('/') { path } else { below(&request.playbook_folder()?, &path) };
        // In Ansible, this path means that a password is stored nowhere; it is always empty.
        if path == "/dev/null" {
            met_secret();
            out.push(Value::str(""));
            continue;
        }
        let Some(content) = request.outside()?.content(&path)? else {
            return Err(format!(
                "there is no file {path}, and gpufleet makes no passwords; make one as with `openssl rand -base64 15`"
            )
            .into());
        };
        met_secret();
        let text =
            std::str::from_utf8(&content.bytes).map_err(|_| format!("{path} is not UTF-8 text"))?.trim_end();
        out.push(Value::str(text.rsplit_once(" salt=").map_or(text, |(password, _)| password)));
    }
    Ok(out)
}

const ENCRYPT: &str =
    "`encrypt` would make another salt where the file has none; put the encrypted password in a variable";
