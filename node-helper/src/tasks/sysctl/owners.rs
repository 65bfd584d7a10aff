//! Programs that set kernel parameters themselves, after the files of sysctl.d: tuned, kubelet, ufw, dockerd,
//! systemd-networkd, NetworkManager and cloud-init.

use std::path::PathBuf;

use super::{boot, cloud, key_path, networks, value::words};
use crate::{
    declare::{Node, Trouble},
    world::Entry,
};

/// Another writer of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Who, and by which file.
    pub who: String,
    /// What it sets; `None` if only the program itself can tell.
    pub value: Option<String>,
    /// Whether its value is in force once it has started, and what then happens.
    pub wins: bool,
    pub then: &'static str,
}

/// What kubelet sets. Source: kubernetes, pkg/kubelet/cm/container_manager_linux.go, `setupKernelTunables`.
const KUBELET: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];
/// Units with a kubelet.
const KUBELETS: [&str; 5] =
    ["kubelet.service", "k3s.service", "k3s-agent.service", "rke2-agent.service", "rke2-server.service"];
/// Folders with tuned's profiles; the first one with a profile's name wins (tuned-profiles(7)).
const PROFILES: [&str; 4] =
    ["/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned"];
/// Most profiles that one includes, directly or not.
const INCLUDES: usize = 32;

fn text(node: &Node<'_>, path: &str) -> Result<Option<String>, Trouble> {
    let bytes = node.world.read(&node.roots.path(path))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Whether a unit is started at boot: a link in a folder of what another unit wants (systemd.unit(5)).
///
/// # Errors
/// If a folder cannot be read.
pub fn starts(node: &Node<'_>, unit: &str) -> Result<bool, Trouble> {
    let folder = node.roots.etc("systemd/system");
    for name in node.world.names(&folder)?.iter().filter(|name| name.ends_with(".wants")) {
        if node.world.entry(&folder.join(name).join(unit))? != Entry::Absent {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the value of a setting such as `reapply_sysctl = 1`.
fn setting<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let value = |line: &'t str| {
        let (found, value) = line.split_once('=')?;
        (found.trim() == name).then(|| value.trim().trim_matches(['"', '\'']))
    };
    text.lines().rev().find_map(value)
}

/// Returns what a section of a tuned profile sets a parameter to; the last line wins.
fn in_profile(text: &str, key: &str) -> Option<String> {
    let (mut section, mut found) = (String::new(), None);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some((name, value)) = line.split_once('=') {
            let of_vm = section == "vm" && key == format!("vm/{}", name.trim());
            if section == "sysctl" && key_path(name.trim()) == key || of_vm {
                found = Some(words(value));
            }
        }
    }
    found
}

/// Collects the files of a profile in the order in which they count: those that it includes first.
fn collect(
    node: &Node<'_>,
    profile: &str,
    seen: &mut Vec<String>,
    files: &mut Vec<(String, String)>,
) -> Result<(), Trouble> {
    if profile.contains('/') || seen.iter().any(|known| known == profile) || seen.len() == INCLUDES {
        return Ok(());
    }
    seen.push(profile.to_owned());
    for folder in PROFILES {
        let path = format!("{folder}/{profile}/tuned.conf");
        let Some(found) = text(node, &path)? else { continue };
        let included = setting(&found, "include").unwrap_or_default().to_owned();
        for name in included.split([',', ' ']).filter(|name| !name.is_empty()) {
            collect(node, name, seen, files)?;
        }
        files.push((path, found));
        break;
    }
    Ok(())
}

/// The profile that tuned applies at boot.
#[derive(Debug)]
pub struct Profile {
    pub name: String,
    /// Its files in the order in which they count: those that it includes first.
    files: Vec<(String, String)>,
}

impl Profile {
    /// Reads the profile; none unless tuned starts at boot.
    ///
    /// # Errors
    /// If a file of tuned cannot be read.
    pub fn read(node: &Node<'_>) -> Result<Option<Self>, Trouble> {
        let Some(profile) = text(node, "/etc/tuned/active_profile")? else { return Ok(None) };
        if !starts(node, "tuned.service")? {
            return Ok(None);
        }
        let names: Vec<&str> = profile.split_whitespace().collect();
        Self::named(node, &names).map(Some)
    }

    /// Reads these profiles, of which the last one wins, whatever tuned applies at boot.
    ///
    /// # Errors
    /// If a file of tuned cannot be read.
    pub fn named<N: AsRef<str>>(node: &Node<'_>, names: &[N]) -> Result<Self, Trouble> {
        let (mut seen, mut files) = (Vec::new(), Vec::new());
        for name in names {
            collect(node, name.as_ref(), &mut seen, &mut files)?;
        }
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        Ok(Self { name: names.join(" "), files })
    }

    /// Whether tuned has a profile of this name.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn exists(node: &Node<'_>, name: &str) -> Result<bool, Trouble> {
        for folder in PROFILES {
            let path = node.roots.path(folder).join(name).join("tuned.conf");
            if node.world.follow_anywhere(&path)?.1 != Entry::Absent {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the names of all profiles.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn names(node: &Node<'_>) -> Result<Vec<String>, Trouble> {
        let mut all = Vec::new();
        for folder in PROFILES {
            for name in node.world.names(&node.roots.path(folder))? {
                if Self::exists(node, &name)? {
                    all.push(name);
                }
            }
        }
        Ok(all)
    }

    /// Returns the sections of its files but `main` and `variables`, which set nothing, sorted.
    pub fn sections(&self) -> Vec<String> {
        let title = |line: &str| Some(line.trim().strip_prefix('[')?.strip_suffix(']')?.to_owned());
        let titles = self.files.iter().flat_map(|(_, text)| text.lines().filter_map(title));
        let mut all: Vec<String> =
            titles.filter(|name| !matches!(name.as_str(), "main" | "variables")).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the names of what a section sets.
    pub fn keys(&self, section: &str) -> Vec<String> {
        let mut all = Vec::new();
        for (_, text) in &self.files {
            let mut inside = false;
            for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
                if let Some(title) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                    inside = title == section;
                } else if let Some((name, _)) = line.split_once('=').filter(|_| inside) {
                    all.push(name.trim().to_owned());
                }
            }
        }
        all
    }

    /// Returns what a section sets under a name, and the file that does; the last one counts.
    pub fn sets(&self, section: &str, name: &str) -> Option<(&str, String)> {
        let in_text = |text: &str| {
            let (mut inside, mut found) = (false, None);
            for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
                if let Some(title) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                    inside = title == section;
                } else if let Some((given, value)) = line.split_once('=').filter(|_| inside)
                    && given.trim() == name
                {
                    found = Some(value.trim().to_owned());
                }
            }
            found
        };
        self.files.iter().rev().find_map(|(path, text)| Some((path.as_str(), in_text(text)?)))
    }
}

