//! Any other scheduler, through commands of the user's own.
//!
//! Owns how hooks are called and what their exit status means: 0 yes, 1 no, everything else and a timeout unknown. A hook is
//! one line for `/bin/sh -c` with GPUFLEET_HOST, GPUFLEET_NODE, GPUFLEET_RUN and GPUFLEET_MARKER in its environment. What it
//! prints is shown as its reason. A `still_ours` that says no and prints `not drained` means that no one holds the node;
//! without that hook a node that was drained counts as ours until it is given back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;

use super::{Activity, Call, Cordon, DrainError, Drainer, Marker, Outage, Ownership, Runner, Target};

/// Lines of a hook's output that are shown.
const SHOWN_LINES: usize = 20;

/// The hooks of one host, ready for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostHooks {
    pub drain: String,
    pub is_idle: String,
    pub resume: String,
    /// Without it ownership is taken on trust.
    pub still_ours: Option<String>,
    /// Tells the work on the node to get ready to end.
    pub notice: Option<String>,
}

/// The hooks and their bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOptions {
    /// By the host's name in the inventory.
    pub hooks: HashMap<String, HostHooks>,
    /// Prints the names of nodes that are out, one a line; what follows a name is shown as why.
    pub out: Option<String>,
    /// For the hook `drain`, which may wait for work to leave.
    pub drain_timeout: Duration,
    /// For every other hook.
    pub timeout: Duration,
}

/// Drains by calling hooks.
pub struct CommandDrainer {
    runner: Arc<dyn Runner>,
    options: CommandOptions,
}

enum Answer {
    Yes(Vec<String>),
    No(Vec<String>),
}

impl CommandDrainer {
    pub fn new(runner: Arc<dyn Runner>, options: CommandOptions) -> Self {
        Self { runner, options }
    }

    fn hooks(&self, target: &Target) -> Result<&HostHooks, DrainError> {
        self.options.hooks.get(&target.host).ok_or_else(|| {
            let why = format!("there are no hooks for the host `{}`", target.host);
            DrainError::NotSent { why, left: "run" }
        })
    }

    async fn ask(
        &self,
        hook: &str,
        line: &str,
        target: Option<&Target>,
        marker: Option<&Marker>,
    ) -> Result<Answer, DrainError> {
        let timeout = if hook == "drain" { self.options.drain_timeout } else { self.options.timeout };
        let mut call = Call::new(["/bin/sh", "-c", line], timeout);
        if let Some(target) = target {
            call.env.push(("GPUFLEET_HOST".to_owned(), target.host.clone()));
            call.env.push(("GPUFLEET_NODE".to_owned(), target.node.clone()));
        }
        if let Some(marker) = marker {
            call.env.push(("GPUFLEET_RUN".to_owned(), marker.run.clone()));
            call.env.push(("GPUFLEET_MARKER".to_owned(), marker.to_string()));
        }
        let unknown = |did: String| DrainError::Hook {
            hook: hook.to_owned(),
            for_node: target.map(|target| format!(" for {}", target.node)).unwrap_or_default(),
            place: self.runner.place(),
            did,
        };
        let output = self.runner.run(call).await.map_err(|error| unknown(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        // Why all lines for `out`: each is a node.
        let limit = if hook == "out" { usize::MAX } else { SHOWN_LINES };
        let lines: Vec<String> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .take(limit)
            .map(str::to_owned)
            .collect();
        match output.status {
            Some(0) => Ok(Answer::Yes(lines)),
            Some(1) => Ok(Answer::No(lines)),
            Some(status) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
                Err(unknown(format!("ended with status {status}: {}", last.trim())))
            }
            None => Err(unknown("was ended by a signal".to_owned())),
        }
    }

    async fn owner(&self, target: &Target, marker: &Marker) -> Result<Ownership, DrainError> {
        let Some(still_ours) = &self.hooks(target)?.still_ours else { return Ok(Ownership::Ours) };
        Ok(match self.ask("still_ours", still_ours, Some(target), Some(marker)).await? {
            Answer::Yes(_) => Ownership::Ours,
            Answer::No(lines) if lines.first().is_some_and(|line| line == "not drained") => {
                Ownership::NotDrained
            }
            Answer::No(lines) => Ownership::Theirs { by: words(lines, "the hook `still_ours` says no") },
        })
    }

    /// Who else holds the node, if `still_ours` prints a name: "no" alone may also mean that no one does.
    async fn somebody_else(&self, target: &Target, marker: &Marker) -> Result<Option<String>, DrainError> {
        let Some(still_ours) = &self.hooks(target)?.still_ours else { return Ok(None) };
        Ok(match self.ask("still_ours", still_ours, Some(target), Some(marker)).await? {
            Answer::No(lines) if lines.first().is_some_and(|line| line != "not drained") => {
                Some(lines.join(" "))
            }
            _ => None,
        })
    }
}

fn words(lines: Vec<String>, otherwise: &str) -> String {
    if lines.is_empty() { otherwise.to_owned() } else { lines.join(" ") }
}

impl Drainer for CommandDrainer {
    fn name(&self) -> &str {
        "command"
    }

