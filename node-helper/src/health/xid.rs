//! The kernel's messages about GPUs since it booted.
//!
//! Reads `/dev/kmsg` without blocking. That is a ring: once it has lost its first record, it does not prove that
//! nothing happened, and then the journal's kernel messages of this boot are read too. Only the kernel's own records
//! count, and of those only what has not been settled since: a line stays in the log, but its GPU need not stay broken.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use gpufleet_protocol::{
    health::Verdict,
    nvml::{Code, recovery},
};

use super::{
    Found, Seen,
    gpus::{NO_GPU, lacks, none},
    xid_table::{Asks, asks, name},
};
use crate::{deadline::Deadline, os::roots::Roots, process::Run};

/// Record buffer in bytes; a record has at most 1 KiB of text, its continuation lines doubled. Source: kernel,
/// `CONSOLE_EXT_LOG_MAX`.
const RECORD: usize = 8192;
/// Larger than any ring, in bytes.
const MOST: usize = 64 * 1024 * 1024;
/// Time limit for the journal.
const JOURNAL: Duration = Duration::from_secs(30);
/// Largest number of codes that are named.
const NAMED: usize = 6;

/// An error that the driver logged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Xid {
    /// In microseconds of this boot, by the kernel's log.
    at: Option<u64>,
    code: u32,
    /// The PCI address as the driver writes it.
    device: String,
    /// The driver itself says that nothing is needed any more (recovery action "None").
    to_none: bool,
}

/// What the log says about GPUs.
#[derive(Clone, Debug, Default)]
struct Log {
    xids: Vec<Xid>,
    /// Every time at which the driver was loaded.
    loads: Vec<u64>,
}

/// Judges the log. The reading tells whether there is a GPU at all, and what the driver asks for now.
pub fn check(seen: &Seen, roots: &Roots, deadline: &Deadline) -> Found {
    if none(seen) {
        return (Verdict::NotApplicable, NO_GPU.to_owned());
    }
    let (text, complete, trouble) = match read_ring(&roots.path("/dev/kmsg")) {
        Ok((text, complete)) => (text, complete, None),
        Err(error) => (String::new(), false, Some(format!("/dev/kmsg: {error}"))),
    };
    let mut log = Log::default();
    log.read(&text);
    if !complete {
        match journal(roots, deadline) {
            Ok(text) => log.read(&text),
            Err(why) => {
                let told = judge(&log, seen);
                return match told.0 {
                    Verdict::Fail => told,
                    _ => {
                        let ring =
                            trouble.unwrap_or_else(|| "the kernel's log has lost its beginning".to_owned());
                        (Verdict::Unknown, format!("{ring}; and the journal cannot be read: {why}"))
                    }
                };
            }
        }
    }
    judge(&log, seen)
}

impl Log {
    fn read(&mut self, text: &str) {
        for line in text.lines() {
            let Some((at, body)) = record(line) else { continue };
            // Each time once, because the journal repeats the ring's records.
            if let Some(xid) = xid(at, body).filter(|xid| xid.at.is_none() || !self.xids.contains(xid)) {
                self.xids.push(xid);
            } else if body.contains("NVRM: loading NVIDIA UNIX") {
                self.loads.extend(at);
            }
        }
        self.xids.sort_by_key(|xid| xid.at);
    }

    /// Whether the error is over: the driver was loaded anew, gpufleet reset the GPU, or the driver withdrew its
    /// request. An error that asks for a reboot is settled by a new boot only.
    fn is_settled(&self, xid: &Xid, seen: &Seen) -> bool {
        if xid.to_none {
            return true;
        }
        let Some(at) = xid.at.filter(|_| asks(xid.code) != Asks::Reboot) else { return false };
        let reset = seen.resets.iter().find(|(pci, _)| is_at(pci, &xid.device)).map(|(_, end)| *end);
        self.loads.iter().any(|load| *load > at)
            || reset.is_some_and(|end| end >= at)
            || self.xids.iter().any(|later| later.to_none && later.device == xid.device && later.at > xid.at)
    }
}

/// Whether a PCI address is the driver's address `device`, which has no function.
fn is_at(pci: &str, device: &str) -> bool {
    pci.rsplit_once('.').map_or(pci, |(address, _)| address).eq_ignore_ascii_case(device)
}

/// Returns the recovery action that the driver asks for now; `None` if it cannot be read.
fn recovery_of(seen: &Seen, device: &str) -> Option<u32> {
    let gpus = &seen.snapshot.as_ref().ok()?.gpus;
    let gpu = gpus.iter().find(|gpu| gpu.pci.as_ref().is_ok_and(|pci| is_at(pci, device)))?;
    gpu.recovery_action.ok()
}

