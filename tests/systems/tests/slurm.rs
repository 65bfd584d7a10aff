//! The Slurm drainer against a real slurmctld and real slurmds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpufleet::drain::{
    Activity, Cordon, Drainer as _, Marker, Notice, Ownership, RebootOrder, SlurmDrainer, SlurmOptions,
    Target,
};
use gpufleet_systems_tests::{Cluster, ClusterOptions};
use jiff::Timestamp;

fn drainer(cluster: &Cluster, notice: Notice) -> SlurmDrainer {
    SlurmDrainer::new(
        Arc::new(cluster.runner()),
        SlurmOptions {
            notice,
            command_timeout: Duration::from_secs(20),
            register_timeout: Duration::from_secs(90),
            poll: Duration::from_millis(300),
        },
    )
}

fn target(node: usize) -> Target {
    Target { host: format!("host{node}"), node: format!("gpu{node}") }
}

fn marker(run: &str) -> Marker {
    Marker { run: run.to_owned(), nonce: "n1".to_owned() }
}

async fn cordoned(drainer: &SlurmDrainer, node: usize, run: &str) {
    let cordon = drainer.cordon(&target(node), &marker(run), "MIG layout = a | b").await.unwrap();
    assert!(
        matches!(&cordon, Cordon::Ours { evidence } if evidence.contains(&marker(run).to_string())),
        "{cordon:?}"
    );
}

