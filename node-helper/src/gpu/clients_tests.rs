use std::os::unix::fs::symlink;

use gpufleet_protocol::{message::IdleVerdict, op::Staying};

use super::*;
use crate::gpu::idle::judge;

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("etc")).unwrap();
        fs::write(
            folder.path().join("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nana:x:1000:1000::/h:/bin/sh\n",
        )
        .unwrap();
        fs::create_dir(folder.path().join("proc")).unwrap();
        Self(folder)
    }

    fn process(&self, pid: u32, command: &str, uid: u32, cgroup: &str, files: &[&str]) -> &Self {
        let folder = self.0.path().join("proc").join(pid.to_string());
        fs::create_dir_all(folder.join("fd")).unwrap();
        let name = command.split(' ').next().unwrap().rsplit('/').next().unwrap();
        let comm: String = name.chars().take(15).collect();
        fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
        fs::write(folder.join("cmdline"), command.replace(' ', "\0")).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        fs::write(folder.join("status"), format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")).unwrap();
        for (number, file) in files.iter().enumerate() {
            symlink(file, folder.join("fd").join(number.to_string())).unwrap();
        }
        self
    }

    fn scan(&self, own: &[u32]) -> Scan {
        let places = Places { proc: self.0.path().join("proc"), etc: self.0.path().join("etc") };
        scan(&places, own, &[], &BTreeMap::from([(0, 0), (1, 1), (7, 2)]), None)
    }
}

#[test]
fn a_training_job_is_named_with_its_gpus_user_and_unit() {
    let node = Node::new();
    node.process(
        41,
        "python train.py",
        1000,
        "/user.slice/session-3.scope",
        &["/dev/nvidia0", "/dev/nvidia7", "/dev/nvidiactl"],
    )
    .process(42, "bash", 1000, "/user.slice/session-3.scope", &["/dev/pts/0"]);
    let report = judge(&node.scan(&[]), &Staying::default(), None);
    assert_eq!(report.verdict, IdleVerdict::Busy);
    assert_eq!(report.reasons, ["process 41 (python train.py, user ana) in session-3.scope holds GPUs 0, 2"]);
}

#[test]
fn the_driver_its_daemons_and_ourselves_are_no_workload() {
    let node = Node::new();
    node.process(
        10,
        "/usr/bin/nvidia-persistenced --user x",
        0,
        "/system.slice/nvidia-persistenced.service",
        &["/dev/nvidia0"],
    )
    .process(11, "/usr/bin/nv-hostengine -n", 0, "/system.slice/nvidia-dcgm.service", &["/dev/nvidia0"])
    .process(12, "gpufleet-nvml", 0, "/user.slice", &["/dev/nvidia0"])
    .process(13, "slurmd -D", 0, "/system.slice/slurmd.service", &[]);
    let scan = node.scan(&[12]);
    assert_eq!(judge(&scan, &Staying::default(), None).verdict, IdleVerdict::Idle);
    assert_eq!(scan.holders.len(), 2);
    assert!(scan.holders.iter().all(|holder| holder.service && holder.open));
}

#[test]
fn a_running_step_makes_a_node_busy_without_a_gpu() {
    let node = Node::new();
    node.process(13, "slurmd -D", 0, "/system.slice/slurmd.service", &[]).process(
        14,
        "slurmstepd: [77.0]",
        0,
        "/system.slice/slurmstepd.scope/job_77/step_0/slurm",
        &[],
    );
    // The kernel keeps the program's name, not the rewritten command line.
    fs::write(node.0.path().join("proc/14/comm"), "slurmstepd\n").unwrap();
    let report = judge(&node.scan(&[]), &Staying::default(), None);
    assert_eq!((report.verdict, report.reasons), (IdleVerdict::Busy, vec!["slurmd runs jobs 77".to_owned()]));
}

#[test]
fn a_container_is_named_as_docker_and_podman_name_it() {
    let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    for (cgroup, name) in [
        (format!("/system.slice/docker-{id}.scope"), Some("Docker container 0123456789ab")),
        (format!("/system.slice/docker-{id}.scope/init.scope"), Some("Docker container 0123456789ab")),
        (format!("/docker/{id}"), Some("Docker container 0123456789ab")),
        (format!("/machine.slice/libpod-{id}.scope/container"), Some("Podman container 0123456789ab")),
        ("/system.slice/docker-abc.scope".to_owned(), Some("docker-abc.scope")),
        (format!("/other/{id}"), None),
    ] {
        assert_eq!(owner(&cgroup).as_deref(), name, "{cgroup}");
    }
}

#[test]
fn pods_count_unless_the_kubelet_made_them() {
    let node = Node::new();
    let fixed = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0123456789abcdef0123456789abcdef.slice/x.scope";
    node.process(20, "kubelet", 0, "/system.slice/kubelet.service", &[]).process(21, "etcd", 0, fixed, &[]);
    assert_eq!(judge(&node.scan(&[]), &Staying::default(), None).verdict, IdleVerdict::Idle);
    let uid = "8a1f0b1e-1111-2222-3333-444455556666";
    let cgroup = format!("/kubepods.slice/kubepods-pod{}.slice/cri-x.scope", uid.replace('-', "_"));
    node.process(22, "pause", 0, &cgroup, &[]);
    let report = judge(&node.scan(&[]), &Staying::default(), None);
    assert_eq!(
        (report.verdict, report.reasons),
        (IdleVerdict::Busy, vec![format!("the kubelet runs pod {uid}")])
    );
    let staying = |pods: &[&str], may_hold_gpus| Staying {
        pods: pods.iter().map(ToString::to_string).collect(),
        may_hold_gpus,
    };
    let verdict = |staying: &Staying| judge(&node.scan(&[]), staying, None).verdict;
    assert_eq!(verdict(&staying(&[uid], false)), IdleVerdict::Idle);
    assert_eq!(verdict(&staying(&["another"], true)), IdleVerdict::Busy);
    // A pod that stays and holds GPUs blocks everything but a reboot.
    node.process(23, "nvidia-device-plugin", 0, &cgroup, &["/dev/nvidiactl"]);
    assert_eq!(verdict(&staying(&[uid], false)), IdleVerdict::Busy);
    assert_eq!(verdict(&staying(&[uid], true)), IdleVerdict::Idle);
    assert_eq!(verdict(&staying(&[], true)), IdleVerdict::Busy);
}

