//! Downloads with the node's own `curl` or `wget`.
//!
//! Not in the helper itself: TLS in Rust without C code is not ready, and C code cannot be built for the static helper,
//! which would also know neither the node's certificates nor its proxies. Names, passwords and headers never appear in
//! a command line, which every user of the node can read.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    path::Path,
    sync::Arc,
};

use gpufleet_protocol::FailureKind;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Map, Value};

use crate::{
    declare::{Node, Trouble},
    os::files::At,
    process::Run,
};

/// The text before the status code in curl's output.
const STATUS: &str = "\ngpufleet-http-status ";

/// A request to a server.
pub struct Request<'a> {
    pub url: &'a str,
    pub headers: &'a Map<String, Value>,
    pub user: Option<(&'a str, &'a str)>,
    /// Time limit of the server's silence, in seconds.
    pub timeout_s: u64,
    pub validate_certs: bool,
    pub use_proxy: bool,
    pub agent: &'a str,
}

impl Request<'_> {
    fn header_lines(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.headers.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect()
    }
}

/// Returns an address without name and password.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest.get(..end).and_then(|host| host.rfind('@')) {
        Some(at) => format!("{scheme}://{}", rest.get(at + 1..).unwrap_or_default()),
        None => url.to_owned(),
    }
}

/// Quotes text for the settings of curl and wget.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' | '\r' => {}
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Downloads to an open, empty file; returns the status code if the program reports it.
///
/// The program writes to its standard output, because another user could redirect a path.
///
/// # Errors
/// If no program can download, or the server does not return the file.
pub fn download(request: &Request<'_>, to: &File, node: &Node<'_>) -> Result<Option<u64>, Trouble> {
    let to = Arc::new(to.try_clone().at("write", "the download")?);
    (node.progress)(format!("downloading {}", shown(request.url)));
    if let Some(curl) = node.roots.tool("curl") {
        return with_curl(&curl, request, &to, node);
    }
    if let Some(wget) = node.roots.tool("wget") {
        return with_wget(&wget, request, &to, node).map(|()| None);
    }
    Err(Trouble::invalid(
        "this node has neither curl nor wget to download with; install one first, or use `copy`",
    ))
}

fn surroundings(run: Run, node: &Node<'_>) -> Run {
    let run = run.user(node.user.clone());
    node.environment.iter().fold(run, |run, (name, value)| run.env(name, value))
}

fn failed(url: &str, why: &str) -> Trouble {
    Trouble::failed(FailureKind::Exit, format!("Request failed: {}: {why}", shown(url)))
}

/// Removes the status code that curl wrote after the content, and returns it.
fn status(file: &File) -> std::io::Result<Option<u64>> {
    let mut file = file;
    let length = (STATUS.len() + 3) as u64;
    let Some(at) = file.metadata()?.len().checked_sub(length) else { return Ok(None) };
    let mut tail = String::new();
    file.seek(SeekFrom::Start(at))?;
    // Content that is no text has no status code.
    let code = match file.read_to_string(&mut tail) {
        Ok(_) => tail.strip_prefix(STATUS).and_then(|code| code.parse::<u64>().ok()),
        Err(_) => None,
    };
    if code.is_some() {
        file.set_len(at)?;
    }
    file.seek(SeekFrom::End(0))?;
    Ok(code.filter(|code| *code > 0))
}

fn with_curl(
    curl: &Path,
    request: &Request<'_>,
    to: &Arc<File>,
    node: &Node<'_>,
) -> Result<Option<u64>, Trouble> {
    let mut settings = format!(
        "url = {}\noutput = \"-\"\nuser-agent = {}\nconnect-timeout = {}\nspeed-time = {}\nspeed-limit = 1\n",
        quoted(request.url),
        quoted(request.agent),
        request.timeout_s.max(1),
        request.timeout_s.max(1),
    );
    for line in request.header_lines() {
        settings.push_str(&format!("header = {}\n", quoted(&line)));
    }
    if let Some((name, password)) = request.user {
        settings.push_str(&format!("user = {}\n", quoted(&format!("{name}:{password}"))));
    }
    let flags = [(!request.validate_certs, "insecure\n"), (!request.use_proxy, "noproxy = \"*\"\n")];
    settings.extend(flags.into_iter().filter(|(set, _)| *set).map(|(_, line)| line));
    let run = Run::new(curl)
        .args(["--disable", "--fail", "--silent", "--show-error", "--location", "--globoff"])
        .args(["--write-out", &format!("{STATUS}%{{http_code}}"), "--config", "-"])
        .stdin(settings)
        .stdout_file(Arc::clone(to));
    let done = surroundings(run, node).finish(node.deadline)?;
    if !done.exit.success() {
        return Err(failed(request.url, done.stderr().trim()));
    }
    Ok(status(to).at("read", "the download")?)
}

fn with_wget(wget: &Path, request: &Request<'_>, to: &Arc<File>, node: &Node<'_>) -> Result<(), Trouble> {
    let mut run =
        Run::new(wget).args(["-q", "-T", &request.timeout_s.max(1).to_string(), "-U", request.agent]);
    let mut settings = String::new();
    for line in request.header_lines() {
        settings.push_str(&format!("header = {line}\n"));
    }
    if let Some((name, password)) = request.user {
        settings.push_str(&format!("user = {name}\npassword = {password}\n"));
    }
    if !settings.is_empty() {
        // In memory, because it holds passwords, and a file on disk could be replaced by another user.
        let memory =
            memfd_create("gpufleet-wgetrc", MemfdFlags::CLOEXEC).at("write", "the settings of wget")?;
        let mut file = File::from(memory);
        file.write_all(settings.as_bytes()).at("write", "the settings of wget")?;
        run = run.arg(format!("--config={}", Run::INPUT)).stdin_file(Arc::new(file));
    }
    if !request.validate_certs {
        run = run.arg("--no-check-certificate");
    }
    if !request.use_proxy {
        run = run.args(["-Y", "off"]);
    }
    let run = run.args(["-O", "-", request.url]).stdout_file(Arc::clone(to));
    let done = surroundings(run, node).finish(node.deadline)?;
    if done.exit.success() {
        return Ok(());
    }
    let why = done.stderr().trim().to_owned();
    Err(failed(request.url, if why.is_empty() { "wget ended without the file" } else { &why }))
}
