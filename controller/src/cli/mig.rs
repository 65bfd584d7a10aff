//! `mig`: profiles, files of mig-parted and layouts, without a node; [`super::mig_fit`] is the one with nodes.

use std::{collections::BTreeMap, fs, path::Path};

use gpufleet::{
    diagnostic::{Diagnostic, Diagnostics},
    display::count,
    visible::{command_line, visible},
};
use gpufleet_mig::{
    Family, LayoutError, device_id, draw, families, find, fit,
    parted::{Board, Config, Devices, Filter, NVIDIA, PartedFile, PciId, Spec},
};
use gpufleet_protocol::mig::Slot;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    args::{Format, MigCheckArgs, MigCommand, MigPlanArgs},
    environment::Environment,
    error::CommandError,
    mig_fit,
    output::Output,
    sources::bounded,
};

/// Largest file, in bytes; a ConfigMap has at most one MiB.
const MOST_BYTES: u64 = 4 << 20;
/// Columns to which a column of a table is padded at most.
const MOST_COLUMNS: usize = 44;

pub fn mig(command: &MigCommand, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    match command {
        MigCommand::Show { gpu: Some(gpu), format } => {
            let family = family(gpu)?;
            tell(output, *format, &family_document(family), || draw::family(family))
        }
        MigCommand::Show { gpu: None, format } => {
            let all: Vec<Value> = families().iter().map(family_document).collect();
            tell(output, *format, &all, list)
        }
        MigCommand::Check(args) => check(args, output),
        MigCommand::Plan(args) => plan(args, output),
        MigCommand::Fit(args) => mig_fit::fit(args, environment, output),
    }
}

pub(super) fn tell(
    output: &Output,
    format: Format,
    document: &impl Serialize,
    screen: impl FnOnce() -> String,
) -> Result<u8, CommandError> {
    output.data(&match format {
        Format::Human | Format::Ansible => screen(),
        Format::Json => gpufleet::visible::json_document(document).map_err(CommandError::internal)?,
        Format::Jsonl => gpufleet::visible::json_line(document).map_err(CommandError::internal)?,
    })?;
    Ok(0)
}

fn family(word: &str) -> Result<&'static Family, CommandError> {
    find(word).map_err(|why| CommandError::user(why).hint("`gpufleet mig show` lists them"))
}

fn list() -> String {
    let mut out = String::new();
    for family in families() {
        let names: Vec<&str> = family.profiles.iter().map(|profile| profile.name.as_str()).collect();
        out.push_str(&format!("{:24}{:11}{}\n", family.key, family.architecture, names.join(" ")));
    }
    out
}

fn family_document(family: &Family) -> Value {
    let profiles: Vec<Value> = family
        .profiles
        .iter()
        .map(|profile| {
            json!({
                "name": profile.name,
                "id": profile.id,
                "compute_slices": profile.slices,
                "max_count": profile.max_count,
                "memory_mib": Some(profile.memory_mib).filter(|mib| *mib > 0),
                "placements": profile.placements.as_ref().map(Vec::as_slice).unwrap_or_default(),
            })
        })
        .collect();
    json!({
        "key": family.key,
        "products": family.products,
        "architecture": family.architecture,
        "memory_slices": family.grid,
        "compute_slices": family.slices,
        "facts": family.quality.to_string(),
        "profiles": profiles,
    })
}

fn read(path: &Path) -> Result<PartedFile, CommandError> {
    let failed =
        |error: std::io::Error| CommandError::user(format!("cannot read {}: {error}", path.display()));
    let bytes = fs::File::open(path).and_then(|file| bounded(file, MOST_BYTES)).map_err(failed)?;
    Ok(PartedFile::of_bytes(&path.display().to_string(), &bytes)?)
}

