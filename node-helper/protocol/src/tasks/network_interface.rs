//! Parameters of `network_interface`, the settings of network cards.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, RdmaTrust, Reading,
    rdma_link::{NO_PRIORITIES, priorities},
    words::words,
};
use crate::{
    Disruption, NodeOp, Unit, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { PauseFrames { On: "on", Off: "off" } }

words! { FecMode {
    /// The card chooses by its cable.
    Auto: "auto",
    Off: "off",
    Rs: "rs",
    BaseR: "baser",
    Llrs: "llrs",
} }

/// Sets MTU, rings, channels, pause frames, priorities and error correction of interfaces of network cards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NetworkInterface {
    /// Interfaces, such as `eth1`. Without it, all interfaces of cards that `driver` and `rdma` leave, without virtual
    /// functions and representors.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub name: Vec<String>,
    /// Only interfaces of this driver, such as `mlx5_core`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Only interfaces whose card is an RDMA device too, or only those whose card is none.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub rdma: Option<bool>,
    /// Largest packet in bytes, without the header of Ethernet; the driver's own bounds count.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Entries of the receive ring.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub ring_rx: Option<u32>,
    /// Entries of the send ring.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub ring_tx: Option<u32>,
    /// Combined channels: queues that receive and send, each with an interrupt of its own.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// Pause frames of Ethernet (802.3x) in both directions; `off` where priorities are paused one by one (PFC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseFrames>,
    /// Priorities of Ethernet that are paused one by one (PFC), and no others, such as `3`; `none` for no priority.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub pfc: Option<String>,
    /// By what the card tells priorities apart: `dscp`, of the IP header, or `pcp`, of the VLAN's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<RdmaTrust>,
    /// Error correction of the link (FEC), the same at both ends: `auto`, `off`, `rs`, `baser` or `llrs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fec: Option<FecMode>,
    /// Whether the interface of the default route, or of this connection, may be set too. Its link may go down for
    /// seconds, or for good.
    #[serde(default, deserialize_with = "lenient::flag", skip_serializing_if = "std::ops::Not::not")]
    pub allow_management: bool,
}

impl NetworkInterface {
    /// The folder of the files that set it at boot.
    pub const FOLDER: &str = "/etc/systemd/network";
    /// The folder of the rules of udev.
    pub const RULES: &str = "/etc/udev/rules.d";

    /// Returns the name of the file of an interface; before all others, because only the first one that matches counts.
    pub fn file_of(interface: &str) -> String {
        format!("00-gpufleet-{interface}.link")
    }

    /// Returns the name of the file of udev that sets what a .link file cannot.
    pub fn rules_of(interface: &str) -> String {
        format!("99-gpufleet-net-{interface}.rules")
    }

    /// Returns the priorities of `pfc` as a sorted list, or `none`; `None` if it is not given or wrong.
    pub fn pfc_text(&self) -> Option<String> {
        let found = priorities(self.pfc.as_deref()?)?;
        Some(match found.as_slice() {
            [] => "none".to_owned(),
            list => list.iter().map(u8::to_string).collect::<Vec<_>>().join(","),
        })
    }

    fn sets_nothing(&self) -> bool {
        self.mtu.is_none()
            && self.ring_rx.is_none()
            && self.ring_tx.is_none()
            && self.channels.is_none()
            && self.pause.is_none()
            && self.pfc.is_none()
            && self.trust.is_none()
            && self.fec.is_none()
    }
}

/// Whether it may be the name of an interface. Source: kernel, net/core/dev.c, `dev_valid_name`; narrower, because such
/// names become names of files.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'@');
    (1..=15).contains(&name.len()) && !name.starts_with(['.', '-']) && name.bytes().all(plain)
}

