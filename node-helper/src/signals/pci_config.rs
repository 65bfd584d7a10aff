//! The configuration space of a PCI device, as sysfs gives it. Pure.
//!
//! A device, or a hypervisor, may give any bytes: every walk is bounded, and nothing is read past the end. Source: PCI
//! Express Base Specification 5.0, chapter 7.

/// Where the list of capabilities begins, and whether there is one.
const STATUS: usize = 0x06;
const HAS_LIST: u16 = 1 << 4;
const FIRST: usize = 0x34;
/// A capability has at least four bytes, so that the first 256 bytes have room for no more.
const MOST: usize = 48;
const EXPRESS: u8 = 0x10;
/// Capabilities beyond the first 256 bytes.
const EXTENDED: usize = 0x100;
const END: usize = 0x1000;
const MOST_EXTENDED: usize = (END - EXTENDED) / 4;
pub const ACS: u16 = 0x000d;

/// Device/Port Type of a switch's upper end. Source: PCI Express Base Specification 5.0, table 7-18.
const UPSTREAM: u16 = 0x5;

/// Bits of Device Control.
pub const READ_REQUEST: u16 = 0x7000;
const RELAXED: u16 = 1 << 4;
/// What the kernel turns on with an IOMMU. Source: drivers/pci/pci.c, `pci_std_enable_acs`: source validation, P2P request
/// and completion redirection, upstream forwarding.
const REDIRECTS: u16 = 0x01 | 0x04 | 0x08 | 0x10;
/// Bits that send traffic between devices through the root complex: P2P request and completion redirection. Source: PCI
/// Express Base Specification 5.0, 7.7.7.3.
const DIVERTS: u16 = 0x04 | 0x08;

/// Why it cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    #[error("all its bytes are ff: it does not answer, or it is gone from the bus")]
    Gone,
    #[error(
        "only {0} bytes of its configuration can be read: that takes root, and a bus with an extended configuration"
    )]
    Short(usize),
    #[error("its list of capabilities has no end")]
    Endless,
}

/// A capability of PCI Express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Express {
    /// Where it is.
    pub at: usize,
    /// Device Control.
    pub control: u16,
    /// PCI Express Capabilities.
    about: u16,
}

impl Express {
    /// Whether it is the upper end of a switch. It needs no ACS: what the ports below it redirect passes it upwards.
    pub const fn is_upstream(self) -> bool {
        (self.about >> 4) & 0xf == UPSTREAM
    }

    /// Where Device Control is.
    pub const fn register(self) -> usize {
        self.at + 8
    }

    /// The largest read request, in bytes; `None` for the reserved values.
    pub fn read_request(self) -> Option<u32> {
        read_request(self.control)
    }

    /// The largest payload, in bytes; `None` for the reserved values.
    pub fn payload(self) -> Option<u32> {
        let code = u32::from((self.control >> 5) & 7);
        (code <= 5).then(|| 128 << code)
    }

    pub const fn relaxed_ordering(self) -> bool {
        self.control & RELAXED != 0
    }
}

/// Returns the largest read request of Device Control, in bytes; `None` for the reserved values.
pub fn read_request(control: u16) -> Option<u32> {
    let code = u32::from((control & READ_REQUEST) >> 12);
    (code <= 5).then(|| 128 << code)
}

/// Returns the bits of Device Control for a largest read request of these bytes, a power of two from 128.
pub fn read_request_bits(bytes: u32) -> u16 {
    let code = bytes.trailing_zeros().saturating_sub(7).min(5);
    u16::try_from(code << 12).unwrap_or_default()
}

/// Access control of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acs {
    pub at: usize,
    /// What the port can do.
    pub able: u16,
    pub control: u16,
}

impl Acs {
    pub const fn register(self) -> usize {
        self.at + 6
    }

    /// Whether devices below the port reach their peers only through the root complex.
    pub const fn diverts(self) -> bool {
        self.control & DIVERTS != 0
    }

    /// Returns the control with all redirection that the port is able to do.
    pub const fn all_on(self) -> u16 {
        self.able & REDIRECTS
    }

    pub const fn is_on(self) -> bool {
        self.all_on() != 0 && self.control & REDIRECTS == self.all_on()
    }
}

fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// Returns two bytes; `None` beyond the end.
pub fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([byte(bytes, at)?, byte(bytes, at + 1)?]))
}

fn double(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(word(bytes, at)?) | u32::from(word(bytes, at + 2)?) << 16)
}

fn answers(bytes: &[u8]) -> Result<(), Unread> {
    match double(bytes, 0) {
        Some(u32::MAX) => Err(Unread::Gone),
        // Users get 64 bytes.
        Some(_) if bytes.len() >= EXTENDED => Ok(()),
        _ => Err(Unread::Short(bytes.len())),
    }
}

/// Returns the capability of PCI Express; `None` for a device without one.
///
/// # Errors
/// If the bytes are not those of a whole device.
pub fn express(bytes: &[u8]) -> Result<Option<Express>, Unread> {
    answers(bytes)?;
    if word(bytes, STATUS).unwrap_or_default() & HAS_LIST == 0 {
        return Ok(None);
    }
    let mut at = usize::from(byte(bytes, FIRST).unwrap_or_default() & 0xfc);
    for _ in 0..MOST {
        // The header of the configuration ends at 0x40, and a place below it ends the list.
        if at < 0x40 {
            return Ok(None);
        }
        if byte(bytes, at) == Some(EXPRESS) {
            let both = word(bytes, at + 2).zip(word(bytes, at + 8)).filter(|_| at + 10 <= EXTENDED);
            return Ok(both.map(|(about, control)| Express { at, control, about }));
        }
        at = usize::from(byte(bytes, at + 1).unwrap_or_default() & 0xfc);
    }
    Err(Unread::Endless)
}

