//! What a running process has of the settings of its unit, as the kernel tells.
//!
//! Not as systemd tells: `systemctl show` said `infinity` where the process had 8 MiB (measured with systemd 252 in
//! nspawn). A program may change its own settings, so that only what it cannot raise by itself is compared.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    path::Path,
};

use gpufleet_protocol::{
    cpus::CpuList,
    tasks::{systemd_list, unit_limit},
};

use crate::{
    declare::{Node, Trouble},
    os::{files, tree},
};

/// Largest file of a process that is read whole, in bytes.
const LIMIT: u64 = 256 * 1024;
/// Bytes that are read of `numa_maps`: the kernel walks all pages of the memory that is read.
const MAPS: u64 = 4096;
/// Most processes of a unit, and most files of one, that are looked at.
const MOST: usize = 4096;

/// How a setting of a process compares with the declared one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// The kernel or another setting bounds it; with what the process has.
    Bounded(String),
    Other(String),
    Unknown,
}

/// Files of a process, read when they are asked for.
#[derive(Debug)]
pub struct Process {
    limits: Option<String>,
    status: Option<String>,
    stat: Option<String>,
    oom_score_adj: Option<String>,
    numa_policy: Option<String>,
    /// CPUs that its control group may use; none if that cannot be read.
    usable: Option<CpuList>,
    online: Option<CpuList>,
}

fn text(path: &Path) -> Option<String> {
    let bytes = files::read_bounded(path, LIMIT).ok().flatten()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the folder of a control group; none for a name that is none.
fn group(node: &Node<'_>, control_group: &str) -> Option<std::path::PathBuf> {
    let inside = control_group.strip_prefix('/').filter(|name| !name.is_empty())?;
    let is_plain = inside.split('/').all(|part| !matches!(part, "" | "." | ".."));
    is_plain.then(|| node.roots.path("/sys/fs/cgroup").join(inside))
}

impl Process {
    /// Reads what can be read; what cannot is unknown, and never the declared value.
    pub fn read(node: &Node<'_>, pid: u32, control_group: &str) -> Self {
        let of = |name: &str| text(&node.roots.proc(&format!("{pid}/{name}")));
        let mut head = Vec::new();
        // Its beginning is enough: all memory without a policy of its own shows that of the process.
        let maps = tree::open(&node.roots.proc(&format!("{pid}/numa_maps")));
        let read = maps.ok().and_then(|file| file.take(MAPS).read_to_end(&mut head).ok());
        let numa_policy = read.and_then(|_| {
            let text = String::from_utf8_lossy(&head).into_owned();
            text.lines().next()?.split(' ').nth(1).map(str::to_owned)
        });
        let list = |path: &Path| text(path)?.trim().parse().ok();
        Self {
            limits: of("limits"),
            status: of("status"),
            stat: of("stat"),
            oom_score_adj: of("oom_score_adj"),
            numa_policy,
            usable: group(node, control_group).and_then(|folder| list(&folder.join("cpuset.cpus.effective"))),
            online: list(&node.roots.path("/sys/devices/system/cpu/online")),
        }
    }

    /// Returns a field of `/proc/PID/stat` by its number in proc(5).
    fn field(&self, number: usize) -> Option<i64> {
        let (_, rest) = self.stat.as_deref()?.rsplit_once(')')?;
        rest.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
    }

    /// Compares a setting; `values` are those that count, `all` what counts of the other settings of its section.
    pub fn judge(&self, key: &str, values: &[String], all: &BTreeMap<String, Vec<String>>) -> Verdict {
        let Some(last) = values.last() else { return Verdict::Unknown };
        // systemd replaces specifiers such as %i.
        if values.iter().any(|value| value.contains('%')) {
            return Verdict::Unknown;
        }
        let equals = |found: Option<String>, wanted: &str| match found {
            None => Verdict::Unknown,
            Some(found) if found == wanted => Verdict::Same,
            Some(found) => Verdict::Other(found),
        };
        match key {
            "CPUAffinity" => self.judge_cpus(values),
            "OOMScoreAdjust" => {
                equals(self.oom_score_adj.as_deref().map(|text| text.trim().to_owned()), last)
            }
            "Nice" => equals(self.field(19).map(|nice| nice.to_string()), last),
            "CPUSchedulingPriority" => equals(self.field(40).map(|priority| priority.to_string()), last),
            "CPUSchedulingPolicy" => equals(self.field(41).map(policy_name), last),
            "NUMAPolicy" => self.judge_numa(last, all.get("NUMAMask").map_or(&[], Vec::as_slice)),
            "NUMAMask" => match all.get("NUMAPolicy").and_then(|policy| policy.last()) {
                Some(policy) => self.judge_numa(policy, values),
                None => Verdict::Unknown,
            },
            _ => limit_name(key).map_or(Verdict::Unknown, |name| self.judge_limit(key, name, last)),
        }
    }

    fn judge_limit(&self, key: &str, name: &str, wanted: &str) -> Verdict {
        let Some((_, hard)) = unit_limit(key, wanted) else { return Verdict::Unknown };
        let line =
            self.limits.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix(name)));
        let Some(found) = line.and_then(|line| line.split_whitespace().nth(1)) else {
            return Verdict::Unknown;
        };
        let number = match found {
            "unlimited" => u64::MAX,
            number => match number.parse::<u64>() {
                Ok(number) => number,
                Err(_) => return Verdict::Unknown,
            },
        };
        // The hard limit only: a process may move its soft one below it, as programs in Go do.
        if number == hard { Verdict::Same } else { Verdict::Other(found.to_owned()) }
    }

    fn judge_cpus(&self, values: &[String]) -> Verdict {
        let lists: Option<Vec<CpuList>> = values.iter().map(|value| systemd_list(value)).collect();
        let line = self
            .status
            .as_deref()
            .and_then(|text| text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")));
        let (Some(lists), Some(found)) = (lists, line.and_then(|line| line.trim().parse::<CpuList>().ok()))
        else {
            return Verdict::Unknown;
        };
        let wanted: CpuList = lists.iter().flat_map(CpuList::iter).collect();
        let bounds = [&self.online, &self.usable];
        let possible = bounds.into_iter().flatten().fold(wanted.clone(), |cpus, bound| cpus.common(bound));
        if found == wanted {
            Verdict::Same
        } else if found == possible {
            Verdict::Bounded(found.to_string())
        } else {
            Verdict::Other(found.to_string())
        }
    }

    fn judge_numa(&self, policy: &str, masks: &[String]) -> Verdict {
        let Some(found) = &self.numa_policy else { return Verdict::Unknown };
        let (word, nodes) = found.split_once(':').unwrap_or((found.as_str(), ""));
        let mode = word.split('=').next().unwrap_or_default();
        let same_mode = match policy {
            "default" => mode == "default",
            "local" => mode == "local" || (mode == "prefer" && nodes.is_empty()),
            "preferred" => mode == "prefer",
            other => mode == other,
        };
        if !same_mode {
            return Verdict::Other(found.clone());
        }
        if matches!(policy, "default" | "local") {
            return Verdict::Same;
        }
        let lists: Option<Vec<CpuList>> = masks.iter().map(|mask| systemd_list(mask)).collect();
        let (Some(lists), Ok(found_nodes)) = (lists, nodes.parse::<CpuList>()) else {
            return Verdict::Unknown;
        };
        let wanted: CpuList = lists.iter().flat_map(CpuList::iter).collect();
        if found_nodes == wanted { Verdict::Same } else { Verdict::Other(found.clone()) }
    }
}

