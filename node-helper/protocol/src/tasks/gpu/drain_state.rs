//! `gpu_drain_state`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, GpuSelectorItem, Hardware, Lasts};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words},
};

words! { DrainStateName {
    /// Programs that start do not see the GPU.
    Drained: "drained" | "draining",
    Active: "active" | "undrained",
} }

/// Takes single GPUs out of use, or gives them back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuDrainState {
    /// `drained`: programs that start do not see the GPU, and those that work on it go on; `active`.
    pub state: DrainStateName,
    /// GPUs meant: PCI addresses, UUIDs, indexes or parts of product names. `drained` needs them; `active` left out is
    /// for all.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}

impl Kind for GpuDrainState {
    const INFO: KindInfo = KindInfo {
        name: "gpu_drain_state",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("gpus", None, 0)],
        since: &[],
        summary: "Takes single GPUs of a node out of use (`nvidia-smi drain`), or gives them back.",
        example: "gpu_drain_state: {state: drained, gpus: [\"0000:5d:00.0\"]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        match self.state == DrainStateName::Drained && self.gpus.is_empty() {
            true => Err(ParamError::new(
                "gpus",
                "name the GPUs that are to be taken out of use, such as 0000:5d:00.0",
            )),
            false => Ok(()),
        }
    }
}

impl GpuKind for GpuDrainState {
    const HARDWARE: Hardware = Hardware {
        reads: &[
            "nvmlDeviceQueryDrainState, by PCI address",
            "/sys/bus/pci/devices",
            "/proc/driver/nvidia/gpus/*/information",
        ],
        writes: &["nvmlDeviceModifyDrainState", "nvmlDeviceSetPersistenceMode, off"],
        takes_effect: "at once, for processes that start later; running ones keep the GPU",
        survives_reset: Lasts::Unsaid,
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::No,
        survives_reboot: Lasts::No,
        architectures: "Maxwell and later, on Linux",
        source: "nvml.h 13; reading by address: an H100 with driver 580.159.04",
        beliefs: &[
            Belief {
                believed: "a drained GPU is free",
                fact: "processes that had it go on; only new ones do not see it, nvidia-smi and monitoring among them",
            },
            Belief {
                believed: "a GPU that the driver does not list is lost",
                fact: "it may be drained: the driver still answers for its PCI address",
            },
            Belief {
                believed: "`nvidia-smi -i 1` is the same GPU before and after a drain",
                fact: "the driver counts only what it shows, so that the GPUs behind a drained one move up; gpufleet counts \
                       drained GPUs, so that `gpus: 1` stays the same one",
            },
            Belief {
                believed: "a GPU can be drained while persistence is on",
                fact: "the driver refuses; gpufleet takes persistence off that GPU first, with which its limits and clocks go",
            },
        ],
    };
}

/// What an entry of a selector is: of entries of one sort, different ones are different GPUs.
fn sort(item: &GpuSelectorItem) -> Option<&'static str> {
    match item {
        GpuSelectorItem::Index(_) => Some("index"),
        GpuSelectorItem::Text(text) if text.to_ascii_uppercase().starts_with("GPU-") => Some("uuid"),
        GpuSelectorItem::Text(text) if text.matches(':').count() == 2 => Some("address"),
        GpuSelectorItem::Text(_) => None,
    }
}

fn same(one: &GpuSelectorItem, other: &GpuSelectorItem) -> bool {
    match (one, other) {
        (GpuSelectorItem::Text(one), GpuSelectorItem::Text(other)) => one.eq_ignore_ascii_case(other),
        (one, other) => one == other,
    }
}

impl Operation for GpuDrainState {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Places { paths: vec!["/proc/driver/nvidia/gpus".to_owned()], driver: true }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::GpuDrainState(newer) = newer.op else { return true };
        let all = self.gpus.iter().chain(&newer.gpus);
        let sorts: Vec<_> = all.map(sort).collect();
        let told_apart =
            sorts.first().is_some_and(|first| first.is_some() && sorts.iter().all(|one| one == first));
        if self.gpus.is_empty() || newer.gpus.is_empty() || !told_apart {
            // What it is for may be what the newer one is for.
            return false;
        }
        self.gpus.retain(|one| !newer.gpus.iter().any(|other| same(one, other)));
        !self.gpus.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tasks::Params;

    fn parse(value: serde_json::Value) -> GpuDrainState {
        match GpuDrainState::INFO.parse(value) {
            Ok(Params::Node(NodeOp::GpuDrainState(task))) => task,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_drained_is_named() {
        let error = GpuDrainState::INFO.parse(json!({"state": "drained"})).unwrap_err().to_string();
        assert!(error.contains("name the GPUs"), "{error}");
        assert_eq!(parse(json!({"state": "active"})).gpus, []);
        assert_eq!(parse(json!({"state": "drained", "gpus": 1})).gpus, [GpuSelectorItem::Index(1)]);
    }

    #[test]
    fn a_newer_task_counts_for_its_gpus() {
        let left = |older: serde_json::Value, newer: serde_json::Value| {
            let (mut older, newer) = (parse(older), NodeOp::GpuDrainState(parse(newer)));
            older.yields(&Newer::of(&newer)).then_some(older.gpus.len())
        };
        let (a, b) = ("0000:1b:00.0", "0000:43:00.0");
        let drained = |gpus: serde_json::Value| json!({"state": "drained", "gpus": gpus});
        let active = |gpus: serde_json::Value| json!({"state": "active", "gpus": gpus});
        assert_eq!(left(drained(json!([a, b])), active(json!([a]))), Some(1));
        assert_eq!(left(drained(json!([a])), active(json!([a]))), None);
        assert_eq!(left(drained(json!([a])), drained(json!([b]))), Some(1));
        assert_eq!(left(json!({"state": "active"}), drained(json!([b]))), None);
        assert_eq!(left(drained(json!([a])), active(json!(["GPU-7"]))), None, "it may be the same GPU");
    }
}
