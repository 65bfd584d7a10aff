//! The specification of one node of the lab, which the supervisor passes to the node's first process (`spec.json`).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Which SSH server the nodes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SshServer {
    /// The lab's own, inside the node: small and quick to start.
    Builtin,
    /// /usr/sbin/sshd, one for each node.
    Openssh,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeSpec {
    pub name: String,
    /// The node's directory.
    pub dir: PathBuf,
    /// Directory that all nodes share: the lab's binary, the library, the template of /proc/sys.
    pub share: PathBuf,
    pub port: u16,
    pub ssh_server: SshServer,
    /// Private host key, in OpenSSH format.
    pub host_key: String,
    /// The public key that may log in.
    pub authorized_key: String,
    pub boot_seconds: f64,
    /// Whether a user namespace is needed (the lab does not run as root).
    pub user_namespace: bool,
}

impl NodeSpec {
    pub fn load(dir: &Path) -> std::io::Result<Self> {
        let text = std::fs::read(dir.join("spec.json"))?;
        serde_json::from_slice(&text).map_err(std::io::Error::other)
    }

    pub fn save(&self) -> std::io::Result<()> {
        std::fs::write(
            self.dir.join("spec.json"),
            serde_json::to_vec_pretty(self).map_err(std::io::Error::other)?,
        )
    }

    /// Returns the directory of the node's state, faults and logs; `/run/gpusim` inside the node.
    pub fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    pub fn state_file(&self) -> PathBuf {
        self.state_dir().join("node.json")
    }

    /// Returns the node's changed files, the upper layer of its root.
    pub fn upper(&self) -> PathBuf {
        self.dir.join("upper")
    }
}

/// Where the shared directory is mounted inside a node.
pub const SHARE: &str = "/usr/lib/gpufleet-lab";

/// How the first process of a node ended, as its exit code.
pub mod ending {
    pub const REBOOT: i32 = 10;
    pub const POWER_OFF: i32 = 11;
    pub const VANISHED: i32 = 12;
}
