//! Who manages control groups on a node of Kubernetes: the kubelet's driver and that of the container runtime below it.
//!
//! With two drivers pods do not start, or two managers write the same groups. Source: kubernetes.io, "Container Runtimes",
//! cgroup drivers.

use std::time::Duration;

use serde_json::{Map, Value};
use toml_edit::{DocumentMut, Item, TableLike};

use super::{
    Found, Named, Reader,
    process::{self, DOCKER, KUBELET, Processes},
    signal,
};
use crate::{process::Run, tasks::kubelet::config};

const SYSTEMD: &str = "systemd";
const CGROUPFS: &str = "cgroupfs";
/// Where the kubelet looks for its runtime without a setting. Source: KubeletConfiguration (v1beta1).
pub const ENDPOINT: &str = "unix:///run/containerd/containerd.sock";
/// Time limit of each program.
const ANSWER: Duration = Duration::from_secs(10);
/// Largest answer of a program, in bytes.
const LARGEST: usize = 4 * 1024 * 1024;

/// The container runtime that a kubelet uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    pub name: &'static str,
    /// `systemd` or `cgroupfs`.
    pub driver: &'static str,
    /// How its file sets `systemd`.
    pub setting: &'static str,
    /// Whether it tells its driver to a kubelet that asks. Source: KEP-4033.
    tells: bool,
}

/// Returns the value of a flag; the last one counts.
fn flag<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().enumerate().rev().find_map(|(at, word)| {
        match word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?.strip_prefix(name)? {
            "" => words.get(at + 1).copied(),
            rest => rest.strip_prefix('='),
        }
    })
}

/// Returns the words of a process behind its name.
pub fn words_of(reader: &Reader<'_>, pid: u32) -> Result<String, String> {
    let path = format!("/proc/{pid}/cmdline");
    reader.text(&path)?.ok_or_else(|| format!("{path}: there is no such file"))
}

fn parse(text: &str, what: &str) -> Result<DocumentMut, String> {
    text.parse().map_err(|_| format!("{what}: it is no valid TOML"))
}

fn table(item: Option<&Item>) -> Option<&dyn TableLike> {
    item?.as_table_like()
}

/// What a kubelet that runs was told, by its command line and the files that this names.
pub struct Kubelet {
    pub settings: Map<String, Value>,
    /// Its own folder.
    pub root: String,
}

impl Kubelet {
    /// Where it finds its runtime.
    pub fn endpoint(&self) -> &str {
        self.settings.get("containerRuntimeEndpoint").and_then(Value::as_str).unwrap_or(ENDPOINT)
    }

    /// Reads the settings of the process.
    ///
    /// # Errors
    /// If a file cannot be read, or is no YAML.
    pub fn read(reader: &Reader<'_>, pid: u32) -> Result<Self, String> {
        let line = words_of(reader, pid)?;
        let words: Vec<&str> = line.split('\0').skip(1).collect();
        // Without the flag it reads no file. Source: kubernetes.io, "kubelet", `--config`.
        let mut paths: Vec<String> = flag(&words, "config").map(str::to_owned).into_iter().collect();
        if let Some(folder) = flag(&words, "config-dir") {
            let mut names = reader.names_of(folder)?;
            names.retain(|name| name.ends_with(".conf"));
            names.sort();
            paths.extend(names.iter().map(|name| format!("{folder}/{name}")));
        }
        let mut files = Vec::new();
        for path in paths {
            let text = reader.named(&path)?.ok_or_else(|| format!("{path}: there is no such file"))?;
            files.push(config::parse(&text).map_err(|why| format!("{path}: {why}"))?);
        }
        let mut settings = config::merged(files.iter());
        config::with_flags(&mut settings, |name| flag(&words, name));
        if let Some(percent) =
            flag(&words, "image-gc-high-threshold").and_then(|text| text.parse::<u64>().ok())
        {
            settings.insert("imageGCHighThresholdPercent".to_owned(), percent.into());
        }
        let root = flag(&words, "root-dir").unwrap_or("/var/lib/kubelet").to_owned();
        Ok(Self { settings, root })
    }
}

/// Reads the runtime behind an endpoint of `KubeletConfiguration`; `None` if this node has no such program.
///
/// # Errors
/// If its settings cannot be read, or do not tell.
pub fn runtime(reader: &Reader<'_>, endpoint: Option<&str>) -> Found<Runtime> {
    let endpoint = endpoint.unwrap_or(ENDPOINT);
    match endpoint {
        place if place.contains("crio") => crio(reader),
        place if place.contains("dockerd") => dockerd(reader),
        place if place.contains("containerd") => containerd(reader, place),
        other => Err(format!("the container runtime at {other} is not known here")),
    }
}

