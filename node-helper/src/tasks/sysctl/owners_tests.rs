use gpufleet_protocol::{OpStatus, message::Mode};

use super::*;
use crate::tasks::testing::{Bench, failure};

fn declared(name: &str, value: &str) -> Sysctl {
    serde_json::from_value(serde_json::json!({"name": name, "value": value})).unwrap()
}

fn not_applicable(bench: &Bench, task: &Sysctl) -> String {
    match bench.run(task, Mode::Predict).status {
        OpStatus::NotApplicable { reason } => reason,
        other => panic!("{other:?}"),
    }
}

/// Returns a node on which tuned's profile sets swappiness, with a profile that includes another one.
fn tuned() -> Bench {
    let bench = Bench::new();
    bench.write("proc/sys/vm/swappiness", "60\n");
    bench.write("proc/sys/vm/dirty_ratio", "20\n");
    bench.write("etc/systemd/system/multi-user.target.wants/tuned.service", "");
    bench.write("etc/tuned/active_profile", "gpu\n");
    bench.write(
        "etc/tuned/gpu/tuned.conf",
        "[main]\nsummary=ours\ninclude=throughput-performance\n[sysctl]\nvm.swappiness=5\n",
    );
    bench.write(
        "usr/lib/tuned/profiles/throughput-performance/tuned.conf",
        "[main]\n[vm]\ndirty_ratio = 40\n[sysctl]\nvm.swappiness = 10\nvm.max_map_count=>800000\n",
    );
    bench
}

#[test]
fn the_profile_of_tuned_is_named_and_so_is_who_wins() {
    let bench = tuned();
    let task = declared("vm.swappiness", "1");
    let done = bench.run(&task, Mode::Predict);
    assert_eq!(done.warnings, Vec::<String>::new(), "/etc/sysctl.d is applied after the profile");
    let note = done.changes[0].note.as_deref().unwrap_or_default();
    assert!(
        note.starts_with(
            "tuned's profile gpu (/etc/tuned/gpu/tuned.conf) sets vm.swappiness to 5 too: tuned applies"
        ),
        "{note}"
    );
    bench.forget();
    bench.write("etc/tuned/tuned-main.conf", "# x\nreapply_sysctl = 0\n");
    let lost = bench.run(&task, Mode::Predict);
    assert!(
        lost.warnings[0].ends_with("so that the value of /etc/sysctl.d/90-gpufleet.conf does not last"),
        "{lost:?}"
    );
    bench.forget();
    let included = bench.run(&declared("vm.dirty_ratio", "10"), Mode::Predict);
    assert!(
        included.warnings[0].contains("throughput-performance/tuned.conf) sets vm.dirty_ratio to 40"),
        "{included:?}"
    );
    bench.forget();
    assert_eq!(bench.run(&declared("vm.swappiness", "5"), Mode::Predict).warnings, Vec::<String>::new());
    std::fs::remove_file(bench.path("etc/systemd/system/multi-user.target.wants/tuned.service")).unwrap();
    bench.forget();
    assert_eq!(bench.run(&task, Mode::Predict).warnings, Vec::<String>::new(), "nothing starts tuned");
}

#[test]
fn what_kubelet_and_ufw_set_is_told_and_a_second_run_changes_nothing() {
    let bench = Bench::new();
    bench.write("proc/sys/kernel/panic", "0\n");
    bench.write("proc/sys/net/ipv4/ip_forward", "0\n");
    bench.write("etc/systemd/system/multi-user.target.wants/kubelet.service", "");
    let task = declared("kernel.panic", "30");
    let done = bench.run(&task, Mode::Apply);
    assert_eq!(
        done.warnings,
        [
            "kubelet (kubelet.service) sets kernel.panic to 10 too: kubelet sets it whenever it starts, so that the value of \
          /etc/sysctl.d/90-gpufleet.conf does not last"
        ]
    );
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    bench.write("var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\nprotectKernelDefaults: true\n");
    assert!(bench.run(&task, Mode::Apply).warnings[0].contains("kubelet does not start"));
    assert_eq!(bench.run(&declared("kernel.panic", "10"), Mode::Apply).warnings, Vec::<String>::new());
    bench.write("etc/ufw/ufw.conf", "ENABLED=yes\n");
    bench.write("etc/default/ufw", "IPT_SYSCTL=/etc/ufw/sysctl.conf\n");
    bench.write("etc/ufw/sysctl.conf", "net/ipv4/ip_forward=0\n");
    let forward = bench.run(&declared("net.ipv4.ip_forward", "1"), Mode::Predict);
    assert!(
        forward.warnings[0].starts_with("ufw (/etc/ufw/sysctl.conf) sets net.ipv4.ip_forward to 0"),
        "{forward:?}"
    );
}

