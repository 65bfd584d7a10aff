//! `gpudirect`: whether network cards reach the memory of GPUs, by dma-buf or by the older nvidia-peermem.

use gpufleet_protocol::{
    FailureKind,
    tasks::{GpuDirect, GpuDirectWay, Modprobe, ModulePersistence, ModuleState},
};
use serde_json::{Map, Value, json};

use super::{driver, knobs, modprobe};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    gpu::bus,
    signals::{self, Reader, TAKES_PEERS, network},
    world::Effect,
};

/// Whether a way works.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    Works,
    Not(String),
    Unknown(String),
}

#[derive(Debug)]
pub struct State {
    dma_buf: Way,
    peermem: Way,
    modules: String,
    /// Whether an IOMMU translates what network cards ask for, as it does not with `iommu=pt`. NVIDIA, GPUDirect RDMA
    /// documentation: peer memory takes no translation.
    translates: bool,
    module: Option<(Modprobe, modprobe::State)>,
    /// Whether the RDMA core takes peer memory; none if nobody tells.
    takes_peers: Option<bool>,
    rebooted: bool,
}

fn peermem(loaded: bool, translates: bool) -> Way {
    match (loaded, translates) {
        (false, _) => Way::Not("nvidia-peermem is not loaded".to_owned()),
        (true, true) => Way::Not(
            "an IOMMU translates what network cards ask for, which peer memory does not take: \
             `kernel_cmdline: {add: [iommu=pt]}`, and a reboot"
                .to_owned(),
        ),
        (true, false) => Way::Works,
    }
}

