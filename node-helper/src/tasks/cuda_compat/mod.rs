//! `cuda_compat`: whether the driver that runs can run programs of a CUDA version, and whether the loader finds its
//! library; and whether it can run what the containers want that hold GPUs. Only reads.

mod wants;

use std::{fs, path::Path, time::Duration};

use gpufleet_protocol::{
    FailureKind,
    facts::{GpuSystem, GpuSystemState},
    tasks::{CudaCompat, CudaContainers},
};
use serde_json::{Map, Value, json};

use self::wants::{Found, Wants};
use super::{driver, tool};
use crate::{
    deadline::Deadline,
    declare::{Node, NodeKind, Plan, Trouble},
    gpu::bus,
    world::Effect,
};

/// The oldest driver with which all programs of a major version of CUDA run. Source: NVIDIA, CUDA Compatibility, "minor
/// version compatibility".
const OLDEST: [(u32, &str); 3] = [(11, "450.80.02"), (12, "525.60.13"), (13, "580.65.06")];
/// Words in the names of GPUs that take no forward compatibility: CUDA says 804 there. Source: NVIDIA, CUDA
/// Compatibility, "forward compatibility".
const OTHERS: [&str; 5] = ["GeForce", "TITAN", "Quadro", "RTX", "Jetson"];
const ANSWER: Duration = Duration::from_secs(20);
/// Largest answer of `ldconfig`, in bytes.
const LARGEST: usize = 8 * 1024 * 1024;

/// Reads the driver and the GPUs.
pub type Read<'a> = &'a (dyn Fn(&Deadline) -> Result<GpuSystem, Trouble> + Sync);

/// A task with what it needs of the session.
pub struct Judged<'a> {
    pub task: &'a CudaCompat,
    pub read: Read<'a>,
}

#[derive(Debug)]
pub struct State {
    driver: String,
    /// The newest CUDA that the driver knows.
    cuda: (u32, u32),
    names: Vec<String>,
    /// The version of the library that the loader finds first, and where it is.
    library: Option<(String, String)>,
    found: Found,
}

fn numbers(text: &str) -> Vec<u32> {
    text.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// Returns version and path of the `libcuda.so.1` that the loader takes.
fn library(node: &Node<'_>) -> Result<Option<(String, String)>, Trouble> {
    let program = tool::find(node, "ldconfig", "it comes with the C library")?;
    let done = tool::run(node, program).arg("-p").limit(LARGEST).finish(&node.deadline.within(ANSWER))?;
    if !done.exit.success() {
        return Err(Trouble::io(done.complaint("ldconfig -p")));
    }
    let text = done.stdout();
    // The cache has the libraries in the order in which they win.
    let found = text.lines().find_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        let is_it = name.starts_with("libcuda.so.1 ") && name.contains("64");
        is_it.then(|| path.to_owned())
    });
    let Some(path) = found else { return Ok(None) };
    let real = fs::canonicalize(node.roots.path(&path))
        .map_err(|error| Trouble::io(format!("{path}, which the loader would take: {error}")))?;
    let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.strip_prefix("libcuda.so.").filter(|version| version.contains('.')) {
        Some(version) => Ok(Some((version.to_owned(), path))),
        None => Err(Trouble::io(format!("{path} leads to {name}, which tells no version"))),
    }
}

