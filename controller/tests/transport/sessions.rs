//! The helper on real nodes: it is sent once, verified, and run through sudo; and all failures on the way.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    time::{Duration, Instant},
};

use gpufleet::{
    session::{NodeSession, SessionError, SessionOptions, Stage},
    transport::{Target, TargetDefaults, Transport},
};
use gpufleet_protocol::{Reply, Request};
use serde_json::json;

use crate::{
    fake_helper::{big, digest, dying, fake, forget, lying, silent},
    node::{Node, Setup, connector, run, uid},
    users::User,
};

async fn open(node: &Node, options: &SessionOptions) -> Result<NodeSession, SessionError> {
    NodeSession::open(&node.connector(), &node.target(), options).await
}

fn cache(node: &Node) -> PathBuf {
    node.home().join(".cache/gpufleet")
}

fn files(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// /var/lib/gpufleet serves root only.
fn assert_root() {
    assert_eq!(uid(), 0, "this test needs root, for whom /var/lib/gpufleet is a fallback");
}

#[tokio::test]
async fn the_helper_is_sent_once_and_not_again() {
    let node = Node::start();
    let options = fake("once");
    for pushed in [true, false, false] {
        let session = open(&node, &options).await.unwrap();
        assert_eq!(session.was_pushed(), pushed);
        assert_eq!(session.hello().digest, digest(&options));
        assert_eq!(session.hello().uid, session.login_uid());
        assert!(matches!(session.simple(Request::ForgetPredictions).await, Ok(Reply::Done)));
        session.close().await;
    }
    let file = digest(&options);
    assert_eq!(files(&cache(&node)), [file.clone(), format!("{file}.seen")]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&cache(&node)), 0o700);
    assert_eq!(mode(&cache(&node).join(digest(&options))), 0o700);
}

#[tokio::test]
async fn megabytes_arrive_whole_and_the_stages_are_told() {
    let node = Node::start();
    let options = big();
    let stages = Mutex::new(Vec::new());
    let note = |stage| stages.lock().unwrap().push(stage);
    let session = NodeSession::open_with(&node.connector(), &node.target(), &options, &note).await.unwrap();
    assert_eq!(session.hello().digest, digest(&options));
    let stages = stages.lock().unwrap().clone();
    assert!(
        matches!(stages[..], [Stage::Connecting, Stage::Starting, Stage::Sending { bytes }] if bytes > 3_000_000),
        "{stages:?}"
    );
}