fn ask(reader: &Reader<'_>, program: &str, words: &[&str]) -> Found<String> {
    let Some(path) = reader.roots.tool(program) else { return Ok(None) };
    let run = Run::new(path).args(words).limit(LARGEST);
    let done = run.finish(&reader.deadline.within(ANSWER)).map_err(|error| error.to_string())?;
    match done.exit.success() {
        true => Ok(Some(done.stdout())),
        false => Err(done.complaint(&format!("{program} {}", words.join(" ")))),
    }
}

/// Returns major and minor of the first version in a text.
fn version(text: &str) -> Option<(u32, u32)> {
    text.split_whitespace().find_map(|word| {
        let mut parts = word.trim_start_matches('v').split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

/// Returns where containerd listens, of version 2 and 3 of its settings.
fn address(document: &DocumentMut) -> Option<&str> {
    let plugins = table(document.get("plugins"));
    let plugin = plugins.and_then(|plugins| plugins.get("io.containerd.server.v1.grpc"));
    [document.get("grpc"), plugin].into_iter().find_map(|place| table(place)?.get("address")?.as_str())
}

/// Whether a kubelet's endpoint is that of the containerd whose files are in `/etc/containerd`.
pub fn is_systems_containerd(endpoint: &str) -> bool {
    socket(endpoint) == socket(ENDPOINT)
}

/// Returns the path of a socket, by the name that the kernel has for it.
fn socket(place: &str) -> &str {
    let place = place.strip_prefix("unix://").unwrap_or(place);
    if place.starts_with("/var/run/") { place.strip_prefix("/var").unwrap_or(place) } else { place }
}

fn containerd(reader: &Reader<'_>, endpoint: &str) -> Found<Runtime> {
    let Some(dump) = ask(reader, "containerd", &["config", "dump"])? else { return Ok(None) };
    let document = parse(&dump, "containerd config dump")?;
    // Distributions such as RKE2 and k0s bring one of their own, beside that of PATH.
    if address(&document).map(socket) != Some(socket(endpoint)) {
        return Err(format!(
            "the containerd of PATH is not the one at {endpoint}, whose settings are not known here"
        ));
    }
    let plugins = table(document.get("plugins")).into_iter().flat_map(TableLike::iter);
    let settings = plugins.filter_map(|(_, plugin)| table(table(Some(plugin))?.get("containerd"))).next();
    let name = |settings: &dyn TableLike| settings.get("default_runtime_name")?.as_str().map(str::to_owned);
    let default = settings.and_then(|settings| {
        let default = name(settings).unwrap_or_else(|| "runc".to_owned());
        table(table(settings.get("runtimes"))?.get(&default))
    });
    let text = |key: &str| default.and_then(|default| default.get(key)?.as_str());
    let options = default.and_then(|default| table(default.get("options")));
    let is_systemd = options.and_then(|options| options.get("SystemdCgroup")).and_then(Item::as_bool);
    // A missing key is false there. Source: containerd, `core/runtime/v2/runc/options`.
    let is_runc = text("runtime_type") == Some("io.containerd.runc.v2");
    let is_systemd = is_systemd
        .or(is_runc.then_some(false))
        .ok_or("containerd config dump tells no SystemdCgroup of its default runtime")?;
    let tells = ask(reader, "containerd", &["--version"])?.and_then(|text| version(&text)) >= Some((2, 0));
    Ok(Some(Runtime {
        name: "containerd",
        driver: if is_systemd { SYSTEMD } else { CGROUPFS },
        setting: "`SystemdCgroup = true` in the options of its runtime",
        tells,
    }))
}

fn known(driver: &str) -> Result<&'static str, String> {
    [SYSTEMD, CGROUPFS]
        .into_iter()
        .find(|known| *known == driver)
        .ok_or_else(|| "it names a driver of control groups that is not known".to_owned())
}

fn crio(reader: &Reader<'_>) -> Found<Runtime> {
    if reader.roots.tool("crio").is_none() {
        return Ok(None);
    }
    const FOLDER: &str = "/etc/crio/crio.conf.d";
    let mut names = reader.names(FOLDER)?.unwrap_or_default();
    names.sort();
    let folder = names.iter().map(|name| format!("{FOLDER}/{name}"));
    // What it is without a setting. Source: crio.conf(5).
    let mut driver = SYSTEMD;
    for path in std::iter::once("/etc/crio/crio.conf".to_owned()).chain(folder) {
        let Some(text) = reader.text(&path)? else { continue };
        let document = parse(&text, &path)?;
        let settings = table(document.get("crio")).and_then(|crio| table(crio.get("runtime")));
        if let Some(set) = settings.and_then(|settings| settings.get("cgroup_manager")).and_then(Item::as_str)
        {
            driver = known(set).map_err(|why| format!("{path}: {why}"))?;
        }
    }
    let tells = ask(reader, "crio", &["--version"])?.and_then(|text| version(&text)) >= Some((1, 28));
    Ok(Some(Runtime { name: "CRI-O", driver, setting: "`cgroup_manager = \"systemd\"`", tells }))
}

fn dockerd(reader: &Reader<'_>) -> Found<Runtime> {
    if reader.roots.tool("dockerd").is_none() {
        return Ok(None);
    }
    let words = docker_line(reader)?.unwrap_or_default();
    let of_flag = flags_in(&words, "exec-opt")
        .into_iter()
        .find_map(|option| option.strip_prefix("native.cgroupdriver=").map(str::to_owned));
    let setting = "`exec-opts: [native.cgroupdriver=systemd]` of `docker_daemon`";
    let path = gpufleet_protocol::tasks::DockerDaemon::FILE;
    let text = reader.text(path)?.unwrap_or_default();
    let file = crate::tasks::docker::file::parse(text.as_bytes()).map_err(|why| format!("{path}: {why}"))?;
    let of_file = crate::tasks::docker::file::cgroup_driver(&file);
    let driver = match of_flag.as_deref().or(of_file) {
        Some(set) => known(set).map_err(|why| format!("dockerd: {why}"))?,
        // Without a setting it is systemd's with version 2 of control groups, else its own. Source: dockerd reference.
        None => match reader.exists("/sys/fs/cgroup/cgroup.controllers")? {
            true => SYSTEMD,
            false => CGROUPFS,
        },
    };
    Ok(Some(Runtime { name: "dockerd", driver, setting, tells: false }))
}

/// Returns the driver that a kubelet with these settings has over a runtime.
///
/// # Errors
/// If that depends on a version that nobody tells.
pub fn of_kubelet(
    reader: &Reader<'_>,
    settings: &Map<String, Value>,
    runtime: Option<&Runtime>,
) -> Result<String, String> {
    // What it is without a setting. Source: KubeletConfiguration (v1beta1), `cgroupDriver`.
    let set = settings.get("cgroupDriver").and_then(Value::as_str).unwrap_or(CGROUPFS);
    let set = known(set).map_err(|why| format!("`cgroupDriver` of the kubelet: {why}"))?;
    let Some(runtime) = runtime.filter(|runtime| runtime.tells && runtime.driver != set) else {
        return Ok(set.to_owned());
    };
    let gates = settings.get("featureGates").and_then(|gates| gates.get("KubeletCgroupDriverFromCRI"));
    let version = ask(reader, "kubelet", &["--version"])?.and_then(|text| version(&text));
    let version = version.ok_or("the kubelet does not tell its version, and newer ones ask the runtime")?;
    // Alpha in 1.28, on by default since 1.31. Source: kubernetes.io, feature gates.
    let asks = match gates.and_then(Value::as_bool) {
        Some(on) => on && version >= (1, 28),
        None => version >= (1, 31),
    };
    Ok(if asks { runtime.driver } else { set }.to_owned())
}

/// Returns what is wrong with the drivers, for people, if they differ.
pub fn fault(kubelet: &str, runtime: &Runtime) -> Option<String> {
    (kubelet != runtime.driver).then(|| {
        format!(
            "the kubelet's driver of control groups is {kubelet} and that of {} is {}: pods do not start, or both manage the same \
             groups; with systemd on the node both are to be `systemd`: `cgroupDriver: systemd` of the kubelet, {} of {}",
            runtime.name, runtime.driver, runtime.setting, runtime.name
        )
    })
}

/// Returns what is wrong with the drivers of a kubelet with these settings, for people; nothing on a node without one of both.
///
/// # Errors
/// If that cannot be told.
pub fn mismatch(reader: &Reader<'_>, settings: &Map<String, Value>) -> Found<String> {
    let endpoint = settings.get("containerRuntimeEndpoint").and_then(Value::as_str);
    let Some(runtime) = runtime(reader, endpoint)? else { return Ok(None) };
    Ok(fault(&of_kubelet(reader, settings, Some(&runtime))?, &runtime))
}

/// As [`mismatch`], for the kubelet that runs.
///
/// # Errors
/// As [`mismatch`].
pub fn mismatch_now(reader: &Reader<'_>) -> Found<String> {
    let Some(pid) = process::find(reader, KUBELET)? else { return Ok(None) };
    mismatch(reader, &Kubelet::read(reader, pid)?.settings)
}

/// Returns the driver of the kubelet that runs over dockerd; `None` if none does.
///
/// # Errors
/// As [`mismatch`].
pub fn over_dockerd(reader: &Reader<'_>) -> Found<String> {
    let Some(pid) = process::find(reader, KUBELET)? else { return Ok(None) };
    let settings = Kubelet::read(reader, pid)?.settings;
    let endpoint = settings.get("containerRuntimeEndpoint").and_then(Value::as_str);
    if !endpoint.is_some_and(|place| place.contains("dockerd")) {
        return Ok(None);
    }
    of_kubelet(reader, &settings, None).map(Some)
}

pub fn read(
    reader: &Reader<'_>,
    processes: &Result<Processes, String>,
    kubelet: &Found<Kubelet>,
) -> Vec<Named> {
    let read = || -> Result<(Option<String>, Option<&'static str>), String> {
        processes.as_ref().map_err(Clone::clone)?;
        let Some(kubelet) = kubelet.as_ref().map_err(Clone::clone)? else { return Ok((None, None)) };
        let endpoint = kubelet.settings.get("containerRuntimeEndpoint").and_then(Value::as_str);
        let runtime = runtime(reader, endpoint)?;
        let own = of_kubelet(reader, &kubelet.settings, runtime.as_ref())?;
        Ok((Some(own), runtime.map(|runtime| runtime.driver)))
    };
    let found = read();
    vec![
        ("kubelet_cgroup_driver", signal(found.clone().map(|(own, _)| own))),
        ("runtime_cgroup_driver", signal(found.map(|(_, driver)| driver))),
    ]
}

/// Reads the kubelet that was seen among the processes.
///
/// # Errors
/// As [`Kubelet::read`].
pub fn kubelet(reader: &Reader<'_>, processes: &Result<Processes, String>) -> Found<Kubelet> {
    match processes.as_ref().map_err(Clone::clone)?.pid(KUBELET)? {
        Some(pid) => Kubelet::read(reader, pid).map(Some),
        None => Ok(None),
    }
}

/// Returns the words of dockerd, if it runs.
///
/// # Errors
/// If they cannot be read.
pub fn docker_words(reader: &Reader<'_>, processes: &Result<Processes, String>) -> Found<String> {
    match processes.as_ref().map_err(Clone::clone)?.pid(DOCKER)? {
        Some(pid) => words_of(reader, pid).map(Some),
        None => Ok(None),
    }
}

/// As [`docker_words`], for a task.
///
/// # Errors
/// As [`docker_words`].
pub fn docker_line(reader: &Reader<'_>) -> Found<String> {
    process::find(reader, DOCKER)?.map(|pid| words_of(reader, pid)).transpose()
}

/// Returns every value of a flag among the words of a process.
pub fn flags_in<'a>(line: &'a str, name: &str) -> Vec<&'a str> {
    let words: Vec<&str> = line.split('\0').skip(1).collect();
    (0..words.len())
        .filter_map(|at| {
            let rest = words.get(at)?.strip_prefix("--")?.strip_prefix(name)?;
            if rest.is_empty() { words.get(at + 1).copied() } else { rest.strip_prefix('=') }
        })
        .collect()
}

