//! Rules for every call, through the C interface: initialisation, structure versions, faults, the log of setters.

use std::path::PathBuf;

use nvml_sim::fault::{Effect, Rule};
use nvml_sim::model::ModelKey;
use nvml_sim::state::Machine;
use nvml_sim::store::Store;
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlGpuInstanceInfo_st, nvmlGpuInstancePlacement_st, nvmlGpuInstanceProfileInfo_v2_st,
    nvmlMemory_v2_st,
};
use serde_json::Value;

fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    [deps.join("libnvml_sim.so"), deps.parent().unwrap().join("libnvml_sim.so")]
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo builds the library with this test")
}

fn rule(function: &str, effect: Effect) -> Rule {
    serde_json::from_value(serde_json::json!({"function": function, "effect": effect})).unwrap()
}

/// One test, because the library has one session for each process, like the real one.
#[test]
fn calls_keep_the_rules() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("node.json");
    let store = Store::new(&state);
    let mut machine = Machine::new("calls", &[ModelKey::H100, ModelKey::A100], "boot".to_owned());
    machine.device_dir = dir.path().to_str().unwrap().to_owned();
    store.create(&machine).unwrap();
    // SAFETY: the only test of this process; nothing else reads the environment meanwhile.
    unsafe { std::env::set_var("GPUSIM_STATE", &state) };
    // SAFETY: our own library; all calls below follow NVML's documentation with pointers to live locals.
    unsafe {
        let nvml = NvmlLib::new(library()).unwrap();
        let mut number = 0;
        assert_eq!(nvml.nvmlDeviceGetCount_v2(&raw mut number), 1, "not initialised");
        assert_eq!(nvml.nvmlShutdown(), 1);
        assert_eq!(nvml.nvmlInit_v2(), 9, "no control device, no driver");
        std::fs::write(dir.path().join("nvidiactl"), "").unwrap();
        store.update(|m| m.module_version = "570.1".to_owned()).unwrap();
        assert_eq!(nvml.nvmlInit_v2(), 18, "another module than library");
        store.update(|m| m.module_version = m.library_version.clone()).unwrap();
        assert_eq!(nvml.nvmlInit_v2(), 0);
        assert_eq!(nvml.nvmlDeviceGetCount_v2(&raw mut number), 0);
        assert_eq!(number, 2);
        let mut device = std::ptr::null_mut();
        assert_eq!(nvml.nvmlDeviceGetHandleByIndex_v2(2, &raw mut device), 2);
        assert_eq!(nvml.nvmlDeviceGetHandleByIndex_v2(0, &raw mut device), 0);
        assert_eq!(nvml.nvmlDeviceGetMigMode(std::ptr::null_mut(), &raw mut number, &raw mut number), 2);
        assert_eq!(nvml.nvmlDeviceGetUUID(device, [0; 4].as_mut_ptr(), 4), 7, "too small a buffer");

        let mut memory: nvmlMemory_v2_st = std::mem::zeroed();
        assert_eq!(nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory), 25, "no version");
        memory.version = size_of::<nvmlMemory_v2_st>() as u32 | 2 << 24;
        assert_eq!(nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory), 0);
        assert_eq!((memory.reserved >> 20, memory.used), (480, 0));
        let mut profile: nvmlGpuInstanceProfileInfo_v2_st = std::mem::zeroed();
        profile.version = size_of::<nvmlGpuInstanceProfileInfo_v2_st>() as u32 | 1 << 24;
        assert_eq!(nvml.nvmlDeviceGetGpuInstanceProfileInfoV(device, 0, &raw mut profile), 25);

        let mut places = [nvmlGpuInstancePlacement_st { start: 0, size: 0 }; 8];
        number = 0;
        assert_eq!(
            nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                device,
                9,
                std::ptr::null_mut(),
                &raw mut number
            ),
            0
        );
        assert_eq!(number, 2, "known with MIG off");
        assert_eq!(
            nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                device,
                9,
                places.as_mut_ptr(),
                &raw mut number
            ),
            0
        );
        assert_eq!([places[0].start, places[1].start, places[1].size], [0, 4, 4]);

        if rustix::process::geteuid().is_root() {
            let mut instance = std::ptr::null_mut();
            assert_eq!(nvml.nvmlDeviceCreateGpuInstance(device, 9, &raw mut instance), 3, "MIG is off");
            assert_eq!(nvml.nvmlDeviceSetMigMode(device, 1, &raw mut number), 0);
            assert_eq!(number, 0);
            assert_eq!(nvml.nvmlDeviceCreateGpuInstance(device, 9, &raw mut instance), 0);
            let mut info: nvmlGpuInstanceInfo_st = std::mem::zeroed();
            assert_eq!(nvml.nvmlGpuInstanceGetInfo(instance, &raw mut info), 0);
            assert_eq!((info.profileId, info.placement.start), (9, 4));
            assert_eq!(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, 9, &raw mut number), 0);
            assert_eq!(number, 1);
            assert_eq!(nvml.nvmlGpuInstanceDestroy(instance), 0);
            assert_eq!(nvml.nvmlGpuInstanceGetInfo(instance, &raw mut info), 2, "the handle is stale");

            store
                .set_faults(&[
                    rule("nvmlDeviceSetEccMode", Effect::Lie),
                    rule("nvmlDeviceGetEccMode", Effect::Return(999)),
                    rule("nvmlDeviceGetPersistenceMode", Effect::GpuLost),
                ])
                .unwrap();
            assert_eq!(nvml.nvmlDeviceSetEccMode(device, 0), 0);
            assert!(store.read().unwrap().gpus[0].ecc.pending, "the setter lied");
            let (mut a, mut b) = (0, 0);
            assert_eq!(nvml.nvmlDeviceGetEccMode(device, &raw mut a, &raw mut b), 999);
            assert_eq!(nvml.nvmlDeviceGetPersistenceMode(device, &raw mut a), 15);
            store.set_faults(&[]).unwrap();
            assert_eq!(nvml.nvmlDeviceGetPersistenceMode(device, &raw mut a), 15, "a lost GPU stays lost");
            assert_eq!(nvml.nvmlDeviceGetHandleByIndex_v2(1, &raw mut device), 0, "the others are there");
            assert_eq!(nvml.nvmlDeviceGetPersistenceMode(device, &raw mut a), 0);
            let log = std::fs::read_to_string(dir.path().join("setters.jsonl")).unwrap();
            let calls: Vec<(String, u64)> = log
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap())
                .map(|line| (line["function"].as_str().unwrap().to_owned(), line["rc"].as_u64().unwrap()))
                .collect();
            let expected = [
                ("nvmlDeviceCreateGpuInstance", 3),
                ("nvmlDeviceSetMigMode", 0),
                ("nvmlDeviceCreateGpuInstance", 0),
                ("nvmlGpuInstanceDestroy", 0),
                ("nvmlDeviceSetEccMode", 0),
            ];
            assert_eq!(calls, expected.map(|(name, code)| (name.to_owned(), code)));
        } else {
            assert_eq!(nvml.nvmlDeviceSetEccMode(device, 0), 4, "not permitted");
        }
        assert_eq!(nvml.nvmlShutdown(), 0);
        assert_eq!(nvml.nvmlDeviceGetCount_v2(&raw mut number), 1);
    }
}
