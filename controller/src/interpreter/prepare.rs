//! From a task and a host's variables to what is to be done.

use std::sync::Arc;

use gpufleet_protocol::NodeOp;
use gpufleet_protocol::disturbing;
use gpufleet_protocol::op::{Blob, Exec, FactsRequest, GpuTask, JobStatus, Program as Run, UnpackArchive};
use gpufleet_protocol::tasks::{
    Assert, Class, Debug, GpuKeep, IncludeRole, JobMode, KubernetesNode, MetaAction, Params, Pause,
    RebootWhen, SetFact,
};
use serde_json::{Map, Value as Json};

use super::action::{BlobNeed, FetchFile, RunAs};
use super::arguments;
use super::files::{FileContent, FileKind, Files};
use super::guard::{self, Doer};
use crate::playbook::{
    Condition, Parameter, Play, RoleCall, RoleParts, Task, Wanted, read_late_vars, read_params,
};
use crate::template::{self, Scope, TemplateError, Truth, Value};

/// What a task comes to on one host.
pub(super) enum Prepared {
    Skip(String),
    /// A condition does not hold: this one.
    Unmet(String),
    /// It depends on something that only the run will tell.
    Possible(String),
    Fail(String),
    Do(Box<Ready>),
}

pub(super) struct Ready {
    pub deed: Deed,
    pub run_as: RunAs,
    pub environment: Vec<(String, String)>,
}

pub(super) enum Deed {
    Node {
        op: Box<NodeOp>,
        blobs: Vec<BlobNeed>,
    },
    Gpu(GpuTask),
    /// What the node is to keep of what was declared up to here.
    Keep(GpuKeep),
    Reboot {
        when: RebootWhen,
        timeout_s: u64,
    },
    WaitForConnection {
        timeout_s: u64,
        delay_s: u64,
    },
    Fetch(FetchFile),
    Pause(Pause),
    NodeObject(Box<KubernetesNode>),
    /// What the controller itself found out.
    Told {
        failed: bool,
        message: Option<String>,
        data: Map<String, Json>,
    },
    SetFacts {
        facts: Vec<(Arc<str>, Value)>,
        /// Whether they are facts of the host too (`cacheable`).
        lasting: bool,
    },
    Meta(MetaAction),
    Include(Wanted),
}

/// What preparing needs beside the task and its variables.
pub(super) struct Surroundings<'a> {
    pub play: &'a Play,
    pub files: &'a dyn Files,
    pub verbosity: u32,
    pub become_default: bool,
    pub become_user: Option<&'a str>,
    pub doer: Doer,
    /// Folders in which the task's files are looked for, nearest first.
    pub search: Arc<[String]>,
}

const UNKNOWN: &str = "hangs on the result of a task that a prediction does not run";

/// Stops the preparation early.
pub(super) struct Stop(pub Prepared);

impl From<TemplateError> for Stop {
    fn from(error: TemplateError) -> Self {
        Self(Prepared::Fail(error.to_string()))
    }
}

pub(super) fn unknown() -> Stop {
    Stop(Prepared::Possible(UNKNOWN.to_owned()))
}

pub(super) fn fail(message: impl Into<String>) -> Stop {
    Stop(Prepared::Fail(message.into()))
}

