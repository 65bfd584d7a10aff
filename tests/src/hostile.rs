//! Hostile nodes: one real sshd on loopback with a port for each of them, which runs `gpufleet-hostile-node`.

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use gpufleet_ports::{Ports, ReservedPort};

use crate::{Home, binary};

/// Largest number of ports of one sshd.
const SOCKETS: usize = 16;

/// Hostile nodes, and a healthy one that is this machine itself.
pub struct HostileFleet {
    sshd: Vec<Child>,
    _dir: tempfile::TempDir,
    _ports: Vec<ReservedPort>,
}

impl HostileFleet {
    /// Starts a node `bad001` and so on for each mode, and writes `inventory.yaml` and the client's files into the
    /// home. With `well`, a host of that name is this machine.
    ///
    /// # Panics
    /// If sshd cannot be started, with its output.
    pub fn start(home: &Home, modes: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("gpufleet-hostile-").tempdir().expect("a temporary folder");
        let root = dir.path();
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).expect("a folder that sshd may enter");
        fs::create_dir(root.join("modes")).expect("a folder");
        let mut search = Ports::default();
        let ports: Vec<ReservedPort> = modes.iter().map(|_| search.reserve().expect("a free port")).collect();
        let (host_key, key) = (keygen(root, "host"), keygen(root, "id"));
        let public = |path: &str| fs::read_to_string(root.join(path)).expect("a public key");
        fs::write(root.join("authorized_keys"), public("id.pub")).expect("a file");
        let known: Vec<&str> = public("host.pub").leak().split(' ').take(2).collect();
        let program = binary("gpufleet-hostile-node");
        let config = format!(
            "ListenAddress 127.0.0.1\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\nMaxStartups 500\nMaxSessions 100\n\
             AuthorizedKeysFile {0}/authorized_keys\nHostKey {host_key}\nForceCommand \"{1}\" {0}/modes\n",
            root.display(),
            program.display(),
        );
        let mut hosts = String::new();
        let mut known_hosts = String::new();
        for ((number, mode), port) in (1..).zip(modes).zip(&ports) {
            let port = port.number();
            fs::write(root.join("modes").join(port.to_string()), mode).expect("a file");
            hosts.push_str(&format!(
                "    bad{number:03}: {{ansible_host: 127.0.0.1, ansible_port: {port}}}\n"
            ));
            known_hosts.push_str(&format!("[127.0.0.1]:{port} {}\n", known.join(" ").trim()));
        }
        fs::write(root.join("known_hosts"), known_hosts).expect("a file");
        home.write(
            "inventory.yaml",
            &format!(
                "bad:\n  vars:\n    ansible_user: root\n    ansible_ssh_private_key_file: {key}\n    ansible_ssh_common_args: \
                 -o UserKnownHostsFile={0}/known_hosts -F none\n  hosts:\n{hosts}\
                 good:\n  hosts:\n    well: {{ansible_connection: local}}\n",
                root.display()
            ),
        );
        fs::create_dir_all("/run/sshd").expect("sshd's folder: these tests run as root, as the lab's do");
        let daemon = |(number, ports): (usize, &[ReservedPort])| {
            let listens: String = ports.iter().map(|port| format!("Port {}\n", port.number())).collect();
            let path = root.join(format!("sshd_config{number}"));
            fs::write(&path, format!("{config}{listens}")).expect("a file");
            started(&path, &root.join(format!("log{number}")), ports)
        };
        let sshd = ports.chunks(SOCKETS).enumerate().map(daemon).collect();
        Self { sshd, _dir: dir, _ports: ports }
    }
}

impl Drop for HostileFleet {
    fn drop(&mut self) {
        for sshd in &mut self.sshd {
            let _ = sshd.kill();
            let _ = sshd.wait();
        }
    }
}

fn keygen(dir: &Path, name: &str) -> String {
    let path = dir.join(name);
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path).status();
    assert!(made.is_ok_and(|status| status.success()), "ssh-keygen makes a key");
    path.display().to_string()
}

/// Starts an sshd and waits until it listens on all its ports.
fn started(config: &Path, log: &Path, ports: &[ReservedPort]) -> Child {
    let places = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"];
    let program = places.into_iter().find(|place| Path::new(place).exists());
    // The full path, because sshd executes itself again and insists on it.
    let mut child = Command::new(program.expect("sshd is installed (`make setup`)"))
        .args(["-D", "-e", "-f"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(log).expect("a log"))
        .spawn()
        .expect("sshd starts");
    let limit = Instant::now() + Duration::from_secs(20);
    for port in ports {
        while TcpStream::connect(("127.0.0.1", port.number())).is_err() {
            let ended = child.try_wait().expect("sshd can be asked");
            let said = || fs::read_to_string(log).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < limit, "sshd does not listen: {ended:?}: {}", said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    child
}
