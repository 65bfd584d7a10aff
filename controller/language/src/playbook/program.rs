//! The typed program.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use gpufleet_protocol::Disruption;
use gpufleet_protocol::disturbing::Disturbance;
use gpufleet_protocol::tasks::{KindInfo, Params, Reboot};
use serde::{Deserialize, Serialize};

use super::library::{Library, Site};
use super::names::{OF_OTHERS, Reference, is_fact};
use super::policy::{OnInterrupt, Policy};
use super::role::Role;
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};
use crate::template::{self, Dict, Scope, TemplateError, Truth, Value};

/// All plays of a run, in order.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub plays: Vec<Arc<Play>>,
    /// Every text that was read, for the journal.
    pub sources: Vec<Arc<SourceFile>>,
    /// Warnings, which do not stop the run.
    pub warnings: Diagnostics,
    /// What tasks include during the run.
    pub library: Arc<Library>,
}

#[derive(Clone, Debug)]
pub struct Play {
    /// The name as written, or the pattern of its hosts.
    pub name: String,
    pub span: Span,
    /// Host patterns, which may be templates over extra variables.
    pub hosts: Vec<(Value, Span)>,
    /// The folder of the playbook, as given.
    pub directory: String,
    /// Tags of the play itself; its tasks have them too.
    pub tags: Vec<String>,
    pub vars: Arc<Dict>,
    /// Variables of `vars_files`, merged in order.
    pub file_vars: Arc<Dict>,
    /// Entries of `vars_files` whose names depend on a host's variables.
    pub late_files: Vec<LateFile>,
    /// Its roles, whose defaults and variables all of its tasks see.
    pub roles: Vec<Arc<Role>>,
    /// Batch sizes; empty means one batch of all hosts.
    pub waves: Vec<Wave>,
    pub max_unavailable: Amount,
    pub(super) max_unavailable_span: Option<Span>,
    pub max_fail_percentage: Option<f64>,
    pub max_failures: Option<u32>,
    /// Further rules for the rollout.
    pub policy: Arc<Policy>,
    pub any_errors_fatal: bool,
    pub strategy: Strategy,
    pub(super) strategy_span: Option<Span>,
    pub gather_facts: bool,
    /// `connection`, which overrides the inventory.
    pub connection: Option<Value>,
    pub order: Order,
    pub ignore_unreachable: bool,
    pub force_handlers: bool,
    pub remote_user: Option<Value>,
    pub port: Option<Value>,
    pub privilege: Privilege,
    pub sections: Vec<Section>,
    pub handlers: Vec<Arc<Task>>,
    /// The highest disruption that any of its tasks may need.
    pub disruption: Disruption,
    /// Whether any task has a `gpu_` kind.
    pub has_gpu_tasks: bool,
    /// Whether a task says what nodes keep, apart from files that are included during the run.
    pub keeps: bool,
    /// Uses in variables, which are rendered where they are used.
    pub(super) var_references: Vec<Reference>,
    pub(super) block_references: Vec<Reference>,
    /// Variables defined by files that its tasks read.
    pub(super) file_names: HashSet<String>,
    /// Variables with a value that uses no other variable.
    pub(super) settled_names: HashSet<String>,
    /// Whether a file of variables is not known before the run.
    pub(super) open_names: bool,
    /// The playbook of the command line that it came with, as the index of that playbook's first play.
    pub playbook: usize,
}