fn tuned(node: &Node<'_>, key: &str, file: &str) -> Result<Option<Owner>, Trouble> {
    let Some(Profile { name: profile, files }) = Profile::read(node)? else { return Ok(None) };
    let Some((path, value)) =
        files.iter().rev().find_map(|(path, text)| Some((path, in_profile(text, key)?)))
    else {
        return Ok(None);
    };
    let main = text(node, "/etc/tuned/tuned-main.conf")?.unwrap_or_default();
    let reapplies = !matches!(setting(&main, "reapply_sysctl"), Some("0" | "false" | "False" | "no"));
    // tuned reads these again, and none below /usr (tuned, plugin_sysctl).
    let read_again = ["/etc/sysctl.d/", "/run/sysctl.d/"].iter().any(|folder| file.starts_with(folder))
        || file == "/etc/sysctl.conf";
    // `>10` raises only, and `${…}` is computed.
    let known = !value.starts_with(['>', '<']) && !value.contains("${");
    Ok(Some(Owner {
        who: format!("tuned's profile {profile} ({path})"),
        value: known.then_some(value),
        wins: !(reapplies && read_again),
        then: if reapplies && read_again {
            "tuned applies /etc/sysctl.d after it (reapply_sysctl), and puts back what it found when it is stopped or its \
             profile is switched"
        } else {
            "tuned sets it after the files of sysctl.d"
        },
    }))
}

