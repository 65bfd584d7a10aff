//! What a watcher does, as its file `watch.yaml` or the flags of the command say it.

mod read;
mod schema;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use gpufleet_compliance::{Severity, Verdict};
use gpufleet_protocol::lenient::parse_seconds;
use jiff::civil::{Time, Weekday};

use crate::schedule::Rhythm;

pub use self::schema::schema;

/// Audits of one watcher.
pub const MOST_AUDITS: usize = 32;
/// Channels of one watcher.
pub const MOST_CHANNELS: usize = 16;
/// How long an audit may take unless its schedule says otherwise.
pub const AUDIT_TIME: Duration = Duration::from_secs(60 * 60);
/// How long one delivery may take unless the channel says otherwise.
pub const DELIVERY_TIME: Duration = Duration::from_secs(10);

/// Everything that a watcher is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    pub audits: Vec<Audit>,
    pub channels: Vec<Channel>,
    pub listen: Option<Listen>,
    /// After which time an unchanged finding is told again; never without it.
    pub reminder: Option<Duration>,
}

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    pub address: SocketAddr,
    /// The file with the token that readers of metrics must send.
    pub token_file: Option<PathBuf>,
}

/// One schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// Unique among the audits of a watcher; the label `schedule` of metrics.
    pub name: String,
    pub rhythm: Rhythm,
    pub target: Target,
    /// After this time the audit is ended, and counts as failed.
    pub timeout: Duration,
}

/// What `gpufleet audit` is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    pub playbooks: Vec<String>,
    pub inventories: Vec<String>,
    pub limit: Option<String>,
    pub health: bool,
    pub baselines: Vec<String>,
    pub waivers: Option<String>,
    pub deep: bool,
}

impl Target {
    /// The words of the command, `audit` first.
    pub fn arguments(&self) -> Vec<String> {
        // With `=`, so that no value can be taken for an option.
        let option = |name: &str, value: &str| format!("--{name}={value}");
        let mut words = vec!["audit".to_owned()];
        words.extend(self.health.then(|| "--health".to_owned()));
        words.extend(self.baselines.iter().map(|name| option("baseline", name)));
        words.extend(self.waivers.iter().map(|file| option("waivers", file)));
        words.extend(self.deep.then(|| "--deep".to_owned()));
        words.extend(self.inventories.iter().map(|source| option("inventory", source)));
        words.extend(self.limit.iter().map(|pattern| option("limit", pattern)));
        words.extend(["--format", "json"].map(str::to_owned));
        if !self.playbooks.is_empty() {
            words.push("--".to_owned());
            words.extend(self.playbooks.iter().cloned());
        }
        words
    }

    /// Whether there is anything to audit.
    pub fn is_empty(&self) -> bool {
        !self.health && self.baselines.is_empty() && self.playbooks.is_empty()
    }
}

/// One receiver of notifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Unique among the channels of a watcher; the label `channel` of metrics.
    pub name: String,
    pub means: Means,
    /// How long one delivery may take.
    pub timeout: Duration,
    pub filter: Filter,
}

/// How a notification is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Means {
    Webhook(Webhook),
    /// A program and its arguments; it reads the notification from standard input. No shell is involved.
    Command(Vec<String>),
}

/// An HTTP endpoint that takes notifications.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    pub url: Location,
    /// The file with the secret of signatures.
    pub secret_file: Option<PathBuf>,
    /// The file with a token that is sent as `Authorization: Bearer`.
    pub token_file: Option<PathBuf>,
    /// Certificates of authorities in PEM that are trusted in place of the public ones.
    pub ca_file: Option<PathBuf>,
    pub proxy: Option<String>,
}

impl std::fmt::Debug for Webhook {
    /// Without the URL and the proxy, which may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { secret_file, token_file, ca_file, .. } = self;
        f.debug_struct("Webhook")
            .field("secret_file", secret_file)
            .field("token_file", token_file)
            .field("ca_file", ca_file)
            .finish_non_exhaustive()
    }
}

/// A URL, or the file that holds it because the URL is a secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    Url(String),
    File(PathBuf),
}

/// Which notifications a channel gets. A recovery goes where its finding went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    pub verdicts: Vec<Verdict>,
    /// The least severity.
    pub severity: Severity,
    /// Names of audits; empty for all of them.
    pub audits: Vec<String>,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            verdicts: vec![Verdict::Fail, Verdict::Unknown, Verdict::Drift],
            severity: Severity::Info,
            audits: Vec::new(),
        }
    }
}

/// Reads a time of day such as `02:00`.
pub fn time_of_day(text: &str) -> Option<Time> {
    let (hour, minute) = text.trim().split_once(':')?;
    let part = |text: &str| text.parse::<i8>().ok().filter(|_| text.len() <= 2);
    Time::new(part(hour)?, part(minute)?, 0, 0).ok()
}

/// Reads a day of the week such as `mon` or `Monday`.
pub fn weekday(text: &str) -> Option<Weekday> {
    let word = text.trim().to_ascii_lowercase();
    let full = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    let at = full.iter().position(|day| word.len() >= 3 && day.starts_with(&word))?;
    Weekday::from_monday_zero_offset(i8::try_from(at).ok()?).ok()
}

/// Reads a duration of at least one second and at most a year, such as `6h`.
pub fn duration(text: &str) -> Option<u32> {
    const YEAR: u64 = 366 * 86_400;
    parse_seconds(text)
        .filter(|seconds| (1..=YEAR).contains(seconds))
        .and_then(|seconds| u32::try_from(seconds).ok())
}

/// Checks the text of a URL that notifications are sent to.
///
/// # Errors
/// What is wrong with it, without the URL itself.
pub fn check_url(url: &str) -> Result<(), &'static str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else { return Err("it must begin with https:// or http://") };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.contains('@') {
        return Err("it must not hold a user or a password: give a `token_file`");
    }
    if host.is_empty() || url.len() > 2048 || url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("it is no URL");
    }
    Ok(())
}

/// Whether the host of a URL, or of the header `Host`, is a name of this machine in a way that no other site can have.
pub(crate) fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) => (name, port),
            None => return false,
        },
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let port_is_one =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let is_here = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    port_is_one && is_here
}

/// The names of audits and channels, which are labels of metrics and parts of ids.
pub fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=64).contains(&text.len()) && text.chars().all(allowed)
}

#[cfg(test)]
mod tests;
