//! Where container runtimes keep images: which driver stores them, on what, and how much room there is.
//!
//! By the runtimes' files and folders, because asking a runtime costs more and hangs with it.

use std::{fs, os::fd::OwnedFd};

use rustix::fs::{Dir, FileType, Mode, OFlags, open};
use serde_json::{Map, Value};
use toml_edit::{DocumentMut, Item};

use super::{
    Found, Named, Reader,
    cgroups::{self, Kubelet},
    disk, rounded, signal,
};
use crate::tasks::{docker::file, mount::fstab::Mounted};

/// Drivers that copy every layer as a whole, or that Docker has taken away. Sources: Docker, "Select a storage driver" and the
/// list of deprecated features; containerd, snapshotters.
const SLOW: [&str; 4] = ["vfs", "native", "devicemapper", "aufs"];
/// Names of Docker's drivers, each of which has a folder of its own.
const DOCKER_DRIVERS: [&str; 7] =
    ["overlay2", "fuse-overlayfs", "btrfs", "zfs", "vfs", "devicemapper", "aufs"];
/// Most entries of a folder that are looked at for their type.
const MOST_ENTRIES: usize = 16;
/// Used part of an image file system at which the kubelet removes images, and at which it evicts pods, unless it is told
/// otherwise, in percent. Source: kubernetes.io, KubeletConfiguration and "Node-pressure Eviction".
const GC_PERCENT: u64 = 85;
const EVICT_PERCENT: f64 = 15.0;

/// A place where a runtime keeps images.
#[derive(Clone, Debug, PartialEq)]
struct Store {
    runtime: &'static str,
    root: String,
    /// The driver, by the runtime's own name of it.
    driver: Result<String, String>,
    mounted: Mounted,
    /// Whether an overlay works there; an error if nobody knows.
    fits: Result<bool, String>,
}

/// Whether overlay works on a file system; `types`: whether its folders tell the types of their entries. Source:
/// the kernel's overlayfs documentation ("d_type"), Docker's "OverlayFS storage driver".
fn fits(fstype: &str, types: impl FnOnce() -> Result<bool, String>) -> Result<bool, String> {
    match fstype {
        "overlay" | "aufs" => Ok(false),
        // With `ftype=0` it does not tell them.
        "xfs" => types(),
        _ => Ok(true),
    }
}

/// Whether a folder tells the types of its entries.
fn tells_types(folder: &str, place: &std::path::Path) -> Result<bool, String> {
    let wrong = |error: rustix::io::Errno| format!("{folder}: {error}");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open: OwnedFd = open(place, flags, Mode::empty()).map_err(wrong)?;
    let mut seen = 0;
    for entry in Dir::new(open).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        if [&b"."[..], b".."].contains(&entry.file_name().to_bytes()) {
            continue;
        }
        if entry.file_type() == FileType::Unknown {
            return Ok(false);
        }
        seen += 1;
        if seen == MOST_ENTRIES {
            break;
        }
    }
    if seen > 0 {
        Ok(true)
    } else {
        Err(format!("{folder} is empty, and does not tell whether its xfs has ftype=1"))
    }
}

/// Returns the one of these that is a folder inside of another one; an error if there are several.
fn only(
    reader: &Reader<'_>,
    folder: &str,
    named: impl Fn(&str) -> Option<String>,
) -> Result<Option<String>, String> {
    let names = reader.names(folder)?.unwrap_or_default();
    let mut all: Vec<String> = names.iter().filter_map(|name| named(name)).collect();
    all.sort();
    match all.len() {
        0 | 1 => Ok(all.pop()),
        _ => Err(format!("{folder} is of several drivers: {}", all.join(", "))),
    }
}

/// Returns the place behind links, as the node names it.
fn resolved(reader: &Reader<'_>, root: &str) -> Found<String> {
    let (top, place) = (reader.roots.path("/"), reader.roots.path(root));
    match (fs::canonicalize(&top), fs::canonicalize(place)) {
        (Ok(top), Ok(place)) => {
            let below = place.strip_prefix(&top).unwrap_or(&place);
            Ok(Some(format!("/{}", below.display())))
        }
        (_, Err(error)) if super::is_missing(&error) => Ok(None),
        (Err(error), _) | (_, Err(error)) => Err(format!("{root}: {error}")),
    }
}

