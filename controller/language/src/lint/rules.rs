//! The lint rules, each with its reason and an example.

use std::fmt::Write as _;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A matter of style.
    Note,
    /// Probably not what was meant.
    Warning,
    /// Nothing can run.
    Error,
}

impl Severity {
    /// Returns the word that SARIF and the screen use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A lint rule.
#[derive(Debug)]
pub struct Rule {
    pub name: &'static str,
    pub severity: Severity,
    /// Names of the same rule in ansible-lint; they silence it too.
    pub also: &'static [&'static str],
    /// One sentence.
    pub summary: &'static str,
    /// Why it matters and what to do.
    pub help: &'static str,
    /// A playbook with the mistake, and the same without it.
    pub example: &'static str,
}

/// Every rule, errors first.
pub static RULES: &[Rule] = &[
    Rule {
        name: "invalid",
        severity: Severity::Error,
        also: &[],
        summary: "The playbook cannot run.",
        help: "Everything that `gpufleet run` refuses before it contacts a node: YAML, keys, kinds, parameters, templates, \
               files that are not there. It cannot be silenced.",
        example: "- comand: uptime       # wrong\n- command: uptime      # right",
    },
    Rule {
        name: "undefined-variable",
        severity: Severity::Error,
        also: &[],
        summary: "A variable is used that nothing defines.",
        help: "Found only with `-i`: without an inventory nobody knows the variables of hosts and groups.",
        example: "- command: echo {{ drivr_version }}   # wrong\n- command: echo {{ driver_version }}  # right",
    },
    Rule {
        name: "risky-octal",
        severity: Severity::Warning,
        also: &["risky-octal"],
        summary: "A file mode is a decimal number.",
        help: "YAML reads `644` as six hundred and forty-four, which as a mode is 1204. Put modes into quotes.",
        example: "- file: {path: /etc/gpu, mode: 644}      # wrong\n- file: {path: /etc/gpu, mode: '0644'}   # right",
    },
    Rule {
        name: "unknown-kubelet-setting",
        severity: Severity::Warning,
        also: &[],
        summary: "A setting of the kubelet has a name that no known release has.",
        help: "A kubelet that does not know a setting passes over it, or does not start. What is a slip of a known one is an error.",
        example: "kubelet: {settings: {podMaximum: 64}}   # wrong\nkubelet: {settings: {maxPods: 64}}      # right",
    },
    Rule {
        name: "command-instead-of-kind",
        severity: Severity::Warning,
        also: &["command-instead-of-module"],
        summary: "A command does what a kind declares.",
        help: "A kind can be planned, is done only where it is needed, is verified, and waits for its permit where it \
               disturbs jobs. A command is none of that.",
        example: "- shell: nvidia-smi -pm 1            # wrong\n- gpu_persistence: {mode: daemon}    # right",
    },
    Rule {
        name: "no-changed-when",
        severity: Severity::Warning,
        also: &["no-changed-when"],
        summary: "A command counts as a change every time.",
        help: "Say when it changes something (`changed_when`), or what shows that it was done (`creates`, `removes`).",
        example: "- command: nvidia-smi -L             # wrong\n- command: nvidia-smi -L             # right\n  changed_when: false",
    },
    Rule {
        name: "command-instead-of-shell",
        severity: Severity::Warning,
        also: &["command-instead-of-shell"],
        summary: "A shell is used where none is needed.",
        help: "`command` runs the program with its words as they are: nothing in a variable can become a command.",
        example: "- shell: /opt/check --fast           # wrong\n- command: /opt/check --fast         # right",
    },
    Rule {
        name: "no-jinja-when",
        severity: Severity::Warning,
        also: &["no-jinja-when", "jinja[when]"],
        summary: "A condition stands in braces.",
        help: "`when`, `changed_when`, `failed_when` and `until` are expressions by themselves; braces inside them are \
               rendered first and the result is evaluated once more.",
        example: "when: \"{{ rack == 'r1' }}\"   # wrong\nwhen: rack == 'r1'           # right",
    },
    Rule {
        name: "partial-become",
        severity: Severity::Warning,
        also: &["partial-become", "partial-become[task]", "partial-become[play]"],
        summary: "`become_user` without `become` does nothing.",
        help: "Add `become: true` beside it.",
        example: "become_user: slurm    # wrong\nbecome: true          # right\nbecome_user: slurm",
    },
    Rule {
        name: "missing-become",
        severity: Severity::Warning,
        also: &[],
        summary: "A task changes what only root may, in a play whose other tasks become root for it.",
        help: "Add `become: true` to it, or to the whole play.",
        example: "- service: {name: slurmd, state: restarted}   # wrong, beside a task with `become: true`",
    },
    Rule {
        name: "gpu-without-root",
        severity: Severity::Warning,
        also: &[],
        summary: "GPUs are changed in a play in which nothing says who becomes root.",
        help: "Only root may change GPUs: plan and run fail for every other user. Nothing is said where the login user is root, or where \
               play, variables of the play or the inventory (`-i`) speak of `become`.",
        example: "- hosts: gpus\n  become: true\n  tasks:\n    - gpu_persistence: {mode: daemon}",
    },
    Rule {
        name: "limit-without-persistence",
        severity: Severity::Warning,
        also: &[],
        summary: "A power limit, clock or compute mode is declared, and persistence is not.",
        help: "The driver keeps these in memory and forgets them when the last program that uses the GPU ends. Without persistence \
               that is as soon as they are set, and the run ends unconverged. Nothing is said where roles or other files may \
               declare it.",
        example: "- gpu_power: {limit_watts: 500}         # wrong alone\n- gpu_persistence: {mode: daemon}       # right\n- gpu_power: {limit_watts: 500}",
    },
    Rule {
        name: "contradicting-tasks",
        severity: Severity::Warning,
        also: &[],
        summary: "A task takes away what an earlier task of the play declares.",
        help: "Every run does both: something changes each time, and only the later one lasts. Found for settings of the kernel, the \
               hardware and GPUs, among tasks that run in any case and have no templates. Keep one, or give each the hosts or the \
               condition that it is for. A setting for the time of a command, such as clocks for a benchmark, is silenced.",
        example: "- sysctl: {name: vm.swappiness, value: 20}\n- sysctl: {name: vm.swappiness, value: 30}   # wrong",
    },
    Rule {
        name: "package-latest",
        severity: Severity::Warning,
        also: &["package-latest"],
        summary: "A package is installed in whatever version is newest that day.",
        help: "Nodes that are done a day apart differ then. Name a version, or use `state: present`.",
        example: "- package: {name: datacenter-gpu-manager, state: latest}     # wrong\n- package: {name: datacenter-gpu-manager, state: present}    # right",
    },
    Rule {
        name: "plain-secret",
        severity: Severity::Warning,
        also: &[],
        summary: "A password stands in the playbook.",
        help: "Encrypt it: `gpufleet vault encrypt-string --name NAME`.",
        example: "vars: {db_password: hunter2}   # wrong",
    },
    Rule {
        name: "duplicate-handler",
        severity: Severity::Warning,
        also: &[],
        summary: "Two handlers of a play have one name.",
        help: "Only one of them runs when it is notified. Give them names of their own, or let both `listen` to a topic.",
        example: "handlers:\n  - name: restart\n    service: {name: a, state: restarted}\n  - name: restart     # wrong\n    service: {name: b, state: restarted}",
    },
    Rule {
        name: "unused-variable",
        severity: Severity::Warning,
        also: &[],
        summary: "A variable of a play, or a `register`, is used nowhere.",
        help: "Remove it, or correct the name that was meant. Names that begin with `ansible_` or `_` are left alone, and \
               nothing is said where a file is named by a template.",
        example: "- command: uptime\n  register: up        # wrong: nothing uses `up`",
    },
    Rule {
        name: "unknown-noqa",
        severity: Severity::Warning,
        also: &[],
        summary: "A `noqa` comment names no rule.",
        help: "`gpufleet check --list-rules` lists them. Names of ansible-lint are left alone.",
        example: "- command: uptime   # noqa: no-chnged-when",
    },
    Rule {
        name: "name-missing",
        severity: Severity::Note,
        also: &["name[missing]", "unnamed-task"],
        summary: "A task has no name.",
        help: "Names are what people see while it runs, and what `--start-at-task` goes by.",
        example: "- command: uptime        # wrong\n- name: Read the load    # right\n  command: uptime",
    },
    Rule {
        name: "truthy",
        severity: Severity::Note,
        also: &["yaml[truthy]"],
        summary: "`yes`, `no`, `on` or `off` stands for a boolean.",
        help: "They are booleans to Ansible and gpufleet, but text to most other readers of YAML. Write `true` and `false`.",
        example: "become: yes    # wrong\nbecome: true   # right",
    },
    Rule {
        name: "deprecated-key",
        severity: Severity::Note,
        also: &["deprecated-local-action"],
        summary: "A key has a newer form.",
        help: "`local_action` is `delegate_to: localhost`, `with_items` is `loop`, and `ansible_ssh_user` and its like lost \
               their `ssh_`.",
        example: "with_items: [a, b]    # wrong\nloop: [a, b]          # right",
    },
];

