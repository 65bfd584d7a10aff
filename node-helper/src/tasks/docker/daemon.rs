//! The daemon that runs: its flags, what is in force, and what it reloads.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::{Map, Value};

use super::file::Difference;
use crate::{
    declare::{Node, Trouble},
    os::{files, units},
    tasks::{started, tool},
};

pub const UNIT: &str = "docker.service";
/// Packages that bring and start a daemon.
const PACKAGES: [&str; 5] = ["docker.io", "docker-ce", "docker", "moby-engine", "docker-engine"];
const BRINGS: &str = "the package `docker-cli` (Debian) or `docker-ce-cli` brings it";
/// Time limit of a question to the daemon.
const ANSWER: Duration = Duration::from_secs(30);
/// Largest answer of `docker info`, in bytes.
const INFO_LIMIT: usize = 4 * 1024 * 1024;
/// Largest command line, in bytes.
const FLAGS_LIMIT: u64 = 1024 * 1024;

/// Keys that the daemon takes from the file at SIGHUP. Source: moby, `daemon/reload.go` and `daemon/reload_unix.go`.
const RELOADED: [&str; 18] = [
    "authorization-plugins",
    "debug",
    "default-cgroupns-mode",
    "default-ipc-mode",
    "default-runtime",
    "default-shm-size",
    "features",
    "insecure-registries",
    "labels",
    "live-restore",
    "max-concurrent-downloads",
    "max-concurrent-uploads",
    "max-download-attempts",
    "network-diagnostic-port",
    "registry-mirrors",
    "runtimes",
    "shutdown-timeout",
    "allow-nondistributable-artifacts",
];
/// Those of them that fall back to their defaults at SIGHUP if the file no longer has them: of the others, the daemon
/// takes only a value that the file sets (`IsValueSet`).
const FORGOTTEN: [&str; 5] = [
    "features",
    "max-concurrent-downloads",
    "max-concurrent-uploads",
    "max-download-attempts",
    "network-diagnostic-port",
];
/// Keys that move what containers live on, so that a restart disturbs them even with live-restore. Source: Docker's
/// documentation, "Live restore during restart".
const UNDERNEATH: [&str; 8] = [
    "bip",
    "bridge",
    "containerd",
    "data-root",
    "exec-root",
    "storage-driver",
    "storage-opts",
    "userns-remap",
];
/// Keys of which `docker info` tells what is in force ([`Running::otherwise`]).
const TOLD: [&str; 9] = [
    "data-root",
    "debug",
    "default-runtime",
    "exec-opts",
    "experimental",
    "labels",
    "live-restore",
    "log-driver",
    "runtimes",
];
/// Features that dockerd looks up whenever it needs them. It registers CDI and chooses its store of images
/// (`containerd-snapshotter`) once, when it starts. Source: moby, `daemon/command/daemon.go`, `daemon/daemon.go`.
const RELOADED_FEATURES: [&str; 1] = ["buildkit"];
/// Features that put another store of images below the containers.
const STORES: [&str; 2] = ["containerd-snapshotter", "containerd-migration"];
/// Flags whose key has another name. Source: moby, `cmd/dockerd/config.go` and `config_unix.go`.
const NAMED: [(&str, &str); 24] = [
    ("D", "debug"),
    ("G", "group"),
    ("H", "hosts"),
    ("authorization-plugin", "authorization-plugins"),
    ("b", "bridge"),
    ("cdi-spec-dir", "cdi-spec-dirs"),
    ("default-address-pool", "default-address-pools"),
    ("default-network-opt", "default-network-opts"),
    ("default-ulimit", "default-ulimits"),
    ("dns-opt", "dns-opts"),
    ("exec-opt", "exec-opts"),
    ("feature", "features"),
    ("g", "data-root"),
    ("host", "hosts"),
    ("host-gateway-ip", "host-gateway-ips"),
    ("insecure-registry", "insecure-registries"),
    ("l", "log-level"),
    ("label", "labels"),
    ("log-opt", "log-opts"),
    ("node-generic-resource", "node-generic-resources"),
    ("p", "pidfile"),
    ("registry-mirror", "registry-mirrors"),
    ("s", "storage-driver"),
    ("storage-opt", "storage-opts"),
];

