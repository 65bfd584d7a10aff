//! Which machine and which GPUs each host that keeps a state has said to have.
//!
//! A node says itself which machine it is, and what is signed for a machine is obeyed by it. A node that claims to be
//! another one must therefore get no signature.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use gpufleet::{engine::KeptMachine, visible::visible};
use rustix::fs::{FlockOperation, flock};

/// The file in the state directory: the host of each machine id and GPU UUID, as JSON.
const FILE: &str = "kept_machines.json";

pub struct KeptMachines {
    path: PathBuf,
}

type Hosts = BTreeMap<String, String>;

impl KeptMachines {
    pub fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(FILE) }
    }

    /// Compares a host's identity with those of others, and with `remembers` keeps it.
    ///
    /// # Errors
    /// Whose it is, or why that is not known, for people.
    pub fn identify(&self, machine: KeptMachine<'_>, remembers: bool) -> Result<(), String> {
        let gpus = machine.gpus.iter().map(|uuid| ("the GPU", uuid.as_str()));
        let all: Vec<(&str, &str)> = [("the machine-id", machine.id)].into_iter().chain(gpus).collect();
        self.changed(remembers, |hosts| {
            for (what, id) in &all {
                if let Some(other) = hosts.get(*id).filter(|other| *other != machine.host) {
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
            hosts.retain(|_, host| host != machine.host);
            hosts.extend(all.iter().map(|(_, id)| ((*id).to_owned(), machine.host.to_owned())));
            Ok(())
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
        self.changed(true, |hosts| {
            hosts.retain(|_, known| known != host);
            Ok(())
        })
    }

    fn changed(
        &self,
        writes: bool,
        change: impl FnOnce(&mut Hosts) -> Result<(), String>,
    ) -> Result<(), String> {
        let unknown = |error: io::Error| {
            format!("which machine is which host is unknown: {}: {error}", self.path.display())
        };
        let _turn = if writes { Some(self.turn().map_err(unknown)?) } else { None };
        let before = match fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| unknown(error.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Hosts::new(),
            Err(error) => return Err(unknown(error)),
        };
        let mut hosts = before.clone();
        change(&mut hosts)?;
        if writes && hosts != before {
            self.write(&hosts).map_err(unknown)?;
        }
        Ok(())
    }

    /// Held while the file is read and replaced, by nodes of this process and by other ones.
    fn turn(&self) -> io::Result<File> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let lock = self.path.with_extension("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(lock)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    fn write(&self, hosts: &Hosts) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut fresh = tempfile::NamedTempFile::new_in(folder)?;
        fresh.write_all(&serde_json::to_vec_pretty(hosts)?)?;
        fresh.as_file().sync_all()?;
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
        assert_eq!(says("gpu001", "m1", &["GPU-1"], false), Ok(()));
        assert_eq!(says("gpu002", "m1", &["GPU-2"], false), Ok(()), "a plan remembers nothing");
        assert_eq!(says("gpu001", "m1", &["GPU-1"], true), Ok(()));
        assert_eq!(says("gpu001", "m1", &["GPU-1"], true), Ok(()));
        let copied = says("gpu002", "m1", &["GPU-2"], false).unwrap_err();
        assert!(
            copied.starts_with("the machine-id m1 that it says to have is known as that of gpu001"),
            "{copied}"
        );
        let lied = says("gpu002", "m2", &["GPU-2", "GPU-1"], true).unwrap_err();
        assert!(lied.contains("the GPU GPU-1") && lied.contains("gpufleet keep remove gpu001"), "{lied}");
        assert_eq!(says("gpu002", "m2", &["GPU-2"], true), Ok(()), "a refused claim leaves nothing");
        // A part that moved: once its former host keeps a state without it, or none.
        assert_eq!(says("gpu001", "m1", &["GPU-3"], true), Ok(()));
        assert_eq!(says("gpu002", "m2", &["GPU-1"], true), Ok(()));
        KeptMachines::new(state.path()).forget("gpu001").unwrap();
        assert_eq!(says("gpu003", "m1", &["GPU-3"], true), Ok(()));
        fs::write(state.path().join(FILE), "{").unwrap();
        assert!(says("gpu003", "m1", &[], false).unwrap_err().contains("is unknown"));
    }
}
