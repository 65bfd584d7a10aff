//! The units of a node: enough of systemd to start, stop, enable and show services.
//!
//! Unit files are real files in systemd's format; an enabled unit has a real symlink; a unit's processes have a mark
//! in their environment, in place of systemd's cgroup. The state of units is in /run, so a reboot clears it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use super::first::PATH;

const ADMIN_UNITS: &str = "/etc/systemd/system";
const VENDOR_UNITS: &str = "/usr/lib/systemd/system";
const RUNNING: &str = "/run/lab-units";
/// The environment variable that marks the processes of a unit.
const MARK: &str = "LAB_UNIT";

/// A unit as described by its files.
#[derive(Clone, Debug, Default)]
pub struct Unit {
    pub name: String,
    pub path: PathBuf,
    pub drop_ins: Vec<PathBuf>,
    /// Key and value of every line, in order, of the unit file and its drop-ins.
    settings: Vec<(String, String)>,
    pub masked: bool,
}

/// The state of a unit that was started since the boot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    pub main_pid: u32,
    /// Seconds since the epoch.
    pub since: u64,
    pub failed: bool,
    /// Whether it is a oneshot that ended well and remains active.
    pub remains: bool,
    pub exit_code: i32,
}

#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    #[error("Unit {0} not found.")]
    NotFound(String),
    #[error("Unit {0} is masked.")]
    Masked(String),
    #[error("Job for {unit} failed because {reason}.")]
    Failed { unit: String, reason: String },
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Returns the full name: a name without a type is a service.
pub fn full_name(name: &str) -> String {
    if name.rsplit_once('.').is_some_and(|(_, kind)| {
        matches!(kind, "service" | "socket" | "target" | "timer" | "path" | "mount" | "slice" | "scope")
    }) {
        name.to_owned()
    } else {
        format!("{name}.service")
    }
}

impl Unit {
    pub fn load(name: &str) -> Result<Self, UnitError> {
        let name = full_name(name);
        let not_found = || UnitError::NotFound(name.clone());
        let template = name
            .split_once('@')
            .and_then(|(base, rest)| rest.rsplit_once('.').map(|(_, kind)| format!("{base}@.{kind}")));
        let path = [Some(name.clone()), template]
            .into_iter()
            .flatten()
            .flat_map(|file| {
                ["/run/systemd/system", ADMIN_UNITS, VENDOR_UNITS].map(|dir| Path::new(dir).join(&file))
            })
            .find(|path| fs::symlink_metadata(path).is_ok())
            .ok_or_else(not_found)?;
        if fs::read_link(&path).is_ok_and(|target| target == Path::new("/dev/null")) {
            return Ok(Self { name, path, masked: true, ..Self::default() });
        }
        let mut settings = parse(&fs::read_to_string(&path).map_err(|_| not_found())?);
        let mut drop_ins = Vec::new();
        for dir in [ADMIN_UNITS, "/run/systemd/system"] {
            let Ok(entries) = fs::read_dir(Path::new(dir).join(format!("{name}.d"))) else { continue };
            let paths = entries.flatten().map(|entry| entry.path());
            let mut parts: Vec<PathBuf> =
                paths.filter(|path| path.extension().is_some_and(|end| end == "conf")).collect();
            parts.sort();
            for text in parts.iter().filter_map(|path| fs::read_to_string(path).ok()) {
                settings.extend(parse(&text));
            }
            drop_ins.append(&mut parts);
        }
        Ok(Self { name, path, drop_ins, settings, masked: false })
    }

    /// Returns all values of a key; an empty value clears the earlier ones, as in systemd.
    pub fn values(&self, key: &str) -> Vec<&str> {
        let mut found = Vec::new();
        for (_, value) in self.settings.iter().filter(|(k, _)| k == key) {
            if value.is_empty() {
                found.clear();
            } else {
                found.push(value.as_str());
            }
        }
        found
    }

    pub fn value(&self, key: &str) -> Option<&str> {
        self.values(key).pop()
    }

    fn flag(&self, key: &str) -> bool {
        matches!(self.value(key), Some("yes" | "true" | "on" | "1"))
    }

    pub fn kind(&self) -> &str {
        self.value("Type").unwrap_or(if self.value("ExecStart").is_none() { "oneshot" } else { "simple" })
    }

    pub fn record(&self) -> Record {
        fs::read(Path::new(RUNNING).join(&self.name))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default()
    }