fn kubelet(node: &Node<'_>, key: &str) -> Result<Option<Owner>, Trouble> {
    let Some((_, value)) = KUBELET.iter().find(|(name, _)| *name == key) else { return Ok(None) };
    for unit in KUBELETS {
        if !starts(node, unit)? {
            continue;
        }
        let config = text(node, "/var/lib/kubelet/config.yaml")?.unwrap_or_default();
        let protects = config.lines().any(|line| line.trim() == "protectKernelDefaults: true");
        return Ok(Some(Owner {
            who: format!("kubelet ({unit})"),
            value: Some((*value).to_owned()),
            wins: true,
            then: if protects {
                "kubelet does not start with another value (protectKernelDefaults)"
            } else {
                "kubelet sets it whenever it starts"
            },
        }));
    }
    Ok(None)
}

fn ufw(node: &Node<'_>, key: &str) -> Result<Option<Owner>, Trouble> {
    let enabled = text(node, "/etc/ufw/ufw.conf")?.unwrap_or_default();
    if setting(&enabled, "ENABLED") != Some("yes") {
        return Ok(None);
    }
    let defaults = text(node, "/etc/default/ufw")?.unwrap_or_default();
    let path = setting(&defaults, "IPT_SYSCTL").filter(|path| path.starts_with('/'));
    let path = path.unwrap_or("/etc/ufw/sysctl.conf").to_owned();
    let Some(value) = text(node, &path)?.and_then(|text| boot::value_in(&text, key)) else {
        return Ok(None);
    };
    let who = format!("ufw ({path})");
    Ok(Some(Owner { who, value: Some(value), wins: true, then: "ufw sets it whenever it starts" }))
}

/// Source: moby, libnetwork/drivers/bridge/setup_ip_forwarding.go.
fn docker(node: &Node<'_>, key: &str) -> Result<Option<Owner>, Trouble> {
    if key != "net/ipv4/ip_forward" || !(starts(node, "docker.service")? || starts(node, "docker.socket")?) {
        return Ok(None);
    }
    let settings = text(node, "/etc/docker/daemon.json")?.unwrap_or_default();
    let settings: serde_json::Value = serde_json::from_str(&settings).unwrap_or_default();
    if settings.get("ip-forward") == Some(&false.into()) {
        return Ok(None);
    }
    Ok(Some(Owner {
        who: "dockerd".to_owned(),
        value: Some("1".to_owned()),
        wins: true,
        then: "dockerd turns it on whenever it starts, unless /etc/docker/daemon.json has `\"ip-forward\": false`",
    }))
}

/// Returns the programs that set a parameter, and why that may not be all. `file` is the declared file.
///
/// # Errors
/// If one of their files cannot be read.
pub fn read(node: &Node<'_>, key: &str, file: &str) -> Result<(Vec<Owner>, Option<String>), Trouble> {
    let all = [tuned(node, key, file)?, kubelet(node, key)?, ufw(node, key)?, docker(node, key)?];
    let mut all: Vec<Owner> = all.into_iter().flatten().collect();
    all.extend(networks::read(node, key)?);
    let (cloud, doubt) = cloud::read(node, key)?;
    all.extend(cloud);
    Ok((all, doubt))
}

/// Parameters below these come with a module. Source: kernel, networking/nf_conntrack-sysctl and networking/bridge.
const MODULES: [(&str, &str); 5] = [
    ("net/netfilter/nf_conntrack", "nf_conntrack"),
    ("net/nf_conntrack_max", "nf_conntrack"),
    ("net/bridge/bridge-nf-", "br_netfilter"),
    ("net/ipv4/vs/", "ip_vs"),
    ("sunrpc/", "sunrpc"),
];

/// Returns the module that brings a parameter, if it is one of those known.
pub fn module(key: &str) -> Option<&'static str> {
    MODULES.iter().find(|(prefix, _)| key.starts_with(prefix)).map(|(_, module)| *module)
}

/// Whether this is a container, by the files that its manager puts there. Source: systemd, CONTAINER_INTERFACE; podman;
/// docker.
pub fn in_container(node: &Node<'_>) -> bool {
    let marks = ["/run/systemd/container", "/run/.containerenv", "/.dockerenv"];
    marks.iter().map(|path| node.roots.path(path)).any(|path: PathBuf| path.exists())
}
