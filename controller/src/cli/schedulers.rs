//! What each play needs to drain its nodes, from what its `drain` says.
//!
//! Owns the rendering of a drainer's templates for each host of a play. Must not know how a node is drained. Invariant:
//! everything is rendered before anything is contacted, and one template that fails stops all of it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use gpufleet::{
    diagnostic::{Diagnostic, Diagnostics, Span},
    drain::{
        self, Api, CommandDrainer, CommandOptions, Drainer, HostHooks, KubectlApi, KubernetesDrainer,
        KubernetesOptions, LocalRunner, NoticePlan, PodPolicy, Runner, Scheduler, SlurmDrainer, SlurmOptions,
        is_kubernetes_node_name, is_node_name,
    },
    playbook::{
        CommandDrain, Drain, HookSpans, KubernetesDrain, NoticeHow, OnMigManager, Play, Program, RebootVia,
        SlurmDrain,
    },
    report::fold_names,
    template::{self, Scope, Value},
};

use super::{
    clusters, contexts::Contexts, environment::Environment, error::CommandError, fleet::Fleet, output::Output,
};

/// How long a hook may take that has nothing to wait for.
const HOOK_TIMEOUT: Duration = Duration::from_secs(60);

/// Hosts of each play.
#[derive(Clone, Copy)]
pub struct PlayHosts<'a> {
    pub taking_part: &'a [Vec<String>],
    /// Those that a limit leaves out.
    pub beside: &'a [Vec<String>],
}

/// For each play what drains its nodes; none for a play that drains nobody. Nothing is contacted yet. With `forced` a
/// person overrules what cannot be drained.
///
/// # Errors
/// Templates that fail for a host, two hosts under one name at Slurm, and login nodes that cannot be used.
pub fn schedulers(
    program: &Program,
    hosts: PlayHosts<'_>,
    contexts: &[Arc<Contexts>],
    fleet: &Fleet,
    environment: &Environment,
    output: &Output,
    forced: bool,
) -> Result<Vec<Option<Arc<Scheduler>>>, CommandError> {
    let mut runners: HashMap<String, Arc<dyn Runner>> = HashMap::new();
    let login = |host: Option<&str>| -> Result<Arc<dyn Runner>, CommandError> {
        let Some(host) = host else { return Ok(Arc::new(LocalRunner)) };
        if let Some(runner) = runners.get(host) {
            return Ok(Arc::clone(runner));
        }
        let runner = fleet.login(host)?;
        runners.insert(host.to_owned(), Arc::clone(&runner));
        Ok(runner)
    };
    let cluster = |play: &Play, kubernetes: &KubernetesDrain| clusters::api(play, kubernetes, environment);
    let (schedulers, warnings) = build(program, hosts, contexts, login, cluster, forced)?;
    if !warnings.is_empty() {
        output.diagnostics(&warnings);
    }
    Ok(schedulers)
}

/// Hosts of the inventory that run a scheduler's programs.
pub fn logins(program: &Program) -> impl Iterator<Item = &str> {
    program.plays.iter().filter_map(|play| Some(play.policy.drain.login()?.0))
}

type Built = (Vec<Option<Arc<Scheduler>>>, Diagnostics);

