//! Finds command lines that a kind declares better.
//!
//! Invariants: a command line gets a task as its replacement only if all of it is understood; every suggested task
//! was parsed by its kind.

use gpufleet_protocol::tasks::find;
use serde_json::{Map, Value as Json, json};

use super::gpu_commands;
use crate::yaml::{Flow, Layout, text_with};

/// A task that replaces a command, or a remark about the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suggestion {
    /// The kind and its parameters as text, such as `gpu_persistence: {mode: daemon}`.
    Task { kind: &'static str, text: String, note: Option<String> },
    /// No task replaces it: another task does it anyway, or it is written another way.
    Remark(String),
}

/// Suggestions for one command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// In the order of the commands.
    pub suggestions: Vec<Suggestion>,
    /// Whether every command of the line has a suggestion.
    pub whole: bool,
    /// Whether the line itself changes to another user.
    pub sudo: bool,
}

impl Advice {
    /// Returns the tasks that replace the line.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        self.suggestions.iter().filter_map(|suggestion| match suggestion {
            Suggestion::Task { text, .. } => Some(text.as_str()),
            Suggestion::Remark(_) => None,
        })
    }

    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.suggestions.iter().filter_map(|suggestion| match suggestion {
            Suggestion::Task { note, .. } => note.as_deref(),
            Suggestion::Remark(text) => Some(text),
        })
    }
}

/// Returns a task of this kind, if the registry has the kind and accepts the parameters.
pub(super) fn task(kind: &str, parameters: Json) -> Option<Suggestion> {
    let info = find(kind)?;
    // The value of a template is unknown, so the kind may accept the template itself, a number or a word.
    let fits = [None, Some(json!(1)), Some(json!("x"))]
        .iter()
        .any(|stand_in| info.parse(without_templates(&parameters, stand_in.as_ref())).is_ok());
    if !fits {
        return None;
    }
    let layout = Layout { width: usize::MAX, sort: false, flow: Flow::Always, ..Layout::default() };
    let text = text_with(&parameters, &layout);
    Some(Suggestion::Task {
        kind: info.name,
        text: format!("{}: {}", info.name, text.trim_end()),
        note: None,
    })
}

/// Returns the value with `stand_in`, if given, in place of each template.
fn without_templates(value: &Json, stand_in: Option<&Json>) -> Json {
    match (value, stand_in) {
        (Json::String(text), Some(stand_in)) if crate::template::is_template(text) => stand_in.clone(),
        (Json::Array(items), _) => items.iter().map(|item| without_templates(item, stand_in)).collect(),
        (Json::Object(map), _) => {
            map.iter().map(|(name, value)| (name.clone(), without_templates(value, stand_in))).collect()
        }
        (other, _) => other.clone(),
    }
}

pub(super) fn remark(text: impl Into<String>) -> Option<Suggestion> {
    Some(Suggestion::Remark(text.into()))
}

impl Suggestion {
    pub(super) fn noted(self, text: impl Into<String>) -> Self {
        match self {
            Self::Task { kind, text: task, .. } => Self::Task { kind, text: task, note: Some(text.into()) },
            remark @ Self::Remark(_) => remark,
        }
    }
}

/// Returns what to write instead of a line of `command`, `shell` or `raw`; `None` if nothing is known about it.
pub fn advise(line: &str) -> Option<Advice> {
    if let Some(found) = by_shape(line) {
        return Some(Advice { suggestions: vec![found], whole: true, sudo: false });
    }
    let mut advice = Advice { whole: true, ..Advice::default() };
    for part in parts(line)? {
        let mut words = part.as_slice();
        let mut sudo = false;
        if words.first().is_some_and(|word| program(word) == "sudo") {
            words = words.get(1..).unwrap_or_default();
            while words.first().is_some_and(|word| word.starts_with('-')) {
                words = words.get(1..).unwrap_or_default();
            }
            sudo = true;
        }
        advice.sudo |= sudo;
        let Some((first, arguments)) = words.split_first() else { continue };
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match of_program(program(first), &arguments) {
            Some(found) => advice.suggestions.extend(found),
            None if matches!(program(first), "true" | ":" | "cd" | "set") => {}
            None => advice.whole = false,
        }
    }
    if !advice.whole {
        // A wait between commands that are kept is kept with them.
        advice.suggestions.retain(|found| !matches!(found, Suggestion::Task { kind: "pause", .. }));
    }
    (advice.sudo || !advice.suggestions.is_empty()).then_some(advice)
}

