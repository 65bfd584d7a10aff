//! Parameters of `rdma_link`, which checks ports for RDMA.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading, words::words,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { RdmaLayer { InfiniBand: "InfiniBand" | "infiniband" | "ib", Ethernet: "Ethernet" | "ethernet" | "roce" } }

words! { RdmaTrust {
    Pcp: "pcp",
    Dscp: "dscp",
} }

/// Checks that ports for RDMA are up (ACTIVE, LinkUp), and as fast as they should be. Changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RdmaLink {
    /// RDMA devices, such as `mlx5_0`; all cards by default, without virtual functions.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<String>,
    /// At least this many ports have to be there, so that a card that is gone is noticed.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub ports: Option<u32>,
    /// Each port has to be at least this fast, in Gbit/s: 400 for NDR, 200 for HDR.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub rate_gbps: Option<u32>,
    /// `InfiniBand` or `Ethernet` (RoCE).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<RdmaLayer>,
    /// Priorities of Ethernet that have to be paused one by one (PFC), and no others, such as `3`; `none` for no priority.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub pfc: Option<String>,
    /// By what the card has to tell priorities of Ethernet apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<RdmaTrust>,
}

impl RdmaLink {
    /// Returns the priorities of `pfc`, sorted; `None` if it is not given or wrong.
    pub fn priorities(&self) -> Option<Vec<u8>> {
        priorities(self.pfc.as_deref()?)
    }
}

/// Reads a list of priorities of Ethernet, or `none`; sorted. `None` if it is neither.
pub(super) fn priorities(text: &str) -> Option<Vec<u8>> {
    if text == "none" {
        return Some(Vec::new());
    }
    let one = |word: &str| word.trim().parse::<u8>().ok().filter(|number| *number < 8);
    let mut found: Vec<u8> = text.split(',').map(one).collect::<Option<_>>()?;
    found.sort_unstable();
    found.dedup();
    Some(found)
}

/// Why a text is no list of priorities.
pub(super) const NO_PRIORITIES: &str =
    "it is a list of priorities from 0 to 7, such as `3` or `3,4`, or `none`";

impl Kind for RdmaLink {
    const INFO: KindInfo = KindInfo {
        name: "rdma_link",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::AT_ONCE,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::within("ports", None, 1, 64), Number::from("rate_gbps", None, 1)],
        since: &[],
        summary: "Checks that ports for RDMA are up, and as fast as they should be.",
        example: "rdma_link: {ports: 8, rate_gbps: 400, link_layer: InfiniBand}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        let wrong = |name: &&String| {
            name.is_empty() || name.len() > 63 || name.starts_with('.') || !name.bytes().all(plain)
        };
        if let Some(name) = self.device.iter().find(wrong) {
            return Err(ParamError::new("device", format!("`{name}` is not the name of an RDMA device")));
        }
        if self.pfc.is_some() && self.priorities().is_none() {
            return Err(ParamError::new("pfc", NO_PRIORITIES));
        }
        if self.link_layer == Some(RdmaLayer::InfiniBand) && (self.pfc.is_some() || self.trust.is_some()) {
            return Err(ParamError::new("link_layer", "`pfc` and `trust` are of Ethernet"));
        }
        Ok(())
    }
}

impl GroundKind for RdmaLink {
    const GROUND: Ground = Ground {
        reads: &[
            "/sys/class/infiniband/DEVICE/ports/PORT: state, phys_state, rate, link_layer",
            "with `pfc`, dcb pfc show (iproute2) of the port's interface; with `trust`, its qos/trust in sysfs (MLNX_OFED), else dcb \
             apptrust show, and for mlx5_core of the kernel dcb app show",
        ],
        writes: &["nothing"],
        takes_effect: "it only checks: what differs is a failure that names each port",
        survives: "nothing is set; after a reboot of the same run it looks again",
        owners: &[
            "a subnet manager makes InfiniBand ports ACTIVE: INIT means that none has",
            "`network_interface` sets PFC and trust; mlnx_qos, dcb and lldpad too, which a reload of the driver loses",
        ],
        source: "kernel, ABI/stable/sysfs-class-infiniband; dcb-pfc(8)",
    };
}

