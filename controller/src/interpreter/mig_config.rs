//! `gpu_mig` with a `config_file`: files of mig-parted, which are read here and never on a node.

use gpufleet_mig::parted::{Config, Devices, PartedFile, PciId as Id};
use gpufleet_protocol::op::GpuTask;
use gpufleet_protocol::tasks::{GpuMig, MigConfigFile, MigFilter, MigSpec, PciId};

use super::check_files::{NO_FILE, not_there};
use super::files::{FileContent, FileKind, Files};
use super::prepare::{Stop, Surroundings, fail};
use crate::diagnostic::{Diagnostic, Diagnostics, did_you_mean};
use crate::playbook::{Parameter, Task};
use crate::template::is_template;

impl Surroundings<'_> {
    /// A GPU task as its node wants it.
    pub(super) fn gpu(&self, task: &GpuTask) -> Result<GpuTask, Stop> {
        let GpuTask::GpuMig(GpuMig { config_file: Some(MigConfigFile::Path(path)), .. }) = task else {
            return Ok(task.clone());
        };
        let content = self.file(FileKind::File, path)?;
        let file = read(&content).map_err(|errors| fail(in_one_line(&errors)))?;
        let GpuTask::GpuMig(mig) = task else { return Ok(task.clone()) };
        let config = chosen(&file, &content.path, mig.config.as_deref()).map_err(|wrong| {
            let help = wrong.help.map(|help| format!("; {help}")).unwrap_or_default();
            fail(format!("{}{help}", wrong.message))
        })?;
        let read = MigConfigFile::Read { path: path.clone(), specs: specs(config) };
        let name = Some(config.name.clone());
        Ok(GpuTask::GpuMig(GpuMig { config_file: Some(read), config: name, ..mig.clone() }))
    }
}

fn read(content: &FileContent) -> Result<PartedFile, Diagnostics> {
    PartedFile::of_bytes(&content.path, &content.bytes)
}

/// The first mistake with its place, and how many more there are.
fn in_one_line(errors: &Diagnostics) -> String {
    let Some(first) = errors.iter().next() else { return "the file cannot be read".to_owned() };
    let place = first.span.as_ref().map(|span| format!("{span}: ")).unwrap_or_default();
    match errors.iter().count() {
        1 => format!("{place}{}", first.message),
        count => format!("{place}{} (and {} more mistakes)", first.message, count - 1),
    }
}

struct Wrong {
    message: String,
    help: Option<String>,
}

/// The configuration that a task names; the only one where it names none.
fn chosen<'f>(file: &'f PartedFile, path: &str, name: Option<&str>) -> Result<&'f Config, Wrong> {
    let names = || file.names().collect::<Vec<_>>().join(", ");
    match (name, file.configs.as_slice()) {
        (None, [only]) => Ok(only),
        (None, _) => Err(Wrong {
            message: format!("{path} has several configurations, and `config` says none"),
            help: Some(format!("name one of {}", names())),
        }),
        (Some(name), _) => file.config(name).ok_or_else(|| Wrong {
            message: format!("{path} has no configuration `{name}`"),
            help: Some(did_you_mean(name, file.names()).unwrap_or_else(|| format!("it has {}", names()))),
        }),
    }
}

fn specs(config: &Config) -> Vec<MigSpec> {
    let id = |id: Id| PciId { device: id.device, vendor: id.vendor };
    config
        .specs
        .iter()
        .map(|spec| MigSpec {
            devices: match &spec.devices {
                Devices::All => None,
                Devices::Indexes(indexes) => Some(indexes.clone()),
            },
            filters: spec
                .filters
                .iter()
                .map(|one| MigFilter { device: id(one.device), subsystem: one.subsystem.map(id) })
                .collect(),
            enabled: spec.enabled,
            instances: spec.instances.clone(),
        })
        .collect()
}

