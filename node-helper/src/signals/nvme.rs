//! Signals of NVMe drives, by the SMART log that each of them keeps.
//!
//! Asks local drives only, for log page 2, and changes nothing. Owns the layout of the page. A drive that does not answer
//! cannot be interrupted, so that a thread of its own asks. Source: NVM Express base specification 1.4, 5.14.1.2.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use gpufleet_protocol::signal::Signal;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use super::{Found, Named, Reader, answer, signal};

const CLASS: &str = "/sys/class/nvme";
/// More drives than any machine has.
const MOST: usize = 128;
/// Drives that are described.
const MOST_NAMED: usize = 64;
/// Time limit of all drives together. Why not in the command: the kernel resets a drive that exceeds it.
const ANSWER: Duration = Duration::from_secs(5);
const PAGE_BYTES: usize = 512;
const NAMES: [&str; 6] = [
    "nvme_critical",
    "nvme_spare_left",
    "nvme_used_percent",
    "nvme_media_errors",
    "nvme_drives",
    "nvme_unread",
];

/// What a SMART log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Smart {
    critical: u8,
    /// Percent.
    spare: u8,
    /// Percent.
    threshold: u8,
    /// Percent of the rated life.
    used: u8,
    media_errors: u64,
}

impl Smart {
    /// Reads a log page; `None` for one that nobody filled, as virtual drives have it.
    fn of(page: &[u8; PAGE_BYTES]) -> Option<Self> {
        if page.iter().all(|byte| *byte == 0) {
            return None;
        }
        let [critical, _, _, spare, threshold, used, ..] = *page;
        // Of 16 bytes, the lowest first.
        let errors: [u8; 16] = page.get(160..176)?.try_into().ok()?;
        let media_errors = u64::try_from(u128::from_le_bytes(errors)).unwrap_or(u64::MAX);
        Some(Self { critical, spare, threshold, used, media_errors })
    }
}

/// A drive, and its SMART log if it has one.
type Asked = (Drive, Option<Smart>);

/// A drive and what a person knows it by.
struct Drive {
    name: String,
    title: String,
}

pub fn read(reader: &Reader<'_>) -> Vec<Named> {
    match asked(reader) {
        Ok((found, unread)) => told(&found, unread),
        Err(why) => NAMES.iter().map(|name| (*name, Signal::Unknown(why.clone()))).collect(),
    }
}

/// Returns the drives with what they tell, and how many of them did not answer.
///
/// # Errors
/// If the drives cannot be listed, or some do not answer and the others have no log.
fn asked(reader: &Reader<'_>) -> Result<(Vec<Asked>, usize), String> {
    let drives = drives(reader)?;
    let pages = pages(reader, drives.iter().map(|drive| drive.name.as_str()))?;
    known(drives, pages)
}

fn known(
    drives: Vec<Drive>,
    pages: Vec<Result<Option<Smart>, String>>,
) -> Result<(Vec<Asked>, usize), String> {
    let unread = pages.iter().filter(|page| page.is_err()).count();
    if let Some(Err(why)) = pages.iter().find(|page| page.is_err())
        && !pages.iter().any(|page| matches!(page, Ok(Some(_))))
    {
        return Err(why.clone());
    }
    let found = drives.into_iter().zip(pages.into_iter().map(Result::unwrap_or_default));
    Ok((found.collect(), unread))
}

/// Returns the drives of this machine. Those of a network are the business of whoever serves them, and may not answer.
fn drives(reader: &Reader<'_>) -> Result<Vec<Drive>, String> {
    let mut drives = Vec::new();
    let mut names = match reader.names(CLASS)? {
        Some(names) => names,
        None if reader.exists("/sys/class")? => Vec::new(),
        None => return Err("/sys/class: there is no such folder".to_owned()),
    };
    names.sort_by_key(|name| (name.len(), name.clone()));
    for name in names {
        let number = name.strip_prefix("nvme").unwrap_or_default();
        if number.is_empty() || number.len() > 6 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let line = |file: &str| reader.line(&format!("{CLASS}/{name}/{file}"));
        match line("transport")?.as_deref() {
            Some("pcie") => {}
            Some(_) => continue,
            None => return Err(format!("{CLASS}/{name}/transport: there is no such file")),
        }
        let word =
            |file: &str| -> Found<String> { Ok(line(file)?.map(|text| text.chars().take(40).collect())) };
        let known: Vec<String> = [word("model")?, word("serial")?].into_iter().flatten().collect();
        let title = if known.is_empty() { name.clone() } else { format!("{name} ({})", known.join(", ")) };
        drives.push(Drive { name, title });
        if drives.len() > MOST {
            return Err(format!("{CLASS}: it has more than {MOST} drives"));
        }
    }
    Ok(drives)
}