fn build(
    program: &Program,
    hosts: PlayHosts<'_>,
    contexts: &[Arc<Contexts>],
    mut login: impl FnMut(Option<&str>) -> Result<Arc<dyn Runner>, CommandError>,
    cluster: impl Fn(&Play, &KubernetesDrain) -> Result<Arc<dyn Api>, Diagnostic>,
    forced: bool,
) -> Result<Built, CommandError> {
    let mut said = Diagnostics::new();
    let mut rendered = Vec::with_capacity(program.plays.len());
    let plays = program.plays.iter().zip(contexts);
    for (((play, contexts), taking_part), beside) in plays.zip(hosts.taking_part).zip(hosts.beside) {
        let mut rendering = Rendering { play, hosts: taking_part, beside, contexts, failures: Vec::new() };
        rendering.login(&mut said);
        let words = match &play.policy.drain {
            Drain::None => Words::None,
            Drain::Slurm(slurm) => rendering.slurm(slurm, &mut said),
            Drain::Kubernetes(kubernetes) => {
                let naming = Naming {
                    scheduler: "Kubernetes",
                    is_name: is_kubernetes_node_name,
                    help: "`kubectl get nodes` shows them",
                };
                let names = rendering.names(&kubernetes.node, &kubernetes.spans, &naming, &mut said);
                let way = match &kubernetes.kubectl {
                    Some(_) => Ok(None),
                    None => cluster(play, kubernetes).map(Some),
                };
                match way {
                    Ok(api) => Words::Cluster { names, api },
                    Err(error) => {
                        said.push(error);
                        Words::None
                    }
                }
            }
            Drain::Command(command) => rendering.command(command, &mut said),
        };
        rendering.report(&mut said);
        rendered.push(words);
    }
    if said.has_errors() {
        return Err(said.into());
    }
    let schedulers = program.plays.iter().zip(rendered).map(|(play, words)| {
        let scheduler = match (&play.policy.drain, words) {
            (Drain::Slurm(slurm), Words::Names(nodes)) => {
                by_slurm(play, slurm, nodes, login(slurm.login.as_deref())?)
            }
            (Drain::Kubernetes(kubernetes), Words::Cluster { names, api }) => {
                let api = match (api, &kubernetes.kubectl) {
                    (Some(api), _) => api,
                    (None, kubectl) => {
                        let host = kubectl.as_ref().and_then(|kubectl| kubectl.login.as_deref());
                        let (kubeconfig, context) =
                            (kubernetes.kubeconfig.clone(), kubernetes.context.clone());
                        Arc::new(KubectlApi::new(login(host)?, kubeconfig, context))
                    }
                };
                by_kubernetes(play, kubernetes, names, api, forced)
            }
            (Drain::Command(command), Words::Hooks { hooks, out }) => by_command(command, hooks, out),
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(scheduler)))
    });
    Ok((schedulers.collect::<Result<_, CommandError>>()?, said))
}

fn by_slurm(
    play: &Play,
    slurm: &SlurmDrain,
    nodes: HashMap<String, String>,
    runner: Arc<dyn Runner>,
) -> Scheduler {
    let notice = match slurm.notice.as_ref().map(|notice| &notice.how) {
        None => drain::Notice::Nothing,
        Some(NoticeHow::Signal(name)) => drain::Notice::Signal(name.clone()),
        Some(NoticeHow::Requeue) => drain::Notice::Requeue,
    };
    let drainer = SlurmDrainer::new(runner, SlurmOptions { notice, ..SlurmOptions::default() });
    let mut scheduler = surveyed(Arc::new(drainer), slurm.timeout_s, nodes);
    scheduler.notice = slurm
        .notice
        .as_ref()
        .map(|notice| NoticePlan { deadline: Duration::from_secs(notice.deadline_s), before_cordon: false });
    scheduler.reboots = play.policy.reboot.via == RebootVia::Slurm;
    scheduler
}

fn by_kubernetes(
    play: &Play,
    kubernetes: &KubernetesDrain,
    nodes: HashMap<String, String>,
    api: Arc<dyn Api>,
    forced: bool,
) -> Scheduler {
    let mut options = KubernetesOptions {
        pods: PodPolicy {
            delete_emptydir_data: kubernetes.delete_emptydir_data,
            force: kubernetes.force,
            skip_namespaces: kubernetes.skip_namespaces.iter().cloned().collect(),
        },
        grace_period: kubernetes.grace_period_s.map(Duration::from_secs),
        notice: kubernetes.notice_s.map(Duration::from_secs),
        ready_timeout: Duration::from_secs(kubernetes.ready_timeout_s),
        pauses_operands: kubernetes.pause_operands,
        mig_manager: match &kubernetes.mig_manager {
            OnMigManager::Refuse => drain::MigManager::Refuse,
            OnMigManager::Takeover => drain::MigManager::Takeover,
            OnMigManager::Label(config) => drain::MigManager::Label(config.clone()),
        },
        lays_out_mig: play.tasks().iter().any(|task| task.kind.name == "gpu_mig"),
        forced,
        ..KubernetesOptions::default()
    };
    if let Some((namespace, name)) = kubernetes.lock.clone() {
        options.lock = drain::Lock { namespace, name };
    }
    let notice = options.notice.map(|deadline| NoticePlan { deadline, before_cordon: false });
    let drainer = KubernetesDrainer::new(api, options);
    let mut scheduler = surveyed(Arc::new(drainer), kubernetes.timeout_s, nodes);
    scheduler.notice = notice;
    scheduler
}

