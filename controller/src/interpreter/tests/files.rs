//! Files of the controller: where they are looked for, what of them goes to a node, and where fetched ones are put.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result as IoResult};

use gpufleet_protocol::NodeOp;
use gpufleet_protocol::op::{PutFile, PutTree};

use super::*;
use crate::playbook::Reader;
use crate::template::{Outside as _, PathKind};
use crate::vault::{Key, Keyring};

/// A file system: files with their bits, folders by a `/` behind, links by their target, and what nobody may read.
#[derive(Clone, Default)]
struct Disk {
    files: BTreeMap<String, (Vec<u8>, u32)>,
    folders: Vec<String>,
    links: BTreeMap<String, String>,
    locked: Vec<String>,
}

impl Disk {
    fn with(files: &[(&str, &str, u32)]) -> Self {
        let files =
            files.iter().map(|(path, text, mode)| ((*path).to_owned(), (text.as_bytes().to_vec(), *mode)));
        Self { files: files.collect(), ..Self::default() }
    }

    fn is_folder(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.folders.iter().any(|folder| folder == path || folder.starts_with(&below))
            || self.files.keys().chain(self.links.keys()).any(|file| file.starts_with(&below))
    }
}

impl Reader for Disk {
    fn read(&self, path: &str) -> IoResult<Vec<u8>> {
        if self.locked.iter().any(|locked| locked == path) {
            return Err(Error::from(ErrorKind::PermissionDenied));
        }
        match self.files.get(path) {
            Some((bytes, _)) => Ok(bytes.clone()),
            None if self.is_folder(path) => Err(Error::from(ErrorKind::IsADirectory)),
            None => Err(Error::from(ErrorKind::NotFound)),
        }
    }

    fn list(&self, folder: &str) -> IoResult<Vec<String>> {
        if self.locked.iter().any(|locked| locked == folder) {
            return Err(Error::from(ErrorKind::PermissionDenied));
        }
        if !self.is_folder(folder) {
            return Err(Error::from(ErrorKind::NotFound));
        }
        let below = format!("{folder}/");
        let all = self.files.keys().chain(self.links.keys()).cloned();
        let all = all.chain(self.folders.iter().map(|folder| format!("{folder}/")));
        let mut names: Vec<String> = all
            .filter_map(|path| {
                let rest = path.strip_prefix(&below)?;
                Some(rest.find('/').map_or(rest, |at| &rest[..=at]).to_owned())
                    .filter(|name| !name.is_empty())
            })
            .collect();
        names.sort();
        names.dedup();
        names.reverse();
        Ok(names)
    }

    fn link(&self, path: &str) -> Option<String> {
        self.links.get(path).cloned()
    }

    fn mode(&self, path: &str) -> Option<u32> {
        self.files.get(path).map(|(_, mode)| 0o100_000 | *mode)
    }
}

/// What the tasks of `plays/site.yml` ask for, and how that ends.
fn asked(tasks: &str, disk: &Disk, keyring: Keyring) -> (Vec<Work>, Story) {
    let playbook = format!("- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}");
    let map: HashMap<String, String> = [("plays/site.yml".to_owned(), playbook)].into();
    let program =
        Arc::new(Program::load(&["plays/site.yml"], &map).unwrap_or_else(|errors| panic!("{errors}")));
    let files = Arc::new(
        CachedFiles::with_keyring(disk.clone(), Arc::new(keyring)).seen_from(Some("/home/ops/".to_owned())),
    );
    let context = context(json!({"limit": 5}));
    let mut cursor =
        Cursor::new(&program, PlayIndex(0), context, HostVars::default(), Mode::Apply, Arc::default(), files)
            .expect("a play");
    let mut works = Vec::new();
    let story = run(&mut cursor, |action| {
        works.push(action.work.clone());
        match action.work {
            Work::Fetch(_) => {
                Fed::Outcome(Box::new(gpufleet_protocol::OpOutcome::new(gpufleet_protocol::OpStatus::Ok)))
            }
            _ => OpOutcomeSketch::Ok.fed(action),
        }
    });
    (works, story)
}

