//! Public keys of OpenPGP, as far as their names and ends go: packets, fingerprints, expiry (RFC 4880, RFC 9580).
//!
//! Nothing is verified. Whether a signature is good is for apt and rpm; this only finds out which keys a file holds.

use std::ops::Range;

const BEGIN: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";
const END: &str = "-----END PGP PUBLIC KEY BLOCK-----";

/// A primary key with all that follows it: user names, signatures, subkeys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its bytes in what was read.
    pub range: Range<usize>,
    /// The primary key, then its subkeys.
    pub keys: Vec<Key>,
    /// When the primary key ends, in seconds since 1970, by its newest self-signature; `None` if never.
    pub expires: Option<u64>,
    signed: u32,
}

/// One public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// 4, 5 or 6.
    pub version: u8,
    /// When it was made, in seconds since 1970.
    pub created: u32,
    /// What its fingerprint is the digest of: SHA-1 in version 4, SHA-256 in later ones.
    pub hashed: Vec<u8>,
}

/// Returns the bytes of all armored blocks of a text; `None` if it has none.
///
/// # Errors
/// A block that is cut off or damaged.
pub fn dearmored(text: &str) -> Result<Option<Vec<u8>>, &'static str> {
    let mut all = None;
    let mut left = text;
    while let Some((_, after)) = left.split_once(BEGIN) {
        let (block, after) = after.split_once(END).ok_or("the key block has no end")?;
        all.get_or_insert_with(Vec::new).extend(block_bytes(block)?);
        left = after;
    }
    Ok(all)
}

fn block_bytes(block: &str) -> Result<Vec<u8>, &'static str> {
    let mut lines = block.lines().map(str::trim).skip(1).peekable();
    while lines.next_if(|line| line.contains(": ")).is_some() {}
    let mut checksum = None;
    let (mut bits, mut count, mut bytes) = (0u32, 0u8, Vec::new());
    for line in lines.filter(|line| !line.is_empty()) {
        if let Some(sum) = line.strip_prefix('=').filter(|sum| sum.len() == 4) {
            checksum = Some(sum);
            break;
        }
        for letter in line.bytes().filter(|letter| *letter != b'=') {
            bits = bits << 6 | u32::from(sextet(letter).ok_or("the key block is no base64")?);
            count += 6;
            if count >= 8 {
                count -= 8;
                bytes.push((bits >> count) as u8);
                bits &= (1 << count) - 1;
            }
        }
    }
    if let Some(sum) = checksum {
        let mut wanted = 0u32;
        for letter in sum.bytes() {
            wanted = wanted << 6 | u32::from(sextet(letter).ok_or("the key block is no base64")?);
        }
        if wanted != crc24(&bytes) {
            return Err("the checksum of the key block is wrong");
        }
    }
    Ok(bytes)
}

const fn sextet(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

/// The checksum of an armored block (RFC 4880, 6.1).
pub fn crc24(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xB7_04CE, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << 16, |crc, _| {
            let next = crc << 1;
            if next & 0x100_0000 != 0 { (next ^ 0x86_4CFB) & 0xFF_FFFF } else { next }
        })
    })
}

/// Armors a key, given how bytes are written as base64.
pub fn armored(bytes: &[u8], base64: impl Fn(&[u8]) -> String) -> String {
    let mut out = format!("{BEGIN}\n\n");
    for line in bytes.chunks(48) {
        out.push_str(&base64(line));
        out.push('\n');
    }
    let sum = crc24(bytes).to_be_bytes();
    out.push_str(&format!("={}\n{END}\n", base64(sum.get(1..).unwrap_or_default())));
    out
}

struct Packet<'a> {
    tag: u8,
    body: &'a [u8],
    end: usize,
}

fn number(bytes: Option<&[u8]>) -> Option<usize> {
    bytes.map(|bytes| bytes.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)))
}

