//! Roles: their folders, their files, and their dependencies.

use std::sync::Arc;

use gpufleet_protocol::tasks::find;

use super::task::Inherited;
use super::{Parser, join, keys};
use crate::diagnostic::{Diagnostic, Span, suggest};
use crate::playbook::program::{Block, Item, Items, Parameter, Parameters, SectionName, Task};
use crate::playbook::role::{Own, Role};
use crate::template::{Dict, Value, normal_path};
use crate::yaml::Node;

/// The files of a role that are used, without their endings; `None` is `main`.
#[derive(Clone, Debug, Default)]
pub struct RoleParts {
    pub tasks: Option<String>,
    pub vars: Option<String>,
    pub defaults: Option<String>,
    pub handlers: Option<String>,
}

/// A use of a role.
#[derive(Clone, Debug)]
pub struct RoleCall {
    pub name: String,
    pub parts: RoleParts,
    /// Whether all later tasks of the play see its variables.
    pub public: bool,
    /// Whether its arguments are validated.
    pub validate: bool,
    /// `vars`.
    pub given: Arc<Dict>,
    /// Values of its other keys.
    pub params: Arc<Dict>,
}

impl RoleCall {
    /// Creates a use of the whole role.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            parts: RoleParts::default(),
            public: false,
            validate: true,
            given: Arc::default(),
            params: Arc::default(),
        }
    }
}

/// The parsed parts of a role.
pub(super) struct ParsedRole {
    pub role: Arc<Role>,
    /// Its tasks, after those of the roles that it depends on.
    pub items: Items,
    pub handlers: Vec<Arc<Task>>,
    /// The key of calls that run only once.
    pub once: Option<Arc<str>>,
}

/// Endings of a role's files, in the order tried.
const ENDINGS: &[&str] = &[".yml", ".yaml", ".json", ""];

