//! Settings in files of sysfs, each with a line of tmpfiles.d that sets it at boot.
//!
//! One setting may be many files, such as that of each CPU; it is one change. Paths are as declared, below `/sys`.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::PathBuf,
};

use gpufleet_protocol::{Change, Disruption, FailureKind, Layer, Property, Subject, change::Value as Typed};

use serde_json::{Map, Value};

use super::tmpfiles::{self, BootFiles};
use crate::{
    declare::{Node, Plan, Trouble},
    os::{
        files::{self, FileError, Ownership},
        tree,
    },
    world::{Content, Effect, Entry, Owned},
};

/// One setting.
#[derive(Clone, Debug)]
pub struct Knob {
    /// In changes and messages, such as `cpufreq/scaling_governor`.
    pub name: String,
    /// Files of the running kernel.
    pub paths: Vec<String>,
    /// Paths or patterns of the lines that set it at boot; none if something else does.
    pub lines: Vec<String>,
    /// Paths or patterns of lines that another form of the declaration has written, and that are to go.
    pub gone: Vec<String>,
    pub wanted: String,
    /// The disruption of another value.
    pub class: Disruption,
    /// Whether each file is written even if it has the value, because a step before resets it.
    pub always: bool,
    /// Whether a step before makes the files, so that they need not be there yet.
    pub appears: bool,
}

