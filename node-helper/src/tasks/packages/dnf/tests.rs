//! dnf on a node in a directory, with a fake rpm and dnf that know a few packages.

use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode, tasks::Dnf};
use serde_json::{Value, json};

use super::transaction;
use crate::tasks::testing::{Bench, Told, told};

/// Fake rpm and dnf in one. `pool` has the repositories' packages, `db` the installed ones.
const TOOL: &str = r#"#!/usr/bin/python3
import os, sys
d = os.path.join(os.path.dirname(sys.argv[0]), "..", "..")
def read(n): return dict(l.split() for l in open(d + "/" + n))
db, pool = read("db"), read("pool")
if os.path.basename(sys.argv[0]) == "rpm":
    name = sys.argv[-1]
    if os.path.exists(d + "/broken"): sys.exit("error: cannot open Packages database in /var/lib/rpm")
    found = "bash" if "--whatprovides" in sys.argv and name == "/bin/sh" else name
    if found in db: print(db[found]); sys.exit()
    print("no package provides " + name if "--whatprovides" in sys.argv else "package %s is not installed" % name); sys.exit(1)
words = [a for a in sys.argv[1:] if not a.startswith("-")]
no, verb, names = "--assumeno" in sys.argv, words[0], words[1:]
def tell(lines):
    print("=" * 20 + "\n Package Arch Version Repository Size\n" + "=" * 20 + "\n" + lines + "\nTransaction Summary\n" + "=" * 20)
    if no: print("Operation aborted.", file=sys.stderr); sys.exit(1)
    with open(d + "/log", "a") as f: f.write(" ".join(sys.argv[1:]) + "\n")
def store(module, stream, profiles, state):
    f = open(d + "/etc/dnf/modules.d/" + module + ".module", "w")
    f.write("[%s]\nname=%s\nstream=%s\nprofiles=%s\nstate=%s\n" % (module, module, stream, profiles, state))
if verb == "module":
    tell("Disabling module profiles:\n %s/common\nResetting modules:\n %s\n" % (names[1], names[1]))
    store(names[1], "", "", ""); sys.exit()
if names and names[0].startswith("@"):
    module, stream = names[0][1:].split(":")
    stream, _, profile = stream.partition("/")
    if stream not in ("18", "20"): sys.exit("Error: Problems in request:\nmissing groups or modules: " + names[0][1:])
    if verb == "remove":
        tell("Removing:\n nodejs x86_64 18.1-1 @appstream 1 M\nDisabling module profiles:\n nodejs/common\n")
        store(module, stream, "", "enabled"); db.pop("nodejs"); open(d + "/db", "w").write("".join("%s %s\n" % i for i in db.items())); sys.exit()
    path = d + "/etc/dnf/modules.d/nodejs.module"
    old = open(path).read() if os.path.exists(path) else ""
    if "state=enabled" in old and "stream=" + stream not in old: sys.exit("Error: It is not possible to switch enabled streams of a module")
    profile = profile or "common"
    rows = "" if "nodejs" in db else "Installing group/module packages:\n nodejs x86_64 18.1-1 appstream 1 M\n"
    rows += "Installing module profiles:\n nodejs/" + profile + "          \n"
    if "state=enabled" not in old: rows += "Enabling module streams:\n nodejs          " + stream + "    \n"
    tell(rows)
    profiles = [l[9:] for l in old.splitlines() if l.startswith("profiles=") and l != "profiles="] + [profile]
    store(module, stream, ", ".join(profiles), "enabled"); db["nodejs"] = "18.1-1"
    open(d + "/db", "w").write("".join("%s %s\n" % i for i in db.items())); sys.exit()
if not no:
    with open(d + "/log", "a") as f: f.write(" ".join(sys.argv[1:]) + "\n")