impl Surroundings<'_> {
    /// Also tells whether a secret went into it; that a condition asks for one shows nothing of it.
    pub(super) fn prepare(&self, task: &Task, scope: &Arc<Scope>) -> (Prepared, bool) {
        match self.holds(task, scope) {
            Some(prepared) => (prepared, false),
            None => template::watch(|| match self.ready(task, scope) {
                Ok(ready) => Prepared::Do(Box::new(ready)),
                Err(Stop(prepared)) => prepared,
            }),
        }
    }

    /// Why the task is not for this host now; none when it is.
    fn holds(&self, task: &Task, scope: &Arc<Scope>) -> Option<Prepared> {
        match Condition::all(&task.when, scope) {
            Err((condition, error)) => {
                Some(Prepared::Fail(format!("the condition `{}`: {error}", condition.text)))
            }
            Ok(Truth::False) => {
                let first = task.when.iter().find(|condition| {
                    matches!(template::condition(&condition.text, scope), Ok(Truth::False))
                });
                Some(Prepared::Unmet(first.map(|condition| condition.text.to_string()).unwrap_or_default()))
            }
            Ok(Truth::Unknown) => Some(Prepared::Possible(UNKNOWN.to_owned())),
            Ok(Truth::True) => None,
        }
    }

    fn ready(&self, task: &Task, scope: &Arc<Scope>) -> Result<Ready, Stop> {
        let deed = self.deed(task, scope)?;
        if matches!(task.kind.class, Class::Control) {
            return Ok(Ready { deed, run_as: RunAs::Login, environment: Vec::new() });
        }
        let (run_as, environment) = (self.run_as(task, scope)?, environment(task, scope)?);
        Ok(Ready { deed, run_as, environment })
    }

    fn run_as(&self, task: &Task, scope: &Arc<Scope>) -> Result<RunAs, Stop> {
        let privilege = task.privilege.over(&self.play.privilege);
        let escalate = match &privilege.escalate {
            Some(flag) => match flag.holds(scope).map_err(|error| fail(format!("`become`: {error}")))? {
                Truth::Unknown => return Err(unknown()),
                truth => truth == Truth::True,
            },
            None if scope.get("ansible_become").is_some() => {
                match template::evaluate("ansible_become | bool", scope)? {
                    Value::Unknown => return Err(unknown()),
                    value => value.truthy(),
                }
            }
            None => self.become_default,
        };
        if !escalate {
            return Ok(RunAs::Login);
        }
        let user = match (&privilege.user, scope.get("ansible_become_user")) {
            (Some(user), _) | (None, Some(user)) => match template::resolve(user, scope)? {
                Value::Unknown => return Err(unknown()),
                user => Some(user.to_text()),
            },
            (None, None) => self.become_user.map(ToOwned::to_owned),
        };
        Ok(match user {
            Some(user) if !user.is_empty() && user != "root" => RunAs::User(user),
            _ => RunAs::Root,
        })
    }

    fn deed(&self, task: &Task, scope: &Arc<Scope>) -> Result<Deed, Stop> {
        for entry in task.params.entries.iter().filter(|entry| entry.value.is_settled()) {
            told_in_text(task, &entry.name, &entry.value)?;
        }
        let params = match &task.params.fixed {
            Some(fixed) => Arc::clone(fixed),
            None if task.kind.is::<SetFact>() => return set_facts(task, scope),
            None => Arc::new(render_params(task, scope, self.doer)?),
        };
        Ok(match &*params {
            Params::Gpu(task) => Deed::Gpu(self.gpu(task)?),
            Params::GpuKeep(keep) => Deed::Keep(keep.clone()),
            Params::Node(op) => node(op.clone()),
            Params::AsyncStatus(ask) => {
                let forget = ask.mode == JobMode::Cleanup;
                node(NodeOp::JobStatus(JobStatus { jid: ask.jid.clone(), forget, wait_s: 0 }))
            }
            Params::Setup(setup) => {
                node(NodeOp::Facts(FactsRequest { gpus: true, filter: setup.filter.clone() }))
            }
            Params::Unarchive(unarchive) if unarchive.remote_src => {
                node(NodeOp::Unarchive(UnpackArchive { task: unarchive.clone(), blob: None }))
            }
            Params::Unarchive(unarchive) => {
                let (blob, need) = blob(&self.file(FileKind::File, &unarchive.src)?);
                let op = UnpackArchive { task: unarchive.clone(), blob: Some(blob) };
                Deed::Node { op: Box::new(NodeOp::Unarchive(op)), blobs: vec![need] }
            }
            Params::Fetch(fetch) => self.fetch(fetch, scope)?,
            Params::Pause(pause) => Deed::Pause(pause.clone()),
            Params::KubernetesNode(node) => Deed::NodeObject(Box::new(node.clone())),
            Params::Copy(copy) => self.copy(copy, scope, task.no_log)?,
            Params::Template(template) => self.template(template, scope, task.no_log)?,
            Params::Command(command) => {
                let argv = match &command.cmd {
                    Some(cmd) => shell_words::split(cmd)
                        .map_err(|_| fail("the command has a quote that is not closed"))?,
                    None => command.argv.clone(),
                };
                if argv.first().is_none_or(String::is_empty) {
                    return Err(fail("the command is empty"));
                }
                node(NodeOp::Exec(Exec {
                    run: Run::Argv(argv),
                    chdir: command.chdir.clone(),
                    creates: command.creates.clone(),
                    removes: command.removes.clone(),
                    stdin: input(command.stdin.as_ref(), command.stdin_add_newline),
                    keep_ends: !command.strip_empty_ends,
                    expand: command.expand_argument_vars,
                    ..Exec::default()
                }))
            }
            Params::Shell(shell) => {
                let executable = shell.executable.clone().unwrap_or_else(|| "/bin/sh".to_owned());
                node(NodeOp::Exec(Exec {
                    run: Run::Shell { line: shell.cmd.clone(), executable },
                    chdir: shell.chdir.clone(),
                    creates: shell.creates.clone(),
                    removes: shell.removes.clone(),
                    stdin: input(shell.stdin.as_ref(), shell.stdin_add_newline),
                    ..Exec::default()
                }))
            }
            Params::Script(script) => {
                let mut words = shell_words::split(&script.cmd)
                    .map_err(|_| fail("the arguments have a quote that is not closed"))?
                    .into_iter();
                let name = words.next().ok_or_else(|| fail("the name of a script is needed"))?;
                let file = self.file(FileKind::File, &name)?;
                let (blob, need) = blob(&file);
                let text = String::from_utf8_lossy(&need.bytes);
                let script_does = disturbing::of_script(&text, script.executable.as_deref());
                let run = Run::Script { arguments: words.collect(), executable: script.executable.clone() };
                let exec = Exec {
                    run,
                    chdir: script.chdir.clone(),
                    creates: script.creates.clone(),
                    removes: script.removes.clone(),
                    script: Some(blob),
                    script_does,
                    verbatim: true,
                    ..Exec::default()
                };
                Deed::Node { op: Box::new(NodeOp::Exec(exec)), blobs: vec![need] }
            }
            Params::Raw(raw) => {
                let executable = raw.executable.clone().unwrap_or_else(|| "/bin/sh".to_owned());
                let run = Run::Shell { line: raw.cmd.clone(), executable };
                node(NodeOp::Exec(Exec { run, verbatim: true, ..Exec::default() }))
            }
            Params::Reboot(reboot) => Deed::Reboot { when: reboot.when, timeout_s: reboot.timeout },
            Params::WaitForConnection(wait) => {
                Deed::WaitForConnection { timeout_s: wait.timeout, delay_s: wait.delay }
            }
            Params::Debug(debug) => return self.debug(task, debug, scope),
            Params::Assert(assert) => return check(assert, scope),
            Params::Fail(params) => match &params.msg {
                Json::String(message) => return Err(fail(message.clone())),
                message => Deed::Told {
                    failed: true,
                    message: Some(shown(&Value::literal(message))),
                    data: [("msg".to_owned(), message.clone())].into_iter().collect(),
                },
            },
            Params::SetFact(facts) => lasting_or_not(
                facts
                    .facts
                    .iter()
                    .map(|(name, value)| (Arc::from(name.as_str()), Value::literal(value)))
                    .collect(),
            ),
            Params::Meta(meta) => Deed::Meta(meta.action),
            Params::IncludeTasks(include) => Deed::Include(Wanted::Tasks { file: include.file.clone() }),
            Params::IncludeRole(include) => Deed::Include(Wanted::Role(Box::new(role_call(include)))),
            Params::IncludeVars(include) => self.include_vars(include, scope)?,
            Params::ValidateArgumentSpec(spec) => arguments::check(spec, scope)?,
        })
    }

    pub(super) fn file(&self, kind: FileKind, name: &str) -> Result<FileContent, Stop> {
        let file = guard::read(self.files, kind, &self.search, name).map_err(fail)?;
        if file.secret {
            template::met_secret();
        }
        Ok(file)
    }

    fn debug(&self, task: &Task, debug: &Debug, scope: &Arc<Scope>) -> Result<Deed, Stop> {
        if debug.verbosity > self.verbosity {
            return Err(Stop(Prepared::Skip(format!("shown from {} times -v on", debug.verbosity))));
        }
        if let Some(source) = &debug.var {
            let found = match template::is_template(source) {
                true => template::render(source, scope),
                false => template::evaluate(source, scope),
            };
            let value = match found {
                Ok(value) => value,
                // Why no failure: as in Ansible, `debug` may show an undefined variable.
                Err(error) => match error.undefined_name() {
                    Some(path) => Value::from(nothing_there(source, path, scope)),
                    None => return Err(error.into()),
                },
            };
            if value.has_unknown() {
                return Err(unknown());
            }
            // Why: as in Ansible, a variable that is omitted shows that when it is looked at.
            let value = if matches!(value, Value::Omit) { Value::str(template::OMITTED) } else { value };
            return Ok(told(format!("{source} = {}", shown(&value)), source, value.to_json()));
        }
        let gives_nothing = |msg: &Parameter| {
            matches!(msg.value, Value::Template(_))
                && !matches!(template::resolve(&msg.value, scope), Ok(Value::Omit))
        };
        let message = match &debug.msg {
            Some(message) => Value::literal(message),
            // Why: an empty message is a message.
            None if task.params.get("msg").is_some_and(gives_nothing) => Value::Null,
            None => Value::str("Hello world!"),
        };
        Ok(told(shown(&message), "msg", message.to_json()))
    }
}