impl NodeKind for Judged<'_> {
    type State = State;
    type Step = std::convert::Infallible;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let system = (self.read)(node.deadline)?;
        let unread = |detail: &str| Trouble::io(format!("the driver cannot be read: {detail}"));
        match &system.state {
            GpuSystemState::Ok => {}
            GpuSystemState::NoGpu => {
                return Err(Trouble::invalid(bus::NO_GPU));
            }
            GpuSystemState::NoDriver { detail } => {
                return Err(Trouble::missing(format!("the NVIDIA driver does not run: {detail}")));
            }
            GpuSystemState::VersionMismatch { detail }
            | GpuSystemState::Hung { detail }
            | GpuSystemState::Crashed { detail }
            | GpuSystemState::NoWorker { detail }
            | GpuSystemState::Failed { detail } => return Err(unread(detail)),
            GpuSystemState::NotRead => return Err(unread("nobody asked")),
        }
        let runs = system.driver_version.as_ref();
        if driver::foreseen(node).is_some_and(|next| Some(&next) != runs) {
            return Err(Trouble::Possible);
        }
        let driver = system.driver_version.ok_or_else(|| unread("it tells no version"))?;
        let cuda = system.cuda_version.as_deref().map(numbers).unwrap_or_default();
        let [major, minor] = *cuda.as_slice() else { return Err(unread("it tells no version of CUDA")) };
        let names = system.gpus.into_iter().map(|gpu| gpu.name).collect();
        let looks = self.task.containers != CudaContainers::Ignore && !node.world.rebooted();
        let found = if looks { wants::wants(node.roots) } else { Found::default() };
        Ok(State { driver, cuda: (major, minor), names, library: library(node)?, found })
    }

    fn plan(&self, state: &State) -> Result<Plan<Self::Step>, Trouble> {
        let mut plan = Plan::default();
        if let (Some(cuda), Some(wanted)) = (&self.task.cuda, self.task.version()) {
            let how = self.judge(state, cuda, wanted, &mut plan.warnings)?;
            plan.data.insert("compatibility".to_owned(), json!(how));
        }
        match &state.library {
            None => {
                let message = "the loader finds no libcuda.so.1: the user-space part of the driver is not installed, or \
                               ldconfig did not run since";
                return Err(Trouble::missing(message));
            }
            Some((version, path)) if numbers(version) < numbers(&state.driver) => {
                return Err(Trouble::missing(format!(
                    "the loader takes {path}, which is of {version}, and the driver that runs is {}: CUDA fails, or shows less \
                     than it has; remove that library (a package cuda-compat?) or its line in /etc/ld.so.conf.d, and run ldconfig",
                    state.driver
                )));
            }
            Some(_) => {}
        }
        self.judge_containers(state, &mut plan)?;
        Ok(plan)
    }

    fn after(&self, _: &State, _: &Plan<Self::Step>) -> Vec<Effect> {
        Vec::new()
    }

    fn apply(&self, _: &Node<'_>, _: &State, _: &Plan<Self::Step>) -> Result<Map<String, Value>, Trouble> {
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let data = [
            ("driver", json!(state.driver)),
            ("driver_cuda", json!(format!("{}.{}", state.cuda.0, state.cuda.1))),
            ("library", json!(state.library.as_ref().map(|(_, path)| Path::new(path)))),
            (
                "containers",
                json!(state.found.containers.iter().map(|one| told(state, one)).collect::<Vec<_>>()),
            ),
        ];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// How programs of a version run without more libraries than the driver's; `None` if they do not.
fn runs(state: &State, wanted: (u32, u32)) -> Option<&'static str> {
    let is_new_enough = oldest(wanted).is_some_and(|oldest| numbers(&state.driver) >= numbers(oldest));
    match state.cuda >= wanted {
        true => Some("native"),
        false => is_new_enough.then_some("minor"),
    }
}

/// The oldest driver that runs a version of CUDA.
fn oldest(wanted: (u32, u32)) -> Option<&'static str> {
    OLDEST.iter().find(|(major, _)| *major == wanted.0).map(|(_, driver)| *driver)
}

/// What is wrong with what a container wants; `Err` where it is not known.
fn wrong(state: &State, wants: &Wants) -> Result<Option<String>, String> {
    let (driver, knows) = (&state.driver, format!("{}.{}", state.cuda.0, state.cuda.1));
    let met = wants.requires.as_ref().map(|requires| requires.met(driver, state.cuda));
    let runs = wants.cuda.map(|cuda| (cuda, runs(state, cuda)));
    match (runs, met, &wants.unread) {
        (Some(((major, minor), None)), ..) => Ok(Some(format!(
            "{} has CUDA {major}.{minor}, and the driver {driver} knows CUDA {knows}: it does not run unless its image brings \
             cuda-compat",
            wants.container
        ))),
        (_, Some(Some(false)), _) => Ok(Some(format!(
            "{} would not start again: its NVIDIA_REQUIRE_CUDA does not allow the driver {driver} with CUDA {knows}",
            wants.container
        ))),
        (_, _, Some(why)) => Err(format!("what {} wants is not known: {why}", wants.container)),
        (_, Some(None), _) => Err(format!(
            "what {} wants is not known: its NVIDIA_REQUIRE_CUDA depends on more than driver and CUDA",
            wants.container
        )),
        _ => Ok(None),
    }
}

