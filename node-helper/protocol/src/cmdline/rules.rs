//! What it means that a key is on a kernel command line more than once. Pure.

/// The meaning of a key that appears more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// One value counts, so a declared value replaces any other.
    One,
    /// Every word counts, and so does their order: a second console is a further console.
    Each,
    /// Comma-separated lists that are combined, in one word or in several.
    List,
    /// Comma-separated options that are combined in the same way, of which some take others back ([`are_contrary`]).
    Options,
    /// A comma-separated list of which only the last word counts.
    LastList,
    /// The first half of a pair: the words `hugepagesz=1G hugepages=8` are one declaration.
    Size,
    /// Parts with an ending each (`,high`, `,low`) that stand side by side; without an ending, the whole.
    Halves,
}

/// Names documents in which the rules are said.
const KERNEL: &str = "kernel, admin-guide/kernel-parameters";
const HUGETLB: &str = "kernel, admin-guide/mm/hugetlbpage";
const X86: &str = "kernel, arch/x86/kernel/pci-dma.c: early_param(iommu), and acpi/boot.c: early_param(acpi)";
const SETUP: &str = "kernel, __setup() and early_param() of the name: called for each word";
const QUIRKS: &str = "kernel, drivers/usb/core/quirks.c: quirks_param_set() forgets the former word";
const ATA: &str = "kernel, drivers/ata/libata-core.c: module_param_string(force); what has no port is for the one before it";
const DYNDBG: &str = "kernel, admin-guide/dynamic-debug-howto";
const MODULE: &str = "kernel, kernel/module/main.c: core_param(module_blacklist, …, charp)";
const KMOD: &str = "kmod, modprobe.d(5)";
const DRACUT: &str = "dracut, dracut.cmdline(7)";
const SYSTEMD: &str = "systemd, kernel-command-line(7) and systemd(1)";

/// The rule of each key that does not follow the general one, and its source. A key that is not here has
/// [`Rule::One`], or [`Rule::Each`] where it begins with `rd.` (dracut.cmdline(7)) or ends with `.dyndbg`.
const TABLE: [(&str, Rule, &str); 62] = [
    ("console", Rule::Each, KERNEL),
    ("earlycon", Rule::Each, KERNEL),
    ("earlyprintk", Rule::Each, KERNEL),
    ("acpi", Rule::Each, X86),
    ("acpi_osi", Rule::Each, KERNEL),
    ("intel_pstate", Rule::Each, SETUP),
    ("mce", Rule::Each, SETUP),
    ("tsc", Rule::Each, SETUP),
    ("iommu", Rule::Options, X86),
    ("intel_iommu", Rule::Options, SETUP),
    ("amd_iommu", Rule::Options, SETUP),
    ("pci", Rule::Options, SETUP),
    ("efi", Rule::Options, SETUP),
    ("usbcore.quirks", Rule::LastList, QUIRKS),
    ("libata.force", Rule::One, ATA),
    ("dyndbg", Rule::Each, DYNDBG),
    ("memmap", Rule::Each, KERNEL),
    ("video", Rule::Each, KERNEL),
    ("initcall_blacklist", Rule::List, KERNEL),
    ("cgroup_disable", Rule::List, KERNEL),
    ("cgroup_no_v1", Rule::List, KERNEL),
    ("crashkernel", Rule::Halves, KERNEL),
    ("hugepagesz", Rule::Size, HUGETLB),
    ("module_blacklist", Rule::LastList, MODULE),
    ("modprobe.blacklist", Rule::List, KMOD),
    ("ip", Rule::Each, DRACUT),
    ("ifname", Rule::Each, DRACUT),
    ("nameserver", Rule::Each, DRACUT),
    ("bond", Rule::Each, DRACUT),
    ("bridge", Rule::Each, DRACUT),
    ("team", Rule::Each, DRACUT),
    ("vlan", Rule::Each, DRACUT),
    ("rd.route", Rule::Each, DRACUT),
    ("rd.driver.blacklist", Rule::List, DRACUT),
    ("rd.auto", Rule::One, DRACUT),
    ("rd.debug", Rule::One, DRACUT),
    ("rd.dm", Rule::One, DRACUT),
    ("rd.info", Rule::One, DRACUT),
    ("rd.luks", Rule::One, DRACUT),
    ("rd.luks.crypttab", Rule::One, DRACUT),
    ("rd.lvm", Rule::One, DRACUT),
    ("rd.lvm.conf", Rule::One, DRACUT),
    ("rd.md", Rule::One, DRACUT),
    ("rd.md.conf", Rule::One, DRACUT),
    ("rd.memdebug", Rule::One, DRACUT),
    ("rd.neednet", Rule::One, DRACUT),
    ("rd.plymouth", Rule::One, DRACUT),
    ("rd.retry", Rule::One, DRACUT),
    ("rd.shell", Rule::One, DRACUT),
    ("rd.timeout", Rule::One, DRACUT),
    ("rd.udev.log_level", Rule::One, DRACUT),
    ("rd.udev.log_priority", Rule::One, DRACUT),
    ("rd.systemd.unit", Rule::One, SYSTEMD),
    ("rd.systemd.show_status", Rule::One, SYSTEMD),
    ("rd.systemd.gpt_auto", Rule::One, SYSTEMD),
    ("systemd.mask", Rule::Each, SYSTEMD),
    ("systemd.wants", Rule::Each, SYSTEMD),
    ("systemd.setenv", Rule::Each, SYSTEMD),
    ("systemd.set_credential", Rule::Each, SYSTEMD),
    ("systemd.set_credential_binary", Rule::Each, SYSTEMD),
    ("systemd.mount_extra", Rule::Each, SYSTEMD),
    ("systemd.swap_extra", Rule::Each, SYSTEMD),
];