/// Whether a line needs a shell, because a program that gets its words would not do the same.
pub fn needs_shell(line: &str) -> bool {
    line.contains([
        '|', '&', ';', '<', '>', '$', '`', '*', '?', '[', ']', '~', '\n', '#', '(', ')', '!', '\\', '^',
    ]) || line.contains("{{")
        || line.contains("{%")
        || line.contains(['{', '}'])
        || first_word_is_of_a_shell(line)
}

fn first_word_is_of_a_shell(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    first.contains('=')
        || matches!(
            first,
            "cd" | "source"
                | "."
                | "export"
                | "set"
                | "ulimit"
                | "umask"
                | "if"
                | "for"
                | "while"
                | "case"
                | "type"
                | "command"
                | "exec"
                | "eval"
                | "unset"
                | "alias"
                | "trap"
                | "wait"
                | "read"
                | "exit"
        )
}

fn program(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Splits a line into commands and these into words; `None` if a shell does more than run them one after the other.
fn parts(line: &str) -> Option<Vec<Vec<String>>> {
    let line = line.replace("\\\n", " ");
    let mut parts = vec![String::new()];
    let mut quote = None;
    let mut braces = 0_usize;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        if quote.is_none() && c == '{' && characters.peek() == Some(&'{') {
            braces += 1;
        } else if quote.is_none() && c == '}' && characters.peek() == Some(&'}') {
            braces = braces.saturating_sub(1);
        }
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('"'), '$' | '`') => return None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, _) if braces > 0 => {}
            (None, '&') if characters.peek() == Some(&'&') => {
                characters.next();
                parts.push(String::new());
                continue;
            }
            (None, ';' | '\n') => {
                parts.push(String::new());
                continue;
            }
            (None, '|' | '&' | '<' | '>' | '$' | '`' | '(' | ')' | '*' | '?') => return None,
            (None, _) => {}
        }
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    let split: Option<Vec<Vec<String>>> = parts
        .iter()
        .map(|part| part.trim())
        .filter(|part| !part.is_empty() && !part.starts_with('#'))
        .map(words)
        .collect();
    split.filter(|split| !split.is_empty())
}

/// Splits a command into words and keeps each template whole.
fn words(part: &str) -> Option<Vec<String>> {
    let mut hidden = String::new();
    let mut templates: Vec<String> = Vec::new();
    let mut rest = part;
    while let Some(start) = rest.find("{{") {
        let end = rest.get(start..)?.find("}}")? + start + 2;
        hidden.push_str(rest.get(..start)?);
        hidden.push_str(&format!("\u{1}{}\u{2}", templates.len()));
        templates.push(rest.get(start..end)?.to_owned());
        rest = rest.get(end..)?;
    }
    hidden.push_str(rest);
    let mut words = shell_words::split(&hidden).ok()?;
    for word in &mut words {
        for (index, template) in templates.iter().enumerate() {
            *word = word.replace(&format!("\u{1}{index}\u{2}"), template);
        }
    }
    Some(words)
}

/// Recognises well-known lines with a pipe or a redirection.
fn by_shape(line: &str) -> Option<Suggestion> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["echo", "quit", "|", rest @ ..]
            if rest.last().is_some_and(|w| program(w) == "nvidia-cuda-mps-control") =>
        {
            task("gpu_mps", json!({"state": "stopped"}))
        }
        ["echo", value, ">", path]
        | ["echo", value, "|", "tee", path]
        | ["echo", value, "|", "sudo", "tee", path] => {
            let name = path.strip_prefix("/proc/sys/")?.replace('/', ".");
            task("sysctl", json!({"name": name, "value": value.trim_matches(['"', '\''])}))
        }
        _ => None,
    }
}

/// Nodes that a playbook takes out and gives back by itself.
fn scontrol(arguments: &[&str]) -> Option<Suggestion> {
    let lower: Vec<String> = arguments.iter().map(|word| word.to_ascii_lowercase()).collect();
    let state = lower.iter().find_map(|word| word.strip_prefix("state="))?;
    let is_node = lower.iter().any(|word| word.starts_with("node"));
    let moves = ["drain", "undrain", "resume", "idle"].iter().any(|word| state.starts_with(word));
    (is_node && moves).then(|| {
        remark(
            "leave it out: `rollout: {drain: slurm}` of the play takes each node out within the budget, waits for its jobs, \
             checks the node and gives it back",
        )
    })?
}

