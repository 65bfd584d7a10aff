//! Tests of kinds that change a machine, with its real tools, in a disposable root.
//!
//! `tests/scripts/real-tools.sh` creates that root and runs these tests in it. They are ignored elsewhere, so that a run of
//! other tests counts them as not run.

use std::{fs, path::Path, process::Command};

use gpufleet_protocol::{
    OpOutcome, OpStatus,
    message::Mode,
    tasks::{
        Apt, AptKey, AptRepository, Cron, Deb822Repository, Dnf, DpkgSelections, Group, Hostname,
        KernelCmdline, Mount, PackageFacts, PackageHold, RpmKey, User, YumRepository,
    },
};
use serde_json::json;

use super::testing::Bench;
use crate::{
    declare::NodeKind,
    os::{roots::Roots, users::Users},
};

/// Marks a disposable root.
const MARK: &str = "/gpufleet-throwaway-root";

fn machine() -> Bench {
    assert!(
        Path::new(MARK).exists(),
        "this would change the machine: `make test-tools` runs it in a disposable root"
    );
    let mut bench = Bench::new();
    bench.roots = Roots::real();
    bench.users = Users::of(Path::new("/etc"));
    bench
}

/// Checks that an apply does what was predicted, and that a second one changes nothing.
fn converge<D: NodeKind>(bench: &Bench, task: &D) -> OpOutcome {
    bench.forget();
    let predicted = bench.run(task, Mode::Predict);
    assert_eq!(predicted.status, OpStatus::Changed, "{predicted:?}");
    assert_eq!(bench.run(task, Mode::Predict).status, OpStatus::Ok, "predicted twice");
    let done = bench.run(task, Mode::Apply);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    let again = bench.run(task, Mode::Apply);
    assert_eq!(again.status, OpStatus::Ok, "{again:?}");
    done
}

macro_rules! task {
    ($kind:ty, $($json:tt)+) => { serde_json::from_value::<$kind>(json!($($json)+)).unwrap() };
}

