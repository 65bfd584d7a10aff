//! Packages of drivers for nodes of the lab, in a repository for apt on each node's own disk.
//!
//! They are shaped like NVIDIA's: a package of the branch that needs the module, the library and the tools in its very
//! version. The module's file is text for the lab's `modprobe` (tests/lab/README.md).

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Fleet;

/// One version of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// Such as `580.159.04`.
    pub version: &'static str,
    /// What `modprobe` says instead of loading it.
    pub fault: Option<&'static str>,
    /// Whether the build of the module fails, while apt succeeds.
    pub unbuilt: bool,
}

impl Driver {
    pub const fn new(version: &'static str) -> Self {
        Self { version, fault: None, unbuilt: false }
    }

    pub(crate) fn branch(&self) -> &str {
        self.version.split('.').next().unwrap_or_default()
    }
}

/// A package: its name, what it needs, its files with their content (`->` begins the target of a link), and what its
/// installation does.
struct Package<'a> {
    name: String,
    depends: String,
    files: Vec<(String, String)>,
    after: &'a str,
}

/// A repository.
pub struct Drivers {
    dir: tempfile::TempDir,
}

impl Drivers {
    /// Builds the packages of these drivers.
    ///
    /// # Panics
    /// If this machine has no `dpkg-deb`.
    pub fn new(drivers: &[Driver]) -> Self {
        let dir = tempfile::Builder::new().prefix("gpufleet-drivers-").tempdir().expect("a folder");
        let all = Self { dir };
        let mut index = String::new();
        for driver in drivers {
            for package in packages(driver) {
                index.push_str(&all.build(driver, &package));
            }
        }
        std::fs::write(all.path().join("Packages"), index).expect("a file");
        all
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Copies the repository into a folder.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn copy(&self, to: &Path) {
        std::fs::create_dir_all(to).expect("a folder");
        for entry in std::fs::read_dir(self.path()).expect("a folder") {
            let path = entry.expect("a file").path();
            std::fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("a copy");
        }
    }

    /// Builds one package; returns its entry of the repository's index.
    fn build(&self, driver: &Driver, package: &Package<'_>) -> String {
        let root = self.path().join("root");
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            match text.strip_prefix("-> ") {
                Some(target) => std::os::unix::fs::symlink(target, path).expect("a link"),
                None => std::fs::write(path, text).expect("a file"),
            }
        };
        let version = format!("{}-1", driver.version);
        let control = format!(
            "Package: {}\nVersion: {version}\nArchitecture: all\nMaintainer: tests\nDepends: {}\nDescription: of the tests\n",
            package.name, package.depends
        );
        let control = control.replace("Depends: \n", "");
        write("DEBIAN/control", &control);
        if !package.after.is_empty() {
            write("DEBIAN/postinst", &format!("#!/bin/sh\nset -e\n{}\n", package.after));
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(root.join("DEBIAN/postinst"), mode).expect("a mode");
        }
        for (path, text) in &package.files {
            write(path, text);
        }
        let file = format!("{}_{version}_all.deb", package.name);
        let run = |command: &mut Command| {
            let output = command.output().expect("the program is there (`make setup`)");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let whole = self.path().join(&file);
        run(Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Znone", "--build"])
            .arg(&root)
            .arg(&whole));
        std::fs::remove_dir_all(&root).expect("the folder is ours");
        let sum = run(Command::new("sha256sum").arg(&whole));
        let size = std::fs::metadata(&whole).expect("a package").len();
        let sum = sum.split_whitespace().next().unwrap_or_default();
        format!("{control}Filename: ./{file}\nSize: {size}\nSHA256: {sum}\n\n")
    }

    /// Copies the repository to a node, as the only one that its apt knows, and reads its lists.
    ///
    /// # Panics
    /// If the node's apt does not take it.
    pub fn install(&self, fleet: &Fleet, node: &str) {
        let mut tar = Command::new("tar")
            .args(["-C"])
            .arg(self.path())
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()
            .expect("tar is installed");
        let take = "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d /opt/drivers && mkdir -p /opt/drivers && tar -C \
                    /opt/drivers -x && echo 'deb [trusted=yes] file:/opt/drivers ./' > /etc/apt/sources.list && apt-get -q \
                    update";
        let output = fleet.ssh_from(node, take, tar.stdout.take().expect("a pipe"));
        assert!(output.status.success(), "{output:?}");
        assert!(tar.wait().is_ok_and(|status| status.success()));
    }
}

/// The simulated library is one file, which is told its version.
pub(crate) const TELL_LIBRARY: &str =
    "gpusimctl machine library_version $(readlink /usr/lib/*-linux-gnu/libnvidia-ml.so.1 | cut -d. -f3-)";

/// The module of the running kernel: its path and its text, for the lab's `modprobe`.
pub(crate) fn module(driver: &Driver) -> (String, String) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut text = format!("version={}\n", driver.version);
    if let Some(fault) = driver.fault {
        let _ = writeln!(text, "fault={fault}");
    }
    (format!("usr/lib/modules/{release}/updates/dkms/nvidia.ko"), text)
}

/// What DKMS would build it from.
pub(crate) fn sources(driver: &Driver) -> (String, String) {
    (format!("usr/src/nvidia-{}/dkms.conf", driver.version), "PACKAGE_NAME=nvidia\n".to_owned())
}

/// The library and the link to it, and the firmware that open modules need.
pub(crate) fn library(driver: &Driver) -> Vec<(String, String)> {
    let folder = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let name = format!("libnvidia-ml.so.{}", driver.version);
    vec![
        (format!("{folder}/{name}"), "-> /usr/lib/gpufleet-lab/libnvidia-ml.so.1".to_owned()),
        (format!("{folder}/libnvidia-ml.so.1"), format!("-> {name}")),
        (format!("usr/lib/firmware/nvidia/{}/gsp_ga10x.bin", driver.version), String::new()),
    ]
}

fn packages(driver: &Driver) -> Vec<Package<'static>> {
    let (version, branch) = (driver.version, driver.branch());
    let exactly = |name: &str| format!("{name} (= {version}-1)");
    let (module, sources) = (module(driver), sources(driver));
    let package = |name: &str, depends: Vec<String>| Package {
        name: name.to_owned(),
        depends: depends.join(", "),
        files: Vec::new(),
        after: "",
    };
    // Without the branch in their names from 590 on, as NVIDIA's.
    let numbered = branch.parse::<u32>().is_ok_and(|branch| branch < 590);
    let all = if numbered { format!("nvidia-open-{branch}") } else { "nvidia-open".to_owned() };
    vec![
        package(&format!("nvidia-driver-pinning-{branch}"), Vec::new()),
        package(&all, vec![exactly("nvidia-kernel-open-dkms"), exactly("libnvidia-ml1")]),
        Package {
            files: if driver.unbuilt { vec![sources] } else { vec![sources, module] },
            ..package("nvidia-kernel-open-dkms", Vec::new())
        },
        Package { files: library(driver), after: TELL_LIBRARY, ..package("libnvidia-ml1", Vec::new()) },
    ]
}
