//! Signals of settings that a baseline may declare: clocks of CPUs, memory, NUMA.

use super::{Found, Named, Reader, signal, system::list};
use crate::tasks::thp;

const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";
const HUGE: &str = "/sys/kernel/mm/hugepages";

pub fn read(reader: &Reader<'_>) -> Vec<Named> {
    vec![
        ("governor_bad", signal(governor_bad(reader))),
        ("thp", signal(reader.parsed("/sys/kernel/mm/transparent_hugepage/enabled", word))),
        ("numa_nodes", signal(list(reader, "/sys/devices/system/node/online"))),
        ("numa_balancing", signal(reader.number::<u8>("/proc/sys/kernel/numa_balancing"))),
        ("swap_kib", signal(reader.parsed("/proc/swaps", swap_kib))),
        ("swappiness", signal(reader.number::<u32>("/proc/sys/vm/swappiness"))),
        ("hugepages_total", signal(hugepages(reader))),
        ("psi_memory_full_avg300", signal(pressure(reader))),
    ]
}

fn word(text: &str) -> Option<String> {
    thp::current(text).filter(|word| word.len() <= 40).map(str::to_owned)
}

/// Counts CPUs whose clock is not held up: by the governor `performance`, or by the hardware with that preference.
fn governor_bad(reader: &Reader<'_>) -> Found<u32> {
    let names = reader.names(POLICIES)?.unwrap_or_default();
    let policies: Vec<&String> = names.iter().filter(|name| name.starts_with("policy")).collect();
    if policies.is_empty() {
        return Ok(None);
    }
    let mut bad = 0;
    for policy in policies {
        let file = |name: &str| format!("{POLICIES}/{policy}/{name}");
        let governor = reader.line(&file("scaling_governor"))?;
        let good = match governor.as_deref() {
            Some("performance") => true,
            Some("powersave") => {
                reader.line(&file("energy_performance_preference"))?.as_deref() == Some("performance")
            }
            Some(_) => false,
            None => return Err(format!("{}: there is no such file", file("scaling_governor"))),
        };
        if !good {
            let cpus = |text: &str| u32::try_from(text.split_whitespace().count()).ok();
            bad += reader.parsed(&file("affected_cpus"), cpus)?.unwrap_or(1);
        }
    }
    Ok(Some(bad))
}

/// Adds up the sizes: the third column behind the head.
fn swap_kib(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.next().filter(|head| head.starts_with("Filename"))?;
    lines
        .map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
        .try_fold(0, |sum: u64, size| sum.checked_add(size?))
}

/// Returns the number of pages of each size that has any, such as `2048kB=512`, in the order of their sizes.
fn hugepages(reader: &Reader<'_>) -> Found<Vec<String>> {
    let Some(names) = reader.names(HUGE)? else { return Ok(None) };
    let size = |name: &String| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let mut sizes: Vec<u64> = names.iter().filter_map(size).collect();
    sizes.sort_unstable();
    let mut found = Vec::new();
    for size in sizes {
        let path = format!("{HUGE}/hugepages-{size}kB/nr_hugepages");
        let count: u64 = reader.number(&path)?.ok_or_else(|| format!("{path}: there is no such file"))?;
        if count > 0 {
            found.push(format!("{size}kB={count}"));
        }
    }
    Ok(Some(found))
}

/// Returns the share of the last five minutes in which no process went on for want of memory, in percent.
fn pressure(reader: &Reader<'_>) -> Found<f64> {
    reader.parsed("/proc/pressure/memory", |text| {
        let line = text.lines().find_map(|line| line.strip_prefix("full "))?;
        line.split_whitespace().find_map(|word| word.strip_prefix("avg300="))?.parse().ok()
    })
}
