//! The variables that a text asks for, and those that exist without anybody's doing.

use crate::diagnostic::Span;

/// One use of a variable.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    pub name: String,
    pub span: Span,
    /// Its absence is provided for (`default`, `is defined`).
    pub guarded: bool,
}

/// Variables that hang on what other hosts do.
pub(super) const OF_OTHERS: &[&str] =
    &["hostvars", "vars", "play_hosts", "ansible_play_hosts", "ansible_play_batch"];

/// Variables of the run and its hosts.
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
    "ansible_role_names",
    "role_names",
    "ansible_verbosity",
    "ansible_host",
    "ansible_port",
    "ansible_user",
    "ansible_connection",
    "ansible_parent_role_names",
    "ansible_parent_role_paths",
    "ansible_failed_task",
    "ansible_failed_result",
    "ansible_loop_var",
    "ansible_index_var",
    "omit",
];

/// Variables that gathering facts sets: Ansible's common names, and `gpufleet_facts` with all of them.
pub(super) const FACTS: &[&str] = &[
    "gpufleet_facts",
    "ansible_hostname",
    "ansible_nodename",
    "ansible_fqdn",
    "ansible_kernel",
    "ansible_architecture",
    "ansible_distribution",
    "ansible_distribution_version",
    "ansible_distribution_major_version",
    "ansible_os_family",
    "ansible_system",
    "ansible_memtotal_mb",
    "ansible_processor_vcpus",
    "ansible_default_ipv4",
    "ansible_cmdline",
    "ansible_uptime_seconds",
    "ansible_service_mgr",
    "ansible_virtualization_type",
];