/// A scheduler with names of its own that can tell who is out.
fn surveyed(drainer: Arc<dyn Drainer>, timeout_s: u64, nodes: HashMap<String, String>) -> Scheduler {
    let mut scheduler = Scheduler::new(drainer, Duration::from_secs(timeout_s));
    scheduler.nodes = nodes;
    scheduler.surveys = true;
    scheduler
}

fn by_command(command: &CommandDrain, hooks: HashMap<String, HostHooks>, out: Option<String>) -> Scheduler {
    let timeout = Duration::from_secs(command.timeout_s);
    let surveys = out.is_some();
    let options =
        CommandOptions { hooks, out, drain_timeout: HOOK_TIMEOUT.max(timeout), timeout: HOOK_TIMEOUT };
    let drainer = CommandDrainer::new(Arc::new(LocalRunner), options);
    let mut scheduler = Scheduler::new(Arc::new(drainer), timeout);
    scheduler.notice = command.notice.as_ref().map(|_| NoticePlan {
        deadline: Duration::from_secs(command.notice_deadline_s),
        before_cordon: true,
    });
    scheduler.surveys = surveys;
    scheduler
}

/// What a play's templates became.
enum Words {
    None,
    /// Names at Slurm that differ from the hosts'.
    Names(HashMap<String, String>),
    /// Names at Kubernetes that differ from the hosts', and the way to it.
    Cluster {
        names: HashMap<String, String>,
        /// None for the one that `kubectl` is.
        api: Option<Arc<dyn Api>>,
    },
    Hooks {
        hooks: HashMap<String, HostHooks>,
        out: Option<String>,
    },
}

/// What a scheduler takes for a node's name.
struct Naming {
    /// As people call it.
    scheduler: &'static str,
    is_name: fn(&str) -> bool,
    help: &'static str,
}

/// Rendering the templates of one play's drainer.
struct Rendering<'a> {
    play: &'a Play,
    hosts: &'a [String],
    /// Hosts that are not drained, only asked about.
    beside: &'a [String],
    contexts: &'a Contexts,
    /// What went wrong, where, and for which hosts; none for a hook that concerns no host.
    failures: Vec<Failure>,
}

struct Failure {
    problem: String,
    place: Span,
    help: &'static str,
    hosts: Vec<String>,
}

const KNOWN: &str = "drainers know the variables of the inventory, of the play and of `-e`; facts and results of tasks come later";