/// A value as a person reads it in a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Str(text) => text.to_string(),
        other => other.to_json().to_string(),
    }
}

/// What Ansible shows for something that is not there.
fn nothing_there(source: &str, path: &str, scope: &Scope) -> String {
    let (inner, nested) = path.split_once("` in `").map_or((path, false), |(inner, _)| (inner, true));
    let name = inner.split('.').next().unwrap_or(inner);
    let asked = template::inspect_expression(source);
    let is_variable =
        scope.get(name).is_none() && asked.is_ok_and(|asked| asked.names.iter().any(|n| n == name));
    match nested || is_variable {
        true => format!("<< error 1 - '{name}' is undefined >>"),
        false => format!("<< error 1 - object of type 'dict' has no attribute '{name}' >>"),
    }
}

/// A parameter of `set_fact` that is no fact: whether they are the host's facts too, which live as long as the run.
const CACHEABLE: &str = "cacheable";

fn told(message: String, name: &str, value: Json) -> Deed {
    let data = [(name.to_owned(), value)].into_iter().collect();
    Deed::Told { failed: false, message: Some(message), data }
}

/// Text for a command, with the line break that Ansible puts after it.
fn input(text: Option<&String>, newline: bool) -> Option<String> {
    text.map(|text| if newline { format!("{text}\n") } else { text.clone() })
}

