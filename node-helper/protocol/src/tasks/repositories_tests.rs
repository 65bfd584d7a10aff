//! What the kinds of repositories accept and refuse.

use serde_json::{Value, json};

use super::*;
use crate::tasks::{Params, find};

fn refused(kind: &str, value: Value) -> bool {
    find(kind).unwrap().parse(value).is_err()
}

#[test]
fn sources_of_apt_are_checked_before_a_node_is_touched() {
    for repo in
        ["", "http://a.example x main", "# deb http://a.example x main", "ppa:/x", "deb http://a.example x"]
    {
        assert!(refused("apt_repository", json!({"repo": repo})), "{repo}");
    }
    assert!(refused("apt_repository", json!({"repo": "deb http://a x main", "filename": "../x"})));
    let Ok(Params::Node(NodeOp::AptRepository(task))) = find("apt_repository")
        .unwrap()
        .parse(json!({"repo": "ppa:graphics-drivers/ppa", "codename": "jammy"}))
    else {
        panic!("it is read");
    };
    assert_eq!(task.file(""), "/etc/apt/sources.list.d/ppa_graphics_drivers_ppa_jammy.list");
}

#[test]
fn stanzas_are_those_of_ansible() {
    let task: Deb822Repository = serde_json::from_value(json!({
        "name": "My Repo_x", "uris": "https://a.example", "suites": ["stable"], "components": ["main", "extra"],
        "enabled": "yes", "signed_by": "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nabc\n-----END PGP PUBLIC KEY BLOCK-----\n",
    }))
    .unwrap();
    assert!(task.check().is_ok());
    assert_eq!(task.file(), "/etc/apt/sources.list.d/my-repo-x.sources");
    assert_eq!(
        task.text(None),
        "Components: main extra\nEnabled: yes\nX-Repolib-Name: My Repo_x\nSigned-By:\n    -----BEGIN PGP PUBLIC KEY BLOCK-----\n    \
         .\n    abc\n    -----END PGP PUBLIC KEY BLOCK-----\nSuites: stable\nTypes: deb\nURIs: https://a.example\n"
    );
    assert!(refused("deb822_repository", json!({"name": "x", "uris": "https://a", "suites": "stable"})));
    assert!(refused("deb822_repository", json!({"name": "..", "state": "absent"})));
}

#[test]
fn repositories_of_dnf_are_those_of_ansible() {
    let Ok(Params::Node(NodeOp::YumRepository(task))) = find("yum_repository").unwrap().parse(json!({
        "name": "cuda", "description": "CUDA", "baseurl": ["http://a", "http://b"], "gpgcheck": false,
        "excludepkgs": "x,y", "priority": 10, "validate_certs": true,
    })) else {
        panic!("it is read");
    };
    let shown: Vec<String> = task.options().iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        shown,
        [
            "baseurl=http://a\nhttp://b",
            "exclude=x y",
            "gpgcheck=0",
            "name=CUDA",
            "priority=10",
            "sslverify=1"
        ]
    );
    assert_eq!(task.path(), "/etc/yum.repos.d/cuda.repo");
    assert!(refused("yum_repository", json!({"name": "x", "description": "x"})));
    assert!(refused("yum_repository", json!({"name": "x", "baseurl": "http://a"})));
    assert!(refused("yum_repository", json!({"name": "x", "state": "absent", "keepcache": 2})));
}

#[test]
fn a_newer_task_takes_over_what_is_called_alike() {
    let op = |kind: &str, value| match find(kind).unwrap().parse(value) {
        Ok(Params::Node(op)) => op,
        other => panic!("{other:?}"),
    };
    let line = |repo: &str, state: &str| op("apt_repository", json!({"repo": repo, "state": state}));
    let mut old = line("deb  http://a x main", "present");
    assert!(old.operation_mut().yields(&Newer::of(&line("deb http://b x main", "absent"))));
    assert!(!old.operation_mut().yields(&Newer::of(&line("deb http://a x main", "absent"))));
    let yum = |name: &str| op("yum_repository", json!({"name": name, "state": "absent"}));
    let mut old = yum("a");
    assert!(old.operation_mut().yields(&Newer::of(&yum("b"))));
    assert!(!old.operation_mut().yields(&Newer::of(&yum("a"))));
}

#[test]
fn what_dnf_would_read_otherwise_is_refused() {
    let repository = |description: &str, baseurl: Value| {
        refused("yum_repository", json!({"name": "x", "description": description, "baseurl": baseurl}))
    };
    assert!(!repository("CUDA", json!(["https://a.example", "https://b.example"])));
    assert!(repository(" CUDA", json!("https://a.example")));
    assert!(repository("CUDA", json!(["https://a.example", "#https://b.example"])));
}
