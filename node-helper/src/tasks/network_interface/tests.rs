use std::os::unix::fs::symlink;

use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

use super::*;
use crate::{
    declare::drive,
    tasks::testing::{Bench, failure, shown},
    world::Overlay,
};

/// As ethtool does it, with the card in a file.
const ETHTOOL: &str = r#"#!/bin/sh
here=$(dirname "$0")/../../card/$2
mkdir -p "$here"
get() { cat "$here/$1" 2>/dev/null || echo "$2"; }
case $1 in
-g) [ -e "$here/none" ] && { echo 'netlink error: Operation not supported' >&2; exit 76; }
    printf 'Ring parameters for %s:\nPre-set maximums:\nRX:\t\t8192\nTX:\t\t8192\nCurrent hardware settings:\nRX:\t\t%s\nTX:\t\t%s\n' "$2" "$(get rx 1024)" "$(get tx 1024)";;
-l) printf 'Channel parameters for %s:\nPre-set maximums:\nRX:\t\tn/a\nCombined:\t63\nCurrent hardware settings:\nRX:\t\tn/a\nCombined:\t%s\n' "$2" "$(get combined 63)";;
-a) printf 'Pause parameters for %s:\nAutonegotiate:\t%s\nRX:\t\t%s\nTX:\t\t%s\n' "$2" "$(get autoneg off)" "$(get prx on)" "$(get ptx on)";;
*)  echo "$*" >>"$here/../log"; option=$1; shift 2
    while [ $# -gt 0 ]; do
        case $option in -A) case $1 in rx|tx) echo "$2" >"$here/p$1";; *) echo "$2" >"$here/$1";; esac;; *) echo "$2" >"$here/$1";; esac
        shift 2
    done;;
esac
"#;

fn bench() -> Bench {
    let bench = Bench::new();
    for (index, name, driver) in [(2, "eth0", "mlx5_core"), (3, "eth1", "mlx5_core"), (4, "eno1", "igb")] {
        let folder = format!("sys/class/net/{name}");
        bench.write(&format!("{folder}/mtu"), "1500\n");
        bench.write(&format!("{folder}/ifindex"), &format!("{index}\n"));
        bench.write(&format!("{folder}/flags"), "0x1003\n");
        bench.write(&format!("{folder}/operstate"), "up\n");
        bench.write(&format!("{folder}/address"), "aa:bb:cc:00:00:01\n");
        fs::create_dir_all(bench.path(&format!("{folder}/device/net/{name}"))).unwrap();
        symlink(format!("/x/{driver}"), bench.path(&format!("{folder}/device/driver"))).unwrap();
        if driver == "mlx5_core" {
            fs::create_dir_all(bench.path(&format!("{folder}/device/infiniband/mlx5_{index}"))).unwrap();
        }
        bench.write(
            &format!("run/udev/data/n{index}"),
            &format!(
                "E:ID_PATH=pci-0000:3{index}:00.0\nE:ID_NET_DRIVER={driver}\n\
                 E:ID_NET_LINK_FILE=/usr/lib/systemd/network/99-default.link\n"
            ),
        );
    }
    bench.write("sys/class/net/lo/mtu", "65536\n");
    bench.write(
        "usr/lib/systemd/network/99-default.link",
        "[Match]\nOriginalName=*\n\n[Link]\nNamePolicy=keep kernel database onboard slot path\nMACAddressPolicy=persistent\n",
    );
    bench.write(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neno1\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\n",
    );
    bench.script("usr/sbin/ethtool", ETHTOOL);
    bench.script("usr/bin/udevadm", "#!/bin/sh\necho 252\n");
    bench.script("usr/sbin/ip", "#!/bin/sh\necho '[{\"ifname\":\"x\",\"min_mtu\":68,\"max_mtu\":9978}]'\n");
    bench
}

fn run(bench: &Bench, task: Value, mode: Mode, allowed: Disruption) -> OpOutcome {
    let task: NetworkInterface = serde_json::from_value(task).unwrap();
    bench.node(|node| drive(&task, node, mode, &bench.overlay, allowed, &|_| Ok(())))
}

fn predict(bench: &Bench, task: Value) -> OpOutcome {
    bench.forget();
    run(bench, task, Mode::Predict, Disruption::Live)
}

fn apply(bench: &Bench, task: Value) -> OpOutcome {
    run(bench, task, Mode::Apply, Disruption::Clients)
}

const FILE: &str = "etc/systemd/network/00-gpufleet-eth0.link";