#[test]
fn what_cannot_be_seen_is_unknown_and_not_idle() {
    let node = Node::new();
    let scan = node.scan(&[]);
    assert_eq!(
        judge(&scan, &Staying::default(), Some("NVML did not answer in 10 s (worker killed)".to_owned()))
            .verdict,
        IdleVerdict::Unknown
    );
    let places = Places { proc: "/no/such".into(), etc: "/etc".into() };
    let blind = super::scan(&places, &[], &[], &BTreeMap::new(), None);
    assert_eq!(judge(&blind, &Staying::default(), None).verdict, IdleVerdict::Unknown);
}

#[test]
fn device_files_of_no_single_gpu_count_too() {
    for file in [
        "/dev/nvidia-modeset",
        "/dev/nvidia-nvswitch0",
        "/dev/nvidia-nvswitchctl",
        "/dev/nvidia-caps/nvidia-cap21",
        "/dev/nvidia-caps-imex-channels/channel0",
        "/dev/nvidia-uvm",
    ] {
        let node = Node::new();
        node.process(41, "Xorg :0", 1000, "/user.slice", &[file]);
        let report = judge(&node.scan(&[]), &Staying::default(), None);
        assert_eq!(
            report.reasons,
            ["process 41 (Xorg :0, user ana) holds the driver's control device"],
            "{file}"
        );
    }
    let node = Node::new();
    node.process(41, "sh", 1000, "/user.slice", &["/dev/nvidiafs0", "/dev/nvme0"]);
    assert!(node.scan(&[]).holders.is_empty());
}

#[test]
fn a_worker_of_ours_is_a_reader_and_no_workload_unless_somebody_else_took_its_name() {
    let node = Node::new();
    node.process(41, "gpufleet-nvml", 0, "/user.slice", &["/dev/nvidia0"]).process(
        42,
        "gpufleet-nvml",
        1000,
        "/user.slice",
        &["/dev/nvidia1"],
    );
    let scan = node.scan(&[]);
    assert_eq!(scan.readers().map(|client| client.pid).collect::<Vec<_>>(), [41]);
    assert_eq!(scan.workloads().map(|client| client.pid).collect::<Vec<_>>(), [42]);
}

#[test]
fn a_unit_inside_of_a_container_or_of_a_user_is_none_of_the_nodes() {
    let id = "b".repeat(64);
    let node = Node::new();
    let inside = [
        format!("/system.slice/docker-{id}.scope/system.slice/nvidia-dcgm.service"),
        "/machine.slice/machine-guest.scope/payload/system.slice/nvidia-dcgm.service".to_owned(),
        "/system.slice/systemd-nspawn@guest.service/payload/system.slice/nvidia-dcgm.service".to_owned(),
        "/user.slice/user-1000.slice/user@1000.service/app.slice/nvidia-dcgm.service".to_owned(),
    ];
    for (pid, cgroup) in (30..).zip(&inside) {
        node.process(pid, "nv-hostengine", 4711, cgroup, &["/dev/nvidia0"]);
    }
    let scan = node.scan(&[]);
    let owners: Vec<&str> = scan.workloads().filter_map(|client| client.unit.as_deref()).collect();
    assert_eq!(
        owners,
        [
            "Docker container bbbbbbbbbbbb",
            "machine-guest.scope",
            "systemd-nspawn@guest.service",
            "nvidia-dcgm.service of user@1000.service",
        ],
        "all of them work on the GPUs"
    );
    assert_eq!(unit("/system.slice/nvidia-dcgm.service"), Some("nvidia-dcgm.service"));
}

#[test]
fn a_unit_below_what_systemd_did_not_make_is_none_of_the_nodes() {
    let node = Node::new();
    let id = "c".repeat(64);
    let uid = "0".repeat(32);
    let inside = [
        "/lxc.payload.c1/system.slice/nvidia-dcgm.service".to_owned(),
        format!("/docker/{id}/system.slice/nvidia-mps.service"),
        format!("/kubepods/besteffort/pod{uid}/{id}/system.slice/nvidia-dcgm.service"),
    ];
    for (pid, cgroup) in (30..).zip(&inside) {
        assert_eq!(unit(cgroup), None, "{cgroup}");
        node.process(pid, "nv-hostengine", 0, cgroup, &["/dev/nvidia0"]);
    }
    assert_eq!(node.scan(&[]).workloads().count(), inside.len());
    assert_eq!(unit("/system.slice/system-x.slice/x@1.service"), Some("x@1.service"));
    assert_eq!(unit("/init.scope"), Some("init.scope"));
}

#[test]
fn a_user_with_the_name_of_a_program_of_the_driver_works_on_the_gpus() {
    let node = Node::new();
    for (pid, uid) in [(50, 1000), (51, 998), (52, 0)] {
        node.process(pid, "/opt/nv-fabricmanager", uid, "/user.slice/session-3.scope", &["/dev/nvidia0"]);
    }
    let scan = node.scan(&[]);
    assert_eq!(scan.workloads().map(|client| client.pid).collect::<Vec<_>>(), [50]);
}
