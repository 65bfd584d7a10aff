//! Real machines: a systemd as PID 1, an OpenSSH server, a disk that survives a reboot, and a power supply that can
//! fail.
//!
//! Each is a systemd-nspawn container of one file tree (built by `tests/systems/nspawn/tree.sh`), with its own layer
//! on top. The host needs no systemd. Kernel and clock are the host's. The boot id is the machine's own
//! (systemd-nspawn creates one for each boot), and so is everything else that a reboot changes.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpufleet_tests::{Home, binary};
use tempfile::TempDir;

use crate::network::{Network, address};
use crate::power::{Parts, Power, console};
use crate::service::{Boot, boots, most_at_once, outages};

/// Time limit for a boot, with all machines of this test and of three others booting at once.
const BOOT: Duration = Duration::from_secs(120);

/// A set of machines, `node1` and so on, and their network; dropping it ends all.
pub struct Machines {
    // In this order, because machines must end before their network and their disks.
    machines: Vec<Machine>,
    network: Network,
    folder: TempDir,
}

struct Machine {
    name: String,
    folder: PathBuf,
    power: Power,
}

impl Machines {
    /// Boots machines and waits until each accepts a login.
    ///
    /// # Panics
    /// If one does not, with the end of its console.
    pub fn start(count: usize) -> Self {
        Self::start_with(count, |_| {})
    }

    /// Boots machines with prepared disks: `prepare` gets the folder that is mounted over each file tree.
    ///
    /// # Panics
    /// If one does not come up.
    pub fn start_with(count: usize, prepare: impl Fn(&Path)) -> Self {
        Self::start_of(&vec![Release::Bookworm; count], prepare)
    }

    /// As [`Self::start_with`], a machine of each release.
    ///
    /// # Panics
    /// If one does not come up.
    pub fn start_of(releases: &[Release], prepare: impl Fn(&Path)) -> Self {
        let count = releases.len();
        let folder = folder();
        let network = Network::new(count);
        keygen(&folder.path().join("id"));
        let key = fs::read_to_string(folder.path().join("id.pub")).expect("the controller's key");
        let mut known = String::new();
        let mut machines = Vec::new();
        for (number, release) in (1..).zip(releases) {
            let name = format!("node{number}");
            let own = folder.path().join(&name);
            let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a machine's id");
            let uuid = uuid.trim().to_owned();
            furnish(&own, &name, &uuid, &key);
            prepare(&own.join("disk"));
            let host_key = fs::read_to_string(own.join("disk/etc/ssh/ssh_host_ed25519_key.pub"));
            let _ = write!(known, "{} {}", address(number), host_key.expect("the machine's key"));
            let parts = Parts {
                tree: tree(*release),
                folder: own.clone(),
                name: network.machine(number),
                uuid,
                number,
                hub: network.hub(),
            };
            machines.push(Machine { name, folder: own, power: Power::new(parts) });
        }
        fs::write(folder.path().join("known_hosts"), known).expect("the machines' keys");
        let machines = Self { machines, network, folder };
        fs::write(machines.inventory(), machines.inventory_text()).expect("an inventory");
        for machine in &machines.machines {
            machine.power.switch_on();
        }
        for name in machines.names() {
            machines.await_answer(&name);
        }
        machines
    }

    pub fn names(&self) -> Vec<String> {
        self.machines.iter().map(|machine| machine.name.clone()).collect()
    }

    /// Returns the inventory of all machines, in the group `fleet`.
    pub fn inventory(&self) -> String {
        self.folder.path().join("inventory.yaml").display().to_string()
    }

    fn inventory_text(&self) -> String {
        let folder = self.folder.path().display();
        let mut text = format!(
            "all:
  vars:
    ansible_user: root
    ansible_ssh_private_key_file: {folder}/id
    # Why so often: a machine whose power is cut says nothing, and a test does not wait for minutes.
    ansible_ssh_common_args: >-
      -o UserKnownHostsFile={folder}/known_hosts -o ServerAliveInterval=2 -o ServerAliveCountMax=3
fleet:
  hosts:
"
        );
        for (index, machine) in self.machines.iter().enumerate() {
            let _ = writeln!(text, "    {}: {{ansible_host: {}}}", machine.name, address(index + 1));
        }
        text
    }

    /// Returns the network namespace of the controller.
    pub fn hub(&self) -> String {
        self.network.hub()
    }