if verb == "upgrade" and not names: names = list(db)
missing = [n for n in names if n not in pool and verb == "install"]
if missing: sys.exit("Error: Unable to find a match: " + " ".join(missing))
if verb in ("install", "upgrade"): names = [n for n in names if n in pool and db.get(n) != pool[n]]
if not names: print("Nothing to do."); sys.exit()
title = {"install": "Installing", "upgrade": "Upgrading", "remove": "Removing"}[verb]
if any(n in db and db[n] > pool.get(n, "") for n in names) and verb != "remove": title = "Downgrading"
print("=" * 20 + "\n Package Arch Version Repository Size\n" + "=" * 20 + "\n" + title + ":")
for n in names: print(" %s x86_64\n   %s baseos 1.2 M" % (n, db[n] if verb == "remove" else pool[n]))
print("\nTransaction Summary\n" + "=" * 20)
if no: print("Operation aborted.", file=sys.stderr); sys.exit(1)
for n in names:
    if verb == "remove": del db[n]
    else: db[n] = pool[n]
open(d + "/db", "w").write("".join("%s %s\n" % i for i in db.items()))
"#;

fn bench() -> Bench {
    let bench = Bench::new();
    bench.script("usr/bin/rpm", TOOL);
    bench.script("usr/bin/dnf", TOOL);
    bench.write("db", "bash 5.1-6\nhello 2.1-1\n");
    bench.write("pool", "bash 5.1-6\nhello 2.2-1\nchrony 4.3-1\n");
    bench.write("log", "");
    bench
}

fn dnf(value: Value) -> Dnf {
    serde_json::from_value(value).unwrap()
}

fn shown(outcome: &OpOutcome) -> Vec<String> {
    let line = |(what, from, to): Told| format!("{what}: {} -> {to}", from.unwrap_or("-"));
    outcome.changes.iter().map(told).map(line).collect()
}

