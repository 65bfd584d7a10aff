//! The script that sets registers at boot. Each line names the device that it is for, and does nothing to another one.

use std::collections::BTreeMap;

use crate::signals::pci_config as config;

/// A register of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// PCI address.
    pub address: String,
    /// Offset in the configuration, in bytes; even.
    pub register: usize,
}

/// What a register is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Vendor and device as sysfs writes them: `0x10de:0x2330`.
    pub device: String,
    /// Where the capability is that the register is of, and how its first two bytes are told.
    pub capability: usize,
    pub capability_mask: u16,
    pub capability_id: u16,
    /// Bits that are set, and to what.
    pub mask: u16,
    pub value: u16,
}

impl Word {
    pub const fn is_acs(&self) -> bool {
        self.capability_id == config::ACS
    }

    /// Whether it takes from virtual machines what keeps them apart.
    pub const fn clears_acs(&self) -> bool {
        self.is_acs() && self.value == 0
    }
}

const HEAD: &str = r#"#!/bin/sh
# Written by gpufleet: `pci_settings`.
devices=/sys/bus/pci/devices
drivers=/sys/bus/pci/drivers
failed=0
# Whether virtual machines or programs have a device.
vfio() {
    for bound in "$drivers"/*vfio*/*:*:*.*; do
        [ -e "$bound" ] || [ -L "$bound" ] && return
    done
    return 1
}
# Two bytes of a file, the lower one first.
two() {
    set -- $(od -An -v -tu1 -j "$(($2))" -N 2 "$1" 2>/dev/null)
    [ $# = 2 ] && echo $(($1 + $2 * 256))
}
# Address, vendor and device, place of the capability, its mask and number, register, its mask and value.
word() {
    address=$1 config=$devices/$1/config
    found=$(cat "$devices/$1/vendor" 2>/dev/null):$(cat "$devices/$1/device" 2>/dev/null)
    if [ "$found" != "$2" ]; then
        echo "$address is $found, not $2: it is left alone"
        return
    fi
    header=$(two "$config" "$3") now=$(two "$config" "$6")
    if [ -z "$header" ] || [ -z "$now" ]; then
        echo "$address: its configuration cannot be read"
        failed=1
        return
    fi
    if [ $((header & $4)) != $(($5)) ]; then
        echo "$address: there is no such capability at $3: it is left alone"
        failed=1
        return
    fi
    new=$(((now & ~$7 & 65535) | $8))
    [ "$new" = "$now" ] && return
    # Access control keeps virtual machines apart.
    if [ $(($5)) = 13 ] && [ $(($8)) = 0 ] && vfio; then
        echo "$address: vfio has devices: its ACS is left alone"
        return
    fi
    bytes=$(printf '\\%03o\\%03o' $((new & 255)) $((new >> 8)))
    printf "$bytes" | dd of="$config" bs=2 seek=$(($6 / 2)) conv=notrunc 2>/dev/null
    if [ "$(two "$config" "$6")" != "$new" ]; then
        echo "$address: the register $6 does not take $new"
        failed=1
    fi
}
"#;
const TAIL: &str = "exit $failed\n";

/// Returns the script.
pub fn text(words: &BTreeMap<Place, Word>) -> String {
    let mut text = HEAD.to_owned();
    for (place, word) in words {
        text.push_str(&format!(
            "word {} {} {:#x} {:#x} {:#x} {:#x} {:#x} {:#x}\n",
            place.address,
            word.device,
            word.capability,
            word.capability_mask,
            word.capability_id,
            place.register,
            word.mask,
            word.value
        ));
    }
    text.push_str(TAIL);
    text
}

/// Reads the lines of a script.
pub fn words(text: &str) -> BTreeMap<Place, Word> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.strip_prefix("word ")?.split(' ').collect();
        let [address, device, capability, capability_mask, capability_id, register, mask, value] = fields[..]
        else {
            return None;
        };
        let number = |text: &str| u16::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let is_id = |text: &str| text.len() == 13 && text.split(':').all(|half| number(half).is_some());
        let known = crate::signals::pci::is_address(address) && is_id(device);
        let place = Place { address: address.to_owned(), register: usize::from(number(register)?) };
        let word = Word {
            device: device.to_owned(),
            capability: usize::from(number(capability)?),
            capability_mask: number(capability_mask)?,
            capability_id: number(capability_id)?,
            mask: number(mask)?,
            value: number(value)?,
        };
        known.then_some((place, word))
    };
    text.lines().filter_map(line).collect()
}
