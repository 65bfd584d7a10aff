//! A signed repository of apt in the network of the machines, made by `tests/systems/nspawn/mirror.sh`.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
        let mirror = Self { _folder: folder, server };
        mirror.await_answer(machines);
        mirror
    }

    /// Waits until the server listens.
    fn await_answer(&self, machines: &Machines) {
        let ask = "import socket; socket.create_connection((\"10.99.0.254\", 8000), 1)";
        let limit = Instant::now() + Duration::from_secs(30);
        let answers = || {
            let mut asked = Command::new("ip");
            asked.args(["netns", "exec", &machines.hub(), "python3", "-c", ask]).stderr(Stdio::null());
            asked.status().is_ok_and(|status| status.success())
        };
        while !answers() {
            assert!(Instant::now() < limit, "the repository's web server does not answer");
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
