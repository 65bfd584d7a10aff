//! What the library must not read by itself: the environment, the home folder, the terminal.

use std::{
    env, fs,
    io::{IsTerminal, stderr, stdin, stdout},
    os::fd::AsFd,
    path::PathBuf,
};

use gpufleet::display::Style;

use super::kept_runs::KeptRuns;

/// Read once, at the start.
#[derive(Clone, Debug)]
pub struct Environment {
    pub home: Option<PathBuf>,
    pub user: Option<String>,
    pub ssh_auth_sock: Option<PathBuf>,
    /// Folder of a user's configuration.
    pub config_dir: Option<PathBuf>,
    /// The variables that settings may come from or name.
    pub settings: Vec<(String, String)>,
    /// Folder below which runs are kept.
    pub state_dir: PathBuf,
    /// What is kept there.
    pub kept_runs: KeptRuns,
    /// Folder of what can be made again at any time.
    pub cache_dir: Option<PathBuf>,
    pub no_color: bool,
    pub stdin_is_terminal: bool,
    pub stdout_is_terminal: bool,
    pub stderr_is_terminal: bool,
    /// Columns of the terminal that standard output is, if it is one.
    pub stdout_width: usize,
    /// The same of standard error.
    pub stderr_width: usize,
    pub hostname: String,
    /// The words of `EDITOR`, or `vi`.
    pub editor: String,
    /// The boot of this machine, as nodes tell theirs.
    pub boot_id: Option<String>,
}

fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Columns to write for.
fn width(stream: impl IsTerminal + AsFd) -> usize {
    if !stream.is_terminal() {
        return Style::UNCUT;
    }
    let columns = rustix::termios::tcgetwinsize(stream).map_or(0, |size| usize::from(size.ws_col));
    // Why: a terminal that does not know its size says 0.
    if columns == 0 { 80 } else { columns.clamp(40, 140) }
}

/// Columns of a table on standard output, which may be as wide as the terminal.
pub fn table_width() -> usize {
    if !stdout().is_terminal() {
        return Style::UNCUT;
    }
    match rustix::termios::tcgetwinsize(stdout()).map_or(0, |size| usize::from(size.ws_col)) {
        0 => 80,
        columns => columns,
    }
}

/// Columns of standard error at this moment.
pub fn stderr_width() -> usize {
    width(stderr())
}

impl Environment {
    pub fn read() -> Self {
        let home = path("HOME");
        let state = path("XDG_STATE_HOME").or_else(|| Some(home.as_ref()?.join(".local/state")));
        Self {
            config_dir: path("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config"))),
            settings: env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            user: env::var("USER").or_else(|_| env::var("LOGNAME")).ok().filter(|user| !user.is_empty()),
            ssh_auth_sock: path("SSH_AUTH_SOCK"),
            cache_dir: path("XDG_CACHE_HOME")
                .or_else(|| Some(home.as_ref()?.join(".cache")))
                .map(|folder| folder.join("gpufleet")),
            kept_runs: KeptRuns::default(),
            state_dir: state.unwrap_or_else(|| PathBuf::from("/var/lib")).join("gpufleet"),
            home,
            editor: env::var("EDITOR")
                .ok()
                .filter(|text| !text.trim().is_empty())
                .unwrap_or_else(|| "vi".to_owned()),
            no_color: env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
            stdin_is_terminal: stdin().is_terminal(),
            stdout_is_terminal: stdout().is_terminal(),
            stderr_is_terminal: stderr().is_terminal(),
            stdout_width: width(stdout()),
            stderr_width: stderr_width(),
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .ok()
                .map(|text| text.trim().to_owned()),
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    /// Who acts, for the lock on a node: `user@host pid`.
    pub fn who(&self) -> String {
        format!("{}@{} pid {}", self.user.as_deref().unwrap_or("unknown"), self.hostname, std::process::id())
    }
}