    fn note(&self, record: &Record) -> io::Result<()> {
        fs::create_dir_all(RUNNING)?;
        fs::write(Path::new(RUNNING).join(&self.name), serde_json::to_vec(record).map_err(io::Error::other)?)
    }

    /// Returns `active`, `inactive` or `failed`.
    pub fn state(&self) -> &'static str {
        if matches!(self.name.as_str(), "ssh.service" | "sshd.service") {
            return "active";
        }
        let record = self.record();
        if record.remains || !self.processes().is_empty() {
            "active"
        } else if record.failed {
            "failed"
        } else {
            "inactive"
        }
    }

    /// Returns live processes with the unit's mark.
    pub fn processes(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.name);
        let marked = |pid: &u32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| environment.split(|b| *b == 0).any(|item| item == mark.as_bytes()))
        };
        let me = std::process::id();
        nvml_sim::holders::processes()
            .into_iter()
            .filter(|pid| *pid != me && marked(pid) && nvml_sim::holders::alive(*pid))
            .collect()
    }

    pub fn main_pid(&self) -> u32 {
        let record = self.record();
        if record.main_pid != 0 && nvml_sim::holders::alive(record.main_pid) {
            return record.main_pid;
        }
        self.processes().first().copied().unwrap_or(0)
    }

    pub fn start(&self) -> Result<(), UnitError> {
        if self.masked {
            return Err(UnitError::Masked(self.name.clone()));
        }
        if self.state() == "active" {
            return Ok(());
        }
        let _ = fs::remove_file(Path::new(RUNNING).join(&self.name));
        for (key, base) in [("RuntimeDirectory", "/run"), ("LogsDirectory", "/var/log")] {
            self.make_folders(key, Path::new(base))?;
        }
        let mut record = Record { since: now(), ..Record::default() };
        for line in self.values("ExecStartPre") {
            self.run_to_end(line, &mut record)?;
        }
        let commands = self.values("ExecStart");
        match self.kind() {
            "oneshot" => {
                for line in commands {
                    self.run_to_end(line, &mut record)?;
                }
                record.remains = self.flag("RemainAfterExit");
            }
            "forking" => {
                for line in commands {
                    self.run_to_end(line, &mut record)?;
                }
                record.main_pid = self.wait_for_daemon();
                if record.main_pid == 0 {
                    return self.fail(record, "the service left no process behind");
                }
            }
            _ => {
                let Some(line) = commands.first() else {
                    return self.fail(record, "it has no ExecStart=");
                };
                let (mut command, _) = self.command(line)?;
                match command.spawn() {
                    Ok(mut child) => {
                        record.main_pid = child.id();
                        std::thread::sleep(Duration::from_millis(30));
                        if let Ok(Some(status)) = child.try_wait()
                            && !status.success()
                        {
                            record.exit_code = status.code().unwrap_or(1);
                            return self.fail(record, "the control process exited with error code");
                        }
                    }
                    Err(error) => {
                        record.exit_code = 203;
                        return self.fail(record, &format!("the program cannot be run: {error}"));
                    }
                }
            }
        }
        self.note(&record)?;
        for line in self.values("ExecStartPost") {
            self.run_to_end(line, &mut record)?;
        }
        Ok(())
    }

    fn folders(&self, key: &str, base: &Path) -> Vec<PathBuf> {
        let names = self.values(key);
        names.iter().flat_map(|value| value.split_whitespace()).map(|name| base.join(name)).collect()
    }

    /// Makes folders as systemd does: those above belong to root, the last one to the unit's user.
    fn make_folders(&self, key: &str, base: &Path) -> io::Result<()> {
        for folder in self.folders(key, base) {
            fs::create_dir_all(&folder)?;
            let mode = self.value(&format!("{key}Mode")).and_then(|mode| u32::from_str_radix(mode, 8).ok());
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode.unwrap_or(0o755)))?;
            std::os::unix::fs::chown(&folder, Some(self.value("User").and_then(user_id).unwrap_or(0)), None)?;
        }
        Ok(())
    }

    /// Returns the process that a forking service left behind, or 0.
    fn wait_for_daemon(&self) -> u32 {
        let limit = Instant::now() + Duration::from_millis(500);
        loop {
            let named = self
                .value("PIDFile")
                .and_then(|path| fs::read_to_string(path).ok())
                .and_then(|text| text.trim().parse().ok())
                .filter(|pid| nvml_sim::holders::alive(*pid));
            let found = named.or_else(|| self.processes().first().copied()).unwrap_or(0);
            if found != 0 || Instant::now() > limit {
                return found;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn stop(&self) -> Result<(), UnitError> {
        let mut record = self.record();
        if self.state() == "active" {
            for line in self.values("ExecStop") {
                // Ignored, because a stop command that fails does not keep systemd from killing.
                let _ = self.run_to_end(line, &mut record.clone());
            }
        }
        for signal in [Signal::TERM, Signal::KILL] {
            for pid in self.processes().into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
                let _ = rustix::process::kill_process(pid, signal);
            }
            let limit = Instant::now() + Duration::from_secs(10);
            while Instant::now() < limit && !self.processes().is_empty() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        for line in self.values("ExecStopPost") {
            let _ = self.run_to_end(line, &mut record.clone());
        }
        for folder in self.folders("RuntimeDirectory", Path::new("/run")) {
            let _ = fs::remove_dir_all(folder);
        }
        record = Record { since: now(), ..Record::default() };
        self.note(&record)?;
        Ok(())
    }

    pub fn reload(&self) -> Result<(), UnitError> {
        for line in self.values("ExecReload") {
            self.run_to_end(line, &mut self.record())?;
        }
        Ok(())
    }

    fn run_to_end(&self, line: &str, record: &mut Record) -> Result<(), UnitError> {
        let (mut command, may_fail) = self.command(line)?;
        let outcome = command.status();
        let failed = match outcome {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.code().unwrap_or(1),
            Err(_) => 203,
        };
        if may_fail {
            return Ok(());
        }
        record.exit_code = failed;
        self.fail(record.clone(), "the control process exited with error code")
    }

    fn fail(&self, mut record: Record, reason: &str) -> Result<(), UnitError> {
        record.failed = true;
        self.note(&record)?;
        Err(UnitError::Failed { unit: self.name.clone(), reason: reason.to_owned() })
    }

    /// Returns a command of the unit, and whether it may fail (`-` before it).
    fn command(&self, line: &str) -> Result<(Command, bool), UnitError> {
        let trimmed = line.trim_start_matches(['-', '+', '!', '@', ':']);
        let may_fail = line.split('/').next().is_some_and(|prefix| prefix.contains('-'));
        let instance =
            self.name.split_once('@').and_then(|(_, rest)| rest.rsplit_once('.')).map_or("", |(i, _)| i);
        let mut environment = self.environment();
        if line.contains("$MAINPID") {
            environment.insert("MAINPID".to_owned(), self.main_pid().to_string());
        }
        let mut words = Vec::new();
        for word in split(&trimmed.replace("%i", instance).replace("%I", instance)) {
            words.push(expand(&word, &environment));
        }
        let Some((program, arguments)) = words.split_first() else {
            return Err(UnitError::Failed {
                unit: self.name.clone(),
                reason: "its command is empty".to_owned(),
            });
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .envs(&environment)
            .env(MARK, &self.name)
            .current_dir(self.value("WorkingDirectory").filter(|dir| Path::new(dir).is_dir()).unwrap_or("/"))
            .stdin(Stdio::null())
            .stdout(self.log())
            .stderr(self.log())
            .process_group(0);
        if let Some(uid) = self.value("User").and_then(user_id) {
            command.uid(uid);
        }
        crate::sys::limited(&mut command, self.limits());
        crate::sys::unblocked(&mut command);
        Ok((command, may_fail))
    }

    /// The limits that nodes are tuned by; a systemd knows more.
    fn limits(&self) -> Vec<(libc::__rlimit_resource_t, libc::rlim_t)> {
        let known = [
            ("LimitMEMLOCK", libc::RLIMIT_MEMLOCK),
            ("LimitNOFILE", libc::RLIMIT_NOFILE),
            ("LimitSTACK", libc::RLIMIT_STACK),
        ];
        let limit = |(key, resource)| {
            let value = match self.value(key)? {
                "infinity" => libc::RLIM_INFINITY,
                number => number.parse().ok()?,
            };
            Some((resource, value))
        };
        known.into_iter().filter_map(limit).collect()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let mut environment = BTreeMap::new();
        for path in self.values("EnvironmentFile") {
            let text = fs::read_to_string(path.trim_start_matches('-')).unwrap_or_default();
            for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
                if let Some((key, value)) = line.split_once('=') {
                    environment.insert(key.trim().to_owned(), value.trim().trim_matches('"').to_owned());
                }
            }
        }
        for value in self.values("Environment") {
            for item in split(value) {
                if let Some((key, value)) = item.split_once('=') {
                    environment.insert(key.to_owned(), value.to_owned());
                }
            }
        }
        environment
    }

    fn log(&self) -> Stdio {
        let open = fs::create_dir_all("/run/lab-logs").and_then(|()| {
            fs::File::options().create(true).append(true).open(Path::new("/run/lab-logs").join(&self.name))
        });
        open.map_or_else(|_| Stdio::null(), Stdio::from)
    }

    /// Returns links under `*.wants` that make the unit start at boot.
    fn wants(&self) -> Vec<PathBuf> {
        self.values("WantedBy")
            .iter()
            .chain(&self.values("RequiredBy"))
            .flat_map(|value| value.split_whitespace())
            .map(|target| Path::new(ADMIN_UNITS).join(format!("{target}.wants")).join(&self.name))
            .collect()
    }

    /// Returns `enabled`, `disabled`, `static` or `masked`.
    pub fn enablement(&self) -> &'static str {
        if self.masked {
            return "masked";
        }
        if matches!(self.name.as_str(), "ssh.service" | "sshd.service") {
            return "enabled";
        }
        let wants = self.wants();
        if wants.is_empty() {
            "static"
        } else if wants.iter().any(|link| fs::symlink_metadata(link).is_ok()) {
            "enabled"
        } else {
            "disabled"
        }
    }

    pub fn enable(&self) -> Result<Vec<PathBuf>, UnitError> {
        if self.masked {
            return Err(UnitError::Masked(self.name.clone()));
        }
        let mut made = Vec::new();
        for link in self.wants() {
            if fs::symlink_metadata(&link).is_err() {
                if let Some(parent) = link.parent() {
                    fs::create_dir_all(parent)?;
                }
                symlink(&self.path, &link)?;
                made.push(link);
            }
        }
        Ok(made)
    }

    pub fn disable(&self) -> Result<Vec<PathBuf>, UnitError> {
        let mut gone = Vec::new();
        for target in fs::read_dir(ADMIN_UNITS)?.flatten() {
            let link = target.path().join(&self.name);
            if target.file_name().to_string_lossy().ends_with(".wants") && fs::symlink_metadata(&link).is_ok()
            {
                fs::remove_file(&link)?;
                gone.push(link);
            }
        }
        Ok(gone)
    }
}

fn user_id(name: &str) -> Option<u32> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok().filter(|uid| *uid != 0)
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Masks or unmasks a unit.
pub fn mask(name: &str, masked: bool) -> io::Result<()> {
    let path = Path::new(ADMIN_UNITS).join(full_name(name));
    let is_masked = fs::read_link(&path).is_ok_and(|target| target == Path::new("/dev/null"));
    match (masked, is_masked) {
        (true, false) => symlink("/dev/null", path),
        (false, true) => fs::remove_file(path),
        _ => Ok(()),
    }
}

/// Returns every unit that has a file.
pub fn all() -> Vec<Unit> {
    let mut names: Vec<String> = [ADMIN_UNITS, VENDOR_UNITS]
        .iter()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flat_map(|entries| entries.flatten())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.ends_with(".wants") && !name.ends_with(".d") && !name.contains("@."))
        .collect();
    names.sort();
    names.dedup();
    names.iter().filter_map(|name| Unit::load(name).ok()).collect()
}

