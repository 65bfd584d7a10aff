//! Lookups in CSV and INI files.

use std::sync::Arc;

use indexmap::IndexMap;

use super::files::read;
use super::surroundings::{key_and_options, words_and_options};
use super::{Failure, Found, Lookup, Request, text, truth};
use crate::template::value::Value;

const CSV: &[&str] = &["col", "default", "delimiter", "encoding", "file", "keycol"];
const INI: &[&str] = &[
    "allow_no_value",
    "allow_none",
    "case_sensitive",
    "default",
    "encoding",
    "file",
    "interpolation",
    "re",
    "section",
    "type",
];

pub(super) const LOOKUPS: &[Lookup] = &[
    Lookup {
        name: "csvfile",
        about: "one column of the row of a CSV file that has the term in its first column",
        options: CSV,
        run: csv,
    },
    Lookup {
        name: "ini",
        about: "the value of a key of an INI file or of Java properties",
        options: INI,
        run: ini,
    },
];

/// Returns an option of the term, or else of the call.
fn option(request: &Request, own: &[(String, String)], name: &str) -> Option<String> {
    let own = own.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    own.or_else(|| request.text_option(name))
}

fn utf8_only(encoding: Option<String>) -> Result<(), Failure> {
    match encoding.as_deref().map(str::to_ascii_lowercase).as_deref() {
        None | Some("utf-8" | "utf8" | "ascii" | "us-ascii") => Ok(()),
        Some(_) => Err("the `encoding` has to be utf-8".into()),
    }
}

fn csv(request: &Request) -> Found {
    if request.terms.is_empty() {
        return Err("the text to look for is needed".into());
    }
    let mut out = Vec::new();
    for term in &request.terms {
        let (key, own) = key_and_options(term, CSV)?;
        if key.is_empty() {
            return Err("the text to look for is needed".into());
        }
        let get = |name: &str| option(request, &own, name);
        let number = |name: &str, or: usize| match get(name) {
            None => Ok(or),
            Some(text) => text
                .trim()
                .parse()
                .map_err(|_| Failure::Because(format!("`{name}` is a whole number from 0"))),
        };
        utf8_only(get("encoding"))?;
        let (column, key_column) = (number("col", 1)?, number("keycol", 0)?);
        let delimiter = match get("delimiter").as_deref() {
            None | Some("TAB" | "\t") => '\t',
            Some(text) => {
                let mut letters = text.chars();
                match (letters.next(), letters.next()) {
                    (Some(letter), None) => letter,
                    _ => return Err("`delimiter` is one letter, or TAB".into()),
                }
            }
        };
        let name = get("file").unwrap_or_else(|| "ansible.csv".to_owned());
        let (path, content) = read(request, "files", &name)?;
        let mut found = None;
        for row in rows(&content, delimiter) {
            let narrow = |wanted: usize| {
                Failure::Because(format!("{path} has a row of {} columns, and no column {wanted}", row.len()))
            };
            if row.is_empty() {
                continue;
            }
            if *row.get(key_column).ok_or_else(|| narrow(key_column))? == key {
                found = Some(row.get(column).cloned().ok_or_else(|| narrow(column))?);
                break;
            }
        }
        match (found, request.option("default"), get("default")) {
            (Some(value), ..) => out.push(Value::from(value)),
            (None, Some(Value::List(list)), _) => out.extend_from_slice(list.items()),
            (None, _, Some(default)) => out.push(Value::from(default)),
            (None, ..) => {}
        }
    }
    Ok(out)
}