/// Returns the rule with this name, here or in ansible-lint.
pub fn rule(name: &str) -> Option<&'static Rule> {
    RULES
        .iter()
        .find(|rule| rule.name == name)
        .or_else(|| RULES.iter().find(|rule| rule.also.contains(&name)))
}

/// Returns all rules as Markdown, for docs/reference/rules.md.
pub fn rules_markdown() -> String {
    let mut out = String::from(
        "# Rules of `gpufleet check`\n\n\
         Made from the rules by `gpufleet check --list-rules`; a test keeps this file true (`make reference` rewrites it).\n\n\
         A rule is silenced where it stands with a comment, `# noqa: RULE`, on the line itself or on the first line of the \
         task; several are separated by commas, and a bare `# noqa` silences all. `--skip-rule RULE` leaves it out \
         everywhere. Names of ansible-lint that mean the same work too. Errors cannot be silenced.\n\n\
         | rule | severity | what it finds |\n|---|---|---|\n",
    );
    for rule in RULES {
        let _ =
            writeln!(out, "| [`{0}`](#{0}) | {1} | {2} |", rule.name, rule.severity.as_str(), rule.summary);
    }
    for rule in RULES {
        let _ = write!(
            out,
            "\n## {}\n\n{}\n\n{}\n\n```yaml\n{}\n```\n",
            rule.name, rule.summary, rule.help, rule.example
        );
        let others: Vec<String> =
            rule.also.iter().filter(|name| **name != rule.name).map(|name| format!("`{name}`")).collect();
        if !others.is_empty() {
            let _ = write!(out, "\nAlso silenced as {}.\n", others.join(", "));
        }
    }
    out
}