/// What is wrong with the file that a task names, as far as that is known before the run.
pub(super) fn check(task: &Task, files: &dyn Files) -> Diagnostics {
    let mut errors = Diagnostics::new();
    let literal = |name: &str| -> Option<(&str, &Parameter)> {
        let entry = task.params.get(name)?;
        entry.value.as_str().filter(|text| !is_template(text) && !text.is_empty()).map(|text| (text, entry))
    };
    let Some((path, at)) = literal("config_file") else { return errors };
    let content = match files.read(FileKind::File, &task.search, path) {
        Ok(content) => content,
        Err(message) if message.starts_with(NO_FILE) => return not_there(&message, at).into(),
        // A vault without its password is told where the file is used.
        Err(_) => return errors,
    };
    let Some(file) = errors.absorb(read(&content).map_err(|errors| match content.secret {
        true => Diagnostics(errors.into_iter().map(Diagnostic::without_excerpt).collect()),
        false => errors,
    })) else {
        return errors;
    };
    let (name, at) = match (task.params.get("config"), literal("config")) {
        (Some(_), None) => return errors,
        (_, Some((name, entry))) => (Some(name), entry),
        (None, None) => (None, at),
    };
    if let Err(wrong) = chosen(&file, &content.path, name) {
        let error = Diagnostic::error(wrong.message).at(&at.span);
        errors.push(match wrong.help {
            Some(help) => error.help(help),
            None => error,
        });
    }
    errors
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::check_files::check_files;
    use super::super::files::CachedFiles;
    use crate::playbook::Program;

    const MIG: &str = "version: v1\nmig-configs:\n  none: [{devices: all, mig-enabled: false}]\n  \
                       halves:\n    - {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}\n";

    fn told(task: &str, mig: &str) -> String {
        let play = format!("- hosts: all\n  tasks:\n    - gpu_mig: {task}\n");
        let files: HashMap<String, String> =
            [("play.yml".to_owned(), play), ("files/mig.yaml".to_owned(), mig.to_owned())].into();
        match Program::load(&["play.yml"], &files) {
            Ok(program) => check_files(&program, &CachedFiles::new(files)).to_string(),
            Err(errors) => errors.to_string(),
        }
    }

    #[test]
    fn a_file_of_mig_parted_is_read_before_any_node_is_contacted() {
        assert_eq!(told("{config_file: mig.yaml, config: halves}", MIG), "");
        assert_eq!(told("{config_file: mig.yaml, config: '{{ layout }}'}", MIG), "");
        assert_eq!(told("{config_file: '{{ file }}', config: a}", MIG), "");
        insta::assert_snapshot!(told("{config_file: mig.yaml, config: halvs}", MIG), @r"
        error: files/mig.yaml has no configuration `halvs`
          --> play.yml:3:48
           |
         3 |     - gpu_mig: {config_file: mig.yaml, config: halvs}
           |                                                ^^^^^
        help: did you mean `halves`?
        ");
        insta::assert_snapshot!(told("{config_file: mig.yaml}", MIG), @r"
        error: files/mig.yaml has several configurations, and `config` says none
          --> play.yml:3:30
           |
         3 |     - gpu_mig: {config_file: mig.yaml}
           |                              ^^^^^^^^
        help: name one of none, halves
        ");
        insta::assert_snapshot!(told("{config_file: gone.yaml, config: a}", MIG), @r"
        error: there is no file `gone.yaml`
          --> play.yml:3:30
           |
         3 |     - gpu_mig: {config_file: gone.yaml, config: a}
           |                              ^^^^^^^^^
        note: looked for files/gone.yaml and gone.yaml
        ");
        insta::assert_snapshot!(told("{config_file: mig.yaml, config: none}", &MIG.replace("[0]", "some")), @r"
        error: `devices` wants `all`, or a list of the indexes of GPUs
          --> files/mig.yaml:5:17
           |
         5 |     - {devices: some, mig-enabled: true, mig-devices: {3g.40gb: 2}}
           |                 ^^^^
        ");
    }

    #[test]
    fn a_file_leaves_nothing_else_to_say() {
        for (task, says) in [
            ("{config_file: mig.yaml, config: none, mode: enabled}", "`mode` beside it is one too many"),
            (
                "{config_file: mig.yaml, config: none, layout: {3g.40gb: 2}}",
                "`layout` beside it is one too many",
            ),
            ("{config: none, mode: enabled}", "`config` is one of a `config_file`"),
            ("{config_file: {path: a, specs: []}}", "the path of a file of mig-parted"),
            ("{strategy: minimal}", "`mode` is needed, or a `config_file` that says it"),
        ] {
            let told = told(task, MIG);
            assert!(told.contains(says), "{told}");
        }
    }
}