/// Reads the packet at a place.
fn packet(bytes: &[u8], at: usize) -> Option<Packet<'_>> {
    let first = *bytes.get(at)?;
    if first & 0x80 == 0 {
        return None;
    }
    let byte = |place: usize| bytes.get(place).copied().map(usize::from);
    let (tag, length, start) = if first & 0x40 != 0 {
        let (length, start) = match byte(at + 1)? {
            short @ 0..192 => (short, at + 2),
            long @ 192..224 => (((long - 192) << 8) + byte(at + 2)? + 192, at + 3),
            255 => (number(bytes.get(at + 2..at + 6))?, at + 6),
            // Partial lengths are for data of unknown size, which keys are not.
            _ => return None,
        };
        (first & 0x3f, length, start)
    } else {
        let size = match first & 3 {
            0 => 1,
            1 => 2,
            2 => 4,
            _ => return None,
        };
        (first >> 2 & 0xf, number(bytes.get(at + 1..at + 1 + size))?, at + 1 + size)
    };
    let end = start.checked_add(length)?;
    Some(Packet { tag, body: bytes.get(start..end)?, end })
}

impl Key {
    fn of(body: &[u8]) -> Option<Self> {
        let version = *body.first()?;
        let created = u32::try_from(number(body.get(1..5))?).ok()?;
        let mut hashed = match version {
            4 => vec![0x99],
            5 => vec![0x9a],
            6 => vec![0x9b],
            _ => return None,
        };
        if version == 4 {
            hashed.extend(u16::try_from(body.len()).ok()?.to_be_bytes());
        } else {
            hashed.extend(u32::try_from(body.len()).ok()?.to_be_bytes());
        }
        hashed.extend_from_slice(body);
        Some(Self { version, created, hashed })
    }
}

/// Returns the time of a signature of a key about itself, and after how many seconds the key ends (0 for never).
fn self_signature(body: &[u8]) -> Option<(u32, u32)> {
    let version = *body.first()?;
    let kind = *body.get(1)?;
    if !matches!(version, 4..=6) || !matches!(kind, 0x10..=0x13 | 0x1f) {
        return None;
    }
    let (length, start): (usize, usize) = match version {
        6 => (number(body.get(4..8))?, 8),
        _ => (number(body.get(4..6))?, 6),
    };
    let mut area = body.get(start..start.checked_add(length)?)?;
    let (mut signed, mut lives) = (None, 0);
    while let Some(first) = area.first() {
        let (length, start): (usize, usize) = match usize::from(*first) {
            short @ 0..192 => (short, 1),
            long @ 192..255 => (((long - 192) << 8) + usize::from(*area.get(1)?) + 192, 2),
            _ => (number(area.get(1..5))?, 5),
        };
        let one = area.get(start..start.checked_add(length)?)?;
        let value = u32::try_from(number(one.get(1..5)).unwrap_or_default()).ok()?;
        match one.first()? & 0x7f {
            2 => signed = Some(value),
            9 => lives = value,
            _ => {}
        }
        area = area.get(start + length..)?;
    }
    Some((signed?, lives))
}

/// Returns the public keys of binary key material.
///
/// # Errors
/// If it is no such thing, for people.
pub fn certificates(bytes: &[u8]) -> Result<Vec<Certificate>, &'static str> {
    let mut all: Vec<Certificate> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let packet = packet(bytes, at).ok_or("it is no OpenPGP key")?;
        match (packet.tag, all.last_mut()) {
            (6, _) => {
                let key = Key::of(packet.body).ok_or("it has a key of a version that is not known")?;
                all.push(Certificate { range: at..at, keys: vec![key], expires: None, signed: 0 });
            }
            (_, None) => return Err("it does not begin with a public key"),
            (14, Some(certificate)) => certificate.keys.extend(Key::of(packet.body)),
            (2, Some(certificate)) if certificate.keys.len() == 1 => {
                if let Some((signed, lives)) = self_signature(packet.body)
                    && signed >= certificate.signed
                {
                    certificate.signed = signed;
                    let created = certificate.keys.first().map_or(0, |key| u64::from(key.created));
                    certificate.expires = (lives > 0).then_some(created + u64::from(lives));
                }
            }
            _ => {}
        }
        if let Some(certificate) = all.last_mut() {
            certificate.range.end = packet.end;
        }
        at = packet.end;
    }
    Ok(all)
}