fn docker(reader: &Reader<'_>, words: &str) -> Found<(String, Result<String, String>)> {
    let path = gpufleet_protocol::tasks::DockerDaemon::FILE;
    let text = reader.text(path)?.unwrap_or_default();
    let settings: Map<String, Value> =
        file::parse(text.as_bytes()).map_err(|why| format!("{path}: {why}"))?;
    let set = |key: &str| {
        let flag = cgroups::flag_in(words, key);
        flag.or_else(|| settings.get(key).and_then(Value::as_str)).map(str::to_owned)
    };
    let root = set("data-root").unwrap_or_else(|| "/var/lib/docker".to_owned());
    let folder = format!("{root}/image");
    let driver = match set("storage-driver") {
        Some(driver) => Ok(Some(driver)),
        None => only(reader, &folder, |name| DOCKER_DRIVERS.contains(&name).then(|| name.to_owned())),
    };
    // With containerd's store of images, Docker has no folder of its own.
    Ok(match driver {
        Ok(None) => None,
        Ok(Some(driver)) => Some((root, Ok(driver))),
        Err(why) => Some((root, Err(why))),
    })
}

fn toml(reader: &Reader<'_>, path: &str) -> Result<DocumentMut, String> {
    let text = reader.text(path)?.unwrap_or_default();
    text.parse().map_err(|_| format!("{path}: it is no valid TOML"))
}

/// Whether a folder has any entry.
fn has_any(reader: &Reader<'_>, folder: &str) -> Result<bool, String> {
    match fs::read_dir(reader.roots.path(folder)) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if super::is_missing(&error) => Ok(false),
        Err(error) => Err(format!("{folder}: {error}")),
    }
}

/// Returns containerd's store, if a kubelet uses it or it has snapshots: each Docker brings a containerd, whose folder
/// stays empty unless Docker keeps its images there.
fn containerd(reader: &Reader<'_>, kubelet: &Found<Kubelet>) -> Found<(String, Result<String, String>)> {
    let path = "/etc/containerd/config.toml";
    let document = toml(reader, path)?;
    let text = |item: Option<&Item>| item.and_then(Item::as_str).map(str::to_owned);
    let root = text(document.get("root")).unwrap_or_else(|| "/var/lib/containerd".to_owned());
    let mut is_used = false;
    for name in reader.names(&root)?.unwrap_or_default() {
        is_used |= name.starts_with("io.containerd.snapshotter.")
            && has_any(reader, &format!("{root}/{name}/snapshots"))?;
    }
    if !is_used {
        let kubelet = kubelet.as_ref().map_err(Clone::clone)?;
        if kubelet.as_ref().is_none_or(|kubelet| own(kubelet) != Some("containerd")) {
            return Ok(None);
        }
    }
    let mut snapshotter = None;
    for (_, plugin) in
        document.get("plugins").and_then(Item::as_table_like).into_iter().flat_map(|all| all.iter())
    {
        let Some(plugin) = plugin.as_table_like() else { continue };
        let inner = plugin.get("containerd").and_then(Item::as_table_like);
        snapshotter = text(plugin.get("snapshotter"))
            .or_else(|| text(inner.and_then(|inner| inner.get("snapshotter"))))
            .or(snapshotter);
    }
    // What it is without a setting. Source: containerd, cri/config.md.
    Ok(Some((root, Ok(snapshotter.unwrap_or_else(|| "overlayfs".to_owned())))))
}