fn of_program(program: &str, arguments: &[&str]) -> Option<Vec<Suggestion>> {
    let one = |found: Option<Suggestion>| found.map(|found| vec![found]);
    match program {
        "nvidia-smi" => gpu_commands::nvidia_smi(arguments),
        "nvidia-mig-parted" => one(gpu_commands::mig_parted(arguments)),
        "nvidia-persistenced" => one(task("gpu_persistence", json!({"mode": "daemon"}))),
        "nvidia-cuda-mps-control" if arguments.contains(&"-d") => {
            one(task("gpu_mps", json!({"state": "started"})))
        }
        "sysctl" => sysctl(arguments),
        "grubby" => one(grubby(arguments)),
        "update-grub" | "update-grub2" | "grub2-mkconfig" | "grub-mkconfig" => {
            one(remark("leave it out: `kernel_cmdline` writes the boot entries itself"))
        }
        "systemctl" => systemctl(arguments),
        "service" => {
            match arguments {
                [name, action] => one(unit_state(action)
                    .and_then(|state| task("service", json!({"name": name, "state": state})))),
                _ => None,
            }
        }
        "reboot" => one(reboot()),
        "shutdown" if arguments.contains(&"-r") => one(reboot()),
        "init" | "telinit" if arguments == ["6"] => one(reboot()),
        "modprobe" => one(modprobe(arguments)),
        "rmmod" => match arguments {
            [name] if !name.starts_with('-') && !name.starts_with("nvidia") => {
                one(task("modprobe", json!({"name": name, "state": "absent"})))
            }
            _ => None,
        },
        "scontrol" => one(scontrol(arguments)),
        "apt-get" | "apt" => one(packages("apt", arguments)),
        "dnf" | "yum" => one(packages("dnf", arguments)),
        "useradd" | "adduser" => one(useradd(arguments)),
        "userdel" => plain(arguments)
            .and_then(|names| one(task("user", json!({"name": single(&names)?, "state": "absent"})))),
        "groupadd" => one(groupadd(arguments)),
        "groupdel" => plain(arguments)
            .and_then(|names| one(task("group", json!({"name": single(&names)?, "state": "absent"})))),
        "hostnamectl" => match arguments {
            ["set-hostname" | "hostname", name] => one(task("hostname", json!({"name": name}))),
            _ => None,
        },
        "hostname" => match arguments {
            [name] if !name.starts_with('-') => one(task("hostname", json!({"name": name}))),
            _ => None,
        },
        "mount" => one(mount(arguments)),
        "umount" => match arguments {
            [path] if path.starts_with('/') => {
                one(task("mount", json!({"path": path, "state": "unmounted"})))
            }
            _ => None,
        },
        "mkdir" => files(arguments, &["-p"], |path| json!({"path": path, "state": "directory"})),
        "touch" => files(arguments, &[], |path| json!({"path": path, "state": "touch"})),
        "rm" => files(
            arguments,
            &["-f", "-r", "-rf", "-fr", "-R"],
            |path| json!({"path": path, "state": "absent"}),
        ),
        "chmod" => match arguments {
            [mode, paths @ ..] => files(paths, &[], |path| json!({"path": path, "mode": mode})),
            [] => None,
        },
        "chown" => match arguments {
            [owner, paths @ ..] if !owner.starts_with('-') => {
                let (user, group) = owner.split_once(':').map_or((*owner, ""), |(user, group)| (user, group));
                files(paths, &[], |path| {
                    let mut parameters = Map::from_iter([("path".to_owned(), json!(path))]);
                    for (name, value) in [("owner", user), ("group", group)] {
                        if !value.is_empty() {
                            parameters.insert(name.to_owned(), json!(value));
                        }
                    }
                    Json::Object(parameters)
                })
            }
            _ => None,
        },
        "ln" => match arguments {
            ["-s" | "-sf" | "-sfn" | "-snf", target, path] => {
                one(task("file", json!({"src": target, "path": path, "state": "link"})))
            }
            _ => None,
        },
        "sleep" => match arguments {
            [seconds] => one(task("pause", json!({"seconds": seconds.parse::<u32>().ok()?}))),
            _ => None,
        },
        "curl" | "wget" => one(download(program, arguments)),
        _ => None,
    }
}

fn reboot() -> Option<Suggestion> {
    Some(
        task("reboot", json!({}))?.noted(
            "it reboots only where something written waits for it; `when: always` reboots in any case",
        ),
    )
}

/// Returns the arguments if there are no options among them.
fn plain<'a>(arguments: &[&'a str]) -> Option<Vec<&'a str>> {
    let names: Vec<&str> = arguments.iter().copied().filter(|word| !word.starts_with('-')).collect();
    (names.len() == arguments.len() && !names.is_empty()).then_some(names)
}

fn single<'a>(names: &[&'a str]) -> Option<&'a str> {
    match names {
        [name] => Some(name),
        _ => None,
    }
}

