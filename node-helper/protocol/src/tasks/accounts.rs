//! Parameters of the kinds that declare users and groups.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words};
use crate::{
    Disruption, NodeOp, Unit, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { #[derive(Default)] AccountState { #[default] Present: "present", Absent: "absent" } }

words! { #[derive(Default)] UpdatePassword { #[default] Always: "always", OnCreate: "on_create" } }

/// Text that no message shows, such as the hash of a password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Hidden(#[serde(deserialize_with = "lenient::text")] pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Declares a user of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Login name.
    #[serde(alias = "user", deserialize_with = "lenient::text")]
    pub name: String,
    /// `present` (default), or `absent`.
    #[serde(default)]
    pub state: AccountState,
    /// Number; the next free one where it is left out.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Whether the number may belong to another user too.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub non_unique: bool,
    /// Primary group, by name or number; it must exist.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Further groups, which must exist; an empty list takes the user out of all.
    #[serde(
        default,
        deserialize_with = "lenient::optional_comma_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub groups: Option<Vec<String>>,
    /// Whether the user stays in groups that `groups` does not name.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub append: bool,
    /// Full name or other words.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Home directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Whether a missing home directory is made.
    #[serde(default = "yes", alias = "createhome", deserialize_with = "lenient::flag")]
    pub create_home: bool,
    /// Whether what lies in the old home directory moves to a new one.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub move_home: bool,
    /// Directory whose files a new home directory gets; `/etc/skel` where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skeleton: Option<String>,
    /// Login shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Whether a new user is one of the system. An existing user stays what it is.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub system: bool,
    /// Hash of the password, as `password_hash` makes it; `*` or `!` for none. No message shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Hidden>,
    /// `always` (default), or `on_create`: an existing user keeps the password.
    #[serde(default)]
    pub update_password: UpdatePassword,
    /// Whether the password is locked.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub password_lock: Option<bool>,
    /// When the account ends, in seconds since 1970; a negative number means never.
    #[serde(default, deserialize_with = "lenient::optional_i64", skip_serializing_if = "Option::is_none")]
    pub expires: Option<i64>,
    /// Days after which a password must be changed.
    #[serde(default, deserialize_with = "lenient::optional_i64", skip_serializing_if = "Option::is_none")]
    pub password_expire_max: Option<i64>,
    /// Days before which a password cannot be changed.
    #[serde(default, deserialize_with = "lenient::optional_i64", skip_serializing_if = "Option::is_none")]
    pub password_expire_min: Option<i64>,
    /// Days of warning before a password must be changed.
    #[serde(default, deserialize_with = "lenient::optional_i64", skip_serializing_if = "Option::is_none")]
    pub password_expire_warn: Option<i64>,
    /// Days after the end of a password until the account is disabled.
    #[serde(default, deserialize_with = "lenient::optional_i64", skip_serializing_if = "Option::is_none")]
    pub password_expire_account_disable: Option<i64>,
    /// Mask of a new home directory, such as `077`.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub umask: Option<String>,
    /// Whether `absent` removes the home directory too.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub remove: bool,
    /// Whether `absent` removes a user that is logged in.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub force: bool,
}

fn yes() -> bool {
    true
}

const SSH_KEY: &str = "let a task run `ssh-keygen` with `creates`, or bring the key with `copy`";

/// Checks a name of a user or group: it must not look like an option or end a field.
fn check_name(parameter: &str, what: &str, name: &str) -> Result<(), ParamError> {
    let bad = |c: char| c == ':' || c == ',' || c == '/' || c.is_whitespace() || c.is_control();
    if name.is_empty() || name.starts_with(['-', '+', '~']) || name.contains(bad) {
        return Err(ParamError::new(parameter, format!("`{name}` cannot be the name of a {what}")));
    }
    Ok(())
}

fn check_field(parameter: &str, value: Option<&String>) -> Result<(), ParamError> {
    match value {
        Some(text) if text.contains([':', '\n', '\r']) => {
            Err(ParamError::new(parameter, "a field of /etc/passwd can have no colon and no line break"))
        }
        _ => Ok(()),
    }
}

impl Kind for User {
    const INFO: KindInfo = KindInfo {
        name: "user",
        aliases: &["ansible.builtin.user"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[
            ("generate_ssh_key", SSH_KEY),
            ("ssh_key_bits", SSH_KEY),
            ("ssh_key_comment", SSH_KEY),
            ("ssh_key_file", SSH_KEY),
            ("ssh_key_passphrase", SSH_KEY),
            ("ssh_key_type", SSH_KEY),
            ("seuser", "map the user with `semanage login` in a command task"),
            ("local", "users of /etc/passwd are declared in any case"),
            ("uid_min", "name the `uid`, or set UID_MIN in /etc/login.defs"),
            ("uid_max", "name the `uid`, or set UID_MAX in /etc/login.defs"),
            ("login_class", "it means nothing on Linux"),
            ("profile", "it means nothing on Linux"),
            ("authorization", "it means nothing on Linux"),
            ("role", "it means nothing on Linux"),
            ("hidden", "it means nothing on Linux"),
        ],
        secret: &["password"],
        numbers: &[
            Number::within("uid", None, 0, 4_294_967_294),
            Number::any("expires", Some(Unit::Seconds)),
            Number::any("password_expire_max", Some(Unit::Days)),
            Number::any("password_expire_min", Some(Unit::Days)),
            Number::any("password_expire_warn", Some(Unit::Days)),
            Number::any("password_expire_account_disable", Some(Unit::Days)),
        ],
        since: &[
            ("expires", "1.9"),
            ("non_unique", "1.1"),
            ("password_expire_account_disable", "2.18"),
            ("password_expire_max", "2.11"),
            ("password_expire_min", "2.11"),
            ("password_expire_warn", "2.16"),
            ("password_lock", "2.6"),
            ("skeleton", "2.0"),
            ("umask", "2.12"),
            ("update_password", "1.3"),
        ],
        summary: "Declares a user: number, groups, home, shell, password.",
        example: "user: {name: slurm, uid: 981, system: true, shell: /usr/sbin/nologin}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        check_name("name", "user", &self.name)?;
        for group in self.groups.iter().flatten() {
            check_name("groups", "group", group)?;
        }
        if let Some(group) = &self.group {
            check_name("group", "group", group)?;
        }
        check_field("comment", self.comment.as_ref())?;
        check_field("shell", self.shell.as_ref())?;
        check_field("home", self.home.as_ref())?;
        if self.home.as_ref().is_some_and(|home| !home.starts_with('/')) {
            return Err(ParamError::new("home", "a home directory is an absolute path"));
        }
        if let Some(Hidden(hash)) = &self.password {
            if hash.contains([':', '\n', '\r']) {
                return Err(ParamError::new(
                    "password",
                    "a hash is needed, such as `password_hash` makes it",
                ));
            }
            let none = matches!(hash.trim_start_matches('!'), "" | "*" | "*************");
            if !none && !hash.contains('$') && hash.len() != 13 {
                return Err(ParamError::new(
                    "password",
                    "a hash is needed, such as `password_hash` makes it; nobody could log in with this text",
                ));
            }
        }
        if let Some(mask) = &self.umask
            && (mask.is_empty() || mask.len() > 4 || !mask.chars().all(|c| ('0'..='7').contains(&c)))
        {
            return Err(ParamError::new("umask", format!("`{mask}` is no mask such as `077`")));
        }
        Ok(())
    }
}

impl Operation for User {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places(["/etc/passwd", "/etc/shadow", "/etc/group"])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::User(new) = newer.op else { return true };
        if new.name != self.name {
            return true;
        }
        if new.state != self.state || new.state == AccountState::Absent {
            return false;
        }
        macro_rules! given {
            ($($field:ident),*) => {$( if new.$field.is_some() { self.$field = None; } )*};
        }
        given!(
            uid,
            group,
            groups,
            comment,
            home,
            shell,
            password,
            password_lock,
            expires,
            password_expire_max,
            password_expire_min,
            password_expire_warn,
            password_expire_account_disable
        );
        self.create_home = self.create_home && new.create_home;
        true
    }
}

/// Declares a group of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Name.
    #[serde(deserialize_with = "lenient::text")]
    pub name: String,
    /// `present` (default), or `absent`.
    #[serde(default)]
    pub state: AccountState,
    /// Number; the next free one where it is left out.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Whether a new group is one of the system. An existing group stays what it is.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub system: bool,
    /// Whether the number may belong to another group too; wants `gid`.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub non_unique: bool,
    /// Whether `absent` removes a group that is the primary one of a user.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub force: bool,
}

impl Kind for Group {
    const INFO: KindInfo = KindInfo {
        name: "group",
        aliases: &["ansible.builtin.group"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[
            ("local", "groups of /etc/group are declared in any case"),
            ("gid_min", "name the `gid`, or set GID_MIN in /etc/login.defs"),
            ("gid_max", "name the `gid`, or set GID_MAX in /etc/login.defs"),
        ],
        secret: &[],
        numbers: &[Number::within("gid", None, 0, 4_294_967_294)],
        since: &[("force", "2.15"), ("non_unique", "2.8")],
        summary: "Declares a group of users.",
        example: "group: {name: slurm, gid: 981, system: true}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        check_name("name", "group", &self.name)?;
        if self.non_unique && self.gid.is_none() {
            return Err(ParamError::new("non_unique", "it wants `gid`"));
        }
        Ok(())
    }
}

impl Operation for Group {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places(["/etc/passwd", "/etc/shadow", "/etc/group"])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::Group(new) = newer.op else { return true };
        new.name != self.name || new.state == self.state && new.gid.is_none()
    }
}
