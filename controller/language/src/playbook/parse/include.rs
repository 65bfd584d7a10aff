//! Tasks from other files. Imported files are parsed in place, included ones again when they are reached.

use std::sync::Arc;

use gpufleet_protocol::glob::Glob;

use super::role::{RoleCall, RoleParts};
use super::task::Inherited;
use super::{Parser, Reader, directory_of, join, keys};
use crate::diagnostic::{Diagnostic, Severity};
use crate::playbook::library::{Included, Library, Site, Wanted};
use crate::playbook::program::{Block, Item, Items, Parameters, SectionName};
use crate::template::{self, Dict, Scope, Value};
use crate::yaml::{Node, Value as Yaml};

/// Largest number of files that are checked before the run for a templated name.
const MAX_CANDIDATES: usize = 64;
/// Deepest nesting of includes during a run; deeper ones count as endless.
const MAX_DEPTH: usize = 100;

/// Parses what a place includes, from texts that were read before the run or else from the library's late reader.
///
/// # Errors
/// One sentence for people.
pub(in crate::playbook) fn include_again(
    library: &Arc<Library>,
    site: &Site,
    wanted: &Wanted,
    turn: usize,
) -> Result<Included, String> {
    if site.path.matches('+').count() > MAX_DEPTH {
        return Err("files include one another without end".to_owned());
    }
    let nothing = |_: &str| Err(std::io::Error::from(std::io::ErrorKind::NotFound));
    let reader: &dyn Reader = match library.late() {
        Some(late) => late.as_ref(),
        None => &nothing,
    };
    let mut parser = Parser::new(reader, Arc::clone(library));
    parser.on = true;
    parser.directory.clone_from(&site.directory);
    let included = parser.included(site, wanted, turn);
    match (parser.errors.0.into_iter().find(|error| error.severity == Severity::Error), included) {
        (Some(error), _) => Err(error.one_line()),
        (None, Some(included)) => Ok(included),
        (None, None) => Err("there is nothing to include".to_owned()),
    }
}

