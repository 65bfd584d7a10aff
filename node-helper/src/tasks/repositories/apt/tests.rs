//! A node of Debian with fake `apt-get` and `curl`.

use std::fs;

use gpufleet_protocol::{OpStatus, message::Mode};

use super::*;
use crate::tasks::{
    keys::tests::{ARMORED, FINGERPRINT},
    testing::Bench,
};

const LINE: &str = "deb https://a.example/x stable main";
const FILE: &str = "etc/apt/sources.list.d/a_example_x.list";

fn task(value: Value) -> AptRepository {
    serde_json::from_value(value).unwrap()
}

fn bench() -> Bench {
    let bench = Bench::new();
    let d = bench.path("");
    bench.script(
        "usr/bin/apt-get",
        &format!("#!/bin/sh\necho \"$1\" >> {d}/log\n[ ! -e {d}/offline ] || {{ echo 'E: no mirror' >&2; exit 100; }}\n", d = d.display()),
    );
    bench.write("etc/apt/sources.list", "# main\ndeb http://deb.debian.org/debian bookworm main\n\n");
    bench.write("etc/os-release", "VERSION_CODENAME=jammy\n");
    bench
}

#[test]
fn a_source_is_added_once_with_one_update_of_the_lists() {
    let bench = bench();
    let declared = task(json!({"repo": "deb   https://a.example/x stable  main", "mode": "0600"}));
    let before = bench.snapshot();
    let predicted = bench.run(&declared, Mode::Predict);
    assert_eq!(bench.run(&declared, Mode::Predict).status, OpStatus::Ok);
    assert_eq!(bench.snapshot(), before);
    bench.forget();
    let applied = bench.run(&declared, Mode::Apply);
    assert_eq!((&applied.status, &applied.changes), (&OpStatus::Changed, &predicted.changes));
    assert_eq!(applied.data["sources_added"], json!(["/etc/apt/sources.list.d/a_example_x.list"]));
    assert_eq!((&applied.data["state"], &applied.data["sources_removed"]), (&json!("present"), &json!([])));
    assert_eq!(bench.read(FILE), format!("{LINE}\n"));
    assert_eq!(bench.read("log"), "update\n");
    let settled = bench.snapshot();
    assert_eq!(bench.run(&declared, Mode::Apply).status, OpStatus::Ok);
    assert_eq!(bench.snapshot(), settled);
    let gone = bench.run(&task(json!({"repo": LINE, "state": "absent", "update_cache": false})), Mode::Apply);
    assert_eq!(gone.data["sources_removed"], json!(["/etc/apt/sources.list.d/a_example_x.list"]));
    assert!(!bench.path(FILE).exists());
    assert_eq!(bench.read("log"), "update\n");
}

#[test]
fn what_is_there_in_another_place_or_form_counts() {
    let bench = bench();
    let debian = task(json!({"repo": "deb http://deb.debian.org/debian bookworm main"}));
    assert_eq!(bench.run(&debian, Mode::Apply).status, OpStatus::Ok);
    bench.write(
        "etc/apt/sources.list.d/x.sources",
        "Types: deb\nURIs: https://a.example/x/\nSuites: stable\nComponents: main extra\nSigned-By: /k.gpg\n",
    );
    assert_eq!(bench.run(&task(json!({"repo": LINE})), Mode::Apply).status, OpStatus::Ok);
    let absent = bench.run(&task(json!({"repo": LINE, "state": "absent"})), Mode::Apply);
    assert_eq!((absent.status, absent.warnings.len()), (OpStatus::Ok, 1));
    assert!(!bench.path("log").exists(), "apt is not run where nothing changes");
}

#[test]
fn a_line_that_is_commented_out_is_used_again() {
    let bench = bench();
    bench.write("etc/apt/sources.list.d/z.list", "# ours\n#deb https://a.example/x stable main # fast\n");
    let done = bench.run(&task(json!({"repo": LINE})), Mode::Apply);
    assert_eq!(done.data["sources_added"], json!([]));
    assert_eq!(bench.read("etc/apt/sources.list.d/z.list"), format!("# ours\n{LINE} # fast\n"));
    let gone = bench.run(&task(json!({"repo": LINE, "state": "absent"})), Mode::Apply);
    assert_eq!((gone.status, &gone.data["sources_removed"]), (OpStatus::Changed, &json!([])));
    assert_eq!(bench.read("etc/apt/sources.list.d/z.list"), "# ours\n");
}

