//! Executable inventories.
//!
//! Owns how they are called and how their output is read. Invariant: a script that fails, prints no JSON, or exceeds
//! its time limit is an error that shows its standard error; no process is left behind.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::draft::Draft;
use super::ini::{cycle, set_group_var};
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};
use crate::yaml::{self, Node, Value};

/// Largest output of a script, in bytes.
const MAX_OUTPUT_BYTES: u64 = 256 * 1024 * 1024;
/// Number of lines of its standard error that a message shows.
const SHOWN_ERROR_LINES: usize = 8;

/// Whether a file is a program: it is executable, and begins as a program does.
///
/// Files copied from other systems are often executable without being programs.
pub(super) fn is_script(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let executable = std::fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0);
    if !executable {
        return false;
    }
    let mut start = [0u8; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read(&mut start)).unwrap_or_default();
    start.get(..read).is_some_and(|start| start.starts_with(b"#!") || start == b"\x7fELF")
}

/// Runs `--list`, and `--host` for every host unless the output has `_meta`.
pub(super) fn read(draft: &mut Draft, path: &Path, timeout: Duration) -> Result<(), Diagnostics> {
    let (root, stderr) = call(path, &["--list"], timeout)?;
    let with_stderr =
        |errors: Diagnostics| Diagnostics(errors.into_iter().map(|error| shown(error, &stderr)).collect());
    let (hosts, meta) = groups(draft, &root).map_err(with_stderr)?;
    let mut errors = Diagnostics::new();
    for host in hosts {
        let vars = match &meta {
            Some(meta) => meta.get(&host).cloned(),
            None => errors.absorb(call(path, &["--host", &host], timeout)).map(|(vars, _)| vars),
        };
        let Some(vars) = vars else {
            if errors.has_errors() {
                break;
            }
            continue;
        };
        match &vars.value {
            Value::Null => {}
            Value::Map(entries) => {
                if let Some(host) =
                    draft.host_index.get(host.as_str()).and_then(|id| draft.hosts.get_mut(*id))
                {
                    for (key, value) in entries {
                        let key = key.key_text();
                        host.places.note(&key, &value.span);
                        host.vars.insert(key, value.to_json());
                    }
                }
            }
            _ => errors.push(vars.wrong_type(&format!("the variables of the host `{host}`"), "a mapping")),
        }
    }
    errors.into_result(())
}

type Listed = (Vec<String>, Option<Node>);

/// Reads the groups of the `--list` output. Returns the hosts in order, and `_meta.hostvars`.
fn groups(draft: &mut Draft, root: &Node) -> Result<Listed, Diagnostics> {
    let mut errors = Diagnostics::new();
    let mut meta = None;
    let mut hosts = Vec::new();
    let mut seen = HashSet::new();
    for (name, data) in root.expect_map("the output of an inventory script")? {
        let name_text = name.key_text();
        if name_text == "_meta" {
            match data.get("hostvars") {
                Some(vars) if vars.as_map().is_some() => meta = Some(vars.clone()),
                _ => errors.push(data.wrong_type("`_meta`", "a mapping with `hostvars`")),
            }
            continue;
        }
        if name_text.is_empty() {
            errors.push(Diagnostic::error("a group needs a name").at(&name.span));
            continue;
        }
        let group = draft.add_group(&name_text);
        let entries = match &data.value {
            Value::Seq(_) => vec![("hosts".to_owned(), data)],
            Value::Map(entries) => entries.iter().map(|(key, value)| (key.key_text(), value)).collect(),
            _ => {
                errors.push(
                    data.wrong_type(&format!("the group `{name_text}`"), "a mapping or a list of hosts"),
                );
                continue;
            }
        };
        if !entries.is_empty()
            && !entries.iter().any(|(key, _)| matches!(key.as_str(), "hosts" | "vars" | "children"))
        {
            errors.push(
                Diagnostic::error(format!(
                    "the group `{name_text}` has neither `hosts` nor `children` nor `vars`"
                ))
                .at(&name.span),
            );
            continue;
        }
        for (key, value) in entries {
            match key.as_str() {
                "hosts" => {
                    let Some(list) =
                        errors.absorb(value.expect_seq(&format!("`hosts` of the group `{name_text}`")))
                    else {
                        continue;
                    };
                    for host in list {
                        let place = &host.span;
                        let Some(host) = errors.absorb(host.expect_str("the name of a host")) else {
                            continue;
                        };
                        draft.add_host(host, group, None, place);
                        if seen.insert(host.to_owned()) {
                            hosts.push(host.to_owned());
                        }
                    }
                }
                "vars" => {
                    let vars = errors.absorb(value.expect_map(&format!("`vars` of the group `{name_text}`")));
                    for (key, value) in vars.unwrap_or_default() {
                        if let Err(error) =
                            set_group_var(draft, group, &key.key_text(), value.to_json(), &value.span)
                        {
                            errors.push(*error);
                        }
                    }
                }
                "children" => {
                    let children: Vec<&Node> = match &value.value {
                        Value::Map(entries) => entries.iter().map(|(name, _)| name).collect(),
                        _ => errors
                            .absorb(value.expect_seq(&format!("`children` of the group `{name_text}`")))
                            .map(|list| list.iter().collect())
                            .unwrap_or_default(),
                    };
                    for child in children {
                        let Some(text) = errors.absorb(child.expect_str("the name of a group")) else {
                            continue;
                        };
                        let id = draft.add_group(text);
                        if draft.add_child(group, id).is_err() {
                            errors.push(cycle(draft, group, id, &child.span));
                        }
                    }
                }
                _ => {}
            }
        }
    }
    errors.into_result((hosts, meta))
}

