//! A node: a folder with the files and programs of a system, simulated GPUs, and the effects of a boot.
//!
//! Its behaviour is written from the manuals and not from the code under test.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, Weak},
    time::Duration,
};

use ed25519_dalek::{Signer, SigningKey};
use gpufleet::interpreter::{Action, Fed, Mode, Phase, Work};
use gpufleet_protocol::{
    Disruption, Envelope, NodeOp, OpRequest, OpStatus, Permit, Reply, RunEpoch,
    frame::Decoder,
    hex,
    keep::{KeptState, Seal, Sealed, to_be_signed},
    message::Open,
    nvml::Staged,
    op::{FactsRequest, KeepState, KeptStatus},
    tasks::KeepPresence,
};
use sha2::{Digest as _, Sha512};

use crate::{
    deadline::Deadline,
    gpu::{
        Gpus,
        sim::{Sim, SimGpu, SimMachine},
    },
    keep,
    os::roots::Roots,
    random::Random,
    serve::{channel::Channel, session::Session},
    state::{dir::Place, record::Record},
};

/// Units, modules and parameters that plays use.
pub const UNITS: [&str; 7] =
    ["chronyd.service", "tuned.service", "irqbalance.service", "getty.service", DCGM, NOTEBOOKS, ONCE];
/// Holds every GPU; gpufleet itself stops it if it is in the way.
pub const DCGM: &str = "nvidia-dcgm.service";
/// Runs once at each boot.
pub const ONCE: &str = "tune-gpus.service";
/// One of its processes may hold a GPU until a boot.
const NOTEBOOKS: &str = "jupyter.service";
pub const PARAMETERS: [(&str, &str); 3] =
    [("vm.swappiness", "60"), ("kernel.numa_balancing", "1"), ("net.core.somaxconn", "64")];
const MACHINE: &str = "0123456789abcdef0123456789abcdef";
/// The state directory of root's helper, which the unit of a boot uses too.
const STATE: &str = "var/lib/gpufleet";
/// The folder of transparent huge pages.
const THP: &str = "sys/kernel/mm/transparent_hugepage";
pub const MODULES: [&str; 3] = ["nvme_core", "msr", "nouveau"];
/// The module that a display uses; while it is in use, it holds GPUs up to Ada.
pub const DISPLAY: &str = "nvidia_drm";
pub const MOUNTS: [&str; 2] = ["/mnt/scratch", "/mnt/data"];

const SYSTEMCTL: &str = r#"#!/bin/sh
d=ROOT/units
while :; do case "$1" in --*) [ "$1" = -- ] && { shift; break; }; shift;; *) break;; esac; done
verb=$1; shift
for last; do :; done
if [ $verb = show ]; then
  if [ "$last" = '*' ]; then echo NeedDaemonReload=no; exit 0; fi
  if [ ! -e $d/$last.active ]; then echo Id=$last; echo LoadState=not-found; echo ActiveState=inactive; exit 0; fi
  read a < $d/$last.active; read e < $d/$last.enabled; read m < $d/$last.masked; read p < $d/$last.pulled
  l=loaded; [ $m = yes ] && { l=masked; e=masked; }
  [ $p = - ] && p=
  t=notify; [ $last = tune-gpus.service ] && t=oneshot
  echo "Id=$last
LoadState=$l
ActiveState=$a
SubState=running
UnitFileState=$e
Type=$t
RemainAfterExit=no
Result=success
CanReload=no
NeedDaemonReload=no
WantedBy=$p"
  exit 0