/// Returns the store of CRI-O and podman.
fn containers(reader: &Reader<'_>) -> Found<(String, Result<String, String>)> {
    let document = toml(reader, "/etc/containers/storage.conf")?;
    let storage = document.get("storage").and_then(Item::as_table_like);
    let text = |key: &str| storage.and_then(|storage| storage.get(key)?.as_str()).map(str::to_owned);
    let root = text("graphroot").unwrap_or_else(|| "/var/lib/containers/storage".to_owned());
    let driver = only(reader, &root, |name| name.strip_suffix("-images").map(str::to_owned));
    Ok(match driver {
        Ok(None) => None,
        Ok(Some(driver)) => Some((root, Ok(driver))),
        Err(why) => Some((root, Err(why))),
    })
}

/// Returns the store of a kubelet's runtime; `None` if it is none of those that are read here.
fn own(kubelet: &Kubelet) -> Option<&'static str> {
    match kubelet.endpoint() {
        place if place.contains("crio") => Some("containers"),
        place if place.contains("dockerd") => Some("docker"),
        place => cgroups::is_systems_containerd(place).then_some("containerd"),
    }
}

/// Returns the used part of the file system of the kubelet's images.
fn of_kubelet(
    reader: &Reader<'_>,
    stores: &[Store],
    mounts: &[Mounted],
    kubelet: &Found<Kubelet>,
) -> Found<f64> {
    let Some(kubelet) = kubelet.as_ref().map_err(Clone::clone)? else { return Ok(None) };
    let runtime = own(kubelet)
        .ok_or_else(|| format!("where the runtime at {} keeps images is not known", kubelet.endpoint()))?;
    let Some(store) = stores.iter().find(|store| store.runtime == runtime) else { return Ok(None) };
    Ok(disk::usage(reader, &store.mounted, mounts)?.taken_ratio)
}

fn stores(
    reader: &Reader<'_>,
    words: &Found<String>,
    kubelet: &Found<Kubelet>,
    mounts: &[Mounted],
) -> Result<Vec<Store>, String> {
    let words = words.as_ref().map_err(Clone::clone)?.clone().unwrap_or_default();
    let mut all = Vec::new();
    for (runtime, found) in [
        ("docker", docker(reader, &words)?),
        ("containerd", containerd(reader, kubelet)?),
        ("containers", containers(reader)?),
    ] {
        let Some((root, driver)) = found else { continue };
        let Some(root) = resolved(reader, &root)? else { continue };
        let Some(mounted) = mounts
            .iter()
            .filter(|mounted| {
                mounted.path == root || gpufleet_protocol::operation::is_below(&root, &mounted.path)
            })
            // The last mount covers those before it.
            .max_by_key(|mounted| mounted.path.len())
        else {
            return Err(format!("no mount has {root}"));
        };
        let fits = match &driver {
            Ok(driver) if !driver.starts_with("overlay") => Ok(true),
            Ok(_) => fits(&mounted.fstype, || tells_types(&root, &reader.roots.path(&root))),
            Err(why) => Err(why.clone()),
        };
        all.push(Store { runtime, root, driver, mounted: mounted.clone(), fits });
    }
    Ok(all)
}

impl Store {
    fn told(&self) -> String {
        let driver = self.driver.as_deref().unwrap_or("an unknown driver");
        let text = format!("{}: {driver} in {} on {}", self.runtime, self.root, self.mounted.fstype);
        let text = if self.fits == Ok(false) { format!("{text}, which does not fit") } else { text };
        text.chars().filter(|c| !c.is_control()).take(300).collect()
    }
}

/// Counts stores of which something holds; an error if nobody knows that of one.
fn count(stores: &[Store], holds: impl Fn(&Store) -> Result<bool, String>) -> Found<usize> {
    let found: Vec<bool> = stores.iter().map(holds).collect::<Result<_, _>>()?;
    Ok((!found.is_empty()).then(|| found.iter().filter(|holds| **holds).count()))
}

/// Returns the largest of a part of the stores' file systems.
fn largest(
    reader: &Reader<'_>,
    stores: &[Store],
    mounts: &[Mounted],
    part: impl Fn(&disk::Usage) -> Option<f64>,
) -> Found<f64> {
    let mut most: Option<f64> = None;
    for store in stores {
        let usage = disk::usage(reader, &store.mounted, mounts)?;
        most = match (most, part(&usage)) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
    }
    Ok(most)
}

