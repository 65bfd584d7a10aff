//! Whose turn it is to use the GPUs: one operation at a time.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, TryLockError},
    time::Duration,
};

use gpufleet_protocol::FailureKind;

use crate::{
    deadline::{Deadline, Stop},
    declare::Trouble,
    gpu::{Gpus, Settings},
};

/// The GPUs, as long as it is this operation's turn.
pub struct Turn<'a>(MutexGuard<'a, Option<Gpus>>);

impl<'a> Turn<'a> {
    /// Waits until no other operation uses the GPUs.
    ///
    /// # Errors
    /// If the others do not end in time.
    pub fn take(
        gpus: &'a Mutex<Option<Gpus>>,
        settings: impl FnOnce() -> Settings,
        deadline: &Deadline,
    ) -> Result<Self, Trouble> {
        let mut held = turn(gpus, deadline)?;
        held.get_or_insert_with(|| Gpus::new(settings()));
        Ok(Self(held))
    }
}

impl Deref for Turn<'_> {
    type Target = Gpus;

    fn deref(&self) -> &Gpus {
        self.0.as_ref().unwrap_or_else(|| unreachable!("`take` put it there"))
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Gpus {
        self.0.as_mut().unwrap_or_else(|| unreachable!("`take` put it there"))
    }
}

/// Waits for a mutex until the deadline.
///
/// # Errors
/// If it is not free in time.
pub fn turn<'a, T>(mutex: &'a Mutex<T>, deadline: &Deadline) -> Result<MutexGuard<'a, T>, Trouble> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        match deadline.stop() {
            Some(Stop::TimedOut) => {
                let message = "another operation that uses the GPUs did not end in time";
                return Err(Trouble::failed(FailureKind::TimedOut, message));
            }
            Some(stop) => return Err(Trouble::stopped(stop)),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
