//! The files of users and groups as text: read, queried, and edited for predictions. Nothing here writes a file.

use std::{collections::BTreeSet, path::PathBuf};

use crate::{
    declare::{Node, Trouble},
    os::{
        lines::{self, Edit},
        users::Account,
    },
    world::{Content, Effect, Entry, Owned},
};

/// One line of /etc/group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Team {
    pub name: String,
    pub gid: u32,
    pub members: BTreeSet<String>,
}

impl Team {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.trim_end().split(':');
        let name = fields.next()?.to_owned();
        let gid = fields.nth(1)?.parse().ok()?;
        let members = fields.next().unwrap_or_default();
        let members = members.split(',').filter(|member| !member.is_empty()).map(str::to_owned).collect();
        Some(Self { name, gid, members })
    }

    fn line(&self) -> String {
        let members: Vec<&str> = self.members.iter().map(String::as_str).collect();
        format!("{}:x:{}:{}", self.name, self.gid, members.join(","))
    }
}

/// One line of /etc/shadow. Numbers are days; `None` if the field is empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Shadow {
    pub hash: String,
    pub min: Option<i64>,
    pub max: Option<i64>,
    pub warn: Option<i64>,
    pub inactive: Option<i64>,
    /// Days since 1970 at which the account expires.
    pub expires: Option<i64>,
}

impl std::fmt::Debug for Shadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shadow(..)")
    }
}

impl Shadow {
    fn parse(line: &str) -> Option<(&str, Self)> {
        let fields: Vec<&str> = line.trim_end().split(':').collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse().ok());
        let hash = (*fields.get(1)?).to_owned();
        let shadow = Self {
            hash,
            min: number(3),
            max: number(4),
            warn: number(5),
            inactive: number(6),
            expires: number(7),
        };
        Some((fields.first()?, shadow))
    }

    fn line(&self, name: &str) -> String {
        let number = |value: Option<i64>| value.map_or_else(String::new, |value| value.to_string());
        let Self { hash, min, max, warn, inactive, expires } = self;
        let (min, max, warn) = (number(*min), number(*max), number(*warn));
        format!("{name}:{hash}:0:{min}:{max}:{warn}:{}:{}:", number(*inactive), number(*expires))
    }
}

/// The content of the files; the shadow file only if requested.
#[derive(Clone, Debug, Default)]
pub struct Database {
    passwd: String,
    group: String,
    shadow: Option<String>,
}

