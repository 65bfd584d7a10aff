//! The processors and the memory of a node, as its /sys shows them: two sockets, each a NUMA node.

use std::{fs, io, ops::RangeInclusive, path::Path};

use super::files::write;

/// Cores of a socket; each has two threads, and the second ones are numbered after all first ones.
const CORES: u32 = 8;
const SOCKETS: u32 = 2;
const MEMORY_KIB: u64 = 1 << 30;

fn cores(socket: u32) -> RangeInclusive<u32> {
    socket * CORES..=(socket + 1) * CORES - 1
}

/// Returns the CPUs of a socket as the kernel lists them.
pub fn cpu_list(socket: u32) -> String {
    let (first, last) = cores(socket).into_inner();
    let second = SOCKETS * CORES;
    format!("{first}-{last},{}-{}", first + second, last + second)
}

/// Returns the NUMA node of the GPU with this number of the eight that a machine has.
pub const fn numa_node(gpu: u32) -> u32 {
    if gpu < 4 { 0 } else { 1 }
}

/// Returns the kernel's text about a process, which then may use all CPUs of the node.
pub fn allowed_on_all(status: &str) -> String {
    const LIST: &str = "Cpus_allowed_list:";
    let lines = status.lines().map(|line| match line.starts_with(LIST) {
        true => format!("{LIST}\t0-{}\n", 2 * SOCKETS * CORES - 1),
        false => format!("{line}\n"),
    });
    lines.collect()
}

pub fn write_sys(sys: &Path) -> io::Result<()> {
    let (cpu, node) = (sys.join("devices/system/cpu"), sys.join("devices/system/node"));
    let all = format!("0-{}\n", 2 * SOCKETS * CORES - 1);
    for name in ["online", "present", "possible"] {
        write(&cpu.join(name), &all)?;
    }
    write(&cpu.join("isolated"), "\n")?;
    write(&cpu.join("smt/control"), "on\n")?;
    write(&node.join("online"), &format!("0-{}\n", SOCKETS - 1))?;
    for socket in 0..SOCKETS {
        for core in cores(socket) {
            let second = core + SOCKETS * CORES;
            for thread in [core, second] {
                let topology = cpu.join(format!("cpu{thread}/topology"));
                write(&topology.join("thread_siblings_list"), &format!("{core},{second}\n"))?;
                write(&topology.join("physical_package_id"), &format!("{socket}\n"))?;
                write(&topology.join("core_id"), &format!("{}\n", core % CORES))?;
            }
        }
        let own = node.join(format!("node{socket}"));
        write(&own.join("cpulist"), &format!("{}\n", cpu_list(socket)))?;
        write(&own.join("meminfo"), &format!("Node {socket} MemTotal:       {MEMORY_KIB} kB\n"))?;
        write(&own.join("distance"), if socket == 0 { "10 21\n" } else { "21 10\n" })?;
        for size in HUGE_PAGES.map(|(_, size)| size) {
            for name in ["nr_hugepages", "free_hugepages", "surplus_hugepages"] {
                write(&own.join(format!("hugepages/hugepages-{size}kB/{name}")), "0\n")?;
            }
        }
    }
    for name in ["has_cpu", "has_memory", "has_normal_memory"] {
        write(&node.join(name), &format!("0-{}\n", SOCKETS - 1))?;
    }
    write_frequencies(&cpu)?;
    write_idle(&cpu)
}

/// Idle states of intel_idle: name and microseconds to leave it.
const IDLE_STATES: [(&str, u32); 4] = [("POLL", 0), ("C1", 1), ("C1E", 4), ("C6", 170)];

fn write_idle(cpu: &Path) -> io::Result<()> {
    write(&cpu.join("cpuidle/current_driver"), "intel_idle\n")?;
    for number in 0..2 * SOCKETS * CORES {
        let own = cpu.join(format!("cpu{number}"));
        write(&own.join("power/pm_qos_resume_latency_us"), "0\n")?;
        for (state, (name, latency)) in IDLE_STATES.iter().enumerate() {
            let state = own.join(format!("cpuidle/state{state}"));
            write(&state.join("name"), &format!("{name}\n"))?;
            write(&state.join("latency"), &format!("{latency}\n"))?;
            write(&state.join("disable"), "0\n")?;
        }
    }
    Ok(())
}

/// Makes the file in the place of the device that bounds all CPUs. It keeps what was written until the node reboots,
/// also after its holder has ended.
pub fn write_latency(dev: &Path) -> io::Result<()> {
    fs::write(dev.join("cpu_dma_latency"), NO_LATENCY.to_ne_bytes())
}

/// What the kernel reads there without a holder, in microseconds.
const NO_LATENCY: i32 = 2_000_000_000;