fn check(args: &MigCheckArgs, output: &Output) -> Result<u8, CommandError> {
    let wanted = args.gpus.iter().map(|word| family(word)).collect::<Result<Vec<_>, _>>()?;
    let file = read(&args.file)?;
    let mut found = Diagnostics::new();
    for config in &file.configs {
        for spec in &config.specs {
            judge(spec, &wanted, &mut found);
        }
        for family in &wanted {
            if !config.specs.iter().any(|spec| spec.families().iter().any(|it| it.key == family.key)) {
                let text = format!("the configuration `{}` has no spec for {}", config.name, family.key);
                found.push(Diagnostic::warning(text).at(&config.span));
            }
        }
    }
    if found.has_errors() {
        return Err(found.into());
    }
    if !found.is_empty() {
        output.diagnostics(&found);
    }
    let document: Vec<Value> = file
        .configs
        .iter()
        .map(|config| json!({ "config": config.name, "specs": config.specs.iter().map(spec_document).collect::<Vec<_>>() }))
        .collect();
    tell(output, args.format, &document, || {
        let mut out = format!("{}: {}\n", args.file.display(), count(file.configs.len(), "configuration"));
        for columns in table(&file) {
            let [name, whom, what, fits] = columns;
            out.push_str(format!("  {name}  {whom}  {what}  {fits}").trim_end());
            out.push('\n');
        }
        out
    })
}

/// Returns a row for each spec: its configuration, its GPUs, what they get and whom that fits. All but the last column are
/// padded.
fn table(file: &PartedFile) -> Vec<[String; 4]> {
    let mut rows = Vec::new();
    for config in &file.configs {
        let mut name = visible(&config.name).into_owned();
        for spec in &config.specs {
            let (fitting, _) = spec.fits();
            let keys: Vec<&str> = fitting.iter().map(|family| family.key.as_str()).collect();
            let fits =
                if spec.instances.is_empty() { String::new() } else { format!("fits {}", keys.join(", ")) };
            rows.push([std::mem::take(&mut name), devices(&spec.devices), layout(spec), fits]);
        }
    }
    for column in 0..3 {
        let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).min(MOST_COLUMNS);
        for row in &mut rows {
            let padded = format!("{:width$}", row[column]);
            row[column] = padded;
        }
    }
    rows
}

/// Adds what is wrong with the filters of a spec.
fn judge_filters(spec: &Spec, found: &mut Diagnostics) {
    let known = |filter: &PciId| families().iter().any(|family| family.device_ids.contains(&filter.device));
    for filter in &spec.filters {
        if filter.device.vendor != NVIDIA {
            let text = format!(
                "{} is no device of NVIDIA: the vendor is 0x{:04X}",
                filter.device, filter.device.vendor
            );
            let error = Diagnostic::error(text).at(&spec.span);
            found.push(error.help("device and vendor are written as in `0x233010DE`"));
        } else if !spec.instances.is_empty() && !known(&filter.device) {
            let text =
                format!("whether it fits {} is not known: gpufleet does not know this GPU", filter.device);
            found.push(Diagnostic::warning(text).at(&spec.span));
        }
    }
}

