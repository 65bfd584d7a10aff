//! Packages of drivers for nodes of the lab, in a repository for dnf on each node's own disk.
//!
//! They are shaped like those of NVIDIA's repository for Red Hat's family, in all versions side by side, and where
//! wanted with a stream of the module `nvidia-driver` for each branch and flavour.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::drivers::{TELL_LIBRARY, library, module, sources};
use crate::{Driver, Fleet};

/// Names and files of the packages that the node's own package manager needs, with the Debian packages that bring them.
const TOOLS: &str = "dnf, rpm, createrepo-c and dnf-plugins-core";

/// A repository.
pub struct Rpms {
    dir: tempfile::TempDir,
}

struct Rpm {
    name: &'static str,
    /// Lines of its head, such as what it needs.
    head: String,
    files: Vec<(String, String)>,
    after: &'static str,
}

impl Rpms {
    /// Builds the packages of these drivers, in both flavours.
    ///
    /// # Panics
    /// If this machine has no `rpmbuild` and `createrepo_c`.
    pub fn new(drivers: &[Driver], streams: bool) -> Self {
        let dir = tempfile::Builder::new().prefix("gpufleet-rpms-").tempdir().expect("a folder");
        let all = Self { dir };
        for driver in drivers {
            for package in packages(driver) {
                all.build(driver, &package);
            }
        }
        // What the scripts of packages need is the node's own, of which rpm knows nothing.
        let shell =
            Rpm { name: "shell", head: "Provides: /bin/sh\n".to_owned(), files: Vec::new(), after: "" };
        all.build(&drivers[0], &shell);
        let run = |command: &mut Command| {
            let output = command.output().unwrap_or_else(|error| panic!("{error}: the tests need {TOOLS}"));
            assert!(output.status.success(), "{output:?}");
        };
        std::fs::remove_dir_all(all.path().join("build")).expect("the folder is ours");
        run(Command::new("createrepo_c").arg("--quiet").arg(all.path()));
        if streams {
            let file = all.path().join("modules.yaml");
            std::fs::write(&file, modules(drivers)).expect("a file");
            run(Command::new("modifyrepo_c")
                .args(["--mdtype=modules"])
                .arg(&file)
                .arg(all.path().join("repodata")));
        }
        all
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn build(&self, driver: &Driver, package: &Rpm) {
        let build = self.path().join("build");
        std::fs::create_dir_all(&build).expect("a folder");
        let mut spec = format!(
            "Name: {}\nEpoch: 3\nVersion: {}\nRelease: 1.el9\nSummary: of the tests\nLicense: none\nBuildArch: \
             noarch\n{}%description\nof the tests\n",
            package.name, driver.version, package.head
        );
        let (mut install, mut files) = (String::from("%install\n"), String::from("%files\n"));
        for (path, text) in &package.files {
            let _ = writeln!(install, "mkdir -p \"$(dirname %{{buildroot}}/{path})\"");
            let _ = match text.strip_prefix("-> ") {
                Some(target) => writeln!(install, "ln -s '{target}' %{{buildroot}}/{path}"),
                None => writeln!(install, "printf '%%s\\n' '{}' >%{{buildroot}}/{path}", text.trim_end()),
            };
            let _ = writeln!(files, "/{path}");
        }
        let after =
            if package.after.is_empty() { String::new() } else { format!("%post\n{}\n", package.after) };
        let _ = write!(spec, "{install}{after}{files}");
        let file = build.join("driver.spec");
        std::fs::write(&file, spec).expect("a file");
        let output = Command::new("rpmbuild")
            .args(["--quiet", "--define", &format!("_topdir {}", build.display())])
            .args(["--define", &format!("_rpmdir {}", self.path().display())])
            // Whoever builds is no matter, and nothing is stripped or linked by its content.
            .args(["--define", "_build_id_links none", "--define", "__os_install_post %{nil}", "-bb"])
            .arg(&file)
            .output()
            .unwrap_or_else(|error| panic!("rpmbuild: {error}: the tests need {TOOLS}"));
        assert!(output.status.success(), "{output:?}");
    }

    /// Makes a node one of Red Hat's family, whose dnf knows only this repository.
    ///
    /// # Panics
    /// If the node's dnf does not take it.
    pub fn install(&self, fleet: &Fleet, node: &str) {
        let mut tar = Command::new("tar")
            .arg("-C")
            .arg(self.path())
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()
            .expect("tar is installed");
        // Debian's rpm keeps its database in the home, and its dnf asks for a repository of its own.
        let take = "rm -rf /opt/drivers /etc/yum.repos.d /usr/bin/apt-get /etc/dnf/plugins/local.conf /etc/dnf/modules.d/*.module && mkdir -p /opt/drivers \
                    /etc/yum.repos.d /etc/rpm /etc/dnf/vars && tar -C /opt/drivers -x && echo 9 >/etc/dnf/vars/releasever && \
                    echo '%_dbpath /var/lib/rpm' >/etc/rpm/macros && printf \
                    '[cuda]\\nname=cuda\\nbaseurl=file:///opt/drivers\\ngpgcheck=0\\nmetadata_expire=1\\n' \
                    > /etc/yum.repos.d/cuda.repo && dnf -y -q install shell";
        let output = fleet.ssh_from(node, take, tar.stdout.take().expect("a pipe"));
        assert!(output.status.success(), "{output:?}: the tests need {TOOLS}");
        assert!(tar.wait().is_ok_and(|status| status.success()));
    }
}

fn packages(driver: &Driver) -> Vec<Rpm> {
    let version = driver.version;
    let exactly = |name: &str| format!("Requires: {name} = 3:{version}\n");
    let of_kernel = |name: &'static str, other: &str, license: &str| Rpm {
        name,
        head: format!("Provides: nvidia-kmod = 3:{version}\nConflicts: {other}\n"),
        files: match driver.unbuilt {
            true => vec![sources(driver)],
            false => {
                let (path, text) = module(driver);
                vec![sources(driver), (path, format!("{text}license={license}\n"))]
            }
        },
        after: "",
    };
    let meta = |name, kernel: &str| Rpm {
        name,
        head: exactly(kernel) + &exactly("nvidia-driver-cuda"),
        files: Vec::new(),
        after: "",
    };
    vec![
        meta("nvidia-open", "kmod-nvidia-open-dkms"),
        meta("cuda-drivers", "kmod-nvidia-latest-dkms"),
        of_kernel("kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms", "Dual MIT/GPL"),
        of_kernel("kmod-nvidia-latest-dkms", "kmod-nvidia-open-dkms", "NVIDIA"),
        Rpm {
            name: "nvidia-driver-cuda",
            head: exactly("nvidia-kmod"),
            files: library(driver),
            after: TELL_LIBRARY,
        },
    ]
}

/// Describes the streams: one for each branch and flavour.
fn modules(drivers: &[Driver]) -> String {
    let mut all = String::new();
    for (at, driver) in drivers.iter().enumerate() {
        let (version, branch) = (driver.version, driver.branch());
        for (stream, main, kernel) in [
            (format!("{branch}-open"), "nvidia-open", "kmod-nvidia-open-dkms"),
            (format!("{branch}-dkms"), "cuda-drivers", "kmod-nvidia-latest-dkms"),
        ] {
            let _ = write!(
                all,
                "---\ndocument: modulemd\nversion: 2\ndata:\n  name: nvidia-driver\n  stream: \"{stream}\"\n  version: {at}\n  \
                 context: c{at}\n  arch: {}\n  summary: of the tests\n  description: of the tests\n  license:\n    module: \
                 [MIT]\n  profiles:\n    default:\n      rpms: [{main}]\n  artifacts:\n    rpms:\n",
                std::env::consts::ARCH
            );
            for name in [main, kernel, "nvidia-driver-cuda"] {
                let _ = writeln!(all, "    - {name}-3:{version}-1.el9.noarch");
            }
            all.push_str("...\n");
        }
    }
    all
}
