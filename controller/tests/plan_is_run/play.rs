//! A random play: tasks of all kinds, each target declared once, and perhaps a reboot.

use serde_json::{Value, json};

use crate::{
    node::{DCGM, DISPLAY, MODULES, MOUNTS, ONCE, PARAMETERS, UNITS},
    random::Random,
};

const KEY: &str = include_str!("../../../node-helper/src/tasks/keys/testdata/tests.asc");
const KEY_ID: &str = "F7D241EB974ADA98";

/// Files beside the playbook.
pub const FILES: [(&str, &str); 2] =
    [("motd.txt", "Ask before you reboot.\n"), ("gpu.conf.j2", "name = {{ inventory_hostname }}\n")];

pub struct Play {
    pub text: String,
    /// The task that reboots every time.
    pub reboots_always: Option<String>,
    /// Whether the node keeps what it declares of GPUs.
    pub keeps: bool,
}

/// Adds tasks that let the node keep the state of its GPUs, and returns a key of the play that does.
fn keep(random: &mut Random, tasks: &mut Vec<Value>) -> Option<&'static str> {
    // Not a reset, which is an act: before the first declaration `gpu_keep` has nothing to keep, and says so.
    let declares = |key: &String| key.starts_with("gpu_") && key != "gpu_reset";
    let is_gpu = |task: &Value| task.as_object().is_some_and(|task| task.keys().any(declares));
    let last = tasks.iter().rposition(is_gpu)?;
    let rest = tasks.len() - last;
    match random.below(10) {
        0 => {
            let at = last + 1 + random.below(rest);
            tasks.insert(at, json!({"gpu_keep": {}}));
            Some("")
        }
        // What comes behind the first one changes what is kept.
        1 => {
            let first = tasks.iter().position(is_gpu)?;
            tasks.insert(first + 1, json!({"gpu_keep": {"on_failure": "hold", "hold": ["slurmd.service"]}}));
            tasks.push(json!({"gpu_keep": {}}));
            Some("")
        }
        2 => {
            let first = tasks.iter().position(is_gpu)?;
            tasks.insert(first + 1, json!({"gpu_keep": {}}));
            Some("")
        }
        3..6 => Some("  keep: true\n"),
        _ => None,
    }
}

fn service(random: &mut Random, name: &str) -> Value {
    let mut task = json!({"name": name});
    let enabled = random.one(&["", "yes", "no"]);
    let states: &[&str] =
        if enabled.is_empty() { &["started", "stopped"] } else { &["", "started", "stopped"] };
    let state = random.one(states);
    if !state.is_empty() {
        task["state"] = json!(state);
    }
    if !enabled.is_empty() {
        task["enabled"] = json!(enabled == "yes");
    }
    // Always if something is declared for it: a masked unit can neither run nor be enabled.
    if state == "started" || enabled == "yes" || random.chance(30) {
        task["masked"] = json!(false);
    } else if random.chance(15) {
        task = json!({"name": name, "masked": true, "state": "stopped"});
    }
    json!({"service": task})
}

fn mount(random: &mut Random, path: &str) -> Value {
    let state = random.one(&["mounted", "present", "unmounted", "absent", "mounted"]);
    json!({"mount": {"path": path, "src": "tmpfs", "fstype": "tmpfs", "state": state}})
}

fn module(random: &mut Random, name: &str) -> Value {
    let (state, persistent) = random.one(&[
        ("present", "present"),
        ("present", "disabled"),
        ("absent", "disabled"),
        ("absent", "absent"),
    ]);
    json!({"modprobe": {"name": name, "state": state, "persistent": persistent}})
}

