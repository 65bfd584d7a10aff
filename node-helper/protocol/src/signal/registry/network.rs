//! Signals of network cards: of the node that has them, and of each port for RDMA.

use super::{Scope, SignalInfo};
use crate::Unit;

const fn node(name: &'static str, source: &'static str) -> SignalInfo {
    SignalInfo { name, scope: Scope::Node, unit: None, source }
}

const fn port(name: &'static str, unit: Option<Unit>, source: &'static str) -> SignalInfo {
    SignalInfo { name, scope: Scope::Port, unit, source }
}

pub static SIGNALS: &[SignalInfo] = &[
    node(
        "rdma_devices",
        "Number of RDMA devices of cards, by `/sys/class/infiniband`; without virtual functions and devices made of software.",
    ),
    node("ib_up", "Number of their ports that are `ACTIVE` and `LinkUp`."),
    node("ib_down", "Those of their ports that are not, such as `mlx5_1/1: DOWN, Polling`."),
    node(
        "missing_uverbs",
        "Number of RDMA devices without a device file, and of files `uverbs` and `umad` that `/dev/infiniband` lacks; absent without RDMA devices.",
    ),
    node(
        "eth_links",
        "Interfaces of cards, and bonds: `NAME:up` for one with a link, `NAME:speed=25000` (Mb/s), `NAME:mtu=9000`, by `/sys/class/net`.",
    ),
    port("ib_state", None, "State of the port, such as `ACTIVE` or `DOWN`, by `state`."),
    port("ib_phys_state", None, "State of its link, such as `LinkUp` or `Polling`, by `phys_state`."),
    port("ib_rate_gbps", None, "Rate of the port in Gb/s, by `rate`."),
    port("ib_layer", None, "`InfiniBand` or `Ethernet`, by `link_layer`."),
    port(
        "link_downed",
        None,
        "How often the link went down, by `counters/link_downed`, and for Ethernet by `carrier_down_count` of the interface.",
    ),
    port(
        "ib_symbol_error",
        None,
        "Symbols that arrived wrong, by `counters/symbol_error`; absent for Ethernet.",
    ),
    port(
        "ib_link_error_recovery",
        None,
        "How often the link recovered from errors, by `counters/link_error_recovery`; absent for Ethernet.",
    ),
    port("nic_width", None, "PCIe lanes in use by the card, by `current_link_width`."),
    port("nic_width_max", None, "Most PCIe lanes of card and slot together, by `max_link_width` of both."),
    port("nic_speed", None, "Speed of the card's PCIe link in GT/s, by `current_link_speed`."),
    port(
        "nic_speed_max",
        None,
        "Highest speed of card and slot together in GT/s, by `max_link_speed` of both.",
    ),
    port("nic_fw", None, "Version of the card's firmware, by `fw_ver`."),
    port("nic_board", None, "Model of the card's board, by `board_id`."),
];