#[test]
fn cards_are_set_now_and_for_boots() {
    let mut bench = bench();
    let task = || json!({"rdma": true, "mtu": 9000, "ring_rx": 8192, "ring_tx": 4096, "channels": 32, "pause": "off"});
    let predicted = predict(&bench, task());
    assert_eq!(
        shown(&predicted)[..6],
        [
            "eth0 channels: 63 -> 32 (clients)",
            "eth0 ring rx: 1024 -> 8192 (clients)",
            "eth0 ring tx: 1024 -> 4096 (clients)",
            "eth0 pause: on -> off (clients)",
            "eth0 mtu: 1500 -> 9000 (clients)",
            "eth0 channels at boot: nothing -> 32 (live)",
        ]
    );
    assert_eq!(predicted.changes.len(), 20);
    assert_eq!(run(&bench, task(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.activate(Disruption::Reboot);
    assert_eq!(run(&bench, task(), Mode::Predict, Disruption::Live).status, OpStatus::Ok, "after the boot");
    let refused = run(&bench, task(), Mode::Apply, Disruption::Live);
    assert_eq!(refused.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let done = apply(&bench, task());
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    assert_eq!(
        bench.read(FILE),
        "# Written by gpufleet.\n# Sets CombinedChannels RxBufferSize TxBufferSize RxFlowControl MTUBytes\n\
         # In place of /usr/lib/systemd/network/99-default.link, whose other settings are repeated here.\n\
         [Match]\nPath=pci-0000:32:00.0\nDriver=mlx5_core\n\n[Link]\nNamePolicy=keep kernel database onboard slot path\n\
         MACAddressPolicy=persistent\nCombinedChannels=32\nRxBufferSize=8192\nTxBufferSize=4096\nRxFlowControl=no\n\
         TxFlowControl=no\nAutoNegotiationFlowControl=no\nMTUBytes=9000\n"
    );
    assert_eq!(
        bench.read("card/log").lines().take(3).collect::<Vec<_>>(),
        ["-L eth0 combined 32", "-A eth0 rx off tx off", "-G eth0 rx 8192 tx 4096"]
    );
    assert_eq!(bench.read("sys/class/net/eno1/mtu"), "1500\n");
    let before = bench.snapshot();
    let again = apply(&bench, task());
    assert_eq!(again.status, OpStatus::Ok, "{again:?}");
    // ethtool of the test makes a folder only.
    assert_eq!(crate::tasks::testing::changed(&before, &bench.snapshot()), Vec::<std::path::PathBuf>::new());
    // A task of another run keeps what the file has of others.
    bench.overlay = Overlay::default();
    let more = apply(&bench, json!({"name": "eth0", "mtu": 4200}));
    assert_eq!(shown(&more), ["eth0 mtu: 9000 -> 4200 (clients)", "eth0 mtu at boot: 9000 -> 4200 (live)"]);
    assert!(bench.read(FILE).contains("RxBufferSize=8192\n"));
    // udev has applied our file.
    bench.write(
        "run/udev/data/n2",
        "E:ID_PATH=pci-0000:32:00.0\nE:ID_NET_DRIVER=mlx5_core\nE:ID_NET_LINK_FILE=/etc/systemd/network/00-gpufleet-eth0.link\n",
    );
    let again = apply(&bench, json!({"name": "eth0", "mtu": 4200}));
    assert_eq!(again.status, OpStatus::Ok, "{again:?}");
}

#[test]
fn the_way_to_the_node_stays() {
    let bench = bench();
    let task = |allow: bool| json!({"name": ["eno1"], "mtu": 9000, "allow_management": allow});
    let refused = predict(&bench, task(false));
    assert!(failure(&refused).starts_with("eno1 is not touched: the default route uses it"), "{refused:?}");
    assert_eq!(predict(&bench, json!({"name": "eth1", "mtu": 9000})).status, OpStatus::Changed);
    assert_eq!(apply(&bench, task(true)).status, OpStatus::Changed);
    assert_eq!(apply(&bench, task(false)).status, OpStatus::Ok, "nothing is left to do");
    fs::remove_file(bench.path("proc/net/route")).unwrap();
    let untold = predict(&bench, json!({"name": "eth1", "mtu": 9000}));
    assert!(failure(&untold).contains("nothing tells which interface"), "{untold:?}");
}

#[test]
fn what_the_card_does_not_take_is_refused_before() {
    let bench = bench();
    let told = |task: Value| failure(&predict(&bench, task)).to_owned();
    assert_eq!(
        told(json!({"name": "eth0", "mtu": 9979})),
        "mtu of eth0 is to be 9979, and its driver takes 68 to 9978"
    );
    assert_eq!(
        told(json!({"name": "eth0", "ring_rx": 8193})),
        "ring rx of eth0 is to be 8193, and its driver takes 1 to 8192"
    );
    assert!(told(json!({"name": "ib7", "mtu": 4092})).starts_with("there is no interface ib7 here"));
    assert!(told(json!({"name": "lo", "mtu": 4092})).starts_with("lo is no interface of a card"));
    bench.write("card/eth0/none", "");
    assert!(told(json!({"name": ["eth0", "eth1"], "ring_rx": 512})).contains("no setting `ring rx`"));
    bench.write("card/eth1/none", "");
    for (task, why) in [
        (json!({"driver": "mlx5_core", "ring_rx": 512}), "eth0, eth1: the driver has no setting `ring rx`"),
        (json!({"driver": "bnxt_en", "mtu": 9000}), "no interface of a card"),
    ] {
        let none = predict(&bench, task);
        assert!(
            matches!(&none.status, OpStatus::NotApplicable { reason } if reason.contains(why)),
            "{none:?}"
        );
    }
    fs::remove_file(bench.path("card/eth1/none")).unwrap();
    bench.script("usr/bin/udevadm", "#!/bin/sh\necho 239\n");
    let old = predict(&bench, json!({"name": "eth1", "ring_rx": 512}));
    assert!(failure(&old).starts_with("systemd 239 does not set ring rx at boot"), "{old:?}");
    assert_eq!(predict(&bench, json!({"name": "eth1", "mtu": 9000})).status, OpStatus::Changed);
    fs::remove_file(bench.path("usr/sbin/ethtool")).unwrap();
    assert!(told(json!({"name": "eth1", "channels": 8})).contains("`package: {name: ethtool}`"));
}

#[test]
fn a_card_that_takes_another_value_is_not_set() {
    let bench = bench();
    bench.script(
        "usr/sbin/ethtool",
        &ETHTOOL.replace("echo \"$2\" >\"$here/$1\";; esac\n", "echo 2048 >\"$here/$1\";; esac\n"),
    );
    let done = apply(&bench, json!({"name": "eth0", "ring_rx": 2000}));
    assert_eq!(failure(&done), "eth0 ring rx was set to 2000, but reads 2048 afterwards");
}

#[test]
fn who_sets_it_at_boot_is_named_and_not_fought() {
    let bench = bench();
    bench.write(
        "run/systemd/netif/links/2",
        "ADMIN_STATE=configured\nNETWORK_FILE=/run/systemd/network/10-netplan-eth0.network\n",
    );
    bench.write("run/systemd/network/10-netplan-eth0.network", "[Match]\nName=eth0\n[Link]\nMTUBytes=1500\n");
    let task = || json!({"name": "eth0", "mtu": 9000});
    assert_eq!(
        failure(&predict(&bench, task())),
        "netplan (systemd-networkd, /run/systemd/network/10-netplan-eth0.network) sets mtu of eth0 to 1500, and wins at boot; \
         it is 1500 now; `mtu` of eth0 in /etc/netplan, and `netplan apply` sets 9000 for good"
    );
    // With the same value there, the file is not needed.
    bench.write("run/systemd/network/10-netplan-eth0.network", "[Match]\nName=eth0\n[Link]\nMTUBytes=9000\n");
    assert_eq!(shown(&apply(&bench, task())), ["eth0 mtu: 1500 -> 9000 (clients)"]);
    assert!(!bench.path(FILE).exists());
    bench.write("run/NetworkManager/devices/3", "[device]\nmanaged=true\nconnection-uuid=u-1\n");
    bench.write(
        "etc/NetworkManager/system-connections/fast.nmconnection",
        "[connection]\nuuid=u-1\n[ethernet]\nmtu=4200\n[ethtool]\nring-rx=512\n",
    );
    let told = failure(&predict(&bench, json!({"name": "eth1", "ring_rx": 1024}))).to_owned();
    assert!(told.contains("nmcli connection modify u-1 ethtool.ring-rx"), "{told}");
    // What it leaves open is ours.
    assert_eq!(apply(&bench, json!({"name": "eth1", "ring_tx": 2048})).status, OpStatus::Changed);
    symlink("/x/bond0", bench.path("sys/class/net/eno1/master")).unwrap();
    bench.write("sys/class/net/bond0/bonding/mode", "802.3ad 4\n");
    bench.write("sys/class/net/bond0/mtu", "1500\n");
    let told = failure(&predict(&bench, json!({"name": "eno1", "mtu": 9000}))).to_owned();
    assert!(told.starts_with("the bond bond0 sets mtu of eno1 to 1500"), "{told}");
}

#[test]
fn a_file_of_the_administrator_is_repeated_and_named() {
    let bench = bench();
    bench.write(
        "run/udev/data/n2",
        "E:ID_PATH=pci-0000:32:00.0\nE:ID_NET_LINK_FILE=/etc/systemd/network/10-rdma.link\n",
    );
    bench.write("etc/systemd/network/10-rdma.link", "[Match]\nPath=x\n[Link]\nName=rdma0\nMTUBytes=1500\n");
    let done = apply(&bench, json!({"name": "eth0", "mtu": 9000}));
    assert!(done.warnings[0].contains("repeats what /etc/systemd/network/10-rdma.link says"), "{done:?}");
    assert!(bench.read(FILE).ends_with("[Link]\nName=rdma0\nMTUBytes=9000\n"), "{}", bench.read(FILE));
    // What it says later is taken over.
    bench.write("etc/systemd/network/10-rdma.link", "[Match]\nPath=x\n[Link]\nName=rdma1\n");
    let done = apply(&bench, json!({"name": "eth0", "mtu": 9000}));
    assert_eq!(done.status, OpStatus::Changed);
    assert!(bench.read(FILE).contains("Name=rdma1\n"));
    bench.write(
        "run/udev/data/n2",
        "E:ID_PATH=pci-0000:32:00.0\nE:ID_NET_LINK_FILE=/etc/systemd/network/00-a.link\n",
    );
    let first = predict(&bench, json!({"name": "eth0", "mtu": 4200}));
    assert!(failure(&first).contains("comes before"), "{first:?}");
}

#[test]
fn an_interface_that_is_down_disturbs_nobody() {
    let bench = bench();
    bench.write("sys/class/net/eth0/flags", "0x1002\n");
    let done = run(&bench, json!({"name": "eth0", "mtu": 9000}), Mode::Apply, Disruption::Live);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
}

/// Adds an interface to the card of another one.
fn port(bench: &Bench, index: u32, name: &str, of: &str) {
    let folder = format!("sys/class/net/{name}");
    for (file, text) in [("mtu", "1500\n"), ("flags", "0x1003\n"), ("address", "aa:bb:cc:00:00:09\n")] {
        bench.write(&format!("{folder}/{file}"), text);
    }
    bench.write(&format!("{folder}/ifindex"), &format!("{index}\n"));
    symlink(bench.path(&format!("sys/class/net/{of}/device")), bench.path(&format!("{folder}/device")))
        .unwrap();
    fs::create_dir_all(bench.path(&format!("{folder}/device/net/{name}"))).unwrap();
    bench
        .write(&format!("run/udev/data/n{index}"), "E:ID_PATH=pci-0000:32:00.0\nE:ID_NET_DRIVER=mlx5_core\n");
}

#[test]
fn a_card_without_a_setting_is_named_and_the_others_are_set() {
    let bench = bench();
    port(&bench, 7, "ib0", "eth0");
    bench.write("sys/class/net/ib0/type", "32\n");
    bench.script(
        "usr/sbin/ip",
        "#!/bin/sh\ncase $* in *ib0) echo '[{\"max_mtu\":4092}]';; *) echo '[{\"min_mtu\":68,\"max_mtu\":9978}]';; esac\n",
    );
    // Its ports in the switch of the card.
    for (index, name, at) in [(8, "rep0", "pf0vf3"), (9, "rep1", "c1pf0sf88"), (10, "rep2", "pf1")] {
        port(&bench, index, name, "eth0");
        bench.write(&format!("sys/class/net/{name}/phys_port_name"), at);
    }
    bench.write("sys/class/net/eth0/phys_port_name", "p0");
    bench.write("card/eth1/none", "");
    let task = || json!({"driver": "mlx5_core", "mtu": 9000, "ring_rx": 512, "pause": "off"});
    let warnings = [
        "mtu is not applicable to ib0: its MTU with InfiniBand is 4092 at most",
        "pause is not applicable to ib0: there are no pause frames with InfiniBand",
        "ring rx is not applicable to eth1: the driver has no setting `ring rx`",
    ];
    let predicted = predict(&bench, task());
    let done = apply(&bench, task());
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    for outcome in [done, apply(&bench, task()), predicted] {
        assert_eq!(outcome.warnings, warnings);
        assert_eq!(outcome.data["not_applicable"], json!(["eth1 ring rx", "ib0 pause", "ib0 mtu"]));
        assert_eq!(outcome.data["interfaces"], json!(["eth0", "eth1", "ib0"]));
    }
    assert_eq!(bench.read("sys/class/net/ib0/mtu"), "1500\n");
    assert!(bench.read("etc/systemd/network/00-gpufleet-ib0.link").contains("[Link]\n"));
    assert!(!bench.read("etc/systemd/network/00-gpufleet-ib0.link").contains("MTUBytes"));
    assert_eq!(apply(&bench, task()).status, OpStatus::Ok);
    let named = failure(&predict(&bench, json!({"name": "ib0", "pause": "off"}))).to_owned();
    assert!(named.starts_with("pause of ib0 cannot be set: there are no pause frames"), "{named}");
}

#[test]
fn one_link_after_the_other() {
    let bench = bench();
    for name in ["eth0", "eth1"] {
        bench.write(&format!("sys/class/net/{name}/carrier"), "1\n");
    }
    // The driver takes the link down a moment after the setting.
    bench.script(
        "usr/sbin/ethtool",
        &ETHTOOL.replace(
            "*)  echo \"$*\" >>\"$here/../log\";",
            "*)  net=$here/../../sys/class/net; echo \"$* $(cat $net/eth0/carrier)\" >>\"$here/../log\"\n\
             \x20   (sleep 0.1; echo 0 >$net/$2/carrier; sleep 0.4; [ -e $here/dead ] || echo 1 >$net/$2/carrier) >/dev/null 2>&1 &\n",
        ),
    );
    let task = |rings: u32| json!({"rdma": true, "ring_rx": rings});
    let done = apply(&bench, task(512));
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(bench.read("card/log"), "-G eth0 rx 512 1\n-G eth1 rx 512 1\n");
    assert_eq!(bench.read("sys/class/net/eth1/carrier"), "1\n");
    fs::remove_file(bench.path("card/log")).unwrap();
    bench.write("card/eth0/dead", "");
    let before = bench.read(FILE);
    let mut bench = bench;
    bench.overlay = Overlay::default();
    let lost = apply(&bench, task(1024));
    assert!(
        failure(&lost).starts_with("eth0 was set, and its link, which was up before, is not"),
        "{lost:?}"
    );
    assert_eq!(bench.read("card/log"), "-G eth0 rx 1024 1\n");
    assert_eq!(bench.read(FILE), before);
}

#[test]
fn two_tasks_do_not_undo_each_other() {
    let mut bench = bench();
    let tasks = || [json!({"driver": "mlx5_core", "mtu": 9000}), json!({"name": "eth1", "mtu": 1500})];
    let told = "an earlier task of this run declares mtu of eth1 as 9000, and this one as 1500";
    let [all, one] = tasks();
    let predicted = run(&bench, all, Mode::Predict, Disruption::Live);
    assert_eq!(predicted.status, OpStatus::Changed);
    assert!(failure(&run(&bench, one, Mode::Predict, Disruption::Live)).starts_with(told));
    bench.activate(Disruption::Reboot);
    let [all, one] = tasks();
    assert!(failure(&run(&bench, one, Mode::Predict, Disruption::Live)).starts_with(told));
    bench.forget();
    assert_eq!(apply(&bench, all).status, OpStatus::Changed);
    let [all, one] = tasks();
    assert!(failure(&apply(&bench, one)).starts_with(told));
    // Also where the first one finds nothing to do, and where predictions are forgotten.
    bench.overlay = Overlay::default();
    assert_eq!(apply(&bench, all).status, OpStatus::Ok);
    let [_, one] = tasks();
    assert!(failure(&apply(&bench, one)).starts_with(told));
    assert!(failure(&predict(&bench, json!({"name": "eth1", "mtu": 1500}))).starts_with(told));
    assert_eq!(bench.read("sys/class/net/eth1/mtu"), "9000\n");
    // Another setting, another interface, and another run.
    assert_eq!(apply(&bench, json!({"name": "eth1", "channels": 8})).status, OpStatus::Changed);
    bench.overlay = Overlay::default();
    assert_eq!(apply(&bench, json!({"name": "eth1", "mtu": 1500})).status, OpStatus::Changed);
}

#[test]
fn what_is_repeated_is_not_ours() {
    let mut bench = bench();
    let base = "etc/systemd/network/10-rdma.link";
    bench.write(
        "run/udev/data/n2",
        "E:ID_PATH=pci-0000:32:00.0\nE:ID_NET_LINK_FILE=/etc/systemd/network/10-rdma.link\n",
    );
    bench.write(base, "[Match]\nPath=x\n[Link]\nMTUBytes=4200\nTxBufferSize=256\n");
    assert_eq!(apply(&bench, json!({"name": "eth0", "ring_rx": 512})).status, OpStatus::Changed);
    assert!(bench.read(FILE).contains("MTUBytes=4200\n"));
    bench.write(base, "[Match]\nPath=x\n[Link]\nMTUBytes=1500\n");
    bench.overlay = Overlay::default();
    assert_eq!(apply(&bench, json!({"name": "eth0", "channels": 8})).status, OpStatus::Changed);
    let text = bench.read(FILE);
    assert!(text.ends_with("[Link]\nMTUBytes=1500\nCombinedChannels=8\nRxBufferSize=512\n"), "{text}");
}

#[test]
fn a_masked_default_file_is_no_base() {
    let bench = bench();
    fs::create_dir_all(bench.path("etc/systemd/network")).unwrap();
    symlink("/dev/null", bench.path("etc/systemd/network/99-default.link")).unwrap();
    let task = || json!({"name": "eth0", "mtu": 9000});
    let done = apply(&bench, task());
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(
        bench.read(FILE),
        "# Written by gpufleet.\n# Sets MTUBytes\n[Match]\nPath=pci-0000:32:00.0\nDriver=mlx5_core\n\n[Link]\nMTUBytes=9000\n"
    );
    assert_eq!(apply(&bench, task()).status, OpStatus::Ok);
}

#[test]
fn members_of_teams_and_bonds() {
    let bench = bench();
    let master = bench.path("sys/class/net/eth0/master");
    symlink("/x/team0", &master).unwrap();
    bench.write("sys/class/net/team0/mtu", "1500\n");
    let ip = |told: &str| bench.script("usr/sbin/ip", &format!("#!/bin/sh\necho '[{{{told}}}]'\n"));
    ip("\"linkinfo\":{\"info_slave_kind\":\"team\"}");
    let told = failure(&predict(&bench, json!({"name": "eth0", "mtu": 9000}))).to_owned();
    assert!(told.starts_with("the team team0 sets mtu of eth0 to 1500"), "{told}");
    // Its own address tells it from the other port of its card.
    port(&bench, 7, "eth9", "eth0");
    let task = || json!({"name": "eth0", "channels": 8});
    let told = failure(&predict(&bench, task())).to_owned();
    assert!(told.starts_with("eth0 has the address of the team team0 now, and neither"), "{told}");
    ip("\"permaddr\":\"aa:bb:cc:00:00:77\",\"linkinfo\":{\"info_slave_kind\":\"team\"}");
    assert_eq!(apply(&bench, task()).status, OpStatus::Changed);
    assert!(bench.read(FILE).contains("PermanentMACAddress=aa:bb:cc:00:00:77\n"));
    fs::remove_file(&master).unwrap();
    symlink("/x/bond0", &master).unwrap();
    bench.write("sys/class/net/bond0/bonding/mode", "802.3ad 4\n");
    bench.write("sys/class/net/bond0/mtu", "1500\n");
    bench.write("sys/class/net/eth0/bonding_slave/perm_hwaddr", "aa:bb:cc:00:00:78\n");
    ip("");
    assert_eq!(apply(&bench, task()).status, OpStatus::Changed);
    assert!(bench.read(FILE).contains("PermanentMACAddress=aa:bb:cc:00:00:78\n"));
}

#[test]
fn after_an_assumed_boot_counts_what_counts_at_boot() {
    let bench = bench();
    let after_boot = |task: Value| {
        bench.forget();
        bench.activate(Disruption::Reboot);
        run(&bench, task, Mode::Predict, Disruption::Live)
    };
    bench.write("usr/lib/systemd/network/99-default.link", "[Link]\nMTUBytes=4200\n");
    let task = || json!({"name": "eth0", "mtu": 9000});
    assert_eq!(shown(&after_boot(task()))[0], "eth0 mtu: 4200 -> 9000 (clients)");
    assert_eq!(apply(&bench, task()).status, OpStatus::Changed);
    assert_eq!(after_boot(task()).status, OpStatus::Ok);
    bench.write("etc/systemd/system/multi-user.target.wants/tuned.service", "");
    bench.write("etc/tuned/active_profile", "fast\n");
    bench.write("etc/tuned/fast/tuned.conf", "[net]\nmtu=1500\n");
    let open = after_boot(task());
    assert_eq!(open.status, OpStatus::Possible, "{open:?}");
    assert!(open.warnings[0].contains("tuned's profile fast sets mtu=1500"), "{open:?}");
}

#[test]
fn the_way_that_nobody_tells_is_not_touched() {
    let bench = bench();
    bench.write(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\nbr-ex\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\n",
    );
    let task = |allow: bool| json!({"name": "eth1", "mtu": 9000, "allow_management": allow});
    let told = failure(&predict(&bench, task(false))).to_owned();
    assert!(
        told.starts_with("eth1 is not touched: br-ex carries the connection, and nothing tells"),
        "{told}"
    );
    assert_eq!(predict(&bench, task(true)).status, OpStatus::Changed);
}

#[test]
fn a_file_that_is_only_predicted_was_not_there_at_the_boot() {
    let bench = bench();
    bench.write("proc/stat", "btime 1000\n");
    bench.write("proc/1/stat", &format!("1 (systemd) S{} 0 0\n", " 0".repeat(18)));
    let predicted = |task: Value| run(&bench, task, Mode::Predict, Disruption::Live);
    assert_eq!(predicted(json!({"name": "eth0", "mtu": 9000})).status, OpStatus::Changed);
    let second = predicted(json!({"name": "eth0", "mtu": 9000, "channels": 8}));
    assert_eq!((second.status, second.warnings), (OpStatus::Changed, Vec::<String>::new()));
}

/// As dcb does it, with the card in a file; eno1 has no DCB.
const DCB: &str = r#"#!/bin/sh
root=$(dirname "$0")/../..
[ "$1" = -N ] && shift
here=$root/card/$4
[ "$4" = eno1 ] && { echo 'Attribute read: Operation not supported' >&2; exit 1; }
mkdir -p "$here"
case "$1 $2" in
'pfc show') on=" $(cat "$here/pfc" 2>/dev/null) "
    printf 'pfc-cap 8 macsec-bypass off delay 0 \nprio-pfc '
    for p in 0 1 2 3 4 5 6 7; do case $on in *" $p:on "*) printf '%s:on ' $p;; *) printf '%s:off ' $p;; esac; done; echo;;
'pfc set') echo "$*" >>"$root/card/log"; shift 6; echo "$*" >"$here/pfc";;
'apptrust show') echo 'Object "apptrust" is unknown' >&2; exit 1;;
'app show') cat "$here/apps" 2>/dev/null; true;;
'app flush') echo "$*" >>"$root/card/log"; rm -f "$here/apps";;
'app replace') echo "$1 $2 $3 $4" >>"$root/card/log"; shift 4; echo "$*" >"$here/apps";;
esac
"#;