/// Adds what is wrong with a spec.
fn judge(spec: &Spec, wanted: &[&'static Family], found: &mut Diagnostics) {
    judge_filters(spec, found);
    if spec.instances.is_empty() {
        return;
    }
    let (fitting, others) = spec.fits();
    let told = |family: &Family, why: &LayoutError| {
        Diagnostic::error(format!("it does not fit {}: {why}", family.key)).at(&spec.span)
    };
    if spec.filters.is_empty() && wanted.is_empty() {
        if fitting.is_empty() {
            let text = format!("no GPU that gpufleet knows has room for {}", layout(spec));
            let nearest = others.iter().find(|(_, why)| matches!(why, LayoutError::DoesNotFit { .. }));
            let error = Diagnostic::error(text).at(&spec.span);
            found.push(match nearest {
                Some((family, why)) => error.note(format!("on {}, {why}", family.key)),
                None => error.note("no known GPU has all of these profiles"),
            });
        }
        return;
    }
    // A file says by its filters for which boards a spec is.
    let meant = |family: &Family| wanted.is_empty() || wanted.iter().any(|wanted| wanted.key == family.key);
    for (family, why) in others.iter().filter(|(family, _)| meant(family)) {
        found.push(told(family, why));
    }
}

fn spec_document(spec: &Spec) -> Value {
    let (fitting, _) = spec.fits();
    json!({
        "devices": match &spec.devices {
            Devices::All => json!("all"),
            Devices::Indexes(indexes) => json!(indexes),
        },
        "mig": spec.enabled,
        "instances": spec.instances,
        "fits": fitting.iter().map(|family| family.key.as_str()).collect::<Vec<_>>(),
    })
}

fn devices(devices: &Devices) -> String {
    match devices {
        Devices::All => "all GPUs".to_owned(),
        Devices::Indexes(indexes) if indexes.is_empty() => "no GPU".to_owned(),
        Devices::Indexes(indexes) => format!("GPU {}", indexes_text(indexes)),
    }
}

fn indexes_text(indexes: &[u32]) -> String {
    indexes.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn layout(spec: &Spec) -> String {
    if !spec.enabled {
        return "MIG off".to_owned();
    }
    if spec.instances.is_empty() {
        return "MIG on, no instances".to_owned();
    }
    let parts: Vec<String> = spec.instances.iter().map(|(name, count)| format!("{count}x {name}")).collect();
    parts.join(" + ")
}

/// What a configuration makes of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// No spec is for it.
    Untouched,
    Off,
    /// The places, and the layout in words.
    On(Vec<Slot>, String),
}

fn plan(args: &MigPlanArgs, output: &Output) -> Result<u8, CommandError> {
    let family = family(&args.gpu)?;
    let file = read(&args.file)?;
    let config = chosen(&file, args)?;
    let mut found = Diagnostics::new();
    config.specs.iter().for_each(|spec| judge_filters(spec, &mut found));
    if found.has_errors() {
        return Err(found.into());
    }
    // Boards of a family differ in their ids, and a filter may name some of them.
    let boards = match device_id(&args.gpu) {
        Some(id) => vec![id],
        None => family.device_ids.clone(),
    };
    let mut outcomes: BTreeMap<u32, Outcome> = BTreeMap::new();
    for index in 0..args.gpus {
        outcomes.insert(index, outcome(config, family, &boards, index)?);
    }
    let document: Vec<Value> =
        outcomes.iter().map(|(index, outcome)| gpu_document(family, *index, outcome)).collect();
    let absent = absent(config, args.gpus);
    let document = json!({ "config": config.name, "gpu": family.key, "gpus": document, "absent": absent });
    tell(output, args.format, &document, || screen(config, family, &outcomes, &absent))
}

/// Returns the GPUs that the configuration has specs for and that such a node does not have.
fn absent(config: &Config, gpus: u32) -> Vec<u32> {
    let indexes = |spec: &Spec| match &spec.devices {
        Devices::All => Vec::new(),
        Devices::Indexes(indexes) => indexes.clone(),
    };
    let mut absent: Vec<u32> = config.specs.iter().flat_map(indexes).filter(|index| *index >= gpus).collect();
    absent.sort_unstable();
    absent.dedup();
    absent
}

fn chosen<'a>(file: &'a PartedFile, args: &MigPlanArgs) -> Result<&'a Config, CommandError> {
    let names = || file.names().collect::<Vec<_>>().join(", ");
    let wanted = args.config.as_ref().map(|name| name.to_string_lossy());
    match (wanted, file.configs.as_slice()) {
        (None, [only]) => Ok(only),
        (None, _) => {
            let error = format!("{} has {}", args.file.display(), count(file.configs.len(), "configuration"));
            Err(CommandError::user(error).hint(format!("choose one with --config: {}", names())))
        }
        (Some(name), _) => file.config(&name).ok_or_else(|| {
            let error = CommandError::user(format!("{} has no configuration `{name}`", args.file.display()));
            match gpufleet::diagnostic::suggest(&name, file.names()) {
                Some(close) => error.hint(format!("did you mean `{close}`?")),
                None => error.hint(format!("it has {}", names())),
            }
        }),
    }
}