/// Values of a key that take each other back, so that a declared one replaces the others. Source: the functions that read
/// them.
const CONTRARY: [(&str, &[&str]); 14] = [
    ("acpi", &["off", "on", "force"]),
    ("intel_pstate", &["disable", "active", "passive"]),
    ("tsc", &["reliable", "unstable"]),
    ("tsc", &["watchdog", "nowatchdog"]),
    // Not only of a word: `off` counts in spite of a later `pt`.
    ("iommu", &["off", "pt", "nopt", "soft"]),
    ("iommu", &["off", "force", "noforce"]),
    ("intel_iommu", &["on", "off"]),
    ("intel_iommu", &["sm_on", "sm_off"]),
    ("amd_iommu", &["on", "off", "force_enable"]),
    ("amd_iommu", &["pgtbl_v1", "pgtbl_v2"]),
    ("pci", &["use_crs", "nocrs"]),
    ("pci", &["pcie_bus_tune_off", "pcie_bus_safe", "pcie_bus_perf", "pcie_bus_peer2peer"]),
    ("pci", &["use_e820", "no_e820"]),
    ("efi", &["runtime", "noruntime"]),
];

/// Whether one of two different values of a key takes the other back.
pub fn are_contrary(key: &str, one: &str, other: &str) -> bool {
    let name = |value: &str| value.split('=').next().unwrap_or_default().to_owned();
    // `pci=realloc=off` after `pci=realloc`.
    (rule(key) == Rule::Options && name(one) == name(other))
        || CONTRARY.iter().any(|(of, values)| *of == key && values.contains(&one) && values.contains(&other))
}

/// Returns the rule of a key in which `-` is written as `_`.
pub fn rule(key: &str) -> Rule {
    let named = TABLE.iter().find(|(name, _, _)| *name == key).map(|(_, rule, _)| *rule);
    let each = key.starts_with("rd.") || key.ends_with(".dyndbg");
    named.unwrap_or(if each { Rule::Each } else { Rule::One })
}

/// Whether the values of a key are comma-separated lists.
pub fn is_list(key: &str) -> bool {
    matches!(rule(key), Rule::List | Rule::LastList | Rule::Options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_in_the_table_once_and_has_a_source() {
        let mut names: Vec<&str> = TABLE.iter().map(|(name, _, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
        assert!(TABLE.iter().all(|(name, _, source)| !name.contains('-') && source.contains(", ")));
        assert_eq!(
            (rule("mitigations"), rule("rd.lvm.lv"), rule("rd.lvm")),
            (Rule::One, Rule::Each, Rule::One)
        );
        assert_eq!(rule("nvme_core.dyndbg"), Rule::Each);
    }
}
