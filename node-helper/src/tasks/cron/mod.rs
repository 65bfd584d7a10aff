//! `cron`: a job or a variable of a user's crontab, or of a file in /etc/cron.d.
//!
//! Files are written here. A user's crontab goes through `crontab`, which checks it and notifies the daemon.

mod table;

use std::{
    io::Write,
    path::{Path, PathBuf},
    time::SystemTime,
};

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    change::CronTable,
    tasks::{Cron, CronState},
};
use serde_json::{Map, Value, json};

use self::table::Table;
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        civil, diff,
        files::{self, At, Ownership},
        tree,
    },
    process::Exit,
    tasks::tool,
    world::{Content, Effect, Entry, Owned},
};

/// Folders of users' crontabs, of which the first that exists is used.
const SPOOLS: &[&str] = &["/var/spool/cron/crontabs", "/var/spool/cron"];
const BRINGS: &str = "the package `cron` or `cronie` brings it";

#[derive(Debug)]
pub struct State {
    table: Table,
    /// The file's content, for messages and to see whether its last line has a line break.
    text: String,
    /// The file, even if `crontab` writes it.
    path: PathBuf,
    user: String,
    /// Whether `crontab` needs to be told the user.
    named: bool,
    /// The name of the file, if Debian's cron leaves it out.
    unread: Option<String>,
}

/// Returns the name of a file in /etc/cron.d that the daemon leaves out for its name. Source: cron(8) of Debian, whose names
/// are those of run-parts(8); cronie (`crond`) takes any but those of backups.
fn unread(node: &Node<'_>, path: &Path) -> Option<String> {
    let is_debians = node.roots.tool("crond").is_none()
        && (node.roots.tool("cron").is_some() || node.roots.etc("debian_version").exists());
    let name = path.file_name()?.to_str()?;
    let is_read = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let in_folder = path.parent() == Some(&node.roots.etc("cron.d"));
    (is_debians && in_folder && !name.chars().all(is_read)).then(|| name.to_owned())
}

#[derive(Debug)]
pub enum Step {
    Write(String),
    Remove,
}

fn listed(node: &Node<'_>, user: Option<&str>) -> Result<String, Trouble> {
    let program = tool::find(node, "crontab", BRINGS)?;
    let run = tool::run(node, program);
    let run = match user {
        Some(user) => run.args(["-u", user, "-l"]),
        None => run.arg("-l"),
    };
    let done = tool::ask(node, &run)?;
    match done.exit {
        Exit::Code(0) => Ok(done.stdout()),
        Exit::Code(1) if done.stderr().contains("no crontab for") => Ok(String::new()),
        _ => Err(Trouble::io(done.complaint("crontab -l"))),
    }
}

