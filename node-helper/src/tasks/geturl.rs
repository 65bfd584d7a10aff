//! `get_url`: a file of the node with a server's content.
//!
//! With a checksum, the plan is exact. Without one, an existing file counts as right, as in Ansible's manual, unless
//! `force` asks the server each time: then only the run can tell.

use std::{
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, OpOutcome, OpStatus, Property, Subject,
    change::Value as Typed,
    message::Mode,
    tasks::{ChecksumAlgorithm, GetUrl, Wanted as Digest},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        checksum::{self, Digests},
        civil,
        files::{self, At, Fresh, Ownership},
        tree,
    },
    tasks::{
        download::{self, Request, download},
        ownership::{self, Wanted},
    },
    world::{Content, Effect, Entry, Owned},
};

/// Largest file of checksums, in bytes.
const LIST_LIMIT: u64 = 4 * 1024 * 1024;

#[derive(Debug)]
pub struct State {
    dest: PathBuf,
    entry: Entry,
    now: Option<Digests>,
    /// Algorithm, declared checksum and present checksum.
    checksum: Option<(ChecksumAlgorithm, String, Option<String>)>,
    ownership: Wanted,
}

#[derive(Debug)]
pub enum Step {
    Download,
    Own(Ownership),
}

fn request(task: &GetUrl) -> Request<'_> {
    Request {
        url: &task.url,
        headers: Some(&task.headers),
        user: task
            .url_username
            .as_deref()
            .map(|name| (name, task.url_password.as_deref().unwrap_or_default())),
        timeout_s: task.timeout,
        validate_certs: task.validate_certs,
        use_proxy: task.use_proxy,
        agent: &task.http_agent,
        most: u64::MAX,
    }
}

/// Finds the checksum of a file in a list: `CHECKSUM  name`, `CHECKSUM *./name`, `ALGORITHM (name) = CHECKSUM`, or a
/// checksum alone.
fn listed(text: &str, name: &str, algorithm: ChecksumAlgorithm) -> Option<String> {
    let is_digest =
        |word: &str| word.len() == algorithm.digits() && word.bytes().all(|b| b.is_ascii_hexdigit());
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if let [line] = lines.as_slice()
        && is_digest(line)
    {
        return Some(line.to_ascii_lowercase());
    }
    lines.iter().find_map(|line| {
        if let Some((named, digest)) = line.rsplit_once(") = ") {
            let file = named.split_once('(').map(|(_, file)| file)?;
            return (file.rsplit('/').next() == Some(name) && is_digest(digest))
                .then(|| digest.to_ascii_lowercase());
        }
        let (digest, file) = line.split_once(char::is_whitespace)?;
        let file = file.trim_start().trim_start_matches('*');
        (is_digest(digest) && file.rsplit('/').next() == Some(name)).then(|| digest.to_ascii_lowercase())
    })
}

fn wanted(task: &GetUrl, node: &Node<'_>) -> Result<Option<(ChecksumAlgorithm, String)>, Trouble> {
    Ok(match task.wanted().map_err(Trouble::invalid)? {
        None => None,
        Some((algorithm, Digest::Digest(digest))) => Some((algorithm, digest)),
        Some((algorithm, Digest::ListedAt(url))) => {
            let list = Request { url: &url, most: LIST_LIMIT, ..request(task) };
            let bytes = node.downloads.get(&list, node)?.bytes()?;
            let text = String::from_utf8_lossy(&bytes);
            let digest = listed(&text, task.name(), algorithm).ok_or_else(|| {
                Trouble::invalid(format!(
                    "Unable to find a checksum for file '{}' in '{}'",
                    task.name(),
                    download::shown(&url)
                ))
            })?;
            Some((algorithm, digest))
        }
    })
}

