//! What the kernel logged about GPUs since it booted.
//!
//! Reads `/dev/kmsg` without blocking. That is a ring: once it has lost its first record it does not prove that nothing
//! happened, and then the journal's kernel messages of this boot are asked too. Only the kernel's own records count.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use gpufleet_protocol::health::Verdict;

use super::{
    Found,
    xid_table::{Asks, asks, name},
};
use crate::{deadline::Deadline, os::roots::Roots, process::Run};

/// One record is at most 1 KiB of text, its continuation lines doubled. Source: kernel, `CONSOLE_EXT_LOG_MAX`.
const RECORD: usize = 8192;
/// More than any ring holds, in bytes.
const MOST: usize = 64 * 1024 * 1024;
/// How long the journal may take.
const JOURNAL: Duration = Duration::from_secs(30);
/// How many codes are told one by one.
const NAMED: usize = 6;

/// An error that the driver logged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Xid {
    code: u32,
    /// PCI address as the driver writes it.
    device: String,
    /// The driver says itself that it asks for nothing (recovery action "None").
    settled: bool,
}

pub fn check(roots: &Roots, deadline: &Deadline) -> Found {
    let (text, complete, trouble) = match read_ring(&roots.path("/dev/kmsg")) {
        Ok((text, complete)) => (text, complete, None),
        Err(error) => (String::new(), false, Some(format!("/dev/kmsg: {error}"))),
    };
    let mut found = xids(&text);
    if !complete {
        match journal(roots, deadline) {
            Ok(text) => found.extend(xids(&text)),
            Err(why) => {
                let told = judge(&found);
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
    judge(&found)
}

fn judge(found: &[Xid]) -> Found {
    let mut counted: BTreeMap<(u32, &str), usize> = BTreeMap::new();
    let mut harmless = 0;
    for xid in found {
        if asks(xid.code) == Asks::Nothing || xid.settled {
            harmless += 1;
        } else {
            *counted.entry((xid.code, xid.device.as_str())).or_default() += 1;
        }
    }
    if counted.is_empty() {
        let why = match harmless {
            0 => "no Xid since the node booted".to_owned(),
            count => format!("{count} Xids since the node booted, all of programs or for information"),
        };
        return (Verdict::Ok, why);
    }
    let mut told: Vec<String> = counted
        .iter()
        .take(NAMED)
        .map(|((code, device), count)| {
            let name = match name(*code) {
                "" => String::new(),
                name => format!(" ({name})"),
            };
            let times = if *count > 1 { format!(", {count} times") } else { String::new() };
            format!("Xid {code}{name} of {device}{times}: {}", asks(*code).next_step())
        })
        .collect();
    if counted.len() > NAMED {
        told.push(format!("{} more", counted.len() - NAMED));
    }
    (Verdict::Fail, told.join("; "))
}

/// All that the ring holds, and whether its first record is still there.
fn read_ring(path: &Path) -> io::Result<(String, bool)> {
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    let mut text = Vec::new();
    let mut record = vec![0u8; RECORD];
    let mut lost = false;
    while text.len() < MOST {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(record.get(..count).unwrap_or_default()),
            // Records were overwritten while this read; the next read goes on behind them.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => lost = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let first = text.lines().next().and_then(sequence);
    // Why an empty ring is complete only for a file: the kernel's own always has its banner, unless it was cleared.
    let complete = !lost && matches!(first, Some(0) | None) && text.len() < MOST;
    Ok((text, complete))
}

/// Second field of a record: `6,339,5140900,-;NVRM: …`. Source: kernel, Documentation/ABI/testing/dev-kmsg.
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
            "--output=cat",
            "--grep=Linux version|NVRM: Xid",
        ])
        .finish(&deadline.within(JOURNAL));
    let done = run.map_err(|error| error.to_string())?;
    let text = done.stdout();
    // Why the banner: it is the kernel's first word, so a journal without it has lost the beginning too, or is empty.
    match text.contains("Linux version") {
        true => Ok(text),
        false if done.exit.success() || done.stderr().trim().is_empty() => {
            Err("it does not hold the beginning of this boot".to_owned())
        }
        false => Err(done.complaint("journalctl")),
    }
}

fn xids(text: &str) -> Vec<Xid> {
    text.lines().filter_map(xid).collect()
}

/// `6,339,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, …`, with the record's head or without it.
fn xid(line: &str) -> Option<Xid> {
    let body = match line.split_once(';') {
        Some((head, body)) if head.split(',').count() >= 3 => {
            let priority: u32 = head.split(',').next()?.parse().ok()?;
            // Why: facilities above 0 are programs, which may write there whatever they like.
            if priority >> 3 != 0 {
                return None;
            }
            body
        }
        _ => line,
    };
    let (_, rest) = body.split_once("NVRM: Xid (")?;
    let (device, rest) = rest.split_once("):")?;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    let code: u32 = digits.parse().ok()?;
    let settled = code == 154 && rest.contains("to 0x0 (None)");
    Some(Xid { code, device: device.trim_start_matches("PCI:").to_owned(), settled })
}

#[cfg(test)]
#[path = "xid_tests.rs"]
mod tests;