#[tokio::test]
async fn two_versions_are_kept() {
    let node = Node::start();
    let mut wanted = Vec::new();
    for variant in ["one", "two", "three"] {
        let options = fake(variant);
        open(&node, &options).await.unwrap().close().await;
        wanted.push(digest(&options));
        // The order is by modification time.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    let mut kept: Vec<_> =
        wanted.split_off(1).into_iter().flat_map(|file| [format!("{file}.seen"), file]).collect();
    kept.sort();
    assert_eq!(files(&cache(&node)), kept);
}

#[tokio::test]
async fn noise_of_rc_files_and_banners_is_dropped() {
    let user = User::create("/bin/bash", None);
    let node = Node::start_with(&Setup::with(&["Banner @DIR@/etc/banner", "SetEnv X=1"]));
    fs::write(node.path("etc/banner"), "Welcome\n").unwrap();
    fs::write(
        format!("{}/.bashrc", user.home()),
        "echo noise on stdout; echo noise on stderr >&2; printf 'no newline'\n",
    )
    .unwrap();
    let target = node.target_with(json!({"ansible_user": user.name}));
    let session = NodeSession::open(&node.connector(), &target, &fake("noise")).await.unwrap();
    assert!(session.was_pushed());
    assert!(matches!(session.simple(Request::ForgetPredictions).await, Ok(Reply::Done)));
}

#[tokio::test]
async fn a_damaged_file_is_sent_again() {
    let node = Node::start();
    let options = fake("damaged");
    open(&node, &options).await.unwrap().close().await;
    let path = cache(&node).join(digest(&options));
    let content = fs::read(&path).unwrap();
    // Truncated; of the same size but broken; of the same size and working, but different.
    let mut broken = content.clone();
    broken[..10].copy_from_slice(b"#!/nowhere");
    let changed = String::from_utf8(content.clone()).unwrap().replace("damaged", "changed").into_bytes();
    for damage in [content[..100].to_vec(), broken, changed] {
        fs::write(&path, damage).unwrap();
        let session = open(&node, &options).await.unwrap();
        assert!(session.was_pushed());
        assert_eq!(session.hello().digest, digest(&options));
        session.close().await;
        assert_eq!(fs::read(&path).unwrap(), content);
    }
}

/// The digest of a file is computed after it was sent and after any change, and not at every start.
#[tokio::test]
async fn a_file_that_did_not_change_is_not_hashed_again() {
    let node = Node::start_with(&Setup::with(&["SetEnv HOME=@DIR@/home PATH=@DIR@/bin:/usr/bin:/bin"]));
    let (program, log) = (node.path("bin/sha256sum"), node.path("hashed"));
    fs::create_dir(node.path("bin")).unwrap();
    fs::write(&program, format!("#!/bin/sh\necho once >>{}\nexec /usr/bin/sha256sum\n", log.display()))
        .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let hashed = || fs::read_to_string(&log).unwrap_or_default().lines().count();
    let options = fake("unchanged");
    let path = cache(&node).join(digest(&options));
    let record = path.with_extension("seen");
    let begin = async |pushed| {
        let session = open(&node, &options).await.unwrap();
        assert_eq!((session.was_pushed(), session.hello().digest.clone()), (pushed, digest(&options)));
        session.close().await;
        hashed()
    };
    assert_eq!(begin(true).await, 1);
    assert_eq!(begin(false).await, 1);
    // The file's times change with any change to it, even if the content stays the same.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o500)).unwrap();
    assert_eq!(begin(false).await, 2);
    assert_eq!(begin(false).await, 2);
    fs::write(&record, "0 0 0 0\n").unwrap();
    assert_eq!(begin(false).await, 3);
    // A record that is a link to another file does not count.
    fs::remove_file(&record).unwrap();
    symlink("/dev/zero", &record).unwrap();
    assert_eq!(begin(false).await, 4);
    assert!(!fs::symlink_metadata(&record).unwrap().is_symlink());
    assert_eq!(begin(false).await, 4);
}

#[tokio::test]
async fn a_file_that_is_not_the_one_sent_never_runs() {
    let node = Node::start();
    let options = fake("planted");
    open(&node, &options).await.unwrap().close().await;
    let path = cache(&node).join(digest(&options));
    let content = fs::read(&path).unwrap();
    let marker = node.path("ran");
    let mut planted = format!("#!/bin/sh\ntouch {}\nexit 0\n#", marker.display()).into_bytes();
    planted.resize(content.len(), b'#');
    fs::write(&path, planted).unwrap();
    let session = open(&node, &options).await.unwrap();
    assert!(session.was_pushed() && session.hello().digest == digest(&options));
    assert!(!marker.exists(), "its digest was not asked for before it ran");
    session.close().await;
    assert!(!open(&node, &options).await.unwrap().was_pushed(), "the right one is taken");
}

#[tokio::test]
async fn folders_that_others_could_change_are_not_used() {
    assert_root();
    let options = fake("unsafe");
    type Spoil = fn(&Node);
    let spoils: [Spoil; 3] = [
        |node| symlink("/tmp", cache(node)).unwrap(),
        |node| fs::set_permissions(node.home().join(".cache"), fs::Permissions::from_mode(0o777)).unwrap(),
        |node| {
            fs::create_dir(cache(node)).unwrap();
            run(Command::new("chown").arg("nobody").arg(cache(node)));
        },
    ];
    for spoil in spoils {
        let node = Node::start_with(&Setup::with(&["SetEnv HOME=@DIR@/home XDG_RUNTIME_DIR=@DIR@/run"]));
        fs::create_dir_all(node.home().join(".cache")).unwrap();
        spoil(&node);
        let session = open(&node, &options).await.unwrap();
        let path = session.hello().boot_id.clone().unwrap();
        assert_eq!(path, format!("/var/lib/gpufleet/node/{}", digest(&options)));
        forget(session).await;
    }
}

#[tokio::test]
async fn a_link_in_the_way_to_the_home_is_followed_once() {
    let node = Node::start_with(&Setup::with(&["SetEnv HOME=@DIR@/link"]));
    symlink(node.home(), node.path("link")).unwrap();
    let options = fake("link");
    let session = open(&node, &options).await.unwrap();
    assert_eq!(
        session.hello().boot_id.clone().unwrap(),
        format!("{}/{}", cache(&node).display(), digest(&options))
    );
}

/// A user without usable folders: HOME is replaced by what `prepare` leaves there.
async fn refused(prepare: impl Fn(&Path)) -> String {
    let user = User::create("/bin/sh", None);
    let node = Node::start_with(&Setup::with(&["SetEnv HOME=@DIR@/own XDG_RUNTIME_DIR="]));
    let own = node.path("own");
    fs::create_dir(&own).unwrap();
    run(Command::new("chown").arg(&user.name).arg(&own));
    prepare(&own);
    let target = node.target_with(json!({"ansible_user": user.name}));
    let result = NodeSession::open(&node.connector(), &target, &fake("refused")).await;
    let left = files(&own.join(".cache/gpufleet"));
    assert!(left.is_empty(), "left behind: {left:?}");
    let _ = Command::new("umount").arg("-l").arg(&own).stderr(std::process::Stdio::null()).status();
    result.unwrap_err().to_string()
}

#[tokio::test]
async fn no_usable_folder_is_told_with_every_reason() {
    let error = refused(|own| {
        fs::set_permissions(own, fs::Permissions::from_mode(0o777)).unwrap();
    })
    .await;
    assert!(error.starts_with("gpu001: no folder takes the helper: "), "{error}");
    assert!(error.contains("/own/.cache/gpufleet:open-to-others"), "{error}");
}

/// Mounts a tmpfs that belongs to the folder's owner.
fn mount_tmpfs(own: &Path, options: &str) {
    use std::os::unix::fs::MetadataExt;
    let owner = fs::metadata(own).unwrap().uid();
    let options = format!("{options},mode=0700,uid={owner}");
    run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(own));
}

