//! Which packages a driver is, by whose packages they are.
//!
//! Pure. Sources: the names of packages in Ubuntu's and Debian's archives and in NVIDIA's repositories; NVIDIA, Driver
//! Installation Guide (from branch 590 on, NVIDIA's packages have no branch in their names, and `nvidia-driver-pinning`
//! keeps the branch).

use gpufleet_protocol::tasks::{DriverFlavour, DriverSource};

/// First branch without its number in the names of NVIDIA's packages.
pub const UNNUMBERED: u32 = 590;

/// Names of packages that belong to a driver begin with these.
const DRIVER: [&str; 30] = [
    "cuda-drivers",
    "firmware-nvidia",
    "libcuda1",
    "libnvcuvid1",
    "libnvidia-",
    "libnvsdm",
    "linux-modules-nvidia-",
    "linux-objects-nvidia-",
    "linux-signatures-nvidia-",
    "nvidia-alternative",
    "nvidia-compute-utils",
    "nvidia-cuda-mps",
    "nvidia-dkms",
    "nvidia-driver",
    "nvidia-egl",
    "nvidia-fabric-manager",
    "nvidia-fabricmanager",
    "nvidia-firmware",
    "nvidia-headless",
    "nvidia-imex",
    "nvidia-installer-cleanup",
    "nvidia-kernel",
    "nvidia-legacy-check",
    "nvidia-modprobe",
    "nvidia-open",
    "nvidia-persistenced",
    "nvidia-settings",
    "nvidia-smi",
    "nvidia-support",
    "nvidia-utils",
];
/// The same, of packages that only Red Hat's family has.
const DRIVER_RPM: [&str; 7] = [
    "akmod-nvidia",
    "kmod-nvidia",
    "nvidia-kmod",
    "nvidia-libXNVCtrl",
    "nvidia-xconfig",
    "xorg-x11-drv-nvidia",
    "xorg-x11-nvidia",
];
/// How Debian's packages of the open modules begin. Source: packages.debian.org, `nvidia-open-kernel-dkms` and `-support`.
const DEBIAN_OPEN: &str = "nvidia-open-kernel-";
const NO_DRIVER: &str = "libnvidia-container";
/// The former name of the fabric manager in Red Hat's family.
const FABRIC_MANAGER: &str = "nvidia-fabric-manager";
/// Packages that must be of the driver's very version, and are installed only where something asks for them.
const COMPANIONS: [&str; 4] = ["nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq", "libnvsdm"];

/// Whether a package belongs to the driver.
pub fn is_driver(name: &str) -> bool {
    !name.starts_with(NO_DRIVER)
        && (DRIVER.iter().chain(&DRIVER_RPM).any(|prefix| name.starts_with(prefix))
            || name.starts_with("xserver-xorg-video-nvidia"))
}

/// Whether a package must be of the driver's very version.
pub fn is_companion(name: &str) -> bool {
    COMPANIONS.iter().chain(&[FABRIC_MANAGER]).any(|stem| name.starts_with(stem))
}

/// Returns under which other names repositories of Red Hat's family may have a companion of another version: the fabric
/// manager was renamed, and some names end with a branch.
pub fn other_names(name: &str, branch: Option<u32>) -> Vec<String> {
    let is_branch = |end: &str| end.len() == 3 && end.bytes().all(|byte| byte.is_ascii_digit());
    let stem = name.rsplit_once('-').filter(|(_, end)| is_branch(end)).map_or(name, |(stem, _)| stem);
    let renamed = match stem.contains(FABRIC_MANAGER) {
        true => stem.replace(FABRIC_MANAGER, COMPANIONS[0]),
        false => stem.replace(COMPANIONS[0], FABRIC_MANAGER),
    };
    let stems = [renamed, stem.to_owned()];
    let numbered = stems.iter().filter_map(|stem| Some(format!("{stem}-{}", branch?)));
    let mut all: Vec<String> = stems.iter().cloned().chain(numbered).filter(|other| other != name).collect();
    all.dedup();
    all
}

/// Whether a package builds modules on the node, which are then signed with its own key.
pub fn builds(name: &str) -> bool {
    is_driver(name) && (name.contains("dkms") || name.starts_with("akmod"))
}

/// Returns the driver's version in the version of a package: `580.159.04` of `1:580.159.04-0ubuntu1`.
pub fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version.split(['-', '+', '~']).next().unwrap_or(version)
}

/// What packages are chosen by.
#[derive(Clone, Debug)]
pub struct Wish<'a> {
    pub source: DriverSource,
    pub branch: u32,
    pub flavour: DriverFlavour,
    /// Release of the running kernel, such as `6.8.0-45-generic`.
    pub kernel: &'a str,
    /// Names of the installed packages of a driver.
    pub installed: &'a [String],
}

