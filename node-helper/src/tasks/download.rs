//! Downloads with the node's own `curl`, `wget` or, for want of both, apt's helper.
//!
//! Not in the helper itself: TLS in Rust without C code is not ready, and C code cannot be built for the static helper,
//! which would also know neither the node's certificates nor its proxies. Names, passwords and headers never appear in
//! a command line, which every user of the node can read.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use gpufleet_protocol::FailureKind;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Map, Value};

use crate::{
    declare::{Node, Trouble},
    os::{
        files::At,
        tree::{self, Spot},
    },
    process::Run,
};

/// The text before the status code in curl's output.
const STATUS: &str = "\ngpufleet-http-status ";

/// A request to a server.
pub struct Request<'a> {
    pub url: &'a str,
    pub headers: Option<&'a Map<String, Value>>,
    pub user: Option<(&'a str, &'a str)>,
    /// Time limit of the server's silence, in seconds.
    pub timeout_s: u64,
    pub validate_certs: bool,
    pub use_proxy: bool,
    pub agent: &'a str,
    /// Largest file that is taken, in bytes.
    pub most: u64,
}

/// Who a request says that it comes from.
const AGENT: &str = "gpufleet";
/// Time limit of a server's silence, in seconds.
const SILENCE_S: u64 = 10;
/// The program of apt that downloads for scripts; it uses apt's proxies and certificates.
const APT_HELPER: &str = "/usr/lib/apt/apt-helper";

impl<'a> Request<'a> {
    /// A plain request for a file of at most `most` bytes.
    pub const fn plain(url: &'a str, validate_certs: bool, most: u64) -> Self {
        Self {
            url,
            headers: None,
            user: None,
            timeout_s: SILENCE_S,
            validate_certs,
            use_proxy: true,
            agent: AGENT,
            most,
        }
    }

    /// The name of the file at the end of its address, made fit for a path.
    fn name(&self) -> String {
        let path = self.url.split(['?', '#']).next().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        let safe = |c: char| if c.is_ascii_alphanumeric() || "._+~-".contains(c) { c } else { '_' };
        let name: String = name.chars().map(safe).skip_while(|c| matches!(c, '.' | '-')).take(120).collect();
        if name.is_empty() { "file".to_owned() } else { name }
    }
}

/// Downloads of one operation, so that each address is asked once: for the plan, and not again for the run or what
/// reads after it.
#[derive(Debug, Default)]
pub struct Downloads {
    held: Mutex<Vec<(String, Arc<Held>)>>,
}

/// A downloaded file in a folder that only this user can read; it ends with the operation.
#[derive(Debug)]
pub struct Held {
    folder: Spot,
    file: Spot,
}

impl Held {
    pub fn path(&self) -> PathBuf {
        self.file.path()
    }

    /// # Errors
    /// If it cannot be read.
    pub fn bytes(&self) -> Result<Vec<u8>, Trouble> {
        let mut bytes = Vec::new();
        self.file.open()?.read_to_end(&mut bytes).at("read", self.path())?;
        Ok(bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.file.remove();
        let _ = self.folder.remove_dir();
    }
}

impl Downloads {
    /// Returns what an address gives, and downloads it at the first call.
    ///
    /// # Errors
    /// As [`download`].
    pub fn get(&self, request: &Request<'_>, node: &Node<'_>) -> Result<Arc<Held>, Trouble> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = held.iter().find(|(url, _)| url == request.url) {
            return Ok(Arc::clone(found));
        }
        let new = Arc::new(private(&request.name())?);
        let file = new.file.create(0o600).at("write", new.path())?;
        download(request, &file, node)?;
        held.push((request.url.to_owned(), Arc::clone(&new)));
        Ok(new)
    }
}

/// Makes a private folder for one file.
fn private(name: &str) -> Result<Held, Trouble> {
    let (folder, inside) = tree::dir(&std::env::temp_dir())?.private("gpufleet-download")?;
    Ok(Held { file: inside.spot(name), folder })
}

impl Request<'_> {
    fn header_lines(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.headers.into_iter().flatten().map(|(name, value)| format!("{name}: {}", text(value))).collect()
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
    let helper = node.roots.path(APT_HELPER);
    let code = if let Some(curl) = node.roots.tool("curl") {
        with_curl(&curl, request, &to, node)?
    } else if let Some(wget) = node.roots.tool("wget") {
        with_wget(&wget, request, &to, node)?;
        None
    } else if request.header_lines().is_empty() && request.user.is_none() && helper.is_file() {
        with_apt(&helper, request, &to, node)?;
        None
    } else {
        return Err(Trouble::missing(
            "this node has neither curl nor wget to download with; install one first, or use `copy`",
        ));
    };
    let size = to.metadata().at("look at", "the download")?.len();
    if size > request.most {
        let why = format!("what it gives is larger than the {} MiB that are taken", request.most >> 20);
        return Err(failed(request.url, &why));
    }
    Ok(code)
}

fn with_apt(helper: &Path, request: &Request<'_>, to: &Arc<File>, node: &Node<'_>) -> Result<(), Trouble> {
    let place = private("file")?;
    let mut run = surroundings(Run::new(helper), node);
    let mut options = vec![format!("Acquire::http::Timeout={}", request.timeout_s.max(1))];
    for scheme in ["http", "https"] {
        options.push(format!("Acquire::{scheme}::User-Agent={}", request.agent));
        options.extend((!request.use_proxy).then(|| format!("Acquire::{scheme}::Proxy=DIRECT")));
    }
    options.extend((!request.validate_certs).then(|| "Acquire::https::Verify-Peer=false".to_owned()));
    for option in options {
        run = run.args(["-o", &option]);
    }
    let done = run.args(["download-file", request.url]).arg(place.path()).finish(node.deadline)?;
    if !done.exit.success() {
        let text = format!("{}{}", done.stdout(), done.stderr());
        let why =
            text.lines().find(|line| line.starts_with("E:")).unwrap_or("apt-helper ended without the file");
        return Err(failed(request.url, why));
    }
    io::copy(&mut place.file.open()?, &mut &**to).at("write", "the download")?;
    Ok(())
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
    if request.most < u64::MAX {
        settings.push_str(&format!("max-filesize = {}\n", request.most));
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