/// Sizes of huge pages: as on the kernel command line, and in KiB.
const HUGE_PAGES: [(&str, u32); 2] = [("2M", 2048), ("1G", 1_048_576)];

/// Writes the folders of intel_pstate in mode active: a policy for each CPU.
fn write_frequencies(cpu: &Path) -> io::Result<()> {
    for number in 0..2 * SOCKETS * CORES {
        let policy = cpu.join(format!("cpufreq/policy{number}"));
        for (name, text) in [
            ("scaling_driver", "intel_pstate"),
            ("scaling_governor", "powersave"),
            ("scaling_available_governors", "performance powersave"),
            ("energy_performance_preference", "balance_performance"),
            (
                "energy_performance_available_preferences",
                "default performance balance_performance balance_power power",
            ),
            ("scaling_min_freq", "800000"),
            ("scaling_max_freq", "3800000"),
            ("cpuinfo_min_freq", "800000"),
            ("cpuinfo_max_freq", "3800000"),
            ("base_frequency", "2000000"),
        ] {
            write(&policy.join(name), &format!("{text}\n"))?;
        }
    }
    write(&cpu.join("intel_pstate/status"), "active\n")?;
    write(&cpu.join("intel_pstate/no_turbo"), "0\n")
}

/// What the kernel does with words of its command line, and then systemd-tmpfiles with its files. Runs in the node.
pub fn boot() {
    let cmdline = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let mut size = HUGE_PAGES[0].1;
    for word in cmdline.split_whitespace() {
        if let Some(name) = word.strip_prefix("hugepagesz=") {
            size = HUGE_PAGES.iter().find(|(known, _)| *known == name).map_or(size, |(_, size)| *size);
        } else if let Some(counts) = word.strip_prefix("hugepages=") {
            for (node, count) in counts.split(',').filter_map(|part| part.split_once(':')) {
                for name in ["nr_hugepages", "free_hugepages"] {
                    set(&format!("{NODES}/node{node}/hugepages/hugepages-{size}kB/{name}"), count);
                }
            }
        }
    }
    let mut files: Vec<_> = fs::read_dir("/etc/tmpfiles.d")
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    files.sort();
    let text: String = files.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    let (patterns, plain): (Vec<_>, Vec<_>) =
        tmpfiles_lines(&text).partition(|(path, _)| path.contains(['*', '?', '[']));
    // Lines with patterns are done after all others (systemd, tmpfiles.c).
    for (path, value) in plain.into_iter().chain(patterns) {
        for path in matching(path) {
            set(&path, value);
        }
    }
}

const NODES: &str = "/sys/devices/system/node";

fn tmpfiles_lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let path = words.next().filter(|kind| kind.starts_with('w')).and_then(|_| words.next())?;
        Some((path, words.nth(4)?))
    })
}

/// Writes into a file of the kernel that is there.
fn set(path: &str, value: &str) {
    if Path::new(path).is_file() {
        // Ignored, because systemd-tmpfiles goes on after a value that the kernel does not take.
        let _ = fs::write(path, format!("{value}\n"));
    }
}

/// Returns the paths that match a pattern with `*` and `[…]` in names.
fn matching(pattern: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for part in pattern.split('/').skip(1) {
        let is_pattern = part.contains(['*', '?', '[']);
        let below = |folder: &String| -> Vec<String> {
            if !is_pattern {
                return vec![format!("{folder}/{part}")];
            }
            let names = fs::read_dir(format!("{folder}/")).into_iter().flatten().flatten();
            names
                .filter_map(|entry| entry.file_name().into_string().ok())
                .filter(|name| matches(part.as_bytes(), name.as_bytes()))
                .map(|name| format!("{folder}/{name}"))
                .collect()
        };
        found = found.iter().flat_map(below).collect();
    }
    found
}

/// Whether a name matches a pattern of `*`, `[…]` with single characters and ranges, and literals.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|at| matches(rest, &name[at..])),
        ([b'[', rest @ ..], [first, others @ ..]) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let set = &rest[..end];
            let range = |part: &[u8]| part[1] == b'-' && (part[0]..=part[2]).contains(first);
            (set.contains(first) || set.windows(3).any(range)) && matches(&rest[end + 1..], others)
        }
        ([one, rest @ ..], [first, others @ ..]) => one == first && matches(rest, others),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_of_the_kernel() {
        let fits = |pattern: &str, name: &str| matches(pattern.as_bytes(), name.as_bytes());
        assert!(fits("policy*", "policy12") && fits("cpu[0-9]*", "cpu31") && fits("cpu1[0]", "cpu10"));
        assert!(!fits("cpu[0-9]*", "cpuidle") && !fits("cpu1[0]", "cpu1") && !fits("cpu", "cpu1"));
    }
}