/// Returns every task of these sections, with included ones as far as known before the run.
pub(super) fn tasks_of(sections: &[Section]) -> Vec<&Arc<Task>> {
    fn walk<'a>(items: &'a [Item], found: &mut Vec<&'a Arc<Task>>) {
        for item in items {
            match item {
                Item::Task(task) => {
                    found.push(task);
                    for items in task.site.iter().flat_map(|site| site.known()) {
                        walk(items, found);
                    }
                }
                Item::GpuGroup(tasks) => found.extend(tasks.iter()),
                Item::Block(block) => {
                    walk(&block.body, found);
                    walk(&block.rescue, found);
                    walk(&block.always, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    for section in sections {
        walk(&section.items, &mut found);
    }
    found
}

/// One part of a play; handlers and the verification follow at its end.
#[derive(Clone, Debug)]
pub struct Section {
    pub name: SectionName,
    pub items: Items,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SectionName {
    PreTasks,
    Tasks,
    PostTasks,
    Handlers,
}

impl SectionName {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PreTasks => "pre_tasks",
            Self::Tasks => "tasks",
            Self::PostTasks => "post_tasks",
            Self::Handlers => "handlers",
        }
    }
}

impl fmt::Display for SectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

pub type Items = Arc<[Item]>;

#[derive(Clone, Debug)]
pub enum Item {
    Task(Arc<Task>),
    Block(Arc<Block>),
    /// Consecutive `gpu_` tasks: one desired state.
    GpuGroup(Arc<[Arc<Task>]>),
}

/// Tasks with their rescue; keys of the block have been passed on to its tasks.
#[derive(Clone, Debug)]
pub struct Block {
    pub name: Option<String>,
    pub span: Span,
    /// Whether it is a whole role.
    pub is_role: bool,
    /// For a role that runs only once, the role with its parameters.
    pub once: Option<Arc<str>>,
    pub body: Items,
    pub rescue: Items,
    pub always: Items,
}

impl Item {
    /// Returns its first task.
    pub fn first_task(&self) -> Option<&Arc<Task>> {
        match self {
            Self::Task(task) => Some(task),
            Self::GpuGroup(tasks) => tasks.first(),
            Self::Block(block) => {
                let parts = [&block.body, &block.rescue, &block.always];
                parts.into_iter().flat_map(|part| part.iter()).find_map(Self::first_task)
            }
        }
    }

    /// Whether a failure in it may end the play for all hosts.
    pub fn may_be_fatal(&self) -> bool {
        match self {
            Self::Task(task) => {
                task.any_errors_fatal || task.site.as_ref().is_some_and(|site| site.may_be_fatal())
            }
            Self::GpuGroup(tasks) => tasks.iter().any(|task| task.any_errors_fatal),
            Self::Block(block) => {
                let parts = [&block.body, &block.rescue, &block.always];
                parts.into_iter().flat_map(|part| part.iter()).any(Self::may_be_fatal)
            }
        }
    }
}

/// One task, with what it inherits from its blocks.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its place in the play, such as `tasks.3.rescue.0`; the same for the same text.
    pub path: Arc<str>,
    pub section: SectionName,
    pub name: Option<Value>,
    pub kind: &'static KindInfo,
    /// The kind as written in the playbook, such as `yum` for `dnf`, with its collection.
    pub word: Arc<str>,
    /// The place of the key that names the kind.
    pub span: Span,
    pub params: Parameters,
    /// All must hold. Those of enclosing blocks come first.
    pub when: Vec<Condition>,
    pub looped: Option<Loop>,
    pub register: Option<Arc<str>>,
    pub changed_when: Option<Vec<Condition>>,
    pub failed_when: Option<Vec<Condition>>,
    pub ignore_errors: Flag,
    pub ignore_unreachable: bool,
    pub notify: Vec<Value>,
    pub(super) notify_spans: Vec<Span>,
    /// Topics that a handler listens to, in addition to its name.
    pub listen: Vec<String>,
    pub tags: Vec<String>,
    /// Those of the outermost block first, the task's own last.
    pub vars: Vec<Arc<Dict>>,
    /// Variables of the includes around it, which override all but `-e`; outermost first.
    pub given: Vec<Arc<Dict>>,
    pub privilege: Privilege,
    /// Outermost first.
    pub environment: Vec<Value>,
    pub no_log: bool,
    /// A condition that hides the task too.
    pub hidden_when: Option<Flag>,
    pub timeout_s: Option<u64>,
    /// A template for `timeout_s` that a host's variables decide.
    pub late_timeout: Option<Value>,
    pub run_once: bool,
    /// A template for `run_once` that a host's variables decide.
    pub once_when: Option<Flag>,
    pub any_errors_fatal: bool,
    /// What a resumed run does if the controller died during this task; for command kinds.
    pub on_interrupt: OnInterrupt,
    /// The role that it belongs to.
    pub role: Option<Arc<Role>>,
    /// Folders in which its files are looked for, nearest first.
    pub search: Arc<[String]>,
    pub retry: Option<Retry>,
    /// `async`: it runs in the background on the node.
    pub job: Option<Async>,
    /// The host that runs it on behalf of the play's host.
    pub delegate_to: Option<Value>,
    /// Whether facts that it sets belong to that host.
    pub delegate_facts: bool,
    /// On how many hosts it may run at once.
    pub throttle: Option<Value>,
    /// Whether it only predicts, or acts even in a prediction.
    pub check_mode: Option<Flag>,
    /// Whether it uses variables of other hosts, as far as its text and that of its template show.
    pub asks_for_others: bool,
    /// What an `include_tasks` or `include_role` needs during the run.
    pub site: Option<Arc<Site>>,
    /// What it disturbs beside its kind's class, as far as the text shows before variables are known.
    pub disturbance: Option<Disturbance>,
    pub(super) references: Vec<Reference>,
}

impl Task {
    /// Returns the most that it may disturb, as far as its text shows.
    pub fn disruption(&self) -> Disruption {
        let found = self.disturbance.as_ref().map_or(Disruption::Live, Disturbance::class);
        self.kind.disruption.max(found)
    }

    /// Returns the name as written, or the kind as the playbook names it.
    pub fn title(&self) -> &str {
        self.name.as_ref().and_then(Value::as_str).unwrap_or(&self.word)
    }

    /// Whether it uses one of these variables, as far as its text shows.
    pub fn asks_for(&self, names: &HashSet<Arc<str>>) -> bool {
        self.references.iter().any(|reference| names.contains(reference.name.as_str()))
    }

    /// Returns its name after that of its role, as shown to people; `notify` may use it too.
    pub fn role_title(&self) -> Option<String> {
        self.role.as_ref().map(|role| format!("{} : {}", role.name, self.title()))
    }

    /// Whether it is part of a GPU's desired state.
    pub fn is_gpu(&self) -> bool {
        self.kind.gpus
    }
}

/// `until`, `retries` and `delay`.
#[derive(Clone, Debug)]
pub struct Retry {
    /// If empty, until the task does not fail.
    pub until: Vec<Condition>,
    /// How often it is retried; `None` means three times.
    pub retries: Option<Value>,
    /// Seconds between two tries; `None` means five.
    pub delay: Option<Value>,
}

/// `async` and `poll`.
#[derive(Clone, Debug)]
pub struct Async {
    /// Time limit in seconds.
    pub seconds: Value,
    /// Seconds between two polls; 0 does not wait.
    pub poll: Option<Value>,
}

/// An entry of `vars_files` that depends on variables.
#[derive(Clone, Debug)]
pub struct LateFile {
    /// The first file that exists is used.
    pub names: Vec<Value>,
    pub span: Span,
}

/// How to become another user.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Privilege {
    /// `become`; `None` if not set.
    pub escalate: Option<Flag>,
    pub user: Option<Value>,
}

impl Privilege {
    /// Returns these settings, with those of `outer` where not set.
    #[must_use]
    pub fn over(&self, outer: &Self) -> Self {
        Self {
            escalate: self.escalate.clone().or_else(|| outer.escalate.clone()),
            user: self.user.clone().or_else(|| outer.user.clone()),
        }
    }
}

/// A yes or no that may be a template.
#[derive(Clone, Debug, PartialEq)]
pub enum Flag {
    Fixed(bool),
    Template(Arc<str>),
}

impl Default for Flag {
    fn default() -> Self {
        Self::Fixed(false)
    }
}

impl Flag {
    /// Whether it is yes.
    ///
    /// # Errors
    /// If the template fails, or its value is neither yes nor no.
    pub fn holds(&self, scope: &Arc<Scope>) -> Result<Truth, TemplateError> {
        match self {
            Self::Fixed(true) => Ok(Truth::True),
            Self::Fixed(false) => Ok(Truth::False),
            Self::Template(source) => match template::render(source, scope)? {
                Value::Unknown => Ok(Truth::Unknown),
                value => {
                    let yes = match &value {
                        Value::Str(text) => {
                            matches!(text.to_ascii_lowercase().as_str(), "yes" | "true" | "on" | "1")
                        }
                        other => other.truthy(),
                    };
                    Ok(if yes { Truth::True } else { Truth::False })
                }
            },
        }
    }
}

/// One entry of `when`, `changed_when` or `failed_when`.
#[derive(Clone, Debug)]
pub struct Condition {
    pub text: Arc<str>,
    pub span: Span,
}

impl Condition {
    /// Whether all hold. A false one decides, even if others are unknown.
    ///
    /// # Errors
    /// The first condition that cannot be evaluated, with its error.
    pub fn all<'a>(conditions: &'a [Self], scope: &Arc<Scope>) -> Result<Truth, (&'a Self, TemplateError)> {
        let mut result = Truth::True;
        for condition in conditions {
            match template::condition(&condition.text, scope).map_err(|error| (condition, error))? {
                Truth::False => return Ok(Truth::False),
                Truth::Unknown => result = Truth::Unknown,
                Truth::True => {}
            }
        }
        Ok(result)
    }
}