/// Whether a daemon runs, and with what.
#[derive(Clone, Debug, PartialEq)]
pub enum Daemon {
    /// Nothing on this node starts one.
    None,
    Stopped,
    Running(Running),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    pub systemctl: PathBuf,
    /// What `docker info` says; `None` where the daemon is assumed to have read its file since.
    pub info: Option<Map<String, Value>>,
    /// The words after its name on its command line, without its file.
    pub arguments: Vec<String>,
    /// Keys that are flags of it, each with the flag.
    pub flags: Vec<(String, String)>,
    /// Whether its file is newer than it is.
    pub unread: bool,
}

/// Returns the features that a difference is about.
fn features(difference: &Difference) -> Vec<&str> {
    if difference.top() != "features" {
        return Vec::new();
    }
    match difference.keys.get(1) {
        Some(inner) => vec![inner],
        None => names(difference.from.as_ref()).chain(names(difference.to.as_ref())).collect(),
    }
}

fn names(features: Option<&Value>) -> impl Iterator<Item = &str> {
    features.and_then(Value::as_object).into_iter().flat_map(|all| all.keys().map(String::as_str))
}

/// Whether a difference of the file is taken at SIGHUP.
pub fn is_reloaded(difference: &Difference) -> bool {
    let key = difference.top();
    RELOADED.contains(&key)
        && features(difference).iter().all(|name| RELOADED_FEATURES.contains(name))
        && (!difference.removes_top() || FORGOTTEN.contains(&key))
}

/// Whether a setting of the file that the daemon runs without is taken at SIGHUP.
pub fn is_reloaded_whole(key: &str) -> bool {
    RELOADED.contains(&key) && key != "features"
}

/// Whether `docker info` tells what is in force of this key.
fn is_told(key: &str) -> bool {
    TOLD.contains(&key)
}

/// Whether containers notice a restart for this key although the daemon leaves them running.
pub fn is_underneath(key: &str) -> bool {
    UNDERNEATH.contains(&key)
}

/// As [`is_underneath`], for a difference, which may be a feature that moves them.
pub fn moves(difference: &Difference) -> bool {
    is_underneath(difference.top()) || features(difference).iter().any(|name| STORES.contains(name))
}

/// Whether settings of the file leave CDI no folder, and so turn it off whatever `features` says. Source: moby,
/// `daemon/config/config.go`, `cdi-spec-dirs`.
pub fn has_no_cdi_folder(settings: &Map<String, Value>) -> bool {
    settings.get("cdi-spec-dirs") == Some(&serde_json::json!([""]))
}

/// Reads whether the daemon runs.
///
/// # Errors
/// If systemd or the daemon does not answer.
pub fn observe(node: &Node<'_>, file: &PathBuf, read_since: bool) -> Result<Daemon, Trouble> {
    let assumed = node.world.packages();
    let installs = PACKAGES.iter().any(|name| assumed.get(*name).is_some_and(Option::is_some));
    let Some(systemctl) = node.roots.tool("systemctl") else { return Ok(Daemon::None) };
    if node.roots.is_real() && !node.roots.path("/run/systemd/system").is_dir() {
        return Ok(Daemon::None);
    }
    let shown = units::show(&systemctl, &[UNIT], node.deadline)?;
    let unit = shown.get(UNIT).ok_or_else(|| Trouble::io(format!("systemd tells nothing of {UNIT}")))?;
    if !unit.exists {
        // Debian starts a daemon with its package, which then runs with the file that this task writes or with another.
        return if installs { Err(Trouble::Possible) } else { Ok(Daemon::None) };
    }
    let view = node.world.unit(UNIT);
    let active = match &view {
        Some(view) => view.active.ok_or(Trouble::Possible)?,
        None if node.world.rebooted() => unit.enabled || unit.runs(),
        None => unit.runs(),
    };
    if !active {
        return Ok(Daemon::Stopped);
    }
    let line = if unit.runs() { command_line(node, unit.main_pid)? } else { String::new() };
    let is_fresh = read_since || !unit.runs() || node.world.rebooted();
    let info = if is_fresh { None } else { Some(info(node)?) };
    let unread = !is_fresh && started::before(node, unit.main_pid, std::slice::from_ref(file))?;
    let (arguments, flags) = (arguments(&line), keys_of(&line));
    Ok(Daemon::Running(Running { systemctl, info, arguments, flags, unread }))
}