fn put(task: &str, disk: &Disk) -> (PutFile, String) {
    let (works, story) = asked(&format!("    - {task}\n"), disk, Keyring::default());
    let Some(Work::Node { op, blobs }) = works.first() else { panic!("{}", story.lines()) };
    let NodeOp::PutFile(put) = &**op else { panic!("{op:?}") };
    let sent = blobs.first().map(|need| String::from_utf8_lossy(&need.bytes).into_owned());
    assert_eq!(put.blob.is_some(), sent.is_some());
    (put.clone(), sent.unwrap_or_default())
}

fn tree(task: &str, disk: &Disk, keyring: Keyring) -> Result<PutTree, String> {
    let (works, story) = asked(&format!("    - {task}\n"), disk, keyring);
    match works.first() {
        Some(Work::Node { op, .. }) => match &**op {
            NodeOp::PutTree(tree) => Ok(tree.clone()),
            other => panic!("{other:?}"),
        },
        _ => Err(story.reports[0].message.clone().unwrap_or_default()),
    }
}

/// One line a path: its mode, and what is there.
fn entries(tree: &PutTree) -> Vec<String> {
    let one = |entry: &gpufleet_protocol::op::TreeEntry| {
        let mode = entry.mode.as_ref().map_or("-", |mode| &mode.0);
        let what = match (&entry.blob, &entry.link) {
            (Some(blob), _) => {
                format!("{} bytes: {}", blob.size, entry.preview.as_deref().unwrap_or("-").trim_end())
            }
            (_, Some(link)) => format!("-> {link}"),
            _ => "folder".to_owned(),
        };
        format!("{} {mode} {what}", entry.path)
    };
    tree.entries.iter().map(one).collect()
}

fn disk() -> Disk {
    let mut disk = Disk::with(&[
        ("plays/files/app/run", "#!/bin/sh\n", 0o755),
        ("plays/files/app/conf/a", "a=1\n", 0o644),
        ("plays/files/one", "one\n", 0o640),
        ("plays/templates/two.j2", "limit={{ limit }}\n", 0o600),
        ("plays/three", "three\n", 0o444),
    ]);
    disk.links.insert("plays/files/app/now".to_owned(), "run".to_owned());
    disk.files.insert("plays/files/app/raw".to_owned(), (vec![0xff, 0xfe], 0o600));
    disk.folders = vec!["plays/files/app/empty".to_owned(), "plays/files/void".to_owned()];
    disk
}

#[test]
fn bits_are_kept_where_a_task_says_so() {
    let mode = |task: &str| put(task, &disk()).0.mode.map(|mode| mode.0);
    assert_eq!(mode("copy: {src: one, dest: /f, mode: preserve}"), Some("0640".to_owned()));
    assert_eq!(mode("copy: {src: one, dest: /f, mode: '0600'}"), Some("0600".to_owned()));
    assert_eq!(mode("copy: {src: one, dest: /f}"), None);
    assert_eq!(mode("template: {src: two.j2, dest: /f, mode: preserve}"), Some("0600".to_owned()));
    assert_eq!(mode("template: {src: two.j2, dest: /f, mode: '0644'}"), Some("0644".to_owned()));
    assert_eq!(mode("copy: {src: three, dest: /f, mode: preserve}"), Some("0444".to_owned()));
    let (two, text) = put("template: {src: two.j2, dest: /etc/}", &disk());
    assert_eq!(
        (two.name.as_str(), text.as_str(), two.preview.as_deref()),
        ("two.j2", "limit=5\n", Some("limit=5\n"))
    );
}

