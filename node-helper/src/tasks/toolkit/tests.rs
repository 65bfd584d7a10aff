use gpufleet_protocol::{
    OpOutcome, OpStatus,
    message::Mode,
    nvml::{GpuDevices, MigDevice},
};

use super::*;
use crate::{
    declare::drive,
    tasks::testing::{Bench, changed, failure, shown},
};

const CONFIG: &str = "etc/nvidia-container-runtime/config.toml";

/// A fake `nvidia-ctk`: its specification and what it writes for a runtime are files of the test.
const CTK_SCRIPT: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
case "$1 $2" in
"--version "*) echo "NVIDIA Container Toolkit CLI version $(cat $d/version)"; echo "commit: 1234";;
"cdi generate") cat $d/spec.yaml; echo "time=now level=info msg=Selecting" >&2;;
"runtime configure") echo "ctk $*" >> $d/log; cp $d/dump.new $d/dump; touch $d/etc/containerd/config.toml;;
esac
"#;
/// A fake systemd: containerd runs since 2001, unless it was restarted.
const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
case "$1" in
show)
  shift 2
  for unit; do
    echo "Id=$unit"
    case "$unit" in
    containerd.service) echo LoadState=loaded; echo ActiveState=active; echo UnitFileState=enabled; echo "MainPID=$(cat $d/pid)";;
    nvidia-cdi-refresh.service) if [ -e $d/has-unit ]; then echo LoadState=loaded; else echo LoadState=not-found; fi; echo ActiveState=inactive;;
    *) echo LoadState=not-found; echo ActiveState=inactive;;
    esac
    echo
  done
  exit 0;;
esac
shift
echo "$*" >> $d/log
case "$*" in
"restart containerd.service") echo 2 > $d/pid;;
"restart nvidia-cdi-refresh.service") mkdir -p $d/run/cdi; cp $d/spec.yaml $d/run/cdi/nvidia.yaml;;
esac
"#;
const CONTAINERD: &str = "#!/bin/sh\nd=$(dirname \"$0\")/../..\ncase \"$1\" in\n--version) echo 'containerd github.com/containerd/containerd 1.7.24 abc';;\nconfig) cat $d/dump;;\nesac\n";

fn bench() -> Bench {
    let bench = Bench::new();
    bench.script("usr/bin/nvidia-ctk", CTK_SCRIPT);
    bench.script("usr/bin/systemctl", SYSTEMCTL);
    bench.write("version", "1.17.8");
    bench.write("log", "");
    bench.write("sys/module/nvidia/version", "580.159.04\n");
    bench.write("dev/nvidia0", "");
    bench.write("spec.yaml", &spec("GPU-a"));
    bench
}

fn spec(name: &str) -> String {
    format!(
        "---\ncdiVersion: 0.5.0\ncontainerEdits:\n  mounts:\n  - hostPath: /usr/lib/libcuda.so.580.159.04\ndevices:\n- \
         containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n  name: {name}\nkind: nvidia.com/gpu\n"
    )
}

fn gpus(_: &Deadline) -> Result<Exposed, Trouble> {
    let gpu = GpuDevices { index: 0, uuid: Ok("GPU-a".to_owned()), mig: false, devices: Ok(Vec::new()) };
    Ok(Exposed { gpus: vec![gpu], changes: false })
}

fn task(value: Value) -> ContainerToolkit {
    serde_json::from_value(value).unwrap()
}

fn run_with(bench: &Bench, task: &Value, mode: Mode, allowed: Disruption, gpus: Gpus<'_>) -> OpOutcome {
    let task = self::task(task.clone());
    let toolkit = Toolkit { task: &task, gpus };
    bench.node(|node| drive(&toolkit, node, mode, &bench.overlay, allowed, &|_| Ok(())))
}

fn run(bench: &Bench, task: &Value, mode: Mode) -> OpOutcome {
    run_with(bench, task, mode, Disruption::Live, &gpus)
}