fn role_call(include: &IncludeRole) -> RoleCall {
    RoleCall {
        parts: RoleParts {
            tasks: include.tasks_from.clone(),
            vars: include.vars_from.clone(),
            defaults: include.defaults_from.clone(),
            handlers: include.handlers_from.clone(),
        },
        public: include.public,
        validate: include.rolespec_validate,
        ..RoleCall::named(&include.name)
    }
}

/// The variables that a file holds; templates in them are rendered where they are used.
pub(super) fn variables(file: &FileContent) -> Result<Vec<(Arc<str>, Value)>, String> {
    read_late_vars(&file.path, &file.bytes, file.secret)
}

pub(super) fn node(op: NodeOp) -> Deed {
    Deed::Node { op: Box::new(op), blobs: Vec::new() }
}

pub(super) fn blob(file: &FileContent) -> (Blob, BlobNeed) {
    let blob = Blob { sha256: file.sha256.to_string(), size: file.bytes.len() as u64 };
    (blob.clone(), BlobNeed { blob, bytes: Arc::clone(&file.bytes) })
}

/// What `assert` and `fail` say has to be text, as in Ansible.
fn told_in_text(task: &Task, name: &str, value: &Value) -> Result<(), Stop> {
    if !task.kind.is::<Assert>() || !matches!(name, "msg" | "fail_msg" | "success_msg") {
        return Ok(());
    }
    let what = match value {
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Float(_) => "float",
        Value::Map(_) => "dict",
        _ => return Ok(()),
    };
    let message = format!(
        "argument '{name}' is of type {what} and we were unable to convert to str_or_list_of_str: a string or list \
         of strings is required"
    );
    let data = [("msg".to_owned(), Json::from(message.as_str()))].into_iter().collect();
    Err(Stop(Prepared::Do(Box::new(Ready {
        deed: Deed::Told { failed: true, message: Some(message), data },
        run_as: RunAs::Login,
        environment: Vec::new(),
    }))))
}

