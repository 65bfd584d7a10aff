//! Which machine and which GPUs each host that keeps a state has said to have, and how new that state is.
//!
//! A node says itself which machine it is, and what is signed for a machine is obeyed by it. A node that claims to be
//! another one must therefore get no signature. One that shows an older document than it took must not bring that back.
//!
//! The file is read once, and then only what this or another gpufleet has added to it since: a line for each host whose
//! identity is new. A line that was cut off is none; whoever adds the next one takes its remains away.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use gpufleet::{engine::KeptMachine, visible::visible};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The file in the state directory: JSON lines, of which the last one of a host counts.
const FILE: &str = "kept_machines.jsonl";

pub struct KeptMachines {
    path: PathBuf,
    known: Mutex<Known>,
}

/// A line: what is known of a host.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    host: String,
    /// The machine-id and the UUIDs of the GPUs; nothing once the host keeps nothing any more.
    has: Vec<String>,
    /// When the newest document that it took was signed, in milliseconds since 1970.
    serial: u64,
}

impl Line {
    fn nothing(host: &str) -> Self {
        Self { host: host.to_owned(), ..Self::default() }
    }
}

/// The content of the file up to `read`, in bytes, the end of a line.
#[derive(Default)]
struct Known {
    inode: u64,
    read: u64,
    lines: usize,
    /// The host of each machine-id and UUID.
    hosts: HashMap<String, String>,
    of: HashMap<String, Line>,
}

impl Known {
    /// Returns what is known of a host.
    fn line(&self, host: &str) -> Line {
        self.of.get(host).cloned().unwrap_or_else(|| Line::nothing(host))
    }

    fn add(&mut self, line: Line) {
        for id in self.line(&line.host).has {
            // A part that moved is already another host's.
            if self.hosts.get(&id).is_some_and(|of| *of == line.host) {
                self.hosts.remove(&id);
            }
        }
        self.hosts.extend(line.has.iter().map(|id| (id.clone(), line.host.clone())));
        match line.has.is_empty() {
            true => self.of.remove(&line.host),
            false => self.of.insert(line.host.clone(), line),
        };
    }

    /// Reads what was added to the file.
    fn catch_up(&mut self, mut file: &File) -> io::Result<()> {
        let now = file.metadata()?;
        if now.ino() != self.inode || now.len() < self.read {
            *self = Self { inode: now.ino(), ..Self::default() };
        }
        if now.len() == self.read {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            self.add(serde_json::from_slice(line)?);
            self.read += line.len() as u64;
            self.lines += 1;
        }
        Ok(())
    }
}