#[test]
fn a_trigger_is_no_parameter_and_what_cannot_be_changed_does_not_apply() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    let mode = |below: &str, mode: u32| {
        std::fs::set_permissions(bench.path(below), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    bench.write("proc/sys/net/ipv4/route/flush", "");
    mode("proc/sys/net/ipv4/route/flush", 0o200);
    let trigger = bench.run(&declared("net.ipv4.route.flush", "1"), Mode::Predict);
    assert!(failure(&trigger).starts_with("`net.ipv4.route.flush` starts something"), "{trigger:?}");
    bench.write("proc/sys/net/core/rmem_max", "212992\n");
    mode("proc/sys/net/core/rmem_max", 0o444);
    let reason = not_applicable(&bench, &declared("net.core.rmem_max", "1"));
    assert_eq!(
        reason,
        "net.core.rmem_max cannot be changed on this kernel, or in this network namespace: it is 212992"
    );
    let right = bench.run(&declared("net.core.rmem_max", "212992"), Mode::Apply);
    assert_eq!(right.status, OpStatus::Changed, "the file may still say so");
    bench.write("run/systemd/container", "systemd-nspawn\n");
    let absent = not_applicable(&bench, &declared("net.core.netdev_max_backlog", "5000"));
    assert!(absent.ends_with("; this is a container, and the host may have it"), "{absent}");
}

#[test]
fn parameters_of_modules_name_the_module() {
    let bench = Bench::new();
    bench.write("proc/sys/kernel/panic", "0\n");
    let task = declared("net.bridge.bridge-nf-call-iptables", "1");
    let absent = bench.run(&task, Mode::Apply);
    assert!(
        failure(&absent).ends_with("`modprobe: {name: br_netfilter, persistent: present}` loads it first"),
        "{absent:?}"
    );
    bench.write("proc/sys/net/bridge/bridge-nf-call-iptables", "0\n");
    let told = bench.run(&task, Mode::Apply);
    assert!(told.warnings[0].contains("which no file of modules-load.d loads"), "{told:?}");
    bench.write("etc/modules-load.d/k8s.conf", "br_netfilter\n");
    assert_eq!(bench.run(&task, Mode::Apply).warnings, Vec::<String>::new());
    let gone = not_applicable(&bench, &declared("kernel.sched_min_granularity_ns", "1"));
    assert!(gone.ends_with("moved most of the scheduler's to /sys/kernel/debug/sched"), "{gone}");
}

#[test]
fn free_memory_and_huge_pages_at_boot_are_in_no_order() {
    let bench = Bench::new();
    bench.write("proc/sys/vm/min_free_kbytes", "20000\n");
    bench.write("etc/tmpfiles.d/thp.conf", "w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise\n");
    let done = bench.run(&declared("vm.min_free_kbytes", "30000"), Mode::Apply);
    assert!(
        done.warnings[0].contains("etc/tmpfiles.d/thp.conf sets transparent huge pages at boot"),
        "{done:?}"
    );
    assert_eq!(bench.run(&declared("vm.min_free_kbytes", "30000"), Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn dockerd_turns_forwarding_on() {
    let bench = Bench::new();
    bench.write("proc/sys/net/ipv4/ip_forward", "0\n");
    let (off, on) = (declared("net.ipv4.ip_forward", "0"), declared("net.ipv4.ip_forward", "1"));
    let warnings = |task: &Sysctl| {
        bench.forget();
        bench.run(task, Mode::Predict).warnings
    };
    assert_eq!(warnings(&off), Vec::<String>::new());
    bench.write("etc/systemd/system/multi-user.target.wants/docker.service", "");
    let told = warnings(&off);
    assert!(
        told[0].starts_with("dockerd sets net.ipv4.ip_forward to 1 too: dockerd turns it on"),
        "{told:?}"
    );
    assert_eq!(warnings(&on), Vec::<String>::new());
    bench.write("etc/docker/daemon.json", "{\"ip-forward\": false}");
    assert_eq!(warnings(&off), Vec::<String>::new());
}

fn warning(bench: &Bench, name: &str, value: &str) -> String {
    bench.forget();
    let told = bench.run(&declared(name, value), Mode::Predict);
    told.warnings.first().cloned().unwrap_or_default()
}

#[test]
fn what_sets_up_networks_is_named() {
    let bench = Bench::new();
    for (key, value) in [
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv6/conf/all/forwarding", "0"),
        ("net/ipv6/conf/eth0/accept_ra", "0"),
        ("net/ipv6/conf/eth0/use_tempaddr", "2"),
        ("net/ipv6/conf/eth0/disable_ipv6", "0"),
        ("net/ipv4/conf/eth0/rp_filter", "2"),
    ] {
        bench.write(&format!("proc/sys/{key}"), &format!("{value}\n"));
    }
    bench.write("sys/class/net/eth0/ifindex", "2\n");
    bench.write(
        "etc/systemd/network/10-a.network",
        "[Match]\nName=eth0\n[Network]\nIPForward=ipv4\nIPv6PrivacyExtensions=yes\n",
    );
    assert_eq!(warning(&bench, "net.ipv4.ip_forward", "0"), "", "nothing starts systemd-networkd");
    bench.write("etc/systemd/system/multi-user.target.wants/systemd-networkd.service", "");
    assert_eq!(
        warning(&bench, "net.ipv4.ip_forward", "0"),
        "systemd-networkd (/etc/systemd/network/10-a.network, IPForward=) sets net.ipv4.ip_forward to 1 too: systemd-networkd sets \
         it whenever it sets up an interface, so that the value of /etc/sysctl.d/90-gpufleet.conf does not last"
    );
    assert_eq!(warning(&bench, "net.ipv6.conf.all.forwarding", "0"), "");
    // Of one interface, the file that it has.
    assert_eq!(warning(&bench, "net.ipv6.conf.eth0.use_tempaddr", "0"), "");
    bench.write(
        "run/systemd/netif/links/2",
        "ADMIN_STATE=configured\nNETWORK_FILE=/etc/systemd/network/10-a.network\n",
    );
    assert!(
        warning(&bench, "net.ipv6.conf.eth0.use_tempaddr", "0")
            .contains("sets net.ipv6.conf.eth0.use_tempaddr to 2 too")
    );
    assert!(
        warning(&bench, "net.ipv6.conf.eth0.accept_ra", "2")
            .contains("10-a.network) sets net.ipv6.conf.eth0.accept_ra to 0")
    );
    assert_eq!(warning(&bench, "net.ipv4.conf.eth0.rp_filter", "1"), "");
    let own = |text: &str| {
        let all = format!("[Match]\nName=eth0\n[Network]\nLinkLocalAddressing=no\n{text}");
        bench.write("etc/systemd/network/10-a.network", &all);
        warning(&bench, "net.ipv6.conf.eth0.disable_ipv6", "0")
    };
    assert!(own("Address=10.0.0.2/24\n").contains("sets net.ipv6.conf.eth0.disable_ipv6 to 1"));
    assert_eq!(own("[Address]\nAddress=2001:db8::2/64\n"), "");
    // As NetworkManager has it instead.
    std::fs::remove_file(bench.path("run/systemd/netif/links/2")).unwrap();
    bench.write("run/NetworkManager/devices/2", "[device]\nconnection-uuid=u-1\n");
    bench.write(
        "etc/NetworkManager/system-connections/a.nmconnection",
        "[connection]\nuuid=u-1\n[ipv4]\nmethod=shared\n[ipv6]\nmethod=auto\nip6-privacy=2\n",
    );
    assert!(
        warning(&bench, "net.ipv6.conf.eth0.use_tempaddr", "0")
            .starts_with("NetworkManager (/etc/NetworkManager/system-connections/a.nmconnection) sets")
    );
    std::fs::remove_file(bench.path("etc/systemd/system/multi-user.target.wants/systemd-networkd.service"))
        .unwrap();
    bench.write("etc/systemd/system/multi-user.target.wants/NetworkManager.service", "");
    assert!(
        warning(&bench, "net.ipv4.ip_forward", "0")
            .contains("NetworkManager sets it whenever it brings an interface up")
    );
}

#[test]
fn cloud_init_is_named_and_nothing_of_it_told_but_the_value() {
    let bench = Bench::new();
    bench.write("proc/sys/net/core/rmem_max", "212992\n");
    bench.write("etc/cloud/cloud.cfg", "users: []\n");
    bench.write(
        "var/lib/cloud/instance/cloud-config.txt",
        "#cloud-config\npassword: geheim\nbootcmd:\n  - sysctl -w net.core.rmem_max=16777216\n",
    );
    let told = warning(&bench, "net.core.rmem_max", "33554432");
    assert!(
        told.starts_with(
            "cloud-init (/var/lib/cloud/instance/cloud-config.txt) sets net.core.rmem_max to 16777216 too: cloud-init runs that at \
             every boot (bootcmd)"
        ),
        "{told}"
    );
    assert!(!told.contains("geheim"));
    std::fs::remove_file(bench.path("var/lib/cloud/instance/cloud-config.txt")).unwrap();
    bench.write("root/tune.sh", "#!/bin/sh\nsysctl -w net.core.rmem_max=1\n");
    std::fs::create_dir_all(bench.path("var/lib/cloud/scripts/per-boot")).unwrap();
    let link = bench.path("var/lib/cloud/scripts/per-boot/a");
    std::os::unix::fs::symlink(bench.path("root/tune.sh"), &link).unwrap();
    assert!(
        warning(&bench, "net.core.rmem_max", "2")
            .starts_with("cloud-init (/var/lib/cloud/scripts/per-boot/a) sets")
    );
    std::fs::remove_file(link).unwrap();
    // What cannot be read is no reason to set nothing.
    std::fs::create_dir_all(bench.path("etc/cloud/cloud.cfg.d/10.cfg")).unwrap();
    let large = std::fs::File::create(bench.path("etc/cloud/cloud.cfg.d/20.cfg")).unwrap();
    large.set_len(17 << 20).unwrap();
    assert_eq!(
        warning(&bench, "net.core.rmem_max", "2"),
        "what cloud-init sets is not known in full: /etc/cloud/cloud.cfg.d/10.cfg, /etc/cloud/cloud.cfg.d/20.cfg cannot be read"
    );
    bench.write("etc/cloud/cloud-init.disabled", "");
    assert_eq!(warning(&bench, "net.core.rmem_max", "33554432"), "");
}