#[derive(Clone, Debug)]
pub struct Loop {
    /// A list, or a template for one.
    pub items: Value,
    pub span: Span,
    /// `with_items`: nested lists are flattened by one level.
    pub flatten: bool,
    /// `with_dict` and similar: the lookup that makes items of these.
    pub lookup: Option<Arc<str>>,
    pub variable: Arc<str>,
    pub index_variable: Option<Arc<str>>,
    pub label: Option<Value>,
    /// Whether `ansible_loop` describes the whole loop.
    pub extended: bool,
    /// Seconds to wait between two items.
    pub pause: Option<Value>,
    /// Conditions that, if all hold after an item, end the loop.
    pub break_when: Vec<Condition>,
}

/// The parameters of a task as written.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    pub entries: Vec<Parameter>,
    /// The parsed parameters, if they have no templates.
    pub fixed: Option<Arc<Params>>,
}

impl Parameters {
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.entries.iter().find(|entry| &*entry.name == name)
    }
}

#[derive(Clone, Debug)]
pub struct Parameter {
    pub name: Arc<str>,
    pub value: Value,
    pub key_span: Span,
    pub span: Span,
}

/// The size of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wave {
    /// One node of each hardware class.
    Canary,
    Count(u32),
    /// Percentage of all hosts of the play, rounded down, at least one.
    Percent(f64),
}

