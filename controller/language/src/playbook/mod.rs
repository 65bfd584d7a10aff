//! Parses playbooks into a typed program, and reports every mistake before any node is contacted.
//!
//! Owns the language of plays, blocks and tasks, and its static checks. Must not know hosts, connections or what a
//! task does; reads files only through the given [`Reader`]. Invariants: a [`Program`] has no unknown key, no unknown
//! kind, no literal parameter that its kind refuses and no template with a syntax error; places point into the text
//! that was read.

mod check;
mod drain;
mod given;
mod library;
mod modules;
mod names;
mod params;
mod parse;
mod policy;
mod program;
mod role;
mod start;
mod tags;
mod vars;

pub use check::Known;
pub use drain::{
    CommandDrain, DRAINERS, Drain, DrainerInfo, EvictionRules, HookSpans, KubectlDrain, KubernetesDrain,
    Login, NoDrain, Notice, NoticeHow, OnMigManager, SettingInfo, Shape, SlurmDrain,
};
pub use library::{Included, Library, Site, Wanted};
pub use modules::{ModuleAdvice, kind_names, module_advice, module_advice_for};
pub use names::{count as count_word, is_fact};
pub use params::{ParamProblem, read_params};
pub use parse::{Reader, RoleCall, RoleParts, VOCABULARY, Vocabulary, key_values, too_large, unavailable};
pub use policy::{Gate, OnInterrupt, Overrides, Policy, PowerCycle, RebootPolicy, RebootVia, Written};
pub use program::{
    Amount, Async, Block, Condition, Flag, Item, Items, LateFile, Loop, Order, Parameter, Parameters, Play,
    Privilege, Program, Retry, Section, SectionName, Strategy, Task, Wave,
};
pub use role::Role;
pub use tags::TagFilter;
pub use vars::read_late_vars;

#[cfg(test)]
mod tests;