/// Splits a table into rows as Python's `csv` does: fields with the delimiter, a line break or a quote are in quotes.
pub(super) fn rows(text: &str, delimiter: char) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let (mut row, mut field) = (Vec::new(), String::new());
    let (mut quoted, mut begun) = (false, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted => match chars.next_if_eq(&'"') {
                Some(quote) => field.push(quote),
                None => quoted = false,
            },
            c if quoted => field.push(c),
            '"' if field.is_empty() => (quoted, begun) = (true, true),
            c if c == delimiter => {
                row.push(std::mem::take(&mut field));
                begun = true;
            }
            '\r' | '\n' => {
                if c == '\r' {
                    chars.next_if_eq(&'\n');
                }
                if begun || !field.is_empty() {
                    row.push(std::mem::take(&mut field));
                }
                rows.push(std::mem::take(&mut row));
                begun = false;
            }
            c => field.push(c),
        }
    }
    if begun || !field.is_empty() {
        row.push(field);
    }
    if !row.is_empty() {
        rows.push(row);
    }
    rows
}

fn ini(request: &Request) -> Found {
    let mut out = Vec::new();
    for term in &request.terms {
        let term = text(term, "a term")?;
        let (key, own) = if term.contains('=') || term.trim().contains(' ') {
            let (key, own) = words_and_options(&term);
            if let Some((name, _)) = own.iter().find(|(name, _)| !INI.contains(&name.as_str())) {
                return Err(format!("it has no option `{name}`; there are {}", INI.join(", ")).into());
            }
            if key.is_empty() {
                return Err("the key to look for is needed before the options".into());
            }
            (key, own)
        } else {
            (term, Vec::new())
        };
        let get = |name: &str| option(request, &own, name);
        let flag = |name: &str, or: bool| {
            get(name).map_or(Ok(or), |text| truth(name, &Value::from(text.to_ascii_lowercase())))
        };
        utf8_only(get("encoding"))?;
        let name = get("file").unwrap_or_else(|| "ansible.ini".to_owned());
        let (path, content) = read(request, "files", &name)?;
        let properties = match get("type").as_deref() {
            None | Some("ini") => false,
            Some("properties") => true,
            Some(_) => return Err("`type` is ini or properties".into()),
        };
        let section = if properties {
            "java_properties".to_owned()
        } else {
            get("section").unwrap_or_else(|| "global".to_owned())
        };
        let read = Ini {
            fold: !flag("case_sensitive", false)?,
            bare: flag("allow_no_value", flag("allow_none", false)?)?,
            interpolate: flag("interpolation", true)?,
            sections: IndexMap::new(),
        };
        let file = read.parse(&content, properties.then_some("java_properties"), &path)?;
        if flag("re", false)? {
            let pattern = regex::Regex::new(&format!("^(?:{key})"))
                .map_err(|_| "the key is not a regular expression")?;
            for name in file.keys(&section, &path)? {
                if pattern.is_match(&name) {
                    out.push(file.value(&section, &name, 0)?.unwrap_or(Value::Null));
                }
            }
            continue;
        }
        file.keys(&section, &path)?;
        match file.value(&section, &file.folded(&key), 0)? {
            Some(value) => out.extend(Some(value).filter(|value| *value != Value::Null)),
            None => {
                match request.option("default").filter(|_| !own.iter().any(|(name, _)| name == "default")) {
                    Some(Value::List(list)) => out.extend_from_slice(list.items()),
                    Some(Value::Null) => {}
                    _ => out.push(Value::from(get("default").unwrap_or_default())),
                }
            }
        }
    }
    Ok(out)
}

/// Settings of Python's `configparser`.
struct Ini {
    /// Whether keys are converted to lower case.
    fold: bool,
    /// Whether a key may have no value.
    bare: bool,
    /// Whether `%(key)s` in a value stands for another value.
    interpolate: bool,
    sections: IndexMap<String, IndexMap<String, Option<String>>>,
}

const DEFAULT: &str = "DEFAULT";

impl Ini {
    fn folded(&self, key: &str) -> String {
        if self.fold { key.to_lowercase() } else { key.to_owned() }
    }

