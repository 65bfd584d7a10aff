//! Signals of PCIe errors (AER) of GPUs and of the ports above them.
//!
//! Owns how the kernel's counters are read and added up; the ports of a GPU belong to it as well as the GPU, because an
//! error is counted at either end of a link. A device without these files does not count. Source: Linux,
//! `sysfs-bus-pci-devices-aer`.

use gpufleet_protocol::signal::{Readings, Signal};
use serde_json::Value;

use super::{Found, Named, Reader, pci, signal};

/// Left out: enumeration asks devices for what they do not have.
const UNSUPPORTED: &str = "UnsupReq";
/// Devices that are named.
const MOST_NAMED: usize = 8;
const NAMES: [&str; 4] = ["aer_fatal", "aer_nonfatal_without_ur", "aer_correctable", "aer_devices"];

/// The counters of one device, or of several.
#[derive(Default)]
struct Counted {
    fatal: Option<u64>,
    nonfatal: Option<u64>,
    correctable: Option<u64>,
    devices: Vec<String>,
}

/// Reads the counters of the GPU with these readings.
pub fn read(reader: &Reader<'_>, gpu: &Readings) -> Vec<Named> {
    let address = match gpu.get("pci") {
        Some(Signal::Known(Value::String(address))) if pci::is_address(address) => Ok(address),
        Some(Signal::Unknown(why)) => Err(why.clone()),
        _ => Err("the GPU has no PCI address".to_owned()),
    };
    match address.and_then(|address| counted(reader, address)) {
        Ok(found) => vec![
            ("aer_fatal", signal(Ok(found.fatal))),
            ("aer_nonfatal_without_ur", signal(Ok(found.nonfatal))),
            ("aer_correctable", signal(Ok(found.correctable))),
            ("aer_devices", signal(Ok(found.fatal.and(Some(found.devices))))),
        ],
        Err(why) => NAMES.iter().map(|name| (*name, Signal::Unknown(why.clone()))).collect(),
    }
}

fn counted(reader: &Reader<'_>, address: &str) -> Result<Counted, String> {
    let mut all = Counted::default();
    let mut devices = vec![address.to_owned()];
    devices.extend(pci::above(reader, address)?);
    for device in devices {
        let file =
            |name: &str| -> Found<Vec<(String, u64)>> { reader.parsed(&pci::file(&device, name), counters) };
        let fatal = file("aer_dev_fatal")?;
        let nonfatal = file("aer_dev_nonfatal")?;
        let correctable = file("aer_dev_correctable")?;
        for (sort, found) in [("fatal", &fatal), ("nonfatal", &nonfatal)] {
            let named = found.iter().flatten().filter(|(name, count)| *count > 0 && name != UNSUPPORTED);
            let named: Vec<String> = named.map(|(name, count)| format!("{name}={count}")).collect();
            if !named.is_empty() && all.devices.len() < MOST_NAMED {
                all.devices.push(format!("{device} {sort} {}", named.join(" ")));
            }
        }
        add(&mut all.fatal, fatal.as_deref(), &[]);
        add(&mut all.nonfatal, nonfatal.as_deref(), &[UNSUPPORTED]);
        add(&mut all.correctable, correctable.as_deref(), &[]);
    }
    Ok(all)
}

fn add(sum: &mut Option<u64>, counters: Option<&[(String, u64)]>, without: &[&str]) {
    let Some(counters) = counters else { return };
    let counts = counters.iter().filter(|(name, _)| !without.contains(&name.as_str()));
    let own = counts.fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
    *sum = Some(sum.unwrap_or(0).saturating_add(own));
}

/// Reads lines such as `CmpltTO 3`, without the totals: those count messages, in which several errors may stand.
fn counters(text: &str) -> Option<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for line in text.lines() {
        let (name, count) = line.trim().split_once(' ')?;
        let plain = name.len() <= 40
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_[]".contains(&byte));
        let count = count.trim();
        if !plain || !count.bytes().all(|byte| byte.is_ascii_digit()) || found.len() > 64 {
            return None;
        }
        let count = count.parse().ok()?;
        if !name.starts_with("TOTAL_") {
            found.push((name.to_owned(), count));
        }
    }
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_strictly() {
        let read = counters("Undefined 0\nDLP 2\n_bit[26] 1\nTOTAL_ERR_FATAL 1\n").unwrap();
        let expected = [("Undefined", 0), ("DLP", 2), ("_bit[26]", 1)];
        assert_eq!(read, expected.map(|(name, count)| (name.to_owned(), count)));
        for text in [
            "",
            "DLP",
            "DLP -1",
            "DLP +1",
            "DLP x",
            "D/P 1",
            "DLP 99999999999999999999999",
            "TOTAL_ERR_COR 4",
        ] {
            assert_eq!(counters(text), None, "{text}");
        }
    }
}