/// Asks all drives, in a thread that may be left behind.
fn pages<'a>(
    reader: &Reader<'_>,
    names: impl Iterator<Item = &'a str>,
) -> Result<Vec<Result<Option<Smart>, String>>, String> {
    let paths: Vec<PathBuf> = names.map(|name| reader.roots.path(format!("/dev/{name}"))).collect();
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let until = reader.deadline.within(ANSWER);
    let (sender, receiver) = mpsc::channel();
    let count = paths.len();
    let ask = move || {
        for path in paths {
            let page = page(&path).map_err(|why| format!("/dev/{}: {why}", name_of(&path)));
            // Nobody waits for the others any more.
            if sender.send(page).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("nvme".to_owned())
        .spawn(ask)
        .map_err(|error| format!("no thread could be started: {error}"))?;
    let answers = (0..count).map(|_| match answer(&receiver, &until) {
        Some(Ok(page)) => Ok(page.as_deref().and_then(Smart::of)),
        Some(Err(why)) => Err(why),
        None => Err("a drive does not answer".to_owned()),
    });
    Ok(answers.collect())
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The command that passes through to a drive. Source: Linux, `nvme_passthru_cmd`.
#[repr(C)]
#[derive(Default)]
struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

/// A question for the SMART log of a drive, into a page that it borrows.
struct Question<'a> {
    command: Command,
    page: std::marker::PhantomData<&'a mut [u8; PAGE_BYTES]>,
}

impl<'a> Question<'a> {
    fn new(page: &'a mut [u8; PAGE_BYTES]) -> Self {
        /// "Get Log Page", which only reads.
        const GET_LOG_PAGE: u8 = 0x02;
        const SMART: u32 = 0x02;
        /// Leaves a notice of the drive to whoever waits for it.
        const RETAIN_EVENT: u32 = 1 << 15;
        /// The controller as a whole.
        const EVERY_NAMESPACE: u32 = u32::MAX;
        // In words of four bytes, less one.
        const WORDS: u32 = PAGE_BYTES as u32 / 4 - 1;
        let command = Command {
            opcode: GET_LOG_PAGE,
            nsid: EVERY_NAMESPACE,
            addr: page.as_mut_ptr().expose_provenance() as u64,
            data_len: PAGE_BYTES as u32,
            cdw10: WORDS << 16 | RETAIN_EVENT | SMART,
            ..Command::default()
        };
        Self { command, page: std::marker::PhantomData }
    }
}

// SAFETY: the opcode is that of NVME_IOCTL_ADMIN_CMD, whose argument is a `Command`; the kernel writes at most
// `data_len` bytes at `addr`, which is a page of that size, borrowed for as long as the question is.
#[expect(unsafe_code, reason = "an ioctl of a driver is described by hand")]
unsafe impl Ioctl for Question<'_> {
    /// The status of the drive, 0 if it is well.
    type Output = i32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Command>(b'N', 0x41)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.command).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

/// Asks a drive for its SMART log; `None` if it has none, as virtual drives may.
fn page(path: &Path) -> Result<Option<Box<[u8; PAGE_BYTES]>>, String> {
    /// Bits of a status that say what it is; the others say whether to ask again.
    const WHAT: i32 = 0x7ff;
    const INVALID_OPCODE: i32 = 0x001;
    const INVALID_LOG_PAGE: i32 = 0x109;
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let file = fs::File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => "gpufleet needs root to ask it".to_owned(),
        _ => error.to_string(),
    })?;
    let is_device = file.metadata().is_ok_and(|meta| meta.file_type().is_char_device());
    if !is_device {
        return Err("it is no device".to_owned());
    }
    let mut page = Box::new([0; PAGE_BYTES]);
    let question = Question::new(&mut page);
    #[expect(unsafe_code, reason = "an ioctl of a driver is described by hand")]
    // SAFETY: a device that is no NVMe drive refuses the opcode, which has its letter and the size of its argument.
    let status = unsafe { rustix::ioctl::ioctl(&file, question) };
    match status {
        Ok(0) => Ok(Some(page)),
        Ok(status) if matches!(status & WHAT, INVALID_OPCODE | INVALID_LOG_PAGE) => Ok(None),
        Ok(status) => Err(format!("the drive refuses to tell its health (status {status:#x})")),
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
            Err("gpufleet needs root to ask it".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the worst of all drives. Where no drive has a log there is nothing to tell.
fn told(found: &[Asked], unread: usize) -> Vec<Named> {
    let with = || found.iter().filter_map(|(drive, smart)| smart.as_ref().map(|smart| (drive, smart)));
    let all = || with().map(|(_, smart)| smart);
    let some = all().next();
    let critical = some.map(|_| all().fold(0, |bits, smart| bits | smart.critical));
    let spare = all().map(|smart| i32::from(smart.spare) - i32::from(smart.threshold)).min();
    // A sum without some drives would seem to grow when they answer again.
    let errors = match (some, unread) {
        (Some(_), 1..) => Err("a drive did not tell its health".to_owned()),
        _ => Ok(some.map(|_| all().fold(0_u64, |sum, smart| sum.saturating_add(smart.media_errors)))),
    };
    let describe = |(drive, smart): (&Drive, &Smart)| {
        let Smart { critical, spare, threshold, used, media_errors } = smart;
        format!(
            "{}: critical {critical:#04x}, spare {spare} % (least {threshold} %), used {used} %, media errors {media_errors}",
            drive.title
        )
    };
    let drives = some.map(|_| with().map(describe).take(MOST_NAMED).collect::<Vec<String>>());
    vec![
        ("nvme_critical", signal(Ok(critical))),
        ("nvme_spare_left", signal(Ok(spare))),
        ("nvme_used_percent", signal(Ok(all().map(|smart| smart.used).max()))),
        ("nvme_media_errors", signal(errors)),
        ("nvme_drives", signal(Ok(drives))),
        ("nvme_unread", signal(Ok(some.map(|_| unread)))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(bytes: &[(usize, u8)]) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        for (at, byte) in bytes {
            page[*at] = *byte;
        }
        page
    }

    fn named(found: &[(Drive, Option<Smart>)], unread: usize) -> Vec<Signal> {
        told(found, unread).into_iter().map(|(_, signal)| signal).collect()
    }

    fn drive(name: &str) -> Drive {
        Drive { name: name.to_owned(), title: format!("{name} (M, S)") }
    }

    #[test]
    fn a_log_page_is_read_by_its_layout() {
        let page = page_of(&[(0, 0x04), (1, 0x3a), (2, 1), (3, 90), (4, 10), (5, 120), (160, 7), (161, 1)]);
        let smart = Smart { critical: 4, spare: 90, threshold: 10, used: 120, media_errors: 263 };
        assert_eq!(Smart::of(&page), Some(smart));
        assert_eq!(Smart::of(&page_of(&[(3, 100), (175, 1)])).unwrap().media_errors, u64::MAX);
    }

    #[test]
    fn a_page_that_nobody_filled_tells_nothing() {
        assert_eq!(Smart::of(&page_of(&[])), None);
        assert_eq!(named(&[(drive("nvme0"), None)], 0), vec![Signal::Absent; 6]);
        assert_eq!(named(&[], 0), vec![Signal::Absent; 6]);
    }

    #[test]
    fn a_drive_that_does_not_answer_is_never_nothing() {
        let good = Smart { critical: 0, spare: 100, threshold: 10, used: 3, media_errors: 2 };
        let of = |first| known(vec![drive("nvme0"), drive("nvme1")], vec![first, Err("it hangs".to_owned())]);
        // A virtual drive beside it has no log.
        assert_eq!(of(Ok(None)).err().as_deref(), Some("it hangs"));
        let (found, unread) = of(Ok(Some(good))).unwrap();
        assert_eq!(unread, 1);
        let [critical, _, _, errors, _, unread] = &named(&found, unread)[..] else { panic!() };
        assert_eq!((critical, unread), (&Signal::from(0), &Signal::from(1)));
        assert!(matches!(errors, Signal::Unknown(_)), "{errors:?}");
    }

    #[test]
    fn a_link_is_no_drive() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("nvme0");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        let loops = std::io::Error::from_raw_os_error(libc::ELOOP).to_string();
        assert_eq!(page(&link).unwrap_err(), loops);
    }

    #[test]
    fn the_worst_of_all_drives_is_told() {
        let good = Smart { critical: 0, spare: 100, threshold: 10, used: 3, media_errors: 0 };
        let worn = Smart { critical: 0x10, spare: 5, threshold: 10, used: 101, media_errors: 4 };
        let hot = Smart { critical: 0x02, media_errors: 1, ..good };
        let found = [
            (drive("nvme0"), Some(good)),
            (drive("nvme1"), None),
            (drive("nvme2"), Some(worn)),
            (drive("nvme3"), Some(hot)),
        ];
        let [critical, spare, used, errors, drives, unread] = &named(&found, 0)[..] else { panic!() };
        assert_eq!((critical, spare), (&Signal::from(0x12), &Signal::from(-5)));
        assert_eq!((used, errors), (&Signal::from(101), &Signal::from(5)));
        assert_eq!(unread, &Signal::from(0));
        let drives = drives.known().unwrap().as_array().unwrap();
        assert_eq!(drives.len(), 3);
        assert_eq!(
            drives[1],
            "nvme2 (M, S): critical 0x10, spare 5 % (least 10 %), used 101 %, media errors 4"
        );
    }

    #[test]
    fn the_question_is_the_kernels() {
        assert_eq!(size_of::<Command>(), 72);
        let mut page = [0; PAGE_BYTES];
        let question = Question::new(&mut page);
        assert_eq!(question.opcode(), 0xc048_4e41);
        assert_eq!(question.command.cdw10, 0x007f_8002);
    }
}