/// A plan writes nothing and tells what the run does, and a second run changes nothing.
#[track_caller]
fn converges(bench: &Bench, task: &Value, allowed: Disruption, gpus: Gpus<'_>) -> OpOutcome {
    let before = bench.snapshot();
    let predicted = run_with(bench, task, Mode::Predict, allowed, gpus);
    assert_eq!(run_with(bench, task, Mode::Predict, allowed, gpus).status, OpStatus::Ok);
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    bench.forget();
    let done = run_with(bench, task, Mode::Apply, allowed, gpus);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    let settled = bench.snapshot();
    assert_eq!(run_with(bench, task, Mode::Apply, Disruption::Live, gpus).status, OpStatus::Ok);
    assert_eq!(changed(&settled, &bench.snapshot()), Vec::<PathBuf>::new());
    done
}

#[test]
fn versions_are_compared_by_their_numbers() {
    for (found, wanted, is) in [
        ("1.17.8", "1.17.8", true),
        ("1.17.10", "1.17.8", true),
        ("1.9.0", "1.17.8", false),
        ("1.18.0-rc.1", "1.18.0", false),
        ("1.18.0-rc.1", "1.17.8", true),
        ("1.17.8-1", "1.17.8", true),
        ("2", "1.17.8", true),
    ] {
        assert_eq!(is_at_least(found, wanted), is, "{found} {wanted}");
    }
}

#[test]
fn an_old_toolkit_fails_with_the_reason() {
    let bench = bench();
    bench.write("version", "1.16.2");
    let done = run(&bench, &json!({"runtimes": []}), Mode::Predict);
    assert_eq!(
        failure(&done),
        "the container toolkit is 1.16.2, and 1.17.8 or newer is declared: before 1.17.8 a container can become root \
         (CVE-2025-23266); `install: true` installs nvidia-container-toolkit, or a task with `package` before this one"
    );
    // An earlier task brings it.
    let version = Some("1.17.9-1".to_owned());
    bench.overlay.assume([Effect::Package { name: "nvidia-container-toolkit".to_owned(), version }]);
    assert_eq!(run(&bench, &json!({"runtimes": []}), Mode::Predict).status, OpStatus::Ok);
    std::fs::remove_file(bench.path("usr/bin/nvidia-ctk")).unwrap();
    bench.forget();
    let done = run(&bench, &json!({}), Mode::Predict);
    assert!(failure(&done).starts_with("there is no nvidia-ctk on this node; `install: true`"), "{done:?}");
    bench.script("usr/bin/nvidia-ctk", "#!/bin/sh\necho oh no >&2; exit 2\n");
    let done = run(&bench, &json!({}), Mode::Predict);
    assert_eq!(
        done.status,
        OpStatus::Unknown { reason: "nvidia-ctk --version: exit status 2: oh no".to_owned() }
    );
}

#[test]
fn settings_are_merged_and_comments_stay() {
    let bench = bench();
    bench.write(CONFIG, "# ours\n[nvidia-container-cli]\nload-kmods = true # needed\n");
    let task = json!({"runtimes": [], "config": {
        "accept-nvidia-visible-devices-envvar-when-unprivileged": false,
        "nvidia-container-cli": {"load-kmods": false},
    }});
    let done = converges(&bench, &task, Disruption::Live, &gpus);
    assert_eq!(
        shown(&done),
        [
            "/etc/nvidia-container-runtime/config.toml accept-nvidia-visible-devices-envvar-when-unprivileged: nothing -> disabled (live)",
            "/etc/nvidia-container-runtime/config.toml nvidia-container-cli.load-kmods: enabled -> disabled (live)"
        ]
    );
    assert!(bench.read(CONFIG).contains("load-kmods = false # needed\n"), "{}", bench.read(CONFIG));
    assert!(bench.read(CONFIG).contains("# ours\n"));
    bench.write(CONFIG, "a = = 1\n");
    assert!(failure(&run(&bench, &task, Mode::Apply)).contains("it is no valid TOML"));
}

