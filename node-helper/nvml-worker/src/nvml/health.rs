//! The calls that only the checks of an audit need.

use std::ffi::{CStr, c_char, c_uint, c_ulonglong};

use gpufleet_protocol::nvml::{
    Code, Confidential, Fabric, Gsp, MemoryUse, Reading, Repair, RowBanks, SramErrors,
};
use nvml_wrapper_sys::bindings::{
    nvmlC2cModeInfo_v1_t, nvmlConfComputeSystemState_st, nvmlDevice_t, nvmlEccSramErrorStatus_v1_t,
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlMarginTemperature_v1_t,
    nvmlMemory_v2_st, nvmlProcessInfo_v2_st, nvmlRepairStatus_v1_t, nvmlRowRemapperHistogramValues_st,
    nvmlSample_st, nvmlUtilization_st,
};

use super::{Device, Nvml, Plain, TEXT, growing, string, version_word};

/// `nvmlMemoryErrorType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    Corrected = 0,
    Uncorrected = 1,
}

/// `nvmlEccCounterType_t`: since the driver was loaded, or over the life of the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Load = 0,
    Made = 1,
}

/// `nvmlPageRetirementCause_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    SingleBitErrors = 0,
    DoubleBitError = 1,
}

impl Plain for nvmlC2cModeInfo_v1_t {}
impl Plain for nvmlConfComputeSystemState_st {}
impl Plain for nvmlEccSramErrorStatus_v1_t {}
impl Plain for nvmlGpuFabricInfo_t {}
impl Plain for nvmlGpuFabricInfo_v2_t {}
impl Plain for nvmlGpuFabricInfo_v3_t {}
impl Plain for nvmlMarginTemperature_v1_t {}
impl Plain for nvmlMemory_v2_st {}
impl Plain for nvmlRepairStatus_v1_t {}
impl Plain for nvmlRowRemapperHistogramValues_st {}
impl Plain for nvmlSample_st {}
impl Plain for nvmlUtilization_st {}

/// `nvmlUnrepairableMemoryStatus_v1_t` of nvml.h, which the generated bindings lack.
#[repr(C)]
struct UnrepairableMemory {
    version: c_uint,
    unrepairable: c_uint,
}

type GetUnrepairableMemory = unsafe extern "C" fn(nvmlDevice_t, *mut UnrepairableMemory) -> c_uint;

const UNREPAIRABLE: &CStr = c"nvmlDeviceGetUnrepairableMemoryFlag_v1";

impl Nvml {
    pub fn excluded_count(&self) -> Reading<u32> {
        number!(self, nvmlGetExcludedDeviceCount())
    }

    pub fn confidential(&self) -> Reading<Confidential> {
        let mut state = nvmlConfComputeSystemState_st::zeroed();
        call!(self, nvmlSystemGetConfComputeState(&raw mut state))?;
        Ok(Confidential { enabled: state.ccFeature != 0, devtools: state.devToolsMode != 0 })
    }

    pub fn confidential_ready(&self) -> Reading<bool> {
        number!(self, nvmlSystemGetConfComputeGpusReadyState()).map(|ready| ready != 0)
    }

    pub fn ecc_default(&self, device: Device) -> Reading<bool> {
        number!(self, nvmlDeviceGetDefaultEccMode(device.0)).map(|mode| mode != 0)
    }

    pub fn ecc_errors(&self, device: Device, errors: Errors, since: Since) -> Reading<u64> {
        let mut count: c_ulonglong = 0;
        call!(
            self,
            nvmlDeviceGetTotalEccErrors(device.0, errors as c_uint, since as c_uint, &raw mut count)
        )?;
        Ok(count)
    }

    /// Returns the errors in SRAM since the driver was loaded.
    pub fn sram_errors(&self, device: Device, errors: Errors) -> Reading<u64> {
        const NVML_MEMORY_LOCATION_SRAM: c_uint = 7;
        let mut count: c_ulonglong = 0;
        call!(
            self,
            nvmlDeviceGetMemoryErrorCounter(
                device.0,
                errors as c_uint,
                Since::Load as c_uint,
                NVML_MEMORY_LOCATION_SRAM,
                &raw mut count
            )
        )?;
        Ok(count)
    }

