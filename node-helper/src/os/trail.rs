//! Which links and folders of other users a path may lead through. Pure.
//!
//! A path is walked one name at a time. The owner of a link can redirect it during the walk, and the owner of a folder
//! on the way can replace any link in it, including root's. So a link that another user controls may lead only to what
//! that user owns, as in systemd-tmpfiles. Root and the acting user are trusted: a link of theirs is followed if no
//! other user can move it.
//!
//! Nested folders of several users are entered, unlike in systemd-tmpfiles, because plays make such trees (a task
//! without `owner` below a user's home, a folder given to a service). The owner of the outer folder can rename the
//! inner one without any right on it. Tasks that change the owner or mode of everything below a path therefore skip
//! what that owner could not read ([`Way`]).

use std::path::{Path, PathBuf};

const STICKY: u32 = 0o1000;

/// Why a path is not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsafe {
    #[error(
        "the link {} belongs to uid {owner}, who may point it anywhere at any moment, and what it leads to belongs to {whose}; \
         name the place itself in the task, act as that user with `become_user`, or give the link to root with `chown -h`",
        .link.display()
    )]
    Link { link: PathBuf, owner: u32, whose: String },
    #[error(
        "the link {} lies below a directory of uid {owner}, who may put another link in its place at any moment, and \
         what it leads to belongs to {whose}; name the place itself in the task, or act as that user with \
         `become_user`",
        .link.display()
    )]
    Below { link: PathBuf, owner: u32, whose: String },
    #[error(
        "{who} may write {}, so any of them may put another link in the place of {}; \
         name the place itself in the task, or set the sticky bit of that directory with `mode: \"+t\"`",
        .folder.display(), .link.display()
    )]
    Shared { who: String, folder: PathBuf, link: PathBuf },
    #[error(
        "{} lies below a directory of uid {owner}, who may not look into it, but may give it another name at any \
         moment, also that of what the task names; so `recurse` gives nobody more rights there: name it in a task without \
         `recurse`, or move it to a directory of root's",
        .path.display()
    )]
    Closed { path: PathBuf, owner: u32 },
}

impl From<Unsafe> for std::io::Error {
    fn from(refused: Unsafe) -> Self {
        Self::other(refused)
    }
}

/// Owner, group and permission bits of a file or folder on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

impl Met {
    /// Who may rename files of other users in this folder, beside its owner.
    fn shared_with(self) -> Option<String> {
        if self.mode & STICKY != 0 {
            return None;
        }
        if self.mode & 0o002 != 0 {
            return Some("everybody".to_owned());
        }
        // A group with the owner's number is that user's private group.
        let by_group = self.mode & 0o020 != 0 && self.gid != 0 && self.gid != self.uid;
        by_group.then(|| format!("the members of group {}", self.gid))
    }
}

/// Whether the user `me` trusts what the user `uid` puts somewhere.
pub const fn trusts(me: u32, uid: u32) -> bool {
    uid == 0 || uid == me
}

/// The owner of a folder if neither root nor this user, or else of the nearest such folder above.
pub const fn other_owner(me: u32, above: Option<u32>, folder: Met) -> Option<u32> {
    if trusts(me, folder.uid) { above } else { Some(folder.uid) }
}

/// A link that another user can change.
#[derive(Clone, Debug)]
struct Held {
    link: PathBuf,
    owner: u32,
    /// Whether the link is that user's own, and not only in that user's folder.
    own: bool,
}

impl Held {
    fn refused(&self, uid: u32) -> Unsafe {
        let whose = if uid == 0 { "root".to_owned() } else { format!("uid {uid}") };
        let (link, owner) = (self.link.clone(), self.owner);
        if self.own { Unsafe::Link { link, owner, whose } } else { Unsafe::Below { link, owner, whose } }
    }
}

/// The state of a walk.
#[derive(Clone, Debug)]
pub struct Trail {
    me: u32,
    /// The first link that another user can change.
    held: Option<Held>,
}

impl Trail {
    /// Begins a walk of this user.
    pub fn of(me: u32) -> Self {
        Self { me, held: None }
    }

    /// Whether a link that `owner` can change may lead to what belongs to `uid`.
    fn fits(&self, owner: u32, uid: u32) -> bool {
        // Without root's rights, a user cannot be tricked into changing what belongs to root.
        uid == owner || (self.me != 0 && uid == 0)
    }

    fn hold(&mut self, link: &Path, owner: u32, own: bool) -> Result<(), Unsafe> {
        match &self.held {
            Some(held) if held.owner != owner => Err(held.refused(owner)),
            Some(_) => Ok(()),
            None => {
                self.held = Some(Held { link: link.to_owned(), owner, own });
                Ok(())
            }
        }
    }

