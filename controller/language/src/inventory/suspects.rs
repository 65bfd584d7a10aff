//! Finds variables that look like misspelt connection variables.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Inventory;
use crate::{
    diagnostic::{Diagnostic, Diagnostics},
    names::fold_names,
    visible::visible,
};

/// Host variables that a connection reads.
const CONNECTION: [&str; 28] = [
    "ansible_become",
    "ansible_become_exe",
    "ansible_become_flags",
    "ansible_become_method",
    "ansible_become_pass",
    "ansible_become_password",
    "ansible_become_user",
    "ansible_connection",
    "ansible_group_priority",
    "ansible_host",
    "ansible_host_key_checking",
    "ansible_password",
    "ansible_port",
    "ansible_private_key_file",
    "ansible_python_interpreter",
    "ansible_remote_tmp",
    "ansible_ssh_args",
    "ansible_ssh_common_args",
    "ansible_ssh_executable",
    "ansible_ssh_extra_args",
    "ansible_ssh_host",
    "ansible_ssh_pass",
    "ansible_ssh_password",
    "ansible_ssh_port",
    "ansible_ssh_private_key_file",
    "ansible_ssh_user",
    "ansible_timeout",
    "ansible_user",
];

/// Names that Ansible's plugins for connections and `become` read, and that are similar to the above.
const OF_ANSIBLE: [&str; 4] =
    ["ansible_scp_args", "ansible_scp_executable", "ansible_scp_extra_args", "ansible_su_password"];

/// Whether a similar variable is intended: no connection could read its value, it is one of Ansible's, or its name is
/// a plural, as for lists.
fn is_meant(name: &str, value: &Value) -> bool {
    value.is_array()
        || value.is_object()
        || CONNECTION.contains(&name)
        || OF_ANSIBLE.contains(&name)
        || name.strip_suffix('s').is_some_and(|one| CONNECTION.contains(&one))
}

impl Inventory {
    /// Returns a warning for each variable that nothing reads but whose name is close to one that a connection reads.
    pub fn suspects(&self) -> Diagnostics {
        let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (host, vars) in self.hosts.iter().zip(&self.vars) {
            for (name, value) in vars.iter().filter(|(name, _)| name.starts_with("ansibl")) {
                if !is_meant(name, value) {
                    found.entry(name).or_default().push(&host.name);
                }
            }
        }
        let mut warnings = Diagnostics::new();
        for (name, hosts) in found {
            // Stricter than other suggestions: any name may be a variable, and most are no mistakes.
            let edits = if name.len() < "ansible_".len() + 8 { 1 } else { 2 };
            if let Some(near) =
                CONNECTION.into_iter().find(|near| strsim::damerau_levenshtein(name, near) <= edits)
            {
                let (name, hosts) = (visible(name), fold_names(hosts));
                warnings.push(
                    Diagnostic::warning(format!("no connection reads `{name}`, which is set for {hosts}"))
                        .help(format!("did you mean `{near}`?")),
                );
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use crate::inventory::tests::load;

    #[test]
    fn almost_a_variable_of_the_connection_is_suspected() {
        let text = "[gpu]\ngpu1 ansible_hots=10.0.0.1\ngpu2 ansible_hots=10.0.0.2 ansible_user=ops rack=a\n";
        insta::assert_snapshot!(load("hosts.ini", text).suspects().to_string(), @r"
        warning: no connection reads `ansible_hots`, which is set for gpu[1,2]
        help: did you mean `ansible_host`?
        ");
        let fine = "gpu1 ansible_host=a ansible_ssh_pass=b ansible_facts_cache=c ansible_distribution=d\n";
        assert_eq!(load("hosts.ini", fine).suspects().to_string(), "");
        let meant = "[gpu]\ngpu1\n[gpu:vars]\nansible_scp_extra_args='-O'\nansible_scp_executable=a\nansible_su_password=b\nansible_users=a,b\nansible_hots=['a']\n";
        assert_eq!(load("hosts.ini", meant).suspects().to_string(), "");
    }
}
