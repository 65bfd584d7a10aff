//! `nvmlDeviceGetFieldValues`: many values in one call, each with a code and a type of its own.
//!
//! Invariant: a value counts only if the driver wrote its code and its type. Driver 580.159 returned success for a call
//! with 28 fields and left nine of them as they were; asked for with fewer others, the same fields were right.

use std::ffi::c_int;

use gpufleet_protocol::nvml::{Code, Reading};
use nvml_wrapper_sys::bindings::nvmlFieldValue_st;

use super::{Device, Nvml};

/// Most fields of one call.
const BATCH: usize = 32;
/// A type that NVML does not have, which stays if the driver writes nothing.
const UNTOUCHED: u32 = u32::MAX;

/// Which value is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    id: u32,
    /// The link, or which part of the board; 0 for most fields.
    scope: u32,
}

impl Field {
    pub const fn of(id: u32) -> Self {
        Self { id, scope: 0 }
    }

    pub const fn within(id: u32, scope: u32) -> Self {
        Self { id, scope }
    }
}

/// A whole number, as the driver typed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    Unsigned(u64),
    Signed(i64),
}

impl Number {
    /// # Errors
    /// If it is negative.
    pub fn unsigned(self) -> Reading<u64> {
        match self {
            Self::Unsigned(value) => Ok(value),
            Self::Signed(value) => u64::try_from(value).map_err(|_| Code::UNKNOWN),
        }
    }

    /// Returns a signed number of 32 bits; some drivers give one the type of an unsigned number.
    ///
    /// # Errors
    /// If it has more bits.
    pub fn signed(self) -> Reading<i32> {
        match self {
            Self::Unsigned(value) => u32::try_from(value).map(u32::cast_signed).map_err(|_| Code::UNKNOWN),
            Self::Signed(value) => i32::try_from(value).map_err(|_| Code::UNKNOWN),
        }
    }
}

impl Nvml {
    /// Reads fields; the answers are in the order of the questions.
    pub fn fields(&self, device: Device, asked: &[Field]) -> Vec<Reading<Number>> {
        asked.chunks(BATCH).flat_map(|batch| self.batch(device, batch)).collect()
    }

    /// Reads one field.
    pub fn field(&self, device: Device, asked: Field) -> Reading<Number> {
        let mut values = [question(asked)];
        self.ask_fields(device, &mut values)?;
        let [value] = values;
        self.number(&value)
    }

    fn batch(&self, device: Device, asked: &[Field]) -> Vec<Reading<Number>> {
        let mut values: Vec<nvmlFieldValue_st> = asked.iter().copied().map(question).collect();
        match self.ask_fields(device, &mut values) {
            Ok(()) => values
                .iter()
                .zip(asked)
                .map(
                    |(value, field)| {
                        if untouched(value) { self.field(device, *field) } else { self.number(value) }
                    },
                )
                .collect(),
            Err(code) => vec![Err(code); asked.len()],
        }
    }

    fn ask_fields(&self, device: Device, values: &mut [nvmlFieldValue_st]) -> Reading<()> {
        let count = c_int::try_from(values.len()).map_err(|_| Code::INVALID_ARGUMENT)?;
        call!(self, nvmlDeviceGetFieldValues(device.0, count, values.as_mut_ptr()))
    }

    fn number(&self, field: &nvmlFieldValue_st) -> Reading<Number> {
        self.check(field.nvmlReturn).map_err(|code| match code {
            // What a driver answers for a field that it does not know.
            Code::INVALID_ARGUMENT => Code::FUNCTION_NOT_FOUND,
            other => other,
        })?;
        // SAFETY: the type tells which member was written. Source: nvml.h, `nvmlValueType_t`.
        unsafe {
            match field.valueType {
                1 => Ok(Number::Unsigned(field.value.uiVal.into())),
                2 | 3 => Ok(Number::Unsigned(field.value.ullVal)),
                4 => Ok(Number::Signed(field.value.sllVal)),
                5 => Ok(Number::Signed(field.value.siVal.into())),
                6 => Ok(Number::Unsigned(field.value.usVal.into())),
                _ => Err(Code::UNKNOWN),
            }
        }
    }
}

fn question(field: Field) -> nvmlFieldValue_st {
    // SAFETY: a C structure of numbers, for which zeroes are valid.
    let mut value: nvmlFieldValue_st = unsafe { std::mem::zeroed() };
    value.fieldId = field.id;
    value.scopeId = field.scope;
    value.nvmlReturn = Code::UNKNOWN.0;
    value.valueType = UNTOUCHED;
    value
}

/// Whether the driver wrote neither code nor type. A refused field may have no type.
fn untouched(value: &nvmlFieldValue_st) -> bool {
    value.valueType == UNTOUCHED && value.nvmlReturn == Code::UNKNOWN.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_may_be_typed_as_unsigned() {
        assert_eq!(Number::Unsigned(4_294_967_294).signed(), Ok(-2));
        assert_eq!(Number::Signed(-8).signed(), Ok(-8));
        assert_eq!(Number::Unsigned(1 << 32).signed(), Err(Code::UNKNOWN));
        assert_eq!(Number::Signed(-1).unsigned(), Err(Code::UNKNOWN));
        assert_eq!(Number::Signed(i64::MAX).signed(), Err(Code::UNKNOWN));
    }
}
