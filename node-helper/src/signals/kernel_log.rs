//! The kernel's messages since it booted: those that a check may judge.
//!
//! Reads `/dev/kmsg` without blocking. That is a ring: once it has lost its first record, it does not prove that
//! nothing happened, and then the journal's kernel messages of this boot are read too. Only the kernel's own records
//! count. This module knows lines, and which of them are settled since; it judges none.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::LazyLock,
    time::Duration,
};

use gpufleet_protocol::{
    signal::{KernelRecord, RecordSort, Signals},
    xid::{Asks, asks},
};

use crate::{deadline::Deadline, os::roots::Roots, process::Run};

/// Record buffer in bytes; a record has at most 1 KiB of text, its continuation lines doubled. Source: kernel,
/// `CONSOLE_EXT_LOG_MAX`.
const RECORD: usize = 8192;
/// The largest ring that a kernel is built with, in bytes. Source: kernel, `CONFIG_LOG_BUF_SHIFT`.
const MOST: usize = 32 * 1024 * 1024;
/// Time limit for the journal.
const JOURNAL: Duration = Duration::from_secs(30);
/// Largest output of the journal, in bytes.
const MOST_JOURNAL: usize = 8 * 1024 * 1024;
/// Largest length of a record's text, in bytes.
const MOST_TEXT: usize = 300;
/// The first line of every boot.
const BANNER: &str = "Linux version";
const LOADS: &str = "NVRM: loading NVIDIA UNIX";
/// How drivers from 570 on tell it, without an Xid: the last of three lines, of which the first one names the GPU. A ring has
/// them as one record, a journal as three.
const NOT_RESPONDING: &str = "fallen off the bus and is not responding";
/// The driver's words, without an Xid, for a GPU that is off the bus.
const OFF_THE_BUS: [&str; 3] = [NOT_RESPONDING, "GPU has fallen off the bus", "NVRM: GPU is lost"];
const NAMES_GPU: &str = "NVRM: The NVIDIA GPU ";
/// Largest time between the first and the last of these lines, in microseconds.
const TOGETHER: u64 = 1_000_000;
const XID: &str = "NVRM: Xid (";
const SXID: &str = ": SXid (";
/// The NFS client's word on a server: that it does not answer, or `OK`.
const NFS: &str = "nfs: server ";
/// Largest number of servers that are followed.
const MOST_SERVERS: usize = 1024;
/// One for each kill, by kernels since 5.0; older ones write [`OLDER_KILL`] only.
const KILL: &str = "oom-kill:constraint=";
const OLDER_KILL: &str = "Out of memory: Kill";

/// Lines that count, each by a text in it. The first match decides, so that a word of a driver's line is not taken for
/// one of the kernel's.
///
/// Source: printk calls of Linux 6.8 and of NVIDIA's open kernel modules 580. The drivers' healthy lines begin with
/// `NVRM:` too, so that this prefix alone says nothing.
const RULES: &[(RecordSort, &str)] = &[
    (RecordSort::Xid, XID),
    (RecordSort::Sxid, SXID),
    (RecordSort::Nvrm, "RmInitAdapter failed"),
    (RecordSort::Nvrm, OFF_THE_BUS[0]),
    (RecordSort::Nvrm, OFF_THE_BUS[1]),
    (RecordSort::Nvrm, OFF_THE_BUS[2]),
    (RecordSort::Nvrm, "NVIDIA probe routine failed"),
    (RecordSort::Nvrm, "NV_ERR_RESET_REQUIRED"),
    (RecordSort::Nvrm, "NVRM: API mismatch"),
    (RecordSort::Nvrm, "nvidia: module verification failed"),
    (RecordSort::Nvrm, "nvidia: Loading of "),
    (RecordSort::Nvrm, "unsigned module loading is restricted"),
    (RecordSort::Nvrm, "detected invalid context"),
    (RecordSort::Oom, KILL),
    (RecordSort::Oom, OLDER_KILL),
    (RecordSort::Hardware, "event severity: fatal"),
    (RecordSort::Hardware, "event severity: recoverable"),
    (RecordSort::Hardware, "Machine Check"),
    (RecordSort::Hardware, "severity=Uncorrect"),
    (RecordSort::Hardware, "Uncorrected"),
    (RecordSort::Hardware, " UE memory "),
    (RecordSort::Kernel, "BUG: unable to handle"),
    (RecordSort::Kernel, "kernel BUG at "),
    (RecordSort::Kernel, "Oops: "),
    (RecordSort::Kernel, "general protection fault"),
    (RecordSort::Kernel, "soft lockup"),
    (RecordSort::Kernel, "hard LOCKUP"),
    (RecordSort::Kernel, "detected stall"),
    (RecordSort::Kernel, "detected expedited stall"),
    (RecordSort::Kernel, " blocked for more than "),
    (RecordSort::Disk, "I/O error, dev "),
    (RecordSort::Disk, "Buffer I/O error"),
    (RecordSort::Disk, "Disabling device after reset failure"),
    (RecordSort::Disk, "no available path"),
    (RecordSort::Disk, " timeout, "),
    (RecordSort::Disk, "Remounting filesystem read-only"),
    (RecordSort::Disk, "Shutting down filesystem"),
    (RecordSort::Disk, "EXT4-fs error"),
    (RecordSort::Disk, "metadata I/O error"),
    (RecordSort::Disk, "failing array"),
];

