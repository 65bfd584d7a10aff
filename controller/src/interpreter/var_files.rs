//! `include_vars`: which files of variables are read, and what they become.

use std::sync::Arc;

use gpufleet_protocol::tasks::{HashBehaviour, IncludeVars};

use super::files::FileKind;
use super::prepare::{Deed, Stop, Surroundings, fail, variables};
use crate::template::{self, Scope, Value};

impl Surroundings<'_> {
    pub(super) fn include_vars(&self, include: &IncludeVars, scope: &Arc<Scope>) -> Result<Deed, Stop> {
        let names = match (&include.file, &include.dir) {
            (Some(file), _) => vec![file.clone()],
            (None, Some(dir)) => self.files_of_variables(include, dir).map_err(fail)?,
            (None, None) => Vec::new(),
        };
        let mut facts: Vec<(Arc<str>, Value)> = Vec::new();
        for name in names {
            let file = self.file(FileKind::Vars, &name)?;
            facts.extend(variables(&file).map_err(fail)?);
        }
        if let Some(name) = &include.name {
            facts = vec![(Arc::from(name.as_str()), Value::map(facts))];
        }
        if include.hash_behaviour == Some(HashBehaviour::Merge) {
            for (name, value) in &mut facts {
                // Why no error: a variable that is not there yet is the file's alone.
                if let Ok(known) = template::evaluate(name, scope) {
                    *value = merged(&known, value);
                }
            }
        }
        Ok(Deed::SetFacts { facts, lasting: false })
    }

    /// Those of a folder, in the order in which they count.
    fn files_of_variables(&self, include: &IncludeVars, folder: &str) -> Result<Vec<String>, String> {
        let mut files = self.files.list(FileKind::Vars, &self.search, folder, include.depth)?;
        let matches = |name: &str, pattern: &str| {
            template::is_found(pattern, name).map_err(|why| format!("`{pattern}`: {why}"))
        };
        let mut unknown = None;
        let mut failed = None;
        files.retain(|path| {
            let name = path.rsplit('/').next().unwrap_or_default();
            let wanted = || -> Result<bool, String> {
                if let Some(pattern) = &include.files_matching
                    && !matches(name, pattern)?
                {
                    return Ok(false);
                }
                for pattern in &include.ignore_files {
                    if matches(name, &format!("(?:{pattern})$"))? {
                        return Ok(false);
                    }
                }
                Ok(true)
            };
            match wanted() {
                Ok(true) => {}
                Ok(false) => return false,
                Err(why) => {
                    failed.get_or_insert(why);
                    return false;
                }
            }
            let ending = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map(|(_, ending)| ending);
            let known = ending.is_some_and(|ending| include.extensions.iter().any(|one| one == ending));
            if !known && !include.ignore_unknown_extensions {
                unknown.get_or_insert_with(|| path.clone());
            }
            known
        });
        if let Some(why) = failed {
            return Err(why);
        }
        match unknown {
            Some(path) => Err(format!(
                "`{path}` does not end in {}; `ignore_unknown_extensions: true` passes it over",
                include.extensions.join(", ")
            )),
            None => Ok(files),
        }
    }
}

/// Mappings within each other, the later value elsewhere.
fn merged(earlier: &Value, later: &Value) -> Value {
    let (Value::Map(earlier), Value::Map(later)) = (earlier, later) else { return later.clone() };
    let mut both = (**earlier).clone();
    for (name, value) in later.iter() {
        let value = earlier.get(name).map_or_else(|| value.clone(), |known| merged(known, value));
        both.insert(Arc::clone(name), value);
    }
    Value::Map(Arc::new(both))
}