/// One way to install a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipe {
    pub packages: Vec<String>,
    /// Whether the modules are built on the node, and so signed with its own key.
    pub builds: bool,
    /// Whether a package has the modules of the running kernel.
    pub of_kernel: bool,
    /// The stream of dnf's module that has the packages.
    pub stream: Option<String>,
    /// Repositories whose packages may be of another stream than the enabled one.
    pub repositories: Vec<String>,
}

/// Returns whose packages are installed, if a driver's are.
pub fn installed_source(installed: &[String]) -> Option<DriverSource> {
    let has = |prefix: &str| installed.iter().any(|name| name.starts_with(prefix));
    let any = |prefixes: &[&str]| prefixes.iter().any(|prefix| has(prefix));
    // Debian's `nvidia-open-kernel-dkms` is NVIDIA's `nvidia-kernel-open-dkms`.
    let is_open = |name: &String| name.starts_with("nvidia-open") && !name.starts_with(DEBIAN_OPEN);
    if installed.iter().any(is_open) || any(&["cuda-drivers", "nvidia-kernel-open-"]) {
        Some(DriverSource::Nvidia)
    } else if any(&["nvidia-headless-", "nvidia-utils-", "linux-modules-nvidia-", "nvidia-driver-5"]) {
        Some(DriverSource::Ubuntu)
    } else if any(&["nvidia-kernel-dkms", DEBIAN_OPEN, "nvidia-kernel-support"]) {
        Some(DriverSource::Debian)
    } else {
        None
    }
}

/// Returns the ways to install a driver, the preferred one first.
pub fn recipes(wish: &Wish<'_>) -> Vec<Recipe> {
    let sources = match wish.source {
        DriverSource::Auto => match installed_source(wish.installed) {
            Some(source) => vec![source],
            None => vec![DriverSource::Ubuntu, DriverSource::Nvidia, DriverSource::Debian],
        },
        source => vec![source],
    };
    sources.into_iter().flat_map(|source| of_source(source, wish)).collect()
}

fn of_source(source: DriverSource, wish: &Wish<'_>) -> Vec<Recipe> {
    let Wish { branch, flavour, .. } = *wish;
    let open = flavour.is_open();
    match source {
        DriverSource::Auto => Vec::new(),
        DriverSource::Ubuntu => {
            let server = matches!(flavour, DriverFlavour::Server | DriverFlavour::ServerOpen);
            let branch = format!("{branch}{}", if server { "-server" } else { "" });
            let full = format!("{branch}{}", if open { "-open" } else { "" });
            let companions = companions(wish, &branch);
            let with = |mut packages: Vec<String>, builds: bool| {
                packages.extend(companions.iter().cloned());
                Recipe { packages, builds, of_kernel: !builds, ..Recipe::default() }
            };
            let utils = format!("nvidia-utils-{branch}");
            let modules = |of: &str| format!("linux-modules-nvidia-{full}-{of}");
            // Those of the running kernel, and what brings those of the kernels after it.
            let signed = |more: &[String]| {
                let headless = format!("nvidia-headless-no-dkms-{full}");
                let mut all = vec![headless, modules(wish.kernel), utils.clone()];
                all.extend_from_slice(more);
                with(all, false)
            };
            vec![
                signed(&[modules(kernel_flavour(wish.kernel))]),
                signed(&[]),
                with(vec![format!("nvidia-headless-{full}"), utils.clone()], true),
            ]
        }
        DriverSource::Nvidia => {
            let name = if open { "nvidia-open" } else { "cuda-drivers" };
            let (mut packages, suffix) = match branch < UNNUMBERED {
                true => (vec![format!("{name}-{branch}")], branch.to_string()),
                false => (vec![format!("nvidia-driver-pinning-{branch}"), name.to_owned()], String::new()),
            };
            packages.extend(companions(wish, &suffix));
            vec![Recipe { packages, builds: true, ..Recipe::default() }]
        }
        DriverSource::Debian => {
            let kernel = if open { "nvidia-open-kernel-dkms" } else { "nvidia-kernel-dkms" };
            let packages = [kernel, "libcuda1", "libnvidia-ml1", "nvidia-smi"].map(str::to_owned);
            vec![Recipe { packages: packages.to_vec(), builds: true, ..Recipe::default() }]
        }
    }
}

/// Returns the names, for another branch, of installed packages that have to go with the driver.
fn companions(wish: &Wish<'_>, suffix: &str) -> Vec<String> {
    let is = |stem: &&&str| wish.installed.iter().any(|name| name.starts_with(**stem));
    let name = |stem: &&str| if suffix.is_empty() { (*stem).to_owned() } else { format!("{stem}-{suffix}") };
    COMPANIONS.iter().filter(is).map(name).collect()
}

/// Returns `generic` of `6.8.0-45-generic`: which of Ubuntu's kernels it is.
fn kernel_flavour(release: &str) -> &str {
    let mut parts = release.splitn(3, '-');
    parts.nth(2).unwrap_or("generic")
}

