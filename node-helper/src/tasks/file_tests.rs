//! `file` on a node in a temporary directory.

use std::os::unix::fs::PermissionsExt;

use gpufleet_protocol::{FailureKind, OpOutcome, OpStatus, message::Mode};

use super::*;
use crate::tasks::testing::{Bench, changed, told};

fn file(value: Value) -> File {
    serde_json::from_value(value).unwrap()
}

fn converges(bench: &Bench, task: &File) -> OpOutcome {
    let before = bench.snapshot();
    let predicted = bench.run(task, Mode::Predict);
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    assert_eq!(bench.run(task, Mode::Predict).status, OpStatus::Ok, "the prediction sees itself");
    bench.forget();
    let done = bench.run(task, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
    let settled = bench.snapshot();
    assert_eq!(bench.run(task, Mode::Apply).status, OpStatus::Ok);
    assert_eq!(changed(&settled, &bench.snapshot()), Vec::<PathBuf>::new());
    done
}

fn refusal(bench: &Bench, task: &File) -> String {
    match bench.run(task, Mode::Apply).status {
        OpStatus::Failed { kind: FailureKind::Invalid | FailureKind::Missing, message } => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn directories_are_made_with_their_parents() {
    let bench = Bench::new();
    let done = converges(&bench, &file(json!({"path": "/srv/a/b", "state": "directory", "mode": "0750"})));
    assert_eq!(done.changes.len(), 1);
    assert_eq!(fs::metadata(bench.path("srv/a/b")).unwrap().mode() & 0o7777, 0o750);
}

#[test]
fn modes_apply_below_too() {
    let bench = Bench::new();
    bench.write("srv/a/one", "");
    bench.write("srv/a/sub/two", "");
    for name in ["srv/a/one", "srv/a/sub/two"] {
        fs::set_permissions(bench.path(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(bench.path("srv/a"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(bench.path("srv/a/sub"), fs::Permissions::from_mode(0o755)).unwrap();
    let task =
        file(json!({"path": "/srv/a", "state": "directory", "recurse": true, "mode": "u=rwX,g=rX,o="}));
    let done = bench.run(&task, Mode::Apply);
    let shown: Vec<_> = done.changes.iter().map(told).map(|(what, _, to)| (what, to)).collect();
    assert_eq!(shown, [("/srv/a mode", "0750"), ("/srv/a below", "as declared")]);
    assert_eq!(fs::metadata(bench.path("srv/a/sub")).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(bench.path("srv/a/sub/two")).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn absence_removes_trees_and_links_only_themselves() {
    let bench = Bench::new();
    bench.write("srv/a/sub/two", "");
    bench.write("srv/kept", "x");
    std::os::unix::fs::symlink("../kept", bench.path("srv/a/link")).unwrap();
    converges(&bench, &file(json!({"path": "/srv/a", "state": "absent"})));
    assert_eq!(bench.read("srv/kept"), "x");
    std::os::unix::fs::symlink("kept", bench.path("srv/link")).unwrap();
    converges(&bench, &file(json!({"path": "/srv/link", "state": "absent"})));
    assert_eq!(bench.read("srv/kept"), "x");
}

#[test]
fn links_are_made_changed_and_refused() {
    let bench = Bench::new();
    bench.write("srv/one", "1");
    bench.write("srv/two", "2");
    converges(&bench, &file(json!({"path": "/srv/link", "state": "link", "src": "one"})));
    let done = converges(&bench, &file(json!({"path": "/srv/link", "state": "link", "src": "two"})));
    assert_eq!(done.changes[0].from_text().as_deref(), Some("link to one"));
    let dangling = file(json!({"path": "/srv/new", "state": "link", "src": "none"}));
    assert!(refusal(&bench, &dangling).contains("the target none does not exist"));
    converges(&bench, &file(json!({"path": "/srv/new", "state": "link", "src": "none", "force": true})));
    let over = file(json!({"path": "/srv/one", "state": "link", "src": "two"}));
    assert!(refusal(&bench, &over).contains("/srv/one is a file; `force: true`"));
    converges(&bench, &file(json!({"path": "/srv/one", "state": "link", "src": "two", "force": true})));
    let full = file(json!({"path": "/srv", "state": "link", "src": "/etc", "force": true}));
    assert!(refusal(&bench, &full).contains("not empty"));
}

#[test]
fn hard_links_share_the_inode() {
    let bench = Bench::new();
    bench.write("srv/one", "1");
    let done = bench.run(&file(json!({"path": "/srv/two", "state": "hard", "src": "/srv/one"})), Mode::Apply);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let inode = |name: &str| fs::metadata(bench.path(name)).unwrap().ino();
    assert_eq!(inode("srv/one"), inode("srv/two"));
    let again =
        bench.run(&file(json!({"path": "/srv/two", "state": "hard", "src": "/srv/one"})), Mode::Apply);
    assert_eq!(again.status, OpStatus::Ok);
}

#[test]
fn a_circle_of_links_can_be_removed() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("srv")).unwrap();
    std::os::unix::fs::symlink("loop", bench.path("srv/loop")).unwrap();
    converges(&bench, &file(json!({"path": "/srv/loop", "state": "absent"})));
}

#[test]
fn touching_always_changes_and_file_never_makes() {
    let bench = Bench::new();
    let touch = file(json!({"path": "/srv", "state": "touch"}));
    assert_eq!(bench.run(&touch, Mode::Apply).status, OpStatus::Changed);
    assert_eq!(bench.run(&touch, Mode::Apply).status, OpStatus::Changed);
    assert!(refusal(&bench, &file(json!({"path": "/none", "state": "file"}))).contains("does not make one"));
    assert!(
        refusal(&bench, &file(json!({"path": "/srv", "state": "directory"})))
            .contains("is a file, not a directory")
    );
    assert_eq!(
        bench.run(&file(json!({"path": "/srv", "mode": "0600"})), Mode::Apply).changes[0].to_text(),
        "0600"
    );
    let nowhere = file(json!({"path": "/none/x", "state": "touch"}));
    assert!(refusal(&bench, &nowhere).contains("the directory /none for /none/x does not exist"));
}

const ANN: u32 = 4711;

/// Creates /home/ann with her `tree`, and root's given paths in it with these modes; a name that ends in `/` is a
/// directory.
fn home(of_root: &[(&str, u32)]) -> Bench {
    let bench = Bench::new();
    bench.write("home/ann/tree/sub/file", "");
    for name in ["home/ann", "home/ann/tree", "home/ann/tree/sub", "home/ann/tree/sub/file"] {
        std::os::unix::fs::lchown(bench.path(name), Some(ANN), Some(ANN)).unwrap();
    }
    for (name, mode) in of_root {
        let path = bench.path("home/ann").join(name);
        match name.strip_suffix('/') {
            Some(_) => fs::create_dir_all(&path).unwrap(),
            None => fs::write(&path, "").unwrap(),
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
    }
    bench
}

fn give(path: &str) -> File {
    file(json!({"path": path, "state": "directory", "recurse": true, "owner": "ann", "mode": "u=rwX,go=rX"}))
}

/// The owner of a directory may rename root's entries in it, including one that a task works on.
#[test]
fn what_a_user_could_not_look_into_is_given_to_nobody_below_that_users_directory() {
    for (of_root, path, named) in [
        (&[("keys/", 0o700), ("keys/key", 0o644)][..], "/home/ann/keys", "/home/ann/keys "),
        (&[("tree/keys/", 0o700), ("tree/keys/key", 0o644)], "/home/ann/tree", "/home/ann/tree/keys "),
        (&[("tree/keys/", 0o755), ("tree/keys/key", 0o600)], "/home/ann/tree", "/home/ann/tree/keys/key "),
        (&[("open/", 0o755), ("open/keys/", 0o700)], "/home/ann/open", "/home/ann/open/keys "),
    ] {
        let bench = home(of_root);
        let before = bench.snapshot();
        for mode in [Mode::Predict, Mode::Apply] {
            let done = bench.run(&give(path), mode);
            let OpStatus::Failed { message, .. } = &done.status else { panic!("{path} {done:?}") };
            assert!(message.contains(&format!("{named}lies below a directory of uid 4711")), "{message}");
            assert!(message.contains("without `recurse`"), "{message}");
        }
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    }
    // Allowed: what that user could read, root's own trees, and changes that grant no rights.
    converges(&home(&[("tree/made/", 0o755), ("tree/made/file", 0o644)]), &give("/home/ann/tree"));
    converges(&home(&[("tree/secret", 0o600)]), &give("/home/ann/tree"));
    let bench = home(&[("keys/", 0o700), ("keys/key", 0o644)]);
    let closes = json!({"path": "/home/ann/keys", "state": "directory", "recurse": true, "owner": "me",
        "mode": "u=rwX,go="});
    converges(&bench, &file(closes));
    let named = file(json!({"path": "/home/ann/keys", "owner": "ann"}));
    assert_eq!(bench.run(&named, Mode::Apply).status, OpStatus::Changed);
    let bench = home(&[]);
    bench.write("srv/keys/key", "");
    fs::set_permissions(bench.path("srv/keys"), fs::Permissions::from_mode(0o700)).unwrap();
    converges(&bench, &give("/srv"));
}

#[test]
fn a_link_that_may_not_be_followed_is_refused_and_can_be_removed() {
    let bench = home(&[]);
    bench.write("srv/kept", "x");
    for (name, owner) in [("out", ANN), ("roots", 0)] {
        let link = bench.path("home/ann").join(name);
        std::os::unix::fs::symlink(bench.path("srv"), &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(owner), Some(owner)).unwrap();
    }
    for name in ["out", "roots"] {
        let path = format!("/home/ann/{name}");
        for state in [json!("directory"), json!("touch"), json!("file"), json!(null)] {
            let task = file(json!({"path": path, "state": state, "mode": "0700"}));
            let predicted = bench.run(&task, Mode::Predict).status;
            let OpStatus::Unknown { reason } = predicted else { panic!("{predicted:?}") };
            let done = bench.run(&task, Mode::Apply).status;
            let OpStatus::Failed { message, .. } = done else { panic!("{done:?}") };
            assert_eq!(message, reason);
            assert!(message.contains("at any moment") && message.contains("become_user"), "{message}");
        }
        let itself = file(json!({"path": path, "state": "file", "follow": false}));
        assert!(refusal(&bench, &itself).contains("is a link, not a file"));
        converges(&bench, &file(json!({"path": path, "state": "absent"})));
    }
    assert_eq!(bench.read("srv/kept"), "x");
}

#[test]
fn what_is_gone_since_the_walk_needs_no_owner() {
    let bench = home(&[("tree/gone/", 0o755), ("tree/gone/file", 0o644), ("tree/stays", 0o644)]);
    let tree = bench.path("home/ann/tree");
    let found = bench.node(|node| walk(node, &tree)).unwrap();
    fs::remove_dir_all(tree.join("gone")).unwrap();
    let mut deep = Deep { path: &tree, root: None, at: None };
    let ownership = Ownership { uid: Some(ANN), ..Ownership::default() };
    assert_eq!(found.below.len(), 5);
    for below in &found.below {
        deep.own(below, ownership).unwrap();
    }
    assert_eq!(fs::metadata(tree.join("stays")).unwrap().uid(), ANN);
    // If another directory replaced the one that was found, it is not changed.
    fs::rename(tree.join("sub"), tree.join("old")).unwrap();
    fs::create_dir(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/file"), "").unwrap();
    let file = found.below.iter().find(|below| below.path == Path::new("sub/file")).unwrap();
    let refused = Deep { path: &tree, root: None, at: None }.own(file, ownership).unwrap_err().to_string();
    assert!(refused.contains("its directory became another one"), "{refused}");
}