fn told(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
#[ignore = "it changes the machine: make test-tools"]
fn users_and_groups() {
    let bench = machine();
    converge(&bench, &task!(Group, {"name": "gfgroup", "gid": 4242, "system": true}));
    converge(&bench, &task!(Group, {"name": "gfgroup", "gid": 4243}));
    let hash =
        "$6$saltsalt$qFmFH.bQmmtXzyBY0s9v7Oicd2z4XSIecDzlB5KiA2/jctKu9YterLp8wwnSq.qc.eoxqOmSuNp2xS0ktL3nh/";
    let ann = json!({
        "name": "gfann", "uid": 4711, "groups": "gfgroup", "shell": "/bin/bash", "comment": "Ann A",
        "password": hash, "home": "/srv/homes/gfann", "expires": 1_893_456_000, "password_expire_max": 90,
    });
    let done = converge(&bench, &serde_json::from_value::<User>(ann).unwrap());
    assert_eq!(done.data["uid"], 4711);
    assert!(Path::new("/srv/homes/gfann/.profile").exists());
    assert_eq!(told("id", &["-nG", "gfann"]), "gfann gfgroup\n");
    assert!(told("getent", &["shadow", "gfann"]).starts_with(&format!("gfann:{hash}:")));
    converge(&bench, &task!(User, {"name": "gfann", "password_lock": true}));
    converge(&bench, &task!(User, {"name": "gfann", "password_lock": false, "groups": [], "expires": -1}));
    converge(
        &bench,
        &task!(User, {"name": "gfann", "home": "/srv/homes/other", "move_home": true, "group": "gfgroup"}),
    );
    assert!(Path::new("/srv/homes/other/.profile").exists());
    fs::remove_dir_all("/srv/homes/other").unwrap();
    converge(&bench, &task!(User, {"name": "gfann", "umask": "077"}));
    converge(&bench, &task!(User, {"name": "gfsys", "system": true, "create_home": false, "password": "*"}));
    converge(&bench, &task!(User, {"name": "gfsys", "state": "absent"}));
    converge(&bench, &task!(User, {"name": "gfann", "state": "absent", "remove": true, "force": true}));
    converge(&bench, &task!(Group, {"name": "gfgroup", "state": "absent"}));
    assert_eq!(told("getent", &["passwd", "gfann"]), "");
}

#[test]
#[ignore = "it changes the machine: make test-tools"]
fn mounts() {
    let bench = machine();
    let scratch = |opts: &str| {
        task!(Mount, {
            "path": "/gf scratch", "src": "tmpfs", "fstype": "tmpfs", "opts": opts, "state": "mounted",
        })
    };
    converge(&bench, &scratch("size=1m,nodev"));
    assert!(told("findmnt", &["-no", "OPTIONS", "/gf scratch"]).contains("nodev"));
    converge(&bench, &scratch("size=2m,nodev,nosuid"));
    assert!(told("findmnt", &["-no", "OPTIONS", "/gf scratch"]).contains("nosuid"));
    converge(&bench, &task!(Mount, {"path": "/gf scratch", "state": "unmounted"}));
    converge(&bench, &scratch("size=2m,nodev,nosuid"));
    converge(&bench, &task!(Mount, {"path": "/gf scratch", "state": "absent"}));
    converge(
        &bench,
        &task!(Mount, {"path": "/gf2", "src": "tmpfs", "fstype": "tmpfs", "state": "ephemeral"}),
    );
    converge(&bench, &task!(Mount, {"path": "/gf2", "state": "absent"}));
    assert!(!Path::new("/gf2").exists());
}

#[test]
#[ignore = "it changes the machine: make test-tools"]
fn crontabs() {
    let bench = machine();
    converge(
        &bench,
        &task!(Cron, {"name": "a job", "special_time": "daily", "job": "/bin/true", "user": "games"}),
    );
    assert_eq!(told("crontab", &["-u", "games", "-l"]), "#Ansible: a job\n@daily /bin/true\n");
    converge(&bench, &task!(Cron, {"name": "MAILTO", "env": true, "job": "me", "user": "games"}));
    converge(
        &bench,
        &task!(Cron, {"name": "a job", "minute": "*/5", "job": "/bin/true", "user": "games", "backup": true}),
    );
    let text = told("crontab", &["-u", "games", "-l"]);
    assert_eq!(text, "MAILTO=\"me\"\n#Ansible: a job\n*/5 * * * * /bin/true\n");
    converge(&bench, &task!(Cron, {"name": "a job", "state": "absent", "user": "games"}));
}

#[test]
#[ignore = "it changes the machine: make test-tools"]
fn packages() {
    let bench = machine();
    let build = |version: &str| -> String {
        let folder = format!("/tmp/gfpkg-{version}");
        fs::create_dir_all(format!("{folder}/DEBIAN")).unwrap();
        let control = format!(
            "Package: gfpkg\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: a test\n"
        );
        fs::write(format!("{folder}/DEBIAN/control"), control).unwrap();
        let file = format!("/tmp/gfpkg_{version}.deb");
        told("dpkg-deb", &["-b", &folder, &file]);
        file
    };
    let (old, new) = (build("1.0"), build("1.1"));
    let done = converge(&bench, &task!(Apt, {"deb": old}));
    assert_eq!(
        (done.changes[0].what().as_str(), done.changes[0].to_text().as_str()),
        ("package gfpkg", "1.0")
    );
    assert_eq!(converge(&bench, &task!(Apt, {"deb": new})).changes[0].from_text().as_deref(), Some("1.0"));
    let settled = |task: &Apt| assert_eq!(bench.run(task, Mode::Apply).status, OpStatus::Ok);
    settled(&task!(Apt, {"deb": old}));
    settled(&task!(Apt, {"name": ["gfpkg=1.1", "gfpkg=1.*", "gfpkg>=1.0", "bash", "awk"]}));
    converge(&bench, &task!(Apt, {"deb": old, "allow_downgrade": true}));
    bench.forget();
    let refused = bench.run(&task!(Apt, {"name": "gfpkg=7"}), Mode::Predict);
    assert!(matches!(refused.status, OpStatus::Failed { .. }), "{refused:?}");
    converge(&bench, &task!(Apt, {"name": "gfpk*", "state": "absent", "purge": true}));
    settled(&task!(Apt, {"name": "gfpkg", "state": "absent"}));
}

#[test]
#[ignore = "it changes the machine: make test-tools"]
fn host_names() {
    let bench = machine();
    converge(&bench, &task!(Hostname, {"name": "gf-node.cluster"}));
    assert_eq!(told("uname", &["-n"]), "gf-node.cluster\n");
}

/// Debian's own update-grub with two kernels, their recovery entries and memtest86+, with and without tuned's line.
#[test]
#[ignore = "it changes the machine: make test-tools"]
fn command_lines_of_the_kernel() {
    let bench = machine();
    fs::create_dir_all("/boot/grub").unwrap();
    for version in ["6.1.0-9-amd64", "6.1.0-13-amd64"] {
        fs::write(format!("/boot/vmlinuz-{version}"), [0x4d; 1000]).unwrap();
        fs::write(format!("/boot/initrd.img-{version}"), "x").unwrap();
        fs::write(format!("/boot/config-{version}"), "").unwrap();
    }
    let defaults = "GRUB_DISTRIBUTOR=`echo Debian`\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"console=tty0\"\n";
    let tuned = "GRUB_CMDLINE_LINUX_DEFAULT=\"${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }\\$tuned_params\"\n";
    for text in [defaults.to_owned(), format!("{defaults}{tuned}")] {
        let _ = fs::remove_file("/etc/default/grub.d/99-gpufleet.cfg");
        fs::write("/etc/default/grub", &text).unwrap();
        assert!(Command::new("update-grub").status().unwrap().success());
        converge(&bench, &task!(KernelCmdline, {"add": ["iommu=pt", "console=ttyS1"], "remove": ["quiet"]}));
        converge(&bench, &task!(KernelCmdline, {"add": ["iommu=off", "hugepagesz=1G", "hugepages=8"]}));
        let cfg = fs::read_to_string("/boot/grub/grub.cfg").unwrap();
        let lines: Vec<&str> = cfg.lines().map(str::trim).filter(|line| line.starts_with("linux")).collect();
        let whole =
            |line: &&&str| line.contains("console=tty0 console=ttyS1 iommu=off hugepagesz=1G hugepages=8");
        assert_eq!(lines.iter().filter(whole).count(), 5, "{lines:?}");
        assert_eq!(lines.len(), 7, "memtest86+ has two: {lines:?}");
    }
    // A value computed by a shell is unknown to gpufleet, but update-grub can read it.
    fs::write("/etc/default/grub", "GRUB_CMDLINE_LINUX=\"$(echo iommu=pt)\"\n").unwrap();
    assert!(Command::new("update-grub").status().unwrap().success());
    bench.forget();
    let predicted = bench.run(&task!(KernelCmdline, {"add": ["iommu=pt"]}), Mode::Predict);
    assert!(matches!(predicted.status, OpStatus::Unknown { .. }), "{predicted:?}");
}

/// systemd's own kernel-install, with the layout of systemd-boot.
#[test]
#[ignore = "it changes the machine: make test-tools"]
fn command_lines_of_boot_entries() {
    let bench = machine();
    sh("mkdir -p /boot/loader/entries /usr/lib/modules/6.1.0-gf && mv /etc/default/grub /etc/default/grub.gf || true
        rm -rf /etc/default/grub.d.gf; mv /etc/default/grub.d /etc/default/grub.d.gf || true
        head -c 1000 /dev/zero >/usr/lib/modules/6.1.0-gf/vmlinuz
        echo 0123456789abcdef0123456789abcdef >/etc/machine-id; mkdir -p /boot/0123456789abcdef0123456789abcdef
        printf 'layout=bls\nBOOT_ROOT=/boot\n' >/etc/kernel/install.conf
        echo 'root=/dev/vda1 ro quiet' >/etc/kernel/cmdline
        kernel-install add 6.1.0-gf /usr/lib/modules/6.1.0-gf/vmlinuz");
    let entry = || sh_told("cat /boot/loader/entries/*6.1.0-gf.conf");
    assert!(entry().contains("root=/dev/vda1 ro quiet"), "{}", entry());
    converge(&bench, &task!(KernelCmdline, {"add": ["iommu=pt"], "remove": ["quiet"]}));
    assert!(entry().contains("root=/dev/vda1 ro iommu=pt"), "{}", entry());
    // What a kernel that is installed later gets.
    sh(
        "rm /boot/loader/entries/*6.1.0-gf.conf; kernel-install add 6.1.0-gf /usr/lib/modules/6.1.0-gf/vmlinuz",
    );
    assert!(entry().contains("root=/dev/vda1 ro iommu=pt"), "{}", entry());
    sh("rm -rf /boot/loader /etc/kernel/cmdline /etc/kernel/install.conf /boot/0123456789abcdef0123456789abcdef
        mv /etc/default/grub.gf /etc/default/grub || true; mv /etc/default/grub.d.gf /etc/default/grub.d || true");
}

/// Returns what a script prints.
fn sh_told(script: &str) -> String {
    told("sh", &["-euc", script])
}

/// Runs a script that must succeed.
fn sh(script: &str) {
    let done = Command::new("sh").args(["-euc", script]).output().unwrap();
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A key in a file, by its fingerprint.
const KEY: &str = include_str!("keys/testdata/tests.asc");
const FINGERPRINT: &str = "051C21B5B4DC64454A5505D1F7D241EB974ADA98";

#[test]
#[ignore = "it changes the machine: make test-tools"]
fn repositories_of_apt() {
    let bench = machine();
    sh("mkdir -p /srv/debs/p/DEBIAN && cd /srv/debs
        printf 'Package: gftests\\nVersion: 1.0\\nArchitecture: all\\nMaintainer: t\\nSection: misc\\nDescription: t\\n' >p/DEBIAN/control
        dpkg-deb --root-owner-group --build p gftests.deb && dpkg-scanpackages . >Packages");
    let line = "deb [trusted=yes] file:/srv/debs ./";
    converge(&bench, &task!(AptRepository, {"repo": line, "filename": "gftests"}));
    converge(&bench, &task!(Apt, {"name": "gftests"}));
    converge(&bench, &task!(DpkgSelections, {"name": "gftests", "selection": "hold"}));
    assert_eq!(told("apt-mark", &["showhold"]), "gftests\n");
    converge(&bench, &task!(PackageHold, {"name": "gftest*", "state": "absent"}));
    assert_eq!(told("apt-mark", &["showhold"]), "");
    converge(&bench, &task!(PackageHold, {"name": ["gftest*", "no-such-*"]}));
    assert_eq!(told("apt-mark", &["showhold"]), "gftests\n");
    let facts = bench.run(&task!(PackageFacts, {"manager": "apt"}), Mode::Apply);
    let packages = &facts.data["ansible_facts"]["packages"];
    assert_eq!(packages["gftests"][0]["version"], "1.0");
    assert_eq!(packages["dpkg"][0]["origin"], "Debian", "{}", packages["dpkg"]);
    converge(&bench, &task!(AptRepository, {"repo": line, "state": "absent"}));
    let stanza = json!({"name": "gftests", "uris": "file:/srv/debs", "suites": "./", "trusted": true});
    converge(&bench, &serde_json::from_value::<Deb822Repository>(stanza).unwrap());
    assert!(told("apt-get", &["update", "--print-uris"]).contains("file:/srv/debs"));
    let covered = bench.run(&task!(AptRepository, {"repo": "deb file:/srv/debs ./"}), Mode::Apply);
    assert_eq!(covered.status, OpStatus::Ok, "{covered:?}");
    converge(&bench, &task!(Deb822Repository, {"name": "gftests", "state": "absent"}));
}

#[test]
#[ignore = "it changes the machine: make test-tools"]
fn keys_of_apt() {
    let bench = machine();
    converge(&bench, &task!(AptKey, {"data": KEY}));
    // gpg and apt read what was written.
    let ring = format!("/etc/apt/trusted.gpg.d/{FINGERPRINT}.gpg");
    let listed = told("gpg", &["--no-default-keyring", "--keyring", &ring, "--with-colons", "--list-keys"]);
    assert!(listed.contains(FINGERPRINT), "{listed}");
    converge(&bench, &task!(AptKey, {"id": "974ADA98", "state": "absent"}));
}

#[test]
#[ignore = "it changes the machine: make test-tools"]
fn repositories_of_dnf() {
    let bench = machine();
    sh("mkdir -p /srv/rpms /etc/yum.repos.d && cd /srv/rpms
        printf 'Name: gfrpm\\nVersion: 1.0\\nRelease: 1\\nSummary: t\\nLicense: t\\nBuildArch: noarch\\n%%description\\nt\\n%%files\\n' >gfrpm.spec
        rpmbuild --quiet --define '_topdir /srv/rpms' --define '_rpmdir /srv/rpms' -bb gfrpm.spec
        createrepo_c --quiet /srv/rpms");
    let repository = json!({
        "name": "gftests", "description": "Tests", "baseurl": "file:///srv/rpms", "gpgcheck": false, "mode": "0600",
    });
    converge(&bench, &serde_json::from_value::<YumRepository>(repository).unwrap());
    assert!(told("dnf", &["-q", "repolist"]).contains("gftests"));
    converge(&bench, &task!(Dnf, {"name": "gfrpm"}));
    let facts = bench.run(&task!(PackageFacts, {"manager": "dnf"}), Mode::Apply);
    let one = json!([{"name": "gfrpm", "version": "1.0", "release": "1", "epoch": null, "arch": "noarch", "source": "rpm"}]);
    assert_eq!(facts.data["ansible_facts"]["packages"]["gfrpm"], one);
    converge(&bench, &task!(YumRepository, {"name": "gftests", "state": "absent"}));
    assert!(!Path::new("/etc/yum.repos.d/gftests.repo").exists());
}

#[test]
#[ignore = "it changes the machine: make test-tools"]
fn keys_of_rpm() {
    let bench = machine();
    fs::write("/srv/tests.asc", KEY).unwrap();
    converge(&bench, &task!(RpmKey, {"key": "/srv/tests.asc", "fingerprint": FINGERPRINT}));
    assert!(told("rpm", &["-q", "gpg-pubkey"]).contains("974ada98"));
    converge(&bench, &task!(RpmKey, {"key": "974ADA98", "state": "absent"}));
    assert!(told("rpm", &["-q", "gpg-pubkey"]).contains("not installed"));
}
