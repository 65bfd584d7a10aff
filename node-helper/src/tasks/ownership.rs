//! Owner, group and mode as tasks declare them, compared with what a path has.

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

/// What a task asks for; names are numbers already, the mode is still relative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mode: Option<String>,
}

impl Wanted {
    /// # Errors
    /// A name that the node does not know.
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

    /// The bits wanted of a path that has `current`.
    ///
    /// # Errors
    /// Text that is no mode.
    pub fn bits(&self, current: u32, directory: bool) -> Result<Option<u32>, Trouble> {
        let Some(text) = &self.mode else { return Ok(None) };
        let bits = mode::resolve(text, current, directory);
        bits.map(Some).ok_or_else(|| Trouble::invalid(format!("`{text}` is not a file mode")))
    }
}

/// What has to be set on a path, and how people see it.
///
/// # Errors
/// Text that is no mode.
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
        // Why: giving a file away clears its set-user-id bits.
        set.mode = Some(now.mode);
    }
    Ok((set, changes))
}
