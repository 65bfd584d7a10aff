//! `yum_repository`: one section of a file of dnf; other sections stay as they are.

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    change::Value as Typed,
    repository::{repo_file, sources},
    tasks::{RepositoryState, YumRepository},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::files::Ownership,
    tasks::{
        edits::{Present, Step, by_steps},
        ownership::Wanted,
    },
    world::Entry,
};

#[derive(Debug)]
pub struct State {
    file: Present,
    wanted: Wanted,
}

/// Returns a section's lines without passwords.
fn shown(text: &str) -> String {
    let hidden = |line: &str| {
        let name = line.split(['=', ':']).next().unwrap_or_default().trim().to_ascii_lowercase();
        YumRepository::SECRET.contains(&name.as_str()).then(|| format!("{name} = ********"))
    };
    text.lines().map(|line| hidden(line).unwrap_or_else(|| sources::shown(line)) + "\n").collect()
}

impl NodeKind for YumRepository {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        if !matches!(node.world.follow(&node.roots.path(&self.reposdir))?.1, Entry::Directory { .. }) {
            return Err(Trouble::missing(format!("Repo directory '{}' does not exist.", self.reposdir)));
        }
        let wanted =
            Wanted::resolve(node.users, self.owner.as_deref(), self.group.as_deref(), self.mode.as_ref())?;
        Ok(State { file: Present::read(node, &self.path())?, wanted })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let file = &state.file;
        let text = file.text()?;
        let wrong =
            |why: String| Trouble::invalid(format!("{} is no file of repositories: {why}", file.shown));
        let options = self.options();
        let found = repo_file::sections(text).map_err(wrong)?.into_iter().find(|one| one.name == self.name);
        let present = self.state == RepositoryState::Present;
        let same = match &found {
            Some(section) => present && section.has(&options),
            None => !present,
        };
        if same {
            if file.bytes.is_some() {
                file.plan_ownership(&state.wanted, &mut plan)?;
            }
            return Ok(plan);
        }
        let from = found.map_or(Typed::Absent, |section| shown(section.text(text)).into());
        let (new, to) = match present {
            true => (
                Some(repo_file::with_section(text, &self.name, &options).map_err(wrong)?),
                shown(&repo_file::written(&self.name, &options)).into(),
            ),
            false => (repo_file::without_section(text, &self.name).map_err(wrong)?, Typed::Absent),
        };
        let subject = Subject::Block { path: file.shown.clone(), marker: format!("[{}]", self.name) };
        let mut change = Change::new(subject, Property::CONTENT, from, to, Disruption::Live);
        let after = new.as_deref().unwrap_or_default();
        change.diff = file.diff(after, shown(text) != text || shown(after) != after);
        match new {
            Some(new) if file.bytes.is_none() => {
                let Wanted { uid, gid, .. } = state.wanted;
                let own = Ownership { uid, gid, mode: state.wanted.bits(0o644, false)? };
                plan.steps.extend(file.written(new, own));
                plan.changes.push(change);
            }
            Some(new) => {
                plan.steps.extend(file.written(new, Ownership::default()));
                plan.changes.push(change);
                file.plan_ownership(&state.wanted, &mut plan)?;
            }
            None => plan.push(file.removed(), change),
        }
        Ok(plan)
    }

    by_steps!();

    fn data(&self, _: &State) -> Map<String, Value> {
        let data = [("repo", json!(self.name)), ("state", json!(self.state))];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::Bench;

    fn task(value: Value) -> YumRepository {
        serde_json::from_value(value).unwrap()
    }

    fn bench() -> Bench {
        let bench = Bench::new();
        std::fs::create_dir_all(bench.path("etc/yum.repos.d")).unwrap();
        bench
    }

    #[test]
    fn a_section_is_written_changed_and_removed() {
        let bench = bench();
        let cuda = json!({"name": "cuda", "description": "CUDA", "baseurl": "http://a", "gpgcheck": true, "mode": "0640"});
        let predicted = bench.run(&task(cuda.clone()), Mode::Predict);
        assert!(!bench.path("etc/yum.repos.d/cuda.repo").exists());
        bench.forget();
        let applied = bench.run(&task(cuda.clone()), Mode::Apply);
        assert_eq!((&applied.status, &applied.changes), (&OpStatus::Changed, &predicted.changes));
        let text = "[cuda]\nbaseurl = http://a\ngpgcheck = 1\nname = CUDA\n\n";
        assert_eq!(bench.read("etc/yum.repos.d/cuda.repo"), text);
        assert_eq!(bench.run(&task(cuda.clone()), Mode::Apply).status, OpStatus::Ok);
        // Written in another way, it says the same.
        bench.write(
            "etc/yum.repos.d/cuda.repo",
            "# ours\n[cuda]\nname=CUDA\ngpgcheck=1\nbaseurl=http://a\n[b]\nname=b\n",
        );
        std::fs::set_permissions(
            bench.path("etc/yum.repos.d/cuda.repo"),
            std::os::unix::fs::PermissionsExt::from_mode(0o640),
        )
        .unwrap();
        assert_eq!(bench.run(&task(cuda), Mode::Apply).status, OpStatus::Ok);
        bench.run(&task(json!({"name": "cuda", "state": "absent"})), Mode::Apply);
        assert_eq!(bench.read("etc/yum.repos.d/cuda.repo"), "# ours\n[b]\nname=b\n");
        let last = bench.run(&task(json!({"name": "b", "file": "cuda", "state": "absent"})), Mode::Apply);
        assert_eq!((last.data["repo"].as_str(), last.data["state"].as_str()), (Some("b"), Some("absent")));
        assert!(!bench.path("etc/yum.repos.d/cuda.repo").exists());
    }

    #[test]
    fn passwords_are_not_shown() {
        let bench = bench();
        let declared = json!({
            "name": "x", "description": "x", "baseurl": "https://me:hidden1@a", "password": "hidden2",
        });
        let predicted = bench.run(&task(declared.clone()), Mode::Predict);
        bench.forget();
        bench.run(&task(declared), Mode::Apply);
        assert!(bench.read("etc/yum.repos.d/x.repo").contains("password = hidden2"));
        let gone = bench.run(&task(json!({"name": "x", "state": "absent"})), Mode::Predict);
        for outcome in [predicted, gone] {
            assert!(!serde_json::to_string(&outcome).unwrap().contains("hidden"), "{outcome:?}");
        }
    }

    #[test]
    fn a_broken_file_is_left_alone() {
        let bench = bench();
        bench.write("etc/yum.repos.d/x.repo", "nonsense\n");
        let failed = bench.run(&task(json!({"name": "x", "state": "absent"})), Mode::Apply);
        let OpStatus::Failed { message, .. } = failed.status else { panic!("{failed:?}") };
        assert_eq!(
            message,
            "/etc/yum.repos.d/x.repo is no file of repositories: line 1: `nonsense` stands before the first section"
        );
        assert!(matches!(
            Bench::new().run(&task(json!({"name": "x", "state": "absent"})), Mode::Apply).status,
            OpStatus::Failed { .. }
        ));
    }
}