/// Parameters that a node cannot have, and why.
#[derive(Debug, Default)]
pub struct Impossible(Vec<(&'static str, String)>);

impl Impossible {
    pub fn push(&mut self, parameter: &'static str, why: String) {
        self.0.push((parameter, why));
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the answer where nothing of a task is possible.
    pub fn trouble(self) -> Trouble {
        let why: Vec<String> = self.0.into_iter().map(|(_, why)| why).collect();
        Trouble::NotApplicable(why.join("; "))
    }

    /// Adds a warning for each.
    pub fn warn(&self, warnings: &mut Vec<String>) {
        let warning = |(name, why): &(&str, String)| format!("`{name}` is not applicable here: {why}");
        warnings.extend(self.0.iter().map(warning));
    }

    /// Adds their names to what `register` gets.
    pub fn tell(&self, data: &mut Map<String, Value>) {
        if !self.0.is_empty() {
            let names: Vec<&str> = self.0.iter().map(|(name, _)| *name).collect();
            data.insert("not_applicable".to_owned(), names.into());
        }
    }
}

/// A setting as it is.
#[derive(Debug)]
pub struct Seen {
    pub knob: Knob,
    /// The value of each file; none if it is known only after an assumed boot.
    pub live: Vec<(String, Option<String>)>,
}

/// Settings and the file of tmpfiles.d that has their lines.
#[derive(Debug)]
pub struct Knobs {
    pub seen: Vec<Seen>,
    file: PathBuf,
    text: String,
    owned: Option<Owned>,
    others: BootFiles,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Live {
        name: String,
        path: String,
        value: String,
    },
    /// Writes the file with the lines, or removes it.
    File {
        path: PathBuf,
        text: Option<String>,
    },
}

/// Returns the value of a file of sysfs, without blanks around it; none if the kernel does not have the file.
///
/// # Errors
/// If it cannot be read.
pub fn value(node: &Node<'_>, path: &str) -> Result<Option<String>, Trouble> {
    let path = node.roots.path(path);
    match files::read_bounded(&path, 64 * 1024) {
        Ok(bytes) => Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())),
        Err(error) if is_of_something_offline(&error.source) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the last part of what a link leads to, such as the name of a driver; none if it is no link.
pub fn link_name(node: &Node<'_>, path: &str) -> Option<String> {
    let target = fs::read_link(node.roots.path(path)).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Whether a file is listed, and yet not to be read, because what it sets is offline: ENODEV, and EBUSY from the policy of
/// CPUs that are offline (drivers/cpufreq/cpufreq.c, `show`).
fn is_of_something_offline(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let offline = [Errno::NODEV.raw_os_error(), Errno::BUSY.raw_os_error()];
    error.raw_os_error().is_some_and(|number| offline.contains(&number))
}

/// As [`value`], as an earlier task of a prediction assumes it.
///
/// # Errors
/// As [`value`].
pub fn assumed(node: &Node<'_>, path: &str) -> Result<Option<String>, Trouble> {
    match node.world.parameter(path) {
        Some(assumed) => Ok(Some(assumed)),
        None => value(node, path),
    }
}

/// Checks that the kernel lets anybody change a file of sysfs. First, because a file for the boot would be of no use either.
///
/// # Errors
/// If it is not applicable, as in a container.
pub fn changeable(node: &Node<'_>, path: &str) -> Result<(), Trouble> {
    match files::is_read_only(&node.roots.path(path)) {
        true => Err(read_only(path)),
        false => Ok(()),
    }
}

fn read_only(path: &str) -> Trouble {
    Trouble::NotApplicable(format!(
        "{path} cannot be changed: it is read-only here, as in a container, and the host's value counts"
    ))
}

/// Writes a value into a file of sysfs, in one piece.
///
/// # Errors
/// If the kernel does not take it; each answer of the kernel with what it means.
pub fn write(node: &Node<'_>, path: &str, value: &str) -> Result<(), Trouble> {
    let real = node.roots.path(path);
    let opened = OpenOptions::new().write(true).truncate(true).open(&real);
    let Err(error) = opened.and_then(|mut file| file.write_all(format!("{value}\n").as_bytes())) else {
        return Ok(());
    };
    Err(match error.kind() {
        io::ErrorKind::InvalidInput => {
            Trouble::failed(FailureKind::Invalid, format!("the kernel does not take `{value}` as {path}"))
        }
        io::ErrorKind::ReadOnlyFilesystem => read_only(path),
        io::ErrorKind::PermissionDenied => Trouble::failed(
            FailureKind::Refused,
            format!(
                "the kernel refuses `{value}` as {path} (EPERM): the firmware, or a driver, has locked it"
            ),
        ),
        io::ErrorKind::ResourceBusy => Trouble::failed(
            FailureKind::Busy,
            format!("the kernel refuses `{value}` as {path} (EBUSY): another setting rules it out now"),
        ),
        _ => FileError::new("set", real, error).into(),
    })
}

/// Returns values with how many files have each, such as `powersave (30), performance (2)`.
pub fn spread<'v>(values: impl IntoIterator<Item = &'v str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    match counts.len() {
        0 | 1 => counts.keys().copied().collect(),
        _ => {
            let mut all: Vec<_> = counts.into_iter().collect();
            all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let shown: Vec<String> =
                all.iter().take(4).map(|(value, count)| format!("{value} ({count})")).collect();
            let more = if all.len() > 4 { ", …" } else { "" };
            format!("{}{more}", shown.join(", "))
        }
    }
}

impl Knobs {
    /// Reads the settings. `file` is where their lines are or will be, `mentions` what other files must mention to be
    /// read at all.
    ///
    /// # Errors
    /// If a file cannot be read, or the kernel does not have it.
    pub fn observe(node: &Node<'_>, file: &str, mentions: &str, knobs: Vec<Knob>) -> Result<Self, Trouble> {
        let file = node.roots.path(file);
        let owned = node.world.follow(&file)?.1.owned();
        let text = String::from_utf8(node.world.read(&file)?.unwrap_or_default())
            .map_err(|_| Trouble::invalid(format!("{} is not UTF-8 text", file.display())))?;
        let others = BootFiles::read(node, mentions)?;
        let mut seen = Vec::new();
        for knob in knobs {
            let mut live = Vec::new();
            for path in &knob.paths {
                changeable(node, path)?;
                let none = knob.appears.then(|| "nothing".to_owned());
                let read = value(node, path)?
                    .or(none)
                    .ok_or_else(|| Trouble::NotApplicable(format!("the running kernel has no {path}")))?;
                let now = match node.world.parameter(path) {
                    Some(assumed) => Some(assumed),
                    None if node.world.rebooted() => others.last(path).map(|(_, value)| value.to_owned()),
                    None => Some(read),
                };
                live.push((path.clone(), now));
            }
            seen.push(Seen { knob, live });
        }
        Ok(Self { seen, file, text, owned, others })
    }

    /// Adds what differs.
    pub fn plan<S>(&self, plan: &mut Plan<S>, step: impl Fn(Step) -> S) {
        self.plan_live(plan, &step);
        self.plan_file(plan, step);
    }

    /// Adds what differs in the running kernel.
    fn plan_live<S>(&self, plan: &mut Plan<S>, step: impl Fn(Step) -> S) {
        for seen in &self.seen {
            let knob = &seen.knob;
            let wrong: Vec<&(String, Option<String>)> =
                seen.live.iter().filter(|(_, now)| now.as_ref() != Some(&knob.wanted)).collect();
            let open = wrong.iter().any(|(_, now)| now.is_none());
            let writes = wrong.iter().filter(|(_, now)| now.is_some()).copied();
            let writes: Vec<_> = if knob.always { seen.live.iter().collect() } else { writes.collect() };
            plan.steps.extend(writes.into_iter().map(|(path, _)| {
                step(Step::Live { name: knob.name.clone(), path: path.clone(), value: knob.wanted.clone() })
            }));
            if wrong.is_empty() {
                continue;
            }
            let from = match open {
                true => Typed::Unknown,
                false => Typed::parsed(&spread(seen.live.iter().filter_map(|(_, now)| now.as_deref()))),
            };
            let change = self.change(knob, from);
            plan.changes.push(if open {
                let note = "no file sets it, so its value after the boot is known only in the run";
                change.with_note(note).possible()
            } else {
                plan.needs = plan.needs.max(knob.class);
                change
            });
        }
    }

    fn change(&self, knob: &Knob, from: Typed) -> Change {
        let subject = Subject::kernel_setting(&knob.name);
        Change::new(subject, Property::VALUE, from, Typed::parsed(&knob.wanted), knob.class)
    }

    fn gone(&self) -> Vec<&str> {
        let all = self.seen.iter().flat_map(|seen| &seen.knob.gone);
        all.map(String::as_str).filter(|line| tmpfiles::value_in(&self.text, line).is_some()).collect()
    }

    fn lines(&self) -> Vec<(String, String)> {
        let of = |seen: &Seen| {
            let line = |path: &String| (path.clone(), seen.knob.wanted.clone());
            seen.knob.lines.iter().map(line).collect::<Vec<_>>()
        };
        self.seen.iter().flat_map(of).collect()
    }

    /// Adds what differs in the file.
    pub fn plan_file<S>(&self, plan: &mut Plan<S>, step: impl Fn(Step) -> S) {
        let (lines, gone) = (self.lines(), self.gone());
        if lines.is_empty() && gone.is_empty() {
            return;
        }
        let text = tmpfiles::edited(&tmpfiles::without(&self.text, &gone), &lines);
        let mut changes = Vec::new();
        for Seen { knob, .. } in &self.seen {
            let there = knob.gone.iter().filter_map(|line| tmpfiles::value_in(&self.text, line));
            let from = spread(there);
            if !from.is_empty() {
                let boot = Change { disruption: Disruption::Live, ..self.change(knob, Typed::parsed(&from)) };
                let boot = Change { to: Typed::Absent, ..boot };
                changes.push(boot.at(Layer::Boot).with_note("a line of another form of this task"));
            }
            let there: Vec<Option<&str>> =
                knob.lines.iter().map(|line| tmpfiles::value_in(&self.text, line)).collect();
            if there.iter().any(|value| *value != Some(&knob.wanted)) {
                let from = match there.iter().flatten().next() {
                    Some(_) => Typed::parsed(&spread(there.iter().map(|value| value.unwrap_or("nothing")))),
                    None => Typed::Absent,
                };
                let boot = Change { disruption: Disruption::Live, ..self.change(knob, from) };
                changes.push(boot.at(Layer::Boot));
            }
        }
        if !changes.is_empty() {
            let kept = (!text.is_empty()).then(|| text.clone());
            plan.steps.push(step(Step::File { path: self.file.clone(), text: kept }));
            plan.changes.append(&mut changes);
        }
        let then = self.others.with(&self.file, if plan.steps.is_empty() { &self.text } else { &text });
        for Seen { knob, .. } in &self.seen {
            let over = match (knob.lines.is_empty(), knob.gone.is_empty()) {
                (false, _) => self.file.display().to_string(),
                (true, false) => "the kernel command line".to_owned(),
                // A service comes later.
                (true, true) => continue,
            };
            let last = knob.paths.iter().find_map(|path| then.last(path).filter(|(_, v)| *v != knob.wanted));
            if let Some((file, value)) = last {
                plan.warnings.push(format!(
                    "{} sets {} to {value} at boot, and wins over {over}",
                    file.display(),
                    knob.name
                ));
            }
        }
    }

    /// Returns the effects of steps that [`Knobs::plan_file`] added.
    pub fn after_file<'s>(&self, steps: impl IntoIterator<Item = &'s Step>) -> Vec<Effect> {
        let owned = self.owned.unwrap_or(Owned { uid: 0, gid: 0, mode: 0o644 });
        let entry = |text: &Option<String>| match text {
            Some(text) => Entry::File { owned, content: Content::Known(text.as_bytes().into()) },
            None => Entry::Absent,
        };
        let effect = |step: &Step| match step {
            Step::File { path, text } => Some(Effect::Path { path: path.clone(), entry: entry(text) }),
            Step::Live { .. } => None,
        };
        steps.into_iter().filter_map(effect).collect()
    }

    /// Returns the effects of steps that [`Knobs::plan`] added.
    pub fn after<'s>(&self, steps: impl IntoIterator<Item = &'s Step>) -> Vec<Effect> {
        let files = self.after_file(steps).into_iter();
        let live = self.seen.iter().flat_map(|seen| {
            let effect =
                |path: &String| Effect::Parameter { name: path.clone(), value: seen.knob.wanted.clone() };
            seen.knob.paths.iter().map(effect).collect::<Vec<_>>()
        });
        files.chain(live).collect()
    }
}

impl Step {
    /// Does it, and reads the value back.
    ///
    /// # Errors
    /// If it fails, or the kernel has another value afterwards.
    pub fn apply(&self, node: &Node<'_>) -> Result<(), Trouble> {
        match self {
            Self::Live { name, path, value: wanted } => {
                write(node, path, wanted)?;
                let now = value(node, path)?.unwrap_or_default();
                if now == *wanted {
                    return Ok(());
                }
                Err(Trouble::failed(
                    FailureKind::Unconverged,
                    format!("{name} was set to {wanted}, but {path} reads {now} afterwards"),
                ))
            }
            Self::File { path, text: Some(text) } => put(path, text),
            Self::File { path, text: None } => {
                let removed = tree::spot(path)?.remove();
                Ok(removed.map_err(|error| FileError::new("remove", path, error))?)
            }
        }
    }
}

/// Writes a file of ours, and the folder for it.
///
/// # Errors
/// If it cannot be written.
pub fn put(path: &std::path::Path, text: &str) -> Result<(), Trouble> {
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        tree::make_dirs(folder)?;
    }
    Ok(files::replace(path, text.as_bytes(), Ownership::default())?)
}

/// Returns the names in a folder of sysfs that are a word and a number, such as `cpu12`, by number.
///
/// # Errors
/// If the folder cannot be read; one that is not there is empty.
pub fn numbered(node: &Node<'_>, folder: &str, word: &str) -> Result<Vec<(u32, String)>, Trouble> {
    let real = node.roots.path(folder);
    let entries = match fs::read_dir(&real) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(FileError::new("list", real, error).into()),
    };
    let mut found: Vec<(u32, String)> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|name| Some((name.strip_prefix(word)?.parse().ok()?, format!("{folder}/{name}"))))
        .collect();
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offline_is_told_from_what_cannot_be_read() {
        let is = |number| is_of_something_offline(&io::Error::from_raw_os_error(number));
        assert!(is(libc::EBUSY) && is(libc::ENODEV));
        assert!(!is(libc::EIO) && !is(libc::EACCES));
    }
}
