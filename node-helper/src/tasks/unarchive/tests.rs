//! `unarchive` on a node in a temporary directory, with the machine's own programs.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::Command,
};

use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

use super::*;
use crate::tasks::testing::{Bench, changed};

/// Returns a bench with an archive /srv/a.tgz of `one` and `sub/two`, and the machine's own tar.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.write("srv/d/one", "1\n");
    bench.write("srv/d/sub/two", "2\n");
    let tar = |arguments: &[&str]| {
        let done = Command::new("tar").current_dir(bench.path("srv")).args(arguments).status().unwrap();
        assert!(done.success());
    };
    tar(&["czf", "a.tgz", "-C", "d", "."]);
    bench.write("opt/keep", "");
    for name in ["tar", "unzip"] {
        bench.script(
            &format!("usr/bin/{name}"),
            &format!("#!/bin/sh\nexec /usr/bin/env PATH=/usr/bin:/bin {name} \"$@\"\n"),
        );
    }
    bench
}

fn op(value: Value) -> UnpackArchive {
    let mut value = value;
    value["dest"] = json!("/opt");
    if value["src"].is_null() {
        value["src"] = json!("/srv/a.tgz");
    }
    value["remote_src"] = json!(true);
    UnpackArchive { task: serde_json::from_value(value).unwrap(), blob: None }
}

fn run(bench: &Bench, op: &UnpackArchive, mode: Mode) -> OpOutcome {
    bench.run(&Unpacking::new(op), mode)
}

#[test]
fn an_archive_is_unpacked_once() {
    let bench = bench();
    let op = op(json!({"list_files": true}));
    let before = bench.snapshot();
    assert_eq!(run(&bench, &op, Mode::Predict).status, OpStatus::Changed);
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    bench.forget();
    let done = run(&bench, &op, Mode::Apply);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(
        (done.data["files"].as_array().unwrap().len(), &done.data["extract_results"]["rc"]),
        (4, &json!(0))
    );
    assert_eq!((bench.read("opt/one"), bench.read("opt/sub/two")), ("1\n".into(), "2\n".into()));
    let again = run(&bench, &op, Mode::Apply);
    assert_eq!(again.status, OpStatus::Ok, "{again:?}");
    bench.write("opt/one", "changed\n");
    assert_eq!(run(&bench, &op, Mode::Apply).status, OpStatus::Changed);
    assert_eq!(bench.read("opt/one"), "1\n");
}

