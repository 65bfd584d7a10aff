use std::collections::BTreeMap;

use jiff::Timestamp;

use super::*;

const FLEET: &str = "# TYPE gpufleet_node_verdict stateset
# HELP gpufleet_node_verdict Worst verdict of a node, \\\"ok\\\" included.
gpufleet_node_verdict{node=\"gpu001\",gpufleet_node_verdict=\"fail\"} 1
gpufleet_node_verdict{node=\"a\\\"b,}{c\",gpufleet_node_verdict=\"fail\"} 0
# TYPE gpufleet_gpu info
gpufleet_gpu_info{node=\"gpu001\",gpu=\"0\"} 1
# TYPE gpufleet_gpu_xids counter
gpufleet_gpu_xids_total{node=\"gpu001\"} 3
gpufleet_gpu_xids_created{node=\"gpu001\"} 1.5e9
# TYPE gpufleet_fleet_compliant_ratio gauge
# UNIT gpufleet_fleet_compliant_ratio ratio
gpufleet_fleet_compliant_ratio 0.5
# EOF
";

fn own() -> Own {
    let own = Own::new("1.2.3", Timestamp::from_second(1_764_000_000).unwrap());
    own.schedule("nightly", 3600);
    own.channel("oncall");
    own.begun("nightly", 2);
    own.ended("nightly", AuditResult::Reported);
    own.last("nightly", Timestamp::from_second(1_764_000_100).unwrap(), 12.5, 3);
    own.next("nightly", Timestamp::from_second(1_764_003_600).unwrap());
    own.delivery("oncall", "sent");
    own.reloaded(true, Timestamp::from_second(1_764_000_000).unwrap());
    own
}

fn both() -> BTreeMap<String, Exposition> {
    ["nightly", "weekly"]
        .map(|name| (name.to_owned(), Exposition::parse(FLEET, Some(name)).unwrap()))
        .into_iter()
        .collect()
}

fn rendered(form: Form) -> String {
    let fleet = both();
    render(&own().encode(), &fleet.values().collect::<Vec<_>>(), form)
}

#[test]
fn families_of_several_schedules_are_told_once_and_their_samples_apart() {
    insta::assert_snapshot!(rendered(Form::OpenMetrics), @r###"
    # TYPE gpufleet_fleet_compliant_ratio gauge
    # UNIT gpufleet_fleet_compliant_ratio ratio
    gpufleet_fleet_compliant_ratio{schedule="nightly"} 0.5
    gpufleet_fleet_compliant_ratio{schedule="weekly"} 0.5
    # TYPE gpufleet_gpu info
    gpufleet_gpu_info{schedule="nightly",node="gpu001",gpu="0"} 1
    gpufleet_gpu_info{schedule="weekly",node="gpu001",gpu="0"} 1
    # TYPE gpufleet_gpu_xids counter
    gpufleet_gpu_xids_total{schedule="nightly",node="gpu001"} 3
    gpufleet_gpu_xids_created{schedule="nightly",node="gpu001"} 1.5e9
    gpufleet_gpu_xids_total{schedule="weekly",node="gpu001"} 3
    gpufleet_gpu_xids_created{schedule="weekly",node="gpu001"} 1.5e9
    # TYPE gpufleet_node_verdict stateset
    # HELP gpufleet_node_verdict Worst verdict of a node, \"ok\" included.
    gpufleet_node_verdict{schedule="nightly",node="gpu001",gpufleet_node_verdict="fail"} 1
    gpufleet_node_verdict{schedule="nightly",node="a\"b,}{c",gpufleet_node_verdict="fail"} 0
    gpufleet_node_verdict{schedule="weekly",node="gpu001",gpufleet_node_verdict="fail"} 1
    gpufleet_node_verdict{schedule="weekly",node="a\"b,}{c",gpufleet_node_verdict="fail"} 0
    # TYPE gpufleet_watch_audit_failing gauge
    # HELP gpufleet_watch_audit_failing Whether the last audit gave no report.
    gpufleet_watch_audit_failing{schedule="nightly"} 0
    # TYPE gpufleet_watch_audit_running gauge
    # HELP gpufleet_watch_audit_running Whether an audit runs now.
    gpufleet_watch_audit_running{schedule="nightly"} 0
    # TYPE gpufleet_watch_audits counter
    # HELP gpufleet_watch_audits Audits that ended, with or without a report.
    gpufleet_watch_audits_total{schedule="nightly",result="failed"} 0
    gpufleet_watch_audits_total{schedule="nightly",result="reported"} 1
    # TYPE gpufleet_watch_audits_missed counter
    # HELP gpufleet_watch_audits_missed Audits that were due while the machine or the watcher was down, and were not made up for.
    gpufleet_watch_audits_missed_total{schedule="nightly"} 2
    # TYPE gpufleet_watch_audits_skipped counter
    # HELP gpufleet_watch_audits_skipped Audits that were left out because the one before still ran.
    gpufleet_watch_audits_skipped_total{schedule="nightly"} 0
    # TYPE gpufleet_watch_build info
    # HELP gpufleet_watch_build The release that watches.
    gpufleet_watch_build_info{version="1.2.3"} 1
    # TYPE gpufleet_watch_config_last_reload_success_timestamp_seconds gauge
    # UNIT gpufleet_watch_config_last_reload_success_timestamp_seconds seconds
    # HELP gpufleet_watch_config_last_reload_success_timestamp_seconds When the configuration in force was read.
    gpufleet_watch_config_last_reload_success_timestamp_seconds 1764000000.0
    # TYPE gpufleet_watch_config_last_reload_successful gauge
    # HELP gpufleet_watch_config_last_reload_successful Whether the last reading of the configuration succeeded.
    gpufleet_watch_config_last_reload_successful 1
    # TYPE gpufleet_watch_last_audit_duration_seconds gauge
    # UNIT gpufleet_watch_last_audit_duration_seconds seconds
    # HELP gpufleet_watch_last_audit_duration_seconds How long the last audit that reported took.
    gpufleet_watch_last_audit_duration_seconds{schedule="nightly"} 12.5
    # TYPE gpufleet_watch_last_audit_exit_code gauge
    # HELP gpufleet_watch_last_audit_exit_code Exit code of the last audit that reported.
    gpufleet_watch_last_audit_exit_code{schedule="nightly"} 3
    # TYPE gpufleet_watch_last_audit_timestamp_seconds gauge
    # UNIT gpufleet_watch_last_audit_timestamp_seconds seconds
    # HELP gpufleet_watch_last_audit_timestamp_seconds When the last audit that reported ended.
    gpufleet_watch_last_audit_timestamp_seconds{schedule="nightly"} 1764000100.0
    # TYPE gpufleet_watch_longest_interval_seconds gauge
    # UNIT gpufleet_watch_longest_interval_seconds seconds
    # HELP gpufleet_watch_longest_interval_seconds The longest time between two audits that is planned.
    gpufleet_watch_longest_interval_seconds{schedule="nightly"} 3600.0
    # TYPE gpufleet_watch_next_audit_timestamp_seconds gauge
    # UNIT gpufleet_watch_next_audit_timestamp_seconds seconds
    # HELP gpufleet_watch_next_audit_timestamp_seconds When the next audit is due.
    gpufleet_watch_next_audit_timestamp_seconds{schedule="nightly"} 1764003600.0
    # TYPE gpufleet_watch_notifications counter
    # HELP gpufleet_watch_notifications Tries to deliver notifications.
    gpufleet_watch_notifications_total{channel="oncall",result="given_up"} 0
    gpufleet_watch_notifications_total{channel="oncall",result="retried"} 0
    gpufleet_watch_notifications_total{channel="oncall",result="sent"} 1
    # TYPE gpufleet_watch_notifications_waiting gauge
    # HELP gpufleet_watch_notifications_waiting Notifications that are not delivered yet.
    gpufleet_watch_notifications_waiting{channel="oncall"} 0
    # TYPE gpufleet_watch_start_timestamp_seconds gauge
    # UNIT gpufleet_watch_start_timestamp_seconds seconds
    # HELP gpufleet_watch_start_timestamp_seconds When the watcher started.
    gpufleet_watch_start_timestamp_seconds 1764000000.0
    # EOF
    "###);
}

#[test]
fn the_older_form_has_the_same_numbers() {
    let text = rendered(Form::Text);
    for line in [
        "# TYPE gpufleet_node_verdict gauge",
        "# HELP gpufleet_node_verdict Worst verdict of a node, \"ok\" included.",
        "# TYPE gpufleet_gpu_info gauge",
        "# TYPE gpufleet_gpu_xids_total counter",
        "gpufleet_gpu_xids_total{schedule=\"weekly\",node=\"gpu001\"} 3",
        "gpufleet_watch_audits_total{schedule=\"nightly\",result=\"reported\"} 1",
        "gpufleet_watch_build_info{version=\"1.2.3\"} 1",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    assert!(!text.contains("_created") && !text.contains("# UNIT") && !text.contains("EOF"), "{text}");
}

#[test]
fn what_is_written_is_read_again() {
    let text = rendered(Form::OpenMetrics);
    let all = Exposition::parse(&text, None).unwrap();
    assert_eq!(Exposition::render(&[&all], Form::OpenMetrics), text);
    assert_eq!(all.samples(), text.lines().filter(|line| !line.starts_with('#')).count());
}

#[test]
fn a_schedule_and_a_channel_that_are_gone_are_told_no_more() {
    let own = own();
    own.forget_schedule("nightly");
    own.forget_channel("oncall");
    let text = own.encode();
    assert!(!text.contains("nightly") && !text.contains("oncall"), "{text}");
}

#[test]
fn what_is_no_openmetrics_is_refused_with_its_line() {
    let cases = [
        ("", "line 0: `# EOF` is missing"),
        ("# EOF\nup 1\n", "line 2: it is behind the end"),
        ("up 1\n# EOF", "line 1: the sample belongs to no family"),
        ("# TYPE a gauge\na one\n# EOF", "line 2: its value is no number"),
        ("# TYPE a gauge\na 1 1764000000\n# EOF", "line 2: it has a time or an exemplar"),
        ("# TYPE a gauge\na{b=\"c} 1\n# EOF", "line 2: a label has no end"),
        ("# TYPE a gauge\na{b=\"c\",b=\"d\"} 1\n# EOF", "line 2: a label has a name that it cannot have"),
        ("# TYPE a gauge\na{b=\"\\x\"} 1\n# EOF", "line 2: a label has no end"),
        ("# TYPE a gauge\n# TYPE b gauge\n# TYPE a gauge\n# EOF", "line 3: its family stands above already"),
        ("# TYPE a gauge\nb 1\n# EOF", "line 2: the sample belongs to no family"),
        ("# NOTE a b\n# EOF", "line 1: this is neither TYPE, UNIT nor HELP"),
    ];
    for (text, why) in cases {
        assert_eq!(
            Exposition::parse(text, None).map_err(|error| error.to_string()),
            Err(why.to_owned()),
            "{text}"
        );
    }
}

#[test]
fn the_form_is_what_the_reader_prefers() {
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                      text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    assert_eq!(Form::accepted(prometheus), Form::OpenMetrics);
    assert_eq!(
        Form::accepted("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.4"),
        Form::Text
    );
    for other in
        ["", "*/*", "text/html", "application/openmetrics-text;q=0", "application/openmetrics-text;q=x"]
    {
        assert_eq!(Form::accepted(other), Form::Text, "{other}");
    }
}
