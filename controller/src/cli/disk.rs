//! Files of this machine that playbooks name.

use std::{fs, io, os::unix::fs::MetadataExt};

use gpufleet::playbook::{Listed, Reader};

/// Reads from the disk.
pub struct Disk;

impl Reader for Disk {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        let entries = fs::read_dir(path)?;
        entries
            .map(|entry| {
                let entry = entry?;
                let name = entry.file_name().into_string().map_err(|name| {
                    io::Error::other(format!("a name below {path} is not UTF-8: {}", name.to_string_lossy()))
                })?;
                let link = match entry.file_type()?.is_symlink() {
                    true => Some(fs::read_link(entry.path())?.to_string_lossy().into_owned()),
                    false => None,
                };
                Ok(Listed { name, link })
            })
            .collect()
    }

    fn mode(&self, path: &str) -> Option<u32> {
        fs::metadata(path).ok().map(|meta| meta.mode() & 0o7777)
    }
}