fi
echo "$verb $last" >> ROOT/log
[ -e $d/$last.active ] || { [ $verb = daemon-reload ] && exit 0; echo "no $last" >&2; exit 1; }
read m < $d/$last.masked
read e < $d/$last.enabled
links=ROOT/etc/systemd/system/multi-user.target.wants
case $verb in
start|restart) [ $m = yes ] && { echo masked >&2; exit 1; }; echo active > $d/$last.active;;
stop) echo inactive > $d/$last.active;;
enable) [ $m = yes ] && { echo masked >&2; exit 1; }; echo enabled > $d/$last.enabled; : > $links/$last;;
disable) echo disabled > $d/$last.enabled; rm -f $links/$last;;
mask) echo yes > $d/$last.masked;;
unmask) echo no > $d/$last.masked;;
esac
"#;
const MODPROBE: &str = r#"#!/bin/sh
echo "modprobe $*" >> ROOT/log
p=ROOT/proc/modules
if [ "$1" = -r ]; then grep -v "^$3 " $p > $p.new; mv $p.new $p; exit 0; fi
echo "$2 16384 0 - Live 0x0" >> $p
"#;
const MOUNT: &str = r#"#!/bin/sh
echo "mount $*" >> ROOT/log
case "$*" in *remount*) exit 0;; esac
if [ "$1" = -t ]; then fstype=$2 src=$5 path=$6; else path=$1; set -- $(grep " $path " ROOT/etc/fstab); src=$1 fstype=$3; fi
echo "1 1 0:1 / $path rw - $fstype $src rw" >> ROOT/proc/self/mountinfo
"#;
const UMOUNT: &str = r#"#!/bin/sh
echo "umount $*" >> ROOT/log
p=ROOT/proc/self/mountinfo
grep -v " $1 " $p > $p.new; mv $p.new $p
"#;

/// A fake command that creates a file and logs it.
const STAMP: &str = r#"#!/bin/sh
echo "stamp $1" >> ROOT/log
: > ROOT$1
"#;
const ACCOUNTS: &str = include_str!("../../../node-helper/src/tasks/accounts/stand_in.py");
const APT: &str = include_str!("../../../node-helper/src/tasks/packages/apt/stand_in.py");

/// The controller's end of a session, which serves content to operations.
struct Contents {
    decoder: Decoder,
    session: Arc<OnceLock<Weak<Session>>>,
    blobs: Blobs,
}

type Blobs = Arc<Mutex<HashMap<String, Arc<[u8]>>>>;

impl Write for Contents {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.decoder.feed(bytes);
        while let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
            let message: Option<Envelope<Reply>> = frame.decode().map_err(io::Error::other)?;
            let Some(Reply::NeedBlob { stream, blob }) = message.map(|message| message.body) else {
                continue;
            };
            let content = self.blobs.lock().expect("a lock").get(&blob.sha256).cloned();
            let session = self.session.get().and_then(Weak::upgrade).expect("a session");
            match content {
                Some(content) => {
                    session.streams.data(stream, content.to_vec());
                    session.streams.data(stream, Vec::new());
                }
                None => session.streams.refused(stream, "no such content".to_owned()),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub struct Node {
    dir: tempfile::TempDir,
    pub machine: SimMachine,
    session: Arc<Session>,
    blobs: Blobs,
    /// Units that other units start at boot, whatever the files say.
    starts: BTreeMap<&'static str, bool>,
    /// Modules that the hardware loads.
    hardware: Vec<&'static str>,
    /// The use count of the display's module once it is loaded.
    display: u32,
    verifying: bool,
    pub resets: usize,
    pub reboots: usize,
}

fn holder() -> RunEpoch {
    RunEpoch { run: "PLAN".to_owned(), epoch: 1 }
}

impl Node {
    pub fn new(random: &mut Random) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let machine = SimMachine::new(gpus(random));
        machine.get().roots = Some(Roots::below(dir.path()));
        let blobs = Blobs::default();
        let session = session(&dir, &machine, &blobs);
        let starts = UNITS.iter().chain(&MODULES).map(|name| (*name, random.chance(50))).collect();
        let mut node = Self {
            dir,
            machine,
            session,
            blobs,
            starts,
            hardware: Vec::new(),
            display: 0,
            verifying: false,
            resets: 0,
            reboots: 0,
        };
        node.install(random);
        node
    }

    /// Returns the folder of its files.
    pub fn root(&self) -> String {
        self.dir.path().display().to_string()
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below.trim_start_matches('/'))
    }