fn render_params(task: &Task, scope: &Arc<Scope>, doer: Doer) -> Result<Params, Stop> {
    let mut values = Map::new();
    for entry in &task.params.entries {
        let value = guard::resolve(task, &entry.name, &entry.value, scope, doer)
            .map_err(|error| fail(format!("`{}`: {error}", entry.name)))?;
        match value {
            Value::Omit => {}
            value if value.has_unknown() => return Err(unknown()),
            value => {
                told_in_text(task, &entry.name, &value)?;
                values.insert(entry.name.to_string(), value.to_json());
            }
        }
    }
    read_params(task.kind, values).map_err(|problem| {
        let message = problem.told(task.no_log);
        match problem.help.filter(|_| !task.no_log) {
            Some(help) => fail(format!("{message}; {help}")),
            None => fail(message),
        }
    })
}

fn set_facts(task: &Task, scope: &Arc<Scope>) -> Result<Deed, Stop> {
    let mut facts = Vec::new();
    for entry in &task.params.entries {
        let name = if template::is_template(&entry.name) {
            match template::render(&entry.name, scope)? {
                Value::Unknown => return Err(unknown()),
                name => Arc::from(name.to_text()),
            }
        } else {
            Arc::clone(&entry.name)
        };
        let value =
            template::resolve(&entry.value, scope).map_err(|error| fail(format!("`{name}`: {error}")))?;
        if !matches!(value, Value::Omit) {
            facts.push((name, value.without_omitted()));
        }
    }
    Ok(lasting_or_not(facts))
}

fn lasting_or_not(mut facts: Vec<(Arc<str>, Value)>) -> Deed {
    let says = |value: &Value| match value {
        Value::Str(text) => {
            matches!(text.to_ascii_lowercase().as_str(), "true" | "yes" | "on" | "1" | "y" | "t")
        }
        other => other.truthy(),
    };
    let lasting = facts.iter().any(|(name, value)| &**name == CACHEABLE && says(value));
    facts.retain(|(name, _)| &**name != CACHEABLE);
    Deed::SetFacts { facts, lasting }
}

fn check(assert: &Assert, scope: &Arc<Scope>) -> Result<Deed, Stop> {
    let mut open = false;
    for condition in &assert.that {
        let text = match condition {
            Json::String(text) => text.clone(),
            other => other.to_string(),
        };
        match template::condition(&text, scope)
            .map_err(|error| fail(format!("the condition `{text}`: {error}")))?
        {
            Truth::True => {}
            Truth::Unknown => open = true,
            Truth::False => {
                let why = format!("`{text}` does not hold");
                let message = match &assert.fail_msg {
                    Some(message) => format!("{} ({why})", shown(&Value::literal(message))),
                    None => why,
                };
                let mut data = Map::new();
                let told = assert.fail_msg.clone().unwrap_or_else(|| "Assertion failed".into());
                data.insert("msg".to_owned(), told);
                data.insert("assertion".to_owned(), text.into());
                data.insert("evaluated_to".to_owned(), false.into());
                return Ok(Deed::Told { failed: true, message: Some(message), data });
            }
        }
    }
    if open {
        return Err(unknown());
    }
    let told = assert.success_msg.clone().unwrap_or_else(|| "All assertions passed".into());
    let message = (!assert.quiet).then(|| shown(&Value::literal(&told)));
    let data = [("msg".to_owned(), told)].into_iter().collect();
    Ok(Deed::Told { failed: false, message, data })
}

fn environment(task: &Task, scope: &Arc<Scope>) -> Result<Vec<(String, String)>, Stop> {
    let mut merged: Vec<(String, String)> = Vec::new();
    let mut layers = Vec::new();
    for layer in &task.environment {
        match template::resolve(layer, scope).map_err(|error| fail(format!("`environment`: {error}")))? {
            Value::List(list) => layers.extend(list.items().iter().cloned()),
            layer => layers.push(layer),
        }
    }
    for layer in layers {
        match layer {
            Value::Map(map) => {
                for (name, value) in map.iter() {
                    if matches!(value, Value::Unknown) {
                        return Err(unknown());
                    }
                    merged.retain(|(other, _)| other != &**name);
                    if !matches!(value, Value::Omit) {
                        merged.push((name.to_string(), value.to_text()));
                    }
                }
            }
            Value::Unknown => return Err(unknown()),
            Value::Null | Value::Omit => {}
            other => return Err(fail(format!("`environment` wants a mapping, got {}", other.kind()))),
        }
    }
    Ok(merged)
}