/// Returns every text that is looked for.
fn wanted() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|(_, text)| *text).chain([BANNER, LOADS, NFS, NAMES_GPU])
}

/// Bits of [`slot`], set for the first four bytes of each text.
static BEGINNINGS: LazyLock<[u64; 64]> = LazyLock::new(|| {
    let mut bits = [0; 64];
    for text in wanted() {
        let slot = text.as_bytes().windows(4).next().map_or(0, slot);
        if let Some(word) = bits.get_mut(slot / 64) {
            *word |= 1 << (slot % 64);
        }
    }
    bits
});

/// Returns a number below 4096 for four bytes.
fn slot(window: &[u8]) -> usize {
    let number = window.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    (number.wrapping_mul(0x9E37_79B1) >> 20) as usize
}

/// Whether a text may be there. A log has ten thousand lines, of which hardly any counts, and each rule is a search.
fn may_count(body: &str) -> bool {
    let begins = |window: &[u8]| {
        let slot = slot(window);
        BEGINNINGS.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    };
    body.as_bytes().windows(4).any(begins)
}

/// One line that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// In microseconds of this boot.
    pub at: Option<u64>,
    pub sort: RecordSort,
    /// Position in [`RULES`].
    rule: usize,
    /// The code of an Xid or SXid.
    pub code: Option<u32>,
    /// The PCI address as the driver writes it, with or without a function.
    pub device: Option<String>,
    /// The driver itself says that nothing is needed any more (recovery action "None").
    to_none: bool,
    text: String,
}

/// What may be missing in a [`Log`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Whether nothing could be read at all.
    pub whole: bool,
    pub why: String,
}

/// The log of this boot.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// In the order of their times.
    pub lines: Vec<Line>,
    /// Every time at which the driver was loaded.
    loads: Vec<u64>,
    /// When the driver last withdrew its request, by its address of the GPU.
    withdrawn: HashMap<Option<String>, Option<u64>>,
    /// Servers of NFS, with the time of the last word on each, and whether that is that it does not answer.
    servers: BTreeMap<String, (Option<u64>, bool)>,
    /// `None` if it is complete.
    pub gap: Option<Gap>,
}

/// Position of the kernel's log when gpufleet reset a GPU, by PCI address, in microseconds of this boot.
pub type Resets = BTreeMap<String, u64>;

/// Reads the log. Never fails: what may be missing is told by [`Log::gap`].
pub fn read(roots: &Roots, deadline: &Deadline) -> Log {
    let mut log = Log::default();
    let mut reader = Reader::default();
    let (complete, trouble) = match read_ring(&roots.path("/dev/kmsg")) {
        Ok((text, complete)) => {
            reader.take(&text, &mut log);
            (complete, None)
        }
        Err(error) => (false, Some(format!("/dev/kmsg: {error}"))),
    };
    if !complete {
        let told = journal(roots, deadline).map(|text| reader.take(&text, &mut log));
        log.gap = told.err().map(|why| Gap {
            whole: trouble.is_some(),
            why: format!(
                "{}; and the journal cannot be read: {why}",
                trouble.as_deref().unwrap_or("the kernel's log has lost its beginning")
            ),
        });
    }
    if log.lines.iter().any(|line| line.is(KILL)) {
        log.lines.retain(|line| !line.is(OLDER_KILL));
    }
    log.lines.sort_by_key(|line| line.at);
    log
}

