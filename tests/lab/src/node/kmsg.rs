//! A node's kernel log: a file at `/dev/kmsg` with the records that the kernel would have, new at every boot.
//!
//! A reader gets what a read of the device returns, one record in each line (kernel,
//! Documentation/ABI/testing/dev-kmsg). Nothing of the host's log is in it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use nvml_sim::state::Bus;

pub const PATH: &str = "/dev/kmsg";

/// Begins the log of a boot with the kernel's banner, its record 0.
pub fn begin(path: &Path) -> io::Result<()> {
    File::create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
    let kernel = rustix::system::uname();
    append(path, 5, Duration::ZERO, &format!("Linux version {}", kernel.release().to_string_lossy()))
}

/// Writes what the driver logs if a GPU reports an error.
pub fn xid(path: &Path, bus: Bus, code: u32) -> io::Result<()> {
    let text = match code {
        79 => "GPU has fallen off the bus.",
        _ => "simulated",
    };
    let device = format!("{:04x}:{:02x}:{:02x}", bus.domain, bus.bus, bus.device);
    // Format: NVIDIA, "XID Errors", Viewing Xid error messages.
    let line = format!("NVRM: Xid (PCI:{device}): {code}, pid='<unknown>', name=<unknown>, {text}");
    append(path, 4, uptime(), &line)
}

fn append(path: &Path, priority: u32, at: Duration, text: &str) -> io::Result<()> {
    let sequence = fs::read_to_string(path)?.lines().count();
    let line = format!("{priority},{sequence},{},-;{text}\n", at.as_micros());
    OpenOptions::new().append(true).open(path)?.write_all(line.as_bytes())
}

fn uptime() -> Duration {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default();
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_numbered_from_the_banner_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        begin(&path).unwrap();
        xid(&path, Bus { domain: 0, bus: 0x3b, device: 0 }, 79).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("5,0,0,-;Linux version "), "{text}");
        assert!(lines[1].starts_with("4,1,"), "{text}");
        assert!(lines[1].contains(",-;NVRM: Xid (PCI:0000:3b:00): 79, "), "{text}");
        begin(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1, "a boot forgets");
    }
}