/// Returns the value of a flag among the words of a process.
pub fn flag_in<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    flag(&line.split('\0').skip(1).collect::<Vec<_>>(), name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::{deadline::Deadline, tasks::testing::Bench};

    const DUMP: &str = "version = 2\n[grpc]\naddress = \"/run/containerd/containerd.sock\"\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"nvidia\"\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\nSystemdCgroup = SYSTEMD\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = true\n";

    fn bench(version: &str, kubelet: &str, systemd: bool) -> Bench {
        let bench = Bench::new();
        bench.write("dump", &DUMP.replace("SYSTEMD", &systemd.to_string()));
        bench.script(
            "usr/bin/containerd",
            &format!(
                "#!/bin/sh\nd=$(dirname \"$0\")/../..\n[ \"$1\" = --version ] && echo 'containerd c {version} x' || cat $d/dump\n"
            ),
        );
        bench.script("usr/bin/kubelet", &format!("#!/bin/sh\necho Kubernetes v{kubelet}\n"));
        bench
    }

    fn told(bench: &Bench, settings: Value) -> Found<String> {
        let deadline = Deadline::after(Duration::from_secs(20));
        let reader = Reader { roots: &bench.roots, deadline: &deadline };
        mismatch(&reader, settings.as_object().unwrap())
    }

    #[test]
    fn drivers_that_differ_are_named() {
        let old = bench("1.7.24", "1.31.2", false);
        let why = told(&old, json!({"cgroupDriver": "systemd"})).unwrap().unwrap();
        assert!(
            why.contains(
                "the kubelet's driver of control groups is systemd and that of containerd is cgroupfs"
            ),
            "{why}"
        );
        assert_eq!(told(&old, json!({})), Ok(None), "cgroupfs is the kubelet's default");
        let new = bench("v2.1.0", "1.31.2", true);
        assert_eq!(told(&new, json!({})), Ok(None), "this kubelet asks the runtime");
        let off = json!({"featureGates": {"KubeletCgroupDriverFromCRI": false}});
        assert!(told(&new, off).unwrap().is_some());
        let older = bench("v2.1.0", "1.30.1", true);
        assert!(told(&older, json!({})).unwrap().is_some());
        assert_eq!(told(&older, json!({"cgroupDriver": "systemd"})), Ok(None));
    }

    #[test]
    fn what_nobody_tells_is_unknown_and_what_is_not_there_is_not() {
        let bench = bench("2.0.1", "1.31.2", true);
        bench.write("dump", "[grpc]\naddress = \"/run/containerd/containerd.sock\"\n");
        assert!(told(&bench, json!({})).unwrap_err().contains("tells no SystemdCgroup"));
        bench.write("dump", "version = 2\n");
        assert!(told(&bench, json!({})).unwrap_err().contains("is not the one at"));
        assert!(told(&bench, json!({"containerRuntimeEndpoint": "unix:///run/x.sock"})).is_err());
        assert_eq!(told(&Bench::new(), json!({})), Ok(None), "no containerd");
        let crio = json!({"containerRuntimeEndpoint": "unix:///var/run/crio/crio.sock"});
        assert_eq!(told(&bench, crio.clone()), Ok(None), "no CRI-O");
        bench.script("usr/bin/crio", "#!/bin/sh\necho crio version 1.27.1\n");
        assert!(told(&bench, crio.clone()).unwrap().unwrap().contains("CRI-O is systemd"));
        bench.write("etc/crio/crio.conf.d/20-x.conf", "[crio.runtime]\ncgroup_manager = \"cgroupfs\"\n");
        assert_eq!(told(&bench, crio), Ok(None));
        let docker =
            json!({"containerRuntimeEndpoint": "unix:///run/cri-dockerd.sock", "cgroupDriver": "systemd"});
        bench.script("usr/bin/dockerd", "#!/bin/sh\n");
        assert!(told(&bench, docker.clone()).unwrap().unwrap().contains("dockerd is cgroupfs"));
        bench.write("etc/docker/daemon.json", r#"{"exec-opts": ["native.cgroupdriver=systemd"]}"#);
        assert_eq!(told(&bench, docker.clone()), Ok(None));
        let words =
            "/usr/bin/dockerd\0--exec-opt\0native.umask=normal\0--exec-opt=native.cgroupdriver=cgroupfs\0";
        bench.daemon(7, "dockerd", words);
        assert!(told(&bench, docker).unwrap().unwrap().contains("dockerd is cgroupfs"), "the flag wins");
    }

    #[test]
    fn the_running_kubelet_is_read_with_its_flags() {
        let bench = bench("1.7.24", "1.29.0", true);
        let told = || {
            let deadline = Deadline::after(Duration::from_secs(20));
            mismatch_now(&Reader { roots: &bench.roots, deadline: &deadline })
        };
        bench.daemon(
            9,
            "kubelet",
            "/usr/bin/kubelet\0--config=/var/lib/kubelet/config.yaml\0--cgroup-driver\0cgroupfs\0",
        );
        bench.write("var/lib/kubelet/config.yaml", "cgroupDriver: systemd\n");
        assert!(told().unwrap().unwrap().contains("is cgroupfs"), "the flag wins");
        let config = "/usr/bin/kubelet\0--config=/var/lib/kubelet/config.yaml\0";
        bench.write("proc/9/cmdline", config);
        assert_eq!(told(), Ok(None));
        bench.write("proc/9/cmdline", "/usr/bin/kubelet\0");
        assert!(told().unwrap().unwrap().contains("is cgroupfs"), "without the flag it reads no file");
        bench.write("proc/9/cmdline", config);
        std::fs::remove_file(bench.path("var/lib/kubelet/config.yaml")).unwrap();
        assert!(told().is_err());
        bench.write("var/lib/kubelet/config.yaml", "cgroupDriver: \"x\\ny\"\n");
        assert!(told().unwrap_err().contains("`cgroupDriver` of the kubelet"));
    }

    /// Root in a container may call a process as it likes, and have it name any file.
    #[test]
    fn a_kubelet_of_a_container_is_none_and_its_files_are_files() {
        let bench = bench("1.7.24", "1.29.0", true);
        let deadline = Deadline::after(Duration::from_secs(20));
        let reader = Reader { roots: &bench.roots, deadline: &deadline };
        bench.daemon(9, "kubelet", "/usr/bin/kubelet\0--config=/run/pipe\0");
        let folder = bench.path("run");
        std::fs::create_dir_all(&folder).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("pipe"), rustix::fs::Mode::from(0o600)).unwrap();
        assert!(mismatch_now(&reader).unwrap_err().contains("no regular file"));
        assert!(reader.text("/run/pipe").unwrap_err().contains("no regular file"));
        bench.write("proc/9/cmdline", "/usr/bin/kubelet\0--config=config.yaml\0");
        assert!(mismatch_now(&reader).unwrap_err().contains("no absolute path"));
        for kind in ["pid", "mnt"] {
            bench.daemon(9, "kubelet", "/usr/bin/kubelet\0");
            let link = bench.path(&format!("proc/9/ns/{kind}"));
            std::fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(format!("{kind}:[7]"), &link).unwrap();
            assert_eq!(mismatch_now(&reader), Ok(None), "{kind}");
            assert_eq!(process::scan(&reader).unwrap().pid(KUBELET), Ok(None), "{kind}");
            // An older one of a container hides none.
            bench.daemon(10, "kubelet", "/usr/bin/kubelet\0");
            assert_eq!(process::scan(&reader).unwrap().pid(KUBELET), Ok(Some(10)));
            assert_eq!(process::find(&reader, KUBELET), Ok(Some(10)));
            std::fs::remove_dir_all(bench.path("proc/10")).unwrap();
        }
        bench.daemon(9, "kubelet", "/usr/bin/kubelet\0");
        std::fs::remove_file(bench.path("proc/1/ns/pid")).unwrap();
        assert!(process::find(&reader, KUBELET).is_err(), "what nobody knows is not absent");
        assert!(process::scan(&reader).unwrap().pid(KUBELET).is_err());
    }

    #[test]
    fn a_runtime_without_the_key_has_cgroupfs_and_another_containerd_is_unknown() {
        let bench = bench("1.7.24", "1.29.0", true);
        let dump = "[grpc]\naddress = \"/run/containerd/containerd.sock\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n\
            default_runtime_name = \"nvidia\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n\
            runtime_type = \"TYPE\"\noptions = {BinaryName = \"/usr/bin/nvidia-container-runtime\"}\n";
        bench.write("dump", &dump.replace("TYPE", "io.containerd.runc.v2"));
        let systemd = json!({"cgroupDriver": "systemd"});
        assert!(told(&bench, systemd.clone()).unwrap().unwrap().contains("containerd is cgroupfs"));
        assert_eq!(told(&bench, json!({})), Ok(None));
        let endpoint = |place: &str| told(&bench, json!({"containerRuntimeEndpoint": place}));
        assert_eq!(endpoint("unix:///var/run/containerd/containerd.sock"), Ok(None));
        assert!(endpoint("unix:///run/k3s/containerd/containerd.sock").is_err(), "RKE2 has one of its own");
        bench.write("dump", &dump.replace("TYPE", "io.containerd.x.v1"));
        assert!(told(&bench, systemd).is_err());
    }
}
