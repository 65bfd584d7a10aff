//! Where the node's trees are: `/`, or a directory in its place.
//!
//! Tests and simulated nodes set a directory. Every path that a task declares is then looked up below it, so that a
//! rehearsal cannot touch the machine that it runs on. Programs that tasks run still see the real `/`.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Environment variable with the directory that replaces `/`.
pub const VARIABLE: &str = "GPUFLEET_ROOT";

/// The root of all paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    root: Option<PathBuf>,
}

impl Roots {
    /// The root of the real machine.
    pub fn real() -> Self {
        Self::default()
    }

    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: Some(root.into()) }
    }

    pub fn is_real(&self) -> bool {
        self.root.is_none()
    }

    /// Resolves a declared, absolute path; a path that is already below the root is returned as it is.
    pub fn path(&self, declared: impl AsRef<Path>) -> PathBuf {
        let declared = declared.as_ref();
        match &self.root {
            Some(root) if !declared.starts_with(root) => {
                root.join(declared.strip_prefix("/").unwrap_or(declared))
            }
            _ => declared.to_owned(),
        }
    }

    /// Returns the name of the node in the running kernel; `None` where a replaced root does not tell one.
    ///
    /// Not from `/proc/sys` of a real machine, because containers may have that from somebody else.
    pub fn host_name(&self) -> Option<String> {
        if self.is_real() {
            return Some(rustix::system::uname().nodename().to_string_lossy().into_owned());
        }
        let text = std::fs::read_to_string(self.proc("sys/kernel/hostname")).ok()?;
        Some(text.trim().to_owned())
    }

    /// Finds a program of the node by its name.
    ///
    /// With a replaced root, only programs below that root are found: a rehearsal never runs the machine's own
    /// `systemctl` or `reboot`.
    pub fn tool(&self, name: &str) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<PathBuf> =
            std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
        if let Some(root) = &self.root {
            folders.retain(|folder| folder.starts_with(root));
            let inside = ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"];
            folders.extend(inside.iter().map(|folder| root.join(folder)));
        }
        folders.into_iter().map(|folder| folder.join(name)).find(|path| {
            std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
    }

    /// Returns a path below `/etc`.
    pub fn etc(&self, rest: &str) -> PathBuf {
        self.path("/etc").join(rest)
    }

    /// Returns a path below `/proc`.
    pub fn proc(&self, rest: &str) -> PathBuf {
        self.path("/proc").join(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_below_the_root_once() {
        let roots = Roots::below("/lab/n1");
        assert_eq!(roots.path("/etc/motd"), Path::new("/lab/n1/etc/motd"));
        assert_eq!(roots.path("/lab/n1/etc/motd"), Path::new("/lab/n1/etc/motd"));
        assert_eq!(Roots::real().path("/etc/motd"), Path::new("/etc/motd"));
    }
}