/// Starts all enabled units, as the boot does.
pub fn start_enabled() {
    let Ok(targets) = fs::read_dir(ADMIN_UNITS) else { return };
    let mut names: Vec<String> = targets
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".wants"))
        .filter_map(|entry| fs::read_dir(entry.path()).ok())
        .flat_map(|entries| entries.flatten())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names.dedup();
    for name in names {
        if let Err(error) = Unit::load(&name).and_then(|unit| unit.start()) {
            crate::out::error(format!("{name}: {error}"));
        }
    }
}

fn parse(text: &str) -> Vec<(String, String)> {
    let joined = text.replace("\\\n", " ");
    joined
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(['#', ';', '[']))
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

/// Splits a line into words; quotes hold words together.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut quote, mut started) = (None, false);
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (None, '"' | '\'') => (quote, started) = (Some(c), true),
            (Some(open), c) if c == open => quote = None,
            (None, c) if c.is_whitespace() => {
                if started {
                    words.push(std::mem::take(&mut word));
                    started = false;
                }
            }
            (_, '\\') => {
                word.extend(characters.next());
                started = true;
            }
            (_, c) => {
                word.push(c);
                started = true;
            }
        }
    }
    if started {
        words.push(word);
    }
    words
}

fn expand(word: &str, environment: &BTreeMap<String, String>) -> String {
    let mut text = word.replace("%%", "%");
    for (key, value) in environment {
        text = text.replace(&format!("${{{key}}}"), value);
        if text == format!("${key}") {
            text = value.clone();
        }
    }
    text
}

