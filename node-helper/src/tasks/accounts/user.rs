//! `user`: a user with groups, home, shell and password.
//!
//! The hash of a password goes to `chpasswd` through a pipe, so that no process list and no message shows it.

use std::{
    collections::BTreeSet,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject, Unit,
    change::Value as Typed,
    tasks::{AccountState, Hidden, UpdatePassword, User},
};
use serde_json::{Map, Value, json};

use super::database::{Database, Shadow, Team};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        civil,
        files::{At, Ownership},
        tree::{self, Dir},
        users::Account,
    },
    process::Exit,
    tasks::tool,
    world::{Effect, Entry, Owned},
};

const DAY: i64 = 86_400;
const BRINGS: &str = "the package `passwd` or `shadow-utils` brings it";

#[derive(Debug)]
pub struct State {
    found: Option<Account>,
    shadow: Option<Shadow>,
    /// Groups that list the user.
    memberships: BTreeSet<String>,
    /// The declared primary group.
    primary: Option<Team>,
    /// The user's present primary group.
    current: Option<String>,
    /// The names of the declared groups.
    groups: Option<BTreeSet<String>>,
    /// Another user with the declared number.
    taken: Option<String>,
    /// The group with the user's name, if any.
    namesake: Option<Team>,
    /// The home directory to create, if it is missing.
    homeless: Option<PathBuf>,
    database: Database,
    etc: PathBuf,
}

#[derive(Debug)]
pub enum Step {
    Add,
    /// With options of `usermod`.
    Modify(Vec<String>),
    /// With the hash to set, including its lock.
    Password(Hidden),
    /// With options of `chage`.
    Ageing(Vec<String>),
    MakeHome,
    Delete,
}

fn locked(hash: &str) -> bool {
    hash.starts_with('!')
}

/// Formats a day for `usermod -e`.
fn date(days: i64) -> String {
    let seconds = u64::try_from(days.max(0) * DAY).unwrap_or_default();
    civil::timestamp(UNIX_EPOCH + Duration::from_secs(seconds)).chars().take(10).collect()
}

/// Returns the day after which an account ends; `None` for never.
fn end_day(expires: i64) -> Option<i64> {
    (expires >= 0).then(|| expires.div_euclid(DAY))
}

fn list(names: &BTreeSet<String>) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn days(value: i64) -> Typed {
    Typed::quantity(value, Unit::Days)
}

