//! The variables that a text uses, and those that always exist.

use std::sync::Arc;

use crate::diagnostic::Span;

/// A use of a variable.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    pub name: String,
    pub span: Span,
    /// Whether it may be missing (`default`, `is defined`).
    pub guarded: bool,
    /// Whether a condition before it may prevent the use.
    pub doubtful: bool,
    /// Whether the task, or a block around it, sets it.
    pub local: bool,
    /// The variable whose value it is in; such a use counts where that variable is used.
    pub within: Option<Arc<Definition>>,
}

/// The place where a variable gets a value.
#[derive(Debug)]
pub(super) struct Definition {
    pub name: String,
    pub span: Span,
}

/// Variables that depend on what other hosts do.
pub(super) const OF_OTHERS: &[&str] =
    &["hostvars", "vars", "play_hosts", "ansible_play_hosts", "ansible_play_batch"];

/// Magic variables of the run and its hosts.
pub(super) const MAGIC: &[&str] = &[
    "inventory_hostname",
    "inventory_hostname_short",
    "inventory_dir",
    "inventory_file",
    "group_names",
    "groups",
    "hostvars",
    "vars",
    "play_hosts",
    "playbook_dir",
    "ansible_play_name",
    "ansible_play_hosts",
    "ansible_play_hosts_all",
    "ansible_play_batch",
    "ansible_check_mode",
    "ansible_diff_mode",
    "ansible_version",
    "ansible_facts",
    "ansible_run_tags",
    "ansible_skip_tags",
    "ansible_forks",
    "ansible_limit",
    "ansible_inventory_sources",
    "ansible_playbook_python",
    "ansible_play_role_names",
    "ansible_dependent_role_names",
    "ansible_role_names",
    "role_names",
    "ansible_verbosity",
    "ansible_host",
    "ansible_port",
    "ansible_user",
    "ansible_connection",
    "ansible_parent_role_names",
    "ansible_search_path",
    "ansible_parent_role_paths",
    "ansible_failed_task",
    "ansible_failed_result",
    "ansible_loop_var",
    "ansible_index_var",
    "environment",
    "omit",
];

/// Variables set by fact gathering: Ansible's names, and `gpufleet_facts` with all of them.
pub(super) const FACTS: &[&str] = &[
    "gpufleet_facts",
    "ansible_all_ipv4_addresses",
    "ansible_all_ipv6_addresses",
    "ansible_apparmor",
    "ansible_architecture",
    "ansible_bios_date",
    "ansible_bios_vendor",
    "ansible_bios_version",
    "ansible_board_asset_tag",
    "ansible_board_name",
    "ansible_board_serial",
    "ansible_board_vendor",
    "ansible_board_version",
    "ansible_chassis_asset_tag",
    "ansible_chassis_serial",
    "ansible_chassis_vendor",
    "ansible_chassis_version",
    "ansible_cmdline",
    "ansible_date_time",
    "ansible_default_ipv4",
    "ansible_distribution",
    "ansible_distribution_major_version",
    "ansible_distribution_minor_version",
    "ansible_distribution_release",
    "ansible_distribution_version",
    "ansible_dns",
    "ansible_domain",
    "ansible_effective_group_id",
    "ansible_effective_user_id",
    "ansible_env",
    "ansible_fips",
    "ansible_fqdn",
    "ansible_hostname",
    "ansible_interfaces",
    "ansible_kernel",
    "ansible_kernel_version",
    "ansible_loadavg",
    "ansible_local",
    "ansible_lsb",
    "ansible_machine",
    "ansible_machine_id",
    "ansible_memfree_mb",
    "ansible_memory_mb",
    "ansible_memtotal_mb",
    "ansible_mounts",
    "ansible_nodename",
    "ansible_os_family",
    "ansible_pkg_mgr",
    "ansible_proc_cmdline",
    "ansible_processor",
    "ansible_processor_cores",
    "ansible_processor_count",
    "ansible_processor_nproc",
    "ansible_processor_threads_per_core",
    "ansible_processor_vcpus",
    "ansible_product_name",
    "ansible_product_serial",
    "ansible_product_uuid",
    "ansible_product_version",
    "ansible_python",
    "ansible_python_version",
    "ansible_real_group_id",
    "ansible_real_user_id",
    "ansible_selinux",
    "ansible_service_mgr",
    "ansible_swapfree_mb",
    "ansible_swaptotal_mb",
    "ansible_system",
    "ansible_system_vendor",
    "ansible_uptime_seconds",
    "ansible_user_dir",
    "ansible_user_gecos",
    "ansible_user_gid",
    "ansible_user_id",
    "ansible_user_shell",
    "ansible_user_uid",
    "ansible_userspace_architecture",
    "ansible_userspace_bits",
    "ansible_virtualization_role",
    "ansible_virtualization_type",
];

/// Prefixes of network interface names, after which their facts are named.
const INTERFACES: &[&str] =
    &["bond", "br", "docker", "en", "eth", "ib", "mlx", "team", "usb", "veth", "virbr", "vlan", "wl"];

/// Whether fact gathering may set a variable of this name.
pub fn is_fact(name: &str) -> bool {
    let is_interface = |name: &str| {
        name == "lo"
            || name.contains(|c: char| c.is_ascii_digit())
                && INTERFACES.iter().any(|kind| name.starts_with(kind))
    };
    FACTS.contains(&name) || name.strip_prefix("ansible_").is_some_and(is_interface)
}

/// Whether a text may use a fact.
pub(super) fn mentions_fact(text: &str) -> bool {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .any(|word| word == "ansible_facts" || is_fact(word))
}

/// Counts how often `word` occurs in a text as a whole word.
pub fn count(text: &str, word: &str) -> usize {
    let of_name = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .filter(|(at, _)| {
            let before = text.get(..*at).and_then(|text| text.chars().next_back());
            let after = text.get(at + word.len()..).and_then(|text| text.chars().next());
            !before.is_some_and(of_name) && !after.is_some_and(of_name)
        })
        .count()
}
