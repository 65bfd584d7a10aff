//! What the containers that hold GPUs want of the driver, by the environment that their images bring.
//!
//! Images of CUDA say their version in `CUDA_VERSION`, and what they need in `NVIDIA_REQUIRE_CUDA`, which the container
//! toolkit judges when a container starts. The text is the container's own: it is bounded, and only shown where it is a
//! version. Source: NVIDIA, container toolkit, "driver capabilities and constraints"; images of nvidia/cuda.

use std::{collections::BTreeMap, fs, io, io::Read as _};

use crate::{
    gpu::clients::{self, CONTAINERS, Places},
    os::roots::Roots,
};

/// Largest environment that is read, in bytes.
const MOST_BYTES: u64 = 256 * 1024;
/// Most containers that are judged.
const MOST_CONTAINERS: usize = 128;
/// Longest text of a requirement, and most alternatives in it.
const LONGEST: usize = 8192;
const MOST_ALTERNATIVES: usize = 256;

/// What one container wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wants {
    /// `Docker container 0123456789ab`, `pod …`.
    pub container: String,
    /// The version of CUDA in its image.
    pub cuda: Option<(u32, u32)>,
    /// What it needs, as the toolkit reads it.
    pub requires: Option<Requirement>,
    /// Why that is not known.
    pub unread: Option<String>,
}

/// What was found of the containers that hold GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub containers: Vec<Wants>,
    /// Why there may be others.
    pub unseen: Vec<String>,
    /// What is there and was not judged.
    pub unjudged: Vec<String>,
}

/// Whether something is met; `None` if it is not known.
pub type Met = Option<bool>;

/// Alternatives, of each of which all conditions have to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement(Vec<Vec<Condition>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Cuda(Compared, Vec<u32>),
    Driver(Compared, Vec<u32>),
    /// A brand or an architecture, which is not read here.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    AtLeast,
    AtMost,
    Not,
    Same,
    Below,
    Above,
}

impl Compared {
    const SIGNS: [(&str, Self); 6] = [
        (">=", Self::AtLeast),
        ("<=", Self::AtMost),
        ("!=", Self::Not),
        ("=", Self::Same),
        ("<", Self::Below),
        (">", Self::Above),
    ];

    fn holds(self, found: &[u32], wanted: &[u32]) -> bool {
        match self {
            Self::AtLeast => found >= wanted,
            Self::AtMost => found <= wanted,
            Self::Not => found != wanted,
            Self::Same => found == wanted,
            Self::Below => found < wanted,
            Self::Above => found > wanted,
        }
    }
}

/// Returns the numbers of a version; `None` for any other text.
pub fn version(text: &str) -> Option<Vec<u32>> {
    if text.is_empty() || text.len() > 32 {
        return None;
    }
    text.split('.').map(|part| part.parse().ok()).collect()
}

impl Requirement {
    /// Reads `cuda>=12.4 brand=tesla,driver>=535,driver<536`: words are alternatives, commas join conditions.
    fn of(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let condition = |text: &str| {
            let signs = Compared::SIGNS.iter();
            // The first sign in the text, the longer one of two at the same place.
            let (at, sign, compared) = signs
                .filter_map(|(sign, compared)| Some((text.find(sign)?, *sign, *compared)))
                .min_by_key(|(at, sign, _)| (*at, std::cmp::Reverse(sign.len())))?;
            let (name, value) = (text.get(..at)?, text.get(at + sign.len()..)?);
            Some(match name {
                "cuda" => Condition::Cuda(compared, version(value)?),
                "driver" => Condition::Driver(compared, version(value)?),
                _ => Condition::Other,
            })
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        if words.is_empty() || words.len() > MOST_ALTERNATIVES {
            return None;
        }
        let alternatives = words.into_iter().map(|word| word.split(',').map(condition).collect());
        alternatives.collect::<Option<Vec<Vec<Condition>>>>().map(Self)
    }

    /// Whether this driver, which knows this CUDA, meets it.
    pub fn met(&self, driver: &str, cuda: (u32, u32)) -> Met {
        let driver = version(driver)?;
        let cuda = [cuda.0, cuda.1];
        let holds = |condition: &Condition| match condition {
            Condition::Cuda(compared, wanted) => Some(compared.holds(&cuda, wanted)),
            Condition::Driver(compared, wanted) => Some(compared.holds(&driver, wanted)),
            Condition::Other => None,
        };
        let all = |conditions: &Vec<Condition>| {
            let found: Vec<Met> = conditions.iter().map(holds).collect();
            match () {
                () if found.contains(&Some(false)) => Some(false),
                () if found.contains(&None) => None,
                () => Some(true),
            }
        };
        let found: Vec<Met> = self.0.iter().map(all).collect();
        match () {
            () if found.contains(&Some(true)) => Some(true),
            () if found.contains(&None) => None,
            () => Some(false),
        }
    }
}

/// What an environment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said {
    cuda: Option<(u32, u32)>,
    requires: Option<Requirement>,
    /// A variable whose text is none that images write.
    odd: Option<&'static str>,
}

