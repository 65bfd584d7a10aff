//! From the command line to inventory, variables and program.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use gpufleet::{
    diagnostic::SourceFile,
    event::NodeState,
    inventory::{Inventory, LoadOptions, given_vars},
    journal::{RunDir, read_events, resolve_run},
    playbook::{self, Reader, too_large},
    report::RunModel,
    settings,
    vault::{self, Keyring},
};
use serde_json::{Map, Value};

use super::{
    args::InventorySource,
    environment::Environment,
    error::CommandError,
    output::Output,
    trust::{self, Trust},
    vault_passwords,
};

/// Where an inventory is looked for when none is named.
const DEFAULTS: [&str; 2] = ["inventory", "/etc/gpufleet/inventory"];

/// What besides its sources an inventory hangs on.
#[derive(Default)]
pub struct Around {
    pub playbook_dir: Option<PathBuf>,
    /// Whether that folder is a default.
    pub implied: bool,
    pub extra_vars: Map<String, Value>,
    pub keyring: Arc<Keyring>,
    /// Whether no source is needed, since only this machine is asked for.
    pub only_here: bool,
}

/// The inventory that a pattern of the command line selects from, and the variables in `given`, which is `-e`.
pub fn inventory(
    source: &InventorySource,
    pattern: &str,
    playbook_dir: Option<PathBuf>,
    given: &[String],
    environment: &Environment,
    output: &Output,
) -> Result<(Inventory, Map<String, Value>), CommandError> {
    let keyring = vault_passwords::keyring(&source.vault, environment)?;
    let only_here = only_here(source, [pattern], output);
    let extra_vars = extra_vars(given, &keyring)?;
    warn_of_others(source, playbook_dir.as_deref(), &[], environment, output);
    let around =
        Around { playbook_dir, extra_vars: extra_vars.clone(), keyring, only_here, ..Around::default() };
    let inventory = inventory_in(source, around, environment)?;
    output.diagnostics(&inventory.suspects());
    output.diagnostics(&inventory.positions(&[(pattern, None)], limit(source, environment)?.as_deref()));
    Ok((inventory, extra_vars))
}

/// Warns where other users of this machine could change what decides about a run: inventories, variable files, and the
/// playbooks and roles in `read`.
pub fn warn_of_others(
    source: &InventorySource,
    playbook_dir: Option<&Path>,
    read: &[Arc<SourceFile>],
    environment: &Environment,
    output: &Output,
) {
    let mut files: Vec<PathBuf> = Vec::new();
    for source in named(source, environment) {
        files.extend(trust::inventory_files(Path::new(&source)));
    }
    if let Some(folder) = playbook_dir {
        trust::variable_files(folder, &mut files);
    }
    files.extend(read.iter().map(|file| PathBuf::from(file.name())));
    let mut trust = Trust::of_this_process();
    if let Some(text) = trust::warning(&mut trust, files.iter().map(PathBuf::as_path)) {
        output.warning(&text);
    }
}

/// The sources that the command line names, or where an inventory is looked for.
pub fn named(source: &InventorySource, environment: &Environment) -> Vec<String> {
    // Why here: behind `=`, or in quotes, a shell leaves these signs as they are.
    let path_of = |source: &String| match source.contains(',') {
        true => source.clone(),
        false => settings::expanded(source, environment.home.as_deref(), &environment.settings),
    };
    match source.inventory.as_slice() {
        [] => DEFAULTS
            .into_iter()
            .find(|path| Path::new(path).exists())
            .map(str::to_owned)
            .into_iter()
            .collect(),
        given => given.iter().map(path_of).collect(),
    }
}

/// Whether there is no inventory and none is needed, since all patterns are names of this machine; says so, as Ansible
/// does.
pub fn only_here<'a>(
    source: &InventorySource,
    patterns: impl IntoIterator<Item = &'a str>,
    output: &Output,
) -> bool {
    let only_here = !has_inventory(source) && patterns.into_iter().all(Inventory::is_this_machine);
    if only_here {
        output.warning("no inventory was given: the only host is this machine");
    }
    only_here
}

/// Whether there is any inventory: named, or where one is looked for.
pub fn has_inventory(source: &InventorySource) -> bool {
    !source.inventory.is_empty() || DEFAULTS.into_iter().any(|path| Path::new(path).exists())
}

pub fn inventory_in(
    source: &InventorySource,
    around: Around,
    environment: &Environment,
) -> Result<Inventory, CommandError> {
    let sources = named(source, environment);
    if sources.is_empty() && !around.only_here {
        return Err(CommandError::user("no inventory was given")
            .hint("name one with -i: a file, a folder, or `host1,host2,`"));
    }
    let options = LoadOptions {
        sources,
        playbook_dir: around.playbook_dir,
        playbook_dir_implied: around.implied,
        extra_vars: around.extra_vars,
        allow_empty: source.allow_empty || around.only_here,
        script_timeout: Duration::from_secs(source.script_timeout_s()),
        skip_scripts: false,
        keyring: around.keyring,
    };
    Ok(Inventory::load(&options)?)
}

