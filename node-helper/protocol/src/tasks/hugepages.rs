//! Parameters of `hugepages`, pages of a fixed size that are set aside.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading, files::absolute,
    words::words,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { HugePageSize { M2: "2M" | "2MB" | "2048kB", G1: "1G" | "1GB" | "1048576kB" } }

words! { #[derive(Default)] HugePagesWhen {
    /// Now, from free memory, and at each boot by systemd-tmpfiles.
    #[default] Runtime: "runtime",
    /// By the kernel itself at boot, before memory is in pieces.
    Boot: "boot",
} }

/// Sets pages of 2 MiB or 1 GiB aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HugePages {
    /// `2M` or `1G`.
    pub size: HugePageSize,
    /// Pages in all, spread evenly over the NUMA nodes that have CPUs and memory; the first ones get what is left over.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Pages of each NUMA node that has CPUs and memory.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub per_node: Option<u32>,
    /// Pages by the number of the NUMA node, such as `{0: 512, 1: 0}`; other nodes are left alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, u32>,
    /// `runtime`: now and at each boot; `boot`: by words on the kernel command line, with a reboot.
    #[serde(default)]
    pub when: HugePagesWhen,
    /// Where a hugetlbfs of this size is mounted, now and at boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<String>,
}

impl HugePageSize {
    /// Returns the size in KiB, as sysfs names it.
    pub const fn kib(self) -> u32 {
        match self {
            Self::M2 => 2048,
            Self::G1 => 1_048_576,
        }
    }
}

impl HugePages {
    /// The file that sets them at boot without the command line.
    pub const FILE: &str = "/etc/tmpfiles.d/gpufleet-hugepages.conf";
}

impl Kind for HugePages {
    const INFO: KindInfo = KindInfo {
        name: "hugepages",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Reboot,
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
            Number::from("count", None, 0),
            Number::from("per_node", None, 0),
            Number::from("nodes.*", None, 0),
        ],
        since: &[],
        summary: "Sets huge pages of 2 MiB or 1 GiB aside on each NUMA node, and mounts a hugetlbfs for them.",
        example: "hugepages: {size: 1G, per_node: 8, when: boot, mount: /dev/hugepages1G}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let given = [self.count.is_some(), self.per_node.is_some(), !self.nodes.is_empty()];
        if given.iter().filter(|given| **given).count() != 1 {
            return Err(ParamError::new(
                "count",
                "one of `count`, `per_node` and `nodes` is needed, and only one",
            ));
        }
        if let Some(name) = self.nodes.keys().find(|name| !is_number(name)) {
            return Err(ParamError::new("nodes", format!("`{name}` is no number of a NUMA node, such as 0")));
        }
        self.mount.as_ref().map_or(Ok(()), |path| absolute("mount", path))
    }
}

/// Whether it is a number as the kernel writes it.
fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok_and(|number| number.to_string() == text && number < 1024)
}

impl GroundKind for HugePages {
    const GROUND: Ground = Ground {
        reads: &[
            "/sys/devices/system/node/node*/hugepages",
            "/sys/devices/system/node/has_cpu and has_memory, meminfo of each NUMA node, /proc/meminfo",
            "tmpfiles.d of /etc, /run, /usr/local/lib and /usr/lib",
            "with `when: boot`, what `kernel_cmdline` reads",
            "with `mount`, /proc/self/mountinfo and /etc/fstab",
        ],
        writes: &[
            "nr_hugepages of each NUMA node",
            "lines of /etc/tmpfiles.d/gpufleet-hugepages.conf, or words of the kernel command line with `when: boot`",
            "with `mount`, a line of /etc/fstab and the mount",
        ],
        takes_effect: "at once if enough memory is free and in one piece; with `when: boot` after a reboot",
        survives: "reboots; pages that were set aside stay until somebody returns them",
        owners: &[
            "sysctl vm.nr_hugepages counts pages of the default size over all nodes: declare one of the two",
            "`hugepages=` on the kernel command line comes first, systemd-tmpfiles then changes it",
            "`hugetlb_cma=` makes the kernel skip pages of 1 GiB at boot",
            "tuned's profiles may set vm.nr_hugepages or [bootloader] words; `kernel_cmdline` names them",
            "kubelet counts pages at its start only: it has to be restarted to offer them",
        ],
        source: "kernel, admin-guide/mm/hugetlbpage (writes of all nodes follow the memory policy of the writer, so each \
                 node is written; the form hugepages=NODE:COUNT is read from Linux 5.16 on)",
    };
}

impl Operation for HugePages {
    paths!(mount);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([Self::FILE])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::HugePages(new) = newer.op else { return true };
        if new.size != self.size {
            return true;
        }
        // Without single nodes, the newer one declares all of them.
        if new.nodes.is_empty() || self.nodes.is_empty() {
            return false;
        }
        self.nodes.retain(|name, _| !new.nodes.contains_key(name));
        !self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<HugePages, ParamError> {
        let pages: HugePages = serde_json::from_value(value).map_err(de::Error::custom)?;
        pages.check().map(|()| pages)
    }

    #[test]
    fn one_way_to_count_is_given() {
        assert!(read(json!({"size": "1G", "per_node": 8})).is_ok());
        assert!(read(json!({"size": "2048kB", "nodes": {"0": 8}})).is_ok());
        for wrong in [
            json!({"size": "1G"}),
            json!({"size": "1G", "count": 8, "per_node": 4}),
            json!({"size": "16G", "count": 8}),
            json!({"size": "1G", "nodes": {"00": 8}}),
            json!({"size": "1G", "count": 8, "mount": "huge"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_newer_task_takes_over_its_nodes() {
        let mut old = read(json!({"size": "1G", "nodes": {"0": 8, "1": 8}})).unwrap();
        let newer = |value| NodeOp::HugePages(read(value).unwrap());
        assert!(old.yields(&Newer::of(&newer(json!({"size": "2M", "per_node": 1})))));
        assert!(old.yields(&Newer::of(&newer(json!({"size": "1G", "nodes": {"1": 2}})))));
        assert_eq!(old.nodes.len(), 1);
        assert!(!old.yields(&Newer::of(&newer(json!({"size": "1G", "count": 2})))));
    }
}
