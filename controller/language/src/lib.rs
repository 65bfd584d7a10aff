//! Ansible's language: playbooks, inventories, templates and vaults as typed values.
//!
//! | what a caller wants | where it is |
//! |---|---|
//! | hosts, groups and variables | [`inventory::Inventory::load`] |
//! | a playbook as a typed program, checked as a whole | [`playbook::Program`], with [`playbook::Known`] |
//! | files that tasks include, read before the run | [`playbook::Library`] |
//! | a template or a condition with a node's variables | [`template::render`], [`template::condition`] |
//! | what a template may ask of its surroundings | [`template::Outside`], a trait that the caller implements |
//! | encrypted files and values | [`vault::Keyring`], [`vault::Envelope`] |
//! | findings about a playbook | [`lint::check`], [`migration::survey`] |
//! | what is wrong, with file, line, excerpt and suggestion | [`diagnostic::Diagnostics`] |
//!
//! This crate must not know connections, nodes, the rollout or the terminal. docs/ansible.md says which part of
//! Ansible's language it reads.

pub mod diagnostic;
pub mod inventory;
pub mod lint;
pub mod migration;
pub mod names;
pub mod playbook;
pub mod sarif;
pub mod template;
pub mod vault;
pub mod visible;
pub mod window;
pub mod yaml;

/// Returns this thread's CPU time, which does not depend on other work of the machine.
#[cfg(test)]
fn processor_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
