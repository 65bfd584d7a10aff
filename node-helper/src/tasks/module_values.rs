//! The options that a loaded module runs with.

use std::fs;

use crate::{
    declare::{Node, Trouble},
    os::files,
    tasks::kernel_cmdline::split,
};

/// The options of NVIDIA's driver, which has none of them in /sys: they have mode 0 (open-gpu-kernel-modules,
/// nv-reg.h: `NV_REG_ENTRY`, `module_param_named(…, 0)`).
const NVIDIA: &str = "driver/nvidia/params";
const PREFIX: &str = "NVreg_";
/// Largest file of values that is read, in bytes.
const LARGEST: u64 = 1024 * 1024;

/// An option with another value than the declared one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differing {
    pub name: String,
    pub now: String,
    pub wanted: String,
}

fn bare(value: &str) -> &str {
    value.trim().trim_matches('"')
}

/// Returns the number that a word stands for; of 32 bits, because the driver shows -1 as 4294967295. The kernel reads
/// numbers with base 0, so that `0660` is 432 (kernel, `kernel/params.c`: `kstrtouint(val, 0, …)`).
fn number(word: &str) -> Option<i128> {
    let (negative, digits) = word.strip_prefix('-').map_or((false, word), |digits| (true, digits));
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) => i128::from_str_radix(hexadecimal, 16).ok()?,
        None if digits.len() > 1 && digits.starts_with('0') => i128::from_str_radix(digits, 8).ok()?,
        None if digits.chars().all(|c| c.is_ascii_digit()) => digits.parse().ok()?,
        None => return None,
    };
    Some(if negative { (1 << 32) - value } else { value })
}

/// Whether the kernel reads two values as the same: `1` and `Y`, `0x10` and 16.
fn same(one: &str, other: &str) -> bool {
    let flag = |word: &str| match word {
        "Y" | "y" | "1" => Some(true),
        "N" | "n" | "0" => Some(false),
        _ => None,
    };
    let numbers = number(one).zip(number(other));
    one == other
        || numbers.is_some_and(|(one, other)| one == other)
        || flag(one).zip(flag(other)).is_some_and(|(one, other)| one == other)
}

/// Returns the options in `params` that a loaded module runs with other values of. An option that cannot be read counts
/// as right: many have mode 0.
///
/// # Errors
/// If the values are there and cannot be read.
pub fn differing(node: &Node<'_>, module: &str, params: &str) -> Result<Vec<Differing>, Trouble> {
    let mut found = Vec::new();
    for word in split(params) {
        // A word alone sets a flag.
        let (name, wanted) = word.split_once('=').unwrap_or((&word, "1"));
        let Some(now) = value(node, module, name)? else { continue };
        let (now, wanted) = (bare(&now).to_owned(), bare(wanted).to_owned());
        if !same(&now, &wanted) {
            found.push(Differing { name: name.to_owned(), now, wanted });
        }
    }
    Ok(found)
}

fn value(node: &Node<'_>, module: &str, name: &str) -> Result<Option<String>, Trouble> {
    if let ("nvidia", Some(name)) = (module, name.strip_prefix(PREFIX)) {
        let bytes = files::read_bounded(&node.roots.proc(NVIDIA), LARGEST)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let line = |line: &str| {
            let (found, value) = line.split_once(':')?;
            (found.trim() == name).then(|| value.to_owned())
        };
        return Ok(text.lines().find_map(line));
    }
    let canonical = |name: &str| name.replace('-', "_");
    let folder = node.roots.path(format!("/sys/module/{module}/parameters"));
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(None) };
    // The kernel takes `-` for `_` in names of options.
    let mut names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let Some(file) = names.find(|file| canonical(file) == canonical(name)) else { return Ok(None) };
    let path = folder.join(file);
    match files::read_bounded(&path, LARGEST) {
        Ok(bytes) => Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.source.kind() == std::io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn values_are_compared_as_the_kernel_reads_them() {
        for (one, other, is_same) in [
            ("Y", "1", true),
            ("N", "1", false),
            ("16", "0x10", true),
            ("4294967295", "-1", true),
            ("432", "0660", true),
            ("660", "0660", false),
            ("a,b", "a,b", true),
            ("a", "b", false),
            ("Y", "2", false),
        ] {
            assert_eq!(same(one, other), is_same, "{one} {other}");
        }
    }

    #[test]
    fn options_of_the_driver_are_read_where_it_has_them() {
        let bench = Bench::new();
        // As driver 580 writes it.
        bench.write(
            "proc/driver/nvidia/params",
            "ModifyDeviceFiles: 1\nEnableGpuFirmware: 18\nRegistryDwords: \"\"\nMemoryPoolSize: 0\n",
        );
        bench.write("sys/module/mlx5_core/parameters/prof_sel", "2\n");
        bench.write("sys/module/mlx5_core/parameters/node_guid", "(null)\n");
        let told = |module: &str, params: &str| {
            let found = bench.node(|node| differing(node, module, params).unwrap());
            found
                .into_iter()
                .map(|one| format!("{} {} {}", one.name, one.now, one.wanted))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            told("nvidia", "NVreg_EnableGpuFirmware=0 NVreg_ModifyDeviceFiles=0x1 NVreg_NoSuch=1"),
            ["NVreg_EnableGpuFirmware 18 0"]
        );
        assert_eq!(told("nvidia", "NVreg_RegistryDwords=\"A=1;B=2\""), ["NVreg_RegistryDwords  A=1;B=2"]);
        assert_eq!(told("nvidia", "NVreg_RegistryDwords=\"A=1; B=2\""), ["NVreg_RegistryDwords  A=1; B=2"]);
        assert_eq!(told("mlx5_core", "prof-sel=2 other=1"), Vec::<String>::new());
        assert_eq!(told("mlx5_core", "prof_sel=3"), ["prof_sel 2 3"]);
    }
}
