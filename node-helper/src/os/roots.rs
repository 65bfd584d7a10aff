//! Where the node's trees are: `/`, or a directory that stands for it.
//!
//! Tests and simulated nodes give a directory; every path that a task declares is then looked up below it, so that a
//! rehearsal cannot touch the machine that it runs on. Programs that tasks run still see the real `/`.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Names the directory that stands for `/`.
pub const VARIABLE: &str = "GPUFLEET_ROOT";

/// The root of all paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    root: Option<PathBuf>,
}

impl Roots {
    /// The machine itself.
    pub fn real() -> Self {
        Self::default()
    }

    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: Some(root.into()) }
    }

    pub fn is_real(&self) -> bool {
        self.root.is_none()
    }

    /// Where a declared, absolute path is; a path that is below the root already stays as it is.
    pub fn path(&self, declared: impl AsRef<Path>) -> PathBuf {
        let declared = declared.as_ref();
        match &self.root {
            Some(root) if !declared.starts_with(root) => {
                root.join(declared.strip_prefix("/").unwrap_or(declared))
            }
            _ => declared.to_owned(),
        }
    }

    /// A program of the node by its name.
    ///
    /// Below a stand-in root only programs below that root count: a rehearsal never runs the machine's own
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

    /// A path below `/etc`.
    pub fn etc(&self, rest: &str) -> PathBuf {
        self.path("/etc").join(rest)
    }

    /// A path below `/proc`.
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
