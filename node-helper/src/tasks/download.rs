//! Downloading with the node's own `curl` or `wget`.
//!
//! Why not in the helper: TLS in Rust without C code is not ready, and C code cannot be built for the static helper; it
//! would also know neither the node's certificates nor its proxies. Names, passwords and headers never stand in a
//! command line, which every user of the node can read.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use gpufleet_protocol::FailureKind;
use serde_json::{Map, Value};

use crate::{
    declare::{Node, Trouble},
    os::files::{self, At},
    process::Run,
};

/// What to ask a server for.
pub struct Request<'a> {
    pub url: &'a str,
    pub headers: &'a Map<String, Value>,
    pub user: Option<(&'a str, &'a str)>,
    /// In seconds, for the server's silence.
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

/// An address without the name and password in it.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest.get(..end).and_then(|host| host.rfind('@')) {
        Some(at) => format!("{scheme}://{}", rest.get(at + 1..).unwrap_or_default()),
        None => url.to_owned(),
    }
}

/// Text in double quotes, as curl's and wget's settings take it.
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

/// Puts what the server gives into an existing file; gives the status code where the program tells it.
///
/// # Errors
/// There is no program to download with, or the server does not give the file.
pub fn download(request: &Request<'_>, to: &Path, node: &Node<'_>) -> Result<Option<u64>, Trouble> {
    (node.progress)(format!("downloading {}", shown(request.url)));
    if let Some(curl) = node.roots.tool("curl") {
        return with_curl(&curl, request, to, node);
    }
    if let Some(wget) = node.roots.tool("wget") {
        return with_wget(&wget, request, to, node).map(|()| None);
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

fn with_curl(curl: &Path, request: &Request<'_>, to: &Path, node: &Node<'_>) -> Result<Option<u64>, Trouble> {
    let mut settings = format!(
        "url = {}\noutput = {}\nuser-agent = {}\nconnect-timeout = {}\nspeed-time = {}\nspeed-limit = 1\n",
        quoted(request.url),
        quoted(&to.to_string_lossy()),
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
        .args(["--write-out", "%{http_code}", "--config", "-"])
        .stdin(settings);
    let done = surroundings(run, node).finish(node.deadline)?;
    if !done.exit.success() {
        return Err(failed(request.url, done.stderr().trim()));
    }
    Ok(done.stdout().trim().parse().ok().filter(|code| *code > 0))
}

fn with_wget(wget: &Path, request: &Request<'_>, to: &Path, node: &Node<'_>) -> Result<(), Trouble> {
    let mut run =
        Run::new(wget).args(["-q", "-T", &request.timeout_s.max(1).to_string(), "-U", request.agent]);
    let mut settings = String::new();
    for line in request.header_lines() {
        settings.push_str(&format!("header = {line}\n"));
    }
    if let Some((name, password)) = request.user {
        settings.push_str(&format!("user = {name}\npassword = {password}\n"));
    }
    let mut file = None;
    if !settings.is_empty() {
        let held = Settings::beside(to, &settings)?;
        run = run.arg(format!("--config={}", held.0.display()));
        file = Some(held);
    }
    if !request.validate_certs {
        run = run.arg("--no-check-certificate");
    }
    if !request.use_proxy {
        run = run.args(["-Y", "off"]);
    }
    let run = run.arg("-O").arg(to).arg(request.url);
    let done = surroundings(run, node).finish(node.deadline)?;
    drop(file);
    if done.exit.success() {
        return Ok(());
    }
    let why = done.stderr().trim().to_owned();
    Err(failed(request.url, if why.is_empty() { "wget ended without the file" } else { &why }))
}

/// A file that only its owner reads; gone when dropped.
struct Settings(PathBuf);

impl Settings {
    fn beside(place: &Path, text: &str) -> Result<Self, Trouble> {
        let folder = place.parent().unwrap_or(Path::new("/"));
        let path = folder.join(format!(".gpufleet-{}-{}.wgetrc", std::process::id(), files::unique()));
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).at("write", &path)?;
        let settings = Self(path);
        file.write_all(text.as_bytes()).at("write", &settings.0)?;
        Ok(settings)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
