use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

use super::*;
use crate::tasks::testing::{Bench, failure, shown};

const HERE: &str = "#!/bin/sh\nhere=$(dirname \"$0\")/../..\n";

/// Source: timedatectl of systemd 252.
const STATUS: &str = "       Server: 10.0.0.1 (ntp1.example)\n         Leap: normal\nRoot distance: 400us (max: 5s)\n       \
                      Offset: -12.5ms\n        Delay: 1.2ms\n Packet count: 3\n";

/// A node with units that run, and programs that read their files.
fn bench(units: &[&str], synchronised: &str) -> Bench {
    let bench = Bench::new();
    let blocks: String = units
        .iter()
        .map(|unit| {
            format!(
                "Id={unit}\\nLoadState=loaded\\nActiveState=active\\nUnitFileState=enabled\\nMainPID=71\\n\\n"
            )
        })
        .collect();
    bench.script(
        "usr/bin/systemctl",
        &format!(
            "{HERE}case $1 in show) printf '{blocks}';; *) echo \"$*\" >>$here/log\n\
             cp $here/etc/systemd/timesyncd.conf.d/90-gpufleet.conf $here/read 2>/dev/null;; esac\nexit 0\n"
        ),
    );
    bench.write("synchronised", synchronised);
    bench.write("status", STATUS);
    bench.script(
        "usr/bin/timedatectl",
        &format!(
            "{HERE}case $1 in show) echo NTPSynchronized=$(cat $here/synchronised);;\n\
             show-timesync) echo SystemNTPServers=$(grep NTP=. $here/read 2>/dev/null | cut -d= -f2);;\n\
             timesync-status) [ -e $here/later ] && echo >>$here/asks && [ $(wc -l <$here/asks) -gt 4 ] && mv $here/later $here/status\n\
             cat $here/status;; esac\n"
        ),
    );
    bench.script(
        "usr/bin/chronyc",
        &format!(
            "{HERE}case \"$*\" in --version) echo 'chronyc (chrony) version 4.3 (+CMDMON)';;\n\
             *tracking) echo 'A0,10.0.0.1,3,1700000000.1,-0.002500000,0.0,0.0,-7.1,0.0,0.1,0.003000000,0.000500000,64.2,Normal';;\n\
             *sources) cp $here/etc/chrony/sources.d/gpufleet.sources $here/read;;\n\
             '-N -c sources -a') echo '#,*,PHC0,0,2,377,1,0,0,0'; cat $here/more 2>/dev/null\n\
             grep ^server $here/read 2>/dev/null | while read a b c; do \
             grep -q \"^$b$\" $here/silent 2>/dev/null && echo \"^,?,$b,0,6,0,4294967295,0,0,0\" || echo \"^,*,$b,2,6,377,9,0,0,0\"; done;; \
             *) exit 1;; esac\nexit 0\n"
        ),
    );
    bench.write(
        "etc/chrony/chrony.conf",
        "pool 2.debian.pool.ntp.org iburst\nsourcedir /run/chrony-dhcp\nsourcedir /etc/chrony/sources.d\n",
    );
    bench.write("proc/stat", "btime 4000000000\n");
    bench.write("proc/71/stat", "71 (chronyd) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 10\n");
    bench
}

fn run(bench: &Bench, task: Value, mode: Mode) -> OpOutcome {
    let task: TimeSync = serde_json::from_value(task).unwrap();
    bench.run(&task, mode)
}

