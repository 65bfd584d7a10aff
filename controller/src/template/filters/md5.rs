//! MD5 (RFC 1321), for file names and cache keys that an existing playbook derives with it; it protects nothing.

const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The digest of a text.
#[expect(clippy::indexing_slicing, reason = "every index is taken modulo the length")]
pub(super) fn digest(bytes: &[u8]) -> [u8; 16] {
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend((u64::try_from(bytes.len()).unwrap_or_default().wrapping_mul(8)).to_le_bytes());
    let mut state: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for block in padded.chunks(64) {
        let word =
            |at: usize| block[at * 4..at * 4 + 4].iter().rev().fold(0_u32, |w, b| w << 8 | u32::from(*b));
        let [mut a, mut b, mut c, mut d] = state;
        for step in 0..64_usize {
            let (mixed, at) = match step / 16 {
                0 => (b & c | !b & d, step),
                1 => (d & b | !d & c, (5 * step + 1) % 16),
                2 => (b ^ c ^ d, (3 * step + 5) % 16),
                _ => (c ^ (b | !d), (7 * step) % 16),
            };
            let sum = a.wrapping_add(mixed).wrapping_add(constant(step)).wrapping_add(word(at));
            (a, d, c) = (d, c, b);
            b = b.wrapping_add(sum.rotate_left(SHIFTS[step / 16][step % 4]));
        }
        for (total, part) in state.iter_mut().zip([a, b, c, d]) {
            *total = total.wrapping_add(part);
        }
    }
    let mut out = [0; 16];
    for (to, from) in out.iter_mut().zip(state.into_iter().flat_map(u32::to_le_bytes)) {
        *to = from;
    }
    out
}

/// RFC 1321, 3.4: the whole part of 2³² |sin(step + 1)|.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "between 0 and 2³²"
)]
fn constant(step: usize) -> u32 {
    (((step + 1) as f64).sin().abs() * 4_294_967_296.0) as u32
}