/// `--limit`, where `@RUN:failed` stands for the hosts that a run left in trouble.
pub fn limit(source: &InventorySource, environment: &Environment) -> Result<Option<String>, CommandError> {
    let Some(limit) = &source.limit else { return Ok(None) };
    let named = limit.strip_prefix('@').and_then(|rest| rest.rsplit_once(':'));
    let Some((run, which)) = named.filter(|(run, _)| !Path::new(run).exists()) else {
        return Ok(Some(limit.clone()));
    };
    let run = resolve_run(&environment.state_dir, run)?;
    let model = RunModel::of(&read_events(&RunDir::new(&environment.state_dir, &run).journal())?);
    let wanted = |state: NodeState| match which {
        "failed" => matches!(
            state,
            NodeState::Failed
                | NodeState::Held
                | NodeState::Unreachable
                | NodeState::Unknown
                | NodeState::Skipped
        ),
        other => state.as_str() == other,
    };
    let hosts: Vec<&str> =
        model.nodes().iter().filter(|node| wanted(node.state)).map(|node| node.name.as_str()).collect();
    if hosts.is_empty() {
        return Err(CommandError::user(format!("run {run} has no host that is `{which}`")));
    }
    Ok(Some(hosts.join(",")))
}

/// A playbook, a file of tasks or of variables, in bytes.
const MOST_TEXT: u64 = 64 << 20;

/// What can be read of something, which may have no end.
pub(super) fn bounded(file: fs::File, most: u64) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    if file.metadata().is_ok_and(|found| found.is_file() && found.len() > most) {
        return Err(too_large(most));
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large(most)) } else { Ok(bytes) }
}

/// The files of this machine, for playbooks and what they name.
pub struct Disk;

impl Reader for Disk {
    // Why not regular files only: a shell hands `<(program)` over as a pipe.
    fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
        bounded(fs::File::open(path)?, MOST_TEXT)
    }

    fn read_regular(&self, path: &str, most: u64) -> std::io::Result<Vec<u8>> {
        use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
        // Why: a named pipe without a writer would never open.
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let kind = file.metadata()?.file_type();
        let other = match () {
            () if kind.is_fifo() => "a named pipe",
            () if kind.is_char_device() || kind.is_block_device() => "a device",
            () if kind.is_socket() => "a socket",
            () => return bounded(file, most),
        };
        Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            format!("it is {other}, and no regular file"),
        ))
    }

    fn list(&self, folder: &str) -> std::io::Result<Vec<String>> {
        let folder = if folder.is_empty() { "." } else { folder };
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Why the path: what a link leads to counts.
            names.push(if entry.path().is_dir() { format!("{name}/") } else { name });
        }
        names.sort();
        Ok(names)
    }

    fn link(&self, path: &str) -> Option<String> {
        fs::read_link(path).ok().map(|target| target.to_string_lossy().into_owned())
    }

    fn mode(&self, path: &str) -> Option<u32> {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(path).ok().map(|meta| meta.mode() & 0o7777)
    }
}

/// `-e`, later ones win; what is encrypted in them is decrypted and marked.
pub fn extra_vars(given: &[String], keyring: &Keyring) -> Result<Map<String, Value>, CommandError> {
    let mut all = Map::new();
    for text in given {
        let vars = match text.strip_prefix('@') {
            Some(file) => {
                let content = fs::read(file)
                    .map_err(|e| CommandError::user(format!("cannot read the variables in {file}: {e}")))?;
                given_vars(&vault::decode(file, &content)?, keyring)?
            }
            None if text.trim_start().starts_with('{') => {
                given_vars(&SourceFile::new("--extra-vars", text.clone()), keyring)?
            }
            None => assignments(text)?,
        };
        all.extend(vars);
    }
    Ok(all)
}

/// `a=1 b='two words'`: the values are text, as Ansible takes them.
fn assignments(text: &str) -> Result<Map<String, Value>, CommandError> {
    let wrong = || {
        CommandError::user(format!("`-e {text}` gives no variable"))
            .hint("write `-e name=value`, `-e '{\"name\": [1, 2]}'` or `-e @file.yaml`")
    };
    let pairs = playbook::key_values(text).ok_or_else(wrong)?;
    let map: Map<String, Value> =
        pairs.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
    if map.is_empty() { Err(wrong()) } else { Ok(map) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_template_looks_into_is_a_file_with_an_end() {
        use gpufleet::interpreter::CachedFiles;
        use gpufleet::template::Outside as _;

        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            file("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        fs::write(file("small"), "text").unwrap();
        fs::File::create(file("large")).unwrap().set_len((16 << 20) + 1).unwrap();
        let files = CachedFiles::new(Disk);
        let said = |path: &str| files.content(path).map(|found| found.map(|found| found.bytes.len()));
        assert_eq!(said(&file("small")), Ok(Some(4)));
        assert_eq!(said(&file("none")), Ok(None));
        let refused = [
            ("/dev/zero".to_owned(), "it is a device, and no regular file"),
            (file("pipe"), "it is a named pipe, and no regular file"),
            (file("large"), "it has more than 16 MiB"),
        ];
        for (path, why) in refused {
            assert_eq!(said(&path), Err(format!("cannot read {path}: {why}")));
        }
        let error = Disk.read("/dev/zero").unwrap_err();
        assert_eq!(error.to_string(), "it has more than 64 MiB");
    }

    #[test]
    fn extra_variables_are_read_as_ansible_reads_them() {
        let given = [
            "a=1 b='two words' d={\"e\":1} t={{ a ~ 'x' }}".to_owned(),
            r#"{"c": [1, 2], "a": 3}"#.to_owned(),
        ];
        let vars = Value::Object(extra_vars(&given, &Keyring::default()).unwrap());
        let wanted = serde_json::json!({
            "a": 3, "b": "two words", "c": [1, 2], "d": "{\"e\":1}", "t": "{{ a ~ 'x' }}"
        });
        assert_eq!(vars, wanted);
        assert!(extra_vars(&["a='open".to_owned()], &Keyring::default()).is_err());
        assert!(extra_vars(&["nothing".to_owned()], &Keyring::default()).is_err());
    }
}