fn judge(log: &Log, seen: &Seen) -> Found {
    let mut counted: BTreeMap<(u32, &str), (usize, Option<u64>)> = BTreeMap::new();
    let (mut harmless, mut settled) = (0, 0);
    for xid in &log.xids {
        let contained = asks(xid.code) == Asks::Driver && recovery_of(seen, &xid.device) == Some(0);
        if asks(xid.code) == Asks::Nothing || contained {
            harmless += 1;
        } else if log.is_settled(xid, seen) {
            settled += 1;
        } else {
            let (count, last) = counted.entry((xid.code, xid.device.as_str())).or_default();
            *count += 1;
            *last = xid.at.max(*last);
        }
    }
    // Source: NVIDIA, GPU memory error management: the driver's own recovery action takes precedence over any table of
    // codes.
    let (mut told, mut unread) = (Vec::new(), Vec::new());
    for gpu in seen.snapshot.iter().flat_map(|snapshot| &snapshot.gpus) {
        match gpu.recovery_action {
            Ok(action) => told.extend(recovery(action).map(|asks| {
                format!("GPU {}: the driver asks for {asks} (recovery action {action})", gpu.index)
            })),
            // Drivers before 550 do not know the field.
            Err(code) if lacks(code) || code == Code::INVALID_ARGUMENT => {}
            Err(code) => {
                unread.push(format!("GPU {}: the recovery action cannot be read: {code}", gpu.index))
            }
        }
    }
    told.extend(counted.iter().take(NAMED).map(|((code, device), (count, last))| {
        let name = match name(*code) {
            "" => String::new(),
            name => format!(" ({name})"),
        };
        let times = if *count > 1 { format!(", {count} times") } else { String::new() };
        // As `dmesg` writes it, so that the line can be found there.
        let at =
            last.map_or_else(String::new, |at| format!(" at [{}.{:06}]", at / 1_000_000, at % 1_000_000));
        format!("Xid {code}{name} of {device}{at}{times}: {}", asks(*code).next_step())
    }));
    if counted.len() > NAMED {
        told.push(format!("{} more", counted.len() - NAMED));
    }
    if !told.is_empty() {
        told.extend(unread);
        return (Verdict::Fail, told.join("; "));
    }
    if !unread.is_empty() {
        return (Verdict::Unknown, unread.join("; "));
    }
    let mut why = match harmless {
        0 => "no Xid since the node booted".to_owned(),
        count => format!("{count} Xids since the node booted, all of programs or for information"),
    };
    if settled > 0 {
        let of = if harmless == 0 { "no Xid since the node booted that still counts" } else { &why };
        why = format!("{of}, {settled} settled by a reset or a new start of the driver");
    }
    (Verdict::Ok, why)
}

/// Returns the end of the kernel's log, in microseconds of this boot; `None` if it is empty or cannot be read.
pub fn log_end(path: &Path) -> Option<u64> {
    let (text, _) = read_ring(path).ok()?;
    text.lines().rev().find_map(|line| record(line)?.0)
}

/// Returns the content of the ring, and whether it still has its first record.
fn read_ring(path: &Path) -> io::Result<(String, bool)> {
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    let mut text = Vec::new();
    let mut record = vec![0u8; RECORD];
    let mut lost = false;
    while text.len() < MOST {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(record.get(..count).unwrap_or_default()),
            // Records were overwritten during the read; the next read continues behind them.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => lost = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let first = text.lines().next().and_then(sequence);
    // An empty ring counts as complete, but only a file can be empty: the kernel's ring has its banner unless cleared.
    let complete = !lost && matches!(first, Some(0) | None) && text.len() < MOST;
    Ok((text, complete))
}

/// Returns the second field of a record: `6,339,5140900,-;NVRM: …`. Source: kernel, Documentation/ABI/testing/dev-kmsg.
fn sequence(line: &str) -> Option<u64> {
    line.split_once(';')?.0.split(',').nth(1)?.parse().ok()
}

fn journal(roots: &Roots, deadline: &Deadline) -> Result<String, String> {
    let program = roots.tool("journalctl").ok_or("there is no journalctl")?;
    let run = Run::new(program)
        .args([
            "--dmesg",
            "--boot",
            "--no-pager",
            "--quiet",
            "--output=short-monotonic",
            "--grep=Linux version|NVRM: Xid|NVRM: loading NVIDIA",
        ])
        .finish(&deadline.within(JOURNAL));
    let done = run.map_err(|error| error.to_string())?;
    let text = done.stdout();
    // The banner is the kernel's first line, so a journal without it has lost the beginning, or is empty.
    match text.contains("Linux version") {
        true => Ok(text),
        false if done.exit.success() || done.stderr().trim().is_empty() => {
            Err("it does not hold the beginning of this boot".to_owned())
        }
        false => Err(done.complaint("journalctl")),
    }
}

/// Returns time and text of a record that the kernel wrote: from the ring (`6,339,5140900,-;NVRM: …`), from the journal
/// or an older log (`[    5.140900] node kernel: NVRM: …`), or without a head.
fn record(line: &str) -> Option<(Option<u64>, &str)> {
    if let Some((head, body)) = line.split_once(';')
        && head.split(',').count() >= 3
        && let Some(Ok(priority)) = head.split(',').next().map(str::parse::<u32>)
    {
        // Facilities above 0 are programs, which may write any text there.
        if priority >> 3 != 0 {
            return None;
        }
        return Some((head.split(',').nth(2).and_then(|at| at.parse().ok()), body));
    }
    let Some((stamp, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return Some((None, line));
    };
    // The journal names the writer of a line, which may be a program.
    let writer = rest.split_once("NVRM: ").map_or("", |(writer, _)| writer.trim());
    if !writer.is_empty() && !writer.ends_with(" kernel:") {
        return None;
    }
    let micros = || {
        let (seconds, fraction) = stamp.trim().split_once('.')?;
        let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
        seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)
    };
    Some((micros(), rest))
}

/// Parses `NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, …`.
fn xid(at: Option<u64>, body: &str) -> Option<Xid> {
    let (_, rest) = body.split_once("NVRM: Xid (")?;
    let (device, rest) = rest.split_once("):")?;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    let code: u32 = digits.parse().ok()?;
    let to_none = code == 154 && rest.contains("to 0x0 (None)");
    Some(Xid { at, code, device: device.trim_start_matches("PCI:").to_owned(), to_none })
}

#[cfg(test)]
#[path = "xid_tests.rs"]
mod tests;