impl Parser<'_> {
    /// Parses `import_tasks`, as if the tasks of the file were written here.
    pub(super) fn import_tasks(
        &mut self,
        node: &Node,
        key: &Node,
        file: &Node,
        outer: &Inherited,
        path: &str,
    ) -> Option<Item> {
        self.only_shared_keys(node, &key.key_text());
        let name = self.literal_file(file, &key.key_text(), &with_vars(node, outer))?;
        let kept = self.take_references();
        let own = self.inherit(node, outer);
        let references = self.take_references();
        self.block_references(&references, &own);
        let full = self.tasks_file(&name, &own, false);
        let body = self.tasks_of(&full, &name, &own, Some(file), path);
        self.references = kept;
        let name = node.get("name").and_then(|name| self.text("name", name));
        let (rescue, always) = (Items::from([]), Items::from([]));
        Some(Item::Block(Arc::new(Block {
            name,
            span: key.span.clone(),
            is_role: false,
            once: None,
            body,
            rescue,
            always,
        })))
    }

    /// Parses `import_role`, as if the tasks of the role were written here.
    pub(super) fn import_role(
        &mut self,
        node: &Node,
        key: &Node,
        value: &Node,
        outer: &Inherited,
        path: &str,
    ) -> Option<Item> {
        self.only_shared_keys(node, &key.key_text());
        let unknown = value.as_map().map(|_| {
            value.refuse_unknown_keys(
                "`import_role`",
                &[
                    "name",
                    "role",
                    "tasks_from",
                    "vars_from",
                    "defaults_from",
                    "handlers_from",
                    "allow_duplicates",
                    "public",
                    "rolespec_validate",
                ],
            )
        });
        if let Some(unknown) = unknown {
            self.errors.append(unknown);
        }
        let seen = with_vars(node, outer);
        let text = |parser: &mut Self, key: &str| {
            let node = value.get(key)?;
            parser.literal_file(node, key, &seen)
        };
        let Some(naming) = ["name", "role"].into_iter().find(|key| value.get(key).is_some()) else {
            self.error(
                Diagnostic::error("`import_role` needs `name`")
                    .at(&value.span)
                    .help("for example `import_role: {name: gpu_driver}`"),
            );
            return None;
        };
        let name = text(self, naming)?;
        let parts = RoleParts {
            tasks: text(self, "tasks_from"),
            vars: text(self, "vars_from"),
            defaults: text(self, "defaults_from"),
            handlers: text(self, "handlers_from"),
        };
        let validate = value.get("rolespec_validate").is_none_or(|v| v.as_bool() != Some(false));
        let kept = self.take_references();
        let own = self.inherit(node, outer);
        let references = self.take_references();
        self.block_references(&references, &own);
        let call = RoleCall { parts, validate, ..RoleCall::named(&name) };
        let parsed = self.role(&call, Some(&value.span), &own, path);
        self.references = kept;
        let parsed = parsed?;
        self.imported_roles.push(Arc::clone(&parsed.role));
        self.role_handlers_behind.extend(parsed.handlers);
        let name = node.get("name").and_then(|name| self.text("name", name));
        let (rescue, always) = (Items::from([]), Items::from([]));
        let body = parsed.items;
        Some(Item::Block(Arc::new(Block {
            name,
            span: key.span.clone(),
            is_role: true,
            once: None,
            body,
            rescue,
            always,
        })))
    }

    fn only_shared_keys(&mut self, node: &Node, kind: &str) {
        for (other, _) in node.as_map().unwrap_or_default() {
            let text = other.key_text();
            if text == kind || keys::SHARED.contains(&text.as_str()) {
                continue;
            }
            let mut error =
                Diagnostic::error(format!("`{text}` cannot stand beside `{kind}`")).at(&other.span);
            error = if text == "loop" || text.starts_with("with_") || text == "register" {
                error.help(format!(
                    "use `{}`, which is read when its turn comes",
                    kind.replace("import", "include")
                ))
            } else {
                error.help("put it at the tasks of the file")
            };
            self.error(error);
        }
    }

    /// Returns what `include_tasks` or `include_role` needs when it is reached.
    pub(super) fn site(
        &mut self,
        value: &Node,
        params: &Parameters,
        outer: &Inherited,
        own: &Inherited,
        looped: Around<'_>,
        path: &str,
    ) -> Arc<Site> {
        let kept = self.take_references();
        let mut inherited = outer.clone();
        inherited.vars.clone_from(&own.vars);
        inherited.given.clone_from(&own.given);
        inherited.guarded.clone_from(&own.guarded);
        inherited.locals.extend(looped.locals.iter().map(|name| Arc::from(*name)));
        // What is hidden must not be shown by an included file.
        inherited.no_log |= own.no_log;
        inherited.hidden_when.clone_from(&own.hidden_when);
        if let Some(apply) = value.get("apply") {
            if apply.as_map().is_none() {
                self.error(apply.wrong_type("`apply`", "a mapping of keys of tasks"));
            }
            for (key, _) in apply.as_map().unwrap_or_default() {
                let text = key.key_text();
                if !keys::SHARED.contains(&text.as_str()) || text == "name" {
                    self.error(
                        Diagnostic::error(format!("unknown key `{text}`"))
                            .at(&key.span)
                            .label("not a key that tasks and blocks share")
                            .suggest(&text, keys::SHARED.iter().copied()),
                    );
                }
            }
            inherited = self.inherit(apply, &inherited);
            let references = self.take_references();
            self.block_references(&references, &inherited);
        }
        let mut site = Site {
            inherited,
            directory: self.directory.clone(),
            path: Arc::from(path),
            span: value.span.clone(),
            known: Vec::new(),
            complete: true,
        };
        let is_role =
            value.as_map().is_some_and(|_| value.get("name").is_some() || value.get("role").is_some())
                && value.get("file").is_none();
        let name = ["file", "name", "role"].iter().find_map(|key| params.get(key));
        let name = name.and_then(|entry| entry.value.as_str().map(ToOwned::to_owned));
        site.complete = !self.on;
        if let Some(name) = name.filter(|_| !self.on) {
            // A condition may test for that very file, and a failure may be ignored.
            let guarded = !own.when.is_empty() || own.ignore_errors.is_some();
            let named = looped.task.map(files_named).unwrap_or_default();
            let forgiven = own.ignore_errors.is_some();
            self.look_ahead(&mut site, &name, is_role, guarded, params, &named);
            if site.known.is_empty() && !site.complete && !forgiven && !self.doubtful {
                let warning = unseen(&name, is_role).at(&value.span);
                self.warnings.push(warning);
            }
            if site.known.is_empty() && !site.complete {
                // Its tasks are unknown, and may set variables that later tasks read.
                self.open_names |= !guarded || template::is_template(&name);
            }
        }
        self.references = kept;
        Arc::new(site)
    }

    /// Parses what a place can include, for the checks before the run.
    fn look_ahead(
        &mut self,
        site: &mut Site,
        name: &str,
        is_role: bool,
        guarded: bool,
        params: &Parameters,
        named: &[String],
    ) {
        let part = |key: &str| params.get(key).and_then(|entry| entry.value.as_str()).map(ToOwned::to_owned);
        let parts = RoleParts {
            tasks: part("tasks_from"),
            vars: part("vars_from"),
            defaults: part("defaults_from"),
            handlers: part("handlers_from"),
        };
        let open = |text: &Option<String>| text.as_deref().is_some_and(template::is_template);
        let open_parts = [&parts.tasks, &parts.vars, &parts.defaults, &parts.handlers].into_iter().any(open);
        let templated = template::is_template(name) || open_parts;
        if is_role && open_parts {
            site.complete = false;
            return self.look_at_parts(site, name, &parts);
        }
        let wanted = |name: String| match is_role {
            true => Wanted::Role(Box::new(RoleCall { parts: parts.clone(), ..RoleCall::named(&name) })),
            false => Wanted::Tasks { file: name },
        };
        let settled = match templated {
            true => self.settled(name, &site.inherited).filter(|_| !is_role || !template::is_template(name)),
            false => Some(name.to_owned()),
        };
        if let Some(name) = settled {
            let name = if templated { self.beside_playbook(name) } else { name };
            let there = match is_role {
                true => self.role_folder(name.trim_end_matches('/'), &site.inherited).is_some(),
                false => {
                    let path = self.tasks_file(&name, &site.inherited, true);
                    self.is_there(&path)
                }
            };
            if guarded && !there {
                site.complete = false;
                return;
            }
            let only = wanted(name);
            if self.under_way.iter().any(|other| *other == format!("{only:?}")) {
                // It includes itself, and its tasks have been parsed at the outer include.
                return;
            }
            if let Some(included) = self.included(site, &only, 0) {
                site.known.push(included);
            }
            return;
        }
        site.complete = false;
        let candidates: Vec<Wanted> = match is_role {
            true => {
                let roles = self.roles_like(name, &site.inherited);
                roles.iter().map(|role| Wanted::Role(Box::new(RoleCall::named(role)))).collect()
            }
            false => {
                let files = self.files_like(name, &site.inherited, named);
                files.into_iter().map(|file| Wanted::Tasks { file }).collect()
            }
        };
        self.look_at(site, candidates);
    }

    /// Parses the possible parts of a role whose names have templates.
    fn look_at_parts(&mut self, site: &mut Site, name: &str, parts: &RoleParts) {
        let mut candidates = Vec::new();
        for role in self.roles_like(name, &site.inherited) {
            let Some(folder) = self.role_folder(&role, &site.inherited) else { continue };
            let named = |part: &Option<String>, below: &str| -> Vec<Option<String>> {
                match part.as_deref().filter(|part| template::is_template(part)) {
                    None => vec![part.clone()],
                    Some(part) => {
                        let names = self.names_like(&join(&folder, below), &format!("{}*", glob_of(part)));
                        names.into_iter().map(Some).collect()
                    }
                }
            };
            let (vars, defaults, handlers) = (
                named(&parts.vars, "vars"),
                named(&parts.defaults, "defaults"),
                named(&parts.handlers, "handlers"),
            );
            for tasks in named(&parts.tasks, "tasks") {
                for vars in &vars {
                    for defaults in &defaults {
                        for handlers in &handlers {
                            let parts = RoleParts {
                                tasks: tasks.clone(),
                                vars: vars.clone(),
                                defaults: defaults.clone(),
                                handlers: handlers.clone(),
                            };
                            let call = RoleCall { parts, ..RoleCall::named(&role) };
                            candidates.push(Wanted::Role(Box::new(call)));
                        }
                    }
                }
            }
        }
        self.look_at(site, candidates);
    }

    /// Parses the possible files.
    fn look_at(&mut self, site: &mut Site, candidates: Vec<Wanted>) {
        for only in candidates.into_iter().take(MAX_CANDIDATES) {
            if self.under_way.iter().any(|other| *other == format!("{only:?}")) {
                continue;
            }
            // The file may never be included, so its errors are dropped; if it is included, its task fails with them.
            let (errors, warnings) = (self.errors.0.len(), self.warnings.0.len());
            let doubtful = std::mem::replace(&mut self.doubtful, true);
            let included = self.included(site, &only, 0);
            self.doubtful = doubtful;
            let is_right = self.errors.0.len() == errors;
            self.errors.0.truncate(errors);
            self.warnings.0.truncate(warnings);
            if let Some(included) = included.filter(|_| is_right) {
                site.known.push(included);
            }
        }
    }

    /// Parses the tasks that a place includes.
    pub(super) fn included(&mut self, site: &Site, wanted: &Wanted, turn: usize) -> Option<Included> {
        if self.on {
            self.statics.clone_from(&site.inherited.statics);
            self.logs_in.clone_from(&site.inherited.logs_in);
        }
        let kept = self.take_references();
        let blocks = std::mem::take(&mut self.block_references);
        let key = format!("{wanted:?}");
        self.under_way.push(key);
        let again = if turn == 0 { String::new() } else { format!("#{turn}") };
        let included = match wanted {
            Wanted::Tasks { file } => {
                let seen = if self.on { self.beside_playbook(file.clone()) } else { file.clone() };
                let full = self.tasks_file(&seen, &site.inherited, true);
                let path = format!("{}+{file}{again}", site.path);
                let span = Node { value: Yaml::Null, span: site.span.clone() };
                let known = self.errors.0.len();
                let items = self.tasks_of(&full, file, &site.inherited, Some(&span), &path);
                (self.errors.0.len() == known || !self.on).then(|| Included {
                    name: full,
                    items,
                    handlers: Vec::new(),
                    role: None,
                })
            }
            Wanted::Role(call) => {
                let path = format!("{}+{}{again}", site.path, call.name);
                self.role(call, Some(&site.span), &site.inherited, &path).map(|parsed| Included {
                    name: call.name.clone(),
                    items: parsed.items,
                    handlers: parsed.handlers,
                    role: call.public.then(|| Arc::clone(&parsed.role)),
                })
            }
        };
        self.under_way.pop();
        self.block_references.extend(blocks);
        self.references = kept;
        included
    }

    /// Parses the items of a file of tasks.
    pub(super) fn tasks_of(
        &mut self,
        full: &str,
        name: &str,
        own: &Inherited,
        from: Option<&Node>,
        path: &str,
    ) -> Items {
        let mut own = own.clone();
        own.directory = directory_of(full);
        if let Some(role) = own.role.clone() {
            own.search = self.role_search(&role, &own.directory);
        } else if !own.search.contains(&own.directory) {
            own.search = std::iter::once(own.directory.clone()).chain(own.search.iter().cloned()).collect();
        }
        self.imports += 1;
        let items = match self.file(full, from.map(|node| &node.span)) {
            Some(root) => self.items(&root, &own, name, path),
            None => Items::from([]),
        };
        self.imports -= 1;
        items
    }

    /// Returns the path of a file of tasks. As in Ansible, `import_tasks` looks first beside the file that names it,
    /// and `include_tasks` in a role looks there last.
    fn tasks_file(&mut self, name: &str, own: &Inherited, is_include: bool) -> String {
        let beside = join(&own.directory, name);
        let mut others = Vec::new();
        if let Some(role) = &own.role {
            let folder = if own.section == SectionName::Handlers { "handlers" } else { "tasks" };
            let below = |path: &str| join(&format!("{path}/{folder}"), name);
            others.extend([below(&role.path), join(&role.path, name)]);
            others.push(if self.directory.is_empty() { join(folder, name) } else { below(&self.directory) });
        }
        others.push(join(&self.directory, name));
        others.push(name.to_owned());
        let at = if is_include && own.role.is_some() { others.len() } else { 0 };
        others.insert(at, beside.clone());
        others.into_iter().find(|path| self.is_there(path)).unwrap_or(beside)
    }

    /// Renders a name from what is known before any host, but not from the play's variables.
    pub(super) fn settled(&self, name: &str, own: &Inherited) -> Option<String> {
        // Without the play's variables, which a host's may override for included files. Partial, so that a name that
        // only hosts define does not take its default.
        let rendered = template::render(name, &Scope::partial(self.layers_beside(own, &[]))).ok()?;
        rendered.as_str().map(ToOwned::to_owned)
    }

    /// Renders a name that is read before any host is known; as in Ansible, with the play's variables.
    pub(super) fn settled_now(&self, name: &str, own: &Inherited) -> Option<String> {
        let layers = self.layers_beside(own, &self.statics);
        let rendered = template::render(name, &Scope::new(layers)).ok()?;
        rendered.as_str().map(ToOwned::to_owned)
    }

    /// Returns the variables that tasks see before any host is known, in falling precedence.
    pub(super) fn layers_of(&self, own: &Inherited) -> Vec<Arc<Dict>> {
        self.layers_among(own, &self.statics)
    }

    fn layers_among(&self, own: &Inherited, statics: &[Arc<Dict>]) -> Vec<Arc<Dict>> {
        let mut layers: Vec<Arc<Dict>> = vec![Arc::clone(&self.library.extra)];
        layers.extend(own.vars.iter().rev().cloned());
        if let Some(role) = &own.role {
            layers.extend([Arc::clone(&role.params), Arc::clone(&role.vars)]);
        }
        layers.extend(statics.iter().cloned());
        if let Some(role) = &own.role {
            layers.extend([Arc::clone(&role.defaults), Arc::clone(&role.magic)]);
        }
        layers
    }

    fn layers_beside(&self, own: &Inherited, statics: &[Arc<Dict>]) -> Vec<Arc<Dict>> {
        let mut layers = self.layers_among(own, statics);
        let directory = if self.directory.is_empty() { "." } else { &self.directory };
        let fixed: Dict = [("playbook_dir", Value::str(directory))].into_iter().collect();
        layers.push(Arc::new(fixed));
        layers
    }

    /// Returns the files that a templated name may mean: those that the task spells out, and those that match the
    /// name.
    fn files_like(&mut self, name: &str, own: &Inherited, named: &[String]) -> Vec<String> {
        let mut patterns = vec![glob_of(&self.partly_settled(name, own))];
        // Only if the name is nothing but a template: otherwise the loop's texts are only a part of the name.
        if patterns.iter().all(|pattern| pattern == "*") {
            let settled: Vec<String> =
                named.iter().map(|other| glob_of(&self.partly_settled(other, own))).collect();
            patterns.splice(0..0, settled);
        }
        let mut found: Vec<String> = Vec::new();
        for pattern in patterns {
            let pattern = pattern.strip_prefix("./").unwrap_or(&pattern);
            let names = match pattern.rsplit_once('/') {
                None => self.names_like(&own.directory, pattern),
                Some((folder, _)) if folder.contains('*') => Vec::new(),
                Some((folder, last)) => {
                    let beside_playbook = (own.directory != self.directory).then(|| self.directory.clone());
                    let folders = std::iter::once(own.directory.clone()).chain(beside_playbook);
                    let mut names = folders.map(|base| self.names_like(&join(&base, folder), last));
                    let names = names.find(|names| !names.is_empty()).unwrap_or_default();
                    names.into_iter().map(|name| format!("{folder}/{name}")).collect()
                }
            };
            for name in names {
                if !found.contains(&name) {
                    found.push(name);
                }
            }
        }
        found
    }

    /// Replaces the templates of a name that can be rendered, and leaves the others.
    fn partly_settled(&self, name: &str, own: &Inherited) -> String {
        let mut text = String::new();
        let mut rest = name;
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((inside, behind)) = after.split_once("}}") else { break };
            let piece = format!("{{{{{inside}}}}}");
            text.push_str(before);
            text.push_str(&self.settled(&piece, own).unwrap_or(piece));
            rest = behind;
        }
        self.beside_playbook(format!("{text}{rest}"))
    }

    /// Returns a path built with `playbook_dir` or `role_path`, relative to the playbook's folder.
    fn beside_playbook(&self, path: String) -> String {
        let folder = if self.directory.is_empty() { "." } else { &self.directory };
        match path.strip_prefix(folder).and_then(|below| below.strip_prefix('/')) {
            Some(below) => below.to_owned(),
            None => path,
        }
    }

    fn names_like(&self, folder: &str, pattern: &str) -> Vec<String> {
        let glob = Glob::of_stars(pattern);
        let names = self.list(folder);
        names.into_iter().filter(|name| !name.ends_with('/') && glob.matches(name)).collect()
    }

    fn roles_like(&self, name: &str, own: &Inherited) -> Vec<String> {
        let glob = Glob::of_stars(&glob_of(name));
        let mut found = Vec::new();
        for folder in self.role_folders(own) {
            for entry in self.list(&folder) {
                if let Some(role) = entry.strip_suffix('/')
                    && glob.matches(role)
                    && !found.iter().any(|known| known == role)
                {
                    found.push(role.to_owned());
                }
            }
        }
        found
    }
}