#[test]
fn servers_of_chrony_are_a_file_of_sources_that_it_has_read() {
    let bench = bench(&["chrony.service"], "yes");
    let task = || json!({"servers": ["ntp1.example", "10.0.0.1"], "max_offset_ms": 10});
    let predicted = run(&bench, task(), Mode::Predict);
    assert_eq!(
        shown(&predicted),
        [
            "chrony.service servers at boot: none -> ntp1.example, 10.0.0.1 (live)",
            "chrony.service servers: none -> ntp1.example, 10.0.0.1 (live)",
        ]
    );
    assert_eq!(
        predicted.warnings,
        ["chrony.service asks others too: pool 2.debian.pool.ntp.org (/etc/chrony/chrony.conf)"]
    );
    assert_eq!(run(&bench, task(), Mode::Predict).status, OpStatus::Ok);
    bench.activate(Disruption::Reboot);
    assert_eq!(run(&bench, task(), Mode::Predict).status, OpStatus::Possible, "whether it is in time");
    let done = run(&bench, task(), Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    assert_eq!(
        bench.read("etc/chrony/sources.d/gpufleet.sources"),
        "# Written by gpufleet.\nserver ntp1.example iburst\nserver 10.0.0.1 iburst\n"
    );
    assert_eq!((&done.data["offset_ms"], &done.data["max_error_ms"]), (&json!(2.5), &json!(4.5)));
    assert_eq!(run(&bench, task(), Mode::Apply).status, OpStatus::Ok);
    // Killed before chrony read its sources: the next run lets it.
    std::fs::remove_file(bench.path("read")).unwrap();
    assert_eq!(shown(&run(&bench, task(), Mode::Apply)).len(), 1);
    let late = run(&bench, json!({"max_offset_ms": 4}), Mode::Apply);
    assert!(
        failure(&late).starts_with("the clock may be off by 4.500 ms, and 4 ms are allowed: by 2.500 ms as"),
        "{late:?}"
    );
    bench.write("etc/chrony/chrony.conf", "server 10.9.9.9\n");
    let line = run(&bench, task(), Mode::Predict);
    assert_eq!(line.changes[0].what(), "/etc/chrony/chrony.conf", "{line:?}");
}

#[test]
fn servers_of_timesyncd_are_a_drop_in() {
    let bench = bench(&["systemd-timesyncd.service"], "yes");
    let task = || json!({"servers": "ntp1.example", "daemon": "timesyncd"});
    let predicted = run(&bench, task(), Mode::Predict);
    let done = run(&bench, task(), Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    assert_eq!(bench.read("log"), "--no-ask-password restart systemd-timesyncd.service\n");
    assert_eq!(
        bench.read("etc/systemd/timesyncd.conf.d/90-gpufleet.conf"),
        "# Written by gpufleet.\n[Time]\nNTP=\nNTP=ntp1.example\n"
    );
    assert_eq!(run(&bench, task(), Mode::Apply).status, OpStatus::Ok);
    let late = run(&bench, json!({"max_offset_ms": 12}), Mode::Predict);
    assert!(
        failure(&late).contains("may be off by 13.500 ms, and 12 ms are allowed: by 12.500 ms"),
        "{late:?}"
    );
    for (text, wanted) in [("+1.5s", 1500.0), ("-45us", 0.045), ("1min 2s", 62000.0), ("+0", 0.0)] {
        assert_eq!(milliseconds(text), Some(wanted), "{text}");
    }
    assert_eq!((milliseconds(""), milliseconds("3 parsecs")), (None, None));
}

#[test]
fn a_clock_that_nobody_keeps_right_is_a_failure() {
    let late = run(&bench(&["chrony.service"], "no"), json!({}), Mode::Apply);
    assert!(failure(&late).starts_with("the clock is not synchronised"), "{late:?}");
    let two = bench(&["chrony.service", "systemd-timesyncd.service"], "yes");
    assert!(failure(&run(&two, json!({}), Mode::Apply)).contains("run at once"));
    let other = run(&bench(&["ntp.service"], "yes"), json!({"daemon": "chrony"}), Mode::Apply);
    assert_eq!(failure(&other), "ntp.service runs, and not chrony");
    let none = bench(&[], "no");
    assert!(failure(&run(&none, json!({}), Mode::Apply)).starts_with("no daemon keeps"));
    let unknown = bench(&[], "yes");
    let done = run(&unknown, json!({}), Mode::Apply);
    assert_eq!((&done.status, done.warnings.len()), (&OpStatus::Ok, 1), "{done:?}");
    unknown.write("synchronised", "");
    let unknown = run(&unknown, json!({}), Mode::Predict);
    assert!(matches!(unknown.status, OpStatus::Unknown { .. }), "{unknown:?}");
}

#[test]
fn a_server_that_does_not_answer_is_told() {
    let bench = bench(&["chrony.service"], "yes");
    let task = || json!({"servers": ["ntp1.example", "ntp2.example"]});
    bench.write("silent", "ntp1.example\n");
    let done = run(&bench, task(), Mode::Apply);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let again = run(&bench, task(), Mode::Apply);
    assert_eq!(again.status, OpStatus::Ok, "{again:?}");
    assert_eq!(again.warnings.last().unwrap(), "of the declared servers, these do not answer: ntp1.example");
    bench.write("silent", "ntp1.example\nntp2.example\n");
    for mode in [Mode::Predict, Mode::Apply] {
        let none = run(&bench, task(), mode);
        let told = "none of the declared servers answers: ntp1.example, ntp2.example;";
        assert!(failure(&none).starts_with(told), "{none:?}");
    }
    let timesyncd = self::bench(&["systemd-timesyncd.service"], "yes");
    timesyncd.write(
        "etc/systemd/timesyncd.conf.d/90-gpufleet.conf",
        "# Written by gpufleet.\n[Time]\nNTP=\nNTP=a\n",
    );
    timesyncd.write("read", "NTP=a\n");
    assert_eq!(run(&timesyncd, json!({"servers": "a"}), Mode::Apply).status, OpStatus::Ok);
    timesyncd.write("status", "       Server: n/a (a)\n Packet count: 0\n");
    assert!(
        failure(&run(&timesyncd, json!({"servers": "a"}), Mode::Apply))
            .starts_with("none of the declared servers answers: a;")
    );
}

#[test]
fn a_server_that_no_file_names_any_more_is_dropped() {
    let bench = bench(&["chrony.service"], "yes");
    let both = json!({"servers": ["ntp1.example", "ntp2.example"]});
    assert_eq!(run(&bench, both, Mode::Apply).status, OpStatus::Changed);
    // Killed after the file and before the reload.
    let one = || json!({"servers": "ntp1.example"});
    bench.write(
        "etc/chrony/sources.d/gpufleet.sources",
        "# Written by gpufleet.\nserver ntp1.example iburst\n",
    );
    let predicted = run(&bench, one(), Mode::Predict);
    bench.forget();
    let done = run(&bench, one(), Mode::Apply);
    assert_eq!(shown(&done), ["chrony.service servers: ntp1.example, ntp2.example -> ntp1.example (live)"]);
    assert_eq!(done.changes, predicted.changes);
    assert_eq!(run(&bench, one(), Mode::Apply).status, OpStatus::Ok);
    // From elsewhere, by a folder of sources and by what chrony.conf includes.
    bench.write(
        "more",
        "^,+,10.7.7.7,2,6,377,9,0,0,0\n^,+,10.8.8.8,2,6,377,9,0,0,0\n^,+,10.9.9.9,2,6,377,9,0,0,0\n",
    );
    bench.write("run/chrony-dhcp/eth0.sources", "server 10.7.7.7 iburst\n");
    let conf = bench.read("etc/chrony/chrony.conf");
    bench.write(
        "etc/chrony/chrony.conf",
        &format!("{conf}confdir /etc/chrony/conf.d\ninclude /etc/chrony/x.d/*.inc\n"),
    );
    bench.write("etc/chrony/conf.d/a.conf", "server 10.8.8.8\n");
    bench.write("etc/chrony/x.d/b.inc", "! server 10.6.6.6\npeer 10.9.9.9\n");
    let told = run(&bench, one(), Mode::Apply);
    assert_eq!(told.status, OpStatus::Ok, "{told:?}");
    for part in ["server 10.7.7.7 (/run/chrony-dhcp/eth0.sources)", "server 10.8.8.8", "peer 10.9.9.9"] {
        assert!(told.warnings[0].contains(part), "{told:?}");
    }
    std::fs::remove_file(bench.path("run/chrony-dhcp/eth0.sources")).unwrap();
    let gone = run(&bench, one(), Mode::Predict);
    assert_eq!(shown(&gone), ["chrony.service servers: ntp1.example, 10.7.7.7 -> ntp1.example (live)"]);
}

#[test]
fn a_later_drop_in_of_timesyncd_is_refused_by_name() {
    let bench = bench(&["systemd-timesyncd.service"], "yes");
    let later = "etc/systemd/timesyncd.conf.d/cloud-init.conf";
    bench.write(later, "[Time]\nNTP=10.0.0.9\n");
    let told = run(&bench, json!({"servers": "ntp1.example"}), Mode::Apply);
    assert!(
        failure(&told).starts_with("/etc/systemd/timesyncd.conf.d/cloud-init.conf comes after"),
        "{told:?}"
    );
    assert!(!bench.path("etc/systemd/timesyncd.conf.d/90-gpufleet.conf").exists());
    bench.write(later, "[Time]\nFallbackNTP=10.0.0.9\n");
    // It has an answer only some time after its restart.
    bench.write("status", "       Server: n/a (ntp1.example)\n Packet count: 0\n");
    bench.write("later", STATUS);
    let done = run(&bench, json!({"servers": "ntp1.example", "max_offset_ms": 20}), Mode::Apply);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
}

#[test]
fn sources_are_where_chronyd_may_read_them() {
    for (conf, folder) in
        [("etc/chrony/chrony.conf", "/etc/chrony/sources.d"), ("etc/chrony.conf", "/etc/chrony.sources.d")]
    {
        let bench = bench(&["chrony.service"], "yes");
        std::fs::remove_file(bench.path("etc/chrony/chrony.conf")).unwrap();
        bench.write(conf, "pool 2.debian.pool.ntp.org iburst\n");
        let told = bench.node(|node| {
            let task: TimeSync = serde_json::from_value(json!({"servers": "a"})).unwrap();
            task.observe(node).unwrap().servers.unwrap()
        });
        assert_eq!(told.file.shown, format!("{folder}/gpufleet.sources"));
        assert!(told.main.unwrap().1.ends_with(&format!("sourcedir {folder}\n")));
    }
}

#[test]
fn what_earlier_tasks_bring_is_known_in_the_run() {
    use crate::world::Effect;
    let unit = |active: bool, state: &str| Effect::Unit {
        name: "chrony.service".to_owned(),
        view: UnitView { active: Some(active), file_state: state.to_owned(), ..UnitView::default() },
    };
    for (active, state, wanted) in [
        (true, "enabled", OpStatus::Ok),
        (false, "enabled", OpStatus::Possible),
        (true, "disabled", OpStatus::Possible),
    ] {
        let bench = bench(&["chrony.service"], "yes");
        bench.overlay.assume([unit(active, state)]);
        assert_eq!(run(&bench, json!({}), Mode::Predict).status, wanted, "{state}");
    }
    let rebooted = bench(&["chrony.service"], "yes");
    rebooted.overlay.assume([unit(true, "disabled")]);
    rebooted.activate(Disruption::Reboot);
    let after = run(&rebooted, json!({}), Mode::Predict);
    assert_eq!(
        (after.status, after.changes),
        (OpStatus::Possible, Vec::new()),
        "not only whether it is in time"
    );
    for units in [&["systemd-timesyncd.service"][..], &["chrony.service", "systemd-timesyncd.service"]] {
        let bench = bench(units, "yes");
        let task = || json!({"daemon": "chrony"});
        assert!(matches!(run(&bench, task(), Mode::Predict).status, OpStatus::Failed { .. }));
        bench
            .overlay
            .assume([Effect::Package { name: "chrony".to_owned(), version: Some("4.3".to_owned()) }]);
        assert_eq!(run(&bench, task(), Mode::Predict).status, OpStatus::Possible);
    }
}

#[test]
fn ptp_is_the_one_daemon_or_serves_it() {
    let command =
        |bench: &Bench, words: &[&str]| bench.write("proc/71/cmdline", &format!("{}\0", words.join("\0")));
    // ptp4l keeps the card's clock, and phc2sys the system's.
    let ptp = bench(&["ptp4l@eth0.service", "phc2sys@eth0.service"], "yes");
    command(&ptp, &["/usr/sbin/phc2sys", "-w", "-s", "eth0"]);
    let done = run(&ptp, json!({}), Mode::Apply);
    assert_eq!(
        (&done.status, &done.data["daemons"]),
        (&OpStatus::Ok, &json!(["phc2sys@eth0.service"])),
        "{done:?}"
    );
    assert_eq!((&done.data["ptp"], done.warnings.len()), (&json!(["ptp4l@eth0.service"]), 0));
    assert_eq!(run(&ptp, json!({"daemon": "ptp"}), Mode::Apply).status, OpStatus::Ok);
    assert!(
        failure(&run(&ptp, json!({"daemon": "chrony"}), Mode::Apply))
            .contains("phc2sys@eth0.service runs, and not chrony")
    );
    assert!(failure(&run(&ptp, json!({"servers": "a"}), Mode::Apply)).contains("keeps the clock by PTP"));
    let unknown = run(&ptp, json!({"max_offset_ms": 1}), Mode::Predict);
    assert!(matches!(unknown.status, OpStatus::Unknown { .. }), "{unknown:?}");
    // chrony with `refclock PHC`, or fed by phc2sys.
    for units in [&["chrony.service", "ptp4l.service"][..], &["chrony.service", "phc2sys.service"][..]] {
        let fed = bench(units, "yes");
        command(&fed, &["/usr/sbin/phc2sys", "-a", "-r", "-E", "ntpshm"]);
        let done = run(&fed, json!({"daemon": "chrony"}), Mode::Apply);
        assert_eq!(
            (&done.status, &done.data["daemons"]),
            (&OpStatus::Ok, &json!(["chrony.service"])),
            "{done:?}"
        );
    }
    let both = bench(&["chrony.service", "phc2sys.service"], "yes");
    command(&both, &["/usr/sbin/phc2sys", "-a", "-r"]);
    assert!(
        failure(&run(&both, json!({}), Mode::Apply))
            .contains("chrony.service and phc2sys.service run at once")
    );
    // The file of a running program.
    command(&both, &["/usr/sbin/phc2sys", "-a", "-r", "-f", "/etc/phc2sys.conf"]);
    let unread = run(&both, json!({}), Mode::Predict);
    assert!(matches!(unread.status, OpStatus::Unknown { .. }), "{unread:?}");
    both.write("etc/phc2sys.conf", "[global]\nclock_servo ntpshm\n");
    assert_eq!(run(&both, json!({}), Mode::Apply).status, OpStatus::Ok);
    let software = bench(&["chrony.service", "ptp4l.service"], "yes");
    command(&software, &["/usr/sbin/ptp4l", "-i", "eth0", "-S"]);
    assert!(
        failure(&run(&software, json!({}), Mode::Apply))
            .contains("chrony.service and ptp4l.service run at once")
    );
    let card = bench(&["ptp4l.service"], "no");
    assert!(
        failure(&run(&card, json!({}), Mode::Apply)).contains("ptp4l.service keeps the clock of a card only")
    );
}