/// Reads a key id as people write it: 8, 16 or more hexadecimal digits, perhaps with `0x` and blanks; returns it in
/// upper case.
pub fn key_id(text: &str) -> Option<String> {
    let id: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let id = id.strip_prefix("0x").or_else(|| id.strip_prefix("0X")).unwrap_or(&id).to_ascii_uppercase();
    let fits = id.len() == 8 || (16..=64).contains(&id.len());
    (fits && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `gpg --quick-generate-key tests ed25519 sign 2020-01-01`-like material, built by hand: a key and a signature.
    fn material(created: u32, lives: u32) -> Vec<u8> {
        let mut key = vec![4];
        key.extend(created.to_be_bytes());
        key.extend([22, 9, 0x2B, 6, 1]);
        let mut area = vec![5, 2];
        area.extend((created + 10).to_be_bytes());
        area.extend([5, 0x80 | 9]);
        area.extend(lives.to_be_bytes());
        let mut signature = vec![4, 0x13, 22, 8, 0, u8::try_from(area.len()).unwrap()];
        signature.extend(&area);
        let mut all = vec![0x98, u8::try_from(key.len()).unwrap()];
        all.extend(&key);
        all.extend([0xC2, u8::try_from(signature.len()).unwrap()]);
        all.extend(&signature);
        all
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn keys_are_found_with_their_end() {
        let mut bytes = material(1_000, 500);
        let length = bytes.len();
        bytes.extend(material(2_000, 0));
        let all = certificates(&bytes).unwrap();
        assert_eq!(
            all.iter().map(|one| one.range.clone()).collect::<Vec<_>>(),
            [0..length, length..2 * length]
        );
        assert_eq!((all[0].expires, all[1].expires), (Some(1_500), None));
        assert!(hex(&all[0].keys[0].hashed).starts_with("99000a04000003e8"));
        assert!(certificates(b"<html>").is_err());
        assert_eq!(certificates(b""), Ok(Vec::new()));
    }

    /// Expected: gpg's own answers for a key of its own, in tests of the helper; here what the standard says.
    #[test]
    fn the_checksum_of_nothing_is_its_start() {
        assert_eq!(crc24(b""), 0xB7_04CE);
    }

    #[test]
    fn ids_are_read_as_people_write_them() {
        assert_eq!(key_id("0x7fa2af80").as_deref(), Some("7FA2AF80"));
        assert_eq!(key_id("EBC6 E12C 62B1 C734 026B  2122 A20E 5214 6B8D 79E6").map(|id| id.len()), Some(40));
        for wrong in ["", "12", "7fa2af8g", "7fa2af801"] {
            assert_eq!(key_id(wrong), None, "{wrong}");
        }
    }

    fn base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut out = String::new();
        for chunk in bytes.chunks(3) {
            let part = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
            let word = part(0) << 16 | part(1) << 8 | part(2);
            for at in 0..4 {
                let letter = LETTERS[(word >> (18 - 6 * at)) as usize & 63];
                out.push(if at <= chunk.len() { letter as char } else { '=' });
            }
        }
        out
    }

    proptest! {
        #[test]
        fn an_armored_block_reads_back(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let text = format!("before\n{}after", armored(&bytes, base64));
            prop_assert_eq!(dearmored(&text), Ok(Some(bytes.clone())));
            let broken = armored(&bytes, base64).replace("-----END", "----END");
            prop_assert!(dearmored(&broken).is_err());
        }

        #[test]
        fn anything_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0..40usize) {
            let _ = certificates(&bytes);
            let mut key = material(1, 1);
            key.truncate(cut);
            key.extend(&bytes);
            let _ = certificates(&key);
            let _ = dearmored(&String::from_utf8_lossy(&bytes));
            let _ = key_id(&String::from_utf8_lossy(&bytes));
        }
    }
}
