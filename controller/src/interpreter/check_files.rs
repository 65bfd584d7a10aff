//! Files of the controller, looked for before any node is contacted.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use gpufleet_protocol::tasks::{Copy, Fetch, GpuMig, Kind as _, Params, Script, Template};

use super::files::{FileKind, Files};
use super::mig_config;
use crate::diagnostic::{Diagnostic, Diagnostics, Severity, SourceFile, Span};
use crate::playbook::{Flag, Parameter, Program, Task};
use crate::template::{Shelves, Syntax, inspect_template, is_template, wanted_templates};

/// Kinds by which a run may make a file that a later task sends.
const MAKES_FILES: &[&str] = &[Fetch::INFO.name];

/// Kinds that name a file of the controller.
const TEMPLATE: &str = Template::INFO.name;
const COPY: &str = Copy::INFO.name;
const SCRIPT: &str = Script::INFO.name;

/// Every file that tasks name and that is not there, and templates with mistakes in them.
///
/// Under a condition, which may be about that very file, it is a warning. Left alone: names with templates, tasks whose
/// errors are ignored, and programs that may make such files themselves.
pub fn check_files(program: &Program, files: &dyn Files) -> Diagnostics {
    let mut errors = Diagnostics::new();
    let local = |text: &str| matches!(text, "localhost" | "127.0.0.1" | "::1");
    for play in &program.plays {
        // Why also such hosts: earlier tasks may make the file.
        let here = play.connection.is_some()
            || play.hosts.iter().any(|(hosts, _)| hosts.as_str().is_some_and(local));
        let delegated =
            |task: &Task| task.delegate_to.as_ref().and_then(|host| host.as_str()).is_some_and(local);
        let makes = play.tasks().iter().any(|task| MAKES_FILES.contains(&task.kind.name) || delegated(task));
        if here || makes {
            return errors;
        }
        let matters = |task: &&Arc<Task>| task.ignore_errors == Flag::Fixed(false);
        for task in play.tasks().into_iter().filter(matters) {
            let before = errors.0.len();
            match task.kind.is::<GpuMig>() {
                true => errors.append(mig_config::check(task, files)),
                false => check_named(task, files, &mut errors),
            }
            if !task.when.is_empty() {
                for error in errors.0.iter_mut().skip(before) {
                    error.severity = Severity::Warning;
                    error.notes.push(
                        "a condition may keep this from being done; where it holds, the task fails"
                            .to_owned(),
                    );
                }
            }
        }
    }
    errors
}

/// Returns the texts of all templates that tasks send. `None` where one is not known before the run, or takes in others.
pub fn template_texts(program: &Program, files: &dyn Files) -> Option<Vec<String>> {
    let tasks = program.plays.iter().flat_map(|play| play.tasks());
    tasks
        .filter(|task| task.kind.is::<Template>())
        .map(|task| {
            let (kind, name, _) = named(task)?;
            let file = files.read(kind, &task.search, &name).ok()?;
            let text = std::str::from_utf8(&file.bytes).ok()?;
            let is_alone = wanted_templates(text).into_iter().next().is_none();
            is_alone.then(|| text.to_owned())
        })
        .collect()
}

fn check_named(task: &Task, files: &dyn Files, errors: &mut Diagnostics) {
    let Some((kind, name, parameter)) = named(task) else { return };
    match files.read(kind, &task.search, &name) {
        Ok(file) => {
            if kind == FileKind::Template && !file.secret && has_usual_marks(task) {
                let shelves = Shelves::of_task(&task.search, &file.path);
                let mut check = Templates { files, shelves, seen: BTreeSet::new(), errors };
                check.template(&file.path, &file.bytes);
            }
        }
        // Why only these: a folder, or a vault without its password, is reported when it is used.
        Err(message) if message.starts_with(NO_FILE) => {
            let error = not_there(&message, parameter);
            errors.push(if task.no_log { error.without_excerpt() } else { error });
        }
        Err(_) => {}
    }
}

/// How a message about a missing file begins.
pub(super) const NO_FILE: &str = "there is no file";

pub(super) fn not_there(message: &str, parameter: &Parameter) -> Diagnostic {
    let (what, looked) = message.split_once("; ").unwrap_or((message, ""));
    let error = Diagnostic::error(what).at(&parameter.span);
    if looked.is_empty() { error } else { error.note(looked) }
}

/// The file that a task names, if its name is known before the run.
fn named(task: &Task) -> Option<(FileKind, String, &Parameter)> {
    let literal = |parameter: &str| {
        let entry = task.params.get(parameter)?;
        let text = entry.value.as_str().filter(|text| !is_template(text) && !text.is_empty())?;
        Some((text.to_owned(), entry))
    };
    match task.kind.name {
        TEMPLATE => literal("src").map(|(name, entry)| (FileKind::Template, name, entry)),
        COPY => {
            let remote = match task.params.fixed.as_deref() {
                Some(Params::Copy(copy)) => copy.remote_src,
                _ => task.params.get("remote_src").is_some(),
            };
            let (name, entry) = literal("src").filter(|_| !remote)?;
            (!name.ends_with('/')).then_some((FileKind::File, name, entry))
        }
        SCRIPT => {
            let (line, entry) = literal("cmd")?;
            let name = shell_words::split(&line).ok()?.into_iter().next()?;
            Some((FileKind::File, name, entry))
        }
        _ => None,
    }
}

