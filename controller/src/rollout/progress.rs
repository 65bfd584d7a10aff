//! The sequence of waves, the soaks between them, the end of the window, and when the run stops.

use std::collections::BTreeSet;

use gpufleet_protocol::Disruption;
use jiff::{SignedDuration, Timestamp};

use super::{Action, End, Rollout, SoFar, StopReason, Wave, host::Host};

/// How far the play has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    New,
    AwaitsWindow,
    Wave,
    Soaking {
        until: Timestamp,
    },
    /// The gates of the wave's nodes are being checked.
    Checking,
    Over,
}

impl Rollout {
    pub(super) fn begin(&mut self, actions: &mut Vec<Action>) {
        if self.stage == Stage::New {
            self.open_window();
            self.next_wave(actions);
        }
    }

    /// Moves on until something has to be waited for.
    pub(super) fn progress(&mut self, actions: &mut Vec<Action>) {
        loop {
            let stopped = self.stop.is_some();
            match self.stage {
                Stage::Over => return,
                Stage::New if !stopped => return,
                Stage::New => self.finish(actions),
                Stage::Wave if self.unfinished > 0 => return,
                Stage::Wave => self.end_wave(actions),
                _ if stopped => self.finish(actions),
                Stage::AwaitsWindow if !self.has_opened() => return,
                Stage::AwaitsWindow => self.next_wave(actions),
                Stage::Soaking { until } if self.now < until => return,
                Stage::Soaking { .. } => {
                    self.stage = Stage::Checking;
                    self.unchecked = self.done_of_wave().into_iter().collect();
                    self.ask_gates(actions);
                }
                Stage::Checking if !self.unchecked.is_empty() => return,
                Stage::Checking => self.next_wave(actions),
            }
        }
    }

    fn end_wave(&mut self, actions: &mut Vec<Action>) {
        let Some(wave) = self.current else { return };
        actions.push(Action::FinishWave { wave });
        let done: BTreeSet<usize> = self.done_of_wave().into_iter().collect();
        let canaries = self.waves.get(wave).filter(|wave| wave.canary).map(|wave| wave.hosts.as_slice());
        let held: Vec<usize> =
            canaries.into_iter().flatten().copied().filter(|host| !done.contains(host)).collect();
        if !held.is_empty() && self.has_next_wave() {
            self.halt(StopReason::CanaryHeld { held }, actions);
        }
        if self.stop.is_some() || !self.has_next_wave() {
            self.finish(actions);
        } else if self.policy.soak_s > 0 && !done.is_empty() {
            let until = self.after(self.policy.soak_s);
            self.stage = Stage::Soaking { until };
            actions.push(Action::Soak { wave, until });
        } else {
            self.next_wave(actions);
        }
    }

    fn next_wave(&mut self, actions: &mut Vec<Action>) {
        let next = self.current.map_or(0, |current| current + 1);
        let Some(hosts) = self.waves.get(next).filter(|_| !self.last_wave).map(|wave| wave.hosts.clone())
        else {
            return self.finish(actions);
        };
        if let Some(opening) = self.opening {
            if !self.has_opened() {
                self.stage = Stage::AwaitsWindow;
                actions.push(Action::WaitsForWindow { opens: opening.opens });
                return;
            }
            if !self.fits(self.policy.needs.least()) {
                self.halt(StopReason::WindowClosed { closes: opening.closes }, actions);
                return self.finish(actions);
            }
        }
        self.stage = Stage::Wave;
        self.current = Some(next);
        self.failed_in_wave = 0;
        self.unfinished = hosts.len();
        actions.push(Action::StartWave { wave: next });
        for host in hosts {
            let holds = self.places.marks(host).ours;
            self.set(host, Host::Running { holds });
            actions.push(Action::Start { host });
        }
    }

    fn finish(&mut self, actions: &mut Vec<Action>) {
        self.stage = Stage::Over;
        let hosts = self.hosts.iter().enumerate();
        let never_started =
            hosts.filter(|(_, host)| matches!(host, Host::Pending)).map(|(index, _)| index).collect();
        actions.push(Action::Finish { never_started });
    }

    fn has_next_wave(&self) -> bool {
        !self.last_wave && self.current.map_or(0, |current| current + 1) < self.waves.len()
    }

    fn done_of_wave(&self) -> Vec<usize> {
        let Some(wave) = self.current.and_then(|wave| self.waves.get(wave)) else { return Vec::new() };
        let done = |host: &usize| matches!(self.hosts.get(*host), Some(Host::Ended { end: End::Done, .. }));
        wave.hosts.iter().copied().filter(done).collect()
    }

    fn ask_gates(&self, actions: &mut Vec<Action>) {
        if let Some(wave) = self.current {
            actions.push(Action::CheckSoak { wave, hosts: self.unchecked.iter().copied().collect() });
        }
    }

    pub(super) fn count_failure(&mut self, host: usize, actions: &mut Vec<Action>) {
        self.lost.failed += 1;
        self.failed_in_wave += usize::from(self.is_of_this_wave(host));
        if let Some(reason) = self.bound_reached() {
            self.halt(reason, actions);
        }
    }

