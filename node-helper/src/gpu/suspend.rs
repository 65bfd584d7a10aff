//! Takes the driver from everything that holds it, for as long as its modules are replaced.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    FailureKind,
    message::{GpuClient, IdleReport, IdleVerdict},
    nvml::Snapshot,
};

use super::{
    after::Event,
    apply::{Fence, forget_lost_units, start_units},
    clients::PERSISTENCED,
    group::Gpus,
    host::{FABRIC_MANAGER, IMEX},
    idle,
    machine::UnitAction,
    observe::{put_stopped_units, stopped_units},
};
use crate::deadline::Deadline;

/// Time for processes to close the driver after their unit was stopped.
const LETTING_GO: Duration = Duration::from_secs(10);
/// Time to start the units again, even after the operation's deadline.
const WAY_BACK: Duration = Duration::from_secs(120);

/// Why the driver could not be taken from those who hold it.
#[derive(Debug)]
pub struct Held {
    pub kind: FailureKind,
    pub message: String,
    /// Who works on the GPUs, if that is why.
    pub idle: Option<IdleReport>,
}

/// What became of the units that were stopped.
#[derive(Debug, Default)]
pub struct Left {
    /// A sentence for each unit that did not start.
    pub problems: Vec<String>,
    /// A sentence for each unit that cannot start any more, because its MIG instance went with the driver.
    pub warnings: Vec<String>,
}

impl Held {
    fn io(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Io, message: message.into(), idle: None }
    }
}

impl Gpus {
    /// Stops the units that hold the driver, waits until nobody has it open, does `work`, and starts the units again.
    /// Returns what `work` gave, and what became of the units.
    ///
    /// A killed helper leaves a record of the units, from which the next session starts them.
    ///
    /// # Errors
    /// If somebody holds the driver, or a unit cannot be stopped. Then nothing was done, and the units run again.
    pub fn suspended<T>(
        &mut self,
        deadline: &Deadline,
        progress: &dyn Fn(String),
        fence: Fence<'_>,
        work: impl FnOnce(&mut Self) -> T,
    ) -> Result<(T, Left), Held> {
        let mut units = stopped_units(&self.record);
        let taken = self.take(&mut units, deadline, progress, fence);
        let done = taken.map(|()| work(self));
        self.machine.release();
        let grace = Deadline::after(WAY_BACK);
        let warnings = forget_lost_units(self.machine.as_mut(), &mut units, &grace);
        // Reading the GPUs started it again.
        self.machine.release();
        let mut problems = start_units(self.machine.as_mut(), &mut units, &grace, progress);
        problems.extend(put_stopped_units(&self.record, &units).err());
        match done {
            Ok(given) => Ok((given, Left { problems, warnings })),
            Err(mut held) => {
                for problem in problems {
                    held.message = format!("{}; {problem}", held.message);
                }
                Err(held)
            }
        }
    }

    fn take(
        &mut self,
        units: &mut Vec<String>,
        deadline: &Deadline,
        progress: &dyn Fn(String),
        fence: Fence<'_>,
    ) -> Result<(), Held> {
        let refused = |why| Held { kind: FailureKind::Refused, message: why, idle: None };
        fence().map_err(refused)?;
        let host = self.machine.host(deadline);
        let own = [
            (host.imex, IMEX),
            (host.fabric_manager, FABRIC_MANAGER),
            (host.persistenced.active, PERSISTENCED),
        ];
        // The clients first: most of them fail without the units of the driver.
        let clients = host.client_units.iter().map(String::as_str);
        let own = own.iter().filter(|(active, unit)| *active || host.restarting.contains(unit));
        let all = clients.chain(own.map(|(_, unit)| *unit));
        let running: Vec<String> =
            all.filter(|unit| !units.iter().any(|u| u == unit)).map(str::to_owned).collect();
        units.extend(running.iter().cloned());
        put_stopped_units(&self.record, units)
            .map_err(|why| Held::io(format!("nothing was stopped, because it cannot be recorded: {why}")))?;
        self.machine.release();
        for unit in &running {
            fence().map_err(refused)?;
            progress(format!("stopping {unit}"));
            self.machine.unit(unit, UnitAction::Stop, deadline).map_err(Held::io)?;
        }
        self.wait_closed(deadline)
    }

    /// Waits until no process has a file of the driver open.
    fn wait_closed(&mut self, deadline: &Deadline) -> Result<(), Held> {
        let until = Instant::now() + LETTING_GO.min(deadline.remaining());
        loop {
            let scan = self.machine.scan(&BTreeMap::new(), None);
            let clients: Vec<GpuClient> = scan
                .holders
                .iter()
                .filter(|holder| holder.open)
                .map(|holder| holder.client.clone())
                .collect();
            if clients.is_empty() && scan.unknown.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                let mut reasons = idle::sentences(&clients);
                reasons.extend(scan.unknown);
                let verdict = if clients.is_empty() { IdleVerdict::Unknown } else { IdleVerdict::Busy };
                let message = format!("the driver is in use: {}", reasons.join("; "));
                let idle = Some(IdleReport { verdict, clients, reasons });
                return Err(Held { kind: FailureKind::Busy, message, idle });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Reads the GPUs through the driver that is loaded now, or says why that is not possible.
    pub fn comes_up(&mut self, deadline: &Deadline) -> Result<Snapshot, String> {
        let read = self.machine.snapshot(deadline);
        self.machine.release();
        read.map_err(|error| error.to_string())
    }

    /// Assumes in later predictions that the driver was loaded anew; `first` is whether none was loaded before.
    pub fn assume_driver(&mut self, first: bool) {
        self.driver_comes |= first;
        self.assume_event(Event::Reload);
    }
}