/// Whether a template's marks are Jinja's own, as far as its task says.
fn has_usual_marks(task: &Task) -> bool {
    !task.params.entries.iter().any(|entry| entry.name.ends_with("_string"))
}

/// A template and those that it takes in.
struct Templates<'a> {
    files: &'a dyn Files,
    shelves: Shelves,
    seen: BTreeSet<String>,
    errors: &'a mut Diagnostics,
}

impl Templates<'_> {
    fn template(&mut self, path: &str, bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        // Why: the first line may give other marks, which only rendering reads.
        let usual = Syntax::default().from_header(text).is_ok_and(|(syntax, _)| syntax.has_own_marks());
        if !usual || !self.seen.insert(path.to_owned()) {
            return;
        }
        let source = SourceFile::new(path, text);
        if let Err(error) = inspect_template(text) {
            let span = span(&source, text, error.range().unwrap_or(0..0));
            let found = Diagnostic::error(error.message()).at(&span);
            self.errors.push(match error.suggestion() {
                Some(name) => found.help(format!("did you mean `{name}`?")),
                None => found,
            });
        }
        for wanted in wanted_templates(text) {
            match self.shelves.find(self.files, &wanted.name) {
                Ok(Ok((_, content))) if content.secret => {}
                Ok(Ok((path, content))) => self.template(&path, &content.bytes),
                Ok(Err(looked)) if wanted.certain => self.errors.push(
                    Diagnostic::error(format!("there is no template `{}`", wanted.name))
                        .at(&span(&source, text, wanted.range))
                        .note(looked),
                ),
                // Why: what cannot be read is reported when it is used.
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}

fn span(source: &Arc<SourceFile>, text: &str, range: Range<usize>) -> Span {
    let before = text.get(..range.start).unwrap_or_default();
    let clamp = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let line = clamp(before.matches('\n').count() + 1);
    let column = clamp(before.rsplit('\n').next().unwrap_or_default().chars().count() + 1);
    let length = clamp(text.get(range).unwrap_or_default().chars().count());
    Span::new(source, line, column, length)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::files::CachedFiles;
    use super::*;

    fn told(playbook: &str, others: &[(&str, &str)]) -> String {
        let mut files: HashMap<String, String> = [("play.yml".to_owned(), playbook.to_owned())].into();
        files.extend(others.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())));
        let program = Program::load(&["play.yml"], &files).unwrap();
        check_files(&program, &CachedFiles::new(files)).to_string()
    }

    #[test]
    fn texts_of_templates_are_known_if_all_are() {
        let of = |name: &str, others: &[(&str, &str)]| {
            let text = format!("- hosts: all\n  tasks:\n    - template: {{src: {name}, dest: /a}}\n");
            let mut files: HashMap<String, String> = [("play.yml".to_owned(), text)].into();
            files.extend(others.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())));
            let program = Program::load(&["play.yml"], &files).unwrap();
            template_texts(&program, &CachedFiles::new(files))
        };
        let known = ("templates/a.j2", "{{ rack }}\n");
        assert_eq!(of("a.j2", &[known]), Some(vec![known.1.to_owned()]));
        assert_eq!(of("\"{{ rack }}.j2\"", &[known]), None);
        assert_eq!(of("b.j2", &[known]), None);
        assert_eq!(of("c.j2", &[known, ("templates/c.j2", "{% include 'a.j2' %}")]), None);
    }

    #[test]
    fn missing_files_are_told_before_any_node_is_contacted() {
        let text = r"- hosts: all
  tasks:
    - template: {src: motd.j2, dest: /etc/motd}
    - copy: {src: limits.conf, dest: /etc/limits}
    - script: check.sh --fast
    - copy: {src: there.conf, dest: /etc/there}
    - copy: {src: /etc/node, dest: /etc/other, remote_src: true}
    - copy: {src: maybe.conf, dest: /etc/maybe}
      when: inventory_hostname == 'a'
";
        insta::assert_snapshot!(told(text, &[("files/there.conf", "x")]), @r"
        error: there is no file `motd.j2`
          --> play.yml:3:23
           |
         3 |     - template: {src: motd.j2, dest: /etc/motd}
           |                       ^^^^^^^
        note: looked for templates/motd.j2 and motd.j2
        error: there is no file `limits.conf`
          --> play.yml:4:19
           |
         4 |     - copy: {src: limits.conf, dest: /etc/limits}
           |                   ^^^^^^^^^^^
        note: looked for files/limits.conf and limits.conf
        error: there is no file `check.sh`
          --> play.yml:5:15
           |
         5 |     - script: check.sh --fast
           |               ^^^^^^^^^^^^^^^
        note: looked for files/check.sh and check.sh
        warning: there is no file `maybe.conf`
          --> play.yml:8:19
           |
         8 |     - copy: {src: maybe.conf, dest: /etc/maybe}
           |                   ^^^^^^^^^^
        note: looked for files/maybe.conf and maybe.conf
        note: a condition may keep this from being done; where it holds, the task fails
        ");
    }

    #[test]
    fn templates_are_read_before_any_node_is_contacted() {
        let text = "- hosts: all\n  tasks:\n    - template: {src: motd.j2, dest: /etc/motd}\n";
        insta::assert_snapshot!(told(text, &[("templates/motd.j2", "first\n{{ inventory_hostname | uper }}\n")]), @r"
        error: unknown filter `uper`
          --> templates/motd.j2:2:25
           |
         2 | {{ inventory_hostname | uper }}
           |                         ^^^^
        help: did you mean `upper`?
        ");
        assert_eq!(told(text, &[("motd.j2", "{{ inventory_hostname }}\n")]), "");
    }

    #[test]
    fn templates_that_others_take_in_are_looked_for_too() {
        let text = "- hosts: all\n  tasks:\n    - template: {src: web/site.j2, dest: /etc/site}\n";
        let site = "{% import 'macros.j2' as m %}\n{% if x %}{% include 'maybe.j2' %}{% endif %}\n\
                    {% include 'gone.j2' ignore missing %}\n{% include \"head.j2\" %}\n{# {% include 'no' %} #}\n";
        let told = told(
            text,
            &[
                ("templates/web/site.j2", site),
                ("templates/macros.j2", "{% macro a() %}x{% endmacro %}\n{% include 'plain.j2' %}\n"),
                ("templates/plain.j2", "{{ 1 | uper }}\n"),
                ("templates/web/head.j2", "{% include 'deeper.j2' %}\n"),
            ],
        );
        insta::assert_snapshot!(told, @r#"
        error: unknown filter `uper`
          --> templates/plain.j2:1:8
           |
         1 | {{ 1 | uper }}
           |        ^^^^
        help: did you mean `upper`?
        error: there is no template `deeper.j2`
          --> templates/web/head.j2:1:13
           |
         1 | {% include 'deeper.j2' %}
           |             ^^^^^^^^^
        note: looked for templates/deeper.j2 and deeper.j2 and templates/web/templates/deeper.j2 and templates/web/deeper.j2
        "#);
    }

    const MISSING: &str = "copy: {src: gone.conf, dest: /etc/a}";

    fn tasks(head: &str, tasks: &[&str]) -> String {
        let tasks: String = tasks.iter().map(|task| format!("    - {task}\n")).collect();
        format!("- hosts: all\n{head}  tasks:\n{tasks}")
    }

    #[test]
    fn what_a_run_may_make_is_not_missed() {
        assert!(told(&tasks("", &[MISSING]), &[]).starts_with("error: there is no file `gone.conf`"));
        for (head, before) in [
            ("  connection: local\n", "command: a"),
            ("", "fetch: {src: /a, dest: files}"),
            ("", "{command: a, delegate_to: localhost}"),
        ] {
            assert_eq!(told(&tasks(head, &[before, MISSING]), &[]), "", "{head}{before}");
        }
        assert_eq!(told(&tasks("", &[MISSING]).replace("all", "localhost"), &[]), "");
        let elsewhere = ["{command: a, delegate_to: other}", MISSING];
        assert_ne!(told(&tasks("", &elsewhere), &[]), "");
        let both = format!("{}{}", tasks("", &[MISSING]), tasks("  connection: local\n", &[MISSING]));
        assert_eq!(told(&both, &[]).matches("there is no file").count(), 1, "of the first play");
    }

    #[test]
    fn only_names_that_are_known_are_looked_for() {
        let quiet = [
            "{copy: {src: gone.conf, dest: /etc/a}, ignore_errors: true}",
            "copy: {src: '{{ name }}.conf', dest: /etc/a}",
            "copy: {src: there.conf, dest: /etc/a}",
            "copy: {src: gone, dest: '{{ x }}', remote_src: true}",
        ];
        let text = tasks("", &quiet);
        assert_eq!(told(&text, &[("files/there.conf", "{{ no_template | uper }}\n")]), "");
        for loud in [
            "copy: {src: gone.conf, dest: /etc/a, remote_src: false}",
            "{copy: {src: gone.conf, dest: /etc/a}, no_log: true}",
        ] {
            let told = told(&tasks("", &[loud]), &[]);
            assert!(told.contains("there is no file `gone.conf`"), "{told}");
            assert_eq!(told.contains("remote_src"), loud.contains("remote_src"), "an excerpt: {told}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_where_it_is_used() {
        let text = tasks("", &[MISSING]);
        let playbook: HashMap<String, String> = [("play.yml".to_owned(), text)].into();
        let program = Program::load(&["play.yml"], &playbook).unwrap();
        let locked = CachedFiles::new(|_: &str| {
            Err::<Vec<u8>, _>(std::io::Error::from(std::io::ErrorKind::PermissionDenied))
        });
        assert_eq!(check_files(&program, &locked).to_string(), "");
    }
}