/// A container, for `register`.
fn told(state: &State, wants: &Wants) -> Value {
    let fits = match wrong(state, wants) {
        Ok(Some(_)) => json!(false),
        // One whose image says nothing wants nothing that is known.
        Ok(None) if wants.cuda.is_none() && wants.requires.is_none() => json!(null),
        Ok(None) => json!(true),
        Err(_) => json!(null),
    };
    json!({
        "container": wants.container,
        "cuda": wants.cuda.map(|(major, minor)| format!("{major}.{minor}")),
        "compatibility": wants.cuda.and_then(|cuda| runs(state, cuda)),
        "fits": fits,
    })
}

impl Judged<'_> {
    /// Tells the containers that want another driver, or fails where the play asks for that.
    fn judge_containers(
        &self,
        state: &State,
        plan: &mut Plan<std::convert::Infallible>,
    ) -> Result<(), Trouble> {
        let (mut bad, mut unknown) = (Vec::new(), state.found.unjudged.clone());
        for wants in &state.found.containers {
            match wrong(state, wants) {
                Ok(why) => bad.extend(why),
                Err(why) => unknown.push(why),
            }
        }
        match self.task.containers {
            CudaContainers::Require if !bad.is_empty() => {
                return Err(Trouble::failed(FailureKind::Refused, bad.join("; ")));
            }
            CudaContainers::Require if !unknown.is_empty() || !state.found.unseen.is_empty() => {
                let all = [state.found.unseen.as_slice(), &unknown].concat();
                return Err(Trouble::io(all.join("; ")));
            }
            CudaContainers::Require | CudaContainers::Tell | CudaContainers::Ignore => {}
        }
        // Not who could not be looked into: a task that only tells needs no root.
        plan.warnings.extend(bad.into_iter().chain(unknown));
        Ok(())
    }

    /// Returns how the programs run: `native`, `minor` or `forward`.
    fn judge(
        &self,
        state: &State,
        asked: &str,
        wanted: (u32, u32),
        warnings: &mut Vec<String>,
    ) -> Result<&'static str, Trouble> {
        let task = self.task;
        let oldest = oldest(wanted);
        let runs = runs(state, wanted);
        if runs == Some("native") {
            return Ok("native");
        }
        if runs == Some("minor") {
            warnings.push(format!(
                "CUDA {} runs by minor version compatibility: the driver {} knows {}.{}, so that PTX is not compiled, and newer \
                 features are missing",
                asked, state.driver, state.cuda.0, state.cuda.1
            ));
            return Ok("minor");
        }
        let needs = match oldest {
            Some(oldest) => format!("a driver from {oldest} on runs it"),
            None => "a newer driver runs it".to_owned(),
        };
        let other = state.names.iter().find(|name| OTHERS.iter().any(|word| name.contains(word)));
        let (knows, driver) = (format!("{}.{}", state.cuda.0, state.cuda.1), &state.driver);
        match (task.forward, other) {
            (true, None) => {
                warnings.push(format!(
                    "CUDA {} runs only in containers with the libraries of cuda-compat-{}-{} before those of the driver, and only if \
                     NVIDIA's table of forward compatibility names the branch of {driver}",
                    asked, wanted.0, wanted.1
                ));
                Ok("forward")
            }
            (true, Some(name)) => Err(Trouble::missing(format!(
                "CUDA {} does not run: the driver {driver} knows CUDA {knows}, and {name} takes no forward compatibility (CUDA error \
                 804); {needs}",
                asked
            ))),
            (false, other) => {
                let hint = match other {
                    None => "; `forward: true` accepts containers that bring cuda-compat",
                    Some(_) => "",
                };
                Err(Trouble::missing(format!(
                    "CUDA {} does not run: the driver {driver} knows CUDA {knows}; {needs}{hint}",
                    asked
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{Disruption, OpOutcome, OpStatus, facts::GpuFacts, message::Mode};

    use super::*;
    use crate::{declare::drive, tasks::testing::Bench};

    fn bench(version: &str) -> Bench {
        let bench = Bench::new();
        bench.script(
            "usr/sbin/ldconfig",
            "#!/bin/sh\nprintf '2 libs found\\n\\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1\\n'\n",
        );
        bench.write(&format!("usr/lib/libcuda.so.{version}"), "");
        std::os::unix::fs::symlink(format!("libcuda.so.{version}"), bench.path("usr/lib/libcuda.so.1"))
            .unwrap();
        bench
    }

    fn judged(bench: &Bench, task: Value, driver: &str, cuda: &str, name: &str) -> OpOutcome {
        let task: CudaCompat = serde_json::from_value(task).unwrap();
        let system = GpuSystem {
            state: GpuSystemState::Ok,
            driver_version: Some(driver.to_owned()),
            cuda_version: Some(cuda.to_owned()),
            gpus: vec![GpuFacts { name: name.to_owned(), ..GpuFacts::default() }],
            ..GpuSystem::default()
        };
        let read = |_: &Deadline| Ok(system.clone());
        let judged = Judged { task: &task, read: &read };
        bench.node(|node| drive(&judged, node, Mode::Apply, &bench.overlay, Disruption::Live, &|_| Ok(())))
    }

    fn failure(outcome: &OpOutcome) -> &str {
        match &outcome.status {
            OpStatus::Failed { message, .. } => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_node_without_a_gpu_is_an_error() {
        let (bench, task) = (bench("580.95.05"), serde_json::from_value(json!({"cuda": "12.4"})).unwrap());
        let read = |_: &Deadline| Ok(GpuSystem { state: GpuSystemState::NoGpu, ..GpuSystem::default() });
        let judged = Judged { task: &task, read: &read };
        for mode in [Mode::Predict, Mode::Apply] {
            let done =
                bench.node(|node| drive(&judged, node, mode, &bench.overlay, Disruption::Live, &|_| Ok(())));
            assert_eq!(failure(&done), bus::NO_GPU);
        }
    }

    #[test]
    fn the_ways_to_run_are_told_apart() {
        let bench = bench("535.104.05");
        let judge = |task, name| judged(&bench, task, "535.104.05", "12.2", name);
        let h100 = "NVIDIA H100 80GB HBM3";
        for (cuda, how) in [("12.2", "native"), ("11.8", "native"), ("12.4", "minor")] {
            let done = judge(json!({"cuda": cuda}), h100);
            assert_eq!((&done.status, &done.data["compatibility"]), (&OpStatus::Ok, &json!(how)), "{cuda}");
        }
        let done = judge(json!({"cuda": "13.0"}), h100);
        assert_eq!(
            failure(&done),
            "CUDA 13.0 does not run: the driver 535.104.05 knows CUDA 12.2; a driver from 580.65.06 on runs it; `forward: true` \
             accepts containers that bring cuda-compat"
        );
        let done = judge(json!({"cuda": "13.0", "forward": true}), h100);
        assert_eq!((&done.status, done.warnings.len()), (&OpStatus::Ok, 1));
        let done = judge(json!({"cuda": "13.0", "forward": true}), "NVIDIA GeForce RTX 4090");
        assert!(
            failure(&done)
                .contains("NVIDIA GeForce RTX 4090 takes no forward compatibility (CUDA error 804)")
        );
        let done = judge(json!({"cuda": "14.1"}), "NVIDIA GeForce RTX 4090");
        assert!(failure(&done).ends_with("a newer driver runs it"), "{done:?}");
    }

    #[test]
    fn an_older_library_must_not_win() {
        let done = judged(&bench("580.95.05"), json!({"cuda": "12.4"}), "580.159.04", "13.0", "NVIDIA H100");
        assert!(
            failure(&done).starts_with("the loader takes /usr/lib/libcuda.so.1, which is of 580.95.05"),
            "{done:?}"
        );
        let newer = judged(&bench("580.159.04"), json!({"cuda": "12.4"}), "580.95.05", "13.0", "NVIDIA H100");
        assert_eq!(newer.status, OpStatus::Ok);
        let bench = bench("580.159.04");
        bench.script("usr/sbin/ldconfig", "#!/bin/sh\necho '0 libs found'\n");
        let done = judged(&bench, json!({"cuda": "12.4"}), "580.159.04", "13.0", "NVIDIA H100");
        assert!(failure(&done).starts_with("the loader finds no libcuda.so.1"), "{done:?}");
    }

    /// A process of a Docker container on a GPU.
    fn container(bench: &Bench, pid: u32, id: char, environment: &[u8]) {
        let cgroup = format!("0::/system.slice/docker-{}.scope\n", id.to_string().repeat(64));
        for (file, text) in [("comm", "python\n"), ("cmdline", "python\0"), ("cgroup", cgroup.as_str())] {
            bench.write(&format!("proc/{pid}/{file}"), text);
        }
        bench.write(&format!("proc/{pid}/status"), "Uid:\t0\t0\n");
        fs::write(bench.path(&format!("proc/{pid}/environ")), environment).unwrap();
        fs::create_dir_all(bench.path(&format!("proc/{pid}/fd"))).unwrap();
        std::os::unix::fs::symlink("/dev/nvidia0", bench.path(&format!("proc/{pid}/fd/5"))).unwrap();
    }

    #[test]
    fn containers_that_want_another_driver_are_told_and_fail_only_where_that_is_asked_for() {
        let bench = bench("535.104.05");
        let judge = |task| judged(&bench, task, "535.104.05", "12.2", "NVIDIA H100 80GB HBM3");
        container(
            &bench,
            41,
            'a',
            b"CUDA_VERSION=12.4.1\0NVIDIA_REQUIRE_CUDA=cuda>=12.4 driver>=535,driver<536\0",
        );
        let fits = judge(json!({"containers": "require"}));
        assert_eq!((&fits.status, fits.warnings.len()), (&OpStatus::Ok, 0), "{fits:?}");
        assert_eq!(
            fits.data["containers"],
            json!([{"container": "Docker container aaaaaaaaaaaa", "cuda": "12.4", "compatibility": "minor", "fits": true}])
        );
        container(&bench, 42, 'b', b"CUDA_VERSION=13.0.0\0");
        let says = "Docker container bbbbbbbbbbbb has CUDA 13.0, and the driver 535.104.05 knows CUDA 12.2: it does not run unless \
                    its image brings cuda-compat";
        for task in [json!({}), json!({"cuda": "12.2"})] {
            let told = judge(task);
            assert_eq!(
                (&told.status, told.warnings.as_slice()),
                (&OpStatus::Ok, [says.to_owned()].as_slice())
            );
        }
        assert_eq!(failure(&judge(json!({"containers": "require"}))), says);
        assert_eq!(judge(json!({"containers": "ignore"})).warnings, Vec::<String>::new());
    }

    #[test]
    fn a_container_that_cannot_be_understood_is_unknown() {
        let bench = bench("535.104.05");
        let judge = |task| judged(&bench, task, "535.104.05", "12.2", "NVIDIA H100 80GB HBM3");
        container(&bench, 41, 'c', b"CUDA_VERSION=\x1b[31m12\0");
        let told = judge(json!({}));
        assert_eq!(told.status, OpStatus::Ok);
        assert_eq!(
            told.warnings,
            [
                "what Docker container cccccccccccc wants is not known: its CUDA_VERSION is none that images of CUDA write"
            ]
        );
        assert_eq!(told.data["containers"][0]["fits"], json!(null));
        assert!(failure(&judge(json!({"containers": "require"}))).contains("is not known"));
        // One that runs by its version, if its brand is the right one.
        container(
            &bench,
            43,
            'd',
            b"CUDA_VERSION=12.2\0NVIDIA_REQUIRE_CUDA=cuda>=13.0 brand=tesla,driver>=535\0",
        );
        let told = judge(json!({}));
        assert_eq!(told.data["containers"][1]["fits"], json!(null), "{told:?}");
        assert!(told.warnings[1].ends_with("depends on more than driver and CUDA"), "{told:?}");
        // An environment that cannot be read.
        fs::remove_file(bench.path("proc/41/environ")).unwrap();
        fs::create_dir_all(bench.path("proc/41/environ")).unwrap();
        assert!(judge(json!({})).warnings[0].contains("the environment of process 41 cannot be read"));
    }
}
