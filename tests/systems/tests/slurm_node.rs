//! `slurm_node` with a real munged, slurmctld and slurmd, all of them in a node of the lab with eight GPUs.

use gpufleet_ports::Ports;
use gpufleet_tests::{Document, Fleet, FleetOptions, Home};

/// Writes the configuration; the files of a real one lie where packages put them.
fn configure(fleet: &Fleet, node: &str, ports: [u16; 2]) {
    let conf = format!(
        "ClusterName=lab
SlurmctldHost={node}(127.0.0.1)
SlurmUser=root
SlurmctldPort={}
SlurmdPort={}
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmdSpoolDir=/var/spool/gf-slurmd
StateSaveLocation=/var/spool/gf-slurmctld
AuthInfo=socket=/run/gf-munge/sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
GresTypes=gpu
NodeName={node} NodeAddr=127.0.0.1 Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=1024 Gres=gpu:h100:8
PartitionName=train Nodes={node} Default=YES State=UP
",
        ports[0], ports[1]
    );
    // The node has no cgroups: slurmd is kept from looking for them.
    let script = format!(
        "mkdir -p /etc/slurm /var/spool/gf-slurmd /var/spool/gf-slurmctld /run/gf-munge\n\
         cat > /etc/slurm/slurm.conf <<'X'\n{conf}X\n\
         printf '# of the site\\nCgroupPlugin=cgroup/v1\\n' > /etc/slurm/cgroup.conf"
    );
    assert!(fleet.ssh(node, &script).status.success());
}

fn start(fleet: &Fleet, node: &str) {
    let munged = "/usr/sbin/munged --foreground --force --key-file=/etc/slurm/munge.key --socket=/run/gf-munge/sock \
                  --pid-file=/run/gf-munge/pid --log-file=/run/gf-munge/log --seed-file=/run/gf-munge/seed";
    let units =
        [("gf-munge", munged), ("slurmctld", "/usr/sbin/slurmctld -D"), ("slurmd", "/usr/sbin/slurmd -D")];
    let mut script =
        "head -c 128 /dev/urandom > /etc/slurm/munge.key; chmod 600 /etc/slurm/munge.key\n".to_owned();
    for (name, command) in units {
        script +=
            &format!("printf '[Service]\\nExecStart={command}\\n' > /etc/systemd/system/{name}.service\n");
    }
    script += "systemctl start gf-munge; for i in $(seq 50); do [ -S /run/gf-munge/sock ] && break; sleep 0.1; done\n";
    script += "systemctl start slurmctld slurmd";
    let done = fleet.ssh(node, &script);
    assert!(done.status.success(), "{done:?}");
}

fn show(fleet: &Fleet, node: &str) -> String {
    fleet.read(node, &format!("scontrol show node -o {node}"))
}

fn state(fleet: &Fleet, node: &str) -> String {
    let line = show(fleet, node);
    let word = line.split_whitespace().find_map(|word| word.strip_prefix("State="));
    word.unwrap_or_default().trim_end_matches('*').to_owned()
}