fn files(arguments: &[&str], ignored: &[&str], parameters: impl Fn(&str) -> Json) -> Option<Vec<Suggestion>> {
    let paths: Vec<&str> = arguments.iter().copied().filter(|word| !ignored.contains(word)).collect();
    if paths.is_empty() || paths.iter().any(|path| !path.starts_with('/') || *path == "/") {
        return None;
    }
    paths.into_iter().map(|path| task("file", parameters(path))).collect()
}

fn sysctl(arguments: &[&str]) -> Option<Vec<Suggestion>> {
    if arguments.iter().any(|word| matches!(*word, "-p" | "--system" | "--load")) {
        return Some(vec![Suggestion::Remark(
            "leave it out: `sysctl` sets the running kernel too".to_owned(),
        )]);
    }
    let settings: Vec<(&str, &str)> = arguments.iter().filter_map(|word| word.split_once('=')).collect();
    let options = arguments.iter().filter(|word| matches!(**word, "-w" | "--write" | "-q")).count();
    if settings.is_empty() || settings.len() + options != arguments.len() {
        return None;
    }
    settings
        .into_iter()
        .map(|(name, value)| task("sysctl", json!({"name": name.trim(), "value": value.trim()})))
        .collect()
}

fn grubby(arguments: &[&str]) -> Option<Suggestion> {
    let value = |option: &str| {
        arguments.iter().enumerate().find_map(|(index, word)| match word.strip_prefix(option) {
            Some("") => arguments.get(index + 1).copied(),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        })
    };
    let list = |text: &str| text.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>();
    let mut parameters = Map::new();
    if let Some(words) = value("--args") {
        parameters.insert("add".to_owned(), json!(list(words)));
    }
    if let Some(words) = value("--remove-args") {
        parameters.insert("remove".to_owned(), json!(list(words)));
    }
    task("kernel_cmdline", Json::Object(parameters))
}

/// Converts an edit of `GRUB_CMDLINE_LINUX` to a `kernel_cmdline` task.
pub fn grub_line(text: &str) -> Option<Suggestion> {
    let (_, value) = text.split_once("GRUB_CMDLINE_LINUX")?.1.split_once('=')?;
    let value = value.trim().trim_matches(['"', '\'']);
    let words: Vec<&str> =
        value.split_whitespace().filter(|word| !matches!(*word, "quiet" | "splash")).collect();
    if words.is_empty() || words.iter().any(|word| word.contains(['\\', '$'])) {
        return None;
    }
    task("kernel_cmdline", json!({"add": words}))
}

fn unit_state(action: &str) -> Option<&'static str> {
    Some(match action {
        "start" => "started",
        "stop" => "stopped",
        "restart" | "try-restart" | "force-reload" => "restarted",
        "reload" | "reload-or-restart" => "reloaded",
        _ => return None,
    })
}

fn systemctl(arguments: &[&str]) -> Option<Vec<Suggestion>> {
    let known = |word: &&str| matches!(*word, "--now" | "-q" | "--quiet" | "--no-block" | "--system");
    let now = arguments.contains(&"--now");
    let rest: Vec<&str> = arguments.iter().copied().filter(|word| !known(word)).collect();
    if rest.iter().any(|word| word.starts_with('-')) {
        return None;
    }
    let (action, units) = rest.split_first()?;
    match *action {
        "daemon-reload" => return task("service", json!({"daemon_reload": true})).map(|found| vec![found]),
        "reboot" => return reboot().map(|found| vec![found]),
        _ => {}
    }
    if units.is_empty() {
        return None;
    }
    let tasks = units.iter().map(|unit| {
        let mut parameters = Map::from_iter([("name".to_owned(), json!(unit))]);
        match *action {
            "enable" | "disable" => {
                parameters.insert("enabled".to_owned(), json!(*action == "enable"));
                if now {
                    let state = if *action == "enable" { "started" } else { "stopped" };
                    parameters.insert("state".to_owned(), json!(state));
                }
            }
            "mask" | "unmask" => {
                parameters.insert("masked".to_owned(), json!(*action == "mask"));
            }
            other => {
                parameters.insert("state".to_owned(), json!(unit_state(other)?));
            }
        }
        task("service", Json::Object(parameters))
    });
    tasks.collect()
}

fn modprobe(arguments: &[&str]) -> Option<Suggestion> {
    let absent = arguments.first().is_some_and(|word| matches!(*word, "-r" | "--remove"));
    let rest = if absent { arguments.get(1..)? } else { arguments };
    let (name, parameters) = rest.split_first()?;
    if name.starts_with('-') {
        return None;
    }
    let mut all = Map::from_iter([("name".to_owned(), json!(name))]);
    if !parameters.is_empty() {
        all.insert("params".to_owned(), json!(parameters.join(" ")));
    }
    if absent {
        all.insert("state".to_owned(), json!("absent"));
    }
    task("modprobe", Json::Object(all))
}