/// Writes the units of a GPU node's software.
pub fn write_vendor_units(dir: &Path, driver: bool) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let service = |about: &str, body: &str| {
        format!("[Unit]\nDescription={about}\n\n[Service]\n{body}\n\n[Install]\nWantedBy=multi-user.target\n")
    };
    let daemon = |about: &str, name: &str| {
        service(about, &format!("Type=simple\nExecStart={}/gpufleet-lab __daemon {name}", crate::spec::SHARE))
    };
    let mut units = vec![
        ("ssh.service", daemon("OpenBSD Secure Shell server", "ssh")),
        ("slurmd.service", daemon("Slurm node daemon", "slurmd")),
        ("kubelet.service", daemon("kubelet: The Kubernetes Node Agent", "kubelet")),
        (
            "docker.service",
            service(
                "Docker Application Container Engine",
                "Type=simple\nExecStart=/usr/bin/dockerd -H fd://\nExecReload=/bin/kill -s HUP $MAINPID",
            ),
        ),
        ("cron.service", daemon("Regular background program processing daemon", "cron")),
    ];
    if driver {
        units.extend([
            (
                "nvidia-persistenced.service",
                service(
                    "NVIDIA Persistence Daemon",
                    "Type=forking\nExecStart=/usr/bin/nvidia-persistenced --verbose\n\
                     ExecStopPost=/bin/rm -rf /var/run/nvidia-persistenced",
                ),
            ),
            ("nvidia-fabricmanager.service", daemon("NVIDIA fabric manager service", "nvidia-fabricmanager")),
            ("nvidia-dcgm.service", daemon("NVIDIA DCGM service", "nvidia-dcgm")),
            ("dcgm-exporter.service", daemon("DCGM metrics exporter", "dcgm-exporter")),
            ("nvsm.service", daemon("NVIDIA System Management service", "nvsm")),
            (
                "nvidia-cdi-refresh.service",
                service(
                    "Refresh NVIDIA CDI specification file",
                    &format!(
                        "Type=oneshot\nExecStart={}/gpufleet-lab __daemon cdi-refresh",
                        crate::spec::SHARE
                    ),
                ),
            ),
        ]);
    }
    for (name, text) in units {
        fs::write(dir.join(name), text)?;
    }
    for target in ["multi-user.target", "graphical.target"] {
        fs::write(dir.join(target), "[Unit]\nDescription=Target\n")?;
    }
    Ok(())
}