impl NodeKind for GpuDirect {
    type State = State;
    type Step = modprobe::Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let reader = Reader { roots: node.roots, deadline: node.deadline };
        let gpus = bus::read(node.roots).map_err(|error| Trouble::io(format!("the PCI bus: {error}")))?.gpus;
        if gpus == 0 {
            return Err(Trouble::invalid(bus::NO_GPU));
        }
        let rebooted = node.world.rebooted();
        let brings = modprobe::brings_more_than(&node.world, Self::MODULE);
        let cards = network::devices(&reader).map_err(Trouble::io)?;
        if cards.is_empty() {
            if brings || rebooted {
                return Err(Trouble::Possible);
            }
            return Err(Trouble::NotApplicable(
                "this node has no RDMA device; is the module of its card loaded (mlx5_ib)?".to_owned(),
            ));
        }
        let loaded = |name: &str| {
            modprobe::is_loaded_by_plan(&node.world, name)
                || node.roots.path(format!("/sys/module/{name}")).exists()
                    && !modprobe::is_unloaded(&node.world, name)
        };
        let runs = knobs::value(node, "/sys/module/nvidia/version")?;
        let other = driver::foreseen(node).is_some_and(|next| Some(&next) != runs.as_ref());
        if rebooted && self.peermem.is_none() || other {
            return Err(Trouble::Possible);
        }
        let Some(kind) = signals::module_kind(&reader).map_err(Trouble::io)? else {
            if brings {
                return Err(Trouble::Possible);
            }
            return Err(Trouble::missing("the NVIDIA driver is not loaded"));
        };
        let core = signals::rdma_core(&reader).map_err(Trouble::io)?;
        let takes = || Ok(core.map(|core| core.dma_buf));
        let dma_buf = match signals::without_dma_buf(kind, loaded("ib_core"), takes) {
            Ok(None) => Way::Works,
            Ok(Some(why)) => Way::Not(why),
            Err(why) => Way::Unknown(why),
        };
        let mut translates = false;
        for card in &cards {
            let group = knobs::value(node, &format!("/sys/class/infiniband/{card}/device/iommu_group/type"))?;
            translates |= group.is_some_and(|group| group.starts_with("DMA"));
        }
        let module = match self.peermem {
            None => None,
            Some(_) => {
                let task = Modprobe {
                    name: Self::MODULE.to_owned(),
                    state: ModuleState::Present,
                    params: String::new(),
                    persistent: ModulePersistence::Present,
                };
                let state = task.observe(node)?;
                Some((task, state))
            }
        };
        let state = State {
            dma_buf,
            peermem: peermem(loaded("nvidia_peermem") || loaded("nv_peer_mem"), translates),
            modules: kind.to_owned(),
            translates,
            module,
            takes_peers: core.map(|core| core.peers),
            rebooted,
        };
        if brings && self.plan(&state).is_err() {
            return Err(Trouble::Possible);
        }
        Ok(state)
    }

    fn plan(&self, state: &State) -> Result<Plan<Self::Step>, Trouble> {
        let plan = match &state.module {
            None => Plan::default(),
            Some((task, known)) => task.plan(known)?,
        };
        let loads = plan.steps.iter().any(|step| matches!(step, modprobe::Step::Load));
        if loads && state.takes_peers == Some(false) {
            return Err(Trouble::invalid(format!(
                "the RDMA core of this kernel takes no peer memory ({TAKES_PEERS}), so that nvidia-peermem cannot be loaded; \
                 NVIDIA's DOCA (MLNX_OFED) brings one that does{}",
                match state.dma_buf {
                    Way::Works => "; dma-buf works here without it",
                    _ => "",
                }
            )));
        }
        // Whether it is loaded after a boot is known by then.
        if state.rebooted {
            return Ok(plan);
        }
        let peermem = if loads { peermem(true, state.translates) } else { state.peermem.clone() };
        let ways: &[&Way] = match self.via {
            GpuDirectWay::Any => &[&state.dma_buf, &peermem],
            GpuDirectWay::DmaBuf => &[&state.dma_buf],
            GpuDirectWay::Peermem => &[&peermem],
        };
        if ways.contains(&&Way::Works) {
            return Ok(plan);
        }
        let told = |way: &&&Way| match way {
            Way::Works => None,
            Way::Not(why) | Way::Unknown(why) => Some(why.clone()),
        };
        let reasons: Vec<String> = ways.iter().filter_map(|way| told(&way)).collect();
        let message = format!("network cards do not reach the memory of GPUs: {}", reasons.join("; "));
        match ways.iter().any(|way| matches!(way, Way::Unknown(_))) {
            true => Err(Trouble::io(reasons.join("; "))),
            false => Err(Trouble::failed(FailureKind::Unconverged, message)),
        }
    }

    fn after(&self, state: &State, plan: &Plan<Self::Step>) -> Vec<Effect> {
        state.module.as_ref().map(|(task, known)| task.after(known, plan)).unwrap_or_default()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Self::Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        if let Some((task, known)) = &state.module {
            task.apply(node, known, plan)?;
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let word = |way: &Way| match way {
            Way::Works => json!(true),
            Way::Not(_) => json!(false),
            Way::Unknown(_) => Value::Null,
        };
        let data = [
            ("dma_buf", word(&state.dma_buf)),
            ("peermem", word(&state.peermem)),
            ("kernel_modules", json!(state.modules)),
        ];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, failure, shown};

    fn bench(kind: &str, symbols: &str) -> Bench {
        let bench = Bench::new();
        bench.write("sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n");
        bench.write("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n");
        bench.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        symlink("../../../devices/0000:3c:00.0", bench.path("sys/class/infiniband/mlx5_0/device")).unwrap();
        bench.write(
            "proc/driver/nvidia/version",
            &format!("NVRM version: NVIDIA UNIX {kind} for x86_64  580.95.05\nGCC version: x\n"),
        );
        bench.write("proc/sys/kernel/osrelease", "6.8.0-60-generic\n");
        bench.write("proc/modules", "nvidia 1 0 - Live 0x0\n");
        bench.write("sys/module/ib_core/refcnt", "1\n");
        bench.write("sys/module/nvidia/version", "580.95.05\n");
        bench.write("proc/kallsyms", symbols);
        bench.script(
            "usr/sbin/modprobe",
            "#!/bin/sh\nhere=$(dirname \"$0\")/../..\nmkdir -p $here/sys/module/nvidia_peermem\n\
             echo 'nvidia_peermem 1 0 - Live 0x0' >>$here/proc/modules\n",
        );
        bench
    }

    const DMA_BUF: &str = "0 T ib_umem_get\t[ib_uverbs]\n0 T ib_umem_dmabuf_get\t[ib_uverbs]\n";
    const PEERS: &str = "0 T ib_register_peer_memory_client\t[ib_core]\n";
    const OPEN: &str = "Open Kernel Module";

    fn run(bench: &Bench, task: Value, mode: Mode) -> OpOutcome {
        let task: GpuDirect = serde_json::from_value(task).unwrap();
        bench.run(&task, mode)
    }

    #[test]
    fn without_peermem_dma_buf_is_enough() {
        let bench = bench(OPEN, DMA_BUF);
        for task in [json!({}), json!({"via": "dma_buf"})] {
            let done = run(&bench, task, Mode::Apply);
            assert_eq!((&done.status, done.warnings.len()), (&OpStatus::Ok, 0), "{done:?}");
            assert_eq!((&done.data["dma_buf"], &done.data["peermem"]), (&json!(true), &json!(false)));
        }
        let wrong = run(&bench, json!({"via": "peermem"}), Mode::Apply);
        assert!(failure(&wrong).ends_with("nvidia-peermem is not loaded"), "{wrong:?}");
        let none = run(&bench, json!({"peermem": "present"}), Mode::Predict);
        assert!(failure(&none).ends_with("dma-buf works here without it"), "{none:?}");
    }

    #[test]
    fn the_older_way_is_loaded_where_it_is_declared() {
        let bench = bench("Kernel Module", PEERS);
        let wrong = run(&bench, json!({}), Mode::Apply);
        assert_eq!(
            failure(&wrong),
            "network cards do not reach the memory of GPUs: dma-buf needs the open kernel modules of the driver, and the \
             proprietary ones are loaded; nvidia-peermem is not loaded"
        );
        let task = || json!({"peermem": "present"});
        let predicted = run(&bench, task(), Mode::Predict);
        assert_eq!(
            shown(&predicted),
            [
                "module nvidia-peermem: not loaded -> loaded (live)",
                "module nvidia-peermem at boot: left to others -> loaded (live)"
            ]
        );
        assert_eq!(run(&bench, task(), Mode::Predict).status, OpStatus::Ok);
        let done = run(&bench, task(), Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert_eq!(run(&bench, task(), Mode::Apply).status, OpStatus::Ok);
        bench.write("sys/devices/0000:3c:00.0/iommu_group/type", "identity\n");
        assert_eq!(run(&bench, task(), Mode::Apply).status, OpStatus::Ok, "with iommu=pt");
    }

    #[test]
    fn peer_memory_does_not_work_where_an_iommu_translates() {
        let both = bench(OPEN, &format!("{DMA_BUF}{PEERS}"));
        let old = bench("Kernel Module", PEERS);
        for bench in [&both, &old] {
            bench.write("sys/devices/0000:3c:00.0/iommu_group/type", "DMA-FQ\n");
            for loaded in [false, true] {
                let wrong = run(bench, json!({"via": "peermem", "peermem": "present"}), Mode::Apply);
                assert!(
                    failure(&wrong).contains("`kernel_cmdline: {add: [iommu=pt]}`, and a reboot"),
                    "{wrong:?}"
                );
                assert_eq!(bench.path("sys/module/nvidia_peermem").exists(), loaded, "it is of no use");
                bench.write("sys/module/nvidia_peermem/refcnt", "0\n");
            }
        }
        let wrong = run(&old, json!({}), Mode::Apply);
        assert!(
            failure(&wrong).contains("the proprietary ones are loaded; an IOMMU translates"),
            "{wrong:?}"
        );
        let done = run(&both, json!({}), Mode::Apply);
        assert_eq!(
            (&done.status, &done.data["peermem"]),
            (&OpStatus::Ok, &json!(false)),
            "by dma-buf: {done:?}"
        );
    }

    #[test]
    fn what_earlier_tasks_bring_is_known_in_the_run() {
        use crate::world::Effect;
        let module = || Effect::Parameter { name: "modules/mlx5_ib".to_owned(), value: "loaded".to_owned() };
        let package = || Effect::Package { name: "doca-ofed".to_owned(), version: Some("3.1".to_owned()) };
        for effect in [module as fn() -> Effect, package] {
            let bench = bench(OPEN, PEERS);
            assert!(failure(&run(&bench, json!({}), Mode::Predict)).contains("takes no dma-buf"));
            bench.overlay.assume([effect()]);
            assert_eq!(run(&bench, json!({}), Mode::Predict).status, OpStatus::Possible);
            std::fs::remove_dir_all(bench.path("sys/class/infiniband")).unwrap();
            assert_eq!(run(&bench, json!({}), Mode::Predict).status, OpStatus::Possible);
            assert!(matches!(run(&bench, json!({}), Mode::Apply).status, OpStatus::NotApplicable { .. }));
        }
        // Its own module brings nothing but itself.
        let bench = bench("Kernel Module", PEERS);
        assert_eq!(run(&bench, json!({"peermem": "present"}), Mode::Predict).status, OpStatus::Changed);
        assert!(
            failure(&run(&bench, json!({"via": "dma_buf"}), Mode::Predict)).contains("open kernel modules")
        );
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_unknown() {
        let bench = bench(OPEN, DMA_BUF);
        std::fs::remove_file(bench.path("proc/kallsyms")).unwrap();
        let unknown = run(&bench, json!({}), Mode::Predict);
        assert!(matches!(unknown.status, OpStatus::Unknown { .. }), "{unknown:?}");
        bench.write("proc/kallsyms", "0 T something_else\n");
        assert!(failure(&run(&bench, json!({}), Mode::Apply)).contains("takes no dma-buf"));
        std::fs::remove_dir_all(bench.path("sys/module/ib_core")).unwrap();
        assert!(failure(&run(&bench, json!({}), Mode::Apply)).contains("ib_core is not loaded"));
        std::fs::remove_file(bench.path("proc/driver/nvidia/version")).unwrap();
        assert!(failure(&run(&bench, json!({}), Mode::Apply)).contains("driver is not loaded"));
        std::fs::remove_dir_all(bench.path("sys/class/infiniband")).unwrap();
        let none = run(&bench, json!({}), Mode::Apply);
        assert!(matches!(none.status, OpStatus::NotApplicable { .. }), "{none:?}");
        // A node that lost its GPUs looks like one that has none, and must not pass for as declared.
        std::fs::remove_dir_all(bench.path("sys/bus/pci/devices/0000:3b:00.0")).unwrap();
        for mode in [Mode::Predict, Mode::Apply] {
            assert_eq!(failure(&run(&bench, json!({}), mode)), bus::NO_GPU);
        }
    }
}