fn said(environment: &[u8]) -> Said {
    let value = |name: &str| {
        let mut words =
            environment.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).map(str::trim)
    };
    let mut said = Said::default();
    if let Some(text) = value("CUDA_VERSION").filter(|text| !text.is_empty()) {
        match version(text).as_deref() {
            Some([major, minor, ..]) => said.cuda = Some((*major, *minor)),
            _ => said.odd = Some("CUDA_VERSION"),
        }
    }
    let disabled = value("NVIDIA_DISABLE_REQUIRE").is_some_and(|text| matches!(text, "1" | "true" | "True"));
    if let Some(text) = value("NVIDIA_REQUIRE_CUDA").filter(|text| !text.is_empty() && !disabled) {
        said.requires = Requirement::of(text);
        if said.requires.is_none() {
            said.odd = Some("NVIDIA_REQUIRE_CUDA");
        }
    }
    said
}

fn environment(roots: &Roots, pid: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(roots.proc(&format!("{pid}/environ")))?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    // Not its beginning, which may end within a version.
    match bytes.len() as u64 > MOST_BYTES {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(bytes),
    }
}

/// Returns what the containers want that hold GPUs now.
pub fn wants(roots: &Roots) -> Found {
    let places = Places { proc: roots.proc(""), etc: roots.etc("") };
    let scan = clients::scan(&places, &[std::process::id()], &[], &BTreeMap::new(), None);
    let is_container = |owner: &str| {
        owner.starts_with("pod ") || CONTAINERS.iter().any(|(_, words)| owner.starts_with(words))
    };
    let mut found: BTreeMap<String, Wants> = BTreeMap::new();
    let mut unjudged = Vec::new();
    for client in scan.workloads() {
        let Some(owner) = client.unit.clone().filter(|owner| is_container(owner)) else { continue };
        if found.len() >= MOST_CONTAINERS && !found.contains_key(&owner) {
            unjudged
                .push(format!("more than {MOST_CONTAINERS} containers hold GPUs, and no more are judged"));
            break;
        }
        let wants = found.entry(owner.clone()).or_insert_with(|| Wants {
            container: owner,
            cuda: None,
            requires: None,
            unread: None,
        });
        match environment(roots, client.pid) {
            Ok(bytes) => {
                let said = said(&bytes);
                // The newest of several, as in a container whose user installed another.
                wants.cuda = wants.cuda.max(said.cuda);
                wants.requires = said.requires.or(wants.requires.take());
                if let Some(name) = said.odd {
                    wants.unread = Some(format!("its {name} is none that images of CUDA write"));
                }
            }
            // It has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                wants.unread =
                    Some(format!("the environment of process {} cannot be read: {error}", client.pid));
            }
        }
    }
    Found { containers: found.into_values().collect(), unseen: scan.unknown, unjudged }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tasks::testing::Bench;

    /// A process of the container with this number.
    fn process(bench: &Bench, pid: u32, container: u32, environment: &[u8]) {
        let folder = format!("proc/{pid}");
        bench.write(&format!("{folder}/comm"), "python\n");
        bench.write(&format!("{folder}/cgroup"), &format!("0::/docker/{container:012x}{:052x}\n", 0));
        bench.write(&format!("{folder}/fd/x"), "");
        std::os::unix::fs::symlink("/dev/nvidia0", bench.path(&folder).join("fd/3")).unwrap();
        fs::write(bench.path(&folder).join("environ"), environment).unwrap();
    }

    #[test]
    fn containers_and_environments_beyond_the_bounds_are_told() {
        let most = u32::try_from(MOST_CONTAINERS).unwrap();
        let bench = Bench::new();
        for number in 0..most {
            process(&bench, 100 + number, number, b"CUDA_VERSION=12.4\0");
        }
        let found = wants(&bench.roots);
        assert_eq!((found.containers.len(), found.unjudged.len()), (MOST_CONTAINERS, 0));
        process(&bench, 100 + most, most, b"");
        assert_eq!(
            wants(&bench.roots).unjudged,
            ["more than 128 containers hold GPUs, and no more are judged"]
        );

        let bench = Bench::new();
        let mut long = vec![b'x'; usize::try_from(MOST_BYTES).unwrap()];
        process(&bench, 100, 1, &long);
        assert_eq!(wants(&bench.roots).containers[0].unread, None);
        long.extend(b"\0CUDA_VERSION=99.9");
        process(&bench, 101, 1, &long);
        let found = &wants(&bench.roots).containers[0];
        assert_eq!(found.cuda, None);
        assert!(found.unread.as_ref().is_some_and(|why| why.contains("process 101")), "{found:?}");
    }

    #[test]
    fn requirements_are_read_as_the_toolkit_reads_them() {
        let met = |text: &str, driver: &str, cuda| Requirement::of(text).unwrap().met(driver, cuda);
        let image = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=tesla,driver>=535,driver<536";
        assert_eq!(met(image, "550.54.14", (12, 4)), Some(true));
        assert_eq!(met(image, "535.104.05", (12, 2)), None, "it depends on the brand, which is not read");
        assert_eq!(met(image, "545.23.06", (12, 3)), Some(false));
        assert_eq!(met("cuda>=11.0,driver!=450.36", "450.36", (11, 0)), Some(false));
        assert_eq!(met("driver<536", "535.104.05", (12, 2)), Some(true));
        for odd in ["", "cuda", "cuda>=", "cuda>=12.x", "cuda>=99999999999", "cuda>=12.4 driver"] {
            assert_eq!(Requirement::of(odd), None, "{odd}");
        }
    }

    #[test]
    fn an_environment_says_what_its_image_wants() {
        let said = said(b"PATH=/bin\0CUDA_VERSION=12.4.1\0NVIDIA_REQUIRE_CUDA=cuda>=12.4\0");
        assert_eq!(said.cuda, Some((12, 4)));
        assert!(said.requires.is_some() && said.odd.is_none());
        let off = super::said(b"NVIDIA_REQUIRE_CUDA=cuda>=12.4\0NVIDIA_DISABLE_REQUIRE=true\0");
        assert_eq!((off.requires, off.odd), (None, None));
        assert_eq!(super::said(b"CUDA_VERSION=$(reboot)\0").odd, Some("CUDA_VERSION"));
        assert_eq!(super::said(b"XCUDA_VERSION=12.4\0\xff\0"), Said::default());
    }

    proptest! {
        #[test]
        fn any_environment_ends(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut all = b"CUDA_VERSION=".to_vec();
            all.extend(&bytes);
            all.extend(b"\0NVIDIA_REQUIRE_CUDA=");
            all.extend(&bytes);
            let said = said(&all);
            if let Some(requires) = said.requires {
                requires.met("580.1", (13, 0));
            }
        }
    }
}
