//! Converts calls of `nvidia-smi` and `nvidia-mig-parted` to the state that they set.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::commands::{Suggestion, remark, task};

/// Options that only read, or that format what is read.
const READS: &[&str] = &[
    "-q",
    "--query",
    "-L",
    "--list-gpus",
    "-d",
    "--display",
    "-x",
    "--xml-format",
    "-f",
    "--filename",
    "topo",
    "nvlink",
    "pmon",
    "dmon",
    "daemon",
    "replay",
    "vgpu",
    "--version",
    "-h",
    "--help",
];

/// Returns the states that a call of `nvidia-smi` sets; `None` if it only reads or is not understood.
pub(super) fn nvidia_smi(arguments: &[&str]) -> Option<Vec<Suggestion>> {
    if arguments.first() == Some(&"mig") {
        return mig(arguments.get(1..).unwrap_or_default());
    }
    if arguments.iter().any(|word| READS.contains(word) || word.starts_with("--query-")) {
        return None;
    }
    let mut gpus: Option<Json> = None;
    let mut tasks: Vec<(&str, Json, Option<&str>)> = Vec::new();
    let mut clocks = Map::new();
    let mut remarks = Vec::new();
    let mut words = arguments.iter().copied();
    while let Some(word) = words.next() {
        let (option, attached) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (word, None),
        };
        let mut value = || attached.or_else(|| words.next()).map(|value| value.trim_matches(['"', '\'']));
        match option {
            "-i" | "--id" => gpus = Some(selector(value()?)),
            "-pm" | "--persistence-mode" => {
                let mode = if switch(value()?)? { "daemon" } else { "off" };
                let note = "`daemon` runs nvidia-persistenced; `legacy` sets the flag alone, which a reboot loses";
                tasks.push(("gpu_persistence", json!({"mode": mode}), (mode == "daemon").then_some(note)));
            }
            "-pl" | "--power-limit" => tasks.push(("gpu_power", json!({"limit_watts": number(value()?)?}), None)),
            "-e" | "--ecc-config" => tasks.push((
                "gpu_ecc",
                json!({"mode": if switch(value()?)? { "enabled" } else { "disabled" }}),
                Some("current after the reset or reboot that gpufleet does where it is needed"),
            )),
            "-mig" | "--multi-instance-gpu" => tasks.push((
                "gpu_mig",
                json!({"mode": if switch(value()?)? { "enabled" } else { "disabled" }}),
                Some("add the `layout` that the nodes are to have; gpufleet frees and resets the GPU where it must"),
            )),
            "-c" | "--compute-mode" => {
                let mode = match value()?.to_ascii_lowercase().as_str() {
                    "0" | "default" => "default",
                    "2" | "prohibited" => "prohibited",
                    "1" | "3" | "exclusive_process" | "exclusive_thread" => "exclusive_process",
                    _ => return None,
                };
                tasks.push(("gpu_compute_mode", json!({"mode": mode}), None));
            }
            "-am" | "--accounting-mode" => tasks.push((
                "gpu_accounting",
                json!({"mode": if switch(value()?)? { "enabled" } else { "disabled" }}),
                None,
            )),
            "-lgc" | "--lock-gpu-clocks" => {
                clocks.insert("graphics_mhz".to_owned(), range(value()?)?);
            }
            "-lmc" | "--lock-memory-clocks" => {
                clocks.insert("memory_mhz".to_owned(), range(value()?)?);
            }
            "-ac" | "--applications-clocks" => {
                let (memory, graphics) = value()?.split_once(',')?;
                clocks.insert("graphics_mhz".to_owned(), number(graphics)?);
                clocks.insert("memory_mhz".to_owned(), number(memory)?);
                remarks.push("application clocks are locked clocks here: drivers give the former up");
            }
            "-rgc" | "--reset-gpu-clocks" | "-rmc" | "--reset-memory-clocks" | "-rac" | "--reset-applications-clocks" => {
                clocks.insert("reset".to_owned(), json!(true));
            }
            "-r" | "--gpu-reset" => remarks.push("leave it out: gpufleet resets a GPU where a change needs it, after its drain; `gpu_reset` resets one that needs it for itself"),
            _ => return None,
        }
    }
    if !clocks.is_empty() {
        tasks.push(("gpu_clocks", Json::Object(clocks), None));
    }
    let mut found = Vec::new();
    for (kind, mut parameters, note) in tasks {
        if let (Some(gpus), Some(all)) = (&gpus, parameters.as_object_mut()) {
            all.insert("gpus".to_owned(), gpus.clone());
        }
        let suggestion = task(kind, parameters)?;
        found.push(match note {
            Some(note) => suggestion.noted(note),
            None => suggestion,
        });
    }
    found.extend(remarks.into_iter().map(|text| Suggestion::Remark(text.to_owned())));
    (!found.is_empty()).then_some(found)
}

