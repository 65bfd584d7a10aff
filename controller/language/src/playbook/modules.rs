//! Ansible's modules that are not kinds here, and their replacements.

use gpufleet_protocol::tasks::{KINDS, find};

/// What to write instead of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleAdvice {
    /// The same kind has another name here.
    Renamed(&'static str),
    /// Another way, as a sentence.
    Instead(&'static str),
}

impl ModuleAdvice {
    /// Returns the help line.
    pub fn text(&self) -> String {
        match self {
            Self::Renamed(name) => format!("write `{name}`"),
            Self::Instead(text) => (*text).to_owned(),
        }
    }
}

/// By the last part of the module's name, sorted.
const INSTEAD: &[(&str, &str)] = &[
    (
        "add_host",
        "put the host into the inventory: who takes part is settled before the first node is touched",
    ),
    ("alternatives", "use `command: update-alternatives --set …` with `changed_when`"),
    ("assemble", "write the file with `template`"),
    ("at", "use `command: at …`"),
    ("authorized_key", "use `lineinfile` on the user's ~/.ssh/authorized_keys"),
    ("debconf", "use `command: debconf-set-selections` with `stdin` and `changed_when`"),
    ("docker_container", "write a systemd unit with `template` and start it with `service`"),
    ("docker_image", "use `command: docker pull …` with `changed_when`"),
    ("docker_login", "write the user's ~/.docker/config.json with `copy`, from a vault"),
    ("docker_network", "use `command: docker network create …` with `changed_when`"),
    ("docker_volume", "use `command: docker volume create …` with `changed_when`: one that is there stays"),
    ("expect", "use `command` with `stdin`"),
    ("filesystem", "use `command: mkfs …` with `creates`"),
    ("firewalld", "use `command: firewall-cmd …` with `changed_when`"),
    ("flatpak", "use `command`"),
    (
        "getent",
        "use `command: getent passwd NAME` with `register`, `changed_when: false` and `check_mode: false`",
    ),
    ("git", "use `command: git clone …` with `creates`"),
    (
        "group_by",
        "make the groups in the inventory with `plugin: constructed`, and take a part of them with `--limit`",
    ),
    ("helm", "use `command: helm upgrade --install …` with `delegate_to: localhost`"),
    ("include", "write `include_tasks` or `import_tasks`: `include` was taken out of Ansible too"),
    ("ini_file", "use `lineinfile` with `insertafter` for the section"),
    ("iptables", "use `command: iptables …` with `changed_when`"),
    ("k8s", "use `command: kubectl apply …` with `delegate_to: localhost`"),
    ("known_hosts", "use `lineinfile` on /etc/ssh/ssh_known_hosts"),
    ("locale_gen", "use `command: locale-gen …` with `changed_when`"),
    ("lvg", "use `command: vgcreate …` with `creates`"),
    ("lvol", "use `command: lvcreate …` with `creates`"),
    ("mail", "let `gpufleet report` tell, or use `command` with `delegate_to: localhost`"),
    ("make", "use `command: make …` with `creates`"),
    ("mysql_db", "use `command: mysql -e …` with `changed_when`"),
    ("mysql_user", "use `command: mysql -e …` with `changed_when`"),
    ("nmcli", "use `command: nmcli …` with `changed_when`"),
    (
        "nvidia_smi",
        "declare what it sets: `gpu_persistence`, `gpu_power`, `gpu_clocks`, `gpu_compute_mode`, `gpu_ecc`, `gpu_accounting` or \
         `gpu_mig`; to read, use `command: nvidia-smi …` with `changed_when: false`",
    ),
    ("pam_limits", "write the file below /etc/security/limits.d with `copy`"),
    ("parted", "use `command: parted …` with `creates`"),
    ("patch", "use `command: patch …`"),
    ("pip", "use `command: pip install …` with `creates`"),
    ("podman_container", "write a systemd unit with `template` and start it with `service`"),
    ("python_requirements_facts", "use `command: python3 -c …` with `changed_when: false`"),
    ("python_requirements_info", "use `command: python3 -c …` with `changed_when: false`"),
    ("seboolean", "use `command: setsebool -P …` with `changed_when`"),
    ("sefcontext", "use `command: semanage fcontext …` and `command: restorecon …` with `changed_when`"),
    ("selinux", "use `lineinfile` on /etc/selinux/config and `reboot`"),
    ("seport", "use `command: semanage port …` with `changed_when`"),
    ("set_fact_cacheable", "use `set_fact`"),
    ("slack", "let `gpufleet report` tell, or use `command` with `delegate_to: localhost`"),
    ("snap", "use `command: snap install …` with `changed_when`"),
    ("subversion", "use `command: svn checkout …` with `creates`"),
    ("synchronize", "use `copy` for files, or `command: rsync …` with `delegate_to: localhost`"),
    ("sysvinit", "use `service`"),
    ("timezone", "use `command: timedatectl set-timezone …` with `changed_when`"),
    ("ufw", "use `command: ufw …` with `changed_when`"),
    ("uri", "use `command: curl …` with `register`, `changed_when: false` and `check_mode: false`"),
    ("xattr", "use `command: setfattr …` with `changed_when`"),
    ("zypper", "use `command: zypper --non-interactive install …` with `changed_when`"),
];

/// Other modules that are equal to a kind.
const SAME: &[(&str, &str)] = &[
    ("apt_rpm", "package"),
    ("dnf5", "dnf"),
    ("openrc", "service"),
    ("win_command", "command"),
    ("yum", "dnf"),
];

/// Returns what replaces a module that is no kind; `None` if nothing is known about it.
pub fn module_advice(name: &str) -> Option<ModuleAdvice> {
    let last = name.rsplit('.').next().unwrap_or(name);
    if last.starts_with("win_") {
        return Some(ModuleAdvice::Instead("leave it out: gpufleet manages Linux nodes only"));
    }
    if name != last
        && let Some(kind) = find(last)
    {
        return Some(ModuleAdvice::Renamed(kind.name));
    }
    let same = SAME.iter().find(|(module, _)| *module == last).and_then(|(_, kind)| find(kind));
    if let Some(kind) = same {
        return Some(ModuleAdvice::Renamed(kind.name));
    }
    // The program's own name, which is no name of a module.
    let last = if last == "nvidia-smi" { "nvidia_smi" } else { last };
    INSTEAD.iter().find(|(module, _)| *module == last).map(|(_, text)| ModuleAdvice::Instead(text))
}

/// Returns [`module_advice`], except for a task with `state: absent`, which advice to write something does not fit.
pub fn module_advice_for(name: &str, absent: bool) -> Option<ModuleAdvice> {
    let writes =
        |text: &str| ["write the file", "write a systemd unit"].iter().any(|word| text.starts_with(word));
    match module_advice(name)? {
        ModuleAdvice::Instead(text) if absent && writes(text) => {
            Some(ModuleAdvice::Instead("remove its file with `file` and `state: absent`"))
        }
        advice => Some(advice),
    }
}

/// Returns the names of all kinds, with their aliases.
pub fn kind_names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.aliases.iter().copied().chain([kind.name]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_their_ways() {
        for name in kind_names() {
            assert!(find(name).is_some(), "{name}");
        }
        assert_eq!(module_advice("my.collection.sysctl"), Some(ModuleAdvice::Renamed("sysctl")));
        assert!(matches!(module_advice("community.general.ufw"), Some(ModuleAdvice::Instead(_))));
        assert!(matches!(module_advice("win_service"), Some(ModuleAdvice::Instead(_))));
        assert_eq!(module_advice("foo.bar.baz"), None);
        for of_public_roles in
            ["community.mysql.mysql_user", "docker_volume", "community.docker.docker_login"]
        {
            assert!(module_advice(of_public_roles).is_some(), "{of_public_roles}");
        }
        let absent = |name: &str| module_advice_for(name, true).map(|advice| advice.text());
        assert_eq!(absent("pam_limits").unwrap(), "remove its file with `file` and `state: absent`");
        assert_eq!(absent("ufw").unwrap(), "use `command: ufw …` with `changed_when`");
        let kinds: Vec<_> = INSTEAD.iter().filter(|(name, _)| find(name).is_some()).collect();
        assert!(kinds.is_empty(), "kinds by now: {kinds:?}");
    }
}