fn message(outcome: &OpOutcome) -> &str {
    match &outcome.status {
        OpStatus::Failed { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

macro_rules! converges {
    ($bench:expr, $task:expr) => {{
        let (bench, task) = ($bench, $task);
        bench.forget();
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(bench.snapshot(), before, "a prediction writes nothing");
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok, "predicted twice");
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        done
    }};
}

#[test]
fn packages_come_are_upgraded_and_go() {
    let bench = bench();
    let done =
        converges!(&bench, dnf(json!({"name": ["chrony", "hello", "/bin/sh"], "enablerepo": "epel,crb"})));
    assert_eq!(shown(&done), ["package chrony: - -> 4.3-1"]);
    assert_eq!(done.data["results"], json!(["Installed: chrony-4.3-1"]));
    let done = converges!(&bench, dnf(json!({"name": "hello", "state": "latest"})));
    assert_eq!(shown(&done), ["package hello: 2.1-1 -> 2.2-1"]);
    let done = converges!(&bench, dnf(json!({"name": "hello", "state": "removed"})));
    assert_eq!(shown(&done), ["package hello: 2.2-1 -> absent"]);
    assert_eq!(
        bench.read("log"),
        "-y --enablerepo=epel --enablerepo=crb --allowerasing install chrony\n\
         -y --allowerasing upgrade hello\n\
         -y --allowerasing --setopt=clean_requirements_on_remove=0 remove hello\n"
    );
}

#[test]
fn what_cannot_be_had_is_told() {
    let bench = bench();
    assert_eq!(
        message(&bench.run(&dnf(json!({"name": "nosuch"})), Mode::Predict)),
        "dnf: Error: Unable to find a match: nosuch"
    );
    bench.write("pool", "hello 1.0-1\n");
    assert!(
        message(&bench.run(&dnf(json!({"name": "*", "state": "latest"})), Mode::Predict))
            .contains("allow_downgrade")
    );
    bench.write("broken", "");
    let unknown = bench.run(&dnf(json!({"name": "hello"})), Mode::Predict);
    assert!(matches!(unknown.status, OpStatus::Unknown { .. }), "{unknown:?}");
}

#[test]
fn a_table_is_read_wherever_its_lines_break() {
    let text = "\
Dependencies resolved.
================================================================================
 Package            Arch    Version                        Repository       Size
================================================================================
Installing:
 nvidia-driver-with-a-very-long-name
                    x86_64  3:570.86.15-1.el9              cuda            1.2 M
Upgrading:
 glibc              x86_64  2.34-100.el9_4.2               baseos          1.9 M
     replacing  glibc-old.x86_64 2.34-99
Removing unused dependencies:
 old                noarch  1-1                            @appstream       12 k

Transaction Summary
================================================================================
Install  1 Package
";
    let (actions, older) = transaction(text);
    let read: Vec<_> =
        actions.iter().map(|a| (a.name.as_str(), a.from.as_deref(), a.to.as_deref())).collect();
    assert_eq!(
        read,
        [
            ("nvidia-driver-with-a-very-long-name", None, Some("3:570.86.15-1.el9")),
            ("glibc", None, Some("2.34-100.el9_4.2")),
            ("old", Some("1-1"), None),
        ]
    );
    assert!(!older);
}

#[test]
fn streams_of_modules_come_and_go() {
    let bench = bench();
    bench.write("etc/dnf/modules.d/other.module", "[other]\nname=other\n");
    let done = converges!(&bench, dnf(json!({"name": "@nodejs:18"})));
    assert_eq!(
        shown(&done),
        ["module nodejs/common: - -> installed", "module nodejs: - -> 18", "package nodejs: - -> 18.1-1"]
    );
    assert_eq!(
        done.data["results"],
        json!(["Module nodejs/common installed.", "Module nodejs installed.", "Installed: nodejs-18.1-1"])
    );
    let done = converges!(&bench, dnf(json!({"name": "@nodejs:18/development"})));
    assert_eq!(shown(&done), ["module nodejs/development: - -> installed"]);
    assert_eq!(bench.run(&dnf(json!({"name": "@nodejs:18/common"})), Mode::Apply).status, OpStatus::Ok);
    // Earlier tasks of a prediction may bring what is missing.
    bench.forget();
    assert!(
        message(&bench.run(&dnf(json!({"name": "@nodejs:20"})), Mode::Predict))
            .contains("not possible to switch enabled streams")
    );
    assert!(
        message(&bench.run(&dnf(json!({"name": "@nodejs:99"})), Mode::Predict))
            .contains("missing groups or modules")
    );
    let other = bench.run(&dnf(json!({"name": "@nodejs:20", "state": "absent"})), Mode::Apply);
    assert_eq!(other.status, OpStatus::Ok, "{other:?}");
    let done = converges!(&bench, dnf(json!({"name": "@nodejs:18", "state": "absent"})));
    assert_eq!(shown(&done), ["package nodejs: 18.1-1 -> absent", "module nodejs: 18 -> absent"]);
    assert_eq!(
        bench.read("log"),
        "-y --allowerasing install @nodejs:18\n\
         -y --allowerasing install @nodejs:18/development\n\
         -y --allowerasing --setopt=clean_requirements_on_remove=0 remove @nodejs:18\n\
         -y --allowerasing --setopt=clean_requirements_on_remove=0 module reset nodejs\n"
    );
}

#[test]
fn a_stream_that_is_enabled_without_a_profile_goes_by_a_reset_alone() {
    let bench = bench();
    bench.write(
        "etc/dnf/modules.d/nodejs.module",
        "[nodejs]\nname=nodejs\nstream=18\nprofiles=\nstate=enabled\n",
    );
    let done = converges!(&bench, dnf(json!({"name": "@nodejs:18", "state": "absent"})));
    assert_eq!(shown(&done), ["module nodejs: 18 -> absent"]);
}

#[test]
fn packages_are_possible_while_a_plan_changes_the_repositories() {
    let bench = bench();
    let path = bench.path("etc/yum.repos.d/new.repo");
    bench.overlay.assume([crate::world::Effect::Path { path, entry: crate::world::Entry::Absent }]);
    let fresh = bench.run(&dnf(json!({"name": "fresh-from-there"})), Mode::Predict);
    assert_eq!(fresh.status, OpStatus::Possible, "{fresh:?}");
    assert_eq!(fresh.changes.len(), 1);
}