#[test]
fn members_are_chosen_and_modes_set() {
    let bench = bench();
    let excluded = op(json!({"exclude": ["./sub"], "mode": "u=rwX,go="}));
    assert_eq!(run(&bench, &excluded, Mode::Apply).status, OpStatus::Changed);
    assert!(!bench.path("opt/sub").exists());
    assert_eq!(fs::metadata(bench.path("opt/one")).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(run(&bench, &excluded, Mode::Apply).status, OpStatus::Ok);
    let stripped = op(json!({"extra_opts": ["--strip-components=2"], "include": ["./sub/two"]}));
    assert_eq!(run(&bench, &stripped, Mode::Apply).status, OpStatus::Changed);
    assert_eq!(bench.read("opt/two"), "2\n");
    assert_eq!(run(&bench, &stripped, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn creates_skips_without_looking_at_the_archive() {
    let bench = bench();
    let skipped = run(&bench, &op(json!({"creates": "/opt/keep", "src": "/none"})), Mode::Apply);
    assert_eq!(
        (&skipped.status, &skipped.data["msg"]),
        (&OpStatus::Ok, &json!("skipped, since /opt/keep exists"))
    );
}

#[test]
fn a_member_that_leads_out_is_refused() {
    let bench = bench();
    let done = Command::new("tar")
        .current_dir(bench.path("srv"))
        .args(["cPf", "bad.tar", "--transform", "s,^,../,", "d/one"])
        .status()
        .unwrap();
    assert!(done.success());
    let bad = run(&bench, &op(json!({"src": "/srv/bad.tar"})), Mode::Apply);
    let OpStatus::Failed { message, .. } = &bad.status else { panic!("{bad:?}") };
    assert!(message.contains("leads out of /opt"), "{message}");
    let none = run(&bench, &op(json!({"src": "/srv/d/one"})), Mode::Apply);
    assert!(matches!(none.status, OpStatus::Failed { .. }));
}

#[test]
fn a_pushed_archive_leaves_nothing_else() {
    let mut bench = bench();
    let bytes = fs::read(bench.path("srv/a.tgz")).unwrap();
    let blob = Blob { sha256: files::sha256(&bytes), size: bytes.len() as u64 };
    bench.store.0.insert(blob.sha256.clone(), bytes);
    let mut op = op(json!({}));
    op.blob = Some(blob);
    op.task.remote_src = false;
    assert_eq!(run(&bench, &op, Mode::Apply).status, OpStatus::Changed);
    assert_eq!(run(&bench, &op, Mode::Apply).status, OpStatus::Ok);
}

/// As `bench`, with /opt and /opt/sub of another user, so that the archive is unpacked aside.
fn aside() -> Bench {
    let bench = bench();
    bench.write("opt/sub/two", "mine\n");
    for (name, mode) in [("opt", 0o755), ("opt/sub", 0o700)] {
        std::os::unix::fs::chown(bench.path(name), Some(4711), Some(4711)).unwrap();
        fs::set_permissions(bench.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let pack = |program: &str, arguments: &[&str]| {
        let folder = bench.path("srv/d");
        assert!(Command::new(program).current_dir(folder).args(arguments).status().unwrap().success());
    };
    pack("tar", &["czf", "../files.tgz", "sub/two", "one"]);
    pack(
        "python3",
        &[
            "-c",
            "import zipfile as z; a = z.ZipFile('../a.zip', 'w'); [a.write(n) for n in ('sub', 'sub/two', 'one')]",
        ],
    );
    bench
}

fn owned(bench: &Bench, name: &str) -> (u32, u32) {
    let meta = fs::metadata(bench.path(name)).unwrap();
    (meta.uid(), meta.mode() & 0o7777)
}

#[test]
fn directories_that_are_there_keep_what_the_archive_says_nothing_of() {
    for src in ["/srv/files.tgz", "/srv/a.zip"] {
        let bench = aside();
        let op = op(json!({"src": src}));
        let done = run(&bench, &op, Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert_eq!((bench.read("opt/sub/two"), bench.read("opt/one")), ("2\n".into(), "1\n".into()));
        assert_eq!((owned(&bench, "opt/sub"), owned(&bench, "opt")), ((4711, 0o700), (4711, 0o755)), "{src}");
    }
    // The archive contains the directories themselves.
    for (options, wanted) in [(json!([]), (0, 0o755)), (json!(["--no-overwrite-dir"]), (4711, 0o700))] {
        let bench = aside();
        fs::set_permissions(bench.path("srv/d/sub"), fs::Permissions::from_mode(0o755)).unwrap();
        let done = run(&bench, &op(json!({"extra_opts": options})), Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert_eq!((owned(&bench, "opt/sub"), bench.read("opt/sub/two")), (wanted, "2\n".into()));
    }
}

#[test]
fn options_that_keep_what_is_there_keep_it_everywhere() {
    for (src, option) in [("/srv/files.tgz", "--skip-old-files"), ("/srv/a.zip", "-n")] {
        for of_user in [true, false] {
            let bench = aside();
            if !of_user {
                for name in ["opt", "opt/sub"] {
                    std::os::unix::fs::chown(bench.path(name), Some(0), Some(0)).unwrap();
                }
            }
            let op = op(json!({"src": src, "extra_opts": [option]}));
            let done = run(&bench, &op, Mode::Apply);
            assert_eq!(done.status, OpStatus::Changed, "{src} {done:?}");
            assert_eq!((bench.read("opt/sub/two"), bench.read("opt/one")), ("mine\n".into(), "1\n".into()));
        }
    }
    let (there, in_place) = (aside(), bench());
    in_place.write("opt/sub/two", "mine\n");
    for bench in [there, in_place] {
        let done = run(&bench, &op(json!({"extra_opts": ["-k"]})), Mode::Apply);
        let OpStatus::Failed { kind: FailureKind::Exit, message } = &done.status else { panic!("{done:?}") };
        assert!(
            message.starts_with("failed to unpack /srv/a.tgz: ") && message.contains("sub/two"),
            "{message}"
        );
        assert_eq!((bench.read("opt/sub/two"), bench.read("opt/one")), ("mine\n".into(), "1\n".into()));
    }
    let bench = aside();
    for mode in [Mode::Predict, Mode::Apply] {
        let done = run(&bench, &op(json!({"extra_opts": ["--backup"]})), mode);
        let OpStatus::Failed { message, .. } = &done.status else { panic!("{done:?}") };
        assert!(
            message.contains("`--backup` of `extra_opts`") && message.contains("become_user"),
            "{message}"
        );
    }
}

#[test]
fn checksums_of_zip_are_right() {
    let bench = Bench::new();
    bench.write("x", "123456789");
    assert_eq!(crc32(File::open(bench.path("x")).unwrap()).unwrap(), 0xCBF4_3926);
}