impl Line {
    /// Returns the line, its control characters replaced.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the driver says, without an Xid, that a GPU is off the bus: only a new boot settles that.
    pub fn is_off_the_bus(&self) -> bool {
        OFF_THE_BUS.iter().any(|words| self.is(words))
    }

    fn is(&self, rule: &str) -> bool {
        RULES.get(self.rule).is_some_and(|(_, text)| *text == rule)
    }

    /// Parses the text of a record of the kernel.
    fn parse(at: Option<u64>, body: &str) -> Option<Self> {
        let body = body.trim();
        let (rule, (sort, _)) = RULES.iter().enumerate().find(|(_, (_, text))| body.contains(text))?;
        let mut line =
            Self { at, sort: *sort, rule, code: None, device: None, to_none: false, text: bounded(body) };
        match sort {
            RecordSort::Xid => {
                let (device, code, rest) = coded(body, XID)?;
                line.to_none = code == 154 && rest.contains("to 0x0 (None)");
                (line.code, line.device) = (Some(code), Some(device.to_owned()));
            }
            RecordSort::Sxid => {
                let (device, code, _) = coded(body, SXID)?;
                (line.code, line.device) = (Some(code), Some(device.to_owned()));
            }
            RecordSort::Nvrm => {
                line.device = body.split([' ', '(', ')', ',']).find_map(named).map(str::to_owned);
            }
            // Faults of programs, whose names are any text.
            RecordSort::Kernel if body.starts_with("traps: ") || body.contains("]: segfault at ") => {
                return None;
            }
            RecordSort::Disk if !is_disk(body) => return None,
            _ => {}
        }
        Some(line)
    }

    /// Returns the PCI address as sysfs writes it.
    fn pci(&self) -> Option<String> {
        let device = self.device.as_deref()?.to_ascii_lowercase();
        // NVML and some tools write a domain of eight digits.
        let device = match device.split_once(':') {
            Some((domain, rest)) if domain.len() == 8 => {
                format!("{}:{rest}", domain.strip_prefix("0000").unwrap_or(domain))
            }
            _ => device,
        };
        Some(if device.contains('.') { device } else { format!("{device}.0") })
    }
}

impl Log {
    /// Whether an error of the driver is over: the driver was loaded anew, gpufleet reset the GPU, or the driver
    /// withdrew its request. An error that asks for a reboot is settled by a new boot only.
    pub fn is_settled(&self, line: &Line, resets: &Resets) -> bool {
        if line.to_none {
            return true;
        }
        let of_driver = matches!(line.sort, RecordSort::Xid | RecordSort::Sxid | RecordSort::Nvrm);
        let reboots = line.is_off_the_bus()
            || line.sort == RecordSort::Xid && line.code.is_none_or(|code| asks(code) == Asks::Reboot);
        let Some(at) = line.at.filter(|_| of_driver && !reboots) else { return false };
        let device = line.device.as_deref();
        let reset = device.and_then(|device| resets.iter().find(|(pci, _)| is_at(pci, device)));
        self.loads.iter().any(|load| *load > at)
            || reset.is_some_and(|(_, end)| *end >= at)
            || line.sort == RecordSort::Xid
                && self.withdrawn.get(&line.device).is_some_and(|last| *last > line.at)
    }

    /// Counts servers of NFS that do not answer.
    ///
    /// # Errors
    /// Why it is not known: none is seen, and lines may be missing.
    pub fn hung_servers(&self) -> Result<usize, String> {
        let hung = self.servers.values().filter(|(_, hung)| *hung).count();
        match &self.gap {
            Some(gap) if hung == 0 => Err(gap.why.clone()),
            _ => Ok(hung),
        }
    }

    fn hear(&mut self, at: Option<u64>, word: &str) {
        let Some((server, word)) = word.trim().split_once(' ') else { return };
        let hung = word.starts_with("not responding");
        let is_known = self.servers.contains_key(server);
        if !(hung || word == "OK") || !is_known && self.servers.len() >= MOST_SERVERS {
            return;
        }
        let last = self.servers.entry(server.to_owned()).or_insert((at, hung));
        if at >= last.0 {
            *last = (at, hung);
        }
    }