    fn parse(mut self, text: &str, first: Option<&str>, path: &str) -> Result<Self, Failure> {
        let mut section = first.map(ToOwned::to_owned);
        self.sections.extend(first.map(|name| (name.to_owned(), IndexMap::new())));
        let mut last: Option<(String, usize)> = None;
        for (index, line) in text.lines().enumerate() {
            let wrong = |what: &str| Failure::Because(format!("{path}:{}: {what}", index + 1));
            let bare = line.trim();
            if bare.starts_with(['#', ';']) {
                continue;
            }
            let indent = line.len() - line.trim_start().len();
            let current = section.as_ref().and_then(|name| self.sections.get_mut(name));
            if let (Some((key, depth)), Some(keys)) = (&last, current)
                && (bare.is_empty() || indent > *depth)
            {
                if let Some(Some(value)) = keys.get_mut(key) {
                    value.push('\n');
                    value.push_str(bare);
                }
                continue;
            }
            if bare.is_empty() {
                continue;
            }
            if let Some(name) =
                bare.strip_prefix('[').and_then(|rest| rest.rsplit_once(']')).map(|(name, _)| name)
            {
                if self.sections.contains_key(name) && name != DEFAULT {
                    return Err(wrong(&format!("the section `{name}` is there twice")));
                }
                self.sections.entry(name.to_owned()).or_default();
                section = Some(name.to_owned());
                last = None;
                continue;
            }
            let Some(section) = &section else { return Err(wrong("it begins with no section as `[name]`")) };
            let (key, value) = match bare.split_once(['=', ':']) {
                Some((key, value)) if !key.trim().is_empty() => (key.trim(), Some(value.trim().to_owned())),
                None if self.bare => (bare, None),
                _ => return Err(wrong("a line is `key = value`")),
            };
            let key = self.folded(key);
            last = Some((key.clone(), indent));
            let keys = self.sections.entry(section.clone()).or_default();
            if keys.contains_key(&key) {
                return Err(wrong(&format!("the key `{key}` is there twice")));
            }
            keys.insert(key, value);
        }
        for value in self.sections.values_mut().flat_map(IndexMap::values_mut).flatten() {
            value.truncate(value.trim_end().len());
        }
        Ok(self)
    }

    /// Returns the keys of a section, those of `DEFAULT` first.
    fn keys(&self, section: &str, path: &str) -> Result<Vec<String>, Failure> {
        let own = self.sections.get(section);
        if own.is_none() && section != DEFAULT {
            return Err(format!("{path} has no section `{section}`").into());
        }
        let mut keys: Vec<String> = Vec::new();
        for key in [self.sections.get(DEFAULT), own].into_iter().flatten().flat_map(IndexMap::keys) {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        Ok(keys)
    }

    fn raw(&self, section: &str, key: &str) -> Option<&Option<String>> {
        let get = |section: &str| self.sections.get(section).and_then(|keys| keys.get(key));
        get(section).or_else(|| get(DEFAULT))
    }

    fn value(&self, section: &str, key: &str, depth: usize) -> Result<Option<Value>, Failure> {
        let Some(raw) = self.raw(section, key) else { return Ok(None) };
        let Some(raw) = raw else { return Ok(Some(Value::Null)) };
        if !self.interpolate || !raw.contains('%') {
            return Ok(Some(Value::Str(Arc::from(raw.as_str()))));
        }
        if depth > 10 {
            return Err(format!("`{key}` refers to other keys without end").into());
        }
        let mut out = String::new();
        let mut rest = raw.as_str();
        while let Some((before, after)) = rest.split_once('%') {
            out.push_str(before);
            if let Some(after) = after.strip_prefix('%') {
                out.push('%');
                rest = after;
                continue;
            }
            let inner = after.strip_prefix('(').and_then(|after| after.split_once(")s"));
            let Some((name, after)) = inner else {
                return Err(format!(
                    "`{key}` has a `%` that is neither `%%` nor `%(key)s`; write `interpolation=false`"
                )
                .into());
            };
            match self.value(section, &self.folded(name), depth + 1)? {
                Some(value) => out.push_str(&value.to_text()),
                None => return Err(format!("`{key}` refers to `{name}`, which is not there").into()),
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(Some(Value::from(out)))
    }
}