    fn bound_reached(&self) -> Option<StopReason> {
        let index = self.current?;
        let wave = self.waves.get(index)?;
        let (failed, bounds) = (self.failed_in_wave, &self.policy.thresholds);
        if bounds.any_errors_fatal {
            return Some(StopReason::AnyError);
        }
        // Counted by wave: a node of an earlier wave that takes part again is no canary of this one.
        if wave.canary && failed > 0 {
            return Some(StopReason::Canary { failed: self.failed_of(wave) });
        }
        if let Some(reason) = self.too_many_lost() {
            return Some(reason);
        }
        // In a wave of nodes that were broken before, a percentage of the few nodes would mean nothing.
        let of = match wave.aside {
            true => self.waves.iter().map(|wave| wave.hosts.len()).sum(),
            false => wave.hosts.len(),
        };
        if bounds.max_fail_percentage.is_some_and(|max| failed as f64 * 100.0 > max * of as f64) {
            return Some(StopReason::FailPercentage { wave: index, failed, of });
        }
        let is_bounded = bounds.max_failures.is_some() || bounds.max_fail_percentage.is_some();
        let whole = failed == wave.hosts.len() && index + 1 < self.waves.len();
        (whole && !(wave.aside && is_bounded)).then_some(StopReason::WholeWave { wave: index })
    }

    fn failed_of(&self, wave: &Wave) -> Vec<usize> {
        let failed = |host: &usize| {
            let state = self.hosts.get(*host);
            matches!(state, Some(Host::Ended { end: End::Failed | End::Unreachable, .. }))
        };
        wave.hosts.iter().copied().filter(failed).collect()
    }

    /// Returns the reason to stop if the whole run has lost more nodes than it may.
    fn too_many_lost(&self) -> Option<StopReason> {
        let (lost, bounds) = (self.lost, &self.policy.thresholds);
        let failures = bounds.max_failures.filter(|allowed| lost.failed > *allowed);
        let failures = failures.map(|allowed| StopReason::Failures { failed: lost.failed, allowed });
        failures.or_else(|| {
            let allowed = bounds.max_unreachable.filter(|allowed| lost.unreachable > *allowed)?;
            Some(StopReason::Unreachable { unreachable: lost.unreachable, allowed })
        })
    }

    /// Stops starting nodes, and gives back those that are still being drained.
    pub(super) fn halt(&mut self, reason: StopReason, actions: &mut Vec<Action>) {
        if self.stop.is_some() || self.stage == Stage::Over {
            return;
        }
        self.stop = Some(reason.clone());
        actions.push(Action::Stop { reason });
        actions.extend(self.draining.iter().map(|host| Action::StopDraining { host: *host }));
    }

    fn open_window(&mut self) {
        self.opening = self.policy.window.as_ref().map(|window| window.now_or_next(self.now));
        self.closed = false;
        self.too_late.clear();
    }

    /// Handles the end of the window, unless another opening has begun.
    pub(super) fn follow_window(&mut self) {
        let (Some(opening), Some(window), false) = (self.opening, &self.policy.window, self.closed) else {
            return;
        };
        if self.now < opening.closes {
            return;
        }
        let next = window.now_or_next(self.now);
        if next.opens <= opening.closes {
            self.opening = Some(next);
        } else {
            self.closed = true;
        }
    }

    /// Stops if the window closed while a host waits for a place, is being drained or was not started.
    pub(super) fn close_window(&mut self, actions: &mut Vec<Action>) {
        let Some(opening) = self.opening.filter(|_| self.closed) else { return };
        if self.has_next_wave() || !self.queue.is_empty() || !self.draining.is_empty() {
            self.halt(StopReason::WindowClosed { closes: opening.closes }, actions);
        }
    }

    /// Requests an alarm for when time alone changes something.
    pub(super) fn set_alarm(&mut self, actions: &mut Vec<Action>) {
        let next = self.next_alarm();
        if next != self.wake {
            self.wake = next;
            actions.extend(next.map(|at| Action::WakeAt { at }));
        }
    }

    fn next_alarm(&self) -> Option<Timestamp> {
        if matches!(self.stage, Stage::New | Stage::Over) || self.stop.is_some() {
            return None;
        }
        let mut moments: Vec<Timestamp> = self.again.into_iter().collect();
        if let Stage::Soaking { until } = self.stage {
            moments.push(until);
        }
        if let Some(opening) = self.opening {
            moments.extend([opening.opens, opening.closes]);
            if !self.queue.is_empty() {
                for class in [Disruption::Live, Disruption::Clients, Disruption::GpuReset, Disruption::Reboot]
                {
                    // Less a millisecond, because a class still fits at its last moment.
                    let needs_ms = self.policy.needs.of(class).saturating_mul(1000).saturating_sub(1);
                    let needs = SignedDuration::from_millis(i64::try_from(needs_ms).unwrap_or(i64::MAX));
                    moments.extend(opening.closes.checked_sub(needs).ok());
                }
            }
        }
        moments.into_iter().filter(|at| *at > self.now).min()
    }