impl NodeKind for Cron {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        if let Some(file) = &self.cron_file {
            let path = match file.contains('/') {
                true => node.roots.path(file),
                false => node.roots.etc("cron.d").join(file),
            };
            let text = node.world.read(&path)?.unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let table = Table::parse(&text, false);
            return Ok(State {
                unread: unread(node, &path),
                table,
                text,
                path,
                user: self.user.clone().unwrap_or_default(),
                named: false,
            });
        }
        let acting = match &node.user {
            Some(user) => user.name.clone(),
            None => {
                let uid = rustix::process::geteuid().as_raw();
                node.users.user_name(uid).unwrap_or_else(|| uid.to_string())
            }
        };
        let user = self.user.clone().unwrap_or_else(|| acting.clone());
        node.users.uid(&user)?;
        let named = user != acting;
        let spool = SPOOLS.iter().map(|folder| node.roots.path(folder)).find(|folder| folder.is_dir());
        let path = spool.unwrap_or_else(|| node.roots.path("/var/spool/cron")).join(&user);
        let assumed = match node.world.entry(&path) {
            Ok(Entry::File { content: Content::Known(bytes), .. }) => {
                Some(String::from_utf8_lossy(&bytes).into_owned())
            }
            _ => None,
        };
        let text = match assumed {
            Some(text) => text,
            None => listed(node, named.then_some(user.as_str()))?,
        };
        let table = Table::parse(&text, true);
        Ok(State { text: table_text(&table, &text), table, path, user, named, unread: None })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let present = self.state == CronState::Present;
        if let Some(name) = state.unread.as_ref().filter(|_| present) {
            plan.warnings.push(format!(
                "cron reads no file of this name: `{name}` has another character than letters, digits, `-` and `_`, so that the job \
                 never runs; another `cron_file` would be read"
            ));
        }
        let place = match &self.cron_file {
            Some(_) => CronTable::File(state.path.display().to_string()),
            None => CronTable::User(state.user.clone()),
        };
        let name = self.name.clone();
        let (subject, property, from, to, table) = if self.env {
            let value = self.job.as_deref().filter(|_| present);
            let beside = self.insertafter.as_deref().map(|name| (name, true));
            let beside = beside.or(self.insertbefore.as_deref().map(|name| (name, false)));
            let table = state.table.with_variable(&self.name, value, beside).map_err(|other| {
                Trouble::invalid(format!("there is no variable `{other}` in the {place}"))
            })?;
            let from = state.table.variable(&self.name).map(str::to_owned);
            let to = table.variable(&self.name).map(str::to_owned);
            let subject = Subject::CronVariable { name, table: place.clone() };
            (subject, Property::VALUE, from, to, table)
        } else {
            let job = present.then(|| self.line(&state.user));
            let table = state.table.with_job(&self.name, job.as_deref());
            let from = state.table.job(&self.name).map(str::to_owned);
            let subject = Subject::CronJob { name, table: place.clone() };
            (subject, Property::CONTENT, from, job, table)
        };
        let text = table.text();
        if table == state.table && (state.text.is_empty() || state.text.ends_with('\n')) {
            return Ok(plan);
        }
        let mut change = Change::new(subject, property, from, to, Disruption::Live);
        change.diff = Some(diff::unified(&place.to_string(), &state.text, &text));
        let step = match table.is_empty() && self.cron_file.is_some() && !present {
            true => Step::Remove,
            false => Step::Write(text),
        };
        plan.push(step, change);
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let mode = if self.cron_file.is_some() { 0o644 } else { 0o600 };
        let entry = |step: &Step| match step {
            Step::Remove => Entry::Absent,
            Step::Write(text) => Entry::File {
                owned: Owned { uid: 0, gid: 0, mode },
                content: Content::Known(text.as_bytes().into()),
            },
        };
        plan.steps.iter().map(|step| Effect::Path { path: state.path.clone(), entry: entry(step) }).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut data = Map::new();
        if self.backup && !state.text.is_empty() && !plan.steps.is_empty() {
            let stamp = civil::stamp(SystemTime::now());
            let copy = match &self.cron_file {
                Some(_) => files::back_up(&state.path, &stamp, node.deadline)?,
                None => {
                    // Random letters, because a user who can predict the name could put a link there.
                    let letters = tree::random_letters::<8>().at("make a name in", "/var/tmp")?;
                    let name = format!("crontab.{}.{stamp}.{letters}", state.user);
                    let copy = tree::make_dirs(&node.roots.path("/var/tmp"))?.spot(name);
                    let mut file = copy.create(0o600).at("write", copy.path())?;
                    file.write_all(state.text.as_bytes()).at("write", copy.path())?;
                    copy.path()
                }
            };
            data.insert("backup_file".to_owned(), json!(copy));
        }
        for step in &plan.steps {
            match (step, &self.cron_file) {
                (Step::Remove, _) => tree::spot(&state.path)?.remove().at("remove", &state.path)?,
                (Step::Write(text), Some(_)) => {
                    if let Some(folder) = state.path.parent() {
                        tree::make_dirs(folder)?;
                    }
                    files::replace(&state.path, text.as_bytes(), Ownership::default())?;
                }
                (Step::Write(text), None) => {
                    let program = tool::find(node, "crontab", BRINGS)?;
                    let run = tool::run(node, program);
                    let run = if state.named { run.args(["-u", &state.user]) } else { run };
                    let run = run.arg("-").stdin(text.as_bytes());
                    tool::act(node, &run, &format!("crontab of {}", state.user))?;
                }
            }
        }
        Ok(data)
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("jobs".to_owned(), json!(state.table.jobs()));
        data.insert("envs".to_owned(), json!(state.table.variables()));
        if self.cron_file.is_some() {
            data.insert("cron_file".to_owned(), json!(state.path));
        }
        data
    }
}

/// Returns the text without the header of `crontab`; a missing last line break stays missing.
fn table_text(table: &Table, text: &str) -> String {
    let ends = text.is_empty() || text.ends_with('\n');
    let lines = table.lines.join("\n");
    if ends && !lines.is_empty() { format!("{lines}\n") } else { lines }
}

/// The line of a task in a crontab.
trait Line {
    fn line(&self, user: &str) -> String;
}

