//! Drained GPUs, which the driver hides from processes that start later, so that they are asked for by address.

use std::ffi::c_uint;

use gpufleet_protocol::nvml::{Code, Reading};
use nvml_wrapper_sys::bindings::nvmlPciInfo_st;

use super::{Nvml, Plain as _};

/// Returns the place of a GPU, from a PCI address as sysfs writes it. The driver reads only these three numbers of it
/// (checked on an H100 with driver 580.159.04).
fn address(pci: &str) -> Option<nvmlPciInfo_st> {
    let number = |text: &str| c_uint::from_str_radix(text, 16).ok();
    let mut parts = pci.rsplit_once('.')?.0.split(':');
    let mut info = nvmlPciInfo_st::zeroed();
    info.domain = number(parts.next()?)?;
    info.bus = number(parts.next()?)?;
    info.device = number(parts.next()?)?;
    parts.next().is_none().then_some(info)
}

impl Nvml {
    /// Sets whether the driver hides the GPU at a PCI address from processes that start.
    pub fn set_drain(&self, pci: &str, on: bool) -> Reading<()> {
        let mut info = address(pci).ok_or(Code::INVALID_ARGUMENT)?;
        call!(self, nvmlDeviceModifyDrainState(&raw mut info, c_uint::from(on)))
    }

    pub fn is_drained(&self, pci: &str) -> Reading<bool> {
        let mut info = address(pci).ok_or(Code::INVALID_ARGUMENT)?;
        number!(self, nvmlDeviceQueryDrainState(&raw mut info)).map(|state| state != 0)
    }
}
