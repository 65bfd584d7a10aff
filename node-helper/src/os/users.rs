//! Users and groups of the node, by name and number.
//!
//! Reads `/etc/passwd` and `/etc/group`. For names that are missing there (LDAP, SSSD), runs `getent`, because a static
//! program cannot load the node's name services.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{Gid, Uid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use crate::{
    deadline::Deadline,
    os::dumps,
    process::Run,
    world::{ReadError, World},
};

/// A failed look-up of a user or group, or a failed switch to one.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    #[error("there is no user `{0}` on this node")]
    NoUser(String),
    #[error("there is no group `{0}` on this node")]
    NoGroup(String),
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("only root can act as `{0}`; does the task lack `become: true`?")]
    NotRoot(String),
    #[error("cannot act as `{name}`: {source}")]
    Switch { name: String, source: io::Error },
}

/// A user with everything a process of that user needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// All groups, including the primary one.
    pub groups: Vec<u32>,
    pub home: PathBuf,
}

impl Identity {
    pub(crate) fn kernel_ids(&self) -> (Uid, Gid, Vec<Gid>) {
        let groups = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        (Uid::from_raw(self.uid), Gid::from_raw(self.gid), groups)
    }

    /// Checks that this process may act as the user.
    ///
    /// # Errors
    /// If it runs as neither root nor that user.
    pub fn can_act(&self) -> Result<(), UserError> {
        let own = rustix::process::geteuid();
        if own.is_root() || own.as_raw() == self.uid {
            return Ok(());
        }
        Err(UserError::NotRoot(self.name.clone()))
    }

    /// Runs `work` on a thread with this user's file access rights.
    ///
    /// Only the effective ids change: a thread with the user's real id could be signalled by that user.
    ///
    /// # Errors
    /// If the kernel does not let this process act as the user.
    pub fn with_rights<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, UserError> {
        if self.uid == rustix::process::geteuid().as_raw() {
            return Ok(work());
        }
        self.can_act()?;
        let (uid, gid, groups) = self.kernel_ids();
        let switch = move || -> rustix::io::Result<()> {
            set_thread_groups(&groups)?;
            set_thread_res_gid(None, gid, None)?;
            set_thread_res_uid(None, uid, None)?;
            dumps::stay_closed();
            Ok(())
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || match switch() {
                Ok(()) => Ok(work()),
                Err(source) => Err(UserError::Switch { name: self.name.clone(), source: source.into() }),
            });
            thread.join().unwrap_or_else(|_| {
                Err(UserError::Switch { name: self.name.clone(), source: io::ErrorKind::Other.into() })
            })
        })
    }
}

/// Runs `work` with the process's own rights, from a thread that acts as another user.
///
/// # Errors
/// If the kernel does not restore the rights.
pub fn with_own_rights<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, UserError> {
    let (real, group) = (rustix::process::getuid(), rustix::process::getgid());
    if rustix::process::geteuid() == real {
        return Ok(work());
    }
    let failed = |source: io::Error| UserError::Switch { name: format!("uid {}", real.as_raw()), source };
    std::thread::scope(|scope| {
        // A new thread starts with the ids of this one, and can change them alone.
        let thread = scope.spawn(move || {
            set_thread_res_uid(None, real, None)
                .and_then(|()| set_thread_res_gid(None, group, None))
                .map_err(|error| failed(error.into()))?;
            dumps::stay_closed();
            Ok(work())
        });
        thread.join().unwrap_or_else(|_| Err(failed(io::ErrorKind::Other.into())))
    })
}

/// The users and groups below one `/etc`.
#[derive(Clone, Debug)]
pub struct Users {
    etc: PathBuf,
    /// Whether `getent` looks up names that the files lack.
    services: bool,
    /// Where the files are read; a prediction includes users that an earlier task would create.
    world: World,
}

/// One line of /etc/passwd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub comment: String,
    pub home: String,
    pub shell: String,
}

impl Account {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, comment, home, shell] = fields.as_slice() else { return None };
        let text = |text: &str| text.to_owned();
        Some(Self {
            name: text(name),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            comment: text(comment),
            home: text(home),
            shell: text(shell.trim_end()),
        })
    }

    pub(crate) fn line(&self) -> String {
        let Self { name, uid, gid, comment, home, shell } = self;
        format!("{name}:x:{uid}:{gid}:{comment}:{home}:{shell}")
    }
}

/// Parses the name, id and members of a group.
fn group_line(line: &str) -> Option<(&str, u32, &str)> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let gid = fields.nth(1)?.parse().ok()?;
    Some((name, gid, fields.next().unwrap_or_default().trim_end()))
}

impl Users {
    pub fn of(etc: &Path) -> Self {
        Self { etc: etc.to_owned(), services: etc == Path::new("/etc"), world: World::real() }
    }

    /// Returns the same users, read in another world.
    #[must_use]
    pub fn seen_in(&self, world: &World) -> Self {
        Self { world: world.clone(), ..self.clone() }
    }