    /// Follows a link in `folder`; `other` is the result of [`other_owner`] for that folder.
    ///
    /// # Errors
    /// If another user may redirect it, or replace it by another link.
    pub fn link(&mut self, folder: Met, other: Option<u32>, link: Met, path: &Path) -> Result<(), Unsafe> {
        if self.me == 0
            && let Some(who) = folder.shared_with()
        {
            let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
            return Err(Unsafe::Shared { who, folder, link: path.to_owned() });
        }
        if !trusts(self.me, link.uid) {
            self.hold(path, link.uid, true)?;
        }
        other.map_or(Ok(()), |owner| self.hold(path, owner, false))
    }

    /// Enters a folder.
    ///
    /// # Errors
    /// If a link that another user can change led there, and the folder belongs to neither that user nor root.
    pub fn enter(&self, to: Met) -> Result<(), Unsafe> {
        match &self.held {
            Some(held) if to.uid != 0 && to.uid != held.owner => Err(held.refused(to.uid)),
            _ => Ok(()),
        }
    }

    /// Checks the end of the walk: what is there, or the folder in which something is to be created.
    ///
    /// # Errors
    /// If a link that another user can change led to what that user does not own.
    pub fn end(&self, at: Met) -> Result<(), Unsafe> {
        match &self.held {
            Some(held) if !self.fits(held.owner, at.uid) => Err(held.refused(at.uid)),
            _ => Ok(()),
        }
    }
}

/// A folder whose content root changes recursively: which other users control the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    me: u32,
    /// The other user who owns this folder, or the nearest one above.
    other: Option<u32>,
    /// Whether that user owns this folder, and so can move any file in and out of it.
    own: bool,
    /// The user who cannot look into this folder, and could have renamed it or one above it.
    closed: Option<u32>,
}

impl Way {
    /// Enters a folder; `above` is the result of [`other_owner`] for its parent.
    pub fn into(me: u32, above: Option<u32>, folder: Met) -> Self {
        Self { me, other: above, own: true, closed: None }.deeper(folder)
    }

    /// Enters a folder in this one.
    #[must_use]
    pub fn deeper(self, folder: Met) -> Self {
        let other = other_owner(self.me, self.other, folder);
        let own = other == Some(folder.uid);
        Self { other, own, closed: self.shuts(folder, true), ..self }
    }

    /// The user who cannot look into this folder and may have led the walk here.
    pub const fn closed(self) -> Option<u32> {
        self.closed
    }

