//! Signals of the operating system: systemd, the kernel, the firmware.

use std::{collections::BTreeMap, io, time::Duration};

use gpufleet_protocol::{looks_secret, signal::Signal};

use super::{
    Found, Named, Reader, driver,
    process::{CONTAINERD, CRIO, DOCKER, Processes},
    signal,
};
use crate::{
    facts,
    gpu::{clients, host},
    health,
    os::units::{self, UnitStatus},
    process::Run,
};

/// Units by name; `None` if systemd does not run the node, and why it does not answer.
pub type Units = Result<Option<BTreeMap<String, UnitStatus>>, String>;

const DOCKER_UNIT: &str = "docker.service";
const CONTAINERD_UNIT: &str = "containerd.service";
const CRIO_UNIT: &str = "crio.service";
/// Time limit of each program.
const ANSWER: Duration = Duration::from_secs(10);
/// Largest number of units that are named.
const MOST_UNITS: usize = 64;
/// Variable of the firmware, with the vendor that UEFI gives it. Source: UEFI specification 2.10, 3.3.
const SECURE_BOOT: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Asks for all units that a signal is read of, at once.
pub fn units(reader: &Reader<'_>) -> Units {
    if !reader.exists("/run/systemd/system")? {
        return Ok(None);
    }
    let mut names = vec![clients::PERSISTENCED, host::FABRIC_MANAGER, host::IMEX];
    names.extend(driver::DCGM_UNITS);
    names.extend([DOCKER_UNIT, CONTAINERD_UNIT, CRIO_UNIT]);
    let program = reader.roots.tool("systemctl").ok_or("there is no systemctl")?;
    let units = units::show(program, &names, &reader.deadline.within(ANSWER));
    let units = units.map_err(|error| error.to_string())?;
    if units.is_empty() { Err("systemd does not answer".to_owned()) } else { Ok(Some(units)) }
}

/// Returns `running` if one of the units or the program runs, `failed` if a unit has failed, and else `absent`.
pub fn service(
    units: &Units,
    names: &[&str],
    processes: &Result<Processes, String>,
    program: Option<&str>,
) -> Found<&'static str> {
    let is = |state: fn(&UnitStatus) -> bool| {
        let units = units.as_ref().ok().and_then(Option::as_ref);
        units.is_some_and(|units| names.iter().any(|name| units.get(*name).is_some_and(state)))
    };
    let runs =
        program.is_some_and(|program| processes.as_ref().is_ok_and(|processes| processes.runs(program)));
    if runs || is(|unit| unit.active && !unit.restarting) {
        return Ok(Some("running"));
    }
    if is(|unit| unit.failed || unit.restarting) {
        return Ok(Some("failed"));
    }
    match (units, processes) {
        (Err(why), _) | (_, Err(why)) => Err(why.clone()),
        (Ok(_), Ok(_)) => Ok(Some("absent")),
    }
}

pub fn read(reader: &Reader<'_>, units: &Units, processes: &Result<Processes, String>) -> Vec<Named> {
    let system = health::system(reader.roots, reader.deadline);
    let state = match system.state.as_deref() {
        Some(word) => word.into(),
        None if system.systemd => Signal::Unknown("systemd does not answer".to_owned()),
        None => Signal::Absent,
    };
    let runtime = |unit, program| service(units, &[unit], processes, Some(program));
    let runtimes =
        [runtime(DOCKER_UNIT, DOCKER), runtime(CONTAINERD_UNIT, CONTAINERD), runtime(CRIO_UNIT, CRIO)];
    let [docker, containerd, crio] = runtimes.clone();
    vec![
        ("failed_units", signal(failed_units(reader, system.systemd, system.state.as_deref()))),
        ("system_state", state),
        ("shutdown_scheduled", system.shutdown_scheduled.into()),
        ("docker_state", signal(docker)),
        ("containerd_state", signal(containerd)),
        ("crio_state", signal(crio)),
        ("runtime_state", signal(worst_but_running(runtimes))),
        ("kernel", signal(kernel(reader))),
        ("cmdline", signal(reader.line("/proc/cmdline").map(|line| line.as_deref().map(without_secrets)))),
        ("taint", signal(reader.number::<u64>("/proc/sys/kernel/tainted"))),
        ("secure_boot", signal(secure_boot(reader))),
        ("clock_unsync", clock_unsync(reader)),
        ("reboot_required", signal(reboot_required(reader))),
        ("cpus_online", signal(list(reader, "/sys/devices/system/cpu/online"))),
        ("memory_gib", signal(memory_gib(reader))),
        ("pstore_files", signal(reader.names("/sys/fs/pstore").map(|names| names.map(|names| names.len())))),
        ("edac_ue", signal(errors_of_memory(reader, "ue_count"))),
        ("edac_ce", signal(errors_of_memory(reader, "ce_count"))),
    ]
}

