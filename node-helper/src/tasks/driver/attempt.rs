//! What a node notes before its driver is replaced, so that it can go back, also after a reboot or a killed helper.

use serde::{Deserialize, Serialize};

use crate::{declare::Trouble, state::Record};

const KEY: &str = "driver";

/// Which packages of a driver were there before a package manager that was interrupted was helped on: it may remove some of
/// them, and their names tell whose the others are and what goes along.
pub mod mended {
    use super::{Record, Trouble};

    const KEY: &str = "driver-mended";

    fn failed(error: &impl ToString) -> Trouble {
        Trouble::io(error.to_string())
    }

    /// # Errors
    /// If the record cannot be read.
    pub fn read(record: &Record) -> Result<Vec<String>, Trouble> {
        let value = record.get(KEY).map_err(|error| failed(&error))?;
        let names = value.map(serde_json::from_value).transpose().map_err(|error| failed(&error))?;
        Ok(names.unwrap_or_default())
    }

    /// # Errors
    /// If it cannot be written.
    pub fn add(record: &Record, names: impl Iterator<Item = String>) -> Result<(), Trouble> {
        let mut all = read(record)?;
        all.extend(names);
        all.sort();
        all.dedup();
        record.put(KEY, all.into()).map_err(|error| failed(&error))
    }

    /// # Errors
    /// If it cannot be removed.
    pub fn forget(record: &Record) -> Result<(), Trouble> {
        match read(record)?.is_empty() {
            true => Ok(()),
            false => record.remove(KEY).map_err(|error| failed(&error)),
        }
    }
}

/// A package of the former driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    pub name: String,
    pub version: String,
    /// Its package file, if it could be had.
    pub file: Option<String>,
}

/// An attempt to replace the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The new version.
    pub wanted: String,
    /// The version that ran before.
    pub before: Option<String>,
    /// The boot in which the packages were replaced.
    pub boot_id: String,
    /// What the packages were.
    pub former: Vec<Former>,
    /// Packages that were not there before.
    pub added: Vec<String>,
    /// Packages that were held.
    pub held: Vec<String>,
    /// Modules that were loaded.
    pub modules: Vec<String>,
    /// The stream of dnf's module that was enabled.
    #[serde(default)]
    pub stream: Option<String>,
}

impl Attempt {
    /// Returns the attempt that has not come to its end.
    ///
    /// # Errors
    /// If the record cannot be read.
    pub fn read(record: &Record) -> Result<Option<Self>, Trouble> {
        let value = record.get(KEY).map_err(|error| Trouble::io(error.to_string()))?;
        value.map(serde_json::from_value).transpose().map_err(|error| {
            Trouble::io(format!("the note of the last change of the driver is damaged: {error}"))
        })
    }

    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, record: &Record) -> Result<(), Trouble> {
        let value = serde_json::to_value(self).map_err(|error| Trouble::io(error.to_string()))?;
        record.put(KEY, value).map_err(|error| Trouble::io(error.to_string()))
    }

    /// # Errors
    /// If it cannot be removed.
    pub fn forget(record: &Record) -> Result<(), Trouble> {
        record.remove(KEY).map_err(|error| Trouble::io(error.to_string()))
    }

    /// Takes over from an attempt that has not come to its end what the node was before that.
    pub fn continues(&mut self, earlier: &Self) {
        let known = |name: &str| {
            earlier.added.iter().any(|other| other == name)
                || earlier.former.iter().any(|one| one.name == name)
        };
        self.former.retain(|one| !known(&one.name));
        self.former.extend(earlier.former.iter().cloned());
        self.added.retain(|name| !known(name));
        self.added.extend(earlier.added.iter().cloned());
        self.before.clone_from(&earlier.before);
        self.held.clone_from(&earlier.held);
        self.modules.clone_from(&earlier.modules);
        self.stream.clone_from(&earlier.stream);
    }

    /// Whether a package was of this version before.
    pub fn was(&self, name: &str, version: &str) -> bool {
        self.former.iter().any(|one| one.name == name && one.version == version)
    }

    /// The names of all packages that it replaces or brings.
    pub fn names(&self) -> Vec<String> {
        self.former.iter().map(|one| &one.name).chain(&self.added).cloned().collect()
    }

    /// Whether all former packages can be had.
    pub fn can_go_back(&self) -> bool {
        self.former.iter().all(|former| former.file.is_some())
    }
}
