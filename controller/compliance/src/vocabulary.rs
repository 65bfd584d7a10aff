//! The signals that rules may name: their scopes and types.
//!
//! Units and sources stand in the registry of the protocol. A signal of that registry that is not here can be named
//! too; its type is then not checked.

use gpufleet_protocol::signal::SIGNALS;
use serde_json::Value;

use crate::verdict::Scope;

/// What a value is, as far as it is known before anything is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Number,
    Text,
    Bool,
    /// 0 or 1, as NVML has it, or false or true.
    Flag,
    List,
    Any,
}

impl Kind {
    /// Returns the type of a value; that of an empty or null one is open.
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Bool(_) => Self::Bool,
            Value::Number(_) => Self::Number,
            Value::String(_) => Self::Text,
            Value::Array(_) => Self::List,
            Value::Null | Value::Object(_) => Self::Any,
        }
    }

    /// Returns its name for messages.
    pub const fn article(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Text => "a text",
            Self::Bool | Self::Flag => "true or false",
            Self::List => "a list",
            Self::Any => "any value",
        }
    }

    pub(crate) fn compares_with(self, other: Self) -> bool {
        use Kind::{Any, Bool, Flag, Number};
        self == other
            || matches!((self, other), (Any, _) | (_, Any) | (Flag, Bool | Number) | (Bool | Number, Flag))
    }

    /// Whether a value of a file can stand for it.
    pub(crate) fn takes(self, value: &Value) -> bool {
        match self {
            Self::Flag => {
                value.is_boolean() || matches!(value.as_f64(), Some(number) if number == 0.0 || number == 1.0)
            }
            Self::Any => !value.is_object(),
            kind => Self::of(value) == kind,
        }
    }
}

use Kind::{Any, Bool, Flag, List, Number, Text};

const NODE: &[(&str, Kind)] = &[
    ("acs_redirects", List),
    ("audit_cpu_ms", Number),
    ("boot_id_end", Text),
    ("boot_id_start", Text),
    ("cc_devtools", Flag),
    ("cc_feature", Flag),
    ("cc_ready", Flag),
    ("clock_unsync", Bool),
    ("cmdline", Text),
    ("containerd_state", Text),
    ("cpus_online", Number),
    ("crio_state", Text),
    ("cuda_version", Number),
    ("dcgm_state", Text),
    ("dmabuf_capable", Bool),
    ("docker_state", Text),
    ("driver_load_end", Any),
    ("driver_load_start", Any),
    ("driver_version", Text),
    ("edac_ce", Number),
    ("edac_ue", Number),
    ("eth_links", List),
    ("excluded_count", Number),
    ("file_ratio", Number),
    ("fm_state", Text),
    ("fm_version", Text),
    ("governor_bad", Number),
    ("gpu_dstate_count", Number),
    ("gpu_stuck_mark", Number),
    ("gpu_stuck_processes", List),
    ("gpu_zombie_count", Number),
    ("hugepages_total", List),
    ("ib_down", List),
    ("ib_up", Number),
    ("image_evict_ratio", Number),
    ("image_gc_ratio", Number),
    ("image_inode_used_ratio", Number),
    ("image_kubelet_used_ratio", Number),
    ("image_roots", List),
    ("image_stores", List),
    ("image_stores_on_root", Number),
    ("image_stores_slow", Number),
    ("image_stores_unfit", Number),
    ("image_used_ratio", Number),
    ("imex_state", Text),
    ("installed_driver", Text),
    ("kernel", Text),
    ("kubelet_cgroup_driver", Text),
    ("kubelet_gpus", Number),
    ("log_from", Text),
    ("md_degraded", Number),
    ("memlock_limited", Number),
    ("memlock_limits", List),
    ("memory_gib", Number),
    ("missing_device_nodes", Number),
    ("missing_uverbs", Number),
    ("module_kind", Text),
    ("module_version", Text),
    ("mps_state", Text),
    ("nfs_hung_servers", Number),
    ("nouveau_loaded", Bool),
    ("nova_loaded", Bool),
    ("numa_balancing", Number),
    ("numa_nodes", Number),
    ("nvme_count", Number),
    ("nvme_critical", Number),
    ("nvme_drives", List),
    ("nvme_media_errors", Number),
    ("nvme_spare_left", Number),
    ("nvme_unread", Number),
    ("nvme_used_percent", Number),
    ("nvml_count", Number),
    ("nvml_init_code", Number),
    ("pci_count", Number),
    ("peermem_loaded", Bool),
    ("persistenced", Text),
    ("persistenced_enabled", Bool),
    ("pid_ratio", Number),
    ("psi_memory_full_avg300", Number),
    ("pstore_files", Number),
    ("rdma_devices", Number),
    ("reboot_required", Bool),
    ("relaxed_ordering_off", List),
    ("ro_unexpected", Number),
    ("runtime_cgroup_driver", Text),
    ("secure_boot", Flag),
    ("shutdown_scheduled", Bool),
    ("swap_kib", Number),
    ("swappiness", Number),
    ("switches_present", Bool),
    ("system_state", Text),
    ("taint", Number),
    ("thp", Text),
    ("uptime_s", Number),
    ("vfio_count", Number),
    ("virtualization", Text),
    ("worker_state", Text),
    ("wrong_major", Number),
    ("zombies", Number),
];