    /// Prepares `gpufleet` in the network of the machines.
    pub fn gpufleet<'a>(&self, home: &'a Home, arguments: &[&str]) -> gpufleet_tests::Command<'a> {
        home.program(Path::new("ip"), ["netns", "exec", &self.network.hub()])
            .arg(binary("gpufleet"))
            .args(arguments)
    }

    /// Runs a command on a machine with OpenSSH; `None` if it does not answer or the command fails.
    pub fn tried(&self, name: &str, command: &str) -> Option<String> {
        let number = self.number(name);
        let folder = self.folder.path().display();
        let output = Command::new("ip")
            .args(["netns", "exec", &self.network.hub(), "ssh", "-F", "none", "-i", &format!("{folder}/id")])
            .args(["-o", &format!("UserKnownHostsFile={folder}/known_hosts"), "-o", "BatchMode=yes"])
            .args(["-o", "ConnectTimeout=3", "-o", "LogLevel=ERROR", "-l", "root"])
            .args([&address(number), command])
            .stdin(Stdio::null())
            .output()
            .expect("ip can be started");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Returns the output of a command on a machine.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn read(&self, name: &str, command: &str) -> String {
        self.tried(name, command)
            .unwrap_or_else(|| panic!("`{command}` fails on {name}:\n{}", self.console(name)))
    }

    /// Waits until a machine accepts a login and reports that it has started.
    ///
    /// # Panics
    /// If it takes too long.
    #[track_caller]
    pub fn await_answer(&self, name: &str) {
        let deadline = Instant::now() + BOOT;
        while self.tried(name, "test -s /var/log/service").is_none() {
            assert!(Instant::now() < deadline, "{name} does not answer:\n{}", self.console(name));
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Cuts a machine's power silently: nothing on it ends in order, and no connection is closed.
    pub fn cut_power(&self, name: &str) {
        self.machine(name).power.cut();
    }

    pub fn switch_on(&self, name: &str) {
        self.machine(name).power.switch_on();
    }

    /// Makes the machine's next reboot end with the machine off.
    pub fn stay_off_after_reboot(&self, name: &str) {
        self.machine(name).power.stay_off_after_reboot(true);
    }

    /// Undoes [`Self::stay_off_after_reboot`].
    pub fn return_after_reboot(&self, name: &str) {
        self.machine(name).power.stay_off_after_reboot(false);
    }

    /// Waits until a machine is off.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn await_off(&self, name: &str) {
        self.machine(name).power.await_off(BOOT);
    }

    /// Returns the folder that is mounted over the machine's file tree.
    pub fn disk(&self, name: &str) -> PathBuf {
        self.machine(name).folder.join("disk")
    }

    /// Returns a file from the machine's disk.
    pub fn text(&self, name: &str, path: &str) -> Option<String> {
        let path = self.disk(name).join(path.trim_start_matches('/'));
        fs::read_to_string(path).ok()
    }

    /// Returns the boots of a machine, from its own record.
    pub fn boots(&self, name: &str) -> Vec<Boot> {
        boots(&self.text(name, "/var/log/service").unwrap_or_default())
    }

    /// Returns the boot ids in a machine's systemd journal, oldest first.
    pub fn journal_boots(&self, name: &str) -> Vec<String> {
        let text = self.read(name, "journalctl --list-boots --no-pager --quiet");
        let ids = text.lines().filter_map(|line| line.split_whitespace().nth(1));
        ids.filter(|id| id.len() == 32).map(str::to_owned).collect()
    }

    /// Returns when a machine was not in service, from its own record and its power supply's, in milliseconds since
    /// the epoch.
    pub fn outages(&self, name: &str) -> Vec<(u64, u64)> {
        outages(&self.boots(name), &self.machine(name).power.cuts())
    }

    /// Returns the largest number of machines that were out of service at once.
    pub fn most_out_at_once(&self) -> usize {
        let all: Vec<(u64, u64)> = self.names().iter().flat_map(|name| self.outages(name)).collect();
        most_at_once(&all)
    }

    /// Returns the end of a machine's console output.
    pub fn console(&self, name: &str) -> String {
        console(&self.machine(name).folder)
    }

    fn number(&self, name: &str) -> usize {
        let index = self.machines.iter().position(|machine| machine.name == name);
        index.unwrap_or_else(|| panic!("no machine is named {name}")) + 1
    }

    fn machine(&self, name: &str) -> &Machine {
        &self.machines[self.number(name) - 1]
    }
}

/// A Debian that machines run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Debian 12, as small as it can be.
    Bookworm,
    /// Debian 13, with tuned and irqbalance.
    Trixie,
}

/// Returns the path of a release's file tree.
fn tree(release: Release) -> PathBuf {
    let mut tree = std::env::var_os("GPUFLEET_MACHINE_TREE").unwrap_or_else(|| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/systems/tree").into_os_string()
    });
    if release == Release::Trixie {
        tree.push("-trixie");
    }
    let tree = PathBuf::from(tree);
    tree.canonicalize().unwrap_or_else(|error| {
        panic!("the machines' file tree {} ({error}): type `make test-systems`", tree.display())
    })
}

/// Returns a folder whose file system can hold the upper layer of an overlay.
fn folder() -> TempDir {
    const OVERLAY: u64 = 0x794c_7630;
    let folder = tempfile::Builder::new().prefix("gpufleet-machines-").tempdir().expect("a folder");
    let kind = rustix::fs::statfs(folder.path()).expect("the folder's file system").f_type;
    if u64::try_from(kind) != Ok(OVERLAY) {
        return folder;
    }
    tempfile::Builder::new()
        .prefix("gpufleet-machines-")
        .tempdir_in("/dev/shm")
        .expect("a folder in /dev/shm")
}

/// Writes the files that identify a machine.
fn furnish(own: &Path, name: &str, uuid: &str, key: &str) {
    let disk = own.join("disk");
    for path in ["root", "work", "disk/etc/ssh"] {
        fs::create_dir_all(own.join(path)).expect("a machine's folder");
    }
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o755)).expect("a machine's disk");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(disk.join("root/.ssh")).expect("root's home");
    let write = |path: &str, text: &str| fs::write(disk.join(path), text).expect("a machine's file");
    write("root/.ssh/authorized_keys", key);
    write("etc/hostname", &format!("{name}\n"));
    write("etc/machine-id", &format!("{}\n", uuid.replace('-', "")));
    keygen(&disk.join("etc/ssh/ssh_host_ed25519_key"));
}

fn keygen(path: &Path) {
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(path).status();
    assert!(made.is_ok_and(|status| status.success()), "ssh-keygen makes no key: type `make test-systems`");
}