impl KeptMachines {
    pub fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(FILE), known: Mutex::default() }
    }

    /// Compares a host's identity with those of others, and with `remembers` keeps it. Returns when the newest document that it
    /// took was signed.
    ///
    /// # Errors
    /// Whose it is, or why that is not known, for people.
    pub fn identify(&self, machine: KeptMachine<'_>, remembers: bool) -> Result<u64, String> {
        let gpus = machine.gpus.iter().map(|uuid| ("the GPU", uuid.as_str()));
        let all: Vec<(&str, &str)> = [("the machine-id", machine.id)].into_iter().chain(gpus).collect();
        let has: Vec<String> = all.iter().map(|(_, id)| (*id).to_owned()).collect();
        self.changed(remembers, machine.host, |known| {
            for (what, id) in &all {
                if let Some(other) = known.hosts.get(*id).filter(|other| *other != machine.host) {
                    return Err(format!(
                        "{what} {} that it says to have is known as that of {}, and what is signed for one of them would be obeyed by \
                         both; if that host was renamed or its part was moved, run `{}`, or take its lines out of \
                         {}; if both are there, one of them is a copy (`systemd-machine-id-setup`) or lies",
                        visible(id),
                        visible(other),
                        gpufleet::visible::command_line(["gpufleet", "keep", "remove", other.as_str()]),
                        self.path.display()
                    ));
                }
            }
            let before = known.line(machine.host);
            Ok((before.serial, Line { has, ..before }))
        })
    }

    /// Remembers that a host took a document.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn took(&self, host: &str, serial: u64) -> Result<(), String> {
        self.changed(true, host, |known| {
            let before = known.line(host);
            Ok(((), Line { serial: before.serial.max(serial), ..before }))
        })
    }

    /// Forgets a host.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn forget(&self, host: &str) -> Result<(), String> {
        if !self.path.exists() {
            return Ok(());
        }
        self.changed(true, host, |_| Ok(((), Line::nothing(host))))
    }

    /// Finds out something and what is known of a host from now on, which is written with `writes`.
    fn changed<T>(
        &self,
        writes: bool,
        host: &str,
        change: impl FnOnce(&Known) -> Result<(T, Line), String>,
    ) -> Result<T, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.in_turn(&mut known, writes, host, change).unwrap_or_else(|error| {
            // Read anew next time, whatever of it is true.
            *known = Known::default();
            Err(format!("which machine is which host is unknown: {}: {error}", self.path.display()))
        })
    }

    fn in_turn<T>(
        &self,
        known: &mut Known,
        writes: bool,
        host: &str,
        change: impl FnOnce(&Known) -> Result<(T, Line), String>,
    ) -> io::Result<Result<T, String>> {
        let _turn = if writes { Some(self.turn()?) } else { None };
        match File::open(&self.path) {
            Ok(file) => known.catch_up(&file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => *known = Known::default(),
            Err(error) => return Err(error),
        }
        let (found, now) = match change(known) {
            Ok(changed) => changed,
            Err(why) => return Ok(Err(why)),
        };
        if writes && known.line(host) != now {
            self.add(known, now)?;
        }
        Ok(Ok(found))
    }

    /// Held while something is added to the file, by nodes of this process and by other ones.
    fn turn(&self) -> io::Result<File> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let lock = self.path.with_extension("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(lock)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    fn add(&self, known: &mut Known, line: Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        known.add(line);
        // Rarely, because each node would write the lines of all; but a node that says something else each time must not add
        // to the file for ever.
        if known.lines > 2 * known.of.len() + 16 {
            return self.write_whole(known);
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(false).mode(0o600).open(&self.path)?;
        let end = file.metadata()?;
        if end.len() > known.read {
            file.set_len(known.read)?;
        }
        file.seek(SeekFrom::Start(known.read))?;
        file.write_all(&text)?;
        (known.inode, known.read, known.lines) = (end.ino(), known.read + text.len() as u64, known.lines + 1);
        Ok(())
    }

    /// Writes one line for each host.
    fn write_whole(&self, known: &mut Known) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut fresh = tempfile::NamedTempFile::new_in(folder)?;
        let mut text = Vec::new();
        for line in known.of.values() {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        fresh.write_all(&text)?;
        fresh.as_file().sync_all()?;
        (known.inode, known.read, known.lines) =
            (fresh.as_file().metadata()?.ino(), text.len() as u64, known.of.len());
        fresh.persist(&self.path)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_machine_or_gpu_of_another_host_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let says = |host: &str, id: &str, gpus: &[&str], remembers: bool| {
            let gpus = ids(gpus);
            let machine = KeptMachine { host, id, gpus: &gpus };
            KeptMachines::new(state.path()).identify(machine, remembers)
        };
        assert_eq!(says("gpu001", "m1", &["GPU-1"], false), Ok(0));
        assert_eq!(says("gpu002", "m1", &["GPU-2"], false), Ok(0), "a plan remembers nothing");
        assert_eq!(says("gpu001", "m1", &["GPU-1"], true), Ok(0));
        assert_eq!(says("gpu001", "m1", &["GPU-1"], true), Ok(0));
        let copied = says("gpu002", "m1", &["GPU-2"], false).unwrap_err();
        assert!(
            copied.starts_with("the machine-id m1 that it says to have is known as that of gpu001"),
            "{copied}"
        );
        let lied = says("gpu002", "m2", &["GPU-2", "GPU-1"], true).unwrap_err();
        assert!(lied.contains("the GPU GPU-1") && lied.contains("gpufleet keep remove gpu001"), "{lied}");
        assert_eq!(says("gpu002", "m2", &["GPU-2"], true), Ok(0), "a refused claim leaves nothing");
        // A part that moved: once its former host keeps a state without it, or none.
        assert_eq!(says("gpu001", "m1", &["GPU-3"], true), Ok(0));
        assert_eq!(says("gpu002", "m2", &["GPU-1"], true), Ok(0));
        KeptMachines::new(state.path()).forget("gpu001").unwrap();
        assert_eq!(says("gpu003", "m1", &["GPU-3"], true), Ok(0));
        fs::write(state.path().join(FILE), "{\n").unwrap();
        assert!(says("gpu003", "m1", &[], false).unwrap_err().contains("is unknown"));
    }
    #[test]
    fn ten_thousand_nodes_do_not_wait_for_it() {
        let state = tempfile::tempdir().unwrap();
        let begun = std::time::Instant::now();
        let all = |machines: &KeptMachines| {
            for node in 0..10_000 {
                let gpus: Vec<String> = (0..8).map(|gpu| format!("GPU-{node:036}-{gpu}")).collect();
                let (host, id) = (format!("gpu{node:05}"), format!("{node:032x}"));
                machines.identify(KeptMachine { host: &host, id: &id, gpus: &gpus }, true).unwrap();
            }
        };
        let machines = KeptMachines::new(state.path());
        all(&machines);
        let size = fs::metadata(state.path().join(FILE)).unwrap().len();
        all(&machines);
        all(&KeptMachines::new(state.path()));
        assert_eq!(
            fs::metadata(state.path().join(FILE)).unwrap().len(),
            size,
            "nothing new is nothing written"
        );
        // Far above what it takes, and far below what reading and writing the whole file for each node would.
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }

    #[test]
    fn controllers_see_each_others_lines_and_a_cut_off_line_is_none() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join(FILE);
        let (one, other) = (KeptMachines::new(state.path()), KeptMachines::new(state.path()));
        let says = |machines: &KeptMachines, host: &str, id: &str| {
            machines.identify(KeptMachine { host, id, gpus: &[] }, true)
        };
        says(&one, "gpu001", "m1").unwrap();
        says(&other, "gpu002", "m2").unwrap();
        assert!(says(&one, "gpu003", "m2").is_err() && says(&other, "gpu003", "m1").is_err());
        let mut cut = fs::read(&path).unwrap();
        cut.extend_from_slice(br#"{"host":"gpu003","has":["m3"#);
        fs::write(&path, cut).unwrap();
        says(&one, "gpu004", "m3").unwrap();
        assert!(says(&other, "gpu003", "m3").unwrap_err().contains("gpu004"));
        one.took("gpu002", 7).unwrap();
        one.took("gpu002", 5).unwrap();
        assert_eq!(says(&other, "gpu002", "m2b"), Ok(7), "the newest document, whoever brought it");
        // A host that claims something else each time.
        for claim in 0..200 {
            says(&one, "gpu001", &format!("x{claim}")).unwrap();
        }
        assert!(fs::read_to_string(&path).unwrap().lines().count() < 40);
        assert!(says(&other, "gpu005", "x199").unwrap_err().contains("gpu001"));
        // Somebody takes a line out.
        let text = fs::read_to_string(&path).unwrap();
        let rest: Vec<&str> = text.lines().filter(|line| !line.contains("gpu001")).collect();
        fs::write(&path, rest.join("\n") + "\n").unwrap();
        assert_eq!(says(&other, "gpu005", "x199"), Ok(0));
    }
}