/// Source: kernel, include/uapi/linux/sched.h.
fn policy_name(number: i64) -> String {
    match number {
        0 => "other".to_owned(),
        1 => "fifo".to_owned(),
        2 => "rr".to_owned(),
        3 => "batch".to_owned(),
        5 => "idle".to_owned(),
        other => format!("policy {other}"),
    }
}

/// Returns the name of a limit in `/proc/PID/limits`. Source: kernel, fs/proc/base.c.
fn limit_name(key: &str) -> Option<&'static str> {
    Some(match key {
        "LimitCPU" => "Max cpu time",
        "LimitFSIZE" => "Max file size",
        "LimitDATA" => "Max data size",
        "LimitSTACK" => "Max stack size",
        "LimitCORE" => "Max core file size",
        "LimitRSS" => "Max resident set",
        "LimitNPROC" => "Max processes",
        "LimitNOFILE" => "Max open files",
        "LimitMEMLOCK" => "Max locked memory",
        "LimitAS" => "Max address space",
        "LimitLOCKS" => "Max file locks",
        "LimitSIGPENDING" => "Max pending signals",
        "LimitMSGQUEUE" => "Max msgqueue size",
        "LimitRTPRIO" => "Max realtime priority",
        "LimitRTTIME" => "Max realtime timeout",
        _ => return None,
    })
}

/// Whether a process of a unit has a GPU open, or may have one because not all of its processes and files can be read.
///
/// # Errors
/// At the deadline.
pub fn may_use_gpus(node: &Node<'_>, pid: u32, control_group: &str) -> Result<bool, Trouble> {
    let Some(mut pids) = members(node, control_group)? else { return Ok(true) };
    pids.push(pid);
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        node.check_time()?;
        if has_gpu(&node.roots.proc(&pid.to_string())) != Some(false) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the processes of a control group and of those below it; none if not all can be read, as with cgroup v1.
fn members(node: &Node<'_>, control_group: &str) -> Result<Option<Vec<u32>>, Trouble> {
    let mut pids = Vec::new();
    let mut folders: Vec<_> = group(node, control_group).into_iter().collect();
    if folders.is_empty() {
        return Ok(None);
    }
    while let Some(folder) = folders.pop() {
        node.check_time()?;
        let listed = text(&folder.join("cgroup.procs"));
        // 0 stands for a process of another namespace.
        let found = listed.and_then(|text| {
            let pid = |line: &str| line.parse::<u32>().ok().filter(|pid| *pid > 0);
            text.lines().map(pid).collect::<Option<Vec<u32>>>()
        });
        let inside: Result<Vec<_>, _> = fs::read_dir(&folder).and_then(Iterator::collect);
        let (Some(found), Ok(inside)) = (found, inside) else { return Ok(None) };
        pids.extend(found);
        if pids.len() > MOST {
            return Ok(None);
        }
        folders.extend(
            inside
                .iter()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(fs::DirEntry::path),
        );
    }
    Ok(Some(pids))
}

/// Whether a process has a GPU open; none if that cannot be read whole.
fn has_gpu(process: &Path) -> Option<bool> {
    let is_gpu = |target: &Path| {
        let name = target.to_str().and_then(|text| text.strip_prefix("/dev/nvidia")).unwrap_or_default();
        name.starts_with(|c: char| c.is_ascii_digit()) || name == "-uvm"
    };
    let open = match fs::read_dir(process.join("fd")) {
        Ok(open) => open,
        // It has ended since.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !process.exists() => return Some(false),
        Err(_) => return None,
    };
    for (count, entry) in open.enumerate() {
        if count >= MOST {
            return None;
        }
        match fs::read_link(entry.ok()?.path()) {
            Ok(target) if is_gpu(&target) => return Some(true),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
    }
    Some(false)
}
