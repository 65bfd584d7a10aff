//! Addons of unified kernel images: signed files beside an image whose words come after its own (systemd-stub(7)).

use crate::{
    declare::{Node, Trouble},
    os::files,
};

/// Where the EFI system partition, and the one for more of it, are mounted.
const PARTITIONS: [&str; 3] = ["/boot", "/boot/efi", "/efi"];
/// Largest addon, in bytes; one with words has a few kilobytes.
const LARGEST: u64 = 4 * 1024 * 1024;
/// Longest text that is told of one.
const LONGEST: usize = 256;

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes: [u8; 2] = bytes.get(at..at.checked_add(2)?)?.try_into().ok()?;
    Some(u16::from_le_bytes(bytes).into())
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

/// Returns the section `.cmdline` of a PE file. Source: Microsoft, PE format: the header, and 40 bytes for each section.
fn cmdline(bytes: &[u8]) -> Option<String> {
    let header = long(bytes, 0x3c)?;
    if bytes.get(header..header.checked_add(4)?)? != b"PE\0\0" {
        return None;
    }
    let (count, optional) = (word(bytes, header.checked_add(6)?)?, word(bytes, header.checked_add(20)?)?);
    let first = header.checked_add(24)?.checked_add(optional)?;
    for section in (0..count.min(96)).filter_map(|at| first.checked_add(at.checked_mul(40)?)) {
        if bytes.get(section..section.checked_add(8)?)? != b".cmdline" {
            continue;
        }
        let (size, raw) = (long(bytes, section.checked_add(8)?)?, long(bytes, section.checked_add(16)?)?);
        let begin = long(bytes, section.checked_add(20)?)?;
        let text = bytes.get(begin..begin.checked_add(size.min(raw))?)?;
        let text = String::from_utf8_lossy(text);
        let shown =
            text.chars().filter(|c| *c == ' ' || c.is_ascii_graphic()).take(LONGEST).collect::<String>();
        return Some(shown.trim().to_owned());
    }
    None
}

/// Returns the addons that are there, each with its words; none for one without words, or that is no such file.
///
/// # Errors
/// If a folder cannot be read.
pub fn read(node: &Node<'_>) -> Result<Vec<(String, Option<String>)>, Trouble> {
    let names = |folder: &str| node.world.names(&node.roots.path(folder));
    let mut found = Vec::new();
    for partition in PARTITIONS {
        let images = format!("{partition}/EFI/Linux");
        let beside = names(&images)?.into_iter().filter(|name| name.ends_with(".efi.extra.d"));
        let folders =
            beside.map(|name| format!("{images}/{name}")).chain([format!("{partition}/loader/addons")]);
        for folder in folders.collect::<Vec<_>>() {
            for name in names(&folder)?.into_iter().filter(|name| name.ends_with(".addon.efi")) {
                let path = format!("{folder}/{name}");
                let bytes = files::read_bounded(&node.roots.path(&path), LARGEST).ok().flatten();
                found.push((path, bytes.as_deref().and_then(cmdline)));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    /// A PE file with these sections, and nothing that runs.
    fn pe(sections: &[(&[u8; 8], &str)]) -> Vec<u8> {
        let mut bytes = vec![0; 0x40];
        bytes[0x3c] = 0x40;
        bytes.extend(b"PE\0\0\x64\x86");
        bytes.extend(u16::try_from(sections.len()).unwrap().to_le_bytes());
        bytes.extend([0; 12]);
        // The size of the optional header.
        bytes.extend([16, 0, 0, 0]);
        bytes.extend([0; 16]);
        let mut at = bytes.len() + 40 * sections.len();
        for (name, text) in sections {
            let size = u32::try_from(text.len()).unwrap();
            bytes.extend(*name);
            bytes.extend(size.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(512_u32.to_le_bytes());
            bytes.extend(u32::try_from(at).unwrap().to_le_bytes());
            bytes.extend([0; 16]);
            at += text.len();
        }
        sections.iter().for_each(|(_, text)| bytes.extend(text.as_bytes()));
        bytes
    }

    #[test]
    fn words_of_addons_are_read() {
        let bench = Bench::new();
        for (path, bytes) in [
            (
                "efi/EFI/Linux/a.efi.extra.d/gpu.addon.efi",
                pe(&[(b".sbat\0\0\0", "sbat,1\n"), (b".cmdline", "iommu=pt \u{1b}[2J quiet\n")]),
            ),
            ("efi/loader/addons/all.addon.efi", pe(&[(b".text\0\0\0", "x")])),
            ("efi/loader/addons/junk.addon.efi", b"MZ".to_vec()),
        ] {
            bench.write(path, "");
            std::fs::write(bench.path(path), bytes).unwrap();
        }
        let found = bench.node(|node| read(node).unwrap());
        assert_eq!(
            found,
            [
                (
                    "/efi/EFI/Linux/a.efi.extra.d/gpu.addon.efi".to_owned(),
                    Some("iommu=pt [2J quiet".to_owned())
                ),
                ("/efi/loader/addons/all.addon.efi".to_owned(), None),
                ("/efi/loader/addons/junk.addon.efi".to_owned(), None),
            ]
        );
        // Any cut of it is no file, and no panic.
        let whole = pe(&[(b".cmdline", "a=1")]);
        for end in 0..whole.len() {
            assert_eq!(cmdline(&whole[..end]), None, "{end}");
        }
        assert_eq!(cmdline(&whole).as_deref(), Some("a=1"));
    }
}