/// Returns the used part at which a kubelet removes images, and at which it evicts pods.
fn thresholds(kubelet: &Kubelet) -> Limits {
    let settings = &kubelet.settings;
    let gc = settings.get("imageGCHighThresholdPercent").and_then(Value::as_u64).unwrap_or(GC_PERCENT);
    let percent = |text: &str| text.strip_suffix('%')?.trim().parse::<f64>().ok();
    let evict = match settings.get("evictionHard").and_then(Value::as_object) {
        None => Some(EVICT_PERCENT),
        // A kubelet with thresholds of its own has none of the others.
        Some(hard) => hard.get("imagefs.available").and_then(Value::as_str).and_then(percent),
    };
    // With 100 it removes none.
    let ratio = |percent: f64| rounded(percent / 100.0);
    ((gc < 100).then(|| ratio(gc as f64)), evict.filter(|free| *free > 0.0).map(|free| ratio(100.0 - free)))
}

/// Shares of the file system that are taken: from which the kubelet removes images, and from which it evicts pods.
type Limits = (Option<f64>, Option<f64>);
/// What takes a signal from the stores of images and the mounts.
type Take<'a> = &'a dyn Fn(&[Store], &[Mounted]) -> Found<Value>;

pub fn read(reader: &Reader<'_>, words: &Found<String>, kubelet: &Found<Kubelet>) -> Vec<Named> {
    let mounts =
        disk::mountinfo(reader).map(|text| text.lines().filter_map(Mounted::parse).collect::<Vec<Mounted>>());
    let found = mounts.and_then(|mounts| Ok((stores(reader, words, kubelet, &mounts)?, mounts)));
    let of = |take: Take<'_>| {
        signal(found.as_ref().map_err(Clone::clone).and_then(|(stores, mounts)| take(stores, mounts)))
    };
    let list = |stores: &[Store], text: &dyn Fn(&Store) -> String| -> Found<Value> {
        Ok((!stores.is_empty()).then(|| stores.iter().map(text).collect::<Vec<_>>().into()))
    };
    let value = |found: Found<usize>| found.map(|count| count.map(Value::from));
    let number = |found: Found<f64>| found.map(|ratio| ratio.map(Value::from));
    let limits = |take: fn(Limits) -> Option<f64>| {
        let told = kubelet.as_ref().map_err(Clone::clone);
        signal(told.map(|kubelet| kubelet.as_ref().map(thresholds).and_then(take)))
    };
    vec![
        ("image_stores", of(&|stores, _| list(stores, &Store::told))),
        ("image_roots", of(&|stores, _| list(stores, &|store| store.root.clone()))),
        (
            "image_stores_slow",
            of(&|stores, _| value(count(stores, |store| Ok(SLOW.contains(&store.driver.clone()?.as_str()))))),
        ),
        (
            "image_stores_unfit",
            of(&|stores, _| value(count(stores, |store| store.fits.clone().map(|fits| !fits)))),
        ),
        (
            "image_stores_on_root",
            of(&|stores, _| value(count(stores, |store| Ok(store.mounted.path == "/")))),
        ),
        (
            "image_used_ratio",
            of(&|stores, mounts| number(largest(reader, stores, mounts, |usage| usage.taken_ratio))),
        ),
        (
            "image_inode_used_ratio",
            of(&|stores, mounts| number(largest(reader, stores, mounts, |usage| usage.inode_used_ratio))),
        ),
        (
            "image_kubelet_used_ratio",
            of(&|stores, mounts| number(of_kubelet(reader, stores, mounts, kubelet))),
        ),
        ("image_gc_ratio", limits(|(gc, _)| gc)),
        ("image_evict_ratio", limits(|(_, evict)| evict)),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpufleet_protocol::signal::Signal;
    use serde_json::json;

    use super::*;
    use crate::{deadline::Deadline, tasks::testing::Bench};

    fn told(bench: &Bench, name: &str) -> Signal {
        over(bench, &Ok(None), name)
    }

    fn kubelet(settings: Value) -> Found<Kubelet> {
        Ok(Some(Kubelet { settings: settings.as_object().cloned().unwrap(), root: String::new() }))
    }

    fn over(bench: &Bench, kubelet: &Found<Kubelet>, name: &str) -> Signal {
        let deadline = Deadline::after(Duration::from_secs(20));
        let reader = Reader { roots: &bench.roots, deadline: &deadline };
        let words = Ok(Some(bench.read("words")));
        let all = read(&reader, &words, kubelet);
        all.into_iter().find(|(known, _)| *known == name).unwrap().1
    }

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write(
            "proc/self/mountinfo",
            "22 1 8:1 / / rw - ext4 /dev/vda1 rw\n23 22 8:17 / /data rw - xfs /dev/vdb1 rw\n",
        );
        bench.write("words", "/usr/bin/dockerd\0");
        bench
    }

    #[test]
    fn stores_are_found_by_their_files_and_folders() {
        let bench = bench();
        assert_eq!(told(&bench, "image_stores"), Signal::Absent);
        assert_eq!(told(&bench, "image_stores_slow"), Signal::Absent);
        bench.write("var/lib/docker/image/overlay2/x", "");
        bench.write("var/lib/containers/storage/vfs-images/x", "");
        bench.write("etc/containerd/config.toml", "root = \"/data/ctd\"\n");
        bench.write("data/ctd/io.containerd.snapshotter.v1.overlayfs/snapshots/1/x", "");
        assert_eq!(
            told(&bench, "image_stores"),
            vec![
                "docker: overlay2 in /var/lib/docker on ext4",
                "containerd: overlayfs in /data/ctd on xfs",
                "containers: vfs in /var/lib/containers/storage on ext4"
            ]
            .into()
        );
        assert_eq!(
            told(&bench, "image_roots"),
            vec!["/var/lib/docker", "/data/ctd", "/var/lib/containers/storage"].into()
        );
        assert_eq!(told(&bench, "image_stores_slow"), 1.into());
        assert_eq!(told(&bench, "image_stores_on_root"), 2.into());
        assert!(told(&bench, "image_used_ratio").known().is_some());
        // A flag wins over the default, and a link is followed.
        bench.write("words", "/usr/bin/dockerd\0--data-root\0/data/docker\0");
        bench.write("data/docker/image/overlay2/x", "");
        std::os::unix::fs::symlink("docker", bench.path("data/link")).unwrap();
        bench.write("words", "/usr/bin/dockerd\0--data-root\0/data/link\0");
        assert_eq!(told(&bench, "image_stores_on_root"), 1.into());
        let roots = vec!["/data/docker", "/data/ctd", "/var/lib/containers/storage"];
        assert_eq!(told(&bench, "image_roots"), roots.into());
    }

    /// Each Docker brings a containerd, which keeps no images unless it is told to.
    #[test]
    fn containerd_counts_where_it_is_used() {
        let bench = bench();
        bench.write("words", "/usr/bin/dockerd\0--data-root=/data/docker\0");
        bench.write("data/docker/image/overlay2/x", "");
        bench.write("var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db", "");
        let folder = "var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots";
        std::fs::create_dir_all(bench.path(folder)).unwrap();
        let (one, both) = (vec!["/data/docker"], vec!["/data/docker", "/var/lib/containerd"]);
        assert_eq!(told(&bench, "image_roots"), one.clone().into());
        assert_eq!(told(&bench, "image_stores_on_root"), 0.into());
        for (endpoint, roots) in [
            (json!({}), &both),
            (json!({"containerRuntimeEndpoint": "unix:///run/cri-dockerd.sock"}), &one),
            (json!({"containerRuntimeEndpoint": "unix:///run/k3s/containerd/containerd.sock"}), &one),
        ] {
            assert_eq!(over(&bench, &kubelet(endpoint), "image_roots"), roots.clone().into());
        }
        assert!(matches!(over(&bench, &Err("x".to_owned()), "image_roots"), Signal::Unknown(_)));
        bench.write(&format!("{folder}/1/x"), "");
        assert_eq!(told(&bench, "image_roots"), both.into());
    }

    #[test]
    fn a_kubelet_is_judged_by_its_own_store() {
        let bench = bench();
        bench.write("words", "/usr/bin/dockerd\0");
        bench.write("var/lib/docker/image/overlay2/x", "");
        let of = |endpoint: &str, name: &str| {
            over(&bench, &kubelet(json!({"containerRuntimeEndpoint": endpoint})), name)
        };
        let name = "image_kubelet_used_ratio";
        assert!(of("unix:///run/cri-dockerd.sock", name).known().is_some());
        assert_eq!(of("unix:///var/run/crio/crio.sock", name), Signal::Absent, "CRI-O has none");
        assert!(matches!(of("unix:///run/k3s/containerd/containerd.sock", name), Signal::Unknown(_)));
        assert_eq!(told(&bench, name), Signal::Absent, "without a kubelet");
    }

    #[test]
    fn what_cannot_be_told_is_unknown() {
        let bench = bench();
        bench.write("var/lib/docker/image/overlay2/x", "");
        bench.write("var/lib/docker/image/vfs/x", "");
        for name in ["image_stores_slow", "image_stores_unfit"] {
            assert!(matches!(told(&bench, name), Signal::Unknown(_)), "{name}");
        }
        assert!(told(&bench, "image_roots").known().is_some());
        bench.write("etc/docker/daemon.json", r#"{"storage-driver": "vfs"}"#);
        assert_eq!(told(&bench, "image_stores_slow"), 1.into());
        bench.write("etc/docker/daemon.json", "{");
        assert!(matches!(told(&bench, "image_stores"), Signal::Unknown(_)));
    }

    #[test]
    fn an_overlay_needs_types_and_no_overlay_below() {
        assert_eq!(fits("overlay", || Ok(true)), Ok(false));
        assert_eq!(fits("xfs", || Ok(false)), Ok(false));
        assert_eq!(fits("xfs", || Ok(true)), Ok(true));
        assert!(fits("xfs", || Err("empty".to_owned())).is_err());
        assert_eq!(fits("ext4", || Ok(false)), Ok(true));
        let bench = bench();
        bench.write("proc/self/mountinfo", "22 1 8:1 / / rw - overlay overlay rw\n");
        bench.write("var/lib/docker/image/overlay2/x", "");
        assert_eq!(told(&bench, "image_stores_unfit"), 1.into());
        bench.write("etc/docker/daemon.json", r#"{"storage-driver": "vfs"}"#);
        assert_eq!(told(&bench, "image_stores_unfit"), 0.into(), "vfs needs none");
    }

    #[test]
    fn thresholds_are_the_kubelets_own() {
        let of = |settings: Value| {
            thresholds(&Kubelet { settings: settings.as_object().cloned().unwrap(), root: String::new() })
        };
        assert_eq!(of(json!({})), (Some(0.85), Some(0.85)));
        let own = json!({"imageGCHighThresholdPercent": 70, "evictionHard": {"imagefs.available": "20%"}});
        assert_eq!(of(own), (Some(0.7), Some(0.8)));
        let none = json!({"imageGCHighThresholdPercent": 100, "evictionHard": {"memory.available": "1Gi"}});
        assert_eq!(of(none), (None, None));
        let bench = bench();
        let own =
            kubelet(json!({"imageGCHighThresholdPercent": 70, "evictionHard": {"imagefs.available": "20%"}}));
        assert_eq!(over(&bench, &own, "image_gc_ratio"), 0.7.into());
        assert_eq!(over(&bench, &own, "image_evict_ratio"), 0.8.into());
        assert_eq!(told(&bench, "image_gc_ratio"), Signal::Absent);
        assert!(matches!(over(&bench, &Err("x".to_owned()), "image_evict_ratio"), Signal::Unknown(_)));
    }
}
