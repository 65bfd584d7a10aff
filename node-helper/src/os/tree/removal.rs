//! Removes a directory recursively, while others may rename entries in it.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::OwnedFd,
};

use rustix::{
    fs::{AtFlags, OFlags},
    io::Errno,
};

use super::{GoOn, Spot, names, open_name, stopped};
use crate::os::files::{At, FileError};

/// Largest number of directories held open at once, as a user may nest them deeper than a process may open files.
const MOST_OPEN: usize = 128;

/// A directory that is being emptied.
struct Level {
    /// `None` while many directories below it are open.
    fd: Option<OwnedFd>,
    inode: (u64, u64),
    name: OsString,
    left: Vec<OsString>,
}

fn inode(fd: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Level {
    fn open(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<Self> {
        let fd = open_name(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let inode = inode(&fd)?;
        Ok(Self { fd: Some(fd), inode, name: name.to_owned(), left: Vec::new() })
    }

    /// Opens it again, through `..` of a directory in it.
    fn reopen(&mut self, child: &Self) -> io::Result<()> {
        if let (None, Some(child)) = (&self.fd, &child.fd) {
            let fd = open_name(child, OsStr::new(".."), OFlags::RDONLY | OFlags::DIRECTORY)?;
            if inode(&fd)? != self.inode {
                return Err(io::Error::other("what is in it was moved elsewhere while it was removed"));
            }
            self.fd = Some(fd);
        }
        Ok(())
    }
}

impl Spot {
    /// Removes what is there, recursively; links are removed, never followed.
    ///
    /// # Errors
    /// If there is nothing, something cannot be removed, or `go_on` stops it. What was removed stays removed.
    pub fn remove_all(&self, go_on: GoOn<'_>) -> Result<(), FileError> {
        let shown = |levels: &[Level], name: &OsStr| {
            let mut path = self.dir.path.clone();
            path.extend(levels.iter().map(|level| &level.name));
            path.join(name)
        };
        let mut levels: Vec<Level> = Vec::new();
        let mut name = self.name.clone();
        let mut again = 0;
        loop {
            if !go_on() {
                return Err(FileError::new("remove", self.path(), stopped()));
            }
            let parent = levels.last().and_then(|level| level.fd.as_ref()).unwrap_or(&self.dir.fd);
            let is_top = levels.is_empty();
            match rustix::fs::unlinkat(parent, &name, AtFlags::empty()) {
                Ok(()) => {}
                Err(Errno::NOENT) if !is_top => {}
                Err(Errno::ISDIR) => match Level::open(parent, &name) {
                    Ok(mut level) => {
                        if let Some(fd) = &level.fd {
                            level.left = names(fd).at("read", shown(&levels, &name))?;
                        }
                        levels.push(level);
                        let far = levels.len().checked_sub(MOST_OPEN).and_then(|far| levels.get_mut(far));
                        if let Some(far) = far {
                            far.fd = None;
                        }
                    }
                    // It was replaced in the meantime.
                    Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) if again < 1000 => {
                        again += 1;
                        continue;
                    }
                    Err(error) => return Err(FileError::new("remove", shown(&levels, &name), error)),
                },
                Err(error) => return Err(FileError::new("remove", shown(&levels, &name), error)),
            }
            // Continues with the next entry, or removes directories that are now empty.
            loop {
                let Some(level) = levels.last_mut() else { return Ok(()) };
                if let Some(next) = level.left.pop() {
                    name = next;
                    break;
                }
                let Some(level) = levels.pop() else { return Ok(()) };
                if let Some(Err(error)) = levels.last_mut().map(|above| above.reopen(&level)) {
                    return Err(FileError::new("remove", shown(&levels, &level.name), error));
                }
                let parent = levels.last().and_then(|level| level.fd.as_ref()).unwrap_or(&self.dir.fd);
                match rustix::fs::unlinkat(parent, &level.name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    // Something was created in it, or put in its place.
                    Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) if again < 1000 => {
                        again += 1;
                        name = level.name;
                        break;
                    }
                    Err(error) => return Err(FileError::new("remove", shown(&levels, &level.name), error)),
                }
            }
        }
    }
}