/// Enables the units that run on a node as delivered.
pub fn enable_vendor_units(admin: &Path, driver: bool) -> io::Result<()> {
    let wants = admin.join("multi-user.target.wants");
    fs::create_dir_all(&wants)?;
    for name in ["cron.service", "nvidia-fabricmanager.service"] {
        if (driver || !name.starts_with("nvidia")) && fs::symlink_metadata(wants.join(name)).is_err() {
            symlink(Path::new(VENDOR_UNITS).join(name), wants.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_split_as_in_unit_files() {
        assert_eq!(split(r#"/bin/sh -c "echo a b" 'c d' e\ f"#), ["/bin/sh", "-c", "echo a b", "c d", "e f"]);
        assert!(split("   ").is_empty());
    }

    #[test]
    fn an_empty_value_forgets_the_earlier_ones() {
        let settings = parse("[Service]\nExecStart=/bin/a\n# no\nExecStart=\nExecStart=/bin/b \\\n  c\n");
        let unit = Unit { settings, ..Unit::default() };
        assert_eq!(unit.values("ExecStart"), ["/bin/b    c"]);
        assert_eq!(unit.kind(), "simple");
    }

    #[test]
    fn names_without_a_type_are_services() {
        assert_eq!(full_name("nvidia-dcgm"), "nvidia-dcgm.service");
        assert_eq!(full_name("a.target"), "a.target");
        assert_eq!(full_name("foo.bar"), "foo.bar.service");
    }
}