    fn write(&self, below: &str, text: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn read(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap_or_default()
    }

    fn install_thp(&self, random: &mut Random) {
        self.write(
            &format!("{THP}/enabled"),
            random.one(&["[always] madvise never\n", "always madvise [never]\n"]),
        );
        self.write(&format!("{THP}/khugepaged/defrag"), random.one(&["0\n", "1\n"]));
        if random.chance(30) {
            let file = random.one(&["a.conf", "gpufleet-thp.conf", "site.conf"]);
            let word = random.one(&["always", "madvise"]);
            self.write(&format!("etc/tmpfiles.d/{file}"), &format!("w /{THP}/enabled - - - - {word}\n"));
        }
    }

    fn install_sources(&self, random: &mut Random) {
        let source =
            random.one(&["", "# deb http://repo.example x main\n", "deb http://repo.example x main\n"]);
        self.write(
            "etc/apt/sources.list",
            &format!("deb http://deb.debian.org/debian bookworm main\n{source}"),
        );
        let section = random.one(&["[other]\nname = other\n", "[cuda]\nname = old\n[other]\nname = other\n"]);
        self.write("etc/yum.repos.d/cuda.repo", section);
        self.write("etc/modprobe.d/blacklist-ansible.conf", random.one(&["", "blacklist nouveau\n"]));
    }

    fn install(&mut self, random: &mut Random) {
        let root = self.dir.path().display().to_string();
        for (place, text) in [
            ("usr/bin/systemctl", SYSTEMCTL),
            ("usr/sbin/modprobe", MODPROBE),
            ("usr/bin/mount", MOUNT),
            ("usr/bin/umount", UMOUNT),
            ("usr/bin/stamp", STAMP),
            ("usr/sbin/groupadd", ACCOUNTS),
            ("usr/sbin/groupmod", ACCOUNTS),
            ("usr/sbin/useradd", ACCOUNTS),
            ("usr/sbin/usermod", ACCOUNTS),
            ("usr/bin/dpkg-query", APT),
            ("usr/bin/dpkg", APT),
            ("usr/bin/apt-cache", APT),
            ("usr/bin/apt-get", APT),
        ] {
            self.write(place, &text.replace("ROOT", &root));
            fs::set_permissions(self.path(place), fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let trainer = if random.chance(30) { "trainer:x:2001:2001::/home/trainer:/bin/sh\n" } else { "" };
        self.write("etc/passwd", &format!("me:x:{uid}:{gid}::/root:/bin/sh\n{trainer}"));
        let group = random.one(&["", "gpu:x:2000:\n", "gpu:x:1999:\n"]);
        self.write("etc/group", &format!("me:x:{gid}:\nvideo:x:44:\ntrainer:x:2001:\n{group}"));
        let shadow = if trainer.is_empty() { "" } else { "trainer:!:20000:0:99999:7:::\n" };
        self.write("etc/shadow", &format!("me:*:1:0:99999:7:::\n{shadow}"));
        self.write("db", if random.chance(40) { "hello 2.1\nchrony-doc 4.3\n" } else { "hello 2.1\n" });
        self.write("pool", "hello 2.1\nchrony-doc 4.3\n");
        self.write("var/lib/apt/lists/lock", "");
        for folder in ["srv", "run"] {
            fs::create_dir_all(self.path(folder)).expect("a folder");
        }
        for path in ["etc/motd", "srv/stamped", "srv/shelled"] {
            if random.chance(30) {
                self.write(path, "old\n");
            }
        }
        self.write("log", "");
        self.write("etc/machine-id", MACHINE);
        // What the helper copies as its own program.
        self.write("proc/self/exe", "the helper");
        self.write_boot_id();
        fs::create_dir_all(self.path("etc/systemd/system/multi-user.target.wants")).expect("a folder");
        for unit in UNITS {
            let states = ["enabled", "disabled", "disabled", "static", "indirect", "enabled-runtime"];
            let state = random.one(&states);
            let masked = matches!(state, "enabled" | "disabled") && random.chance(15);
            let active = !masked && random.chance(50);
            let pulled = if random.chance(20) { "other.target" } else { "-" };
            let (state, masked, active, pulled) = if unit == DCGM {
                // No other state: the effect of a boot on units that hold GPUs is only foreseen for those that a play
                // names.
                let active = self.machine.get().units[DCGM];
                (if active { "enabled" } else { "disabled" }, false, active, "-")
            } else if unit == ONCE {
                (if active { "enabled" } else { "disabled" }, false, false, "-")
            } else {
                (state, masked, active, pulled)
            };
            if unit == NOTEBOOKS && active && random.chance(30) {
                let gpu = &mut self.machine.get().gpus[0];
                // Only there: a GPU that only the client keeps awake forgets values when the client ends.
                let holds = gpu.persistence && gpu.client.is_none();
                if holds {
                    (gpu.client, gpu.client_unit) = (Some(4712), Some(NOTEBOOKS.to_owned()));
                }
            }
            self.write(&format!("units/{unit}.active"), if active { "active\n" } else { "inactive\n" });
            self.write(&format!("units/{unit}.enabled"), &format!("{state}\n"));
            self.write(&format!("units/{unit}.masked"), if masked { "yes\n" } else { "no\n" });
            self.write(&format!("units/{unit}.pulled"), &format!("{pulled}\n"));
            if state == "enabled" {
                self.write(&format!("etc/systemd/system/multi-user.target.wants/{unit}"), "");
            }
        }
        for (name, default) in PARAMETERS {
            let path = format!("proc/sys/{}", name.replace('.', "/"));
            let value = random.one(&[default, "10", "0"]);
            self.write(&path, &format!("{value}\n"));
            if random.chance(30) {
                let file = random.one(&["10-site.conf", "90-gpufleet.conf"]);
                let text = self.read(&format!("etc/sysctl.d/{file}"));
                let value = random.one(&["10", "0", "5"]);
                self.write(&format!("etc/sysctl.d/{file}"), &format!("{text}{name} = {value}\n"));
            }
        }
        // A copy, so that all other random numbers stay the same.
        self.install_thp(&mut random.clone());
        self.install_sources(&mut random.clone());
        self.write("etc/hostname", &format!("{}\n", random.one(&["old", "gpu001"])));
        self.write("proc/sys/kernel/hostname", &format!("{}\n", random.one(&["old", "gpu001", "dhcp-17"])));
        let words = random.one(&["quiet", "quiet iommu=pt", "quiet nouveau.modeset=0"]);
        self.write(
            "etc/default/grub",
            &format!("GRUB_CMDLINE_LINUX_DEFAULT=\"{words}\"\nGRUB_CMDLINE_LINUX=\"\"\n"),
        );
        let running = random.one(&["quiet", "quiet iommu=pt", ""]);
        self.write("proc/cmdline", &format!("BOOT_IMAGE=/vmlinuz root=/dev/sda1 {running}\n"));
        self.write("proc/sys/kernel/osrelease", "6.1\n");
        let mut modules = String::from("nvidia 16384 0 - Live 0x0\n");
        for module in MODULES {
            if random.chance(40) {
                let _ = writeln!(modules, "{module} 16384 0 - Live 0x0");
                if self.starts[module] {
                    self.hardware.push(module);
                }
            }
            if random.chance(20) {
                self.write(&format!("etc/modules-load.d/{module}.conf"), &format!("{module}\n"));
            }
        }
        self.display = self.machine.get().drm;
        if self.display > 0 {
            self.hardware.push(DISPLAY);
            let _ = writeln!(modules, "{DISPLAY} 16384 0 - Live 0x0");
        }
        self.write("proc/modules", &modules);
        let (mut fstab, mut mounted) =
            ("UUID=1 / ext4 defaults 0 1\n".to_owned(), "1 1 0:1 / / rw - ext4 /dev/sda1 rw\n".to_owned());
        for place in MOUNTS {
            let line = random.chance(40);
            if line {
                let opts = random.one(&["defaults", "noauto"]);
                let _ = writeln!(fstab, "tmpfs {place} tmpfs {opts} 0 0");
            }
            if random.chance(40) {
                let _ = writeln!(mounted, "1 1 0:1 / {place} rw - tmpfs tmpfs rw");
                fs::create_dir_all(self.path(place)).expect("a folder");
            }
        }
        self.write("etc/fstab", &fstab);
        self.write("proc/self/mountinfo", &mounted);
        for file in ["etc/limits.conf", "etc/block.conf"] {
            let text = random.one(&["", "* soft memlock 64\n", "# kept\n* hard memlock unlimited\n"]);
            self.write(file, text);
        }
        if random.chance(50) {
            self.write("srv/left", "left\n");
        }
        if random.chance(50) {
            fs::create_dir_all(self.path("run/gpu")).expect("a folder");
        }
    }

    /// Applies the effects of a boot; one `by_itself` asserts what the node keeps, which is otherwise the run's.
    fn reboot(&mut self, by_itself: bool) {
        self.reboots += 1;
        let mut sim = self.machine.get();
        sim.reboot();
        sim.drm = self.display;
        drop(sim);
        for unit in UNITS {
            let get = |what: &str| self.read(&format!("units/{unit}.{what}")).trim().to_owned();
            let mut state = get("enabled");
            if state == "enabled-runtime" {
                "disabled".clone_into(&mut state);
                self.write(&format!("units/{unit}.enabled"), "disabled\n");
            }
            let others = self.starts[unit];
            let active = get("masked") != "yes"
                && match state.as_str() {
                    "enabled" => true,
                    "disabled" => get("pulled") != "-" && others,
                    _ => others,
                };
            let active = active && unit != ONCE;
            self.write(&format!("units/{unit}.active"), if active { "active\n" } else { "inactive\n" });
        }
        for (name, default) in PARAMETERS {
            let mut value = default.to_owned();
            let mut files: Vec<PathBuf> = fs::read_dir(self.path("etc/sysctl.d"))
                .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
                .unwrap_or_default();
            files.sort();
            for file in files {
                for line in fs::read_to_string(file).unwrap_or_default().lines() {
                    if let Some((key, set)) = line.split_once('=')
                        && key.trim() == name
                    {
                        set.trim().clone_into(&mut value);
                    }
                }
            }
            self.write(&format!("proc/sys/{}", name.replace('.', "/")), &format!("{value}\n"));
        }
        for (name, default) in [("enabled", "always [madvise] never"), ("khugepaged/defrag", "1")] {
            let texts = ["a.conf", "gpufleet-thp.conf", "site.conf"]
                .map(|file| self.read(&format!("etc/tmpfiles.d/{file}")));
            let start = format!("w /{THP}/{name} - - - - ");
            let set = texts.iter().flat_map(|text| text.lines()).find_map(|line| line.strip_prefix(&start));
            self.write(&format!("{THP}/{name}"), &format!("{}\n", set.unwrap_or(default)));
        }
        self.write("proc/sys/kernel/hostname", &self.read("etc/hostname"));
        let grub = self.read("etc/default/grub");
        let of = |variable: &str| {
            let line = grub.lines().find_map(|line| line.strip_prefix(variable)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches('"').to_owned()
        };
        let words = format!("{} {}", of("GRUB_CMDLINE_LINUX"), of("GRUB_CMDLINE_LINUX_DEFAULT"));
        self.write("proc/cmdline", &format!("BOOT_IMAGE=/vmlinuz root=/dev/sda1 {}\n", words.trim()));
        let mut modules = String::from("nvidia 16384 0 - Live 0x0\n");
        for module in MODULES.into_iter().chain([DISPLAY]) {
            let told = self.read(&format!("etc/modules-load.d/{module}.conf"));
            if self.hardware.contains(&module) || told.lines().any(|line| line.trim() == module) {
                let _ = writeln!(modules, "{module} 16384 0 - Live 0x0");
            }
        }
        self.write("proc/modules", &modules);
        let mut mounted = "1 1 0:1 / / rw - ext4 /dev/sda1 rw\n".to_owned();
        for line in self.read("etc/fstab").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [src, path, fstype, opts, ..] = words.as_slice()
                && *path != "/"
                && !opts.split(',').any(|option| option == "noauto")
            {
                let _ = writeln!(mounted, "1 1 0:1 / {path} rw - {fstype} {src} rw");
            }
        }
        self.write("proc/self/mountinfo", &mounted);
        let _ = fs::remove_dir_all(self.path("run"));
        fs::create_dir_all(self.path("run")).expect("a folder");
        self.write_boot_id();
        if by_itself {
            self.assert_kept();
        }
        self.tell_gpus();
        self.new_session();
    }

    fn write_boot_id(&self) {
        self.write("proc/sys/kernel/random/boot_id", &format!("boot-{}\n", self.machine.get().boot));
    }

    /// Runs the unit of the kept state, before any of the units that use GPUs.
    fn assert_kept(&self) {
        let running: Vec<String> = {
            let mut sim = self.machine.get();
            let running: Vec<String> =
                sim.units.iter().filter(|(_, runs)| **runs).map(|(unit, _)| unit.clone()).collect();
            running.iter().for_each(|unit| sim.set_unit(unit, false));
            running
        };
        let machine = self.machine.clone();
        keep::assert_on(&Roots::below(self.dir.path()), |settings| {
            Gpus::with_machine(Box::new(machine), settings.record)
        });
        let mut sim = self.machine.get();
        running.iter().for_each(|unit| sim.set_unit(unit, true));
    }

    /// Boots without a run, and returns what concerns people of what it keeps.
    pub fn boot(&mut self) -> Vec<String> {
        self.reboot(true);
        keep::report(&Roots::below(self.dir.path())).map(|report| report.concerns()).unwrap_or_default()
    }

    /// Starts a new helper.
    pub fn new_session(&mut self) {
        self.session = session(&self.dir, &self.machine, &self.blobs);
        self.verifying = false;
    }

    /// Applies the units' and modules' states to the GPUs.
    fn tell_gpus(&self) {
        let mut sim = self.machine.get();
        for unit in [DCGM, NOTEBOOKS] {
            let active = self.read(&format!("units/{unit}.active")).trim() == "active";
            let known = sim.units.get(unit).copied();
            if known.unwrap_or(!active) != active {
                sim.set_unit(unit, active);
            }
        }
        if !self.read("proc/modules").lines().any(|line| line.starts_with(&format!("{DISPLAY} "))) {
            sim.drm = 0;
        }
    }

    /// Applies the GPUs' units, which gpufleet stops and starts, to the unit files.
    fn hear_gpus(&self) {
        let active = if self.machine.get().units[DCGM] { "active\n" } else { "inactive\n" };
        self.write(&format!("units/{DCGM}.active"), active);
    }

    /// Removes a blocker that a plan named.
    pub fn lift(&mut self, blocker: &str) {
        let mut sim = self.machine.get();
        if blocker.contains(DISPLAY) {
            (sim.drm, self.display) = (0, 0);
        } else {
            let of = |pid: u32| blocker.starts_with(&format!("process {pid} "));
            sim.end_clients(|gpu| gpu.client.is_some_and(of));
        }
    }

    /// Returns the ECC and MIG modes that are current, by GPU.
    pub fn modes(&self) -> Vec<(u32, bool, bool)> {
        self.machine.get().gpus.iter().map(|gpu| (gpu.index, gpu.ecc.current, gpu.mig.current)).collect()
    }

    /// Does something to the GPUs that no run does, and says what. Whoever adds another kind of state that others may
    /// change, adds it here.
    pub fn meddle(&mut self, random: &mut Random) -> &'static str {
        let mut sim = self.machine.get();
        match random.below(4) {
            0 => {
                sim.foreign_reset();
                "somebody reset the GPUs"
            }
            1 if sim.persistenced.active => {
                drop(sim);
                self.machine.restart_persistenced();
                "somebody restarted the persistence daemon"
            }
            2 => {
                for gpu in &mut sim.gpus {
                    gpu.ecc.pending = random.chance(50);
                }
                "somebody requested ECC modes"
            }
            _ => {
                for gpu in sim.gpus.iter_mut().filter(|gpu| !gpu.hopper) {
                    gpu.mig.pending = random.chance(50);
                }
                "somebody requested MIG modes"
            }
        }
    }

    /// Returns every call that changes something, and every effect on GPUs, since the last call of this function.
    pub fn setters(&self) -> Vec<String> {
        let mut all: Vec<String> = self.read("log").lines().map(str::to_owned).collect();
        self.write("log", "");
        all.append(&mut std::mem::take(&mut self.machine.get().effects));
        all
    }

    /// Makes the next prediction start from the node as it is.
    pub fn forget(&self) {
        self.session.forget_predictions();
    }

    /// Performs an action of the interpreter, as the engine would.
    pub fn answer(&mut self, action: &Action) -> Fed {
        match &action.work {
            Work::Reboot { .. } => {
                match action.mode {
                    Mode::Predict => {
                        self.session.assume_activation(Disruption::Reboot);
                    }
                    Mode::Apply => self.reboot(false),
                }
                Fed::Rebooted
            }
            Work::Node { op, blobs } => {
                let mut known = self.blobs.lock().expect("a lock");
                known.extend(blobs.iter().map(|need| (need.blob.sha256.clone(), Arc::clone(&need.bytes))));
                drop(known);
                match &**op {
                    NodeOp::KeepState(asked) => {
                        let op = self.with_document(action, asked.clone());
                        self.operate(action, &NodeOp::KeepState(op))
                    }
                    op => self.operate(action, op),
                }
            }
            _ => Fed::Done,
        }
    }

    /// Adds the document that the controller makes when it sends the task.
    fn with_document(&mut self, action: &Action, mut asked: KeepState) -> KeepState {
        if asked.policy.state == KeepPresence::Absent {
            return asked;
        }
        let mut ask = |op| match self.operate(action, &op) {
            Fed::Outcome(outcome) => *outcome,
            other => panic!("{other:?}"),
        };
        let facts = ask(NodeOp::Facts(FactsRequest { gpus: true, ..FactsRequest::default() })).facts;
        let foreseen = action.mode == Mode::Predict;
        let said = ask(NodeOp::KeptStatus(KeptStatus { compare: false, foreseen })).data;
        let former = said.get("sealed").and_then(|sealed| sealed.get("document")?.as_str());
        let former: Option<KeptState> = former.map(|text| serde_json::from_str(text).expect("a document"));
        let gpus = facts.expect("facts").gpu.gpus;
        let kept = KeptState::of(&mut asked, former.as_ref(), MACHINE.to_owned(), &gpus, &holder());
        let document = serde_json::to_string(&kept).expect("a document");
        let key = SigningKey::from_bytes(&[7; 32]);
        let signature = match action.mode {
            Mode::Predict => String::new(),
            Mode::Apply => hex(key.sign(&to_be_signed(&Sha512::digest(document.as_bytes()))).to_bytes()),
        };
        asked.sealed =
            Some(Sealed { document, seal: Seal { key: hex(key.verifying_key().as_bytes()), signature } });
        asked
    }

    fn operate(&mut self, action: &Action, op: &NodeOp) -> Fed {
        let verifies = action.phase() == Phase::Verify;
        if verifies && !self.verifying {
            self.forget();
        }
        self.verifying = verifies;
        let mut request = OpRequest {
            op: op.clone(),
            mode: action.mode,
            permit: None,
            run_as: None,
            timeout_s: 60,
            op_id: action.id.to_string(),
            secret: false,
            environment: Vec::new(),
        };
        loop {
            let open = Open {
                holder: holder(),
                who: "plan".to_owned(),
                writes: true,
                guest: false,
                commands: false,
                own_commands: false,
                login_uid: None,
            };
            let state = self.path(STATE);
            let deadline = Deadline::after(Duration::from_secs(60));
            let outcome = self.session.alone(open, state, &request, &deadline);
            match op {
                NodeOp::GpuGroup(_) => self.hear_gpus(),
                _ => self.tell_gpus(),
            }
            if outcome.activated == Some(Disruption::GpuReset) && action.mode == Mode::Apply {
                self.resets += 1;
            }
            match outcome.status {
                OpStatus::NeedsPermit { class } if request.permit.is_none() => {
                    request.permit = Some(Permit { class, holder: holder(), valid_for_s: 60 });
                }
                _ => return Fed::Outcome(Box::new(outcome)),
            }
        }
    }
}

fn session(dir: &tempfile::TempDir, machine: &SimMachine, blobs: &Blobs) -> Arc<Session> {
    let state = dir.path().join(STATE);
    fs::create_dir_all(&state).expect("a folder");
    let known = Arc::new(OnceLock::new());
    let contents =
        Contents { decoder: Decoder::default(), session: Arc::clone(&known), blobs: Arc::clone(blobs) };
    let session = Session::new(Channel::new(contents), Roots::below(dir.path()), Place::default());
    let gpus = Gpus::with_machine(Box::new(machine.clone()), Record::of(Some(&state)));
    *session.gpus.lock().expect("a lock") = Some(gpus);
    let session = Arc::new(session);
    let _ = known.set(Arc::downgrade(&session));
    session
}

/// Returns GPUs in a possible state: without values that the driver would have forgotten.
fn gpus(random: &mut Random) -> Sim {
    let hopper = random.chance(60);
    // Always on Ampere: without persistence, the call that sets the MIG mode may reset the GPU itself, which no plan
    // relies on.
    let daemon = !hopper || random.chance(40);
    let dcgm = random.chance(60);
    let count = 1 + random.below(3);
    let mut all = Vec::new();
    for index in 0..count {
        let mut gpu = SimGpu::new(u32::try_from(index).unwrap_or(0), hopper);
        let layouts: [&[(u32, u32, u32)]; 4] =
            [&[], &[(19, 0, 1), (19, 3, 1)], &[(9, 0, 4), (9, 4, 4)], &[(0, 0, 8)]];
        if random.chance(35) {
            gpu = gpu.with_instances(random.one(&layouts));
        }
        gpu.ecc = Staged { current: random.chance(60), pending: random.chance(60) };
        gpu.persistence = daemon || random.chance(40);
        gpu.resettable = random.chance(75);
        if gpu.persistence || dcgm {
            gpu.power_mw = random.one(&[700_000, 500_000, 300_000]);
            if !gpu.mig.current {
                gpu.compute_mode = random.one(&[0, 0, 3]);
            }
        }
        all.push(gpu);
    }
    let mut sim = Sim::new(all);
    (sim.persistenced.active, sim.persistenced.enabled) = match daemon {
        true => (true, !hopper || random.chance(70)),
        false => (false, random.chance(20)),
    };
    sim.units.insert("nvidia-dcgm.service".to_owned(), dcgm);
    if random.chance(30) {
        (sim.mps.unit.exists, sim.mps.unit.active, sim.mps.unit.enabled) = (true, true, random.chance(70));
        sim.mps.running = Some(100);
    }
    if random.chance(12) {
        sim.drm = 2;
    }
    if random.chance(8) {
        let at = random.below(count);
        sim.gpus[at].client = sim.gpus[at].persistence.then_some(4711);
    }
    let mut more = random.clone();
    for gpu in &mut sim.gpus {
        if more.chance(10) {
            gpu.recovery_action = Ok(1);
        }
        gpu.accounting = gpu.persistence && !gpu.mig.current && more.chance(30);
        if !gpu.hopper && more.chance(20) {
            gpu.mig.pending = !gpu.mig.current;
        }
    }
    sim
}