    /// Continues after a controller's end: its requests are dropped, nodes that are out stay out. A stop by a person
    /// or by the window is lifted, one by a threshold is not.
    pub(super) fn resume(&mut self, actions: &mut Vec<Action>) {
        let goes_on = self.stop.as_ref().is_some_and(|reason| !reason.is_lasting());
        if self.stage == Stage::Over && goes_on {
            self.stage = if self.current.is_some() { Stage::Wave } else { Stage::AwaitsWindow };
        }
        if matches!(self.stage, Stage::New | Stage::Over) {
            return;
        }
        if goes_on {
            self.stop = None;
        }
        for host in 0..self.hosts.len() {
            if self.places.marks(host).late {
                self.mark(host, |marks| marks.late = false);
            }
        }
        self.open_window();
        self.wake = None;
        self.surveys.forget();
        self.unannounced.clear();
        self.draining.clear();
        for host in self.queue.hosts() {
            self.queue.remove(host);
        }
        for host in self.in_flight() {
            let Some(state) = self.hosts.get(host).copied() else { continue };
            let state = state.resumed(self.policy.drains);
            self.set(host, state);
            if state == Host::RUNNING {
                self.mark(host, |marks| marks.ours = false);
            }
        }
        match (self.stage, self.current) {
            (Stage::Soaking { until }, Some(wave)) => actions.push(Action::Soak { wave, until }),
            (Stage::Checking, _) => self.ask_gates(actions),
            _ => {}
        }
        if let Some(opening) = self.opening.filter(|_| !self.has_opened()) {
            actions.push(Action::WaitsForWindow { opens: opening.opens });
        }
    }

    /// Returns the nodes that this play is not working on, and has not left out of service.
    pub(super) fn at_rest(&self) -> Vec<usize> {
        let rests = |(index, host): &(usize, &Host)| !host.is_in_flight() && !self.places.marks(*index).ours;
        self.hosts.iter().enumerate().filter(rests).map(|(index, _)| index).collect()
    }

    /// Whether the play itself found that the node does not answer.
    pub(super) fn is_lost(&self, host: usize) -> bool {
        matches!(self.hosts.get(host), Some(Host::Ended { end: End::Unreachable, .. }))
    }

    /// Takes over what other plays changed meanwhile. Nodes that failed there since count here.
    pub(super) fn look_beside(&mut self, so_far: SoFar, out: &BTreeSet<usize>, actions: &mut Vec<Action>) {
        let before = std::mem::replace(&mut self.lost_before, so_far.lost);
        let now = |all: usize, before: usize, now: usize| (all + now).saturating_sub(before);
        self.lost.failed = now(self.lost.failed, before.failed, so_far.lost.failed);
        self.lost.unreachable = now(self.lost.unreachable, before.unreachable, so_far.lost.unreachable);
        self.places.set_elsewhere(so_far.out_elsewhere);
        for host in self.at_rest() {
            let absent = out.contains(&host) || self.is_lost(host);
            self.mark(host, |marks| marks.absent = absent);
        }
        let more = so_far.lost.failed > before.failed || so_far.lost.unreachable > before.unreachable;
        if let Some(reason) = self.too_many_lost().filter(|_| more) {
            self.halt(reason, actions);
        }
    }

    /// Adds a node to the last wave, and starts it if that wave has begun.
    pub(super) fn enlist(&mut self, host: usize) {
        if self.waves.is_empty() {
            self.waves.push(Wave { label: "all".to_owned(), ..Wave::default() });
        }
        let last = self.waves.len() - 1;
        if let (Some(wave), Some(of)) = (self.waves.get_mut(last), self.wave_of.get_mut(host)) {
            wave.hosts.push(host);
            *of = last;
        }
        self.mark(host, |marks| marks.absent = false);
        if self.current == Some(last) {
            self.set(host, Host::RUNNING);
            self.unfinished += 1;
            self.stage = Stage::Wave;
        } else if self.stage == Stage::Over {
            // A play that ended because all its hosts were lost still has its one wave before it.
            self.stage = Stage::AwaitsWindow;
        }
    }

    /// Lets a node that ended held, unreachable or stopped take part again; its wave then ends only after it.
    pub(super) fn reopen(&mut self, host: usize, end: End, still_out: bool) {
        if end == End::Unreachable {
            self.lost.unreachable = self.lost.unreachable.saturating_sub(1);
            self.lost.failed = self.lost.failed.saturating_sub(1);
            self.failed_in_wave = self.failed_in_wave.saturating_sub(usize::from(self.is_of_this_wave(host)));
        }
        self.mark(host, |marks| (marks.ended, marks.absent) = (false, false));
        self.set(host, if still_out { Host::Out } else { Host::RUNNING });
        self.unfinished += 1;
        if matches!(self.stop, Some(StopReason::CanaryHeld { .. })) {
            self.stop = None;
        }
        self.stage = Stage::Wave;
    }
}
