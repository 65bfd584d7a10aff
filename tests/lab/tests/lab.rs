//! Tests of the lab from outside: fleets start, answer over SSH with a stock client, reboot, and end without a trace.
//!
//! Needs Linux, root (which it also gives up), user namespaces and the OpenSSH client; without these the tests fail
//! and say so.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A running `gpufleet-lab up`.
struct Lab {
    process: Child,
    dir: tempfile::TempDir,
}

impl Lab {
    /// Starts a fleet.
    fn up(arguments: &[&str], faults: &str) -> Self {
        if !Path::new("/usr/bin/ssh").exists() || !rustix::process::geteuid().is_root() {
            panic!("this test needs root and /usr/bin/ssh; `make test` as root installs it");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("faults.yaml");
        std::fs::write(&file, faults).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_gpufleet-lab"))
            .args(["up", "--boot-seconds", "0.2", "--dir"])
            .arg(dir.path().join("fleet"))
            .arg("--faults")
            .arg(&file)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let inventory = lines.next().unwrap().unwrap();
        let path = PathBuf::from(inventory.strip_prefix("inventory: ").unwrap());
        assert!(std::fs::read_to_string(path).unwrap().contains("gpu001"));
        Self { process, dir }
    }

    fn fleet(&self) -> PathBuf {
        self.dir.path().join("fleet")
    }

    fn ssh_command(&self, node: &str, command: &str) -> Command {
        let mut ssh = Command::new("/usr/bin/ssh");
        ssh.arg("-F").arg(self.fleet().join("ssh_config")).args(["-o", "ConnectTimeout=5", node, command]);
        ssh
    }

    fn ssh(&self, node: &str, command: &str) -> Output {
        self.ssh_command(node, command).stdin(Stdio::null()).output().unwrap()
    }

    fn text(&self, node: &str, command: &str) -> String {
        let output = self.ssh(node, command);
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Copies the NVML client to a node.
    fn install_probe(&self, node: &str) {
        let probe =
            Path::new(env!("CARGO_BIN_EXE_gpufleet-lab")).with_file_name("examples").join("nvml_probe");
        let mut child = self
            .ssh_command(node, "cat > /usr/local/bin/probe && chmod 755 /usr/local/bin/probe")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&std::fs::read(probe).unwrap()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    fn probe(&self, node: &str, calls: &str) -> Vec<String> {
        self.text(node, &format!("probe {calls}")).lines().map(str::to_owned).collect()
    }

    fn log(&self, node: &str, file: &str) -> Vec<Value> {
        let path = self.fleet().join("nodes").join(node).join(file);
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn reboot(&self, node: &str) {
        let before = self.text(node, "cat /proc/sys/kernel/random/boot_id");
        self.ssh(node, "systemctl reboot");
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.ssh(node, "cat /proc/sys/kernel/random/boot_id");
            if output.status.success() && String::from_utf8_lossy(&output.stdout).trim() != before {
                return;
            }
            assert!(Instant::now() < limit, "{node} did not come back");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn end(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.process.id() as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status:?}");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|done| done.is_none()) {
            self.end();
        }
    }
}

#[test]
fn a_fleet_answers_and_ends_without_a_trace() {
    let mut lab = Lab::up(&["--nodes", "2", "--gpus-per-node", "2", "--gpu", "a100-80gb,h100-80gb"], "");
    assert_eq!(lab.text("gpu001", "hostname"), "gpu001");
    assert!(lab.text("gpu001", "nvidia-smi -L").contains("A100"));
    assert!(lab.text("gpu002", "nvidia-smi -L").contains("H100"));
    let output = lab.ssh("gpu001", "echo out; echo err >&2; exit 7");
    assert_eq!(
        (output.status.code(), &*output.stdout, &*output.stderr),
        (Some(7), &b"out\n"[..], &b"err\n"[..])
    );
    assert_eq!(
        lab.text("gpu002", "systemctl is-active cron nvidia-persistenced || true"),
        "active\ninactive"
    );
    lab.text("gpu001", "sysctl -w vm.swappiness=3");
    assert_eq!(lab.text("gpu001", "cat /proc/sys/vm/swappiness"), "3");
    assert_ne!(lab.text("gpu002", "cat /proc/sys/vm/swappiness"), "3");
    let inits: Vec<String> = ["gpu001", "gpu002"]
        .iter()
        .map(|node| std::fs::read_to_string(lab.fleet().join("nodes").join(node).join("init.pid")).unwrap())
        .collect();
    lab.end();
    for pid in inits {
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "process {pid} is left");
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(lab.fleet().to_str().unwrap()), "a mount is left");
}

#[test]
fn pending_becomes_current_at_a_reboot_and_hopper_forgets_mig() {
    let lab = Lab::up(&["--nodes", "2", "--gpus-per-node", "1", "--gpu", "a100-80gb,h100-80gb"], "");
    for (node, survives) in [("gpu001", "1 1"), ("gpu002", "0 0")] {
        lab.install_probe(node);
        assert_eq!(
            lab.probe(node, "set_ecc:0:0 ecc:0 set_mig:0:1 mig:0 create:0:9:4 compute:0:2:2 instances:0:9"),
            // On Ampere, MIG's reset inside of the call makes the pending ECC mode current too.
            ["0 init", "0", "0 1 0", "0 0", "0 1 1", "0", "0", "0 1"]
        );
        assert!(lab.text(node, "nvidia-smi -L").contains("MIG 3g.40gb"));
        lab.reboot(node);
        assert_eq!(
            lab.probe(node, "ecc:0 mig:0"),
            ["0 init".to_owned(), "0 0 0".to_owned(), format!("0 {survives}")]
        );
        assert!(!lab.text(node, "nvidia-smi -L").contains("MIG 3g"));
        let setters: Vec<String> =
            lab.log(node, "setters.jsonl").iter().map(|l| l["function"].to_string()).collect();
        assert_eq!(setters.len(), 4, "{setters:?}");
        assert_eq!(lab.log(node, "events.jsonl").iter().filter(|l| l["what"] == "boot").count(), 2);
    }
}

#[test]
fn whoever_holds_a_gpu_blocks_its_reset() {
    let lab = Lab::up(&["--nodes", "1", "--gpus-per-node", "2"], "");
    lab.install_probe("gpu001");
    let begun = "until grep -q init /tmp/said; do sleep 0.05; done";
    lab.text("gpu001", &format!("probe sleep:600000 >/tmp/said 2>&1 & echo $! > /tmp/pid; {begun}"));
    let refused = lab.ssh("gpu001", "nvidia-smi -r -i 0");
    assert_eq!(refused.status.code(), Some(255));
    assert!(String::from_utf8_lossy(&refused.stdout).contains("In use by another client"));
    let gone = "while readlink /proc/$p/exe >/dev/null; do sleep 0.05; done";
    lab.text("gpu001", &format!("p=$(cat /tmp/pid); kill $p; {gone}; nvidia-smi -r -i 0"));

    lab.text("gpu001", "systemctl start nvidia-persistenced");
    assert_eq!(lab.ssh("gpu001", "nvidia-smi --gpu-reset -i 1").status.code(), Some(255));
    // Persistence is switched off for one GPU through the daemon, which keeps the others.
    assert_eq!(lab.probe("gpu001", "persistence:1:0"), ["0 init", "0"]);
    lab.text("gpu001", "nvidia-smi --gpu-reset -i 1");
    assert_eq!(lab.ssh("gpu001", "nvidia-smi --gpu-reset -i 0").status.code(), Some(255));
    let resets: Vec<Value> =
        lab.log("gpu001", "events.jsonl").into_iter().filter(|line| line["what"] == "gpu-reset").collect();
    assert_eq!(resets.iter().filter(|line| line["detail"]["refused"].is_null()).count(), 2);
}

#[test]
fn a_power_limit_is_lost_with_the_last_client() {
    let lab = Lab::up(&["--nodes", "1", "--gpus-per-node", "1"], "");
    lab.install_probe("gpu001");
    assert_eq!(lab.probe("gpu001", "set_power:0:500000 power:0")[2], "0 500000");
    assert_eq!(lab.probe("gpu001", "power:0")[1], "0 700000");
    assert_eq!(lab.probe("gpu001", "persistence:0:1 set_power:0:500000 set_power:0:1")[3], "2");
    assert_eq!(lab.probe("gpu001", "power:0")[1], "0 500000");
}

#[test]
fn faults_do_what_they_say() {
    let faults = r#"
- {nodes: gpu001, function: nvmlDeviceSetEccMode, nth: 1, effect: {return: 999}}
- {nodes: gpu001, function: nvmlDeviceSetPowerManagementLimit, effect: lie}
- {nodes: gpu002, function: "nvmlInit*", effect: hang}
- {nodes: gpu003, effect: no_driver}
- {nodes: gpu004, effect: lib_mismatch}
- {nodes: gpu005, effect: {rc_noise: "welcome to gpu005\n"}}
- {nodes: gpu005, effect: tmp_noexec}
- {nodes: gpu006, effect: refuse_ssh}
- {nodes: gpu007, effect: never_boot}
- {nodes: gpu007, program: nvidia-smi, args: "-L", effect: {exit: {code: 9, message: no}}}
- {nodes: gpu008, effect: host_key_changed}
- {nodes: gpu009, effect: disk_full}
- {nodes: gpu010, function: nvmlDeviceGetCount_v2, effect: segv}
"#;
    let lab = Lab::up(&["--nodes", "10", "--gpus-per-node", "1"], faults);
    for node in ["gpu001", "gpu002", "gpu003", "gpu004", "gpu010"] {
        lab.install_probe(node);
    }
    assert_eq!(
        lab.probe("gpu001", "set_ecc:0:0 set_ecc:0:0 ecc:0 set_power:0:500000 power:0"),
        ["0 init", "999", "0", "0 1 0", "0", "0 700000"]
    );
    assert_eq!(lab.ssh("gpu002", "timeout -s KILL 0.5 probe count").status.code(), Some(137));
    assert!(lab.probe("gpu003", "count")[0].starts_with("12 "));
    assert_eq!(lab.ssh("gpu003", "nvidia-smi").status.code(), Some(127));
    assert_eq!(lab.probe("gpu004", "count"), ["18 init"]);
    assert_eq!(lab.text("gpu005", "echo hello"), "welcome to gpu005\nhello");
    assert_eq!(lab.ssh("gpu005", "cp /bin/true /tmp/t && /tmp/t").status.code(), Some(126));
    let refused = lab.ssh("gpu006", "true");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("refused"), "{refused:?}");
    assert_eq!(lab.ssh("gpu007", "nvidia-smi -L").status.code(), Some(9));
    lab.ssh("gpu007", "reboot");
    let limit = Instant::now() + Duration::from_secs(60);
    while lab.ssh("gpu007", "true").status.success() {
        assert!(Instant::now() < limit, "it does not go down");
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(lab.ssh("gpu007", "true").status.code(), Some(255), "it does not come back");
    let changed = lab.ssh("gpu008", "true");
    assert!(String::from_utf8_lossy(&changed.stderr).contains("Host key verification failed"), "{changed:?}");
    assert!(!lab.ssh("gpu009", "echo more > /var/lib/x").status.success());
    assert_eq!(lab.ssh("gpu010", "probe count").status.code(), Some(139));
}

#[test]
fn a_node_can_die_freeze_and_stay_silent() {
    let faults = r#"
- {nodes: gpu001, function: nvmlDeviceSetEccMode, effect: vanish}
- {nodes: gpu002, program: nvidia-smi, args: "-r", effect: freeze}
- {nodes: gpu003, effect: hang_handshake}
- {nodes: gpu004, effect: {ssh_banner: "authorised use only\n"}}
- {nodes: gpu004, effect: reboot_ignored}
- {nodes: gpu005, effect: auth_refused}
- {nodes: gpu005, effect: no_reset}
"#;
    let lab = Lab::up(&["--nodes", "5", "--gpus-per-node", "1"], faults);
    lab.install_probe("gpu001");
    let started = Instant::now();
    assert_eq!(lab.ssh("gpu001", "probe set_ecc:0:0").status.code(), Some(255));
    assert!(started.elapsed() < Duration::from_secs(60), "the connection dies with the node");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(lab.ssh("gpu001", "true").status.code(), Some(255), "and the node does not come back");
    let mut frozen = lab.ssh_command("gpu002", "nvidia-smi -r").stdin(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(frozen.try_wait().unwrap().is_none(), "the connection is open and silent");
    frozen.kill().unwrap();
    frozen.wait().unwrap();
    let started = Instant::now();
    assert_eq!(lab.ssh("gpu003", "true").status.code(), Some(255));
    assert!(started.elapsed() > Duration::from_secs(4), "the handshake hangs until the client gives up");
    let banner = Command::new("/usr/bin/ssh")
        .arg("-F")
        .arg(lab.fleet().join("ssh_config"))
        .args(["-o", "LogLevel=INFO", "gpu004", "echo clean"])
        .output()
        .unwrap();
    assert_eq!(banner.stdout, b"clean\n");
    assert!(String::from_utf8_lossy(&banner.stderr).contains("authorised use only"), "{banner:?}");
    let boot_id = lab.text("gpu004", "cat /proc/sys/kernel/random/boot_id; reboot");
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!(lab.text("gpu004", "cat /proc/sys/kernel/random/boot_id"), boot_id);
    assert!(String::from_utf8_lossy(&lab.ssh("gpu005", "true").stderr).contains("Permission denied"));
}

#[test]
fn real_openssh_daemons_serve_the_same_nodes() {
    assert!(Path::new("/usr/sbin/sshd").exists(), "this test needs openssh-server; `make test` installs it");
    let lab = Lab::up(&["--nodes", "3", "--gpus-per-node", "1", "--sshd", "openssh"], "");
    for node in ["gpu001", "gpu002", "gpu003"] {
        assert_eq!(lab.text(node, "hostname; id -u; echo $HOME"), format!("{node}\n0\n/root"));
    }
    lab.reboot("gpu002");
    assert!(lab.text("gpu002", "nvidia-smi -L").contains("H100"));
}

#[test]
fn users_without_rights_may_become_root() {
    let lab = Lab::up(&["--nodes", "1", "--gpus-per-node", "1"], "");
    let run = |user: &str, command: &str| {
        Command::new("/usr/bin/ssh")
            .arg("-F")
            .arg(lab.fleet().join("ssh_config"))
            .args(["-l", user, "gpu001", command])
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert_eq!(text(&run("ops", "id -u; sudo -n id -u")), "1000\n0");
    assert_eq!(run("admin", "sudo -n id -u").status.code(), Some(1));
    assert_eq!(text(&run("admin", "echo lab | sudo -k -S -p '' id -u")), "0");
    assert_eq!(run("ops", "nvidia-smi -r -i 0").status.code(), Some(4));
}

#[test]
fn services_and_the_boot_loader_behave() {
    let lab = Lab::up(&["--nodes", "1", "--gpus-per-node", "1"], "");
    let unit = "[Unit]\nDescription=x\n[Service]\nType=forking\nEnvironment=CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/log\n\
                ExecStart=/usr/bin/nvidia-cuda-mps-control -d\nExecStop=/bin/sh -c 'echo quit | nvidia-cuda-mps-control'\n\
                [Install]\nWantedBy=multi-user.target\n";
    lab.text("gpu001", &format!("printf %s \"{unit}\" > /etc/systemd/system/mps.service; systemctl daemon-reload; systemctl enable --now mps"));
    let ask = "echo get_default_active_thread_percentage | CUDA_MPS_PIPE_DIRECTORY=/tmp/mps nvidia-cuda-mps-control";
    assert_eq!(lab.text("gpu001", ask), "100.0");
    assert!(
        lab.text("gpu001", "systemctl show -p ActiveState,UnitFileState,MainPID mps")
            .contains("ActiveState=active")
    );
    lab.text("gpu001", "sed -i 's/quiet/quiet iommu=pt/' /etc/default/grub && update-grub 2>/dev/null; echo 'vm.swappiness = 5' > /etc/sysctl.d/90.conf");
    lab.text("gpu001", "echo kept > /var/lib/kept; echo lost > /run/lost");
    lab.reboot("gpu001");
    assert!(lab.text("gpu001", "cat /proc/cmdline").ends_with("quiet iommu=pt"));
    assert_eq!(
        lab.text("gpu001", "cat /proc/sys/vm/swappiness /var/lib/kept; ls /run/lost 2>/dev/null || true"),
        "5\nkept"
    );
    assert_eq!(lab.text("gpu001", ask), "100.0", "an enabled unit runs after the boot");
    let started = Instant::now();
    lab.text("gpu001", "systemctl stop mps");
    // Before processes that do not end are killed.
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(lab.ssh("gpu001", "systemctl is-active mps").status.code(), Some(3));
    assert_eq!(lab.ssh("gpu001", "systemctl start nowhere").status.code(), Some(5));
    let ctl = Command::new(env!("CARGO_BIN_EXE_gpufleet-lab"))
        .args(["ctl", "--dir"])
        .arg(lab.fleet())
        .args(["gpu001", "client", "add", "0", "4096"])
        .output()
        .unwrap();
    assert!(ctl.status.success(), "{ctl:?}");
    assert_eq!(lab.ssh("gpu001", "nvidia-smi -r -i 0").status.code(), Some(255));
}

#[test]
fn a_fleet_runs_without_root_where_user_namespaces_are_allowed() {
    use std::os::unix::process::CommandExt as _;
    let allowed = Command::new("/usr/bin/unshare").args(["-Ur", "true"]).uid(65534).gid(65534).status();
    if !rustix::process::geteuid().is_root() || !allowed.is_ok_and(|status| status.success()) {
        panic!(
            "this test needs root, to give it up, and user namespaces (sysctl kernel.unprivileged_userns_clone)"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_gpufleet-lab"));
    let library =
        [program.with_file_name("libnvml_sim.so"), program.with_file_name("deps").join("libnvml_sim.so")]
            .into_iter()
            .find(|path| path.exists())
            .unwrap();
    std::fs::copy(&program, dir.path().join("gpufleet-lab")).unwrap();
    std::fs::copy(library, dir.path().join("libnvml_sim.so")).unwrap();
    let output = Command::new(dir.path().join("gpufleet-lab"))
        .args(["exec", "--nodes", "1", "--gpus-per-node", "2", "--boot-seconds", "0.2", "--dir"])
        .arg(dir.path().join("fleet"))
        .args(["--", "/bin/sh", "-c"])
        .arg("S=\"ssh -F $GPUFLEET_LAB_DIR/ssh_config gpu001\"; $S 'id -u; nvidia-smi -L | wc -l; reboot'; sleep 2; $S uname -n")
        .env("HOME", dir.path())
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n2\ngpu001\n", "{output:?}");
}

#[test]
fn the_real_machine_can_be_served_too() {
    let output = Command::new(env!("CARGO_BIN_EXE_gpufleet-lab"))
        .args(["exec", "--real-host", "--", "/bin/sh", "-c"])
        .arg("ssh -F $GPUFLEET_LAB_DIR/ssh_config real 'id -u; cat /proc/sys/kernel/random/boot_id'")
        .output()
        .unwrap();
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let expected = format!("{}\n{boot_id}", rustix::process::getuid().as_raw());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn exec_passes_the_inventory_and_the_exit_status() {
    let output = Command::new(env!("CARGO_BIN_EXE_gpufleet-lab"))
        .args(["exec", "--nodes", "1", "--gpus-per-node", "1", "--", "/bin/sh", "-c"])
        .arg("grep -q gpu001 $GPUFLEET_INVENTORY && test -d $GPUFLEET_LAB_DIR/nodes/gpu001 && exit 42")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(42), "{output:?}");
}

#[test]
fn bad_arguments_are_explained() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_gpufleet-lab")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(&["up", "--gpu", "h300"]).contains("known: a100-80gb, h100-80gb, h200-141gb"));
    assert!(run(&["up", "--nvml-lib", "/nowhere.so"]).contains("cargo build -p nvml-sim"));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("precious"), "x").unwrap();
    assert!(run(&["up", "--dir", dir.path().to_str().unwrap()]).contains("is not empty"));
    let faults = dir.path().join("faults.yaml");
    std::fs::write(&faults, "- nodes: gpu001\n  effect: explode\n").unwrap();
    let text = run(&["up", "--faults", faults.to_str().unwrap()]);
    assert!(text.contains("explode") && text.contains("faults.yaml"), "{text}");
}