    pub fn sram_status(&self, device: Device) -> Reading<SramErrors> {
        let mut status = nvmlEccSramErrorStatus_v1_t::zeroed();
        status.version = version_word::<nvmlEccSramErrorStatus_v1_t>(1);
        call!(self, nvmlDeviceGetSramEccErrorStatus(device.0, &raw mut status))?;
        Ok(SramErrors {
            uncorrected: status.volatileUncParity.saturating_add(status.volatileUncSecDed),
            uncorrected_total: status.aggregateUncParity.saturating_add(status.aggregateUncSecDed),
            corrected_total: status.aggregateCor,
            threshold_exceeded: status.bThresholdExceeded != 0,
        })
    }

    pub fn row_banks(&self, device: Device) -> Reading<RowBanks> {
        let mut banks = nvmlRowRemapperHistogramValues_st::zeroed();
        call!(self, nvmlDeviceGetRowRemapperHistogram(device.0, &raw mut banks))?;
        let nvmlRowRemapperHistogramValues_st { max, high, partial, low, none } = banks;
        Ok(RowBanks { max, high, partial, low, none })
    }

    /// Returns the Unix times at which pages were retired; all 0 on drivers that do not tell them.
    pub fn retired_pages(&self, device: Device, cause: Retired) -> Reading<Vec<u64>> {
        let mut times: Vec<c_ulonglong> = Vec::new();
        let pages = growing(0, |count, addresses: *mut c_ulonglong| {
            // SAFETY: `count` points to the length of the buffer behind `addresses`.
            times = vec![0; unsafe { *count } as usize];
            call!(
                self,
                nvmlDeviceGetRetiredPages_v2(device.0, cause as c_uint, count, addresses, times.as_mut_ptr())
            )
        });
        match pages {
            Ok(pages) => {
                times.truncate(pages.len());
                Ok(times)
            }
            Err(Code::FUNCTION_NOT_FOUND) => growing(0, |count, addresses: *mut c_ulonglong| {
                call!(self, nvmlDeviceGetRetiredPages(device.0, cause as c_uint, count, addresses))
            })
            .map(|pages| vec![0; pages.len()]),
            Err(code) => Err(code),
        }
    }

    pub fn retired_pending(&self, device: Device) -> Reading<bool> {
        number!(self, nvmlDeviceGetRetiredPagesPendingStatus(device.0)).map(|pending| pending != 0)
    }

    pub fn repair(&self, device: Device) -> Reading<Repair> {
        let mut status = nvmlRepairStatus_v1_t::zeroed();
        status.version = version_word::<nvmlRepairStatus_v1_t>(1);
        call!(self, nvmlDeviceGetRepairStatus(device.0, &raw mut status))?;
        Ok(Repair {
            channel_pending: status.bChannelRepairPending != 0,
            tpc_pending: status.bTpcRepairPending != 0,
        })
    }

    pub fn unrepairable(&self, device: Device) -> Reading<bool> {
        // SAFETY: the signature is nvml.h's.
        let found =
            unsafe { self.lib.__library.get::<GetUnrepairableMemory>(UNREPAIRABLE.to_bytes_with_nul()) };
        let Ok(function) = found else { return Err(Code::FUNCTION_NOT_FOUND) };
        let mut status =
            UnrepairableMemory { version: version_word::<UnrepairableMemory>(1), unrepairable: 0 };
        // SAFETY: the pointer points to a live local of the structure's first version, which the version word tells.
        self.check(unsafe { function(device.0, &raw mut status) })?;
        Ok(status.unrepairable != 0)
    }

    pub fn gsp(&self, device: Device) -> Reading<Gsp> {
        let (mut enabled, mut default): (c_uint, c_uint) = (0, 0);
        call!(self, nvmlDeviceGetGspFirmwareMode(device.0, &raw mut enabled, &raw mut default))?;
        Ok(Gsp { enabled: enabled != 0, default: default != 0 })
    }

    pub fn gsp_version(&self, device: Device) -> Reading<String> {
        // The call takes no length: nvml.h promises at most 64 bytes.
        let mut buffer: [c_char; TEXT] = [0; TEXT];
        call!(self, nvmlDeviceGetGspFirmwareVersion(device.0, buffer.as_mut_ptr())).map(|()| string(&buffer))
    }

    pub fn inforom(&self, device: Device) -> Reading<String> {
        text!(self, nvmlDeviceGetInforomImageVersion(device.0))
    }

