//! Choices by a seed, the same ones that Python makes.
//!
//! Why a seed is a must: a run that goes on after a crash evaluates its templates again and has to get the same values.
//! Facts of the generator: Matsumoto and Nishimura's MT19937, seeded as CPython's `random.seed(a, version=2)`.

use sha2::Digest as _;

use super::{Call, Filter};
use crate::template::value::Value;

pub(super) const FILTERS: &[(&str, Filter)] = &[("random", random), ("shuffle", shuffle)];

fn generator(call: &Call, index: usize) -> Result<Twister, String> {
    match call.get(index, "seed") {
        Some(Value::Int(seed)) => Ok(Twister::new(&words(&seed.unsigned_abs().to_be_bytes()))),
        Some(Value::Str(seed)) => {
            let mut bytes = seed.as_bytes().to_vec();
            bytes.extend_from_slice(&sha2::Sha512::digest(seed.as_bytes()));
            Ok(Twister::new(&words(&bytes)))
        }
        None | Some(Value::Null) => Err(
            "without a seed it would give something else when a run is resumed; write `seed=inventory_hostname`"
                .to_owned(),
        ),
        Some(other) => Err(format!("a seed is text or a whole number, this is {}", other.kind())),
    }
}

/// One of `count` places, chosen by a text; none when there are no places.
pub(in crate::template) fn place(seed: &str, count: usize) -> Option<usize> {
    let count = u32::try_from(count).ok().filter(|count| *count > 0)?;
    let digest = sha2::Sha512::digest(seed.as_bytes());
    Some(Twister::new(&words(&digest)).below(count) as usize)
}

fn random(call: &Call) -> Result<Value, String> {
    let mut chance = generator(call, 2)?;
    let whole = |index, name: &str, or: i64| match call.get(index, name) {
        Some(Value::Int(value)) if *value != 0 => Ok(*value),
        None | Some(Value::Null | Value::Int(_)) => Ok(or),
        Some(other) => Err(format!("`{name}` is a whole number, this is {}", other.kind())),
    };
    if let Value::Int(end) = call.value() {
        let (start, step) = (whole(0, "start", 0)?, whole(1, "step", 1)?);
        let width = i128::from(*end) - i128::from(start);
        let step = i128::from(step);
        let count = if step > 0 { (width + step - 1) / step } else { (width + step + 1) / step };
        let count =
            u32::try_from(count).ok().filter(|count| *count > 0).ok_or("the range is empty or too large")?;
        let value = i128::from(start) + step * i128::from(chance.below(count));
        return i64::try_from(value).map(Value::Int).map_err(|_| "the number is too large".to_owned());
    }
    let items = call.items()?;
    let count = u32::try_from(items.len()).ok().filter(|count| *count > 0).ok_or("the list is empty")?;
    items.get(chance.below(count) as usize).cloned().ok_or_else(|| "the list is empty".to_owned())
}

fn shuffle(call: &Call) -> Result<Value, String> {
    let mut chance = generator(call, 0)?;
    let mut items = call.items()?;
    for last in (1..items.len()).rev() {
        let bound = u32::try_from(last + 1).map_err(|_| "the list is too long")?;
        items.swap(last, chance.below(bound) as usize);
    }
    Ok(Value::list(items))
}

/// A big-endian number as 32-bit words, the lowest first.
fn words(bytes: &[u8]) -> Vec<u32> {
    let mut words: Vec<u32> = bytes
        .rchunks(4)
        .map(|chunk| chunk.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
        .collect();
    while words.len() > 1 && words.last() == Some(&0) {
        words.pop();
    }
    words
}

const SIZE: usize = 624;

struct Twister {
    state: [u32; SIZE],
    next: usize,
}

impl Twister {
    #[expect(clippy::indexing_slicing, reason = "every index is taken modulo the size of the state")]
    fn new(key: &[u32]) -> Self {
        let mut state = [0_u32; SIZE];
        state[0] = 19_650_218;
        for index in 1..SIZE {
            let previous = state[index - 1];
            let index_word = u32::try_from(index).unwrap_or_default();
            state[index] = (previous ^ previous >> 30).wrapping_mul(1_812_433_253).wrapping_add(index_word);
        }
        let (mut at, mut word) = (1, 0);
        for _ in 0..SIZE.max(key.len()) {
            let previous = state[at - 1];
            state[at] = (state[at] ^ (previous ^ previous >> 30).wrapping_mul(1_664_525))
                .wrapping_add(key.get(word).copied().unwrap_or_default())
                .wrapping_add(u32::try_from(word).unwrap_or_default());
            at += 1;
            word = (word + 1) % key.len().max(1);
            if at >= SIZE {
                state[0] = state[SIZE - 1];
                at = 1;
            }
        }
        for _ in 1..SIZE {
            let previous = state[at - 1];
            state[at] = (state[at] ^ (previous ^ previous >> 30).wrapping_mul(1_566_083_941))
                .wrapping_sub(u32::try_from(at).unwrap_or_default());
            at += 1;
            if at >= SIZE {
                state[0] = state[SIZE - 1];
                at = 1;
            }
        }
        state[0] = 0x8000_0000;
        Self { state, next: SIZE }
    }

    #[expect(clippy::indexing_slicing, reason = "every index is taken modulo the size of the state")]
    fn word(&mut self) -> u32 {
        if self.next >= SIZE {
            for at in 0..SIZE {
                let mixed = self.state[at] & 0x8000_0000 | self.state[(at + 1) % SIZE] & 0x7fff_ffff;
                let odd = if mixed & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[at] = self.state[(at + 397) % SIZE] ^ mixed >> 1 ^ odd;
            }
            self.next = 0;
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= word << 7 & 0x9d2c_5680;
        word ^= word << 15 & 0xefc6_0000;
        word ^ word >> 18
    }

    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: u32) -> u32 {
        let shift = bound.leading_zeros();
        loop {
            let number = self.word() >> shift;
            if number < bound {
                return number;
            }
        }
    }
}