fn gpu_tasks(random: &mut Random) -> Vec<Value> {
    let mut all = Vec::new();
    let mig = random.chance(50);
    if random.chance(60) {
        all.push(json!({"gpu_ecc": {"mode": random.one(&["enabled", "disabled"])}}));
    }
    if mig {
        all.push(random.one(&[
            json!({"gpu_mig": {"mode": "disabled"}}),
            json!({"gpu_mig": {"mode": "enabled"}}),
            json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}}}),
            json!({"gpu_mig": {"mode": "enabled", "layout": {"1g.10gb": 7}, "strategy": "rebuild"}}),
        ]));
    }
    if random.chance(50) {
        all.push(json!({"gpu_power": {"limit_watts": random.one(&[500, 350])}}));
    }
    if random.chance(40) {
        all.push(json!({"gpu_clocks": {"graphics_mhz": [1200, 1980]}}));
    }
    if random.chance(30) {
        let mode = if mig { "default" } else { "exclusive_process" };
        all.push(json!({"gpu_compute_mode": {"mode": mode}}));
    }
    if random.chance(30) {
        all.push(random.one(&[
            json!({"gpu_mps": {"state": "started", "default_active_thread_percentage": 50}}),
            json!({"gpu_mps": {"state": "started"}}),
            json!({"gpu_mps": {"state": "stopped"}}),
        ]));
    }
    if random.chance(80) {
        all.push(json!({"gpu_persistence": {"mode": random.one(&["daemon", "daemon", "legacy"])}}));
    }
    // Why a copy: the numbers of everything else stay what they were.
    let mut more = random.clone();
    if more.chance(20)
        && let Some(task) = all.iter_mut().find(|task| task.get("gpu_mig").is_some())
    {
        *task = more.one(&[
            json!({"gpu_mig": {"mode": "enabled", "layout": {"1c.3g.40gb": 3, "3g.40gb": 1}}}),
            json!({"gpu_mig": {"mode": "enabled", "layout": {"2c.3g.40gb": 1, "1c.3g.40gb": 1}}}),
        ]);
    }
    if more.chance(25) && !mig {
        all.push(json!({"gpu_accounting": {"mode": more.one(&["enabled", "enabled", "disabled"])}}));
    }
    if more.chance(25) {
        all.push(json!({"gpu_reset": {"when": "required"}}));
    }
    all
}

