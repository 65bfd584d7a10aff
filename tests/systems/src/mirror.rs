//! A signed repository of apt in the network of the machines, made by `tests/systems/nspawn/mirror.sh`.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::Machines;

/// A web server with a repository at http://10.99.0.254:8000; dropping it ends both.
pub struct Mirror {
    // Kept until the server has ended.
    _folder: TempDir,
    server: Child,
}

impl Mirror {
    /// Makes a repository of packages (`NAME=VERSION[=PATH:FILE]`) and serves it.
    ///
    /// # Panics
    /// If it cannot be made or served.
    pub fn start(machines: &Machines, packages: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("nspawn/mirror.sh");
        let made =
            Command::new(script).arg(folder.path()).args(packages).output().expect("sh can be started");
        assert!(made.status.success(), "no repository: {}", String::from_utf8_lossy(&made.stderr));
        let server = Command::new("ip")
            .args(["netns", "exec", &machines.hub(), "python3", "-m", "http.server", "8000"])
            .args(["--bind", "10.99.0.254", "--directory"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3 can be started");
        Self { _folder: folder, server }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