/// Returns the keys of the flags that the next start of the daemon has, each with the flag; none where systemd does not know
/// the unit, or an earlier task of a prediction brings a drop-in of it.
///
/// # Errors
/// If systemd does not answer.
pub fn next_flags(node: &Node<'_>) -> Result<Vec<(String, String)>, Trouble> {
    let Some(systemctl) = node.roots.tool("systemctl") else { return Ok(Vec::new()) };
    if node.roots.is_real() && !node.roots.path("/run/systemd/system").is_dir() {
        return Ok(Vec::new());
    }
    for folder in ["/etc/systemd/system", "/run/systemd/system"] {
        let folder = node.roots.path(format!("{folder}/{UNIT}.d"));
        let mut now: Vec<String> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        let mut then = node.world.names(&folder)?;
        now.sort();
        then.sort();
        if now != then {
            return Ok(Vec::new());
        }
    }
    let words = units::start_words(&systemctl, UNIT, node.deadline)?;
    Ok(keys_of(&words.join("\0")))
}

/// Returns the command line of a process, whose words end with a zero byte.
pub fn command_line(node: &Node<'_>, pid: u32) -> Result<String, Trouble> {
    let path = node.roots.proc(&format!("{pid}/cmdline"));
    let text = files::read_bounded(&path, FLAGS_LIMIT)?
        .ok_or_else(|| Trouble::io(format!("{}: there is no such file", path.display())))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the words after the program's name, but for those that name its file.
fn arguments(line: &str) -> Vec<String> {
    let mut words = line.split('\0').skip(1).filter(|word| !word.is_empty());
    let mut all = Vec::new();
    while let Some(word) = words.next() {
        if word == "--config-file" {
            words.next();
        } else if !word.starts_with("--config-file=") {
            all.push(word.to_owned());
        }
    }
    all
}

/// Returns the keys of the flags on a command line, whose words end with a zero byte.
fn keys_of(line: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for word in line.split('\0').skip(1) {
        let flag = word.split('=').next().unwrap_or_default();
        let name = match flag.strip_prefix("--") {
            Some(long) => long,
            // `-Hfd://` and `-H fd://` are the same.
            None => match flag.strip_prefix('-').and_then(|short| short.get(..1)) {
                Some(short) => short,
                None => continue,
            },
        };
        if name.is_empty() || matches!(name, "config-file" | "add-runtime") {
            continue;
        }
        let key = NAMED.iter().find(|(flag, _)| *flag == name).map_or(name, |(_, key)| key);
        if !all.iter().any(|(known, _)| known == key) {
            all.push((key.to_owned(), flag.to_owned()));
        }
    }
    all
}

fn info(node: &Node<'_>) -> Result<Map<String, Value>, Trouble> {
    let program = tool::find(node, "docker", BRINGS)?;
    // The default context, because root may have chosen another machine's daemon.
    let run = tool::run(node, program)
        .args(["--context", "default", "info", "--format", "{{json .}}"])
        .limit(INFO_LIMIT);
    let done = run.finish(&node.deadline.within(ANSWER))?;
    let errors = |info: &Map<String, Value>| {
        let errors = info.get("ServerErrors").and_then(Value::as_array).cloned().unwrap_or_default();
        errors.first().and_then(Value::as_str).map(str::to_owned)
    };
    match serde_json::from_slice(&done.output.stdout.bytes) {
        Ok(Value::Object(info)) if done.exit.success() => match errors(&info) {
            None => Ok(info),
            Some(error) => Err(Trouble::io(format!("docker info: {error}"))),
        },
        Ok(Value::Object(info)) if errors(&info).is_some() => {
            Err(Trouble::io(format!("docker info: {}", errors(&info).unwrap_or_default())))
        }
        _ => Err(Trouble::io(done.complaint("docker info"))),
    }
}

impl Running {
    /// Whether containers go on while the daemon restarts: if it leaves them running now, whatever its file says.
    pub fn keeps_containers(&self, file: &Map<String, Value>) -> bool {
        match &self.info {
            Some(info) => {
                let swarm = info.get("Swarm").and_then(|swarm| swarm.get("LocalNodeState"));
                let alone = swarm.and_then(Value::as_str).is_none_or(|state| state == "inactive");
                alone && info.get("LiveRestoreEnabled") == Some(&Value::Bool(true))
            }
            None => file.get("live-restore") == Some(&Value::Bool(true)),
        }
    }

    /// Whether the daemon may run without a setting of its file, and does not tell.
    pub fn may_lack(&self, key: &str, wanted: &Value) -> bool {
        // Whether it has CDI is told.
        let is_reloaded = |name: &str| name == "cdi" || RELOADED_FEATURES.contains(&name);
        let reloads = RELOADED.contains(&key) && (key != "features" || names(Some(wanted)).all(is_reloaded));
        self.unread && !reloads && !is_told(key)
    }

    /// Returns what the daemon has instead of a setting; `None` if it has it, or does not tell.
    pub fn otherwise(&self, key: &str, wanted: &Value) -> Option<Value> {
        let info = self.info.as_ref()?;
        let told = |name: &str| info.get(name).filter(|found| *found != wanted).cloned();
        match key {
            "live-restore" => told("LiveRestoreEnabled"),
            "default-runtime" => told("DefaultRuntime"),
            "log-driver" => told("LoggingDriver"),
            "debug" => told("Debug"),
            "experimental" => told("ExperimentalBuild"),
            "labels" => {
                let sorted = |value: &Value| {
                    let mut all: Vec<String> =
                        value.as_array()?.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect();
                    all.sort();
                    Some(all)
                };
                let found = info.get("Labels")?;
                (sorted(found).unwrap_or_default() != sorted(wanted)?).then(|| found.clone())
            }
            "runtimes" => {
                let found = info.get("Runtimes")?.as_object()?;
                let lacks = wanted.as_object()?.keys().any(|name| !found.contains_key(name));
                lacks.then(|| found.keys().map(String::as_str).collect::<Vec<_>>().join(", ").into())
            }
            "data-root" => {
                let (found, wanted) = (info.get("DockerRootDir")?, wanted.as_str()?);
                // With remapped users, a folder for their number is below it.
                let is_there = found.as_str().is_some_and(|found| {
                    std::path::Path::new(found).starts_with(wanted.trim_end_matches('/'))
                });
                (!is_there).then(|| found.clone())
            }
            // From 25.0 on it tells the folders of CDI specifications, and none without CDI. Source: moby, `daemon/info.go`.
            "features" => {
                let folders = info.get("CDISpecDirs")?;
                let is_on = folders.as_array().is_some_and(|folders| !folders.is_empty());
                let wanted = wanted.get("cdi").and_then(Value::as_bool)?;
                (wanted != is_on).then(|| serde_json::json!({"cdi": is_on}))
            }
            "exec-opts" => {
                let options = wanted.as_array()?.iter().filter_map(Value::as_str);
                let driver =
                    options.into_iter().find_map(|option| option.strip_prefix("native.cgroupdriver="))?;
                let found = info.get("CgroupDriver")?.as_str()?;
                (found != driver).then(|| format!("native.cgroupdriver={found}").into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn running(info: Value) -> Running {
        let info = info.as_object().cloned();
        Running { systemctl: PathBuf::new(), info, arguments: Vec::new(), flags: Vec::new(), unread: false }
    }

    #[test]
    fn flags_are_told_by_their_keys() {
        let line = "/usr/sbin/dockerd\0-H\0fd://\0--containerd=/run/containerd/containerd.sock\0--label\0a=b\0-D\0--add-runtime=x=y\0";
        let keys: Vec<_> = keys_of(line).into_iter().map(|(key, flag)| format!("{key} {flag}")).collect();
        let with_file = "/usr/bin/dockerd\0--config-file\0/x\0-D\0--config-file=/y\0-H\0fd://\0";
        assert_eq!(arguments(with_file), ["-D", "-H", "fd://"]);
        assert_eq!(keys, ["hosts -H", "containerd --containerd", "labels --label", "debug -D"]);
    }

    #[test]
    fn what_is_reloaded_depends_on_whether_it_is_removed() {
        let is = |keys: &str, from: Option<Value>, to: Option<Value>| {
            is_reloaded(&Difference { keys: keys.split('.').map(str::to_owned).collect(), from, to })
        };
        assert!(is("live-restore", None, Some(json!(true))) && !is("live-restore", Some(json!(true)), None));
        assert!(is("features", Some(json!({"buildkit": true})), None));
        assert!(is("features.buildkit", None, Some(json!(true))));
        for name in ["containerd-snapshotter", "containerd-migration", "x"] {
            assert!(!is(&format!("features.{name}"), None, Some(json!(true))), "{name}");
            assert!(!is("features", None, Some(json!({"buildkit": true, name: true}))), "{name}");
        }
        assert!(!is("features", Some(json!({"cdi": true})), None), "CDI is registered at the start");
        assert!(!is("features.cdi", None, Some(json!(true))));
        assert!(!is("data-root", None, Some(json!("/x"))));
    }

    #[test]
    fn containers_stay_only_if_live_restore_is_in_force() {
        let swarm = json!({"LocalNodeState": "inactive"});
        let keeps = |info| running(info).keeps_containers(&Map::new());
        assert!(keeps(json!({"LiveRestoreEnabled": true, "Swarm": swarm})));
        assert!(!keeps(json!({"LiveRestoreEnabled": true, "Swarm": {"LocalNodeState": "active"}})));
        let file = json!({"live-restore": true}).as_object().cloned().unwrap();
        let off = running(json!({"LiveRestoreEnabled": false}));
        assert!(!off.keeps_containers(&file), "the file alone does not count");
        assert!(Running { info: None, ..off }.keeps_containers(&file));
    }

    #[test]
    fn what_is_in_force_is_compared() {
        let now = running(json!({
            "LoggingDriver": "json-file", "Labels": ["b=1", "a=1"], "DockerRootDir": "/data/docker/100000.100000",
            "CgroupDriver": "systemd", "Runtimes": {"runc": {}}, "Debug": false
        }));
        assert_eq!(now.otherwise("log-driver", &json!("journald")), Some(json!("json-file")));
        assert_eq!(now.otherwise("labels", &json!(["a=1", "b=1"])), None);
        assert_eq!(now.otherwise("data-root", &json!("/data/docker/")), None);
        assert_eq!(
            now.otherwise("data-root", &json!("/data/dock")),
            Some(json!("/data/docker/100000.100000"))
        );
        assert_eq!(
            now.otherwise("exec-opts", &json!(["native.cgroupdriver=cgroupfs"])),
            Some(json!("native.cgroupdriver=systemd"))
        );
        assert_eq!(now.otherwise("runtimes", &json!({"nvidia": {}})), Some(json!("runc")));
        assert_eq!(now.otherwise("mtu", &json!(9000)), None, "the daemon does not tell");
        let cdi = |info, wanted: Value| running(info).otherwise("features", &wanted);
        assert_eq!(cdi(json!({"CDISpecDirs": null}), json!({"cdi": true})), Some(json!({"cdi": false})));
        assert_eq!(cdi(json!({"CDISpecDirs": ["/etc/cdi"]}), json!({"cdi": true})), None);
        let off = json!({"cdi": false});
        assert_eq!(cdi(json!({"CDISpecDirs": ["/etc/cdi"]}), off.clone()), Some(json!({"cdi": true})));
        assert_eq!(cdi(json!({"CDISpecDirs": null}), off), None);
        assert_eq!(cdi(json!({"CDISpecDirs": []}), json!({"containerd-snapshotter": true})), None);
        assert_eq!(cdi(json!({}), json!({"cdi": true})), None, "before 25.0 it does not tell");
    }
}
