//! Declarations become schedulers.

use super::*;
use crate::{
    drain::{Cordon, LocalRunner, Marker, NoticePlan, Runner, Target},
    interpreter::HostContext,
    playbook::DRAINERS,
    template::{Dict, Value},
};

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
        let context = HostContext { vars: Arc::new(vars), magic: Arc::new(magic), ..HostContext::default() };
        (host.clone(), Arc::new(context))
    };
    (vec![hosts.to_vec()], vec![Arc::new(hosts.iter().zip(values).map(context).collect())])
}

/// A home folder with a kubeconfig, of a cluster that nobody reaches.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let kubeconfig = "apiVersion: v1\nkind: Config\nclusters: []\ncontexts: []\nusers: []\n";
    std::fs::create_dir(home.path().join(".kube")).unwrap();
    for name in ["config", "prod"] {
        std::fs::write(home.path().join(".kube").join(name), kubeconfig).unwrap();
    }
    home
}

type Made = Result<(Schedulers, Diagnostics), SetupError>;

/// With a way to `login1` alone.
fn made(program: &Program, hosts: PlayHosts<'_>, contexts: &[Arc<Contexts>]) -> Made {
    let home = home();
    let surroundings = Surroundings { home: Some(home.path()), variables: &[], forced: false };
    let mut logins = Logins::opened_by(|host| match host {
        "login1" => Ok(Arc::new(LocalRunner) as Arc<dyn Runner>),
        _ => Err(LoginError::Unknown { host: host.to_owned() }),
    });
    schedulers(program, hosts, contexts, &surroundings, &mut logins)
}

fn built(block: &str, values: [&str; 2]) -> Result<(Option<Arc<Scheduler>>, String), String> {
    let (hosts, contexts) = fleet(values);
    let hosts = PlayHosts { taking_part: &hosts, beside: &[Vec::new()] };
    match made(&program(block), hosts, &contexts) {
        Ok((mut all, warnings)) => Ok((all.remove(0), warnings.to_string())),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn every_drainer_is_made_from_its_example() {
    for info in DRAINERS {
        let block = format!("    {}\n", info.example);
        let (scheduler, _) = built(&block, ["", ""]).unwrap_or_else(|error| panic!("{}: {error}", info.word));
        let play = &program(&block).plays[0];
        assert_eq!(scheduler.is_none(), play.policy.drain.is_none(), "{}", info.word);
        let Some(scheduler) = scheduler else { continue };
        let name = info.scheduler.map_or_else(|| info.word.to_owned(), str::to_lowercase);
        assert_eq!(scheduler.drainer.name(), name, "{}", info.word);
        let worst = scheduler.timeout + scheduler.notice.map_or(Duration::ZERO, |notice| notice.deadline);
        assert_eq!(worst.as_secs(), play.policy.drain.worst_case_s(), "{}", info.word);
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
    let block = "    drain: {kubernetes: {timeout: 10m, node: \"{{ n | default(inventory_hostname) }}\"}}\n";
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
    let split = |beside: &[&str]| {
        let beside = beside.iter().map(ToString::to_string).collect();
        let taking_part = vec![hosts[0][..1].to_vec()];
        let hosts = PlayHosts { taking_part: &taking_part, beside: &[beside] };
        let (mut all, warnings) = made(&program(block), hosts, &contexts).unwrap();
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
    assert!(built("    drain: {slurm: {login: login1}}\n", ["", ""]).is_ok());
    let error = built("    drain: {slurm: {login: login2}}\n", ["", ""]).unwrap_err();
    assert_eq!(error, "the inventory has no host `login2`");
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
    let marker = Marker { run: "R".into(), nonce: "N".into() };
    let cordon = scheduler.drainer.cordon(&scheduler.target("h2"), &marker, "why").await;
    assert_eq!(cordon, Ok(Cordon::Ours { evidence: "2 slurm h2".into() }));
    let out = scheduler.drainer.survey(&[scheduler.target("h1"), scheduler.target("h2")]).await.unwrap();
    assert_eq!(out.iter().map(|outage| outage.why.as_str()).collect::<Vec<_>>(), ["slurm"]);
    assert_eq!(scheduler.notice, Some(NoticePlan { deadline: Duration::from_secs(60), before_cordon: true }));
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