impl Kind for NetworkInterface {
    const INFO: KindInfo = KindInfo {
        name: "network_interface",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Clients,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[
            Number::within("mtu", Some(Unit::Bytes), 68, 65535),
            Number::from("ring_rx", None, 1),
            Number::from("ring_tx", None, 1),
            Number::from("channels", None, 1),
        ],
        since: &[],
        summary: "Sets MTU, rings, channels, pause frames, PFC, trust and FEC of network cards, now and for every boot.",
        example: "network_interface: {driver: mlx5_core, rdma: true, mtu: 9000, ring_rx: 8192}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.name.is_empty() && self.driver.is_none() && self.rdma.is_none() {
            return Err(ParamError::new("name", "one of `name`, `driver` and `rdma` is needed"));
        }
        if let Some(name) = self.name.iter().find(|name| !is_name(name)) {
            return Err(ParamError::new("name", format!("`{name}` is not the name of an interface")));
        }
        if self.driver.as_ref().is_some_and(|driver| driver.is_empty() || driver.contains('/')) {
            return Err(ParamError::new("driver", "it is the name of a driver, such as `mlx5_core`"));
        }
        if self.sets_nothing() {
            let message =
                "one of `mtu`, `ring_rx`, `ring_tx`, `channels`, `pause`, `pfc`, `trust` and `fec` is needed";
            return Err(ParamError::new("mtu", message));
        }
        if self.pfc.is_some() && self.pfc_text().is_none() {
            return Err(ParamError::new("pfc", NO_PRIORITIES));
        }
        if self.pause == Some(PauseFrames::On) && self.pfc_text().is_some_and(|list| list != "none") {
            let message =
                "the link is paused as a whole (`pause: on`) or priority by priority (`pfc`), not both";
            return Err(ParamError::new("pause", message));
        }
        Ok(())
    }
}

impl GroundKind for NetworkInterface {
    const GROUND: Ground = Ground {
        reads: &[
            "/sys/class/net, and ethtool -g, -l, -a and --show-fec; with `pfc`, dcb pfc show; with `trust`, qos/trust in sysfs \
             (MLNX_OFED), else dcb apptrust show, and for mlx5_core of the kernel dcb app show; ip -d link for the largest MTU of the card",
            "/proc/net/route, ipv6_route, tcp and tcp6, ip route and ip addr, and the open sockets of the processes above \
             the helper: which interfaces carry the connection",
            "/run/udev/data/nINDEX: path and driver of the card, and the .link file that the boot applied",
            "/run/systemd/netif/links/INDEX and the .network file it names; /run/NetworkManager/devices/INDEX and the \
             connection it names; /etc/network/interfaces",
            "tuned's active profile, section [net]",
        ],
        writes: &[
            "/sys/class/net/NAME/mtu, and ethtool -G, -L, -A and --set-fec; dcb pfc set; qos/trust, dcb apptrust set, or entries \
             of DSCP by dcb app",
            "/etc/systemd/network/00-gpufleet-NAME.link, with a copy of the file that counted before it (names stay)",
            "with `pfc`, `trust` and `fec`, which such files do not know, /etc/udev/rules.d/99-gpufleet-net-NAME.rules",
        ],
        takes_effect: "at once, with a short loss of link with many cards: clients of the network are drained first",
        survives: "reboots; a reload of the driver too, because udev applies the .link file and the rule whenever the card appears. The \
                   initramfs may hold an older copy",
        owners: &[
            "a connection of NetworkManager, a .network file of systemd-networkd (netplan writes those) or ifupdown with an \
             MTU of its own sets it after udev and wins: another value is refused, with the place where it is set",
            "the same for rings, channels and pause in a connection of NetworkManager; tuned's [net] is named",
            "lldpad at boot is named, because it sets PFC by what the switch tells (DCBX); so may the firmware of a card",
            "of .link files only the first that matches counts",
            "interfaces of a bond or team get its MTU: refused",
            "another task of the same run with another value for the same interface: refused, because each would undo the \
             other at every run",
        ],
        source: "systemd.link(5), nm-settings(5), ethtool(8), ip-link(8), dcb-pfc(8), dcb-apptrust(8), dcb-app(8), udev(7); kernel, ABI/testing/sysfs-class-net",
    };
}

