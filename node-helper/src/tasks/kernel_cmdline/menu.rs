//! The kernel that the next boot starts, as far as the files of GRUB or systemd-boot tell. Pure.

use std::collections::HashMap;

use super::{
    sources::{Kind, Sources},
    systemd_boot,
};

/// A `menuentry` or `submenu` of a `grub.cfg`.
#[derive(Debug, Default)]
struct Item {
    title: String,
    id: String,
    /// File name of the kernel.
    kernel: Option<String>,
    items: Vec<Item>,
}

/// Returns the text in the first pair of quotes of one sort, and what is behind it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().find(|c| matches!(c, '\'' | '"'))?;
    let (_, rest) = text.split_once(quote)?;
    rest.split_once(quote)
}

fn item(line: &str) -> Option<Item> {
    let rest = line.strip_prefix("menuentry ").or_else(|| line.strip_prefix("submenu "))?;
    let (title, rest) = quoted(rest)?;
    let option = rest.split_once("menuentry_id_option").or_else(|| rest.split_once("--id"));
    let id = option.and_then(|(_, rest)| quoted(rest)).map_or("", |(id, _)| id);
    Some(Item { title: title.to_owned(), id: id.to_owned(), ..Item::default() })
}

/// Returns the entries of a `grub.cfg` as a tree.
fn menu(text: &str) -> Vec<Item> {
    let mut open: Vec<Item> = vec![Item::default()];
    // Whether each open brace belongs to an entry.
    let mut braces: Vec<bool> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line == "}" {
            if braces.pop() == Some(true)
                && let Some(done) = open.pop()
                && let Some(above) = open.last_mut()
            {
                above.items.push(done);
            }
        } else if line.ends_with('{') {
            let found = item(line);
            braces.push(found.is_some());
            open.extend(found);
        } else if let Some(entry) = open.last_mut()
            && line.starts_with("linux")
            && let Some(path) = line.split_whitespace().nth(1)
        {
            let name = path.rsplit('/').next().unwrap_or_default();
            entry.kernel.get_or_insert_with(|| name.to_owned());
        }
    }
    open.into_iter().next().map(|root| root.items).unwrap_or_default()
}

/// Returns the kernel of the entry that GRUB starts for `default`: numbers, titles or ids, `>` between levels.
fn started(items: &[Item], default: &str) -> Option<String> {
    let (first, rest) = match default.split_once('>') {
        Some((first, rest)) => (first, Some(rest)),
        None => (default, None),
    };
    let named = items.iter().find(|item| item.id == first || item.title == first);
    let item = named.or_else(|| items.get(first.parse::<usize>().ok()?))?;
    match (&item.kernel, rest) {
        (Some(kernel), None) => Some(kernel.clone()),
        // A submenu alone starts its first entry.
        (_, rest) => started(&item.items, rest.unwrap_or("0")),
    }
}

/// Returns what `set default=` gives, with GRUB's variables.
fn default(text: &str, variables: &HashMap<String, String>) -> Option<String> {
    let saved = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
    let values = text.lines().filter_map(|line| line.trim().strip_prefix("set default="));
    let values: Vec<&str> = values.map(|value| value.trim_matches(['"', '\''])).collect();
    let last = values.last()?;
    match last.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
        Some(name) => Some(saved(name).unwrap_or_else(|| "0".to_owned())),
        None => Some((*last).to_owned()),
    }
}

/// Returns the release in the name of a kernel's file.
pub fn release(kernel: &str) -> Option<&str> {
    let prefixes = ["vmlinuz-", "vmlinux-", "kernel-", "Image-", "linux-"];
    let name = prefixes.iter().find_map(|prefix| kernel.strip_prefix(prefix));
    name.filter(|name| name.starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns the release of the kernel that the next boot starts; `None` if the files do not tell.
pub fn next_kernel(sources: &Sources) -> Option<String> {
    if let Some(loader) = &sources.loader {
        return systemd_boot::next_kernel(loader, &sources.entries);
    }
    let once = sources.variables.get("next_entry").filter(|entry| !entry.is_empty());
    if sources.entries_count {
        let saved = once.or_else(|| sources.variables.get("saved_entry"))?;
        let entry = sources.entries.iter().find(|file| {
            file.path.file_stem().is_some_and(|stem| stem.to_string_lossy() == saved.as_str())
        })?;
        debug_assert_eq!(entry.kind, Kind::Entry);
        let kernel =
            entry.text.lines().find_map(|line| line.strip_prefix("linux")?.split_whitespace().next());
        return release(kernel?.rsplit('/').next()?).map(str::to_owned);
    }
    let (_, text) = sources.generated_files.first()?;
    let default = once.cloned().or_else(|| default(text, &sources.variables))?;
    release(&started(&menu(text), &default)?).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::kernel_cmdline::sources::Source;

    const RECORDED: &str = include_str!("recorded/debian-12.cfg");

    fn next(text: &str, variables: &[(&str, &str)]) -> Option<String> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        next_kernel(&Sources {
            generated_files: vec![("/boot/grub/grub.cfg".into(), text.to_owned())],
            variables: variables.collect(),
            ..Sources::default()
        })
    }

    #[test]
    fn the_kernel_of_the_default_entry_is_found_by_number_title_and_id() {
        let (newest, older) = (Some("6.1.0-13-amd64".to_owned()), Some("6.1.0-9-amd64".to_owned()));
        assert_eq!(next(RECORDED, &[]), newest);
        let uuid = "5d2f1a52-4f3e-4d5c-9d0e-8a0f3b1c2d3e";
        for by in [
            "1>2".to_owned(),
            "Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-9-amd64".to_owned(),
            format!("gnulinux-advanced-{uuid}>gnulinux-6.1.0-9-amd64-advanced-{uuid}"),
        ] {
            assert_eq!(next(RECORDED, &[("next_entry", &by)]), older, "{by}");
            let saved = RECORDED.replace("set default=\"0\"", "set default=\"${saved_entry}\"");
            assert_eq!(next(&saved, &[("saved_entry", &by)]), older, "{by}");
        }
        assert_eq!(next(RECORDED, &[("next_entry", "1")]), newest);
        assert_eq!(next(RECORDED, &[("next_entry", "nobody")]), None);
        assert_eq!(next("menuentry 'x' {\n\tlinux /vmlinuz root=/a\n}\nset default=0\n", &[]), None);
    }

    #[test]
    fn the_saved_boot_entry_names_its_kernel() {
        let entry = |name: &str, version: &str| Source {
            path: format!("/boot/loader/entries/{name}.conf").into(),
            kind: Kind::Entry,
            text: format!("title x\nversion {version}\nlinux /vmlinuz-{version}\n"),
        };
        let mut sources = Sources {
            entries_count: true,
            entries: vec![entry("m-5.14.0-1.el9", "5.14.0-1.el9"), entry("m-5.14.0-2.el9", "5.14.0-2.el9")],
            ..Sources::default()
        };
        assert_eq!(next_kernel(&sources), None);
        sources.variables.insert("saved_entry".into(), "m-5.14.0-2.el9".into());
        assert_eq!(next_kernel(&sources).as_deref(), Some("5.14.0-2.el9"));
    }
}