fn until(fleet: &Fleet, wanted: &str) {
    for _ in 0..150 {
        if state(fleet, "gpu001") == wanted {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    panic!(
        "not {wanted}: {}\n{}",
        show(fleet, "gpu001"),
        fleet.read("gpu001", "tail -n 20 /var/log/slurm*.log")
    );
}

fn play(home: &Home, fleet: &Fleet, verb: &str, limit: &str, code: i32) -> Document {
    let inventory = fleet.inventory();
    let mut words = vec![verb, "play.yaml", "--format", "json", "-i", &inventory, "--limit", limit];
    words.extend((verb == "run").then_some("--yes"));
    home.gpufleet(words).run().expect(code).document()
}

#[test]
fn slurmd_offers_the_gpus_that_the_node_has() {
    let fleet = Fleet::start(&FleetOptions {
        nodes: 2,
        gpus_per_node: 8,
        faults: "- {nodes: gpu002, effect: {gpu_missing: 3}}\n".to_owned(),
        ..FleetOptions::default()
    });
    let home = Home::new();
    home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  gather_facts: false\n  tasks:\n    - slurm_node: {constrain_devices: true}\n",
    );
    let mut free = Ports::default();
    let ports = [free.reserve().expect("a port"), free.reserve().expect("a port")];
    let numbers = [ports[0].number(), ports[1].number()];
    for node in fleet.names() {
        configure(&fleet, &node, numbers);
    }

    // Before its slurmd runs, only the files are written.
    let planned = play(&home, &fleet, "plan", "gpu001", 0);
    assert!(!fleet.has("gpu001", "etc/slurm/gres.conf"), "a plan changes nothing");
    let done = play(&home, &fleet, "run", "gpu001", 0);
    assert_eq!((planned.stat("gpu001", "changed"), done.stat("gpu001", "changed")), (1, 1));
    // The same as the controller draws; which cores there are depends on the CPUs that this machine gives the lab.
    let inventory = fleet.inventory();
    let drawn = home.gpufleet(["topology", "gpu001", "-i", &inventory]).run().stdout;
    let gres = fleet.text("gpu001", "etc/slurm/gres.conf").expect("gres.conf");
    assert!(gres.lines().count() > 0 && gres.contains("Type=h100 File=/dev/nvidia["), "{gres}");
    for line in gres.lines() {
        assert!(line.contains(" AutoDetect=off "), "{gres}");
        assert!(drawn.contains(&line.replace(" AutoDetect=off", "")), "{line}\n{drawn}");
    }
    assert_eq!(
        fleet.text("gpu001", "etc/slurm/cgroup.conf").as_deref(),
        Some("# of the site\nCgroupPlugin=cgroup/v1\nConstrainDevices=yes\n")
    );
    start(&fleet, "gpu001");
    until(&fleet, "IDLE");
    assert!(show(&fleet, "gpu001").contains("Gres=gpu:h100:8"), "{}", show(&fleet, "gpu001"));
    assert_eq!(play(&home, &fleet, "run", "gpu001", 0).stat("gpu001", "changed"), 0);

    // The shipped playbook does the same with more around it. No limit is raised, because the lab's nodes may not.
    const EXTRA: &str = r#"{"slurm_constrain": false, "slurm_limits": {"LimitNOFILE": 1000}}"#;
    let playbook =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../playbooks/slurm-gpu-node.yaml");
    let shipped = |verb: &str| {
        let words = ["--format", "json", "-i", &inventory, "--limit", "gpu001", "-e", EXTRA];
        let mut command = home.gpufleet([verb]).args(words).arg(&playbook);
        if verb == "run" {
            command = command.arg("--yes");
        }
        command.run().expect(0).document()
    };
    let planned = shipped("plan");
    let done = shipped("run");
    assert_eq!(done.stat("gpu001", "changed"), planned.stat("gpu001", "changed"), "{:#}", done.value());
    assert_eq!(shipped("run").stat("gpu001", "changed"), 0);
    until(&fleet, "IDLE");
    let limits = fleet.read("gpu001", "cat /etc/systemd/system/slurmd.service.d/*.conf");
    assert!(limits.contains("LimitNOFILE=1000"), "{limits}");

    // Somebody changes the type: Slurm takes the node out, and gpufleet repairs what is the node's.
    fleet.ssh("gpu001", "sed -i s/h100/h200/ /etc/slurm/gres.conf; systemctl restart slurmd");
    until(&fleet, "IDLE+DRAIN+INVALID_REG");
    let done = play(&home, &fleet, "run", "gpu001", 0);
    assert_eq!(done.stat("gpu001", "changed"), 1);
    let told = serde_json::to_string(done.node("gpu001")).expect("JSON");
    assert!(told.contains("gres/gpu count reported lower than configured (0 < 8)"), "{told}");
    assert!(told.contains("scontrol update nodename=gpu001 state=resume"), "{told}");
    assert_eq!(state(&fleet, "gpu001"), "IDLE+DRAIN", "the drain is Slurm's, and stays");
    assert!(show(&fleet, "gpu001").contains("Reason=gres/gpu count reported lower"));
    fleet.ssh("gpu001", "scontrol update nodename=gpu001 state=resume");
    until(&fleet, "IDLE");
    assert_eq!(play(&home, &fleet, "run", "gpu001", 0).stat("gpu001", "changed"), 0);

    // A line that slurmd does not take is never left behind.
    fleet.ssh("gpu001", "echo Bogus=1 >> /etc/slurm/gres.conf; sed -i s/h100/h200/ /etc/slurm/gres.conf");
    let before = fleet.text("gpu001", "etc/slurm/gres.conf");
    let failed = play(&home, &fleet, "run", "gpu001", 2);
    assert!(failed.message("gpu001").contains("unrecognized key: Bogus"), "{}", failed.message("gpu001"));
    assert_eq!(fleet.text("gpu001", "etc/slurm/gres.conf"), before);

    fleet.ssh("gpu002", "systemctl reboot");
    while fleet.boots("gpu002") < 2 {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    fleet.await_answer("gpu002");
    // A GPU is missing: nothing is touched, because slurmctld would take the node out.
    let failed = play(&home, &fleet, "run", "gpu002", 2);
    let why = failed.message("gpu002");
    assert!(why.contains("the node has 7 GPUs of type h100") && why.contains("(7 < 8)"), "{why}");
    assert!(!fleet.has("gpu002", "etc/slurm/gres.conf"));
}