#[test]
fn a_folder_goes_with_its_bits_and_links() {
    let kept = tree("copy: {src: app, dest: /opt, local_follow: false}", &disk(), Keyring::default())
        .expect("a tree");
    assert_eq!(kept.dest, "/opt/app");
    insta::assert_snapshot!(entries(&kept).join("\n"), @r"
    conf - folder
    conf/a 0644 4 bytes: a=1
    empty - folder
    now - -> run
    raw 0600 2 bytes: -
    run 0755 10 bytes: #!/bin/sh
    ");
    let mut pointed = disk();
    pointed.files.insert("plays/files/app/now".to_owned(), (b"#!/bin/sh\n".to_vec(), 0o755));
    let followed = tree("copy: {src: app/, dest: /opt/, local_follow: true}", &pointed, Keyring::default())
        .expect("a tree");
    assert_eq!(followed.dest, "/opt");
    let now: Vec<String> = entries(&followed).into_iter().filter(|line| line.starts_with("now")).collect();
    assert_eq!(now, ["now 0755 10 bytes: #!/bin/sh"]);
    let empty = tree("copy: {src: void, dest: /opt}", &disk(), Keyring::default()).expect("a tree");
    assert_eq!((empty.dest.as_str(), empty.entries.len()), ("/opt/void", 0));
    let hidden = tree(
        "{copy: {src: app, dest: /opt, local_follow: false}, no_log: true}",
        &disk(),
        Keyring::default(),
    )
    .expect("a tree");
    assert!(hidden.secret && hidden.entries.iter().all(|entry| entry.preview.is_none()));
}

#[test]
fn a_folder_that_cannot_be_read_whole_is_not_sent() {
    let copy = "copy: {src: app, dest: /opt}";
    let refused = |locked: &str| {
        let mut disk = disk();
        disk.links.clear();
        disk.locked.push(locked.to_owned());
        tree(copy, &disk, Keyring::default()).expect_err("a refusal")
    };
    assert_eq!(refused("plays/files/app/conf/a"), "cannot read plays/files/app/conf/a: permission denied");
    assert_eq!(refused("plays/files/app/conf"), "cannot read plays/files/app/conf: permission denied");
    // Folders cost nothing to read, so the list alone is long.
    struct Wide(usize);
    impl Reader for Wide {
        fn read(&self, _: &str) -> IoResult<Vec<u8>> {
            Ok(Vec::new())
        }
        fn list(&self, folder: &str) -> IoResult<Vec<String>> {
            if folder == "files/app" {
                Ok((0..self.0).map(|at| format!("{at:05}/")).collect())
            } else {
                Ok(Vec::new())
            }
        }
    }
    let paths = |count: usize| {
        let files = CachedFiles::new(Wide(count));
        files
            .tree(FileKind::File, &[String::new()], "app", false)
            .map(|tree| tree.map_or(0, |tree| tree.len()))
    };
    assert_eq!(paths(20_000), Ok(20_000));
    assert_eq!(paths(20_001), Err("more than 20000 paths are below files/app".to_owned()));
}

#[test]
fn what_was_encrypted_is_not_shown() {
    let key = || Key::new("default", b"pw".to_vec());
    let keyring = || Keyring::new(vec![key()]);
    let mut disk = disk();
    let sealed = key().seal(b"planted\n").expect("sealed");
    for path in ["plays/files/one", "plays/files/app/conf/a"] {
        disk.files.insert(path.to_owned(), (sealed.clone().into_bytes(), 0o600));
    }
    let (works, story) =
        asked("    - {name: t, copy: {src: one, dest: /f, mode: preserve}}\n", &disk, keyring());
    let Some(Work::Node { op, blobs }) = works.first() else { panic!("{}", story.lines()) };
    let NodeOp::PutFile(put) = &**op else { panic!("{op:?}") };
    assert_eq!((&*blobs[0].bytes, put.secret, &put.preview), (&b"planted\n"[..], true, &None));
    assert_eq!(put.mode.as_ref().map(|mode| mode.0.as_str()), Some("0600"));
    let sent = tree("copy: {src: app, dest: /opt, local_follow: false}", &disk, keyring()).expect("a tree");
    let a = sent.entries.iter().find(|entry| entry.path == "conf/a").expect("conf/a");
    assert_eq!((a.blob.as_ref().map(|blob| blob.size), &a.preview), (Some(8), &None));
    assert!(sent.secret);
    let closed = asked("    - {name: t, copy: {src: one, dest: /f}}\n", &disk, Keyring::default()).1;
    assert!(closed.lines().starts_with("t: failed \"plays/files/one: "), "{}", closed.lines());
}

#[test]
fn fetched_files_lie_below_the_playbook() {
    let dest = |task: &str| {
        let (works, story) = asked(&format!("    - {task}\n"), &disk(), Keyring::default());
        match works.first() {
            Some(Work::Fetch(fetch)) => format!("{} {}", fetch.dest, fetch.fail_on_missing),
            _ => story.reports[0].message.clone().unwrap_or_default(),
        }
    };
    assert_eq!(dest("fetch: {src: /etc/x, dest: out/}"), "plays/out/n1/etc/x true");
    assert_eq!(
        dest("fetch: {src: /etc/x, dest: /srv/out, fail_on_missing: false}"),
        "/srv/out/n1/etc/x false"
    );
    assert_eq!(dest("fetch: {src: /etc/x, dest: out/, flat: true}"), "plays/out/x true");
    assert_eq!(dest("fetch: {src: /etc/../x, dest: out}"), "`src` of fetch is a path without `..`");
    let of = |host: &str| {
        let text = "- hosts: all\n  gather_facts: false\n  tasks: [{fetch: {src: /x, dest: out}}]\n";
        let context = HostContext { host: Arc::from(host), ..HostContext::clone(&context(json!({}))) };
        let mut cursor = Cursor::new(
            &program(text),
            PlayIndex(0),
            Arc::new(context),
            HostVars::default(),
            Mode::Apply,
            Arc::default(),
            super::files(),
        )
        .expect("a play");
        for _ in 0..9 {
            if let Step::Run(action) = cursor.next()
                && let Work::Fetch(fetch) = action.work
            {
                return fetch.dest;
            }
        }
        panic!("nothing is fetched")
    };
    assert_eq!((of("a.b").as_str(), of("..").as_str()), ("out/a.b/x", "out/__/x"));
    assert_eq!(of("../a/b"), "out/___a_b/x", "a name is no path");
}

#[test]
fn folders_of_variables_are_read_in_order() {
    let disk = Disk::with(&[
        ("plays/vars/all/b.yml", "x: 2\n", 0),
        ("plays/vars/all/a.yaml", "x: 1\ny: '{{ x }}'\n", 0),
        ("plays/vars/all/c.json", "{\"z\": 3}\n", 0),
        ("plays/vars/all/notes.txt", "no variables", 0),
        ("plays/vars/all/deep/d.yml", "x: 9\n", 0),
        ("plays/vars/all/deep/m.yaml", "box: {z: {a: 1}, w: '{{ x }}'}\n", 0),
        ("plays/vars/empty.yml", "", 0),
        ("plays/vars/list.yml", "[1]\n", 0),
    ]);
    let said = |tasks: &str| asked(tasks, &disk, Keyring::default()).1.lines();
    insta::assert_snapshot!(
        said("    - {name: t, include_vars: {dir: all}, ignore_errors: true}\n    - {name: v, include_vars: {dir: all, ignore_unknown_extensions: true, depth: 1}}\n    - {name: e, include_vars: empty.yml}\n    - debug: {msg: '{{ x }} {{ y }} {{ z }}'}\n    - {name: all, include_vars: {dir: all, ignore_files: ['\\.txt', 'c.*']}}\n    - debug: {msg: '{{ x }}'}\n    - {name: some, include_vars: {dir: all, files_matching: '^[ac]', name: box}}\n    - debug: {msg: '{{ box.x }} {{ box.z }}'}\n    - {name: m, include_vars: {file: all/deep/m.yaml, hash_behaviour: merge}}\n    - debug: {msg: '{{ box }}'}\n    - {name: n, include_vars: {dir: nowhere}, ignore_errors: true}\n    - {name: l, include_vars: list.yml}\n"),
        @r#"
    t: failed ignored "`all/notes.txt` does not end in yaml, yml, json; `ignore_unknown_extensions: true` passes it over"
    v: ok
    e: ok
    debug: ok "2 2 3"
    all: ok
    debug: ok "9"
    some: ok
    debug: ok "1 3"
    m: ok
    debug: ok "{"x":1,"y":9,"z":{"a":1},"w":9}"
    n: failed ignored "there is no folder `nowhere`"
    l: failed "plays/vars/list.yml holds a list, not variables"
    end: Failed { task: "l", message: "plays/vars/list.yml holds a list, not variables" }
    "#
    );
}

#[test]
fn a_playbooks_folder_is_seen_from_where_the_command_was_started() {
    let dir = |from: Option<&str>, directory: &str| {
        CachedFiles::new(Disk::default()).seen_from(from.map(ToOwned::to_owned)).playbook_dir(directory)
    };
    for (from, directory, seen) in [
        (Some("/home/ops"), "", "/home/ops"),
        (Some("/home/ops"), ".", "/home/ops"),
        (Some("/home/ops"), "./plays", "/home/ops/plays"),
        (Some("/home/ops/"), "plays", "/home/ops/plays"),
        (Some("/home/ops"), "/srv/plays", "/srv/plays"),
        (None, "", "."),
        (None, "plays", "plays"),
    ] {
        assert_eq!(dir(from, directory), seen, "{from:?} {directory}");
    }
    assert_eq!(
        asked("    - debug: {msg: '{{ playbook_dir }}'}\n", &disk(), Keyring::default()).1.reports[0]
            .message
            .as_deref(),
        Some("/home/ops/plays")
    );
}

/// A machine that answers everything with the question.
struct Echo;

impl Machine for Echo {
    fn kind(&self, path: &str) -> Option<PathKind> {
        path.ends_with("/").then_some(PathKind::Folder)
    }
    fn files_of(&self, folder: &str) -> Result<Vec<String>, String> {
        Ok(vec![folder.to_owned()])
    }
    fn absolute(&self, path: &str) -> String {
        format!("/root/{path}")
    }
    fn variable(&self, name: &str) -> Result<Option<String>, String> {
        Ok(Some(name.to_owned()))
    }
    fn output(&self, line: &str, folder: &str) -> Result<String, String> {
        Ok(format!("{folder}: {line}"))
    }
    fn hosts(&self, patterns: &[String]) -> Result<Vec<String>, String> {
        Ok(patterns.to_vec())
    }
}

#[test]
fn lookups_ask_the_machine_where_there_is_one() {
    let alone = CachedFiles::new(disk());
    let why = Err("nothing can be looked up on this machine here".to_owned());
    assert_eq!((alone.kind("plays/three"), alone.kind("plays/four")), (Some(PathKind::File), None));
    assert_eq!(
        (alone.absolute("x"), alone.files_of("x"), alone.hosts(&["x".to_owned()])),
        ("x".to_owned(), why.clone(), why)
    );
    assert!(alone.variable("x").is_err() && alone.output("x", "").is_err());
    let there = CachedFiles::new(disk()).on(Arc::new(Echo));
    assert_eq!((there.kind("plays/three"), there.kind("x/")), (None, Some(PathKind::Folder)));
    assert_eq!((there.absolute("x"), there.files_of("x")), ("/root/x".to_owned(), Ok(vec!["x".to_owned()])));
    assert_eq!(there.variable("x"), Ok(Some("x".to_owned())));
    assert_eq!(there.output("date", "/srv").as_deref(), Ok("/srv: date"));
    assert_eq!(there.output("date", "/tmp").as_deref(), Ok("/tmp: date"), "another folder, another answer");
    assert_eq!(there.hosts(&["x".to_owned()]), Ok(vec!["x".to_owned()]));
    let content = there.content("plays/three").expect("readable").expect("there");
    assert_eq!((&*content.bytes, content.secret), (&b"three\n"[..], false));
    assert!(there.content("plays/four").expect("readable").is_none());
    assert_eq!(there.content("plays").err().as_deref(), Some("cannot read plays: is a directory"));
}