impl NodeKind for GetUrl {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let (place, there) = node.world.follow(&node.roots.path(&self.dest))?;
        let into = matches!(there, Entry::Directory { .. });
        if !into && self.dest.ends_with('/') {
            return Err(Trouble::invalid(format!("the directory {} does not exist", self.dest)));
        }
        let (dest, entry) = if into { node.world.follow(&place.join(self.name()))? } else { (place, there) };
        match &entry {
            Entry::Directory { .. } | Entry::Other { .. } => {
                return Err(Trouble::invalid(format!(
                    "{} is a {}, not a file",
                    dest.display(),
                    entry.what()
                )));
            }
            _ => {}
        }
        let folder = dest.parent().unwrap_or(Path::new("/"));
        if !matches!(node.world.follow(folder)?.1, Entry::Directory { .. }) {
            return Err(Trouble::invalid(format!("Destination {} does not exist", folder.display())));
        }
        let now = match &entry {
            Entry::File { content, .. } => Some(node.world.digests(content, node.deadline)?),
            _ => None,
        };
        let checksum = wanted(self, node)?.map(|(algorithm, digest)| -> Result<_, Trouble> {
            let there = match (&entry, algorithm) {
                (Entry::File { content: Content::On(path), .. }, algorithm) => {
                    let file = node.deadline.reader(tree::open(path)?);
                    Some(checksum::of(algorithm, file).at("read", path)?)
                }
                (_, ChecksumAlgorithm::Sha256) => now.as_ref().map(|now| now.sha256.clone()),
                (_, ChecksumAlgorithm::Sha1) => now.as_ref().and_then(|now| now.sha1.clone()),
                _ => None,
            };
            Ok((algorithm, digest, there))
        });
        let ownership =
            Wanted::resolve(node.users, self.owner.as_deref(), self.group.as_deref(), self.mode.as_ref())?;
        Ok(State { dest, entry, now, checksum: checksum.transpose()?, ownership })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        plan_as(self, state, self.force)
    }

    fn left(&self, state: &State, _: &Plan<Step>) -> Result<Plan<Step>, Trouble> {
        plan_as(self, state, false)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        if plan.steps.is_empty() {
            return Vec::new();
        }
        let mut owned = state.entry.owned().unwrap_or_else(|| new_file(&state.ownership));
        for step in &plan.steps {
            if let Step::Own(set) = step {
                owned.uid = set.uid.unwrap_or(owned.uid);
                owned.gid = set.gid.unwrap_or(owned.gid);
                owned.mode = set.mode.unwrap_or(owned.mode);
            }
        }
        let content = match (&state.entry, &state.checksum) {
            (Entry::File { content, .. }, _) if !plan.steps.iter().any(|s| matches!(s, Step::Download)) => {
                content.clone()
            }
            (_, Some((ChecksumAlgorithm::Sha256, sha256, _))) => {
                Content::Digest { sha256: sha256.clone(), size: 0 }
            }
            _ => Content::Digest { sha256: String::new(), size: 0 },
        };
        vec![Effect::Path { path: state.dest.clone(), entry: Entry::File { owned, content } }]
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut data = Map::new();
        for step in &plan.steps {
            match step {
                Step::Download => put(self, node, state, &mut data)?,
                Step::Own(set) => tree::own(&state.dest, *set)?,
            }
        }
        Ok(data)
    }

    fn subject(&self, state: &State) -> Option<PathBuf> {
        Some(state.dest.clone())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("url".to_owned(), json!(download::shown(&self.url)));
        data.insert("dest".to_owned(), json!(shown(self, state)));
        data.insert("checksum_dest".to_owned(), json!(state.now.as_ref().and_then(|now| now.sha1.clone())));
        data.insert("msg".to_owned(), json!("file already exists"));
        data.insert("elapsed".to_owned(), json!(0));
        data
    }
}

/// Returns the destination for messages.
fn shown(task: &GetUrl, state: &State) -> String {
    let dest = task.dest.trim_end_matches('/');
    let into = state.dest.file_name().is_some_and(|name| !dest.ends_with(&*name.to_string_lossy()));
    if into { format!("{dest}/{}", task.name()) } else { task.dest.clone() }
}