impl Line for Cron {
    fn line(&self, user: &str) -> String {
        let mut words: Vec<&str> = Vec::new();
        let special = self.special_time.map(|time| format!("@{time}"));
        match &special {
            Some(time) => words.push(time),
            None => words.extend([
                self.minute.as_str(),
                self.hour.as_str(),
                self.day.as_str(),
                self.month.as_str(),
                self.weekday.as_str(),
            ]),
        }
        if self.cron_file.is_some() {
            words.push(user);
        }
        words.push(self.job.as_deref().unwrap_or_default().trim_matches(['\r', '\n']));
        format!("{}{}", if self.disabled { "#" } else { "" }, words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::Bench;

    /// A fake crontab that keeps the tables in a folder and logs each write.
    const FAKE: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
user=me
[ "$1" = -u ] && { user=$2; shift 2; }
if [ "$1" = -l ]; then
  [ -e $d/broken ] && { echo "must be privileged to use -u" >&2; exit 1; }
  [ -e $d/tabs/$user ] || { echo "no crontab for $user" >&2; exit 1; }
  cat $d/tabs/$user; exit 0
fi
echo "$user" >> $d/log
cat > $d/tabs/$user
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/crontab", FAKE);
        bench.write("tabs/none", "");
        bench.write("log", "");
        bench
    }

    fn cron(value: Value) -> Cron {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_job_is_set_once_and_goes() {
        let bench = bench();
        let task =
            cron(json!({"name": "scrub", "minute": 5, "hour": "*/2", "job": "/bin/scrub -q", "user": "ann"}));
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(bench.snapshot(), before);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(done.changes[0].what(), "job `scrub` in the crontab of ann");
        assert_eq!(bench.read("tabs/ann"), "#Ansible: scrub\n5 */2 * * * /bin/scrub -q\n");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(done.data["jobs"], json!(["scrub"]));
        let off = cron(
            json!({"name": "scrub", "special_time": "daily", "job": "x", "user": "ann", "disabled": true}),
        );
        assert_eq!(bench.run(&off, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("tabs/ann"), "#Ansible: scrub\n#@daily x\n");
        let gone = cron(json!({"name": "scrub", "state": "absent", "user": "ann", "backup": true}));
        assert_eq!(bench.run(&gone, Mode::Apply).changes[0].to_text(), "absent");
        assert_eq!(bench.run(&gone, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.read("log"), "ann\nann\nann\n");
    }

    #[test]
    fn a_file_that_debians_cron_leaves_out_by_its_name_is_told() {
        let bench = bench();
        let task = |file: &str| {
            cron(
                json!({"name": "scrub", "special_time": "daily", "job": "scrub", "user": "ann", "cron_file": file}),
            )
        };
        bench.script("usr/sbin/cron", "#!/bin/sh\n");
        for _ in 0..2 {
            let done = bench.run(&task("gpu.scrub"), Mode::Apply);
            assert!(
                done.warnings[0].starts_with("cron reads no file of this name: `gpu.scrub` has"),
                "{done:?}"
            );
        }
        assert_eq!(bench.run(&task("gpu_scrub-1"), Mode::Apply).warnings, Vec::<String>::new());
        bench.script("usr/sbin/crond", "#!/bin/sh\n");
        assert_eq!(bench.run(&task("gpu.scrub"), Mode::Apply).warnings, Vec::<String>::new());
    }

    #[test]
    fn a_file_of_its_own_names_the_user_and_goes_with_its_last_job() {
        let bench = bench();
        let task = cron(json!({
            "name": "scrub", "special_time": "reboot", "job": "scrub", "user": "ann", "cron_file": "gpu",
        }));
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("etc/cron.d/gpu"), "#Ansible: scrub\n@reboot ann scrub\n");
        let path =
            cron(json!({"name": "PATH", "env": true, "job": "/bin", "user": "ann", "cron_file": "gpu"}));
        assert_eq!(bench.run(&path, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("etc/cron.d/gpu"), "PATH=\"/bin\"\n#Ansible: scrub\n@reboot ann scrub\n");
        assert_eq!(bench.run(&path, Mode::Apply).status, OpStatus::Ok);
        for (name, env) in [("PATH", true), ("scrub", false)] {
            let gone = cron(json!({"name": name, "env": env, "state": "absent", "cron_file": "gpu"}));
            assert_eq!(bench.run(&gone, Mode::Apply).status, OpStatus::Changed);
            assert_eq!(bench.run(&gone, Mode::Apply).status, OpStatus::Ok);
        }
        assert!(!bench.path("etc/cron.d/gpu").exists());
    }

    #[test]
    fn variables_have_their_place_and_missing_neighbours_are_named() {
        let bench = bench();
        bench.write("tabs/ann", "A=1\nB=2");
        let task = |place: &str, other: &str| {
            cron(json!({"name": "C", "env": true, "job": "3", "user": "ann", place: other}))
        };
        let failed = bench.run(&task("insertafter", "Z"), Mode::Apply);
        let OpStatus::Failed { message, .. } = failed.status else { panic!("{failed:?}") };
        assert_eq!(message, "there is no variable `Z` in the crontab of ann");
        assert_eq!(bench.run(&task("insertafter", "A"), Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("tabs/ann"), "A=1\nC=\"3\"\nB=2\n");
    }

    #[test]
    fn a_crontab_that_cannot_be_read_is_unknown() {
        let bench = bench();
        bench.write("broken", "");
        let task = cron(json!({"name": "x", "job": "x", "user": "ann"}));
        let outcome = bench.run(&task, Mode::Predict);
        let OpStatus::Unknown { reason } = outcome.status else { panic!("{outcome:?}") };
        assert_eq!(reason, "crontab -l: exit status 1: must be privileged to use -u");
    }
}
