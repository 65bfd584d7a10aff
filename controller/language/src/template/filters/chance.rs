//! Random choices by a seed, the same that Python makes.
//!
//! A seed is required: a run that is resumed after a crash evaluates its templates again and must get the same
//! values. The generator is MT19937, seeded as by CPython's `random.seed(a, version=2)`.

use rand_mt::Mt;
use sha2::Digest as _;

use super::{Call, Filter};
use crate::template::value::Value;

pub(super) const FILTERS: &[(&str, Filter)] = &[("random", random), ("shuffle", shuffle)];

fn generator(call: &Call, index: usize) -> Result<Mt, String> {
    match call.get(index, "seed") {
        Some(Value::Int(seed)) => Ok(seeded(&seed.unsigned_abs().to_be_bytes())),
        Some(Value::Str(seed)) => {
            let mut bytes = seed.as_bytes().to_vec();
            bytes.extend_from_slice(&sha2::Sha512::digest(seed.as_bytes()));
            Ok(seeded(&bytes))
        }
        None | Some(Value::Null) => Err(
            "without a seed it would give something else when a run is resumed; write `seed=inventory_hostname`"
                .to_owned(),
        ),
        Some(other) => Err(format!("a seed is text or a whole number, this is {}", other.kind())),
    }
}

/// Returns one of `count` indexes, chosen by a text; `None` if `count` is 0.
pub(in crate::template) fn place(seed: &str, count: usize) -> Option<usize> {
    let count = u32::try_from(count).ok().filter(|count| *count > 0)?;
    let digest = sha2::Sha512::digest(seed.as_bytes());
    Some(below(&mut seeded(&digest), count) as usize)
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
        let value = i128::from(start) + step * i128::from(below(&mut chance, count));
        return i64::try_from(value).map(Value::Int).map_err(|_| "the number is too large".to_owned());
    }
    let items = call.items()?;
    let count = u32::try_from(items.len()).ok().filter(|count| *count > 0).ok_or("the list is empty")?;
    items.get(below(&mut chance, count) as usize).cloned().ok_or_else(|| "the list is empty".to_owned())
}

fn shuffle(call: &Call) -> Result<Value, String> {
    let mut chance = generator(call, 0)?;
    let mut items = call.items()?;
    for last in (1..items.len()).rev() {
        let bound = u32::try_from(last + 1).map_err(|_| "the list is too long")?;
        items.swap(last, below(&mut chance, bound) as usize);
    }
    Ok(Value::list(items))
}

/// Returns a generator whose seed is a big-endian number.
///
/// Only the last 2,496 bytes count, which are the end of the text and its digest; Python uses all bytes.
fn seeded(bytes: &[u8]) -> Mt {
    let mut words: Vec<u32> = bytes
        .rchunks(4)
        .map(|chunk| chunk.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
        .collect();
    while words.len() > 1 && words.last() == Some(&0) {
        words.pop();
    }
    Mt::new_with_key(words.iter().copied())
}

/// Returns a number below `bound`, which must not be 0.
fn below(chance: &mut Mt, bound: u32) -> u32 {
    let shift = bound.leading_zeros();
    loop {
        let number = chance.next_u32() >> shift;
        if number < bound {
            return number;
        }
    }
}