fn packages(kind: &str, arguments: &[&str]) -> Option<Suggestion> {
    let words: Vec<&str> = arguments.iter().copied().filter(|word| !word.starts_with('-')).collect();
    let (action, names) = words.split_first()?;
    let names = match names {
        [name] => json!(name),
        names => json!(names),
    };
    let empty = names.as_array().is_some_and(Vec::is_empty);
    match *action {
        "install" if !empty => task(kind, json!({"name": names, "state": "present"}))
            .or_else(|| task("package", json!({"name": names, "state": "present"}))),
        "remove" | "purge" | "erase" | "autoremove" if !empty => {
            task(kind, json!({"name": names, "state": "absent"}))
                .or_else(|| task("package", json!({"name": names, "state": "absent"})))
        }
        "update" if kind == "apt" => task("apt", json!({"update_cache": true})),
        "makecache" => task("dnf", json!({"update_cache": true})),
        _ => None,
    }
}

fn useradd(arguments: &[&str]) -> Option<Suggestion> {
    let mut parameters = Map::new();
    let mut words = arguments.iter();
    let mut name = None;
    while let Some(word) = words.next() {
        let key = match *word {
            "-u" | "--uid" => "uid",
            "-g" | "--gid" => "group",
            "-s" | "--shell" => "shell",
            "-d" | "--home-dir" | "--home" => "home",
            "-c" | "--comment" => "comment",
            "-G" | "--groups" => "groups",
            "-m" | "--create-home" => {
                parameters.insert("create_home".to_owned(), json!(true));
                continue;
            }
            "-M" | "--no-create-home" => {
                parameters.insert("create_home".to_owned(), json!(false));
                continue;
            }
            "-r" | "--system" => {
                parameters.insert("system".to_owned(), json!(true));
                continue;
            }
            word if word.starts_with('-') => return None,
            word if name.is_none() => {
                name = Some(word);
                continue;
            }
            _ => return None,
        };
        let value = words.next()?;
        let value = match key {
            "uid" => json!(value.parse::<u32>().ok()?),
            "groups" => json!(value.split(',').collect::<Vec<_>>()),
            _ => json!(value),
        };
        parameters.insert(key.to_owned(), value);
    }
    let mut all = Map::from_iter([("name".to_owned(), json!(name?))]);
    all.extend(parameters);
    task("user", Json::Object(all))
}

fn groupadd(arguments: &[&str]) -> Option<Suggestion> {
    match arguments {
        ["-g" | "--gid", gid, name] => task("group", json!({"name": name, "gid": gid.parse::<u32>().ok()?})),
        ["-r" | "--system", name] => task("group", json!({"name": name, "system": true})),
        [name] if !name.starts_with('-') => task("group", json!({"name": name})),
        _ => None,
    }
}

fn mount(arguments: &[&str]) -> Option<Suggestion> {
    let mut options = None;
    let mut fstype = None;
    let mut places = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "-o" => options = Some(*words.next()?),
            "-t" => fstype = Some(*words.next()?),
            word if word.starts_with('-') => return None,
            word => places.push(word),
        }
    }
    let [source, path] = places.as_slice() else { return None };
    let mut parameters =
        Map::from_iter([("path".to_owned(), json!(path)), ("src".to_owned(), json!(source))]);
    parameters.insert("fstype".to_owned(), json!(fstype?));
    if let Some(options) = options {
        parameters.insert("opts".to_owned(), json!(options));
    }
    parameters.insert("state".to_owned(), json!("mounted"));
    Some(
        task("mount", Json::Object(parameters))?
            .noted("it stands in /etc/fstab then, and is there after a reboot"),
    )
}

fn download(program: &str, arguments: &[&str]) -> Option<Suggestion> {
    let wanted = if program == "curl" { ["-o", "--output"] } else { ["-O", "--output-document"] };
    let place = arguments.iter().position(|word| wanted.contains(word))?;
    let path = arguments.get(place + 1)?;
    let url = arguments.iter().find(|word| word.contains("://"))?;
    let simple = |word: &&str| {
        !word.starts_with('-')
            || wanted.contains(word)
            || matches!(*word, "-s" | "-S" | "-L" | "-f" | "-q" | "-fsSL" | "-sSL" | "-sL")
    };
    if !arguments.iter().all(simple) {
        return None;
    }
    Some(
        task("get_url", json!({"url": url, "dest": path}))?
            .noted("with `checksum: sha256:…` every node gets the same file"),
    )
}