    fn read(&self, name: &str) -> Result<String, UserError> {
        let path = self.etc.join(name);
        match self.world.read(&path) {
            Ok(Some(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Ok(None) => Err(UserError::Read { path, source: io::ErrorKind::NotFound.into() }),
            Err(ReadError::File(error)) => Err(UserError::Read { path, source: error.source }),
            Err(error) => Err(UserError::Read { path, source: io::Error::other(error) }),
        }
    }

    /// Whether an earlier task of a prediction would remove a line that still exists on the node.
    fn removed(&self, database: &str, key: &str) -> bool {
        let real = || std::fs::read(self.etc.join(database)).unwrap_or_default();
        self.world.predicts()
            && String::from_utf8_lossy(&real()).lines().any(|line| line.split(':').next() == Some(key))
    }

    /// Looks up an entry that the files lack, such as one of LDAP; `None` if only the files count.
    pub fn getent(&self, database: &str, key: &str) -> Option<String> {
        if !self.services || key.starts_with('-') || self.removed(database, key) {
            return None;
        }
        let done = Run::new("getent")
            .args([database, key])
            .finish(&Deadline::after(Duration::from_secs(10)))
            .ok()?;
        done.exit.success().then(|| done.stdout().lines().next().map(str::to_owned)).flatten()
    }

    fn user_entry(&self, name: &str) -> Result<Account, UserError> {
        let text = self.read("passwd")?;
        let number: Option<u32> = name.parse().ok();
        let mut entries = text.lines().filter_map(Account::parse);
        if let Some(entry) = entries.find(|entry| entry.name == name) {
            return Ok(entry);
        }
        if let Some(entry) = text.lines().filter_map(Account::parse).find(|entry| Some(entry.uid) == number) {
            return Ok(entry);
        }
        self.getent("passwd", name)
            .as_deref()
            .and_then(Account::parse)
            .ok_or_else(|| UserError::NoUser(name.to_owned()))
    }

    /// Returns the identity of a user, by name or number.
    ///
    /// # Errors
    /// If there is no such user, or the files cannot be read.
    pub fn identity(&self, name: &str) -> Result<Identity, UserError> {
        let entry = self.user_entry(name)?;
        let text = self.read("group").unwrap_or_default();
        let mut groups = vec![entry.gid];
        let member_of = text
            .lines()
            .filter_map(group_line)
            .filter(|(_, _, members)| members.split(',').any(|member| member == entry.name));
        groups.extend(member_of.map(|(_, gid, _)| gid));
        if let Some(line) = self.getent("initgroups", &entry.name) {
            groups.extend(line.split_ascii_whitespace().skip(1).filter_map(|gid| gid.parse::<u32>().ok()));
        }
        groups.sort_unstable();
        groups.dedup();
        Ok(Identity { name: entry.name, uid: entry.uid, gid: entry.gid, groups, home: entry.home.into() })
    }

    /// Returns the number of an owner given by name or number.
    ///
    /// # Errors
    /// If there is no such user.
    pub fn uid(&self, owner: &str) -> Result<u32, UserError> {
        match self.user_entry(owner) {
            Ok(entry) => Ok(entry.uid),
            Err(error) => owner.parse().map_err(|_| error),
        }
    }

    /// Returns the number of a group given by name or number.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn gid(&self, group: &str) -> Result<u32, UserError> {
        let text = self.read("group")?;
        if let Some((_, gid, _)) = text.lines().filter_map(group_line).find(|(name, ..)| *name == group) {
            return Ok(gid);
        }
        if let Ok(gid) = group.parse() {
            return Ok(gid);
        }
        self.getent("group", group)
            .as_deref()
            .and_then(group_line)
            .map(|(_, gid, _)| gid)
            .ok_or_else(|| UserError::NoGroup(group.to_owned()))
    }

    pub fn user_name(&self, uid: u32) -> Option<String> {
        let text = self.read("passwd").ok()?;
        let local =
            text.lines().filter_map(Account::parse).find(|entry| entry.uid == uid).map(|entry| entry.name);
        local.or_else(|| {
            self.getent("passwd", &uid.to_string()).as_deref().and_then(Account::parse).map(|e| e.name)
        })
    }

    pub fn group_name(&self, gid: u32) -> Option<String> {
        let text = self.read("group").ok()?;
        let local = text
            .lines()
            .filter_map(group_line)
            .find(|(_, id, _)| *id == gid)
            .map(|(name, ..)| name.to_owned());
        local.or_else(|| {
            self.getent("group", &gid.to_string())
                .as_deref()
                .and_then(group_line)
                .map(|(name, ..)| name.to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn sample() -> (tempfile::TempDir, Users) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("passwd"),
            "root:x:0:0:root:/root:/bin/sh\nann:x:1000:100:Ann:/home/ann:/bin/bash\nbroken\n",
        )
        .unwrap();
        fs::write(dir.path().join("group"), "root:x:0:\nusers:x:100:\nvideo:x:44:bob,ann\nann2:x:45:ann2\n")
            .unwrap();
        let users = Users::of(dir.path());
        (dir, users)
    }

    #[test]
    fn users_are_found_by_name_and_number_with_their_groups() {
        let (_dir, users) = sample();
        let ann = users.identity("ann").unwrap();
        assert_eq!((ann.uid, ann.gid, ann.groups.clone()), (1000, 100, vec![44, 100]));
        assert_eq!(users.identity("1000").unwrap(), ann);
        assert_eq!(users.user_name(0).as_deref(), Some("root"));
        assert_eq!(users.group_name(44).as_deref(), Some("video"));
    }

    #[test]
    fn unknown_names_are_named() {
        let (_dir, users) = sample();
        assert_eq!(users.identity("zoe").unwrap_err().to_string(), "there is no user `zoe` on this node");
        assert_eq!(users.gid("nogroup").unwrap_err().to_string(), "there is no group `nogroup` on this node");
        assert_eq!(users.uid("4242").unwrap(), 4242);
    }
}