/// Converts `nvidia-smi mig …`: instances are declared as a layout.
fn mig(arguments: &[&str]) -> Option<Vec<Suggestion>> {
    let mut layout: BTreeMap<String, u32> = BTreeMap::new();
    let mut gpus = None;
    let mut numbered = false;
    let mut destroys = false;
    let mut creates = false;
    let mut words = arguments.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "-i" | "--id" => gpus = Some(selector(words.next()?)),
            "-cgi" | "--create-gpu-instance" => {
                creates = true;
                for profile in words.next()?.split(',') {
                    let name = profile.trim().to_lowercase();
                    numbered |= name.bytes().all(|byte| byte.is_ascii_digit());
                    *layout.entry(name.trim_start_matches("mig ").to_owned()).or_default() += 1;
                }
            }
            "-cci" | "--create-compute-instance" => {
                creates = true;
                let _ = words.clone().next().filter(|next| !next.starts_with('-')).and_then(|_| words.next());
            }
            "-C" | "--default-compute-instance" => {}
            "-gi" | "-ci" => {
                words.next();
            }
            "-dgi" | "-dci" | "--destroy-gpu-instance" | "--destroy-compute-instance" => destroys = true,
            // Options that list profiles and instances, and unknown ones.
            _ => return None,
        }
    }
    if layout.is_empty() || numbered {
        let text = if numbered {
            "declare it with `gpu_mig: {mode: enabled, layout: {PROFILE: COUNT}}`, profiles by name as \
             `nvidia-smi mig -lgip` lists them: a number means another size on another model"
        } else if creates || destroys {
            "leave it out: `gpu_mig` creates and removes the instances that its `layout` asks for"
        } else {
            return None;
        };
        return remark(text).map(|found| vec![found]);
    }
    let mut parameters =
        Map::from_iter([("mode".to_owned(), json!("enabled")), ("layout".to_owned(), json!(layout))]);
    if let Some(gpus) = gpus {
        parameters.insert("gpus".to_owned(), gpus);
    }
    task("gpu_mig", Json::Object(parameters)).map(|found| vec![found])
}

/// Converts `nvidia-mig-parted apply`, whose configuration file names layouts.
pub(super) fn mig_parted(arguments: &[&str]) -> Option<Suggestion> {
    if !matches!(arguments.first(), Some(&"apply" | &"assert")) {
        return None;
    }
    let value = |options: [&str; 2]| {
        arguments.iter().position(|word| options.contains(word)).and_then(|at| arguments.get(at + 1)).copied()
    };
    let config = value(["-c", "--selected-config"]);
    // A name such as `all-1g.10gb` says its layout: as many instances as fit.
    let profile = config.and_then(|name| name.strip_prefix("all-"));
    match (config, profile) {
        (_, Some("disabled")) => task("gpu_mig", json!({"mode": "disabled"})),
        (_, Some("enabled")) => task("gpu_mig", json!({"mode": "enabled"})),
        (_, Some(profile)) => {
            let (slices, _) = profile.split_once('g')?;
            let count = 7 / slices.parse::<u32>().ok().filter(|slices| (1..=7).contains(slices))?;
            let found = task("gpu_mig", json!({"mode": "enabled", "layout": {profile: count}}))?;
            Some(found.noted("as many as fit on a GPU of seven slices; check it against the model"))
        }
        (Some(name), None) => {
            // A file of the node is read from beside the playbook here.
            let file =
                value(["-f", "--config-file"]).and_then(|path| path.rsplit('/').next()).unwrap_or("mig.yaml");
            let found = task("gpu_mig", json!({"config_file": file, "config": name}))?;
            Some(found.noted(format!(
                "put `{file}` of mig-parted beside the playbook: it is read before any node is contacted"
            )))
        }
        (None, None) => None,
    }
}

fn selector(text: &str) -> Json {
    let item = |part: &str| part.parse::<u32>().map_or_else(|_| json!(part), |index| json!(index));
    match text.split(',').collect::<Vec<_>>().as_slice() {
        [one] => item(one),
        many => Json::Array(many.iter().map(|part| item(part)).collect()),
    }
}

fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "enabled" => Some(true),
        "0" | "disabled" => Some(false),
        _ => None,
    }
}

/// Returns a number, or the template in its place.
fn number(text: &str) -> Option<Json> {
    if crate::template::is_template(text) {
        return Some(json!(text));
    }
    // nvidia-smi accepts `-pl 350.00` as 350.
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    whole.parse::<u32>().ok().map(|number| json!(number))
}

fn range(text: &str) -> Option<Json> {
    match text.split_once(',') {
        Some((low, high)) => Some(json!([number(low)?, number(high)?])),
        None => number(text),
    }
}