/// Runs the script once. Returns its output as a tree, and what it wrote to standard error.
fn call(path: &Path, arguments: &[&str], timeout: Duration) -> Result<(Node, String), Diagnostics> {
    let shown_command = format!("{} {}", path.display(), arguments.join(" "));
    let failed = |why: String, stderr: &str| -> Diagnostics {
        shown(Diagnostic::error(format!("the inventory script `{shown_command}` {why}")), stderr).into()
    };
    let program = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A script that is stopped must take its children with it.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().map_err(|error| failed(format!("cannot be started: {error}"), ""))?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Ok(None) => break None,
            Err(error) => return Err(failed(format!("cannot be waited for: {error}"), "")),
        }
    };
    // Also after a clean exit, so that a child that was left behind cannot keep the pipes open.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
    let (stdout, stderr) = (received(stdout), received(stderr));
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    let Some(status) = status else {
        let error =
            failed(format!("did not end within {} s and was stopped", timeout.as_secs_f64()), &stderr);
        return Err(Diagnostics(
            error.into_iter().map(|error| error.help("give it more time with `--script-timeout`")).collect(),
        ));
    };
    if !status.success() {
        return Err(failed(format!("failed: {status}"), &stderr));
    }
    let source = yaml::decode(&format!("output of {shown_command}"), &stdout)?;
    // A script may print nothing for a host that it does not know.
    if arguments.first() == Some(&"--host") && source.text().trim().is_empty() {
        return Ok((Node { value: Value::Null, span: Span::new(&source, 1, 1, 0) }, stderr));
    }
    let node = parse_json(&source).map_err(|error| Diagnostics::from(shown(error, &stderr)))?;
    Ok((node, stderr))
}

/// Checks that the text is JSON and reads it as YAML, whose reader records places.
fn parse_json(source: &Arc<SourceFile>) -> Result<Node, Diagnostic> {
    if let Err(error) = yaml::check_json(source.text()) {
        let line = u32::try_from(error.line()).unwrap_or(1).max(1);
        let column = u32::try_from(error.column()).unwrap_or(1).max(1);
        return Err(Diagnostic::error("an inventory script must print JSON")
            .at(&Span::new(source, line, column, 1))
            .label(error.to_string().split(" at line ").next().unwrap_or_default()));
    }
    yaml::parse_source(source).map_err(|errors| {
        errors.into_iter().next().unwrap_or_else(|| Diagnostic::error("an inventory script must print JSON"))
    })
}

fn shown(mut error: Diagnostic, stderr: &str) -> Diagnostic {
    let lines: Vec<&str> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    for line in lines.iter().skip(lines.len().saturating_sub(SHOWN_ERROR_LINES)) {
        error = error.note(format!("the script says: {line}"));
    }
    error
}

type Receiver = Option<std::thread::JoinHandle<Vec<u8>>>;

fn collect(stream: Option<impl Read + Send + 'static>) -> Receiver {
    stream.map(|stream| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stream.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
            bytes
        })
    })
}

fn received(receiver: Receiver) -> Vec<u8> {
    receiver.and_then(|thread| thread.join().ok()).unwrap_or_default()
}