/// Returns the text of an apt preferences file that lets only these versions of a driver be chosen.
///
/// Why above 1000: packages of a newer branch must become older ones.
pub fn preferences(version: Option<&str>, branch: u32) -> String {
    let names: Vec<String> = DRIVER.iter().map(|prefix| format!("{prefix}*")).collect();
    let versions = match version {
        Some(version) => {
            vec![version.to_owned(), format!("{version}-*"), format!("*:{version}"), format!("*:{version}-*")]
        }
        None => vec![format!("{branch}.*"), format!("*:{branch}.*")],
    };
    let stanza = |version: &String| {
        format!("Package: {}\nPin: version {version}\nPin-Priority: 1001\n\n", names.join(" "))
    };
    versions.iter().map(stanza).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish<'a>(
        source: DriverSource,
        branch: u32,
        flavour: DriverFlavour,
        installed: &'a [String],
    ) -> Wish<'a> {
        Wish { source, branch, flavour, kernel: "6.8.0-45-generic", installed }
    }

    fn names(wish: &Wish<'_>) -> Vec<Vec<String>> {
        recipes(wish).into_iter().map(|recipe| recipe.packages).collect()
    }

    #[test]
    fn ubuntus_modules_are_of_the_running_kernel() {
        let all = names(&wish(DriverSource::Ubuntu, 580, DriverFlavour::ServerOpen, &[]));
        assert_eq!(
            all,
            [
                vec![
                    "nvidia-headless-no-dkms-580-server-open",
                    "linux-modules-nvidia-580-server-open-6.8.0-45-generic",
                    "nvidia-utils-580-server",
                    "linux-modules-nvidia-580-server-open-generic",
                ],
                vec![
                    "nvidia-headless-no-dkms-580-server-open",
                    "linux-modules-nvidia-580-server-open-6.8.0-45-generic",
                    "nvidia-utils-580-server",
                ],
                vec!["nvidia-headless-580-server-open", "nvidia-utils-580-server"],
            ]
        );
    }

    #[test]
    fn nvidias_names_lose_their_branch_with_590() {
        let of = |branch, flavour| names(&wish(DriverSource::Nvidia, branch, flavour, &[]));
        assert_eq!(of(580, DriverFlavour::Open), [["nvidia-open-580"]]);
        assert_eq!(of(580, DriverFlavour::Proprietary), [["cuda-drivers-580"]]);
        assert_eq!(of(595, DriverFlavour::Open), [["nvidia-driver-pinning-595", "nvidia-open"]]);
    }

    #[test]
    fn the_installed_packages_say_whose_they_are_and_what_goes_along() {
        let installed =
            ["nvidia-headless-no-dkms-570-server-open", "nvidia-fabricmanager-570"].map(str::to_owned);
        let all = names(&wish(DriverSource::Auto, 580, DriverFlavour::ServerOpen, &installed));
        assert!(
            all.iter().all(|names| names.last().unwrap() == "nvidia-fabricmanager-580-server"),
            "{all:?}"
        );
        assert_eq!(installed_source(&["nvidia-open-570".to_owned()]), Some(DriverSource::Nvidia));
        assert_eq!(installed_source(&["nvidia-container-toolkit".to_owned()]), None);
    }

    #[test]
    fn debians_open_modules_have_a_name_of_their_own() {
        let of = |flavour, installed: &[String]| names(&wish(DriverSource::Debian, 550, flavour, installed));
        assert_eq!(of(DriverFlavour::Open, &[])[0][0], "nvidia-open-kernel-dkms");
        assert_eq!(of(DriverFlavour::Proprietary, &[])[0][0], "nvidia-kernel-dkms");
        for (name, source) in [
            ("nvidia-open-kernel-dkms", DriverSource::Debian),
            ("nvidia-open-kernel-support", DriverSource::Debian),
            ("nvidia-kernel-dkms", DriverSource::Debian),
            ("nvidia-kernel-open-dkms", DriverSource::Nvidia),
            ("nvidia-open", DriverSource::Nvidia),
        ] {
            assert_eq!(installed_source(&[name.to_owned()]), Some(source), "{name}");
        }
        assert!(is_driver("nvidia-open-kernel-dkms") && builds("nvidia-open-kernel-dkms"));
    }

    #[test]
    fn only_packages_of_the_driver_are_ours() {
        for name in ["libnvidia-compute-580", "nvidia-utils-580:i386", "linux-modules-nvidia-580-generic"] {
            assert!(is_driver(name), "{name}");
        }
        for name in ["libnvidia-container1", "nvidia-container-toolkit", "nvidia-cuda-toolkit", "slurmd"] {
            assert!(!is_driver(name), "{name}");
        }
        assert_eq!(upstream("1:580.159.04-0ubuntu0.24.04.1"), "580.159.04");
        assert_eq!(upstream("535.247.01~deb12u1"), "535.247.01");
    }
}
