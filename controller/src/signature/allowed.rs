//! The file of allowed signers: who may sign with which key, for what, and when.

use gpufleet_protocol::glob::Glob;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use ssh_key::PublicKey;

use super::{NAMESPACE, Signed};

/// Lines that are read at most.
const MOST_LINES: usize = 10_000;

/// A file of allowed signers, as `ssh-keygen -Y verify -f` reads it.
#[derive(Debug)]
pub struct AllowedSigners {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// As written: names or patterns, with commas.
    principals: String,
    key: PublicKey,
    namespaces: Option<String>,
    /// Whether the key only signs certificates.
    authority: bool,
    after: Option<Timestamp>,
    before: Option<Timestamp>,
}

/// What is wrong with a line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct AllowedError {
    pub line: usize,
    pub what: String,
}

/// Why a key may not sign reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no line has its key")]
    Unknown,
    #[error("the line of its key does not allow reports (`namespaces`)")]
    Namespace,
    #[error("the line of its key is not valid at this time (`valid-after`, `valid-before`)")]
    Time,
    #[error("the line of its key is of an authority for certificates, which gpufleet does not read")]
    Authority,
}

impl AllowedSigners {
    /// Reads the text of a file. Times without `Z` are in the given zone.
    ///
    /// # Errors
    /// The first line that cannot be read.
    pub fn read(text: &str, zone: &TimeZone) -> Result<Self, AllowedError> {
        let mut entries = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line_number = at + 1;
            let wrong = |what: String| AllowedError { line: line_number, what };
            if at >= MOST_LINES {
                return Err(wrong(format!("there are more than {MOST_LINES} lines")));
            }
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                entries.push(Entry::read(line, zone).map_err(wrong)?);
            }
        }
        Ok(Self { entries })
    }

    /// Returns who signed, as the file names them: the principals of the first line that allows it at this time.
    ///
    /// # Errors
    /// Why nobody may have signed with this key.
    pub fn signer(&self, signed: &Signed, now: Timestamp) -> Result<&str, Refusal> {
        let mut refusal = Refusal::Unknown;
        for entry in self.entries.iter().filter(|entry| signed.is_by(&entry.key)) {
            match entry.allows(now) {
                Ok(()) => return Ok(&entry.principals),
                Err(found) => refusal = found,
            }
        }
        Err(refusal)
    }
}

impl Entry {
    /// `principals [options] key`, with options that may have quotes.
    fn read(line: &str, zone: &TimeZone) -> Result<Self, String> {
        let (principals, rest) = word(line).ok_or("it ends after the names of the signer")?;
        let mut entry = match PublicKey::from_openssh(rest.trim_start()) {
            Ok(key) => Self::of(principals, key),
            Err(_) => {
                let (options, rest) = word(rest.trim_start()).ok_or("it has no public key")?;
                let key = PublicKey::from_openssh(rest.trim_start())
                    .map_err(|error| format!("its public key cannot be read: {error}"))?;
                let mut entry = Self::of(principals, key);
                entry.options(options, zone)?;
                entry
            }
        };
        entry.principals = unquoted(&entry.principals);
        Ok(entry)
    }

    fn of(principals: &str, key: PublicKey) -> Self {
        let principals = principals.to_owned();
        Self { principals, key, namespaces: None, authority: false, after: None, before: None }
    }

    fn options(&mut self, text: &str, zone: &TimeZone) -> Result<(), String> {
        for option in split(text, ',') {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = unquoted(value);
            match name.to_ascii_lowercase().as_str() {
                "cert-authority" => self.authority = true,
                "namespaces" => self.namespaces = Some(value),
                "valid-after" => self.after = Some(time(&value, zone)?),
                "valid-before" => self.before = Some(time(&value, zone)?),
                // What is not understood may be what forbids it.
                other => return Err(format!("`{other}` is no option of a signer")),
            }
        }
        Ok(())
    }

    fn allows(&self, now: Timestamp) -> Result<(), Refusal> {
        if self.authority {
            return Err(Refusal::Authority);
        }
        if self.namespaces.as_deref().is_some_and(|patterns| !is_in(NAMESPACE, patterns)) {
            return Err(Refusal::Namespace);
        }
        let early = self.after.is_some_and(|after| now < after);
        let late = self.before.is_some_and(|before| now > before);
        if early || late { Err(Refusal::Time) } else { Ok(()) }
    }
}

/// Whether a list of patterns has a text; one with `!` that fits takes it out.
fn is_in(text: &str, patterns: &str) -> bool {
    let mut found = false;
    for pattern in patterns.split(',') {
        match pattern.strip_prefix('!') {
            Some(not) if Glob::new(not).matches(text) => return false,
            Some(_) => {}
            None => found |= Glob::new(pattern).matches(text),
        }
    }
    found
}

/// Returns the parts of a text between separators that are outside quotes.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut quoted = false;
    text.split(|c: char| {
        quoted ^= c == '"';
        c == separator && !quoted
    })
    .collect()
}

/// Splits off the first word, which may have quoted blanks.
fn word(text: &str) -> Option<(&str, &str)> {
    let mut quoted = false;
    let end = text.find(|c: char| {
        quoted ^= c == '"';
        c.is_ascii_whitespace() && !quoted
    })?;
    Some(text.split_at(end))
}

fn unquoted(text: &str) -> String {
    text.replace('"', "")
}

/// Reads `YYYYMMDD[HHMM[SS]][Z]`.
fn time(text: &str, zone: &TimeZone) -> Result<Timestamp, String> {
    let (digits, zone) = match text.strip_suffix('Z') {
        Some(digits) => (digits, &TimeZone::UTC),
        None => (text, zone),
    };
    let wrong = || format!("`{text}` is no time such as 20261231 or 202612312359Z");
    let plain = digits.chars().all(|c| c.is_ascii_digit()) && matches!(digits.len(), 8 | 12 | 14);
    let padded = format!("{digits:0<14}");
    let read = DateTime::strptime("%Y%m%d%H%M%S", &padded).ok().filter(|_| plain).ok_or_else(wrong)?;
    read.to_zoned(zone.clone()).map(|zoned| zoned.timestamp()).map_err(|_| wrong())
}