    fn cordon<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Cordon, DrainError>> {
        async move {
            let hooks = self.hooks(target)?;
            if let Some(by) = self.somebody_else(target, marker).await? {
                return Ok(Cordon::HeldByOthers { by });
            }
            let said = match self.ask("drain", &hooks.drain, Some(target), Some(marker)).await? {
                Answer::No(lines) => {
                    return Ok(Cordon::HeldByOthers { by: words(lines, "the hook `drain` says no") });
                }
                Answer::Yes(lines) => words(lines, why),
            };
            Ok(match self.owner(target, marker).await? {
                Ownership::Ours => Cordon::Ours { evidence: said },
                Ownership::Theirs { by } => Cordon::HeldByOthers { by },
                Ownership::NotDrained => {
                    return Err(DrainError::Standing {
                        what: format!(
                            "the hook `drain` says yes for {}, yet `still_ours` says that it is not drained",
                            target.node
                        ),
                        next: "run both by hand".to_owned(),
                    });
                }
            })
        }
        .boxed()
    }

    fn notify<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Vec<String>, DrainError>> {
        async move {
            let Some(hook) = &self.hooks(target)?.notice else { return Ok(Vec::new()) };
            Ok(match self.ask("notice", hook, Some(target), Some(marker)).await? {
                Answer::Yes(lines) if lines.is_empty() => vec!["the hook `notice` was run".to_owned()],
                Answer::Yes(lines) => lines,
                Answer::No(lines) => {
                    vec![format!("nobody was told: {}", words(lines, "the hook `notice` says no"))]
                }
            })
        }
        .boxed()
    }

    fn activity<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Activity, DrainError>> {
        async move {
            Ok(match self.ask("is_idle", &self.hooks(target)?.is_idle, Some(target), None).await? {
                Answer::Yes(_) => Activity::Idle,
                Answer::No(lines) if lines.is_empty() => {
                    Activity::Busy { work: vec!["the hook `is_idle` says no".to_owned()] }
                }
                Answer::No(work) => Activity::Busy { work },
            })
        }
        .boxed()
    }

    fn ownership<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        self.owner(target, marker).boxed()
    }

    fn knows_owner(&self, target: &Target) -> bool {
        self.hooks(target).is_ok_and(|hooks| hooks.still_ours.is_some())
    }

