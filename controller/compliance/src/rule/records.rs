//! Lines of the kernel's log that a rule counts.

use gpufleet_protocol::signal::{KernelRecord, RecordSort};
use regex::Regex;

use crate::xid;

/// Which lines a rule counts.
#[derive(Debug)]
pub(super) struct Filter {
    pub sort: Option<RecordSort>,
    pub codes: Codes,
    pub text: Option<Regex>,
    /// The word that the driver gives an SXid.
    pub fatal: Option<bool>,
    pub settled: Option<bool>,
}

#[derive(Debug)]
pub(super) enum Codes {
    Any,
    Of(Vec<u32>),
    Kind(xid::Kind),
}

impl Filter {
    pub(super) fn takes(&self, record: &KernelRecord) -> bool {
        self.sort.is_none_or(|sort| record.sort == sort)
            && self.settled.is_none_or(|settled| record.settled == settled)
            && match &self.codes {
                Codes::Any => true,
                Codes::Of(codes) => record.code.is_some_and(|code| codes.contains(&code)),
                Codes::Kind(kind) => record.code.is_some_and(|code| kind.takes(code, &record.text)),
            }
            && self.fatal.is_none_or(|fatal| is_fatal(&record.text) == fatal)
            && self.text.as_ref().is_none_or(|regex| regex.is_match(&record.text))
    }
}

/// The driver writes "Non-fatal" or "Fatal" into each line of an SXid. A line with neither counts as fatal.
fn is_fatal(text: &str) -> bool {
    !text.to_ascii_lowercase().contains("non-fatal")
}

/// A PCI address in one form: domain, bus, device and function. NVML writes the domain with eight digits and capitals,
/// sysfs with four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pci(u32, u32, u32, u32);

impl Pci {
    pub(crate) fn of(text: &str) -> Option<Self> {
        let hex = |text: &str| u32::from_str_radix(text, 16).ok();
        let (rest, device) = text.rsplit_once(':')?;
        let (device, function) = device.split_once('.').unwrap_or((device, "0"));
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        Some(Self(hex(domain)?, hex(bus)?, hex(device)?, hex(function)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_is_written_in_several_ways() {
        let address = Pci::of("0000:5d:00.0");
        assert!(address.is_some());
        for text in ["00000000:5D:00.0", "0000:5d:00", "5d:00.0"] {
            assert_eq!(Pci::of(text), address, "{text}");
        }
        assert_ne!(Pci::of("0000:5e:00.0"), address);
        for text in ["", ":", "x:y:z", "0000:5d:00.g"] {
            assert_eq!(Pci::of(text), None, "{text}");
        }
    }
}