/// Returns `running` if any runs, else the first that failed, else the first that is unknown.
fn worst_but_running(states: [Found<&'static str>; 3]) -> Found<&'static str> {
    for word in ["running", "failed"] {
        if states.contains(&Ok(Some(word))) {
            return Ok(Some(word));
        }
    }
    states.into_iter().find(Result::is_err).unwrap_or(Ok(Some("absent")))
}

fn failed_units(reader: &Reader<'_>, systemd: bool, state: Option<&str>) -> Found<Vec<String>> {
    match state {
        _ if !systemd => return Ok(None),
        // Systemd's own words: with a failed unit it would be `degraded`.
        Some("running") => return Ok(Some(Vec::new())),
        _ => {}
    }
    let program = reader.roots.tool("systemctl").ok_or("there is no systemctl")?;
    let run = Run::new(program).args(["list-units", "--failed", "--plain", "--no-legend", "--full"]);
    let done = run.finish(&reader.deadline.within(ANSWER)).map_err(|error| error.to_string())?;
    if !done.exit.success() {
        return Err(done.complaint("systemctl"));
    }
    let text = done.stdout();
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    Ok(Some(names.filter(|name| name.len() <= 256).take(MOST_UNITS).map(str::to_owned).collect()))
}

pub fn kernel(reader: &Reader<'_>) -> Found<String> {
    reader.line("/proc/sys/kernel/osrelease")
}

/// Returns the variable's last byte: the four before it are its attributes.
fn secure_boot(reader: &Reader<'_>) -> Found<u8> {
    if let Some(text) = reader.text(SECURE_BOOT)? {
        return match text.as_bytes() {
            [_, _, _, _, value @ (0 | 1)] => Ok(Some(*value)),
            _ => Err(format!("{SECURE_BOOT}: its content is not what the firmware writes")),
        };
    }
    let mounted = reader.names("/sys/firmware/efi/efivars")?.is_some_and(|names| !names.is_empty());
    if reader.exists("/sys/firmware/efi")? && !mounted {
        return Err("/sys/firmware/efi/efivars: the variables of the firmware are not mounted".to_owned());
    }
    Ok(None)
}

fn clock_unsync(reader: &Reader<'_>) -> Signal {
    if !reader.roots.is_real() {
        return Signal::Unknown("the clock of another root is this machine's".to_owned());
    }
    match clock_status() {
        Ok(status) => (status & libc::STA_UNSYNC != 0).into(),
        Err(error) => Signal::Unknown(format!("adjtimex: {error}")),
    }
}

/// Returns the status word of the kernel's clock.
#[expect(unsafe_code, reason = "adjtimex reads and writes a structure that it is given")]
fn clock_status() -> io::Result<i32> {
    // SAFETY: all-zero bytes are a valid `timex`, which consists of integers; `modes` 0 changes nothing.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `clock` is valid for reads and writes during the call.
    match unsafe { libc::adjtimex(&raw mut clock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(clock.status),
    }
}

/// Whether a package asked for a reboot. Only Debian and its relatives leave a mark; the program that tells elsewhere takes
/// seconds and writes to the logs of the package manager.
fn reboot_required(reader: &Reader<'_>) -> Found<bool> {
    if reader.exists("/run/reboot-required")? {
        return Ok(Some(true));
    }
    if reader.exists("/var/lib/dpkg/status")? {
        return Ok(Some(false));
    }
    Ok(None)
}

/// Returns how many numbers a list such as `0-3,8` has.
pub fn list(reader: &Reader<'_>, path: &str) -> Found<u32> {
    reader.parsed(path, |text| Some(facts::count(text)).filter(|count| *count > 0))
}

fn memory_gib(reader: &Reader<'_>) -> Found<f64> {
    let gib = |kib: u64| (kib as f64 / 1024.0 / 1024.0 * 100.0).round() / 100.0;
    reader.parsed("/proc/meminfo", |text| facts::memory_kib(text).map(gib))
}

/// Adds up a counter of all memory controllers; a machine without EDAC has none.
fn errors_of_memory(reader: &Reader<'_>, counter: &str) -> Found<u64> {
    const FOLDER: &str = "/sys/devices/system/edac/mc";
    let is = |name: &&String| {
        name.strip_prefix("mc")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut sum = None;
    for name in reader.names(FOLDER)?.unwrap_or_default().iter().filter(is) {
        let path = format!("{FOLDER}/{name}/{counter}");
        let count: u64 = reader.number(&path)?.ok_or_else(|| format!("{path}: there is no such file"))?;
        sum = Some(sum.unwrap_or(0_u64).saturating_add(count));
    }
    Ok(sum)
}
/// Returns the kernel's command line with the values of words that look secret replaced, since reports show it.
///
/// A quoted value may have spaces, so that its end is the next word with a quote.
fn without_secrets(line: &str) -> String {
    const HIDDEN: &str = "********";
    let mut shown: Vec<String> = Vec::new();
    let mut is_quoted = false;
    for word in line.split(' ') {
        let ends = word.matches('"').count() % 2 == 1;
        if is_quoted {
            is_quoted = !ends;
            continue;
        }
        let value = word.split_once('=').filter(|(name, _)| looks_secret(name.trim_start_matches('"')));
        let user = word
            .split_once("://")
            .filter(|(_, rest)| rest.split('/').next().is_some_and(|it| it.contains('@')));
        is_quoted = ends && (value.is_some() || user.is_some());
        shown.push(match (value, user) {
            (Some((name, _)), _) => format!("{name}={HIDDEN}"),
            (None, Some((scheme, _))) => format!("{scheme}://{HIDDEN}"),
            (None, None) => word.to_owned(),
        });
    }
    shown.join(" ")
}
