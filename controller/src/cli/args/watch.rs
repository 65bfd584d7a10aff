//! `watch`.

use std::path::PathBuf;

use clap::Args;

use super::{Checks, duration};

#[derive(Clone, Debug, Args)]
pub struct WatchArgs {
    /// What to audit, when, and whom to tell: a YAML file (`gpufleet schema watch`). Without it, the flags say so.
    #[arg(value_name = "FILE", required_unless_present_any = ["health", "baseline", "playbook"])]
    #[arg(conflicts_with_all = ["health", "baseline", "playbook", "waivers", "deep", "inventory", "limit", "every", "at",
        "timezone", "jitter", "timeout", "listen", "token_file", "webhook", "url_file", "secret_file", "notify",
        "reminder"])]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub checks: Checks,
    /// Compares nodes with this playbook; may be given several times.
    #[arg(long, value_name = "PLAYBOOK", help_heading = "Health and compliance")]
    pub playbook: Vec<String>,
    /// Inventory, as for `audit`; may be given several times.
    #[arg(short, long = "inventory", value_name = "SOURCE", help_heading = "Which nodes")]
    pub inventory: Vec<String>,
    /// Takes only hosts that this pattern selects too.
    #[arg(short, long, value_name = "PATTERN", help_heading = "Which nodes")]
    pub limit: Option<String>,
    #[command(flatten)]
    pub when: WatchTimes,
    #[command(flatten)]
    pub receivers: WatchReceivers,
    /// Folder of the state; `watch` below the folder of runs unless given. Each watcher has its own.
    #[arg(long, value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Checks the configuration, shows the next audits, and ends.
    #[arg(long)]
    pub check: bool,
    /// Sends a test to each receiver of notifications, and ends.
    #[arg(long, conflicts_with = "check")]
    pub test_notifications: bool,
    /// The file of settings, which the audits read too.
    #[arg(skip)]
    pub config: Option<PathBuf>,
}

/// When audits are made.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "When")]
pub struct WatchTimes {
    /// An audit each time this has passed, such as `6h`.
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "at")]
    #[arg(required_unless_present_any = ["file", "at"])]
    pub every: Option<u64>,
    /// An audit at this time of day, such as `02:00`; may be given several times.
    #[arg(long, value_name = "HH:MM")]
    pub at: Vec<String>,
    /// Time zone of --at; this machine's unless given.
    #[arg(long, value_name = "ZONE", requires = "at")]
    pub timezone: Option<String>,
    /// An audit begins up to this much later, so that not all machines audit at once.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub jitter: Option<u64>,
    /// How long an audit may take; 1 hour unless given.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<u64>,
}

/// Who reads metrics and gets notifications.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Metrics and notifications")]
pub struct WatchReceivers {
    /// Serves /metrics, /healthz and /readyz here, such as 127.0.0.1:9464.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<std::net::SocketAddr>,
    /// File with the token that readers of /metrics must send; needed where other machines can reach it.
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub token_file: Option<PathBuf>,
    /// URL that notifications are posted to.
    #[arg(long, value_name = "URL", conflicts_with = "url_file")]
    pub webhook: Option<String>,
    /// File with that URL, where it is a secret.
    #[arg(long, value_name = "FILE")]
    pub url_file: Option<PathBuf>,
    /// File with the secret that signs notifications.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Program that reads a notification from standard input, with its arguments; no shell is involved.
    #[arg(long, value_name = "COMMAND")]
    pub notify: Option<String>,
    /// Tells an unchanged finding again after this time.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub reminder: Option<u64>,
}
