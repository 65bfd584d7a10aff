//! A jump host on loopback: a real sshd in front of a fleet's nodes, which can be frozen.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpufleet_ports::{Ports, ReservedPort};
use rustix::process::{Pid, Signal, kill_process};

use crate::Fleet;

/// Time limit for sshd to listen.
const LISTENS: Duration = Duration::from_secs(20);

/// A running jump host `bastion1`; dropping it ends it.
pub struct JumpHost {
    sshd: Child,
    dir: tempfile::TempDir,
    _port: ReservedPort,
}

impl JumpHost {
    /// Starts one that accepts the fleet's key, and writes the configuration that leads through it.
    ///
    /// # Panics
    /// If OpenSSH is missing, or does not start.
    pub fn before(fleet: &Fleet) -> Self {
        let dir = tempfile::Builder::new().prefix("gpufleet-bastion-").tempdir().expect("a temporary folder");
        let port = Ports::default().reserve().expect("a free port");
        let at = |name: &str| dir.path().join(name);
        let keygen = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(at("host_key"))
            .status()
            .expect("ssh-keygen starts; install it: apt-get install openssh-client");
        assert!(keygen.success(), "ssh-keygen: {keygen}");
        let key = fleet.dir().join("id_ed25519");
        let public = std::fs::read_to_string(key.with_extension("pub")).expect("the fleet's public key");
        write(&at("authorized_keys"), &public);
        let number = port.number();
        write(
            &at("sshd_config"),
            &format!(
                "Port {number}\nListenAddress 127.0.0.1\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n\
                 PermitRootLogin yes\nLogLevel ERROR\nAuthorizedKeysFile {0}\nHostKey {1}\n",
                at("authorized_keys").display(),
                at("host_key").display()
            ),
        );
        let host_key = std::fs::read_to_string(at("host_key.pub")).expect("a host key");
        let known = std::fs::read_to_string(fleet.known_hosts()).expect("known hosts of the fleet");
        write(&fleet.known_hosts(), &format!("{known}[127.0.0.1]:{number} {host_key}"));
        let config = std::fs::read_to_string(fleet.dir().join("ssh_config")).expect("the fleet's ssh_config");
        let route = format!(
            "Host bastion1\n  HostName 127.0.0.1\n  Port {number}\nHost gpu*\n  ProxyJump bastion1\n{config}"
        );
        write(&at("ssh_config"), &route);
        let inventory = std::fs::read_to_string(fleet.inventory()).expect("the fleet's inventory");
        let mut behind = String::new();
        for line in inventory.lines() {
            let name = line.trim().split(':').next().unwrap_or_default();
            match line.contains("ansible_port") {
                true => behind.push_str(&format!("    {name}: {{ansible_host: {name}}}\n")),
                false => behind.push_str(&format!("{line}\n")),
            }
        }
        write(&at("inventory.yaml"), &behind);
        let sshd = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(at("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("sshd starts; install it: apt-get install openssh-server");
        let limit = Instant::now() + LISTENS;
        while TcpStream::connect(("127.0.0.1", number)).is_err() {
            assert!(Instant::now() < limit, "the jump host does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { sshd, dir, _port: port }
    }

    /// Returns the inventory of the fleet behind this host.
    pub fn inventory(&self) -> String {
        self.dir.path().join("inventory.yaml").display().to_string()
    }

    /// Returns the configuration file that leads through it.
    pub fn ssh_config(&self) -> PathBuf {
        self.dir.path().join("ssh_config")
    }

    /// Freezes it: it accepts connections and sends nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it continue.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let mut pids = vec![self.sshd.id()];
        // All descendants, because each connection has processes of its own.
        while let Some(more) = children(&pids) {
            pids.extend(more);
        }
        for pid in pids.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            // A connection may just have ended.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for JumpHost {
    fn drop(&mut self) {
        self.thaw();
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
    }
}

/// Returns further processes whose parents are among these; `None` if there are none.
fn children(of: &[u32]) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // From the end, because the name before it may hold anything.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if !of.contains(&pid) && parent.and_then(|text| text.parse().ok()).is_some_and(|p| of.contains(&p)) {
            found.push(pid);
        }
    }
    (!found.is_empty()).then_some(found)
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