impl NodeKind for User {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let asks_shadow = self.password.is_some()
            || self.password_lock.is_some()
            || self.expires.is_some()
            || self.password_expire_max.is_some()
            || self.password_expire_min.is_some()
            || self.password_expire_warn.is_some()
            || self.password_expire_account_disable.is_some();
        let database = Database::read(node, asks_shadow && self.state == AccountState::Present)?;
        let found = database.account(node, &self.name);
        let group = |name: &String| {
            database.team_named(node, name).ok_or_else(|| {
                Trouble::missing(format!(
                    "there is no group `{name}` on this node; a `group` task before this one would make it"
                ))
            })
        };
        let (mut primary, mut groups) = (None, None);
        if self.state == AccountState::Present {
            primary = self.group.as_ref().map(group).transpose()?;
            if let Some(names) = &self.groups {
                let teams: Vec<Team> = names.iter().map(group).collect::<Result<_, _>>()?;
                groups = Some(teams.into_iter().map(|team| team.name).collect::<BTreeSet<_>>());
            }
        }
        let current = found.as_ref().map(|account| {
            let team = database.teams().find(|team| team.gid == account.gid);
            team.map(|team| team.name)
                .or_else(|| node.users.group_name(account.gid))
                .unwrap_or_else(|| account.gid.to_string())
        });
        let other = |account: &Account| Some(account.uid) == self.uid && account.name != self.name;
        let home = match (&self.home, &found) {
            (Some(home), _) => Some(home.clone()),
            (None, Some(found)) => Some(found.home.clone()),
            (None, None) => None,
        };
        let homeless = match home {
            Some(home) if self.create_home && home.starts_with('/') => {
                let path = node.roots.path(home);
                matches!(node.world.follow(&path)?.1, Entry::Absent).then_some(path)
            }
            _ => None,
        };
        let taken = database.accounts().find(other).map(|account| account.name);
        Ok(State {
            shadow: database.shadow(&self.name),
            memberships: database.memberships(&self.name),
            taken,
            namesake: database.team(node, &self.name),
            found,
            primary,
            current,
            groups,
            homeless,
            database,
            etc: node.roots.etc(""),
        })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        match (&state.found, self.state) {
            (None, AccountState::Absent) => {}
            (Some(found), AccountState::Absent) => {
                let from = format!("uid {}", found.uid);
                let to = match self.remove {
                    true => format!("absent, {} too", found.home).into(),
                    false => Typed::Absent,
                };
                plan.push(Step::Delete, self.change(Property::STATE, from, to));
            }
            (None, AccountState::Present) => self.plan_new(state, &mut plan)?,
            (Some(found), AccountState::Present) => self.plan_changes(state, found, &mut plan)?,
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        if plan.steps.is_empty() {
            return Vec::new();
        }
        let mut database = state.database.clone();
        if plan.steps.iter().any(|step| matches!(step, Step::Delete)) {
            database.set_account(&self.name, None);
            database.set_memberships(&self.name, &BTreeSet::new());
            let home = state.found.as_ref().map(|account| PathBuf::from(&account.home));
            let mut effects = database.effects(|name| state.etc.join(name));
            if let (Some(home), true) = (home, self.remove) {
                effects.push(Effect::Path { path: home, entry: Entry::Absent });
            }
            return effects;
        }
        let mut account = state.found.clone().unwrap_or_else(|| self.new_account(state, &mut database));
        account.uid = self.uid.unwrap_or(account.uid);
        account.gid = state.primary.as_ref().map_or(account.gid, |team| team.gid);
        for (field, wanted) in [
            (&mut account.comment, &self.comment),
            (&mut account.home, &self.home),
            (&mut account.shell, &self.shell),
        ] {
            if let Some(wanted) = wanted {
                field.clone_from(wanted);
            }
        }
        database.set_account(&self.name, Some(&account));
        if let Some(groups) = self.memberships(state) {
            database.set_memberships(&self.name, &groups);
        }
        let mut shadow =
            state.shadow.clone().unwrap_or_else(|| Shadow { hash: "!".to_owned(), ..Shadow::default() });
        if let Some(Step::Password(Hidden(hash))) =
            plan.steps.iter().find(|step| matches!(step, Step::Password(_)))
        {
            shadow.hash.clone_from(hash);
        }
        match self.password_lock {
            Some(true) if !locked(&shadow.hash) => shadow.hash.insert(0, '!'),
            Some(false) => shadow.hash = shadow.hash.trim_start_matches('!').to_owned(),
            _ => {}
        }
        shadow.expires = self.expires.map_or(shadow.expires, end_day);
        shadow.max = self.password_expire_max.or(shadow.max);
        shadow.min = self.password_expire_min.or(shadow.min);
        shadow.warn = self.password_expire_warn.or(shadow.warn);
        shadow.inactive = self.password_expire_account_disable.or(shadow.inactive);
        database.set_shadow(&self.name, Some(&shadow));
        let mut effects = database.effects(|name| state.etc.join(name));
        if self.create_home {
            let owned = Owned { uid: account.uid, gid: account.gid, mode: 0o755 };
            let path = state.homeless.clone().unwrap_or_else(|| self.below_root(state, &account.home));
            effects.push(Effect::Path { path, entry: Entry::Directory { owned } });
        }
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut data = Map::new();
        for step in &plan.steps {
            node.check_time()?;
            match step {
                Step::Add => {
                    if let (Some(home), true) = (&self.home, self.create_home)
                        && let Some(parent) = node.roots.path(home).parent()
                    {
                        tree::make_dirs(parent)?;
                    }
                    self.tool(node, "useradd", self.new_options(state))?;
                    data.insert("create_home".to_owned(), json!(self.create_home));
                    data.insert("system".to_owned(), json!(self.system));
                }
                Step::Modify(options) => self.tool(node, "usermod", options.clone())?,
                Step::Ageing(options) => self.tool(node, "chage", options.clone())?,
                Step::Password(Hidden(hash)) => {
                    let path = tool::find(node, "chpasswd", BRINGS)?;
                    let line = format!("{}:{hash}\n", self.name);
                    let run = tool::run(node, path).arg("-e").stdin(line);
                    (node.progress)(format!("chpasswd {}", self.name));
                    let done = run.finish(node.deadline)?;
                    if !done.exit.success() {
                        // None of its output is shown, because it may repeat its input.
                        let message = format!("chpasswd {}: {}", self.name, done.exit);
                        return Err(Trouble::failed(FailureKind::Exit, message));
                    }
                }
                Step::MakeHome => self.make_home(node)?,
                Step::Delete => {
                    let path = tool::find(node, "userdel", BRINGS)?;
                    let options = [(self.force, "-f"), (self.remove, "-r")];
                    let words = options.iter().filter(|(given, _)| *given).map(|(_, option)| *option);
                    let run = tool::run(node, path).args(words).arg(&self.name);
                    (node.progress)(format!("userdel {}", self.name));
                    let done = run.finish(node.deadline)?;
                    // 12 too: the user is removed, but not the home directory, which may never have existed.
                    if !matches!(done.exit, Exit::Code(0 | 12)) {
                        let message = done.complaint(&format!("userdel {}", self.name));
                        return Err(Trouble::failed(FailureKind::Exit, message));
                    }
                    data.insert("remove".to_owned(), json!(self.remove));
                    data.insert("force".to_owned(), json!(self.force));
                }
            }
        }
        Ok(data)
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("name".to_owned(), json!(self.name));
        data.insert("state".to_owned(), json!(self.state));
        if self.state == AccountState::Present {
            data.insert("append".to_owned(), json!(self.append));
            data.insert("move_home".to_owned(), json!(self.move_home));
            if let Some(groups) = &self.groups {
                data.insert("groups".to_owned(), json!(groups.join(",")));
            }
            if self.password.is_some() {
                data.insert("password".to_owned(), json!("NOT_LOGGING_PASSWORD"));
            }
            if let Some(account) = &state.found {
                data.insert("uid".to_owned(), json!(account.uid));
                data.insert("group".to_owned(), json!(account.gid));
                data.insert("comment".to_owned(), json!(account.comment));
                data.insert("home".to_owned(), json!(account.home));
                data.insert("shell".to_owned(), json!(account.shell));
            }
        }
        data
    }
}