const RULE: &str = "etc/udev/rules.d/99-gpufleet-net-eth0.rules";

#[test]
fn priorities_and_error_correction_are_set_now_and_by_a_rule() {
    let mut bench = bench();
    bench.script("usr/sbin/dcb", DCB);
    let fec = "case $1 in --show-fec) printf 'FEC parameters for %s:\\nConfigured FEC encodings: %s\\nActive FEC encoding: BaseR\\n' \
               \"$2\" \"$(cat $(dirname $0)/../../card/$2/encoding 2>/dev/null || echo Auto)\"; exit;; esac\n";
    bench.script("usr/sbin/ethtool", &ETHTOOL.replacen('\n', &format!("\n{fec}"), 1));
    let task = || json!({"name": "eth0", "pfc": "4,3", "trust": "dscp", "fec": "rs", "pause": "off"});
    let predicted = predict(&bench, task());
    assert_eq!(
        shown(&predicted),
        [
            "eth0 pause: on -> off (clients)",
            "eth0 fec: auto -> rs (clients)",
            "eth0 pfc: none -> 3,4 (clients)",
            "eth0 trust: pcp -> dscp (clients)",
            "eth0 fec at boot: nothing -> rs (live)",
            "eth0 pfc at boot: nothing -> 3,4 (live)",
            "eth0 trust at boot: nothing -> dscp (live)",
            "eth0 pause at boot: nothing -> off (live)",
        ]
    );
    assert_eq!(run(&bench, task(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.activate(Disruption::Reboot);
    assert_eq!(run(&bench, task(), Mode::Predict, Disruption::Live).status, OpStatus::Ok, "after the boot");
    let done = apply(&bench, task());
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    let log = bench.read("card/log");
    assert!(
        log.ends_with(
            "--set-fec eth0 encoding rs\npfc set dev eth0 prio-pfc all:off 3:on 4:on\napp replace dev eth0\n"
        ),
        "{log}"
    );
    let rule = bench.read(RULE);
    let programs = bench.path("usr/sbin");
    assert!(
        rule.replace(&format!("{}", programs.display()), "/usr/sbin").starts_with(
            "# Written by gpufleet.\n# Sets fec rs\n# Sets pfc 3,4\n# Sets trust dscp\n\
             SUBSYSTEM==\"net\", IMPORT{db}=\"GPUFLEET_NET\"\nACTION==\"add\", SUBSYSTEM==\"net\", \
             ENV{ID_PATH}==\"pci-0000:32:00.0\", ENV{ID_NET_DRIVER}==\"mlx5_core\", ENV{GPUFLEET_NET}!=\"1\", \
             ENV{GPUFLEET_NET}=\"1\", RUN+=\"/usr/sbin/ethtool --set-fec $name \
             encoding rs\", RUN+=\"/usr/sbin/dcb pfc set dev $name prio-pfc all:off 3:on 4:on\", RUN+=\"/usr/sbin/dcb app \
             replace dev $name dscp-prio 0:0 "
        ),
        "{rule}"
    );
    assert!(!bench.read(FILE).contains("pfc"), "a .link file knows none of it");
    assert_eq!(apply(&bench, task()).status, OpStatus::Ok);
    bench.overlay = Overlay::default();
    // A task with another setting keeps what the one before set.
    let other = apply(&bench, json!({"name": "eth0", "pfc": "none"}));
    assert_eq!(shown(&other), ["eth0 pfc: 3,4 -> none (clients)", "eth0 pfc at boot: 3,4 -> none (live)"]);
    assert!(bench.read(RULE).contains("# Sets trust dscp\n"));
    // What the card trusted before, with a program that finds no way to set it now.
    let none = DCB.replace(
        "'app show') ",
        "'app show') echo 'Attribute read: Operation not supported' >&2; exit 1;;\nx) ",
    );
    bench.script("usr/sbin/dcb", &none);
    bench.overlay = Overlay::default();
    let other = apply(&bench, json!({"name": "eth0", "pfc": 3}));
    assert_eq!(other.status, OpStatus::Changed, "{other:?}");
    assert!(!bench.read(RULE).contains("trust"), "{}", bench.read(RULE));
    bench.script("usr/sbin/dcb", DCB);
    // A file of the driver instead of entries.
    bench.write("sys/class/net/eth1/qos/trust", "pcp\n");
    let by_file = apply(&bench, json!({"name": "eth1", "trust": "dscp"}));
    assert_eq!(by_file.status, OpStatus::Changed, "{by_file:?}");
    assert_eq!(bench.read("sys/class/net/eth1/qos/trust"), "dscp\n");
    assert!(
        bench.read("etc/udev/rules.d/99-gpufleet-net-eth1.rules").ends_with("ATTR{qos/trust}=\"dscp\"\n")
    );
}

#[test]
fn a_card_without_dcb_and_the_way_to_the_node_are_left_alone() {
    let bench = bench();
    bench.script("usr/sbin/dcb", DCB);
    let named = predict(&bench, json!({"name": "eno1", "pfc": 3}));
    assert!(failure(&named).contains("the driver has no setting `pfc`"), "{named:?}");
    let igb = predict(&bench, json!({"driver": "igb", "pfc": 3, "trust": "dscp"}));
    assert!(matches!(igb.status, OpStatus::NotApplicable { .. }), "{igb:?}");
    bench.write(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\n",
    );
    let way = predict(&bench, json!({"name": "eth0", "pfc": 3}));
    assert!(failure(&way).contains("eth0 is not touched"), "{way:?}");
    bench.write("etc/systemd/system/multi-user.target.wants/lldpad.service", "");
    let told = predict(&bench, json!({"name": "eth1", "pfc": 3}));
    assert!(told.warnings[0].starts_with("lldpad.service starts at boot"), "{told:?}");
    std::fs::remove_file(bench.path("usr/sbin/dcb")).unwrap();
    assert!(failure(&predict(&bench, json!({"name": "eth1", "pfc": 3}))).contains("iproute2"));
}