fn new_file(wanted: &Wanted) -> Owned {
    Owned {
        uid: wanted.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
        gid: wanted.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
        mode: wanted.bits(0o644, false).ok().flatten().unwrap_or(0o644),
    }
}

/// Plans a download; with `again` also of a file that is already there.
fn plan_as(task: &GetUrl, state: &State, again: bool) -> Result<Plan<Step>, Trouble> {
    let mut plan = Plan::default();
    let missing = state.now.is_none();
    let wrong = match &state.checksum {
        Some((_, wanted, now)) => now.as_ref() != Some(wanted),
        None => false,
    };
    if missing || wrong || again {
        let digest = |algorithm: &dyn std::fmt::Display, value: &str| Typed::Digest {
            algorithm: algorithm.to_string(),
            value: value.to_owned(),
            bytes: None,
        };
        let from = match (&state.checksum, missing) {
            (_, true) => Typed::Absent,
            (Some((algorithm, _, Some(now))), _) => digest(algorithm, now),
            _ => "a file".into(),
        };
        let to = match &state.checksum {
            Some((algorithm, wanted, _)) => digest(algorithm, wanted),
            None => format!("what {} gives", download::shown(&task.url)).into(),
        };
        let file = Subject::file(shown(task, state));
        plan.push(Step::Download, Change::new(file, Property::CONTENT, from, to, Disruption::Live));
    }
    if let Entry::File { owned, .. } = &state.entry {
        let (set, changes) = ownership::differences(&shown(task, state), *owned, &state.ownership, false)?;
        if !changes.is_empty() {
            plan.steps.push(Step::Own(set));
            plan.changes.extend(changes);
        }
    }
    Ok(plan)
}

fn put(task: &GetUrl, node: &Node<'_>, state: &State, data: &mut Map<String, Value>) -> Result<(), Trouble> {
    let begun = Instant::now();
    let fresh = match &task.tmp_dest {
        Some(folder) => Fresh::beside(&node.roots.path(folder).join("download"))?,
        None => Fresh::beside(&state.dest)?,
    };
    let status = download(&request(task), fresh.file(), node)?;
    let got = checksum::digests(node.deadline.reader(fresh.content()?)).at("read", fresh.temporary())?;
    if let Some((algorithm, wanted, _)) = &state.checksum {
        let sum =
            checksum::of(*algorithm, node.deadline.reader(fresh.content()?)).at("read", fresh.temporary())?;
        if sum != *wanted {
            return Err(Trouble::failed(
                FailureKind::Invalid,
                format!(
                    "The checksum for {} did not match {wanted}; it was {sum}. {} was left as it is.",
                    download::shown(&task.url),
                    shown(task, state)
                ),
            ));
        }
    }
    data.insert("elapsed".to_owned(), json!(begun.elapsed().as_secs()));
    data.insert("status_code".to_owned(), json!(status));
    data.insert("checksum_src".to_owned(), json!(got.sha1));
    data.insert("checksum_dest".to_owned(), json!(state.now.as_ref().and_then(|now| now.sha1.clone())));
    data.insert("msg".to_owned(), json!(format!("OK ({} bytes)", got.size)));
    if state.now.as_ref().is_some_and(|now| now.sha256 == got.sha256) {
        data.insert("same".to_owned(), json!(true));
        return Ok(());
    }
    let mut fresh = fresh;
    if task.tmp_dest.is_some() {
        fresh = moved(&fresh, &state.dest, node)?;
    }
    if state.now.is_some() {
        fresh.adopt()?;
        if task.backup {
            let copy = files::back_up(&state.dest, &civil::stamp(SystemTime::now()), node.deadline)?;
            data.insert("backup_file".to_owned(), json!(copy));
        }
    } else {
        let new = new_file(&state.ownership);
        fresh.own(Ownership { uid: state.ownership.uid, gid: state.ownership.gid, mode: Some(new.mode) })?;
    }
    fresh.place()?;
    Ok(())
}