    /// Returns at most [`Signals::MOST_RECORDS`] records, and the number of those left out.
    ///
    /// The oldest of the most frequent ones are left out, so that a flood of one message hides no other.
    pub fn records(&self, resets: &Resets) -> (Vec<KernelRecord>, usize) {
        let settled: Vec<bool> = self.lines.iter().map(|line| self.is_settled(line, resets)).collect();
        let mut alike: HashMap<_, Vec<usize>> = HashMap::new();
        for (at, (line, settled)) in self.lines.iter().zip(&settled).enumerate() {
            alike.entry((line.rule, line.code, line.device.as_deref(), *settled)).or_default().push(at);
        }
        let mut groups: Vec<Vec<usize>> = alike.into_values().collect();
        let mut kept: Vec<usize> = Vec::new();
        // The newest of each group first, then the second newest of each, and so on.
        groups.sort_by_key(|group| std::cmp::Reverse(group.last().copied()));
        while kept.len() < Signals::MOST_RECORDS && groups.iter().any(|group| !group.is_empty()) {
            let room = Signals::MOST_RECORDS - kept.len();
            kept.extend(groups.iter_mut().filter_map(Vec::pop).take(room));
        }
        kept.sort_unstable();
        let record = |at: &usize| {
            let (line, settled) = (self.lines.get(*at)?, *settled.get(*at)?);
            Some(KernelRecord {
                at_us: line.at,
                sort: line.sort,
                code: line.code,
                pci: line.pci(),
                settled,
                text: line.text.clone(),
            })
        };
        (kept.iter().filter_map(record).collect(), self.lines.len() - kept.len())
    }
}

/// Whether a PCI address is the driver's address `device`, which may have no function.
pub fn is_at(pci: &str, device: &str) -> bool {
    let slot =
        |address: &str| address.rsplit_once('.').map_or(address, |(slot, _)| slot).to_ascii_lowercase();
    slot(pci) == slot(device)
}

/// Parses `… (PCI:0000:3b:00): 79, …` behind `mark`; returns the address, the code, and the rest.
fn coded<'t>(body: &'t str, mark: &str) -> Option<(&'t str, u32, &'t str)> {
    let (_, rest) = body.split_once(mark)?;
    let (device, rest) = rest.split_once("):")?;
    let device = device.strip_prefix("PCI:").unwrap_or(device);
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, rest) = rest.split_at_checked(end)?;
    // A process may call itself anything, and the kernel logs names; none is as long as mark and address.
    Some((is_address(device).then_some(device)?, digits.parse().ok()?, rest))
}

/// Returns the PCI address in a word, such as `0000:3b:00.0:`.
fn named(word: &str) -> Option<&str> {
    let word = word.trim_end_matches(':');
    let word = word.strip_prefix("PCI:").unwrap_or(word);
    is_address(word).then_some(word)
}

/// Whether it is a PCI address: domain, bus and device in hexadecimal, and perhaps a function.
fn is_address(text: &str) -> bool {
    let slot = text.split_once('.').map_or(text, |(slot, _)| slot);
    let parts: Vec<&str> = slot.split(':').collect();
    let hex = |part: &&str, lengths: [usize; 2]| {
        lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    matches!(&parts[..], [domain, bus, device] if hex(domain, [4, 8]) && hex(bus, [2, 2]) && hex(device, [2, 2]))
}

/// Whether a line about a timeout or an error is about a disk that stays: not a medium, not a file as a disk.
fn is_disk(body: &str) -> bool {
    let removable = ["dev sr", "dev loop", "dev fd", "device sr", "device loop", "device fd"];
    let timeout = body.contains(" timeout, ") && !body.contains("nvme");
    !timeout && !removable.iter().any(|name| body.contains(name))
}

/// Returns the text without control characters, cut to [`MOST_TEXT`] bytes.
fn bounded(text: &str) -> String {
    let mut kept = String::with_capacity(text.len().min(MOST_TEXT));
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if kept.len() + c.len_utf8() > MOST_TEXT {
            break;
        }
        kept.push(c);
    }
    kept
}

/// Takes lines from several sources, each once.
#[derive(Default)]
struct Reader {
    /// The journal repeats the ring's records.
    taken: HashSet<(u64, String)>,
    /// The last line of [`NAMES_GPU`], and when it was.
    named: Option<(Option<u64>, String)>,
}

