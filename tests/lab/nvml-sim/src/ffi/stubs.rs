//! The other symbols of driver 580: they exist, so that callers find them, but these GPUs do not support them.

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::recorded::recorded;
use super::session::{ask, read};
use crate::transitions::code;

/// Functions of a device: the recorded refusal, if there is one.
macro_rules! device_stubs {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t) -> u32 {
            read(stringify!($name), device, |call| match recorded(call, stringify!($name)) {
                Err(code) => Err(code),
                Ok(_) => Err(code::NOT_SUPPORTED),
            })
        }
    )*};
}

macro_rules! stubs {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() -> u32 {
            ask(stringify!($name), |_| Err(code::NOT_SUPPORTED))
        }
    )*};
}

device_stubs! {
    nvmlDeviceDiscoverGpus nvmlDeviceFreezeNvLinkUtilizationCounter nvmlDeviceGetAccountingStats
    nvmlDeviceGetActiveVgpus nvmlDeviceGetBridgeChipInfo nvmlDeviceGetClockOffsets
    nvmlDeviceGetConfComputeGpuAttestationReport nvmlDeviceGetCoolerInfo nvmlDeviceGetCpuAffinityWithinScope
    nvmlDeviceGetCreatableVgpus nvmlDeviceGetDramEncryptionMode
    nvmlDeviceGetEncoderCapacity nvmlDeviceGetFanControlPolicy_v2
    nvmlDeviceGetGridLicensableFeatures nvmlDeviceGetGridLicensableFeatures_v2
    nvmlDeviceGetGridLicensableFeatures_v3 nvmlDeviceGetGridLicensableFeatures_v4 nvmlDeviceGetHandleByUUIDV
    nvmlDeviceGetHostname_v1 nvmlDeviceGetMemoryAffinity nvmlDeviceGetMinMaxClockOfPState
    nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkInfo nvmlDeviceGetNvLinkRemoteDeviceType
    nvmlDeviceGetNvLinkRemotePciInfo nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetNvlinkSupportedBwModes
    nvmlDeviceGetNvLinkUtilizationControl nvmlDeviceGetNvLinkUtilizationCounter nvmlDeviceGetP2PStatus
    nvmlDeviceGetPgpuMetadataString nvmlDeviceGetPowerMizerMode_v1 nvmlDeviceGetProcessesUtilizationInfo
    nvmlDeviceGetProcessUtilization nvmlDeviceGetRemappedRows_v2
    nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts nvmlDeviceGetSupportedVgpus
    nvmlDeviceGetThermalSettings nvmlDeviceGetTopologyNearestGpus
    nvmlDeviceGetVgpuCapabilities nvmlDeviceGetVgpuInstancesUtilizationInfo nvmlDeviceGetVgpuMetadata
    nvmlDeviceGetVgpuProcessesUtilizationInfo nvmlDeviceGetVgpuProcessUtilization
    nvmlDeviceGetVgpuSchedulerCapabilities nvmlDeviceGetVgpuSchedulerLog nvmlDeviceGetVgpuSchedulerState
    nvmlDeviceGetVgpuTypeCreatablePlacements nvmlDeviceGetVgpuTypeSupportedPlacements
    nvmlDeviceGetVgpuUtilization nvmlDeviceOnSameBoard nvmlDeviceReadPRMCounters_v1
    nvmlDeviceReadWritePRM_v1 nvmlDeviceRegisterEvents nvmlDeviceRemoveGpu nvmlDeviceRemoveGpu_v2
    nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
    nvmlDeviceWorkloadPowerProfileGetProfilesInfo
}

stubs! {
    nvmlEventSetCreate nvmlEventSetFree nvmlEventSetWait nvmlEventSetWait_v2 nvmlGetBlacklistDeviceCount
    nvmlGetBlacklistDeviceInfoByIndex nvmlGetExcludedDeviceInfoByIndex
    nvmlGetVgpuCompatibility nvmlGetVgpuDriverCapabilities nvmlGetVgpuVersion nvmlGpmMetricsGet
    nvmlGpmMigSampleGet nvmlGpmQueryDeviceSupport nvmlGpmQueryIfStreamingEnabled nvmlGpmSampleAlloc
    nvmlGpmSampleFree nvmlGpmSampleGet nvmlGpmSetStreamingEnabled nvmlGpuInstanceGetActiveVgpus
    nvmlGpuInstanceGetCreatableVgpus nvmlGpuInstanceGetVgpuHeterogeneousMode
    nvmlGpuInstanceGetVgpuSchedulerLog nvmlGpuInstanceGetVgpuSchedulerState
    nvmlGpuInstanceGetVgpuTypeCreatablePlacements nvmlGpuInstanceSetVgpuHeterogeneousMode
    nvmlGpuInstanceSetVgpuSchedulerState nvmlInternalGetExportTable nvmlSetVgpuVersion
    nvmlSystemEventSetCreate nvmlSystemEventSetFree nvmlSystemEventSetWait nvmlSystemGetTopologyGpuSet
    nvmlSystemRegisterEvents
    nvmlSystemSetConfComputeKeyRotationThresholdInfo nvmlSystemSetNvlinkBwMode nvmlUnitGetCount
    nvmlUnitGetDevices nvmlUnitGetFanSpeedInfo nvmlUnitGetHandleByIndex nvmlUnitGetLedState
    nvmlUnitGetPsuInfo nvmlUnitGetTemperature nvmlUnitGetUnitInfo nvmlUnitSetLedState
    nvmlVgpuInstanceClearAccountingPids nvmlVgpuInstanceGetAccountingMode nvmlVgpuInstanceGetAccountingPids
    nvmlVgpuInstanceGetAccountingStats nvmlVgpuInstanceGetEccMode nvmlVgpuInstanceGetEncoderCapacity
    nvmlVgpuInstanceGetEncoderSessions nvmlVgpuInstanceGetEncoderStats nvmlVgpuInstanceGetFBCSessions
    nvmlVgpuInstanceGetFBCStats nvmlVgpuInstanceGetFbUsage nvmlVgpuInstanceGetFrameRateLimit
    nvmlVgpuInstanceGetGpuInstanceId nvmlVgpuInstanceGetGpuPciId nvmlVgpuInstanceGetLicenseInfo
    nvmlVgpuInstanceGetLicenseInfo_v2 nvmlVgpuInstanceGetLicenseStatus nvmlVgpuInstanceGetMdevUUID
    nvmlVgpuInstanceGetMetadata nvmlVgpuInstanceGetPlacementId nvmlVgpuInstanceGetRuntimeStateSize
    nvmlVgpuInstanceGetType nvmlVgpuInstanceGetUUID nvmlVgpuInstanceGetVmDriverVersion
    nvmlVgpuInstanceGetVmID nvmlVgpuInstanceSetEncoderCapacity nvmlVgpuTypeGetBAR1Info
    nvmlVgpuTypeGetCapabilities nvmlVgpuTypeGetClass nvmlVgpuTypeGetDeviceID nvmlVgpuTypeGetFbReservation
    nvmlVgpuTypeGetFramebufferSize nvmlVgpuTypeGetFrameRateLimit nvmlVgpuTypeGetGpuInstanceProfileId
    nvmlVgpuTypeGetGspHeapSize nvmlVgpuTypeGetLicense nvmlVgpuTypeGetMaxInstances
    nvmlVgpuTypeGetMaxInstancesPerGpuInstance nvmlVgpuTypeGetMaxInstancesPerVm nvmlVgpuTypeGetName
    nvmlVgpuTypeGetNumDisplayHeads nvmlVgpuTypeGetResolution
}