fn text(node: &Node<'_>, name: &str) -> Result<String, Trouble> {
    let path = node.roots.etc(name);
    match node.world.read(&path)? {
        Some(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        None => Err(Trouble::io(format!("cannot read {}: there is no such file", path.display()))),
    }
}

/// Returns the text with the line of `name` replaced, removed, or added if missing.
fn with_line(text: &str, name: &str, line: Option<&str>) -> String {
    let ours = |line: &str| line.split(':').next() == Some(name);
    let mut found = false;
    let mut out = lines::edited(text, |_, old| match (ours(old), line) {
        (false, _) => Edit::Keep,
        (true, Some(line)) if !std::mem::replace(&mut found, true) => Edit::Set(line.to_owned()),
        (true, _) => Edit::Remove,
    });
    if let (Some(line), false) = (line, found) {
        lines::append(&mut out, line);
    }
    out
}

impl Database {
    /// # Errors
    /// If a file cannot be read; only root can read the shadow file.
    pub fn read(node: &Node<'_>, shadow: bool) -> Result<Self, Trouble> {
        Ok(Self {
            passwd: text(node, "passwd")?,
            group: text(node, "group")?,
            shadow: shadow.then(|| text(node, "shadow")).transpose()?,
        })
    }

    pub fn accounts(&self) -> impl Iterator<Item = Account> {
        self.passwd.lines().filter_map(Account::parse)
    }

    /// Finds a user in the files, or in the node's name services.
    pub fn account(&self, node: &Node<'_>, name: &str) -> Option<Account> {
        let local = self.accounts().find(|account| account.name == name);
        local.or_else(|| Account::parse(&node.users.getent("passwd", name)?))
    }

    pub fn teams(&self) -> impl Iterator<Item = Team> {
        self.group.lines().filter_map(Team::parse)
    }

    /// Finds a group by name.
    pub fn team(&self, node: &Node<'_>, name: &str) -> Option<Team> {
        let local = self.teams().find(|team| team.name == name);
        local.or_else(|| Team::parse(&node.users.getent("group", name)?))
    }

    /// Finds a group by number or name, the number first as in Ansible.
    pub fn team_named(&self, node: &Node<'_>, name: &str) -> Option<Team> {
        let number: Option<u32> = name.parse().ok();
        let numbered = number.and_then(|number| self.teams().find(|team| team.gid == number));
        numbered.or_else(|| self.team(node, name))
    }

    /// Returns the groups that list a user; the primary group only if it lists the user too.
    pub fn memberships(&self, user: &str) -> BTreeSet<String> {
        self.teams().filter(|team| team.members.contains(user)).map(|team| team.name).collect()
    }

    pub fn shadow(&self, name: &str) -> Option<Shadow> {
        let text = self.shadow.as_deref()?;
        text.lines().filter_map(Shadow::parse).find(|(found, _)| *found == name).map(|(_, shadow)| shadow)
    }

    pub fn set_account(&mut self, name: &str, account: Option<&Account>) {
        self.passwd = with_line(&self.passwd, name, account.map(Account::line).as_deref());
    }

    pub fn set_team(&mut self, name: &str, team: Option<&Team>) {
        self.group = with_line(&self.group, name, team.map(Team::line).as_deref());
    }

    pub fn set_shadow(&mut self, name: &str, shadow: Option<&Shadow>) {
        if let Some(text) = &self.shadow {
            let line = shadow.map(|shadow| shadow.line(name));
            self.shadow = Some(with_line(text, name, line.as_deref()));
        }
    }

    /// Makes exactly these groups list a user.
    pub fn set_memberships(&mut self, user: &str, groups: &BTreeSet<String>) {
        let teams: Vec<Team> = self.teams().collect();
        for mut team in teams {
            let wanted = groups.contains(&team.name);
            if wanted != team.members.contains(user) {
                if wanted {
                    team.members.insert(user.to_owned());
                } else {
                    team.members.remove(user);
                }
                self.set_team(&team.name.clone(), Some(&team));
            }
        }
    }

    /// Returns the number that a new user or group would probably get.
    pub fn free_number(&self, system: bool) -> u32 {
        let taken: BTreeSet<u32> =
            self.accounts().map(|account| account.uid).chain(self.teams().map(|team| team.gid)).collect();
        let free = |number: &u32| !taken.contains(number);
        let found = if system { (100..1000).rev().find(free) } else { (1000..60_000).find(free) };
        found.unwrap_or(60_000)
    }

    /// Returns the files as later tasks of a prediction see them.
    pub fn effects(self, etc: impl Fn(&str) -> PathBuf) -> Vec<Effect> {
        let file = |name: &str, mode: u32, text: String| Effect::Path {
            path: etc(name),
            entry: Entry::File {
                owned: Owned { uid: 0, gid: 0, mode },
                content: Content::Known(text.into_bytes().into()),
            },
        };
        let mut effects = vec![file("passwd", 0o644, self.passwd), file("group", 0o644, self.group)];
        effects.extend(self.shadow.map(|text| file("shadow", 0o640, text)));
        effects
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_edited_line_is_there_once_and_others_stay(
            names in proptest::collection::vec("[a-c]{1,2}", 0..6), name in "[a-c]{1,2}", there in any::<bool>(),
        ) {
            let text: String = names.iter().map(|name| format!("{name}:x:1:\n")).collect();
            let line = format!("{name}:x:2:");
            let edited = with_line(&text, &name, there.then_some(line.as_str()));
            let ours = |text: &str| text.lines().filter(|line| line.split(':').next() == Some(&name)).count();
            prop_assert_eq!(ours(&edited), usize::from(there));
            let others = |text: &str| -> Vec<String> {
                text.lines().filter(|line| line.split(':').next() != Some(&name)).map(str::to_owned).collect()
            };
            prop_assert_eq!(others(&edited), others(&text));
            prop_assert_eq!(with_line(&edited, &name, there.then_some(line.as_str())), edited);
        }
    }
}