#[test]
fn lists_that_cannot_be_updated_undo_the_change() {
    let bench = bench();
    bench.write("offline", "");
    bench.write("etc/apt/sources.list.d/z.list", "#deb https://a.example/x stable main\n");
    for state in ["present", "absent"] {
        bench.write(
            "etc/apt/sources.list.d/z.list",
            if state == "present" {
                "#deb https://a.example/x stable main\n"
            } else {
                "deb https://a.example/x stable main\n"
            },
        );
        let before = bench.read("etc/apt/sources.list.d/z.list");
        let failed =
            bench.run(&task(json!({"repo": LINE, "state": state, "update_cache_retries": 1})), Mode::Apply);
        let OpStatus::Failed { message, .. } = failed.status else { panic!("{failed:?}") };
        assert!(message.ends_with("apt-get update: no mirror"), "{message}");
        assert_eq!(bench.read("etc/apt/sources.list.d/z.list"), before);
    }
    let new = task(json!({"repo": "deb http://b.example stable main", "update_cache_retries": 1}));
    bench.run(&new, Mode::Apply);
    assert!(!bench.path("etc/apt/sources.list.d/b_example.list").exists());
}

#[test]
fn an_archive_of_launchpad_comes_with_its_key() {
    let bench = bench();
    let d = bench.path("");
    bench.write("launchpad", &format!("{{\"signing_key_fingerprint\": \"{FINGERPRINT}\"}}"));
    bench.write("key", ARMORED);
    bench.script(
        "usr/bin/curl",
        &format!(
            "#!/bin/sh\nurl=$(sed -n 's/^url = \"\\(.*\\)\"/\\1/p'); echo $url >> {d}/asked\n\
             case $url in https://api.launchpad.net/1.0/~o/+archive/ppa) cat {d}/launchpad;; *) cat {d}/key;; esac\n\
             printf '\\ngpufleet-http-status 200'\n",
            d = d.display()
        ),
    );
    let ppa = |state: &str| task(json!({"repo": "ppa:o/ppa", "state": state}));
    // Not there: nothing is looked up.
    assert_eq!(bench.run(&ppa("absent"), Mode::Apply).status, OpStatus::Ok);
    assert!(!bench.path("asked").exists());
    let done = bench.run(&ppa("present"), Mode::Apply);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(
        bench.read("etc/apt/sources.list.d/ppa_o_ppa_jammy.list"),
        "deb https://ppa.launchpadcontent.net/o/ppa/ubuntu jammy main\n"
    );
    let ring = fs::read(bench.path("etc/apt/trusted.gpg.d/o-ubuntu-ppa.gpg")).unwrap();
    assert_eq!(keys::only(&ring, &[FINGERPRINT.to_owned()]).unwrap(), ring);
    assert_eq!(bench.read("asked").lines().count(), 2);
    assert_eq!(bench.run(&ppa("present"), Mode::Apply).status, OpStatus::Ok);
    assert_eq!(bench.run(&ppa("absent"), Mode::Apply).status, OpStatus::Changed);
    bench.write("key", "nothing");
    fs::remove_file(bench.path("etc/apt/trusted.gpg.d/o-ubuntu-ppa.gpg")).unwrap();
    let failed = bench.run(&ppa("present"), Mode::Apply);
    assert!(matches!(failed.status, OpStatus::Failed { .. }), "{failed:?}");
    assert!(!bench.path("etc/apt/sources.list.d/ppa_o_ppa_jammy.list").exists());
}

#[test]
fn passwords_of_addresses_are_not_shown() {
    let bench = bench();
    let secret = task(json!({"repo": "deb https://me:hidden@a.example/x stable main"}));
    let predicted = bench.run(&secret, Mode::Predict);
    assert!(!serde_json::to_string(&predicted.changes).unwrap().contains("hidden"), "{predicted:?}");
    assert_eq!(predicted.data["sources_added"], json!(["/etc/apt/sources.list.d/a_example_x.list"]));
}
