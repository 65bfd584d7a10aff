//! The boot loader's configuration: /etc/default/grub produces grub.cfg, which sets the next boot's command line.

use std::fs;
use std::path::Path;

use crate::out;

pub const CONFIG: &str = "/boot/grub/grub.cfg";
const KERNEL: &str = "/boot/vmlinuz-6.8.0-lab";
const ROOT: &str = "root=UUID=8a1f3c2e-0d6b-4c55-9b1a-6c1f0a7e5d10 ro";

/// `update-grub` and `grub-mkconfig [-o FILE]`.
pub fn update(arguments: &[String]) -> u8 {
    let target = arguments
        .iter()
        .position(|a| a == "-o" || a == "--output")
        .and_then(|at| arguments.get(at + 1))
        .cloned()
        .or_else(|| arguments.iter().find_map(|a| a.strip_prefix("--output=").map(str::to_owned)));
    let text = config(Path::new("/etc/default/grub"), Path::new("/etc/default/grub.d"));
    let Some(target) = target else {
        out::line(text);
        return 0;
    };
    out::error("Generating grub configuration file ...");
    if let Err(error) = super::super::node::files::write(Path::new(&target), &text) {
        out::error(format!("grub-mkconfig: cannot write {target}: {error}"));
        return 1;
    }
    out::error(format!("Found linux image: {KERNEL}\ndone"));
    0
}

/// `grubby --update-kernel=ALL [--args=…] [--remove-args=…]` and `grubby --info=…`.
pub fn grubby(arguments: &[String]) -> u8 {
    let mut words: Vec<String> =
        configured(Path::new(CONFIG)).split_whitespace().map(str::to_owned).collect();
    let option = |name: &str| {
        arguments
            .iter()
            .find_map(|a| a.strip_prefix(&format!("{name}=")).map(|v| v.trim_matches('"').to_owned()))
    };
    if arguments.iter().any(|a| a.starts_with("--info")) {
        out::line(format!("index=0\nkernel=\"{KERNEL}\"\nargs=\"{}\"", words.join(" ")));
        return 0;
    }
    if option("--update-kernel").is_none() {
        out::error("grubby: bad argument: --update-kernel=ALL or --info=ALL is needed");
        return 1;
    }
    let key = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
    for word in option("--remove-args").unwrap_or_default().split_whitespace() {
        words.retain(|have| have != word && (word.contains('=') || key(have) != word));
    }
    for word in option("--args").unwrap_or_default().split_whitespace() {
        words.retain(|have| key(have) != key(word));
        words.push(word.to_owned());
    }
    let text = render(&words.join(" "));
    u8::from(super::super::node::files::write(Path::new(CONFIG), &text).is_err())
}

/// Writes the first configuration under a node's upper layer.
pub fn write_config(upper: &Path, drop_ins: &Path) -> std::io::Result<()> {
    let text = config(&upper.join("etc/default/grub"), drop_ins);
    crate::node::files::write(&upper.join(CONFIG.trim_start_matches('/')), &text)
}

/// Returns the command line that the node boots with, from the boot loader's configuration in its upper layer.
pub fn booted_cmdline(upper: &Path) -> String {
    let config = [CONFIG, "/boot/grub2/grub.cfg"]
        .map(|path| upper.join(path.trim_start_matches('/')))
        .into_iter()
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path);
    let arguments = config.map_or_else(|| ROOT.to_owned(), |path| configured(&path));
    format!("BOOT_IMAGE={KERNEL} {arguments}")
}

/// Returns the kernel arguments of the first entry of a grub.cfg.
fn configured(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().map(str::trim).find(|line| line.starts_with("linux"));
    line.map_or_else(|| ROOT.to_owned(), |line| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" "))
}

fn config(defaults: &Path, drop_ins: &Path) -> String {
    let mut files = vec![defaults.to_owned()];
    if let Ok(entries) = fs::read_dir(drop_ins) {
        let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        found.retain(|path| path.extension().is_some_and(|e| e == "cfg"));
        found.sort();
        files.extend(found);
    }
    let (mut all, mut default) = (String::new(), String::new());
    for text in files.iter().filter_map(|path| fs::read_to_string(path).ok()) {
        for line in text.lines().map(str::trim) {
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim_matches(['"', '\'']);
            match key {
                "GRUB_CMDLINE_LINUX" => all = expanded(value, &all, &default),
                "GRUB_CMDLINE_LINUX_DEFAULT" => default = expanded(value, &all, &default),
                _ => {}
            }
        }
    }
    render(&format!("{ROOT} {all} {default}"))
}

/// Replaces the two variables as a shell does, with and without braces.
fn expanded(value: &str, all: &str, default: &str) -> String {
    let known = [("GRUB_CMDLINE_LINUX_DEFAULT", default), ("GRUB_CMDLINE_LINUX", all)];
    known.iter().fold(value.to_owned(), |text, (name, value)| {
        text.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value)
    })
}

fn render(arguments: &str) -> String {
    let arguments = arguments.split_whitespace().collect::<Vec<_>>().join(" ");
    format!(
        "# Made by grub-mkconfig\nmenuentry 'Linux' {{\n\tlinux\t{KERNEL} {arguments}\n\tinitrd\t/boot/initrd.img\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_follows_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path();
        let drop_ins = upper.join("grub.d");
        fs::create_dir_all(&drop_ins).unwrap();
        crate::node::files::write(
            &upper.join("etc/default/grub"),
            "# x\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet iommu=pt\"\nGRUB_CMDLINE_LINUX='console=ttyS0'\n",
        )
        .unwrap();
        write_config(upper, &drop_ins).unwrap();
        let line = booted_cmdline(upper);
        assert!(line.starts_with("BOOT_IMAGE=/boot/vmlinuz"), "{line}");
        assert!(line.ends_with("ro console=ttyS0 quiet iommu=pt"), "{line}");
        fs::write(
            drop_ins.join("50-a.cfg"),
            "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT nosmt\"\n",
        )
        .unwrap();
        write_config(upper, &drop_ins).unwrap();
        assert!(booted_cmdline(upper).ends_with("quiet iommu=pt nosmt"));
        fs::write(drop_ins.join("99-b.cfg"), "GRUB_CMDLINE_LINUX=\"${GRUB_CMDLINE_LINUX} a=1\"\n").unwrap();
        write_config(upper, &drop_ins).unwrap();
        assert!(booted_cmdline(upper).ends_with("console=ttyS0 a=1 quiet iommu=pt nosmt"));
    }
}