impl Parser<'_> {
    /// Parses `roles` of a play.
    pub(super) fn roles(
        &mut self,
        node: &Node,
        inherited: &Inherited,
    ) -> (Vec<Item>, Vec<Arc<Role>>, Vec<Arc<Task>>) {
        let (mut items, mut roles, mut handlers) = (Vec::new(), Vec::new(), Vec::new());
        if node.is_null() {
            return (items, roles, handlers);
        }
        let Some(list) = node.as_seq() else {
            self.error(
                node.wrong_type("`roles`", "a list of roles").help("begin each with `- `: `- gpu_driver`"),
            );
            return (items, roles, handlers);
        };
        for (index, entry) in list.iter().enumerate() {
            let path = format!("roles.{index}");
            let Some(parsed) = self.role_entry(entry, inherited, &[], &path) else { continue };
            roles.push(Arc::clone(&parsed.role));
            items.push(block_of(&parsed, &entry.span));
            handlers.extend(parsed.handlers);
        }
        (items, roles, handlers)
    }

    /// Parses an entry of `roles`, or of a role's `dependencies`.
    fn role_entry(
        &mut self,
        entry: &Node,
        outer: &Inherited,
        parents: &[Arc<Role>],
        path: &str,
    ) -> Option<ParsedRole> {
        let named = entry.get("role").or_else(|| entry.get("name"));
        let name_node = if entry.as_map().is_some() { named } else { Some(entry) };
        let Some(name_node) = name_node.filter(|node| node.scalar_text().is_some()) else {
            let error = entry.wrong_type("a role", "its name, or a mapping with `role`");
            self.error(error.help("for example `- gpu_driver` or `- {role: gpu_driver, tags: driver}`"));
            return None;
        };
        let name = self.literal_file(name_node, "role", outer)?;
        let kept = self.take_references();
        let own = self.inherit(entry, outer);
        let given = entry.get("vars").map(|vars| self.vars(vars)).unwrap_or_default();
        let mut params = Dict::default();
        for (key, value) in entry.as_map().unwrap_or_default() {
            let text = key.key_text();
            if matches!(text.as_str(), "role" | "name") || keys::SHARED.contains(&text.as_str()) {
                continue;
            }
            if let Some(near) = suggest(&text, keys::SHARED.iter().copied().chain(["role"])) {
                self.warnings.push(
                    Diagnostic::warning(format!("`{text}` is a variable of the role"))
                        .at(&key.span)
                        .help(format!("did you mean `{near}`? Give variables with `vars`")),
                );
            }
            let value = self.definition(&text, &key.span, value);
            params.insert(text, value);
        }
        let references = self.take_references();
        self.block_references(&references, &own);
        let call = RoleCall { given, params: Arc::new(params), ..RoleCall::named(&name) };
        // Conditions of the role that depends on it do not count: in Ansible, they do not make it another role.
        let conditions: Vec<&str> =
            own.when.iter().skip(outer.when.len()).map(|condition| &*condition.text).collect();
        // As JSON, because calls are the same only if their values are.
        let values = (call.given.to_json(), call.params.to_json());
        let key = format!("{name} {values:?} {conditions:?} {:?}", entry.get("tags"));
        let parsed = self.role_of(&call, Some(&name_node.span), &own, parents, path, Some(key));
        self.references = kept;
        parsed
    }

    /// Parses a role with all of its parts.
    pub(super) fn role(
        &mut self,
        call: &RoleCall,
        from: Option<&Span>,
        own: &Inherited,
        path: &str,
    ) -> Option<ParsedRole> {
        let parents: Vec<Arc<Role>> =
            own.role.iter().flat_map(|role| role.parents.iter().cloned().chain([Arc::clone(role)])).collect();
        let mut own = own.clone();
        // Source: `get_include_params` of ansible-core 2.19's `IncludeRole`.
        own.given
            .extend(own.role.iter().map(|role| Arc::clone(&role.params)).filter(|given| !given.is_empty()));
        self.role_of(call, from, &own, &parents, path, None)
    }

    fn role_of(
        &mut self,
        call: &RoleCall,
        from: Option<&Span>,
        outer: &Inherited,
        parents: &[Arc<Role>],
        path: &str,
        once: Option<String>,
    ) -> Option<ParsedRole> {
        let name = call.name.trim_end_matches('/');
        let short = match name.split('/').any(|part| part == "..") {
            true => name,
            false => name.rsplit('/').next().unwrap_or(name),
        };
        let Some(folder) = self.role_folder(name, outer) else {
            self.no_such_role(name, from, outer);
            return None;
        };
        if parents.len() > 20 {
            let error = Diagnostic::error(format!("the role `{name}` depends on itself"));
            self.error(match from {
                Some(span) => error.at(span),
                None => error,
            });
            return None;
        }
        let own = Own {
            defaults: self.role_vars(&folder, "defaults", call.parts.defaults.as_deref(), from),
            vars: self.role_vars(&folder, "vars", call.parts.vars.as_deref(), from),
            params: Arc::clone(&call.params),
            given: Arc::clone(&call.given),
        };
        let meta = self.role_file(&format!("{folder}/meta"), "main").and_then(|path| self.file(&path, from));
        let repeats = meta
            .as_ref()
            .and_then(|meta| meta.get("allow_duplicates"))
            .is_some_and(|value| value.as_bool() == Some(true));
        let once = once.filter(|_| !repeats).map(Arc::from);
        let below = Arc::new(Role::new(short, &folder, own.clone(), parents, &[]));
        let mut chain = parents.to_vec();
        chain.push(Arc::clone(&below));
        let (mut items, mut handlers, mut dependencies) = (Vec::new(), Vec::new(), Vec::new());
        let listed = meta.as_ref().and_then(|meta| meta.get("dependencies"));
        let mut surroundings = outer.clone();
        surroundings.role = Some(Arc::clone(&below));
        for (index, entry) in listed.and_then(Node::as_seq).unwrap_or_default().iter().enumerate() {
            let path = format!("{path}.dependencies.{index}");
            let Some(parsed) = self.role_entry(entry, &surroundings, &chain, &path) else { continue };
            dependencies.push(Arc::clone(&parsed.role));
            items.push(block_of(&parsed, &entry.span));
            handlers.extend(parsed.handlers);
        }
        if let Some(listed) = listed.filter(|listed| !listed.is_null() && listed.as_seq().is_none()) {
            self.error(listed.wrong_type("`dependencies`", "a list of roles"));
        }
        let role = Arc::new(Role::new(short, &folder, own, parents, &dependencies));
        let mut inherited = outer.clone();
        inherited.role = Some(Arc::clone(&role));
        inherited.search = self.role_search(&role, &format!("{}/tasks", role.path));
        if call.validate {
            items.extend(self.argument_check(&folder, meta.as_ref(), call, &inherited, path));
        }
        items.extend(self.role_tasks(&folder, call, from, &inherited, path).iter().cloned());
        handlers.extend(self.role_handlers(&folder, call, from, &inherited, path));
        Some(ParsedRole { role, items: items.into(), handlers, once })
    }

    fn role_tasks(
        &mut self,
        folder: &str,
        call: &RoleCall,
        from: Option<&Span>,
        inherited: &Inherited,
        path: &str,
    ) -> Items {
        let wanted = call.parts.tasks.as_deref();
        let below = format!("{folder}/tasks");
        match self.role_file(&below, wanted.unwrap_or("main")) {
            Some(file) => {
                let span = from.map(|span| Node { value: crate::yaml::Value::Null, span: span.clone() });
                self.tasks_of(&file, &file, inherited, span.as_ref(), path)
            }
            None => {
                if let Some(wanted) = wanted {
                    let names = self.list(&below);
                    let error =
                        Diagnostic::error(format!("the role `{}` has no tasks `{wanted}`", call.name));
                    let error = error.suggest(wanted, names.iter().map(|name| stem(name)));
                    self.error(match from {
                        Some(span) => error.at(span),
                        None => error,
                    });
                }
                Items::from([])
            }
        }
    }

    fn role_handlers(
        &mut self,
        folder: &str,
        call: &RoleCall,
        from: Option<&Span>,
        inherited: &Inherited,
        path: &str,
    ) -> Vec<Arc<Task>> {
        let wanted = call.parts.handlers.as_deref().unwrap_or("main");
        let Some(file) = self.role_file(&format!("{folder}/handlers"), wanted) else { return Vec::new() };
        let mut inherited = inherited.clone();
        inherited.section = SectionName::Handlers;
        let span = from.map(|span| Node { value: crate::yaml::Value::Null, span: span.clone() });
        let items = self.tasks_of(&file, &file, &inherited, span.as_ref(), &format!("{path}.handlers"));
        self.handlers(&items)
    }

    /// Returns a task that checks the role's arguments against its `argument_specs`.
    fn argument_check(
        &mut self,
        folder: &str,
        meta: Option<&Node>,
        call: &RoleCall,
        inherited: &Inherited,
        path: &str,
    ) -> Option<Item> {
        let of_file = self
            .role_file(&format!("{folder}/meta"), "argument_specs")
            .and_then(|path| self.file(&path, None));
        let specs = of_file.as_ref().or(meta)?.get("argument_specs")?;
        let entry = call.parts.tasks.as_deref().map_or("main", stem);
        let spec = specs.get(entry)?;
        let options = spec.get("options");
        let title = match spec.get("short_description").and_then(Node::scalar_text) {
            Some(text) => format!("Validating arguments against arg spec '{entry}' - {text}"),
            None => format!("Validating arguments against arg spec '{entry}'"),
        };
        let kind = find("validate_argument_spec")?;
        let value = Value::literal(&options.map_or_else(|| serde_json::json!({}), Node::to_json));
        let parameter = Parameter {
            name: Arc::from("argument_spec"),
            value,
            key_span: specs.span.clone(),
            span: specs.span.clone(),
        };
        let json = serde_json::json!({ "argument_spec": parameter.value.to_json() });
        let fixed = kind.parse(json).ok().map(Arc::new);
        let mut own = inherited.clone();
        own.tags.push("always".to_owned());
        let mut task = self.bare(kind, &spec.span, &own, &format!("{path}.arguments"));
        task.name = Some(Value::str(title));
        task.params = Parameters { entries: vec![parameter], fixed };
        Some(Item::Task(Arc::new(task)))
    }

    /// Parses the variables in `defaults/` or `vars/`: a file, or all files of a folder of that name.
    fn role_vars(&mut self, folder: &str, kind: &str, part: Option<&str>, from: Option<&Span>) -> Arc<Dict> {
        let below = format!("{folder}/{kind}");
        let wanted = part.unwrap_or("main");
        let mut files: Vec<String> = self.role_file(&below, wanted).into_iter().collect();
        if files.is_empty() {
            let names = self.list(&format!("{below}/{wanted}"));
            files.extend(
                names
                    .into_iter()
                    .filter(|name| !name.ends_with('/'))
                    .map(|name| format!("{below}/{wanted}/{name}")),
            );
        }
        if files.is_empty() && part.is_some() {
            let error = Diagnostic::error(format!("there is no file `{wanted}` in {below}"));
            self.error(match from {
                Some(span) => error.at(span),
                None => error,
            });
        }
        let kept = self.take_references();
        let mut merged = Dict::default();
        for path in files {
            if let Some(found) = self.variables_of(&path, from) {
                merged.extend(&found);
            }
        }
        let references = std::mem::replace(&mut self.references, kept);
        self.block_references.extend(references);
        Arc::new(merged)
    }

    /// Parses the variables of a file; those of an encrypted file are secret.
    pub(super) fn variables_of(&mut self, path: &str, from: Option<&Span>) -> Option<Arc<Dict>> {
        self.imports += 1;
        let file = self.file(path, from);
        self.imports -= 1;
        let file = file?;
        let encrypted = file.span.source.is_secret();
        let found = self.vars_of_file(&file);
        Some(if encrypted {
            Arc::new(found.iter().map(|(key, value)| (Arc::clone(key), value.sealed())).collect())
        } else {
            found
        })
    }

    /// Returns the file of a role's folder for a name without ending.
    fn role_file(&self, below: &str, name: &str) -> Option<String> {
        ENDINGS.iter().map(|ending| format!("{below}/{name}{ending}")).find(|path| self.is_there(path))
    }

    /// Returns the folders in which roles are looked for.
    pub(super) fn role_folders(&self, outer: &Inherited) -> Vec<String> {
        let mut folders = vec![join(&self.directory, "roles")];
        folders.extend(self.library.roles_path.iter().cloned());
        if let Some(role) = &outer.role
            && let Some((beside, _)) = role.path.rsplit_once('/')
        {
            folders.push(beside.to_owned());
        }
        folders.push(self.directory.clone());
        folders
    }

    pub(super) fn role_folder(&self, name: &str, outer: &Inherited) -> Option<String> {
        let is_role = |folder: &String| {
            ["tasks/", "defaults/", "vars/", "handlers/", "meta/", "templates/", "files/"]
                .iter()
                .any(|part| self.list(folder).iter().any(|entry| entry == part))
        };
        if name.starts_with('/') {
            return Some(name.to_owned()).filter(is_role);
        }
        // By its text, because a folder before `..` need not exist: `roles: [../..]` beside no `roles/`.
        let climbs = name.split('/').any(|part| part == "..");
        let place = |folder: &String| match join(folder, name) {
            path if climbs => normal_path(&path),
            path => path,
        };
        self.role_folders(outer).iter().map(place).find(is_role)
    }

    fn no_such_role(&mut self, name: &str, from: Option<&Span>, outer: &Inherited) {
        let folders = self.role_folders(outer);
        let known: Vec<String> = folders
            .iter()
            .flat_map(|folder| self.list(folder))
            .filter_map(|entry| entry.strip_suffix('/').map(ToOwned::to_owned))
            .collect();
        let mut error = Diagnostic::error(format!("there is no role `{name}`"));
        if let Some(span) = from {
            error = error.at(span);
        }
        let shown: Vec<&str> =
            folders.iter().map(|folder| if folder.is_empty() { "." } else { folder.as_str() }).collect();
        error = error.note(format!("looked in {}", shown.join(", ")));
        let dots = if name.contains('/') { 0 } else { name.matches('.').count() };
        error = match (suggest(name, known.iter().map(String::as_str)), dots) {
            (Some(near), _) => error.help(format!("did you mean `{near}`?")),
            (None, 2..) => {
                error.help("collections are not read: copy the role into `roles/` beside the playbook")
            }
            (None, _) => {
                error.help("put it into `roles/` beside the playbook, or name its folder with `roles_path`")
            }
        };
        self.error(error);
    }

    /// Returns the folders in which a role's tasks look for files and templates; `folder` is that of the task's file.
    pub(super) fn role_search(&self, role: &Role, folder: &str) -> Arc<[String]> {
        let parents = role.parents.iter().rev().map(|parent| parent.path.clone());
        // Lookups search the role's own tasks too, wherever the file is.
        let others = [folder.to_owned(), format!("{}/tasks", role.path), self.directory.clone()];
        let mut folders = Vec::new();
        for path in std::iter::once(role.path.clone()).chain(parents).chain(others) {
            if !folders.contains(&path) {
                folders.push(path);
            }
        }
        folders.into()
    }

    /// Whether a file exists.
    pub(super) fn is_there(&self, path: &str) -> bool {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = if path.starts_with('/') && folder.is_empty() { "/" } else { folder };
        // During a run, files are read, because the reader gives a resumed run the same answers.
        if self.on {
            return self.library.text(path).is_some() || self.reader.read(path).is_ok();
        }
        self.library.text(path).is_some() || self.list(folder).iter().any(|entry| entry == name)
    }
}

fn block_of(parsed: &ParsedRole, span: &Span) -> Item {
    Item::Block(Arc::new(Block {
        name: Some(parsed.role.name.clone()),
        span: span.clone(),
        is_role: true,
        once: parsed.once.clone(),
        body: Items::clone(&parsed.items),
        rescue: Items::from([]),
        always: Items::from([]),
    }))
}

fn stem(name: &str) -> &str {
    name.strip_suffix(".yml").or_else(|| name.strip_suffix(".yaml")).unwrap_or(name)
}
