//! Compares the declared owner, group and mode with those of a path.

use gpufleet_protocol::{Change, Disruption, Property, Subject, change::Value, tasks::FileMode};

use crate::{
    declare::Trouble,
    os::{
        files::Ownership,
        mode,
        users::{UserError, Users},
    },
    world::Owned,
};

/// A task's declaration; names are resolved to numbers, the mode may still be relative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mode: Option<String>,
}

impl Wanted {
    /// # Errors
    /// If the node does not know a name.
    pub fn resolve(
        users: &Users,
        owner: Option<&str>,
        group: Option<&str>,
        mode: Option<&FileMode>,
    ) -> Result<Self, UserError> {
        Ok(Self {
            uid: owner.map(|owner| users.uid(owner)).transpose()?,
            gid: group.map(|group| users.gid(group)).transpose()?,
            mode: mode.map(|mode| mode.0.clone()),
        })
    }

    /// Returns the declared bits for a path with the bits `current`.
    ///
    /// # Errors
    /// If the text is no mode.
    pub fn bits(&self, current: u32, directory: bool) -> Result<Option<u32>, Trouble> {
        let Some(text) = &self.mode else { return Ok(None) };
        let bits = mode::resolve(text, current, directory);
        bits.map(Some).ok_or_else(|| Trouble::invalid(format!("`{text}` is not a file mode")))
    }
}

/// Returns what has to be set on a path, and the changes for people.
///
/// # Errors
/// If the text is no mode.
pub fn differences(
    shown: &str,
    now: Owned,
    wanted: &Wanted,
    directory: bool,
) -> Result<(Ownership, Vec<Change>), Trouble> {
    let mut set = Ownership::default();
    let mut changes = Vec::new();
    let mut change = |property, from: Value, to: Value| {
        changes.push(Change::new(Subject::file(shown), property, from, to, Disruption::Live));
    };
    if let Some(uid) = wanted.uid.filter(|uid| *uid != now.uid) {
        set.uid = Some(uid);
        change(Property::OWNER, Value::number(now.uid), Value::number(uid));
    }
    if let Some(gid) = wanted.gid.filter(|gid| *gid != now.gid) {
        set.gid = Some(gid);
        change(Property::GROUP, Value::number(now.gid), Value::number(gid));
    }
    let bits = wanted.bits(now.mode, directory)?;
    if let Some(bits) = bits.filter(|bits| *bits != now.mode) {
        set.mode = Some(bits);
        change(Property::MODE, mode::octal(now.mode).into(), mode::octal(bits).into());
    } else if set.uid.is_some() || set.gid.is_some() {
        // Changing the owner clears the set-user-id bits.
        set.mode = Some(now.mode);
    }
    Ok((set, changes))
}