impl Operation for NetworkInterface {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        let path = |name: &String| format!("{}/{}", Self::FOLDER, Self::file_of(name));
        let rule = |name: &String| format!("{}/{}", Self::RULES, Self::rules_of(name));
        let mut paths: Vec<String> = self.name.iter().flat_map(|name| [path(name), rule(name)]).collect();
        if paths.is_empty() {
            paths.extend([Self::FOLDER, Self::RULES].map(str::to_owned));
        }
        Reach::Places { paths, driver: false }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::NetworkInterface(new) = newer.op else { return true };
        let is_wider = (new.driver.is_none() || new.driver == self.driver)
            && (new.rdma.is_none() || new.rdma == self.rdma);
        // Which interfaces a filter leaves is known on the node only.
        if !is_wider || self.name.is_empty() != new.name.is_empty() {
            return true;
        }
        let mut rest = self.clone();
        macro_rules! given {
            ($($field:ident),*) => {$( if new.$field.is_some() { rest.$field = None; } )*};
        }
        given!(mtu, ring_rx, ring_tx, channels, pause, pfc, trust, fec);
        if rest.sets_nothing() {
            self.name.retain(|name| !new.name.contains(name));
            return !self.name.is_empty();
        }
        // For some of the interfaces it cannot be said; the node refuses another value, so that what stands too is equal.
        if self.name.iter().all(|name| new.name.contains(name)) {
            *self = rest;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<NetworkInterface, ParamError> {
        let task: NetworkInterface = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn interfaces_and_a_setting_are_needed() {
        for right in [
            json!({"name": "eth1", "mtu": "9000"}),
            json!({"rdma": "no", "pause": false}),
            json!({"rdma": true, "pfc": 3, "trust": "dscp", "fec": "rs", "pause": "off"}),
        ] {
            assert!(read(right.clone()).is_ok(), "{right}");
        }
        for wrong in [
            json!({"mtu": 9000}),
            json!({"name": "eth1"}),
            json!({"name": "../eth1", "mtu": 9000}),
            json!({"name": "-eth1", "mtu": 9000}),
            json!({"name": "a-name-of-16-char", "mtu": 9000}),
            json!({"driver": "a/b", "mtu": 9000}),
            json!({"rdma": true, "pfc": "8"}),
            json!({"rdma": true, "pfc": 3, "pause": "on"}),
            json!({"rdma": true, "fec": "fast"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_newer_task_takes_over_the_same_interfaces() {
        let old = || read(json!({"name": ["a", "b"], "mtu": 9000, "channels": 8})).unwrap();
        let newer = |value| NodeOp::NetworkInterface(Box::new(read(value).unwrap()));
        let mut partly = old();
        assert!(partly.yields(&Newer::of(&newer(json!({"name": ["b", "a", "c"], "mtu": 1500})))));
        assert_eq!(partly.mtu, None);
        assert!(!partly.yields(&Newer::of(&newer(json!({"name": ["b", "a"], "channels": 4})))));
        let mut other = old();
        assert!(other.yields(&Newer::of(&newer(json!({"name": "a", "mtu": 1500})))));
        assert!(other.yields(&Newer::of(&newer(json!({"rdma": true, "mtu": 1500})))));
        assert!(other.yields(&Newer::of(&newer(
            json!({"name": ["a", "b"], "driver": "mlx5_core", "mtu": 1500, "channels": 4})
        ))));
        assert_eq!(other, old());
        assert!(
            other.yields(&Newer::of(&newer(json!({"name": "a", "mtu": 1500, "channels": 4, "fec": "rs"}))))
        );
        assert_eq!((other.name.as_slice(), other.mtu), (["b".to_owned()].as_slice(), Some(9000)));
        assert!(!other.yields(&Newer::of(&newer(json!({"name": "b", "mtu": 1500, "channels": 4})))));
        let mut filtered = read(json!({"driver": "mlx5_core", "rdma": true, "mtu": 9000})).unwrap();
        assert!(filtered.yields(&Newer::of(&newer(json!({"driver": "ice", "mtu": 1500})))));
        assert!(filtered.yields(&Newer::of(&newer(json!({"rdma": true, "ring_rx": 8192})))));
        assert!(!filtered.yields(&Newer::of(&newer(json!({"rdma": true, "mtu": 1500})))));
    }
}
