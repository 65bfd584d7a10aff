//! The keys of plays, blocks and tasks.

pub(super) const PLAY: &[&str] = &[
    "name",
    "hosts",
    "become",
    "become_user",
    "become_method",
    "become_flags",
    "become_exe",
    "remote_user",
    "port",
    "debugger",
    "vars",
    "vars_files",
    "serial",
    "waves",
    "max_unavailable",
    "max_fail_percentage",
    "max_failures",
    "rollout",
    "keep",
    "any_errors_fatal",
    "strategy",
    "gather_facts",
    "environment",
    "tags",
    "pre_tasks",
    "tasks",
    "post_tasks",
    "handlers",
    "order",
    "ignore_unreachable",
    "ignore_errors",
    "force_handlers",
    "no_log",
    "timeout",
    "run_once",
    "roles",
    "connection",
    "throttle",
    "check_mode",
    "diff",
    "module_defaults",
    "gather_subset",
    "gather_timeout",
    "collections",
];

/// Keys of `rollout`; the first four may be written beside it too.
pub(super) const ROLLOUT: &[&str] = &[
    "waves",
    "max_unavailable",
    "max_failures",
    "max_fail_percentage",
    "failure_domain",
    "max_unavailable_per_domain",
    "max_unreachable",
    "soak",
    "window",
    "drain",
    "reboot",
    "health_gate",
    "power_cycle",
];

/// Keys that tasks and blocks share.
pub(super) const SHARED: &[&str] = &[
    "name",
    "when",
    "tags",
    "vars",
    "become",
    "become_user",
    "become_method",
    "become_flags",
    "become_exe",
    "remote_user",
    "port",
    "debugger",
    "environment",
    "no_log",
    "timeout",
    "ignore_errors",
    "ignore_unreachable",
    "any_errors_fatal",
    "run_once",
    "delegate_to",
    "delegate_facts",
    "connection",
    "throttle",
    "check_mode",
    "diff",
    "notify",
    "module_defaults",
    "collections",
];

pub(super) const BLOCK: &[&str] = &["block", "rescue", "always"];

pub(super) const TASK: &[&str] = &[
    "loop",
    "with_items",
    "loop_control",
    "register",
    "changed_when",
    "failed_when",
    "listen",
    "args",
    "until",
    "retries",
    "delay",
    "async",
    "poll",
    "on_interrupt",
];

/// Ansible's keys that gpufleet does not support, and what to do instead.
pub(super) const NOT_YET: &[(&str, &str)] = &[
    ("include", "use `import_tasks` or `include_tasks`"),
    ("vars_prompt", "give the variables with `-e`"),
    ("fact_path", "leave it out: `ansible_local` has the facts of /etc/ansible/facts.d"),
    ("sudo", "write `become: true`"),
    ("sudo_user", "write `become: true` and `become_user`"),
    ("su", "write `become: true`"),
    ("su_user", "write `become: true` and `become_user`"),
    ("always_run", "write `check_mode: false`"),
];

/// Variables that say how a node is reached, which a play may set too.
///
/// Source: the options of ansible-core 2.19's connection plug-ins `ssh` and `local`, and of `sudo`.
pub(in crate::playbook) const CONNECTION: &[&str] = &[
    "ansible_become",
    "ansible_become_exe",
    "ansible_become_method",
    "ansible_become_pass",
    "ansible_become_password",
    "ansible_connection",
    "ansible_host",
    "ansible_host_key_checking",
    "ansible_password",
    "ansible_port",
    "ansible_private_key_file",
    "ansible_ssh_args",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_ssh_host",
    "ansible_ssh_host_key_checking",
    "ansible_ssh_pass",
    "ansible_ssh_password",
    "ansible_ssh_port",
    "ansible_ssh_private_key_file",
    "ansible_ssh_timeout",
    "ansible_ssh_user",
    "ansible_timeout",
    "ansible_user",
];

/// Returns the hint for a key of Ansible that is not supported, including `with_…` of a block or play.
pub(super) fn not_yet(key: &str) -> Option<&'static str> {
    let plain = key.strip_prefix("ansible.builtin.").unwrap_or(key);
    let listed = NOT_YET.iter().find(|(name, _)| *name == plain).map(|(_, hint)| *hint);
    listed
        .or_else(|| plain.starts_with("with_").then_some("loop in each task, or include the tasks in a loop"))
}