impl Reader {
    fn take(&mut self, text: &str, log: &mut Log) {
        for line in text.lines() {
            // The kernel writes no longer one.
            let line = line.get(..line.floor_char_boundary(RECORD)).unwrap_or(line);
            let Some((at, body)) = record(line).filter(|(_, body)| may_count(body)) else { continue };
            // The ring writes the ends of lines within a record so.
            let body = body.replace("\\x0a", " ");
            let names = body.contains(NAMES_GPU);
            let ends = body.contains(NOT_RESPONDING);
            let begun = self.named.take_if(|(first, _)| ends && !names && together(*first, at));
            let body = match begun {
                Some((_, gpu)) => format!("{gpu} {}", body.trim()),
                None => body,
            };
            if names && !ends {
                self.named = Some((at, bounded(body.trim())));
            } else if body.contains(LOADS) {
                log.loads.extend(at);
            } else if let Some(word) = body.trim_start().strip_prefix(NFS) {
                log.hear(at, word);
            } else if let Some(line) = Line::parse(at, &body)
                && at.is_none_or(|at| self.taken.insert((at, line.text.clone())))
            {
                if line.to_none {
                    let last = log.withdrawn.entry(line.device.clone()).or_default();
                    *last = (*last).max(line.at);
                }
                log.lines.push(line);
            }
        }
    }
}

fn together(first: Option<u64>, last: Option<u64>) -> bool {
    match (first, last) {
        (Some(first), Some(last)) => last.abs_diff(first) <= TOGETHER,
        (None, None) => true,
        _ => false,
    }
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
    // An empty ring proves nothing: a container may have /dev/null there, and the kernel's own begins with its banner.
    let complete = !lost && first == Some(0) && text.len() < MOST;
    Ok((text, complete))
}

/// Returns the second field of a record: `6,339,5140900,-;NVRM: …`. Source: kernel, Documentation/ABI/testing/dev-kmsg.
fn sequence(line: &str) -> Option<u64> {
    line.split_once(';')?.0.split(',').nth(1)?.parse().ok()
}

fn journal(roots: &Roots, deadline: &Deadline) -> Result<String, String> {
    let program = roots.tool("journalctl").ok_or("there is no journalctl")?;
    let run = Run::new(program)
        .args(["--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-monotonic"])
        .arg(format!("--grep={}", expression()))
        // The kernel's own records: a program can write to the ring, and call itself `kernel`.
        .arg("SYSLOG_FACILITY=0")
        .limit(MOST_JOURNAL)
        .finish(&deadline.within(JOURNAL));
    let done = run.map_err(|error| error.to_string())?;
    if done.output.stdout.lost > 0 {
        return Err(format!("it has more than {} MiB of such messages", MOST_JOURNAL / (1024 * 1024)));
    }
    let text = done.stdout();
    // The banner is the kernel's first line, so a journal without it has lost the beginning, or is empty.
    match text.contains(BANNER) {
        true => Ok(text),
        false if done.exit.success() || done.stderr().trim().is_empty() => {
            Err("it does not hold the beginning of this boot".to_owned())
        }
        false => Err(done.complaint("journalctl")),
    }
}

/// Returns a regular expression (PCRE2) for the lines that [`RULES`] and this module look for.
fn expression() -> String {
    wanted().map(literal).collect::<Vec<_>>().join("|")
}

/// Returns a regular expression that matches this text.
fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 4);
    for c in text.chars() {
        if !c.is_alphanumeric() && !" _-:,=/".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
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
    let micros = || {
        let (seconds, fraction) = stamp.trim().split_once('.')?;
        let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
        seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)
    };
    Some((micros(), written(rest)?))
}

/// Returns the text behind the journal's `node kernel: `, and `None` if a program wrote it (`node name[7]: `, `node name: `).
fn written(rest: &str) -> Option<&str> {
    let rest = rest.trim_start();
    let mut words = rest.splitn(3, ' ');
    match (words.next()?, words.next(), words.next()) {
        (node, Some("kernel:"), Some(body)) if !node.ends_with(':') => Some(body),
        (node, Some(writer), _) if !node.ends_with(':') && writer.ends_with(':') => None,
        _ => Some(rest),
    }
}

#[cfg(test)]
#[path = "kernel_log_tests.rs"]
mod tests;