/// Returns the warning for an include whose tasks are not known before the run.
fn unseen(name: &str, is_role: bool) -> Diagnostic {
    let what = if is_role { "role" } else { "file of tasks" };
    match template::is_template(name) {
        true => Diagnostic::warning(format!("which {what} this is is not known before the run"))
            .label("none that is there fits")
            .note("its tasks are checked when their turn comes; where it is not there, the task fails"),
        false => Diagnostic::warning(format!("there is no {what} `{name}`"))
            .label("nothing of this name is there")
            .note("a condition may keep this from being done; where it holds, the task fails"),
    }
}

/// The task around an include.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    /// Names that its loop defines.
    pub locals: &'a [&'a str],
    pub task: Option<&'a Node>,
}

/// Returns the file names that a task's loop, variables and templates spell out.
fn files_named(task: &Node) -> Vec<String> {
    let is_file = |text: &str| text.ends_with(".yml") || text.ends_with(".yaml");
    let mut found = Vec::new();
    let mut under_way = vec![task];
    while let Some(node) = under_way.pop() {
        under_way.extend(node.as_map().unwrap_or_default().iter().map(|(_, value)| value));
        under_way.extend(node.as_seq().unwrap_or_default());
        let Some(text) = node.as_str() else { continue };
        if template::is_template(text) {
            let quoted = text.split(['\'', '"']).skip(1).step_by(2);
            found.extend(quoted.filter(|part| is_file(part)).map(ToOwned::to_owned));
        }
        if is_file(text) {
            found.push(text.to_owned());
        }
    }
    found
}

/// Returns what a task with its own variables inherits.
fn with_vars(node: &Node, outer: &Inherited) -> Inherited {
    let mut seen = outer.clone();
    if let Some(Value::Map(own)) = node.get("vars").map(|vars| Value::trusted(&vars.to_json())) {
        seen.vars.push(own);
    }
    seen
}

/// Replaces each template in a text by `*`.
fn glob_of(text: &str) -> String {
    let mut pattern = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        pattern.push_str(before);
        pattern.push('*');
        rest = after.split_once("}}").map_or("", |(_, behind)| behind);
    }
    pattern.push_str(rest);
    pattern
}

impl Diagnostic {
    /// Returns place and message in one line.
    pub(crate) fn one_line(&self) -> String {
        match &self.span {
            Some(span) => format!("{}:{}:{}: {}", span.file(), span.line, span.column, self.message),
            None => self.message.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_may_mean_any_text() {
        assert_eq!(glob_of("{{ a }}-x/{{ b }}.yml"), "*-x/*.yml");
    }
}
