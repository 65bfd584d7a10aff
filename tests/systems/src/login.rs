//! A login node: an sshd on loopback whose sessions use one cluster.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpufleet_ports::{Ports, ReservedPort};
use tempfile::TempDir;

/// The running sshd; dropping it ends it.
pub struct LoginNode {
    folder: TempDir,
    port: ReservedPort,
    child: Child,
}

impl LoginNode {
    /// Starts it; `conf` is `SLURM_CONF` in its sessions.
    ///
    /// # Panics
    /// If sshd is missing or does not listen, with its log.
    pub fn start(conf: &Path) -> Self {
        let folder = TempDir::with_prefix("gflogin").expect("a folder for the login node");
        let path = folder.path();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        std::fs::create_dir_all("/run/sshd").expect("sshd's folder");
        for name in ["host", "client"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(path.join(name))
                .stdin(Stdio::null())
                .status();
            assert!(made.is_ok_and(|status| status.success()), "ssh-keygen: install openssh-client");
        }
        let reserved = Ports::default().reserve().expect("a free port");
        let port = reserved.number();
        let shown = path.display();
        let text = format!(
            "Port {port}\nListenAddress 127.0.0.1\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n\
             PasswordAuthentication no\nAuthorizedKeysFile {shown}/client.pub\nHostKey {shown}/host\nLogLevel INFO\n\
             SetEnv SLURM_CONF={}\n",
            conf.display()
        );
        std::fs::write(path.join("sshd_config"), text).expect("sshd_config");
        let host_key = std::fs::read_to_string(path.join("host.pub")).expect("the host key");
        let known: Vec<&str> = host_key.split_whitespace().take(2).collect();
        std::fs::write(path.join("known_hosts"), format!("[127.0.0.1]:{port} {}\n", known.join(" ")))
            .expect("known_hosts");
        let log = std::fs::File::create(path.join("log")).expect("a log");
        // The full path, because sshd executes itself again and insists on it.
        let child = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(path.join("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("sshd starts: install openssh-server");
        let node = Self { folder, port: reserved, child };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "sshd does not listen: {}", node.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        node
    }

    /// Returns an inventory with this host alone, under a name.
    pub fn inventory(&self, name: &str) -> String {
        let path = self.folder.path().display();
        format!(
            "logins:\n  hosts:\n    {name}:\n      ansible_host: 127.0.0.1\n      ansible_port: {}\n      ansible_user: root\n      \
             ansible_ssh_private_key_file: {path}/client\n      \
             ansible_ssh_common_args: \"-o UserKnownHostsFile={path}/known_hosts\"\n",
            self.port.number()
        )
    }

    /// Returns how many connections were accepted.
    pub fn connections(&self) -> usize {
        self.log().matches("Accepted publickey").count()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for LoginNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