const GPU: &[(&str, Kind)] = &[
    ("accounting", Flag),
    ("aer_correctable", Number),
    ("aer_devices", List),
    ("aer_fatal", Number),
    ("aer_nonfatal_without_ur", Number),
    ("arch", Text),
    ("board_part", Text),
    ("busy", Bool),
    ("c2c_active", Number),
    ("c2c_count", Number),
    ("c2c_enabled", Flag),
    ("compute_mode", Number),
    ("dead_pids", Number),
    ("drain_state", Flag),
    ("ecc_cor_sram_vol", Number),
    ("ecc_cor_vol", Number),
    ("ecc_current", Flag),
    ("ecc_default", Flag),
    ("ecc_pending", Flag),
    ("ecc_unc_agg", Number),
    ("ecc_unc_sram_vol", Number),
    ("ecc_unc_vol", Number),
    ("fabric_clique", Number),
    ("fabric_cluster", Text),
    ("fabric_mask", Number),
    ("fabric_state", Number),
    ("fabric_status", Number),
    ("fabric_summary", Number),
    ("fan_min_percent", Number),
    ("fan_target", Number),
    ("gpu_numa_node", Number),
    ("gsp_default", Flag),
    ("gsp_mode", Flag),
    ("gsp_version", Text),
    ("hist_low", Number),
    ("hist_none", Number),
    ("idle", Bool),
    ("inforom", Text),
    ("inforom_code", Number),
    ("lost_code", Number),
    ("margin_c", Number),
    ("mem_max_c", Number),
    ("mem_mhz", Number),
    ("mem_mhz_max", Number),
    ("mem_temp_c", Number),
    ("mem_used_mib", Number),
    ("mem_used_ratio", Number),
    ("memory_total_mib", Number),
    ("mig_current", Flag),
    ("mig_layout", List),
    ("mig_orphans", Number),
    ("mig_pending", Flag),
    ("module_draw_w", Number),
    ("module_limit_w", Number),
    ("name", Text),
    ("ns_hw_thermal", Number),
    ("ns_power_brake", Number),
    ("ns_sw_power", Number),
    ("ns_sw_thermal", Number),
    ("num_fans", Number),
    ("nvl_active", Number),
    ("nvl_count", Number),
    ("nvl_recovery", Number),
    ("nvl_replay", Number),
    ("nvl_speed_max", Number),
    ("nvl_speed_min", Number),
    ("pci", Text),
    ("pcie_gen", Number),
    ("pcie_gen_max", Number),
    ("pcie_l0_recovery", Number),
    ("pcie_replays", Number),
    ("pcie_width", Number),
    ("pcie_width_max", Number),
    ("persistence", Flag),
    ("power_default_w", Number),
    ("power_draw_w", Number),
    ("power_enforced_w", Number),
    ("power_limit_w", Number),
    ("process_count", Number),
    ("pstate", Number),
    ("reasons", Number),
    ("recovery_action", Number),
    ("remap_cor", Number),
    ("remap_failed", Flag),
    ("remap_pending", Flag),
    ("remap_unc", Number),
    ("repair_channel", Flag),
    ("repair_tpc", Flag),
    ("retired_dbe", Number),
    ("retired_pending", Flag),
    ("retired_sbe", Number),
    ("serial", Text),
    ("sm_mhz", Number),
    ("sram_threshold", Flag),
    ("sram_unc_agg", Number),
    ("sram_unc_vol", Number),
    ("temp_c", Number),
    ("tlimit_slowdown_c", Number),
    ("unrepairable", Flag),
    ("util_gpu", Number),
    ("uuid", Text),
    ("vbios", Text),
];

const DISK: &[(&str, Kind)] = &[("disk_used_ratio", Number), ("inode_used_ratio", Number)];

const PORT: &[(&str, Kind)] = &[
    ("ib_layer", Text),
    ("ib_link_error_recovery", Number),
    ("ib_phys_state", Text),
    ("ib_rate_gbps", Number),
    ("ib_state", Text),
    ("ib_symbol_error", Number),
    ("link_downed", Number),
    ("nic_board", Text),
    ("nic_fw", Text),
    ("nic_speed", Number),
    ("nic_speed_max", Number),
    ("nic_width", Number),
    ("nic_width_max", Number),
];

const ALL: [(Scope, &[(&str, Kind)]); 4] =
    [(Scope::Node, NODE), (Scope::Gpu, GPU), (Scope::Disk, DISK), (Scope::Port, PORT)];

/// Returns the scope and the type of a signal.
pub fn lookup(name: &str) -> Option<(Scope, Kind)> {
    let own = ALL.iter().find_map(|(scope, table)| {
        table.iter().find(|(known, _)| *known == name).map(|(_, kind)| (*scope, *kind))
    });
    own.or_else(|| {
        let mut registry = SIGNALS.iter().copied().flatten();
        registry.find(|info| info.name == name).map(|info| (info.scope.into(), Kind::Any))
    })
}

/// Returns the names of all signals, for suggestions.
pub fn names() -> impl Iterator<Item = &'static str> {
    let own = ALL.iter().flat_map(|(_, table)| table.iter().map(|(name, _)| *name));
    own.chain(SIGNALS.iter().copied().flatten().map(|info| info.name))
}

#[cfg(test)]
pub(crate) fn own() -> impl Iterator<Item = (Scope, &'static str)> {
    ALL.iter().flat_map(|(scope, table)| table.iter().map(|(name, _)| (*scope, *name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_stands_once_and_in_order() {
        let mut seen = std::collections::HashSet::new();
        for (scope, table) in ALL {
            assert!(table.is_sorted_by_key(|(name, _)| *name), "{scope}");
            for (name, _) in table {
                assert!(seen.insert(*name), "{name}");
                let registered = SIGNALS.iter().copied().flatten().find(|info| info.name == *name);
                assert!(registered.is_none_or(|info| Scope::from(info.scope) == scope), "{name}");
            }
        }
    }
}