impl fmt::Display for Wave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Canary => f.write_str("canary"),
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A number of hosts, or a percentage of all.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    Count(u32),
    Percent(f64),
}

impl Amount {
    /// Returns the number of hosts, rounded down; it may be 0.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a host count, never negative and never above it by much"
    )]
    pub fn of(self, hosts: usize) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => (hosts as f64 * percent / 100.0 + 1e-9).floor() as u32,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Whether hosts wait for one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// A task begins when every live host of the batch has ended the one before.
    Linear,
    /// Each host goes on as fast as it can.
    HostPinned,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    #[default]
    Inventory,
    ReverseInventory,
    Sorted,
    ReverseSorted,
    Shuffle,
}

impl Play {
    /// Returns the host pattern, rendered with extra variables.
    ///
    /// # Errors
    /// If a template fails.
    pub fn host_pattern(&self, extra: &Arc<Dict>) -> Result<String, Diagnostics> {
        let parts: Vec<String> = self.host_parts(extra)?.into_iter().map(|(part, _)| part).collect();
        Ok(parts.join(":"))
    }

    /// Returns the parts of [`Self::host_pattern`], each with its place.
    ///
    /// # Errors
    /// If a template fails.
    pub fn host_parts(&self, extra: &Arc<Dict>) -> Result<Vec<(String, Span)>, Diagnostics> {
        let scope = Scope::new(vec![Arc::clone(extra), Arc::clone(&self.vars)]);
        let mut parts = Vec::new();
        for (value, span) in &self.hosts {
            let value = template::resolve(value, &scope).map_err(|error| {
                Diagnostic::error(format!("cannot tell the hosts of the play: {error}"))
                    .at(span)
                    .help("give the variable with `-e`")
            })?;
            match value {
                Value::List(list) => {
                    parts.extend(list.items().iter().map(|item| (item.to_text(), span.clone())));
                }
                other => parts.push((other.to_text(), span.clone())),
            }
        }
        Ok(parts)
    }

    /// Returns the number of hosts in each wave, if the play has `hosts` hosts; the last entry of `waves` repeats.
    ///
    /// `classes` is the number of hardware classes among the hosts, which is the size of a canary.
    pub fn wave_sizes(&self, hosts: usize, classes: usize) -> Vec<usize> {
        let mut sizes = Vec::new();
        let mut left = hosts;
        let mut waves = self.waves.iter();
        let mut current = waves.next();
        while left > 0 {
            let size = match current {
                None => left,
                Some(Wave::Canary) => classes.max(1),
                Some(Wave::Count(count)) => *count as usize,
                Some(Wave::Percent(percent)) => Amount::Percent(*percent).of(hosts) as usize,
            };
            let size = size.clamp(1, left);
            sizes.push(size);
            left -= size;
            if let Some(next) = waves.next() {
                current = Some(next);
            }
        }
        sizes
    }