impl Rendering<'_> {
    fn slurm(&mut self, slurm: &SlurmDrain, said: &mut Diagnostics) -> Words {
        let naming = Naming {
            scheduler: "Slurm",
            is_name: is_node_name,
            help: "lists, ranges and `all` are no names; `sinfo -N` shows them",
        };
        Words::Names(self.names(&slurm.node, &slurm.spans, &naming, said))
    }

    /// Who drains the others must not be drained itself.
    fn login(&self, said: &mut Diagnostics) {
        let Some((login, span)) = self.play.policy.drain.login() else { return };
        if self.hosts.iter().any(|host| host == login) {
            said.push(
                Diagnostic::error(format!("the login node {login} is a host of the play"))
                    .at(span.unwrap_or(&self.play.span))
                    .label("who drains the others may not be disturbed with them")
                    .help(
                        "leave it out with --limit, and do it in a run of its own through another login node",
                    ),
            );
        }
    }

    /// Names at the scheduler that differ from the hosts'.
    fn names(
        &mut self,
        node: &Value,
        spans: &HookSpans,
        naming: &Naming,
        said: &mut Diagnostics,
    ) -> HashMap<String, String> {
        let Naming { scheduler, is_name, help } = *naming;
        let place = spans.of("node").unwrap_or(&self.play.span).clone();
        let mut names = HashMap::new();
        let mut hosts_of: HashMap<String, &String> = HashMap::new();
        for host in self.hosts {
            let scope = self.scope(Some(host));
            let Some(name) = self.render("node", node, &place, Some(host), &scope) else { continue };
            let name = name.trim().to_owned();
            if !is_name(&name) {
                self.fail(format!("`{name}` is no name of one {scheduler} node"), help, &place, Some(host));
                continue;
            }
            if let Some(other) = hosts_of.insert(name.clone(), host) {
                said.push(
                    Diagnostic::error(format!("{other} and {host} are both `{name}` at {scheduler}"))
                        .at(&place)
                        .label("each host needs a node of its own")
                        .help("correct the variables that `node` uses, or leave the alias out with --limit"),
                );
                continue;
            }
            if name != *host {
                names.insert(host.clone(), name);
            }
        }
        let mut nameless = Vec::new();
        for host in self.beside {
            match template::resolve(node, &self.scope(Some(host))).map(|name| name.to_text()) {
                Ok(name) if is_name(name.trim()) => _ = names.insert(host.clone(), name.trim().to_owned()),
                _ => nameless.push(host.clone()),
            }
        }
        if !nameless.is_empty() {
            said.push(
                Diagnostic::warning(format!("outages of {} do not count", fold_names(&nameless)))
                    .at(&place)
                    .label(format!("`node` gives them no name of one {scheduler} node"))
                    .help(
                        "--limit leaves them out; correct the variables that `node` uses to count them too",
                    ),
            );
        }
        names
    }

    fn command(&mut self, command: &CommandDrain, said: &mut Diagnostics) -> Words {
        let place = |hook: &str| command.spans.of(hook).unwrap_or(&self.play.span).clone();
        let places = ["drain", "is_idle", "resume", "still_ours", "notice"].map(|hook| (hook, place(hook)));
        let [drain, is_idle, resume, still_ours, notice] = places;
        if command.still_ours.is_none() && !self.hosts.is_empty() {
            said.push(
                Diagnostic::warning(format!(
                    "play `{}`: without `still_ours` nobody can tell that a person took over a node after it was drained",
                    self.play.name
                ))
                .at(&drain.1)
                .label("every node that this drained counts as this run's")
                .help("add `still_ours`, a command that exits with 0 while the node is drained by $GPUFLEET_MARKER"),
            );
        }
        let mut hooks = HashMap::new();
        for host in self.hosts {
            let scope = self.scope(Some(host));
            let mut line = |(hook, place): &(&str, Span), value: &Value| {
                self.render(hook, value, place, Some(host), &scope)
            };
            let needed = (
                line(&drain, &command.drain),
                line(&is_idle, &command.is_idle),
                line(&resume, &command.resume),
            );
            let still_ours = command.still_ours.as_ref().and_then(|value| line(&still_ours, value));
            let notice = command.notice.as_ref().and_then(|value| line(&notice, value));
            // Why the others may go: whatever is missing here was reported, and nothing is run.
            if let (Some(drain), Some(is_idle), Some(resume)) = needed {
                hooks.insert(host.clone(), HostHooks { drain, is_idle, resume, still_ours, notice });
            }
        }
        let out = command.out.as_ref().and_then(|value| {
            let place = command.spans.of("out").unwrap_or(&self.play.span).clone();
            let scope = self.scope(None);
            self.render("out", value, &place, None, &scope)
        });
        Words::Hooks { hooks, out }
    }

    /// The variables that are known before the first task; without a host, those that are the same for all.
    fn scope(&self, host: Option<&String>) -> Arc<Scope> {
        let context = match host {
            Some(host) => self.contexts.get(host),
            None => self.hosts.first().and_then(|host| self.contexts.get(host)),
        };
        let mut layers = Vec::with_capacity(5);
        layers.extend(context.map(|context| Arc::clone(&context.extra)));
        layers.push(Arc::clone(&self.play.file_vars));
        layers.push(Arc::clone(&self.play.vars));
        if let (Some(context), Some(_)) = (context, host) {
            layers.push(Arc::clone(&context.vars));
            layers.push(Arc::clone(&context.magic));
        }
        Scope::new(layers)
    }

    fn render(
        &mut self,
        hook: &str,
        value: &Value,
        place: &Span,
        host: Option<&String>,
        scope: &Arc<Scope>,
    ) -> Option<String> {
        let (resolved, has_secret) = template::watch(|| {
            template::resolve(value, scope).map(|value| (value == Value::Unknown, value.to_text()))
        });
        let problem = match resolved {
            // Why refused: a command line stands in the list of processes, and a name at the scheduler.
            _ if has_secret => format!("`{hook}` has a vault value in it, which others could read"),
            Ok((true, _)) => format!("`{hook}` depends on something that only the run will tell"),
            Ok((false, text)) => {
                if !text.trim().is_empty() {
                    return Some(text);
                }
                format!("`{hook}` is empty")
            }
            Err(error) => format!("`{hook}` cannot be rendered: {}", error.message()),
        };
        self.fail(problem, KNOWN, place, host);
        None
    }

    fn fail(&mut self, problem: String, help: &'static str, place: &Span, host: Option<&String>) {
        let same = self.failures.iter_mut().find(|known| known.problem == problem && known.place == *place);
        match same {
            Some(known) => known.hosts.extend(host.cloned()),
            None => self.failures.push(Failure {
                problem,
                place: place.clone(),
                help,
                hosts: host.into_iter().cloned().collect(),
            }),
        }
    }

    fn report(self, said: &mut Diagnostics) {
        for Failure { problem, place, help, hosts } in self.failures {
            let error = if hosts.is_empty() {
                Diagnostic::error(problem).label("it is run once for all hosts, without the variables of one")
            } else {
                Diagnostic::error(format!("{}: {problem}", fold_names(&hosts)))
            };
            said.push(error.at(&place).help(help));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::{BoxFuture, FutureExt as _, ready};
    use gpufleet::{drain::Target, interpreter::HostContext, template::Dict};

    use super::*;

    fn program(block: &str) -> Program {
        let text =
            format!("- name: p\n  hosts: all\n  vars: {{prefix: slurm}}\n  rollout:\n{block}  tasks: []\n");
        let files: HashMap<String, String> = [("play.yml".to_owned(), text)].into();
        Program::load(&["play.yml"], &files).unwrap()
    }

    /// Hosts h1 and h2 with a variable `n` of these values; an empty one is not set.
    fn fleet(values: [&str; 2]) -> (Vec<Vec<String>>, Vec<Arc<Contexts>>) {
        let hosts = ["h1", "h2"].map(str::to_owned);
        let context = |(host, value): (&String, &str)| {
            let (mut vars, mut magic) = (Dict::default(), Dict::default());
            if !value.is_empty() {
                vars.insert("n", Value::text(value));
            }
            magic.insert("inventory_hostname", Value::text(host));
            let context =
                HostContext { vars: Arc::new(vars), magic: Arc::new(magic), ..HostContext::default() };
            (host.clone(), Arc::new(context))
        };
        (vec![hosts.to_vec()], vec![Arc::new(hosts.iter().zip(values).map(context).collect())])
    }

    /// A cluster that nobody reaches.
    struct Unreachable;

    impl Api for Unreachable {
        fn send(&self, _: drain::Request) -> BoxFuture<'_, Result<drain::Reply, drain::Unanswered>> {
            ready(Err(drain::Unanswered("nobody there".to_owned()))).boxed()
        }

        fn place(&self) -> String {
            String::new()
        }
    }

    fn cluster(_: &Play, _: &KubernetesDrain) -> Result<Arc<dyn Api>, Diagnostic> {
        Ok(Arc::new(Unreachable))
    }

    fn built(block: &str, values: [&str; 2]) -> Result<(Option<Arc<Scheduler>>, String), String> {
        let (hosts, contexts) = fleet(values);
        let login = |host: Option<&str>| match host {
            None => Ok(Arc::new(LocalRunner) as Arc<dyn Runner>),
            Some(host) => Err(CommandError::user(format!("asked for {host}"))),
        };
        let hosts = PlayHosts { taking_part: &hosts, beside: &[Vec::new()] };
        match build(&program(block), hosts, &contexts, login, cluster, false) {
            Ok((mut all, warnings)) => Ok((all.remove(0), warnings.to_string())),
            Err(CommandError::Input(said)) => Err(said.to_string()),
            Err(error) => Err(format!("{error:?}")),
        }
    }

    #[test]
    fn nobody_drains() {
        assert!(built("    drain: none\n", ["", ""]).unwrap().0.is_none());
    }

    #[test]
    fn names_at_slurm() {
        let block = "    drain: {slurm: {timeout: 90m, node: \"{{ n | default(inventory_hostname) }}\", notice: {signal: USR1, deadline: 10m}}}\n    reboot: {via: slurm}\n";
        let (scheduler, warnings) = built(block, ["{{ prefix }}-7", ""]).unwrap();
        let scheduler = scheduler.unwrap();
        assert_eq!(warnings, "");
        assert_eq!(scheduler.target("h1"), Target { host: "h1".into(), node: "slurm-7".into() });
        assert_eq!(scheduler.target("h2").node, "h2");
        assert_eq!((scheduler.drainer.name(), scheduler.timeout), ("slurm", Duration::from_secs(5400)));
        assert_eq!(
            scheduler.notice,
            Some(NoticePlan { deadline: Duration::from_secs(600), before_cordon: false })
        );
        assert!(scheduler.surveys && scheduler.reboots);
        let plain = built("    drain: slurm\n", ["", ""]).unwrap().0.unwrap();
        assert!(plain.notice.is_none() && plain.surveys && !plain.reboots);
    }

    #[test]
    fn names_at_kubernetes() {
        let block =
            "    drain: {kubernetes: {timeout: 10m, node: \"{{ n | default(inventory_hostname) }}\"}}\n";
        let (scheduler, warnings) = built(block, ["ip-10-0-0-1.internal", ""]).unwrap();
        let scheduler = scheduler.unwrap();
        assert_eq!(warnings, "");
        assert_eq!(scheduler.target("h1").node, "ip-10-0-0-1.internal");
        assert_eq!(scheduler.target("h2").node, "h2");
        assert_eq!((scheduler.drainer.name(), scheduler.timeout), ("kubernetes", Duration::from_secs(600)));
        assert!(scheduler.surveys && !scheduler.reboots && scheduler.notice.is_none());
        let told = block.replace("timeout: 10m", "timeout: 10m, notice: 15m");
        let scheduler = built(&told, ["", ""]).unwrap().0.unwrap();
        let quarter = NoticePlan { deadline: Duration::from_secs(900), before_cordon: false };
        assert_eq!((scheduler.timeout, scheduler.notice), (Duration::from_secs(600), Some(quarter)));
        let error = built(block, ["Node_1", ""]).unwrap_err();
        assert!(error.contains("h1: `Node_1` is no name of one Kubernetes node"), "{error}");
    }

    #[test]
    fn who_is_left_out_has_a_name_too() {
        let block = "    drain: {slurm: {node: \"{{ n }}\"}}\n";
        let (hosts, contexts) = fleet(["s1", "s2"]);
        let login = |_: Option<&str>| Ok(Arc::new(LocalRunner) as Arc<dyn Runner>);
        let split = |beside: &[&str]| {
            let beside = beside.iter().map(ToString::to_string).collect();
            let taking_part = vec![hosts[0][..1].to_vec()];
            let hosts = PlayHosts { taking_part: &taking_part, beside: &[beside] };
            let (mut all, warnings) =
                build(&program(block), hosts, &contexts, login, cluster, false).ok().unwrap();
            (all.remove(0).unwrap(), warnings.to_string())
        };
        let (scheduler, warnings) = split(&["h2"]);
        assert_eq!((scheduler.target("h2").node.as_str(), warnings.as_str()), ("s2", ""));
        let (_, warnings) = split(&["h2", "h8", "h9"]);
        insta::assert_snapshot!(warnings, @r#"
        warning: outages of h[8,9] do not count
          --> play.yml:5:27
           |
         5 |     drain: {slurm: {node: "{{ n }}"}}
           |                           ^^^^^^^^^ `node` gives them no name of one Slurm node
        help: --limit leaves them out; correct the variables that `node` uses to count them too
        "#);
    }

    #[test]
    fn the_login_node_is_asked_for() {
        let error = built("    drain: {slurm: {login: login1}}\n", ["", ""]).unwrap_err();
        assert!(error.contains("asked for login1"), "{error}");
    }

    #[test]
    fn a_name_that_two_hosts_have() {
        let error = built("    drain: {slurm: {node: \"{{ n }}\"}}\n", ["a", "a"]).unwrap_err();
        insta::assert_snapshot!(error, @r#"
        error: h1 and h2 are both `a` at Slurm
          --> play.yml:5:27
           |
         5 |     drain: {slurm: {node: "{{ n }}"}}
           |                           ^^^^^^^^^ each host needs a node of its own
        help: correct the variables that `node` uses, or leave the alias out with --limit
        "#);
    }

    #[test]
    fn a_template_that_fails() {
        let error = built("    drain: {slurm: {node: \"x{{ n }}\"}}\n", ["", ""]).unwrap_err();
        insta::assert_snapshot!(error, @r#"
        error: h[1,2]: `node` cannot be rendered: `n` is undefined
          --> play.yml:5:27
           |
         5 |     drain: {slurm: {node: "x{{ n }}"}}
           |                           ^^^^^^^^^^
        help: drainers know the variables of the inventory, of the play and of `-e`; facts and results of tasks come later
        "#);
        let error = built("    drain: {slurm: {node: \"{{ n }}\"}}\n", ["gpu[1-4]", "all"]).unwrap_err();
        insta::assert_snapshot!(error, @r#"
        error: h1: `gpu[1-4]` is no name of one Slurm node
          --> play.yml:5:27
           |
         5 |     drain: {slurm: {node: "{{ n }}"}}
           |                           ^^^^^^^^^
        help: lists, ranges and `all` are no names; `sinfo -N` shows them
        error: h2: `all` is no name of one Slurm node
          --> play.yml:5:27
           |
         5 |     drain: {slurm: {node: "{{ n }}"}}
           |                           ^^^^^^^^^
        help: lists, ranges and `all` are no names; `sinfo -N` shows them
        "#);
    }

    #[tokio::test]
    async fn hooks_of_each_host() {
        let block = "    drain:\n      command:\n        drain: \"echo {{ n }} {{ prefix }} $GPUFLEET_NODE\"\n        is_idle: 'true'\n        resume: 'true'\n        out: \"printf 'h2 {{ prefix }}'\"\n        notice: echo told\n        notice_deadline: 1m\n";
        let (scheduler, warnings) = built(block, ["1", "2"]).unwrap();
        let scheduler = scheduler.unwrap();
        insta::assert_snapshot!(warnings, @r#"
        warning: play `p`: without `still_ours` nobody can tell that a person took over a node after it was drained
          --> play.yml:7:16
           |
         7 |         drain: "echo {{ n }} {{ prefix }} $GPUFLEET_NODE"
           |                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ every node that this drained counts as this run's
        help: add `still_ours`, a command that exits with 0 while the node is drained by $GPUFLEET_MARKER
        "#);
        let marker = drain::Marker { run: "R".into(), nonce: "N".into() };
        let cordon = scheduler.drainer.cordon(&scheduler.target("h2"), &marker, "why").await;
        assert_eq!(cordon, Ok(drain::Cordon::Ours { evidence: "2 slurm h2".into() }));
        let out = scheduler.drainer.survey(&[scheduler.target("h1"), scheduler.target("h2")]).await.unwrap();
        assert_eq!(out.iter().map(|outage| outage.why.as_str()).collect::<Vec<_>>(), ["slurm"]);
        assert_eq!(
            scheduler.notice,
            Some(NoticePlan { deadline: Duration::from_secs(60), before_cordon: true })
        );
        assert!(scheduler.surveys && !scheduler.reboots);
    }

    #[test]
    fn hooks_that_fail_are_all_told() {
        let block = "    drain:\n      command: {drain: \"d {{ n }}\", is_idle: \"{{ n }}\", resume: r, still_ours: s, out: \"o {{ inventory_hostname }}\"}\n";
        let error = built(block, ["1", ""]).unwrap_err();
        insta::assert_snapshot!(error, @r#"
        error: h2: `drain` cannot be rendered: `n` is undefined
          --> play.yml:6:24
           |
         6 |       command: {drain: "d {{ n }}", is_idle: "{{ n }}", resume: r, still_ours: s, out: "…
           |                        ^^^^^^^^^^^
        help: drainers know the variables of the inventory, of the play and of `-e`; facts and results of tasks come later
        error: h2: `is_idle` cannot be rendered: `n` is undefined
          --> play.yml:6:46
           |
         6 |       command: {drain: "d {{ n }}", is_idle: "{{ n }}", resume: r, still_ours: s, out: "…
           |                                              ^^^^^^^^^
        help: drainers know the variables of the inventory, of the play and of `-e`; facts and results of tasks come later
        error: `out` cannot be rendered: `inventory_hostname` is undefined
          --> play.yml:6:88
           |
         6 | …sume: r, still_ours: s, out: "o {{ inventory_hostname }}"}
           |                               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ it is run once for all hosts, without the variables of one
        help: drainers know the variables of the inventory, of the play and of `-e`; facts and results of tasks come later
        "#);
    }
}