    /// As [`Way::closed`], for an entry of this folder; a link itself never counts as closed.
    ///
    /// A file directly in that user's own folder counts as open: plays often create a file in one task and give it away
    /// in the next, and nothing tells the folder's owner from the user that the file is meant for.
    pub fn shuts(self, what: Met, directory: bool) -> Option<u32> {
        let shut = |other: &u32| {
            what.uid != *other
                && if directory { what.mode & 0o005 != 0o005 } else { !self.own && what.mode & 0o004 == 0 }
        };
        self.closed.or_else(|| self.other.filter(|_| self.me == 0).filter(shut))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn met(uid: u32, mode: u32) -> Met {
        Met { uid, gid: uid, mode }
    }

    fn link(trail: &mut Trail, folder: Met, link: Met, path: &Path) -> Result<(), Unsafe> {
        trail.link(folder, other_owner(trail.me, None, folder), link, path)
    }

    #[test]
    fn a_link_of_a_user_leads_to_that_users_own_only() {
        let path = Path::new("/home/ann/x");
        let home = met(1000, 0o755);
        let mut trail = Trail::of(0);
        link(&mut trail, home, met(1000, 0o777), path).unwrap();
        trail.enter(met(0, 0o755)).unwrap();
        trail.end(met(1000, 0o755)).unwrap();
        assert_eq!(
            trail.end(met(0, 0o755)).unwrap_err().to_string(),
            "the link /home/ann/x belongs to uid 1000, who may point it anywhere at any moment, and what it leads to belongs to root; name the place itself in the task, act as that user with `become_user`, or give the link to root with `chown -h`"
        );
        assert!(trail.enter(met(1001, 0o755)).is_err());
        assert!(link(&mut trail, home, met(1001, 0o777), path).is_err());
    }

    #[test]
    fn roots_links_are_followed_but_not_where_others_may_move_them() {
        let path = Path::new("/var/run");
        let of_root = met(0, 0o777);
        for folder in [met(0, 0o755), met(0, 0o1777), met(0, 0o2775), Met { gid: 50, ..met(0, 0o3775) }] {
            let mut trail = Trail::of(0);
            link(&mut trail, folder, of_root, path).unwrap();
            trail.end(met(0, 0o755)).unwrap();
        }
        let refused = |folder| link(&mut Trail::of(0), folder, of_root, path).unwrap_err().to_string();
        let said = refused(met(0, 0o777));
        assert!(said.starts_with("everybody may write /var, so any of them may put another link"), "{said}");
        let said = refused(Met { gid: 50, ..met(0, 0o2775) });
        assert!(said.starts_with("the members of group 50 may write /var, so any"), "{said}");
    }

    /// The owner of a folder may rename what others have in it.
    #[test]
    fn a_link_of_roots_in_a_folder_of_a_user_leads_to_that_users_own_only() {
        let path = Path::new("/home/ann/cuda");
        for (folder, other) in [(met(1000, 0o755), Some(1000)), (met(0, 0o755), Some(1000))] {
            let mut trail = Trail::of(0);
            trail.link(folder, other, met(0, 0o777), path).unwrap();
            trail.enter(met(0, 0o755)).unwrap();
            trail.end(met(1000, 0o755)).unwrap();
            assert_eq!(
                trail.end(met(0, 0o755)).unwrap_err().to_string(),
                "the link /home/ann/cuda lies below a directory of uid 1000, who may put another link in its place at any moment, and what it leads to belongs to root; name the place itself in the task, or act as that user with `become_user`"
            );
            assert!(trail.enter(met(1001, 0o755)).is_err() && trail.end(met(1001, 0o755)).is_err());
        }
        assert!(link(&mut Trail::of(0), met(1000, 0o755), met(1001, 0o777), path).is_err());
        let mut trail = Trail::of(1001);
        link(&mut trail, met(1000, 0o755), met(1001, 0o777), path).unwrap();
        trail.end(met(1001, 0o755)).unwrap_err();
        let mut trail = Trail::of(1001);
        link(&mut trail, met(1000, 0o755), met(0, 0o777), path).unwrap();
        trail.end(met(0, 0o755)).unwrap();
        trail.end(met(1001, 0o755)).unwrap_err();
    }

    #[test]
    fn what_a_user_could_not_look_into_is_closed_to_who_may_have_renamed_it() {
        let tree = Way::into(0, Some(1000), met(1000, 0o755));
        assert_eq!((tree.closed(), tree.shuts(met(0, 0o700), true)), (None, Some(1000)));
        for (what, directory) in
            [(met(0, 0o755), true), (met(1000, 0o700), true), (met(0, 0o600), false), (met(0, 0o644), false)]
        {
            assert_eq!(tree.shuts(what, directory), None, "{what:?}");
        }
        assert_eq!(tree.shuts(met(1001, 0o700), true), Some(1000), "another user's");
        let open = tree.deeper(met(0, 0o755));
        assert_eq!((open.shuts(met(0, 0o600), false), open.shuts(met(0, 0o644), false)), (Some(1000), None));
        let closed = tree.deeper(met(0, 0o700)).deeper(met(0, 0o755));
        assert_eq!((closed.closed(), closed.shuts(met(0, 0o644), false)), (Some(1000), Some(1000)));
        assert_eq!(Way::into(0, Some(1000), met(0, 0o700)).closed(), Some(1000), "the tree itself");
        assert_eq!(Way::into(0, None, met(0, 0o700)).closed(), None);
        assert_eq!(Way::into(1000, Some(1001), met(0, 0o700)).closed(), None, "the kernel itself refuses");
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Link(u32, u32, u32),
        Enter(u32),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let uid = || prop_oneof![Just(0u32), Just(7), 1000u32..1003];
        let mode = prop_oneof![Just(0o755u32), Just(0o777), Just(0o1777)];
        prop::collection::vec(
            prop_oneof![
                (uid(), mode, uid()).prop_map(|(folder, mode, link)| Act::Link(folder, mode, link)),
                uid().prop_map(Act::Enter),
            ],
            0..8,
        )
    }

    proptest! {
        /// On any path: after a link that another user can change, root ends only at what that user owns.
        #[test]
        fn nobody_leads_root_to_what_is_not_theirs(acts in acts(), end in prop_oneof![Just(0u32), 1000u32..1003]) {
            let mut trail = Trail::of(0);
            let path = Path::new("/x/y");
            let mut owners = Vec::new();
            for act in acts {
                let done = match act {
                    Act::Link(folder, mode, link) => {
                        let done = super::tests::link(&mut trail, met(folder, mode), met(link, 0o777), path);
                        if done.is_ok() {
                            owners.extend([folder, link].into_iter().filter(|uid| *uid != 0));
                        }
                        done
                    }
                    Act::Enter(to) => trail.enter(met(to, 0o755)),
                };
                if done.is_err() {
                    return Ok(());
                }
            }
            if trail.end(met(end, 0o755)).is_ok() {
                prop_assert!(owners.iter().all(|owner| *owner == end), "{owners:?} led to {end}");
            }
        }
    }
}