#[test]
fn an_older_docker_gets_its_feature_for_cdi() {
    let bench = bench();
    let task = json!({"runtimes": ["docker"], "cdi": true});
    let dockerd = |version: &str| {
        bench.script(
            "usr/bin/dockerd",
            &format!("#!/bin/sh\n[ $1 = --version ] && echo 'Docker version {version}, build abc'\nexit 0\n"),
        );
    };
    let told = |task: &Value| {
        let done = run(&bench, task, Mode::Predict);
        bench.forget();
        let feature = shown(&done).into_iter().find(|line| line.contains("features.cdi"));
        (feature, done.warnings)
    };
    let sets = Some("/etc/docker/daemon.json features.cdi: nothing -> enabled (live)".to_owned());
    for (version, set) in [("25.0.3", true), ("28.1.1", true), ("28.2.0", false), ("29.3.0", false)] {
        dockerd(version);
        assert_eq!(told(&task).0, sets.clone().filter(|_| set), "{version}");
        assert_eq!(told(&json!({"runtimes": ["docker"]})).0, None, "{version}");
    }
    // Off is said, and no default.
    bench.write("etc/docker/daemon.json", r#"{"features": {"cdi": false, "x": true}}"#);
    assert_eq!(
        told(&task).0.as_deref(),
        Some("/etc/docker/daemon.json features.cdi: disabled -> enabled (live)")
    );
    // With the feature as a flag and in its file it would not start.
    dockerd("27.0.3");
    bench.write("etc/docker/daemon.json", "{}");
    bench.daemon(7, "dockerd", "/usr/bin/dockerd\0--feature\0cdi=true\0");
    assert_eq!(told(&task).0, None);
    std::fs::remove_dir_all(bench.path("proc/7")).unwrap();
    dockerd("24.0.9");
    let (set, warnings) = told(&task);
    assert!(set.is_none() && warnings.iter().any(|one| one.starts_with("Docker is 24.0.9")), "{warnings:?}");
    std::fs::remove_file(bench.path("usr/bin/dockerd")).unwrap();
    let untold = |why: &str| {
        let (set, warnings) = told(&task);
        let is_it =
            |one: &String| one.starts_with("the version of dockerd is not known") && one.contains(why);
        assert!(set.is_none() && warnings.iter().any(is_it), "{warnings:?}");
    };
    untold("because there is none; before 28.2.0 it needs");
    bench.script("usr/bin/dockerd", "#!/bin/sh\n[ $1 = --version ] && exec sleep 600\nexit 0\n");
    untold("its time was up");
}

#[test]
fn docker_gets_the_runtime_beside_its_other_settings() {
    let bench = bench();
    bench.write("etc/docker/daemon.json", r#"{"features": {"x": "kept"}, "bip": "10.0.0.1/24"}"#);
    let task = json!({"runtimes": ["docker"], "default_runtime": true});
    let done = converges(&bench, &task, Disruption::Live, &gpus);
    assert_eq!(done.changes.len(), 3, "{done:?}");
    let file: Value = serde_json::from_str(&bench.read("etc/docker/daemon.json")).unwrap();
    assert_eq!(
        file,
        json!({
            "features": {"x": "kept"}, "bip": "10.0.0.1/24", "default-runtime": "nvidia",
            "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
        })
    );
    let back = json!({"runtimes": ["docker"], "default_runtime": false});
    converges(&bench, &back, Disruption::Live, &gpus);
    // A path that somebody chose stays.
    bench.write(
        "etc/docker/daemon.json",
        r#"{"runtimes": {"nvidia": {"path": "/opt/bin/nvidia-container-runtime"}}}"#,
    );
    assert_eq!(run(&bench, &json!({"runtimes": ["docker"]}), Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn containerd_is_configured_by_the_toolkit_and_restarted_with_a_permit() {
    let bench = bench();
    bench.script("usr/bin/containerd", CONTAINERD);
    bench.write("etc/containerd/config.toml", "version = 2\n");
    bench.write("pid", "1");
    bench.write("proc/stat", "btime 1000000000\n");
    bench.write("proc/1/stat", &format!("1 (containerd) S {}", "0 ".repeat(40)));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let fields: Vec<String> = (0..40)
        .map(|at| if at == 18 { ((now + 60 - 1_000_000_000) * 100).to_string() } else { "0".to_owned() })
        .collect();
    bench.write("proc/2/stat", &format!("2 (containerd) S {}", fields.join(" ")));
    let dump =
        |more: &str| format!("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n{more}");
    bench.write("dump", &dump("default_runtime_name = \"runc\"\n"));
    bench.write(
        "dump.new",
        &dump(
            "default_runtime_name = \"nvidia\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n\
             BinaryName = \"/usr/bin/nvidia-container-runtime\"\n",
        ),
    );
    let task = json!({"default_runtime": true});
    let held = run(&bench, &task, Mode::Apply);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let done = converges(&bench, &task, Disruption::Clients, &gpus);
    assert_eq!(
        shown(&done),
        [
            "/etc/containerd/config.toml runtime nvidia: nothing -> nvidia-container-runtime (clients)",
            "/etc/containerd/config.toml default runtime: nothing -> nvidia (clients)"
        ]
    );
    assert!(done.warnings[0].starts_with("before 2.0, a file of containerd takes the place of"), "{done:?}");
    assert_eq!(
        bench.read("log"),
        "ctk runtime configure --runtime containerd --set-as-default\nrestart containerd.service\n"
    );
    // A run that was cut off before the restart is taken up again.
    bench.write("pid", "1");
    let done = run_with(&bench, &task, Mode::Apply, Disruption::Clients, &gpus);
    assert_eq!(shown(&done), ["containerd.service: with older settings -> restarted (clients)"]);
    let not = run(&bench, &json!({"default_runtime": false}), Mode::Predict);
    assert!(failure(&not).starts_with("containerd gives every container NVIDIA's runtime"), "{not:?}");
}

/// nvidia-ctk 1.18.0 replaces the imports of containerd's file by its own.
#[test]
fn imports_of_others_are_not_given_up() {
    let bench = bench();
    bench.script("usr/bin/containerd", CONTAINERD);
    bench.write("pid", "0");
    bench.write("dump", "version = 2\n");
    bench.write(
        "dump.new",
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n\
         BinaryName = \"/usr/bin/nvidia-container-runtime\"\n",
    );
    let task = json!({"runtimes": ["containerd"]});
    let permitted = |bench: &Bench| run_with(bench, &task, Mode::Apply, Disruption::Clients, &gpus).status;
    let mine = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\", \"/opt/site/*.toml\"]\n";
    bench.write("etc/containerd/config.toml", mine);
    bench.write("version", "1.18.0");
    let before = bench.snapshot();
    for mode in [Mode::Predict, Mode::Apply] {
        assert_eq!(
            failure(&run(&bench, &task, mode)),
            "/etc/containerd/config.toml:2 imports /opt/site/*.toml, and nvidia-ctk 1.18.0 would replace that by its own folder, so that \
             containerd loses those files; `version: 1.18.1` or newer keeps them"
        );
    }
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    bench.write("etc/containerd/config.toml", "version = 2\n");
    assert_eq!(permitted(&bench), OpStatus::Changed);
    let own_folder = "--drop-in-config /etc/containerd/conf.d/99-nvidia.toml";
    assert!(
        bench.read("log").contains(&format!("ctk runtime configure --runtime containerd {own_folder}\n"))
    );
    bench.write("dump", "version = 2\n");
    bench.write("etc/containerd/config.toml", mine);
    bench.write("version", "1.18.1");
    assert_eq!(permitted(&bench), OpStatus::Changed);
    assert!(bench.read("log").contains("--runtime containerd\n"), "{}", bench.read("log"));
}

#[test]
fn containerd_reads_cdi_specifications_where_they_are_declared() {
    const RUNTIME: &str =
        "containerd.runtimes.nvidia.options]\nBinaryName = \"/usr/bin/nvidia-container-runtime\"\n";
    let bench = bench();
    bench.script("usr/bin/containerd", CONTAINERD);
    bench.write("etc/containerd/config.toml", "version = 2\n");
    bench.write("etc/cdi/nvidia.yaml", &spec("GPU-a"));
    bench.write("pid", "0");
    let old = |more: &str| {
        let plugin = "plugins.\"io.containerd.grpc.v1.cri\"";
        format!("version = 2\n[{plugin}]\n{more}[{plugin}.{RUNTIME}")
    };
    let new = |more: &str| {
        let plugin = "plugins.'io.containerd.cri.v1.runtime'";
        format!("version = 3\n[{plugin}]\n{more}[{plugin}.{RUNTIME}")
    };
    let task = json!({"cdi": true, "runtimes": ["containerd"]});
    bench.write("dump", &old("enable_cdi = false\ncdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n"));
    bench.write("dump.new", &old("enable_cdi = true\ncdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n"));
    // Nobody asks for CDI.
    assert_eq!(run(&bench, &json!({"runtimes": ["containerd"]}), Mode::Predict).status, OpStatus::Ok);
    let done = converges(&bench, &task, Disruption::Clients, &gpus);
    assert_eq!(shown(&done), ["/etc/containerd/config.toml enable_cdi: disabled -> enabled (clients)"]);
    assert_eq!(
        bench.read("log"),
        "ctk runtime configure --runtime containerd --cdi.enabled\nrestart containerd.service\n"
    );
    bench.write("pid", "0");
    for dump in [new("enable_cdi = true\n"), new("")] {
        bench.script("usr/bin/containerd", &CONTAINERD.replace("1.7.24", "v2.1.0"));
        bench.write("dump", &dump);
        assert_eq!(run(&bench, &task, Mode::Apply).status, OpStatus::Ok);
    }
    bench.write("dump", &new("enable_cdi = false\n"));
    assert_eq!(run(&bench, &task, Mode::Predict).changes.len(), 1);
    bench.forget();
    bench.write("dump", &new("enable_cdi = true\ncdi_spec_dirs = [\"/opt/cdi\"]\n"));
    assert_eq!(
        failure(&run(&bench, &task, Mode::Predict)),
        "containerd looks for CDI specifications in /opt/cdi, and NVIDIA's is in /etc/cdi: add that to `cdi_spec_dirs` in \
         /etc/containerd/config.toml or a file beside it"
    );
    bench.script("usr/bin/containerd", &CONTAINERD.replace("1.7.24", "1.6.20"));
    bench.write("dump", &old(""));
    let done = run(&bench, &task, Mode::Apply);
    assert!(done.status == OpStatus::Ok && done.warnings[0].contains("knows no CDI"), "{done:?}");
}

#[test]
fn podman_has_to_be_there_and_know_cdi() {
    let bench = bench();
    bench.write("etc/cdi/nvidia.yaml", &spec("GPU-a"));
    let task = json!({"cdi": true, "runtimes": ["podman"]});
    assert!(failure(&run(&bench, &task, Mode::Apply)).contains("the package podman brings it"));
    bench.script("usr/bin/podman", "#!/bin/sh\necho podman version 3.4.4\n");
    assert_eq!(
        failure(&run(&bench, &task, Mode::Apply)),
        "podman is 3.4.4, and knows CDI from 4.1.0 on: update it"
    );
    bench.script("usr/bin/podman", "#!/bin/sh\necho podman version 4.9.3\n");
    assert_eq!(run(&bench, &task, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn a_cri_o_is_read_by_its_files() {
    let bench = bench();
    bench.write("etc/crio/crio.conf", "[crio.runtime]\ndefault_runtime = \"nvidia\"\n");
    bench.write(
        "etc/crio/crio.conf.d/99-nvidia.toml",
        "[crio.runtime.runtimes.nvidia]\nruntime_path = \"/usr/bin/nvidia-container-runtime\"\n",
    );
    let task = json!({"runtimes": ["crio"], "default_runtime": true});
    assert_eq!(run(&bench, &task, Mode::Predict).status, OpStatus::Ok);
    std::fs::remove_file(bench.path("etc/crio/crio.conf.d/99-nvidia.toml")).unwrap();
    assert_eq!(run(&bench, &task, Mode::Predict).changes.len(), 1);
    // It reads CDI specifications by itself, unless somebody has it look elsewhere.
    bench.forget();
    bench.write(
        "etc/crio/crio.conf",
        "[crio.runtime]\ncdi_spec_dirs = [\"/opt/cdi\"]\n[crio.runtime.runtimes.nvidia]\nruntime_path = \"/usr/bin/nvidia-container-runtime\"\n",
    );
    let done = run(&bench, &json!({"runtimes": ["crio"], "cdi": true}), Mode::Predict);
    assert!(failure(&done).starts_with("crio looks for CDI specifications in /opt/cdi"), "{done:?}");
}

#[test]
fn a_cdi_specification_is_made_anew_when_it_is_stale() {
    let bench = bench();
    let task = json!({"runtimes": [], "cdi": true});
    let done = converges(&bench, &task, Disruption::Live, &gpus);
    assert_eq!(
        shown(&done),
        [
            "/etc/cdi/nvidia.yaml CDI specification: there is none -> as the GPUs and the driver are now (live)"
        ]
    );
    assert_eq!(bench.read("etc/cdi/nvidia.yaml"), spec("GPU-a"));
    // MIG was switched on meanwhile.
    let mig = |_: &Deadline| {
        let device = MigDevice { uuid: "MIG-a".to_owned(), gpu_instance: 1, compute_instance: 0 };
        let gpu = GpuDevices { index: 0, uuid: Ok("GPU-a".to_owned()), mig: true, devices: Ok(vec![device]) };
        Ok(Exposed { gpus: vec![gpu], changes: false })
    };
    bench.write("spec.yaml", &spec("MIG-a"));
    let done = converges(&bench, &task, Disruption::Live, &mig);
    assert!(shown(&done)[0].contains("it lacks MIG-a"), "{:?}", shown(&done));
    // What it makes is checked: it may be as stale as before.
    bench.write("spec.yaml", &spec("GPU-z"));
    let done = run(&bench, &task, Mode::Apply);
    assert!(failure(&done).contains("it names what is not there: GPU-z afterwards"), "{done:?}");
    bench.write("spec.yaml", "oh: no\n");
    let done = run(&bench, &task, Mode::Apply);
    assert!(failure(&done).contains("is no specification of NVIDIA's GPUs"), "{done:?}");
}

#[test]
fn the_unit_of_the_toolkit_makes_its_own_file() {
    let bench = bench();
    bench.write("has-unit", "");
    let task = json!({"runtimes": [], "cdi": true});
    converges(&bench, &task, Disruption::Live, &gpus);
    assert_eq!(
        bench.read("log"),
        "reset-failed nvidia-cdi-refresh.service nvidia-cdi-refresh.path\nrestart nvidia-cdi-refresh.service\n"
    );
    assert!(!bench.path("etc/cdi/nvidia.yaml").exists());
    // A stale file of an administrator is a second difference.
    bench.write("etc/cdi/nvidia.yaml", &spec("GPU-old"));
    let done = converges(&bench, &task, Disruption::Live, &gpus);
    assert_eq!(done.changes.len(), 1);
}

#[test]
fn gpus_that_cannot_be_read_are_unknown_and_none_need_nothing() {
    let bench = bench();
    let task = json!({"runtimes": [], "cdi": true});
    let broken = |_: &Deadline| Err(Trouble::io("the GPUs cannot be read: NVML hangs"));
    let done = run_with(&bench, &task, Mode::Predict, Disruption::Live, &broken);
    assert_eq!(done.status, OpStatus::Unknown { reason: "the GPUs cannot be read: NVML hangs".to_owned() });
    let none = |_: &Deadline| Ok(Exposed::default());
    let done = run_with(&bench, &task, Mode::Apply, Disruption::Live, &none);
    assert_eq!((&done.status, done.warnings.len()), (&OpStatus::Ok, 1));
    let changing = |deadline: &Deadline| Ok(Exposed { changes: true, ..gpus(deadline)? });
    let done = run_with(&bench, &task, Mode::Predict, Disruption::Live, &changing);
    assert_eq!(done.status, OpStatus::Possible);
}