/// Copies the content to the folder of its destination.
fn moved(fresh: &Fresh, dest: &Path, node: &Node<'_>) -> Result<Fresh, Trouble> {
    let beside = Fresh::beside(dest)?;
    std::io::copy(&mut node.deadline.reader(fresh.content()?), &mut beside.file()).at("write", dest)?;
    Ok(beside)
}

/// Corrects the outcome of a forced download, which only the run can judge.
pub fn settle(task: &GetUrl, mode: Mode, mut outcome: OpOutcome) -> OpOutcome {
    let same = outcome.data.remove("same").is_some();
    let forced = task.force && outcome.status == OpStatus::Changed && outcome.changes.len() == 1;
    let exists = outcome.changes.first().is_some_and(|change| change.from != Typed::Absent);
    match mode {
        Mode::Predict if forced && exists => OpOutcome::new(OpStatus::Possible),
        Mode::Apply if forced && same => {
            outcome.status = OpStatus::Ok;
            outcome.changes.clear();
            outcome
        }
        _ => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tasks::testing::Bench;

    /// A fake curl that reads its settings and copies a file of the node.
    const CURL: &str = r#"#!/bin/sh
settings=$(cat)
url=$(printf '%s\n' "$settings" | sed -n 's/^url = "\(.*\)"$/\1/p')
root=$(dirname "$0")/../..
printf '%s\n' "$*" >> "$root/srv/arguments"
printf '%s\n' "$settings" >> "$root/srv/settings"
file="$root/srv/www/${url##*/}"
[ -f "$file" ] || { echo "curl: (22) The requested URL returned error: 404" >&2; exit 22; }
cat "$file"
printf '\ngpufleet-http-status 200'
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/curl", CURL);
        bench.write("srv/www/tool", "tool\n");
        bench.write("opt/keep", "");
        bench
    }

    fn task(value: Value) -> GetUrl {
        let mut value = value;
        value["url"] = json!("https://example.com/v1/tool");
        value["dest"].as_str().map(str::to_owned).unwrap_or_else(|| {
            value["dest"] = json!("/opt/tool");
            String::new()
        });
        serde_json::from_value(value).unwrap()
    }

    fn run(bench: &Bench, task: &GetUrl, mode: Mode) -> OpOutcome {
        settle(task, mode, bench.run(task, mode))
    }

    #[test]
    fn a_file_is_downloaded_once() {
        let bench = bench();
        let task = task(json!({"mode": "0755", "checksum": format!("sha256:{}", files::sha256(b"tool\n"))}));
        assert_eq!(run(&bench, &task, Mode::Predict).status, OpStatus::Changed);
        assert!(!bench.path("srv/settings").exists(), "a prediction asks nobody");
        let done = run(&bench, &task, Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert_eq!(
            (&done.data["msg"], &done.data["status_code"], &done.data["mode"]),
            (&json!("OK (5 bytes)"), &json!(200), &json!("0755"))
        );
        assert_eq!(bench.read("opt/tool"), "tool\n");
        let again = run(&bench, &task, Mode::Apply);
        assert_eq!(again.status, OpStatus::Ok);
        bench.write("opt/tool", "other\n");
        bench.forget();
        assert_eq!(run(&bench, &task, Mode::Predict).status, OpStatus::Changed);
        assert_eq!(run(&bench, &task, Mode::Apply).status, OpStatus::Changed);
    }

    #[test]
    fn a_wrong_checksum_leaves_nothing() {
        let bench = bench();
        let task = task(json!({"checksum": format!("md5:{}", "0".repeat(32))}));
        let done = run(&bench, &task, Mode::Apply);
        let OpStatus::Failed { message, .. } = &done.status else { panic!("{done:?}") };
        assert!(message.contains("did not match 0000"), "{message}");
        assert!(!bench.path("opt/tool").exists() && crate::tasks::testing::tidy(&bench.path("opt")));
    }

    #[test]
    fn a_list_of_checksums_is_read() {
        let bench = bench();
        let sum = files::sha256(b"tool\n");
        bench.write("srv/www/SUMS", &format!("{}  other\n{sum} *./tool\n", "1".repeat(64)));
        let listed = task(json!({"checksum": "sha256:https://example.com/SUMS"}));
        assert_eq!(run(&bench, &listed, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(run(&bench, &listed, Mode::Apply).status, OpStatus::Ok);
        let named =
            super::listed(&format!("SHA256 (dist/tool) = {sum}\n"), "tool", ChecksumAlgorithm::Sha256);
        assert_eq!(named, Some(sum.clone()));
        assert_eq!(super::listed(&sum, "any", ChecksumAlgorithm::Sha256), Some(sum));
        assert_eq!(super::listed("nothing here", "tool", ChecksumAlgorithm::Sha256), None);
    }

    #[test]
    fn a_list_of_checksums_that_is_too_long_is_refused() {
        let bench = bench();
        let line = format!("{}  tool\n", files::sha256(b"tool\n"));
        bench.write("srv/www/SUMS", &(line + &"x".repeat(LIST_LIMIT as usize)));
        let done =
            run(&bench, &task(json!({"checksum": "sha256:https://me:hush@example.com/SUMS"})), Mode::Apply);
        let OpStatus::Failed { message, .. } = &done.status else { panic!("{done:?}") };
        assert!(
            message.contains("https://example.com/SUMS: what it gives is larger than the 4 MiB"),
            "{message}"
        );
    }

    #[test]
    fn force_asks_again_and_keeps_what_is_the_same() {
        let bench = bench();
        let task = task(json!({"force": true, "backup": true}));
        assert_eq!(run(&bench, &task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(run(&bench, &task, Mode::Predict).status, OpStatus::Possible);
        bench.forget();
        let same = run(&bench, &task, Mode::Apply);
        assert_eq!((&same.status, same.changes.len()), (&OpStatus::Ok, 0));
        bench.write("srv/www/tool", "newer\n");
        let newer = run(&bench, &task, Mode::Apply);
        assert!(newer.data.contains_key("backup_file"), "{newer:?}");
        assert_eq!(bench.read("opt/tool"), "newer\n");
    }

    #[test]
    fn secrets_are_in_no_command_line() {
        let bench = bench();
        let task = task(json!({"username": "me", "password": "hush\"x", "headers": {"X-Token": "hush2"}}));
        assert_eq!(run(&bench, &task, Mode::Apply).status, OpStatus::Changed);
        assert!(!bench.read("srv/arguments").contains("hush"));
        assert!(bench.read("srv/settings").contains("user = \"me:hush\\\"x\""));
        assert!(bench.read("srv/settings").contains("header = \"X-Token: hush2\""));
    }

    #[test]
    fn a_server_that_refuses_and_a_node_without_programs_say_so() {
        let bench = bench();
        fs::remove_file(bench.path("srv/www/tool")).unwrap();
        let done = run(&bench, &task(json!({})), Mode::Apply);
        assert!(
            matches!(&done.status, OpStatus::Failed { message, .. } if message.contains("404")),
            "{done:?}"
        );
    }

    #[test]
    fn names_in_addresses_are_not_shown() {
        for (url, wanted) in [
            ("https://me:hush@example.com/x@y", "https://example.com/x@y"),
            ("https://example.com/x", "https://example.com/x"),
            ("https://me@h?a=b@c", "https://h?a=b@c"),
        ] {
            assert_eq!(download::shown(url), wanted);
        }
    }

    #[test]
    fn a_directory_takes_the_name_of_the_address() {
        let bench = bench();
        let task = task(json!({"dest": "/opt"}));
        let done = run(&bench, &task, Mode::Apply);
        assert_eq!(done.data["dest"], "/opt/tool");
        assert_eq!(bench.read("opt/tool"), "tool\n");
        assert_eq!(run(&bench, &task, Mode::Apply).status, OpStatus::Ok);
    }
}