/// The helper methods of a `user` task.
trait Wanted {
    fn change(&self, property: Property, from: impl Into<Typed>, to: impl Into<Typed>) -> Change;
    fn hash(&self) -> Option<String>;
    fn memberships(&self, state: &State) -> Option<BTreeSet<String>>;
    fn plan_new(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble>;
    fn plan_changes(&self, state: &State, found: &Account, plan: &mut Plan<Step>) -> Result<(), Trouble>;
    fn plan_password(&self, state: &State, options: &mut Vec<String>, plan: &mut Plan<Step>);
    fn plan_days(&self, shadow: &Shadow, plan: &mut Plan<Step>);
    fn new_options(&self, state: &State) -> Vec<String>;
    fn new_account(&self, state: &State, database: &mut Database) -> Account;
    fn below_root(&self, state: &State, home: &str) -> PathBuf;
    fn tool(&self, node: &Node<'_>, program: &str, options: Vec<String>) -> Result<(), Trouble>;
    fn make_home(&self, node: &Node<'_>) -> Result<(), Trouble>;
    fn taken(&self, state: &State) -> Result<(), Trouble>;
}

impl Wanted for User {
    fn change(&self, property: Property, from: impl Into<Typed>, to: impl Into<Typed>) -> Change {
        Change::new(Subject::user(&self.name), property, from, to, Disruption::Live)
    }

    /// Returns the hash as in the shadow file, including the lock.
    fn hash(&self) -> Option<String> {
        let Hidden(hash) = self.password.as_ref()?;
        Some(match self.password_lock {
            Some(true) => format!("!{}", hash.trim_start_matches('!')),
            _ => hash.clone(),
        })
    }

    /// Returns the groups that shall list the user; `None` if they are not declared.
    fn memberships(&self, state: &State) -> Option<BTreeSet<String>> {
        let mut groups = state.groups.clone()?;
        if self.append {
            groups.extend(state.memberships.iter().cloned());
        }
        Some(groups)
    }

    fn taken(&self, state: &State) -> Result<(), Trouble> {
        match (&state.taken, self.uid, self.non_unique) {
            (Some(other), Some(uid), false) => {
                Err(Trouble::invalid(format!("the user number {uid} belongs to `{other}`")))
            }
            _ => Ok(()),
        }
    }

    fn plan_new(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        self.taken(state)?;
        let mut words = Vec::new();
        words.extend(self.uid.map(|uid| format!("uid {uid}")));
        words.extend(state.primary.as_ref().map(|team| format!("group {}", team.name)));
        words.extend(
            state
                .groups
                .as_ref()
                .filter(|groups| !groups.is_empty())
                .map(|groups| format!("groups {}", list(groups))),
        );
        words.extend(self.home.as_ref().map(|home| format!("home {home}")));
        words.extend(self.shell.as_ref().map(|shell| format!("shell {shell}")));
        let to = if words.is_empty() { "present".into() } else { Typed::list(words) };
        plan.push(Step::Add, self.change(Property::STATE, Typed::Absent, to));
        if let Some(hash) = self.hash() {
            plan.steps.push(Step::Password(Hidden(hash)));
        }
        self.plan_days(&Shadow { hash: "!".to_owned(), ..Shadow::default() }, plan);
        Ok(())
    }

    fn plan_changes(&self, state: &State, found: &Account, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let mut options: Vec<String> = Vec::new();
        let mut option = |words: &[&str]| options.extend(words.iter().map(|word| (*word).to_owned()));
        if let Some(uid) = self.uid.filter(|uid| *uid != found.uid) {
            self.taken(state)?;
            option(&["-u", &uid.to_string()]);
            if self.non_unique {
                option(&["-o"]);
            }
            plan.changes.push(self.change(
                Property::new("uid"),
                Typed::number(found.uid),
                Typed::number(uid),
            ));
        }
        if let Some(team) = state.primary.as_ref().filter(|team| team.gid != found.gid) {
            option(&["-g", &team.gid.to_string()]);
            plan.changes.push(self.change(Property::GROUP, state.current.clone(), &team.name));
        }
        if let Some(groups) = self.memberships(state).filter(|groups| *groups != state.memberships) {
            let names: Vec<&str> = groups.iter().map(String::as_str).collect();
            option(&["-G", &names.join(",")]);
            plan.changes.push(self.change(
                Property::new("groups"),
                Typed::list(&state.memberships),
                Typed::list(&groups),
            ));
        }
        if let Some(comment) = self.comment.as_ref().filter(|comment| **comment != found.comment) {
            option(&["-c", comment]);
            plan.changes.push(self.change(Property::new("comment"), &found.comment, comment));
        }
        if let Some(home) = self.home.as_ref().filter(|home| **home != found.home) {
            option(&["-d", home]);
            if self.move_home {
                option(&["-m"]);
            }
            plan.changes.push(self.change(Property::new("home"), &found.home, home));
        }
        if let Some(shell) = self.shell.as_ref().filter(|shell| **shell != found.shell) {
            option(&["-s", shell]);
            plan.changes.push(self.change(Property::new("shell"), &found.shell, shell));
        }
        self.plan_password(state, &mut options, plan);
        if !options.is_empty() {
            plan.steps.insert(0, Step::Modify(options));
        }
        let moves = self.move_home && self.home.as_ref().is_some_and(|home| *home != found.home);
        if let (Some(path), false) = (&state.homeless, moves) {
            let to = path.display().to_string();
            let change = self.change(Property::HOME_DIRECTORY, Typed::Absent, to);
            plan.push(Step::MakeHome, change);
        }
        Ok(())
    }

    /// Plans password, lock, and the days of the shadow file; changes that `usermod` makes are added to its options.
    fn plan_password(&self, state: &State, options: &mut Vec<String>, plan: &mut Plan<Step>) {
        let Some(shadow) = &state.shadow else {
            if self.password.is_some() || self.password_lock.is_some() {
                plan.warnings
                    .push(format!("/etc/shadow has no line for {}: its password is left alone", self.name));
            }
            return;
        };
        let bare = |hash: &str| hash.trim_start_matches('!').to_owned();
        let wanted = self.hash().filter(|_| self.update_password == UpdatePassword::Always);
        match wanted {
            Some(hash) if bare(&hash) != bare(&shadow.hash) => {
                let change = self.change(Property::PASSWORD, Typed::Secret, Typed::Secret);
                plan.push(Step::Password(Hidden(hash)), change);
            }
            _ => match (self.password_lock, locked(&shadow.hash)) {
                (Some(true), false) => {
                    options.push("-L".to_owned());
                    plan.changes.push(self.change(Property::PASSWORD, "unlocked", "locked"));
                }
                (Some(false), true) if bare(&shadow.hash).is_empty() => plan.warnings.push(format!(
                    "{} has no password: unlocking it would let anybody in, so it stays locked",
                    self.name
                )),
                (Some(false), true) => {
                    options.push("-U".to_owned());
                    plan.changes.push(self.change(Property::PASSWORD, "locked", "unlocked"));
                }
                _ => {}
            },
        }
        if let Some(expires) = self.expires
            && end_day(expires) != shadow.expires.filter(|days| *days >= 0)
        {
            options.extend(["-e".to_owned(), end_day(expires).map_or_else(String::new, date)]);
            let from = shadow.expires.filter(|days| *days >= 0).map(date);
            plan.changes.push(self.change(Property::ACCOUNT_ENDS, from, end_day(expires).map(date)));
        }
        if let Some(wanted) = self.password_expire_account_disable
            && Some(wanted) != shadow.inactive
            && !(wanted < 0 && shadow.inactive.is_none())
        {
            options.extend(["-f".to_owned(), wanted.to_string()]);
            let (property, from) = (Property::new("days until disabled"), shadow.inactive.map(days));
            plan.changes.push(self.change(property, from, days(wanted)));
        }
        self.plan_days(shadow, plan);
    }

    fn plan_days(&self, shadow: &Shadow, plan: &mut Plan<Step>) {
        let mut options = Vec::new();
        let new = matches!(plan.steps.first(), Some(Step::Add));
        for (option, name, wanted, now) in [
            ("-m", "shortest days of a password", self.password_expire_min, shadow.min),
            ("-M", "longest days of a password", self.password_expire_max, shadow.max),
            ("-W", "days of warning", self.password_expire_warn, shadow.warn),
        ] {
            let Some(wanted) = wanted.filter(|days| Some(*days) != now && !(*days < 0 && now.is_none()))
            else {
                continue;
            };
            options.extend([option.to_owned(), wanted.to_string()]);
            if !new {
                plan.changes.push(self.change(Property::new(name), now.map(days), days(wanted)));
            }
        }
        if !options.is_empty() {
            plan.steps.push(Step::Ageing(options));
        }
    }

    fn new_options(&self, state: &State) -> Vec<String> {
        let mut options: Vec<String> = Vec::new();
        let mut option = |words: &[&str]| options.extend(words.iter().map(|word| (*word).to_owned()));
        if let Some(uid) = self.uid {
            option(&["-u", &uid.to_string()]);
            if self.non_unique {
                option(&["-o"]);
            }
        }
        match (&state.primary, &state.namesake) {
            (Some(team), _) => option(&["-g", &team.gid.to_string()]),
            // Otherwise useradd fails when it creates a group with the user's name.
            (None, Some(_)) => option(&["-N"]),
            (None, None) => {}
        }
        if let Some(groups) = state.groups.as_ref().filter(|groups| !groups.is_empty()) {
            let names: Vec<&str> = groups.iter().map(String::as_str).collect();
            option(&["-G", &names.join(",")]);
        }
        for (name, value) in [("-c", &self.comment), ("-d", &self.home), ("-s", &self.shell)] {
            if let Some(value) = value {
                option(&[name, value]);
            }
        }
        if let Some(expires) = self.expires {
            option(&["-e", &end_day(expires).map_or_else(String::new, date)]);
        }
        if let Some(days) = self.password_expire_account_disable {
            option(&["-f", &days.to_string()]);
        }
        if self.create_home {
            option(&["-m"]);
            if let Some(skeleton) = &self.skeleton {
                option(&["-k", skeleton]);
            }
            if let Some(mask) = &self.umask {
                option(&["-K", &format!("UMASK={mask}")]);
            }
        } else {
            option(&["-M"]);
        }
        if self.system {
            option(&["-r"]);
        }
        options
    }

    /// Returns what `useradd` will probably create, including the group.
    fn new_account(&self, state: &State, database: &mut Database) -> Account {
        let uid = self.uid.unwrap_or_else(|| database.free_number(self.system));
        let gid = match (&state.primary, &state.namesake) {
            (Some(team), _) => team.gid,
            (None, Some(_)) => 100,
            (None, None) => {
                let team = Team { name: self.name.clone(), gid: uid, ..Team::default() };
                database.set_team(&self.name, Some(&team));
                uid
            }
        };
        let (name, home) = (self.name.clone(), format!("/home/{}", self.name));
        Account { name, uid, gid, home, shell: "/bin/sh".to_owned(), ..Account::default() }
    }

    fn below_root(&self, state: &State, home: &str) -> PathBuf {
        let root = state.etc.parent().unwrap_or(Path::new("/"));
        root.join(home.trim_start_matches('/'))
    }

    fn tool(&self, node: &Node<'_>, program: &str, options: Vec<String>) -> Result<(), Trouble> {
        let path = tool::find(node, program, BRINGS)?;
        let run = tool::run(node, path).args(options).arg(&self.name);
        tool::act(node, &run, &format!("{program} {}", self.name)).map(drop)
    }

    /// Creates the home directory of an existing user, with the files of the skeleton.
    fn make_home(&self, node: &Node<'_>) -> Result<(), Trouble> {
        let database = Database::read(node, false)?;
        let account = database
            .account(node, &self.name)
            .ok_or_else(|| Trouble::io(format!("there is no user `{}` any more", self.name)))?;
        let home = node.roots.path(&account.home);
        let skeleton = node.roots.path(self.skeleton.as_deref().unwrap_or("/etc/skel"));
        let parent = home.parent().unwrap_or(Path::new("/"));
        let place = tree::make_dirs(parent)?.spot(home.file_name().unwrap_or_default());
        place.make_new_dir(0o700).at("make", &home)?;
        let owner = Ownership { uid: Some(account.uid), gid: Some(account.gid), mode: None };
        if let Some(skeleton) = tree::dir_if_any(&skeleton)? {
            copy_tree(&skeleton, &place.enter()?, owner, node)?;
        }
        let mask = self.umask.as_deref().and_then(|mask| u32::from_str_radix(mask, 8).ok());
        let mode = 0o777 & !mask.unwrap_or(0o022);
        place.own(Ownership { mode: Some(mode), ..owner })?;
        Ok(())
    }
}

/// Copies files, directories and links into an existing directory.
fn copy_tree(from: &Dir, to: &Dir, owner: Ownership, node: &Node<'_>) -> Result<(), Trouble> {
    for name in from.names()? {
        node.check_time()?;
        let (source, target) = (from.spot(&name), to.spot(&name));
        let Some(meta) = source.look()? else { continue };
        if meta.is_dir() {
            target.make_new_dir(0o700).at("make", target.path())?;
            copy_tree(&source.enter()?, &target.enter()?, owner, node)?;
        } else if meta.is_symlink() {
            target.link_to(&source.target()?).at("link", target.path())?;
            continue;
        } else if meta.is_file() {
            let mut file = target.create(0o600).at("copy", source.path())?;
            std::io::copy(&mut node.deadline.reader(source.open()?), &mut file).at("copy", source.path())?;
        } else {
            continue;
        }
        target.own(Ownership { mode: Some(meta.mode() & 0o7777), ..owner })?;
    }
    Ok(())
}
