//! Readings of a GPU as values of changes, which have units and words for people.

use gpufleet_protocol::{
    Unit,
    change::{Amount, Value},
};

pub fn power(milliwatts: u32) -> Value {
    Value::Number { value: Amount::thousandths(milliwatts), unit: Some(Unit::Watts) }
}

pub fn clock(low_mhz: u32, high_mhz: u32) -> Value {
    let unit = Unit::Megahertz;
    match low_mhz == high_mhz {
        true => Value::quantity(low_mhz, unit),
        false => Value::Range { low: Amount::whole(low_mhz), high: Amount::whole(high_mhz), unit },
    }
}