impl Play {
    pub fn new(random: &mut Random) -> Self {
        let mut tasks: Vec<Value> = Vec::new();
        // Not DCGM: stopped after tasks for GPUs without persistence, it takes the declared values with it, which a run
        // notices only when it reads them again.
        for unit in UNITS.into_iter().filter(|unit| ![DCGM, ONCE].contains(unit)) {
            if random.chance(60) {
                tasks.push(service(random, unit));
            }
        }
        for (name, _) in PARAMETERS {
            if random.chance(50) {
                let value = random.one(&["10", "0"]);
                tasks.push(json!({"sysctl": {"name": name, "value": value}}));
            }
        }
        for name in MODULES {
            if random.chance(40) {
                tasks.push(module(random, name));
            }
        }
        if random.chance(15) {
            tasks.push(json!({"modprobe": {"name": DISPLAY, "state": "absent"}}));
        }
        for path in MOUNTS {
            if random.chance(40) {
                tasks.push(mount(random, path));
            }
        }
        let others = [
            json!({"hostname": {"name": "gpu001"}}),
            json!({"kernel_cmdline": {"add": ["iommu=pt"]}}),
            json!({"kernel_cmdline": {"remove": ["nouveau.modeset"]}}),
            json!({"file": {"path": "/srv/left", "state": "absent"}}),
            json!({"file": {"path": "/srv/made", "state": "directory", "mode": "0750"}}),
            json!({"file": {"path": "/run/gpu", "state": "directory", "mode": "0755"}}),
            json!({"lineinfile": {"path": "/etc/limits.conf", "regexp": "soft memlock", "line": "* soft memlock unlimited"}}),
            json!({"blockinfile": {"path": "/etc/block.conf", "block": "one\ntwo"}}),
            json!({"replace": {"path": "/etc/block.conf", "regexp": "hard memlock unlimited", "replace": "hard memlock 64"}}),
            json!({"cron": {"name": "scrub", "job": "/bin/scrub", "cron_file": "scrub", "user": "me"}}),
        ];
        for task in others {
            if random.chance(35) {
                tasks.push(task);
            }
        }
        let rarer = [
            json!({"copy": {"content": "one\n", "dest": "/etc/one.conf", "mode": "0640"}}),
            json!({"copy": {"src": "motd.txt", "dest": "/etc/motd"}, "notify": "stamp"}),
            json!({"template": {"src": "gpu.conf.j2", "dest": "/etc/gpu.conf"}, "notify": "stamp"}),
            json!({"command": {"cmd": "ROOT/usr/bin/stamp /srv/stamped", "creates": "/srv/stamped"}}),
            json!({"shell": {"cmd": "ROOT/usr/bin/stamp /srv/shelled", "creates": "/srv/shelled"}}),
            json!({"service": {"name": ONCE, "enabled": random.chance(50)}}),
            json!({"group": {"name": "gpu", "gid": 2000}}),
            json!({"user": {"name": "trainer", "uid": 2001, "groups": ["video"], "append": true, "create_home": false}}),
            json!({"apt": {"name": "chrony-doc", "state": random.one(&["present", "absent"])}}),
        ];
        let mut gpus = gpu_tasks(random);
        let has = |gpus: &[Value], kind: &str| gpus.iter().any(|task| task.get(kind).is_some());
        let kept = has(&gpus, "gpu_persistence");
        for task in rarer {
            // After a command, a value that persistence does not keep is no failure at the end.
            let acts = ["command", "shell", "notify"].iter().any(|key| task.get(key).is_some());
            if (kept || !acts) && random.chance(12) {
                tasks.push(task);
            }
        }
        random.shuffle(&mut gpus);
        // Only with persistence, and in one group: the record of a lock outlives a moment without persistence, so that
        // a run trusts a lock that a plan makes again.
        if !kept {
            gpus.retain(|task| task.get("gpu_clocks").is_none());
        }
        if has(&gpus, "gpu_clocks") || random.chance(60) {
            random.shuffle(&mut tasks);
            let at = random.below(tasks.len() + 1);
            let rest = tasks.split_off(at);
            tasks.append(&mut gpus);
            tasks.extend(rest);
        } else {
            tasks.append(&mut gpus);
            random.shuffle(&mut tasks);
            // First: a value set before it is forgotten, without a message once persistence is on.
            let first = tasks.iter().position(|task| {
                task.as_object().is_some_and(|task| task.keys().any(|key| key.starts_with("gpu_")))
            });
            let persistence = tasks.iter().position(|task| task.get("gpu_persistence").is_some());
            if let (Some(first), Some(persistence)) = (first, persistence) {
                tasks.swap(first, persistence);
            }
        }
        // First: otherwise, what a GPU group leaves to a reboot would be taken for an effect of a command in between.
        tasks.sort_by_key(|task| task.get("command").is_none() && task.get("shell").is_none());
        let mut reboots_always = None;
        if random.chance(70) {
            let always = random.chance(35);
            let when = if always { "always" } else { "required" };
            let from = tasks.len() / 2;
            let at = from + random.below(tasks.len() - from + 1);
            reboots_always = always.then_some(at);
            tasks.insert(at, json!({"reboot": {"when": when}}));
            // What was declared before may be declared again.
            let again: Vec<Value> = tasks.iter().take(at).filter(|_| random.chance(15)).cloned().collect();
            tasks.extend(again);
        }
        // At the ends, because nothing may come between the tasks of a GPU group.
        if random.chance(30) {
            tasks.insert(0, json!({"thp": {"enabled": "madvise"}}));
            reboots_always = reboots_always.map(|at| at + 1);
        }
        if random.chance(30) {
            tasks.push(json!({"thp": {"khugepaged": {"defrag": false}}}));
        }
        // Where packages come from. One of them before the packages, whose changes are possible then.
        let source = |random: &mut Random| {
            let state = random.one(&["present", "absent"]);
            json!({"apt_repository": {"repo": "deb http://repo.example x main", "state": state}})
        };
        if random.chance(15) {
            tasks.insert(0, source(random));
            reboots_always = reboots_always.map(|at| at + 1);
        } else if random.chance(30) {
            tasks.push(source(random));
        }
        let state = random.one(&["present", "absent"]);
        for task in [
            json!({"deb822_repository": {"name": "cuda", "uris": "https://repo.example/cuda", "suites": "/", "state": state}}),
            json!({"yum_repository": {"name": "cuda", "description": "CUDA", "baseurl": "https://repo.example/el9", "state": state}}),
            json!({"apt_key": {"data": KEY, "id": KEY_ID, "state": state}}),
            json!({"kernel_blacklist": {"name": "nouveau", "state": state}}),
            json!({"dpkg_selections": {"name": "hello", "selection": random.one(&["hold", "install"])}}),
        ] {
            if random.chance(20) {
                tasks.push(task);
            }
        }
        let always = reboots_always.and_then(|at| tasks.get(at).cloned());
        let keeps = keep(&mut random.clone(), &mut tasks);
        let at = always.and_then(|always| tasks.iter().position(|task| *task == always));
        let reboots_always = at.map(|at| format!("t{at}"));
        let (key, keeps) = (keeps.unwrap_or_default(), keeps.is_some());
        let mut text = format!("- hosts: all\n  gather_facts: false\n{key}  tasks:\n");
        for (at, mut task) in tasks.into_iter().enumerate() {
            task["name"] = json!(format!("t{at}"));
            text.push_str(&format!("    - {task}\n"));
        }
        text.push_str("  handlers:\n    - {name: stamp, command: ROOT/usr/bin/stamp /srv/handled}\n");
        Self { text, reboots_always, keeps }
    }
}