async fn until_idle(drainer: &SlurmDrainer, node: usize) -> Vec<Vec<String>> {
    let mut seen = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        match drainer.activity(&target(node)).await {
            Ok(Activity::Idle) => return seen,
            Ok(Activity::Busy { work }) => seen.push(work),
            Ok(Activity::Stuck { why }) => panic!("Slurm waits for whatever is there: {why:?}"),
            Err(_) => {}
        }
        assert!(Instant::now() < deadline, "never idle: {seen:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_running_job_keeps_the_node_busy_until_it_is_gone_completely() {
    let cluster = Cluster::start(ClusterOptions::default());
    let drainer = drainer(&cluster, Notice::Nothing);
    // The trap makes the job ignore its end until KillWait is over, and the node is COMPLETING meanwhile.
    let job = cluster.run_job(1, "trap '' TERM; while :; do sleep 1; done");
    cordoned(&drainer, 1, "run1").await;
    let Activity::Busy { work } = drainer.activity(&target(1)).await.unwrap() else {
        panic!("idle with a job")
    };
    assert_eq!(work, [format!("job {job} of root")]);
    cluster.admin(&["scancel", &job]);
    let seen = until_idle(&drainer, 1).await;
    assert!(seen.iter().flatten().any(|work| work.contains("completing")), "{seen:?}");
    assert_eq!(cluster.state(1), "IDLE+DRAIN");
    assert_eq!(drainer.resume(&target(1), &marker("run1"), None).await, Ok(Ownership::NotDrained));
    let line = cluster.show(1);
    assert!(!line.contains("Reason=") && !line.contains("Extra=") && !line.contains("DRAIN"), "{line}");
}

#[tokio::test]
async fn a_drain_by_a_person_is_neither_overwritten_nor_undone() {
    let cluster = Cluster::start(ClusterOptions::default());
    let drainer = drainer(&cluster, Notice::Nothing);
    cluster.admin(&["scontrol", "update", "nodename=gpu1", "state=drain", "reason=bad DIMM = A1 | B2"]);
    let held = drainer.cordon(&target(1), &marker("run1"), "x").await.unwrap();
    assert_eq!(held, Cordon::HeldByOthers { by: "drained by root: bad DIMM = A1 | B2".to_owned() });
    assert!(cluster.show(1).contains("Reason=bad DIMM = A1 | B2 ["), "{}", cluster.show(1));
    let theirs = Ownership::Theirs { by: "drained by root: bad DIMM = A1 | B2".to_owned() };
    assert_eq!(drainer.resume(&target(1), &marker("run1"), None).await, Ok(theirs.clone()));
    assert_eq!(cluster.state(1), "IDLE+DRAIN");

    cordoned(&drainer, 2, "run1").await;
    assert_eq!(drainer.ownership(&target(2), &marker("run1")).await, Ok(Ownership::Ours));
    cluster.admin(&["scontrol", "update", "nodename=gpu2", "state=drain", "reason=bad DIMM = A1 | B2"]);
    assert_eq!(drainer.ownership(&target(2), &marker("run1")).await, Ok(theirs.clone()));
    assert_eq!(drainer.resume(&target(2), &marker("run1"), None).await, Ok(theirs));
    assert!(cluster.show(2).contains("Reason=bad DIMM"), "{}", cluster.show(2));
    assert_eq!(cluster.state(2), "IDLE+DRAIN");

    // A person who resumes a node of this run's drain has the last word too.
    cluster.admin(&["scontrol", "update", "nodename=gpu2", "state=resume"]);
    assert_eq!(drainer.ownership(&target(2), &marker("run1")).await, Ok(Ownership::NotDrained));
}

#[tokio::test]
async fn our_drain_survives_a_restart_of_slurmctld_which_is_unknown_meanwhile() {
    let cluster = Cluster::start(ClusterOptions { nodes: 1, return_to_service: 0 });
    let drainer = drainer(&cluster, Notice::Nothing);
    cordoned(&drainer, 1, "run1").await;
    cluster.stop_controller();
    let error = drainer.ownership(&target(1), &marker("run1")).await.unwrap_err();
    assert!(error.to_string().contains("scontrol show node"), "{error}");
    assert!(drainer.survey(&[target(1)]).await.is_err());
    cluster.start_controller();
    cluster.wait("slurmctld", || !cluster.state(1).is_empty());
    until_idle(&drainer, 1).await;
    assert_eq!(drainer.ownership(&target(1), &marker("run1")).await, Ok(Ownership::Ours));
    assert_eq!(drainer.resume(&target(1), &marker("run1"), None).await, Ok(Ownership::NotDrained));
}

async fn reboot_under(return_to_service: u8) {
    let cluster = Cluster::start(ClusterOptions { nodes: 1, return_to_service });
    let drainer = drainer(&cluster, Notice::Nothing);
    cordoned(&drainer, 1, "run1").await;
    let issued = Timestamp::now();
    cluster.stop_node(1);
    let (gone, own) = (target(1), marker("run1"));
    let resume = drainer.resume(&gone, &own, Some(issued));
    tokio::pin!(resume);
    assert!(
        tokio::time::timeout(Duration::from_millis(2500), &mut resume).await.is_err(),
        "resumed before the node came back: {}",
        cluster.show(1)
    );
    assert!(cluster.state(1).contains("DRAIN"), "{}", cluster.show(1));
    cluster.start_node(1, true);
    assert_eq!(resume.await, Ok(Ownership::NotDrained), "{}", cluster.show(1));
    cluster.wait("an idle node", || cluster.state(1) == "IDLE");
}

#[tokio::test]
async fn resume_waits_for_the_new_boot_with_return_to_service_0() {
    reboot_under(0).await;
}

#[tokio::test]
async fn resume_waits_for_the_new_boot_with_return_to_service_1() {
    reboot_under(1).await;
}

#[tokio::test]
async fn resume_waits_for_the_new_boot_with_return_to_service_2() {
    reboot_under(2).await;
}

#[tokio::test]
async fn a_node_that_did_not_boot_stays_drained() {
    let cluster = Cluster::start(ClusterOptions { nodes: 1, return_to_service: 2 });
    let drainer = SlurmDrainer::new(
        Arc::new(cluster.runner()),
        SlurmOptions {
            register_timeout: Duration::from_secs(4),
            poll: Duration::from_millis(300),
            ..SlurmOptions::default()
        },
    );
    cordoned(&drainer, 1, "run1").await;
    let issued = Timestamp::now();
    // A restart of slurmd alone is no boot.
    cluster.stop_node(1);
    cluster.start_node(1, false);
    let error = drainer.resume(&target(1), &marker("run1"), Some(issued)).await.unwrap_err();
    assert!(error.to_string().contains("has not registered since its reboot"), "{error}");
    assert!(cluster.state(1).contains("DRAIN"), "{}", cluster.show(1));
    assert_eq!(drainer.ownership(&target(1), &marker("run1")).await, Ok(Ownership::Ours));
}

#[tokio::test]
async fn slurm_reboots_only_what_we_hold() {
    let cluster = Cluster::start(ClusterOptions { nodes: 1, return_to_service: 0 });
    let drainer = drainer(&cluster, Notice::Nothing);
    let refused = drainer.reboot_via(&target(1), &marker("run1")).await;
    assert!(matches!(refused, Ok(RebootOrder::Refused(_))), "{refused:?}");
    cordoned(&drainer, 1, "run1").await;
    let issued = Timestamp::now();
    assert_eq!(drainer.reboot_via(&target(1), &marker("run1")).await, Ok(RebootOrder::Taken));
    let requested = cluster.path().join("reboot.requested");
    cluster.wait("the reboot program", || requested.exists());
    cluster.stop_node(1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.start_node(1, true);
    assert_eq!(
        drainer.resume(&target(1), &marker("run1"), Some(issued)).await,
        Ok(Ownership::NotDrained),
        "{}",
        cluster.show(1)
    );
    cluster.wait("an idle node", || cluster.state(1) == "IDLE");
}

#[tokio::test]
async fn two_runs_never_hold_the_lock_together() {
    let cluster = Cluster::start(ClusterOptions { nodes: 1, return_to_service: 0 });
    let drainer = drainer(&cluster, Notice::Nothing);
    let (first, second) = tokio::join!(drainer.lock("runA"), drainer.lock("runB"));
    let held = [first.unwrap(), second.unwrap()].iter().filter(|holder| holder.is_none()).count();
    assert!(held <= 1, "both hold it");
    drainer.unlock("runA").await.unwrap();
    drainer.unlock("runB").await.unwrap();
    assert_eq!(drainer.lock("runA").await, Ok(None));
    assert_eq!(drainer.lock("runA").await, Ok(None), "taken again by the same run");
    assert_eq!(drainer.lock("runB").await, Ok(Some("runA".to_owned())));
    assert_eq!(drainer.locked("runA").await, Ok(true));
    assert_eq!(drainer.locked("runB").await, Ok(false));
    drainer.unlock("runA").await.unwrap();
    drainer.unlock("runA").await.unwrap();
    assert_eq!(drainer.lock("runB").await, Ok(None));
    // The lock delays no job, not even one without a limit.
    cluster.run_job(1, "sleep 60");
}

#[tokio::test]
async fn jobs_are_told_by_signal() {
    let cluster = Cluster::start(ClusterOptions { nodes: 1, return_to_service: 0 });
    let drainer = drainer(&cluster, Notice::Signal("USR1".to_owned()));
    let file = cluster.path().join("checkpoint");
    let script = format!(
        "trap 'touch {0}; exit 0' USR1; touch {0}.ready; while :; do sleep 0.2; done",
        file.display()
    );
    let job = cluster.run_job(1, &script);
    let ready = cluster.path().join("checkpoint.ready");
    cluster.wait("the job's trap", || ready.exists());
    let told = drainer.notify(&target(1), &marker("run1")).await.unwrap();
    assert_eq!(told, [format!("sent USR1 to job {job} of root")]);
    cluster.wait("the job's checkpoint", || file.exists());
}

#[tokio::test]
async fn the_survey_names_everybody_who_is_out() {
    let cluster = Cluster::start(ClusterOptions { nodes: 4, return_to_service: 0 });
    let drainer = drainer(&cluster, Notice::Nothing);
    cordoned(&drainer, 1, "run1").await;
    cluster.admin(&["scontrol", "update", "nodename=gpu2", "state=down", "reason=power supply"]);
    cluster.stop_node(3);
    let targets: Vec<Target> = (1..=5).map(target).collect();
    let deadline = Instant::now() + Duration::from_secs(120);
    let out = loop {
        let out = drainer.survey(&targets).await.unwrap();
        if out.len() == 4 {
            break out;
        }
        assert!(Instant::now() < deadline, "{out:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let nodes: Vec<&str> = out.iter().map(|outage| outage.node.as_str()).collect();
    assert_eq!(nodes, ["gpu1", "gpu2", "gpu3", "gpu5"]);
    assert_eq!(out[0].marker, Some(marker("run1")));
    assert_eq!(out[1].why, "down by root: power supply");
    assert_eq!(out[3].why, "not known to Slurm");
    assert!(out[1..].iter().all(|outage| outage.marker.is_none()));
}