impl Operation for RdmaLink {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Nothing
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::RdmaLink(new) = newer.op else { return true };
        // Without names it is all cards, and which those are is known on the node only.
        if self.device.is_empty() != new.device.is_empty() {
            return true;
        }
        let mut rest = self.clone();
        macro_rules! given {
            ($($field:ident),*) => {$( if new.$field.is_some() { rest.$field = None; } )*};
        }
        given!(rate_gbps, link_layer, pfc, trust);
        let is_within = |one: &Self, other: &Self| one.device.iter().all(|name| other.device.contains(name));
        // Ports are counted over all devices of a task.
        if new.ports.is_some() && is_within(self, new) && is_within(new, self) {
            rest.ports = None;
        }
        // That ports are up, each task says of its devices.
        let is_other = rest == Self { device: rest.device.clone(), ..Self::default() };
        if is_other {
            self.device.retain(|name| !new.device.contains(name));
            return !self.device.is_empty();
        }
        if is_within(self, new) {
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

    fn read(value: Value) -> Result<RdmaLink, ParamError> {
        let task: RdmaLink = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn priorities_are_those_of_ethernet() {
        assert_eq!(read(json!({"pfc": 3})).unwrap().priorities(), Some(vec![3]));
        assert_eq!(read(json!({"pfc": "4, 3"})).unwrap().priorities(), Some(vec![3, 4]));
        assert_eq!(read(json!({"pfc": "none"})).unwrap().priorities(), Some(vec![]));
        for wrong in [
            json!({"pfc": "8"}),
            json!({"pfc": ""}),
            json!({"device": "../x"}),
            json!({"link_layer": "ib", "trust": "dscp"}),
            json!({"link_layer": "token ring"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_newer_task_takes_over_what_it_says_of_the_same_devices() {
        let after = |old: Value, new: Value| {
            let mut old = read(old).unwrap();
            let stands = old.yields(&Newer::of(&NodeOp::RdmaLink(read(new).unwrap())));
            stands.then_some(old)
        };
        let both = json!({"device": ["a", "b"], "rate_gbps": 400});
        let counted = json!({"device": ["a", "b"], "ports": 2, "rate_gbps": 400});
        for (old, new, left) in [
            (json!({"rate_gbps": 400}), json!({"link_layer": "ib"}), json!({"rate_gbps": 400})),
            (json!({"rate_gbps": 400, "ports": 8}), json!({"rate_gbps": 200}), json!({"ports": 8})),
            (json!({"rate_gbps": 400}), json!({"rate_gbps": 200, "ports": 8}), Value::Null),
            (json!({"rate_gbps": 400}), json!({"device": "a", "rate_gbps": 200}), json!({"rate_gbps": 400})),
            (both.clone(), json!({"rate_gbps": 200}), both.clone()),
            (
                both.clone(),
                json!({"device": "a", "rate_gbps": 200}),
                json!({"device": "b", "rate_gbps": 400}),
            ),
            (both.clone(), json!({"device": "a", "trust": "dscp"}), both.clone()),
            (both, json!({"device": ["c", "b", "a"], "rate_gbps": 200}), Value::Null),
            (counted.clone(), json!({"device": "a", "rate_gbps": 200}), counted.clone()),
            (
                counted.clone(),
                json!({"device": ["a", "b", "c"], "ports": 3, "rate_gbps": 200}),
                json!({"device": ["a", "b"], "ports": 2}),
            ),
            (counted, json!({"device": ["b", "a"], "ports": 3, "rate_gbps": 200}), Value::Null),
            (json!({"device": ["a", "b"]}), json!({"device": "b"}), json!({"device": "a"})),
        ] {
            let left = (!left.is_null()).then(|| read(left).unwrap());
            assert_eq!(after(old.clone(), new.clone()), left, "{old} and then {new}");
        }
    }
}