    /// Returns how many hosts may be out of service at once. Where a limit left hosts of the play out (`limited`), a
    /// percentage is at least one: a person picked the few that are worked on, and a share of them says nothing.
    ///
    /// # Errors
    /// If the budget rounds to 0, or a linear play would wait for it without end.
    pub fn budget(&self, hosts: usize, limited: bool) -> Result<u32, Diagnostics> {
        let least = u32::from(limited && matches!(self.max_unavailable, Amount::Percent(_)));
        let budget = self.max_unavailable.of(hosts).max(least);
        let at = self.max_unavailable_span.as_ref().unwrap_or(&self.span);
        if self.disruption > Disruption::Live && budget == 0 && hosts > 0 {
            return Err(Diagnostic::error(format!(
                "`max_unavailable: {}` of {hosts} host{} is none: no node could ever be disturbed",
                self.max_unavailable,
                if hosts == 1 { "" } else { "s" }
            ))
            .at(at)
            .help("give a number such as `1`, or a larger percentage")
            .into());
        }
        let batch = self.wave_sizes(hosts, 1).into_iter().max().unwrap_or(0);
        if self.disruption > Disruption::Live
            && self.strategy == Strategy::Linear
            && usize::try_from(budget).is_ok_and(|budget| budget < batch)
        {
            return Err(Diagnostic::error(format!(
                "a linear play with batches of {batch} and `max_unavailable` {budget} would wait for itself: \
                 the nodes that are out wait for the others at the next task, and the others wait for the budget"
            ))
            .at(self.strategy_span.as_ref().unwrap_or(at))
            .help("leave out `strategy`, so that each node goes through alone (host_pinned)")
            .help(format!("or make the waves at most {budget} large"))
            .into());
        }
        Ok(budget)
    }

    /// Returns every task, with included ones as far as known before the run; handlers last.
    pub fn tasks(&self) -> Vec<&Arc<Task>> {
        let mut found = tasks_of(&self.sections);
        found.extend(&self.handlers);
        found
    }

    /// Whether anything in it uses a fact, as far as the text shows.
    pub(super) fn asks_for_facts(&self) -> bool {
        let asks = |references: &[Reference]| {
            let mut others = references.iter().filter(|reference| !reference.local);
            others.any(|reference| is_fact(&reference.name) || reference.name == "ansible_facts")
        };
        let of_plays = asks(&self.var_references) || asks(&self.block_references);
        // The tasks of an unknown include may use facts.
        let open =
            |task: &Task| task.site.as_ref().is_some_and(|site| !site.complete && site.known.is_empty());
        of_plays || self.tasks().iter().any(|task| asks(&task.references) || open(task))
    }

    /// Whether its variables use those of other hosts.
    pub fn vars_ask_for_others(&self) -> bool {
        let of_others = |reference: &Reference| OF_OTHERS.contains(&reference.name.as_str());
        self.var_references.iter().chain(&self.block_references).any(of_others)
    }

    /// Whether the play has a reboot task.
    pub fn has_reboot(&self) -> bool {
        self.tasks().iter().any(|task| task.kind.is::<Reboot>())
    }

    /// Returns its connection settings: `remote_user` and `port`, then variables; later ones win.
    pub fn connection_words(&self) -> impl Iterator<Item = (&str, &Value)> {
        let says = |(name, _): &(&str, &Value)| super::parse::CONNECTION.contains(name);
        let user = self.remote_user.as_ref().map(|user| ("remote_user", user));
        let port = self.port.as_ref().map(|port| ("port", port));
        let vars = self.vars.iter().chain(self.file_vars.iter()).map(|(name, value)| (&**name, value));
        user.into_iter().chain(port).chain(vars.filter(says))
    }

    /// Whether it has connection settings.
    pub fn says_how_to_connect(&self) -> bool {
        self.connection_words().next().is_some()
    }

    /// Whether it connects to nodes as another play does, whatever their variables are.
    pub fn connects_as(&self, other: &Self) -> bool {
        let settled = |(_, value): (&str, &Value)| value.is_settled();
        self.connection_words().all(settled) && self.connection_words().eq(other.connection_words())
    }

    /// Whether anything in it becomes another user, as far as the text shows.
    pub fn may_escalate(&self) -> bool {
        let may = |privilege: &Privilege| !matches!(privilege.escalate, None | Some(Flag::Fixed(false)));
        may(&self.privilege) || self.tasks().iter().any(|task| may(&task.privilege))
    }
}