    fn marked<'a>(
        &'a self,
        targets: &'a [Target],
    ) -> BoxFuture<'a, Result<Vec<(String, Marker)>, DrainError>> {
        async move {
            let mut marked: BTreeMap<String, Marker> = BTreeMap::new();
            for outage in self.survey(targets).await? {
                marked.extend(outage.marker.map(|marker| (outage.node, marker)));
            }
            // Why besides: `out` may name nodes alone, and may be missing, while `still_ours` prints who holds one.
            let nobody = Marker { run: "nobody".to_owned(), nonce: "nobody".to_owned() };
            for target in
                targets.iter().filter(|target| !marked.contains_key(&target.node)).collect::<Vec<_>>()
            {
                if let Some(by) = self.somebody_else(target, &nobody).await?
                    && let Some(marker) = Marker::find(&by)
                {
                    marked.insert(target.node.clone(), marker);
                }
            }
            Ok(marked.into_iter().collect())
        }
        .boxed()
    }

    fn resume<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        _rebooted_after: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        async move {
            let owner = self.owner(target, marker).await?;
            if owner != Ownership::Ours {
                return Ok(owner);
            }
            let resume = &self.hooks(target)?.resume;
            match self.ask("resume", resume, Some(target), Some(marker)).await? {
                Answer::Yes(_) => Ok(Ownership::NotDrained),
                Answer::No(lines) => Err(DrainError::StaysOut {
                    node: target.node.clone(),
                    out: "drained",
                    why: words(lines, "the hook `resume` says no"),
                    next: "run the hook `resume` by hand".to_owned(),
                }),
            }
        }
        .boxed()
    }

    fn may_be_cut(&self) -> bool {
        self.runner.ends_what_is_dropped()
    }

    fn survey<'a>(&'a self, targets: &'a [Target]) -> BoxFuture<'a, Result<Vec<Outage>, DrainError>> {
        async move {
            let Some(hook) = &self.options.out else { return Ok(Vec::new()) };
            let lines = match self.ask("out", hook, None, None).await? {
                Answer::Yes(lines) => lines,
                Answer::No(lines) => {
                    return Err(DrainError::Standing {
                        what: format!("the hook `out` (`{hook}`) says no: {}", lines.join(" ")),
                        next: "who is out is unknown".to_owned(),
                    });
                }
            };
            let out: BTreeMap<&str, &str> = lines
                .iter()
                .map(|line| line.split_once(char::is_whitespace).unwrap_or((line, "")))
                .map(|(name, why)| (name, why.trim()))
                .collect();
            Ok(targets
                .iter()
                .filter_map(|target| {
                    let why = out.get(target.node.as_str()).or_else(|| out.get(target.host.as_str()))?;
                    let shown = if why.is_empty() { "the hook `out` names it" } else { why };
                    Some(Outage {
                        node: target.node.clone(),
                        why: shown.to_owned(),
                        marker: Marker::parse(why),
                        known: true,
                    })
                })
                .collect())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::LocalRunner;

    fn with(change: impl FnOnce(&mut HostHooks)) -> CommandDrainer {
        within(Duration::from_secs(10), None, change)
    }

    fn within(timeout: Duration, out: Option<&str>, change: impl FnOnce(&mut HostHooks)) -> CommandDrainer {
        let mut hooks = HostHooks {
            drain: "exit 0".into(),
            is_idle: "exit 0".into(),
            resume: "exit 0".into(),
            still_ours: Some("exit 0".into()),
            notice: None,
        };
        change(&mut hooks);
        let options = CommandOptions {
            hooks: [("h1".to_owned(), hooks)].into(),
            out: out.map(str::to_owned),
            drain_timeout: Duration::from_secs(10),
            timeout,
        };
        CommandDrainer::new(Arc::new(LocalRunner), options)
    }

    fn target() -> Target {
        Target { host: "h1".into(), node: "n1".into() }
    }

    fn marker() -> Marker {
        Marker { run: "R".into(), nonce: "N".into() }
    }

    #[tokio::test]
    async fn hooks_know_what_it_is_about() {
        let line = r#"echo "$GPUFLEET_HOST $GPUFLEET_NODE $GPUFLEET_RUN $GPUFLEET_MARKER""#;
        let drainer = with(|hooks| hooks.drain = line.into());
        let cordon = drainer.cordon(&target(), &marker(), "why").await;
        assert_eq!(cordon, Ok(Cordon::Ours { evidence: "h1 n1 R gpufleet:R:N".into() }));
    }

    #[tokio::test]
    async fn one_is_no_and_anything_else_is_unknown() {
        let drainer = with(|hooks| hooks.drain = "echo held by alice; exit 1".into());
        let cordon = drainer.cordon(&target(), &marker(), "why").await;
        assert_eq!(cordon, Ok(Cordon::HeldByOthers { by: "held by alice".into() }));
        let drainer = with(|hooks| hooks.is_idle = "echo job 7 of al; exit 1".into());
        let activity = drainer.activity(&target()).await;
        assert_eq!(activity, Ok(Activity::Busy { work: vec!["job 7 of al".into()] }));
        for line in ["exit 2", "exit 127", "kill -9 $$", "no-such-program-here"] {
            let drainer = with(|hooks| {
                hooks.is_idle = line.into();
                hooks.still_ours = Some(line.into());
            });
            assert!(drainer.activity(&target()).await.is_err(), "{line}");
            assert!(drainer.ownership(&target(), &marker()).await.is_err(), "{line}");
            assert!(drainer.resume(&target(), &marker(), None).await.is_err(), "{line}");
        }
        let drainer = within(Duration::from_millis(200), None, |hooks| {
            hooks.is_idle = "sleep 60".into();
            hooks.drain = "sleep 0.4".into();
            // It would have the short time too.
            hooks.still_ours = None;
        });
        assert!(drainer.cordon(&target(), &marker(), "why").await.is_ok(), "it has a bound of its own");
        let error = drainer.activity(&target()).await.unwrap_err();
        assert!(
            error.to_string().contains("the hook `is_idle` for n1 gave no answer within 0.2 s"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_node_that_somebody_is_named_for_is_not_even_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let touched = folder.path().join("drained");
        let drainer = with(|hooks| {
            hooks.drain = format!("touch {}", touched.display());
            hooks.still_ours = Some("echo drained by alice; exit 1".into());
        });
        let cordon = drainer.cordon(&target(), &marker(), "why").await;
        assert_eq!(cordon, Ok(Cordon::HeldByOthers { by: "drained by alice".into() }));
        assert!(!touched.exists());
    }

    #[tokio::test]
    async fn nothing_is_resumed_that_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        let touched = folder.path().join("resumed");
        let resume = format!("touch {}", touched.display());
        for (still_ours, expected) in [
            ("echo drained by alice; exit 1", Ownership::Theirs { by: "drained by alice".into() }),
            ("echo not drained; exit 1", Ownership::NotDrained),
        ] {
            let drainer = with(|hooks| {
                hooks.still_ours = Some(still_ours.into());
                hooks.resume = resume.clone();
            });
            assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(expected));
            assert!(!touched.exists());
        }
        let drainer = with(|hooks| hooks.resume = resume.clone());
        assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
        assert!(touched.exists());
    }

    #[tokio::test]
    async fn a_drain_that_is_not_seen_is_unknown() {
        let drainer = with(|hooks| hooks.still_ours = Some("echo not drained; exit 1".into()));
        assert!(drainer.cordon(&target(), &marker(), "why").await.is_err());
    }

    #[tokio::test]
    async fn without_still_ours_a_drain_is_ours_on_trust() {
        let drainer = with(|hooks| {
            hooks.still_ours = None;
            hooks.drain = "echo cordoned".into();
        });
        let cordon = drainer.cordon(&target(), &marker(), "why").await;
        assert_eq!(cordon, Ok(Cordon::Ours { evidence: "cordoned".into() }));
        assert_eq!(drainer.ownership(&target(), &marker()).await, Ok(Ownership::Ours));
        assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    }

    #[tokio::test]
    async fn a_host_without_hooks_is_never_touched() {
        let other = Target { host: "h2".into(), node: "n2".into() };
        let error = with(|_| ()).cordon(&other, &marker(), "why").await.unwrap_err();
        assert_eq!(error.to_string(), "there are no hooks for the host `h2`; nothing was run");
        assert!(with(|_| ()).activity(&other).await.is_err());
    }

    #[tokio::test]
    async fn the_survey_matches_both_names() {
        let line = "printf 'n1 gpufleet:R:N mig\\nh2\\nelse x\\n'";
        let drainer = within(Duration::from_secs(10), Some(line), |_| ());
        let targets = [
            target(),
            Target { host: "h2".into(), node: "n2".into() },
            Target { host: "h3".into(), node: "n3".into() },
        ];
        let out = drainer.survey(&targets).await.unwrap();
        assert_eq!(out.len(), 2);
        assert_eq!((out[0].node.as_str(), &out[0].marker), ("n1", &Some(marker())));
        assert_eq!((out[1].node.as_str(), out[1].why.as_str()), ("n2", "the hook `out` names it"));
        let drainer = within(Duration::from_secs(10), Some("exit 1"), |_| ());
        assert!(drainer.survey(&targets).await.is_err());
        assert_eq!(with(|_| ()).survey(&targets).await, Ok(vec![]));
    }

    #[tokio::test]
    async fn the_notice_says_what_was_told() {
        let drainer = with(|hooks| hooks.notice = Some("echo told job 7".into()));
        assert_eq!(drainer.notify(&target(), &marker()).await, Ok(vec!["told job 7".into()]));
        assert_eq!(with(|_| ()).notify(&target(), &marker()).await, Ok(vec![]));
    }
}
