//! What a run was given: files, inventory, variables. A resume must find it unchanged.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::Path,
    sync::Arc,
};

use gpufleet::{event::RunStarted, inventory::Inventory};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{error::CommandError, loading::Loaded, trust};

/// What is said of inventories as a whole, and of `-e`.
const VARIABLES: &str = "the inventory's hosts and their variables";
const EXTRA: &str = "the variables of the command line";

/// SHA-256 of each part, in hexadecimal digits.
pub struct Inputs(BTreeMap<String, String>);

impl Inputs {
    pub fn of(loaded: &Loaded) -> Self {
        let mut parts: BTreeMap<String, Sha256> = BTreeMap::new();
        for text in &loaded.program.sources {
            parts.entry(text.name().to_owned()).or_default().update(text.text().as_bytes());
        }
        let variables = parts.entry(VARIABLES.to_owned()).or_default();
        let mut seen: Vec<*const Inventory> = Vec::new();
        for inventory in std::iter::once(&loaded.inventory).chain(&loaded.of_plays) {
            if seen.contains(&Arc::as_ptr(inventory)) {
                continue;
            }
            seen.push(Arc::as_ptr(inventory));
            for host in &loaded.hosts {
                variables.update(host.as_bytes());
                if let Some(vars) = inventory.host_vars(host) {
                    variables.update(Value::Object(vars.merged()).to_string().as_bytes());
                }
            }
        }
        let extra = parts.entry(EXTRA.to_owned()).or_default();
        extra.update(Value::Object(loaded.extra.clone()).to_string().as_bytes());
        Self(parts.into_iter().map(|(name, hash)| (name, digits(hash))).collect())
    }

    /// One for all of them.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for (name, part) in &self.0 {
            hash.update(name.as_bytes());
            hash.update(part.as_bytes());
        }
        digits(hash)
    }

    pub fn into_parts(self) -> BTreeMap<String, String> {
        self.0
    }

    /// # Errors
    /// They are not those that the run began with; says which.
    pub fn prove_same(&self, began: &RunStarted) -> Result<(), CommandError> {
        if began.digest == self.digest() {
            return Ok(());
        }
        let names: BTreeSet<&String> = self.0.keys().chain(began.inputs.keys()).collect();
        let others: Vec<String> =
            names
                .into_iter()
                .filter(|name| !began.inputs.is_empty() && self.0.get(*name) != began.inputs.get(*name))
                .map(|name| {
                    if [VARIABLES, EXTRA].contains(&name.as_str()) {
                        name.clone()
                    } else {
                        format!("`{name}`")
                    }
                })
                .collect();
        let what = match others.as_slice() {
            [] => "the playbooks, the inventory or variables are not what they were".to_owned(),
            [one] => format!("{one} changed: not what it was"),
            several => format!("{} changed: not what they were", several.join(", ")),
        };
        Err(CommandError::user(format!("{what} when run {} began", began.run_id)).hint(
            "put back what changed to go on with it, or begin a new run: what is as declared already is left alone; \
             what this one left drained, `gpufleet adopt` with --run takes over",
        ))
    }
}

/// SHA-256 of gpufleet itself and of the node files in it; what cannot be read is left out.
pub fn programs(cache_dir: Option<&Path>) -> BTreeMap<String, String> {
    let carried = [("x86_64", &gpufleet_payload::NODE), ("aarch64", &gpufleet_payload::NODE_AARCH64)];
    let carried = carried.into_iter().filter(|(_, file)| file.size > 0);
    let mut all: BTreeMap<String, String> =
        carried.map(|(machine, file)| (format!("node file {machine}"), file.sha256.to_owned())).collect();
    // Why not by its name: the file of that name may be another one by now.
    if let Ok(own) = File::open("/proc/self/exe").and_then(|own| digest_of_own(own, cache_dir)) {
        all.insert("gpufleet".to_owned(), own);
    }
    all
}

/// Returns the digest of gpufleet's own file. A cache that only this user can write to keeps it, because hashing takes longer
/// than many a run; everything that the kernel tells of the file must be as it was then.
fn digest_of_own(own: File, cache_dir: Option<&Path>) -> io::Result<String> {
    let Some(cache_dir) = cache_dir.filter(|folder| trust::is_private(folder)) else { return digest_of(own) };
    let of = own.metadata()?;
    let identity = format!(
        "{} {} {} {}.{} {}.{}",
        of.dev(),
        of.ino(),
        of.size(),
        of.mtime(),
        of.mtime_nsec(),
        of.ctime(),
        of.ctime_nsec()
    );
    let kept = cache_dir.join("program");
    if let Ok(text) = fs::read_to_string(&kept)
        && let Some((known, digest)) = text.trim_end().rsplit_once(' ')
        && known == identity
    {
        return Ok(digest.to_owned());
    }
    let digest = digest_of(own)?;
    // A failure costs time only: the next run hashes again.
    let _ = keep(&kept, &format!("{identity} {digest}\n"));
    Ok(digest)
}

fn keep(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

fn digest_of(mut file: File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut part = vec![0; 1 << 20];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(digits(hash)),
            length => hash.update(part.get(..length).unwrap_or_default()),
        }
    }
}

fn digits(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