#[tokio::test]
async fn noexec_and_full_folders_are_told() {
    for (options, reason) in
        [("noexec", "/own/.cache/gpufleet:noexec"), ("size=8k", "/own/.cache/gpufleet:full")]
    {
        let error = refused(|own| mount_tmpfs(own, options)).await;
        assert!(error.contains("no folder takes the helper") && error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn a_helper_for_another_architecture_is_not_sent() {
    let node = Node::start();
    let mut options = fake("arch");
    options.node_files =
        std::sync::Arc::new(gpufleet::session::NodeFiles::new(vec![gpufleet::session::NodeFile::new(
            "vax", b"x",
        )]));
    let error = open(&node, &options).await.unwrap_err().to_string();
    assert_eq!(
        error,
        format!("gpu001: no helper for its architecture {}, only for vax", std::env::consts::ARCH)
    );
}

#[tokio::test]
async fn a_helper_that_dies_lies_or_hangs_is_told() {
    let node = Node::start();
    let error = open(&node, &dying()).await.unwrap_err().to_string();
    assert!(error.contains("the helper did not start: exit code 7; it printed: libc is broken"), "{error}");
    let error = open(&node, &lying()).await.unwrap_err().to_string();
    assert_eq!(error, "gpu001: the helper that runs there is not the one that was sent (digest 0000)");
    let begin = Instant::now();
    let error = open(&node, &silent()).await.unwrap_err().to_string();
    assert!(error.contains("the helper did not start within 2 s"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_node_without_a_home_is_served() {
    assert_root();
    let node = Node::start_with(&Setup::with(&["SetEnv HOME= XDG_RUNTIME_DIR=@DIR@/run"]));
    let options = fake("homeless");
    let session = open(&node, &options).await.unwrap();
    let path = session.hello().boot_id.clone().unwrap();
    assert_eq!(path, format!("/var/lib/gpufleet/node/{}", digest(&options)));
    forget(session).await;
}

#[tokio::test]
async fn a_session_learns_that_its_node_vanished() {
    let node = Node::start();
    let session = open(&node, &fake("vanish")).await.unwrap();
    let pid = session.hello().pid;
    run(Command::new("kill").args(["-9", &pid.to_string()]));
    let reason = tokio::time::timeout(Duration::from_secs(60), session.closed()).await.unwrap();
    assert!(reason.contains("the helper ended with"), "{reason}");
    let error = session.simple(Request::ForgetPredictions).await.unwrap_err().to_string();
    assert!(error.starts_with("gpu001: during an operation the helper ended with"), "{error}");
}

fn is_alive(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

async fn wait_dead(pid: u32) {
    for _ in 0..1200 {
        if !is_alive(pid) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the helper lives on");
}

#[tokio::test]
async fn dropping_the_last_handle_ends_the_helper() {
    let node = Node::start();
    let session = open(&node, &fake("drop")).await.unwrap();
    let (pid, clone) = (session.hello().pid, session.clone());
    drop(session);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(is_alive(pid));
    drop(clone);
    wait_dead(pid).await;
}

#[tokio::test]
async fn many_requests_share_one_session() {
    let node = Node::start();
    let session = open(&node, &fake("many")).await.unwrap();
    let requests = (0..20).map(|_| session.simple(Request::ForgetPredictions));
    for reply in futures::future::join_all(requests).await {
        assert_eq!(reply.unwrap(), Reply::Done);
    }
}

fn sudo_target(node: &Node, user: &User, password: Option<&str>) -> Target {
    let mut variables = json!({"ansible_user": user.name, "ansible_become": true});
    if let Some(password) = password {
        variables["ansible_become_password"] = json!(password);
    }
    node.target_with(variables)
}

fn sudo_node() -> Node {
    Node::start_with(&Setup::with(&["SetEnv X=1"]))
}

#[tokio::test]
async fn sudo_with_a_password_runs_the_helper_as_root() {
    let user = User::create("/bin/bash", Some("USER ALL=(ALL) ALL"));
    let node = sudo_node();
    let target = sudo_target(&node, &user, Some(&user.password));
    let session = NodeSession::open(&node.connector(), &target, &fake("sudo-p")).await.unwrap();
    assert_eq!(session.hello().uid, 0);
    assert_ne!(session.login_uid(), 0);
    assert!(matches!(session.simple(Request::ForgetPredictions).await, Ok(Reply::Done)));
    forget(session).await;
}

#[tokio::test]
async fn sudo_without_a_password_needs_none() {
    let user = User::create("/bin/sh", Some("USER ALL=(ALL) NOPASSWD: ALL"));
    let node = sudo_node();
    for password in [None, Some("not needed")] {
        let target = sudo_target(&node, &user, password);
        let session = NodeSession::open(&node.connector(), &target, &fake("sudo-n")).await.unwrap();
        assert_eq!(session.hello().uid, 0);
        forget(session).await;
    }
}

#[tokio::test]
async fn sudo_is_not_asked_when_the_login_user_is_right_already() {
    let node = Node::start();
    let target = node.target_with(json!({"ansible_become": true, "ansible_become_password": "x"}));
    let session = NodeSession::open(&node.connector(), &target, &fake("root")).await.unwrap();
    assert!(session.hello().uid == uid());
}

#[tokio::test]
async fn what_sudo_refuses_is_told_in_words() {
    let user = User::create("/bin/sh", Some("USER ALL=(ALL) ALL"));
    let stranger = User::create("/bin/sh", None);
    let node = sudo_node();
    let fail = async |target: Target| {
        NodeSession::open(&node.connector(), &target, &fake("refuse")).await.unwrap_err().to_string()
    };
    let error = fail(sudo_target(&node, &user, Some("wrong-password"))).await;
    assert_eq!(error, format!("gpu001: sudo refuses the password of {}", user.name));
    let error = fail(sudo_target(&node, &user, None)).await;
    assert_eq!(
        error,
        format!(
            "gpu001: sudo wants a password for {}: set `ansible_become_password` or use --ask-become-pass",
            user.name
        )
    );
    let error = fail(sudo_target(&node, &stranger, Some(&stranger.password))).await;
    assert!(
        error.starts_with(&format!("gpu001: sudo does not let {} become root: ", stranger.name)),
        "{error}"
    );
    let mut target = sudo_target(&node, &user, Some("x"));
    target.privilege.as_mut().unwrap().user = "root; id".to_owned();
    assert_eq!(fail(target).await, "gpu001: `root; id` cannot be a user for `become`");
}

#[tokio::test]
async fn requiretty_is_told() {
    let user = User::create("/bin/sh", Some("Defaults:USER requiretty\nUSER ALL=(ALL) ALL"));
    let node = sudo_node();
    let target = sudo_target(&node, &user, Some(&user.password));
    let error = NodeSession::open(&node.connector(), &target, &fake("tty")).await.unwrap_err().to_string();
    assert!(error.contains("sudo wants a terminal (`requiretty` in sudoers)"), "{error}");
}

#[tokio::test]
async fn this_machine_and_the_openssh_client_carry_sessions_too() {
    let node = Node::start();
    let options = fake("other-ways");
    let defaults = TargetDefaults { transport: Transport::OpenSsh, ..TargetDefaults::default() };
    let target = node.target_from(
        json!({
            "ansible_user": "root",
            "ansible_ssh_private_key_file": node.client_key(),
            "ansible_ssh_common_args": format!("-o UserKnownHostsFile={}/known_hosts", node.ssh_dir().display()),
        }),
        &defaults,
    );
    let session = NodeSession::open(&node.connector(), &target, &options).await.unwrap();
    assert!(session.was_pushed());
    assert!(matches!(session.simple(Request::ForgetPredictions).await, Ok(Reply::Done)));
    session.close().await;

    node.authorize("");
    let error = NodeSession::open(&node.connector(), &target, &options).await.unwrap_err().to_string();
    assert!(
        error.contains("the OpenSSH client failed: ") && error.contains("Permission denied (publickey)"),
        "{error}"
    );

    let session = NodeSession::open(&connector(node.environment()), &Target::local("localhost"), &options)
        .await
        .unwrap();
    assert_eq!(session.hello().uid, uid());
    forget(session).await;
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Measures the whole process, so it is only meaningful if it runs alone.
#[tokio::test]
#[ignore = "a measurement: cargo test -p gpufleet --test transport -- --ignored --nocapture memory"]
async fn memory_of_a_connected_node() {
    let node = Node::start();
    let (connector, target, options) = (node.connector(), node.target(), fake("memory"));
    let warm = NodeSession::open(&connector, &target, &options).await.unwrap();
    let before = resident_kib();
    let begin = Instant::now();
    let opening = (0..60).map(|_| NodeSession::open(&connector, &target, &options));
    let sessions: Vec<_> = futures::future::join_all(opening).await.into_iter().map(Result::unwrap).collect();
    let took = begin.elapsed();
    let each = (resident_kib() - before) / 60;
    eprintln!("{each} KiB a session, 60 sessions in {took:?}");
    assert!(each < 200, "{each} KiB");
    drop((warm, sessions));
}