    /// Checks the InfoROM's checksum, which takes 70 ms.
    pub fn validate_inforom(&self, device: Device) -> Code {
        call!(self, nvmlDeviceValidateInforom(device.0)).err().unwrap_or(Code::SUCCESS)
    }

    pub fn accounting(&self, device: Device) -> Reading<bool> {
        number!(self, nvmlDeviceGetAccountingMode(device.0)).map(|mode| mode != 0)
    }

    pub fn accounting_buffer(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetAccountingBufferSize(device.0))
    }

    pub fn set_accounting(&self, device: Device, on: bool) -> Reading<()> {
        call!(self, nvmlDeviceSetAccountingMode(device.0, c_uint::from(on)))
    }

    pub fn set_confidential_ready(&self, on: bool) -> Reading<()> {
        call!(self, nvmlSystemSetConfComputeGpusReadyState(c_uint::from(on)))
    }

    pub fn drain(&self, device: Device) -> Reading<bool> {
        let mut info = self.pci_info(device)?;
        number!(self, nvmlDeviceQueryDrainState(&raw mut info)).map(|state| state != 0)
    }

    pub fn performance_state(&self, device: Device) -> Reading<u32> {
        const NVML_PSTATE_UNKNOWN: u32 = 32;
        match number!(self, nvmlDeviceGetPerformanceState(device.0))? {
            NVML_PSTATE_UNKNOWN => Err(Code::UNKNOWN),
            state => Ok(state),
        }
    }

    pub fn clock_reasons(&self, device: Device) -> Reading<u64> {
        let mut reasons: c_ulonglong = 0;
        match call!(self, nvmlDeviceGetCurrentClocksEventReasons(device.0, &raw mut reasons)) {
            // The name before driver 535.
            Err(Code::FUNCTION_NOT_FOUND) => {
                call!(self, nvmlDeviceGetCurrentClocksThrottleReasons(device.0, &raw mut reasons))
            }
            other => other,
        }?;
        Ok(reasons)
    }

    /// Returns the utilisation of GPU and memory, in percent.
    pub fn utilization(&self, device: Device) -> Reading<(u32, u32)> {
        let mut rates = nvmlUtilization_st::zeroed();
        call!(self, nvmlDeviceGetUtilizationRates(device.0, &raw mut rates))?;
        Ok((rates.gpu, rates.memory))
    }

    /// Returns the samples of utilisation that the driver keeps: the time in microseconds, and percent.
    pub fn use_samples(&self, device: Device) -> Reading<Vec<(u64, u64)>> {
        const NVML_GPU_UTILIZATION_SAMPLES: c_uint = 1;
        const NVML_VALUE_TYPE_UNSIGNED_INT: c_uint = 1;
        let mut kind: c_uint = 0;
        let samples = growing(nvmlSample_st::zeroed(), |count, samples| {
            let kind = &raw mut kind;
            call!(self, nvmlDeviceGetSamples(device.0, NVML_GPU_UTILIZATION_SAMPLES, 0, kind, count, samples))
        })?;
        if kind != NVML_VALUE_TYPE_UNSIGNED_INT {
            return Err(Code::UNKNOWN);
        }
        // SAFETY: the driver says that it wrote this member of the union; it was zeroed before, and is an integer.
        Ok(samples
            .iter()
            .map(|sample| (sample.timeStamp, unsafe { sample.sampleValue.uiVal }.into()))
            .collect())
    }

    pub fn memory_use(&self, device: Device) -> Reading<MemoryUse> {
        let mut info = nvmlMemory_v2_st::zeroed();
        info.version = version_word::<nvmlMemory_v2_st>(2);
        call!(self, nvmlDeviceGetMemoryInfo_v2(device.0, &raw mut info))?;
        Ok(MemoryUse { total: info.total, used: info.used })
    }

    pub fn mps_pids(&self, device: Device) -> Reading<Vec<u32>> {
        let found = growing(nvmlProcessInfo_v2_st::zeroed(), |count, infos| {
            call!(self, nvmlDeviceGetMPSComputeRunningProcesses_v3(device.0, count, infos))
        })?;
        Ok(found.iter().map(|process| process.pid).collect())
    }

    pub fn power_draw(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetPowerUsage(device.0))
    }

    /// Returns the distance to the temperature at which clocks are slowed, in degrees Celsius.
    pub fn margin(&self, device: Device) -> Reading<i32> {
        let mut margin = nvmlMarginTemperature_v1_t::zeroed();
        margin.version = version_word::<nvmlMarginTemperature_v1_t>(1);
        call!(self, nvmlDeviceGetMarginTemperature(device.0, &raw mut margin))?;
        Ok(margin.marginTemperature)
    }

    /// Returns the highest temperature of the memory, in degrees Celsius.
    pub fn memory_max_temperature(&self, device: Device) -> Reading<u32> {
        const NVML_TEMPERATURE_THRESHOLD_MEM_MAX: c_uint = 2;
        number!(self, nvmlDeviceGetTemperatureThreshold(device.0, NVML_TEMPERATURE_THRESHOLD_MEM_MAX))
    }

    pub fn pcie_generation_max(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetMaxPcieLinkGeneration(device.0))
    }

    pub fn pcie_generation_gpu(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetGpuMaxPcieLinkGeneration(device.0))
    }

    pub fn pcie_width_max(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetMaxPcieLinkWidth(device.0))
    }

    pub fn pcie_replays(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetPcieReplayCounter(device.0))
    }

    pub fn fan_count(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetNumFans(device.0))
    }

    pub fn fan_speed(&self, device: Device, fan: u32) -> Reading<u32> {
        number!(self, nvmlDeviceGetFanSpeed_v2(device.0, fan))
    }

    pub fn fan_target(&self, device: Device, fan: u32) -> Reading<u32> {
        number!(self, nvmlDeviceGetTargetFanSpeed(device.0, fan))
    }

    /// Whether the GPU is linked to a CPU of its module.
    pub fn c2c(&self, device: Device) -> Reading<bool> {
        let mut info = nvmlC2cModeInfo_v1_t::zeroed();
        call!(self, nvmlDeviceGetC2cModeInfoV(device.0, &raw mut info))?;
        Ok(info.isC2cEnabled != 0)
    }

    /// Reads with the newest version of the structure that the driver knows.
    pub fn fabric(&self, device: Device) -> Reading<Fabric> {
        let older = |code| matches!(code, Code::FUNCTION_NOT_FOUND | Code::ARGUMENT_VERSION_MISMATCH);
        let mut info = nvmlGpuFabricInfo_v3_t::zeroed();
        info.version = version_word::<nvmlGpuFabricInfo_v3_t>(3);
        match call!(self, nvmlDeviceGetGpuFabricInfoV(device.0, &raw mut info)) {
            Ok(()) => {
                return Ok(Fabric {
                    state: info.state.into(),
                    status: Code(info.status),
                    clique: info.cliqueId,
                    cluster: cluster(info.clusterUuid),
                    health_mask: Ok(info.healthMask),
                    health_summary: Ok(info.healthSummary.into()),
                });
            }
            Err(code) if older(code) => {}
            Err(code) => return Err(code),
        }
        let mut info = nvmlGpuFabricInfo_v2_t::zeroed();
        info.version = version_word::<nvmlGpuFabricInfo_v2_t>(2);
        // The call writes only what the version word names.
        match call!(self, nvmlDeviceGetGpuFabricInfoV(device.0, (&raw mut info).cast())) {
            Ok(()) => {
                return Ok(Fabric {
                    state: info.state.into(),
                    status: Code(info.status),
                    clique: info.cliqueId,
                    cluster: cluster(info.clusterUuid),
                    health_mask: Ok(info.healthMask),
                    health_summary: Err(Code::FUNCTION_NOT_FOUND),
                });
            }
            Err(code) if older(code) => {}
            Err(code) => return Err(code),
        }
        let mut info = nvmlGpuFabricInfo_t::zeroed();
        call!(self, nvmlDeviceGetGpuFabricInfo(device.0, &raw mut info))?;
        Ok(Fabric {
            state: info.state.into(),
            status: Code(info.status),
            clique: info.cliqueId,
            cluster: cluster(info.clusterUuid),
            health_mask: Err(Code::FUNCTION_NOT_FOUND),
            health_summary: Err(Code::FUNCTION_NOT_FOUND),
        })
    }
}

/// Returns the 16 bytes as a UUID is written.
fn cluster(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_written_as_a_uuid() {
        assert_eq!(cluster([0; 16]), "00000000-0000-0000-0000-000000000000");
        let bytes = std::array::from_fn(|index| index as u8);
        assert_eq!(cluster(bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