/// # Errors
/// The layout does not fit, or the boards differ in what they get.
fn outcome(config: &Config, family: &Family, boards: &[u16], index: u32) -> Result<Outcome, CommandError> {
    let board =
        |device: &u16| Board { index, device: PciId { device: *device, vendor: NVIDIA }, subsystem: None };
    let by_subsystem = |spec: &&Spec| {
        let names = |filter: &Filter| filter.subsystem.is_some() && boards.contains(&filter.device.device);
        spec.filters.iter().any(names)
    };
    if let Some(spec) = config.specs.iter().find(by_subsystem) {
        let error = "which spec a GPU gets depends on its subsystem, which only the node tells";
        return Err(Diagnostics::from(Diagnostic::error(error).at(&spec.span)).into());
    }
    let mut outcomes = Vec::new();
    for device in boards {
        let found = match config.spec_for(board(device)) {
            None => Outcome::Untouched,
            Some(spec) if !spec.enabled => Outcome::Off,
            Some(spec) => match fit(family, &spec.instances) {
                Ok(slots) => Outcome::On(slots, layout(spec)),
                Err(why) => {
                    let error = format!("it does not fit {}: {why}", family.key);
                    return Err(Diagnostics::from(Diagnostic::error(error).at(&spec.span)).into());
                }
            },
        };
        outcomes.push((device, found));
    }
    match outcomes.iter().find(|(_, found)| outcomes.first().is_some_and(|(_, first)| first != found)) {
        Some((other, _)) => {
            let first = boards.first().copied().unwrap_or_default();
            let error =
                format!("boards of {} differ in what they get: 0x{first:04x} and 0x{other:04x}", family.key);
            Err(CommandError::user(error).hint("name the board by its PCI device id, as in `--gpu 0x2330`"))
        }
        None => Ok(outcomes.into_iter().next().map_or(Outcome::Untouched, |(_, found)| found)),
    }
}

fn gpu_document(family: &Family, index: u32, outcome: &Outcome) -> Value {
    let name = |id: u32| {
        family.profiles.iter().find(|profile| profile.id == id).map(|profile| profile.name.as_str())
    };
    let instances: Vec<Value> = match outcome {
        Outcome::On(slots, _) => slots
            .iter()
            .map(|slot| {
                json!({
                    "profile": name(slot.profile_id),
                    "start": slot.placement.start,
                    "size": slot.placement.size,
                })
            })
            .collect(),
        Outcome::Off | Outcome::Untouched => Vec::new(),
    };
    let mig = match outcome {
        Outcome::Untouched => Value::Null,
        Outcome::Off => false.into(),
        Outcome::On(..) => true.into(),
    };
    let layout = match outcome {
        Outcome::On(_, layout) => Some(layout),
        _ => None,
    };
    json!({ "index": index, "mig": mig, "layout": layout, "instances": instances })
}

fn screen(config: &Config, family: &Family, outcomes: &BTreeMap<u32, Outcome>, absent: &[u32]) -> String {
    let gpus = outcomes.len();
    let mut out = format!("{} on {gpus}x {}\n", visible(&config.name), family.key);
    let mut alike: Vec<(&Outcome, Vec<u32>)> = Vec::new();
    for (index, outcome) in outcomes {
        match alike.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, indexes)) => indexes.push(*index),
            None => alike.push((outcome, vec![*index])),
        }
    }
    let width = draw::slice_width(family);
    for (outcome, indexes) in alike {
        let gpus = format!("GPU {}", indexes_text(&indexes));
        let what = match outcome {
            Outcome::Untouched => "stays as it is: no spec is for it".to_owned(),
            Outcome::Off => "MIG off".to_owned(),
            Outcome::On(_, layout) => layout.clone(),
        };
        out.push_str(&format!("  {gpus:20}  {what}\n"));
        if let Outcome::On(slots, _) = outcome {
            out.push_str(&format!(
                "  {:20}  {}\n",
                "",
                draw::slots(&family.profiles, family.grid, slots, width)
            ));
        }
    }
    if !absent.is_empty() {
        out.push_str(&format!(
            "  warning: its specs for GPU {} do nothing on a node with {}\n",
            indexes_text(absent),
            count(gpus, "GPU")
        ));
    }
    let show = command_line(["gpufleet", "mig", "show", &family.key]);
    out.push_str(&format!(
        "Places are those of empty GPUs; a run keeps instances that can stay. Profiles: {show}\n"
    ));
    out
}