/// Returns the access control of a port; `None` for one without.
///
/// # Errors
/// If the bytes are not those of a whole device of PCI Express.
pub fn acs(bytes: &[u8]) -> Result<Option<Acs>, Unread> {
    if express(bytes)?.is_none() {
        return Ok(None);
    }
    if bytes.len() < END {
        return Err(Unread::Short(bytes.len()));
    }
    let mut at = EXTENDED;
    for _ in 0..MOST_EXTENDED {
        let header = double(bytes, at).unwrap_or_default();
        if header == 0 || header == u32::MAX {
            return Ok(None);
        }
        if header & 0xffff == u32::from(ACS) {
            let both = word(bytes, at + 4).zip(word(bytes, at + 6));
            return Ok(both.map(|(able, control)| Acs { at, able, control }));
        }
        at = usize::try_from(header >> 20).unwrap_or_default() & 0xffc;
        if at < EXTENDED {
            return Ok(None);
        }
    }
    Err(Unread::Endless)
}

#[cfg(test)]
pub fn sample(control: u16, acs: Option<(u16, u16)>) -> Vec<u8> {
    let mut bytes = vec![0; END];
    let mut put = |at: usize, of: &[u8]| bytes[at..at + of.len()].copy_from_slice(of);
    put(0, &[0xde, 0x10, 0x30, 0x23]);
    put(STATUS, &[0x10, 0]);
    put(FIRST, &[0x60]);
    // Power management, then PCI Express.
    put(0x60, &[0x01, 0x78]);
    put(0x78, &[EXPRESS, 0]);
    put(0x80, &control.to_le_bytes());
    // Advanced error reporting, then ACS.
    put(0x100, &(0x148_u32 << 20 | 0x1_0001).to_le_bytes());
    put(0x148, &0x1_0003_u32.to_le_bytes());
    if let Some((able, control)) = acs {
        put(0x148, &0x1_000d_u32.to_le_bytes());
        put(0x14c, &able.to_le_bytes());
        put(0x14e, &control.to_le_bytes());
    }
    bytes
}

/// Returns the bytes of a port of this type.
#[cfg(test)]
pub fn port(kind: u8, mut bytes: Vec<u8>) -> Vec<u8> {
    // Version 2 of the capability.
    bytes[0x7a] = kind << 4 | 2;
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn registers_are_found_through_the_lists() {
        let bytes = sample(0x5936, Some((0x5f, 0x1d)));
        let found = express(&bytes).unwrap().unwrap();
        assert_eq!((found.at, found.register(), found.control), (0x78, 0x80, 0x5936));
        assert_eq!((found.read_request(), found.payload()), (Some(4096), Some(256)));
        assert!(found.relaxed_ordering());
        let port = acs(&bytes).unwrap().unwrap();
        assert_eq!((port.register(), port.all_on(), port.is_on()), (0x14e, 0x1d, true));
        assert_eq!(acs(&sample(0, None)), Ok(None));
        for (bytes, bits) in [(128, 0), (512, 0x2000), (4096, 0x5000)] {
            assert_eq!(read_request_bits(bytes), bits);
        }
        assert_eq!(read_request(0x7000), None);
        for (kind, upstream) in [(0x0, false), (0x4, false), (0x5, true), (0x6, false), (0x7, false)] {
            let found = express(&super::port(kind, sample(0, None))).unwrap().unwrap();
            assert_eq!(found.is_upstream(), upstream, "{kind}");
        }
    }

    #[test]
    fn what_is_no_whole_device_is_told_apart() {
        assert_eq!(express(&[0xff; 4096]), Err(Unread::Gone));
        assert_eq!(express(&sample(0, None)[..64]), Err(Unread::Short(64)));
        assert_eq!(acs(&sample(0, None)[..256]), Err(Unread::Short(256)));
        assert_eq!(express(&[0; 3]), Err(Unread::Short(3)));
        let mut circle = sample(0, None);
        circle[0x61] = 0x60;
        assert_eq!(express(&circle), Err(Unread::Endless));
        let mut circle = sample(0, Some((1, 0)));
        circle[0x148..0x14c].copy_from_slice(&(0x100_u32 << 20 | 3).to_le_bytes());
        assert_eq!(acs(&circle), Err(Unread::Endless));
        let mut none = sample(0, None);
        none[STATUS] = 0;
        assert_eq!((express(&none), acs(&none)), (Ok(None), Ok(None)));
    }

    proptest! {
        #[test]
        fn any_bytes_end_and_registers_lie_inside(
            seed in prop::collection::vec(any::<u8>(), 0..4200),
            list in any::<u8>(),
        ) {
            let mut bytes = seed;
            if bytes.len() > FIRST {
                bytes[STATUS] |= 0x10;
                bytes[FIRST] = list;
            }
            if let Ok(Some(found)) = express(&bytes) {
                prop_assert!(found.at >= 0x40 && found.register() + 2 <= 256);
                prop_assert_eq!(bytes[found.at], EXPRESS);
            }
            if let Ok(Some(found)) = acs(&bytes) {
                prop_assert!(found.at >= 256 && found.register() + 2 <= bytes.len());
            }
        }
    }
}
